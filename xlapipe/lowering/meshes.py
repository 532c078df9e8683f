"""The mesh of a workload: given with it, or carried by its arguments."""

from collections.abc import Iterator, Mapping
from typing import Any

from jax._src.mesh import AbstractDevice
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jax.tree_util import keystr, tree_flatten_with_path

from xlapipe.errors import WorkloadError
from xlapipe.platforms.platform import DeviceFigures
from xlapipe.workload import Workload


def is_spec(value: Any) -> bool:
    """Whether `value` is a leaf of a tree of specs; None stands for a replicated array."""
    return value is None or isinstance(value, PartitionSpec)


def axes_of(workload: Workload) -> Mapping[str, int] | None:
    """Axis names to sizes, of the workload's mesh or of its arguments' shardings; None for neither.

    Raises:
      WorkloadError: shardings over different meshes, or devices out of order.
    """
    if workload.mesh_axes is not None:
        return workload.mesh_axes
    first: tuple[str, Mapping[str, int]] | None = None
    for path, sharding in _named_shardings(workload):
        axes = dict(sharding.mesh.shape)
        _refuse_reordered(workload, path, sharding.mesh)
        if first is None:
            first = path, axes
        elif first[1] != axes:
            raise WorkloadError(
                f"workload {workload.name}: argument {path} is over the mesh {axes}, {first[0]} "
                f"over {dict(first[1])}; fix: shard all arguments over one mesh"
            )
    return first[1] if first is not None else None


def context_mesh(workload: Workload, device: DeviceFigures) -> AbstractMesh:
    """The mesh that is current while the step is traced; it tells Pallas what the device is.

    For one device, and for arguments that bring their own mesh, it has no axes.
    """
    if workload.mesh is not None and not isinstance(workload.mesh, Mapping):
        mesh: AbstractMesh = workload.mesh.abstract_mesh
        return mesh
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


def _named_shardings(workload: Workload) -> Iterator[tuple[str, NamedSharding]]:
    flat = tree_flatten_with_path((tuple(workload.args), dict(workload.kwargs)))[0]
    for path, leaf in flat:
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding) and not sharding.mesh.empty:
            yield keystr(path), sharding


def _refuse_reordered(workload: Workload, path: str, mesh: Mesh | AbstractMesh) -> None:
    """XLA compiles for the target's devices in their order, row by row over the mesh."""
    if not isinstance(mesh, Mesh):
        return
    ids = [device.id for device in mesh.devices.flat]
    if ids != list(range(len(ids))):
        raise WorkloadError(
            f"workload {workload.name}: argument {path} is over a mesh of devices {ids[:8]}…, "
            "expected the devices in their order; fix: make the mesh with jax.make_mesh, or give "
            "an AbstractMesh"
        )
