"""The arguments and outputs of a lowered step, as a dump records them.

XLA updates a reference, a mutable array of `jax.new_ref`, in place: jax passes it as a parameter,
and returns its new value as an output after the step's own. References that the step closes over
come after its arguments.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from xlapipe.compile.lowering.arguments import shard_bytes
from xlapipe.compile.lowering.specs import memory_kind_of, spec_of
from xlapipe.jax_private import is_reference, lowering_of
from xlapipe.plans.program import ArgumentLeaf, OutputLeaf, matches


def argument_leaves(
    lowered: jax.stages.Lowered,
    names: Sequence[str],
    *,
    given: Sequence[Any] = (),
    dropped: Mapping[str, str] | None = None,
    several: bool = False,
) -> tuple[ArgumentLeaf, ...]:
    """The leaves of the arguments, with the constants and references that jax adds.

    Args:
      names: of the leaves that jax was passed.
      given: their shardings, if the wrapper passes the leaves in the order of the arguments.
      dropped: settings that drop the donation of an argument, by its name.
      several: whether the step is of several devices.
    """
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
    """The leaves of the outputs, the new values of references included.

    Args:
      names: of the leaves that the step returns.
      arguments: as of `argument_leaves`.
      constant: which outputs depend on no argument; empty if that is unknown.
    """
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


def _tokens(details: Mapping[str, Any]) -> int:
    """An ordered effect, such as an ordered callback, adds a token before arguments and outputs."""
    return len(details["ordered_effects"])


def _sharding(value: Any) -> Any:
    return value if isinstance(value, jax.sharding.Sharding) else None
