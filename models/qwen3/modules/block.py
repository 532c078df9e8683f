"""One decoder layer."""

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from models.qwen3.config import Qwen3Config
from models.qwen3.modules.attention import Attention
from models.qwen3.modules.cache import LayerCache
from models.qwen3.modules.mlp import MLP
from models.qwen3.modules.norm import RMSNorm
from models.qwen3.modules.rope import Rotation


class Block(nnx.Module):
    """Attention and feed-forward, each after a norm, and added to the residual stream."""

    def __init__(self, config: Qwen3Config, *, rngs: nnx.Rngs) -> None:
        self.input_norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps, dtype=config.dtype)
        self.attention = Attention(config, rngs=rngs)
        self.post_attention_norm = RMSNorm(
            config.hidden_size, eps=config.rms_norm_eps, dtype=config.dtype
        )
        self.mlp = MLP(config, rngs=rngs)

    def feed_forward(
        self, x: Float[Array, "*B D"], eps: Float[Array, ""] | None = None
    ) -> Float[Array, "*B D"]:
        """x plus the MLP of its norm."""
        with jax.named_scope("post_attention_norm"):
            normed = self.post_attention_norm(x, eps)
        with jax.named_scope("mlp"):
            return x + self.mlp(normed)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        rotation: Rotation,
        cache: LayerCache,
        positions: Int[Array, "B T"],
        attended_length: int,
    ) -> tuple[Float[Array, "B T D"], LayerCache]:
        """Returns the residual stream after this layer, and the cache with the new tokens."""
        with jax.named_scope("input_norm"):
            normed = self.input_norm(x)
        with jax.named_scope("attention"):
            attended, cache = self.attention(normed, rotation, cache, positions, attended_length)
        return self.feed_forward(x + attended), cache
