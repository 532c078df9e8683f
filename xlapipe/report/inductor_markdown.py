"""The report on dumps of torch Inductor as Markdown."""

from collections.abc import Iterator, Sequence

from xlapipe.inductor.inductor_plan import InductorPlan
from xlapipe.inductor.reader import InductorDump
from xlapipe.report.inductor_lines import (
    detail_tables,
    heading,
    plan_lines,
    sequence_line,
    total_table,
)
from xlapipe.report.markdown_syntax import plain, table
from xlapipe.report.text_table import Table


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


def _plan(plan: InductorPlan) -> Iterator[str]:
    yield f"## {plain(heading(plan))}"
    yield ""
    for line in plan_lines(plan):
        yield f"- {plain(line)}"
    yield ""
    for part in (total_table(plan), *detail_tables(plan)):
        yield from markdown_table(part)


def markdown_table(part: Table) -> Iterator[str]:
    """A table under its title."""
    yield f"### {plain(part.title)}"
    yield ""
    if part.rows:
        rows = [tuple(plain(cell) or " " for cell in row) for row in part.rows]
        yield from table(part.headings, rows, right=part.right)
    if part.left_out:
        yield f"… and {part.left_out} more"
        yield ""
