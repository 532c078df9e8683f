"""Masks with one bit for each element.

Word `w` of the 32 words of a group holds elements w, w + 32, w + 64, …, the first in its least
significant bit: the order of 2-bit codes, see groups.py. Reference dump 001 puts neighbours into a
word instead. In this order a thread of a kernel packs its elements without those of others.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int16, Shaped

from models.compressed_resnet.compression.groups import from_groups, to_groups
from models.compressed_resnet.sizes import GROUP

WORDS = 32
BITS = GROUP // WORDS


def pack_mask(mask: Bool[Array, "..."]) -> Int16[Array, "M 32"]:
    """Packs a boolean array, 16 elements to a word.

    Raises:
      ValueError: the array is empty.
    """
    groups = to_groups(mask).reshape(-1, BITS, WORDS).astype(jnp.uint16)
    # Slices instead of a sum over an axis, as in groups.py.
    words = groups[:, 0]
    for bit in range(1, BITS):
        words = words | (groups[:, bit] << bit)
    return lax.bitcast_convert_type(words, jnp.int16)


def unpack_mask(
    words: Int16[Array, "M 32"], shape: tuple[int, ...], dtype: Any = jnp.bool
) -> Shaped[Array, "..."]:
    """The boolean array of `shape` that `pack_mask` packed, as 0 and 1 in `dtype`.

    Raises:
      ValueError: the words are not those of an array of this shape.
    """
    unsigned = lax.bitcast_convert_type(words, jnp.uint16)
    shifts = jnp.arange(BITS, dtype=jnp.uint16)[:, None]
    bits = (unsigned[:, None, :] >> shifts) & jnp.uint16(1)
    return from_groups(bits.astype(dtype).reshape(-1, GROUP), shape)
