"""Loads executables that were built in advance onto the attached GPU."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from models.qwen3.generation.compiled_steps import (
    CompiledGeneration,
    abstract_arguments,
    prebuilt_step,
)
from models.qwen3.generation.prebuilt_index import DECODE, PrebuiltExecutables, prompts_folder
from models.qwen3.kernels.persistent.residency import why_not_resident
from xlapipe.errors import XlapipeError
from xlapipe.running.executable import load_executable, read_executable
from xlapipe.running.select_devices import select_devices


def load_prebuilt(prebuilt: PrebuiltExecutables, longest: int) -> tuple[CompiledGeneration, Any]:
    """The steps for prompts of up to `longest` tokens, and the device that they are loaded on.

    Returns while they are being loaded, each in a thread; `CompiledGeneration.check_loaded` reports
    errors of loading.

    Raises:
      XlapipeError: no GPU; or an executable is for another GPU, or damaged; or it has the
        persistent kernel, whose blocks cannot all run at once.
    """
    sizes = prebuilt.sizes_for(longest)
    names = (prompts_folder(sizes.bucket), DECODE)
    both = [read_executable(prebuilt.path / name) for name in names]
    devices = [select_devices(built.path, built.manifest) for built in both]
    device = devices[0][0]
    if prebuilt.persistent_kernel:
        _check_residency(prebuilt, device)
    with_arguments = zip(both, abstract_arguments(prebuilt.config, sizes), strict=True)
    loading = ThreadPoolExecutor(len(both), "loading an executable")
    prompts, decode = (
        prebuilt_step(built, arguments, loading.submit(load_executable, built, (device,)))
        for built, arguments in with_arguments
    )
    loading.shutdown(wait=False)
    implementations = prebuilt.implementations_for(longest)
    return CompiledGeneration(sizes, prompts, decode, implementations), device


def _check_residency(prebuilt: PrebuiltExecutables, device: Any) -> None:
    """Raises XlapipeError if blocks of the persistent kernel may wait for ones that do not run."""
    reason = why_not_resident(getattr(device, "core_count", None))
    if reason is not None:
        raise XlapipeError(
            f"{prebuilt.path / DECODE}: the persistent kernel cannot run on {device}: {reason}; "
            "fix: build the folder again with --no-persistent-kernel"
        )
