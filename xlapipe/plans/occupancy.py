"""Which bytes contain a live value at each schedule position.

XLA reserves every allocation for the whole run; live ranges show which bytes are in use when.
Bytes that several values share count once, so these sums, unlike XLA's `live_range_peak_bytes`,
never exceed the allocations.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import accumulate

from xlapipe.plans.buffers import AllocationKind, BufferAllocation, LogicalBuffer
from xlapipe.plans.live_ranges import LiveRange
from xlapipe.plans.memory_spaces import MemorySpace
from xlapipe.plans.origins import output_values
from xlapipe.plans.plan import Plan
from xlapipe.plans.short_repr import short_repr


class Role(StrEnum):
    """The role of a value in the program; each value has one."""

    PARAMETER = "parameter"
    ALIAS = "alias"
    OUTPUT = "output"
    TEMP = "temp"
    CONSTANT = "constant"
    THREAD_LOCAL = "thread-local"


@dataclass(frozen=True, slots=True)
class HeldValue:
    """A value and the allocation that it is in."""

    allocation: BufferAllocation
    value: LogicalBuffer

    @property
    def place(self) -> tuple[int, int, int]:
        """Its memory."""
        return self.allocation.index, self.value.offset_bytes, self.value.size_bytes


@dataclass(frozen=True, slots=True)
class CountedValue(HeldValue):
    """A value and the bytes that it adds to the bytes in use at a position.

    Attributes:
      counted_bytes: its bytes, without bytes shared with a value that is counted already.
    """

    __repr__ = short_repr

    role: Role
    counted_bytes: int


@dataclass(frozen=True)
class Occupancy:
    """Queries about a plan's memory over its schedule, in one memory space.

    Constants are always in use. Thread-local allocations are in registers, not in device memory,
    and are never counted. Without live ranges (`plan.live_ranges` is None) there are no positions,
    and every value counts as alive.
    """

    plan: Plan
    space: MemorySpace = MemorySpace.HBM

    @property
    def alive(self) -> Mapping[str, LiveRange]:
        """Live ranges by the value's name."""
        return self.plan.live_ranges.by_name if self.plan.live_ranges is not None else {}

    @property
    def last_position(self) -> int | None:
        """The position after the last instruction, up to which outputs are alive."""
        live_ranges = self.plan.live_ranges
        return len(live_ranges.schedule) if live_ranges is not None else None

    @cached_property
    def occupied_bytes(self) -> tuple[int, ...]:
        """Bytes in use at each position, from 0 to `last_position`; empty without live ranges."""
        last = self.last_position
        if last is None:
            return ()
        changes = [0] * (last + 2)
        for allocation in self.plan.allocations_in(self.space):
            if allocation.is_a(AllocationKind.CONSTANT):
                changes[0] += sum(value.counted_bytes for value in self._counted(allocation, None))
            elif not allocation.is_a(AllocationKind.THREAD_LOCAL):
                for position, difference in self._changes(allocation):
                    changes[position] += difference
        return tuple(accumulate(changes[:-1]))

    @cached_property
    def peak_position(self) -> int | None:
        """The first position at which the most bytes are in use."""
        occupied = self.occupied_bytes
        return occupied.index(max(occupied)) if occupied else None

    @property
    def peak_bytes(self) -> int | None:
        """Bytes in use at `peak_position`."""
        return max(self.occupied_bytes, default=None)

    def contents(
        self, position: int | None, allocations: Iterable[BufferAllocation] | None = None
    ) -> tuple[CountedValue, ...]:
        """Values alive at `position` (None: at any position), most bytes first.

        Args:
          allocations: those to look into; None for all of the memory space.
        """
        if allocations is None:
            allocations = self.plan.allocations_in(self.space)
        values = (value for item in allocations for value in self._counted(item, position))
        return tuple(
            sorted(values, key=lambda counted: (-counted.counted_bytes, -counted.value.size_bytes))
        )

    def fullest(self, *allocations: BufferAllocation) -> tuple[int, int] | None:
        """The first position at which the most bytes of `allocations` are in use, and these bytes.

        None for allocations without live ranges.
        """
        changes: Counter[int] = Counter()
        for allocation in allocations:
            for position, difference in self._changes(allocation):
                changes[position] += difference
        in_use_bytes, fullest = 0, None
        for position in sorted(changes):
            in_use_bytes += changes[position]
            if fullest is None or in_use_bytes > fullest[1]:
                fullest = position, in_use_bytes
        return fullest

    def role(self, allocation: BufferAllocation, value: LogicalBuffer) -> Role:
        """The role of a value; one that only reuses an output's or argument's memory is temp."""
        if allocation.is_a(AllocationKind.THREAD_LOCAL):
            return Role.THREAD_LOCAL
        if allocation.is_a(AllocationKind.CONSTANT):
            return Role.CONSTANT
        live = self.alive.get(value.name)
        at_end = live is None or live.end == self.last_position
        is_output = at_end or value.name in output_values(self.plan)
        if allocation.is_a(AllocationKind.PARAMETER):
            if not (is_output or value.size_bytes == allocation.size_bytes):
                return Role.TEMP
            is_alias = allocation.is_a(AllocationKind.MAYBE_LIVE_OUT)
            return Role.ALIAS if is_alias else Role.PARAMETER
        if allocation.is_a(AllocationKind.MAYBE_LIVE_OUT) and is_output:
            return Role.OUTPUT
        return Role.TEMP

    def _is_alive(
        self, allocation: BufferAllocation, value: LogicalBuffer, position: int | None
    ) -> bool:
        if position is None or allocation.is_a(AllocationKind.CONSTANT):
            return True
        live = self.alive.get(value.name)
        return live is not None and live.start <= position <= live.end

    def _counted(
        self, allocation: BufferAllocation, position: int | None
    ) -> Iterator[CountedValue]:
        if allocation.is_a(AllocationKind.THREAD_LOCAL):
            return
        values = [v for v in allocation.values if self._is_alive(allocation, v, position)]
        counted: list[tuple[int, int]] = []
        # The largest first; equal ones by their start.
        values.sort(key=lambda v: (-v.size_bytes, self._start(v), v.offset_bytes, v.name))
        for value in values:
            counted_before = covered_bytes(counted)
            counted.append((value.offset_bytes, value.end_bytes))
            added_bytes = covered_bytes(counted) - counted_before
            yield CountedValue(allocation, value, self.role(allocation, value), added_bytes)

    def _start(self, value: LogicalBuffer) -> int:
        live = self.alive.get(value.name)
        return live.start if live is not None else 0

    def _changes(self, allocation: BufferAllocation) -> Iterator[tuple[int, int]]:
        """(position, change of the bytes in use) of one allocation."""
        placed = [
            (live.start, live.end, value.offset_bytes, value.end_bytes)
            for value in allocation.values
            if value.size_bytes and (live := self.alive.get(value.name)) is not None
        ]
        if len(placed) == 1:
            ((start, end, begin, stop),) = placed
            yield start, stop - begin
            yield end + 1, begin - stop
            return
        edges = sorted({edge for _, _, begin, stop in placed for edge in (begin, stop)})
        holders = [0] * len(edges)
        events = [(start, 1, begin, stop) for start, _, begin, stop in placed]
        events += [(end + 1, -1, begin, stop) for _, end, begin, stop in placed]
        for position, step, begin, stop in sorted(events):
            difference = 0
            for segment in range(bisect_left(edges, begin), bisect_left(edges, stop)):
                holders[segment] += step
                if holders[segment] == (step > 0):
                    difference += step * (edges[segment + 1] - edges[segment])
            yield position, difference


def covered_bytes(intervals: Iterable[tuple[int, int]]) -> int:
    """Bytes in the union of (begin, end) intervals."""
    total_bytes, covered_to = 0, 0
    for begin, end in sorted(intervals):
        total_bytes += max(0, end - max(begin, covered_to))
        covered_to = max(covered_to, end)
    return total_bytes
