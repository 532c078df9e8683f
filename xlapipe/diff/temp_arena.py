"""The contents of a plan's temporary memory at a position of its schedule.

XLA packs temporary values into one allocation per color; values that are not alive at the same time
share bytes. At every position the size is the bytes alive there plus unused bytes. At the peak, the
unused bytes are the cost of the packing.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

from xlapipe.plans import AllocationKind, BufferAllocation, LogicalBuffer, Plan

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
      allocations: of `plan`, all of one color.
    """

    plan: Plan
    allocations: tuple[BufferAllocation, ...]

    @property
    def size_bytes(self) -> int:
        """Of all allocations together."""
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
        values, allocation, end = [], -1, 0
        for life in alive:
            if life.allocation != allocation:
                allocation, end = life.allocation, 0
            value_end = life.value.offset_bytes + life.value.size_bytes
            beyond_others = max(0, value_end - max(end, life.value.offset_bytes))
            values.append(LiveValue(life.value, beyond_others))
            end = max(end, value_end)
        return tuple(values)

    def used_bytes(self, position: int) -> int:
        """Bytes in use at a schedule position."""
        return sum(live.held_bytes for live in self.at(position))

    @cached_property
    def peak_position(self) -> int | None:
        """A position at which the most bytes are in use; None without live ranges.

        The sum of the sizes alive is an upper bound of the bytes in use, since values may overlap,
        and is cheap to compute for all positions. Positions are tried from the largest sum down
        until no sum exceeds the best result.
        """
        if self.plan.live_ranges is None:
            return None
        changes: defaultdict[int, int] = defaultdict(int)
        for life in self._lifetimes:
            changes[life.start] += life.value.size_bytes
            changes[life.end + 1] -= life.value.size_bytes
        sums: list[tuple[int, int]] = []
        running = 0
        for position in sorted(changes):
            running += changes[position]
            sums.append((running, position))
        best: tuple[int, int] | None = None
        for upper_bound, position in sorted(sums, key=lambda entry: (-entry[0], entry[1])):
            if best is not None and upper_bound <= best[0]:
                break
            used = self.used_bytes(position)
            if best is None or used > best[0]:
                best = (used, position)
        return best[1] if best is not None else 0


def arenas(plan: Plan) -> dict[int, TempArena]:
    """The temporary memory of a plan, by color."""
    by_color: dict[int, list[BufferAllocation]] = {}
    for allocation in plan.allocations:
        if _NOT_TEMP.isdisjoint(allocation.kinds):
            by_color.setdefault(allocation.color, []).append(allocation)
    return {color: TempArena(plan, tuple(by_color[color])) for color in sorted(by_color)}
