"""How many values a program of a Pallas kernel has at once, which its registers hold."""

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
from jax.extend.core import Literal, jaxprs_in_params

_LOADS = {"get", "masked_load"}
# A loop or product has all elements of its operands and results at once; other operations are
# computed for one element after another, and so are reductions of what nothing else needs.
_WHOLE = {"dot_general", "while", "scan", "cond"}
_REDUCTIONS, _SCANS = ("reduce_", "arg"), "cum"
_BITS_OF_A_REGISTER = 32


def live_words(jaxpr: Any) -> int:
    """The most 32-bit words of arrays that are live at once, also in loops and branches.

    A product that is only added to a sum takes no registers beside the sum's.
    """
    last: dict[Any, int] = {}
    users: dict[Any, list[Any]] = {}
    for index, equation in enumerate(jaxpr.eqns):
        for variable in _variables(equation.invars):
            last[variable] = index
            users.setdefault(variable, []).append(equation)
    for variable in _variables(jaxpr.outvars):
        last[variable] = len(jaxpr.eqns)
        users.setdefault(variable, []).append(None)
    words = {variable: _words(variable.aval) for variable in jaxpr.invars}
    live = most = sum(words.values())
    for index, equation in enumerate(jaxpr.eqns):
        operands = set(_variables(equation.invars))
        live -= sum(words.get(variable, 0) for variable in operands if last[variable] == index)
        # A loop holds those of its operands that are needed after it.
        shared = sum(words.get(variable, 0) for variable in operands if last[variable] > index)
        inside = max(map(live_words, jaxprs_in_params(equation.params)), default=0)
        most = max(most, live - shared + inside)
        for variable in equation.outvars:
            words[variable] = _words(variable.aval) if _held(equation, users, variable) else 0
            live += words[variable]
        most = max(most, live)
    return most


def _held(equation: Any, users: dict[Any, list[Any]], variable: Any) -> bool:
    """Whether all elements of a result are there at once."""
    later = users.get(variable, [])
    if equation.primitive.name == "dot_general" and len(later) == 1 and later[0] is not None:
        return bool(later[0].primitive.name != "add")
    if not later or _is_whole(equation) or equation.primitive.name in _LOADS:
        return bool(later)
    if any(user is None or _is_whole(user) for user in later):
        return True
    reduced = any(user.primitive.name.startswith(_REDUCTIONS) for user in later)
    return reduced and len(later) > 1


def _is_whole(equation: Any) -> bool:
    name = equation.primitive.name
    return name in _WHOLE or name.startswith(_SCANS)


def _variables(atoms: Any) -> Iterator[Any]:
    return (atom for atom in atoms if not isinstance(atom, Literal))


def _words(aval: Any) -> int:
    """Registers of a value; none of references, numbers and conditions."""
    shape: tuple[int, ...] = getattr(aval, "shape", ())
    dtype = getattr(aval, "dtype", None)
    if hasattr(aval, "inner_aval") or not shape or dtype is None or dtype == np.bool_:
        return 0
    return -(-prod(shape) * int(dtype.itemsize) * 8 // _BITS_OF_A_REGISTER)
