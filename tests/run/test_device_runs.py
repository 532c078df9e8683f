"""The records of runs on an H200 and on an H100, of plans of jax 0.11.2."""

import json
from pathlib import Path
from typing import Any

import pytest

GPU = Path(__file__).parent.parent / "gpu"
FILES = {
    "h200_runs.json": "h200",
    "h200_resnet_runs.json": "h200",
    # With a later run of qwen3-prompts-hopper than the first file.
    "h200_qwen3_runs.json": "h200",
    "h100_runs.json": "h100_sxm",
}
RECORDS: dict[str, Any] = {
    file: json.loads((GPU / file).read_text(encoding="utf-8")) for file in FILES
}
DEVICES = {"h200": "NVIDIA H200", "h100_sxm": "NVIDIA H100 80GB HBM3"}
# The record of each run, by target and workload.
RUN = {
    (target, name): RECORDS[file]
    for file, target in FILES.items()
    for name in sorted(RECORDS[file]["workloads"])
}


@pytest.mark.parametrize("file", FILES)
def test_the_record_states_device_versions_and_command(file: str) -> None:
    record = RECORDS[file]
    assert record["device"] == DEVICES[FILES[file]]
    assert record["driver"]
    assert {"jax", "jaxlib", "jax-cuda13-plugin"} <= set(record["versions"])
    assert record["command"]
    assert record["date"]


@pytest.mark.parametrize(("target", "name"), RUN)
def test_the_device_measured_what_was_planned(target: str, name: str) -> None:
    memory = RUN[target, name]["workloads"][name]["memory"]
    # Bytes that the allocator adds must be few, so that they cannot hide a wrong plan.
    added = ("unexplained_bytes", "input_chunk_bytes", "output_chunk_bytes", "executable_bytes")
    assert sum(abs(memory[item]) for item in added) <= 0.01 * memory["measured_bytes"]
    on_device = memory["planned_bytes"] - memory["not_on_device_bytes"] - memory["constant_bytes"]
    rest = sum(memory[item] for item in ("rounding_bytes", *added))
    assert on_device + rest == memory["measured_bytes"]


@pytest.mark.parametrize(("target", "name"), RUN)
def test_an_executable_built_without_a_gpu_gives_the_same_outputs(target: str, name: str) -> None:
    run = RUN[target, name]["workloads"][name]
    assert run["outputs_bit_identical"] is True
    assert run["plan_identical"] is True
    assert run["autotuning"] == f"tuned on {DEVICES[target]}"
    assert 20 * run["load_seconds"] < run["build_on_device_seconds"]
