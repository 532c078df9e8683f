"""The persistent kernel compiles without a GPU, and its plan meets the expectations of its step."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from models.qwen3.config import QWEN3_0_6B
from models.qwen3.generation import build_prebuilt
from models.qwen3.generation.prebuilt_index import PrebuiltExecutables, read_index
from models.qwen3.generation.static_sizes import GenerationSizes
from models.qwen3.steps import implementation_for
from models.qwen3.workloads import qwen3_generate_persistent
from xlapipe.compiling.make_jobs import CompileOptions, jobs_of
from xlapipe.compiling.pipeline import make_dump
from xlapipe.dumps.dump import open_dump
from xlapipe.expect import KernelCount, TrafficAtMost, check_all
from xlapipe.registry import find_workload


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


@pytest.mark.parametrize(
    ("target", "layers", "batch", "options", "implementation"),
    [
        ("h200", 28, 1, {}, "persistent"),
        ("h200", 28, 1, {"persistent_kernel": False}, "triton"),
        ("h200", 28, 2, {}, "triton"),
        ("h200", 29, 1, {}, "triton"),
        ("b200", 28, 1, {}, "triton"),
    ],
)
def test_executables_are_built_with_the_kernel_where_it_fits(
    target: str,
    layers: int,
    batch: int,
    options: dict[str, bool],
    implementation: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compiles nothing: the index has the implementation of each program."""
    made = SimpleNamespace(dump=SimpleNamespace(expectations=(), program=None))
    monkeypatch.setattr(build_prebuilt, "build", lambda job, folder: made)
    monkeypatch.setattr(build_prebuilt, "check_all", lambda expectations, program: ())
    config = replace(QWEN3_0_6B, num_hidden_layers=layers)
    sizes = GenerationSizes(batch=batch, cache_length=2048, bucket=16, steps=4, candidates=1)
    prebuilt = PrebuiltExecutables(path=tmp_path, config=config, sizes=sizes, buckets=(16,))
    build_prebuilt.build_prebuilt(prebuilt, target=target, **options)
    built = read_index(tmp_path, config)
    assert built.implementations == {"prompts-16": "triton", "decode": implementation}


def test_one_kernel_reads_the_weights_where_they_are(goldens: Path, golden_jaxlib: str) -> None:
    dump = open_dump(goldens / f"qwen3-generate-persistent/h200-cublas-jax{golden_jaxlib}")
    expectations = qwen3_generate_persistent().expectations
    findings = check_all(expectations, dump.program)
    assert [finding for finding in findings if not finding.holds] == []
    counts = {e.name: e.count for e in expectations if isinstance(e, KernelCount)}
    assert counts == {"decode_layers": 1, "norm_matvec": 1}
    assert any(isinstance(expectation, TrafficAtMost) for expectation in expectations)


@pytest.mark.exhaustive
def test_a_copy_of_the_weights_breaks_an_expectation(tmp_path: Path) -> None:
    here = Path(__file__).parent
    reference = replace(find_workload("broken_persistent:copied_weights"), folder=here)
    options = CompileOptions(target="h200", policies=("cublas",))
    (job,) = jobs_of([reference], options)
    dump = make_dump(job, tmp_path, folder=here).dump
    findings = check_all(dump.expectations, dump.program)
    broken = {str(f.expectation).partition("(")[0] for f in findings if not f.holds}
    assert {"TempAtMost", "TrafficAtMost"} <= broken
