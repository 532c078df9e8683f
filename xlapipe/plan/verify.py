"""The specification of a plan, run after every read.

What XLA's buffer assignment promises, and what figures shown to people rest on:

1. allocations are numbered 0, 1, …; sizes and offsets are not negative; a value lies inside its
   allocation and in no other;
2. the sizes of the allocations add up to XLA's own `Total bytes used`, where the dump has it;
3. a parameter (or a part of one) has one allocation, and the parameter instruction of that
   number is defined there;
4. an input_output_alias of the module's header is an allocation that is both parameter and
   maybe-live-out, and the reverse;
5. a value with a live range has an allocation, and values alive at once do not share bytes;
6. a collective's groups have each device once, its result's bytes fit its operands', and the
   thunk sequence has as many of its kind as the HLO (`xlapipe.plan.verify_collectives`).

For 5, XLA's live ranges have both ends included, and two things are no conflict: a value that
begins at the position where another ends may take over its bytes (it is computed in place, or is
the next holder of a loop's variable); and of two aliased values that begin together, XLA cuts
one down to its first position. Constants and thread-local values have no live range.
"""

from bisect import bisect_left
from heapq import heappop, heappush
from typing import NoReturn

from xlapipe.errors import PlanMismatchError
from xlapipe.plan.buffers import AllocationKind, BufferAllocation, LogicalBuffer
from xlapipe.plan.live_ranges import LiveRange
from xlapipe.plan.plan import Plan
from xlapipe.plan.verify_collectives import wrong_collective

_DAMAGED = "the files are damaged or of two compiles: dump the module again into an empty directory"
_REPORT = (
    "the files are damaged or of two compiles (dump the module again into an empty directory), or "
    "XLA has changed what it prints: report it with the dump"
)


def verify(plan: Plan, *, where: str) -> None:
    """Holds a plan against the invariants above.

    Args:
      where: the file it was read from, for messages.

    Raises:
      PlanMismatchError: for the first invariant that does not hold.
    """
    _verify_places(plan, where)
    _verify_total(plan, where)
    _verify_parameters(plan, where)
    _verify_aliases(plan, where)
    if plan.live_ranges is not None:
        alive = {live.name: live for live in plan.live_ranges.ranges}
        missing = alive.keys() - plan.allocation_of_value.keys()
        if missing:
            _fail(where, f"an allocation for value {min(missing)}, which has a live range", "none")
        for allocation in plan.allocations:
            if not (
                allocation.is_a(AllocationKind.THREAD_LOCAL)
                or allocation.is_a(AllocationKind.CONSTANT)
            ):
                _verify_disjoint(allocation, alive, where)
    if (wrong := wrong_collective(plan)) is not None:
        _fail(where, *wrong, _REPORT)


def _fail(where: str, expected: str, found: str, mend: str = _DAMAGED) -> NoReturn:
    raise PlanMismatchError(f"{where}: expected {expected}, found {found}; {mend}")


def _verify_places(plan: Plan, where: str) -> None:
    home: dict[str, int] = {}
    for position, allocation in enumerate(plan.allocations):
        index, size = allocation.index, allocation.size_bytes
        if index != position:
            _fail(where, f"allocation {position}", f"allocation {index} in its place")
        if size < 0 or allocation.color < 0:
            _fail(
                where,
                f"allocation {index} of a size and a color not below 0",
                f"size {size}, color {allocation.color}",
            )
        for value in allocation.values:
            end = value.offset_bytes + value.size_bytes
            if value.offset_bytes < 0 or value.size_bytes < 0 or end > size:
                _fail(
                    where,
                    f"value {value.name} within the {size} bytes of allocation {index}",
                    f"offset {value.offset_bytes}, size {value.size_bytes}",
                )
            if value.name in home:
                _fail(
                    where,
                    f"value {value.name} in one allocation",
                    f"it in allocations {home[value.name]} and {index}",
                )
            home[value.name] = index


def _verify_total(plan: Plan, where: str) -> None:
    total = plan.totals.total_allocation_bytes
    if plan.total_bytes_used is not None and total != plan.total_bytes_used:
        _fail(
            where,
            f"allocations that add up to XLA's total of {plan.total_bytes_used} bytes",
            f"{len(plan.allocations)} allocations with {total} bytes",
        )


