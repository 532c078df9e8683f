"""The roofline plot: rate of operations against operations per byte, on logarithmic axes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10

from markupsafe import Markup

from xlapipe.report.text_table import grouped
from xlapipe.report.time_figures import StepTime, TimeRow

# Size of the plot in SVG units, and the margin for the labels of the axes.
WIDTH, HEIGHT, MARGIN = 640.0, 300.0, 44.0
_SMALLEST_RADIUS, _LARGEST_RADIUS = 3.0, 11.0
# The slope is drawn over at least these many powers of ten.
_LEAST_SPAN = 2
_DOT = Markup(
    '<circle class="kernel" cx="{:.1f}" cy="{:.1f}" r="{:.1f}"><title>{}: {:,.1f} operations per '
    "byte, {:,.2f} TFLOP/s</title></circle>"
)
_ROOF = Markup(
    '<polyline class="roof" points="{}"/>'
    '<text x="{:.1f}" y="{:.1f}" text-anchor="end">{} {:,.0f} TFLOP/s</text>'
)
_X_TICK = Markup(
    '<line class="grid" x1="{0:.1f}" x2="{0:.1f}" y1="12" y2="256"/>'
    '<text x="{0:.1f}" y="272" text-anchor="middle">1e{1}</text>'
)
_Y_TICK = Markup(
    '<line class="grid" x1="44" x2="632" y1="{0:.1f}" y2="{0:.1f}"/>'
    '<text x="48" y="{2:.1f}">1e{1} FLOP/s</text>'
)


def roofline(time: StepTime | None) -> Markup | None:
    """The parts of the SVG; None if no kernel has known operations, or the GPU is unknown.

    A dot is a kernel, at its measured time, else its predicted one, else its floor, which is on the
    roof; its area is the kernel's share of the step's time.
    A roof is the bandwidth's slope up to a peak, and the peak.
    """
    if time is None or time.speeds is None:
        return None
    kernels = [row for row in time.kernels if row.flops and _seconds(row)]
    peaks, bandwidth = time.speeds.peak_flops, time.speeds.bandwidth
    if not kernels or not peaks:
        return None
    ridge = max(peaks.values()) / bandwidth
    intensities = [*map(_intensity, kernels), ridge, ridge * 4]
    x_axis = _Axis.over(intensities, MARGIN, WIDTH - 8)
    y_axis = _Axis.over([*map(_rate, kernels), *peaks.values()], HEIGHT - MARGIN, 12)
    parts = [
        *(_X_TICK.format(x_axis.at(10.0**power), power) for power in x_axis.powers),
        *(_Y_TICK.format(y := y_axis.at(10.0**power), power, y - 2) for power in y_axis.powers),
        *_roofs(peaks, bandwidth, x_axis, y_axis),
        *_dots(kernels, x_axis, y_axis),
    ]
    return Markup("\n").join(parts)


def _dots(kernels: Sequence[TimeRow], x_axis: "_Axis", y_axis: "_Axis") -> Iterator[Markup]:
    longest = max(map(_seconds, kernels))
    for row in kernels:
        radius = max(_SMALLEST_RADIUS, _LARGEST_RADIUS * (_seconds(row) / longest) ** 0.5)
        x, y = x_axis.at(_intensity(row)), y_axis.at(_rate(row))
        yield _DOT.format(x, y, radius, row.name, _intensity(row), _rate(row) / 1e12)


def _roofs(
    peaks: Mapping[str, float], bandwidth: float, x_axis: "_Axis", y_axis: "_Axis"
) -> Iterator[Markup]:
    """The roof of each peak, with the names of the types that share it."""
    # The slope starts where it enters the plot.
    first = max(10.0 ** x_axis.powers[0], 10.0 ** y_axis.powers[0] / bandwidth)
    right = 10.0 ** x_axis.powers[-1]
    for peak, names in grouped(sorted(peaks), lambda name: round(peaks[name])).items():
        corners = [(first, first * bandwidth), (peak / bandwidth, peak), (right, peak)]
        places = [(round(x_axis.at(x), 1), round(y_axis.at(y), 1)) for x, y in corners]
        points = " ".join(f"{x},{y}" for x, y in places)
        yield _ROOF.format(points, places[-1][0], places[-1][1] - 3, ", ".join(names), peak / 1e12)


def _seconds(row: TimeRow) -> float:
    return float(row.measured_seconds or row.predicted_seconds or row.floor_seconds or 0.0)


def _rate(row: TimeRow) -> float:
    """Operations per second."""
    return (row.flops or 0) / _seconds(row)


def _intensity(row: TimeRow) -> float:
    """Operations per byte in device memory."""
    size_bytes = row.read_bytes - row.cached_bytes + row.written_bytes
    return (row.flops or 0) / max(size_bytes, 1)


@dataclass(frozen=True, slots=True)
class _Axis:
    """A logarithmic axis over these powers of ten, from `start` to `end`."""

    powers: range
    start: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float) -> "_Axis":
        low, high = floor(log10(min(values))), floor(log10(max(values))) + 1
        return cls(range(min(low, high - _LEAST_SPAN), high + 1), start, end)

    def at(self, value: float) -> float:
        low, high = self.powers[0], self.powers[-1]
        return self.start + (log10(value) - low) / (high - low) * (self.end - self.start)
