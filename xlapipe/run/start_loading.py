"""Starts to load a built executable: through PJRT alone where possible, else through jax.

jax is needed for several GPUs, for arguments in the host's memory, for types that numpy does not
have, and where this process uses GPUs through jax already: a second client would find most of the
memory taken.
"""

import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import Any

from xlapipe.dump.manifest import Manifest
from xlapipe.plans.program import ArgumentLeaf, OutputLeaf
from xlapipe.run.built_executable import BuiltExecutable
from xlapipe.run.pjrt import load as pjrt
from xlapipe.run.pjrt.client import ELEMENT_TYPES, Buffer


@dataclass(frozen=True)
class LoadingExecutable:
    """An executable that is being loaded in a thread.

    Attributes:
      device: the first GPU that it runs on: `platform`, `device_kind`, `core_count`,
        `compute_capability` and `memory_stats()`, in both runtimes.
      place: puts the whole array of an argument, on the host or an output of a program, where the
        program takes it.
      execute: a function, once it is loaded, that starts the program with a list of placed arrays,
        one for each parameter, and returns the list of outputs without waiting for them.
    """

    device: Any
    place: Callable[[ArgumentLeaf, Any], Any]
    execute: "Future[Any]"


def start_loading(built: BuiltExecutable) -> LoadingExecutable:
    """Selects the GPUs of an executable, and starts to load it onto them.

    Raises:
      DumpError: the executable was built with other versions of jaxlib or the plugin.
      TargetError: the attached GPUs are not those that it was built for.
    """
    loader = ThreadPoolExecutor(1, f"loading {built.path.name}")
    try:
        return _through_jax(built, loader) if needs_jax(built.manifest) else _alone(built, loader)
    finally:
        loader.shutdown(wait=False)


def _alone(built: BuiltExecutable, loader: ThreadPoolExecutor) -> LoadingExecutable:
    client = pjrt.shared_client()
    device = pjrt.select_device(built.path, built.manifest, client)

    def place(leaf: ArgumentLeaf, value: Any) -> Any:
        return value if isinstance(value, Buffer) else device.put(value)

    executing: Future[Any] = loader.submit(lambda: pjrt.load_executable(built, client).execute)
    return LoadingExecutable(device, place, executing)


def _through_jax(built: BuiltExecutable, loader: ThreadPoolExecutor) -> LoadingExecutable:
    from xlapipe.run.executable import load_executable, select_devices

    devices = select_devices(built.path, built.manifest)
    loading = loader.submit(load_executable, built, devices)
    executing: Future[Any] = loader.submit(lambda: loading.result().execute)
    return LoadingExecutable(
        devices[0], lambda leaf, value: loading.result().place(leaf, value), executing
    )


def needs_jax(manifest: Manifest) -> bool:
    """Whether PJRT alone cannot run an executable here; see the module's description."""
    leaves: tuple[ArgumentLeaf | OutputLeaf, ...] = (*manifest.arguments, *manifest.outputs)
    return (
        prod((manifest.mesh or {}).values()) > 1
        or any(leaf.memory_kind not in (None, "device") for leaf in leaves)
        or any(leaf.dtype not in ELEMENT_TYPES for leaf in leaves)
        or _jax_uses_gpus()
    )


def _jax_uses_gpus() -> bool:
    """Whether jax has created its client of GPUs in this process. Does not import jax."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bridge is not None and "cuda" in getattr(bridge, "_backends", {})
