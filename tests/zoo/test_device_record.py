"""The record of the zoo on an H200 (tests/gpu/h200_zoo.json) against compiles without a GPU."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.zoo.batch import PROGRAMS, Batch, compile_batch, programs
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.compile.pipeline import make_dump
from xlapipe.dump.dump import Dump

GPU = Path(__file__).parent.parent / "gpu"
RECORD: Any = json.loads((GPU / "h200_zoo.json").read_text(encoding="utf-8"))
RECORDS = {reference.partition(":")[2]: it for reference, it in RECORD["programs"].items()}
RUN = {name: it for name, it in RECORDS.items() if "memory" in it}
PLANNED = {name: it for name, it in RECORDS.items() if "plain_jit" in it}
ATTENTION = {name for name, it in PLANNED.items() if it["calls_without_workspace"]}
CALLBACKS = set(PLANNED) - ATTENTION
# XLA numbers the instructions of a loop differently where a GPU is attached.
OTHER_NAMES = {"debug_print_in_scan", "offloaded_activations", "scan_gradient"}
# The locks that the executables were built with.
LOCKS = {path.stem: path for path in (GPU / "zoo_locks").glob("*.json")}
# The quickest, for every `make test`.
SAMPLE = "triangular_solve"


def test_record_states_device_versions_and_command() -> None:
    assert RECORD["device"] == "NVIDIA H200"
    assert RECORD["driver"]
    assert RECORD["command"].startswith("python")
    assert RECORD["date"]
    assert {"jax", "jaxlib", "jax-cuda13-plugin"} <= set(RECORD["versions"])
    assert len(RUN) >= 10
    assert {"offloaded_activations", "offloaded_optimizer_state", "triangular_solve"} <= set(RUN)
    assert len(CALLBACKS) == 7
    assert len(ATTENTION) == 2


@pytest.mark.parametrize("name", RUN)
def test_executable_built_without_a_gpu_gives_the_outputs_of_one_built_there(name: str) -> None:
    run = RECORDS[name]
    assert run["outputs_bit_identical"] is True
    assert run["layout_identical"] is True
    assert run["plan_identical"] is (name not in OTHER_NAMES)
    memory = run["memory"]
    assert memory["planned_bytes"] + memory["rounding_bytes"] <= memory["measured_bytes"] + (
        memory["not_on_device_bytes"] + memory["constant_bytes"]
    )


@pytest.mark.parametrize("name", sorted(CALLBACKS))
def test_plan_of_callbacks_is_that_of_a_plain_jit_on_the_gpu(name: str) -> None:
    run = RECORDS[name]
    assert run["callbacks"] > 0
    assert run["layout_identical"] is True
    assert run["plain_jit"] == run["memory_analysis"]


@pytest.mark.parametrize("name", sorted(ATTENTION))
def test_cudnn_attention_built_on_the_gpu_has_its_workspace_and_runs(name: str) -> None:
    run = RECORDS[name]
    assert run["calls_without_workspace_on_device"] == 0
    assert run["outputs_bit_identical"] is True
    assert run["plain_jit"] == run["memory_analysis"]


def compiled_with_lock(name: str, out: Path, monkeypatch: pytest.MonkeyPatch) -> Dump:
    monkeypatch.chdir(PROGRAMS)
    (reference,) = (it for it in RECORD["programs"] if it.endswith(f":{name}"))
    (job,) = jobs_of([reference], CompileSettings(tuning=LOCKS[name], policies=("auto",)))
    return make_dump(job, out).dump


def check_against_record(dump: Dump) -> None:
    run = RECORDS[dump.manifest.workload]
    allocations = [allocation.size_bytes for allocation in dump.plan.allocations]
    assert allocations == run["allocation_bytes"]
    assert dict(dump.manifest.memory_analysis) == run["memory_analysis"]


@pytest.mark.parametrize(
    "name",
    [
        SAMPLE,
        *(pytest.param(it, marks=pytest.mark.exhaustive) for it in sorted(set(LOCKS) - {SAMPLE})),
    ],
)
def test_plan_compiled_here_with_the_lock_is_the_devices(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jaxlib_version: str
) -> None:
    if jaxlib_version != RECORD["versions"]["jaxlib"]:
        pytest.skip(
            f"recorded with jaxlib {RECORD['versions']['jaxlib']}, this is {jaxlib_version}"
        )
    dump = compiled_with_lock(name, tmp_path, monkeypatch)
    assert dump.manifest.tuned
    assert dump.plan.thunk_counts == RECORDS[name]["thunks"]
    check_against_record(dump)


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> Batch:
    wanted = [it for it in programs() if it.name in set(RECORDS) - set(LOCKS)]
    return compile_batch(wanted, tmp_path_factory.mktemp("zoo"))


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted(set(RECORDS) - set(LOCKS)))
def test_plan_compiled_here_is_the_devices(name: str, batch: Batch, jaxlib_version: str) -> None:
    if jaxlib_version != RECORD["versions"]["jaxlib"]:
        pytest.skip(
            f"recorded with jaxlib {RECORD['versions']['jaxlib']}, this is {jaxlib_version}"
        )
    dump = batch.captured(name)
    if name not in ATTENTION:
        check_against_record(dump)
        return
    # Without the workspace, which the plan says.
    assert len(dump.plan.unfinished_calls) == RECORDS[name]["calls_without_workspace"]
    analysis, on_device = dict(dump.manifest.memory_analysis), RECORDS[name]["memory_analysis"]
    assert analysis.pop("temp_bytes") < on_device["temp_bytes"]
    assert analysis.items() <= on_device.items()
