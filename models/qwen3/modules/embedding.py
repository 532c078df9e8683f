"""Token embedding, and the output head that shares its weights."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int


class Embedding(nnx.Module):
    """The embedding table, [V, D]."""

    def __init__(self, vocab_size: int, features: int, *, dtype: str, rngs: nnx.Rngs) -> None:
        initializer = nnx.initializers.normal(stddev=0.02)
        self.weight = nnx.Param(
            initializer(rngs.params(), (vocab_size, features), jnp.dtype(dtype))
        )

    def __call__(self, token_ids: Int[Array, "*B"]) -> Float[Array, "*B D"]:
        """The row of each token. Ids must be in [0, V); others are clamped."""
        return self.weight[...].at[token_ids].get(mode="clip", wrap_negative_indices=False)

    def attend(self, x: Float[Array, "B D"]) -> Float[Array, "B V"]:
        """Logits: products of x with every row, float32."""
        return jnp.einsum(
            "BD,VD->BV",
            x,
            self.weight[...],
            preferred_element_type=jnp.float32,
            precision=_precision(x),
        )


def _precision(x: Float[Array, "B D"]) -> jax.lax.DotAlgorithmPreset | None:
    """The dot algorithm for the logits of x; None for XLA's choice.

    For a single bfloat16 row, XLA otherwise converts the table to float32 for a float32 cuBLAS
    gemm: 622,329,856 bytes at the 0.6B model's sizes. For several rows it does not, and specifying
    the algorithm would make the gemm lose its name scope.
    """
    if x.dtype == jnp.bfloat16 and x.shape[0] == 1:
        return jax.lax.DotAlgorithmPreset.BF16_BF16_F32
    return None
