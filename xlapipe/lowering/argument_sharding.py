"""A workload's mesh over GPUs that need not be there, and its arguments sharded over it."""

import inspect
from collections.abc import Mapping
from math import prod
from typing import Any

import jax
from jax._src.mesh import AbstractDevice
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec, SingleDeviceSharding

from xlapipe.errors import WorkloadError
from xlapipe.platforms.platform import AbstractDeviceFigures
from xlapipe.workload import Workload


def is_spec(value: Any) -> bool:
    """Whether `value` is a leaf of a tree of specs; None stands for a replicated array."""
    return value is None or isinstance(value, PartitionSpec)


def mesh_of(workload: Workload, device: AbstractDeviceFigures) -> AbstractMesh:
    """The workload's mesh, which tells Pallas what the device is.

    For one device the mesh has no axes, and shards nothing.
    """
    axes = dict(workload.mesh or {})
    return AbstractMesh(
        tuple(axes.values()),
        tuple(axes),
        axis_types=tuple(
            AxisType.Explicit if name in workload.explicit_axes else AxisType.Auto for name in axes
        ),
        abstract_device=AbstractDevice(
            device_kind=device.device_kind,
            num_cores=device.core_count,
            platform=device.platform,
        ),
    )


def with_shardings(workload: Workload, mesh: AbstractMesh) -> tuple[Any, ...]:
    """The workload's arguments as `jax.ShapeDtypeStruct`s that say where they lie.

    Raises:
      WorkloadError: arguments that are no arrays, or specs that do not fit them.
    """
    if workload.mesh is None:
        # Any device will do: it says that there is one, and is named in no module.
        single = SingleDeviceSharding(jax.local_devices()[0])
        shardings: Any = jax.tree.map(lambda _: single, tuple(workload.args))
    else:
        specs = PartitionSpec() if workload.in_specs is None else workload.in_specs
        try:
            shardings = jax.tree.broadcast(specs, tuple(workload.args), is_leaf=is_spec)
        except ValueError as error:
            said = str(error).replace("broadcast_prefix prefix_tree", "in_specs")
            raise WorkloadError(
                f"workload {workload.name}: in_specs are no prefix of args: {said}"
            ) from error
    return tuple(
        jax.tree_util.tree_map_with_path(
            lambda path, leaf, where, name=name: _abstract(
                workload, f"{name}{jax.tree_util.keystr(path)}", leaf, where, mesh
            ),
            arg,
            where,
        )
        for name, arg, where in zip(argument_names(workload), workload.args, shardings, strict=True)
    )


def _abstract(workload: Workload, name: str, leaf: Any, where: Any, mesh: AbstractMesh) -> Any:
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise WorkloadError(
            f"workload {workload.name}: argument {name} is {leaf!r:.60}, expected an array or a "
            "jax.ShapeDtypeStruct; bind constants to the function with functools.partial"
        )
    if is_spec(where):
        spec = where or PartitionSpec()
        _refuse_misfit(workload, name, leaf, spec, mesh.shape)
        where = NamedSharding(mesh, spec)
    return jax.ShapeDtypeStruct(
        leaf.shape,
        jax.dtypes.canonicalize_dtype(leaf.dtype, allow_extended_dtype=True),
        sharding=where,
        weak_type=getattr(leaf, "weak_type", False),
    )


def _refuse_misfit(
    workload: Workload, name: str, leaf: Any, spec: Any, mesh: Mapping[str, int]
) -> None:
    """Raises WorkloadError for a spec that does not fit the leaf or the mesh."""
    said = f"workload {workload.name}: in_specs give {name} ({leaf.dtype}{list(leaf.shape)}) {spec}"
    if len(spec) > len(leaf.shape):
        raise WorkloadError(
            f"{said}: {len(spec)} entries for {len(leaf.shape)} dimensions; leave some out"
        )
    for number, (size, entry) in enumerate(zip(leaf.shape, spec, strict=False)):
        axes = (entry,) if isinstance(entry, str) else entry if isinstance(entry, tuple) else ()
        for axis in axes:
            if axis not in mesh:
                raise WorkloadError(
                    f"{said}: the mesh has no axis {axis!r}; it has {', '.join(mesh) or 'none'}"
                )
        parts = prod(mesh[axis] for axis in axes)
        if size % parts:
            of = " and ".join(f"{axis!r} ({mesh[axis]})" for axis in axes)
            raise WorkloadError(
                f"{said}: mesh axis {of} does not divide dimension {number} of {size}: leave the "
                f"dimension whole, or make it a multiple of {parts}"
            )


def shard_bytes(leaf: Any) -> int:
    """Bytes of a leaf on one device; all of it where nothing is said of its sharding."""
    sharding = getattr(leaf, "sharding", None)
    shape = leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)
    return int(prod(shape)) * int(leaf.dtype.itemsize)


def argument_names(workload: Workload) -> list[str]:
    """Names of the function's parameters; `args[i]` for those behind `*args`."""
    try:
        parameters = list(inspect.signature(workload.fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = [
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    count = len(workload.args)
    return positional[:count] + [f"args[{i}]" for i in range(len(positional), count)]
