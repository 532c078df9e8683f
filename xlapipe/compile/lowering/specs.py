"""How leaves are placed on a mesh: jax's objects to and from the plain data of a manifest."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from xlapipe.jax_private import parse_flatten_op_sharding, tiled_sharding
from xlapipe.plans.program import ArgumentLeaf, OutputLeaf, Spec


def spec_of(sharding: Any) -> Spec | None:
    """The spec of a NamedSharding; None of a sharding that names no axes."""
    return tuple(sharding.spec) if isinstance(sharding, NamedSharding) else None


def memory_kind_of(sharding: Any) -> str | None:
    """jax's name of the memory that a sharding names; None for the device's own."""
    return other_memory(getattr(sharding, "memory_kind", None))


def other_memory(kind: str | None) -> str | None:
    """The name of a memory other than the device's own, which is `device` on a GPU."""
    return None if kind == "device" else kind


def mesh_over(axes: Mapping[str, int], devices: Sequence[Any]) -> Mesh:
    """The mesh over devices in their order, row by row, as programs are compiled for it."""
    return Mesh(np.array(devices, dtype=object).reshape(tuple(axes.values())), tuple(axes))


def named(mesh: Mesh, spec: Spec, memory_kind: str | None = None) -> NamedSharding:
    """The sharding of a leaf over a mesh."""
    return NamedSharding(mesh, PartitionSpec(*spec), memory_kind=memory_kind)


def in_memory(outputs: Sequence[OutputLeaf], executable: Any) -> tuple[OutputLeaf, ...]:
    """The outputs with the memory that XLA put them in.

    Args:
      executable: as jax's compiler returns it.
    """
    (kinds,) = executable.get_output_memory_kinds()
    return tuple(replace(leaf, memory_kind=other_memory(kinds[leaf.index])) for leaf in outputs)


def outputs_as_compiled(
    outputs: Sequence[OutputLeaf], axes: Mapping[str, int], executable: Any
) -> tuple[OutputLeaf, ...]:
    """The outputs with the specs that XLA settled on.

    Args:
      axes: the mesh.
      executable: as jax's compiler returns it, compiled for more than one device.
    """
    specs = _specs(executable.get_output_shardings(), axes)
    return tuple(replace(leaf, spec=spec) for leaf, spec in zip(outputs, specs, strict=True))


def arguments_as_compiled(
    arguments: Sequence[ArgumentLeaf], axes: Mapping[str, int], executable: Any
) -> tuple[ArgumentLeaf, ...]:
    """The arguments, those without a spec with the one that XLA chose.

    Args:
      axes: the mesh.
      executable: as jax's compiler returns it, compiled for more than one device.
    """
    if all(leaf.spec is not None or leaf.parameter_number is None for leaf in arguments):
        return tuple(arguments)
    specs: dict[int | None, Spec] = dict(
        enumerate(_specs(executable.get_parameter_shardings(), axes))
    )
    return tuple(
        replace(leaf, spec=specs.get(leaf.parameter_number)) if leaf.spec is None else leaf
        for leaf in arguments
    )


def _specs(shardings: Sequence[Any] | None, axes: Mapping[str, int]) -> list[Spec]:
    """The specs of XLA's shardings over the mesh of these axes."""
    mesh = AbstractMesh(tuple(axes.values()), tuple(axes))
    tiled = map(tiled_sharding, shardings or ())
    parsed = [parse_flatten_op_sharding(sharding, mesh) for sharding in tiled]
    return [tuple(spec) for (spec,) in parsed]
