"""The HTML report: one file with its script, style and data inside, that asks no network.

Text from dumps is data. Jinja2 escapes it in the markup, JSON has no `<` left, and the page's own
policy lets nothing run but the script and style written here, by their SHA-256.
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

from xlapipe.dumps.opened import StageText
from xlapipe.report import units
from xlapipe.report.comparison import Comparison
from xlapipe.report.data import answers, subject_data
from xlapipe.report.picture import picture
from xlapipe.report.subject import Subject

# Behind a slash, behind the comma of an einsum, before a key of a pytree path.
_MAY_BREAK = re.compile(r"(?<=/)(?=.)|(?<=,)(?=[A-Za-z])|(?<=.)(?=\[['\"])")
# In the order in which they stand in the page's one script.
SCRIPTS = (
    "units",
    "dom",
    "intervals",
    "buffers",
    "view",
    "painter",
    "details",
    "map",
    "tables",
    "stages",
    "main",
)


def render_page(subjects: Sequence[Subject], comparison: Comparison | None = None) -> str:
    """The whole page.

    Args:
      comparison: of two subjects, shown first.

    Raises:
      DumpError: a stage's text that is damaged.
    """
    environment = Environment(
        loader=PackageLoader("xlapipe.report", "html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(json_script=json_script, breakable=breakable)
    environment.globals.update(
        exact=units.exact, rounded=units.rounded, signed=units.signed, share=units.share
    )
    style, script = read_style(), read_script()
    return environment.get_template("page.html.j2").render(
        style=Markup(style),
        script=Markup(script),
        policy=content_security_policy(style, script),
        subjects=[
            {
                "subject": subject,
                "data": (data := subject_data(subject)),
                "answers": answers(data),
                "picture": picture(subject),
                "stages": [_packed(stage) for stage in subject.opened.stage_texts],
            }
            for subject in subjects
        ],
        comparison=comparison,
    )


def json_script(data: Any) -> Markup:
    """JSON for a script element: with `<` escaped, nothing in it can end the element."""
    text = json.dumps(data, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


def breakable(text: str) -> Markup:
    """The text, with places where a narrow column may break it."""
    return Markup("<wbr>").join(escape(part) for part in _MAY_BREAK.split(text))


def content_security_policy(style: str, script: str) -> str:
    """Lets this page's style and script work, and nothing else: no network, no other script."""
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
    """The page's style sheet."""
    return _read("page.css")


@cache
def read_script() -> str:
    """The page's one script."""
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
    """A stage's text, gzip in base64: HLO shrinks to a tenth, and is unpacked when it is shown."""
    packed = gzip.compress(stage.text.encode(errors="replace"), compresslevel=6, mtime=0)
    return {"name": stage.title, "gzip": base64.b64encode(packed).decode()}
