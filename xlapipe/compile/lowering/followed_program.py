"""Follows one program of a Pallas kernel's grid through its jaxpr, and counts what it does."""

import operator
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import Literal, jaxprs_in_params
from jax.tree_util import tree_unflatten

from xlapipe.compile.lowering.jaxprs import carried_inputs, size_bytes

_LOADS, _STORES = {"get", "masked_load"}, {"swap", "masked_swap"}
_UPDATES = {"addupdate", "atomic_rmw", "atomic_cas"}
# Compute nothing for each element.
_FREE = {"broadcast_in_dim", "broadcast_to", "reshape", "squeeze", "expand_dims", "transpose"}
_FREE |= {"iota", "program_id", "num_programs", "multiple_of", "max_contiguous", "slice", "split"}
_FREE |= {"bitcast_convert_type", "copy", "concatenate", "stop_gradient", "debug_barrier_p"}
# Work on each element of their operand.
_OF_OPERANDS = ("reduce_", "argm", "cum")
# XLA's opcodes of operations that take several instructions.
_OPCODES = {
    **{name: name for name in ("atan2", "cbrt", "erf", "log", "logistic", "rsqrt", "sqrt", "tanh")},
    "exp": "exponential",
    "exp2": "exponential",
    "expm1": "exponential-minus-one",
    "log1p": "log-plus-one",
    "sin": "sine",
    "cos": "cosine",
    "tan": "tan",
    "pow": "power",
    "div": "divide",
    "rem": "remainder",
    "convert_element_type": "convert",
}
# Operations on known numbers.
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("convert_element_type", "multiple_of"), lambda a: a),
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "neg": operator.neg,
    "max": max,
    "min": min,
    "div": lambda a, b: _quotient(a, b) if b else None,
    "rem": lambda a, b: a - b * _quotient(a, b) if b else None,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
    "and": operator.and_,
    "or": operator.or_,
    "not": lambda a: not a if isinstance(a, bool) else ~a,
    "sign": lambda a: (a > 0) - (a < 0),
    "clamp": lambda low, a, high: min(max(a, low), high),
    "select_n": lambda which, *cases: cases[int(which)],
}
# What compilers compute once, and what they compute of values alone.
_PURE = frozenset(_OPCODES) | frozenset(_ARITHMETIC) | _FREE - {"concatenate", "split"}
_PURE |= {"integer_pow", "square", "abs", "reduce_max", "reduce_sum"}
_MOST_POWER = 32  # of two, of the trips of a loop

Count = Counter[tuple[str, Any]]
"""By what is counted and of what: bytes `loaded`, `stored` and `updated` by position of the array,
`operations` by opcode, `flops` by type, `products` by type, rows, terms and columns, and
`scattered`, `steps`, `ordered`, `sequence`, `reductions` and `undecided` of nothing else."""


class DeviceArray(NamedTuple):
    """An operand or a result in device memory, by its position; with the values of a constant."""

    position: int
    values: Any = None


