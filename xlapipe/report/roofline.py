"""The roofline plot: rate of operations against operations per byte, on logarithmic axes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10

from xlapipe.report.time_figures import StepTime, TimeRow

# Size of the plot in SVG units, and the margin for the labels of the axes.
WIDTH, HEIGHT, MARGIN = 640.0, 300.0, 44.0
_SMALLEST_RADIUS, _LARGEST_RADIUS = 3.0, 11.0
# The slope is drawn over at least these many powers of ten.
_LEAST_SPAN = 2


@dataclass(frozen=True, slots=True)
class Dot:
    """A kernel; its area is its share of the step's time."""

    x: float
    y: float
    radius: float
    label: str


@dataclass(frozen=True, slots=True)
class Roof:
    """The bandwidth's slope up to a peak, and the peak: points of an SVG polyline."""

    points: str
    label: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Tick:
    """A power of ten on an axis."""

    position: float
    label: str


@dataclass(frozen=True, slots=True)
class Roofline:
    """The plot. Dots of kernels without a measured time are on the roof, at their floor."""

    dots: tuple[Dot, ...]
    roofs: tuple[Roof, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


def roofline(time: StepTime | None) -> Roofline | None:
    """The plot of a step; None if no kernel has known operations, or the GPU is unknown.

    Args:
      time: from `step_time`.
    """
    if time is None or time.speeds is None:
        return None
    kernels = [row for row in time.kernels if row.flops and _seconds(row)]
    peaks = time.speeds.peak_flops
    if not kernels or not peaks:
        return None
    bandwidth = time.speeds.bandwidth_bytes_per_second
    intensities = [_intensity(row) for row in kernels]
    rates = [(row.flops or 0) / _seconds(row) for row in kernels]
    ridge = max(peaks.values()) / bandwidth
    x_axis = _Axis.over([*intensities, ridge, ridge * 4], MARGIN, WIDTH - 8)
    y_axis = _Axis.over([*rates, *peaks.values()], HEIGHT - MARGIN, 12)
    longest = max(_seconds(row) for row in kernels)
    dots = (
        Dot(
            round(x_axis.at(intensity), 1),
            round(y_axis.at(rate), 1),
            round(max(_SMALLEST_RADIUS, _LARGEST_RADIUS * (_seconds(row) / longest) ** 0.5), 1),
            f"{row.name}: {intensity:,.1f} operations per byte, {rate / 1e12:,.2f} TFLOP/s",
        )
        for row, intensity, rate in zip(kernels, intensities, rates, strict=True)
    )
    return Roofline(
        tuple(dots),
        tuple(_roof(name, peak, bandwidth, x_axis, y_axis) for name, peak in _distinct(peaks)),
        x_axis.ticks(""),
        y_axis.ticks(" FLOP/s"),
    )


def _distinct(peaks: Mapping[str, float]) -> list[tuple[str, float]]:
    """Peaks by value, with the names of the types that share one."""
    names: dict[float, list[str]] = {}
    for name, peak in sorted(peaks.items()):
        names.setdefault(round(peak), []).append(name)
    return [(", ".join(group), peak) for peak, group in names.items()]


def _seconds(row: TimeRow) -> float:
    return float(row.measured_seconds or row.floor_seconds or 0.0)


def _intensity(row: TimeRow) -> float:
    """Operations per byte in device memory."""
    size_bytes = row.read_bytes - row.cached_bytes + row.written_bytes
    return (row.flops or 0) / max(size_bytes, 1)


@dataclass(frozen=True, slots=True)
class _Axis:
    """A logarithmic axis from 10**low to 10**high."""

    low: int
    high: int
    start: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float) -> "_Axis":
        low, high = floor(log10(min(values))), floor(log10(max(values))) + 1
        return cls(min(low, high - _LEAST_SPAN), high, start, end)

    def at(self, value: float) -> float:
        share = (log10(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, unit: str) -> tuple[Tick, ...]:
        return tuple(
            Tick(round(self.at(10.0**power), 1), f"1e{power}{unit}")
            for power in range(self.low, self.high + 1)
        )


def _roof(name: str, peak: float, bandwidth: float, x_axis: _Axis, y_axis: _Axis) -> Roof:
    left = 10.0**x_axis.low
    right = 10.0**x_axis.high
    # The slope starts where it enters the plot.
    first = max(left, 10.0**y_axis.low / bandwidth)
    corners = [(first, first * bandwidth), (peak / bandwidth, peak), (right, peak)]
    places = [(round(x_axis.at(x), 1), round(y_axis.at(y), 1)) for x, y in corners]
    return Roof(
        " ".join(f"{x},{y}" for x, y in places),
        f"{name} {peak / 1e12:,.0f} TFLOP/s",
        places[-1][0],
        places[-1][1],
    )
