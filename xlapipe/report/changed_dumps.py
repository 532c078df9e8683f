"""What changed between two folders of dumps, in Markdown for a pull request."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from xlapipe.differences import Sentence, compare_opened
from xlapipe.dump.dump import HLO, PLAN, open_dump, read_checked_file, read_manifest
from xlapipe.dump.manifest import MANIFEST
from xlapipe.dump.normal_form.plan import read_normal_form
from xlapipe.errors import XlapipeError
from xlapipe.plans.donation import donations
from xlapipe.report.pages import code, html_text, table
from xlapipe.report.units import seconds_text
from xlapipe.report.xla_subject import XlaSubject

# Finds the comment of an earlier run, to replace it.
MARKER = "<!-- xlapipe plans -->"
# Below GitHub's 65,536 characters of a comment.
MOST_CHARACTERS = 60_000
_MAX_SENTENCES = 12
_HEADINGS = {
    "argument_bytes": "arguments, B",
    "temp_bytes": "temp, B",
    "total_bytes": "total, B",
    "step_seconds": "predicted time",
    "donated_in_place": "donated in place",
    "wire_bytes": "wire, B",
}
# What kernels cost, beside plan and HLO.
_COSTS = ("stated_costs", "stated_trips", "kernel_codes")


def changed_dumps(old: Path, new: Path) -> list[dict[str, Any]]:
    """The JSON of `xlapipe diff --markdown`: dumps whose plan, HLO or kernels differ.

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
        if not _is_same(*sides):
            opened = [XlaSubject(open_dump(side)) if side is not None else None for side in sides]
            changed.append(changed_figures(name, *opened))
    return changed


def changed_figures(name: str, old: XlaSubject | None, new: XlaSubject | None) -> dict[str, Any]:
    """The figures of a dump in both folders, and the sentences that state its changes."""
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


def _is_same(old: Path | None, new: Path | None) -> bool:
    """Whether plan, HLO and the cost of kernels are the same on both sides.

    Raises:
      DumpError: a file is missing, damaged or another one than the manifest states.
    """
    if old is None or new is None:
        return False
    manifests = [read_manifest(side, check_files=True) for side in (old, new)]
    if any(getattr(manifests[0], name) != getattr(manifests[1], name) for name in _COSTS):
        return False
    texts = [
        [read_checked_file(side, manifest, name) for name in (PLAN, HLO)]
        for side, manifest in zip((old, new), manifests, strict=True)
    ]
    if texts[0] == texts[1]:
        return True
    forms = [read_normal_form(side).canonical for side in (old, new)]
    return (forms[0].plan, forms[0].hlo) == (forms[1].plan, forms[1].hlo)


def _dump_names(folder: Path) -> set[str]:
    return {str(path.parent.relative_to(folder)) for path in folder.rglob(MANIFEST)}


def changed_markdown(changed: Sequence[Mapping[str, Any]], *, link: str | None = None) -> str:
    """The comment: a table of totals, time, donation and traffic, and the changes of each dump.

    Text of dumps is in code, where no mention, address or Markdown is live.
    """
    if not changed:
        return f"{MARKER}\n**XLA plans:** no plan changed.\n"
    rows = ((code(dump["name"]), *(_cell(dump, key) for key in _HEADINGS)) for dump in changed)
    blocks = [f"{MARKER}\n**XLA plans:** {len(changed)} changed.\n"]
    blocks += table(("plan", *_HEADINGS.values()), rows, right=range(1, len(_HEADINGS)))
    blocks += ["\n".join(_details(dump)) for dump in changed if dump["changes"]]
    report = f"[Full report]({link})\n" if link is not None else ""
    where = "the full report has all" if link is not None else "`--json` prints all"
    cut = f"\nCut at {MOST_CHARACTERS:,} characters; {where}.\n"
    room = MOST_CHARACTERS - len(report) - len(cut)
    text = ""
    for block in blocks:
        if len(text) + len(block) + 1 > room:
            return f"{text}{cut}{report}"
        text += f"{block}\n"
    return f"{text}{report}"


def _details(dump: Mapping[str, Any]) -> Iterator[str]:
    sentences = dump["changes"]
    yield f"<details><summary><code>{html_text(dump['name'])}</code></summary>"
    yield ""
    yield from (f"- {code(sentence, in_table=False)}" for sentence in sentences[:_MAX_SENTENCES])
    if len(sentences) > _MAX_SENTENCES:
        yield f"- … and {len(sentences) - _MAX_SENTENCES} more"
    yield ""
    yield "</details>"
    yield ""


def _cell(dump: Mapping[str, Any], key: str) -> str:
    before, after = dump["before"], dump["after"]
    if before is None or after is None:
        return f"{_text(after[key])} (new)" if before is None else "removed"
    old, new = _text(before[key]), _text(after[key])
    return new if old == new else f"{old} → {new}"


def _text(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, float):
        return seconds_text(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _figures(opened: XlaSubject | None) -> dict[str, Any] | None:
    if opened is None:
        return None
    totals = opened.plan.totals
    rows = donations(opened.program)
    collectives = opened.plan.collectives
    wire = [c.of_step(c.wire_bytes) for c in collectives] if collectives is not None else [None]
    prediction = opened.prediction
    return {
        "argument_bytes": totals.parameter_bytes,
        "temp_bytes": totals.temp_bytes,
        "total_bytes": totals.total_allocation_bytes,
        "step_seconds": prediction.step_seconds if prediction is not None else None,
        "donated_in_place": f"{sum(row.holds for row in rows)} of {len(rows)}",
        "wire_bytes": None if None in wire else sum(size for size in wire if size is not None),
    }
