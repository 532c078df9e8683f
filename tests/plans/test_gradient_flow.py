"""Which outputs depend on a gradient."""

import pytest

from tests.shared.small_hlo import plan_of_text
from xlapipe.plans.dataflow import Value
from xlapipe.plans.gradient_flow import gradient_flow

ARRAY = "f32[8]{0}"
STEP = f"""HloModule m, is_scheduled=true

%both (w: f32[8], x: f32[8]) -> (f32[8], f32[8]) {{
  %w = {ARRAY} parameter(0)
  %x = {ARRAY} parameter(1)
  %g = {ARRAY} multiply(%w, %x), metadata={{op_name="NAMES/mul"}}
  %new = {ARRAY} subtract(%w, %g)
  %mean = {ARRAY} add(%x, %x)
  ROOT %made = ({ARRAY}, {ARRAY}) tuple(%new, %mean)
}}

ENTRY %main (a: f32[8], b: f32[8]) -> (f32[8], f32[8]) {{
  %a = {ARRAY} parameter(0)
  %b = {ARRAY} parameter(1)
  %f = ({ARRAY}, {ARRAY}) fusion(%a, %b), kind=kLoop, calls=%both
  %weights = {ARRAY} get-tuple-element(%f), index=0
  %statistics = {ARRAY} get-tuple-element(%f), index=1
  ROOT %outputs = ({ARRAY}, {ARRAY}) tuple(%weights, %statistics)
}}
"""


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
