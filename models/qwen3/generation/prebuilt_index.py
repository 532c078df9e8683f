"""Puts executables that were built ahead onto the attached GPU."""

from typing import Any

from models.qwen3.generation.load_prebuilt import DECODE, Executables, prompts_folder
from models.qwen3.generation.programs import Programs, abstract_arguments, loaded
from xlapipe.running.executable import load_executable


def load_programs(executables: Executables, longest: int) -> tuple[Programs, Any]:
    """The programs for prompts of up to `longest` tokens, and the device that they are on.

    Raises:
      XlapipeError: no GPU, or executables that are not for it, or damaged.
    """
    sizes = executables.sizes_for(longest)
    arguments = abstract_arguments(executables.config, sizes)
    executable = load_executable(executables.path / prompts_folder(sizes.bucket))
    prompts = loaded(executable, arguments[0])
    decode = loaded(load_executable(executables.path / DECODE), arguments[1])
    return Programs(sizes, prompts, decode), executable.device
