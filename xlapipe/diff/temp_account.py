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
        self._changes = (
            {change.a: change for change in changes if change.a is not None},
            {change.b: change for change in changes if change.b is not None},
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
        if a.size_bytes == b.size_bytes:
            return
        positions = self._positions(a, b)
        if positions[0] is not None and positions[1] is not None:
            yield from self._values_alive(color, a.at(positions[0]), b.at(positions[1]))
        yield from self._slack(color, (a, b), positions)

    def _slack(
        self,
        color: int,
        both: tuple[TempArena, TempArena],
        positions: tuple[int | None, int | None],
    ) -> Iterator[BytesChange]:
        """The bytes of the arenas that the values alive at the compared positions do not use."""
        sizes = both[0].size_bytes, both[1].size_bytes
        if None in positions:
            # One dump has no live ranges; those of the other would explain half of the delta.
            yield BytesChange(
                place=Place.TEMP,
                a_bytes=sizes[0],
                b_bytes=sizes[1],
                room=SlackReason.UNKNOWN,
                color=color,
            )
            return
        used = [arena.used_bytes(at or 0) for arena, at in zip(both, positions, strict=True)]
        peaks = [arena.used_bytes(arena.peak_position or 0) for arena in both]
        larger = 0 if sizes[0] > sizes[1] else 1
        smaller = 1 - larger
        peak = both[smaller].peak_position
        alive = both[smaller].at(peak or 0)
        largest = max(alive, key=lambda live: live.held_bytes, default=None)
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
            a_bytes=sizes[0] - peaks[0],
            b_bytes=sizes[1] - peaks[1],
            room=SlackReason.PACKING,
            color=color,
        )

    def _operation_at(self, side: int, position: int | None) -> OperationName | None:
        """The last instruction that runs at or before a schedule position."""
        describer = self._describers[side]
        live = describer.side.program.plan.live_ranges
        if position is None or live is None:
            return None
        for earlier in range(min(position, len(live.schedule) - 1), -1, -1):
            if live.schedule[earlier] in describer.side.nodes:
                return describer.operation(live.schedule[earlier])
        return None

    def _positions(self, a: TempArena, b: TempArena) -> tuple[int | None, int | None]:
        """The schedule positions at which the arenas are compared."""
        peak_a, peak_b = a.peak_position, b.peak_position
        if peak_a is None or peak_b is None:
            return peak_a, peak_b
        if a.size_bytes > b.size_bytes:
            return peak_a, self._counterpart(a, peak_a, b, self._matching.instructions)
        return self._counterpart(b, peak_b, a, self._matching.reverse), peak_b

    @staticmethod
    def _counterpart(
        larger: TempArena, peak: int, smaller: TempArena, pairs: Mapping[str, str]
    ) -> int | None:
        """The position in the smaller arena's plan of the instruction at the larger one's peak.

        If that instruction is not paired, the nearest earlier one that is.
        """
        live, other_live = larger.plan.live_ranges, smaller.plan.live_ranges
        assert live is not None and other_live is not None  # otherwise there is no peak position
        positions = {name: position for position, name in enumerate(other_live.schedule)}
        parameters = {
            name
            for name, instruction in larger.plan.instructions.items()
            if instruction.opcode == "parameter"
        }
        for position in range(min(peak, len(live.schedule) - 1), -1, -1):
            name = live.schedule[position]
            if name not in parameters and pairs.get(name) in positions:
                return positions[pairs[name]]
        return smaller.peak_position

    def _values_alive(
        self, color: int, a: tuple[LiveValue, ...], b: tuple[LiveValue, ...]
    ) -> Iterator[BytesChange]:
        """One line per value that is alive at the compared position of A or B."""
        alive_b = {live.value.name: live for live in b}
        for live in a:
            name = live.value.name
            other = self._partner(name, self._matching.instructions, 1)
            yield self._line(color, name, other, live, alive_b.pop(other or "", None))
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
        instruction_a = a.partition("{")[0] if a else None
        instruction_b = b.partition("{")[0] if b else None
        change = self._changes[1].get(instruction_b or "") or self._changes[0].get(
            instruction_a or ""
        )
        if instruction_b is not None:
            subject = self._describers[1].operation(instruction_b)
        else:
            subject = self._describers[0].operation(instruction_a or "")
        return BytesChange(
            place=Place.TEMP,
            a_bytes=live_a.held_bytes if live_a is not None else 0,
            b_bytes=live_b.held_bytes if live_b is not None else 0,
            a_held=self._compared(0, a, live_a),
            b_held=self._compared(1, b, live_b),
            change=change,
            subject=subject,
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
