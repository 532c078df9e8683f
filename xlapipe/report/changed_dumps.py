"""What changed between two folders of dumps, in Markdown for a pull request."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from xlapipe.diff import Sentence, compare_opened
from xlapipe.dump.dump import PLAN, open_dump, read_checked_file, read_manifest
from xlapipe.dump.manifest import MANIFEST
from xlapipe.errors import XlapipeError
from xlapipe.plans.donation import donations
from xlapipe.report.pages import code, html_text, plain, table
from xlapipe.report.xla_subject import XlaSubject

# Finds the comment of an earlier run, to replace it.
MARKER = "<!-- xlapipe plans -->"
_MAX_SENTENCES = 12
_HEADINGS = {
    "argument_bytes": "arguments, B",
    "temp_bytes": "temp, B",
    "total_bytes": "total, B",
    "donated_in_place": "donated in place",
    "wire_bytes": "wire, B",
}


def changed_dumps(old: Path, new: Path) -> list[dict[str, Any]]:
    """The JSON of `xlapipe comment`: dumps whose normal form differs, or that one folder has.

    `before` and `after` are None in the folder that lacks a dump.

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
            opened = [XlaSubject(open_dump(side)) if side is not None else None for side in sides]
            changed.append(changed_figures(name, *opened))
    return changed


def changed_figures(name: str, old: XlaSubject | None, new: XlaSubject | None) -> dict[str, Any]:
    """The figures of a dump in both folders, and the sentences that state its changes.

    Args:
      name: its path in both folders.
      old, new: None in the folder that lacks it.
    """
    sentences: list[Sentence] = []
    if old is not None and new is not None:
        stated = compare_opened(old.program, new.program, names=("before", "after")).sentences()
        sentences = [*stated.programs, *stated.account, *stated.changes]
    return {
        "name": name,
        "before": _figures(old),
        "after": _figures(new),
        "changes": [sentence.text for sentence in sentences],
    }


def _plan_text(folder: Path) -> bytes:
    """plan.txt after comparing it with its digest: an old one may be beside files of another plan.

    Raises:
      DumpError: a file is missing or damaged.
    """
    manifest = read_manifest(folder, check_files=True)
    return read_checked_file(folder, manifest, PLAN)


def _dump_names(folder: Path) -> set[str]:
    return {str(path.parent.relative_to(folder)) for path in folder.rglob(MANIFEST)}


def changed_markdown(
    changed: Sequence[Mapping[str, Any]], *, link: str | None = None
) -> Iterator[str]:
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
    rows = ((code(dump["name"]), *(_cell(dump, key) for key in _HEADINGS)) for dump in changed)
    yield from table(("plan", *_HEADINGS.values()), rows, right=range(1, 6))
    for dump in changed:
        sentences = dump["changes"]
        if sentences:
            yield ""
            yield f"<details><summary>{html_text(dump['name'])}</summary>"
            yield ""
            yield from (f"- {plain(sentence)}" for sentence in sentences[:_MAX_SENTENCES])
            if len(sentences) > _MAX_SENTENCES:
                yield f"- … and {len(sentences) - _MAX_SENTENCES} more"
            yield ""
            yield "</details>"
    if link is not None:
        yield ""
        yield f"[Full report]({link})"


def _cell(dump: Mapping[str, Any], key: str) -> str:
    before, after = dump["before"], dump["after"]
    if before is None or after is None:
        return f"{_text(after[key])} (new)" if before is None else "removed"
    old, new = _text(before[key]), _text(after[key])
    return new if old == new else f"{old} → {new}"


def _text(value: Any) -> str:
    if value is None:
        return "unknown"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _figures(opened: XlaSubject | None) -> dict[str, Any] | None:
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
