"""Pages of sections with lines and tables, and their form in a terminal and in Markdown.

Whoever has something to show states it as a `Page`; the renderers here and `render_tables_page` for
HTML know nothing of plans.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

from xlapipe.report.markdown_syntax import plain, table
from xlapipe.report.text_table import Table


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with lines and tables."""

    title: str
    lines: tuple[str, ...]
    tables: tuple[Table, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """What a report says about one subject.

    Attributes:
      compilers: that made the subject, for people.
      note: about all sections; empty for none.
    """

    title: str
    compilers: str
    sections: tuple[Section, ...]
    note: str = ""


def page_lines(page: Page) -> Iterator[Text]:
    """The page for a terminal; readable without colour."""
    yield Text(page.title, style="bold")
    if page.note:
        yield Text(page.note)
    for section in page.sections:
        yield Text()
        yield Text(section.title, style="bold")
        for line in section.lines:
            yield Text(f"  {line}")
        for part in section.tables:
            yield from _table_lines(part)


def _table_lines(part: Table) -> Iterator[Text]:
    """A table under its title; the title alone if there are no rows."""
    yield Text(part.title, style="bold")
    if part.rows:
        for number, line in enumerate(part.lines()):
            yield Text(line, style="" if number else "bold")


def pages_markdown(pages: Sequence[Page]) -> str:
    """The pages as Markdown."""
    lines: list[str] = []
    for page in pages:
        lines += [f"# {plain(page.title)}", ""]
        lines += [plain(page.note), ""] if page.note else []
        for section in page.sections:
            lines += [f"## {plain(section.title)}", ""]
            lines += [*(f"- {plain(line)}" for line in section.lines), ""]
            for part in section.tables:
                lines += _markdown_table(part)
    return "\n".join(lines).rstrip("\n") + "\n"


def _markdown_table(part: Table) -> Iterator[str]:
    """A table under its title."""
    yield f"### {plain(part.title)}"
    yield ""
    if part.rows:
        rows = [tuple(plain(cell) or " " for cell in row) for row in part.rows]
        yield from table(part.headings, rows, right=part.right)
    if part.left_out:
        yield f"… and {part.left_out} more"
        yield ""
