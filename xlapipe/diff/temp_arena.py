"""The contents of a plan's temporary memory at a position of its schedule.

XLA packs temporary values into one allocation per color; values that are not alive at the same time
share bytes. At every position the size is the bytes alive there plus unused bytes. At the peak, the
unused bytes are the cost of the packing.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

from xlapipe.plans import AllocationKind, BufferAllocation, LogicalBuffer, Plan
from xlapipe.plans.occupancy import Occupancy

_NOT_TEMP = frozenset(
    {
        AllocationKind.PARAMETER,
        AllocationKind.CONSTANT,
        AllocationKind.THREAD_LOCAL,
        AllocationKind.MAYBE_LIVE_OUT,
    }
)


@dataclass(frozen=True, slots=True)
class LiveValue:
    """A value alive at a schedule position.

    Attributes:
      held_bytes: its bytes that do not overlap a value counted before it.
    """

    value: LogicalBuffer
    held_bytes: int


@dataclass(frozen=True, slots=True)
class _Lifetime:
    start: int
    end: int
    allocation: int
    value: LogicalBuffer


@dataclass(frozen=True)
class TempArena:
    """The temporary allocations of one color.

    Attributes:
      allocations: allocations of `plan`, all of one color.
    """

    plan: Plan
    allocations: tuple[BufferAllocation, ...]

    @property
    def size_bytes(self) -> int:
        """Total size of all allocations."""
        return sum(allocation.size_bytes for allocation in self.allocations)

    @cached_property
    def _lifetimes(self) -> tuple[_Lifetime, ...]:
        if self.plan.live_ranges is None:
            return ()
        ranges = {live.name: live for live in self.plan.live_ranges.ranges}
        return tuple(
            _Lifetime(live.start, live.end, allocation.index, value)
            for allocation in self.allocations
            for value in allocation.values
            if value.size_bytes and (live := ranges.get(value.name)) is not None
        )

    def at(self, position: int) -> tuple[LiveValue, ...]:
        """Values alive at a schedule position, by address; their bytes add up to those in use."""
        alive = [life for life in self._lifetimes if life.start <= position <= life.end]
        alive.sort(key=lambda life: (life.allocation, life.value.offset_bytes, life.start))
        values = []
        ends: defaultdict[int, int] = defaultdict(int)
        for life in alive:
            begin = max(ends[life.allocation], life.value.offset_bytes)
            end = max(begin, life.value.offset_bytes + life.value.size_bytes)
            values.append(LiveValue(life.value, end - begin))
            ends[life.allocation] = end
        return tuple(values)

    def used_bytes(self, position: int) -> int:
        """Bytes in use at a schedule position."""
        return sum(live.held_bytes for live in self.at(position))

    @cached_property
    def peak_position(self) -> int:
        """The first position at which the most bytes are in use; 0 without live ranges."""
        fullest = Occupancy(self.plan).fullest(*self.allocations)
        return fullest[0] if fullest is not None else 0


def arenas(plan: Plan) -> dict[int, TempArena]:
    """The temporary memory of a plan, by color."""
    by_color: dict[int, list[BufferAllocation]] = {}
    for allocation in plan.allocations:
        if _NOT_TEMP.isdisjoint(allocation.kinds):
            by_color.setdefault(allocation.color, []).append(allocation)
    return {color: TempArena(plan, tuple(by_color[color])) for color in sorted(by_color)}
