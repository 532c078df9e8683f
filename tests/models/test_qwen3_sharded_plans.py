"""Plans of sharded steps; that of the unbroken training step is a golden (test_workloads.py)."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.folders import STEPS
from xlapipe.compile.gemm_policy import GemmPolicy
from xlapipe.compile.job import Job
from xlapipe.compile.pipeline import make_dump
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.dump.dump import Dump
from xlapipe.expect import Finding, check_all
from xlapipe.registry import WorkloadReference

pytestmark = [pytest.mark.jax, pytest.mark.exhaustive]


def dumped(name: str, out: Path) -> Dump:
    # With the cuBLAS policy, XLA generates no kernels for gemms.
    job = Job(
        reference=WorkloadReference(name, f"broken_sharded:{name}", folder=STEPS),
        target=target_named("h200"),
        policy=GemmPolicy.CUBLAS,
    )
    return make_dump(
        replace(job, options={"xla_backend_optimization_level": 0}), out, folder=STEPS
    ).dump


def failing(dump: Dump) -> list[Finding]:
    findings = check_all(dump.expectations, dump)
    return [finding for finding in findings if not finding.holds]


def test_weights_that_are_gathered_for_all_layers_at_once_break_expectations(
    tmp_path: Path,
) -> None:
    findings = failing(dumped("gathered_at_once", tmp_path))
    shapes = [finding for finding in findings if finding.expectation.startswith("NoValueOfShape")]
    assert shapes
    assert any("gathered a layer at a time" in finding.because for finding in shapes)
    source = shapes[0].violations[0].source
    assert source is not None
