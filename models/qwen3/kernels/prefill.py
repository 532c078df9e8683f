"""Prompts into an empty cache, with the kernels for any GPU or with those for Hopper."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from models.qwen3.kernels.heads import split_heads
from models.qwen3.kernels.hopper_attention import hopper_attention
from models.qwen3.kernels.hopper_heads import prompt_heads
from models.qwen3.kernels.hopper_products import prompt_swiglu
from models.qwen3.kernels.mosaic_call import multiprocessors
from models.qwen3.kernels.prefill_attention import prefill_attention
from models.qwen3.kernels.rotation import Rows, rows_of
from models.qwen3.modules.attention import Attention
from models.qwen3.modules.block import Block
from models.qwen3.modules.cache import Cache, LayerCache
from models.qwen3.modules.model import Qwen3, last_of


def prefill_with_kernels(
    model: Qwen3,
    cache: Cache,
    token_ids: Int[Array, "B T"],
    lengths: Int[Array, " B"],
    *,
    hopper: bool = False,
    interpret: bool = False,
) -> tuple[Float[Array, "B D"], Cache]:
    """The residual stream of each prompt's last token before the final norm, and the cache.

    The cache is written in place. After the last layer's attention, only the last tokens are
    computed, since no other is used.

    Args:
      lengths: tokens of each prompt, 1 to T.
      hopper: use the kernels that only Hopper GPUs can run, which include products with weights;
        otherwise XLA computes these products.
    """
    with jax.named_scope("embed"):
        x = model.embed(token_ids)
    with jax.named_scope("rope"):
        steps = jnp.arange(token_ids.shape[1], dtype=jnp.int32)
        rotation = rows_of(steps, head_dim=model.head_dim, theta=model.rope_theta)
    attention = _attention_on_hopper if hopper else _attention_with_triton
    feed_forward = (
        partial(_feed_forward_on_hopper, interpret=interpret) if hopper else _feed_forward_by_xla
    )

    def run(layer: Block, x: Array, layer_cache: LayerCache) -> tuple[Array, LayerCache]:
        attended, new_cache = attention(layer, x, rotation, lengths, layer_cache, interpret)
        attended = attended.reshape(*x.shape[:2], -1)
        if layer is not model.layers[-1]:
            return feed_forward(layer, x, attended), new_cache
        x = _feed_forward_by_xla(layer, last_of(x, lengths), last_of(attended, lengths))
        return x, new_cache

    return model.over_layers(run, x, cache)


def _attention_with_triton(
    layer: Block,
    x: Float[Array, "B T D"],
    rotation: Rows,
    lengths: Int[Array, " B"],
    cache: LayerCache,
    interpret: bool,
) -> tuple[Float[Array, "B T N H"], LayerCache]:
    attention = layer.attention
    with jax.named_scope("input_norm"):
        normed = layer.input_norm(x)
    with jax.named_scope("attention"):
        with jax.named_scope("qkv_proj"):
            qkv = attention.qkv_proj(normed)
        q, k, v = split_heads(
            qkv,
            *(*_scales(attention), rotation, lengths, cache["k"], cache["v"]),
            eps=attention.q_norm.eps,
            interpret=interpret,
        )
        return prefill_attention(q, k, v, interpret=interpret), {"k": k, "v": v}


def _feed_forward_by_xla(
    layer: Block, x: Float[Array, "*B D"], attended: Float[Array, "*B attended"]
) -> Float[Array, "*B D"]:
    with jax.named_scope("attention"):
        x = x + layer.attention.output(attended)
    return layer.feed_forward(x)


def _attention_on_hopper(
    layer: Block,
    x: Float[Array, "B T D"],
    rotation: Rows,
    lengths: Int[Array, " B"],
    cache: LayerCache,
    interpret: bool,
) -> tuple[Float[Array, "B T N H"], LayerCache]:
    attention, half = layer.attention, layer.attention.head_dim // 2
    # Cosines of the first half's lanes, and sines of the second half's, which are not negated.
    angles = jnp.concatenate([rotation.cos[:, :half], rotation.sin[:, half:]], axis=1)
    with jax.named_scope("input_norm"):
        normed = layer.input_norm(x)
    with jax.named_scope("attention"):
        q, k, v = prompt_heads(
            normed,
            attention.qkv_proj.weight[...],
            *(*_scales(attention), angles, lengths, cache["k"], cache["v"]),
            eps=attention.q_norm.eps,
            programs=multiprocessors(interpret),
            interpret=interpret,
        )
        return hopper_attention(q, k, v, interpret=interpret), {"k": k, "v": v}


def _feed_forward_on_hopper(
    layer: Block,
    x: Float[Array, "B T D"],
    attended: Float[Array, "B T attended"],
    *,
    interpret: bool,
) -> Float[Array, "B T D"]:
    with jax.named_scope("attention"):
        x = x + layer.attention.output(attended)
    with jax.named_scope("post_attention_norm"):
        normed = layer.post_attention_norm(x)
    with jax.named_scope("mlp"):
        activated = prompt_swiglu(
            normed.reshape(-1, normed.shape[-1]),
            layer.mlp.gate_up_proj.weight[...],
            programs=multiprocessors(interpret),
            interpret=interpret,
        )
        with jax.named_scope("down_proj"):
            return x + layer.mlp.down_proj(activated).reshape(x.shape)


def _scales(attention: Attention) -> tuple[Any, Any]:
    return attention.q_norm.scale[...], attention.k_norm.scale[...]
