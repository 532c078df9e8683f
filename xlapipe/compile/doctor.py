"""What compiling needs, what is installed, and the command that fixes the rest.

If a file is missing, XLA's own message names neither the file nor its wheel, so the doctor searches
the same places before a compile. Nothing here imports jax.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from xlapipe.devices.environment.machine import Machine
from xlapipe.devices.targets.catalogue import CUDA_MAJOR

OLDEST_PYTHON = (3, 12)  # as jax's from 0.11.0 on
OLDEST_JAX = "0.10.2"
# What xlapipe imports, and the oldest versions that pyproject.toml admits.
OLDEST_PACKAGES = {
    "jinja2": "3.1",
    "markupsafe": "2.1",
    "msgspec": "0.19",
    "numpy": "2.0",
    "protobuf": "6.31",
    "rich": "13",
    "scipy": "1.13",
}
_NVVM = f"nvidia-nvvm=={CUDA_MAJOR}.*"
_NVCC = (f"nvidia-cuda-nvcc=={CUDA_MAJOR}.*", _NVVM)
_CUDNN = "libcudnn.so.9"
_CUDNN_WHEEL = "nvidia-cudnn-cu13>=9.12,<10"
_CUDA_PLUGIN = "jax-cuda13-plugin"
_NOT_INSTALLED = "not installed"
_NOT_FOUND = "not found in XLA's search paths"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One item that was examined, with what is installed and what should be.

    `ok` is None if the item is optional or its state is unknown, e.g. no GPU; `missing` states that
    it, or a part of it, is not installed. The remedy is a command.
    """

    name: str
    ok: bool | None
    found: str
    expected: str
    remedy: str | None = None
    missing: bool = False

    @property
    def problem(self) -> str:
        """For an error message: the item, what was found, what is expected, and the fix."""
        found = self.found if self.missing else f"found {self.found}"
        text = f"{self.name}: {found}, expected {self.expected}"
        return f"{text}; fix: {self.remedy}" if self.remedy is not None else text


def examine(machine: Machine | None = None) -> tuple[Check, ...]:
    machine = machine or Machine.local()
    packages = (_at_least(machine, name, oldest) for name, oldest in OLDEST_PACKAGES.items())
    others = (_libtpu(machine, needed=False), *_rocm_plugin(machine, needed=False))
    optional = (_cudnn(machine), *others)
    to_compile = [*_to_compile(machine)]
    missing = [missing_to_compile(machine, platform=name) for name in ("rocm", "tpu")]
    if machine.version(_CUDA_PLUGIN) is None and not all(missing):
        # With the wheels of another vendor alone, those for NVIDIA's GPUs are optional.
        to_compile = [replace(it, ok=it.ok or None) if it.missing else it for it in to_compile]
    return (*to_compile, *packages, *optional)


def missing_to_compile(machine: Machine | None = None, *, platform: str = "cuda") -> list[Check]:
    """What makes every compile for a platform fail; empty if nothing does. Takes milliseconds."""
    machine = machine or Machine.local()
    checks: Iterable[Check] = _to_compile(machine)
    if platform == "tpu":
        checks = (*_to_lower(machine), _libtpu(machine, needed=True))
    if platform == "rocm":
        checks = (*_to_lower(machine), *_rocm_plugin(machine, needed=True))
    return [check for check in checks if check.ok is False]


def _item(
    name: str,
    installed: object,
    expected: str,
    remedy: str | None,
    *,
    ok: bool | None = True,
    needed: bool = True,
    found: str | None = None,
    absent: str = _NOT_INSTALLED,
) -> Check:
    if installed is None:
        ok = False if needed else None
    return Check(
        name=name,
        ok=ok,
        found=found or (absent if installed is None else str(installed)),
        expected=expected,
        remedy=None if ok else remedy,
        missing=installed is None,
    )


def _to_lower(machine: Machine) -> tuple[Check, Check, Check]:
    # jax compares versions of jaxlib itself when it is imported.
    version = machine.version("jax")
    remedy = _install(machine, f"jaxlib=={version}" if version else "jaxlib")
    jaxlib = _item("jaxlib", machine.version("jaxlib"), "the version of jax", remedy)
    return _python(machine), _at_least(machine, "jax", OLDEST_JAX), jaxlib


def _to_compile(machine: Machine) -> Iterator[Check]:
    yield from _to_lower(machine)
    yield from _plugin(machine, machine.version("jaxlib") or machine.version("jax"))
    yield from _tools(machine)
    yield _libdevice(machine)


