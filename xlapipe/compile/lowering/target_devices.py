"""Devices of the target, for code that asks where it runs while it is traced and lowered.

jax accepts devices that are Python objects with the right attributes, as its own tests use them.
Nothing can be computed or stored on them.
"""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import patch

import jax
from jax.sharding import AbstractDevice, AbstractMesh

from xlapipe import jax_private
from xlapipe.devices.platforms.platform import DeviceFigures
from xlapipe.errors import WorkloadError

# By key, as in jax, which lets them go with the executable.
_CALLBACKS: dict[bytes, Any] = {}
_ONE_AT_A_TIME = threading.RLock()
# Memory kinds of every platform that is supported.
_MEMORY_KINDS = ("device", "pinned_host")
# Attributes of a device that a target config states.
_OF_FIGURES = ("platform", "device_kind", "core_count", "compute_capability")


class _Memory(str):
    """A memory space; jax compares it as text, and user code asks for its `kind`."""

    __slots__ = ()

    @property
    def kind(self) -> str:
        return str(self)


@dataclass(frozen=True)
class TracedFor:
    """The target of a trace, with its hosts' numbers of devices: jax keeps a trace for the same."""

    figures: DeviceFigures
    hosts: tuple[int, ...]


# jax 0.10 has no such contexts, and traces under `jax.set_mesh` are used again for other targets.
_TRACED_FOR: Any = getattr(jax, "make_user_context", lambda _: lambda _: nullcontext())(None)


