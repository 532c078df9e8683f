"""The report on dumps of torch Inductor as one HTML file, which needs no script and no network."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from xlapipe.files.visible_text import visible_lines
from xlapipe.inductor.reader import InductorDump
from xlapipe.report.html_page import content_security_policy, read_style
from xlapipe.report.inductor_lines import (
    detail_tables,
    heading,
    plan_lines,
    sequence_line,
    total_table,
)


def render_inductor_page(dumps: Sequence[InductorDump]) -> str:
    """The whole page."""
    return render_tables_page(
        [
            {
                "name": str(dump.path),
                "compilers": "torch Inductor",
                "sequence": sequence_line(dump),
                "graphs": [
                    {
                        "heading": heading(plan),
                        "lines": list(plan_lines(plan)),
                        "tables": [total_table(plan), *detail_tables(plan)],
                    }
                    for plan in dump.plans
                ],
            }
            for dump in dumps
        ]
    )


def render_tables_page(dumps: Sequence[Mapping[str, Any]]) -> str:
    """A page of sections with lines and tables.

    Args:
      dumps: as the template `inductor.html.j2` takes them.
    """
    style = read_style()
    page = (
        _environment()
        .get_template("inductor.html.j2")
        .render(
            style=Markup(style),
            policy=content_security_policy(style, ""),
            dumps=dumps,
        )
    )
    return visible_lines(page)


@cache
def _environment() -> Environment:
    """The templates, each of which is compiled once in a process."""
    return Environment(
        loader=PackageLoader("xlapipe.report", "html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
