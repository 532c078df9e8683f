"""The result of running an executable: outputs' digests, times, and memory of each device."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from xlapipe.plans import AllocationKind, BufferAllocation, Plan
from xlapipe.time.profiles.joined_profile import MeasuredStep

# The granularity of XLA's BFC allocator on GPUs (kMinAllocationSize in its bfc_allocator.h).
ALLOCATOR_GRANULE_BYTES = 256


@dataclass(frozen=True)
class MemoryAccount:
    """Planned and measured memory of one device, and the items that explain the difference.

    planned - not_on_device - constant + rounding + executable + input_chunks + output_chunks
    + unexplained = measured; all in bytes.

    Attributes:
      planned_bytes: total of the plan in device memory.
      measured_bytes: peak in use during the first call, minus bytes in use before loading.
      not_on_device_bytes: thread-local allocations, which are kept in registers.
      constant_bytes: constants, which are part of the executable.
      rounding_bytes: added by rounding allocations up to the allocator's granule.
      executable_bytes: allocated when the executable is loaded, before the inputs.
      input_chunk_bytes: allocated for inputs beyond their rounded sizes: the allocator does not
        split a free chunk if the rest would be small.
      output_chunk_bytes: the same for outputs.
      unexplained_bytes: the remainder: command buffers and the runtime's own memory.
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
        """Unexplained bytes as a fraction of the measured bytes, from 0."""
        return abs(self.unexplained_bytes) / max(1, self.measured_bytes)


def reconcile(
    plan: Plan,
    *,
    before: Mapping[str, int],
    loaded: Mapping[str, int],
    with_inputs: Mapping[str, int],
    after: Mapping[str, int],
) -> MemoryAccount | None:
    """Explains measured memory by the plan; `before` is before the executable is loaded."""
    if "peak_bytes_in_use" not in after or "bytes_in_use" not in before:
        return None
    totals = plan.totals
    allocations = plan.device_allocations
    inputs = [a for a in allocations if a.is_a(AllocationKind.PARAMETER)]
    outputs = [a for a in allocations if _is_output(a)]
    # Registers, and what is part of the executable, take no memory of the call.
    apart = (AllocationKind.THREAD_LOCAL, AllocationKind.CONSTANT)
    on_device = [a for a in allocations if not any(map(a.is_a, apart))]
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


def _is_output(allocation: BufferAllocation) -> bool:
    """Whether the allocation is a new array that the call returns."""
    return (
        allocation.is_a(AllocationKind.MAYBE_LIVE_OUT)
        and not allocation.is_a(AllocationKind.PARAMETER)
        and not (
            bool(allocation.values) and all(value.shape.is_tuple for value in allocation.values)
        )
    )


@dataclass(frozen=True)
class OutputDigest:
    """One output leaf; `sha256` is of the bytes of the whole array in row-major order."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    sha256: str


@dataclass(frozen=True)
class DeviceRun:
    """Memory of one device, None without statistics; by its process and position in the mesh."""

    process: int
    device: int
    memory: MemoryAccount | None


@dataclass(frozen=True)
class ProfiledRun:
    """Profiled calls: wall time of each, and the kernels joined with the plan."""

    call_seconds: tuple[float, ...]
    measured: MeasuredStep


@dataclass(frozen=True)
class RunResult:
    """The result of a run; the same in every process, except for times.

    `load_seconds` are of reading and loading, after jax has started, and `call_seconds` from inputs
    on the devices until this process's part of the outputs is ready. The devices are of all
    processes, in the order of the mesh; the profile is of further calls, if any.
    """

    device: str
    autotuning: str
    load_seconds: float
    first_call_seconds: float
    call_seconds: tuple[float, ...]
    outputs: tuple[OutputDigest, ...]
    devices: tuple[DeviceRun, ...]
    processes: int
    profile: ProfiledRun | None = None

    @property
    def median_call_seconds(self) -> float | None:
        return median(self.call_seconds) if self.call_seconds else None

    @property
    def worst(self) -> DeviceRun:
        """The device that used most memory; the first of several."""
        return max(self.devices, key=lambda run: run.memory.measured_bytes if run.memory else 0)

    def to_json(self) -> dict[str, Any]:
        """Plain data; `memory` is the worst device's."""
        memory = self.worst.memory
        data = asdict(self)
        if self.profile is None:
            del data["profile"]
        return {
            **data,
            "median_call_seconds": self.median_call_seconds,
            "memory": asdict(memory) if memory is not None else None,
        }
