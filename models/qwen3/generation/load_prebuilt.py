"""Loads executables that were built in advance onto the attached GPU."""

from typing import Any

from models.qwen3.generation.compiled_steps import (
    CompiledGeneration,
    abstract_arguments,
    prebuilt_step,
)
from models.qwen3.generation.prebuilt_index import DECODE, PrebuiltExecutables, prompts_folder
from models.qwen3.kernels.persistent.residency import why_not_resident
from xlapipe.errors import XlapipeError
from xlapipe.running.executable import load_executable


def load_prebuilt(prebuilt: PrebuiltExecutables, longest: int) -> tuple[CompiledGeneration, Any]:
    """The steps for prompts of up to `longest` tokens, and the device that they are loaded on.

    Raises:
      XlapipeError: no GPU; or an executable is for another GPU, or damaged; or it has the
        persistent kernel, whose blocks cannot all run at once.
    """
    sizes = prebuilt.sizes_for(longest)
    prompt_arguments, decode_arguments = abstract_arguments(prebuilt.config, sizes)
    prompts = load_executable(prebuilt.path / prompts_folder(sizes.bucket))
    decode = load_executable(prebuilt.path / DECODE)
    if prebuilt.persistent_kernel:
        _check_residency(prebuilt, decode.device)
    steps = CompiledGeneration(
        sizes, prebuilt_step(prompts, prompt_arguments), prebuilt_step(decode, decode_arguments)
    )
    return steps, prompts.device


def _check_residency(prebuilt: PrebuiltExecutables, device: Any) -> None:
    """Raises XlapipeError if blocks of the persistent kernel may wait for ones that do not run."""
    reason = why_not_resident(getattr(device, "core_count", None))
    if reason is not None:
        raise XlapipeError(
            f"{prebuilt.path / DECODE}: the persistent kernel cannot run on {device}: {reason}; "
            "fix: build the folder again without --persistent-kernel"
        )
