"""What changed between two folders of dumps, in Markdown for a pull request."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from rich.text import Text

from xlapipe.differences import compare_opened
from xlapipe.dump.dump import HLO, PLAN, open_dump, read_checked_file, read_manifest
from xlapipe.dump.manifest import MANIFEST
from xlapipe.dump.normal_form.plan import read_normal_form
from xlapipe.errors import XlapipeError
from xlapipe.files.visible_text import visible_line
from xlapipe.plans.donation import donations, small_copies
from xlapipe.plans.second_call import recompiles
from xlapipe.plans.wording import listed
from xlapipe.report.pages import column_widths
from xlapipe.report.records import named
from xlapipe.report.units import rounded, seconds_text
from xlapipe.report.xla_subject import XlaSubject
from xlapipe.time.predict import Prediction
from xlapipe.time.predict.interval import probability_faster, shipped_errors

# Finds the comment of an earlier run, to replace it.
MARKER = "<!-- xlapipe plans -->"
# Below GitHub's 65,536 characters of a comment.
MOST_CHARACTERS = 60_000
_MAX_SENTENCES = 12
# Cells of a column that says nothing where all are of these.
_NOTHING: tuple[Any, ...] = (0, None, [], "0 of 0")
_HEADINGS = {
    "argument_bytes": "arguments, B",
    "temp_bytes": "temp, B",
    "total_bytes": "total, B",
    "step_seconds": "predicted time",
    "mfu": "MFU",
    "wire_bytes": "wire, B",
    "recompiles": "recompiles",
    "donated_in_place": "donated in place",
    "broken": "broken expectations",
}
_MAX_CAUSES, _MAX_ROWS = 3, 100
# A change is within the predicted error unless it is slower, or faster, with 90 % probability.
_UNCERTAIN = 0.1
# What kernels cost, beside plan and HLO.
_COSTS = ("stated_costs", "stated_trips", "kernel_codes")


def changed_dumps(old: Path, new: Path) -> list[dict[str, Any]]:
    """The JSON of `xlapipe diff --markdown`: dumps whose plan, HLO or kernels differ.

    `before` and `after` are None in the folder that lacks a dump.
    """
    names = {
        folder: {str(path.parent.relative_to(folder)) for path in folder.rglob(MANIFEST)}
        for folder in (old, new)
    }
    if not names[new]:
        raise XlapipeError(f"{new}: expected dumps of xlapipe, found no {MANIFEST}")
    changed = []
    for name in sorted(names[old] | names[new]):
        sides = [folder / name if name in names[folder] else None for folder in (old, new)]
        same = _is_same(*sides)
        if same and _states_same(*sides):
            continue
        opened = [XlaSubject(open_dump(side)) if side is not None else None for side in sides]
        figures = changed_figures(name, *opened)
        if not same and figures["same"]:
            figures["verdict"] += ", of other HLO"
        if not same or figures["before"] != figures["after"]:
            changed.append(figures)
    return changed


def changed_figures(name: str, old: XlaSubject | None, new: XlaSubject | None) -> dict[str, Any]:
    """The figures of a dump in both folders, and the sentences that state its changes."""
    figures = {"before": _figures(old), "after": _figures(new)}
    changes: list[str] = []
    causes: dict[str, list[str]] = {"bytes": [], "time": []}
    within, same, lost = None, None, []
    if old is not None and new is not None:
        studies = old.study, new.study
        difference = compare_opened(
            old.program, new.program, names=("before", "after"), studies=studies
        )
        same = difference.same
        stated = difference.sentences()
        sentences = [*stated.programs, *stated.account, *stated.changes]
        changes = [*difference.context_lines(), *(sentence.text for sentence in sentences)]
        causes["bytes"] = [
            f"{line.delta_bytes:+,} B  {line.text}" for line in stated.account[:_MAX_CAUSES]
        ]
        lines = [change for change in difference.time if change.source is not None]
        causes["time"] = [change.text for change in lines[:_MAX_CAUSES]]
        kept = {*_in_place(new)} | {leaf.path for leaf in old.program.arguments} - {
            leaf.path for leaf in new.program.arguments
        }
        lost = [path for path in _in_place(old) if path not in kept]
        within = _within_error(*(study.prediction for study in studies))
    changed = {
        "name": name,
        "same": same,
        **figures,
        "time_within_error": within,
        "lost_donations": lost,
        "causes": causes,
        "changes": changes,
    }
    return {**changed, "verdict": verdict(changed)}


def _within_error(old: Prediction | None, new: Prediction | None) -> bool | None:
    """Whether it is uncertain which of two steps is slower; None if a time is unknown."""
    if not (old and new and old.step_seconds and new.step_seconds):
        return None
    if (old.is_estimate or new.is_estimate) and old.low_seconds and old.high_seconds:
        return old.low_seconds <= new.step_seconds <= old.high_seconds  # no error was measured
    probability = probability_faster(
        (new.step_seconds, new.spreads), (old.step_seconds, old.spreads), shipped_errors()
    )
    return _UNCERTAIN < probability < 1 - _UNCERTAIN


def verdict(changed: Mapping[str, Any]) -> str:
    """What the change of a dump costs, in a sentence."""
    old, new = changed["before"], changed["after"]
    if old is None or new is None:
        return "new" if old is None else "removed"
    parts: list[str] = []
    for key, what in (("total_bytes", "memory"), ("wire_bytes", "between devices in a step")):
        before, after = old[key], new[key]
        if None not in (before, after) and before != after:
            more = "more" if after > before else "less"
            share = f" ({after / before - 1:+.1%})" if before else ""
            parts.append(f"{rounded(abs(after - before))} {more} {what}{share}")
    seconds = old["step_seconds"], new["step_seconds"]
    if all(seconds) and seconds[0] != seconds[1]:
        ratio = seconds[1] / seconds[0]
        if changed["time_within_error"]:
            parts.append(f"its time within the predicted error ({ratio - 1:+.1%})")
        else:
            parts.append(f"{abs(ratio - 1):.1%} {'slower' if ratio > 1 else 'faster'}")
    if lost := changed["lost_donations"]:
        parts.append(f"no longer in place: {listed(lost, 3)}")
    elif old["donated_in_place"] != new["donated_in_place"]:
        parts.append(f"{new['donated_in_place']} donated leaves in place")
    if old["recompiles"] != new["recompiles"] and new["recompiles"] is not None:
        again = "compiles again" if new["recompiles"] else "no longer compiles again"
        parts.append(f"{again} at its second call")
    parts += [f"breaks {text}" for text in broken_expectations(changed)]
    unchanged = "the same plan" if changed["same"] else "another plan of the same cost"
    return "; ".join(parts) or unchanged


def broken_expectations(changed: Mapping[str, Any]) -> list[str]:
    """Expectations that do not hold after, and were held before or not there."""
    old, new = changed["before"], changed["after"]
    return [text for text in new["broken"] if text not in old["broken"]] if old and new else []


def _is_same(old: Path | None, new: Path | None) -> bool:
    """Whether plan, HLO and the cost of kernels are the same on both sides."""
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


def _states_same(*sides: Path | None) -> bool:
    """Whether expectations, and what is known of further calls, are the same."""
    manifests = [read_manifest(side, check_files=False) for side in sides if side is not None]
    return len({(str(manifest.expectations), str(manifest.call)) for manifest in manifests}) == 1


def changed_markdown(
    changed: Sequence[Mapping[str, Any]],
    *,
    link: str | None = None,
    title: str = "",
    notes: Sequence[str] = (),
) -> str:
    """The comment: a table of totals, time, donation and traffic, and the changes of each dump.

    Text of dumps is in code, where no mention, address or Markdown is live.

    Args:
      title: instead of the number of plans that changed.
      notes: lines after it.
    """
    title = title or (f"{len(changed)} changed." if changed else "no plan changed.")
    blocks = [f"{MARKER}\n**XLA plans:** {title}\n"]
    blocks += [f"- {code(note, in_table=False)}" for note in notes] + [""] * bool(notes)
    if changed:
        shown = _shown_columns(changed)
        first = changed[:_MAX_ROWS]
        rows = [(code(dump["name"]), *(_cell(dump, key) for key in shown)) for dump in first]
        headings = tuple(_HEADINGS[key] for key in shown)
        blocks += _table([("plan", *headings), *rows])
        if more := len(changed) - len(first):
            blocks.append(f"… and {more} more plans.\n")
        blocks.append("Of the causes, A is before and B after.\n")
        blocks += ["\n".join(_details(dump)) for dump in changed]
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


def code(text: object, *, in_table: bool = True) -> str:
    """A code span of Markdown that shows `text` unchanged, also in a table.

    >>> print(code("a`b|c"))
    `` a`b\\|c ``
    """
    content = visible_line(str(text))
    if in_table:
        content = content.replace("|", "\\|")
    fence = "`"
    while fence in content:
        fence += "`"
    pad = " " if "`" in content else ""
    return f"{fence}{pad}{content}{pad}{fence}"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table, padded so that it is also readable as plain text; numbers are right."""
    first, *others = (max(3, width) for width in column_widths(rows))
    ruler = ["-" * first, *("-" * (width - 1) + ":" for width in others)]
    lines = (
        [row[0].ljust(first), *map(str.rjust, row[1:], others)]
        for row in (rows[0], ruler, *rows[1:])
    )
    return [*(f"| {' | '.join(line)} |" for line in lines), ""]


def changed_lines(changed: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    """The same for a terminal: a table below the name of each dump, and the causes."""
    for dump in changed:
        yield Text(f"{dump['name']}: {dump['verdict']}", style="bold")
        keys = _shown_columns([dump]) if dump["after"] is not None else []
        shown = [(_HEADINGS[key], _cell(dump, key)) for key in keys]
        width = max((len(heading) for heading, _ in shown), default=0)
        yield from (Text(f"  {heading:<{width}}  {cell}") for heading, cell in shown)
        for what, texts in dump["causes"].items():
            yield from (Text(f"  {what}: {text}") for text in texts)


def _shown_columns(changed: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns in which a dump has more than 0, nothing, or what is unknown."""
    sides = [dump[side] for dump in changed for side in ("before", "after") if dump[side]]
    return [key for key in _HEADINGS if any(side[key] not in _NOTHING for side in sides)]


