"""Which outputs of a traced program depend on its arguments."""

from collections.abc import Sequence
from typing import Any

from jax.extend.core import Literal


def dependent_outputs(jaxpr: Any) -> list[bool]:
    """For each output of a closed jaxpr, whether it may depend on an argument or on the host.

    Equations are not looked into, except calls of jitted functions: all outputs of an equation
    depend on all of its inputs. Time is linear in the number of equations.
    """
    return _outputs(jaxpr.jaxpr, [True] * len(jaxpr.jaxpr.invars), {})


def depends_only_on(jaxpr: Any, argument: int, output: int) -> bool:
    """Whether an output of a closed jaxpr depends on this argument, and on no other.

    Args:
      argument, output: positions in the jaxpr.
    """
    chosen = [number == argument for number in range(len(jaxpr.jaxpr.invars))]
    others = [not flag for flag in chosen]
    return (
        _outputs(jaxpr.jaxpr, chosen, {})[output] and not _outputs(jaxpr.jaxpr, others, {})[output]
    )


def _outputs(
    jaxpr: Any, inputs: Sequence[bool], known: dict[tuple[int, tuple[bool, ...]], list[bool]]
) -> list[bool]:
    key = id(jaxpr), tuple(inputs)
    if key in known:
        return known[key]
    dependent = {id(var) for var, depends in zip(jaxpr.invars, inputs, strict=True) if depends}

    def depends(var: Any) -> bool:
        return not isinstance(var, Literal) and id(var) in dependent

    for equation in jaxpr.eqns:
        flags = [depends(var) for var in equation.invars]
        if equation.effects:
            # It may read from the host, or write into an array that a later equation reads.
            dependent.update(id(var) for var in (*equation.invars, *equation.outvars))
            continue
        if not any(flags):
            continue
        results = [True] * len(equation.outvars)
        inner = equation.params.get("jaxpr")
        if equation.primitive.name in ("jit", "pjit"):
            results = _outputs(inner.jaxpr, flags, known)
        dependent.update(
            id(var) for var, result in zip(equation.outvars, results, strict=True) if result
        )
    known[key] = [depends(var) for var in jaxpr.outvars]
    return known[key]
