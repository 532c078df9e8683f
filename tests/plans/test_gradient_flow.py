"""Which outputs depend on a gradient."""

from pathlib import Path

import pytest

from tests.shared.small_hlo import plan_of_text
from xlapipe.plans.dataflow import Value
from xlapipe.plans.purposes import gradient_flow

TEXTS = Path(__file__).with_name("texts")
STEP = (TEXTS / "gradients_hlo.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("names", "weights"),
    [
        ("jit(step)/transpose(jvp(loss))", True),
        ("jit(step)/jvp(loss)", False),
        ("jit(step)/transpose(jvp(loss))/rematted_computation", False),
    ],
)
def test_each_output_of_a_fusion_depends_on_a_gradient_or_not(names: str, weights: bool) -> None:
    plan = plan_of_text(STEP.replace("NAMES", names))
    entry = plan.entry
    assert entry is not None
    root = Value(entry, entry.by_name[entry.root])
    flow = gradient_flow(plan)
    assert [flow.reaches(root._replace(path=(index,))) for index in (0, 1)] == [weights, False]
