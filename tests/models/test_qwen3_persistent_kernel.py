"""The persistent kernel compiles without a GPU, and its plan meets the expectations of its step."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import pytest

import xlapipe
from models.qwen3.config import QWEN3_0_6B
from models.qwen3.generation import compile_generation
from models.qwen3.generation.build_prebuilt import build_prebuilt
from models.qwen3.generation.compiled_steps import CompiledStep
from models.qwen3.generation.prebuilt_index import PrebuiltExecutables, read_index
from models.qwen3.generation.static_sizes import GenerationSizes
from models.qwen3.kernels.tiling import jax_for_hopper
from models.qwen3.steps import implementation_for
from models.qwen3.workloads import qwen3_generate_persistent
from tests.folders import STEPS
from xlapipe import StepPlan
from xlapipe.api.answer import Answer
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.compile.pipeline import make_dump
from xlapipe.devices.targets.catalogue import target_named
from xlapipe.devices.targets.target_config import target_attached
from xlapipe.dump.dump import open_dump
from xlapipe.expect import KernelCount, TrafficAtMost, check_all
from xlapipe.registry import find_workload

pytestmark = pytest.mark.jax

# What a decode step on Hopper has with this jax.
PERSISTENT = "persistent" if jax_for_hopper() else "triton"


@pytest.mark.parametrize(
    ("batch", "multiprocessors", "implementation"),
    [(1, 132, PERSISTENT), (1, 114, "triton"), (1, None, "triton"), (2, 132, "triton")],
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


SIZES = GenerationSizes(batch=1, cache_length=2048, bucket=16, steps=4, candidates=1)


def built_implementations(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    layers: int = 28,
    batch: int = 1,
    **options: Any,
) -> Mapping[str, str] | None:
    """The implementations in the index of a build that compiles nothing."""
    made = Mock(spec=StepPlan)
    made.check.return_value = Answer(True, "")
    monkeypatch.setattr(xlapipe, "build", lambda reference, **options: made)
    config = replace(QWEN3_0_6B, num_hidden_layers=layers)
    sizes = replace(SIZES, batch=batch)
    prebuilt = PrebuiltExecutables(path=folder, config=config, sizes=sizes, buckets=(16,))
    build_prebuilt(prebuilt, target=target, **options)
    return read_index(folder, config).implementations


@pytest.mark.parametrize(
    ("target", "layers", "batch", "options", "implementation"),
    [
        ("h200", 28, 1, {}, PERSISTENT),
        ("h200", 28, 1, {"persistent_kernel": False}, "triton"),
        ("h200", 28, 2, {}, "triton"),
        ("h200", 29, 1, {}, PERSISTENT),
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
    chosen = built_implementations(tmp_path, monkeypatch, target, layers, batch, **options)
    assert chosen == {"prompts-16": "triton", "decode": implementation}


@pytest.mark.parametrize(
    ("gpu", "multiprocessors", "mps", "implementation"),
    [
        ("h200", 132, False, PERSISTENT),
        ("h200", 64, False, "triton"),
        ("h200", 132, True, "triton"),
        ("b200", 148, False, "triton"),
    ],
)
def test_executables_for_the_attached_gpu_have_the_implementation_of_a_compile_there(
    gpu: str,
    multiprocessors: int,
    mps: bool,
    implementation: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The GPU's figures are those of the catalogue, as jax would report them on the device."""
    target = target_named(gpu)
    text, cores = re.subn(r"core_count: \d+", f"core_count: {multiprocessors}", target.config_text)
    assert cores == 1
    monkeypatch.setattr(xlapipe, "target", lambda name: target_attached(text))
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    if mps:
        (tmp_path / "control").touch()
    built = built_implementations(tmp_path / "built", monkeypatch, "attached")
    assert built == {"prompts-16": "triton", "decode": implementation}

    device = Mock(
        spec=jax.Device,
        platform="gpu",
        compute_capability=target.compute_capability,
        core_count=multiprocessors,
    )
    step = Mock(spec=CompiledStep)
    monkeypatch.setattr(compile_generation, "_compile", lambda *arguments: step)
    compiled = compile_generation.compile_generation(QWEN3_0_6B, SIZES, device)
    assert compiled.implementations == {"prompts": "triton", "decode": implementation}


def test_one_kernel_reads_the_weights_where_they_are(goldens: Path, golden_jaxlib: str) -> None:
    dump = open_dump(goldens / f"qwen3-generate-persistent/h200-cublas-jax{golden_jaxlib}")
    expectations = qwen3_generate_persistent().expectations
    findings = check_all(expectations, dump)
    assert [finding for finding in findings if not finding.holds] == []
    counts = {e.name: e.count for e in expectations if isinstance(e, KernelCount)}
    assert counts == {"decode_layers": 1, "norm_matvec": 1}
    assert any(isinstance(expectation, TrafficAtMost) for expectation in expectations)


@pytest.mark.exhaustive
def test_a_copy_of_the_weights_breaks_an_expectation(tmp_path: Path) -> None:
    reference = replace(find_workload("broken_persistent:copied_weights"), folder=STEPS)
    options = CompileSettings(target="h200", policies=("cublas",))
    (job,) = jobs_of([reference], options)
    dump = make_dump(job, tmp_path, folder=STEPS).dump
    findings = check_all(dump.expectations, dump)
    broken = {str(f.expectation).partition("(")[0] for f in findings if not f.holds}
    assert {"TempAtMost", "TrafficAtMost"} <= broken
