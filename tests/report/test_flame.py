"""The flame view of the report: bytes at the peak by module, line and value."""

from itertools import pairwise

import pytest

from tests.conftest import GOLDEN_JAXLIB
from tests.shared.dumps import ROOT
from xlapipe.plans.peak import peak_of
from xlapipe.report.memory_map import flame_boxes, module_scope
from xlapipe.report.subjects import open_subject
from xlapipe.report.xla_subject import XlaSubject

GOLDENS = ROOT / "hlo_dumps"


@pytest.fixture(
    scope="module",
    params=[
        f"qwen3-train/h100_sxm-1x4-auto-tuned-jax{GOLDEN_JAXLIB}",
        f"qwen3-decode/h200-cublas-jax{GOLDEN_JAXLIB}",
    ],
)
def dump(request: pytest.FixtureRequest) -> XlaSubject:
    return open_subject(GOLDENS / request.param)


def test_widths_are_bytes_and_boxes_are_inside_their_parents(dump: XlaSubject) -> None:
    boxes = flame_boxes(dump)
    levels = [[box for box in boxes if box.level == level] for level in range(3)]
    assert all(levels)
    for parents, children in pairwise(levels):
        for child in children:
            (parent,) = [
                box
                for box in parents
                if box.left - 1e-9 <= child.left
                and child.left + child.width <= box.left + box.width + 1e-9
            ]
            assert child.width <= parent.width + 1e-9
    # What is too narrow is left out.
    assert 0.95 < sum(box.width for box in levels[0]) <= 1 + 1e-9


def test_arguments_are_named_and_the_largest_value_can_be_selected(dump: XlaSubject) -> None:
    names = {counted.value.name for counted in peak_of(dump.program).contents}
    boxes = flame_boxes(dump)
    assert {box.value for box in boxes} <= names
    arguments = [box for box in boxes if box.title.startswith("argument ")]
    assert arguments and all(box.level == 0 for box in arguments)


@pytest.mark.parametrize(
    ("op_name", "scope"),
    [
        ("jit(step)/transpose(jvp(layers_3))/attention/dot_general", "layers_*/attention"),
        ("jit(step)/jvp()/mul", ""),
        ("jit(step)/layers_0/norm/rsqrt", "layers_*/norm"),
        (None, ""),
    ],
)
def test_a_module_is_the_scopes_without_transformations(op_name: str | None, scope: str) -> None:
    assert module_scope(op_name) == scope
