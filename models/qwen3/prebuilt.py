"""Puts executables that were built ahead onto the attached GPU."""

from typing import Any

from models.qwen3.executables import DECODE, Executables, prompts_folder
from models.qwen3.programs import Programs, abstract_arguments, loaded
from xlapipe.executable import device_for, load_executable, open_built


def load_programs(executables: Executables, longest: int) -> tuple[Programs, Any]:
    """The programs for prompts of up to `longest` tokens, and the device that they are on.

    Raises:
      XlapipeError: no GPU, or executables that are not for it, or damaged.
    """
    sizes = executables.sizes_for(longest)
    arguments = abstract_arguments(executables.config, sizes)
    dumps = [open_built(executables.path / name) for name in (prompts_folder(sizes.bucket), DECODE)]
    device, _ = (device_for(dump) for dump in dumps)
    prompts, decode = (
        loaded(load_executable(dump, device), each)
        for dump, each in zip(dumps, arguments, strict=True)
    )
    return Programs(sizes, prompts, decode), device
