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
    Table,
    alias_lines,
    collective_table,
    finding_tables,
    gemm_table,
    heading,
    kernel_line,
    measured_line,
    only_lines,
    peak_table,
    sequence_line,
    total_rows,
    unknown_table,
)


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
    for note in plan.notes:
        yield Text(f"  note: {note}")
    for name, figure in total_rows(plan):
        yield Text(f"  {name:<26} {figure:>18}")
    line = measured_line(plan)
    if line is not None:
        yield Text(f"  {line}")
    for table in (peak_table(plan), unknown_table(plan)):
        yield from table_lines(table)
    yield Text(kernel_line(plan), style="bold")
    yield Text(f"aliases: {len(plan.aliases) or 'none'}", style="bold")
    for text in alias_lines(plan):
        yield Text(f"  {text}")
    for table in (gemm_table(plan), collective_table(plan), *finding_tables(plan)):
        yield from table_lines(table)
    for text in only_lines(plan):
        yield Text(f"  {text}")


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
