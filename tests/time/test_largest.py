"""What threads do that select the largest elements of rows."""

import pytest

from tests.shared.small_hlo import plan_of_text
from xlapipe.devices.targets.device import device_of_target
from xlapipe.time.cost.step_cost import step_cost
from xlapipe.time.predict.calibration import shipped_calibration
from xlapipe.time.predict.predict import predict
from xlapipe.time.predict.work import KernelWork


def _work(rows: int, columns: int, count: int) -> KernelWork:
    text = f"""HloModule small, is_scheduled=true
ENTRY main {{
  p = f32[{rows},{columns}]{{1,0}} parameter(0)
  ROOT t = (f32[{rows},{count}]{{1,0}}, s32[{rows},{count}]{{1,0}}) custom-call(p), \
custom_call_target="__gpu$TopK"
}}
"""
    plan = plan_of_text(text)
    speeds, calibration = device_of_target("h200"), shipped_calibration("h200")
    assert speeds is not None and calibration is not None
    cost = step_cost(plan, speeds)
    assert cost is not None
    (kernel,) = predict(plan, cost, calibration).kernels
    return kernel.work


@pytest.mark.parametrize(("count", "kept"), [(3, 4), (5, 8), (10, 16), (16, 16)])
def test_results_are_padded_to_a_power_of_two(count: int, kept: int) -> None:
    assert _work(64, 8192, count).operations == _work(64, 8192, kept).operations
    assert _work(64, 8192, count).point == _work(64, 8192, kept).point


def test_a_thread_compares_all_elements_of_a_long_row_alone() -> None:
    short, long = _work(1, 1 << 19, 8), _work(1, 1 << 20, 8)
    assert long.operations / short.operations == pytest.approx(2, rel=0.1)


def test_more_rows_than_multiprocessors_wait() -> None:
    assert _work(100, 8192, 16).operations == _work(1, 8192, 16).operations
    assert _work(1000, 8192, 16).operations > 3 * _work(100, 8192, 16).operations
