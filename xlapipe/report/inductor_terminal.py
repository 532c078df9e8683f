"""`xlapipe show` of a dump of torch Inductor for a terminal; readable without colour."""

from collections.abc import Iterator
from typing import Literal

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table as RichTable
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
from xlapipe.report.text_table import Table


def inductor_lines(dump: InductorDump) -> Iterator[RenderableType]:
    """Totals, contents at the peak, GEMMs, collectives and findings of each graph."""
    yield Text(str(dump.path), style="bold")
    line = sequence_line(dump)
    if line is not None:
        yield Text(line)
    for plan in dump.plans:
        yield Text()
        yield from _plan_lines(plan)


def _plan_lines(plan: InductorPlan) -> Iterator[RenderableType]:
    yield Text(heading(plan), style="bold")
    for name, figure in total_rows(plan):
        yield Text(f"  {name:<26} {figure:>18}")
    for line in plan_lines(plan):
        yield Text(f"  {line}")
    for table in detail_tables(plan):
        yield from table_lines(table)


def table_lines(table: Table) -> Iterator[RenderableType]:
    """A table under its title; the title alone if there are no rows."""
    if not table.rows:
        yield Text(table.title, style="bold")
        return
    drawn = RichTable(title=escape(table.title), title_justify="left", box=None)
    for index, name in enumerate(table.headings):
        justify: Literal["left", "right"] = "right" if index in table.right else "left"
        drawn.add_column(name, justify=justify, overflow="fold")
    for row in table.rows:
        drawn.add_row(*map(escape, row))
    yield drawn
    if table.left_out:
        yield Text(f"  … and {table.left_out} more (--json lists all)")
