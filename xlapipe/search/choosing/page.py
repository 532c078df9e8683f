"""An HTML page with the curve of memory against time: one dot per compile."""

from collections.abc import Iterator, Sequence
from html import escape

from xlapipe.files.visible_text import visible_line, visible_lines
from xlapipe.report.units import rounded
from xlapipe.search.choosing.choose import Choice
from xlapipe.search.choosing.rows import front
from xlapipe.search.planned_memory import networks
from xlapipe.search.rows import Row, by_target

_WIDTH, _HEIGHT, _MARGIN = 760, 420, 70
_STYLE = """body{font:15px system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}
svg text{font-size:12px}pre{background:#f4f4f4;padding:1em;overflow-x:auto}
.front{stroke:#888;fill:none}.dot{fill:#4878cf}.out{fill:#c44}.chosen{fill:#2a2;stroke:#000}
.limit{stroke:#c44;stroke-dasharray:4}.axis{stroke:#ddd}.label{fill:#c44}.below{text-anchor:middle}
.left{text-anchor:end;dominant-baseline:middle}"""


def choice_page(choice: Choice) -> str:
    """The page, which needs no other file."""
    parts = [f"<h1>{_text(choice.workload)}</h1>"]
    for target, rows in by_target(choice.rows).items():
        parts.append(f"<h2>{_text(target)}</h2>")
        parts += _plot(rows, choice.maximise)
        plans = [row.memory for row in rows]
        parts += [f"<p>Network {_text(network)}.</p>" for network in networks(plans)]
        for row in rows:
            if row.chosen:
                parts.append(f"<p>Chosen: {_text(_about(row))}</p>")
                if row.candidate.change is not None:
                    code = escape(visible_lines(row.candidate.change.code))
                    parts.append(f"<pre>{code}</pre>")
    parts += [f"<p>{_text(note)}</p>" for note in choice.notes]
    title = _text(choice.workload)
    head = f"<meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>"
    return f"<!doctype html><html lang=en><head>{head}</head><body>{''.join(parts)}</body></html>\n"


def _plot(rows: Sequence[Row], maximise: str | None) -> Iterator[str]:
    timed = [row for row in rows if row.seconds_per_item is not None]
    if not timed:
        yield "<p>No time is predicted for this target.</p>"
        return
    most_bytes = max(*(row.memory.total_bytes for row in timed), 1) * 1.05
    seconds = [row.seconds_per_item or 0.0 for row in timed]
    low, high = min(seconds) * 0.98, max(seconds) * 1.02

    def x(size_bytes: float) -> float:
        return _MARGIN + (_WIDTH - 2 * _MARGIN) * size_bytes / most_bytes

    def y(value: float) -> float:
        return _HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * (value - low) / (high - low or 1.0)

    per = f" per {maximise}" if maximise is not None else ""
    yield f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role=img>'
    yield f'<text class=below x="{_WIDTH / 2}" y="{_HEIGHT - 15}">bytes of the plan</text>'
    yield f'<text x="5" y="20">{_verb(timed)} time{_text(per)}</text>'
    for part in range(6):
        size_bytes, value = most_bytes * part / 5, low + (high - low) * part / 5
        column, line = f"{x(size_bytes):.1f}", f"{y(value):.1f}"
        left, right, bottom = _MARGIN, _WIDTH - _MARGIN, _HEIGHT - _MARGIN
        yield f'<line class=axis x1="{left}" x2="{right}" y1="{line}" y2="{line}"/>'
        yield f'<text class=left x="{left - 5}" y="{line}">{value * 1e3:.3g} ms</text>'
        size = rounded(int(size_bytes))
        yield f'<text class=below x="{column}" y="{bottom + 20}">{size}</text>'
    limit_bytes = timed[0].memory.usable_bytes
    if limit_bytes <= most_bytes:
        at = f"{x(limit_bytes):.1f}"
        yield f'<line class=limit x1="{at}" x2="{at}" y1="30" y2="{_HEIGHT - _MARGIN}"/>'
        yield f'<text class="below label" x="{at}" y="25">limit: {rounded(limit_bytes)}</text>'
    best = sorted(front(timed), key=lambda row: row.memory.total_bytes)
    points = " ".join(
        f"{x(row.memory.total_bytes):.1f},{y(row.seconds_per_item or 0.0):.1f}" for row in best
    )
    yield f'<polyline class=front points="{points}"/>'
    for row in timed:
        kind = "chosen" if row.chosen else "dot" if row.memory.fits else "out"
        yield (
            f'<circle class={kind} cx="{x(row.memory.total_bytes):.1f}" '
            f'cy="{y(row.seconds_per_item or 0.0):.1f}" r="{7 if row.chosen else 5}">'
            f"<title>{_text(_about(row))}</title></circle>"
        )
    yield "</svg>"
    yield (
        "<p>One dot per compile: green is chosen, blue fits, red does not fit. No form needs less "
        f"memory and less time than those on the line. Times are {_verb(timed)}.</p>"
    )


def _verb(rows: Sequence[Row]) -> str:
    """What the times are; of TPUs, estimates."""
    return " or ".join(dict.fromkeys(p.verb for row in rows if (p := row.memory.predicted)))


def _about(row: Row) -> str:
    predicted = row.memory.predicted
    time = f", {predicted.verb} {predicted.text}" if predicted is not None else ""
    if row.probability_faster is not None:
        time += f", faster than the chosen one with {row.probability_faster:.0%} probability"
    return f"{row.candidate}: {row.memory.total_bytes:,} B{time}"


def _text(text: str) -> str:
    return escape(visible_line(text))
