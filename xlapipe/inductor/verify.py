"""The specification of an InductorPlan, run after every read.

1. Allocations are numbered 0, 1, …; sizes are not negative; a value is inside its allocation
   only.
2. A lifetime does not end before it starts, nor after the last kernel.
3. What is held at the peak adds up to `own_peak_bytes`, freed arguments subtracted, and at the end
   to `end_bytes`.
4. Arguments and outputs have allocations of the plan; an output's is held to the end.
5. Kernels are numbered 0, 1, …; a collective is waited for after it starts.
"""

from typing import NoReturn

from xlapipe.errors import PlanMismatchError
from xlapipe.inductor.inductor_plan import InductorPlan
from xlapipe.plans.buffers import AllocationKind

_FIX = "fix: the file is damaged, dump it again; if torch wrote it so, report it with the file"


def verify(plan: InductorPlan) -> None:
    """Checks the invariants above.

    Raises:
      PlanMismatchError: for the first one that does not hold.
    """
    _verify_allocations(plan)
    _verify_lifetimes(plan)
    _verify_sums(plan)
    _verify_interface(plan)
    _verify_kernels(plan)


def _fail(plan: InductorPlan, line: int | None, expected: str, found: str) -> NoReturn:
    where = plan.where if line is None else f"{plan.where}:{line}"
    raise PlanMismatchError(f"{where}: expected {expected}, found {found}; {_FIX}")


def _verify_allocations(plan: InductorPlan) -> None:
    home: dict[str, int] = {}
    for place, (allocation, life) in enumerate(zip(plan.allocations, plan.lifetimes, strict=True)):
        index, size = allocation.index, allocation.size_bytes
        if index != place or size < 0:
            _fail(
                plan, life.line, f"allocation {place} of 0 bytes or more", f"{index}, {size} bytes"
            )
        for value in allocation.values:
            end = value.offset_bytes + value.size_bytes
            if value.offset_bytes < 0 or value.size_bytes < 0 or end > size:
                _fail(
                    plan,
                    life.line,
                    f"value {value.name} within the {size} bytes of allocation {index}",
                    f"offset {value.offset_bytes}, size {value.size_bytes}",
                )
            if value.name in home:
                other = home[value.name]
                two_places = f"it in allocations {other} and {index}"
                _fail(plan, life.line, f"value {value.name} in one allocation", two_places)
            home[value.name] = index


def _verify_lifetimes(plan: InductorPlan) -> None:
    last = len(plan.kernels)
    for allocation, life in zip(plan.allocations, plan.lifetimes, strict=True):
        if not 0 <= life.start <= life.end <= last:
            expected = f"allocation {allocation.index} to live between positions 0 and {last}"
            _fail(plan, life.line, expected, f"{life.start} to {life.end}")
    for live in plan.live_ranges:
        if not 0 <= live.start <= live.end <= last:
            expected = f"value {live.name} to live between positions 0 and {last}"
            _fail(plan, None, expected, f"{live.start} to {live.end}")


def _verify_sums(plan: InductorPlan) -> None:
    if any(storage.new_bytes is not None for storage in plan.only.resized_storages):
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
    if peak != plan.totals.own_peak_bytes:
        expected = f"allocations that add up to the peak of {plan.totals.own_peak_bytes} bytes"
        _fail(plan, plan.peak_line, expected, f"{peak} bytes")
    if end != plan.totals.end_bytes:
        expected = f"allocations that add up to {plan.totals.end_bytes} bytes at the end"
        _fail(plan, None, expected, f"{end} bytes")


def _verify_interface(plan: InductorPlan) -> None:
    count = len(plan.allocations)
    places = [(argument.name, argument.allocation) for argument in plan.arguments]
    places += [(output.name, output.allocation) for output in plan.outputs]
    for name, place in places:
        if place is not None and not 0 <= place < count:
            _fail(plan, None, f"{name} in one of {count} allocations", f"{place}")
    for output in plan.outputs:
        if output.allocation is not None and not plan.lifetimes[output.allocation].held_at_end:
            _fail(plan, None, f"output {output.name} to be held at the end", "it freed before")


def _verify_kernels(plan: InductorPlan) -> None:
    for place, kernel in enumerate(plan.kernels):
        if kernel.position != place:
            _fail(plan, kernel.line, f"kernel {place}", f"kernel {kernel.position} in its place")
    for collective in plan.collectives:
        if collective.end is not None and collective.end <= collective.start:
            expected = f"{collective.instruction} to be waited for after position"
            _fail(plan, None, f"{expected} {collective.start}", str(collective.end))
