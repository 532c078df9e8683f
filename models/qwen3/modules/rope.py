"""Rotary position embedding, rotate-half form: pairs are (i, i + H/2)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Rotation(NamedTuple):
    """Cosine and sine of each token's angles, the same for all layers and heads; h = H / 2."""

    cos: Float[Array, "*B h"]
    sin: Float[Array, "*B h"]


def rotation_of(positions: Int[Array, "*B"], *, head_dim: int, theta: float) -> Rotation:
    """The rotation at each position, float32, computed rather than read from a table.

    This computes B T H / 2 sines; a table of all positions would be an argument of megabytes.
    """
    exponents = jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim
    angles = positions[..., None].astype(jnp.float32) * (theta**-exponents)
    return Rotation(jnp.cos(angles), jnp.sin(angles))


def rotation_from_table(table: Float[Array, "P H"], positions: Int[Array, "*B"]) -> Rotation:
    """The rotation at each position from a table whose rows are [cos, sin].

    Positions must be in [0, P); others are clamped.
    """
    rows = table.at[positions].get(mode="clip", wrap_negative_indices=False)
    cos, sin = jnp.split(rows, 2, axis=-1)
    return Rotation(cos, sin)


def rotate(x: Float[Array, "*B heads H"], rotation: Rotation) -> Float[Array, "*B heads H"]:
    """Rotates every head of every token.

    Computed in the wider dtype of x and the rotation (float32 from `rotation_of`, the table's dtype
    from `rotation_from_table`); the result has x's dtype.
    """
    with jax.named_scope("rope"):
        cos, sin = rotation.cos[..., None, :], rotation.sin[..., None, :]
        first, second = jnp.split(x, 2, axis=-1)
        rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
        return rotated.astype(x.dtype)
