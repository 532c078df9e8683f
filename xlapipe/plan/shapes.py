"""Parse HLO shape texts into arrays and byte counts: `bf16[8,128]{1,0}`, `(f32[], (s8[16]{0}))`."""

import re
from functools import lru_cache
from math import prod

_ARRAY = re.compile(r"([a-z]\w*)\[([0-9,]*)\]")
_WITH_LAYOUT = re.compile(r"[a-z]\w*\[[^\]]*\](?:\{[^{}]*\})?")
_BITS = re.compile(r"[a-z]+(\d+)")
_BYTE_WIDE = {"pred": 1, "token": 0}


def array_bytes(shape: str) -> tuple[int, ...]:
    """Bytes of each array of a shape, in order, with tuples flattened; a token has 0 bytes.

    >>> array_bytes("(bf16[8,128]{1,0}, (pred[3]{0}, f8e4m3fn[]))")
    (2048, 3, 1)
    """
    return tuple(
        _bytes(element, prod(map(int, dims.split(",") if dims else ())))
        for element, dims in _ARRAY.findall(shape)
    )


def arrays_of(shape: str) -> tuple[str, ...]:
    """The arrays of a shape with their layouts, tuples flattened.

    >>> arrays_of("((bf16[8]{0}, f32[]), u32[])")
    ('bf16[8]{0}', 'f32[]', 'u32[]')
    """
    return tuple(match[0] for match in _WITH_LAYOUT.finditer(shape))


@lru_cache(maxsize=4096)
def shape_bytes(shape: str) -> int | None:
    """Bytes of all arrays of a shape, not counting a tuple's table of pointers.

    None for shapes with dynamic dimensions and for types without a size.

    >>> shape_bytes("bf16[8,128]{1,0}"), shape_bytes("(f32[<=8]{0}, f32[])")
    (2048, None)
    """
    if "<=" in shape or "?" in shape:
        return None
    try:
        return sum(array_bytes(shape))
    except ValueError:
        return None


def dims_without_ones(shape: str) -> list[str]:
    """Dimensions of an array shape without those of size 1, which a bitcast may add or drop.

    >>> dims_without_ones("f32[1,8,128]{2,1,0}")
    ['8', '128']
    """
    return [dim for dim in shape.partition("[")[2].partition("]")[0].split(",") if dim != "1"]


def split_elements(shape: str) -> list[str]:
    """The element shapes of a tuple shape: `(f32[2]{0}, u32[])` gives two, and `()` none."""
    if shape == "()":
        return []
    elements, depth, start = [], 0, 1
    for position, character in enumerate(shape):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        if (character == "," and depth == 1) or (character == ")" and depth == 0):
            elements.append(shape[start:position].strip())
            start = position + 1
    return elements


def _bytes(element: str, count: int) -> int:
    if element in _BYTE_WIDE:
        return _BYTE_WIDE[element] * count
    bits = _BITS.match(element)
    if bits is None:
        raise ValueError(f"{element} is not an HLO element type with a known size")
    # XLA:GPU packs elements smaller than a byte, two or more to a byte.
    return (int(bits[1]) * count + 7) // 8
