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
alone, for an H200 that is not attached. Bytes of device memory; a row has both figures where they
differ.
`make test-all` compares them (`tests/public`, versions in `requirements/public-projects.txt`), and
`.venv/bin/python -m tests.public.record` writes this page.

| step | {kinds} |
|---|{columns}|
"""
# What the first compiles of these projects ran into. Its names are rows of tests/zoo, which a test
# there compares.
FINDINGS = Path(__file__).with_name("findings.md").read_text(encoding="utf-8")


def page(compiled: CompiledSteps) -> str:
    """The page as Markdown."""
    lines = [
        _HEADING.format(
            count=len(steps()), kinds=" | ".join(KINDS), columns="|".join("--:" for _ in KINDS)
        ).rstrip("\n")
    ]
    for step in steps():
        ours, alone = compiled.totals(step), compiled.alone[step]
        cells = (
            f"{ours[kind]:,}"
            if ours[kind] == alone[kind]
            else f"{ours[kind]:,}, jax {alone[kind]:,}"
            for kind in KINDS
        )
        lines.append(f"| `{step}` | {' | '.join(cells)} |")
    pins = [line for line in REQUIREMENTS.read_text(encoding="utf-8").split() if "==" in line]
    return "\n".join([*lines, "", f"Installed beside jax: {', '.join(pins)}.", "", FINDINGS])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        PAGE.write_text(page(compile_steps(Path(scratch))), encoding="utf-8")
