"""What a forward pass saves for the backward pass, and how to save all but one kind of value.

A value is known by the primitive of jax that makes it, its shape and its dtype, since that is what
a policy of `jax.checkpoint` sees. Values of equal layers are one group.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import jax

from xlapipe.compile.lowering.forward_values import user_line
from xlapipe.errors import WorkloadError

# Every candidate is traced again, so only the largest are.
_MAX_CANDIDATES = 4
# A policy that leaves out more than this, as a share of the group, leaves out other groups too.
_ALONE = 1.25

Policy = Callable[..., Any]


class ValueKey(NamedTuple):
    """The values that a policy cannot distinguish; in a loop's body, the shape in one iteration."""

    primitive: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class SavedGroup:
    """Saved values of one key.

    Attributes:
      count: number of values; those of all iterations of a loop are one.
      size_bytes: size of all of them, on all devices.
      source: `file:line` of the first one; None if it has no line of the user.
    """

    key: ValueKey
    count: int
    size_bytes: int
    source: str | None

    def __str__(self) -> str:
        key = self.key
        shape = ",".join(map(str, key.shape))
        count = f"{self.count} values of " if self.count > 1 else ""
        at = f" ({self.source})" if self.source is not None else ""
        return f"{count}{key.dtype}[{shape}] from {key.primitive}{at}, {self.size_bytes:,} B"


class _Saved(NamedTuple):
    """One saved value, and the equation that makes it; None for an argument of the program."""

    size_bytes: int
    equation: Any
    key: ValueKey | None


def checkpointed_but_largest(
    function: Callable[..., Any], *arguments: Any, has_aux: bool
) -> tuple[Policy, SavedGroup]:
    """A policy that saves what `function` saves now, except for its largest group of values.

    The group is the one whose removal lowers the saved bytes most: a value whose own inputs would
    have to be saved instead does not count.

    Args:
      arguments: those that are differentiated; arrays or tracers.

    Raises:
      WorkloadError: every saved value is an argument, needs the same number of bytes to
        recompute, or cannot be left out alone, e.g. beside loops that are rematerialised already.
    """
    saved = _saved(function, arguments, has_aux)
    groups = _groups(saved)
    useful = [
        (-less_bytes, policy, group)
        for group in groups[:_MAX_CANDIDATES]
        for policy in _policies(group, groups)
        if 0
        < (
            less_bytes := _bytes(saved)
            - _bytes(_saved(jax.checkpoint(function, policy=policy), arguments, has_aux))
        )
        <= _ALONE * group.size_bytes
    ]
    if not useful:
        raise WorkloadError(
            "no saved value can be computed again by itself from fewer bytes; fix: rematerialise "
            "whole layers, by jax.checkpoint around each"
        )
    return min(useful, key=itemgetter(0))[1:]


def _bytes(saved: list[_Saved]) -> int:
    return sum(value.size_bytes for value in saved)


def _policies(group: SavedGroup, groups: tuple[SavedGroup, ...]) -> Iterator[Policy]:
    """Two forms: all but the group, and only the other groups.

    The first can save another value instead, the second can leave more out.
    """
    kept = {other.key for other in groups} - {group.key}
    dropped = group.key
    yield (
        lambda primitive, *inputs, **parameters: (
            dropped not in _keys(primitive, inputs, parameters, {dropped.primitive})
        )
    )
    names = {key.primitive for key in kept}
    yield lambda primitive, *inputs, **parameters: bool(
        kept & _keys(primitive, inputs, parameters, names)
    )


def _keys(
    primitive: Any, inputs: tuple[Any, ...], parameters: dict[str, Any], names: set[str]
) -> set[ValueKey]:
    """The keys of a primitive's outputs; empty if its name is not in `names`."""
    if primitive.name not in names:
        return set()
    outputs, _ = primitive.abstract_eval(*inputs, **parameters)
    many = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    return {_key(primitive, output) for output in many}


def _key(primitive: Any, aval: Any) -> ValueKey:
    return ValueKey(primitive.name, tuple(aval.shape), str(aval.dtype))


def _saved(function: Callable[..., Any], arguments: Any, has_aux: bool) -> list[_Saved]:
    vjp: Any = jax.vjp  # its overloads take a literal has_aux

    def residuals(*values: Any) -> Any:
        return vjp(function, *values, has_aux=has_aux)[1]

    program: Any = jax.make_jaxpr(residuals)(*arguments).jaxpr
    inputs = {id(variable) for variable in (*program.invars, *program.constvars)}
    saved = {}
    for variable in program.outvars:
        if id(variable) not in inputs and not hasattr(variable, "val"):
            size_bytes = variable.aval.size * variable.aval.dtype.itemsize
            saved[id(variable)] = _Saved(size_bytes, *_maker(program, variable))
    return list(saved.values())


def _maker(program: Any, variable: Any) -> tuple[Any, ValueKey | None]:
    """The innermost equation that makes a variable, and its key; None for an input of a body."""
    for equation in program.eqns:
        for position, output in enumerate(equation.outvars):
            if output is variable:
                body = _body(equation)
                if body is not None:
                    return _maker(body, body.outvars[position])
                return equation, _key(equation.primitive, output.aval)
    return None, None


def _body(equation: Any) -> Any:
    """The jaxpr whose outputs are those of the equation, as in `jit`, `scan` and `shard_map`."""
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        body = equation.params.get(name)
        body = getattr(body, "jaxpr", body)
        if body is not None and len(body.outvars) == len(equation.outvars):
            return body
    return None


def _groups(saved: list[_Saved]) -> tuple[SavedGroup, ...]:
    """The values that equations make, by key, most bytes first."""
    by_key: dict[ValueKey, list[_Saved]] = defaultdict(list)
    for value in saved:
        if value.key is not None:
            by_key[value.key].append(value)
    groups = (
        SavedGroup(
            key=key,
            count=len(values),
            size_bytes=sum(value.size_bytes for value in values),
            source=_source(values[0].equation),
        )
        for key, values in by_key.items()
    )
    return tuple(sorted(groups, key=lambda group: -group.size_bytes))


def _source(equation: Any) -> str | None:
    line = user_line(equation)
    return line.removeprefix(f"{Path.cwd()}/") if line is not None else None
