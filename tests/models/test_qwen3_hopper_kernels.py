"""The kernels for Hopper: their results in the interpreter, and the prompts that they support."""

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
from tests.models.interpreted_hopper_kernels import CONFIG

pytestmark = [pytest.mark.jax, pytest.mark.exhaustive]

INTERPRETED = Path(__file__).with_name("interpreted_hopper_kernels.py")


@pytest.mark.skipif(
    not hasattr(plgpu, "InterpretGPUParams"), reason="this jax has no interpreter for Mosaic GPU"
)
def test_kernels_in_the_interpreter() -> None:
    """Runs them in a separate process with 64 XLA threads.

    The interpreter blocks one of XLA's threads for each thread of a kernel, and deadlocks if XLA
    has too few; NPROC sets their number. Only ending the process ends a test that hangs in XLA.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, str(INTERPRETED)],
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
def test_supported_gpus_jax_versions_and_shapes(
    fits: bool, length: int, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"compute_capability": "9.0", "jax": "0.11.2", **changes}
    installed, capability = changes.pop("jax"), changes.pop("compute_capability")
    monkeypatch.setattr(tiling, "version", {"jax": installed}.__getitem__)
    assert hopper_fits(replace(CONFIG, **changes), length, capability) == fits
