"""Lowers calls that Python code partitions, as cuDNN attention under a mesh, without devices.

jax refuses them under an abstract mesh: it gives their code a mesh of devices, and XLA calls that
code back while it partitions. Here the devices represent those of the target, the code is kept to
the end of the process, and its keys, which are in the module, do not depend on addresses.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

from jax.sharding import AbstractMesh

from xlapipe import jax_private

# By key, as in jax, which lets them go with the executable.
_CALLBACKS: dict[bytes, Any] = {}


@contextmanager
def with_devices(devices: Sequence[Any], mesh: AbstractMesh) -> Iterator[None]:
    """Lets jax lower such calls over `mesh`, with these devices in its place."""
    if mesh.empty:
        yield
        return
    numbers = count(1)
    names = {
        jax_private.requires_devices: lambda jaxpr: False,
        jax_private.partition_callbacks: _CALLBACKS,
        jax_private.partition_key: lambda _: next(numbers),
        jax_private.sharding_context_made: _filled(tuple(devices), mesh),
    }
    before = {key: vars(key[0]).get(key[1]) for key in names}
    for (owner, name), value in names.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name), value in before.items():
            if value is None:
                delattr(owner, name)
            elif (owner, name) != jax_private.partition_callbacks:  # XLA asks for the code later
                setattr(owner, name, value)


def _filled(devices: tuple[Any, ...], mesh: AbstractMesh) -> Any:
    def fill(context: Any) -> None:
        if context.device_assignment is None and context.num_devices == len(devices):
            object.__setattr__(context, "device_assignment", devices)
            object.__setattr__(context, "abstract_mesh", mesh)

    return fill
