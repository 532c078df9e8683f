"""A comparison of two compilers as JSON, lines for a terminal, Markdown and HTML."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.text import Text

from xlapipe.diff.compilers.comparison import CompilerComparison
from xlapipe.diff.compilers.tensor_leaves import MatchedLeaves
from xlapipe.report.compilers_tables import (
    comparison_heading,
    comparison_lines,
    comparison_tables,
)
from xlapipe.report.inductor_markdown import markdown_table
from xlapipe.report.inductor_page import render_tables_page
from xlapipe.report.inductor_terminal import table_lines
from xlapipe.report.markdown_syntax import plain


def comparison_figures(comparison: CompilerComparison) -> dict[str, Any]:
    """The JSON of `xlapipe diff`; bytes are ints, what a dump does not hold is None."""
    return {
        "same_interface": comparison.same_interface,
        "inductor": {**asdict(comparison.inductor), "launches": comparison.inductor.launches},
        "xla": {**asdict(comparison.xla), "launches": comparison.xla.launches},
        "arguments": _matched(comparison.arguments),
        "outputs": _matched(comparison.outputs),
        "kept_by_xla_bytes": comparison.kept_by_xla,
        "products": [asdict(row) for row in comparison.products],
        "sentences": list(comparison_lines(comparison)),
    }


def comparison_terminal(comparison: CompilerComparison) -> Iterator[Text]:
    """The page for a terminal."""
    yield Text(comparison_heading(comparison), style="bold")
    for line in comparison_lines(comparison):
        yield Text(f"  {line}")
    for table in comparison_tables(comparison):
        yield from table_lines(table)


def comparison_markdown(comparison: CompilerComparison) -> str:
    """The page as Markdown."""
    lines = [f"# {plain(comparison_heading(comparison))}", ""]
    lines += [f"- {plain(line)}" for line in comparison_lines(comparison)]
    lines.append("")
    for table in comparison_tables(comparison):
        lines += markdown_table(table)
    return "\n".join(lines).rstrip("\n") + "\n"


def comparison_page(comparison: CompilerComparison) -> str:
    """The page as HTML."""
    section = {
        "heading": "Side by side",
        "lines": list(comparison_lines(comparison)),
        "tables": list(comparison_tables(comparison)),
    }
    page = {
        "name": comparison_heading(comparison),
        "compilers": "torch Inductor and XLA",
        "sequence": None,
        "graphs": [section],
    }
    return render_tables_page([page])


def _matched(leaves: MatchedLeaves) -> dict[str, Any]:
    return {
        "same": leaves.same,
        "same_order": leaves.same_order,
        "matched": leaves.matched,
        "pairs": [asdict(pair) for pair in leaves.pairs],
    }
