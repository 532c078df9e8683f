"""Starts to load a built executable, in a thread."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from xlapipe.plans.program import ArgumentLeaf
from xlapipe.run.built_executable import BuiltExecutable


@dataclass(frozen=True)
class LoadingExecutable:
    """An executable that is being loaded in a thread.

    Attributes:
      device: jax's first GPU that it runs on.
      place: puts the whole array of an argument, on the host or an output of a program, where the
        program takes it.
      execute: a function, once it is loaded, that starts the program with a list of placed arrays,
        one for each parameter, and returns the list of outputs without waiting for them.
    """

    device: Any
    place: Callable[[ArgumentLeaf, Any], Any]
    execute: "Future[Any]"


def start_loading(built: BuiltExecutable) -> LoadingExecutable:
    """Selects the GPUs of an executable, and starts to load it onto them."""
    from xlapipe.run.executable import load_executable, select_devices  # imports jax

    devices = select_devices(built.path, built.manifest)
    loader = ThreadPoolExecutor(1, f"loading {built.path.name}")
    loading = loader.submit(load_executable, built, devices)
    executing: Future[Any] = loader.submit(lambda: loading.result().execute)
    loader.shutdown(wait=False)
    return LoadingExecutable(
        devices[0], lambda leaf, value: loading.result().place(leaf, value), executing
    )
