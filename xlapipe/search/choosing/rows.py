"""Rows of compiled candidates, and which of them is chosen."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from xlapipe.report.records import named
from xlapipe.search.candidate import Candidate
from xlapipe.search.planned_memory import PlannedMemory
from xlapipe.time.predict.interval import probability_faster, shipped_errors


@dataclass(frozen=True)
class ChoiceRow:
    """A candidate that was compiled.

    Attributes:
      items: the value of the argument to maximise; None without one.
      number: in the order in which candidates were given.
      chosen: whether it is the fastest row of its target that fits, by predicted time.
      price: of one device for an hour; None if unknown.
      probability_faster: than the chosen row; None of that row, and if a time is unknown.
    """

    candidate: Candidate
    memory: PlannedMemory
    items: float | None
    number: int = 0
    chosen: bool = False
    price: float | None = None
    probability_faster: float | None = None

    @property
    def devices(self) -> int:
        """Devices that run the step: hosts and GPUs, or sides of a grid and slices, multiplied."""
        return prod(map(int, re.findall(r"\d+", self.memory.topology or "1")))

    @property
    def cost_per_million(self) -> float | None:
        """Price of a million items, or of a million steps; None if the time or price is unknown."""
        seconds = self.seconds_per_item
        if seconds is None or self.price is None:
            return None
        return 1e6 * seconds * self.devices * self.price / 3600

    @property
    def seconds_per_item(self) -> float | None:
        """Predicted seconds of a step, per item if an argument is maximised.

        None if unknown, also where a lower bound is known: it does not show which is faster.
        """
        predicted = self.memory.predicted
        if predicted is None or predicted.seconds is None:
            return None
        return predicted.seconds / (self.items or 1.0)

    @property
    def rank(self) -> tuple[float, float, bool, int, int]:
        """Sort key: the fastest row first; of equal rows, the step as written, then the smaller."""
        seconds = self.seconds_per_item
        unknown = float("inf") if seconds is None else seconds
        changed = self.candidate.change is not None
        return unknown, -(self.items or 0.0), changed, self.memory.total_bytes, self.number

    def to_json(self) -> dict[str, Any]:
        """The row as `--json` prints it and `xlapipe.choose` returns it."""
        memory, change = self.memory, self.candidate.change
        return {
            "target": self.candidate.target,
            "arguments": dict(self.candidate.values),
            "change": change.text if change is not None else None,
            "code": change.code if change is not None else None,
            **named(memory, "total_bytes", "temp_bytes", "host_bytes", "error_bytes", "basis"),
            "limit_bytes": memory.usable_bytes,
            "headroom_bytes": memory.headroom_bytes,
            **{
                f"predicted_{name}": value
                for name, value in named(
                    memory.predicted,
                    *("seconds", "at_least_seconds", "low_seconds", "high_seconds"),
                    *("mfu", "network"),
                ).items()
            },
            "price_per_hour": self.price,
            "devices": self.devices,
            "cost_per_million": self.cost_per_million,
            "predicted_seconds_per_item": self.seconds_per_item if self.items else None,
            "probability_faster": self.probability_faster,
            "rematerialised_by_xla": memory.rematerialised,
            "fits": memory.fits,
            "chosen": self.chosen,
        }


def with_chosen(rows: Sequence[ChoiceRow]) -> tuple[ChoiceRow, ...]:
    """The rows of each target, the fastest first; the first one that fits is chosen.

    Targets are in the order in which they were given.
    """
    ordered: list[ChoiceRow] = []
    as_given = sorted(rows, key=lambda row: row.number)
    for target in dict.fromkeys(row.candidate.target for row in as_given):
        own = sorted(
            (row for row in rows if row.candidate.target == target), key=lambda row: row.rank
        )
        best = next((row for row in own if row.memory.fits), None)
        ordered += [
            replace(row, chosen=row is best, probability_faster=_probability(row, best))
            for row in own
        ]
    return tuple(ordered)


def _probability(row: ChoiceRow, best: ChoiceRow | None) -> float | None:
    """The probability that a row is faster than the chosen one."""
    if best is None or row is best:
        return None
    seconds, others = row.seconds_per_item, best.seconds_per_item
    if not seconds or not others:
        return None
    assert row.memory.predicted is not None
    assert best.memory.predicted is not None
    return probability_faster(
        (seconds, row.memory.predicted.spreads),
        (others, best.memory.predicted.spreads),
        shipped_errors(),
    )


def lower_bound_notes(rows: Sequence[ChoiceRow]) -> Iterator[str]:
    """For each target which rows have only a lower bound of their time, and what that means."""
    for target in dict.fromkeys(row.candidate.target for row in rows):
        own = [row for row in rows if row.candidate.target == target]
        bounds = [row for row in own if row.memory.predicted and row.memory.predicted.uncounted]
        if not bounds:
            continue
        reasons = (row.memory.predicted.uncounted for row in bounds if row.memory.predicted)
        why = "; ".join(dict.fromkeys(reason for own_reasons in reasons for reason in own_reasons))
        text = (
            f"{target}: of {len(bounds)} of {len(own)} forms only the least time is known, so they "
            f"are not ranked by time: {why}."
        )
        if any(row.chosen for row in bounds):
            text += (
                " The chosen form is the first that fits, as written or with the fewest bytes; "
                "whether it is the fastest is unknown."
            )
        yield text


def front(rows: Sequence[ChoiceRow]) -> tuple[ChoiceRow, ...]:
    """The rows that no other row of their target beats in memory and in time, fastest first."""
    kept: list[ChoiceRow] = []
    for target in dict.fromkeys(row.candidate.target for row in rows):
        least: int | None = None
        own = (row for row in rows if row.candidate.target == target)
        for row in sorted(own, key=lambda row: row.rank):
            if least is None or row.memory.total_bytes < least:
                kept.append(row)
                least = row.memory.total_bytes
    return tuple(kept)
