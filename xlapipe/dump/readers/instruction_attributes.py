"""Read attributes of instructions: scalar constants, backend configs, collectives of slices."""

import json
import math
import re
import struct
from collections.abc import Mapping
from typing import Any

from google.protobuf.message import DecodeError

from xlapipe.dump.readers.hlo_proto import LiteralProto
from xlapipe.dump.readers.hlo_syntax import unescape
from xlapipe.dump.readers.replica_groups import groups_of_text
from xlapipe.plans.hlo import CollectiveGroups, SliceTransfer
from xlapipe.plans.opcodes import COLLECTIVES
from xlapipe.plans.shapes import Shape

_TYPE, _TARGET = "_xla_megascale_transfer_type", "_xla_megascale_target"
_RENDEZVOUS = "_xla_host_transfer_rendezvous"
_FIELD = re.compile(r'(\w+)=(?:"((?:[^"\\]|\\.)*)"|(\{(?:\{[^{}"]*\},?)*\}))')
_NUMBERS = r"\d+(?::\d+)?"
_PRODUCT = re.compile(
    rf"\{{(?P<slices>\d+(?:,\d+)*)\}}x\{{(?P<devices>{_NUMBERS}(?:,{_NUMBERS})*)\}}"
)
_PAIRS = re.compile(r"\{(?:\{\d+->\d+\},?)*\}")
_PAIR = re.compile(r"(\d+)->(\d+)")
_DEVICES_PER_SLICE = 100_000
# A permutation between slices; the other types are XLA's collectives in capitals.
_ONE_TO_ONE = "ONE_TO_ONE"
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


def _number(text: str) -> float | int:
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


_DECODER = json.JSONDecoder(parse_float=_number)
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False)


def canonical_config(text: str) -> str:
    """A backend config in canonical form: compact JSON with sorted keys.

    In the proto and in `from instruction:` lines, keys are in the order in which XLA wrote them;
    the HLO text of some versions sorts them. Configs that are not JSON (MLIR attributes of custom
    calls, opaque strings) are not changed.
    """
    if not text.startswith("{"):
        return text
    try:
        return _ENCODER.encode(_DECODER.decode(text))
    except (ValueError, RecursionError):
        return text


def decode_at(text: str, start: int) -> tuple[str, int] | None:
    """The canonical form of the JSON object at `start` and the position after it, or None."""
    try:
        value: Any
        value, end = _DECODER.raw_decode(text, start)
        return _ENCODER.encode(value), end
    except (ValueError, RecursionError):
        return None


def transfer_of_text(frontend_attributes: str) -> CollectiveGroups | None:
    """`transfer_of` for frontend attributes as HLO text has them, `{a="x",b={{0,1}}}`."""
    return transfer_of(
        {
            name: braces or unescape(quoted)
            for name, quoted, braces in _FIELD.findall(frontend_attributes)
        }
    )


def transfer_of(attributes: Mapping[str, str]) -> CollectiveGroups | None:
    """The collective over the network between slices of TPUs that frontend attributes describe.

    libtpu writes it as a `send` of its operand to the host and a `recv` of its result, with the
    same rendezvous. Their attributes name the collective and its devices, in one of three forms; a
    device is numbered SLICE × 100,000 + its number in the slice:

        {1,2}x{0:3}                          devices 0 to 3, each with its number in slices 1 and 2
        {{100000,200000},{100001,200001}}    groups
        {{100000->200000}}                   pairs
    """
    if _TYPE not in attributes:
        return None
    name = attributes[_TYPE]
    kind = "collective-permute" if name == _ONE_TO_ONE else name.lower().replace("_", "-")
    target = attributes.get(_TARGET, "")
    transfer = SliceTransfer(kind, attributes.get(_RENDEZVOUS, ""))
    if kind not in COLLECTIVES:
        return None
    if _PAIRS.fullmatch(target) and "->" in target:
        pairs = tuple((int(source), int(end)) for source, end in _PAIR.findall(target))
        return CollectiveGroups(source_target_pairs=pairs, transfer=transfer)
    if match := _PRODUCT.fullmatch(target):
        slices = [int(number) for number in match["slices"].split(",")]
        devices = [device for part in match["devices"].split(",") for device in _range(part)]
        groups = tuple(
            tuple(number * _DEVICES_PER_SLICE + device for number in slices) for device in devices
        )
        return CollectiveGroups(groups, transfer=transfer)
    groups_or_none = groups_of_text(target) if target else None
    return CollectiveGroups(groups_or_none, transfer=transfer) if groups_or_none else None


def _range(text: str) -> range:
    """The numbers of `3`, or of `0:3`, which includes both ends; at most those of one slice."""
    first, _, last = text.partition(":")
    return range(int(first), min(int(last or first), _DEVICES_PER_SLICE - 1) + 1)
