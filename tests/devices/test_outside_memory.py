"""Memory outside the plan: what was measured, and what a program uses of it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import GOLDEN_JAXLIB
from tests.search.test_fit_report import lines_of, planned
from xlapipe.devices.targets.catalogue import catalogue
from xlapipe.dump.dump import open_dump
from xlapipe.plans.usable_memory import OutsidePlan, measured_outside, outside_plan
from xlapipe.search.rows import Row
from xlapipe.search.sweep import combinations

H200 = measured_outside("h200")


@pytest.mark.parametrize("name", ["h200", "h100_sxm"])
def test_each_measurement_is_of_a_target_and_has_its_provenance(name: str) -> None:
    measured = measured_outside(name)
    assert measured is not None
    assert all((measured.device, measured.driver, measured.jax, measured.date))
    assert measured.parts["context"] > 0
    (row,) = (row for row in catalogue() if row.name == name)
    assert 0 < abs(row.device_memory_size - measured.visible_bytes) < 2**31


def test_only_the_whole_name_of_a_target_has_its_measurement() -> None:
    assert H200 is not None
    assert measured_outside("h200_device") is None
    assert measured_outside("h20") is None


def test_libraries_are_those_that_the_program_calls(goldens: Path) -> None:
    plan = open_dump(goldens / f"qwen3-decode/h200-cublas-jax{GOLDEN_JAXLIB}").plan
    outside = outside_plan(plan, H200)
    assert set(outside.parts) == {"context", "cublas"}
    assert outside.unmeasured == ()
    triton = open_dump(goldens / f"qwen3-decode/h200-triton-jax{GOLDEN_JAXLIB}").plan
    assert set(outside_plan(triton, H200).parts) == {"context"}


RUNS = Path(__file__).resolve().parents[1] / "gpu/h200_many_runs.json"


@pytest.mark.parametrize(
    ("run", "dump", "devices"),
    [
        ("fsdp-mlp 1x2", f"fsdp-mlp/h100_sxm-1x2-auto-tuned-jax{GOLDEN_JAXLIB}", 2),
        ("fsdp-mlp 1x4", f"fsdp-mlp/h100_sxm-1x4-auto-tuned-jax{GOLDEN_JAXLIB}", 4),
        (
            "fsdp-mlp-reference 1x2",
            f"fsdp-mlp-reference/h100_sxm-1x2-auto-tuned-jax{GOLDEN_JAXLIB}",
            2,
        ),
    ],
)
def test_what_runs_on_several_gpus_took_is_what_is_stated(
    run: str, dump: str, devices: int, goldens: Path
) -> None:
    """The first call took the memory of NCCL and, if it is called, of cuBLAS."""
    assert H200 is not None
    outside = outside_plan(open_dump(goldens / dump).plan, H200)
    record = json.loads(RUNS.read_text())["workloads"][run]["devices"][0]
    grown = record["outside_after_bytes"] - record["outside_before_bytes"]
    assert outside.parts["nccl"] + outside.parts.get("cublas", 0) == grown
    assert outside.parts["nccl"] == H200.nccl[str(devices)]
    assert outside.unmeasured == ()


def test_nccl_of_other_programs_is_not_measured_and_never_zero(goldens: Path) -> None:
    plan = open_dump(goldens / f"fsdp-mlp/h200-1x2-cublas-jax{GOLDEN_JAXLIB}").plan
    assert outside_plan(plan, None).unmeasured == ("context", "cublas", "nccl")
    assert "nccl" in outside_plan(plan, measured_outside("h100_sxm")).unmeasured
    eight = open_dump(goldens / f"qwen3-train/h200-1x8-cublas-jax{GOLDEN_JAXLIB}").plan
    assert outside_plan(eight, H200).unmeasured == ("nccl",)


def test_the_pool_is_a_share_of_what_cuda_reports_and_leaves_room_for_the_rest() -> None:
    outside = OutsidePlan(parts={"context": 300}, device="NVIDIA X", visible_bytes=1000)
    assert [outside.usable_bytes(2000, fraction) for fraction in (0.5, 0.7, 0.9)] == [500, 700, 700]
    assert OutsidePlan().usable_bytes(2000, 0.5) == 1000


def test_the_table_states_what_is_outside() -> None:
    outside = OutsidePlan(
        parts={"context": 585, "cublas": 69},
        unmeasured=("nccl",),
        device="NVIDIA H200",
        visible_bytes=10**6,
    )
    (point,) = combinations("m:step", [])
    memory = replace(planned(1_000), outside=outside, reserved_bytes=7)
    text = "\n".join(lines_of([Row(point, memory)], []))
    assert (
        "Outside the plan and XLA's pool, as measured on one NVIDIA H200: CUDA context 585 B, "
        "cuBLAS 69 B; NCCL: not measured. Not included: other live arrays of the process, for "
        "which 7 B are reserved."
    ) in text
