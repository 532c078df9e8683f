"""RMSNorm."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float


def rms_norm(
    x: Float[Array, "*B D"],
    scale: Float[Array, " D"],
    eps: float | Float[Array, ""],
) -> Float[Array, "*B D"]:
    """`x / sqrt(mean(x²) + eps) * scale`, computed in float32 and rounded once to x's dtype."""
    x_f32 = x.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(x_f32), axis=-1, keepdims=True)
    normed = x_f32 * jax.lax.rsqrt(mean_square + eps) * scale.astype(jnp.float32)
    return normed.astype(x.dtype)


class RMSNorm(nnx.Module):
    """RMSNorm over the last axis."""

    def __init__(self, features: int, *, eps: float, dtype: str) -> None:
        self.scale = nnx.Param(jnp.ones((features,), jnp.dtype(dtype)))
        self.eps = eps

    def __call__(
        self, x: Float[Array, "*B D"], eps: Float[Array, ""] | None = None
    ) -> Float[Array, "*B D"]:
        """Normalises x. `eps` replaces the module's, for a step with eps as an argument."""
        return rms_norm(x, self.scale[...], self.eps if eps is None else eps)
