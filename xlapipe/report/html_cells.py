"""Tables as HTML, which Python makes in a tenth of the time of a template."""

from collections.abc import Callable, Iterable
from functools import lru_cache

from markupsafe import Markup, escape

from xlapipe.plans.peak import Arena, PeakGroup, PeakValue
from xlapipe.report import units
from xlapipe.report.cells import Cell, Gaps, Held, Name, Number, Outcome, cell_text
from xlapipe.report.text_table import Table

_CACHED = 1 << 14
_FEW_COLUMNS = 5
_NONE = Markup('<span class="none">–</span>')
_NUMBER = Markup(' class="number"')
_KEY = Markup(
    '<svg class="key" width="12" height="12" role="img" aria-label="{0}">'
    '<rect class="role-{0}" width="12" height="12" rx="3"/></svg>'
)
_BAR = Markup(
    '<svg class="bar" width="100%" height="6" aria-hidden="true">'
    '<rect class="ground" width="100%" height="6" rx="3"/>'
    '<rect class="role-{}" width="{:.3f}%" height="6" rx="3"/></svg>'
)
_ARENA = Markup(
    '<svg class="arena" width="100%" height="14" role="img" aria-label="{} gaps at the peak">'
    '<rect class="role-{}" width="100%" height="14"/>{}</svg>'
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


def _number(cell: Number) -> Markup:
    if cell.tone:
        return Markup('<b class="{}">{}</b>').format(cell.tone, cell.text)
    bar = _BAR.format(cell.role, cell.percent) if cell.role else Markup()
    return (bytes_cell(int(cell.value)) if cell.short else escape(cell.text)) + bar


def cell_html(cell: Cell) -> Markup:
    """The content of a cell."""
    match cell:
        case Name(text, members) if len(members) > 1:
            return _details(dense_code(text), len(members), _list(members))
        case Name(text):
            return dense_code(text)
        case Number():
            return _number(cell)
        case Outcome(text, tone):
            return Markup('<span class="answer {}">{}</span>').format(tone, text)
        case Held(group):
            return _held(group)
        case Gaps(arena) if arena.size_bytes and arena.occupied_at_peak_bytes is not None:
            return _gaps(arena)
        case _:
            return escape(cell_text(cell))


def _list(texts: Iterable[str]) -> Markup:
    items = (Markup("<li>{}</li>").format(dense_code(text)) for text in texts)
    return Markup("<ul>{}</ul>").format(_joined(items))


def _details(summary: Markup, number: int, content: Markup) -> Markup:
    """What several things have in common, and below it each of them."""
    return Markup(
        '<details><summary>{} <span class="times">×&nbsp;{}</span></summary>{}</details>'
    ).format(summary, number, content)


def _held(group: PeakGroup) -> Markup:
    values, sources = group.values, group.sources
    content = _KEY.format(group.role)
    if len(values) > 1:
        content = _details(content + dense_code(group.label), len(values), group_values(group))
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


def _gaps(arena: Arena) -> Markup:
    gaps, whole = arena.gaps_at_peak, arena.size_bytes
    kinds = {"preallocated-temp": "temp", "parameter": "alias"}
    role = next((role for kind, role in kinds.items() if kind in arena.kinds), "output")
    boxes = _joined(
        Markup('<rect class="gap" x="{:.3f}%" width="{:.3f}%" height="14"/>').format(
            100 * gap.offset_bytes / whole, 100 * gap.size_bytes / whole
        )
        for gap in gaps
    )
    picture = _ARENA.format(len(gaps), role, boxes)
    items = [f"{units.exact(gap.size_bytes)} at offset {gap.offset_bytes:,}" for gap in gaps]
    return picture + _details(Markup("gaps"), len(gaps), _list(items)) if gaps else picture


@lru_cache(_CACHED)
def bytes_cell(number: int) -> Markup:
    """Bytes, rounded and exact."""
    exact = f" <small>{units.exact(number)}</small>" if abs(number) >= 1024 else ""
    return Markup(f'<span class="bytes"><b>{units.rounded(number)}</b>{exact}</span>')


def dense_code(text: object) -> Markup:
    """Code without an element for each line break; a dash without text."""
    return Markup("<code>{}</code>").format(str(text)) if text else _NONE


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
    in_what = ", ".join(differing) or "the instruction that computes them"
    rows = _joined(
        Markup("<li>{}{}</li>").format(
            _select(value.value, value.value),
            _joined(Markup(" {}").format(texts[number]) for texts in differing.values()),
        )
        for number, value in enumerate(group.values)
    )
    return Markup('<p class="dim">Alike: {}. They differ in {}.</p><ul>{}</ul>').format(
        ", ".join(alike) or "nothing", in_what, rows
    )
