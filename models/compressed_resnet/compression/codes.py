"""Codes of 2, 4 or 8 bits: each group of 512 elements is rounded to equally spaced values."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, BFloat16, Float, Int32, UInt32

from models.compressed_resnet.compression.groups import (
    WORD_BITS,
    from_groups,
    pack,
    to_groups,
    unpack,
)
from models.compressed_resnet.sizes import GROUP

# Bits of a code that are supported.
CODE_BITS = (2, 4, 8)

# The smallest normal float32: GPUs may replace smaller ones by zero.
LEAST_SCALE = 2.0**-126


class Codes(NamedTuple):
    """A compressed array: element i of a group is `minimum + code_i * scale`.

    Attributes:
      codes: 16 * bits words for each group, see groups.py.
      scale: a group's range divided by 2**bits - 1; NaN if the range is not a finite float32.
      minimum: a group's smallest element.
    """

    codes: Int32[Array, "M L"]
    scale: BFloat16[Array, " M"]
    minimum: BFloat16[Array, " M"]


def quantise(x: Float[Array, "..."], bits: int) -> Codes:
    """Compresses a bfloat16 array to `bits` per element, and 4 bytes for each group.

    An element changes by at most half a group's scale, and by the rounding of the scale and of the
    result to bfloat16. A group with a NaN or an infinity becomes NaN, so that an overflow of the
    activations reaches the gradients.

    Raises:
      ValueError: bits or a dtype that are not supported, or an empty array.
    """
    _check(x, bits)
    groups = to_groups(x)
    minimum, maximum = jnp.min(groups, axis=1), jnp.max(groups, axis=1)
    levels = 2**bits - 1
    extent = maximum.astype(jnp.float32) - minimum.astype(jnp.float32)
    scale = jnp.where(jnp.isfinite(extent), extent * (1 / levels), jnp.nan).astype(jnp.bfloat16)
    return Codes(pack(_nearest(groups, scale, minimum, levels), bits), scale, minimum)


def dequantise(
    codes: Codes, shape: tuple[int, ...], dtype: Any = jnp.bfloat16
) -> Float[Array, "..."]:
    """The array of `shape` that `quantise` compressed, in `dtype`.

    Raises:
      ValueError: the codes are not those of an array of this shape.
    """
    values = unpack(codes.codes, _bits_of(codes)).astype(jnp.float32)
    scale = codes.scale.astype(jnp.float32)[:, None]
    minimum = codes.minimum.astype(jnp.float32)[:, None]
    return from_groups((values * scale + minimum).astype(dtype), shape)


def _nearest(
    groups: BFloat16[Array, "M 512"],
    scale: BFloat16[Array, " M"],
    minimum: BFloat16[Array, " M"],
    levels: int,
) -> UInt32[Array, "M 512"]:
    """The codes of the nearest values; 0 in a group without a usable scale."""
    step = scale.astype(jnp.float32)[:, None]
    distance = groups.astype(jnp.float32) - minimum.astype(jnp.float32)[:, None]
    # Truncation of what is larger by a half. A rounded scale can be too small for the largest
    # element.
    nearest = jnp.minimum(distance * (1 / step) + 0.5, levels)
    return jnp.where(step >= LEAST_SCALE, nearest, 0).astype(jnp.uint32)


def _check(x: Float[Array, "..."], bits: int) -> None:
    if bits not in CODE_BITS:
        raise ValueError(f"bits: expected one of {CODE_BITS}; found {bits}")
    if x.dtype != jnp.bfloat16:
        raise ValueError(
            f"expected a bfloat16 array to compress; found {x.dtype} {x.shape}; "
            "fix: convert it with x.astype(jnp.bfloat16)"
        )


def _bits_of(codes: Codes) -> int:
    words = codes.codes.shape[1]
    bits, rest = divmod(words * WORD_BITS, GROUP)
    if rest or bits not in CODE_BITS:
        expected = tuple(GROUP * bits // WORD_BITS for bits in CODE_BITS)
        raise ValueError(f"words of a group of codes: expected one of {expected}; found {words}")
    return bits
