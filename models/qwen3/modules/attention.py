"""Grouped-query attention over a KV cache."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float, Int

from models.qwen3.config import Qwen3Config
from models.qwen3.modules.cache import LayerCache, write_positions
from models.qwen3.modules.norm import RMSNorm
from models.qwen3.modules.projection import Projection
from models.qwen3.modules.rope import Rotation, rotate


def grouped_query_attention(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B K S H"],
    v: Float[Array, "B K S H"],
    positions: Int[Array, "B T"],
) -> Float[Array, "B T N H"]:
    """Softmax attention of each token to slots 0 up to its position; softmax in float32.

    Query head n reads key/value head n // G. A token at position S or more attends to every slot.
    """
    kv_heads, slots, head_dim = k.shape[1:]
    queries = q.reshape(*q.shape[:2], kv_heads, -1, head_dim)
    # The results' axes are in the order batch, left operand, right operand. For any other order
    # einsum swaps the operands, and jax 0.10.2 then transposed the whole cache of values.
    with jax.named_scope("scores"):
        scores = jnp.einsum("BTKGH,BKSH->BKTGS", queries, k, preferred_element_type=jnp.float32)
    with jax.named_scope("softmax"):
        seen = jnp.arange(slots) <= positions[:, :, None]
        scores = jnp.where(seen[:, None, :, None], scores * head_dim**-0.5, -jnp.inf)
        weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    with jax.named_scope("values"):
        attended = jnp.einsum("BKTGS,BKSH->BKTGH", weights, v)
    return jnp.swapaxes(attended, 1, 2).reshape(q.shape)


def _row_major(x: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """x with its row-major layout, so that a gemm's preferred layout is not applied to the cache.

    jax 0.10.2 otherwise transposed whole caches before and after each write.
    """
    constrained: Array = with_layout_constraint(x, Layout(tuple(range(x.ndim))))
    return constrained


class Attention(nnx.Module):
    """Fused qkv projection, norms of query and key heads, RoPE, attention, output projection."""

    def __init__(self, config: Qwen3Config, *, rngs: nnx.Rngs) -> None:
        self.num_heads = config.num_attention_heads
        self.num_kv_heads = config.num_key_value_heads
        self.head_dim = config.head_dim
        self.qkv_proj = Projection(
            config.hidden_size, config.qkv_size, dtype=config.dtype, rngs=rngs
        )
        self.q_norm = RMSNorm(config.head_dim, eps=config.rms_norm_eps, dtype=config.dtype)
        self.k_norm = RMSNorm(config.head_dim, eps=config.rms_norm_eps, dtype=config.dtype)
        self.o_proj = Projection(config.q_size, config.hidden_size, dtype=config.dtype, rngs=rngs)

    def heads(
        self, x: Float[Array, "*B D"]
    ) -> tuple[Float[Array, "*B N H"], Float[Array, "*B K H"], Float[Array, "*B K H"]]:
        """Queries, keys and values, as the projection returns them."""
        with jax.named_scope("qkv_proj"):
            qkv = self.qkv_proj(x).reshape(*x.shape[:-1], -1, self.head_dim)
        q, k, v = jnp.split(qkv, [self.num_heads, self.num_heads + self.num_kv_heads], axis=-2)
        return q, k, v

    def queries(self, q: Float[Array, "*B N H"], rotation: Rotation) -> Float[Array, "*B N H"]:
        """Queries after norm and RoPE."""
        with jax.named_scope("q_norm"):
            q = self.q_norm(q)
        return rotate(q, rotation)

    def keys(
        self, k: Float[Array, "*B K H"], rotation: Rotation, eps: Float[Array, ""] | None = None
    ) -> Float[Array, "*B K H"]:
        """Keys after norm and RoPE, as stored in the cache. `eps` is as in `RMSNorm`."""
        with jax.named_scope("k_norm"):
            k = self.k_norm(k, eps)
        return rotate(k, rotation)

    def output(self, attended: Float[Array, "*B Q"]) -> Float[Array, "*B D"]:
        """The output projection; Q = N H."""
        with jax.named_scope("o_proj"):
            return self.o_proj(attended)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        rotation: Rotation,
        cache: LayerCache,
        positions: Int[Array, "B T"],
        attended_length: int,
    ) -> tuple[Float[Array, "B T D"], LayerCache]:
        """Writes the tokens' keys and values at their positions, then attends to the cache.

        Args:
          attended_length: number of cache slots that attention reads; static. Positions of all
            tokens that are not padding must be below it.
        """
        q, k, v = self.heads(x)
        q, k = self.queries(q, rotation), self.keys(k, rotation)
        with jax.named_scope("cache_write"):
            cache = {
                "k": write_positions(cache["k"], k, positions),
                "v": write_positions(cache["v"], v, positions),
            }
        k, v = (_row_major(cache[name])[:, :, :attended_length] for name in ("k", "v"))
        attended = grouped_query_attention(q, k, v, positions)
        return self.output(attended.reshape(*x.shape[:-1], -1)), cache
