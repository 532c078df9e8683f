"""What compiling and running need, what is installed, and the command that fixes the rest.

If a file is missing, XLA's own message names neither the file nor its wheel, so the doctor searches
the same places before a compile. Nothing here imports jax.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from xlapipe.devices.environment.machine import Gpu, Machine
from xlapipe.devices.targets.catalogue import CUDA_MAJOR
from xlapipe.devices.targets.target import OLDEST_COMPUTE_CAPABILITY
from xlapipe.time.predicted_locks.known_results import TRITON_COMMITS, jaxlibs_of_tables

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
# What many models import; xlapipe does not.
OLDEST_MODEL_PACKAGES = {"flax": "0.12", "jaxtyping": "0.3", "optax": "0.2.5"}
# The first driver that runs what CUDA 13 compiles.
OLDEST_DRIVER = 580
_NVCC = f"'nvidia-cuda-nvcc=={CUDA_MAJOR}.*' 'nvidia-nvvm=={CUDA_MAJOR}.*'"
_NVVM = f"'nvidia-nvvm=={CUDA_MAJOR}.*'"
_CUDNN = "libcudnn.so.9"
_CUDNN_WHEEL = "nvidia-cudnn-cu13>=9.12,<10"
_NCCL = "libnccl.so.2"
_NOT_INSTALLED = "not installed"
_NOT_FOUND = "not found in XLA's search paths"
# The libraries that jax's CUDA 13 plugin loads to run, with their wheels.
_LIBRARIES = {
    "libcudart.so.13": "nvidia-cuda-runtime",
    "libcublas.so.13": "nvidia-cublas",
    "libcublasLt.so.13": "nvidia-cublas",
    "libcufft.so.12": "nvidia-cufft",
    "libcusolver.so.12": "nvidia-cusolver",
    "libcusparse.so.12": "nvidia-cusparse",
    "libcupti.so.13": "nvidia-cuda-cupti",
    "libnvJitLink.so.13": "nvidia-nvjitlink",
    _CUDNN: "nvidia-cudnn-cu13",
    _NCCL: "nvidia-nccl-cu13",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One item that was examined.

    Attributes:
      name: the item, e.g. `libdevice`.
      ok: None if the item is optional or its state is unknown, e.g. no GPU.
      found: what is installed.
      expected: what should be installed.
      remedy: the command that installs what is expected, if there is one.
      to_run: the item is needed on an attached GPU only, not to compile.
      missing: the item, or a part of it, is not installed.
    """

    name: str
    ok: bool | None
    found: str
    expected: str
    remedy: str | None = None
    to_run: bool = False
    missing: bool = False

    @property
    def problem(self) -> str:
        """For an error message: the item, what was found, what is expected, and the fix."""
        found = self.found if self.missing else f"found {self.found}"
        text = f"{self.name}: {found}, expected {self.expected}"
        return f"{text}; fix: {self.remedy}" if self.remedy is not None else text


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was examined.

    Attributes:
      gpu: the first attached GPU, or None.
    """

    checks: tuple[Check, ...]
    gpu: Gpu | None

    @property
    def can_compile(self) -> bool:
        return not any(check.ok is False for check in self.checks if not check.to_run)


def examine(machine: Machine | None = None) -> Report:
    """Examines everything. Runs nvidia-smi, which can take a second."""
    machine = machine or Machine.local()
    gpu = machine.gpu()
    optional = (_cudnn(machine), _libtpu(machine, needed=False), _known_results(machine))
    checks = (*_to_compile(machine), *_packages(machine), *optional, *_to_run(machine, gpu))
    return Report(checks, gpu)


def missing_to_compile(machine: Machine | None = None, *, platform: str = "cuda") -> list[Check]:
    """What makes every compile for a platform fail; empty if nothing does. Takes milliseconds."""
    machine = machine or Machine.local()
    checks = _to_compile_for_tpu(machine) if platform == "tpu" else _to_compile(machine)
    return [check for check in checks if check.ok is False]


def missing_to_communicate(machine: Machine | None = None) -> Check | None:
    """The library without which several GPUs cannot communicate; None if it is installed."""
    machine = machine or Machine.local()
    if machine.library(_NCCL) is not None:
        return None
    return Check(
        name=_NCCL,
        ok=False,
        found=_NOT_FOUND,
        expected=f"the wheel {_LIBRARIES[_NCCL]}",
        remedy=_install(machine, _LIBRARIES[_NCCL]),
        to_run=True,
        missing=True,
    )


def _to_compile(machine: Machine) -> Iterator[Check]:
    yield _python(machine)
    yield (jax := _at_least(machine, "jax", OLDEST_JAX))
    yield (jaxlib := _jaxlib(machine, machine.version("jax")))
    # A jaxlib that must be replaced gets the version of jax, and so does its plugin.
    package = "jax" if jax.ok and not jaxlib.ok else "jaxlib"
    yield from _plugin(machine, package, machine.version(package))
    yield from _tools(machine)
    yield _libdevice(machine)


def _to_compile_for_tpu(machine: Machine) -> Iterator[Check]:
    yield _python(machine)
    yield _at_least(machine, "jax", OLDEST_JAX)
    yield _jaxlib(machine, machine.version("jax"))
    yield _libtpu(machine, needed=True)


def _libtpu(machine: Machine, *, needed: bool) -> Check:
    """XLA's compiler for TPUs. Another version than the one that jax names works as well, so far.

    Args:
      needed: to compile for a TPU; otherwise the wheel is optional.
    """
    # jax's metadata: `libtpu==0.0.48.*; extra == "tpu"`.
    pins = [
        match[1]
        for requirement in machine.requirements("jax")
        if (match := re.match(r"libtpu\s*==\s*([0-9.*]+)", requirement))
    ]
    pin = pins[0] if pins else None
    version = machine.version("libtpu")
    as_pinned = version is not None and (
        pin is None or _release(version)[: len(_release(pin))] == _release(pin)
    )
    return _of_version(
        "libtpu",
        version,
        True if as_pinned else False if needed and version is None else None,
        f"{pin or 'any version'}, to compile for TPUs",
        _install(machine, f"libtpu=={pin}" if pin else "libtpu"),
    )


def _of_version(
    name: str,
    version: str | None,
    ok: bool | None,
    expected: str,
    remedy: str,
    found: str | None = None,
) -> Check:
    """A package, of which a version is installed or none."""
    return Check(
        name=name,
        ok=ok,
        found=found or version or _NOT_INSTALLED,
        expected=expected,
        remedy=None if ok else remedy,
        missing=version is None,
    )


def _known_results(machine: Machine) -> Check:
    """Whether autotune results are known from which predicted locks can be made."""
    version = machine.version("jaxlib")
    tables = jaxlibs_of_tables()
    of = ", ".join(f"{name} (jaxlib {', '.join(jaxlibs)})" for name, jaxlibs in tables.items())
    ok = version in TRITON_COMMITS
    *others, last = TRITON_COMMITS
    return Check(
        name="autotune results",
        ok=ok or None,
        found=f"known for {of}"
        if ok
        else f"none known for jaxlib {version}, so its plans are untuned",
        expected=f"jaxlib {', '.join(others)} or {last}, for predicted locks",
        remedy=None if ok else _install(machine, f"jax[cuda13-local]=={last}"),
    )


def _python(machine: Machine) -> Check:
    oldest = ".".join(map(str, OLDEST_PYTHON))
    ok = machine.python_version >= OLDEST_PYTHON
    return Check(
        name="Python",
        ok=ok,
        found=".".join(map(str, machine.python_version)),
        expected=f"{oldest} or newer",
        remedy=None if ok else "install Python 3.12, and xlapipe there",
    )


def _jaxlib(machine: Machine, jax: str | None) -> Check:
    version = machine.version("jaxlib")
    expected, ok = "the version of jax", version is not None
    if version and jax:
        # jax's metadata has the jaxlibs that it works with: `jaxlib<=0.12.0.1,>=0.11.2`.
        bounds = [
            bound
            for requirement in machine.requirements("jax")
            if re.match(r"jaxlib\b(?!.*extra\s*==)", requirement)
            for bound in re.findall(r"([<>]=)\s*([0-9][0-9.]*)", requirement)
        ] or [("<=", jax), (">=", jax)]
        expected = " and ".join(f"{sign} {bound}" for sign, bound in sorted(bounds))
        ok = all(
            _release(version) <= _release(bound)
            if sign == "<="
            else _release(version) >= _release(bound)
            for sign, bound in bounds
        )
    remedy = _install(machine, f"jaxlib=={jax}" if jax else "jaxlib")
    return _of_version("jaxlib", version, ok, expected, remedy)


def _plugin(machine: Machine, package: str, expected: str | None) -> Iterator[Check]:
    """The two wheels of jax's CUDA plugin, which are of exactly the version of `package`."""
    pin = f"=={expected}" if expected else ""
    remedy = _install(machine, f"jax-cuda13-plugin{pin}", f"jax-cuda13-pjrt{pin}")
    files = {
        "jax-cuda13-plugin": "jax_cuda13_plugin/cuda_plugin_extension.so",
        "jax-cuda13-pjrt": "jax_plugins/xla_cuda13/xla_cuda_plugin.so",
    }
    for name, file in files.items():
        version = machine.version(name)
        complete = machine.in_site_packages(file) is not None
        without = version is not None and not complete
        yield _of_version(
            name,
            version,
            version is not None and complete and expected in (None, version),
            f"{expected}, the version of {package}" if expected else "any version",
            remedy,
            f"{version} without its {file.rpartition('/')[2]}" if without else None,
        )


