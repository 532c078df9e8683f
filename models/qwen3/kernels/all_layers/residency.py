"""Whether all blocks of the persistent kernel can run at once on a GPU. Imports no jax.

Its blocks wait for one another. A block that gets no multiprocessor would let the others wait until
their bounded waits end the launch with an error, so that this is checked before the launch.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from models.qwen3.kernels.all_layers.sizes import BLOCKS

_PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_PIPES = "CUDA_MPS_PIPE_DIRECTORY"
_DEFAULT_PIPES = "/tmp/nvidia-mps"


def why_not_resident(
    multiprocessors: int | None, environment: Mapping[str, str] | None = None
) -> str | None:
    """The reason why the blocks may not all run at once; None if they do.

    Args:
      multiprocessors: those that CUDA reports to this process. Under MIG they are those of the
        instance. None if unknown.
      environment: default: that of this process.
    """
    environment = os.environ if environment is None else environment
    needed = f"its {BLOCKS} blocks must run at once"
    if multiprocessors is None:
        return f"{needed}; the number of multiprocessors is unknown"
    if multiprocessors < BLOCKS:
        return f"{needed}; {multiprocessors} multiprocessors are available"
    if _PERCENTAGE in environment:
        return f"{needed}; {_PERCENTAGE} limits multiprocessors"
    pipes = Path(environment.get(_PIPES) or _DEFAULT_PIPES)
    if (pipes / "control").exists():
        return f"{needed}; under MPS ({pipes}), other processes can occupy multiprocessors"
    return None
