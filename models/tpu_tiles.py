"""Bytes of arrays on a TPU, whose dimensions are padded to whole tiles. Imports no jax.

XLA stores an argument or an output in the order of dimensions that needs the fewest bytes.
"""

from collections.abc import Sequence
from itertools import permutations
from math import prod

# Elements of a tile along the last dimension in memory, and along the one before it.
LANES = 128
SUBLANES = 8
# The tile of a vector has these elements at most, and these bytes at least.
VECTOR_ELEMENTS = 1024
VECTOR_BYTES = 512
# Types of fewer bits are packed along the second-last dimension, to words of these bytes.
WORD_BYTES = 4


def tpu_bytes(dims: Sequence[int], itemsize: int) -> int:
    """Bytes of an array with its padding.

    >>> tpu_bytes((), 4), tpu_bytes((1000,), 2), tpu_bytes((17, 1024), 2)
    (512, 2048, 49152)
    >>> tpu_bytes((5120, 18992), 4) - 5120 * 18992 * 4  # the first dimension is the last in memory
    0
    """
    if len(dims) < 2:
        return _vector_elements(prod(dims), itemsize) * itemsize
    return itemsize * min(
        prod(dims) // (rows * columns) * _padded_rows(rows, itemsize) * _multiple(columns, LANES)
        for rows, columns in permutations(dims, 2)
    )


def tpu_padding_bytes(dims: Sequence[int], itemsize: int) -> int:
    """The part of `tpu_bytes` that holds no elements."""
    return tpu_bytes(dims, itemsize) - prod(dims) * itemsize


def _vector_elements(length: int, itemsize: int) -> int:
    tile = max(VECTOR_BYTES // itemsize, min(VECTOR_ELEMENTS, _power_of_two(length)))
    return _multiple(length, tile)


def _padded_rows(rows: int, itemsize: int) -> int:
    """Few rows have a smaller tile, of whole words."""
    tile = max(WORD_BYTES // itemsize, min(SUBLANES, _power_of_two(rows)))
    return _multiple(rows, tile)


def _multiple(length: int, tile: int) -> int:
    return -(-length // tile) * tile


def _power_of_two(length: int) -> int:
    """The smallest power of two from `length` on."""
    return 1 << (length - 1).bit_length()
