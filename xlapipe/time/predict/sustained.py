"""Products that last: a GPU at its limit of power lowers its clock, which short probes do not see.

On an H200, products of random bfloat16 matrices ran at 721 to 759 TFLOP/s for some 20 ms and at
633 to 660 after 60 ms, at 700 W and 1,400 to 1,470 MHz of 1,980; short probes gave 804, 813 and,
for the largest, 736. Products of zeros took 441 W, and ran at 799. A training step of four layers
took 693 W at 1,493 MHz.

The limit is of power averaged over some time, so kernels between products make up for them: where
products took 38 to 46 % of steps of 2 to 30 ms, called back to back, they took 0.91 to 1.01 times
as long as by the calibration.
"""

from xlapipe.devices.targets.device import Device
from xlapipe.time.cost.flops import VECTOR
from xlapipe.time.predict.kernel_time import CALIBRATED, KernelTime
from xlapipe.time.predict.work import KernelWork

# By row of the GPU catalogue: both have a limit of 700 W, and only the H200 was measured. Tables of
# other GPUs are of products that were repeated.
_FACTORS = {"h100_sxm": 1.25, "h200": 1.25}
_LEAST_SECONDS, _LEAST_SHARE = 20e-3, 0.5
# Where products are a smaller share of a step, only those that last longer than power is averaged
# over.
_LONG_SECONDS, _LONG_SHARE = 60e-3, 0.3
# Share of the peak: slower products wait for memory, which keeps its clock.
_BY_MATRIX_UNITS = 0.4


def sustained_factor(device: Device | None, products: float, total: float) -> float:
    """How much longer products take in a step with these seconds of products and all kernels."""
    least = ((_LEAST_SECONDS, _LEAST_SHARE), (_LONG_SECONDS, _LONG_SHARE))
    limited = any(products >= max(seconds, share * total) for seconds, share in least)
    return _FACTORS.get(device.row or "", 1.0) if device is not None and limited else 1.0


def is_at_power_limit(time: KernelTime, work: KernelWork, peaks: dict[str, float]) -> bool:
    """Whether matrix units determine a kernel's time, which a probe gave."""
    flops = sum(
        count / peaks.get(name if name in peaks else name[:2], float("inf"))
        for name, count in work.flops.items()
        if name != VECTOR
    )
    return time.basis == CALIBRATED and flops > _BY_MATRIX_UNITS * time.seconds
