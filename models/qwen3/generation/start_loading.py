"""Starts to load executables that were built in advance. Imports neither jax nor numpy.

Loading takes longer than everything else until the first token, so it starts first.
"""

from dataclasses import dataclass
from typing import Any

import xlapipe
from models.qwen3.generation.prebuilt_index import DECODE, PrebuiltExecutables, prompts_folder
from models.qwen3.kernels.all_layers.residency import why_not_resident
from xlapipe import LoadedStep, XlapipeError


@dataclass(frozen=True)
class LoadingSteps:
    """Both steps; they are being loaded."""

    prompts: LoadedStep
    decode: LoadedStep


def start_loading(prebuilt: PrebuiltExecutables, longest: int) -> LoadingSteps:
    """The executables for prompts of up to `longest` tokens; each is being loaded in a thread.

    Raises:
      XlapipeError: no GPU; or an executable is for another GPU, or damaged; or it has the
        persistent kernel, whose blocks cannot all run at once.
    """
    bucket = prebuilt.sizes_for(longest).bucket
    prompts = xlapipe.load(prebuilt.path / prompts_folder(bucket), wait=False)
    if prebuilt.persistent_kernel:
        _check_residency(prebuilt, prompts.device)
    return LoadingSteps(prompts, xlapipe.load(prebuilt.path / DECODE, wait=False))


def _check_residency(prebuilt: PrebuiltExecutables, device: Any) -> None:
    """Raises XlapipeError if blocks of the persistent kernel may wait for ones that do not run."""
    reason = why_not_resident(getattr(device, "core_count", None))
    if reason is not None:
        raise XlapipeError(
            f"{prebuilt.path / DECODE}: the persistent kernel cannot run on {device}: {reason}; "
            "fix: build the folder again with --no-persistent-kernel"
        )
