"""Programs unlike the models, and what changes no dump.

One program is sharded over two GPUs, one has a Pallas kernel. Other processes, folders and hash
seeds, and a lowering that jobs share change nothing.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.folders import STEPS
from xlapipe.cli import main
from xlapipe.compile.gemm_policy import GemmPolicy
from xlapipe.compile.job import Job
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.compile.pipeline import CompiledDump, make_dump, make_dumps
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.dump.dump import open_dump, read_file
from xlapipe.dump.normal_form.plan import differences
from xlapipe.registry import WorkloadReference

REFERENCE = WorkloadReference("decode", "models.qwen3.workloads:qwen3_decode", folder=ROOT)
pytestmark = pytest.mark.jax


@pytest.fixture
def dump(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """Compiles a program of broken.py."""

    def compile_one(name: str) -> Any:
        monkeypatch.chdir(STEPS)
        assert main(["dump", f"broken:{name}", "--out", str(tmp_path), "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)["dumps"]
        return open_dump(Path(row["path"]))

    return compile_one


def test_two_devices(dump: Any) -> None:
    sharded = dump("sharded")
    # Half of bf16[64, 1024] on each device, and an all-reduce of the sum.
    assert sharded.plan.totals.parameter_bytes == 64 * 1024 * 2 // 2
    assert [leaf.size_bytes for leaf in sharded.manifest.arguments] == [64 * 1024 * 2 // 2]
    assert [collective.kind for collective in sharded.plan.collectives or ()] == ["all-reduce"]
    assert sharded.manifest.mesh == {"d": 2}


def test_a_pallas_kernel(dump: Any) -> None:
    pallas = dump("pallas")
    assert pallas.plan.totals.total_allocation_bytes == 3 * 512 * 128 * 4
    calls = [i for i in pallas.plan.instructions.values() if i.custom_call_target]
    # By default jax compiles the kernel with Mosaic GPU in 0.10, and with Triton from 0.11 on.
    (target,) = (call.custom_call_target for call in calls)
    assert target in ("__gpu$xla.gpu.triton", "mosaic_gpu_v2")
    assert any("pallas" in (call.op_name or "") for call in calls)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param("0", marks=pytest.mark.exhaustive),
        pytest.param("1234567", marks=pytest.mark.slow),
    ],
)
def test_process_folder_and_hash_seed(
    seed: str, compiled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = compiled("qwen3-decode", "triton")
    monkeypatch.setenv("PYTHONHASHSEED", seed)
    monkeypatch.chdir(tmp_path)
    job = Job(reference=REFERENCE, target=target_named("h200"), policy=GemmPolicy.TRITON)
    found = make_dump(job, tmp_path / "out")
    assert differences(expected.normal, found.normal, name=seed) == []
    raw = {name for name in expected.files if expected.files[name] != found.files[name]}
    assert raw == set(), "XLA's own files differ too"


def test_dumps_that_are_made_together_are_those_made_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(STEPS)
    traces = tmp_path / "traces"
    options = CompileSettings(target="h200", policies=("cublas", "triton"))
    jobs = jobs_of([f"traced:counted(path={str(traces)!r})"], options)
    outcomes: list[CompiledDump] = []

    def on_done(_: object, outcome: object) -> None:
        assert isinstance(outcome, CompiledDump), outcome
        outcomes.append(outcome)

    make_dumps(jobs, tmp_path / "shared", at_once=1, on_done=on_done)
    alone = [make_dump(job, tmp_path / "alone") for job in jobs]

    assert [made.dump.manifest.gemm_policy for made in outcomes] == ["cublas", "triton"]
    for shared, single in zip(outcomes, alone, strict=True):
        assert single.files == shared.files
        for name in shared.dump.manifest.files:
            assert read_file(shared.dump.path, name) == read_file(single.dump.path, name), name
