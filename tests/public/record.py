"""Writes docs/lab/public_projects.md: `python -m tests.public.record`."""

import tempfile
from pathlib import Path

from tests.public.compiled_steps import (
    KINDS,
    REQUIREMENTS,
    ROOT,
    CompiledSteps,
    compile_steps,
    steps,
)

PAGE = ROOT / "docs" / "lab" / "public_projects.md"
_HEADING = """# Steps of public projects

{count} steps of public projects, compiled by xlapipe and, in a process without xlapipe, by jax
alone, for an H200 that is not attached. Bytes of device memory ({kinds}) are equal for {equal}.
`make test-all` compares them (`tests/public`, versions in `requirements/public-projects.txt`), and
`.venv/bin/python -m tests.public.record` writes this page.
"""
# What the first compiles of these projects ran into. Its names are rows of tests/zoo, which a test
# there compares.
FINDINGS = Path(__file__).with_name("findings.md").read_text(encoding="utf-8")


def page(compiled: CompiledSteps) -> str:
    """The page as Markdown."""
    totals = {step: (compiled.totals(step), compiled.alone[step]) for step in steps()}
    other = {step: both for step, both in totals.items() if both[0] != both[1]}
    equal = len(totals) - len(other)
    lines = [_HEADING.format(count=len(totals), kinds=", ".join(KINDS), equal=equal)]
    for step, (ours, alone) in other.items():
        lines.append(f"- `{step}`: {dict(ours)}, by jax alone {dict(alone)}")
    pins = [line for line in REQUIREMENTS.read_text(encoding="utf-8").split() if "==" in line]
    return "\n".join([*lines, f"Installed beside jax: {', '.join(pins)}.", "", FINDINGS])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        PAGE.write_text(page(compile_steps(Path(scratch))), encoding="utf-8")
