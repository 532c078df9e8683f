"""The report's tables of times, without columns that are empty in every row."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from xlapipe.report.html_cells import bytes_cell, dense_code, seconds_cell
from xlapipe.report.time_figures import StepTime, TimeRow
from xlapipe.report.time_lines import group_by_source

_EMPTY = Markup('<span class="none">–</span>')


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Attributes:
      value: value of a row; None if it has none.
      cell: cell of a row whose value is known; None to show the value as a time.
    """

    heading: str
    value: Callable[[TimeRow], Any]
    cell: Callable[[TimeRow], Markup] | None = None
    is_number: bool = True


@dataclass(frozen=True, slots=True)
class TimeTable:
    """A table: its columns, and the cells of each row."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Markup, ...], ...]


def time_tables(time: StepTime) -> tuple[TimeTable, ...]:
    """The times by source line and by kernel, the longest predicted ones first."""
    return (
        _table("By source line", group_by_source(time.kernels), time),
        _table("By kernel", time.kernels, time),
    )


def _table(title: str, rows: Sequence[TimeRow], time: StepTime) -> TimeTable:
    total = time.floor_seconds
    columns = (
        Column("source line" if title == "By source line" else "kernel", _name, None, False),
        Column("predicted", lambda row: row.predicted_seconds),
        Column("measured", lambda row: row.measured_seconds),
        Column("XLA's estimate", lambda row: row.estimate_seconds),
        Column("floor", lambda row: row.floor_seconds),
        Column(
            "share of the floor",
            lambda row: (row.floor_seconds or 0) if total else None,
            lambda row: Markup(f"{100 * (row.floor_seconds or 0) / (total or 1):.1f} %"),
        ),
        Column("launches", lambda row: row.launches, lambda row: escape(f"{row.launches:,}")),
        Column("bytes read", lambda row: row.read_bytes, lambda row: bytes_cell(row.read_bytes)),
        Column(
            "bytes written",
            lambda row: row.written_bytes,
            lambda row: bytes_cell(row.written_bytes),
        ),
        Column("operations", lambda row: row.flops, lambda row: escape(f"{row.flops:,}")),
        Column("bound by", lambda row: row.bound, lambda row: escape(row.bound or ""), False),
        Column(
            "basis of the prediction",
            lambda row: row.basis,
            lambda row: escape(row.basis or ""),
            False,
        ),
        Column("source line", _line_of_kernel, lambda row: dense_code(row.source), False),
    )
    ordered = sorted(rows, key=lambda row: -(row.predicted_seconds or row.floor_seconds or 0.0))
    shown = tuple(
        column for column in columns if any(column.value(row) is not None for row in ordered)
    )
    return TimeTable(title, shown, tuple(tuple(_cells(row, shown)) for row in ordered))


def _name(row: TimeRow) -> str:
    return row.name


def _line_of_kernel(row: TimeRow) -> str | None:
    """The line beside a kernel; a row of a line has it as its name."""
    return row.source if row.kind is not None else None


def _cells(row: TimeRow, columns: Sequence[Column]) -> list[Markup]:
    cells = [Markup('<th scope="row">{}</th>').format(dense_code(row.name))]
    for column in columns[1:]:
        value = column.value(row)
        if column.cell is None:
            cells.append(seconds_cell(value))
            continue
        text = column.cell(row) if value is not None else _EMPTY
        if column.is_number:
            start = Markup('<td class="number" data-value="{}">').format(value or 0)
        else:
            start = Markup("<td>")
        cells.append(start + text + Markup("</td>"))
    return cells
