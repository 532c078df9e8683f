"""Read the values of constants that are scalar integers, from HLO text and from the proto."""

import re

from google.protobuf.message import DecodeError

from xlapipe.plans.shapes import Shape
from xlapipe.readers.hlo_proto import LiteralProto

_ELEMENTS = frozenset({"s32", "s64", "u32", "u64"})
# The longest decimal form of a 64-bit integer, with its sign.
_INTEGER = re.compile(r"-?\d{1,20}")


def _is_scalar_integer(shape: Shape) -> bool:
    return shape.element in _ELEMENTS and not shape.dims


def integer_of_text(shape: Shape, value: str) -> int | None:
    """The value of `constant(value)`; None if it is not a scalar of 32 or 64 bits."""
    if not _is_scalar_integer(shape) or _INTEGER.fullmatch(value) is None:
        return None
    return int(value)


def integer_of_proto(shape: Shape, literal: bytes) -> int | None:
    """The same from the wire form of a constant's LiteralProto."""
    if not _is_scalar_integer(shape):
        return None
    try:
        values = getattr(LiteralProto.FromString(literal), f"{shape.element}s")
    except DecodeError:
        return None
    return int(values[0]) if len(values) == 1 else None
