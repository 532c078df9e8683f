"""Starts to load executables that were built in advance. Imports neither jax nor numpy.

Loading takes longer than everything else until the first token, so it starts first.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from models.qwen3.generation.device_protocols import DeviceExecutable, PutDevice
from models.qwen3.generation.prebuilt_index import DECODE, PrebuiltExecutables, prompts_folder
from models.qwen3.kernels.persistent.residency import why_not_resident
from xlapipe import XlapipeError
from xlapipe.running.built_executable import BuiltExecutable, read_executable
from xlapipe.running.pjrt.load import create_client, load_executable, select_device


@dataclass(frozen=True)
class LoadingExecutable:
    """An executable in host memory, and on the device when it is loaded."""

    built: BuiltExecutable
    loading: "Future[DeviceExecutable]"


@dataclass(frozen=True)
class LoadingExecutables:
    """The executables of both steps, and the device that they are being loaded on."""

    prompts: LoadingExecutable
    decode: LoadingExecutable
    device: PutDevice


def start_loading(prebuilt: PrebuiltExecutables, longest: int) -> LoadingExecutables:
    """Reads the executables for prompts of up to `longest` tokens, and creates the client.

    Returns while they are being loaded, each in a thread.

    Raises:
      XlapipeError: no GPU; or an executable is for another GPU, or damaged; or it has the
        persistent kernel, whose blocks cannot all run at once.
    """
    names = (prompts_folder(prebuilt.sizes_for(longest).bucket), DECODE)
    both = [read_executable(prebuilt.path / name) for name in names]
    client = create_client()
    devices = [select_device(built.path, built.manifest, client) for built in both]
    if prebuilt.persistent_kernel:
        _check_residency(prebuilt, devices[0])
    pool = ThreadPoolExecutor(len(both), "loading an executable")
    prompts, decode = (
        LoadingExecutable(built, pool.submit(load_executable, built, client)) for built in both
    )
    pool.shutdown(wait=False)
    return LoadingExecutables(prompts, decode, devices[0])


def _check_residency(prebuilt: PrebuiltExecutables, device: Any) -> None:
    """Raises XlapipeError if blocks of the persistent kernel may wait for ones that do not run."""
    reason = why_not_resident(getattr(device, "core_count", None))
    if reason is not None:
        raise XlapipeError(
            f"{prebuilt.path / DECODE}: the persistent kernel cannot run on {device}: {reason}; "
            "fix: build the folder again with --no-persistent-kernel"
        )