def _libtpu(machine: Machine, *, needed: bool) -> Check:
    """XLA's compiler for TPUs. Versions other than the one that jax names work too, so far."""
    version, remedy = machine.version("libtpu"), _install(machine, "libtpu")
    return _item("libtpu", version, "any version, to compile for TPUs", remedy, needed=needed)


def _rocm_plugin(machine: Machine, *, needed: bool) -> Iterator[Check]:
    """The two wheels of jax's plugin for ROCm: of the first three numbers of jaxlib's version.

    Neither their metadata nor jax checks that: 0.12.0 is the plugin of jaxlib 0.12.0 and 0.12.0.1.
    """
    names = ("jax-rocm7-plugin", "jax-rocm7-pjrt")
    jaxlib = ".".join(map(str, _release(machine.version("jaxlib") or "")[:3]))
    for name in names:
        version = machine.version(name)
        ok = _release(version or "")[:3] == _release(jaxlib)
        yield _item(
            name,
            version,
            f"{jaxlib or 'any version'}, as jaxlib, to compile for AMD GPUs",
            _install(machine, *(f"{name}=={jaxlib}.*" if jaxlib else name for name in names)),
            ok=ok if needed else ok or None,
            needed=needed,
        )


def _python(machine: Machine) -> Check:
    return _item(
        "Python",
        ".".join(map(str, machine.python_version)),
        f"{'.'.join(map(str, OLDEST_PYTHON))} or newer",
        "install Python 3.12, and xlapipe there",
        ok=machine.python_version >= OLDEST_PYTHON,
    )


def _plugin(machine: Machine, expected: str | None) -> Iterator[Check]:
    """The two wheels of jax's CUDA plugin, which are of exactly the version of jaxlib."""
    pin = f"=={expected}" if expected else ""
    remedy = _install(machine, f"jax-cuda13-plugin{pin}", f"jax-cuda13-pjrt{pin}")
    files = {
        _CUDA_PLUGIN: "jax_cuda13_plugin/cuda_plugin_extension.so",
        "jax-cuda13-pjrt": "jax_plugins/xla_cuda13/xla_cuda_plugin.so",
    }
    for name, file in files.items():
        version = machine.version(name)
        complete = machine.in_site_packages(file) is not None
        without = version is not None and not complete
        yield _item(
            name,
            version,
            f"{expected}, the version of jaxlib" if expected else "any version",
            remedy,
            ok=complete and expected in (None, version),
            found=f"{version} without its {file.rpartition('/')[2]}" if without else None,
        )


def _tools(machine: Machine) -> Iterator[Check]:
    # Without nvlink XLA compiles a module in one piece, which is slower.
    for name, expected in (
        ("ptxas", "the wheel nvidia-cuda-nvcc, or a CUDA 13 toolkit on PATH"),
        ("nvlink", "the wheel nvidia-cuda-nvcc, for faster compiles"),
    ):
        yield _item(
            name,
            machine.cuda_tool(name),
            expected,
            _install(machine, *_NVCC),
            needed=name == "ptxas",
            absent=_NOT_FOUND,
        )


def _libdevice(machine: Machine) -> Check:
    folder = machine.libdevice_folder()
    file = folder / "libdevice.10.bc" if folder else None
    is_there = file is not None and file.is_file()
    # XLA uses the first such folder, even if the file is not in it.
    first = f"{folder}, the first such folder in XLA's search paths, without the file"
    return _item(
        "libdevice",
        file if is_there else None,
        "the wheel nvidia-nvvm, or a CUDA 13 toolkit",
        _install(machine, _NVVM, options="--force-reinstall " if folder else ""),
        absent=first if folder else _NOT_FOUND,
    )


def _cudnn(machine: Machine) -> Check:
    expected = (
        "the wheel nvidia-cudnn-cu13, only if a step itself loads cuDNN, or against the traceback "
        "that plain jax prints without it (JAX_PLATFORMS=cpu avoids that too)"
    )
    remedy = _install(machine, _CUDNN_WHEEL)
    return _item("cuDNN", machine.library(_CUDNN), expected, remedy, needed=False)


def _at_least(machine: Machine, name: str, oldest: str) -> Check:
    version = machine.version(name)
    ok = _release(version or "") >= _release(oldest)
    remedy = _install(machine, f"{name}>={oldest}")
    return _item(name, version, f"{oldest} or newer", remedy, ok=ok)


def _install(machine: Machine, *requirements: str, options: str = "") -> str:
    quoted = " ".join(f"'{requirement}'" for requirement in requirements)
    return f"{machine.python_command} -m pip install {options}{quoted}"


def _release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, e.g. (2, 1) of `2.1rc1`; empty without any."""
    match = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return tuple(map(int, match.group().split("."))) if match else ()
