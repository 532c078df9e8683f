"""The thunk sequence: forms that XLA prints, and what an unknown form costs."""

from pathlib import Path

import pytest

from xlapipe.dump.readers.source_text import SourceText
from xlapipe.dump.readers.thunk_text import parse_thunks
from xlapipe.errors import DumpError
from xlapipe.plans import Thunk

# Printed by jaxlib 0.11.2 for jnp.linalg.solve: a child is on the line of its parent.
SEQUENTIAL = """\
001: kCustomKernel [source       | next=004 (1)] wrapped_transpose grid: [4, 1, 1]
004: kSequential   [prev=001 (1) | sink        ]   002: kCopy [source | next=003 (1)] kCopy
  003: kTriangularSolve [prev=002 (1) | sink        ] (no description)
"""

# Printed by jaxlib 0.11.2 for two conditionals: one branch of each computes nothing.
TEXTS = Path(__file__).with_name("texts")
EMPTY_BRANCHES = (TEXTS / "empty_branches_thunks.txt").read_text(encoding="utf-8")


def parse(text: str) -> tuple[Thunk, ...]:
    return parse_thunks(SourceText("thunks", text))


def test_a_child_on_the_line_of_its_parent() -> None:
    assert [(thunk.kind, thunk.depth) for thunk in parse(SEQUENTIAL)] == [
        ("kCustomKernel", 0),
        ("kSequential", 0),
        ("kCopy", 1),
        ("kTriangularSolve", 1),
    ]


@pytest.mark.parametrize("text", ["No thunks.", "No thunks.\n"])
def test_a_program_without_thunks(text: str) -> None:
    assert parse(text) == ()


def test_branches_without_thunks() -> None:
    assert [(thunk.kind, thunk.depth) for thunk in parse(EMPTY_BRANCHES)] == [
        ("kConditional", 0),
        ("kCopy", 1),
        ("kCopy", 1),
        ("kConditional", 0),
        ("kConditional", 1),
        ("kCustomKernel", 2),
        ("kCopy", 1),
        ("kCopy", 0),
    ]


def test_a_missing_child_is_found() -> None:
    lines = SEQUENTIAL.splitlines(keepends=True)
    with pytest.raises(DumpError, match="expected a thunk 003"):
        parse("".join(lines[:-1]))
