"""The result of `xlapipe choose`, as JSON and as a table."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from xlapipe.cli.fit_table import CELLS, RowCell, table_of
from xlapipe.report.pages import aligned_rows
from xlapipe.report.records import named
from xlapipe.report.units import exact, microseconds, rounded
from xlapipe.search.choosing.choose import Choice
from xlapipe.search.choosing.rows import front, row_figures
from xlapipe.search.choosing.saved import SavedValues
from xlapipe.search.planned_memory import SMALL_MARGIN, error_notes, networks
from xlapipe.search.rows import Row, by_target

_WHOLE_TABLE, _SHOWN = 120, 8


def choice_figures(choice: Choice) -> dict[str, Any]:
    """The JSON of `xlapipe choose`."""
    return {
        **named(choice, "workload", "maximise", "left_out", "interrupted", "notes"),
        "saved": choice.saved,
        "rows": list(map(row_figures, choice.rows)),
        "failed": [
            {
                "target": row.candidate.target,
                "arguments": dict(row.candidate.values),
                "change": row.candidate.change.text if row.candidate.change is not None else None,
                "error": str(row.outcome),
            }
            for row in choice.failed
        ],
    }


def choice_lines(choice: Choice, *, width: int | None = None) -> Iterator[Text]:
    """For each target the rows, the fastest first, then what to write; fewer columns if `width`."""
    if choice.saved is not None:
        yield from _saved_lines(choice.workload, choice.saved)
    for target, rows in by_target(choice.rows).items():
        yield from _target_lines(choice, target, rows, width)
    yield from _chosen_lines(choice)
    for row in choice.failed if choice.remedies else ():
        first = str(row.outcome).partition("\n")[0]
        yield Text(f"Does not compile: {row.candidate}: {first}")
    for note in choice.notes:
        yield Text(note)
    if choice.left_out:
        reason = "an interrupt" if choice.interrupted else "the budget"
        yield Text(f"{choice.left_out} further candidates were not compiled because of {reason}.")


def _saved_lines(workload: str, values: SavedValues) -> Iterator[Text]:
    """What is kept for the backward pass, and why."""
    yield Text(
        f"{workload} keeps {exact(values.saved_bytes)} for the backward pass at its peak of "
        f"{exact(values.total_bytes)}",
        style="bold",
    )
    table = [["all devices", "at the peak", "count", "again", "value", "line", "why"]]
    for row in values.rows[:_SHOWN]:
        shape = ",".join(map(str, row.shape))
        table.append(
            [
                rounded(row.size_bytes),
                rounded(row.peak_bytes) if row.peak_bytes is not None else "no",
                str(row.count),
                microseconds(row.again_seconds),
                f"{row.name or row.primitive} {row.dtype}[{shape}]",
                row.source or "-",
                row.why,
            ]
        )
    yield from map(Text, aligned_rows(table, right=range(4)))
    if len(values.rows) > _SHOWN:
        yield Text(f"and {len(values.rows) - _SHOWN} smaller kinds; --json lists all")
    yield Text(
        "at the peak: on one device; no: computed inside of kernels, kept in another form, or not "
        "alive then. again: the time to compute it again, estimated from bytes and operations."
    )
    yield Text()


def _target_lines(
    choice: Choice, target: str, rows: Sequence[Row], width: int | None
) -> Iterator[Text]:
    yield Text(
        f"{choice.workload} on {target}: {rounded(rows[0].memory.usable_bytes)} may be used, "
        f"{len(rows)} forms compiled",
        style="bold",
    )
    columns = _columns(rows, choice.maximise)
    if width is not None and width < _WHOLE_TABLE:
        del columns["temp"]
    table = table_of(rows, columns)
    colors = ["green" if row.chosen else "" if row.memory.fits else "red" for row in rows]
    lines = aligned_rows(table, right=range(len(table[0]) - 3))
    yield from map(Text, lines, ("bold", *colors))
    predicted = rows[0].memory.predicted
    if predicted is None:
        yield Text("No time is predicted for this target: rows are ordered by items and bytes.")
    else:
        scaled = f", scaled from {predicted.scaled_from}" if predicted.scaled_from else ""
        about = f"{predicted.verb} for {predicted.device}{scaled}"
        yield Text(f"Times are {about}. Every row was compiled.")
        tried = ", tried on forms for one GPU only" * any(networks([row.memory for row in rows]))
        yield Text(f"faster: the probability that the row is faster than the chosen one{tried}.")
        if predicted.scaled_from is not None:
            yield from (Text(f"  assumed: {text}") for text in predicted.assumptions)
    yield from (Text(f"Network {text}.") for text in networks([row.memory for row in rows]))
    if rows[0].price is not None:
        devices = f", for {rows[0].devices} devices" * (rows[0].devices > 1)
        yield Text(f"Cost at {rows[0].price:g} per device and hour{devices}.")
    yield from map(Text, error_notes([row.memory for row in rows]))
    if not all(row.memory.fits_within_error for row in rows):
        yield Text(SMALL_MARGIN)
    for row in rows:
        if row.memory.recomputed_text:
            yield Text(f"*: {row.candidate.change_text}: {row.memory.recomputed_text}.")
    for row in rows:
        if row.chosen and row.candidate.change is not None and row.candidate.change.code:
            yield Text(f"Write for {target}:", style="bold")
            yield from map(Text, row.candidate.change.code.splitlines())


def _columns(rows: Sequence[Row], maximise: str | None) -> dict[str, RowCell]:
    """What each column holds, by heading; the last three are not numbers."""
    best = front(rows)
    columns = {
        **{name: CELLS[name] for name in ("total", "headroom", "temp")},
        **({"saves": _saves} if any(row.saved_bytes for row in rows) else {}),
        "step": _predicted,
        "MFU": CELLS["MFU"],
        "faster": lambda row: (
            "-" if row.probability_faster is None else f"{row.probability_faster:.0%}"
        ),
    }
    if maximise is not None:
        columns |= _per_item(maximise)
    if any(row.price is not None for row in rows):
        columns[f"cost of 1M {'items' if maximise else 'steps'}"] = _cost
    return {
        **columns,
        "fits": CELLS["fits"],
        "": lambda row: "chosen" if row.chosen else "front" if row in best else "",
        "change": lambda row: "; ".join(filter(None, (row.candidate.change_text, row.effect))),
    }


def _chosen_lines(choice: Choice) -> Iterator[Text]:
    """One line for the chosen form of each of several targets."""
    rows, per = choice.chosen, choice.maximise
    if len(rows) < 2:
        return
    yield Text("The chosen form of each target:", style="bold")
    columns: dict[str, RowCell] = {"step": _predicted, "interval": _interval}
    if per is not None:
        columns |= _per_item(per)
    columns["MFU"] = CELLS["MFU"]
    if any(row.price is not None for row in rows):
        columns[f"cost of 1M {'items' if per else 'steps'}"] = _cost
    columns["devices"] = lambda row: str(row.devices)
    right = range(len(columns))
    columns["target"] = lambda row: row.candidate.target
    if any(map(_network, rows)):
        columns["network"] = _network
    table = [[*columns], *([cell(row) for cell in columns.values()] for row in rows)]
    yield from map(Text, aligned_rows(table, right))


def _per_item(maximise: str) -> dict[str, RowCell]:
    """The argument that states how many items a step has, and the predicted time of one."""
    return {
        maximise: lambda row: f"{row.items:,.0f}" if row.items is not None else "-",
        "per item": lambda row: _seconds(row.seconds_per_item),
    }


def _saves(row: Row) -> str:
    saved = row.saved_bytes
    return "-" if not saved else f"-{rounded(-saved)}" if saved < 0 else rounded(saved)


def _network(row: Row) -> str:
    return row.memory.predicted.network_name if row.memory.predicted is not None else ""


def _predicted(row: Row) -> str:
    predicted = row.memory.predicted
    if predicted is None or predicted.step_seconds is not None:
        return _seconds(predicted.step_seconds if predicted is not None else None)
    return f"≥ {_seconds(predicted.at_least_seconds or 0.0)}"


def _interval(row: Row) -> str:
    predicted = row.memory.predicted
    times = (predicted.low_seconds, predicted.high_seconds) if predicted is not None else ()
    interval = " to ".join(_seconds(time) for time in times if time)
    return f"{interval} ({predicted.interval_word})" if predicted and interval else "-"


def _cost(row: Row) -> str:
    return "-" if row.cost_per_million is None else f"{row.cost_per_million:,.4g}"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 1e-7:  # of an item
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 1e-3:
        return f"{seconds * 1e6:,.2f} µs"
    return f"{seconds * 1e3:,.3f} ms"
