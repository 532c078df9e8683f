"""The outcome of each donation, as JSON, as a section of a report, and as lines of text."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from xlapipe.plans.donatable import argument_name
from xlapipe.plans.donation import SMALL_COPIES, Donation, donations, small_copies
from xlapipe.plans.labels import labels_of, pattern_of
from xlapipe.plans.leaf_writes import together
from xlapipe.plans.wording import counted
from xlapipe.report import cells
from xlapipe.report.cells import Name, Outcome
from xlapipe.report.memory_spaces import move_figures
from xlapipe.report.pages import Section, Table, grouped
from xlapipe.report.records import named
from xlapipe.report.xla_subject import XlaSubject

_MAX_LEAVES = 40
_DIGITS = re.compile(r"\d")


def donation_figures(donation: Donation) -> dict[str, Any]:
    """The JSON of a donated leaf; without an alias `output` is None and `reason` set."""
    return {
        **named(donation, "path", "shape", "dtype", "size_bytes", "outcome", "holds", "output"),
        **named(donation, "reason", "advice", "source"),
        "written_bytes": donation.writes and donation.writes.written_bytes,
        "changed_bytes": donation.writes and donation.writes.changed_bytes,
        "is_rewritten": donation.is_rewritten,
        "copies": [
            named(copy, "instruction", "copied_bytes", "op_name", "source")
            for copy in donation.copies
        ],
        "moves": list(map(move_figures, donation.moves)),
    }


class _Row(NamedTuple):
    """A donated leaf; `output` is empty without an alias."""

    path: str
    output: str
    outcome: str
    is_wasteful: bool
    size_bytes: int


def donation_section(opened: XlaSubject) -> Section:
    """What failed, and a row for the leaves that differ only by a number in their paths."""
    groups = grouped(
        _rows(opened), lambda row: (row.outcome, pattern_of(row.path), pattern_of(row.output))
    )
    ordered = sorted(
        groups.values(),
        key=lambda group: (not group[0].is_wasteful, -sum(row.size_bytes for row in group)),
    )

    def name(texts: Sequence[str]) -> str:
        return texts[0] if len(texts) == 1 else pattern_of(texts[0])

    table = Table.of(
        "",
        ordered,
        {
            "argument": lambda group: Name(
                name([row.path for row in group]),
                tuple(f"{row.path} → {row.output}" if row.output else row.path for row in group),
            ),
            "outcome": lambda group: Outcome(
                group[0].outcome, "bad" if group[0].is_wasteful else "good"
            ),
            "output": lambda group: Name(name([row.output for row in group])),
            "bytes": lambda group: cells.size(sum(row.size_bytes for row in group)),
        },
    )
    rows = donations(opened.program) if opened.dump is not None else ()
    lines = tuple(donation_lines(rows)) if ordered else ("None: no argument is donated.",)
    return Section("Donation", lines, (table,), "donation")


def _rows(opened: XlaSubject) -> Iterator[_Row]:
    """The donated leaves; of files without a manifest, XLA's aliases and buffer donors."""
    if opened.dump is not None:
        for row in donations(opened.program):
            yield _Row(row.path, row.output or "", _word(row), row.is_wasteful, row.size_bytes)
        return
    plan, labels = opened.plan, labels_of(opened.program)
    outputs = {a.parameter_number: opened.program.output_path(a.output_index) for a in plan.aliases}
    outputs |= {number: "" for number, _ in plan.buffer_donors or () if number not in outputs}
    for number, output in outputs.items():
        if (allocation := plan.parameter_allocation(number)) is not None:
            outcome = "aliased" if output else "buffer donor only"
            path = labels.parameter(allocation)
            yield _Row(path, output, outcome, not output, allocation.size_bytes)


def donation_lines(rows: Sequence[Donation]) -> Iterator[str]:
    """A heading, and the leaves whose donation failed, those of one cause once."""
    if not rows:
        return
    yield _heading(rows)
    small = small_copies(rows)
    if small:
        size = sum(row.size_bytes for row in small)
        leaves = counted(len(small), "small leaf", "small leaves")
        yield (
            f"  note: {leaves}, {size:,} B, in place and copied or rewritten: at most "
            f"1/{SMALL_COPIES:,} of what is donated (--json lists them)"
        )
    groups: dict[tuple[str, ...], list[Donation]] = {}
    for row in rows:
        if row.is_wasteful and row not in small:
            advice = _DIGITS.sub("", row.advice)
            key = argument_name(row.path), _word(row), str(row.source), advice
            groups.setdefault(key, []).append(row)
    shown = sorted(groups.items(), key=lambda item: -sum(row.size_bytes for row in item[1]))
    for (name, outcome, *_), group in shown[:_MAX_LEAVES]:
        row = max(group, key=lambda row: row.size_bytes)
        if len(group) > 1:
            total = sum(row.size_bytes for row in group)
            yield f"  {len(group)} leaves of {name!r}, {total:,} B, {outcome}; the largest:"
        yield f"  {row.path}  {row.size_bytes:,} B  {_outcome(row)}"
        for detail in _details(row):
            yield f"      {detail}"
    if len(shown) > _MAX_LEAVES:
        yield f"  … and {len(shown) - _MAX_LEAVES} more (--json lists all)"


def _heading(rows: Sequence[Donation]) -> str:
    in_place = [row for row in rows if row.holds]
    in_place_bytes = sum(row.size_bytes for row in in_place)
    leaves = counted(len(rows), "leaf", "leaves")
    text = f"donation: {len(in_place)} of {leaves} in place, {in_place_bytes:,} B"
    rewritten = [row.writes for row in in_place if row.writes is not None and row.writes.is_whole]
    if rewritten:
        text += f"; {len(rewritten)} of them rewritten: {together(rewritten)} in each step"
    return text


def _outcome(row: Donation) -> str:
    return f"{_word(row).upper()}{f' -> {row.output}' if row.output else ''}: {row.reason}"


def _word(row: Donation) -> str:
    return "in place, but rewritten" if row.holds and row.reason else str(row.outcome)


def _details(row: Donation) -> Iterator[str]:
    for copy in row.copies:
        at = f" at {copy.source}" if copy.source is not None else ""
        yield f"{copy.instruction}, {copy.copied_bytes:,} B{at}"
    if row.source is not None and not row.copies:
        yield f"at {row.source}"
    if row.advice:
        yield f"try: {row.advice}"
