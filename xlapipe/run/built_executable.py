"""An executable in a folder that `xlapipe build` made, and the start of loading it."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlapipe.devices.platforms import platform_named
from xlapipe.dump.dump import EXECUTABLE, read_checked_file, read_manifest
from xlapipe.dump.manifest import Manifest
from xlapipe.errors import DumpError

if TYPE_CHECKING:
    from xlapipe.run.executable import LoadedExecutable


@dataclass(frozen=True)
class BuiltExecutable:
    """An executable in a folder that `xlapipe build` made, in host memory.

    Its content is what XLA serialised; the digest is that in the manifest.
    """

    path: Path
    manifest: Manifest
    content: bytes


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


def start_loading(built: BuiltExecutable) -> "tuple[Any, Future[LoadedExecutable]]":
    """Selects the GPUs of an executable, and starts to load it onto them.

    Returns:
      jax's first GPU that it runs on, and the executable once it is loaded, in a thread.
    """
    from xlapipe.run.executable import load_executable, select_devices  # imports jax

    devices = select_devices(built.path, built.manifest)
    loader = ThreadPoolExecutor(1, f"loading {built.path.name}")
    loading = loader.submit(load_executable, built, devices)
    loader.shutdown(wait=False)
    return devices[0], loading
