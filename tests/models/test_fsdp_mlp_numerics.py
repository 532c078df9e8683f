"""The sharded MLP on 1 to 8 devices computes the same as the unsharded one."""

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from tests.folders import STEPS

pytestmark = [pytest.mark.jax, pytest.mark.slow]

F64: TypeAlias = npt.NDArray[np.float64]
Results: TypeAlias = Mapping[str, F64]
DEVICES = (1, 2, 4, 8)
# Relative error of a whole gradient, by dtype.
ROUNDING = {"float32": 2e-6, "bfloat16": 2**-6}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    out = tmp_path_factory.mktemp("fsdp") / "results.npz"
    subprocess.run(
        [sys.executable, STEPS / "fsdp_on_cpus.py", out],
        cwd=STEPS.parents[1],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8", "PYTHONPATH": "."},
        check=True,
    )
    return dict(np.load(out))


def leaves(results: Results, prefix: str) -> list[F64]:
    names = [name for name in results if name.rpartition("/")[0] == prefix]
    assert names, f"no result is named {prefix}"
    return [results[f"{prefix}/{number}"] for number in range(len(names))]


def relative_error(actual: F64, expected: F64) -> float:
    assert actual.shape == expected.shape
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


def np_gradients(kernels: list[F64], x: F64, target: F64) -> tuple[float, list[F64]]:
    """The loss and its gradients in float64."""
    hidden = [x]
    for kernel in kernels:
        hidden.append(np.maximum(hidden[-1] @ kernel.T, 0))
    error = hidden[-1] - target
    d = 2 * error / error.size
    gradients = []
    for kernel, before, after in list(zip(kernels, hidden, hidden[1:], strict=False))[::-1]:
        d = np.where(after > 0, d, 0)
        gradients.append(d.T @ before)
        d = d @ kernel
    return float((error**2).mean()), gradients[::-1]


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("devices", DEVICES)
def test_gradients_match_float64(results: Results, devices: int, dtype: str) -> None:
    x, target = leaves(results, f"batch/{devices}")
    loss, *gradients = leaves(results, f"gradients/{devices}/{dtype}")
    expected_loss, expected = np_gradients(leaves(results, f"params/{devices}"), x, target)
    assert loss == pytest.approx(expected_loss, rel=ROUNDING[dtype])
    assert len(gradients) == len(expected) == 3
    for gradient, expected_gradient in zip(gradients, expected, strict=True):
        assert relative_error(gradient, expected_gradient) < ROUNDING[dtype]


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("devices", DEVICES)
def test_gradients_match_those_of_the_unsharded_model(
    results: Results, devices: int, dtype: str
) -> None:
    plain = leaves(results, f"gradients/plain/{dtype}")
    sharded = leaves(results, f"gradients/{devices}/{dtype}")
    for gradient, expected in zip(sharded, plain, strict=True):
        assert relative_error(gradient, expected) < ROUNDING[dtype]


@pytest.mark.parametrize("devices", DEVICES[1:])
def test_a_seed_gives_the_same_state_and_batch_on_every_mesh(
    results: Results, devices: int
) -> None:
    for name in ("params/{}", "batch/{}"):
        sharded, single = leaves(results, name.format(devices)), leaves(results, name.format(1))
        for array, expected in zip(sharded, single, strict=True):
            np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("devices", DEVICES)
def test_the_reference_backward_matches_autodiff_of_the_plain_mlp(
    results: Results, devices: int
) -> None:
    gradients = leaves(results, f"reference/{devices}")
    for gradient, expected in zip(gradients, leaves(results, "reference/plain"), strict=True):
        assert np.linalg.norm(expected) > 1
        assert relative_error(gradient, expected) < ROUNDING["float32"]


@pytest.mark.parametrize("devices", [1, 8])
def test_training_lowers_the_loss_as_the_plain_step_does(results: Results, devices: int) -> None:
    losses = results[f"losses/{devices}"]
    assert losses[-1] < losses[0] / 2
    assert losses[-1] == pytest.approx(results["losses/plain"][0], rel=1e-3)
    plain = leaves(results, "trained/plain")
    for params, expected in zip(leaves(results, f"trained/{devices}"), plain, strict=True):
        assert relative_error(params, expected) < 1e-3
