"""Updates of an array through a wider dtype, such as a cache in bfloat16 through float32.

Where elements are only moved before they are converted back, they are moved in the narrow dtype:
each is the same bit for bit, and the array is not converted as a whole.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from operator import is_
from typing import Any

from jax import numpy as jnp
from jax.extend.core import Literal, Var

from xlapipe.compile.lowering.forward_graph import FormSite
from xlapipe.compile.lowering.jaxprs import KERNELS, size_bytes, user_line
from xlapipe.compile.lowering.policy_change import CAST

_CONVERT = "convert_element_type"
# Of each operation that moves elements, the operands that those are of.
_MOVED = {
    "concatenate": slice(None),
    "dynamic_update_slice": slice(0, 2),
    "scatter": slice(0, None, 2),
    "select_n": slice(1, None),
}


class Narrowing:
    """Rewrites jaxprs; `sites` are the lines that were, with the bytes of the wide array."""

    def __init__(self, lines: Collection[str] | None = None) -> None:
        """Rewrites all lines, or these alone."""
        self._lines = lines
        self.sites: dict[str, FormSite] = {}

    def __call__(self, value: Any) -> Any:
        """The jaxprs in a value, rewritten; the value itself if nothing was."""
        if type(value) is tuple:
            items = tuple(map(self, value))
            return value if all(map(is_, items, value)) else items
        if not hasattr(value, "eqns"):
            return value
        inner = getattr(value, "jaxpr", value)
        if inner is not value:  # closed, until jax 0.12
            jaxpr = self(inner)
            return value if jaxpr is inner else value.replace(jaxpr=jaxpr)
        equations = [self._inside(equation) for equation in value.eqns]
        while (changed := self._once(equations, value.outvars)) is not None:
            equations = changed
        is_same = len(equations) == len(value.eqns) and all(map(is_, equations, value.eqns))
        return value if is_same else value.replace(eqns=equations)

    def _inside(self, equation: Any) -> Any:
        if equation.primitive.name in KERNELS:
            return equation
        params = {key: self(own) for key, own in equation.params.items()}
        is_same = all(map(is_, params.values(), equation.params.values()))
        return equation if is_same else equation.replace(params=params)

    def _once(self, equations: Sequence[Any], outputs: Sequence[Any]) -> list[Any] | None:
        """The equations with one update in the narrow dtype; None if there is no other."""
        made = {variable: e for e in equations for variable in e.outvars}
        read = [*(v for e in equations for v in e.invars), *outputs]
        uses = Counter(v for v in read if not isinstance(v, Literal))
        for number, cast in enumerate(equations):
            wide = cast.invars[0] if cast.primitive.name == _CONVERT else None
            moved = made.get(wide) if isinstance(wide, Var) and uses[wide] == 1 else None
            if moved is None or moved.primitive.name not in _MOVED:
                continue
            operands = range(len(moved.invars))[_MOVED[moved.primitive.name]]
            dtype, line = cast.outvars[0].aval.dtype, user_line(moved)
            narrow = {n: _before(made, moved.invars[n], dtype) for n in operands}
            allowed = line is not None and (self._lines is None or line in self._lines)
            if allowed and any(v is not None for v in narrow.values()):
                self._keep(str(line), size_bytes(moved.outvars[0].aval), str(dtype))
                inputs, casts = list(moved.invars), []
                for n, own in narrow.items():
                    if own is None:
                        own = Var(inputs[n].aval.update(dtype=dtype))  # noqa: PLW2901
                        casts.append(cast.replace(invars=[inputs[n]], outvars=[own]))
                    inputs[n] = own
                new = moved.replace(invars=inputs, outvars=cast.outvars)
                before = [e for e in equations[:number] if e is not moved]
                return [*before, *casts, new, *equations[number + 1 :]]
        return None

    def _keep(self, line: str, wide_bytes: int, dtype: str) -> None:
        before = self.sites.get(line)
        largest_bytes = max(wide_bytes, before.largest_bytes if before is not None else 0)
        self.sites[line] = FormSite(CAST, line, 0, 0, largest_bytes, dtype=dtype)


def _before(made: Any, variable: Any, dtype: Any) -> Any:
    """What was converted from a dtype to that of a variable, which holds all its values."""
    equation = made.get(variable) if isinstance(variable, Var) else None
    if equation is None or equation.primitive.name != _CONVERT:
        return None
    source = equation.invars[0]
    return source if source.aval.dtype == dtype and _holds(variable.aval.dtype, dtype) else None


def _holds(wide: Any, narrow: Any) -> bool:
    if not all(jnp.issubdtype(dtype, jnp.floating) for dtype in (wide, narrow)):
        return False
    info: Any = jnp.finfo
    a, b = info(wide), info(narrow)
    return bool(a.max >= b.max and a.nmant >= b.nmant and a.minexp <= b.minexp)
