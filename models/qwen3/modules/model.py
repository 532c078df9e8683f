"""The Qwen3 model: embedding, decoder layers, final norm, output head."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from models.qwen3.config import Qwen3Config
from models.qwen3.modules.block import Block
from models.qwen3.modules.cache import Cache, LayerCache
from models.qwen3.modules.embedding import Embedding
from models.qwen3.modules.norm import RMSNorm
from models.qwen3.modules.projection import Projection
from models.qwen3.modules.rope import rotation_of

T = TypeVar("T")


class Qwen3(nnx.Module):
    """The model. The output head is tied to the embedding or, with `lm_head`, separate."""

    def __init__(self, config: Qwen3Config, *, rngs: nnx.Rngs) -> None:
        self.head_dim = config.head_dim
        self.rope_theta = config.rope_theta
        self.embed = Embedding(config.vocab_size, config.hidden_size, dtype=config.dtype, rngs=rngs)
        self.layers = nnx.List([Block(config, rngs=rngs) for _ in range(config.num_hidden_layers)])
        self.final_norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps, dtype=config.dtype)
        self.lm_head = (
            None
            if config.tie_word_embeddings
            else Projection(config.hidden_size, config.vocab_size, dtype=config.dtype, rngs=rngs)
        )

    def __call__(
        self,
        token_ids: Int[Array, "B T"],
        positions: Int[Array, "B T"],
        cache: Cache,
        *,
        attended_length: int | None = None,
    ) -> tuple[Float[Array, "B T D"], Cache]:
        """Runs the layers over new tokens, and writes their keys and values into the cache.

        Args:
          positions: each token's position in its sequence, which is its slot in the cache. Padding
            has positions of S or more: it is not written, and no token attends to it.
          attended_length: number of cache slots that attention reads (default: S); static, for
            buckets. Positions of all tokens that are not padding must be below it.

        Returns:
          The residual stream before the final norm, and the cache.
        """
        if attended_length is None:
            attended_length = cache[0]["k"].shape[2]
        with jax.named_scope("embed"):
            x = self.embed(token_ids)
        with jax.named_scope("rope"):
            rotation = rotation_of(positions, head_dim=self.head_dim, theta=self.rope_theta)
            # Otherwise XLA computes the sines again for every head of every layer.
            rotation = jax.lax.optimization_barrier(rotation)

        def run(layer: Block, x: Array, layer_cache: LayerCache) -> tuple[Array, LayerCache]:
            return layer(x, rotation, layer_cache, positions, attended_length)

        return self.over_layers(run, x, cache)

    def over_layers(
        self, run: Callable[[Block, T, LayerCache], tuple[T, LayerCache]], carried: T, cache: Cache
    ) -> tuple[T, Cache]:
        """The last layer's result, and the cache: each layer takes what the one before returned."""
        written: Cache = []
        for index, (layer, layer_cache) in enumerate(zip(self.layers, cache, strict=True)):
            with jax.named_scope(f"layers_{index}"):
                carried, new_cache = run(layer, carried, layer_cache)
            written.append(new_cache)
        return carried, written

    @property
    def head_weight(self) -> Float[Array, "V D"]:
        """The weight of the output head."""
        head = self.embed if self.lm_head is None else self.lm_head
        weight: Array = head.weight[...]
        return weight

    def logits(self, x: Float[Array, "B D"]) -> Float[Array, "B V"]:
        """Logits of one position per sequence, float32, from the residual stream."""
        with jax.named_scope("final_norm"):
            x = self.final_norm(x)
        with jax.named_scope("lm_head"):
            if self.lm_head is None:
                return self.embed.attend(x)
            return self.lm_head(x).astype(jnp.float32)


def last_of(values: Float[Array, "B T D"], lengths: Int[Array, " B"]) -> Float[Array, "B D"]:
    """The value of each prompt's last token; lengths are 1 to T."""
    return jnp.take_along_axis(values, (lengths - 1)[:, None, None], axis=1, mode="clip")[:, 0]
