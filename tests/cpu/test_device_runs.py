"""The record of runs on an H200 (tests/gpu/h200_runs.json) against the goldens."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import NEVER_TUNED
from xlapipe.dumps.dump import open_dump
from xlapipe.registry import registered_workloads

RECORD: Any = json.loads(
    (Path(__file__).parent.parent / "gpu" / "h200_runs.json").read_text(encoding="utf-8")
)
# Tested in test_many_device_runs.py.
SEVERAL_DEVICES = {"fsdp-mlp", "fsdp-mlp-reference"}
NAMES = [
    workload.name
    for workload in registered_workloads()
    if workload.name not in NEVER_TUNED | SEVERAL_DEVICES
]


def test_the_record_states_device_versions_command_and_every_workload() -> None:
    assert set(NAMES) <= set(RECORD["workloads"])
    assert RECORD["device"] == "NVIDIA H200"
    assert RECORD["driver"]
    assert {"jax", "jaxlib", "jax-cuda13-plugin"} <= set(RECORD["versions"])
    assert RECORD["command"]
    assert RECORD["date"]


@pytest.mark.parametrize("name", NAMES)
def test_the_device_measured_what_the_golden_plans(name: str, goldens: Path) -> None:
    run, jaxlib = RECORD["workloads"][name], RECORD["versions"]["jaxlib"]
    plan = open_dump(goldens / name / f"h200-auto-tuned-jax{jaxlib}").plan
    memory = run["memory"]
    assert memory["planned_bytes"] == plan.totals.total_allocation_bytes
    # Bytes that the allocator adds must be few, so that they cannot hide a wrong plan.
    added = ("unexplained_bytes", "input_chunk_bytes", "output_chunk_bytes", "executable_bytes")
    assert sum(abs(memory[item]) for item in added) <= 0.01 * memory["measured_bytes"]
    assert run["thunks"] == len(plan.thunks or ())


@pytest.mark.parametrize("name", sorted(RECORD["workloads"]))
def test_an_executable_built_without_a_gpu_gives_the_same_outputs(name: str) -> None:
    run = RECORD["workloads"][name]
    assert run["outputs_bit_identical"] is True
    assert run["plan_identical"] is True
    assert run["autotuning"] == "tuned on NVIDIA H200"
    assert run["load_seconds"] < 0.5 < run["build_on_device_seconds"]
