"""Memory over the schedule, drawn with matplotlib."""

from typing import TYPE_CHECKING

from xlapipe.errors import XlapipeError
from xlapipe.plans.peak import Peak

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GIB = 1 << 30
_MIB = 1 << 20


def plot_memory(peak: Peak, title: str, axes: "Axes | None" = None) -> "Axes":
    """Draws the bytes in use at each position of the schedule, the peak, and what XLA reserves.

    Args:
      axes: to draw on; default: new ones.

    Raises:
      XlapipeError: matplotlib is not installed, or the plan has no live ranges.
    """
    try:
        from matplotlib import pyplot
    except ImportError:
        raise XlapipeError("matplotlib is not installed; fix: pip install matplotlib") from None
    position = peak.position
    if position is None:
        raise XlapipeError(
            f"{title}: no live ranges in its files, so that memory over time is unknown; fix: dump "
            "it with xlapipe, or with all of XLA's files"
        )
    in_use = peak.occupancy.occupied_bytes
    total = peak.occupancy.plan.totals.total_allocation_bytes
    unit, name = (_GIB, "GiB") if total >= _GIB else (_MIB, "MiB")
    if axes is None:
        _, axes = pyplot.subplots(figsize=(9, 3.5), layout="constrained")
    axes.fill_between(
        range(len(in_use)), [size / unit for size in in_use], step="post", alpha=0.5, label="in use"
    )
    axes.axhline(total / unit, linestyle="--", color="gray", label="reserved for the whole step")
    at = f" at {peak.instruction}" if peak.instruction is not None else ""
    label = f"peak: {peak.occupied_bytes / unit:,.2f} {name}{at}"
    axes.plot([position], [peak.occupied_bytes / unit], "o", label=label)
    axes.set(title=title, xlabel="position in the schedule", ylabel=name, ylim=(0, None))
    axes.margins(x=0)
    axes.legend()
    return axes
