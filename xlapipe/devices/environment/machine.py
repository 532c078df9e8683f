"""The machine that the doctor examines: installed packages, CUDA's files, an attached GPU.

The search paths are those of jaxlib and XLA, in their order. Nothing here imports jax.
"""

import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from ctypes.util import find_library
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

# Folders in which XLA looks for a CUDA toolkit by default.
_TOOLKITS = tuple(Path("/") / parent / "cuda" for parent in ("usr/local", "opt"))
# A driver in a bad state can keep nvidia-smi waiting for minutes.
_NVIDIA_SMI_SECONDS = 10


@dataclass(frozen=True, slots=True)
class AttachedGpu:
    """An attached NVIDIA GPU. A field is None if nvidia-smi does not report it."""

    name: str
    driver_version: str | None = None
    compute_capability: tuple[int, int] | None = None


def _run(command: Sequence[str]) -> str | None:
    """Standard output, or None if the command is missing, fails or hangs."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            text=True,
            errors="replace",
            timeout=_NVIDIA_SMI_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _find_library(file_name: str) -> str | None:
    """The system's library of exactly that file name, as its loader would find it."""
    stem, _, _ = file_name.removeprefix("lib").partition(".so")
    return file_name if find_library(stem) == file_name else None


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the doctor examines. `Machine.local()` is this machine; tests make others.

    Attributes:
      site_packages: folders of installed packages, in the order of the search.
      python_command: the command that starts this Python in a shell.
      environ: environment variables.
      toolkits: folders in which XLA looks for a CUDA toolkit by default.
      devices: the folder of device files.
      amd_nodes: the folder in which AMD's driver lists GPUs and CPUs.
      run: runs a command and returns its output, or None if the command fails.
      find_library: finds a library of the system by its file name, or None.
    """

    python_version: tuple[int, ...]
    site_packages: Sequence[Path]
    python_command: str = "python"
    environ: Mapping[str, str]
    toolkits: Sequence[Path] = _TOOLKITS
    devices: Path = Path("/dev")
    amd_nodes: Path = Path("/sys/class/kfd/kfd/topology/nodes")
    run: Callable[[Sequence[str]], str | None] = _run
    find_library: Callable[[str], str | None] = _find_library

    @classmethod
    def local(cls) -> "Machine":
        """This process's machine and Python."""
        on_path = shutil.which("python")
        same = on_path is not None and Path(on_path) == Path(sys.executable)
        return cls(
            python_version=tuple(sys.version_info[:3]),
            site_packages=[Path(entry) for entry in sys.path if entry],
            python_command="python" if same else shlex.quote(sys.executable),
            environ=os.environ,
        )

    def version(self, package: str) -> str | None:
        path = [str(folder) for folder in self.site_packages]
        installed = next(iter(distributions(name=package, path=path)), None)
        return installed.version if installed is not None else None

    def in_site_packages(self, name: str) -> Path | None:
        """The first file or folder of that relative name."""
        paths = (folder / name for folder in self.site_packages)
        return next((path for path in paths if path.exists()), None)

    def cuda_tool(self, name: str) -> Path | None:
        """`ptxas` or `nvlink`: from jaxlib's folder, then PATH, then XLA's default folders."""
        on_path = [Path(entry) for entry in self.environ.get("PATH", "").split(os.pathsep) if entry]
        candidates = [
            *(root / "bin" / name for root in self._configured_roots()),
            *(folder / name for folder in on_path),
            *(root / "bin" / name for root in self._default_roots()),
        ]
        return next(
            (path for path in candidates if path.is_file() and os.access(path, os.X_OK)), None
        )

    def libdevice_folder(self) -> Path | None:
        """The first existing folder `nvvm/libdevice`; XLA uses no other."""
        roots = [*self._configured_roots(), *self._default_roots()]
        folders = (root / "nvvm" / "libdevice" for root in roots)
        return next((folder for folder in folders if folder.is_dir()), None)

    def library(self, file_name: str) -> Path | str | None:
        """A CUDA library: from a wheel, LD_LIBRARY_PATH, a toolkit, or the system."""
        for package in ("cu13", "cudnn", "nccl"):
            if path := self.in_site_packages(f"nvidia/{package}/lib/{file_name}"):
                return path
        entries = self.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
        folders = [Path(entry) for entry in entries if entry]
        folders += [toolkit / "lib64" for toolkit in self.toolkits]
        for folder in folders:
            if (folder / file_name).exists():
                return folder / file_name
        return self.find_library(file_name)

    def gpu(self) -> AttachedGpu | None:
        """The first attached NVIDIA GPU, without starting CUDA."""
        answer = self.run(
            ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
        )
        parts = [part.strip() for part in (answer or "").partition("\n")[0].split(",")]
        if len(parts) == 3:
            name, driver, capability = parts
            match = re.fullmatch(r"(\d+)\.(\d+)", capability)
            return AttachedGpu(name, driver, (int(match[1]), int(match[2])) if match else None)
        if (self.devices / "nvidia0").exists():
            return AttachedGpu("an NVIDIA GPU")
        return None

    def attached_platform(self) -> str:
        """jax's name of the platform of attached GPUs: AMD's if only those are attached.

        AMD's driver lists GPUs with an id, beside CPUs with 0.
        """
        if (self.devices / "nvidia0").exists():
            return "cuda"
        with suppress(OSError):
            for node in self.amd_nodes.glob("*/gpu_id"):
                if node.read_text().strip() not in ("", "0"):
                    return "rocm"
        return "cuda"

    def _configured_roots(self) -> list[Path]:
        """The folder that jaxlib passes to XLA: CUDA_ROOT, or the wheels' if it has a ptxas."""
        if root := self.environ.get("CUDA_ROOT"):
            return [Path(root)]
        wheels = self.in_site_packages("nvidia/cu13/bin/ptxas")
        return [wheels.parent.parent] if wheels else []

    def _default_roots(self) -> list[Path]:
        wheels = self.in_site_packages("nvidia/cu13")
        return [*self.toolkits, *([wheels] if wheels else [])]


def hide_missing_gpu() -> None:
    """Keeps jax from logging a traceback on a machine without a GPU.

    jax's plugin for CUDA does so if a library that only running needs is not installed.
    """
    logging.getLogger("jax._src.xla_bridge").addFilter(_is_not_about_a_missing_gpu)


def _is_not_about_a_missing_gpu(record: logging.LogRecord) -> bool:
    if not str(record.msg).startswith("Jax plugin configuration error"):
        return True
    return Machine.local().gpu() is not None
