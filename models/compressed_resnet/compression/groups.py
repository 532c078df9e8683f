"""Groups of 512 consecutive elements, and fields of a few bits in 32-bit words.

Word `w` of a group with L words holds elements w, w + L, w + 2L, …, the first in its least
significant bits. Reference dump 001 puts neighbours into a word instead. On an H200, XLA's fusions
packed 2-bit codes in this order in 228 µs and neighbours in 308 µs (docs/lab/resnet.md).
"""

from math import prod

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int32, Shaped, UInt32

from models.compressed_resnet.sizes import GROUP
from models.compressed_resnet.sizes import groups as groups_of

WORD_BITS = 32


def to_groups(x: Shaped[Array, "..."]) -> Shaped[Array, "M 512"]:
    """The elements in row-major order; the last element is repeated to complete the last group.

    Raises:
      ValueError: the array is empty.
    """
    if not x.size:
        raise ValueError(f"expected at least one element to compress; found shape {x.shape}")
    flat = x.reshape(-1)
    missing = -x.size % GROUP
    if missing:
        flat = jnp.pad(flat, (0, missing), mode="edge")
    return flat.reshape(-1, GROUP)


def from_groups(groups: Shaped[Array, "M 512"], shape: tuple[int, ...]) -> Shaped[Array, "..."]:
    """The inverse of `to_groups`.

    Raises:
      ValueError: an array of this shape has another number of groups.
    """
    expected = groups_of(prod(shape))
    if groups.shape[0] != expected:
        raise ValueError(
            f"an array of shape {shape} has {expected:,} groups of {GROUP} elements; found "
            f"{groups.shape[0]:,}; fix: pass the shape of the array that was compressed"
        )
    return groups.reshape(-1)[: prod(shape)].reshape(shape)


def pack(values: UInt32[Array, "M 512"], bits: int) -> Int32[Array, "M L"]:
    """Packs values below 2**bits into words."""
    length = GROUP * bits // WORD_BITS
    # Slices instead of a sum over an axis: XLA computes the sum in 402 µs and this in 298 µs where
    # it also subtracts a low-frequency component.
    words = values[:, :length]
    for field in range(1, WORD_BITS // bits):
        words = words | (values[:, field * length : (field + 1) * length] << field * bits)
    return lax.bitcast_convert_type(words, jnp.int32)


def unpack(words: Int32[Array, "M L"], bits: int) -> UInt32[Array, "M 512"]:
    """The inverse of `pack`."""
    fields = WORD_BITS // bits
    shifts = jnp.arange(fields, dtype=jnp.uint32)[:, None] * bits
    unsigned = lax.bitcast_convert_type(words, jnp.uint32)
    values: Array = (unsigned[:, None, :] >> shifts) & jnp.uint32(2**bits - 1)
    return values.reshape(-1, GROUP)
