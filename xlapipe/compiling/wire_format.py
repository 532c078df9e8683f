"""The wire format of protocol buffers, for messages that no Python package describes."""


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
