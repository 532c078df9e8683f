"""A linear map without bias."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float


class Projection(nnx.Module):
    """`y = x Wᵀ`, with W stored as [out, in], as in checkpoints and in reference dump 003."""

    def __init__(self, in_features: int, out_features: int, *, dtype: str, rngs: nnx.Rngs) -> None:
        initializer = nnx.initializers.normal(stddev=0.02)
        self.weight = nnx.Param(
            initializer(rngs.params(), (out_features, in_features), jnp.dtype(dtype))
        )

    def __call__(self, x: Float[Array, "*B I"]) -> Float[Array, "*B O"]:
        """The product in x's dtype; the gemm accumulates in float32."""
        return jnp.einsum("...I,OI->...O", x, self.weight[...])