def _details(dump: Mapping[str, Any]) -> Iterator[str]:
    texts = dump["changes"]
    heading = escape(visible_line(f"{dump['name']}: {dump['verdict']}"))
    yield f"<details><summary><code>{heading}</code></summary>"
    yield ""
    for what, causes in dump["causes"].items():
        yield from (f"- {what}: {code(text, in_table=False)}" for text in causes)
    yield from (f"- {code(text, in_table=False)}" for text in texts[:_MAX_SENTENCES])
    if len(texts) > _MAX_SENTENCES:
        yield f"- … and {len(texts) - _MAX_SENTENCES} more"
    yield ""
    yield "</details>"
    yield ""


def _cell(dump: Mapping[str, Any], key: str) -> str:
    before, after = dump["before"], dump["after"]
    if before is None or after is None:
        return f"{_text(after, key)} (new)" if before is None else "removed"
    old, new = _text(before, key), _text(after, key)
    if old == new:
        return new
    numbers = before[key], after[key]
    share = ""
    if key.endswith(("_bytes", "_seconds")) and all(numbers):
        share = f" ({numbers[1] / numbers[0] - 1:+.1%})"
    if key == "step_seconds":
        share += ", within the error" if dump["time_within_error"] else ""
        if after["low_seconds"] and after["high_seconds"]:
            low, high = (seconds_text(after[f"{end}_seconds"]) for end in ("low", "high"))
            share += f" [{low} to {high}]"
    return f"{old} → {new}{share}"


