"""The kernels for Hopper: which prompts they are for, and that they compute what they should."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from models.qwen3.kernels import tiling
from models.qwen3.kernels.tiling import hopper_fits
from tests.cpu.interpreted_hopper_kernels import CONFIG

INTERPRETED = Path(__file__).with_name("interpreted_hopper_kernels.py")


@pytest.mark.skipif(
    not hasattr(plgpu, "InterpretGPUParams"), reason="this jax has no interpreter for Mosaic GPU"
)
def test_kernels_in_the_interpreter() -> None:
    """Each thread of a kernel holds one of XLA's until others have run: with few it never ends.

    XLA takes as many threads as NPROC says. A test that hangs within XLA cannot be ended but with
    its process.
    """
    asked = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*asked, str(INTERPRETED)],
        env={**os.environ, "NPROC": "64"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "4 passed" in done.stdout


@pytest.mark.parametrize(
    ("fits", "length", "changes"),
    [
        (True, 128, {}),
        (True, 128, {"compute_capability": "9.0", "jax": "0.12.0.1"}),
        (False, 128, {"jax": "0.10.2"}),
        (False, 128, {"compute_capability": "10.0"}),
        (False, 128, {"compute_capability": None}),
        (False, 128, {"dtype": "float32"}),
        (False, 64, {}),
        (False, 192, {}),
        (False, 128, {"head_dim": 64}),
        (False, 128, {"hidden_size": 96}),
        (False, 128, {"intermediate_size": 192}),
        (False, 128, {"num_key_value_heads": 1}),
    ],
)
def test_where_the_kernels_are_taken(
    fits: bool, length: int, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"compute_capability": "9.0", "jax": "0.11.2", **changes}
    installed, capability = changes.pop("jax"), changes.pop("compute_capability")
    monkeypatch.setattr(tiling, "version", {"jax": installed}.__getitem__)
    assert hopper_fits(replace(CONFIG, **changes), length, capability) == fits
