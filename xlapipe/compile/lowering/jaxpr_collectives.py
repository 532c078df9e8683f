"""The collectives that a program asks for, from its jaxpr.

jax drops what nothing reads before XLA sees the module, and XLA merges, splits and rewrites what
it sees: only the jaxpr has what the author wrote. Collectives that only sharding requires
(GSPMD's and Shardy's, of a program without `shard_map`) are not in a jaxpr, and not listed here.
"""

from collections.abc import Iterator
from typing import Any

from jax.extend.core import jaxprs_in_params

from xlapipe.compile.lowering.jaxprs import source_of
from xlapipe.plans import SourceLine
from xlapipe.plans.program import RequestedCollective

# XLA's kind by a part of the name of jax's primitive, as in `psum_invariant` and
# `all_gather_start`.
_KINDS = {
    "all_gather": "all-gather",
    "all_to_all": "all-to-all",
    "pbroadcast": "collective-broadcast",
    "pmax": "all-reduce",
    "pmin": "all-reduce",
    "ppermute": "collective-permute",
    "psum": "all-reduce",
    "ragged_all_to_all": "ragged-all-to-all",
    "reduce_scatter": "reduce-scatter",
}
_BEFORE, _BEHIND = ("unreduced_",), ("_start", "_dynamic", "_invariant", "_reduced")


def requested_collectives(closed_jaxpr: Any) -> tuple[RequestedCollective, ...]:
    """Every collective of a traced program, in its order.

    Args:
      closed_jaxpr: the `jaxpr` of a `jax.stages.Traced`.
    """
    return tuple(_of(closed_jaxpr.jaxpr, "", 1, None))


def _of(
    jaxpr: Any, scope: str, times: int | None, caller: SourceLine | None
) -> Iterator[RequestedCollective]:
    for equation in jaxpr.eqns:
        kind = _kind(equation)
        called = () if kind is not None else tuple(jaxprs_in_params(equation.params))
        # A kernel's own jaxpr runs within one device. Source and scope of other equations, the
        # majority, are not read: that takes long.
        if kind is None and (not called or equation.primitive.name == "pallas_call"):
            continue
        source = source_of(equation) or caller
        inner = f"{scope}/{equation.source_info.name_stack}".strip("/")
        if kind is not None:
            yield RequestedCollective(
                kind=kind,
                op_name=f"{inner}/{equation.primitive.name}".strip("/"),
                shapes=tuple(_shape(operand.aval) for operand in equation.invars),
                executions=times,
                source=source,
            )
        for inner_jaxpr in called:
            yield from _of(inner_jaxpr, inner, _times(equation, times), source)


def _kind(equation: Any) -> str | None:
    name = str(equation.primitive.name)
    for prefix in _BEFORE:
        name = name.removeprefix(prefix)
    for suffix in _BEHIND:
        name = name.removesuffix(suffix)
    kind = _KINDS.get(name)
    return kind if kind is not None and _names_axes(equation) else None


def _names_axes(equation: Any) -> bool:
    """Whether devices take part; vmap makes a psum one over dimensions of the array."""
    axes = equation.params.get("axes", equation.params.get("axis_name", ()))
    named = axes if isinstance(axes, tuple) else (axes,)
    return any(not isinstance(axis, int) for axis in named)


def _times(equation: Any, times: int | None) -> int | None:
    """How often what an equation calls runs in a step; None if unknown."""
    name = equation.primitive.name
    if times is None or name in ("while", "cond"):
        return None
    return times * int(equation.params["length"]) if name == "scan" else times


def _shape(aval: Any) -> str:
    """`bfloat16[8,16]`, of one device."""
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]"
