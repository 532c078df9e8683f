"""A workload with a change that can lower its memory, for `xlapipe explain`.

The compiling child calls `changed_workload` like a user's function, so the parent imports no jax.
"""

import inspect
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from xlapipe.errors import WorkloadError
from xlapipe.lowering.load_workload import load_workload
from xlapipe.lowering.rematerialised import rematerialised, rematerialising
from xlapipe.lowering.sharded_arguments import axes_that_differ, sharded
from xlapipe.registry import WorkloadReference
from xlapipe.workload import Workload

_SHARDS = 2


def changed_workload(
    *,
    reference: Mapping[str, str | None],
    donate: Sequence[str] = (),
    checkpoint: str | None = None,
    note: str | None = None,
    halve: str | None = None,
    shard_size: str | None = None,
    shard_leaves: Mapping[int, int] | None = None,
    more_devices: int | None = None,
    devices: int | None = None,
) -> Workload:
    """The workload of a reference with one change.

    Args:
      reference: as `WorkloadReference.to_json` writes it.
      donate: names of parameters of the step to donate as well.
      checkpoint: how every function that the step differentiates is rematerialised; see
        `rematerialising`.
      note: file for a description of what is rematerialised, if the change decides that.
      halve: name of an integer argument of the workload's function, which is halved.
      shard_size: name of such an argument; the dimensions of the step's arguments that depend on
        it are sharded over two devices.
      shard_leaves: the dimension to shard over two devices, by number of the arguments' leaf.
      more_devices: value of the argument `devices` of the workload's function.
      devices: as for `load_workload`.

    Raises:
      WorkloadError: the change is not possible for this workload.
    """
    original = WorkloadReference.from_json(reference)
    if halve is not None:
        original = _halved(original, halve)
    if more_devices is not None:
        original = _over_devices(original, more_devices)
    path = Path(note) if note is not None else None
    with rematerialising(checkpoint, path) if checkpoint is not None else nullcontext():
        workload = load_workload(original, devices=devices)
    if donate:
        names = tuple(dict.fromkeys((*workload.donated_names, *donate)))
        workload = replace(workload, donate_argnames=names)
    if checkpoint is not None:
        workload = replace(workload, fn=rematerialised(workload.fn, checkpoint, path))
    if shard_size is not None:
        smaller = load_workload(_halved(original, shard_size))
        shard_leaves = axes_that_differ(workload, smaller, _SHARDS)
    if shard_leaves is not None:
        workload = sharded(workload, shard_leaves, _SHARDS)
    return workload


def _over_devices(reference: WorkloadReference, devices: int) -> WorkloadReference:
    given = dict(reference.arguments or {})
    if not isinstance(given.get("devices", _default(reference, "devices")), int):
        raise WorkloadError(f"{reference}: its function has no integer argument devices")
    return replace(reference, arguments={**given, "devices": devices})


def _halved(reference: WorkloadReference, name: str) -> WorkloadReference:
    given = dict(reference.arguments or {})
    value = given.get(name, _default(reference, name))
    if not isinstance(value, int) or isinstance(value, bool) or value < 2:
        raise WorkloadError(f"{reference}: expected an integer {name} of 2 or more")
    return replace(reference, arguments={**given, name: value // 2})


def _default(reference: WorkloadReference, name: str) -> Any:
    """The default of a parameter of the workload's function; None if it has no such parameter."""
    import importlib
    import sys

    if reference.folder is not None:
        sys.path.insert(0, str(reference.folder))
    module, _, attribute = reference.target.partition(":")
    value: Any = importlib.import_module(module)
    for part in attribute.split("."):
        value = getattr(value, part)
    if isinstance(value, Workload) or not callable(value):
        return None
    parameter = inspect.signature(value).parameters.get(name)
    return parameter.default if parameter is not None else None
