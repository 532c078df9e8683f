"""The time of one kernel: a formula, corrected by the most similar kernels that were timed."""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from xlapipe.cost.flops import VECTOR
from xlapipe.predict.calibration import Calibration, Constants, TimedKernel
from xlapipe.predict.kernel_work import KernelWork

CALIBRATED, SCALED, ASSUMED, TIMED = "calibrated", "scaled", "assumed", "timed"
# float16 has the rate of bfloat16, and so on: as `Speeds.peak_of`.
_SAME_PEAK = {"f16": "bf16", "f32": "tf32", "u8": "s8", "c64": "tf32", "c128": "f64"}
# Kernels whose formula describes all of their time; a correction fades with the distance.
_DESCRIBED = ("loop", "input", "triton", "copy")
_NEIGHBOURS = 24
_STEEPEST = 0.3
_RIDGE = 0.35
# Uncorrected formulas are this much too short on average.
_UNCALIBRATED_RATIO = 1.3
_COLD_BYTES = 256


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a kernel's time.

    Attributes:
      reason: in words, e.g. `12.4 MB at 4.2 TB/s`.
    """

    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class KernelTime:
    """The predicted time of one launch.

    Attributes:
      parts: launch, first read from memory, and the longest of bytes, operations and threads.
      ratio: by which timed kernels like this one differ from the sum of the parts.
      basis: `calibrated`, `scaled`, `assumed` or `timed`.
      spread: standard deviation of the logarithm of the ratio.
      launches: kernels that run for it.
      nearest: programs of the calibration with the most similar kernels.
    """

    seconds: float
    parts: tuple[Part, ...]
    ratio: float
    basis: str
    spread: float
    launches: float = 1.0
    nearest: tuple[str, ...] = ()


def parts_of(work: KernelWork, cached_bytes: float, constants: Constants) -> tuple[Part, ...]:
    """The parts of a launch's time by the formula alone."""
    parts = [Part(constants.launch_seconds, "launch")]
    uncached = work.touched_bytes - cached_bytes
    if work.read_bytes - cached_bytes > _COLD_BYTES:
        parts.append(Part(constants.cold_seconds, "first read from device memory"))
    memory = uncached / constants.bandwidth + cached_bytes / constants.l2_bandwidth
    text = f"{uncached / 1e6:,.2f} MB at {constants.bandwidth / 1e12:.2f} TB/s"
    if cached_bytes:
        rate = constants.l2_bandwidth / 1e12
        text += f" and {cached_bytes / 1e6:,.2f} MB of the L2 cache at {rate:.2f} TB/s"
    longest = Part(memory, text)
    flops = sum(count for name, count in work.flops.items() if name != VECTOR)
    if flops:
        seconds = sum(
            count / _peak(name, constants) for name, count in work.flops.items() if name != VECTOR
        )
        rate = flops / seconds / 1e12
        longest = _longer(longest, Part(seconds, f"{flops:,} operations at {rate:,.0f} TFLOP/s"))
    arithmetic = work.operations / constants.operation_rate
    rate = constants.operation_rate / 1e12
    text = f"{work.operations:,.0f} operations on elements at {rate:.1f} T/s"
    longest = _longer(longest, Part(arithmetic, text))
    threads = work.threads / constants.thread_rate
    text = f"{work.threads:,} threads at {constants.thread_rate / 1e12:.2f} T/s"
    longest = _longer(longest, Part(threads, text))
    if work.link_bytes:
        rate = constants.link_bandwidth
        text = f"{work.link_bytes / 1e6:,.2f} MB to other GPUs at {rate / 1e9:,.0f} GB/s"
        longest = _longer(longest, Part(work.link_bytes / rate, text))
    return (*parts, longest)


def _longer(first: Part, second: Part) -> Part:
    return second if second.seconds > first.seconds else first


def _peak(element_type: str, constants: Constants) -> float:
    name = _SAME_PEAK.get(element_type, element_type)
    if name.startswith(("f8", "f4")):
        name = name[:2]
    return constants.peak_flops.get(name) or constants.operation_rate


def formula_seconds(work: KernelWork, cached_bytes: float, constants: Constants) -> float:
    """Sum of the parts."""
    return sum(part.seconds for part in parts_of(work, cached_bytes, constants))


