"""Other versions of jax, each in a cached virtual environment of its own.

Only the compiling child runs in one; what it leaves behind is read here. An environment holds
what compiling takes, as requirements/ pins it where xlapipe is a checkout that has the pins.
Its stamp is written last: without it, an environment is made again from the start.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from xlapipe.environment.doctor import OLDEST_JAX, OLDEST_MODEL_PACKAGES, OLDEST_PACKAGES
from xlapipe.environment.machine import Machine
from xlapipe.errors import XlapipeError
from xlapipe.targets.target import CUDA_MAJOR

_VERSION = re.compile(r"\d+(\.\d+){1,3}")
# From this one on, jax needs Python 3.12.
_NEEDS_PYTHON_312 = (0, 11)
_PINS = Path(__file__).resolve().parents[2] / "requirements"
# What a child imports, and what XLA calls, beyond jax and its plugins.
_PACKAGES = (
    *(f"{name}>={oldest}" for name, oldest in OLDEST_PACKAGES.items()),
    *(f"{name}=={CUDA_MAJOR}.*" for name in ("nvidia-cuda-nvcc", "nvidia-nvvm")),
)
_STAMP = ".complete"
# Settings of pip that would put packages elsewhere; those that say where they come from stay.
_UNSET = (
    *("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIRE_VIRTUALENV", "PIP_NO_DEPS"),
    *("PIP_REQUIREMENT", "PIP_CONSTRAINT", "PIP_DRY_RUN", "PIP_PYTHON", "PYTHONHOME", "PYTHONPATH"),
    *("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "UV_TARGET", "UV_PREFIX", "UV_CONSTRAINT"),
)


def python_with_jax(version: str, *, say: Callable[[str], None]) -> Path:
    """The interpreter of an environment with this jax, which is made where it is not there yet.

    Args:
      version: of jax and of jaxlib, e.g. `0.10.2`.
      say: told what is being done, before what takes long.

    Raises:
      XlapipeError: no such version, no Python for it, or the installation failed.
    """
    number = parsed_version(version)
    base = _base_python(version, number)
    wanted = [
        f"{name}=={version}" for name in ("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda13-pjrt")
    ]
    wanted += [*_PACKAGES, *_model_packages(Machine.here())]
    pins = _PINS / f"jax-{version}.txt"
    pinned = pins.read_text(encoding="utf-8") if pins.is_file() else ""
    key = hashlib.sha256("\n".join([str(base), *wanted, pinned]).encode()).hexdigest()[:12]
    folder = _cache_folder() / f"jax-{version}-{key}"
    python = folder / "bin" / "python"
    with _locked(folder):
        if not (folder / _STAMP).is_file():
            say(f"installing jax {version} into {folder} (some minutes the first time)")
            _make(folder, base, wanted, pins if pinned else None, version)
    return python


def _model_packages(machine: Machine) -> list[str]:
    """Packages that a workload may import, if they are installed in this environment."""
    return [
        f"{name}>={oldest}"
        for name, oldest in OLDEST_MODEL_PACKAGES.items()
        if machine.version(name) is not None
    ]


def parsed_version(version: str) -> tuple[int, ...]:
    """The version's numbers.

    Raises:
      XlapipeError: no version, or one that is too old to be compiled with.
    """
    if not _VERSION.fullmatch(version):
        raise XlapipeError(f"--versions: {version!r} is no version of jax; e.g. {OLDEST_JAX}")
    number = tuple(map(int, version.split(".")))
    if number < tuple(map(int, OLDEST_JAX.split("."))):
        raise XlapipeError(
            f"--versions: jax {version} is too old to be compiled with here ({OLDEST_JAX} is "
            "the oldest); `xlapipe diff A B` reads what XLA dumped under older ones"
        )
    return number


def _cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "xlapipe" / "environments"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time makes an environment; another waits, and finds it made."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_name(f".{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise XlapipeError(
            f"{folder.parent}: the environments of other jax versions cannot be kept there: "
            f"{error.strerror}; set XDG_CACHE_HOME to a folder that can be written"
        ) from None


def _base_python(version: str, number: tuple[int, ...]) -> Path:
    """This interpreter, outside its virtual environment, or one on PATH that is new enough."""
    here = Path(getattr(sys, "_base_executable", "") or sys.executable)
    running = tuple(sys.version_info[:2])
    if number < _NEEDS_PYTHON_312 or running >= (3, 12):
        return here
    for name in ("python3.12", "python3.13"):
        found = shutil.which(name)
        if found is not None and _runs([found, "-I", "-c", "import venv, ensurepip"]):
            return Path(found)
    raise XlapipeError(
        f"jax {version} needs Python 3.12 or newer; this is {running[0]}.{running[1]}, and neither "
        "python3.12 nor python3.13 is on PATH: install one of them"
    )


def _runs(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _make(folder: Path, base: Path, wanted: list[str], pins: Path | None, version: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    python = folder / "bin" / "python"
    uv = shutil.which("uv")
    if uv is not None and _runs([uv, "--version"]):
        venv = [uv, "venv", "--quiet", "--no-python-downloads", "--python", str(base), str(folder)]
        install = [uv, "pip", "install", "--quiet", "--python", str(python)]
    else:
        venv = [str(base), "-I", "-m", "venv", str(folder)]
        install = [str(python), "-m", "pip", "install", "--quiet", "--no-input"]
    constraints = ["--constraint", str(pins)] if pins is not None else []
    for command in (venv, [*install, *constraints, *wanted]):
        _run(command, version)
    (folder / _STAMP).write_text(f"jax {version}\n", encoding="utf-8")


def _run(command: list[str], version: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in _UNSET}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise XlapipeError(
            f"jax {version} cannot be installed: {Path(command[0]).name} failed with exit code "
            f"{done.returncode}: {' | '.join(said[-4:]):.600}; can the package index be reached, "
            "does it have that version, and is there 2 GB of room?"
        )
