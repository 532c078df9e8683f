"""The sharded MLP computes what the whole one does, on 1 to 8 devices."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

F64: TypeAlias = npt.NDArray[np.float64]
Found: TypeAlias = Mapping[str, F64]
HERE = Path(__file__).parent
DEVICES = (1, 2, 4, 8)
# Relative, of a whole gradient.
ROUNDING = {"float32": 2e-6, "bfloat16": 2**-6}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    out = tmp_path_factory.mktemp("fsdp") / "found.npz"
    subprocess.run(
        [sys.executable, HERE / "fsdp_on_cpus.py", out],
        cwd=HERE.parents[1],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8", "PYTHONPATH": "."},
        check=True,
    )
    return dict(np.load(out))


def leaves(found: Found, prefix: str) -> list[F64]:
    names = [name for name in found if name.rpartition("/")[0] == prefix]
    assert names, f"nothing named {prefix}"
    return [found[f"{prefix}/{number}"] for number in range(len(names))]


def apart(one: F64, other: F64) -> float:
    assert one.shape == other.shape
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


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
def test_gradients_against_float64(found: Found, devices: int, dtype: str) -> None:
    x, target = leaves(found, f"batch/{devices}")
    loss, *gradients = leaves(found, f"gradients/{devices}/{dtype}")
    expected_loss, expected = np_gradients(leaves(found, f"params/{devices}"), x, target)
    assert loss == pytest.approx(expected_loss, rel=ROUNDING[dtype])
    assert len(gradients) == len(expected) == 3
    for one, other in zip(gradients, expected, strict=True):
        assert apart(one, other) < ROUNDING[dtype]


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("devices", DEVICES)
def test_gradients_are_those_of_one_device(found: Found, devices: int, dtype: str) -> None:
    plain = leaves(found, f"gradients/plain/{dtype}")
    sharded = leaves(found, f"gradients/{devices}/{dtype}")
    for one, other in zip(sharded, plain, strict=True):
        assert apart(one, other) < ROUNDING[dtype]


@pytest.mark.parametrize("devices", DEVICES[1:])
def test_a_seed_gives_the_same_state_and_batch_on_every_mesh(found: Found, devices: int) -> None:
    for name in ("params/{}", "batch/{}"):
        one, other = leaves(found, name.format(devices)), leaves(found, name.format(1))
        for left, right in zip(one, other, strict=True):
            np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("devices", DEVICES)
def test_the_reference_is_what_jax_makes_of_the_plain_mlp(found: Found, devices: int) -> None:
    answer = leaves(found, f"reference/{devices}")
    for one, other in zip(answer, leaves(found, "reference/plain"), strict=True):
        assert np.linalg.norm(other) > 1
        assert apart(one, other) < ROUNDING["float32"]


@pytest.mark.parametrize("devices", [1, 8])
def test_training_lowers_the_loss_as_the_plain_step_does(found: Found, devices: int) -> None:
    losses = found[f"losses/{devices}"]
    assert losses[-1] < losses[0] / 2
    assert losses[-1] == pytest.approx(found["losses/plain"][0], rel=1e-3)
    plain = leaves(found, "trained/plain")
    for one, other in zip(leaves(found, f"trained/{devices}"), plain, strict=True):
        assert apart(one, other) < 1e-3