class FollowedProgram:
    """Follows one program of a grid through a jaxpr, and counts what it does.

    Values are numbers, `DeviceArray`, or None where they are unknown.
    """

    def __init__(
        self,
        ids: Sequence[int | None],
        grid: Sequence[int],
        threads: int,
        count: Count,
        texts: dict[int, str] | None = None,
    ) -> None:
        self._ids, self._grid, self._threads, self._count = ids, grid, threads, count
        # Text of parameters, by identity: making it is most of the time of following a program.
        self._texts: dict[int, str] = {} if texts is None else texts

    def run(self, jaxpr: Any, arguments: Sequence[Any], consts: Sequence[Any] = ()) -> list[Any]:
        """Counts what a jaxpr does, and returns what is known of its results."""
        known = dict(zip(jaxpr.constvars, consts, strict=False))
        known |= dict(zip(jaxpr.invars, arguments, strict=True))

        def value(atom: Any) -> Any:
            if isinstance(atom, Literal):
                return None if np.shape(atom.val) else np.asarray(atom.val).item()
            return known.get(atom)

        same: dict[tuple[Any, ...], Any] = {}
        products: set[int] = set()
        for equation in jaxpr.eqns:
            given = [value(atom) for atom in equation.invars]
            name = equation.primitive.name
            # Compilers compute the same once, and add products to sums as they compute them.
            text = self._texts.get(id(equation)) or self._texts.setdefault(
                id(equation), str(equation.params)
            )
            key = (name, *map(_name, equation.invars), text)
            added = name == "add" and not products.isdisjoint(map(id, equation.invars))
            if name in _PURE and (added or same.setdefault(key, equation) is not equation):
                results: Sequence[Any] = self._result(name, given)
            else:
                results = self._equation(equation, given)
            products |= {id(equation.outvars[0])} if name == "dot_general" else set()
            known |= dict(zip(equation.outvars, results, strict=False))
        return [value(atom) for atom in jaxpr.outvars]

    def _equation(self, equation: Any, given: list[Any]) -> Sequence[Any]:
        name, params = equation.primitive.name, equation.params
        if name == "while":
            return self._while(params, given)
        if name == "scan":
            return self._scan(params, given)
        if name == "cond":
            return self._cond(params["branches"], given)
        if name in ("program_id", "num_programs"):
            return [(self._ids if name == "program_id" else self._grid)[params["axis"]]]
        called = next(iter(jaxprs_in_params(params)), None)
        if called is not None and len(called.invars) >= len(given):
            missing = len(called.invars) - len(given)  # references to scratch memory
            return self.run(called, [*given, *[None] * missing])
        self._operation(equation, name, given)
        if name == "get" and isinstance(given[0], DeviceArray) and given[0].values is not None:
            return _element_at(given[0].values, params["tree"], given[1:])
        return self._result(name, given)

    def _result(self, name: str, given: list[Any]) -> Sequence[Any]:
        """What is known of an operation's result."""
        if name in _ARITHMETIC and all(isinstance(item, (int, float)) for item in given):
            return [_ARITHMETIC[name](*given)]
        return []

    def _operation(self, equation: Any, name: str, given: list[Any]) -> None:
        result: Any = equation.outvars[0].aval if equation.outvars else None
        if name in _LOADS | _STORES | _UPDATES:
            if not isinstance(given[0], DeviceArray):
                return
            moved = equation.invars[1].aval if name == "addupdate" else result
            if name not in _STORES:
                self._count["loaded", given[0].position] += size_bytes(moved)
            if name not in _LOADS:
                self._count["stored", given[0].position] += size_bytes(moved)
            if name in _UPDATES and any(
                getattr(v.aval, "dtype", None) == np.int32 and getattr(v.aval, "shape", ())
                for v in equation.invars[1:]  # arrays at which a kernel reads or writes
            ):
                self._count["scattered", ""] += prod(moved.shape)
            elif name in _UPDATES:
                self._count["updated", given[0].position] += size_bytes(moved)
        elif name == "dot_general":
            left = equation.invars[0].aval
            contracted, batched = equation.params["dimension_numbers"]
            terms = prod(left.shape[axis] for axis in contracted[0])
            added, element = prod(result.shape) * terms, _element(left.dtype)
            batches = prod(left.shape[axis] for axis in batched[0])
            rows = prod(left.shape) // (batches * terms)
            columns = prod(result.shape) // (batches * rows)
            self._count["products", (element, rows, terms, columns)] += batches
            if element == "f32" and "HIGHEST" in str(equation.params["precision"]):
                self._count["operations", "other"] += added  # no tensor core has them
            else:
                self._count["flops", element] += 2 * added
        elif name not in _FREE and result is not None and hasattr(result, "shape"):
            reduces = name.startswith(_OF_OPERANDS)
            shape = (equation.invars[0].aval if reduces else result).shape
            if shape:
                size = max(prod(shape), self._threads)
                self._count["operations", _OPCODES.get(name, "other")] += size
                self._count["sequence", ""] += 1
                self._count["reductions", ""] += reduces

    def _while(self, params: Any, given: list[Any]) -> Sequence[Any]:
        test, body = params["cond_jaxpr"], params["body_jaxpr"]
        split = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        of_test, of_body, first = given[: split[0]], given[split[0] : split[1]], given[split[1] :]

        def after(values: Sequence[Any]) -> list[Any]:
            return self._apart().run(body.jaxpr, [*of_body, *values], body.consts)

        def goes_on(values: Sequence[Any]) -> Any:
            (answer,) = self._apart().run(test.jaxpr, [*of_test, *values], test.consts)
            return answer

        second = after(first)
        at = _straight(first, second, after(second))
        if goes_on(first) is None or (goes_on(first) and goes_on(second) is None):
            self._count["undecided", ""] += 1
            trips = 1
        else:
            trips = _trips(lambda number: bool(goes_on(at(number))))
        self._trips(body, of_body, at, trips)
        return at(trips)

    def _scan(self, params: Any, given: list[Any]) -> Sequence[Any]:
        body, trips, carried = params["jaxpr"], params["length"], carried_inputs(params)
        constants, first = given[: carried.start], given[carried]
        rest = [None] * (len(body.jaxpr.invars) - len(constants) - len(first))

        def after(values: Sequence[Any]) -> list[Any]:
            arguments = [*constants, *values, *rest]
            return self._apart().run(body.jaxpr, arguments, body.consts)[: len(first)]

        second = after(first)
        at = _straight(first, second, after(second))
        self._trips(body, constants, lambda number: [*at(number), *rest], trips)
        return at(trips)

    def _trips(
        self, body: Any, consts: list[Any], at: Callable[[int], Sequence[Any]], trips: int
    ) -> None:
        """Counts a loop's body as it is in the middle, once for each trip."""
        if not trips:
            return
        one = self._apart()
        one.run(body.jaxpr, [*consts, *at(trips // 2)], body.consts)
        kinds = {kind for kind, _ in one._count}
        if not one._count["steps", ""] and "loaded" in kinds:
            one._count["steps", ""] = 1
            one._count["ordered", ""] = int("stored" in kinds)
        add_counts(self._count, one._count, trips)

    def _cond(self, branches: Sequence[Any], given: list[Any]) -> Sequence[Any]:
        """The branch that is taken; the one with most work if the choice depends on data."""
        which, *arguments = given
        if isinstance(which, (int, bool)):
            branches = [branches[max(0, min(int(which), len(branches) - 1))]]
        else:
            self._count["undecided", ""] += 1
        tried = []
        for branch in branches:
            apart = self._apart()
            results = apart.run(branch.jaxpr, arguments, branch.consts)
            tried.append((sum(apart._count.values()), apart._count, results))
        _, count, results = max(tried, key=lambda item: item[0])
        add_counts(self._count, count, 1)
        return results if len(tried) == 1 else []

    def _apart(self) -> "FollowedProgram":
        return FollowedProgram(self._ids, self._grid, self._threads, Counter(), self._texts)


def add_counts(total: Count, count: Count, times: float) -> None:
    """Adds a count, so many times."""
    for key, number in count.items():
        total[key] += number * times  # type: ignore[assignment]  # also fractions


def _element_at(values: Any, tree: Any, given: Sequence[Any]) -> Sequence[Any]:
    """The number at known indices of a constant; empty if it is another selection."""
    transforms = tree_unflatten(tree, [0 if item is None else item for item in given])
    indices = transforms[0].indices if len(transforms) == 1 else ()
    numbers = [index for index in indices if isinstance(index, (int, np.integer))]
    if None in given or len(numbers) != len(np.shape(values)):
        return []
    return [int(np.asarray(values)[tuple(numbers)])]


def _name(atom: Any) -> Any:
    return str(atom.val) if isinstance(atom, Literal) else id(atom)


def _quotient(a: Any, b: Any) -> Any:
    """The quotient; that of integers is rounded toward zero, as in jax."""
    if isinstance(a, float) or isinstance(b, float):
        return a / b
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _straight(
    first: Sequence[Any], second: Sequence[Any], third: Sequence[Any]
) -> Callable[[int], list[Any]]:
    """A loop's values before a trip, of numbers that change by the same in each of them."""

    def at(number: int) -> list[Any]:
        values: list[Any] = []
        for a, b, c in zip(first, second, third, strict=True):
            if isinstance(a, DeviceArray):
                values.append(a)
            elif any(not isinstance(part, (int, float)) for part in (a, b, c)) or c - b != b - a:
                values.append(a if number == 0 else None)
            else:
                values.append(a + number * (b - a))
        return values

    return at


def _trips(goes_on: Callable[[int], bool]) -> int:
    """The first trip before which a loop ends."""
    if not goes_on(0):
        return 0
    powers = (1 << power for power in range(_MOST_POWER))
    end = next((number for number in powers if not goes_on(number)), 1 << _MOST_POWER)
    return bisect_left(range(end), True, key=lambda number: not goes_on(number))


def _element(dtype: Any) -> str:
    """XLA's name of an element type: `bf16`, `f32`, `s8`, `f8e4m3fn`."""
    name = str(dtype).replace("float8_", "f8").replace("bfloat16", "bf16")
    return name.replace("float", "f").replace("uint", "u").replace("int", "s")
