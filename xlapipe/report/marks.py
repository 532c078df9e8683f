"""Pieces of Markdown: code spans, tables, and text that stays text."""

import re
from collections.abc import Iterable

# What Markdown would take for a mark: not an underscore inside a word, nor a lone bracket.
_MARK = re.compile(
    r"[\\`*<|]|(?<![^\W_])_|_(?![^\W_])|(?<=\])\(|^[>#\[+-]|~(?=~)|&(?=#?\w+;)", re.ASCII
)

Row = tuple[str, ...]


def code(text: object) -> str:
    """A code span that shows `text` as it is, in a table too.

    >>> print(code("a`b|c"))
    `` a`b\\|c ``
    """
    plain = _printable(str(text))
    plain = plain.replace("|", "\\|")
    fence = "`"
    while fence in plain:
        fence += "`"
    pad = " " if "`" in plain else ""
    return f"{fence}{pad}{plain}{pad}{fence}"


def plain(text: str) -> str:
    """Text that Markdown takes for text: on one line, its marks escaped."""
    return _MARK.sub(lambda mark: "\\" + mark[0], _printable(" ".join(text.split())))


def table(headings: Row, rows: Iterable[Row], *, right: frozenset[int] = frozenset()) -> list[str]:
    """A Markdown table, padded so that it reads well as plain text; `right` are right-aligned."""
    body = list(rows)
    widths = [max(3, *(len(row[i]) for row in (headings, *body))) for i in range(len(headings))]

    def line(row: Row) -> str:
        cells = (
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return f"| {' | '.join(cells)} |"

    ruler = ("-" * (w - 1) + (":" if i in right else "-") for i, w in enumerate(widths))
    return [line(headings), f"| {' | '.join(ruler)} |", *map(line, body), ""]


def _printable(text: str) -> str:
    """Control characters would move the cursor, and half a surrogate pair is no UTF-8."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
