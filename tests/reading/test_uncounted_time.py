"""Steps of which a prediction counts a part: it is a lower bound, and says so."""

from dataclasses import replace

import pytest

from tests.reading.small_hlo import plan_of_text
from xlapipe.cost import step_cost
from xlapipe.expect import StepTimeAtMost
from xlapipe.plans.plan import Plan
from xlapipe.plans.program import Program
from xlapipe.predict.calibration import shipped_calibration
from xlapipe.predict.predict import Prediction, predict
from xlapipe.targets.device import device_of_target

LOOP = """HloModule small, is_scheduled=true
condition {
  p = (s32[], f32[4096]{0}) parameter(0)
  n = s32[] get-tuple-element(p), index=0
  m = s32[] constant(7)
  ROOT less = pred[] compare(n, m), direction=LT
}
negated {
  x = f32[4096]{0} parameter(0)
  ROOT y = f32[4096]{0} negate(x)
}
body {
  p = (s32[], f32[4096]{0}) parameter(0)
  n = s32[] get-tuple-element(p), index=0
  x = f32[4096]{0} get-tuple-element(p), index=1
  y = f32[4096]{0} fusion(x), kind=kLoop, calls=negated
  ROOT t = (s32[], f32[4096]{0}) tuple(n, y)
}
ENTRY main {
  n = s32[] parameter(0)
  x = f32[4096]{0} parameter(1)
  t = (s32[], f32[4096]{0}) tuple(n, x)
  ROOT w = (s32[], f32[4096]{0}) while(t), condition=condition, body=body
}
"""
CALL = """HloModule small, is_scheduled=true
ENTRY main {
  x = f32[4096]{0} parameter(0)
  ROOT y = f32[4096]{0} custom-call(x), custom_call_target="cusparse_csr_matvec_ffi"
}
"""


def predicted(plan: Plan, trips: int | None = None) -> Prediction:
    calibration, cost = shipped_calibration("h200"), step_cost(plan, device_of_target("h200"))
    assert calibration is not None
    assert cost is not None
    return predict(plan, cost, calibration, unknown_trips=trips)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (LOOP, "a loop whose number of trips is unknown: one is counted"),
        (
            CALL,
            "a library is called once, in ways that were not timed (cusparse_csr_matvec_ffi f32)",
        ),
    ],
)
def test_what_is_not_counted_is_said_and_no_limit_holds(text: str, why: str) -> None:
    plan = plan_of_text(text)
    (uncounted,) = predicted(plan).uncounted
    assert uncounted.startswith(why)
    finding = StepTimeAtMost(1.0).check(Program(plan, "auto", (), (), target="h200"))
    (violation,) = finding.violations
    assert violation.found.startswith("at least ")
    assert why in violation.found
    assert "loop_trips" in violation.advice


def test_stated_trips_are_counted() -> None:
    plan = replace(plan_of_text(LOOP), stated_trips=50)
    once, stated = predicted(plan_of_text(LOOP)), predicted(plan)
    assert not stated.uncounted
    assert stated.kernel_seconds == pytest.approx(50 * once.kernel_seconds)
    # An option of the command goes before what the workload states.
    assert predicted(plan, 10).kernel_seconds == pytest.approx(10 * once.kernel_seconds)
    program = Program(plan, "auto", (), (), target="h200")
    assert StepTimeAtMost(1.0).check(program).holds
