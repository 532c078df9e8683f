"""The result of `xlapipe choose`, as JSON and as a table."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from xlapipe.report.records import named
from xlapipe.report.text_table import aligned_row, column_widths, without_columns
from xlapipe.report.units import rounded, with_error
from xlapipe.search.choosing.choose import Choice
from xlapipe.search.choosing.rows import ChoiceRow, front
from xlapipe.search.planned_memory import SMALL_MARGIN, error_notes, mfu_text, networks

_HEADER = ("total", "headroom", "temp", "predicted", "MFU", "faster")
_FOR_WIDE_TERMINALS, _WHOLE_TABLE = ("temp",), 120


def choice_figures(choice: Choice) -> dict[str, Any]:
    """The JSON of `xlapipe choose`."""
    return {
        **named(choice, "workload", "maximise", "left_out", "interrupted", "notes"),
        "rows": [row.to_json() for row in choice.rows],
        "failed": [
            {
                "target": candidate.target,
                "arguments": dict(candidate.values),
                "change": candidate.change.text if candidate.change is not None else None,
                "error": str(error),
            }
            for candidate, error in choice.failed
        ],
    }


def choice_lines(choice: Choice, *, width: int | None = None) -> Iterator[Text]:
    """For each target the rows, the fastest first, then what to write.

    Args:
      width: width of a terminal that has no room for the temporary bytes; None for the whole
        table.
    """
    for target in dict.fromkeys(row.candidate.target for row in choice.rows):
        rows = [row for row in choice.rows if row.candidate.target == target]
        yield from _target_lines(choice, target, rows, width)
    yield from _chosen_lines(choice)
    for note in choice.notes:
        yield Text(note)
    if choice.left_out:
        reason = "an interrupt" if choice.interrupted else "the budget"
        yield Text(f"{choice.left_out} further candidates were not compiled because of {reason}.")


def _target_lines(
    choice: Choice, target: str, rows: Sequence[ChoiceRow], width: int | None
) -> Iterator[Text]:
    yield Text(
        f"{choice.workload} on {target}: {rounded(rows[0].memory.usable_bytes)} may be used, "
        f"{len(rows)} forms compiled",
        style="bold",
    )
    per = f"per {choice.maximise}" if choice.maximise is not None else None
    names = list(rows[0].candidate.values)
    priced = any(row.price is not None for row in rows)
    cost = f"cost of 1M {choice.maximise or 'steps'}"
    header = [*names, *_HEADER, *([per] if per else []), *([cost] if priced else [])]
    header += ["fits", "", "change"]
    best = front(rows)
    table = [header, *(_cells(row, per is not None, priced, row in best) for row in rows)]
    if width is not None and width < _WHOLE_TABLE:
        table = without_columns(table, {*map(header.index, _FOR_WIDE_TERMINALS)})
    widths, right = column_widths(table), range(len(table[0]) - 3)
    for cells, row in zip(table, (None, *rows), strict=True):
        style = (
            "bold" if row is None else "green" if row.chosen else "" if row.memory.fits else "red"
        )
        yield Text(aligned_row(cells, widths, right=right), style=style)
    predicted = rows[0].memory.predicted
    if predicted is None:
        yield Text("No time is predicted for this target: rows are ordered by items and bytes.")
    else:
        scaled = f", scaled from {predicted.scaled_from}" if predicted.scaled_from else ""
        yield Text(f"Times are predicted for {predicted.device}{scaled}. Every row was compiled.")
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
    if any(row.memory.rematerialised for row in rows):
        yield Text("yes*, no*: XLA itself rematerialises to stay below its limit.")
    for row in rows:
        if row.chosen and row.candidate.change is not None:
            yield Text(f"Write for {target}:", style="bold")
            yield from map(Text, row.candidate.change.code.splitlines())


def _chosen_lines(choice: Choice) -> Iterator[Text]:
    """One line for the chosen form of each of several targets."""
    timed = [(row, row.memory.predicted) for row in choice.chosen]
    if len(timed) < 2:
        return
    per = choice.maximise
    yield Text("The chosen form of each target:", style="bold")
    header = ["predicted", "9 of 10 within", f"per {per or 'step'}", "MFU"]
    table = [[*header, f"cost of 1M {per or 'steps'}", "devices", "target", "network"]]
    for row, predicted in timed:
        low_high = (predicted.low_seconds, predicted.high_seconds) if predicted else (None, None)
        times = [predicted.seconds if predicted else None, row.seconds_per_item]
        seconds, item = ("-" if time is None else _seconds(time) for time in times)
        within = " to ".join(_seconds(time) for time in low_high if time) or "-"
        network = predicted.network_name if predicted is not None else ""
        table.append(
            [
                *(seconds, within, item, mfu_text(predicted.mfu if predicted else None)),
                *(_cost(row.cost_per_million), str(row.devices), row.candidate.target, network),
            ]
        )
    empty = {2} if per is None else set()
    if all(row.price is None for row, _ in timed):
        empty.add(4)
    if not any(line[-1] for line in table[1:]):
        empty.add(7)
    table = without_columns(table, empty)
    widths = column_widths(table)
    for cells in table:
        yield Text(aligned_row(cells, widths, right=range(table[0].index("target"))))


def _cells(row: ChoiceRow, per_item: bool, priced: bool, on_front: bool) -> list[str]:
    predicted, change = row.memory.predicted, row.candidate.change
    seconds = "-"
    faster = f"{row.probability_faster:.0%}" if row.probability_faster is not None else "-"
    if predicted is not None and predicted.seconds is not None:
        seconds = _seconds(predicted.seconds)
    elif predicted is not None:
        seconds = f"≥ {_seconds(predicted.at_least_seconds or 0.0)}"
    item = row.seconds_per_item
    return [
        *map(repr, row.candidate.values.values()),
        rounded(row.memory.total_bytes),
        with_error(row.memory.headroom_bytes, row.memory.error_bytes),
        rounded(row.memory.temp_bytes),
        seconds,
        mfu_text(predicted.mfu if predicted is not None else None),
        faster,
        *([_seconds(item) if item is not None else "-"] if per_item else []),
        *([_cost(row.cost_per_million)] if priced else []),
        row.memory.fits_text,
        "chosen" if row.chosen else "front" if on_front else "",
        change.text if change is not None else "as written",
    ]


def _cost(cost: float | None) -> str:
    return "-" if cost is None else f"{cost:,.4g}"


def _seconds(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:,.2f} µs"
    return f"{seconds * 1e3:,.3f} ms"
