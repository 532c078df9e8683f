"""Under every jaxlib, XLA compiles a renumbered module to the plan of the program that jax passes.

The lock's results are those of another program, so XLA uses none of them. The plan is then that
without a lock, if the module has the same arguments, layouts, donations and shardings.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import GOLDEN_JAXLIB, ROOT
from xlapipe.compile.job import Job
from xlapipe.compile.pipeline import make_dump
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.dump.autotune_lock import LOCK, read_lock
from xlapipe.registry import find_workload

pytestmark = pytest.mark.jax

OTHER = f"float8-linear-forward/h100_sxm-auto-tuned-jax{GOLDEN_JAXLIB}"


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "workload", ["float8-linear-step", "fsdp-mlp", "qwen3-step-donated", "spectral-diffusion"]
)
def test_plan_is_that_without_a_lock(
    workload: str, goldens: Path, tmp_path: Path, jaxlib_version: str
) -> None:
    target = target_named("h200")
    lock = replace(
        read_lock(goldens / OTHER / LOCK),
        workload=workload,
        target_config=target.config_text,
        versions={"jaxlib": jaxlib_version},
    )
    jobs = [
        Job(reference=find_workload(workload), target=target, lock=given) for given in (lock, None)
    ]
    forms = [
        make_dump(job, tmp_path / str(number), folder=ROOT).normal.canonical
        for number, job in enumerate(jobs)
    ]
    heads, plans = zip(*(form.plan.split("[program]") for form in forms), strict=True)
    assert ["partly tuned" in head for head in heads] == [True, False]
    assert plans[0] == plans[1]
    assert forms[0].hlo == forms[1].hlo
