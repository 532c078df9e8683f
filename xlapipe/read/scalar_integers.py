"""Read the values of constants that are scalar integers, from HLO text and from the proto."""

import re

from google.protobuf.message import DecodeError

from xlapipe.read.hlo_proto import LiteralProto

_SCALAR = re.compile(r"([su](?:32|64))\[\](?:\{[^{}]*\})?")
# The longest decimal form of a 64-bit integer, with its sign.
_INTEGER = re.compile(r"-?\d{1,20}")


def integer_of_text(shape: str, value: str) -> int | None:
    """The value of `constant(value)`; None if it is not a scalar of 32 or 64 bits."""
    if _SCALAR.fullmatch(shape) is None or _INTEGER.fullmatch(value) is None:
        return None
    return int(value)


def integer_of_proto(shape: str, literal: bytes) -> int | None:
    """The same from the wire form of a constant's LiteralProto."""
    match = _SCALAR.fullmatch(shape)
    if match is None:
        return None
    try:
        values = getattr(LiteralProto.FromString(literal), f"{match[1]}s")
    except DecodeError:
        return None
    return int(values[0]) if len(values) == 1 else None
