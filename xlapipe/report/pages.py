"""Pages of sections with lines and tables, and their form in a terminal and in Markdown.

Whoever has something to show states it as a `Page`; the renderers here and in `html_page` know
nothing of plans.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from xlapipe.files.visible_text import visible_line
from xlapipe.report.cells import Cell, Held, Name, Number, cell_text
from xlapipe.report.text_table import Table, column_widths

if TYPE_CHECKING:
    from rich.text import Text


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with lines and tables.

    Attributes:
      title: empty for what stands before the first heading.
      key: its name in the links of a page; empty if nothing links to it.
    """

    title: str
    lines: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    key: str = ""


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


def page_lines(page: Page) -> "Iterator[Text]":
    """The page for a terminal; readable without colour."""
    from rich.text import Text

    yield Text(page.title, style="bold")
    if page.note:
        yield Text(page.note)
    for section in page.sections:
        yield Text()
        if section.title:
            yield Text(section.title, style="bold")
        for line in section.lines:
            yield Text(f"  {line}")
        for part in section.tables:
            if part.title:
                yield Text(part.title, style="bold")
            if part.rows:
                heading, *rows = part.first().lines()
                yield Text(heading, style="bold")
                yield from map(Text, rows)


def pages_markdown(pages: Sequence[Page]) -> str:
    """The pages as Markdown, which depends on neither the machine nor the terminal's width."""
    lines: list[str] = []
    for page in pages:
        lines += [f"# {plain(page.title)}", ""]
        lines += [plain(page.note), ""] if page.note else []
        for section in page.sections:
            lines += [f"## {plain(section.title)}", ""] if section.title else []
            lines += [*(f"- {plain(line)}" for line in section.lines), ""] if section.lines else []
            for part in section.tables:
                lines += _markdown_table(part)
    return "\n".join(lines).rstrip("\n") + "\n"


def _markdown_table(part: Table) -> Iterator[str]:
    """A table under its title."""
    if part.title:
        yield f"### {plain(part.title)}"
        yield ""
    first, columns = part.first(), part.columns(on_page=False)
    if part.rows:
        rows = [tuple(_markdown(row[index]) for index in columns) for row in first.rows]
        right = {place for place, index in enumerate(columns) if index in part.right}
        yield from table(tuple(part.headings[index] for index in columns), rows, right=right)
    if first.left_out:
        yield f"… and {first.left_out} more (`--json` lists all)"
        yield ""


def _markdown(cell: Cell) -> str:
    """A cell; names are code, and sizes of several digits are also rounded."""
    match cell:
        case Name(text, members, about) if text:
            several = f" × {len(members)}" if len(members) > 1 else ""
            return f"{code(text)}{several} {plain(about)}".rstrip()
        case Held(group):
            return code(group.label) + str(cell).removeprefix(group.label)
        case Number(_, text, short, tone):
            return f"**{text}**" if tone else f"{text} ({short})" if short else text
        case _:
            return plain(cell_text(cell)) or "–"


# Characters that Markdown would interpret; not an underscore inside a word or a single bracket.
_MARKUP = re.compile(
    r"[\\`*<|]|(?<![^\W_])_|_(?![^\W_])|(?<=\])\(|^[>#\[+-]|~(?=~)|&(?=#?\w+;)", re.ASCII
)

Row = tuple[str, ...]


def code(text: object, *, in_table: bool = True) -> str:
    """A code span that shows `text` unchanged, also in a table.

    >>> print(code("a`b|c"))
    `` a`b\\|c ``
    """
    content = visible_line(str(text))
    if in_table:
        content = content.replace("|", "\\|")
    fence = "`"
    while fence in content:
        fence += "`"
    pad = " " if "`" in content else ""
    return f"{fence}{pad}{content}{pad}{fence}"


def plain(text: str) -> str:
    """Text on one line with Markdown's characters escaped."""
    return _MARKUP.sub(lambda mark: "\\" + mark[0], visible_line(" ".join(text.split())))


def html_text(text: str) -> str:
    """Text inside an HTML tag that Markdown passes on, such as `<summary>`."""
    return escape(visible_line(text))


def table(headings: Row, rows: Iterable[Row], *, right: Collection[int] = ()) -> list[str]:
    """A Markdown table, padded so that it is also readable as plain text."""
    body = list(rows)
    widths = [max(3, width) for width in column_widths((headings, *body))]

    def line(row: Row) -> str:
        cells = (
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return f"| {' | '.join(cells)} |"

    ruler = (
        "-" * (width - 1) + (":" if index in right else "-") for index, width in enumerate(widths)
    )
    return [line(headings), f"| {' | '.join(ruler)} |", *map(line, body), ""]
