"""The result of `xlapipe fit`, as JSON and as a table."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from xlapipe.errors import XlapipeError
from xlapipe.plans.missing_memory import missing_lines
from xlapipe.plans.usable_memory import OutsidePlan, outside_label
from xlapipe.report.records import named
from xlapipe.report.text_table import aligned_row, column_widths, without_columns
from xlapipe.report.units import exact, microseconds, rounded, seconds_text, with_error
from xlapipe.search.planned_memory import (
    SMALL_MARGIN,
    PlannedMemory,
    error_notes,
    mfu_text,
    networks,
)
from xlapipe.search.rows import Largest, Row
from xlapipe.search.sweep import Axis

# What the JSON of a row has of `PlannedMemory` under the same names.
_IN_JSON = (
    *("workload", "topology", "argument_bytes", "output_bytes", "temp_bytes", "host_bytes"),
    *("code_bytes", "total_bytes", "device_memory_bytes", "usable_bytes", "headroom_bytes"),
    *("error_bytes", "basis", "refused", "rematerialised", "recomputed", "floor_seconds"),
    *("order_bytes", "reserved_bytes", "seconds"),
)
_STAGES = ("load", "lower", "compile", "read", "all")
_BYTES = ("arguments", "outputs", "temp", "total", "headroom")
_FOR_WIDE_TERMINALS = ("outputs", "arguments")
# Axes whose value is the number of items that a step processes.
_NAMES_OF_ITEMS = ("examples", "sequences", "tokens")
_ITEMS = ("batch", "batch_size", *_NAMES_OF_ITEMS)


def fit_figures(
    workload: str, target: str, rows: Sequence[Row], best: Sequence[Largest]
) -> dict[str, Any]:
    """The JSON of `xlapipe fit`."""
    return {
        "workload": workload,
        "target": target,
        "rows": [_row_figures(row) for row in rows],
        "largest": [
            {
                "others": dict(largest.others),
                "values": dict(largest.row.candidate.values) if largest.row is not None else None,
                "some_failed": largest.failed,
            }
            for largest in best
        ],
    }


def _row_figures(row: Row) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "values": dict(row.candidate.values),
        "reference": row.candidate.reference.name,
    }
    if isinstance(row.outcome, XlapipeError):
        return {**figures, "fits": None, "error": str(row.outcome)}
    memory = row.outcome
    return {
        **figures,
        "fits": memory.fits,
        "error": None,
        **named(memory, *_IN_JSON),
        **{
            f"predicted_{name}": value
            for name, value in named(
                memory.predicted, "seconds", "at_least_seconds", "mfu", "network"
            ).items()
        },
        "outside": _outside_figures(memory.outside),
        "missing_memory": [
            named(item, "kind", "instruction", "about_bytes") for item in memory.missing
        ],
    }


def _outside_figures(outside: OutsidePlan | None) -> dict[str, Any] | None:
    if outside is None:
        return None
    return {
        **named(outside, "parts", "unmeasured", "visible_bytes"),
        "measured_on": outside.device,
    }


def fit_lines(
    workload: str,
    target: str,
    rows: Sequence[Row],
    axes: Sequence[Axis],
    best: Sequence[Largest],
    *,
    timings: bool = False,
    width: int | None = None,
) -> Iterator[Text]:
    """The table in the order of the combinations, then the largest values that fit.

    Args:
      timings: with the seconds that each compile took.
      width: width of a terminal; outputs, then arguments, are left out of wider tables. None
        for the whole table.
    """
    compiled = [row.outcome for row in rows if not isinstance(row.outcome, XlapipeError)]
    yield Text(_title(workload, target, compiled), style="bold")
    host = any(plan.host_bytes for plan in compiled)
    sizes = (*_BYTES, "host") if host else _BYTES
    items = next((axis.name for axis in axes if axis.name in _ITEMS), None)
    per_second = f"{items}/s" if items in _NAMES_OF_ITEMS else "items/s"
    timed = any(_seconds(plan)[0] for plan in compiled)
    used = any(plan.predicted is not None and plan.predicted.mfu for plan in compiled)
    step = ["step", *([per_second] if items else []), *(["MFU"] if used else [])] if timed else []
    stages = [f"{name}, s" for name in _STAGES] if timings else []
    header = [*(axis.name for axis in axes), *sizes, "fits", *step, *stages]
    table = [header]
    for row in rows:
        cells = [*map(repr, row.candidate.values.values()), *_cells(row, host)]
        cells += _step_cells(row, items)[: len(step) - used] + [_mfu_cell(row)] * used
        table.append([*cells, *(_stage_cells(row) if timings else [])])
    for name in _FOR_WIDE_TERMINALS:
        if width is not None and sum(column_widths(table)) + 2 * (len(table[0]) - 1) > width:
            table = without_columns(table, {table[0].index(name)})
    widths, columns = column_widths(table), range(len(table[0]))
    styles = ["bold", *("" if row.fits else "red" for row in rows)]
    for cells, style in zip(table, styles, strict=True):
        yield Text(aligned_row(cells, widths, right=columns), style=style)
    yield from map(Text, _notes(compiled))
    for largest in best:
        yield Text(_largest_line(largest, rows, axes[0]))


def _title(workload: str, target: str, compiled: Sequence[PlannedMemory]) -> str:
    if not compiled:
        return f"{workload} on {target}"
    topologies = dict.fromkeys(plan.topology or "one device" for plan in compiled)
    usable, memory = compiled[0].usable_bytes, compiled[0].device_memory_bytes
    if (outside := compiled[0].outside) is not None and outside.visible_bytes is not None:
        # What CUDA reports is less than what the target states, and is what a share is taken of.
        memory = outside.visible_bytes
    return (
        f"{workload} on {target} ({', '.join(topologies)}): {rounded(memory)} of memory per "
        f"device, {rounded(usable)} ({exact(usable)}) usable"
    )


def _cells(row: Row, host: bool) -> list[str]:
    """The cells after the axes' values; with host memory if `host`."""
    memory = row.outcome
    if isinstance(memory, XlapipeError):
        return [*["-"] * (len(_BYTES) + host), fits_text(row)]
    sizes = (
        memory.argument_bytes,
        memory.output_bytes,
        memory.temp_bytes,
        memory.total_bytes,
    )
    headroom = with_error(memory.headroom_bytes, memory.error_bytes)
    on_host = [rounded(memory.host_bytes)] if host else []
    return [*map(rounded, sizes), headroom, *on_host, fits_text(row)]


