"""A plan's memory held against what the device's allocator reports."""

from collections.abc import Mapping
from dataclasses import dataclass

from xlapipe.plan import AllocationKind, Plan

# The granularity of XLA's BFC allocator on GPUs (kMinAllocationSize in tsl's bfc_allocator.h).
ALLOCATOR_GRANULE_BYTES = 256


@dataclass(frozen=True)
class MemoryAccount:
    """Planned against measured, and the difference item by item; all in bytes.

    planned + rounding + executable - not_on_device - constant + unexplained = measured.

    Attributes:
      planned_bytes: the plan's total.
      measured_bytes: peak in use during the call, less what was in use before loading.
      rounding_bytes: allocations rounded up to the allocator's granule.
      executable_bytes: taken by loading the executable, before any input.
      not_on_device_bytes: thread-local allocations, which live in registers.
      constant_bytes: constants, which the executable brings along.
    """

    planned_bytes: int
    measured_bytes: int
    rounding_bytes: int
    executable_bytes: int
    not_on_device_bytes: int
    constant_bytes: int
    unexplained_bytes: int

    @property
    def unexplained_share(self) -> float:
        """Of the measured bytes."""
        return abs(self.unexplained_bytes) / max(1, self.measured_bytes)


def account(
    plan: Plan,
    *,
    before: Mapping[str, int],
    loaded: Mapping[str, int],
    after: Mapping[str, int],
) -> MemoryAccount | None:
    """Reconciles `plan` with `memory_stats()` taken at three moments of one process.

    Args:
      before: before the executable is loaded.
      loaded: after that, before inputs.
      after: after the first call.

    Returns:
      None where the device reports no statistics.
    """
    if "peak_bytes_in_use" not in after or "bytes_in_use" not in before:
        return None
    totals = plan.totals
    measured = after["peak_bytes_in_use"] - before["bytes_in_use"]
    executable = loaded["bytes_in_use"] - before["bytes_in_use"]
    rounding = sum(
        -allocation.size_bytes % ALLOCATOR_GRANULE_BYTES
        for allocation in plan.allocations
        if not allocation.is_a(AllocationKind.THREAD_LOCAL)
        and not allocation.is_a(AllocationKind.CONSTANT)
    )
    absent = totals.thread_local_bytes
    explained = (
        totals.total_allocation_bytes + rounding + executable - absent - totals.constant_bytes
    )
    return MemoryAccount(
        planned_bytes=totals.total_allocation_bytes,
        measured_bytes=measured,
        rounding_bytes=rounding,
        executable_bytes=executable,
        not_on_device_bytes=absent,
        constant_bytes=totals.constant_bytes,
        unexplained_bytes=measured - explained,
    )
