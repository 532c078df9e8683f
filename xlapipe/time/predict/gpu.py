"""Figures of a GPU that formulas need."""

from dataclasses import dataclass

from xlapipe.devices.targets.device import Device, device_of_target
from xlapipe.time.predict.calibration import fitted_to
from xlapipe.time.predict.features import Features

THREADS_OF_A_WARP = 32
"""Threads that run in step."""

SHARED_BYTES, REGISTERS, THREADS = 227 * 1024, 65536, 2048
"""Shared memory, 32-bit registers and resident threads of a multiprocessor of an H100 or H200."""

MOST_REGISTERS = 255
"""Most registers that one thread can have."""

SMALL_SECONDS = 0.5e-6
"""Time of a small kernel beside launch, below which it does not matter what limits it."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """The GPU that runs the kernels.

    Attributes:
      multiprocessors: number of multiprocessors.
      l2_bytes: bytes that the L2 cache holds from one kernel to the next.
      bandwidth, vector, peak: rates of device memory, of float32 operations, and of tensor cores,
        as multiples of the H200's rates in the formulas.
      clocks: the same of all multiprocessors' clocks, by which caches and threads go. An A100 has
        half as many float32 lanes in a multiprocessor as an H200.
    """

    multiprocessors: int = 132
    l2_bytes: float = 30_000_000
    bandwidth: float = 1.0
    vector: float = 1.0
    peak: float = 1.0
    clocks: float = 1.0

    @property
    def features(self) -> Features:
        """Constants of the features of timed kernels, as of an H200 for its generation."""
        return fitted_to(_CALIBRATED[0]).features

    # Rates by which features relate what limits a kernel. Timed kernels keep these features, so
    # they are those of an H200 for its generation, whatever its calibration's constants are.

    @property
    def bytes_rate(self) -> float:
        """Bytes per second of device memory."""
        return 4.5e12 * self.bandwidth

    @property
    def sector_rate(self) -> float:
        """Bytes per second of sectors of the L2 cache."""
        return 6.7e12 * self.clocks

    @property
    def line_rate(self) -> float:
        """Lines of the L1 caches per second."""
        return 0.46e12 * self.clocks

    @property
    def operation_rate(self) -> float:
        """Simple float32 operations per second."""
        return 29e12 * self.vector

    @property
    def thread_rate(self) -> float:
        """Threads per second that start and end."""
        return 0.21e12 * self.clocks

    def product_rate(self, element_type: str) -> float:
        """Operations per second of matrix products, as Pallas kernels reach them."""
        return {"f32": 450e12, "f64": 67e12}.get(element_type, 900e12) * self.peak


HOPPER = Gpu()
"""An H100 or H200, whose timed kernels the calibrations compare others with."""
_CALIBRATED = ("h200", "h100_sxm")


def gpu_of(device: Device | None) -> Gpu:
    """The figures of a device; those of an H200 where it is unknown."""
    reference = device_of_target(_CALIBRATED[0])
    if device is None or device.row in _CALIBRATED or reference is None:
        return HOPPER
    vector, clocks = rates_beside(device, reference)
    peaks = (device.peak_of("bf16") or 0.0) / (reference.peak_of("bf16") or 1.0)
    return Gpu(
        multiprocessors=device.cores,
        l2_bytes=HOPPER.l2_bytes * device.l2_bytes / reference.l2_bytes or HOPPER.l2_bytes,
        bandwidth=device.bandwidth / reference.bandwidth,
        vector=vector,
        peak=peaks or 1.0,
        clocks=clocks,
    )


def rates_beside(device: Device, reference: Device) -> tuple[float, float]:
    """Float32 operations and clocks of all multiprocessors, as multiples of another GPU's."""
    vector = device.vector_flops / reference.vector_flops if device.vector_flops else 1.0
    clocks = device.cores * device.clock_rate / (reference.cores * reference.clock_rate or 1.0)
    return vector, clocks or vector
