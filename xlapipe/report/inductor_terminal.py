"""`xlapipe show` of a dump of torch Inductor for a terminal; readable without colour."""

from collections.abc import Iterator

from rich.text import Text

from xlapipe.inductor.inductor_plan import InductorPlan
from xlapipe.inductor.reader import InductorDump
from xlapipe.report.inductor_lines import (
    detail_tables,
    heading,
    plan_lines,
    sequence_line,
    total_rows,
)
from xlapipe.report.text_table import Table, aligned_row, column_widths

_WIDEST_COLUMN = 60


def inductor_lines(dump: InductorDump) -> Iterator[Text]:
    """Totals, contents at the peak, GEMMs, collectives and findings of each graph."""
    yield Text(str(dump.path), style="bold")
    line = sequence_line(dump)
    if line is not None:
        yield Text(line)
    for plan in dump.plans:
        yield Text()
        yield from _plan_lines(plan)


def _plan_lines(plan: InductorPlan) -> Iterator[Text]:
    yield Text(heading(plan), style="bold")
    for name, figure in total_rows(plan):
        yield Text(f"  {name:<26} {figure:>18}")
    for line in plan_lines(plan):
        yield Text(f"  {line}")
    for table in detail_tables(plan):
        yield from table_lines(table)


def table_lines(table: Table) -> Iterator[Text]:
    """A table under its title; the title alone if there are no rows."""
    yield Text(table.title, style="bold")
    if not table.rows:
        return
    rows = [table.headings, *table.rows]
    # A few long cells do not widen the column: a terminal folds their rows between names.
    widths = [min(width, _WIDEST_COLUMN) for width in column_widths(rows)]
    for number, row in enumerate(rows):
        line = aligned_row(row, widths, right=table.right)
        yield Text(f" {line}", style="" if number else "bold")
    if table.left_out:
        yield Text(f"  … and {table.left_out} more (--json lists all)")
