"""What fills the temporary memory of a plan at a moment of its schedule.

XLA packs temporary values into one allocation per color; values that are not alive at once share
bytes. Its size is therefore the bytes alive at a moment, plus the room to spare then. At the
fullest moment that room is what the packing lost.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

from xlapipe.plan import AllocationKind, BufferAllocation, LogicalBuffer, Plan

_NOT_TEMP = frozenset(
    {
        AllocationKind.PARAMETER,
        AllocationKind.CONSTANT,
        AllocationKind.THREAD_LOCAL,
        AllocationKind.MAYBE_LIVE_OUT,
    }
)


@dataclass(frozen=True, slots=True)
class Held:
    """A value alive at a moment, and the bytes that it takes for itself.

    A value that is computed in the place of another counts what it takes beyond the other.
    """

    value: LogicalBuffer
    held_bytes: int


@dataclass(frozen=True, slots=True)
class _Alive:
    start: int
    end: int
    allocation: int
    value: LogicalBuffer


@dataclass(frozen=True)
class Arena:
    """The temporary allocations of one color.

    Attributes:
      size_bytes: of all of them.
    """

    plan: Plan
    allocations: tuple[BufferAllocation, ...]

    @property
    def size_bytes(self) -> int:
        return sum(allocation.size_bytes for allocation in self.allocations)

    @cached_property
    def _alive(self) -> tuple[_Alive, ...]:
        if self.plan.live_ranges is None:
            return ()
        ranges = {live.name: live for live in self.plan.live_ranges.ranges}
        return tuple(
            _Alive(live.start, live.end, allocation.index, value)
            for allocation in self.allocations
            for value in allocation.values
            if value.size_bytes and (live := ranges.get(value.name)) is not None
        )

    def at(self, position: int) -> tuple[Held, ...]:
        """Values alive at a schedule position, by place; together they hold the bytes in use."""
        alive = [each for each in self._alive if each.start <= position <= each.end]
        alive.sort(key=lambda each: (each.allocation, each.value.offset_bytes, each.start))
        held, allocation, end = [], -1, 0
        for each in alive:
            if each.allocation != allocation:
                allocation, end = each.allocation, 0
            value_end = each.value.offset_bytes + each.value.size_bytes
            own = max(0, value_end - max(end, each.value.offset_bytes))
            held.append(Held(each.value, own))
            end = max(end, value_end)
        return tuple(held)

    def used_bytes(self, position: int) -> int:
        """Bytes in use at a schedule position."""
        return sum(each.held_bytes for each in self.at(position))

    @cached_property
    def fullest(self) -> int | None:
        """A position at which the most bytes are in use; None without live ranges.

        The sum over values alive is cheap to sweep and never below the bytes in use, which it
        counts twice where one value takes another's place: positions are tried by falling sum
        until no sum can beat what was found.
        """
        if self.plan.live_ranges is None:
            return None
        changes: defaultdict[int, int] = defaultdict(int)
        for each in self._alive:
            changes[each.start] += each.value.size_bytes
            changes[each.end + 1] -= each.value.size_bytes
        sums: list[tuple[int, int]] = []
        running = 0
        for position in sorted(changes):
            running += changes[position]
            sums.append((running, position))
        best: tuple[int, int] | None = None
        for most, position in sorted(sums, key=lambda entry: (-entry[0], entry[1])):
            if best is not None and most <= best[0]:
                break
            used = self.used_bytes(position)
            if best is None or used > best[0]:
                best = (used, position)
        return best[1] if best is not None else 0


def arenas(plan: Plan) -> dict[int, Arena]:
    """The temporary memory of a plan, by color."""
    found: dict[int, list[BufferAllocation]] = {}
    for allocation in plan.allocations:
        if _NOT_TEMP.isdisjoint(allocation.kinds):
            found.setdefault(allocation.color, []).append(allocation)
    return {color: Arena(plan, tuple(found[color])) for color in sorted(found)}