def _seconds(memory: PlannedMemory) -> tuple[float | None, bool]:
    """The predicted time of a step, or else its least time, and whether it is the least."""
    predicted = memory.predicted
    if predicted is not None and predicted.seconds is not None:
        return predicted.seconds, False
    return predicted.at_least_seconds if predicted is not None else memory.floor_seconds, True


def _step_cells(row: Row, items: str | None) -> list[str]:
    """The time of a step, `≥` in front of a least time, and items per second."""
    memory = row.outcome
    seconds, is_least = (None, True) if isinstance(memory, XlapipeError) else _seconds(memory)
    if seconds is None:
        return ["-", "-"]
    least = "≥" if is_least else ""
    count = row.candidate.values.get(items) if items is not None else None
    rate = count / seconds if isinstance(count, int) else None
    per_second = "-" if rate is None else f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
    return [f"{least}{seconds_text(seconds)}", per_second if not least else f"≤{per_second}"]


def _mfu_cell(row: Row) -> str:
    predicted = None if isinstance(row.outcome, XlapipeError) else row.outcome.predicted
    return mfu_text(predicted.mfu if predicted is not None else None)


def _stage_cells(row: Row) -> list[str]:
    if isinstance(row.outcome, XlapipeError):
        return ["-"] * len(_STAGES)
    return [f"{row.outcome.seconds[stage]:.1f}" for stage in _STAGES]


def fits_text(row: Row) -> str:
    """Whether a row fits, or `FAILED`."""
    return "FAILED" if isinstance(row.outcome, XlapipeError) else row.outcome.fits_text


