"""The allocation of a plan that a memory failure is about, found by its size."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from xlapipe.dump.opened import Opened
from xlapipe.plans import AllocationKind, BufferAllocation, Plan
from xlapipe.plans.peak import PeakGroup, peak_of
from xlapipe.report.failures import FailureKind, MemoryFailure
from xlapipe.report.failures.sizes import LoggedSize
from xlapipe.report.records import named

# The allocators of GPUs round a size up to a multiple of this.
_GRANULE_BYTES = 256
_MAX_GROUPS = 12


@dataclass(frozen=True)
class FailedAllocation:
    """An allocation whose size is the requested one.

    Attributes:
      candidates: number of allocations of this size.
      groups: its contents where it is fullest, most bytes first.
    """

    allocation: BufferAllocation
    candidates: int
    groups: tuple[PeakGroup, ...]


@dataclass(frozen=True)
class PlannedFailure:
    """What a plan shows about a failure.

    Attributes:
      module: name of the plan's module; None if the dump has no HLO.
      same_module: whether the log names this module; None if the log or the plan names none.
      allocation: None if no allocation has the requested size.
      peak_groups: contents of the whole program at its peak.
      autotuning: the label of the plan.
    """

    plan: Plan
    module: str | None
    same_module: bool | None
    allocation: FailedAllocation | None
    peak_groups: tuple[PeakGroup, ...]
    autotuning: str


def planned_failure(failure: MemoryFailure, dump: Opened) -> PlannedFailure:
    """Finds the failed allocation in a plan, and what is in it at its fullest."""
    module = dump.plan.module.name if dump.plan.module is not None else None
    named = failure.executable_name
    return PlannedFailure(
        plan=dump.plan,
        module=module,
        same_module=module == named if module is not None and named is not None else None,
        allocation=_failed_allocation(failure, dump),
        peak_groups=peak_of(dump.program).groups,
        autotuning=dump.autotuning,
    )


def _failed_allocation(failure: MemoryFailure, dump: Opened) -> FailedAllocation | None:
    # A compile reports the size of the whole program.
    if failure.requested is None or failure.kind is FailureKind.COMPILE:
        return None
    candidates = allocations_of_size(dump.plan.device_allocations, failure.requested)
    if not candidates:
        return None
    arena = peak_of(dump.program).arena(candidates[0])
    return FailedAllocation(candidates[0], len(candidates), arena.groups_at_fullest)


def allocations_of_size(
    allocations: Iterable[BufferAllocation], requested: LoggedSize
) -> list[BufferAllocation]:
    """Allocations that may be the requested one: temporary first, then outputs, then arguments."""
    of_size = [
        allocation
        for allocation in allocations
        if not allocation.is_a(AllocationKind.THREAD_LOCAL)
        and _is_size(allocation.size_bytes, requested)
    ]
    return sorted(of_size, key=lambda allocation: (_rank(allocation), -allocation.size_bytes))


def _is_size(size_bytes: int, requested: LoggedSize) -> bool:
    rounded = -(-size_bytes // _GRANULE_BYTES) * _GRANULE_BYTES
    return requested.may_be(size_bytes) or requested.may_be(rounded)


def _rank(allocation: BufferAllocation) -> int:
    if allocation.is_a(AllocationKind.PARAMETER):
        return 2
    return 1 if allocation.is_a(AllocationKind.MAYBE_LIVE_OUT) else 0


def planned_figures(planned: PlannedFailure) -> dict[str, Any]:
    """The JSON of `PlannedFailure`."""
    failed = planned.allocation
    return {
        **named(planned, "module", "autotuning", "same_module"),
        "argument_bytes": planned.plan.totals.parameter_bytes,
        "output_bytes": planned.plan.totals.live_out_bytes - planned.plan.totals.aliased_bytes,
        "temp_bytes": planned.plan.totals.temp_bytes,
        "total_bytes": planned.plan.totals.total_allocation_bytes,
        "allocation": None
        if failed is None
        else {
            **named(failed.allocation, "index", "size_bytes", "kinds"),
            "candidates": failed.candidates,
        },
        "contents": [
            {
                **named(group, "label", "role", "sources"),
                "bytes": group.counted_bytes,
                "values": len(group.values),
            }
            for group in shown_groups(planned)
        ],
    }


def shown_groups(planned: PlannedFailure) -> tuple[PeakGroup, ...]:
    """The largest contents of the failed allocation; without one, of the program at its peak."""
    failed = planned.allocation
    return (failed.groups if failed is not None else planned.peak_groups)[:_MAX_GROUPS]
