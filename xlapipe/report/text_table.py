"""Tables of text, and their lines with aligned columns."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

MOST_ROWS = 30
# A few long cells do not widen a column: a terminal folds their rows between names.
_WIDEST_COLUMN = 60


@dataclass(frozen=True, slots=True)
class Table:
    """A table for people, which terminal, Markdown and HTML render.

    Attributes:
      right: indices of the columns of numbers.
      left_out: number of rows that are not listed.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: Collection[int] = ()
    left_out: int = 0

    @classmethod
    def of_first(
        cls,
        title: str,
        headings: tuple[str, ...],
        rows: Sequence[tuple[str, ...]],
        right: Collection[int] = (),
        most: int = MOST_ROWS,
    ) -> "Table":
        """The table of the first `most` rows."""
        return cls(title, headings, tuple(rows[:most]), right, max(0, len(rows) - most))

    def lines(self) -> Iterator[str]:
        """The lines below the title, indented."""
        rows = [self.headings, *self.rows]
        widths = [min(width, _WIDEST_COLUMN) for width in column_widths(rows)]
        for row in rows:
            yield f"  {aligned_row(row, widths, self.right)}"
        if self.left_out:
            yield f"  … and {self.left_out} more (--json lists all)"


def column_widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """The length of the longest cell of each column."""
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def aligned_row(row: Sequence[str], widths: Sequence[int], right: Collection[int] = ()) -> str:
    """One line of a table.

    Args:
      right: indices of the columns to align right.
    """
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


def without_columns(rows: Sequence[Sequence[str]], columns: Collection[int]) -> list[list[str]]:
    """The rows without the columns of these indices.

    >>> without_columns([("name", "bytes", "line"), ("a", "1,024", "f.py:3")], {1})
    [['name', 'line'], ['a', 'f.py:3']]
    """
    return [[cell for index, cell in enumerate(row) if index not in columns] for row in rows]