def _text(figures: Mapping[str, Any], key: str) -> str:
    value = figures[key]
    if value is None:
        least = figures["at_least_seconds"] if key == "step_seconds" else None
        return "unknown" if least is None else f"at least {seconds_text(least)}"
    if key == "broken":
        return ", ".join(map(code, value)) or "none"
    if isinstance(value, float):
        return seconds_text(value) if key == "step_seconds" else f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _in_place(opened: XlaSubject) -> list[str]:
    """The donated leaves that are updated in place, and neither copied nor rewritten first."""
    rows = donations(opened.program)
    small = small_copies(rows)
    return [row.path for row in rows if row in small or not row.is_wasteful]


def _figures(opened: XlaSubject | None) -> dict[str, Any] | None:
    if opened is None:
        return None
    totals = opened.plan.totals
    collectives = opened.plan.collectives
    wire = [c.of_step(c.wire_bytes) for c in collectives] if collectives is not None else [None]
    prediction = opened.study.prediction_with_mfu
    rows = donations(opened.program)
    again = recompiles(opened.program)
    return {
        "argument_bytes": totals.parameter_bytes,
        "temp_bytes": totals.temp_bytes,
        "total_bytes": totals.total_allocation_bytes,
        **named(prediction, "step_seconds", "at_least_seconds", "low_seconds", "high_seconds"),
        "mfu": prediction.mfu if prediction is not None else None,
        "recompiles": len(again) if again is not None else None,
        "broken": [finding.expectation for finding in opened.findings if not finding.holds],
        "donated_in_place": f"{len(_in_place(opened))} of {len(rows)}",
        "wire_bytes": None if None in wire else sum(size for size in wire if size is not None),
    }
