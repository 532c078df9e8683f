"""Floor, XLA's estimate and measured times as lines of text."""

from collections.abc import Iterable, Iterator, Sequence

from xlapipe.plans.wording import counted
from xlapipe.report.text_table import aligned_rows, without_columns
from xlapipe.report.time_figures import StepTime, TimeRow

_MAX_ROWS = 20
_HEADINGS = (
    *("floor", "share", "estimate", "predicted", "measured"),
    *("launches", "bytes", "bound by"),
)
_RIGHT = set(range(7))


def time_lines(time: StepTime | None, *, on_tpu: bool = False) -> Iterator[str]:
    """Totals, and tables by source line and by kernel, the longest floors first.

    Args:
      time: from `step_time`.
      on_tpu: whether the plan is for a TPU, for which no time is computed.
    """
    if time is None and on_tpu:
        yield (
            "time: computed for GPUs only; a TPU's kernels may read and write VMEM instead of HBM, "
            "so their bytes give no least time"
        )
        return
    if time is None:
        yield "time: unknown, because the dump has no complete HLO module"
        return
    first, *others = summary_lines(time)
    yield f"time: {first}"
    yield from (f"  {line}" for line in others)
    kernels = time.kernels
    by_source = group_by_source(kernels)
    yield "  by source line:"
    yield from _table(by_source, time, "source line")
    yield "  by kernel:"
    yield from _table(sorted(kernels, key=_rank), time, "kernel")


def summary_lines(time: StepTime) -> Iterator[str]:
    """Totals of the step, and the speeds that they are computed with."""
    yield _headline(time)
    yield from _prediction(time)
    yield _traffic(time)
    yield from _sources_of_figures(time)
    yield from _assumption(time)


def microseconds(seconds: float | None) -> str:
    """Microseconds with one decimal; `-` if unknown.

    >>> microseconds(1234.56e-6), microseconds(None)
    ('1,234.6 µs', '-')
    """
    return "-" if seconds is None else f"{seconds * 1e6:,.1f} µs"


def group_by_source(kernels: Sequence[TimeRow]) -> list[TimeRow]:
    """One row for the kernels of each source line, the longest floor first.

    A figure that is None for one of the kernels is None for the line, except floors and estimates,
    of which the known ones are added up.
    """
    groups: dict[str | None, list[TimeRow]] = {}
    for kernel in kernels:
        groups.setdefault(kernel.source, []).append(kernel)
    rows = [
        TimeRow(
            name=source or "unknown",
            source=source,
            launches=sum(row.launches for row in group),
            read_bytes=sum(row.read_bytes for row in group),
            written_bytes=sum(row.written_bytes for row in group),
            cached_bytes=sum(row.cached_bytes for row in group),
            flops=_total([row.flops for row in group]),
            bound=_most_common_bound(group),
            floor_seconds=_sum_of_known(row.floor_seconds for row in group),
            estimate_seconds=_sum_of_known(row.estimate_seconds for row in group),
            measured_seconds=_sum_of_known(row.measured_seconds for row in group),
            predicted_seconds=_sum_of_known(row.predicted_seconds for row in group),
        )
        for source, group in groups.items()
    ]
    return sorted(rows, key=_rank)


def _rank(row: TimeRow) -> tuple[float, float, str]:
    """Measured times first, then floors, then bytes."""
    seconds = row.measured_seconds or row.floor_seconds or 0.0
    return (-seconds, -(row.read_bytes + row.written_bytes), row.name)