def _notes(compiled: Sequence[PlannedMemory]) -> list[str]:
    notes = [f"Bytes are per device, from the plan. {_outside_text(compiled)}"]
    if any(plan.code_bytes or plan.refused for plan in compiled):
        code = max(plan.code_bytes for plan in compiled)
        notes = [
            "Bytes are per device, from the plan; the total includes the program's code, up to "
            f"{exact(code)}. Not included: other live arrays of the process."
        ]
    notes += [f"Network {text}." for text in networks(compiled)]
    notes += error_notes(compiled)
    if not all(plan.fits_within_error for plan in compiled):
        notes.append(SMALL_MARGIN)
    if any(plan.refused for plan in compiled):
        notes.append("refused: XLA's compiler refused the plan because it does not fit.")
    most = max((plan.missing for plan in compiled), key=len, default=())
    for line in missing_lines(most):
        if not line.startswith(" "):
            notes.append(f"Not included: {line}.")
    rematerialised = max((plan.rematerialised for plan in compiled), default=0)
    if rematerialised:
        notes.append(
            "*: rematerialised: XLA's memory estimate exceeded its limit, so each step computes up "
            f"to {rematerialised} instructions a second time to save memory{_cost(compiled)}."
        )
    held = max((plan.order_bytes or 0 for plan in compiled), default=0)
    if held:
        notes.append(
            f"Up to {exact(held)} of temp are held only by the order of instructions: "
            "`xlapipe show DIR --order` lists them by source line."
        )
    most_on_host = max((plan.host_bytes for plan in compiled), default=0)
    if most_on_host:
        notes.append(
            f"host: pinned host memory for one device, up to {exact(most_on_host)}; not in the "
            "total."
        )
    return notes


def _outside_text(compiled: Sequence[PlannedMemory]) -> str:
    """What is not in the plan, with bytes where they were measured."""
    reserved = max((plan.reserved_bytes for plan in compiled), default=0)
    arrays = "other live arrays of the process" + (
        f", for which {exact(reserved)} are reserved" if reserved else ""
    )
    outside = [plan.outside for plan in compiled if plan.outside is not None]
    most = max(outside, key=lambda item: (item.known_bytes, item.unmeasured), default=None)
    if most is None or most.device is None:
        return f"Not included: the CUDA context, NCCL's buffers and {arrays}."
    parts = [f"{outside_label(name)} {exact(size)}" for name, size in most.parts.items()]
    unmeasured = "".join(f"; {outside_label(name)}: not measured" for name in most.unmeasured)
    return (
        f"Outside the plan and XLA's pool, as measured on one {most.device}: {', '.join(parts)}"
        f"{unmeasured}. Not included: {arrays}."
    )


def _cost(compiled: Sequence[PlannedMemory]) -> str:
    """What the most expensive of them adds to the least time of a step; empty if unknown."""
    added = [
        (sum(kernel.floor_seconds or 0.0 for kernel in plan.recomputed), plan.floor_seconds)
        for plan in compiled
        if plan.recomputed and plan.floor_seconds
    ]
    if not added:
        return ""
    seconds, step = max(added)
    return f", at least {microseconds(seconds)} of a step of at least {microseconds(step)}"


def _largest_line(largest: Largest, rows: Sequence[Row], axis: Axis) -> str:
    point = ", ".join(f"{name}={value!r}" for name, value in largest.others.items())
    prefix = f"with {point}: " if point else ""
    unknown = "; some compiles failed" if largest.failed else ""
    if largest.row is not None:
        value = largest.row.candidate.values[axis.name]
        is_last = value == max(axis.values, key=axis.rank)
        last = " (the largest value given)" if is_last else ""
        return f"{prefix}the largest {axis.name} that fits is {value!r}{last}{unknown}"
    missing = [
        -row.outcome.headroom_bytes
        for row in rows
        if not isinstance(row.outcome, XlapipeError) and row.candidate.is_at(largest.others)
    ]
    least = f"; the smallest needs {exact(min(missing))} more" if missing else ""
    return f"{prefix}no {axis.name} fits{least}{unknown}"
