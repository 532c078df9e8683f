"""Masks with one bit for each element."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from models.compressed_resnet.compression.groups import from_groups, pack, to_groups, unpack


def pack_mask(mask: Bool[Array, "..."]) -> Int32[Array, "M 16"]:
    """Packs a boolean array, 32 elements to a word; see groups.py for their order.

    Raises:
      ValueError: the array is not boolean, or empty.
    """
    return pack(to_groups(mask).astype(jnp.uint32), bits=1)


def unpack_mask(words: Int32[Array, "M 16"], shape: tuple[int, ...]) -> Bool[Array, "..."]:
    """The boolean array of `shape` that `pack_mask` packed.

    Raises:
      ValueError: the words are not those of an array of this shape.
    """
    return from_groups(unpack(words, bits=1) != 0, shape)
