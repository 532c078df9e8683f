"""A plan's memory held against what the device's allocator reports."""

from collections.abc import Mapping
from dataclasses import dataclass

from xlapipe.plan import AllocationKind, BufferAllocation, Plan

# The granularity of XLA's BFC allocator on GPUs (kMinAllocationSize in its bfc_allocator.h).
ALLOCATOR_GRANULE_BYTES = 256


@dataclass(frozen=True)
class MemoryAccount:
    """Planned against measured, and the difference item by item; all in bytes.

    planned - not_on_device - constant + rounding + executable + input_chunks + output_chunks
    + unexplained = measured.

    Attributes:
      planned_bytes: the plan's total.
      measured_bytes: peak in use during the call, less what was in use before loading.
      not_on_device_bytes: thread-local allocations, which live in registers.
      constant_bytes: constants, which the executable brings along.
      rounding_bytes: allocations rounded up to the allocator's granule.
      executable_bytes: taken by loading the executable, before any input.
      input_chunk_bytes: taken by the inputs beyond their rounded sizes: the allocator hands out
        a free chunk whole where what would be left of it is small.
      output_chunk_bytes: the same of the outputs.
      unexplained_bytes: what remains: command buffers and the runtime's own.
    """

    planned_bytes: int
    measured_bytes: int
    not_on_device_bytes: int
    constant_bytes: int
    rounding_bytes: int
    executable_bytes: int
    input_chunk_bytes: int
    output_chunk_bytes: int
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
    with_inputs: Mapping[str, int],
    after: Mapping[str, int],
) -> MemoryAccount | None:
    """Reconciles `plan` with `memory_stats()` taken at four moments of one process.

    Args:
      before: before the executable is loaded.
      loaded: after that, before inputs.
      with_inputs: with the inputs on the device.
      after: after the first call, while its outputs are alive.

    Returns:
      None where the device reports no statistics.
    """
    if "peak_bytes_in_use" not in after or "bytes_in_use" not in before:
        return None
    totals = plan.totals
    inputs = [a for a in plan.allocations if a.is_a(AllocationKind.PARAMETER)]
    outputs = [
        a
        for a in plan.allocations
        if a.is_a(AllocationKind.MAYBE_LIVE_OUT)
        and not a.is_a(AllocationKind.PARAMETER)
        and not _is_tuple_table(a)
    ]
    on_device = [
        a
        for a in plan.allocations
        if not a.is_a(AllocationKind.THREAD_LOCAL) and not a.is_a(AllocationKind.CONSTANT)
    ]
    measured = after["peak_bytes_in_use"] - before["bytes_in_use"]
    executable = loaded["bytes_in_use"] - before["bytes_in_use"]
    input_chunks = with_inputs["bytes_in_use"] - loaded["bytes_in_use"] - _rounded(inputs)
    output_chunks = after["bytes_in_use"] - with_inputs["bytes_in_use"] - _rounded(outputs)
    explained = _rounded(on_device) + executable + input_chunks + output_chunks
    return MemoryAccount(
        planned_bytes=totals.total_allocation_bytes,
        measured_bytes=measured,
        not_on_device_bytes=totals.thread_local_bytes,
        constant_bytes=totals.constant_bytes,
        rounding_bytes=_rounded(on_device) - sum(a.size_bytes for a in on_device),
        executable_bytes=executable,
        input_chunk_bytes=input_chunks,
        output_chunk_bytes=output_chunks,
        unexplained_bytes=measured - explained,
    )


def _rounded(allocations: list[BufferAllocation]) -> int:
    granule = ALLOCATOR_GRANULE_BYTES
    return sum(-(-allocation.size_bytes // granule) * granule for allocation in allocations)


def _is_tuple_table(allocation: BufferAllocation) -> bool:
    """The table of pointers to the outputs, which is gone when the call has returned."""
    return bool(allocation.values) and all(v.shape.startswith("(") for v in allocation.values)
