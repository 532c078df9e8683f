"""Token embedding, and the output head that shares its weights."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int


class Embedding(nnx.Module):
    """The table [V, D]."""

    def __init__(self, vocab_size: int, features: int, *, dtype: str, rngs: nnx.Rngs) -> None:
        initializer = nnx.initializers.normal(stddev=0.02)
        self.weight = nnx.Param(
            initializer(rngs.params(), (vocab_size, features), jnp.dtype(dtype))
        )

    def __call__(self, token_ids: Int[Array, "*B"]) -> Float[Array, "*B D"]:
        """The row of each token. Ids must lie in [0, V); others are clamped."""
        return self.weight[...].at[token_ids].get(mode="clip")

    def attend(self, x: Float[Array, "B D"]) -> Float[Array, "B V"]:
        """Logits against every row, float32."""
        return jnp.einsum("BD,VD->BV", x, self.weight[...], preferred_element_type=jnp.float32)
