"""The account of the difference in total_allocation_bytes, line by line.

Each plan's total is the sum of its arguments, its outputs that are not aliased to an argument, its
temporary memory, constants and thread-locals. Leaves are paired by path. Temporary memory is
compared at one position of each schedule: the peak of the larger arena, and the paired instruction
in the other plan. The values alive there are compared one by one, and the unused bytes are separate
lines, so that the lines add up to the difference exactly.

XLA packs temporary values into one allocation per color; values that are not alive at the same time
share bytes. At every position the size is the bytes alive there plus unused bytes. At the peak, the
unused bytes are the cost of the packing.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from xlapipe.differences.changes import (
    BytesChange,
    ComparedValue,
    InstructionChange,
    MemoryRole,
    OperationName,
    SlackReason,
)
from xlapipe.differences.leaves import ComparedLeaf
from xlapipe.differences.matching import Matching
from xlapipe.differences.side import Side, place_of, unnamed
from xlapipe.plans import BufferAllocation, LogicalBuffer
from xlapipe.plans.occupancy import Occupancy


def account(matching: Matching, changes: tuple[InstructionChange, ...]) -> tuple[BytesChange, ...]:
    """Lines whose deltas add up to total(B) - total(A); the largest first, zeros left out."""
    lines = [
        *_arguments(matching),
        *_outputs(matching),
        *_counted(matching),
        *_TempAccount(matching, changes).lines(),
    ]
    nonzero = [line for line in lines if line.delta_bytes]
    return tuple(sorted(nonzero, key=lambda line: (-abs(line.delta_bytes), line.place, line.label)))


def _size_bytes(leaf: ComparedLeaf | None) -> int:
    return leaf.allocation.size_bytes if leaf is not None and leaf.allocation is not None else 0


def _arguments(matching: Matching) -> Iterator[BytesChange]:
    for one, other in matching.paired_arguments:
        label = (other or one).label  # type: ignore[union-attr]  # not both are None
        yield BytesChange(
            place=MemoryRole.ARGUMENT,
            a_bytes=_size_bytes(one),
            b_bytes=_size_bytes(other),
            label=label,
        )


def _outputs(matching: Matching) -> Iterator[BytesChange]:
    """Outputs in separate allocations; the first of two in one allocation gets the bytes."""
    bytes_a, bytes_b = _unaliased_bytes(matching.a), _unaliased_bytes(matching.b)
    aliases_a, aliases_b = matching.a.aliased_to, matching.b.aliased_to
    for one, other in matching.paired_outputs:
        yield BytesChange(
            place=MemoryRole.OUTPUT,
            a_bytes=bytes_a.pop(one.label, 0) if one is not None else 0,
            b_bytes=bytes_b.pop(other.label, 0) if other is not None else 0,
            label=(other or one).label,  # type: ignore[union-attr]  # not both are None
            a_alias=aliases_a.get(one.label) if one is not None else None,
            b_alias=aliases_b.get(other.label) if other is not None else None,
        )
    for label in sorted(bytes_a.keys() | bytes_b.keys()):
        yield BytesChange(
            place=MemoryRole.OUTPUT,
            a_bytes=bytes_a.get(label, 0),
            b_bytes=bytes_b.get(label, 0),
            label=label,
        )


def _unaliased_bytes(side: Side) -> dict[str, int]:
    """Bytes of the live-out allocations without a parameter, by label."""
    labels = {
        leaf.allocation.index: leaf.label
        for leaf in reversed(side.outputs)
        if leaf.allocation is not None
    }
    sizes: Counter[str] = Counter()
    for allocation in side.program.plan.allocations:
        if place_of(allocation) is MemoryRole.OUTPUT:
            sizes[labels.get(allocation.index) or unnamed(allocation)] += allocation.size_bytes
    return dict(sizes)


def _counted(matching: Matching) -> Iterator[BytesChange]:
    """Constants, by shape, and the sum of thread-locals."""
    for place in (MemoryRole.CONSTANT, MemoryRole.THREAD_LOCAL):
        sizes: list[Counter[str]] = []
        for side in (matching.a, matching.b):
            sizes.append(Counter())
            for allocation in side.program.plan.allocations:
                if place_of(allocation) is place:
                    shapes = " ".join(sorted(value.shape.text for value in allocation.values))
                    label = shapes if place is MemoryRole.CONSTANT else "scalars inside fusions"
                    sizes[-1][label] += allocation.size_bytes
        for label in sorted(sizes[0].keys() | sizes[1].keys()):
            yield BytesChange(
                place=place, a_bytes=sizes[0][label], b_bytes=sizes[1][label], label=label
            )


# A value that is alive, and its bytes that do not overlap a value counted before it.
_Alive = tuple[LogicalBuffer, int]


@dataclass(frozen=True)
class _Arena:
    """The temporary allocations of one color, of one side."""

    side: Side
    allocations: tuple[BufferAllocation, ...]

    @property
    def size_bytes(self) -> int:
        return sum(allocation.size_bytes for allocation in self.allocations)

    @cached_property
    def _occupancy(self) -> Occupancy:
        return Occupancy(self.side.program.plan)

    @property
    def schedule(self) -> tuple[str, ...]:
        live = self.side.program.plan.live_ranges
        return live.schedule if live is not None else ()

    def at(self, position: int) -> list[_Alive]:
        """Values alive at a schedule position, by address; their bytes add up to those in use."""
        alive = []
        for allocation in self.allocations:
            end, ranges = 0, self._occupancy.alive
            placed = sorted(
                (value.offset_bytes, live.start, place)
                for place, value in enumerate(allocation.values)
                if value.size_bytes
                and (live := ranges.get(value.name)) is not None
                and live.start <= position <= live.end
            )
            for offset, _, place in placed:
                value = allocation.values[place]
                begin, end = max(end, offset), max(end, offset + value.size_bytes)
                alive.append((value, end - begin))
        return alive

    def used_bytes(self, position: int) -> int:
        return sum(held for _, held in self.at(position))

    @cached_property
    def peak_position(self) -> int:
        """The first position at which the most bytes are in use; 0 without live ranges."""
        fullest = self._occupancy.fullest(*self.allocations)
        return fullest[0] if fullest is not None else 0

    def run_by(self, position: int) -> Iterator[str]:
        """Instructions that run at or before a schedule position, the last first."""
        return (name for name in reversed(self.schedule[: position + 1]) if name in self.side.nodes)

    def operation_at(self, position: int) -> OperationName | None:
        """The last instruction that runs at or before a schedule position."""
        return next(map(self.side.operation, self.run_by(position)), None)


def _arenas(side: Side) -> defaultdict[int, _Arena]:
    """The temporary memory of a side, by color; that of another color is empty."""
    by_color: defaultdict[int, list[BufferAllocation]] = defaultdict(list)
    for allocation in side.program.plan.allocations:
        if place_of(allocation) is MemoryRole.TEMP:
            by_color[allocation.color].append(allocation)
    arenas = {color: _Arena(side, tuple(of_color)) for color, of_color in by_color.items()}
    return defaultdict(lambda: _Arena(side, ()), arenas)


class _TempAccount:
    """The lines for temporary memory."""

    def __init__(self, matching: Matching, changes: tuple[InstructionChange, ...]) -> None:
        self._matching = matching
        self._sides = (matching.a, matching.b)
        self._changes: tuple[dict[str | None, InstructionChange], ...] = (
            {change.a: change for change in changes},
            {change.b: change for change in changes},
        )

    def lines(self) -> Iterator[BytesChange]:
        """The lines of every color."""
        arenas_a, arenas_b = map(_arenas, self._sides)
        for color in sorted(arenas_a.keys() | arenas_b.keys()):
            yield from self._color(color, (arenas_a[color], arenas_b[color]))

    def _color(self, color: int, both: tuple[_Arena, _Arena]) -> Iterator[BytesChange]:
        sizes = [arena.size_bytes for arena in both]
        if sizes[0] == sizes[1]:
            return
        if any(side.program.plan.live_ranges is None for side in self._sides):
            # Live ranges of one dump alone would explain half of the delta.
            yield _slack(color, sizes, SlackReason.UNKNOWN)
            return
        larger = sizes.index(max(sizes))
        positions = self._positions(both, larger)
        alive = [arena.at(position) for arena, position in zip(both, positions, strict=True)]
        yield from self._values_alive(color, alive[0], alive[1])
        # The bytes of the arenas that these values do not use.
        used = [sum(held for _, held in values) for values in alive]
        peaks = [arena.used_bytes(arena.peak_position) for arena in both]
        smaller = both[1 - larger]
        largest = max(smaller.at(smaller.peak_position), key=lambda live: live[1], default=None)
        yield _slack(
            color,
            [peak - use for peak, use in zip(peaks, used, strict=True)],
            SlackReason.ELSEWHERE,
            moment=both[larger].operation_at(positions[larger]),
            fullest=smaller.operation_at(smaller.peak_position),
            fullest_value=largest[0].shape.text if largest is not None else "",
        )
        unused = [size - peak for size, peak in zip(sizes, peaks, strict=True)]
        yield _slack(color, unused, SlackReason.PACKING)

    def _positions(self, both: tuple[_Arena, _Arena], larger: int) -> tuple[int, int]:
        """The peak of the larger arena, and the position of the same instruction in the other.

        If that instruction is not paired, the nearest earlier one that is.
        """
        peak, smaller = both[larger].peak_position, both[1 - larger]
        pairs = (self._matching.instructions, self._matching.reverse)[larger]
        positions = {name: position for position, name in enumerate(smaller.schedule)}
        partners = (pairs.get(name) for name in both[larger].run_by(peak))
        counterpart = next(
            (positions[partner] for partner in partners if partner in positions),
            smaller.peak_position,
        )
        return (counterpart, peak) if larger else (peak, counterpart)

    def _values_alive(self, color: int, a: list[_Alive], b: list[_Alive]) -> Iterator[BytesChange]:
        """One line per value that is alive at the compared position of A or B."""
        held_b = {value.name: held for value, held in b}
        for value, held in a:
            other = self._partner(value.name, self._matching.instructions, 1)
            also = held_b.pop(other, None) if other is not None else None
            yield self._line(color, (value.name, other), (held, also))
        for name, held in held_b.items():
            other = self._partner(name, self._matching.reverse, 0)
            yield self._line(color, (other, name), (None, held))

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
        return next((value for value in candidates if value in self._sides[side].values), None)

    def _line(
        self, color: int, names: tuple[str | None, str | None], held: tuple[int | None, int | None]
    ) -> BytesChange:
        """The line of two values; the bytes of one that is not alive are None."""
        written_by = [
            (side, name.partition("{")[0]) for side in (1, 0) if (name := names[side]) is not None
        ]
        changes = (self._changes[side].get(instruction) for side, instruction in written_by)
        side, instruction = written_by[0]
        return BytesChange(
            place=MemoryRole.TEMP,
            a_bytes=held[0] or 0,
            b_bytes=held[1] or 0,
            a_held=self._compared(0, names[0], held[0]),
            b_held=self._compared(1, names[1], held[1]),
            change=next(filter(None, changes), None),
            subject=self._sides[side].operation(instruction),
            color=color,
        )

    def _compared(self, side: int, name: str | None, held: int | None) -> ComparedValue | None:
        if name is None:
            return None
        value = self._sides[side].values[name]
        place = self._sides[side].place(name)
        shape = value.shape.text
        return ComparedValue(name, shape, value.size_bytes, held or 0, place, held is not None)


def _slack(color: int, sizes: list[int], reason: SlackReason, **named: Any) -> BytesChange:
    a_bytes, b_bytes = sizes
    return BytesChange(
        place=MemoryRole.TEMP, a_bytes=a_bytes, b_bytes=b_bytes, room=reason, color=color, **named
    )
