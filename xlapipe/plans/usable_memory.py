"""What a program may use of a device's memory, and what it takes on a GPU outside its plan.

The CUDA context and the libraries that a program calls take memory outside of XLA's pool.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from xlapipe.devices.platforms import platform_named
from xlapipe.devices.platforms.nvidia import DEFAULT_MEMORY_FRACTION
from xlapipe.devices.targets.catalogue import name_of_target
from xlapipe.devices.targets.target import Target
from xlapipe.devices.targets.tpu_catalogue import tpu_catalogue
from xlapipe.files.typed_data import typed
from xlapipe.plans import Plan

# Prefixes of the custom calls of each library.
_CALLS = {
    "cublas": ("__cublas",),
    "cudnn": ("__cudnn",),
    "cusolver": ("cusolver_", "gpusolver"),
}
_FFT = "fft"
_LABELS = {
    "context": "CUDA context",
    "cublas": "cuBLAS",
    "cudnn": "cuDNN",
    "cusolver": "cuSOLVER",
    "cufft": "cuFFT",
    "nccl": "NCCL",
}


@dataclass(frozen=True, kw_only=True)
class MeasuredOutside:
    """Memory outside XLA's pool, measured on one kind of GPU; see `outside_memory.toml`.

    Attributes:
      device, driver, jax, date: what it was measured with, and when.
      visible_bytes: the device's memory as CUDA reports it.
      parts: bytes by what takes them: `context`, `cublas`, …
      nccl: bytes of one communicator, by its number of GPUs.
    """

    device: str
    driver: str
    jax: str
    date: str
    visible_bytes: int
    parts: Mapping[str, int]
    nccl: Mapping[str, int] = field(default_factory=dict)


def measured_outside(target_name: str) -> MeasuredOutside | None:
    """The measurement of a GPU, by its name in the catalogue, if any."""
    return _measured().get(target_name)


@cache
def _measured() -> Mapping[str, MeasuredOutside]:
    path = files("xlapipe.devices.targets") / "outside_memory.toml"
    rows = tomllib.loads(path.read_text(encoding="utf-8"))
    return {name: typed(MeasuredOutside, row) for name, row in rows.items()}


@dataclass(frozen=True, kw_only=True)
class OutsidePlan:
    """Memory outside the plan and outside XLA's pool.

    Attributes:
      parts: measured bytes of what the program uses, by name.
      unmeasured: names of what it uses and what was not measured on this device.
      device: where it was measured; None if nothing was measured for this target.
      visible_bytes: the device's memory as CUDA reports it; None if it was not measured.
    """

    parts: Mapping[str, int] = field(default_factory=dict)
    unmeasured: tuple[str, ...] = ()
    device: str | None = None
    visible_bytes: int | None = None

    @property
    def known_bytes(self) -> int:
        return sum(self.parts.values())

    def usable_bytes(self, device_memory_bytes: int, fraction: float) -> int:
        """What XLA's pool may take: a share of the memory, and what the measured parts leave."""
        if self.visible_bytes is None:
            return int(device_memory_bytes * fraction)
        return min(int(self.visible_bytes * fraction), self.visible_bytes - self.known_bytes)


def outside_plan(plan: Plan, measured: MeasuredOutside | None) -> OutsidePlan:
    """What a GPU program takes outside its plan, as far as it was measured for its target."""
    names = ("context", *_used(plan))
    if measured is None:
        return OutsidePlan(unmeasured=names)
    sizes = dict(measured.parts)
    communicator = measured.nccl.get(str(_communicator_devices(plan)))
    if communicator is not None:
        sizes["nccl"] = communicator
    return OutsidePlan(
        parts={name: sizes[name] for name in names if name in sizes},
        unmeasured=tuple(name for name in names if name not in sizes),
        device=measured.device,
        visible_bytes=measured.visible_bytes,
    )


def outside_label(name: str) -> str:
    """The name of a part for people, e.g. `cuBLAS`."""
    return _LABELS.get(name, name)


def _used(plan: Plan) -> Iterator[str]:
    instructions = plan.instructions.values()
    targets = {instruction.custom_call_target or "" for instruction in instructions}
    targets |= {instruction.fusion_backend_kind or "" for instruction in instructions}
    for name, prefixes in _CALLS.items():
        if any(target.startswith(prefixes) for target in targets):
            yield name
    if any(instruction.opcode == _FFT for instruction in instructions):
        yield "cufft"
    if plan.collectives:
        yield "nccl"


def _communicator_devices(plan: Plan) -> int | None:
    """Number of GPUs of the program's only communicator; None if there are several or none."""
    collectives = plan.collectives or ()
    groups = {collective.replica_groups for collective in collectives}
    if len(groups) != 1 or len(next(iter(groups))) != 1:
        return None
    return len(next(iter(groups))[0])


@dataclass(frozen=True, kw_only=True)
class UsableMemory:
    """The memory of one device, and what a program may use of it.

    Attributes:
      usable_bytes: on a TPU what XLA's compiler leaves to a program; elsewhere the share of the
        device's memory that the process may use, of the memory that CUDA reports if it was
        measured.
    """

    device_memory_bytes: int
    usable_bytes: int
    outside: OutsidePlan | None


def usable_memory(
    target: Target, plan: Plan, *, libtpu: str | None = None, memory_fraction: float | None = None
) -> UsableMemory:
    """What a program with this plan may use on a device.

    Args:
      libtpu: version of libtpu, on a TPU.
      memory_fraction: the share of the device's memory that counts as usable; None for jax's on
        GPUs, and for all that XLA's compiler leaves to a program on TPUs.
    """
    tpu, outside = tpu_catalogue().get(target.name), None
    fraction = memory_fraction or DEFAULT_MEMORY_FRACTION
    usable = int(target.device_memory_bytes * fraction)
    if tpu is not None:
        usable = int(tpu.usable_bytes(libtpu) * (memory_fraction or 1))
    elif platform_named(target.platform).memory_limit is not None:
        outside = outside_plan(plan, measured_outside(name_of_target(target)))
        usable = outside.usable_bytes(target.device_memory_bytes, fraction)
    return UsableMemory(
        device_memory_bytes=target.device_memory_bytes, usable_bytes=usable, outside=outside
    )