def measured_time(seconds: float) -> KernelTime:
    """The time of a kernel that was timed before."""
    # The median difference of equal kernels of two sessions is 1 %, and some differ by more.
    return KernelTime(seconds, (Part(seconds, "timed before"),), 1.0, TIMED, 0.03)


def time_of(
    work: KernelWork, cached_bytes: float, in_graph: bool, calibration: Calibration
) -> KernelTime:
    """The predicted time of one launch."""
    parts = parts_of(work, cached_bytes, calibration.constants)
    seconds = sum(part.seconds for part in parts)
    timed = [
        kernel
        for kernel in calibration.by_kind.get(work.kind, ())
        if len(kernel.point) == len(work.point)
    ]
    if not timed:
        ratio = _UNCALIBRATED_RATIO
        return KernelTime(seconds * ratio, parts, ratio, ASSUMED, 0.4)
    logarithm, spread, nearest = _interpolated(work, in_graph, timed)
    basis = SCALED if calibration.scaled_from else CALIBRATED
    ratio = math.exp(logarithm)
    launches = sum(kernel.launches for kernel in nearest[:3]) / len(nearest[:3])
    names = tuple(dict.fromkeys(kernel.program for kernel in nearest))[:3]
    return KernelTime(seconds * ratio, parts, ratio, basis, spread, launches, names)


def _interpolated(
    work: KernelWork, in_graph: bool, timed: Sequence[TimedKernel]
) -> tuple[float, float, list[TimedKernel]]:
    """Logarithm of the ratio, its spread, and the timed kernels by distance.

    A local linear fit (LOESS) over the nearest timed kernels, weighted by their distance.
    """
    origin = (*work.point, float(in_graph))
    distances = [math.dist(kernel.place, origin) for kernel in timed]
    order = heapq.nsmallest(_NEIGHBOURS, range(len(timed)), key=distances.__getitem__)
    rows = [
        (
            distances[number] ** 2,
            [a - b for a, b in zip(timed[number].place, origin, strict=True)],
            timed[number],
        )
        for number in order
    ]
    nearest = rows[0][0]
    width = 2 * max(1.0, 0.6 * nearest)
    weights = [math.exp((nearest - row[0]) / width) for row in rows]
    total = sum(weights)
    values = [math.log(row[2].ratio) for row in rows]
    mean = sum(w * value for w, value in zip(weights, values, strict=True)) / total
    residual = sum(w * (v - mean) ** 2 for w, v in zip(weights, values, strict=True)) / total
    result = mean
    if len(rows) > 3:
        slope_at_origin = _slope(rows, weights, values, mean, total)
        result += max(-_STEEPEST, min(_STEEPEST, slope_at_origin))
    if work.kind.startswith(_DESCRIBED) and not work.flops:
        result /= 1 + nearest / 25
    spread = math.sqrt(residual + 0.05**2 + 0.01 * nearest)
    return result, min(spread, 1.0), [row[2] for row in rows]


def _slope(
    rows: Sequence[tuple[float, list[float], TimedKernel]],
    weights: Sequence[float],
    values: Sequence[float],
    mean: float,
    total: float,
) -> float:
    """What the local fit adds at the kernel's own place to the mean of its neighbours."""
    size = len(rows[0][1])
    centre = [
        sum(w * row[1][k] for w, row in zip(weights, rows, strict=True)) / total
        for k in range(size)
    ]
    matrix = [[_RIDGE if i == j else 0.0 for j in range(size)] for i in range(size)]
    right = [0.0] * size
    for w, row, value in zip(weights, rows, values, strict=True):
        offset = [a - b for a, b in zip(row[1], centre, strict=True)]
        for i, a in enumerate(offset):
            share = w * a / total
            right[i] += share * (value - mean)
            for j, b in enumerate(offset):
                matrix[i][j] += share * b
    slopes = _solved(matrix, right)
    return -sum(slope * c for slope, c in zip(slopes, centre, strict=True))


def _solved(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Solves a system of equations whose matrix is positive definite."""
    size = len(right)
    for i in range(size):
        for k in range(i + 1, size):
            factor = matrix[k][i] / matrix[i][i]
            for j in range(i, size):
                matrix[k][j] -= factor * matrix[i][j]
            right[k] -= factor * right[i]
    result = [0.0] * size
    for i in reversed(range(size)):
        rest = sum(matrix[i][j] * result[j] for j in range(i + 1, size))
        result[i] = (right[i] - rest) / matrix[i][i]
    return result
