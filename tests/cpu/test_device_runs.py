"""The records of runs on an H200 and on an H100 against the goldens."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import NEVER_TUNED
from tests.cpu.test_second_gpu import WORKLOADS as ON_THE_H100
from xlapipe.dumps.dump import open_dump
from xlapipe.registry import registered_workloads

GPU = Path(__file__).parent.parent / "gpu"
RECORDS: dict[str, Any] = {
    target: json.loads((GPU / file).read_text(encoding="utf-8"))
    for target, file in (("h200", "h200_runs.json"), ("h100_sxm", "h100_runs.json"))
}
DEVICES = {"h200": "NVIDIA H200", "h100_sxm": "NVIDIA H100 80GB HBM3"}
# Tested in test_many_device_runs.py.
SEVERAL_DEVICES = {"fsdp-mlp", "fsdp-mlp-reference"}
NAMES = {
    "h200": [
        workload.name
        for workload in registered_workloads()
        if workload.name not in NEVER_TUNED | SEVERAL_DEVICES
    ],
    "h100_sxm": list(ON_THE_H100),
}
PLANNED = [(target, name) for target, names in NAMES.items() for name in names]
RUN = [(target, name) for target, record in RECORDS.items() for name in sorted(record["workloads"])]


@pytest.mark.parametrize("target", RECORDS)
def test_the_record_states_device_versions_command_and_every_workload(target: str) -> None:
    record = RECORDS[target]
    assert set(NAMES[target]) <= set(record["workloads"])
    assert record["device"] == DEVICES[target]
    assert record["driver"]
    assert {"jax", "jaxlib", "jax-cuda13-plugin"} <= set(record["versions"])
    assert record["command"]
    assert record["date"]


@pytest.mark.parametrize(("target", "name"), PLANNED)
def test_the_device_measured_what_the_golden_plans(target: str, name: str, goldens: Path) -> None:
    record = RECORDS[target]
    run, jaxlib = record["workloads"][name], record["versions"]["jaxlib"]
    plan = open_dump(goldens / name / f"{target}-auto-tuned-jax{jaxlib}").plan
    memory = run["memory"]
    assert memory["planned_bytes"] == plan.totals.total_allocation_bytes
    # Bytes that the allocator adds must be few, so that they cannot hide a wrong plan.
    added = ("unexplained_bytes", "input_chunk_bytes", "output_chunk_bytes", "executable_bytes")
    assert sum(abs(memory[item]) for item in added) <= 0.01 * memory["measured_bytes"]
    assert run["thunks"] == len(plan.thunks or ())


@pytest.mark.parametrize(("target", "name"), RUN)
def test_an_executable_built_without_a_gpu_gives_the_same_outputs(target: str, name: str) -> None:
    run = RECORDS[target]["workloads"][name]
    assert run["outputs_bit_identical"] is True
    assert run["plan_identical"] is True
    assert run["autotuning"] == f"tuned on {DEVICES[target]}"
    assert 10 * run["load_seconds"] < run["build_on_device_seconds"]
