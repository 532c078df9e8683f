"""From a reference to a lowered program: the only code here that knows jax's stages.

It runs in the compiling child alone, so that the flags and failures of one compile stay there.
"""

import importlib
import inspect
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from xlapipe.errors import WorkloadError
from xlapipe.kernel_ir import strip_locations
from xlapipe.plan.program import ArgumentLeaf, OutputLeaf
from xlapipe.registry import workload_arguments
from xlapipe.workload import Workload


@dataclass(frozen=True)
class LoweredProgram:
    """A lowered workload and the names of its leaves."""

    lowered: Any
    arguments: tuple[ArgumentLeaf, ...]
    outputs: tuple[OutputLeaf, ...]


def load_workload(reference: str, *, folder: str | None) -> Workload:
    """Imports `module:attribute`; `folder` goes first on the path, for modules of the user's.

    Args:
      reference: arguments for the attribute may follow, see `xlapipe.registry`.

    Raises:
      WorkloadError: the attribute is missing or is no Workload, or takes no arguments. What the
        user's code raises passes through.
    """
    arguments = workload_arguments(reference)
    module_name, _, attribute = reference.partition("(")[0].partition(":")
    if folder is not None:
        sys.path.insert(0, folder)
    found: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = [n for n in dir(found) if not n.startswith("_")]
            raise WorkloadError(
                f"{reference}: {module_name} has no attribute {part!r}; it has {', '.join(names)}"
            )
        found = getattr(found, part)
    if callable(found) and not isinstance(found, Workload):
        found = found(**(arguments or {}))
    elif arguments is not None:
        raise WorkloadError(f"{reference}: {attribute} is no function, and takes no arguments")
    if not isinstance(found, Workload):
        raise WorkloadError(
            f"{reference}: expected a xlapipe.Workload or a function that returns one, "
            f"found {type(found).__name__}"
        )
    return found


def lower(workload: Workload, devices: Sequence[Any]) -> LoweredProgram:
    """Traces and lowers `workload` for `devices`, of which the mesh takes the first ones.

    Raises:
      WorkloadError: fewer devices than the mesh asks for, arguments that are not abstract
        arrays, or specs that do not fit. What the user's function raises passes through.
    """
    if workload.device_count > len(devices):
        raise WorkloadError(
            f"workload {workload.name}: mesh {dict(workload.mesh or {})} asks for "
            f"{workload.device_count} devices, the target has {len(devices)}"
        )
    mesh = _mesh(workload, devices)
    args = _with_shardings(workload, mesh, devices[0])
    out_shardings = None
    if mesh is not None and workload.out_specs is not None:
        out_shardings = jax.tree.map(
            lambda spec: NamedSharding(mesh, spec), workload.out_specs, is_leaf=_is_spec
        )
    jitted = jax.jit(
        workload.fn,
        donate_argnums=workload.donated,
        **({} if out_shardings is None else {"out_shardings": out_shardings}),
    )
    with jax.sharding.use_abstract_mesh(_mesh_in_use(mesh, devices[0])):
        lowered = jitted.lower(*args)
    strip_locations(lowered.compiler_ir("stablehlo"))
    return LoweredProgram(lowered, _arguments(workload, args, lowered), _outputs(lowered))


def _is_spec(value: Any) -> bool:
    return value is None or isinstance(value, PartitionSpec)


def _mesh(workload: Workload, devices: Sequence[Any]) -> Mesh | None:
    if workload.mesh is None:
        return None
    grid = np.array(devices[: workload.device_count]).reshape(tuple(workload.mesh.values()))
    return Mesh(grid, tuple(workload.mesh))


def _mesh_in_use(mesh: Mesh | None, device: Any) -> AbstractMesh:
    """What Pallas asks for the kind of device; by itself it would look for an attached GPU.

    For one device it has no axes, so that it tells the device and shards nothing.
    """
    concrete = mesh if mesh is not None else Mesh(np.array([device]), ("device",))
    in_use: AbstractMesh = concrete.abstract_mesh
    if mesh is None:
        in_use = AbstractMesh((), (), abstract_device=in_use.abstract_device)
    return in_use


def _with_shardings(workload: Workload, mesh: Mesh | None, device: Any) -> tuple[Any, ...]:
    if mesh is None:
        single = SingleDeviceSharding(device)
        return tuple(
            jax.tree_util.tree_map_with_path(
                lambda path, leaf, number=number: _abstract(workload, number, path, leaf, single),
                arg,
            )
            for number, arg in enumerate(workload.args)
        )
    specs = PartitionSpec() if workload.in_specs is None else workload.in_specs
    try:
        flat = jax.tree.broadcast(specs, tuple(workload.args), is_leaf=_is_spec)
    except ValueError as error:
        raise WorkloadError(
            f"workload {workload.name}: in_specs are no prefix of args: {error}"
        ) from error
    return tuple(
        jax.tree_util.tree_map_with_path(
            lambda path, leaf, spec, number=number: _abstract(
                workload, number, path, leaf, NamedSharding(mesh, spec or PartitionSpec())
            ),
            arg,
            spec,
        )
        for number, (arg, spec) in enumerate(zip(workload.args, flat, strict=True))
    )


def _abstract(workload: Workload, number: int, path: Any, leaf: Any, sharding: Any) -> Any:
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise WorkloadError(
            f"workload {workload.name}: argument {number}{jax.tree_util.keystr(path)} is "
            f"{leaf!r:.60}, expected a jax.ShapeDtypeStruct"
        )
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _argument_names(workload: Workload) -> list[str]:
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


def _arguments(workload: Workload, args: tuple[Any, ...], lowered: Any) -> tuple[ArgumentLeaf, ...]:
    # jit drops leaves that the program does not use; only this private field tells which.
    kept = sorted(lowered._lowering.compile_args["kept_var_idx"])
    number_of = {leaf: number for number, leaf in enumerate(kept)}
    leaves = [
        (f"{name}{jax.tree_util.keystr(path)}", leaf, argument in workload.donated)
        for argument, (name, arg) in enumerate(zip(_argument_names(workload), args, strict=True))
        for path, leaf in jax.tree_util.tree_flatten_with_path(arg)[0]
    ]
    return tuple(
        ArgumentLeaf(
            path=path,
            shape=tuple(leaf.shape),
            dtype=str(leaf.dtype),
            size_bytes=_shard_bytes(leaf),
            donated=donated,
            parameter_number=number_of.get(position),
        )
        for position, (path, leaf, donated) in enumerate(leaves)
    )


def _shard_bytes(leaf: Any) -> int:
    """Bytes of the leaf on one device."""
    sharding = getattr(leaf, "sharding", None)
    shape = leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)
    return int(prod(shape)) * int(np.dtype(leaf.dtype).itemsize)


def _outputs(lowered: Any) -> tuple[OutputLeaf, ...]:
    flat = jax.tree_util.tree_flatten_with_path(lowered.out_info)[0]
    return tuple(
        OutputLeaf(
            path=f"out{jax.tree_util.keystr(path)}",
            shape=tuple(leaf.shape),
            dtype=str(leaf.dtype),
            size_bytes=_shard_bytes(leaf),
            index=index,
        )
        for index, (path, leaf) in enumerate(flat)
    )


def user_frame(error: BaseException) -> str | None:
    """`file:line in function: code` of the innermost frame of the user's own code."""
    import traceback

    here = os.path.dirname(__file__)
    found = None
    for frame in traceback.extract_tb(error.__traceback__):
        library = any(part in frame.filename for part in ("site-packages", "dist-packages"))
        if library or frame.filename.startswith((here, "<frozen", sys.base_prefix)):
            continue
        found = f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
    return found
