"""The persistent kernel compiles without a GPU, and its plan meets the expectations of its step."""

from dataclasses import replace
from pathlib import Path

import pytest

from models.qwen3.config import QWEN3_0_6B
from models.qwen3.steps import implementation_for
from xlapipe.compiling.make_jobs import CompileOptions, jobs_of
from xlapipe.compiling.pipeline import make_dump
from xlapipe.expect import KernelCount, check_all
from xlapipe.registry import find_workload

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("batch", "multiprocessors", "implementation"),
    [(1, 132, "persistent"), (1, 114, "triton"), (1, None, "triton"), (2, 132, "triton")],
)
def test_other_gpus_and_batches_get_other_implementations(
    batch: int, multiprocessors: int | None, implementation: str
) -> None:
    chosen = implementation_for(
        QWEN3_0_6B,
        platform="gpu",
        batch=batch,
        length=1,
        cache_length=2048,
        compute_capability="9.0",
        multiprocessors=multiprocessors,
    )
    assert chosen == implementation


@pytest.mark.slow
def test_one_kernel_reads_the_weights_where_they_are(tmp_path: Path) -> None:
    reference = find_workload("models.qwen3.workloads:qwen3_generate_persistent(layers=1)")
    options = CompileOptions(target="h200", policies=("cublas",))
    (job,) = jobs_of([reference], options)
    dump = make_dump(job, tmp_path, folder=ROOT).dump
    findings = check_all(dump.expectations, dump.program)
    assert [finding for finding in findings if not finding.holds] == []
    counts = {e.name: e.count for e in dump.expectations if isinstance(e, KernelCount)}
    assert counts == {"decode_layers": 1, "norm_matvec": 1}


@pytest.mark.exhaustive
def test_a_copy_of_the_weights_breaks_an_expectation(tmp_path: Path) -> None:
    here = Path(__file__).parent
    reference = replace(find_workload("broken_persistent:copied_weights"), folder=here)
    options = CompileOptions(target="h200", policies=("cublas",))
    (job,) = jobs_of([reference], options)
    dump = make_dump(job, tmp_path, folder=here).dump
    findings = check_all(dump.expectations, dump.program)
    broken = {str(f.expectation).partition("(")[0] for f in findings if not f.holds}
    assert "TempAtMost" in broken
