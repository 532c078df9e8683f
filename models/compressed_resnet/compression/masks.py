"""Masks with one bit for each element.

Word `w` of a group holds elements 32w to 32w + 31, the first in its least significant bit, as in
reference dump 001: XLA computes ReLU and its mask in one pass over the array. (In the order of
codes, see groups.py, it took three times as long on an H200.)
"""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32, Shaped

from models.compressed_resnet.compression.groups import WORD_BITS, from_groups, to_groups
from models.compressed_resnet.sizes import GROUP


def pack_mask(mask: Bool[Array, "..."]) -> Int32[Array, "M 16"]:
    """Packs a boolean array, 32 elements to a word.

    Raises:
      ValueError: the array is empty.
    """
    neighbours = to_groups(mask).reshape(-1, GROUP // WORD_BITS, WORD_BITS)
    # Bits do not overlap, so that their sum is their union.
    words = jnp.sum(neighbours.astype(jnp.uint32) << _shifts(), axis=2, dtype=jnp.uint32)
    return lax.bitcast_convert_type(words, jnp.int32)


def unpack_mask(
    words: Int32[Array, "M 16"], shape: tuple[int, ...], dtype: Any = jnp.bool
) -> Shaped[Array, "..."]:
    """The boolean array of `shape` that `pack_mask` packed, as 0 and 1 in `dtype`.

    Raises:
      ValueError: the words are not those of an array of this shape.
    """
    unsigned = lax.bitcast_convert_type(words, jnp.uint32)
    bits = (unsigned[:, :, None] >> _shifts()) & jnp.uint32(1)
    return from_groups(bits.astype(dtype).reshape(-1, GROUP), shape)


def _shifts() -> Array:
    return jnp.arange(WORD_BITS, dtype=jnp.uint32)
