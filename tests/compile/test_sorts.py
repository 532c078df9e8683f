"""Sorts on GPUs that are not here: XLA gives them to CUB, with the scratch that CUB needs there."""

from dataclasses import replace
from pathlib import Path

import pytest

from xlapipe.compile.job import Job
from xlapipe.compile.pipeline import compile_dump, dump_folder
from xlapipe.compile.xla_patches import XlaPatch
from xlapipe.devices.platforms.cub_sort import base_bytes
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.registry import WorkloadReference

pytestmark = pytest.mark.jax

PROGRAMS = Path(__file__).parents[1] / "gpu" / "fidelity"
ITEMS = 200_000


def job_of(target: str, key: str, value: str, *without: XlaPatch) -> Job:
    arguments = {"key": key, "value": value, "n": ITEMS}
    return Job(
        reference=WorkloadReference("sort", "programs:sort_pairs", arguments, PROGRAMS),
        target=target_named(target),
        options={"xla_backend_optimization_level": 0},
        without_xla_patches=frozenset(without),
    )


@pytest.mark.parametrize(
    ("target", "key", "value", "widths"),
    [
        pytest.param("b200", "uint16", "bfloat16", (2, 2), marks=pytest.mark.slow),
        pytest.param("a100_sxm_80", "int32", "int32", (4, 4), marks=pytest.mark.slow),
        # XLA's own sort takes 20 s to compile.
        pytest.param("a100_sxm_80", "uint8", "int32", None, marks=pytest.mark.exhaustive),
        pytest.param("a6000", "int32", "int32", None, marks=pytest.mark.exhaustive),
    ],
)
def test_sort_for_a_gpu(target: str, key: str, value: str, widths: tuple[int, int] | None) -> None:
    compiled = compile_dump(job_of(target, key, value), None)
    calls = [it.shape for it in compiled.dump.plan.instructions.values() if "cub" in str(it)]
    if widths is None:
        assert calls == []
        assert [it.instruction for it in compiled.dump.plan.missing_memory] != []
    else:
        (shape,) = calls
        capability = target_named(target).compute_capability
        scratch = base_bytes(capability, *widths, ITEMS, segmented=False)
        assert f"u8[{scratch}]" in shape.text
        assert compiled.dump.plan.missing_memory == ()


@pytest.mark.slow
def test_the_table_of_cub_can_be_left_out() -> None:
    """XLA then compiles its own sort, and the plan lists the scratch that it lacks."""
    job = job_of("h200", "int32", "int32")
    patched = compile_dump(job, None).dump
    plain = compile_dump(replace(job, without_xla_patches=frozenset(XlaPatch)), None).dump
    assert (patched.manifest.xla_patches, plain.manifest.xla_patches) == (("cub-table",), ())
    assert [len(dump.plan.missing_memory) for dump in (patched, plain)] == [0, 1]
    assert patched.plan.totals.temp_bytes > plain.plan.totals.temp_bytes
    (folder, other) = (dump_folder(Path(), dump.manifest).name for dump in (patched, plain))
    assert other == f"{folder}-without-cub-table-without-instruction-order-without-stand-ins"
