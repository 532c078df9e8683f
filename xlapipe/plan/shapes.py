"""Arrays in the texts of HLO shapes: `bf16[8,128]{1,0}`, `(f32[], (s8[16]{0}))`."""

import re
from functools import lru_cache
from math import prod

_ARRAY = re.compile(r"([a-z]\w*)\[([0-9,]*)\]")
_WITH_LAYOUT = re.compile(r"[a-z]\w*\[[^\]]*\](?:\{[^{}]*\})?")
_BITS = re.compile(r"[a-z]+(\d+)")
_BYTE_WIDE = {"pred": 1, "token": 0}


def array_bytes(shape: str) -> tuple[int, ...]:
    """Bytes of each array of a shape, in order, tuples flattened; tokens take none.

    >>> array_bytes("(bf16[8,128]{1,0}, (pred[3]{0}, f8e4m3fn[]))")
    (2048, 3, 1)
    """
    return tuple(
        _bytes(element, prod(map(int, dims.split(",") if dims else ())))
        for element, dims in _ARRAY.findall(shape)
    )


def arrays_of(shape: str) -> tuple[str, ...]:
    """The arrays of a shape, tuples flattened, with their layouts.

    >>> arrays_of("((bf16[8]{0}, f32[]), u32[])")
    ('bf16[8]{0}', 'f32[]', 'u32[]')
    """
    return tuple(found[0] for found in _WITH_LAYOUT.finditer(shape))


@lru_cache(maxsize=4096)
def shape_bytes(shape: str) -> int | None:
    """Bytes of all arrays of a shape, without a tuple's pointers.

    None where the shape does not tell: for dimensions that are dynamic, and types without a size.

    >>> shape_bytes("bf16[8,128]{1,0}"), shape_bytes("(f32[<=8]{0}, f32[])")
    (2048, None)
    """
    if "<=" in shape or "?" in shape:
        return None
    try:
        return sum(array_bytes(shape))
    except ValueError:
        return None


def _bytes(element: str, count: int) -> int:
    if element in _BYTE_WIDE:
        return _BYTE_WIDE[element] * count
    bits = _BITS.match(element)
    if bits is None:
        raise ValueError(f"{element}: no element type of HLO with a size")
    # XLA packs elements of less than a byte in dumps for GPUs, two or more to a byte.
    return (int(bits[1]) * count + 7) // 8
