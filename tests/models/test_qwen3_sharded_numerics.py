"""Sharded Qwen3 compared with the model on one device: loss, gradients, weights."""

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

F32: TypeAlias = npt.NDArray[np.float32]
Leaves: TypeAlias = Mapping[str, F32]
# Relative error from summing the same float32 numbers in another order.
ROUNDING = 5e-6


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Leaves:
    out = tmp_path_factory.mktemp("sharded") / "results.npz"
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "8",
        # Optimising kernels that run once would take half the time.
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
        "PYTHONPATH": ".",
    }
    subprocess.run(
        [sys.executable, STEPS / "qwen3_on_cpus.py", out],
        cwd=STEPS.parents[1],
        env=environment,
        check=True,
    )
    return dict(np.load(out))


def below(results: Leaves, prefix: str) -> dict[str, F32]:
    leaves = {
        name.removeprefix(prefix): leaf for name, leaf in results.items() if name.startswith(prefix)
    }
    assert leaves, f"no result's name starts with {prefix}"
    return leaves


def assert_close(actual: Leaves, expected: Leaves) -> None:
    assert actual.keys() == expected.keys()
    for name, leaf in actual.items():
        assert leaf.shape == expected[name].shape, name
        error = np.linalg.norm(leaf - expected[name]) / np.linalg.norm(expected[name])
        assert error < ROUNDING, (name, error)


@pytest.mark.parametrize("config", ["tied", "untied"])
def test_loss_and_gradients_match_the_unsharded_model(config: str, results: Leaves) -> None:
    for part in ("['loss']", "['gradients']"):
        sharded = below(results, f"{config}/2x4/{part}")
        assert_close(sharded, below(results, f"{config}/model/{part}"))


@pytest.mark.parametrize("other", ["1x1", "unrolled"])
def test_eight_devices_match_one_device_and_unrolled_layers(other: str, results: Leaves) -> None:
    assert_close(below(results, "tied/2x4/"), below(results, f"{other}/"))


@pytest.mark.parametrize("config", ["tied", "untied"])
def test_adamw_updates_every_weight_and_decays_matrices_only(config: str, results: Leaves) -> None:
    sharded = below(results, f"{config}/2x4/['weights']")
    start = below(results, f"{config}/start/['weights']")
    gradients = below(results, f"{config}/2x4/['gradients']")
    # The first step moves each weight by the learning rate against its gradient, if the gradient is
    # well above epsilon. Matrices also decay by the learning rate times the weight decay.
    for name, before in start.items():
        decay = 0.0 if name.endswith("norm']") else 1e-4 * 0.1
        expected = before - 1e-4 * np.sign(gradients[name]) - decay * before
        large = np.abs(gradients[name]) > 1e-4
        assert large.any(), name
        np.testing.assert_allclose(sharded[name][large], expected[large], rtol=0, atol=2e-7)
