"""The bytes of TPU arrays, whose last dimensions are padded to whole tiles.

The rule below gives the size of every value of libtpu's plans so far.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from math import ceil, prod

from xlapipe.plans.shapes import Shape, element_bits

_TILES = re.compile(r"T((?:\([0-9,]+\))+)")
_ELEMENT_BITS = re.compile(r"E\((\d+)\)")
_SPLIT = re.compile(r"SC\((\d+):(\d+)\)")
# Elements to which an array without tiles is padded, outside the memory of semaphores.
_UNTILED_ELEMENTS = 1024
_SEMAPHORES = 2
# Bytes of a pointer in the table of a tuple, and what libtpu rounds tables up to: 512 on v4 and
# v5e, 32 on newer chips.
_POINTER_BYTES = 4
_TABLE_BYTES = (32, 512)


@lru_cache(maxsize=8192)
def padded_bytes(shape: Shape) -> int | None:
    """The bytes of an array with a TPU layout; None for tuples and for dynamic dimensions.

    >>> padded_bytes(shape_of("bf16[17,130]{1,0:T(8,128)(2,1)}"))
    12288
    >>> padded_bytes(shape_of("f32[7]{0:T(128)}"))
    512
    """
    if shape.element == "token":
        return 0
    bits = _stored_bits(shape)
    if not shape.element or shape.is_dynamic or bits is None:
        return None
    if prod(shape.dims) == 0:
        return 0
    tiles = _tiles(shape)
    if not tiles:
        multiple = 1 if shape.memory_space == _SEMAPHORES else _UNTILED_ELEMENTS
        return ceil(prod(shape.dims) / multiple) * multiple * bits // 8
    physical = _physical(shape)
    split = _SPLIT.search(shape.attributes)
    if split is not None:
        dimension, at = int(split[1]), int(split[2])
        physical[dimension] = max(at, physical[dimension] - at)
    for tile in tiles:
        physical = _tiled(physical, tile)
    return prod(physical) * bits // 8


def padded_dims(shape: Shape) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The dimensions of an array with tiles, and what its first tile pads them to.

    The minor dimension is last, which is the order in which the array is stored.

    >>> padded_dims(shape_of("bf16[130,17]{0,1:T(8,128)(2,1)}"))
    ((17, 130), (24, 256))
    """
    tiles = _tiles(shape)
    if not tiles:
        return (), ()
    dims, tile = _physical(shape), tiles[0]
    sizes = [1] * (len(dims) - len(tile)) + tile[max(0, len(tile) - len(dims)) :]
    stored = [ceil(dim / size) * size for dim, size in zip(dims, sizes, strict=True)]
    return tuple(dims), tuple(stored)


def _tiles(shape: Shape) -> list[list[int]]:
    match = _TILES.search(shape.attributes)
    if match is None:
        return []
    return [
        [int(size) for size in tile.split(",") if size]
        for tile in re.findall(r"\(([0-9,]+)\)", match[1])
    ]


def _physical(shape: Shape) -> list[int]:
    """Dimensions in the order in which they are stored, major first."""
    return [shape.dims[number] for number in reversed(shape.order or ())]


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


def _stored_bits(shape: Shape) -> int | None:
    """Bits of an element: at least a byte unless the layout has E(n)."""
    explicit = _ELEMENT_BITS.search(shape.attributes)
    if explicit is not None:
        return int(explicit[1])
    bits = element_bits(shape.element)
    return max(8, bits) if bits is not None else None
