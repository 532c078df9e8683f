"""Values of a gather's indices, as far as a plan states them.

Indices are often computed from an iota, from sizes or from a few numbers. What is computed from
arrays with unknown values counts as random.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from xlapipe.plans.hlo import Instruction

Array = np.ndarray[Any, Any]
# Unknown integers are below this number, large enough that a remainder spreads them evenly.
_UNKNOWN = 1 << 30
_INTEGERS = ("s", "u")

_UNARY: Mapping[str, Callable[[Array], Array]] = {
    "abs": np.abs,
    "ceil": np.ceil,
    "convert": lambda x: x,
    "cosine": np.cos,
    "exponential": lambda x: np.exp(np.minimum(x, 50.0)),
    "floor": np.floor,
    "log": lambda x: np.log(np.abs(x) + 1e-9),
    "negate": np.negative,
    "not": np.logical_not,
    "round-nearest-afz": np.round,
    "round-nearest-even": np.round,
    "rsqrt": lambda x: 1 / np.sqrt(np.abs(x) + 1e-9),
    "sign": np.sign,
    "sine": np.sin,
    "sqrt": lambda x: np.sqrt(np.abs(x)),
    "tanh": np.tanh,
}
_BINARY: Mapping[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "and": lambda a, b: a.astype(np.int64) & b.astype(np.int64),
    "divide": lambda a, b: a / np.where(b == 0, 1, b),
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "or": lambda a, b: a.astype(np.int64) | b.astype(np.int64),
    "remainder": lambda a, b: np.fmod(a, np.where(b == 0, 1, b)),
    "subtract": np.subtract,
    "xor": lambda a, b: a.astype(np.int64) ^ b.astype(np.int64),
}
_COMPARISONS: Mapping[str, Callable[[Array, Array], Array]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "GE": np.greater_equal,
    "GT": np.greater,
    "LE": np.less_equal,
    "LT": np.less,
}


def unknown_values(element: str, places: Array, number: int) -> Array:
    """Unknown values of an array: pseudorandom, and the same at the same places."""
    # Steele et al., Fast splittable pseudorandom number generators, 2014.
    bits = places.astype(np.uint64) + np.uint64((number + 1) * 0x9E3779B97F4A7C15 % (1 << 64))
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    if element == "pred":
        return (bits & np.uint64(1)).astype(np.int64)
    if element.startswith(_INTEGERS):
        return (bits % np.uint64(_UNKNOWN)).astype(np.int64)
    parts = [(bits >> np.uint64(shift)) & np.uint64(0xFFFF) for shift in (0, 16, 32, 48)]
    return np.asarray((sum(part.astype(np.float64) for part in parts) / 65536 - 2) * 3**0.5)


def computed_values(instruction: Instruction, values: Sequence[Array]) -> Array | None:
    """The result of an element-wise instruction; None for opcodes that indices do not use."""
    opcode = instruction.opcode
    with np.errstate(all="ignore"):
        if opcode == "select" and len(values) == 3:
            result = np.where(values[0] != 0, values[1], values[2])
        elif opcode == "clamp" and len(values) == 3:
            low, value, high = values
            result = np.clip(within(value, low, high), low, high)
        elif opcode == "compare" and len(values) == 2:
            compare = _COMPARISONS.get(instruction.comparison or "")
            result = compare(*values).astype(np.int64) if compare is not None else values[0] * 0
        elif opcode in _UNARY and len(values) == 1:
            result = _UNARY[opcode](values[0])
        elif opcode in _BINARY and len(values) == 2:
            result = _BINARY[opcode](*values)
        else:
            return None
        if instruction.shape.element.startswith(_INTEGERS):
            return np.trunc(np.nan_to_num(result, posinf=0.0, neginf=0.0)).astype(np.int64)
        return np.asarray(result)


def within(values: Array, low: Array | int, high: Array | int) -> Array:
    """Unknown values reduced to a range; other values unchanged."""
    inside = low + np.abs(values).astype(np.int64) % np.maximum(1, high - low + 1)
    return np.where(np.abs(values) >= _UNKNOWN >> 12, inside, values)
