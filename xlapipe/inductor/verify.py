"""The specification of an InductorPlan, run after every read.

1. Allocations are numbered 0, 1, …; sizes are not negative; a value is inside its allocation
   only.
2. A lifetime does not end before it starts, nor after the last kernel.
3. What is held at the peak adds up to `own_peak_bytes`, freed arguments subtracted, and at the end
   to `end_bytes`.
4. Arguments and outputs have allocations of the plan; an output's is held to the end.
5. Kernels are numbered 0, 1, …; a collective is waited for after it starts.
"""

from collections.abc import Iterator

from xlapipe.errors import PlanMismatchError
from xlapipe.inductor.inductor_plan import InductorPlan
from xlapipe.plans.buffers import AllocationKind

_FIX = "fix: the file is damaged, dump it again; if torch wrote it so, report it with the file"

# Line in the file, what is expected, what was found.
_Problem = tuple[int | None, str, str]


def verify(plan: InductorPlan) -> None:
    """Checks the invariants above."""
    for check in (_allocations, _lifetimes, _sums, _interface, _kernels):
        for line, expected, found in check(plan):
            where = plan.where if line is None else f"{plan.where}:{line}"
            raise PlanMismatchError(f"{where}: expected {expected}, found {found}; {_FIX}")


def _allocations(plan: InductorPlan) -> Iterator[_Problem]:
    home: dict[str, int] = {}
    for place, (allocation, life) in enumerate(zip(plan.allocations, plan.lifetimes, strict=True)):
        index, size = allocation.index, allocation.size_bytes
        if index != place or size < 0:
            yield life.line, f"allocation {place} of 0 bytes or more", f"{index}, {size} bytes"
        for value in allocation.values:
            end = value.offset_bytes + value.size_bytes
            if value.offset_bytes < 0 or value.size_bytes < 0 or end > size:
                expected = f"value {value.name} within the {size} bytes of allocation {index}"
                yield life.line, expected, f"offset {value.offset_bytes}, size {value.size_bytes}"
            if value.name in home:
                found = f"it in allocations {home[value.name]} and {index}"
                yield life.line, f"value {value.name} in one allocation", found
            home[value.name] = index


def _lifetimes(plan: InductorPlan) -> Iterator[_Problem]:
    last = len(plan.kernels)
    lived: list[tuple[str, int | None, int, int]] = [
        (f"allocation {allocation.index}", life.line, life.start, life.end)
        for allocation, life in zip(plan.allocations, plan.lifetimes, strict=True)
    ]
    lived += [(f"value {live.name}", None, live.start, live.end) for live in plan.live_ranges]
    for name, line, start, end in lived:
        if not 0 <= start <= end <= last:
            yield line, f"{name} to live between positions 0 and {last}", f"{start} to {end}"


def _sums(plan: InductorPlan) -> Iterator[_Problem]:
    if any(storage.new_bytes is not None for storage in plan.resized_storages):
        return  # sizes change while they are held
    peak = end = 0
    given = {a.allocation for a in plan.arguments if a.given_away}
    for allocation, life in zip(plan.allocations, plan.lifetimes, strict=True):
        size = allocation.size_bytes
        if not allocation.is_a(AllocationKind.PARAMETER):
            peak += size if life.held_at_peak else 0
            end += size if life.held_at_end else 0
        elif allocation.index in given:
            peak -= 0 if life.held_at_peak else size
            end -= 0 if life.held_at_end else size
    totals = plan.totals
    if peak != totals.own_peak_bytes:
        expected = f"allocations that add up to the peak of {totals.own_peak_bytes} bytes"
        yield plan.peak_line, expected, f"{peak} bytes"
    if end != totals.end_bytes:
        expected = f"allocations that add up to {totals.end_bytes} bytes at the end"
        yield None, expected, f"{end} bytes"


def _interface(plan: InductorPlan) -> Iterator[_Problem]:
    count = len(plan.allocations)
    places = [(argument.name, argument.allocation) for argument in plan.arguments]
    places += [(output.name, output.allocation) for output in plan.outputs]
    for name, place in places:
        if place is not None and not 0 <= place < count:
            yield None, f"{name} in one of {count} allocations", f"{place}"
    for output in plan.outputs:
        if output.allocation is not None and not plan.lifetimes[output.allocation].held_at_end:
            yield None, f"output {output.name} to be held at the end", "it freed before"


def _kernels(plan: InductorPlan) -> Iterator[_Problem]:
    for place, kernel in enumerate(plan.kernels):
        if kernel.position != place:
            yield kernel.line, f"kernel {place}", f"kernel {kernel.position} in its place"
    for collective in plan.collectives:
        if collective.end is not None and collective.end <= collective.start:
            expected = f"{collective.instruction} to be waited for after position"
            yield None, f"{expected} {collective.start}", str(collective.end)
