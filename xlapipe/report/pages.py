"""Pages of sections with lines and tables, and their form in a terminal.

Whoever has something to show states it as a `Page`; the renderers here and in `html_page` know
nothing of plans.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xlapipe.report.text_table import Table

if TYPE_CHECKING:
    from rich.text import Text


@dataclass(frozen=True, slots=True)
class Section:
    """Lines and tables below a heading, if any; `key` is its name in links, if any."""

    title: str
    lines: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    key: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """What a report says about one subject; `note` is about all sections."""

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