def _verify_parameters(plan: Plan, where: str) -> None:
    found: dict[tuple[int, tuple[int, ...]], int] = {}
    for allocation in plan.allocations:
        number, index = allocation.parameter_number, allocation.index
        if allocation.is_a(AllocationKind.PARAMETER) != (number is not None):
            _fail(where, f"a parameter number for allocation {index} if it is one", "the contrary")
        if number is None:
            continue
        if number < 0:
            _fail(where, f"a parameter number for allocation {index}", str(number))
        parameter = (number, allocation.parameter_shape_index)
        if parameter in found:
            _fail(
                where,
                f"one allocation for parameter {_named(parameter)}",
                f"allocations {found[parameter]} and {index}",
            )
        found[parameter] = index
        if plan.module is not None and all(
            (defining := plan.instructions.get(value.instruction)) is None
            or defining.parameter_number != number
            for value in allocation.values
        ):
            _fail(
                where,
                f"the instruction parameter({number}) among the values of allocation {index}",
                "none",
            )


def _verify_aliases(plan: Plan, where: str) -> None:
    if plan.header_aliases is None:
        return
    promised = {(alias.parameter_number, alias.parameter_index) for alias in plan.header_aliases}
    given = {
        (allocation.parameter_number, allocation.parameter_shape_index): allocation.index
        for allocation in plan.allocations
        if allocation.parameter_number is not None
        and allocation.is_a(AllocationKind.MAYBE_LIVE_OUT)
    }
    for parameter in sorted(promised):
        if parameter not in given:
            _fail(
                where,
                f"parameter {_named(parameter)} in an allocation that is maybe-live-out, as the "
                "module's input_output_alias says",
                "no such allocation",
            )
    for found, index in given.items():
        if found not in promised:
            _fail(
                where,
                f"an input_output_alias for allocation {index}, which is both parameter "
                f"{_named(found)} and maybe-live-out",
                "none in the module's header",
            )


def _named(parameter: tuple[int | None, tuple[int, ...]]) -> str:
    number, index = parameter
    return f"{number}{{{','.join(map(str, index))}}}"


def _verify_disjoint(allocation: BufferAllocation, alive: dict[str, LiveRange], where: str) -> None:
    """Sweeps over schedule positions, keeping the values alive in order of offset.

    They share no bytes, so that a new one can only clash with its two neighbours.
    """
    pending = [
        (live.start, live.end, value)
        for value in allocation.values
        if value.size_bytes > 0 and (live := alive.get(value.name)) is not None
    ]
    if len(pending) < 2:
        return
    pending.sort(key=lambda entry: entry[:2])
    offsets: list[int] = []
    present: list[tuple[int, int, LogicalBuffer]] = []
    ends: list[tuple[int, int]] = []  # (position of the end, offset)
    now = -1
    for entry in pending:
        start, end, value = entry
        if start > now:
            now = start
            while ends and ends[0][0] <= now:
                ended, offset = heappop(ends)
                at = bisect_left(offsets, offset)
                # Another may have taken its place, or it was in place twice.
                if offsets[at : at + 1] == [offset] and present[at][1] == ended:
                    del offsets[at], present[at]
        at = bisect_left(offsets, value.offset_bytes)
        heappush(ends, (end, value.offset_bytes))
        if at < len(present) and _is_cut_alias(present[at], entry):
            present[at] = entry
            continue
        for neighbour in present[max(at - 1, 0) : at + 1]:
            _clash_if_shared(allocation, neighbour, entry, where)
        offsets.insert(at, value.offset_bytes)
        present.insert(at, entry)


def _is_cut_alias(
    one: tuple[int, int, LogicalBuffer], other: tuple[int, int, LogicalBuffer]
) -> bool:
    """Whether two begin together in one place, the first cut down to its first position."""
    value, new = one[2], other[2]
    return (
        one[0] == one[1] == other[0]
        and value.offset_bytes == new.offset_bytes
        and value.size_bytes == new.size_bytes
    )


def _clash_if_shared(
    allocation: BufferAllocation,
    one: tuple[int, int, LogicalBuffer],
    other: tuple[int, int, LogicalBuffer],
    where: str,
) -> None:
    value, new = one[2], other[2]
    if (
        value.offset_bytes + value.size_bytes <= new.offset_bytes
        or new.offset_bytes + new.size_bytes <= value.offset_bytes
    ):
        return
    _fail(
        where,
        f"no bytes of allocation {allocation.index} shared by values that are alive at once",
        f"{_placed(value)} alive {one[0]}-{one[1]} and {_placed(new)} alive {other[0]}-{other[1]}",
        _REPORT,
    )


def _placed(value: LogicalBuffer) -> str:
    end = value.offset_bytes + value.size_bytes
    return f"{value.name} at bytes {value.offset_bytes} to {end}"
