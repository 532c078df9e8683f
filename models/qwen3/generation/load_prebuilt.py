"""Loads executables that were built in advance onto the attached GPU. Imports no jax."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from models.qwen3.generation.compiled_steps import CompiledGeneration, StepDevice
from models.qwen3.generation.pjrt_device import PjrtDevice
from models.qwen3.generation.prebuilt_index import DECODE, PrebuiltExecutables, prompts_folder
from models.qwen3.generation.prebuilt_step import prebuilt_step
from models.qwen3.generation.step_arrays import decode_arguments, prompt_arguments, step_outputs
from models.qwen3.kernels.persistent.residency import why_not_resident
from xlapipe.errors import XlapipeError
from xlapipe.running.built_executable import read_executable
from xlapipe.running.pjrt.client import Client
from xlapipe.running.pjrt.load import load_executable, select_device


def load_prebuilt(
    prebuilt: PrebuiltExecutables, longest: int, client: Callable[[], Client]
) -> tuple[CompiledGeneration, StepDevice]:
    """The steps for prompts of up to `longest` tokens, and the device that they are loaded on.

    Returns while they are being loaded, each in a thread; `CompiledGeneration.check_loaded` reports
    errors of loading.

    Args:
      client: waits for the client and returns it; called when the executables are read.

    Raises:
      XlapipeError: no GPU; or an executable is for another GPU or model, or damaged; or it has the
        persistent kernel, whose blocks cannot all run at once.
    """
    sizes, config = prebuilt.sizes_for(longest), prebuilt.config
    names = (prompts_folder(sizes.bucket), DECODE)
    both = [read_executable(prebuilt.path / name) for name in names]
    created = client()
    devices = [select_device(built.path, built.manifest, created) for built in both]
    if prebuilt.persistent_kernel:
        _check_residency(prebuilt, devices[0])
    arrays = (
        (prompt_arguments(config, sizes), step_outputs(config, sizes, steps=1)),
        (decode_arguments(config, sizes), step_outputs(config, sizes, steps=sizes.steps)),
    )
    loading = ThreadPoolExecutor(len(both), "loading an executable")
    prompts, decode = (
        prebuilt_step(built, arguments, outputs, loading.submit(load_executable, built, created))
        for built, (arguments, outputs) in zip(both, arrays, strict=True)
    )
    loading.shutdown(wait=False)
    implementations = prebuilt.implementations_for(longest)
    return CompiledGeneration(sizes, prompts, decode, implementations), PjrtDevice(devices[0])


def _check_residency(prebuilt: PrebuiltExecutables, device: Any) -> None:
    """Raises XlapipeError if blocks of the persistent kernel may wait for ones that do not run."""
    reason = why_not_resident(getattr(device, "core_count", None))
    if reason is not None:
        raise XlapipeError(
            f"{prebuilt.path / DECODE}: the persistent kernel cannot run on {device}: {reason}; "
            "fix: build the folder again with --no-persistent-kernel"
        )
