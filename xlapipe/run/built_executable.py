"""Starts to load a built executable, in a thread."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xlapipe.devices.platforms import platform_named
from xlapipe.devices.platforms.nvidia import MOSAIC_CALL
from xlapipe.dump.dump import EXECUTABLE, read_checked_file, read_manifest
from xlapipe.dump.manifest import Manifest
from xlapipe.errors import DumpError
from xlapipe.plans.program import ArgumentLeaf


@dataclass(frozen=True)
class BuiltExecutable:
    """An executable in a folder that `xlapipe build` made, in host memory.

    Its content is what XLA serialised; the digest is that in the manifest.
    """

    path: Path
    manifest: Manifest
    content: bytes

    @property
    def has_mosaic_kernels(self) -> bool:
        """Whether it calls kernels through Mosaic GPU."""
        return MOSAIC_CALL.encode() in self.content

    def not_loaded(self, error: Exception) -> DumpError:
        """The error that a plugin cannot load it."""
        return DumpError(
            f"{self.path / EXECUTABLE}: this jaxlib cannot load it: {error}; fix: build it again"
        )


def read_executable(path: Path) -> BuiltExecutable:
    """Reads the executable of a folder that `xlapipe build` made; needs no GPU."""
    manifest = built_manifest(path)
    return BuiltExecutable(path, manifest, read_checked_file(path, manifest, EXECUTABLE))


def built_manifest(path: Path) -> Manifest:
    """The manifest of a folder that `xlapipe build` made.

    Checks no digests: the files that a plan is read from may take longer to decompress than the
    executable to load. Files are checked where they are read.
    """
    manifest = read_manifest(path, check_files=False)
    if (
        EXECUTABLE not in manifest.files
        and not platform_named(manifest.platform).builds_executables
    ):
        raise DumpError(
            f"{path}: holds a plan for {manifest.device}, and executables are built for NVIDIA "
            "GPUs only; fix: run a folder that `xlapipe build` made for a GPU"
        )
    if EXECUTABLE not in manifest.files:
        raise DumpError(f"{path}: holds no executable; fix: make one with `xlapipe build`")
    return manifest


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
