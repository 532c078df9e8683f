"""Token embedding, and the output head that shares its weights."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

# Without a named algorithm XLA turns a float32 result of one bfloat16 row into a float32 dot, and
# converts the whole table to float32 for it: 622,329,856 bytes at the sizes of the 0.6B model.
_FLOAT32_SUMS = {jnp.dtype(jnp.bfloat16): jax.lax.DotAlgorithmPreset.BF16_BF16_F32}


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
        return jnp.einsum(
            "BD,VD->BV",
            x,
            self.weight[...],
            preferred_element_type=jnp.float32,
            precision=_FLOAT32_SUMS.get(x.dtype),
        )
