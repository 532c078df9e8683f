"""What libraries do that solve, transform and permute, and sorts that are in no fusion."""

import pytest

from tests.shared.small_hlo import plan_of_text
from xlapipe.devices.targets.device import device_of_target
from xlapipe.time.cost.step_cost import step_cost
from xlapipe.time.predict.calibration import shipped_calibration
from xlapipe.time.predict.predict import PredictedKernel, predict


def _kernel(text: str) -> PredictedKernel:
    plan = plan_of_text(f"HloModule small, is_scheduled=true\n{text}")
    speeds, calibration = device_of_target("h200"), shipped_calibration("h200")
    assert speeds is not None and calibration is not None
    cost = step_cost(plan, speeds)
    assert cost is not None
    (kernel,) = predict(plan, cost, calibration).kernels
    return kernel


def _solve(rows: int, columns: int, batch: int = 1) -> PredictedKernel:
    many = f"{batch}," if batch > 1 else ""
    order = "{2,1,0}" if batch > 1 else "{1,0}"
    return _kernel(f"""ENTRY main {{
  a = f32[{many}{rows},{rows}]{order} parameter(0)
  b = f32[{many}{rows},{columns}]{order} parameter(1)
  ROOT x = (f32[{many}{rows},{columns}]{order}, s8[0]{{0}}) custom-call(a, b), \
custom_call_target="__cublas$triangularSolve"
}}
""")


def test_rows_of_a_triangle_wait_for_each_other() -> None:
    assert _solve(2048, 32).seconds == pytest.approx(2 * _solve(1024, 32).seconds, rel=0.2)
    assert _solve(512, 64).work.operations > 3 * _solve(512, 1).work.operations


def test_a_triangle_in_a_tuple_is_the_element_that_is_read() -> None:
    of_tuple = _kernel("""ENTRY main {
  all = (s32[], f32[640,640]{1,0}) parameter(0)
  a = f32[640,640]{1,0} get-tuple-element(all), index=1
  b = f32[640,48]{1,0} parameter(1)
  ROOT x = (f32[640,48]{1,0}, s8[0]{0}) custom-call(a, b), \
custom_call_target="__cublas$triangularSolve"
}
""")
    assert of_tuple.work.point == _solve(640, 48).work.point


def test_a_sort_outside_of_a_fusion_is_compared_with_those_inside() -> None:
    kernel = _kernel("""less {
  p = s32[] parameter(0)
  q = s32[] parameter(1)
  ROOT c = pred[] compare(p, q), direction=LT
}
ENTRY main {
  x = s32[24,49152]{1,0} parameter(0)
  ROOT s = s32[24,49152]{1,0} sort(x), dimensions={1}, to_apply=less
}
""")
    assert kernel.work.kind == "custom sort"
    assert kernel.launch.basis == "calibrated"
    # An H100 took 112 µs for as many of 32 bits.
    assert kernel.seconds == pytest.approx(112e-6, rel=0.4)


@pytest.mark.parametrize(
    ("length", "roughness"), [(1024, 0), (1000, 1), (960, 1), (1001, 2), (1016, 2), (1018, 3.5)]
)
def test_transforms_are_compared_by_the_primes_of_their_lengths(
    length: int, roughness: float
) -> None:
    kernel = _kernel(f"""ENTRY main {{
  x = f32[64,{length}]{{1,0}} parameter(0)
  ROOT f = c64[64,{length // 2 + 1}]{{1,0}} fft(x), fft_type=RFFT, fft_length={{{length}}}
}}
""")
    assert kernel.work.kind == "fft f32 to c64 of rank 1"
    assert kernel.work.point[-1] == 2 * roughness


def test_pivots_of_a_matrix_are_applied_one_after_another() -> None:
    def permutation(dims: str) -> PredictedKernel:
        return _kernel(f"""ENTRY main {{
  p = s32[{dims}] parameter(0)
  ROOT q = s32[{dims}] custom-call(p), custom_call_target="cu_lu_pivots_to_permutation"
}}
""")

    one, longer, many = permutation("1,200"), permutation("1,800"), permutation("27,200")
    assert longer.work.operations == pytest.approx(4 * one.work.operations)
    assert many.work.operations == pytest.approx(3 * one.work.operations)
    assert longer.seconds > 2 * one.seconds
