"""Expectations of the models of reference dumps 002 and 004 fail on programs that break them."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

from models.float8_linear.sizes import Float8Sizes
from models.float8_linear.workloads import (
    float8_linear_backward,
    float8_linear_forward,
    float8_linear_step,
)
from models.spectral_diffusion.sizes import SpectralSizes
from models.spectral_diffusion.workloads import spectral_diffusion, spectral_diffusion_train
from tests.folders import STEPS
from tests.steps.broken_programs import compile_dumps, each_expectation_fails_on_one
from xlapipe import Workload
from xlapipe.cli import main
from xlapipe.dump.dump import open_dump
from xlapipe.expect import AllocationOf, FastAccumulation, GivenUp, ParameterBytes

pytestmark = [pytest.mark.jax, pytest.mark.slow]

FLOAT8 = Float8Sizes(rows=32, in_features=48, out_features=80)
SPECTRAL = SpectralSizes(meshes=3, vertices=40, eigenvectors=8, channels=24)
WORKLOADS: dict[str, Callable[[], Workload]] = {
    "forward": float8_linear_forward,
    "backward": float8_linear_backward,
    "step": float8_linear_step,
    "forward, other sizes": lambda: float8_linear_forward(FLOAT8),
    "backward, other sizes": lambda: float8_linear_backward(FLOAT8),
    "step, other sizes": lambda: float8_linear_step(FLOAT8),
    "spectral": spectral_diffusion,
    "spectral, other sizes": lambda: spectral_diffusion(SPECTRAL),
    "spectral train": spectral_diffusion_train,
    "spectral train, other sizes": lambda: spectral_diffusion_train(SPECTRAL),
}
# The good workload, the module of its broken programs, and their names.
BROKEN = {
    "float8 step": (
        float8_linear_step,
        "broken_float8",
        ("dequantised", "wide", "other", "again", "reads_again", "smaller"),
    ),
    "spectral forward": (
        spectral_diffusion,
        "broken_spectral",
        ("exponentials", "wide", "summed", "in_place", "reads_again", "smaller"),
    ),
    "spectral train": (
        spectral_diffusion_train,
        "broken_spectral",
        ("exponentials", "wide", "summed", "smaller"),
    ),
}


def bytes_of(tree: Any) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("name", WORKLOADS)
def test_expected_sizes_equal_those_of_arguments_and_outputs(name: str) -> None:
    workload = WORKLOADS[name]()
    (parameters,) = [e for e in workload.expectations if isinstance(e, ParameterBytes)]
    assert parameters.total_bytes == bytes_of(workload.args)
    outputs = jax.eval_shape(workload.fn, *workload.args)
    leaves = {
        f"out{jax.tree_util.keystr(path)}": bytes_of(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(outputs)
    }
    expected = {e.name: e.size_bytes for e in workload.expectations if isinstance(e, AllocationOf)}
    assert {path: size for path, size in expected.items() if path.startswith("out")} == leaves


def test_residuals_have_the_sizes_of_reference_dump_004() -> None:
    residuals, _ = float8_linear_backward().args
    assert bytes_of(residuals) == Float8Sizes().residual_bytes == 41_943_048
    assert sorted(map(bytes_of, residuals.values())) == [4, 4, 8_388_608, 33_554_432]
    assert bytes_of(float8_linear_step().args[2]) // 2 == 16_777_216


def test_arrays_have_the_sizes_of_reference_dump_002() -> None:
    sizes = SpectralSizes()
    assert (sizes.evecs_bytes, sizes.mass_bytes, sizes.signal_bytes) == (524_288, 4_096, 1_048_576)
    assert (sizes.evals_bytes, sizes.time_bytes, sizes.spectrum_bytes) == (256, 512, 65_536)
    assert sizes.argument_bytes == 524_288 + 4_096 + 1_048_576 + 256 + 512


@pytest.mark.parametrize("case", BROKEN)
def test_each_expectation_fails_on_a_program_that_breaks_it(
    case: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make, module, names = BROKEN[case]
    prefix = case.split()[1]
    monkeypatch.chdir(STEPS)
    dumps = compile_dumps([f"{module}:{prefix}_{name}" for name in names], tmp_path, capsys)
    assert len(dumps) == len(names)
    each_expectation_fails_on_one(make, dumps)


def test_only_backward_donates_and_only_forward_accumulates_fast() -> None:
    donated = [e.name for e in float8_linear_backward().expectations if isinstance(e, GivenUp)]
    assert donated == ["residuals['kernel']", "residuals['x_t']"]
    fast = {
        workload.name: [e.scopes for e in workload.expectations if isinstance(e, FastAccumulation)]
        for workload in (float8_linear_forward(), float8_linear_backward(), float8_linear_step())
    }
    assert list(fast.values()) == [[("y",)], [()], [("y",)]]


@pytest.mark.parametrize("package", ["compressed_resnet", "float8_linear", "spectral_diffusion"])
def test_expectations_need_no_jax(package: str) -> None:
    code = (
        f"import sys; import models.{package}.expectations;"
        "print([name for name in ('jax', 'flax', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=STEPS.parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_a_gpu_without_float8_is_an_error_unless_unquantised_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(STEPS)
    options = ["--target", "a100_sxm_80", "--out", str(tmp_path), "--json"]
    assert main(["dump", "broken_float8:layer", *options]) == 2
    (error,) = json.loads(capsys.readouterr().out)["errors"]
    assert "compute capability 8.9 or newer" in error
    assert "found NVIDIA A100-SXM4-80GB (sm_80)" in error
    assert "otherwise='unquantised'" in error
    assert main(["dump", "broken_float8:layer_or_unquantised", *options]) == 0
    (row,) = json.loads(capsys.readouterr().out)["dumps"]
    (gemm,) = open_dump(Path(row["path"])).plan.gemms
    assert gemm.backend != "cublaslt_f8"
    assert all("f8" not in shape.text for shape in gemm.shapes)
