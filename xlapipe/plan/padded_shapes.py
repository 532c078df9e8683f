"""The bytes of TPU arrays, whose last dimensions are padded to whole tiles.

A layout lists the dimensions from minor to major, and after the colon its parts in this order:
`T(8,128)(2,1)` tiles, `E(4)` bits of an element, `S(1)` memory space, `SC(0:512)` where the array
is split over two cores. The rule below gives the size of every value of libtpu's plans so far.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from math import ceil, prod

_ARRAY = re.compile(
    r"(?P<element>[a-z]\w*)\[(?P<dims>[0-9,]*)\](?:\{(?P<order>[0-9,]*)(?::(?P<parts>[^{}]*))?\})?"
)
_TILES = re.compile(r"T((?:\([0-9,]+\))+)")
_ELEMENT_BITS = re.compile(r"E\((\d+)\)")
_SPACE = re.compile(r"(?<![A-Z])S\((\d+)\)")
_SPLIT = re.compile(r"SC\((\d+):(\d+)\)")
_BITS = re.compile(r"[a-z]+(\d+)")
# Elements to which an array without tiles is padded, outside the memory of semaphores.
_UNTILED_ELEMENTS = 1024
_SEMAPHORES = 2
# Bytes of a pointer in the table of a tuple, and what libtpu rounds tables up to: 512 on v4 and
# v5e, 32 on newer chips.
_POINTER_BYTES = 4
_TABLE_BYTES = (32, 512)


def is_tiled(shape: str) -> bool:
    """Whether a shape's layout has tiles, as on TPUs only."""
    return "T(" in shape


@lru_cache(maxsize=8192)
def padded_bytes(shape: str) -> int | None:
    """The bytes of an array with a TPU layout; None for tuples and for dynamic dimensions.

    >>> padded_bytes("bf16[17,130]{1,0:T(8,128)(2,1)}"), padded_bytes("f32[7]{0:T(128)}")
    (12288, 512)
    """
    match = _ARRAY.fullmatch(shape)
    if match is None:
        return None
    if match["element"] == "token":
        return 0
    parts = match["parts"] or ""
    bits = _element_bits(match["element"], parts)
    if bits is None:
        return None
    dims = _numbers(match["dims"])
    if prod(dims) == 0:
        return 0
    tiles = _tiles(parts)
    if not tiles:
        space = _SPACE.search(parts)
        exact = space is not None and int(space[1]) == _SEMAPHORES
        multiple = 1 if exact else _UNTILED_ELEMENTS
        return ceil(prod(dims) / multiple) * multiple * bits // 8
    physical = _physical(match)
    split = _SPLIT.search(parts)
    if split is not None:
        dimension, at = int(split[1]), int(split[2])
        physical[dimension] = max(at, physical[dimension] - at)
    for tile in tiles:
        physical = _tiled(physical, tile)
    return prod(physical) * bits // 8


def padded_dims(shape: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The dimensions of an array with tiles, and what its first tile pads them to.

    The minor dimension is last, which is the order in which the array is stored.

    >>> padded_dims("bf16[130,17]{0,1:T(8,128)(2,1)}")
    ((17, 130), (24, 256))
    """
    match = _ARRAY.fullmatch(shape)
    if match is None or not (tiles := _tiles(match["parts"] or "")):
        return (), ()
    dims, tile = _physical(match), tiles[0]
    sizes = [1] * (len(dims) - len(tile)) + tile[max(0, len(tile) - len(dims)) :]
    stored = [ceil(dim / size) * size for dim, size in zip(dims, sizes, strict=True)]
    return tuple(dims), tuple(stored)


def _tiles(parts: str) -> list[list[int]]:
    match = _TILES.search(parts)
    return [_numbers(tile) for tile in re.findall(r"\(([0-9,]+)\)", match[1])] if match else []


def _physical(match: re.Match[str]) -> list[int]:
    """Dimensions in the order in which they are stored, major first."""
    dims = _numbers(match["dims"])
    return [dims[number] for number in reversed(_numbers(match["order"]))]


def tuple_table_bytes(element_count: int) -> tuple[int, ...]:
    """The sizes that a tuple's table may have; which of them depends on the chip."""
    return tuple(
        ceil(element_count * _POINTER_BYTES / multiple) * multiple for multiple in _TABLE_BYTES
    )


def _tiled(dims: Sequence[int], tile: Sequence[int]) -> list[int]:
    """Replaces the innermost dimensions by numbers of tiles, and appends the tile."""
    padded = [1] * (len(tile) - len(dims)) + list(dims)
    outer, inner = padded[: len(padded) - len(tile)], padded[len(padded) - len(tile) :]
    return [*outer, *(ceil(size / n) for size, n in zip(inner, tile, strict=True)), *tile]


def _element_bits(element: str, parts: str) -> int | None:
    explicit = _ELEMENT_BITS.search(parts)
    if explicit is not None:
        return int(explicit[1])
    if element == "pred":
        return 8
    match = _BITS.match(element)
    # Elements of less than a byte take a byte unless the layout has E(n).
    return max(8, int(match[1])) if match is not None else None


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")] if text else []
