"""The wire format of protocol buffers, for what Python's packages of them do not do.

Format: https://protobuf.dev/programming-guides/encoding
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from google.protobuf.message import Message

FieldChange: TypeAlias = Callable[[bytes], bytes]
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5


def field(number: int, content: bytes) -> bytes:
    """A field of bytes, of a string or of a message."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def number(number: int, value: int) -> bytes:
    """A field of a number that is not negative."""
    return varint(number << 3) + varint(value)


def varint(value: int) -> bytes:
    """A number that is not negative, in groups of seven bits."""
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def in_number_order(content: bytes, message: type[Message]) -> bytes:
    """A message with its fields in the order of their numbers, as C++ writes them.

    Python writes fields that its schema lacks after the others. Without this, the bytes would
    change with each field that a reader's schema gains.
    """
    return _in_number_order(content, message.DESCRIPTOR)


def with_fields(content: bytes, changed: Mapping[int, FieldChange | None]) -> bytes:
    """A message with changed contents of some fields; the others keep their bytes.

    By the number of a field of messages, a function of each one's bytes; None to leave the field
    out, of whatever type.
    """
    last = max(changed)
    parts = []
    for number, start, body, end in _fields(content):
        if number > last:
            parts.append(content[start:])
            break
        if number not in changed:
            parts.append(content[start:end])
        elif (change := changed[number]) is not None:
            parts.append(field(number, change(content[body:end])))
    return b"".join(parts)


def _in_number_order(content: bytes, message: Any) -> bytes:
    chunks = []
    for number, start, body, end in sorted(_fields(content), key=lambda part: part[0]):
        known = message.fields_by_number.get(number)
        if known is None or known.message_type is None:
            chunks.append(content[start:end])
        else:
            chunks.append(field(number, _in_number_order(content[body:end], known.message_type)))
    return b"".join(chunks)


def _fields(content: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Number, start, start of the value, and end of each field of a message."""
    position = 0
    while position < len(content):
        start = position
        tag, position = read_varint(content, position)
        kind = tag & 7
        body = position
        if kind == _VARINT:
            _, position = read_varint(content, position)
        elif kind == _BYTES:
            length, body = read_varint(content, position)
            position = body + length
        elif kind in (_FIXED_64, _FIXED_32):
            position += 8 if kind == _FIXED_64 else 4
        else:
            raise ValueError(f"wire type {kind} at byte {start}")
        yield tag >> 3, start, body, position


def read_varint(content: bytes, position: int = 0) -> tuple[int, int]:
    """A number, and the position after it."""
    value = shift = 0
    while True:
        byte = content[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
