"""Contents of the cells of long tables, which Python makes in a tenth of the time of a macro."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from markupsafe import Markup, escape

from xlapipe.plans.peak import PeakGroup, PeakValue
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


# Fields that may differ in a group, in addition to the instructions that make its values.
_ASPECTS: tuple[tuple[str, Callable[[PeakValue], str]], ...] = (
    ("name", lambda value: value.label),
    ("shape", lambda value: value.shape),
    ("bytes", lambda value: units.exact(value.counted_bytes)),
    ("source line", lambda value: value.source or ""),
    ("allocation", lambda value: f"allocation {value.allocation}"),
)


def group_values(group: PeakGroup) -> Markup:
    """What the values of a group have in common, and a list of what each has alone."""
    columns = {name: [text_of(value) for value in group.values] for name, text_of in _ASPECTS}
    differing = {name: texts for name, texts in columns.items() if len(set(texts)) > 1}
    alike = [texts[0] for name, texts in columns.items() if name not in differing and texts[0]]
    in_what = ", ".join(differing)
    rows = Markup("").join(
        Markup(
            '<li><button type="button" class="quiet" data-select="{}">{}</button>{}</li>'
        ).format(
            value.value,
            dense_code(value.value),
            Markup("").join(Markup(" {}").format(texts[row]) for texts in differing.values()),
        )
        for row, value in enumerate(group.values)
    )
    return Markup('<p class="dim">Alike: {}. They differ in {}.</p><ul>{}</ul>').format(
        ", ".join(alike) or "nothing", in_what or "the instruction that computes them", rows
    )
