"""Pages of sections with lines and tables, and their form in a terminal.

Whoever has something to show states it as a `Page`; the renderers here and in `html_page` know
nothing of plans.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from xlapipe.report.cells import Cell, Number, cell_text

if TYPE_CHECKING:
    from rich.text import Text


MOST_ROWS = 30
# A few long cells do not widen a column: a terminal folds their rows between names.
_WIDEST_COLUMN = 60
_EMPTY = {"", "-"}
_Item = TypeVar("_Item")
_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Table:
    """A table for people, which a terminal and HTML render.

    Attributes:
      left_out: number of rows that are not listed.
      name: heading of the column that names a row, which a page shows first; default: the first.
      page_only, text_only: headings of columns that only a page shows, or only text.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    left_out: int = 0
    name: str = ""
    page_only: Collection[str] = ()
    text_only: Collection[str] = ()

    @classmethod
    def of(
        cls,
        title: str,
        items: Iterable[_Item],
        columns: Mapping[str, Callable[[_Item], Cell]],
        *,
        name: str = "",
        page_only: Collection[str] = (),
        text_only: Collection[str] = (),
    ) -> "Table":
        """A row for each item; `columns` has what its cell is by heading."""
        rows = (tuple(cell_of(item) for cell_of in columns.values()) for item in items)
        return cls(title, tuple(columns), tuple(rows), 0, name, page_only, text_only)

    @property
    def right(self) -> set[int]:
        """Indices of the columns of numbers, which are aligned right."""
        columns = enumerate(zip(*self.rows, strict=True))
        return {
            index
            for index, cells in columns
            if any(isinstance(cell, (int, Number)) for cell in cells)
        }

    def first(self, most: int = MOST_ROWS) -> "Table":
        left_out = self.left_out + max(0, len(self.rows) - most)
        return replace(self, rows=self.rows[:most], left_out=left_out)

    def columns(self, *, on_page: bool) -> list[int]:
        """Indices of the columns of a page, or of text, without those that are empty throughout."""
        hidden = self.text_only if on_page else self.page_only
        columns = [
            index
            for index, heading in enumerate(self.headings)
            if heading not in hidden
            and (not self.rows or any(cell_text(row[index]) not in _EMPTY for row in self.rows))
        ]
        if on_page:
            columns.sort(key=lambda index: self.headings[index] != (self.name or self.headings[0]))
        return columns

    def lines(self) -> Iterator[str]:
        """The lines below the title, indented."""
        columns = self.columns(on_page=False)
        rows = [[cell_text(row[index]) for index in columns] for row in (self.headings, *self.rows)]
        widths = [min(width, _WIDEST_COLUMN) for width in column_widths(rows)]
        right = self.right
        places = {place for place, index in enumerate(columns) if index in right}
        for row in rows:
            yield f"  {aligned_row(row, widths, places)}"
        if self.left_out:
            yield f"  … and {self.left_out} more (--json lists all)"


def grouped(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    """Items of equal keys together, in the order of the first of each."""
    groups: dict[_Key, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def shapes_of_product(shapes: Sequence[object]) -> str:
    """The shapes of the operands and, last, of the result."""
    return f"{' × '.join(map(str, shapes[:-1]))} -> {shapes[-1]}"


def column_widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """The length of the longest cell of each column."""
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def aligned_row(row: Sequence[str], widths: Sequence[int], right: Collection[int] = ()) -> str:
    cells = (
        cell.rjust(width) if index in right else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join(cells).rstrip()


def aligned_rows(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """A table line by line.

    >>> aligned_rows([("name", "bytes"), ("a", "1,024")], right={1})
    ['name  bytes', 'a     1,024']
    """
    widths = column_widths(rows) if rows else []
    return [aligned_row(row, widths, right) for row in rows]


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
