"""The arguments and outputs of a lowered step, as a dump records them, and where they are placed.

XLA updates a reference, a mutable array of `jax.new_ref`, in place: jax passes it as a parameter,
and returns its new value as an output after the step's own. References that the step closes over
come after its arguments.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from xlapipe.compile.lowering.arguments import shard_bytes
from xlapipe.compile.lowering.names import named_leaves
from xlapipe.compile.messages import LoweredProgram
from xlapipe.jax_private import is_reference, lowering_of, parse_flatten_op_sharding, tiled_sharding
from xlapipe.plans.program import ArgumentLeaf, OutputLeaf, Spec, matches
from xlapipe.workload import Workload


def argument_leaves(
    lowered: jax.stages.Lowered,
    names: Sequence[str],
    *,
    given: Sequence[Any] = (),
    dropped: Mapping[str, str] | None = None,
    several: bool = False,
) -> tuple[ArgumentLeaf, ...]:
    """The leaves of the arguments, with the constants and references that jax adds."""
    lowering = lowering_of(lowered)
    details = lowering.compile_args
    leaves = jax.tree.leaves(lowered.args_info)
    # jax passes closed-over constants before the arguments if it is configured to hoist them.
    constants = list(lowering.const_args)
    mutated = details["mut"]
    closed_over = list(mutated.in_mut) if mutated is not None else []
    # jit drops the leaves that the program does not use, and adds closed-over references last.
    kept = sorted(details["kept_var_idx"])
    kept += range(len(constants) + len(leaves), len(constants) + len(leaves) + len(closed_over))
    tokens = _tokens(details)
    number_of = {leaf: number + tokens for number, leaf in enumerate(kept)}
    paths = [
        *(f"constant[{number}]" for number in range(len(constants))),
        *names,
        *(f"ref[{number}]" for number in range(len(closed_over))),
    ]
    infos = [*constants, *leaves, *closed_over]
    given = given if len(given) == len(leaves) else [None] * len(leaves)
    shardings = [*([None] * len(constants)), *given, *([None] * len(closed_over))]
    for position, sharding in zip(kept, details["in_shardings"], strict=True):
        # jax keeps those of the leaves that the program uses; the others are on the arguments,
        # unless a wrapper passes them in another order.
        shardings[position] = _sharding(sharding)
    return tuple(
        ArgumentLeaf(
            path=path,
            shape=tuple(info.shape),
            dtype=str(info.dtype),
            size_bytes=shard_bytes(info, sharding),
            donated=getattr(info, "donated", False) or is_reference(info),
            parameter_number=number_of.get(position),
            spec=spec_of(sharding) if several else None,
            memory_kind=memory_kind_of(sharding),
            donation_dropped_by=next(
                (setting for name, setting in (dropped or {}).items() if matches(name, path)), None
            ),
        )
        for position, (path, info, sharding) in enumerate(zip(paths, infos, shardings, strict=True))
    )


def output_leaves(
    lowered: jax.stages.Lowered,
    names: Sequence[str],
    arguments: Sequence[ArgumentLeaf],
    constant: Sequence[bool] = (),
) -> tuple[OutputLeaf, ...]:
    """The leaves of the outputs, the new values of references included."""
    details = lowering_of(lowered).compile_args
    tokens, mutated = _tokens(details), details["mut"]
    path_of = {leaf.parameter_number: leaf.path for leaf in arguments}
    inputs = mutated.out_mut if mutated is not None else ()
    paths = [
        *names,
        *(f"updated.{path_of[number + tokens]}" for number in inputs if number is not None),
    ]
    avals = details["global_out_avals"]
    return tuple(
        OutputLeaf(
            path=path,
            shape=tuple(aval.shape),
            dtype=str(aval.dtype),
            size_bytes=shard_bytes(aval, _sharding(sharding)),
            index=index + tokens,
            constant=index < len(constant) and constant[index],
        )
        for index, (path, aval, sharding) in enumerate(
            zip(paths, avals, details["out_shardings"], strict=True)
        )
    )


def same_buffers(workload: Workload) -> dict[str, str]:
    """Paths of leaves that are one array, each to the first other one.

    Arguments that are abstract have no buffers, and nothing is known of them.
    """
    first: dict[Any, str] = {}
    same: dict[str, str] = {}
    for path, leaf in named_leaves(workload):
        buffer = _buffer(leaf)
        if buffer is None:
            continue
        other = first.setdefault(buffer, path)
        if other != path:
            same[path] = other
            same.setdefault(other, path)
    return same


def _buffer(leaf: Any) -> Any:
    """What two leaves have in common if they are one buffer; None if that is unknown.

    A numpy array is copied to the device for each leaf, and can be shared freely.
    """
    if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer) or leaf.size == 0:
        return None
    if leaf.is_deleted():
        return None
    try:
        return leaf.unsafe_buffer_pointer()
    except (ValueError, RuntimeError, NotImplementedError, AttributeError):
        return id(leaf)  # on several devices, or a typed key


def _tokens(details: Mapping[str, Any]) -> int:
    """An ordered effect, such as an ordered callback, adds a token before arguments and outputs."""
    return len(details["ordered_effects"])


def _sharding(value: Any) -> Any:
    return value if isinstance(value, jax.sharding.Sharding) else None


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
