"""What the author states of kernels and loops: recorded, and taken for floors and predictions."""

import jax
import pytest

from tests.folders import STEPS
from tests.steps import stated_steps
from tests.steps.stated_steps import ACCESSED_BYTES, TRIPS, WIDTH
from xlapipe.compile.lowering.kernel_codes import stated_costs
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.compile.pipeline import compile_dump
from xlapipe.dump.manifest import Manifest
from xlapipe.dump.opened import Opened
from xlapipe.errors import WorkloadError
from xlapipe.plans.kernel_code import StatedCost
from xlapipe.registry import find_workload
from xlapipe.report.time_figures import step_time
from xlapipe.report.time_lines import time_lines

pytestmark = pytest.mark.jax

ESTIMATE = StatedCost("pick", 4 * WIDTH, ACCESSED_BYTES, WIDTH)


@pytest.fixture(scope="module", params=[True, False])
def opened(request: pytest.FixtureRequest) -> Opened:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(STEPS)
        reference = find_workload(f"stated_steps:workload(stated={request.param})")
        (job,) = jobs_of([reference], CompileSettings(target="h200"))
        return Opened.of_dump(compile_dump(job, None).dump)


def test_floors_and_predictions_take_what_is_stated(opened: Opened) -> None:
    assert opened.dump is not None
    manifest = opened.dump.manifest
    assert Manifest.from_json(manifest.to_json(), where="manifest") == manifest
    stated = bool(manifest.stated_costs)
    assert manifest.stated_costs == ((ESTIMATE,) if stated else ())
    assert manifest.stated_trips == (TRIPS if stated else None)
    cost, prediction = opened.step_cost, opened.prediction
    assert cost is not None
    assert prediction is not None
    (kernel,) = [item for item in cost.kernels if item.kind == "pick"]
    assert kernel.stated == stated
    assert (kernel.code is None) == stated
    # Its code says the same: one row of the table.
    assert kernel.touched_bytes == ACCESSED_BYTES
    sine = next(item for item in prediction.kernels if item.name == "wrapped_sine")
    assert sine.launches == (TRIPS if stated else 1)
    text = "\n".join(time_lines(step_time(opened)))
    assert "read their operands whole" not in text
    assert (f"{TRIPS} are counted, as stated" in text) == stated


def test_the_workload_replaces_estimates_and_differing_ones_are_left_out() -> None:
    step = stated_steps.workload()
    jaxpr = jax.make_jaxpr(step.fn)(*step.args)
    assert stated_costs(jaxpr, {}) == (ESTIMATE,)
    assert stated_costs(jaxpr, {"pick": 9}) == (StatedCost("pick", None, 9),)
    twice = jax.make_jaxpr(
        lambda *args: (step.fn(*args), stated_steps.workload(stated=False).fn(*args))
    )(*step.args)
    assert stated_costs(twice, {}) == (ESTIMATE,)


@pytest.mark.parametrize(
    ("given", "problem"),
    [({"kernel_bytes": {"pick": -1}}, "kernel_bytes of 'pick' is -1"), ({"loop_trips": 0}, "is 0")],
)
def test_other_values_are_refused(given: dict[str, object], problem: str) -> None:
    with pytest.raises(WorkloadError, match=rf"{problem}.*positive integer.*fix:"):
        stated_steps.Workload(name="pick", fn=len, args=(), **given)  # type: ignore[arg-type]