def _tools(machine: Machine) -> Iterator[Check]:
    toolkit = "the wheel nvidia-cuda-nvcc, or a CUDA 13 toolkit on PATH"
    yield _file("ptxas", machine.cuda_tool("ptxas"), toolkit, _install_quoted(machine, _NVCC))
    # Without nvlink XLA compiles a module in one piece, which is slower.
    faster = "the wheel nvidia-cuda-nvcc, for faster compiles"
    remedy = _install_quoted(machine, _NVCC)
    yield _file("nvlink", machine.cuda_tool("nvlink"), faster, remedy, needed=False)


def _file(
    name: str,
    path: Path | str | None,
    expected: str,
    remedy: str,
    *,
    needed: bool = True,
    absent: str = _NOT_FOUND,
) -> Check:
    """A file that is installed or not; a missing one that is not needed is not a failure."""
    if path is not None:
        return Check(name=name, ok=True, found=str(path), expected=expected)
    ok = False if needed else None
    return Check(name=name, ok=ok, found=absent, expected=expected, remedy=remedy, missing=True)


def _libdevice(machine: Machine) -> Check:
    folder = machine.libdevice_folder()
    file = folder / "libdevice.10.bc" if folder else None
    if file is None:
        found, remedy = _NOT_FOUND, _NVVM
    elif not file.is_file():
        # XLA uses the first such folder, even if the file is not in it.
        found = f"{folder}, the first such folder in XLA's search paths, without the file"
        remedy = f"--force-reinstall {_NVVM}"
    else:
        found, remedy = str(file), None
    return Check(
        name="libdevice",
        ok=remedy is None,
        found=found,
        expected="the wheel nvidia-nvvm, or a CUDA 13 toolkit",
        remedy=_install_quoted(machine, remedy) if remedy else None,
        missing=remedy is not None,
    )


