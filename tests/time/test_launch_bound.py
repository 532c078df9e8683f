"""Steps whose time is that of launches, not of bytes."""

from tests.shared.programs import program_of
from tests.shared.small_hlo import plan_of_text
from xlapipe.devices.targets.device import device_of_target
from xlapipe.plans.program import Program
from xlapipe.time.predict import Prediction
from xlapipe.time.study import Study

LOOP = """HloModule jit_walk, is_scheduled=true

body {
  carried = (s32[], f32[SIZE]{0}) parameter(0)
  count = s32[] get-tuple-element(carried), index=0
  x = f32[SIZE]{0} get-tuple-element(carried), index=1
  one = s32[] constant(1)
  next = s32[] add(count, one)
  y = f32[SIZE]{0} multiply(x, x)
  ROOT out = (s32[], f32[SIZE]{0}) tuple(next, y)
}

condition {
  carried.1 = (s32[], f32[SIZE]{0}) parameter(0)
  count.1 = s32[] get-tuple-element(carried.1), index=0
  limit = s32[] constant(1000000)
  ROOT less = pred[] compare(count.1, limit), direction=LT
}

ENTRY main {
  start = (s32[], f32[SIZE]{0}) parameter(0)
  ROOT loop = (s32[], f32[SIZE]{0}) while(start), condition=condition, body=body, TRIPS
}
"""

TRIPS = 'backend_config={"known_trip_count":{"n":"1000000"}}'


def program(size: int) -> Program:
    return program_of(
        plan_of_text(LOOP.replace("SIZE", str(size)).replace("TRIPS", TRIPS)), target="h200"
    )


def predicted(size: int) -> Prediction:
    prediction = Study(program(size).plan, device_of_target("h200")).prediction
    assert prediction is not None
    return prediction


def test_a_loop_of_small_kernels_is_bound_by_its_launches() -> None:
    small = predicted(8)
    assert small.launch_bound.startswith("bound by launches: 1,000,000 trips × 2 launches (fix: ")
    assert "unroll" in small.launch_bound
    assert all(kernel.is_launch_bound for kernel in small.kernels)
    assert predicted(1 << 24).launch_bound == ""
