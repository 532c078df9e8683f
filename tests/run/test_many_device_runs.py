"""The record of runs on 2 and 4 H200s (tests/gpu/h200_many_runs.json), of plans of jax 0.11.2."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import GOLDEN_JAXLIB
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.compile.pipeline import make_dump
from xlapipe.dump.autotune_lock import LOCK
from xlapipe.dump.normal_form.plan import differences, read_normal_form

pytestmark = pytest.mark.jax

RECORDS = Path(__file__).parent.parent / "gpu"
RECORD: Any = json.loads((RECORDS / "h200_many_runs.json").read_text(encoding="utf-8"))
BENCH: Any = json.loads((RECORDS / "h200_fsdp_bench.json").read_text(encoding="utf-8"))
NAMES = ["fsdp-mlp 1x2", "fsdp-mlp 1x4", "fsdp-mlp-reference 1x2"]


def test_the_record_states_device_versions_and_command() -> None:
    assert sorted(RECORD["workloads"]) == NAMES
    assert RECORD["device"] == BENCH["device"] == "NVIDIA H200"
    assert RECORD["driver"]
    assert RECORD["command"]
    assert RECORD["date"]
    assert {"jax", "jaxlib", "jax-cuda13-plugin"} <= set(RECORD["versions"])


@pytest.mark.parametrize("name", NAMES)
def test_every_device_measured_what_was_planned(name: str) -> None:
    run, count = RECORD["workloads"][name], int(name[-1])
    for devices in (run["devices"], run["processes_devices"]):
        assert [device["device"] for device in devices] == list(range(count))
        for device in devices:
            memory = device["memory"]
            assert memory["planned_bytes"] == run["memory"]["planned_bytes"]
            assert memory["unexplained_bytes"] == 0
            assert memory["input_chunk_bytes"] == memory["output_chunk_bytes"] == 0
            # The difference is NCCL's buffers, and what libraries load when they are first used.
            assert device["outside_after_bytes"] > device["outside_before_bytes"] > 0
    assert run["memory"]["measured_bytes"] == max(
        device["memory"]["measured_bytes"] for device in run["devices"]
    )


@pytest.mark.parametrize(
    "name", ["fsdp-mlp", pytest.param("qwen3-train", marks=pytest.mark.exhaustive)]
)
def test_the_plan_of_four_devices_is_compiled_again_without_them(
    name: str, goldens: Path, tmp_path: Path, jaxlib_version: str
) -> None:
    """test_workloads.py does this for two devices."""
    if jaxlib_version != GOLDEN_JAXLIB:
        pytest.skip(f"locks are kept for jaxlib {GOLDEN_JAXLIB}, this is {jaxlib_version}")
    folder = goldens / name / f"h100_sxm-1x4-auto-tuned-jax{jaxlib_version}"
    (job,) = jobs_of([name], CompileSettings(tuning=folder / LOCK))
    written = make_dump(job, tmp_path)
    assert written.dump.manifest.topology == "1x4"
    assert differences(read_normal_form(folder), written.normal, name=name) == []


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_those_of_a_build_on_the_device_in_one_process_and_several(name: str) -> None:
    run = RECORD["workloads"][name]
    assert run["outputs_bit_identical"] is True
    assert run["plan_identical"] is True
    assert run["processes_bit_identical"] is True
    assert run["processes"] == len(run["processes_devices"]) == len(run["devices"])
    assert [device["process"] for device in run["processes_devices"]] == list(
        range(run["processes"])
    )
    assert {device["process"] for device in run["devices"]} == {0}
    assert run["autotuning"] == "tuned on NVIDIA H200"


@pytest.mark.parametrize("row", RECORD["gradients"], ids=lambda row: str(row["devices"]))
def test_gradients_equal_those_of_one_device_within_rounding(row: Any) -> None:
    # Summing in another order changes the sign of about a millionth of the outputs, where ReLU's
    # derivative jumps; the error is the square root of that. In bfloat16, a unit in the last place.
    assert row["float32_from_one_device"] < 2e-3
    assert row["bfloat16_from_one_device"] < 2**-6
    # Several devices are not less exact than one.
    ratio = row["bfloat16_from_float32"] / row["one_device_bfloat16_from_float32"]
    assert ratio == pytest.approx(1, abs=0.01)


def test_the_step_was_at_least_as_fast_as_in_torch() -> None:
    ours = {row["case"]: row for row in BENCH["rows"] if row["side"] == "fsdp_jax"}
    theirs = [row for row in BENCH["rows"] if row["side"] == "fsdp_torch"]
    assert {row["case"] for row in theirs} == set(ours)
    for row in theirs:
        assert row["over_ours"] == row["median_seconds"] / ours[row["case"]]["median_seconds"]
        assert row["over_ours"] > 1
