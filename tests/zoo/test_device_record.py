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
ATTENTION = {name for name, it in RECORDS.items() if it.get("calls_without_workspace")}
# The locks that the executables were built with.
LOCKS = {path.stem: path for path in (GPU / "zoo_locks").glob("*.json")}
# The quickest, for every `make test`.
SAMPLE = "triangular_solve"


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