def _total(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _sum_of_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _most_common_bound(rows: Sequence[TimeRow]) -> str | None:
    """The bound with most of the floor."""
    seconds: dict[str, float] = {}
    for row in rows:
        if row.bound is not None:
            seconds[row.bound] = seconds.get(row.bound, 0.0) + (row.floor_seconds or 0.0)
    return max(seconds, key=lambda bound: seconds[bound]) if seconds else None


def _headline(time: StepTime) -> str:
    parts = [f"floor {microseconds(time.floor_seconds)}"]
    if time.bound_seconds:
        bounds = sorted(time.bound_seconds.items(), key=lambda item: -item[1])
        parts[0] += f" ({', '.join(f'{name} {microseconds(value)}' for name, value in bounds)})"
    if time.estimate_seconds is None:
        parts.append("XLA's estimate: none (dump with --estimate)")
    else:
        parts.append(
            f"XLA's estimate {microseconds(time.estimate_seconds)} for kernels with "
            f"{time.estimated_share:.0%} of the bytes"
        )
    measured = time.measured
    if measured is None:
        parts.append("measured: none (xlapipe run --profile)")
    else:
        parts.append(
            f"measured {microseconds(measured.kernel_seconds)} in kernels, "
            f"{microseconds(measured.wall_seconds)} per call on {measured.device}"
        )
    return "; ".join(parts)


def _prediction(time: StepTime) -> Iterator[str]:
    """The predicted time, what it is for, and what it assumes."""
    about = time.prediction
    if about is None:
        yield "predicted: none, because the dump does not name a GPU whose speeds are known"
        return
    low, high = map(microseconds, (time.predicted_low_seconds, time.predicted_high_seconds))
    text = f"predicted {microseconds(time.predicted_seconds)} on {about.device}"
    tried = " in 9 of 10 programs" if about.scaled_from is None else ", not tried on this GPU"
    text += f" ({low} to {high}{tried})"
    if time.predicted_seconds is None:
        least = microseconds(time.predicted_at_least_seconds)
        text = f"predicted at least {least} on {about.device}"
    text += f", {microseconds(time.predicted_kernel_seconds)} in kernels"
    if time.predicted_call_seconds is not None:
        text += f", {microseconds(time.predicted_call_seconds)} per call"
    total = sum(about.basis_seconds.values())
    shares = [f"{name} {part / total:.0%}" for name, part in about.basis_seconds.items() if part]
    if shares:
        text += f"; basis: {', '.join(shares)}"
    if about.scaled_from is not None:
        text += f", from {about.scaled_from} by datasheet: this GPU was not measured"
    if about.mfu:
        text += f"; MFU {about.mfu:.1%}"
    yield text
    if about.network:
        yield f"network {about.network}"
    for assumption in about.assumptions:
        yield f"  assumed: {assumption}"


def _traffic(time: StepTime) -> str:
    most = time.traffic_at_most_bytes
    text = f"traffic {time.traffic_bytes:,} B"
    if most is None:
        text += " with one trip of each loop whose trip count is unknown"
    elif most != time.traffic_bytes:
        text += f" to {most:,} B"
    return f"{text} in {time.launches:,} launches"


def _sources_of_figures(time: StepTime) -> Iterator[str]:
    speeds = time.speeds
    if speeds is None:
        yield "no floor: the dump does not name its GPU"
        return
    bandwidth = f"{speeds.bandwidth_bytes_per_second / 1e12:.3f} TB/s"
    peaks = ", ".join(
        f"{name} {flops / 1e12:,.0f}" for name, flops in sorted(speeds.peak_flops.items())
    )
    yield (
        f"at {bandwidth}, L2 cache {speeds.l2_bytes:,} B, peaks in TFLOP/s: "
        f"{peaks or 'unknown'}" + (f" ({speeds.peak_source})" if peaks else "")
    )


def _assumption(time: StepTime) -> Iterator[str]:
    """What the floor assumes of kernels whose code XLA does not have, such as Pallas kernels."""
    opaque = [
        row for row in time.kernels if row.flops is None and row.floor_seconds and not row.stated
    ]
    if opaque:
        seconds = _sum_of_known(row.floor_seconds for row in opaque)
        yield (
            f"{microseconds(seconds)} of the floor assume that {counted(len(opaque), 'kernel')} "
            "whose code is unknown read their operands whole; one that reads a part, such as a row "
            "of a table, may take less; fix: a cost_estimate of pallas_call, or the workload's "
            "kernel_bytes, states what is read"
        )


def _table(rows: Sequence[TimeRow], time: StepTime, title: str) -> Iterator[str]:
    measured = [row.measured_seconds or 0.0 for row in rows]
    seconds = measured if sum(measured) else [row.floor_seconds or 0.0 for row in rows]
    shown = zip(rows[:_MAX_ROWS], seconds, strict=False)
    total = sum(seconds)
    lines = [(*_HEADINGS, title), *(_cells(row, row_seconds, total) for row, row_seconds in shown)]
    # The title states why there is no estimate or nothing measured.
    unknown = {
        index for index, column in enumerate(zip(*lines, strict=True)) if {*column[1:]} == {"-"}
    }
    right = range(len(_RIGHT - unknown))
    for line in aligned_rows(without_columns(lines, unknown), right):
        yield f"    {line}"
    if len(rows) > _MAX_ROWS:
        yield f"    … and {len(rows) - _MAX_ROWS} more (--json lists all)"


def _cells(row: TimeRow, seconds: float, total: float) -> tuple[str, ...]:
    name = row.name
    if row.kind is not None:
        name += f" ({row.kind})" + (f"  {row.source}" if row.source else "")
    return (
        microseconds(row.floor_seconds),
        f"{seconds / total:.1%}" if total else "-",
        microseconds(row.estimate_seconds),
        microseconds(row.predicted_seconds),
        microseconds(row.measured_seconds),
        f"{row.launches:,}",
        f"{row.read_bytes + row.written_bytes:,}",
        row.bound or "-",
        name,
    )
