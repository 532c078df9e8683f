"""The device that the models' own commands run on."""

from pathlib import Path
from typing import Any

import jax

# An NVIDIA GPU under Linux, and under WSL.
_GPU_FILES = ("nvidia[0-9]*", "dxg")


def first_device() -> Any:
    """jax's first device. Without a GPU, selects the CPU: jax's CUDA plugin would log errors.

    `JAX_PLATFORMS` is kept.
    """
    attached = any(True for name in _GPU_FILES for _ in Path("/dev").glob(name))
    if not attached and not jax.config.jax_platforms:
        jax.config.update("jax_platforms", "cpu")
    return jax.devices()[0]
