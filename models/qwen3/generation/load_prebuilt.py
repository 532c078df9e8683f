"""Loads executables that were built in advance onto the attached GPU."""

from typing import Any

from models.qwen3.generation.compiled_steps import (
    CompiledGeneration,
    abstract_arguments,
    prebuilt_step,
)
from models.qwen3.generation.prebuilt_index import DECODE, PrebuiltExecutables, prompts_folder
from xlapipe.running.executable import load_executable


def load_prebuilt(prebuilt: PrebuiltExecutables, longest: int) -> tuple[CompiledGeneration, Any]:
    """The steps for prompts of up to `longest` tokens, and the device that they are loaded on.

    Raises:
      XlapipeError: no GPU; or an executable is for another GPU, or damaged.
    """
    sizes = prebuilt.sizes_for(longest)
    prompt_arguments, decode_arguments = abstract_arguments(prebuilt.config, sizes)
    prompts = load_executable(prebuilt.path / prompts_folder(sizes.bucket))
    decode = load_executable(prebuilt.path / DECODE)
    steps = CompiledGeneration(
        sizes, prebuilt_step(prompts, prompt_arguments), prebuilt_step(decode, decode_arguments)
    )
    return steps, prompts.device
