"""Markdown syntax: code spans, tables, and escaped text."""

import re
from collections.abc import Collection, Iterable
from html import escape

from xlapipe.files.visible_text import visible_line
from xlapipe.report.text_table import column_widths

# Characters that Markdown would interpret; not an underscore inside a word or a single bracket.
_MARKUP = re.compile(
    r"[\\`*<|]|(?<![^\W_])_|_(?![^\W_])|(?<=\])\(|^[>#\[+-]|~(?=~)|&(?=#?\w+;)", re.ASCII
)

Row = tuple[str, ...]


def code(text: object) -> str:
    """A code span that shows `text` unchanged, also in a table.

    >>> print(code("a`b|c"))
    `` a`b\\|c ``
    """
    content = visible_line(str(text)).replace("|", "\\|")
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
    """A Markdown table, padded so that it is also readable as plain text.

    Args:
      right: indices of the columns to align right.
    """
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
