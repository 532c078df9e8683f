"""Goldens that an H100 wrote are compiled here, with their locks, as those of the H200 are."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import GOLDEN_JAXLIB, ROOT
from tests.gpu.fidelity import record
from tests.gpu.h100_resnets import record as h100_resnets
from xlapipe.compile.job import Job
from xlapipe.compile.pipeline import make_dump
from xlapipe.dump.autotune_lock import LOCK, read_lock
from xlapipe.dump.dump import open_dump
from xlapipe.dump.normal_form.plan import differences, read_normal_form
from xlapipe.dump.run_record import RUN_RECORD
from xlapipe.registry import find_workload

pytestmark = pytest.mark.jax

FOLDER = f"h100_sxm-auto-tuned-jax{GOLDEN_JAXLIB}"
WORKLOADS = (
    *("float8-linear-backward", "float8-linear-forward", "float8-linear-step"),
    *("qwen3-decode", "qwen3-generate", "qwen3-prefill", "qwen3-prompts"),
    *("qwen3-prompts-hopper", "qwen3-step", "qwen3-step-donated"),
)
RESNETS: dict[str, Any] = json.loads(h100_resnets.RECORD.read_text(encoding="utf-8"))
# The others are compiled by `make test-all` alone.
QUICK, SLOW = {"float8-linear-forward"}, {"qwen3-decode", "float8-linear-step"}


def marks(workload: str) -> tuple[pytest.MarkDecorator, ...]:
    if workload in QUICK:
        return ()
    return (pytest.mark.slow if workload in SLOW else pytest.mark.exhaustive,)


@pytest.mark.parametrize(
    "workload", [pytest.param(workload, marks=marks(workload)) for workload in WORKLOADS]
)
def test_plan_is_that_of_the_h100(
    workload: str, goldens: Path, tmp_path: Path, jaxlib_version: str
) -> None:
    if jaxlib_version != GOLDEN_JAXLIB:
        pytest.skip(f"goldens are kept for jaxlib {GOLDEN_JAXLIB}, this is {jaxlib_version}")
    golden = goldens / workload / FOLDER
    lock = read_lock(golden / LOCK)
    job = Job(reference=find_workload(workload), target=lock.as_target(), lock=lock)
    made = make_dump(job, tmp_path, folder=ROOT)
    assert made.dump.manifest.tuned
    assert made.dump.path.name == FOLDER
    assert differences(read_normal_form(golden), made.normal, name=workload) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("workload", sorted(RESNETS["workloads"]))
def test_resnets_are_those_of_the_h100(workload: str, tmp_path: Path, jaxlib_version: str) -> None:
    """The device's plan, HLO and lowered module; totals with what it measured beside them."""
    if jaxlib_version != RESNETS["versions"]["jaxlib"]:
        pytest.skip(f"recorded with jaxlib {RESNETS['versions']['jaxlib']}")
    recorded = RESNETS["workloads"][workload]
    lock = read_lock(h100_resnets.HERE / workload / LOCK)
    job = Job(reference=find_workload(workload), target=lock.as_target(), lock=lock)
    made = make_dump(job, tmp_path, folder=ROOT)
    digests = record.digests(made.normal)
    assert digests == {part: recorded[part] for part in digests}
    assert made.dump.plan.total_bytes_used == recorded["total_bytes"]


def test_the_h100_measured_the_planned_memory_of_the_resnets() -> None:
    memories = [it["memory"] for it in RESNETS["workloads"].values() if "memory" in it]
    assert len(memories) == 2
    assert [memory["unexplained_bytes"] for memory in memories] == [0, 0]


def test_these_are_all_goldens_of_the_h100(goldens: Path) -> None:
    found = {path.parent.parent.name for path in goldens.glob(f"*/{FOLDER}/{RUN_RECORD}")}
    assert found == set(WORKLOADS)


def test_the_gpus_choose_different_kernels(goldens: Path) -> None:
    """Otherwise these goldens would show nothing that those of the H200 do not."""
    texts = [
        (goldens / "qwen3-decode" / folder / "plan.txt").read_text(encoding="utf-8")
        for folder in (FOLDER, FOLDER.replace("h100_sxm", "h200"))
    ]
    thunks = [text.partition("[fusions]")[2] for text in texts]
    assert thunks[0] != thunks[1]
    plans = [open_dump(goldens / "qwen3-decode" / FOLDER).plan]
    assert plans[0].missing_memory == ()
