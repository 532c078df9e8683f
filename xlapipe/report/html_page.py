"""The HTML report: one file that contains its script, style and data, and loads nothing.

Text from dumps is data: Jinja2 escapes it in the markup, JSON for scripts contains no `<`, and the
page's content security policy allows only this module's script and style, by their SHA-256.
"""

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from xlapipe.dump.xla_files import StageText
from xlapipe.files.visible_text import visible_lines
from xlapipe.plans.donatable import donatable
from xlapipe.plans.donation import donations
from xlapipe.report import units
from xlapipe.report.difference import difference_page
from xlapipe.report.html_cells import bytes_cell, dense_code, table_html
from xlapipe.report.memory_map import map_data
from xlapipe.report.overview.overview import Overview
from xlapipe.report.pages import Page
from xlapipe.report.plan_figures import figures_of, known_copies
from xlapipe.report.plan_page import plan_page
from xlapipe.report.records import json_form
from xlapipe.report.target_text import short_label
from xlapipe.report.timeline import timeline_data
from xlapipe.report.xla_subject import XlaSubject

# After a slash, after the comma of an einsum, before a key of a pytree path, after the parts of a
# name.
_MAY_BREAK = re.compile(
    r"(?<=/)(?=.)|(?<=,)(?=[A-Za-z])|(?<=.)(?=\[['\"])|(?<=[a-z][._])(?!py:)(?=\w)"
)
# The sections of one dump, in order, with their titles in the navigation.
SECTIONS = {
    "map": "Map",
    "peak": "Peak",
    "donation": "Donation",
    "copies": "Copies",
    "gemms": "GEMMs",
    "collectives": "Collectives",
    "host": "Host",
    "memories": "Memories",
    "time": "Time",
}
# The sections that are more than lines and tables, each with a template in html/sections/.
_DRAWN = ("map", "peak", "time")
# Files that are joined into the page's one script, in this order.
SCRIPTS = (
    "units",
    "dom",
    "intervals",
    "buffers",
    "view",
    "painter",
    "coloring",
    "details",
    "map",
    "timeline",
    "tables",
    "stages",
    "main",
)


def render_page(dumps: Sequence[XlaSubject], *, map_only: bool = False) -> str:
    """The whole page; two dumps are compared."""
    style, script = read_style(), read_script()
    entries = [_template_data(dump, map_only=map_only) for dump in dumps]
    shown = {*_DRAWN, *(name for entry in entries for name in entry["sections"])}
    if map_only:
        shown = {"map"}
    page = (
        _environment()
        .get_template("page.html.j2")
        .render(
            style=Markup(style),
            script=Markup(script),
            policy=content_security_policy(style, script),
            sections={name: title for name, title in SECTIONS.items() if name in shown},
            drawn=_DRAWN,
            entries=entries,
            difference=difference_page(*dumps) if len(dumps) == 2 else None,
        )
    )
    return visible_lines(page)


def render_tables_page(pages: Sequence[Page]) -> str:
    """A document of pages of tables, which needs no script."""
    style = read_style()
    policy = content_security_policy(style, "")
    template = _environment().get_template("tables.html.j2")
    return visible_lines(template.render(style=Markup(style), policy=policy, pages=pages))


@cache
def _environment() -> Environment:
    """The templates, each of which is compiled once in a process."""
    environment = Environment(
        loader=PackageLoader("xlapipe.report", "html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(json_script=json_script, breakable=breakable)
    environment.globals.update(
        bytes=bytes_cell,
        dense=dense_code,
        table_html=table_html,
        exact=units.exact,
        rounded=units.rounded,
        with_error=units.with_error,
        share=units.share,
    )
    return environment


def _template_data(dump: XlaSubject, *, map_only: bool) -> dict[str, Any]:
    figures, overview = figures_of(dump), Overview(dump)
    memory, copies = overview.memory, known_copies(dump.plan)
    not_aliased = (row.size_bytes for row in donations(dump.program) if row.output is None)
    return {
        "dump": dump,
        "figures": figures,
        "sections": {section.key: section for section in plan_page(dump).sections},
        "copied_bytes": None if copies is None else sum(copy.copied_bytes for copy in copies),
        "not_aliased_bytes": sum(not_aliased),
        "not_donated_bytes": sum(row.size_bytes for row in donatable(dump.program)),
        "parts": _parts(overview),
        "total_bytes": overview.total_bytes,
        "label": short_label(dump.program.autotuning),
        **_headline_time(dump),
        "timeline": None if map_only else timeline_data(dump),
        "memory": memory,
        "room_bytes": memory.usable_bytes - overview.total_bytes if memory is not None else 0,
        "error_bytes": overview.error_bytes,
        "map_data": map_data(dump),
        "stages": [_packed(stage) for stage in (() if map_only else dump.program.stage_texts)],
    }


def _parts(overview: Overview) -> list[dict[str, Any]]:
    """The total by purpose at the peak, as `xlapipe show` has it, with the names of colours."""
    sizes = [(str(row.purpose), row.counted_bytes) for row in overview.by_purpose]
    parts = [
        {"name": name, "color": f"purpose-{name.replace(' ', '-')}", "size_bytes": size_bytes}
        for name, size_bytes in sizes
        if size_bytes
    ]
    idle = {"name": "not in use", "color": "unknown", "size_bytes": overview.idle_bytes}
    return [*parts, idle] if overview.idle_bytes else parts


def _headline_time(dump: XlaSubject) -> dict[str, str]:
    """The predicted time and its interval; empty without a prediction."""
    prediction = dump.prediction
    if prediction is None or prediction.step_seconds is None:
        return {"seconds": "", "interval": "", "verb": ""}
    low, high = prediction.low_seconds, prediction.high_seconds
    interval = (
        f"{prediction.interval_word}: {units.seconds_text(low)} to {units.seconds_text(high)}"
        if low is not None and high is not None
        else "its parts"
    )
    if prediction.network:
        interval += f"; network {prediction.network_name}"
    seconds = units.seconds_text(prediction.step_seconds)
    return {"seconds": seconds, "interval": interval, "verb": prediction.verb}


def json_script(data: Any) -> Markup:
    """JSON for a script element, with `<` escaped, so that no text in it can end the element."""
    text = json.dumps(data, separators=(",", ":"), default=json_form)
    return Markup(text.replace("<", "\\u003c"))


def breakable(text: object) -> Markup:
    """The text with optional line breaks for narrow columns."""
    return Markup("<wbr>").join(escape(part) for part in _MAY_BREAK.split(str(text)))


def content_security_policy(style: str, script: str) -> str:
    """Allows this page's style and script only: no network, no other script."""
    return "; ".join(
        (
            "default-src 'none'",
            f"style-src 'sha256-{_digest(style)}'",
            f"script-src 'sha256-{_digest(script)}'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


@cache
def read_style() -> str:
    return _read("page.css")


@cache
def read_script() -> str:
    return "\n".join(_read(f"{name}.js") for name in SCRIPTS)


def _read(name: str) -> str:
    loader = PackageLoader("xlapipe.report", "html")
    text, _, _ = loader.get_source(Environment(autoescape=True), name)
    assert "</script" not in text
    assert "</style" not in text
    return text


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _packed(stage: StageText) -> dict[str, str]:
    """A stage's text as gzip in base64: a tenth of the size for HLO; unpacked when it is shown."""
    packed = gzip.compress(stage.text.encode(errors="replace"), compresslevel=6, mtime=0)
    return {"name": stage.title, "gzip": base64.b64encode(packed).decode()}
