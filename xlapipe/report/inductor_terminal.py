"""`xlapipe show` and `check` on dumps of torch Inductor, for a terminal."""

from rich.console import Console
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

# Where no terminal tells its width, nothing needs to be folded.
_WIDTH_OF_FILES = 160


def print_inductor(dump: InductorDump) -> None:
    """Totals, what is held at the peak, gemms, collectives and findings of each graph."""
    console = _console()
    console.print(Text(str(dump.path), style="bold"))
    line = sequence_line(dump)
    if line is not None:
        console.print(Text(line))
    for plan in dump.plans:
        console.print()
        _print_plan(console, plan)


def _print_plan(console: Console, plan: InductorPlan) -> None:
    console.print(Text(heading(plan), style="bold"))
    for note in plan.notes:
        console.print(Text(f"  note: {note}"))
    for name, figure in total_rows(plan):
        console.print(f"  {name:<26} {figure:>18}")
    line = measured_line(plan)
    if line is not None:
        console.print(Text(f"  {line}"))
    for table in (peak_table(plan), unknown_table(plan)):
        _print_table(console, table)
    console.print(Text(kernel_line(plan), style="bold"))
    aliases = list(alias_lines(plan))
    console.print(Text(f"aliases: {len(plan.aliases) or 'none'}", style="bold"))
    for text in aliases:
        console.print(Text(f"  {text}"))
    for table in (gemm_table(plan), collective_table(plan), *finding_tables(plan)):
        _print_table(console, table)
    for text in only_lines(plan):
        console.print(Text(f"  {text}"))


def _print_table(console: Console, table: Table) -> None:
    if not table.rows:
        console.print(Text(table.title, style="bold"))
        return
    drawn = RichTable(title=escape(table.title), title_justify="left", box=None)
    for place, name in enumerate(table.headings):
        right = place in table.right
        drawn.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*map(escape, row))
    console.print(drawn)
    if table.left_out:
        console.print(f"  … and {table.left_out} more (--json has all)")


def _console() -> Console:
    console = Console(soft_wrap=True, highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH_OF_FILES
    return console
