"""Read the values of constants that are scalars, from HLO text and from the proto."""

import math
import re
import struct

from google.protobuf.message import DecodeError

from xlapipe.dump.readers.hlo_proto import LiteralProto
from xlapipe.plans.shapes import Shape

_INTEGERS = frozenset({"s32", "s64", "u32", "u64"})
_REALS = frozenset({"f32", "f64"})
# The longest decimal form of a 64-bit integer, with its sign, and of a number as XLA prints it.
_INTEGER = re.compile(r"-?\d{1,20}")
_REAL = re.compile(r"-?\d{1,320}(\.\d{1,40})?(e[+-]?\d{1,3})?")


def integer_of_text(shape: Shape, value: str) -> int | None:
    """The value of `constant(value)`; None if it is not a scalar integer of 32 or 64 bits."""
    if not _is_scalar(shape, _INTEGERS) or _INTEGER.fullmatch(value) is None:
        return None
    return int(value)


def real_of_text(shape: Shape, value: str) -> float | None:
    """The same of a float of 32 or 64 bits; None if it is not finite."""
    if not _is_scalar(shape, _REALS) or _REAL.fullmatch(value) is None:
        return None
    return _finite(float(value), shape.element)


def integer_of_proto(shape: Shape, literal: bytes) -> int | None:
    """The integer in the wire form of a constant's LiteralProto."""
    value = _proto_value(shape, literal) if _is_scalar(shape, _INTEGERS) else None
    return None if value is None else int(value)


def real_of_proto(shape: Shape, literal: bytes) -> float | None:
    """The float in it; None if it is not finite."""
    value = _proto_value(shape, literal) if _is_scalar(shape, _REALS) else None
    return None if value is None else _finite(float(value), shape.element)


def _is_scalar(shape: Shape, elements: frozenset[str]) -> bool:
    return shape.element in elements and not shape.dims


def _proto_value(shape: Shape, literal: bytes) -> float | int | None:
    try:
        values = getattr(LiteralProto.FromString(literal), f"{shape.element}s")
    except DecodeError:
        return None
    value: float | int | None = values[0] if len(values) == 1 else None
    return value


def _finite(value: float, element: str) -> float | None:
    """The value in its type: text has only the digits that distinguish it from its neighbours."""
    try:
        rounded: float = (
            struct.unpack("f", struct.pack("f", value))[0] if element == "f32" else value
        )
    except OverflowError:
        return None
    return rounded if math.isfinite(rounded) else None
