"""Cached virtual environments with other versions of jax.

Only the compiling child runs in such an environment; its result is read by this process. The
environment holds what compiling needs, with the pins of requirements/ if xlapipe runs from a
checkout that has pins for that version. A stamp file is written last; an environment without it is
installed again from the start.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from xlapipe.compile.doctor import OLDEST_JAX, OLDEST_MODEL_PACKAGES, OLDEST_PACKAGES
from xlapipe.devices.environment.machine import Machine
from xlapipe.devices.environment.scratch import cache_folder, is_trusted, make_own_folder
from xlapipe.devices.targets.catalogue import CUDA_MAJOR
from xlapipe.errors import XlapipeError

_VERSION = re.compile(r"\d+(\.\d+){1,3}")
_PINS = Path(__file__).resolve().parents[3] / "requirements"
# What the child imports and what XLA calls, other than jax and its plugins.
_PACKAGES = (
    *(f"{name}>={oldest}" for name, oldest in OLDEST_PACKAGES.items()),
    *(f"{name}=={CUDA_MAJOR}.*" for name in ("nvidia-cuda-nvcc", "nvidia-nvvm")),
)
_INSTALL_SECONDS = 1800.0
_STAMP = ".complete"
# Settings that would make pip or uv install into another place, or something else. Settings of the
# package index are kept.
_UNSET_VARIABLES = (
    *("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIRE_VIRTUALENV", "PIP_NO_DEPS"),
    *("PIP_REQUIREMENT", "PIP_CONSTRAINT", "PIP_DRY_RUN", "PIP_PYTHON", "PYTHONHOME", "PYTHONPATH"),
    *("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "UV_TARGET", "UV_PREFIX", "UV_CONSTRAINT"),
)


def python_with_jax(version: str, *, on_install: Callable[[str], None]) -> Path:
    """The interpreter of an environment with this version of jax, made if it does not exist."""
    _ = parsed_version(version)
    base = Path(getattr(sys, "_base_executable", "") or sys.executable)
    requirements = [
        f"{name}=={version}" for name in ("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda13-pjrt")
    ]
    requirements += [*_PACKAGES, *_model_packages(Machine.local())]
    pins = _PINS / f"jax-{version}.txt"
    pinned = pins.read_text(encoding="utf-8") if pins.is_file() else ""
    key = hashlib.sha256("\n".join([str(base), *requirements, pinned]).encode()).hexdigest()[:12]
    folder = cache_folder("environments") / f"jax-{version}-{key}"
    python = folder / "bin" / "python"
    if folder.exists() and not is_trusted(folder, made_by=folder.parent):
        raise XlapipeError(
            f"{folder}: belongs to another user or can be written by others, whose code would run"
            "; fix: remove it, or set XDG_CACHE_HOME to another folder"
        )
    with _locked(folder):
        if not (folder / _STAMP).is_file():
            on_install(f"installing jax {version} into {folder} (some minutes the first time)")
            _make(folder, base, requirements, pins if pinned else None, version)
    return python


def _model_packages(machine: Machine) -> list[str]:
    """Packages that a workload may import, if they are installed in this environment."""
    return [
        f"{name}>={oldest}"
        for name, oldest in OLDEST_MODEL_PACKAGES.items()
        if machine.version(name) is not None
    ]


def parsed_version(version: str) -> tuple[int, ...]:
    """The numbers of a version of jax."""
    if not _VERSION.fullmatch(version):
        raise XlapipeError(
            f"--versions: expected a version of jax, e.g. {OLDEST_JAX}, found {version!r}"
        )
    number = tuple(map(int, version.split(".")))
    if number < tuple(map(int, OLDEST_JAX.split("."))):
        raise XlapipeError(
            f"--versions: jax {version} is too old, expected {OLDEST_JAX} or newer; fix: dump with "
            "the older version's XLA, and compare the dumps with `xlapipe diff A B`"
        )
    return number


def _wait_for(lock: int, what: str) -> None:
    end = time.monotonic() + 2 * _INSTALL_SECONDS
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise XlapipeError(
                    f"{what} by another process, which has not ended; fix: end it, and try again"
                ) from None
        time.sleep(0.5)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lets one process at a time make the environment `folder`; others wait for it."""
    try:
        make_own_folder(folder.parent)
        path = folder.with_name(f".{folder.name}.lock")
        lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        with open(lock, "wb"):
            _wait_for(lock, f"{folder.name} is installed")
            yield
    except OSError as error:
        raise XlapipeError(
            f"{folder.parent}: cannot hold environments of other jax versions: {error.strerror}; "
            "fix: set XDG_CACHE_HOME to a writable folder"
        ) from None


def _succeeds(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _make(
    folder: Path, base: Path, requirements: list[str], pins: Path | None, version: str
) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    python = folder / "bin" / "python"
    uv = shutil.which("uv")
    if uv is not None and _succeeds([uv, "--version"]):
        venv = [uv, "venv", "--quiet", "--no-python-downloads", "--python", str(base), str(folder)]
        install = [uv, "pip", "install", "--quiet", "--python", str(python)]
    else:
        venv = [str(base), "-I", "-m", "venv", str(folder)]
        install = [str(python), "-m", "pip", "install", "--quiet", "--no-input"]
    constraints = ["--constraint", str(pins)] if pins is not None else []
    for command in (venv, [*install, *constraints, *requirements]):
        _run(command, version)
    (folder / _STAMP).write_text(f"jax {version}\n", encoding="utf-8")


def _run(command: list[str], version: str) -> None:
    environment = {
        name: value for name, value in os.environ.items() if name not in _UNSET_VARIABLES
    }
    try:
        process = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=environment,
            check=False,
            timeout=_INSTALL_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise XlapipeError(
            f"jax {version} cannot be installed: {Path(command[0]).name} took more than "
            f"{_INSTALL_SECONDS:g} s; fix: check that the package index can be reached"
        ) from None
    if process.returncode != 0:
        lines = [line.strip() for line in process.stderr.splitlines() if line.strip()]
        raise XlapipeError(
            f"jax {version} cannot be installed: {Path(command[0]).name} failed with exit code "
            f"{process.returncode}: {' | '.join(lines[-4:]):.600}; fix: check that the package "
            "index can be reached and has this version, and that 2 GB of disk are free"
        )
