"""The outcome of each donation, as JSON and as lines of text."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from xlapipe.plans.donatable import argument_name
from xlapipe.plans.donation import SMALL_COPIES, Donation, small_copies
from xlapipe.plans.leaf_writes import together
from xlapipe.plans.wording import counted
from xlapipe.report.memory_spaces import move_figures
from xlapipe.report.records import named

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
