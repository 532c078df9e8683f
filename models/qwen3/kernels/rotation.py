"""RoPE in the form that kernels use: for whole heads instead of halves."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Rows(NamedTuple):
    """Cosine and sine of each position's angles: a head is rotated as `x * cos + partner(x) * sin`.

    `partner` swaps a head's halves; sin is negated for the first half.
    """

    cos: Float[Array, "T H"]
    sin: Float[Array, "T H"]


def rows_of(positions: Int[Array, " T"], *, head_dim: int, theta: float) -> Rows:
    """The angles of `rope.rotation_of` for whole heads, float32."""
    exponents = jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim
    angles = positions[:, None].astype(jnp.float32) * (theta**-exponents)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return Rows(jnp.concatenate([cos, cos], axis=-1), jnp.concatenate([-sin, sin], axis=-1))


def partner_of(lanes: Int[Array, "*B"], head_dim: int) -> Int[Array, "*B"]:
    """The lane that each lane is combined with in the rotation."""
    half = head_dim // 2
    return jnp.where(lanes < half, lanes + half, lanes - half)
