"""The account of temporary memory, compared at the peak of the larger arena."""

from collections.abc import Iterator, Mapping

from xlapipe.diff.changes import (
    BytesChange,
    ComparedValue,
    InstructionChange,
    OperationName,
    Place,
    SlackReason,
)
from xlapipe.diff.describe import InstructionDescriber
from xlapipe.diff.matching import Matching
from xlapipe.diff.places import place_labels
from xlapipe.diff.temp_arena import LiveValue, TempArena, arenas
from xlapipe.plans import LogicalBuffer


class TempAccount:
    """The lines for temporary memory."""

    def __init__(
        self,
        matching: Matching,
        a: InstructionDescriber,
        b: InstructionDescriber,
        changes: tuple[InstructionChange, ...],
    ) -> None:
        self._matching = matching
        self._describers = (a, b)
        self._changes: tuple[dict[str | None, InstructionChange], ...] = (
            {change.a: change for change in changes},
            {change.b: change for change in changes},
        )
        self._places = (place_labels(matching.a), place_labels(matching.b))
        self._values = tuple(
            {
                value.name: value
                for allocation in side.program.plan.allocations
                for value in allocation.values
            }
            for side in (matching.a, matching.b)
        )

    def lines(self) -> Iterator[BytesChange]:
        """The lines of every color."""
        plan_a, plan_b = self._matching.a.program.plan, self._matching.b.program.plan
        arenas_a, arenas_b = arenas(plan_a), arenas(plan_b)
        for color in sorted(arenas_a.keys() | arenas_b.keys()):
            yield from self._color(
                color,
                arenas_a.get(color, TempArena(plan_a, ())),
                arenas_b.get(color, TempArena(plan_b, ())),
            )

    def _color(self, color: int, a: TempArena, b: TempArena) -> Iterator[BytesChange]:
        sizes = a.size_bytes, b.size_bytes
        if sizes[0] == sizes[1]:
            return
        if a.plan.live_ranges is None or b.plan.live_ranges is None:
            # Live ranges of one dump alone would explain half of the delta.
            yield BytesChange(
                place=Place.TEMP,
                a_bytes=sizes[0],
                b_bytes=sizes[1],
                room=SlackReason.UNKNOWN,
                color=color,
            )
            return
        larger = sizes.index(max(sizes))
        positions = self._positions((a, b), larger)
        yield from self._values_alive(color, a.at(positions[0]), b.at(positions[1]))
        yield from self._slack(color, (a, b), larger, positions)

    def _slack(
        self,
        color: int,
        both: tuple[TempArena, TempArena],
        larger: int,
        positions: tuple[int, int],
    ) -> Iterator[BytesChange]:
        """The bytes of the arenas that the values alive at the compared positions do not use."""
        used = [arena.used_bytes(at) for arena, at in zip(both, positions, strict=True)]
        peaks = [arena.used_bytes(arena.peak_position) for arena in both]
        smaller = 1 - larger
        peak = both[smaller].peak_position
        largest = max(both[smaller].at(peak), key=lambda live: live.held_bytes, default=None)
        yield BytesChange(
            place=Place.TEMP,
            a_bytes=peaks[0] - used[0],
            b_bytes=peaks[1] - used[1],
            room=SlackReason.ELSEWHERE,
            moment=self._operation_at(larger, positions[larger]),
            fullest=self._operation_at(smaller, peak),
            fullest_value=largest.value.shape.text if largest is not None else "",
            color=color,
        )
        yield BytesChange(
            place=Place.TEMP,
            a_bytes=both[0].size_bytes - peaks[0],
            b_bytes=both[1].size_bytes - peaks[1],
            room=SlackReason.PACKING,
            color=color,
        )

    def _run_by(self, side: int, position: int) -> Iterator[str]:
        """Instructions that run at or before a schedule position, the last first."""
        of_side = self._describers[side].side
        live = of_side.program.plan.live_ranges
        schedule = live.schedule if live is not None else ()
        return (name for name in reversed(schedule[: position + 1]) if name in of_side.nodes)

    def _operation_at(self, side: int, position: int) -> OperationName | None:
        """The last instruction that runs at or before a schedule position."""
        return next(map(self._describers[side].operation, self._run_by(side, position)), None)

    def _positions(self, both: tuple[TempArena, TempArena], larger: int) -> tuple[int, int]:
        """The peak of the larger arena, and the position of the same instruction in the other.

        If that instruction is not paired, the nearest earlier one that is.
        """
        peak, smaller = both[larger].peak_position, both[1 - larger]
        pairs = (self._matching.instructions, self._matching.reverse)[larger]
        live = smaller.plan.live_ranges
        schedule = live.schedule if live is not None else ()
        positions = {name: position for position, name in enumerate(schedule)}
        partners = (pairs.get(name) for name in self._run_by(larger, peak))
        counterpart = next(
            (positions[partner] for partner in partners if partner in positions),
            smaller.peak_position,
        )
        return (counterpart, peak) if larger else (peak, counterpart)

    def _values_alive(
        self, color: int, a: tuple[LiveValue, ...], b: tuple[LiveValue, ...]
    ) -> Iterator[BytesChange]:
        """One line per value that is alive at the compared position of A or B."""
        alive_b = {live.value.name: live for live in b}
        for live in a:
            name = live.value.name
            other = self._partner(name, self._matching.instructions, 1)
            live_b = alive_b.pop(other, None) if other is not None else None
            yield self._line(color, name, other, live, live_b)
        for name, live in alive_b.items():
            other = self._partner(name, self._matching.reverse, 0)
            yield self._line(color, other, name, None, live)

    def _partner(self, name: str, pairs: Mapping[str, str], side: int) -> str | None:
        """The value of the paired instruction with the same tuple index, if it has one.

        A result that is not a tuple is paired with element 0.
        """
        instruction, _, index = name.partition("{")
        partner = pairs.get(instruction)
        if partner is None:
            return None
        candidates = [f"{partner}{{{index}" if index else partner]
        if index in ("", "0}"):
            candidates += [partner, f"{partner}{{0}}"]
        return next((value for value in candidates if value in self._values[side]), None)

    def _line(
        self,
        color: int,
        a: str | None,
        b: str | None,
        live_a: LiveValue | None,
        live_b: LiveValue | None,
    ) -> BytesChange:
        """The line of the values named `a` and `b`; the other two are None if not alive."""
        written_by = [
            (side, name.partition("{")[0]) for side, name in ((1, b), (0, a)) if name is not None
        ]
        changes = (self._changes[side].get(instruction) for side, instruction in written_by)
        side, instruction = written_by[0]
        return BytesChange(
            place=Place.TEMP,
            a_bytes=live_a.held_bytes if live_a is not None else 0,
            b_bytes=live_b.held_bytes if live_b is not None else 0,
            a_held=self._compared(0, a, live_a),
            b_held=self._compared(1, b, live_b),
            change=next(filter(None, changes), None),
            subject=self._describers[side].operation(instruction),
            color=color,
        )

    def _compared(
        self, side: int, name: str | None, live: LiveValue | None
    ) -> ComparedValue | None:
        if name is None:
            return None
        value: LogicalBuffer = self._values[side][name]
        return ComparedValue(
            name=name,
            shape=value.shape.text,
            size_bytes=value.size_bytes,
            held_bytes=live.held_bytes if live is not None else 0,
            place=self._places[side](name),
            alive=live is not None,
        )