class TargetClient:
    """Placeholder for the client of the target's platform in the first of one process per host."""

    runtime_type = "xlapipe: a device that is not attached"

    def __init__(self, figures: DeviceFigures, host_count: int, devices_per_host: int) -> None:
        self.figures = figures
        self.platform = figures.platform
        self.platform_version = figures.platform_version
        self._devices = tuple(
            TargetDevice(number, number // devices_per_host, figures, self)
            for number in range(host_count * devices_per_host)
        )

    def devices(self) -> "list[TargetDevice]":
        return list(self._devices)

    def local_devices(self) -> "list[TargetDevice]":
        """Those of the first host."""
        return [device for device in self._devices if device.process_index == 0]

    def device_count(self) -> int:
        return len(self._devices)

    def local_device_count(self) -> int:
        return len(self.local_devices())

    def process_index(self) -> int:
        return 0

    def get_default_layout(self, dtype: Any, shape: Sequence[int], device: Any) -> Any:
        """Row-major, as on every platform that jax has a default layout for."""
        cpu = jax.local_devices(backend="cpu")[0]
        return cpu.client.get_default_layout(dtype, shape, cpu)

    def __getattr__(self, name: str) -> NoReturn:
        _refuse_if_real(jax.local_devices(backend="cpu")[0].client, "client", name)


@dataclass(frozen=True, eq=False)
class TargetDevice:
    """Placeholder for a device: `id` is its position among all, host by host."""

    id: int
    process_index: int
    figures: DeviceFigures
    client: TargetClient

    @property
    def local_hardware_id(self) -> int:
        """Its position among the devices of its host."""
        return self.id % self.client.local_device_count()

    def addressable_memories(self) -> list[_Memory]:
        return [_Memory(kind) for kind in _MEMORY_KINDS]

    def default_memory(self) -> _Memory:
        return _Memory(_MEMORY_KINDS[0])

    def __getattr__(self, name: str) -> Any:
        if name not in _OF_FIGURES:
            return _refuse_if_real(jax.local_devices(backend="cpu")[0], "device", name)
        value = getattr(self.figures, name)
        if value is None:
            raise AttributeError(name)  # as of jax's devices on a platform without it
        return value

    # jax asks `isinstance(device, jax.Device)` before it takes one, in `device_put` for instance.
    __class__ = property(lambda self: jax.Device)

    def __repr__(self) -> str:
        return f"TargetDevice(id={self.id}, {self.device_kind})"


def _refuse_if_real(real: Any, kind: str, name: str) -> NoReturn:
    """Refuses what only a real device can do; other names are missing, as on a real device."""
    if name.startswith("__") or not hasattr(type(real), name):
        raise AttributeError(f"{kind} has no attribute {name!r}")
    raise WorkloadError(
        f"the step uses {kind}.{name} of the target while it is traced, and the device is not "
        "attached; fix: create arrays and read device statistics outside the step"
    )


def let_cpu_meshes_stand_for(figures: DeviceFigures) -> None:
    """From now on, meshes of this machine's CPU devices are those of the target's devices to jax.

    jax compares the kind of device of a mesh that a module makes with that of the current mesh,
    and Pallas asks it for the device.
    """
    mesh, name = jax_private.abstract_device_from
    real = getattr(mesh, name, None)
    if real is None:
        return  # jax 0.10 has no such function, and meshes of the module keep the CPU's kind
    target = AbstractDevice(
        device_kind=figures.device_kind, num_cores=figures.core_count, platform=figures.platform
    )

    def abstract_device_from(device: Any) -> Any:
        return target if getattr(device, "platform", None) == "cpu" else real(device)

    setattr(mesh, name, abstract_device_from)


@contextmanager
def target_in_place_of_cpu(client: TargetClient) -> Iterator[None]:
    """Makes jax answer for the target: default backend, devices, counts, and meshes made of them.

    The CPU stays available by name. Threads take turns.
    """
    # Replaces attributes of jax's modules: two threads at once would each restore the other's.
    with _ONE_AT_A_TIME:
        # What the step computes while it is traced, `ensure_compile_time_eval` for instance, is
        # computed here.
        host_cpu = jax.local_devices(backend="cpu")[0]
        hosts = Counter(device.process_index for device in client.devices())
        traced_for = TracedFor(client.figures, tuple(hosts.values()))
        with jax.default_device(host_cpu), _TRACED_FOR(traced_for), _replacements(client):
            yield


@contextmanager
def _replacements(client: TargetClient) -> Iterator[None]:
    real = getattr(*jax_private.get_backend)

    def get_backend(platform: Any = None) -> Any:
        names = (None, client.platform, figures.platform_name)
        return client if platform in names else real(platform)

    figures = client.figures
    libraries = None  # as in jax on a platform without them
    if figures.cudnn_version is not None:
        libraries = SimpleNamespace(
            cudnn_get_version=lambda: figures.cudnn_version,
            cusolver_get_version=lambda: figures.cusolver_version,
        )
    with (
        jax_private.replaced(jax_private.get_backend, get_backend),
        # Lowering of a host callback asks for the backend; only TPUs use the answer.
        jax_private.replaced(jax_private.backend_of_module, lambda self, optional=False: client),
        ExitStack() as stack,
        _without_cached_answers(),
    ):
        kind = figures.kind_for_pallas
        if kind is not None and (asked := jax_private.pallas_device_kind()) is not None:
            stack.enter_context(jax_private.replaced(asked, lambda: kind))
        for place in jax_private.cuda_versions:
            # Otherwise jax loads the libraries here, which need not be installed.
            stack.enter_context(jax_private.replaced(place, libraries))
        yield


@contextmanager
def _without_cached_answers() -> Iterator[None]:
    """Clears jax's cached answers about devices: the target's must not mix with the machine's."""

    def clear() -> None:
        for function in jax_private.cached_device_answers:
            function.cache_clear()

    clear()
    try:
        yield
    finally:
        clear()


@contextmanager
def with_devices(devices: Sequence[Any], mesh: AbstractMesh) -> Iterator[None]:
    """Lets jax lower calls that Python code partitions, as cuDNN attention, over an abstract mesh.

    jax refuses them: it gives their code a mesh of devices, and XLA calls that code back while it
    partitions. Here the devices represent those of the target, the code is kept to the end of the
    process, and its keys, which are in the module, do not depend on addresses.
    """
    if mesh.empty:
        yield
        return
    numbers = count(1)
    setattr(*jax_private.partition_callbacks, _CALLBACKS)  # XLA asks for the code later
    with (
        patch.object(*jax_private.requires_devices, lambda jaxpr: False),
        patch.object(*jax_private.partition_key, lambda _: next(numbers), create=True),
        patch.object(*jax_private.sharding_context_made, _filled(tuple(devices), mesh)),
    ):
        yield


def _filled(devices: tuple[Any, ...], mesh: AbstractMesh) -> Any:
    def fill(context: Any) -> None:
        if context.device_assignment is None and context.num_devices == len(devices):
            object.__setattr__(context, "device_assignment", devices)
            object.__setattr__(context, "abstract_mesh", mesh)

    return fill
