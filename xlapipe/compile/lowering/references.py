"""References, the mutable arrays of `jax.new_ref`, in a lowered step.

XLA updates each in place: jax passes it as a parameter, and returns its new value as an output
after the step's own. References that the step closes over come after its arguments.
"""

from collections.abc import Sequence
from typing import Any

from xlapipe.plans.program import ArgumentLeaf


def closed_over_references(lowering: Any) -> list[Any]:
    """The references that a step closes over, in the order of their parameters.

    Args:
      lowering: as of `jax_private.lowering_of`.
    """
    mutated = lowering.compile_args["mut"]
    return list(mutated.in_mut) if mutated is not None else []


def updated_references(lowering: Any, arguments: Sequence[ArgumentLeaf], tokens: int) -> list[str]:
    """Names of the outputs that are the new values of references.

    Args:
      lowering: as above.
      tokens: count of the parameters before the arguments.
    """
    mutated = lowering.compile_args["mut"]
    if mutated is None:
        return []
    path_of = {leaf.parameter_number: leaf.path for leaf in arguments}
    inputs = [number for number in mutated.out_mut if number is not None]
    return [f"updated.{path_of[number + tokens]}" for number in inputs]
