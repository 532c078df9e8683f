"""Figures of a GPU that formulas need."""

from dataclasses import dataclass

from xlapipe.devices.targets.device import Device, device_of_target

THREADS_OF_A_WARP = 32
"""Threads that run in step."""

SHARED_BYTES, REGISTERS, THREADS = 227 * 1024, 65536, 2048
"""Shared memory, 32-bit registers and resident threads of a multiprocessor of an H100 or H200."""

MOST_REGISTERS = 255
"""Most registers that one thread can have."""

LEAST_THREADS = 128
"""Blocks of fewer threads start no faster than blocks of this size."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """The GPU that runs the kernels.

    Attributes:
      multiprocessors: number of multiprocessors.
      l2_bytes: bytes that the L2 cache holds from one kernel to the next.
      bandwidth, vector, peak: rates of device memory, of multiprocessors (operations and cache
        reads), and of tensor cores, as multiples of the H200's rates in the formulas.
    """

    multiprocessors: int = 132
    l2_bytes: float = 30_000_000
    bandwidth: float = 1.0
    vector: float = 1.0
    peak: float = 1.0


HOPPER = Gpu()
"""An H100 or H200, whose timed kernels the calibrations compare others with."""
_CALIBRATED = ("h200", "h100_sxm")


def gpu_of(device: Device | None) -> Gpu:
    """The figures of a device; those of an H200 where it is unknown."""
    reference = device_of_target(_CALIBRATED[0])
    if device is None or device.row in _CALIBRATED or reference is None:
        return HOPPER
    vector = device.vector_flops / reference.vector_flops if device.vector_flops else 1.0
    peaks = (device.peak_of("bf16") or 0.0) / (reference.peak_of("bf16") or 1.0)
    return Gpu(
        multiprocessors=device.cores,
        l2_bytes=HOPPER.l2_bytes * device.l2_bytes / reference.l2_bytes or HOPPER.l2_bytes,
        bandwidth=device.bandwidth / reference.bandwidth,
        vector=vector,
        peak=peaks or 1.0,
    )
