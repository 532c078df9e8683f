"""Untuned plans for GPUs that nobody here has: their times are those of a tuner's products."""

from dataclasses import replace
from pathlib import Path

import pytest

from xlapipe.compile.child_process import compile_workload
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.devices.targets.device import device_of_target
from xlapipe.dump.readers import read_path
from xlapipe.plans.plan import Plan
from xlapipe.time.predict.prediction import Prediction
from xlapipe.time.study import Study

pytestmark = pytest.mark.jax

PROGRAM = """
import jax
from xlapipe import Workload

def product(dtype="bfloat16", fused=False):
    a, b = jax.ShapeDtypeStruct((8192, 4096), dtype), jax.ShapeDtypeStruct((4096, 8192), dtype)
    fn = (lambda a, b: jax.nn.gelu(a @ b)) if fused else (lambda a, b: a @ b)
    return Workload(name="product", fn=fn, args=(a, b))
"""


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "product.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)


def plan_for(target: str, workload: str = "product:product") -> Plan:
    (job,) = jobs_of([workload], CompileSettings(target=target))
    with compile_workload(replace(job, plan_only=True)) as (started, record):
        return record.in_plan(read_path(started.dump_folder))


def predicted(plan: Plan, target: str) -> Prediction:
    prediction = Study(plan, device_of_target(target)).prediction
    assert prediction is not None
    return prediction


@pytest.mark.parametrize(
    ("target", "measured_us"), [("b200", 330.6), ("a100_sxm_80", 2090.2), ("gb200", 306.1)]
)
def test_a_product_takes_what_a_tuned_one_takes(target: str, measured_us: float) -> None:
    """Measured by NVIDIA: ai-dynamo/aiconfigurator, commit 095f58a, Apache-2.0."""
    untuned = predicted(plan_for(target), target)
    assert untuned.span_seconds is not None
    # The GB200 took up to 24 % longer for the terms next to these.
    assert untuned.span_seconds * 1e6 == pytest.approx(measured_us, rel=0.2)
    assert any("XLA's default tiles" in text for text in untuned.assumptions)
    # The tuned plan of an H200 has the same basis on that GPU.
    tuned = predicted(plan_for("h200"), target)
    assert untuned.span_seconds == pytest.approx(tuned.span_seconds, rel=0.1)


def test_what_is_fused_with_a_product_takes_longer() -> None:
    alone = predicted(plan_for("b200"), "b200").kernel_seconds
    fused = predicted(plan_for("b200", "product:product(fused=True)"), "b200").kernel_seconds
    assert 1.05 * alone < fused < 2.5 * alone
