"""Sharded Qwen3 computes what the model that knows no mesh does: loss, gradients, decode steps."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

F32: TypeAlias = npt.NDArray[np.float32]
Leaves: TypeAlias = Mapping[str, F32]
HERE = Path(__file__).parent
# Sums of the same float32 numbers in another order.
ROUNDING = 5e-6


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Leaves:
    out = tmp_path_factory.mktemp("sharded") / "found.npz"
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "8",
        # Half the time goes into kernels that run once.
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
        "PYTHONPATH": ".",
    }
    subprocess.run(
        [sys.executable, HERE / "qwen3_on_cpus.py", out],
        cwd=HERE.parents[1],
        env=environment,
        check=True,
    )
    return dict(np.load(out))


def under(found: Leaves, prefix: str) -> dict[str, F32]:
    leaves = {
        name.removeprefix(prefix): leaf for name, leaf in found.items() if name.startswith(prefix)
    }
    assert leaves, f"nothing under {prefix}"
    return leaves


def hold_together(one: Leaves, other: Leaves) -> None:
    assert one.keys() == other.keys()
    for name, leaf in one.items():
        assert leaf.shape == other[name].shape, name
        distance = np.linalg.norm(leaf - other[name]) / np.linalg.norm(other[name])
        assert distance < ROUNDING, (name, distance)


@pytest.mark.parametrize("config", ["tied", "untied"])
def test_loss_and_gradients_are_those_of_the_model_without_a_mesh(
    config: str, found: Leaves
) -> None:
    for part in ("['loss']", "['gradients']"):
        sharded = under(found, f"{config}/2x4/{part}")
        hold_together(sharded, under(found, f"{config}/model/{part}"))


@pytest.mark.parametrize("other", ["1x1", "unrolled"])
def test_eight_devices_and_a_loop_compute_what_one_does_and_unrolled_layers(
    other: str, found: Leaves
) -> None:
    hold_together(under(found, "tied/2x4/"), under(found, f"{other}/"))


@pytest.mark.parametrize("config", ["tied", "untied"])
def test_adamw_moves_every_weight_and_decays_matrices_alone(config: str, found: Leaves) -> None:
    sharded = under(found, f"{config}/2x4/['weights']")
    start = under(found, f"{config}/start/['weights']")
    gradients = under(found, f"{config}/2x4/['gradients']")
    # The first step moves by the learning rate in the gradient's direction, where that is well
    # above epsilon; matrices also lose the learning rate times the decay of themselves.
    for name, before in start.items():
        decay = 0.0 if name.endswith("norm']") else 1e-4 * 0.1
        expected = before - 1e-4 * np.sign(gradients[name]) - decay * before
        large = np.abs(gradients[name]) > 1e-4
        assert large.any(), name
        np.testing.assert_allclose(sharded[name][large], expected[large], rtol=0, atol=2e-7)


def test_decode_steps_are_those_of_one_device(found: Leaves) -> None:
    hold_together(under(found, "served/"), under(found, "decode/"))
