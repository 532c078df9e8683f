"""What compiling and running need, what is there of it, and the command that mends the rest.

XLA's own messages for a missing piece name neither the piece nor its wheel, so the places where
XLA looks are looked at beforehand. Nothing here imports jax.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from xlapipe.environment.machine import Gpu, Machine
from xlapipe.targets.target import CUDA_MAJOR, OLDEST_COMPUTE_CAPABILITY

OLDEST_PYTHON = (3, 11)
OLDEST_JAX = "0.10.2"
# The oldest that pyproject.toml admits.
OLDEST_PACKAGES = {
    "flax": "0.12",
    "jaxtyping": "0.3",
    "jinja2": "3.1",
    "numpy": "2.0",
    "optax": "0.2.5",
    "protobuf": "6.31",
    "rich": "13",
}
# The first driver that runs what CUDA 13 compiles.
OLDEST_DRIVER = 580
_NVCC = f"'nvidia-cuda-nvcc=={CUDA_MAJOR}.*' 'nvidia-nvvm=={CUDA_MAJOR}.*'"
_NVVM = f"'nvidia-nvvm=={CUDA_MAJOR}.*'"
_NCCL = "libnccl.so.2"
# What jax's CUDA 13 plugin loads to run: library -> wheel.
_LIBRARIES = {
    "libcudart.so.13": "nvidia-cuda-runtime",
    "libcublas.so.13": "nvidia-cublas",
    "libcublasLt.so.13": "nvidia-cublas",
    "libcufft.so.12": "nvidia-cufft",
    "libcusolver.so.12": "nvidia-cusolver",
    "libcusparse.so.12": "nvidia-cusparse",
    "libcupti.so.13": "nvidia-cuda-cupti",
    "libnvJitLink.so.13": "nvidia-nvjitlink",
    "libcudnn.so.9": "nvidia-cudnn-cu13",
    _NCCL: "nvidia-nccl-cu13",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at.

    Attributes:
      name: of the thing, e.g. `libdevice`.
      ok: None where it is neither needed nor wrong, e.g. no GPU.
      found: what is there, for people.
      expected: what should be.
      remedy: the command that mends it, where `ok` is False and there is one.
      to_run: it is needed on an attached GPU only, not to compile.
    """

    name: str
    ok: bool | None
    found: str
    expected: str
    remedy: str | None = None
    to_run: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was looked at.

    Attributes:
      gpu: the first attached GPU, or None.
    """

    checks: tuple[Check, ...]
    gpu: Gpu | None

    @property
    def can_compile(self) -> bool:
        return not any(check.ok is False for check in self.checks if not check.to_run)

    @property
    def can_run(self) -> bool | None:
        """None without a GPU."""
        if self.gpu is None:
            return None
        return not any(check.ok is False for check in self.checks)


def examine(machine: Machine | None = None) -> Report:
    """Looks at everything; asks nvidia-smi, so it can take a second."""
    machine = machine or Machine.here()
    gpu = machine.gpu()
    checks = (*_to_compile(machine), *_packages(machine), *_to_run(machine, gpu))
    return Report(checks, gpu)


def missing_to_compile(machine: Machine | None = None) -> list[Check]:
    """What a compile is sure to fail without; empty where all is there. Takes milliseconds."""
    return [check for check in _to_compile(machine or Machine.here()) if check.ok is False]


def missing_to_communicate(machine: Machine | None = None) -> Check | None:
    """What several GPUs cannot talk to each other without; None where it is there."""
    machine = machine or Machine.here()
    if machine.library(_NCCL) is not None:
        return None
    return Check(
        name=_NCCL,
        ok=False,
        found="in no place where XLA looks",
        expected=f"from the {_LIBRARIES[_NCCL]} wheel",
        remedy=_install(machine, _LIBRARIES[_NCCL]),
        to_run=True,
    )


def _to_compile(machine: Machine) -> Iterator[Check]:
    yield _python(machine)
    jax = machine.version("jax")
    yield _at_least(machine, "jax", OLDEST_JAX)
    yield _jaxlib(machine, jax)
    yield from _plugin(machine, machine.version("jaxlib"))
    yield from _tools(machine)
    yield _libdevice(machine)


def _python(machine: Machine) -> Check:
    found = ".".join(map(str, machine.python_version))
    oldest = ".".join(map(str, OLDEST_PYTHON))
    ok = machine.python_version >= OLDEST_PYTHON
    return Check(
        name="Python",
        ok=ok,
        found=found,
        expected=f"{oldest} or newer",
        remedy=None if ok else "make setup PYTHON=python3.12",
    )


def _jaxlib(machine: Machine, jax: str | None) -> Check:
    found = machine.version("jaxlib")
    expected, ok = "jax's version", found is not None
    if found and jax:
        # jax names the jaxlibs that it works with: `jaxlib<=0.12.0.1,>=0.11.2`.
        bounds = [
            bound
            for requirement in machine.requirements("jax")
            if re.match(r"jaxlib\b(?!.*extra\s*==)", requirement)
            for bound in re.findall(r"([<>]=)\s*([0-9][0-9.]*)", requirement)
        ] or [("<=", jax), (">=", jax)]
        expected = f"{' and '.join(f'{sign} {bound}' for sign, bound in sorted(bounds))}"
        ok = all(
            _release(found) <= _release(bound)
            if sign == "<="
            else _release(found) >= _release(bound)
            for sign, bound in bounds
        )
    return Check(
        name="jaxlib",
        ok=ok,
        found=found or "not installed",
        expected=expected,
        remedy=None if ok else _install(machine, f"jaxlib=={jax}" if jax else "jaxlib"),
    )


def _plugin(machine: Machine, jaxlib: str | None) -> Iterator[Check]:
    pin = f"=={jaxlib}" if jaxlib else ""
    remedy = _install(machine, f"jax-cuda13-plugin{pin}", f"jax-cuda13-pjrt{pin}")
    files = {
        "jax-cuda13-plugin": "jax_cuda13_plugin/cuda_plugin_extension.so",
        "jax-cuda13-pjrt": "jax_plugins/xla_cuda13/xla_cuda_plugin.so",
    }
    for name, file in files.items():
        version = machine.version(name)
        complete = machine.in_site_packages(file) is not None
        found = version or "not installed"
        if version and not complete:
            found = f"{version}, without its {file.rpartition('/')[2]}"
        ok = version is not None and complete and jaxlib in (None, version)
        yield Check(
            name=name,
            ok=ok,
            found=found,
            expected=f"{jaxlib}, jaxlib's version" if jaxlib else "jaxlib's version",
            remedy=None if ok else remedy,
        )


def _tools(machine: Machine) -> Iterator[Check]:
    ptxas = machine.cuda_tool("ptxas")
    yield Check(
        name="ptxas",
        ok=ptxas is not None,
        found=str(ptxas) if ptxas else "in no place where XLA looks",
        expected="from the nvidia-cuda-nvcc wheel, or a CUDA 13 toolkit on PATH",
        remedy=None if ptxas else _install_quoted(machine, _NVCC),
    )
    nvlink = machine.cuda_tool("nvlink")
    yield Check(
        name="nvlink",
        # Without it XLA compiles a module in one piece, which is slower and no failure.
        ok=True if nvlink else None,
        found=str(nvlink) if nvlink else "in no place where XLA looks",
        expected="beside ptxas",
        remedy=None if nvlink else _install_quoted(machine, _NVCC),
    )


def _libdevice(machine: Machine) -> Check:
    folder = machine.libdevice_folder()
    file = folder / "libdevice.10.bc" if folder else None
    if file is None:
        found, remedy = "in no place where XLA looks", _NVVM
    elif not file.is_file():
        # XLA takes the first such folder, and looks no further if the file is not in it.
        found = f"not in {folder}, the first such folder that XLA meets"
        remedy = f"--force-reinstall {_NVVM}"
    else:
        found, remedy = str(file), None
    return Check(
        name="libdevice",
        ok=remedy is None,
        found=found,
        expected="from the nvidia-nvvm wheel, or a CUDA 13 toolkit",
        remedy=_install_quoted(machine, remedy) if remedy else None,
    )


def _packages(machine: Machine) -> Iterator[Check]:
    for name, oldest in OLDEST_PACKAGES.items():
        yield _at_least(machine, name, oldest)


def _at_least(machine: Machine, name: str, oldest: str) -> Check:
    version = machine.version(name)
    ok = version is not None and _release(version) >= _release(oldest)
    return Check(
        name=name,
        ok=ok,
        found=version or "not installed",
        expected=f"{oldest} or newer",
        remedy=None if ok else _install(machine, f"{name}>={oldest}"),
    )


def _to_run(machine: Machine, gpu: Gpu | None) -> Iterator[Check]:
    expected = f"compute capability {'.'.join(map(str, OLDEST_COMPUTE_CAPABILITY))} or newer"
    if gpu is None:
        yield Check(
            name="GPU",
            ok=None,
            found="no NVIDIA GPU: this machine compiles, and runs nothing",
            expected="none to compile; to run, " + expected,
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
        found=gpu.driver_version or "unknown: nvidia-smi does not say",
        expected=f"{OLDEST_DRIVER} or newer, for CUDA 13",
        to_run=True,
    )
    missing = [library for library in _LIBRARIES if machine.library(library) is None]
    jax = machine.version("jax")
    wheels = sorted({_LIBRARIES[library] for library in missing})
    yield Check(
        name="CUDA libraries",
        ok=not missing,
        found=f"without {', '.join(missing)} ({', '.join(wheels)})" if missing else "all there",
        expected="what jax[cuda13] installs",
        remedy=_install(machine, f"jax[cuda13]=={jax}" if jax else "jax[cuda13]")
        if missing
        else None,
        to_run=True,
    )


def _install(machine: Machine, *requirements: str) -> str:
    return _install_quoted(machine, " ".join(f"'{requirement}'" for requirement in requirements))


def _install_quoted(machine: Machine, arguments: str) -> str:
    return f"{machine.python_command} -m pip install {arguments}"


def _release(version: str) -> tuple[int, ...]:
    """Numbers of a version, without what follows them; empty if it starts with none."""
    match = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return tuple(map(int, match.group().split("."))) if match else ()
