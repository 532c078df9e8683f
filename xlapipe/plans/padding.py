"""Bytes that a TPU plan loses to padding: arrays are stored in whole tiles.

The last dimensions of an array are padded. The rule below gives the size of every value of libtpu's
plans so far.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from math import ceil, prod

from xlapipe.devices.platforms import platform_named
from xlapipe.plans.buffers import AllocationKind, BufferAllocation, LogicalBuffer
from xlapipe.plans.memory_spaces import MemorySpace
from xlapipe.plans.plan import Plan
from xlapipe.plans.shapes import Shape, element_bits

_TILES = re.compile(r"T((?:\([0-9,]+\))+)")
_ELEMENT_BITS = re.compile(r"E\((\d+)\)")
_SPLIT = re.compile(r"SC\((\d+):(\d+)\)")
# Elements to which an array without tiles is padded, outside the memory of semaphores.
_UNTILED_ELEMENTS = 1024
_SEMAPHORES = frozenset({2, 8})  # of the cores, and of the sparse cores
# Bytes of a pointer in the table of a tuple, and what libtpu rounds tables up to: 512 on v4 and
# v5e, 32 on newer chips.
_POINTER_BYTES = 4
_TABLE_BYTES = (32, 512)


@lru_cache(maxsize=8192)
def padded_bytes(shape: Shape) -> int | None:
    """The bytes of an array with a TPU layout; None for tuples and for dynamic dimensions.

    >>> padded_bytes(shape_of("bf16[17,130]{1,0:T(8,128)(2,1)}"))
    12288
    >>> padded_bytes(shape_of("f32[7]{0:T(128)}")), padded_bytes(shape_of("s32[1]{0:T(128)S(2)}"))
    (512, 4)
    """
    if shape.element == "token":
        return 0
    bits = _stored_bits(shape)
    if not shape.element or shape.is_dynamic or bits is None:
        return None
    if prod(shape.dims) == 0:
        return 0
    if shape.memory_space in _SEMAPHORES:
        return prod(shape.dims) * bits // 8
    tiles = _tiles(shape)
    if not tiles:
        return ceil(prod(shape.dims) / _UNTILED_ELEMENTS) * _UNTILED_ELEMENTS * bits // 8
    physical = [shape.dims[number] for number in reversed(shape.order or ())]  # major first
    split = _SPLIT.search(shape.attributes)
    if split is not None:
        dimension, at = int(split[1]), int(split[2])
        physical[dimension] = max(at, physical[dimension] - at)
    for tile in tiles:
        physical = _tiled(physical, tile)
    return prod(physical) * bits // 8


def _tiles(shape: Shape) -> list[list[int]]:
    match = _TILES.search(shape.attributes)
    if match is None:
        return []
    return [
        [int(size) for size in tile.split(",") if size]
        for tile in re.findall(r"\(([0-9,]+)\)", match[1])
    ]


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


def parameter_padding_bytes(plan: Plan) -> int:
    """Bytes of padding in the parameters in device memory; 0 on other platforms."""
    if not platform_named(plan.platform).pads_arrays:
        return 0
    return sum(
        allocation.size_bytes - value.shape.size_bytes
        for allocation in plan.allocations_in(MemorySpace.HBM)
        if allocation.is_a(AllocationKind.PARAMETER)
        and (value := _leaf_value(allocation)) is not None
        and value.shape.size_bytes is not None
    )


def _leaf_value(allocation: BufferAllocation) -> LogicalBuffer | None:
    """The value of the leaf: one that is as large as its allocation."""
    for value in allocation.values:
        if value.size_bytes == allocation.size_bytes and value.shape.is_tiled:
            return value
    return None
