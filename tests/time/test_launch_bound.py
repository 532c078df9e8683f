"""Steps whose time is that of launches, not of bytes."""

from pathlib import Path

from tests.shared.programs import program_of
from tests.shared.small_hlo import plan_of_text
from xlapipe.devices.targets.device import device_of_target
from xlapipe.plans.program import Program
from xlapipe.time.predict import Prediction
from xlapipe.time.study import Study

TEXTS = Path(__file__).with_name("texts")
LOOP = (TEXTS / "long_loop_hlo.txt").read_text(encoding="utf-8")

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
