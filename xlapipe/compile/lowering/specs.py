"""How leaves are placed on a mesh: jax's objects to and from the plain data of a manifest."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from xlapipe.compile.lowering.lowered_program import LoweredProgram
from xlapipe.jax_private import parse_flatten_op_sharding, tiled_sharding
from xlapipe.plans.program import Spec


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


def leaves_as_compiled(program: LoweredProgram, executable: Any) -> dict[str, Any]:
    """`arguments` and `outputs`, with the memories and shardings that XLA chose.

    Arguments keep the specs that the user gave.

    Args:
      executable: as jax's compiler returns it.
    """
    arguments, outputs = program.arguments, program.outputs
    (kinds,) = executable.get_output_memory_kinds()
    outputs = tuple(replace(leaf, memory_kind=other_memory(kinds[leaf.index])) for leaf in outputs)
    if program.device_count > 1 and program.mesh is not None:
        specs = _specs(executable.get_output_shardings(), program.mesh)
        outputs = tuple(replace(leaf, spec=spec) for leaf, spec in zip(outputs, specs, strict=True))
        if any(leaf.spec is None and leaf.parameter_number is not None for leaf in arguments):
            chosen = _specs(executable.get_parameter_shardings(), program.mesh)
            of_number: dict[int | None, Spec] = dict(enumerate(chosen))
            arguments = tuple(
                leaf
                if leaf.spec is not None
                else replace(leaf, spec=of_number.get(leaf.parameter_number))
                for leaf in arguments
            )
    return {"arguments": arguments, "outputs": outputs}


def _specs(shardings: Sequence[Any] | None, axes: Mapping[str, int]) -> list[Spec]:
    """The specs of XLA's shardings over the mesh of these axes."""
    mesh = AbstractMesh(tuple(axes.values()), tuple(axes))
    tiled = map(tiled_sharding, shardings or ())
    parsed = [parse_flatten_op_sharding(sharding, mesh) for sharding in tiled]
    return [tuple(spec) for (spec,) in parsed]
