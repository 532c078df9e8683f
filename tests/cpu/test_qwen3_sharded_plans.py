"""Plans of the sharded steps; the training step's own is a golden (test_workloads.py)."""

from dataclasses import replace
from pathlib import Path

from xlapipe.compiling.gemm_policy import GemmPolicy
from xlapipe.compiling.job import Job
from xlapipe.compiling.pipeline import make_dump
from xlapipe.dumps.dump import Dump
from xlapipe.expect import Finding, check_all
from xlapipe.registry import WorkloadReference
from xlapipe.targets.catalogue import target_named

HERE = Path(__file__).resolve().parent


def dumped(name: str, out: Path) -> Dump:
    # cuBLAS's calls need no kernels to be generated.
    job = Job(
        reference=WorkloadReference(name, f"broken_sharded:{name}", folder=HERE),
        target=target_named("h200"),
        policy=GemmPolicy.CUBLAS,
    )
    return make_dump(
        replace(job, options={"xla_backend_optimization_level": 0}), out, folder=HERE
    ).dump


def failing(dump: Dump) -> list[Finding]:
    return [each for each in check_all(dump.expectations, dump.program) if not each.holds]


def test_stacks_that_are_gathered_at_once_are_found(tmp_path: Path) -> None:
    findings = failing(dumped("gathered_at_once", tmp_path))
    shapes = [each for each in findings if each.expectation.startswith("NoValueOfShape")]
    assert shapes
    assert any("gathered a layer at a time" in each.because for each in shapes)
    source = shapes[0].violations[0].source
    assert source is not None


def test_the_decode_step_is_as_expected(tmp_path: Path) -> None:
    dump = dumped("served", tmp_path)
    assert len(dump.expectations) == 6
    assert failing(dump) == []
    assert dump.manifest.mesh == {"data": 2, "tensor": 4}
