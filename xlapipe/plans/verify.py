"""The executable specification of a plan, checked after every read.

These invariants of XLA's buffer assignment are what the reported figures rely on:

1. allocations are numbered 0, 1, …; sizes and offsets are not negative; a value is inside its
   allocation only;
2. the sizes of the allocations add up to XLA's own `Total bytes used`, if the dump has it;
3. a parameter (or a part of one) has one allocation, which contains the value of the parameter
   instruction with that number;
4. each input_output_alias of the module's header has an allocation that is both parameter and
   maybe-live-out, and vice versa;
5. a value with a live range has an allocation, and values alive at the same time do not share
   bytes;
6. the groups of a collective contain each device once, and the bytes of its result match those of
   its operands;
7. on TPUs, the size of a value follows from its shape and layout (`xlapipe.plans.padding`);
8. each instruction has the operands, dimensions and called computations that its opcode can have,
   and no computation calls itself (`xlapipe.plans.verify_instructions`). The rules of opcodes are
   proved on dumps of NVIDIA GPUs; of other platforms few dumps were read, so an instruction that
   does not fit its rule is a note there.

In 5, live ranges include both ends, and two cases are not conflicts: a value that begins at the
position where another ends may reuse its bytes (it is computed in place, or is the next value of
a loop variable); and if two aliased values begin at the same position, XLA cuts the live range of
one of them down to that position. Constants and thread-local values have no live range.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import replace
from heapq import heappop, heappush
from typing import NamedTuple

from xlapipe.devices.platforms import platform_named
from xlapipe.errors import PlanMismatchError
from xlapipe.plans.buffers import AllocationKind, BufferAllocation, LogicalBuffer
from xlapipe.plans.collectives import Collective
from xlapipe.plans.live_ranges import LiveRange
from xlapipe.plans.padding import padded_bytes, tuple_table_bytes
from xlapipe.plans.plan import Plan
from xlapipe.plans.verify_instructions import Mismatch, UnknownForm, instruction_mismatches

# Platforms of which so many dumps were read that an instruction of another form is damaged.
_PROVED_ON = frozenset({"cuda"})
_NEVER_ALIVE = frozenset({AllocationKind.THREAD_LOCAL, AllocationKind.CONSTANT})
_FIX = (
    "dump the module again into an empty directory, since the files may be damaged or from two "
    "compiles; if this error stays, report it with the dump, because XLA's output may have changed"
)

_SPARSE_CORES = 7  # color of their memory


def verify(plan: Plan, *, where: str) -> Plan:
    """The plan, with a note of instructions whose form is unknown; refuses the first mismatch."""
    unknown: list[UnknownForm] = []
    for mismatch in _mismatches(plan):
        if isinstance(mismatch, UnknownForm) and plan.platform not in _PROVED_ON:
            unknown.append(mismatch)
            continue
        expected, found = mismatch
        raise PlanMismatchError(f"{where}: expected {expected}, found {found}; fix: {_FIX}")
    if not unknown:
        return plan
    first = f"{unknown[0].found}, expected {unknown[0].expected}"
    more = f" and {len(unknown) - 1:,} more" if len(unknown) > 1 else ""
    return replace(plan, notes=(*plan.notes, f"unknown forms of instructions: {first}{more}"))


def _mismatches(plan: Plan) -> Iterator[Mismatch]:
    if plan.module is not None and plan.module.complete:
        yield from instruction_mismatches(plan.module)
    yield from _places(plan)
    yield from _total(plan)
    yield from _parameters(plan)
    yield from _aliases(plan)
    if platform_named(plan.platform).pads_arrays:
        yield from _padding(plan)
    if plan.live_ranges is not None:
        yield from _live_ranges(plan, plan.live_ranges.by_name)
    yield from collective_mismatches(plan)


def _places(plan: Plan) -> Iterator[Mismatch]:
    allocation_of: dict[str, int] = {}
    for position, allocation in enumerate(plan.allocations):
        index, size = allocation.index, allocation.size_bytes
        if index != position:
            yield f"allocation {position}", f"allocation {index} at its position"
        if size < 0 or allocation.color < 0:
            yield (
                f"allocation {index} with a non-negative size and color",
                f"size {size}, color {allocation.color}",
            )
        for value in allocation.values:
            if value.offset_bytes < 0 or value.size_bytes < 0 or value.end_bytes > size:
                yield (
                    f"value {value.name} within the {size} bytes of allocation {index}",
                    f"offset {value.offset_bytes}, size {value.size_bytes}",
                )
            if value.name in allocation_of:
                yield (
                    f"value {value.name} in one allocation",
                    f"it in allocations {allocation_of[value.name]} and {index}",
                )
            allocation_of[value.name] = index


def _padding(plan: Plan) -> Iterator[Mismatch]:
    for allocation in plan.allocations:
        for value in allocation.values:
            if value.shape.is_tuple:
                sizes = tuple_table_bytes(len(value.shape.parts))
                # On the sparse cores of a TPU7x, no table is stored.
                sizes += (0,) if allocation.color == _SPARSE_CORES else ()
            else:
                size = padded_bytes(value.shape)
                sizes = (size,) if size is not None else (value.size_bytes,)
            if value.size_bytes not in sizes:
                texts = " or ".join(f"{size:,}" for size in sizes)
                yield (
                    f"{value.name} {value.shape} in {texts} bytes, by its tiles",
                    f"{value.size_bytes:,} bytes in allocation {allocation.index}",
                )


def _total(plan: Plan) -> Iterator[Mismatch]:
    total = sum(allocation.size_bytes for allocation in plan.allocations)
    if plan.total_bytes_used is not None and total != plan.total_bytes_used:
        yield (
            f"allocations that add up to XLA's total of {plan.total_bytes_used} bytes",
            f"{len(plan.allocations)} allocations with {total} bytes in total",
        )


def _parameters(plan: Plan) -> Iterator[Mismatch]:
    seen: dict[tuple[int, tuple[int, ...]], int] = {}
    for allocation in plan.allocations:
        number, index = allocation.parameter_number, allocation.index
        if allocation.is_a(AllocationKind.PARAMETER) != (number is not None):
            yield (
                f"a parameter number for allocation {index} exactly if it is a parameter",
                "no number" if number is None else f"number {number}",
            )
        if number is None:
            continue
        if number < 0:
            yield f"a non-negative parameter number for allocation {index}", str(number)
        parameter = (number, allocation.parameter_shape_index)
        if parameter in seen:
            yield (
                f"one allocation for parameter {_named(parameter)}",
                f"allocations {seen[parameter]} and {index}",
            )
        seen[parameter] = index
        if plan.module is not None and all(
            (defining := plan.instructions.get(value.instruction)) is None
            or defining.parameter_number != number
            for value in allocation.values
        ):
            yield (
                f"the instruction parameter({number}) among the values of allocation {index}",
                "no such value",
            )


def _aliases(plan: Plan) -> Iterator[Mismatch]:
    if plan.header_aliases is None:
        return
    in_header = {(alias.parameter_number, alias.parameter_index) for alias in plan.header_aliases}
    in_allocations = {
        (allocation.parameter_number, allocation.parameter_shape_index): allocation.index
        for allocation in plan.allocations
        if allocation.parameter_number is not None
        and allocation.is_a(AllocationKind.MAYBE_LIVE_OUT)
    }
    for parameter in sorted(in_header):
        if parameter not in in_allocations:
            yield (
                f"parameter {_named(parameter)}, which the module's input_output_alias names, in "
                "a maybe-live-out allocation",
                "no such allocation",
            )
    for parameter, index in in_allocations.items():
        if parameter not in in_header:
            yield (
                f"an input_output_alias for allocation {index}, which is both parameter "
                f"{_named(parameter)} and maybe-live-out",
                "no such alias in the module's header",
            )


def _named(parameter: tuple[int | None, tuple[int, ...]]) -> str:
    """`2{0,1}`: a parameter number and shape index."""
    number, index = parameter
    return f"{number}{{{','.join(map(str, index))}}}"


class _LiveValue(NamedTuple):
    """A value and its live range, in schedule positions, both ends included."""

    start: int
    end: int
    value: LogicalBuffer


def _live_ranges(plan: Plan, alive: Mapping[str, LiveRange]) -> Iterator[Mismatch]:
    missing = alive.keys() - plan.allocation_of_value.keys()
    if missing:
        expected = f"an allocation for value {min(missing)}, which has a live range"
        yield expected, "no allocation"
    for allocation in plan.allocations:
        if not _NEVER_ALIVE.intersection(allocation.kinds):
            yield from _shared_bytes(allocation, alive)


def _shared_bytes(
    allocation: BufferAllocation, alive: Mapping[str, LiveRange]
) -> Iterator[Mismatch]:
    """Sweep over schedule positions, keeping the live values in order of offset.

    Live values share no bytes, so a new one can only conflict with its two neighbours.
    """
    pending = [
        _LiveValue(live.start, live.end, value)
        for value in allocation.values
        if value.size_bytes > 0 and (live := alive.get(value.name)) is not None
    ]
    if len(pending) < 2:
        return
    pending.sort(key=lambda live: live[:2])
    offsets: list[int] = []
    live_values: list[_LiveValue] = []
    ends: list[tuple[int, int]] = []  # (position of the end, offset)
    now = -1
    for new in pending:
        if new.start > now:
            now = new.start
            _drop_ended(now, ends, offsets, live_values)
        slot = bisect_left(offsets, new.value.offset_bytes)
        heappush(ends, (new.end, new.value.offset_bytes))
        if slot < len(live_values) and _is_cut_alias(live_values[slot], new):
            live_values[slot] = new
            continue
        for neighbour in live_values[max(slot - 1, 0) : slot + 1]:
            if neighbour.value.overlaps(new.value):
                yield (
                    f"no bytes of allocation {allocation.index} shared by values alive at the same "
                    "time",
                    f"{_described(neighbour)} and {_described(new)}",
                )
        offsets.insert(slot, new.value.offset_bytes)
        live_values.insert(slot, new)


def _drop_ended(
    now: int, ends: list[tuple[int, int]], offsets: list[int], live_values: list[_LiveValue]
) -> None:
    """Remove the values that end at or before position `now`."""
    while ends and ends[0][0] <= now:
        end, offset = heappop(ends)
        slot = bisect_left(offsets, offset)
        # The entry in `ends` is stale if an alias replaced the value.
        if offsets[slot : slot + 1] == [offset] and live_values[slot].end == end:
            del offsets[slot], live_values[slot]


def _is_cut_alias(one: _LiveValue, other: _LiveValue) -> bool:
    """Whether both begin together in the same bytes, and `one` is cut to its first position."""
    return (
        one.start == one.end == other.start
        and one.value.offset_bytes == other.value.offset_bytes
        and one.value.size_bytes == other.value.size_bytes
    )


def _described(live: _LiveValue) -> str:
    value = live.value
    place = f"bytes {value.offset_bytes} to {value.end_bytes}"
    return f"{value.name} at {place} alive {live.start}-{live.end}"


def collective_mismatches(plan: Plan) -> Iterator[Mismatch]:
    """(expected, found) of each invariant of collectives that does not hold."""
    for collective in plan.collectives or ():
        yield from _groups(collective)
        yield from _bytes(collective)


def _groups(collective: Collective) -> Iterator[Mismatch]:
    devices = [device for group in collective.replica_groups for device in group]
    if len(set(devices)) != len(devices):
        yield f"each device once in the groups of {collective.instruction}", "a device twice"
    for number, side in enumerate(("source", "target")):
        ends = [pair[number] for pair in collective.source_target_pairs]
        if len(set(ends)) != len(ends):
            expected = f"each device at most once as a {side} of {collective.instruction}"
            yield expected, "a device twice"


def _bytes(collective: Collective) -> Iterator[Mismatch]:
    operand_bytes, output_bytes = collective.operand_bytes, collective.output_bytes
    kind, size = collective.kind, collective.group_size
    if operand_bytes is None or output_bytes is None or kind == "ragged-all-to-all":
        return
    if kind in ("all-gather", "reduce-scatter") and size is None:
        return
    if kind == "all-gather":
        operand_bytes *= size or 1
    elif kind == "reduce-scatter":
        output_bytes *= size or 1
    if any(result.is_tiled for result in collective.results):
        # XLA for TPUs pads what it scatters to whole tiles on each device, and may sum bfloat16 to
        # float32, or float32 to bfloat16, beside arrays of the same type.
        padded = kind == "reduce-scatter" and operand_bytes < output_bytes
        less, more = sorted((operand_bytes, output_bytes))
        if padded or (kind in ("all-reduce", "reduce-scatter") and more <= 2 * less):
            return
    if operand_bytes != output_bytes:
        yield (
            f"operands and results of {kind} {collective.instruction} over {size or 'all'} "
            "devices to have the same total size",
            f"operands of {collective.operand_bytes} bytes, results of {collective.output_bytes}",
        )
