"""Contents of the cells of long tables, which Python makes in a tenth of the time of a macro."""

from functools import lru_cache
from typing import Any

from markupsafe import Markup, escape

from xlapipe.report import units
from xlapipe.report.time_lines import microseconds

_CACHED = 1 << 14


@lru_cache(_CACHED)
def bytes_cell(number: int) -> Markup:
    """Bytes, rounded and exact."""
    exact = f" <small>{units.exact(number)}</small>" if abs(number) >= 1024 else ""
    return Markup(f'<span class="bytes"><b>{units.rounded(number)}</b>{exact}</span>')


@lru_cache(_CACHED)
def seconds_cell(number: float | None) -> Markup:
    """A table cell with a time."""
    text = escape(microseconds(number))
    return Markup(f'<td class="number" data-value="{number or 0}">{text}</td>')


def dense_code(text: Any) -> Markup:
    """Code without an element for each line break; a dash without text."""
    if not text:
        return Markup('<span class="none">–</span>')
    return Markup(f"<code>{escape(text)}</code>")
