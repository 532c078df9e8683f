"""Tables as HTML, which Python makes in a tenth of the time of a template."""

from collections.abc import Iterable
from functools import lru_cache

from markupsafe import Markup, escape

from xlapipe.plans.peak import PeakGroup
from xlapipe.report import units
from xlapipe.report.cells import Cell, Held, Name, Number, Outcome, cell_text
from xlapipe.report.pages import Table

_CACHED = 1 << 14
_FEW_COLUMNS = 5
_NONE = Markup('<span class="none">–</span>')
_NUMBER = Markup(' class="number"')
_KEY = Markup(
    '<svg class="key" width="12" height="12" role="img" aria-label="{0}">'
    '<rect class="role-{0}" width="12" height="12" rx="3"/></svg>'
)
_SCROLL = Markup(
    '<div class="scroll {}" tabindex="0" role="region" aria-label="{}"><table class="{}">'
    "<thead><tr>{}</tr></thead>\n<tbody>\n{}\n</tbody></table></div>"
)


def table_html(table: Table, label: str, scroll: str = "tall", style: str = "sortable") -> Markup:
    """A table without its title; empty without rows."""
    if not table.rows:
        return Markup()
    columns, right = table.columns(on_page=True), table.right
    style += " dense" if len(columns) > _FEW_COLUMNS else ""
    head = _joined(
        Markup('<th scope="col"{}>{}</th>').format(
            _NUMBER if index in right else "", table.headings[index]
        )
        for index in columns
    )
    rows = Markup("\n").join(
        Markup("<tr>{}</tr>").format(
            _joined(
                _cell(row[index], is_name=not place, in_numbers=index in right)
                for place, index in enumerate(columns)
            )
        )
        for row in table.rows
    )
    more = Markup('<p class="dim">… and {} more</p>').format(table.left_out)
    area = _SCROLL.format(scroll, label, style, head, rows)
    return area + more if table.left_out else area


def _cell(cell: Cell, *, is_name: bool, in_numbers: bool) -> Markup:
    tag = Markup('th scope="row"') if is_name else Markup("td")
    value = cell.value if isinstance(cell, Number) else cell if isinstance(cell, int) else 0
    attributes = Markup('{} data-value="{}"').format(_NUMBER, value) if in_numbers else ""
    return Markup("<{}{}>{}</{}>").format(tag, attributes, cell_html(cell), tag[:2])


def _joined(parts: Iterable[Markup]) -> Markup:
    return Markup("").join(parts)


def cell_html(cell: Cell) -> Markup:
    match cell:
        case Name(text, members) if len(members) > 1:
            items = (Markup("<li>{}</li>").format(dense_code(member)) for member in members)
            content = Markup("<ul>{}</ul>").format(_joined(items))
            return _details(dense_code(text), len(members), content)
        case Name(text):
            return dense_code(text)
        case Number(tone=tone, text=text) if tone:
            return Markup('<b class="{}">{}</b>').format(tone, text)
        case Number(short=short) if short:
            return bytes_cell(int(cell.value))
        case Outcome(text, tone):
            return Markup('<span class="answer {}">{}</span>').format(tone, text)
        case Held(group):
            return _held(group)
        case _:
            return escape(cell_text(cell))


def _details(summary: Markup, number: int, content: Markup) -> Markup:
    """What several things have in common, and below it each of them."""
    return Markup(
        '<details><summary>{} <span class="times">×&nbsp;{}</span></summary>{}</details>'
    ).format(summary, number, content)


def _held(group: PeakGroup) -> Markup:
    values, sources = group.values, group.sources
    content = _KEY.format(group.role)
    if len(values) > 1:
        members = _joined(
            Markup("<li>{} {}</li>").format(_select(value.value, value.value), value.shape)
            for value in values
        )
        content += dense_code(group.label)
        content = _details(content, len(values), Markup("<ul>{}</ul>").format(members))
    else:
        content += _select(values[0].value, group.label)
    others = " and other shapes" if len({value.shape for value in values}) > 1 else ""
    at = Markup(", ").join(map(dense_code, sources[:2]))
    more = f" and {len(sources) - 2} more" if len(sources) > 2 else ""
    return Markup('{}<div class="from">{}{}, {}{}{}{}</div>').format(
        *(content, dense_code(values[0].shape), others, group.role),
        *(" at " if sources else "", at, more),
    )


def _select(value: str, text: str) -> Markup:
    """A button that selects a value in the map."""
    return Markup('<button type="button" class="quiet" data-select="{}">{}</button>').format(
        value, dense_code(text)
    )


@lru_cache(_CACHED)
def bytes_cell(number: int) -> Markup:
    """Bytes, rounded and exact."""
    exact = f" <small>{units.exact(number)}</small>" if abs(number) >= 1024 else ""
    return Markup(f'<span class="bytes"><b>{units.rounded(number)}</b>{exact}</span>')


def dense_code(text: object) -> Markup:
    """Code without an element for each line break; a dash without text."""
    return Markup("<code>{}</code>").format(str(text)) if text else _NONE
