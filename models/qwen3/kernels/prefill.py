"""A prompt into an empty cache, with the kernels around attention; the products are XLA's."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from models.qwen3.cache import Cache
from models.qwen3.kernels.heads import split_heads
from models.qwen3.kernels.prefill_attention import prefill_attention
from models.qwen3.kernels.rotation import rows_of
from models.qwen3.model import Qwen3


def prefill_with_kernels(
    model: Qwen3,
    cache: Cache,
    token_ids: Int[Array, "B T"],
    lengths: Int[Array, " B"],
    *,
    interpret: bool = False,
) -> tuple[Float[Array, "B T D"], Cache]:
    """The residual stream before the final norm, and the cache, written in place."""
    batch, length = token_ids.shape
    with jax.named_scope("embed"):
        x = model.embed(token_ids)
    with jax.named_scope("rope"):
        steps = jnp.arange(length, dtype=jnp.int32)
        rotation = rows_of(steps, head_dim=model.head_dim, theta=model.rope_theta)
    written: Cache = []
    for index, (layer, layer_cache) in enumerate(zip(model.layers, cache, strict=True)):
        attention = layer.attention
        with jax.named_scope(f"layers_{index}"):
            with jax.named_scope("input_norm"):
                normed = layer.input_norm(x)
            with jax.named_scope("attention"):
                with jax.named_scope("qkv_proj"):
                    qkv = attention.qkv_proj(normed)
                q, k, v = split_heads(
                    qkv,
                    attention.q_norm.scale[...],
                    attention.k_norm.scale[...],
                    rotation,
                    lengths,
                    layer_cache["k"],
                    layer_cache["v"],
                    eps=attention.q_norm.eps,
                    interpret=interpret,
                )
                attended = prefill_attention(q, k, v, interpret=interpret)
                x = x + attention.output(attended.reshape(batch, length, -1))
            x = layer.feed_forward(x)
        written.append({"k": k, "v": v})
    return x, written
