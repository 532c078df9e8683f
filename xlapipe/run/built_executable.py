"""A built executable in host memory, and what its kernels need to be loaded. Imports no jax.

The executable is in PJRT's serialised form, never a pickle. Its bytes are compared with the
manifest's digest when they are read; all that describes it is plain data.
"""

from dataclasses import dataclass
from pathlib import Path

from xlapipe.devices.platforms import platform_named
from xlapipe.devices.platforms.nvidia import MOSAIC_CALL
from xlapipe.dump.dump import EXECUTABLE, read_checked_file, read_manifest
from xlapipe.dump.manifest import Manifest
from xlapipe.errors import DumpError


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
