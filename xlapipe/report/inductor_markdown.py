"""The report on dumps of torch Inductor as Markdown."""

from collections.abc import Iterator, Sequence

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
from xlapipe.report.markdown_syntax import plain, table


def render_inductor_text(dumps: Sequence[InductorDump]) -> str:
    """The whole report."""
    lines: list[str] = []
    for dump in dumps:
        lines += [f"# {plain(str(dump.path))}", ""]
        sequence = sequence_line(dump)
        if sequence is not None:
            lines += [plain(sequence), ""]
        for plan in dump.plans:
            lines += _plan(plan)
    return "\n".join(lines).rstrip("\n") + "\n"


def plan_tables(plan: InductorPlan) -> tuple[Table, ...]:
    """The tables of one graph, in the order of the report."""
    figures = Table("totals", ("figure", "bytes or calls"), tuple(total_rows(plan)), frozenset({1}))
    return (
        figures,
        peak_table(plan),
        unknown_table(plan),
        gemm_table(plan),
        collective_table(plan),
        *finding_tables(plan),
    )


def plan_lines(plan: InductorPlan) -> Iterator[str]:
    """What a report says of one graph besides its tables."""
    yield from plan.notes
    line = measured_line(plan)
    if line is not None:
        yield line
    yield kernel_line(plan)
    yield from alias_lines(plan)
    yield from only_lines(plan)


def _plan(plan: InductorPlan) -> Iterator[str]:
    yield f"## {plain(heading(plan))}"
    yield ""
    for line in plan_lines(plan):
        yield f"- {plain(line)}"
    yield ""
    for each in plan_tables(plan):
        yield from markdown_table(each)


def markdown_table(each: Table) -> Iterator[str]:
    """A table under its title."""
    yield f"### {plain(each.title)}"
    yield ""
    if each.rows:
        rows = [tuple(plain(cell) or " " for cell in row) for row in each.rows]
        yield from table(each.headings, rows, right=each.right)
    if each.left_out:
        yield f"… and {each.left_out} more"
        yield ""
