"""The results of `xlapipe fit`, as JSON and as tables."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from xlapipe.errors import XlapipeError
from xlapipe.plans.missing_memory import missing_lines
from xlapipe.plans.usable_memory import outside_label
from xlapipe.report.pages import aligned_rows
from xlapipe.report.records import named
from xlapipe.report.units import exact, rounded, seconds_text, with_error
from xlapipe.search.planned_memory import (
    SMALL_MARGIN,
    PlannedMemory,
    error_notes,
    networks,
)
from xlapipe.search.rows import Largest, Row
from xlapipe.search.sweep import Axis

# What the JSON of a row has of `PlannedMemory` under the same names.
_IN_JSON = (
    *("workload", "topology", "argument_bytes", "output_bytes", "temp_bytes", "host_bytes"),
    *("code_bytes", "total_bytes", "device_memory_bytes", "usable_bytes", "headroom_bytes"),
    *("error_bytes", "other_plan", "basis", "refused", "rematerialised", "floor_seconds"),
    *("reserved_bytes", "seconds"),
)
_FOR_WIDE_TERMINALS = ("outputs", "arguments")
# Axes whose value is the number of items that a step processes.
_NAMES_OF_ITEMS = ("examples", "sequences", "tokens")
_ITEMS = ("batch", "batch_size", *_NAMES_OF_ITEMS)

RowCell = Callable[[Row], str]


def fits_text(row: Row) -> str:
    return "FAILED" if isinstance(row.outcome, XlapipeError) else row.outcome.fits_text


def mfu(row: Row) -> str:
    """Model FLOPs utilisation, e.g. `41.5 %`."""
    predicted = row.memory.predicted
    return "-" if predicted is None or predicted.mfu is None else f"{100 * predicted.mfu:.1f} %"


# What columns of rows hold, by heading.
CELLS: Mapping[str, RowCell] = {
    "arguments": lambda row: rounded(row.memory.argument_bytes),
    "outputs": lambda row: rounded(row.memory.output_bytes),
    "temp": lambda row: rounded(row.memory.temp_bytes),
    "total": lambda row: rounded(row.memory.total_bytes),
    "headroom": lambda row: with_error(row.memory.headroom_bytes, row.memory.error_bytes),
    "host": lambda row: rounded(row.memory.host_bytes),
    "fits": fits_text,
    "MFU": mfu,
}


def table_of(rows: Sequence[Row], columns: Mapping[str, RowCell]) -> list[list[str]]:
    """The headings, and the cells of each row, after its values; none of a failed compile."""
    table = [[*rows[0].candidate.values, *columns]]
    for row in rows:
        known = ("fits",) if isinstance(row.outcome, XlapipeError) else columns
        cells = (cell(row) if name in known else "-" for name, cell in columns.items())
        table.append([*map(repr, row.candidate.values.values()), *cells])
    return table


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
        **named(
            *(memory.predicted, "step_seconds", "at_least_seconds", "mfu", "network"),
            prefix="predicted_",
        ),
        "outside": None
        if memory.outside is None
        else {
            **named(memory.outside, "parts", "unmeasured", "visible_bytes"),
            "measured_on": memory.outside.device,
        },
        "missing_memory": [
            named(item, "kind", "instruction", "about_bytes") for item in memory.missing
        ],
    }


def fit_lines(
    workload: str,
    target: str,
    rows: Sequence[Row],
    axes: Sequence[Axis],
    best: Sequence[Largest],
    *,
    width: int | None = None,
) -> Iterator[Text]:
    """The table in the order of the combinations, then the largest values that fit."""
    compiled = [row.outcome for row in rows if not isinstance(row.outcome, XlapipeError)]
    yield Text(_title(workload, target, compiled), style="bold")
    columns = _columns(compiled, axes)
    table = table_of(rows, columns)
    for name in _FOR_WIDE_TERMINALS:
        if width is not None and max(map(len, aligned_rows(table))) > width:
            del columns[name]
            table = table_of(rows, columns)
    styles = ["bold", *("" if row.fits else "red" for row in rows)]
    yield from map(Text, aligned_rows(table, right=range(len(table[0]))), styles)
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


def _columns(compiled: Sequence[PlannedMemory], axes: Sequence[Axis]) -> dict[str, RowCell]:
    names = ["arguments", "outputs", "temp", "total", "headroom"]
    names += ["host"] if any(plan.host_bytes for plan in compiled) else []
    columns = {name: CELLS[name] for name in (*names, "fits")}
    items = next((axis.name for axis in axes if axis.name in _ITEMS), None)
    if any(_seconds(plan)[0] for plan in compiled):
        columns["step"] = _step
        if items is not None:
            noun = items if items in _NAMES_OF_ITEMS else "items"
            columns[f"{noun}/s"] = lambda row: _per_second(row, items)
        if any(plan.predicted is not None and plan.predicted.mfu for plan in compiled):
            columns["MFU"] = CELLS["MFU"]
    return columns


def _seconds(memory: PlannedMemory) -> tuple[float | None, bool]:
    """The predicted time of a step, or else its least time, and whether it is the least."""
    predicted = memory.predicted
    if predicted is not None and predicted.step_seconds is not None:
        return predicted.step_seconds, False
    return predicted.at_least_seconds if predicted is not None else memory.floor_seconds, True


def _step(row: Row) -> str:
    """The time of a step, `≥` in front of a least time."""
    seconds, is_least = _seconds(row.memory)
    return "-" if seconds is None else f"{'≥' if is_least else ''}{seconds_text(seconds)}"


def _per_second(row: Row, items: str) -> str:
    """Items per second, `≤` where the time of a step is a least time."""
    (seconds, is_least), count = _seconds(row.memory), row.candidate.values.get(items)
    if seconds is None:
        return "-"
    rate = count / seconds if isinstance(count, int) else None
    text = "-" if rate is None else f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
    return f"≤{text}" if is_least else text


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
    recomputing = max(compiled, key=lambda plan: plan.rematerialised, default=None)
    if recomputing is not None and recomputing.rematerialised:
        notes.append(f"*: {recomputing.recomputed_text}.")
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
        return f"Not included: the context of CUDA or HIP, NCCL's or RCCL's buffers and {arrays}."
    parts = [f"{outside_label(name)} {exact(size)}" for name, size in most.parts.items()]
    unmeasured = "".join(f"; {outside_label(name)}: not measured" for name in most.unmeasured)
    return (
        f"Outside the plan and XLA's pool, as measured on one {most.device}: {', '.join(parts)}"
        f"{unmeasured}. Not included: {arrays}."
    )


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
