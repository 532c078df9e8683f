"""What the kernels share: groups as tiles, their codes, and where their channels and pixels are.

A tile is some groups of 512 elements, each as 16 rows of 32. The 16 elements of a column are in the
registers of one thread, so that a word of codes and a word of a mask are packed without exchanging
values between threads. Kernels are written row by row: a row of all groups is an array [T, 32].
"""

from collections.abc import Sequence
from functools import reduce
from math import gcd
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from models.compressed_resnet.compression.codes import LEAST_SCALE
from models.compressed_resnet.compression.groups import WORD_BITS
from models.compressed_resnet.sizes import GROUP

LANES = 32
ROWS = GROUP // LANES

# A ninth of the elements are low frequencies, whose addresses the kernels compute in 32 bits.
_MOST_ELEMENTS = 9 * 2**31

# Added to a number from 0 to 255, it leaves the nearest integer in the lowest bits: float32 has 23
# bits after the first. A conversion takes eight times as long.
_MAGIC = 1.5 * 2**23
_MAGIC_BITS = 0x4B400000


def supports(shape: tuple[int, ...]) -> bool:
    """Whether the kernels compute an array of this NHWC shape: of whole and aligned groups."""
    channels, elements = shape[-1], shape[0] * shape[1] * shape[2] * shape[3]
    aligned = GROUP % channels == 0 or channels % GROUP == 0
    whole_groups = 0 < elements < _MOST_ELEMENTS and elements % GROUP == 0
    return aligned and channels % LANES == 0 and whole_groups


def tall_of(groups: int, most: int) -> int:
    """Groups of a tile: `most`, which is a power of two, or the largest that divides all."""
    return gcd(groups, most)


def code_rows(bits: int) -> int:
    """Rows of 32 words that hold a group's codes."""
    return ROWS * bits // WORD_BITS


def group_specs(tall: int, bits: int) -> dict[str, Any]:
    """Blocks of `tall` groups of elements, codes, masks, and of one number for each group."""
    spec: Any = pl.BlockSpec
    return {
        "elements": spec((tall, ROWS, LANES), lambda i: (i, 0, 0)),
        "codes": spec((tall, code_rows(bits), LANES), lambda i: (i, 0, 0)),
        "mask": spec((tall, LANES), lambda i: (i, 0)),
        "number": spec((tall,), lambda i: (i,)),
    }


def whole(array: Any) -> Any:
    """A block of a whole vector."""
    spec: Any = pl.BlockSpec
    return spec(array.shape, lambda i: (0,))


def iotas(tall: int) -> tuple[Any, Any]:
    """The number of each element's group, counted in the whole array, and of its lane."""
    shape = (tall, LANES)
    group = jax.lax.broadcasted_iota(jnp.int32, shape, 0) + pl.program_id(0) * tall
    return group, jax.lax.broadcasted_iota(jnp.int32, shape, 1)


# All groups of a block.
ALL = slice(None)


def rows_of(ref: Any, groups: Any = ALL) -> list[Any]:
    """The rows of a tile.

    A kernel reads all rows before it writes any: the compiler moves no read before a write.
    """
    return [ref[groups, number, :] for number in range(ROWS)]


def write_rows(ref: Any, rows: Sequence[Any], groups: Any = ALL) -> None:
    """Writes the rows of a tile."""
    for number, row in enumerate(rows):
        ref[groups, number, :] = row


def channel_reader(vectors: Sequence[Any], channels: int, tall: int) -> Any:
    """A function that returns, for each element of a row of a tile, its channel's values."""
    values: dict[int, list[Any]] = {}

    def read(row: int) -> list[Any]:
        group, lane = iotas(tall)
        start = row * LANES
        first = start % channels if channels <= GROUP else start
        if first not in values:
            offset = 0 if channels <= GROUP else group % (channels // GROUP) * GROUP
            values[first] = [vector[offset + first + lane] for vector in vectors]
        return values[first]

    return read


def rounded(values: Any) -> Any:
    """The nearest numbers of bfloat16, in float32; NaN above 5e33.

    Three additions and products, by Veltkamp's splitting, take less time than a conversion.
    """
    product = values * (2.0**16 + 1)
    return product - (product - values)


def as_integer(values: Any) -> Any:
    """float32 numbers from 0 to 255, rounded to the nearest, plus a constant for all."""
    return jax.lax.bitcast_convert_type(values + _MAGIC, jnp.int32)


def as_float(integers: Any) -> Any:
    """Integers from 0 to 255 in float32."""
    return jax.lax.bitcast_convert_type(integers | _MAGIC_BITS, jnp.float32) - _MAGIC


def write_codes(rows: Sequence[Any], codes_ref: Any, scale_ref: Any, minimum_ref: Any) -> None:
    """Writes codes of a tile, as `quantise` computes them, except that ties become even codes.

    Args:
      rows: values of each row, which bfloat16 has, in float32.
    """
    code_rows = codes_ref.shape[1]
    bits = code_rows * WORD_BITS // ROWS
    # Triton's minimum and maximum drop NaN.
    is_nan = reduce(jnp.logical_or, (row != row for row in rows))
    least = jnp.min(reduce(jnp.minimum, rows), axis=1)
    extent = jnp.max(reduce(jnp.maximum, rows), axis=1) - least
    # An infinite extent becomes NaN.
    extent = extent + extent * 0 + jnp.sum(jnp.where(is_nan, jnp.nan, 0.0), axis=1)
    scale = (extent * (1 / (2**bits - 1))).astype(jnp.bfloat16)
    scale_ref[...] = scale
    minimum_ref[...] = least.astype(jnp.bfloat16)
    step = scale.astype(jnp.float32)
    reciprocal = jnp.where(step >= LEAST_SCALE, 1 / step, 0.0)[:, None]
    words: list[Any] = [0] * code_rows
    constant = 0
    for number, row in enumerate(rows):
        # Codes do not overlap, so that their sum is their union. The largest is below 2**bits: a
        # rounded scale is too small by less than one in 512.
        shift = number // code_rows * bits
        nearest = as_integer((row - least[:, None]) * reciprocal)
        words[number % code_rows] += nearest << shift
        constant += (_MAGIC_BITS << shift) if number % code_rows == 0 else 0
    # As a signed number of 32 bits.
    constant = (constant + 2**31) % 2**32 - 2**31
    for number, word in enumerate(words):
        codes_ref[:, number, :] = word - jnp.int32(constant)


def read_codes(codes_ref: Any, scale_ref: Any, minimum_ref: Any, groups: Any = ALL) -> Any:
    """A function that returns the values of a row of a tile, in float32."""
    code_rows = codes_ref.shape[1]
    bits = code_rows * WORD_BITS // ROWS
    words = [codes_ref[groups, number, :] for number in range(code_rows)]
    scale, minimum = (ref[groups].astype(jnp.float32)[:, None] for ref in (scale_ref, minimum_ref))

    def row(number: int) -> Any:
        shifted = jax.lax.shift_right_logical(words[number % code_rows], number // code_rows * bits)
        return as_float(shifted & (2**bits - 1)) * scale + minimum

    return row
