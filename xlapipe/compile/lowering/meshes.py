"""The mesh of a workload: given with it, by its arguments, by its `jax.jit`, or set as current.

The last is `jax.set_mesh(mesh)` in the user's module, or around xlapipe's fixture.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from xlapipe.compile.lowering.jit_parameters import named_jit_shardings
from xlapipe.compile.lowering.names import fn_text, named_leaves
from xlapipe.devices.platforms.platform import DeviceFigures
from xlapipe.errors import WorkloadError
from xlapipe.workload import Workload


def is_spec(value: Any) -> bool:
    """Whether `value` is a leaf of a tree of specs; None means a replicated array."""
    return value is None or isinstance(value, PartitionSpec)


def axes_of(workload: Workload) -> Mapping[str, int] | None:
    """Axis names to sizes of the workload's mesh; None without a mesh."""
    current = jax.sharding.get_abstract_mesh()
    if workload.mesh_axes is not None:
        _refuse_two_meshes(workload, current)
        return workload.mesh_axes
    first: tuple[str, Mapping[str, int]] | None = None
    for place, mesh in _carried_meshes(workload, current):
        axes = dict(mesh.shape)
        _refuse_reordered(workload, place, mesh)
        if first is None:
            first = place, axes
        elif first[1] != axes:
            raise WorkloadError(
                f"workload {workload.name}: {place} is over the mesh {axes}, {first[0]} over "
                f"{dict(first[1])}; fix: shard all of them over one mesh"
            )
    return first[1] if first is not None else None


def _refuse_two_meshes(workload: Workload, current: AbstractMesh) -> None:
    """Refuses `mesh=` beside a mesh that the function or jax has already."""
    axes = dict(workload.mesh_axes or {})
    leave_out = "fix: leave mesh= out of the workload"
    for given in named_jit_shardings(workload.fn):
        if given.place == "in_shardings":
            raise WorkloadError(
                f"{fn_text(workload)} is jitted with in_shardings over the mesh "
                f"{dict(given.sharding.mesh.shape)}, and mesh={axes} would replicate its arguments "
                f"and be the current mesh; {leave_out}, or, if the step runs under "
                "jax.set_mesh(mesh), call that in the module instead"
            )
        if dict(given.sharding.mesh.shape) != axes:
            raise WorkloadError(
                f"{fn_text(workload)} is jitted with out_shardings over the mesh "
                f"{dict(given.sharding.mesh.shape)}, and the workload has mesh={axes}; "
                "fix: name one mesh in both"
            )
    for path, sharding in _named_shardings(workload):
        _refuse_reordered(workload, f"argument {path}", sharding.mesh)
        if _comparable(sharding.mesh) != _comparable_to(workload):
            raise WorkloadError(
                f"workload {workload.name}: argument {path} is over the mesh "
                f"{_mesh_text(_comparable(sharding.mesh))}, and the workload has mesh= with "
                f"{_mesh_text(_comparable_to(workload))}; {leave_out}, or shard the argument over "
                "the same mesh"
            )
    if not current.empty and _comparable(current) != _comparable_to(workload):
        raise WorkloadError(
            f"workload {workload.name}: jax.set_mesh has set {current.update(abstract_device=None)}"
            f", and the workload has mesh={workload.mesh}; {leave_out}"
        )


def _mesh_text(comparable: Any) -> str:
    axes = (f"{name}={size} {kind.name}" for size, name, kind in zip(*comparable, strict=True))
    return f"({', '.join(axes)})"


def _comparable(mesh: Mesh | AbstractMesh) -> Any:
    return mesh.axis_sizes, mesh.axis_names, mesh.axis_types


def _comparable_to(workload: Workload) -> Any:
    if isinstance(workload.mesh, Mapping):
        return tuple(workload.mesh.values()), tuple(workload.mesh), _axis_types(workload)
    return _comparable(workload.mesh)


def _axis_types(workload: Workload) -> tuple[AxisType, ...]:
    return tuple(
        AxisType.Explicit if name in workload.explicit_axes else AxisType.Auto
        for name in workload.mesh_axes or {}
    )


def _carried_meshes(
    workload: Workload, current: AbstractMesh
) -> Iterator[tuple[str, Mesh | AbstractMesh]]:
    """The meshes of arguments, of the function's `jax.jit`, and the current one, with the place."""
    for path, sharding in _named_shardings(workload):
        yield f"argument {path}", sharding.mesh
    for given in named_jit_shardings(workload.fn):
        yield f"{given.place} of fn's jax.jit", given.sharding.mesh
    if not current.empty:
        concrete = jax.sharding.get_mesh()
        yield "jax.set_mesh", current if concrete.empty else concrete


def context_mesh(workload: Workload, device: DeviceFigures) -> AbstractMesh:
    """The mesh that is current while the step is traced; Pallas reads the device from it.

    For one device, and for arguments or a function that bring their own mesh, it has no axes.
    """
    abstract_device = jax.sharding.AbstractDevice(
        device_kind=device.device_kind, num_cores=device.core_count, platform=device.platform
    )
    current = jax.sharding.get_abstract_mesh()
    if workload.mesh is None and not current.empty:
        return current
    if workload.mesh is not None and not isinstance(workload.mesh, Mapping):
        mesh: AbstractMesh = workload.mesh.abstract_mesh
        return mesh
    axes = dict(workload.mesh or {})
    return AbstractMesh(
        tuple(axes.values()),
        tuple(axes),
        axis_types=_axis_types(workload),
        abstract_device=abstract_device,
    )


def mesh_inside(workload: Workload, lowering: Any, device_count: int) -> Mapping[str, int] | None:
    """The mesh that the step names inside of it, if the program is over more devices than known."""
    details = lowering.compile_args
    if details["num_devices"] == device_count:
        return None
    for sharding in details["intermediate_shardings"]:
        mesh = getattr(sharding, "mesh", None)
        if mesh is not None and mesh.size == details["num_devices"]:
            _refuse_reordered(workload, "a sharding inside of fn", mesh)
            if device_count == 1:
                return dict(mesh.shape)
    raise WorkloadError(
        f"{fn_text(workload)} is over {details['num_devices']} devices inside, and its arguments "
        f"and mesh= are over {device_count}; fix: shard the arguments with "
        "jax.sharding.NamedSharding over the mesh that the step uses"
    )


def _named_shardings(workload: Workload) -> Iterator[tuple[str, NamedSharding]]:
    leaves = jax.tree.leaves((tuple(workload.args), dict(workload.kwargs)))
    if not any(map(_is_over_mesh, leaves)):
        return  # paths of many leaves take time
    for path, leaf in named_leaves(workload):
        if _is_over_mesh(leaf):
            yield path, leaf.sharding


def _is_over_mesh(leaf: Any) -> bool:
    sharding = getattr(leaf, "sharding", None)
    return isinstance(sharding, NamedSharding) and not sharding.mesh.empty


def _refuse_reordered(workload: Workload, place: str, mesh: Mesh | AbstractMesh) -> None:
    """XLA compiles for the target's devices in their order, row by row over the mesh."""
    if not isinstance(mesh, Mesh):
        return
    ids = [device.id for device in mesh.devices.flat]
    if ids != list(range(len(ids))):
        raise WorkloadError(
            f"workload {workload.name}: {place} is over a mesh of devices {ids[:8]}…, "
            "expected the devices in their order; fix: make the mesh with jax.make_mesh, or give "
            "an AbstractMesh"
        )
