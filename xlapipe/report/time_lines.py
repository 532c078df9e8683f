"""Floor, predicted and measured times as lines of text."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from xlapipe.devices.platforms import platform_named
from xlapipe.errors import XlapipeError
from xlapipe.plans.wording import counted
from xlapipe.report import cells
from xlapipe.report.cells import Cell, Name
from xlapipe.report.pages import Section, Table, grouped
from xlapipe.report.time_figures import StepTime, TimeRow, longest_first
from xlapipe.report.units import microseconds
from xlapipe.time.collectives.exchange import DATASHEET, TABLE
from xlapipe.time.predict import Prediction, basis_of


def time_section(time: StepTime | None) -> Section:
    """Totals, and tables by source line and by kernel, the longest first."""
    if time is None:
        unknown = (
            "unknown, because the dump has no complete HLO module; fix: `xlapipe dump` writes one, "
            "or XLA itself with --xla_dump_hlo_as_proto"
        )
        return Section("Time", (unknown,), key="time")
    verb = time.prediction.verb if time.prediction is not None else "predicted"
    by_source = _table("By source line", "source line", group_by_source(time.kernels), verb)
    kernels = _table("By kernel", "kernel", sorted(time.kernels, key=_rank), verb)
    return Section("Time", tuple(summary_lines(time)), (by_source, kernels), "time")


def summary_lines(time: StepTime) -> Iterator[str]:
    """Totals of the step, and the speeds that they are computed with."""
    yield _headline(time)
    yield from _prediction(time)
    yield _traffic(time)
    yield from _sources_of_figures(time)
    yield from _assumption(time)


def group_by_source(kernels: Sequence[TimeRow]) -> list[TimeRow]:
    """One row for the kernels of each source line, the longest first.

    A figure that is None for one of the kernels is None for the line, except times,
    of which the known ones are added up.
    """
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
            measured_seconds=_sum_of_known(row.measured_seconds for row in group),
            predicted_seconds=_sum_of_known(row.predicted_seconds for row in group),
        )
        for source, group in grouped(kernels, lambda kernel: kernel.source).items()
    ]
    return sorted(rows, key=_rank)


def _rank(row: TimeRow) -> tuple[float, float, str]:
    """Measured times first, or else predicted ones, or floors; then bytes."""
    return (longest_first(row), -(row.read_bytes + row.written_bytes), row.name)


def _total(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _sum_of_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _most_common_bound(rows: Sequence[TimeRow]) -> str | None:
    seconds: dict[str, float] = {}
    for row in rows:
        if row.bound is not None:
            seconds[row.bound] = seconds.get(row.bound, 0.0) - longest_first(row)
    return max(seconds, key=lambda bound: seconds[bound]) if seconds else None


def _headline(time: StepTime) -> str:
    parts = [f"floor {microseconds(time.floor_seconds)}"]
    if time.bound_seconds:
        bounds = sorted(time.bound_seconds.items(), key=lambda item: -item[1])
        parts[0] += f" ({', '.join(f'{name} {microseconds(value)}' for name, value in bounds)})"
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
        reason = "the dump names no GPU or TPU whose speeds are known; fix: add --target NAME"
        if time.speeds is not None and not platform_named(time.speeds.platform).predicts_times:
            reason = f"nothing was measured on {time.speeds.name}, nor on a GPU of its vendor"
        yield f"predicted: none, because {reason}"
        return
    low, high = map(microseconds, (time.predicted_low_seconds, time.predicted_high_seconds))
    text = f"{about.verb} step {microseconds(time.predicted_step_seconds)} on {about.device}"
    text += f" ({about.interval_word}: {low} to {high})"
    if time.predicted_step_seconds is None:
        least = microseconds(time.predicted_at_least_seconds)
        text = f"{about.verb} step at least {least} on {about.device}"
    text += f", {microseconds(time.predicted_kernel_seconds)} in kernels"
    if time.predicted_latency_seconds is not None:
        text += f"; latency {microseconds(time.predicted_latency_seconds)}"
    basis = basis_of(about)
    total = sum(basis.values())
    shares = [f"{name} {part / total:.0%}" for name, part in basis.items() if part]
    if shares:
        text += f"; basis: {', '.join(shares)}"
    if about.scaled_from is not None:
        text += f", from {about.scaled_from} by datasheet: this GPU was not measured"
    yield text
    if about.launch_bound:
        yield about.launch_bound
    yield from (f"slow: {loss}" for loss in about.losses)
    if about.mfu_text:
        yield about.mfu_text
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
    bandwidth = f"{speeds.bandwidth / 1e12:.3f} TB/s"
    peaks = ", ".join(
        f"{name} {flops / 1e12:,.0f}" for name, flops in sorted(speeds.peak_flops.items())
    )
    yield (
        f"at {bandwidth}, "
        + (f"L2 cache {speeds.l2_bytes:,} B, " if speeds.l2_bytes else "")
        + f"peaks in TFLOP/s: "
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


def _table(title: str, name: str, rows: Sequence[TimeRow], verb: str) -> Table:
    names = ("measured_seconds", "predicted_seconds", "floor_seconds")
    totals = {name: sum(getattr(row, name) or 0.0 for row in rows) for name in names}
    known = next((name for name in names if totals[name]), "")
    columns: Mapping[str, Callable[[TimeRow], Cell]] = {
        "measured": lambda row: cells.seconds(row.measured_seconds),
        verb: lambda row: cells.seconds(row.predicted_seconds),
        "share": lambda row: (
            cells.share(getattr(row, known) or 0.0, totals[known]) if known else "-"
        ),
        "floor": lambda row: cells.seconds(row.floor_seconds),
        "launches": lambda row: row.launches,
        "bytes": lambda row: row.read_bytes + row.written_bytes,
        "bytes read": lambda row: cells.size(row.read_bytes),
        "bytes written": lambda row: cells.size(row.written_bytes),
        "operations": lambda row: "-" if row.flops is None else row.flops,
        "bound by": lambda row: row.bound or "-",
        "basis of the prediction": lambda row: row.basis or "-",
        "at source line": lambda row: Name.of(row.source if row.kind is not None else None),
        name: lambda row: Name(row.name, about=_about(row)),
    }
    on_page = ("bytes read", "bytes written", "operations", "basis of the prediction")
    page_only = (*on_page, "at source line")
    return Table.of(title, rows, columns, name=name, page_only=page_only, text_only={"bytes"})


def _about(row: TimeRow) -> str:
    """What text has beside the name of a kernel; nothing for a source line."""
    return f" ({row.kind})" + (f"  {row.source}" if row.source else "") if row.kind else ""


def why_lines(prediction: Prediction | None, name: str) -> Iterator[str]:
    """The parts of one launch, what timed kernels changed about them, and the basis."""
    if prediction is None:
        raise XlapipeError(
            "--why: the dump has no predicted time, because it names no GPU or TPU whose speeds "
            "are known; fix: add --target NAME"
        )
    kernel = next((item for item in prediction.kernels if item.name == name), None)
    if kernel is None:
        longest = sorted(prediction.kernels, key=lambda item: -item.seconds)[:3]
        raise XlapipeError(
            f"--why {name}: the step has no such kernel; fix: name one of `show --time`, such as "
            f"{', '.join(item.name for item in longest)}"
        )
    launch, work = kernel.launch, kernel.work
    yield (
        f"{name}: {microseconds(kernel.seconds)} in {kernel.launches:,} launches, "
        f"{microseconds(launch.seconds)} each ({launch.basis})"
    )
    yield f"  kind: {work.kind}" + (f", {work.what}" if work.what else "")
    for part in launch.parts:
        yield f"  {microseconds(part.seconds)}  {part.reason}"
    if launch.nearest:
        yield (
            f"  × {launch.ratio:.2f}  as the most similar kernels that were timed: "
            f"{', '.join(launch.nearest)}"
        )
        if launch.in_a_step != 1:
            yield f"  × {launch.in_a_step:.2f}  as kernels that XLA emits take longer in a step"
        if launch.sustained != 1:
            yield f"  × {launch.sustained:.2f}  at the clock that the GPU's limit of power leaves"
    elif launch.basis not in (TABLE, DATASHEET):
        yield f"  × {launch.ratio:.2f}  assumed: the calibration has no kernel of this kind"
    if kernel.at_floor:
        yield "  raised to the floor"
