"""What changed between two folders of dumps, in Markdown for a pull request."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xlapipe.diff import Difference, compare_opened
from xlapipe.dump.dump import PLAN, open_dump, read_checked_file, read_manifest
from xlapipe.dump.manifest import MANIFEST
from xlapipe.dump.opened import Opened
from xlapipe.errors import XlapipeError
from xlapipe.plans.donation import donations
from xlapipe.report.markdown_syntax import code, html_text, plain, table

# Finds the comment of an earlier run, to replace it.
MARKER = "<!-- xlapipe plans -->"
_MAX_SENTENCES = 12
_RIGHT = frozenset(range(1, 6))


@dataclass(frozen=True)
class ChangedDump:
    """A dump that differs between the folders.

    Attributes:
      name: its path in both folders.
      old, new: None in the folder that lacks it.
      difference: None if one lacks it.
    """

    name: str
    old: Opened | None
    new: Opened | None
    difference: Difference | None


def changed_dumps(old: Path, new: Path) -> tuple[ChangedDump, ...]:
    """The dumps whose normal form differs, and those that only one folder has.

    Raises:
      XlapipeError: `new` has no dump, or a dump is damaged.
    """
    names = {folder: _dump_names(folder) for folder in (old, new)}
    if not names[new]:
        raise XlapipeError(f"{new}: expected dumps of xlapipe, found no {MANIFEST}")
    changed = []
    for name in sorted(names[old] | names[new]):
        sides = [folder / name if name in names[folder] else None for folder in (old, new)]
        texts = [_plan_text(side) if side is not None else None for side in sides]
        if texts[0] != texts[1]:
            before, after = (_open(side) if side is not None else None for side in sides)
            changed.append(_changed(name, before, after))
    return tuple(changed)


def _plan_text(folder: Path) -> bytes:
    """plan.txt after comparing it with its digest: an old one may be beside files of another plan.

    Raises:
      DumpError: a file is missing or damaged.
    """
    manifest = read_manifest(folder, check_files=True)
    return read_checked_file(folder, manifest, PLAN)


def _dump_names(folder: Path) -> set[str]:
    return {str(path.parent.relative_to(folder)) for path in folder.rglob(MANIFEST)}


def _open(path: Path) -> Opened:
    return Opened.of_dump(open_dump(path))


def _changed(name: str, old: Opened | None, new: Opened | None) -> ChangedDump:
    if old is None or new is None:
        return ChangedDump(name, old, new, None)
    return ChangedDump(name, old, new, compare_opened(old, new, names=("before", "after")))


def changed_figures(changed: Sequence[ChangedDump]) -> list[dict[str, Any]]:
    """The JSON of `xlapipe comment`."""
    return [
        {
            "name": dump.name,
            "before": _figures(dump.old),
            "after": _figures(dump.new),
            "changes": [sentence.text for sentence in _sentences(dump)],
        }
        for dump in changed
    ]


def changed_markdown(changed: Sequence[ChangedDump], *, link: str | None = None) -> Iterator[str]:
    """The comment: a table of totals, donation and traffic, and the changes of each dump.

    Args:
      link: address of the full report.
    """
    yield MARKER
    if not changed:
        yield "**XLA plans:** no plan changed."
        return
    yield f"**XLA plans:** {len(changed)} changed."
    yield ""
    headings = ("plan", "arguments, B", "temp, B", "total, B", "donated in place", "wire, B")
    yield from table(headings, (_row(dump) for dump in changed), right=_RIGHT)
    for dump in changed:
        sentences = _sentences(dump)
        if sentences:
            yield ""
            yield f"<details><summary>{html_text(dump.name)}</summary>"
            yield ""
            yield from (f"- {plain(sentence.text)}" for sentence in sentences[:_MAX_SENTENCES])
            if len(sentences) > _MAX_SENTENCES:
                yield f"- … and {len(sentences) - _MAX_SENTENCES} more"
            yield ""
            yield "</details>"
    if link is not None:
        yield ""
        yield f"[Full report]({link})"


def _sentences(dump: ChangedDump) -> list[Any]:
    if dump.difference is None:
        return []
    sentences = dump.difference.sentences()
    return [*sentences.programs, *sentences.account, *sentences.changes]


def _row(dump: ChangedDump) -> tuple[str, ...]:
    before, after = _figures(dump.old), _figures(dump.new)
    cells = (_cell(before, after, key) for key in ("argument_bytes", "temp_bytes", "total_bytes"))
    return (
        code(dump.name),
        *cells,
        _cell(before, after, "donated_in_place"),
        _cell(before, after, "wire_bytes"),
    )


def _cell(before: dict[str, Any] | None, after: dict[str, Any] | None, key: str) -> str:
    old, new = ((side[key] if side is not None else None) for side in (before, after))
    if before is None or after is None:
        return f"{_text(new)} (new)" if before is None else "removed"
    return _text(new) if old == new else f"{_text(old)} → {_text(new)}"


def _text(value: Any) -> str:
    if value is None:
        return "unknown"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _figures(opened: Opened | None) -> dict[str, Any] | None:
    if opened is None:
        return None
    totals = opened.plan.totals
    rows = donations(opened.program)
    collectives = opened.plan.collectives
    wire = [c.of_step(c.wire_bytes) for c in collectives] if collectives is not None else [None]
    return {
        "argument_bytes": totals.parameter_bytes,
        "temp_bytes": totals.temp_bytes,
        "total_bytes": totals.total_allocation_bytes,
        "donated_in_place": f"{sum(row.holds for row in rows)} of {len(rows)}",
        "wire_bytes": None if None in wire else sum(size for size in wire if size is not None),
    }