def _cudnn(machine: Machine) -> Check:
    expected = (
        "the wheel nvidia-cudnn-cu13, only if a step itself loads cuDNN, or against the traceback "
        "that plain jax prints without it (JAX_PLATFORMS=cpu avoids that too)"
    )
    remedy, library = _install(machine, _CUDNN_WHEEL), machine.library(_CUDNN)
    return _file("cuDNN", library, expected, remedy, needed=False, absent=_NOT_INSTALLED)


def _packages(machine: Machine) -> Iterator[Check]:
    for name, oldest in OLDEST_PACKAGES.items():
        yield _at_least(machine, name, oldest)


def _at_least(machine: Machine, name: str, oldest: str) -> Check:
    version = machine.version(name)
    ok = version is not None and _release(version) >= _release(oldest)
    remedy = _install(machine, f"{name}>={oldest}")
    return _of_version(name, version, ok, f"{oldest} or newer", remedy)


def _to_run(machine: Machine, gpu: Gpu | None) -> Iterator[Check]:
    expected = f"compute capability {'.'.join(map(str, OLDEST_COMPUTE_CAPABILITY))} or newer"
    if gpu is None:
        yield Check(
            name="GPU",
            ok=None,
            found="no NVIDIA GPU; none is needed to compile",
            expected="to run: " + expected,
            to_run=True,
        )
        return
    capability = gpu.compute_capability
    yield Check(
        name="GPU",
        ok=None if capability is None else capability >= OLDEST_COMPUTE_CAPABILITY,
        found=gpu.name + (f", {'.'.join(map(str, capability))}" if capability else ""),
        expected=expected,
        to_run=True,
    )
    driver = _release(gpu.driver_version or "")
    yield Check(
        name="driver",
        ok=driver[0] >= OLDEST_DRIVER if driver else None,
        found=gpu.driver_version or "unknown: nvidia-smi does not report it",
        expected=f"{OLDEST_DRIVER} or newer, for CUDA 13",
        to_run=True,
    )
    missing = [library for library in _LIBRARIES if machine.library(library) is None]
    jax = machine.version("jax")
    wheels = sorted({_LIBRARIES[library] for library in missing})
    yield Check(
        name="CUDA libraries",
        ok=not missing,
        found=f"all but {', '.join(missing)} ({', '.join(wheels)})" if missing else "all",
        expected="the libraries that jax[cuda13] installs",
        remedy=_install(machine, f"jax[cuda13]=={jax}" if jax else "jax[cuda13]")
        if missing
        else None,
        to_run=True,
        missing=bool(missing),
    )


def _install(machine: Machine, *requirements: str) -> str:
    return _install_quoted(machine, " ".join(f"'{requirement}'" for requirement in requirements))


def _install_quoted(machine: Machine, arguments: str) -> str:
    return f"{machine.python_command} -m pip install {arguments}"


def _release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, e.g. (2, 1) of `2.1rc1`; empty without any."""
    match = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return tuple(map(int, match.group().split("."))) if match else ()
