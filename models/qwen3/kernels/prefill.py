"""A prompt into an empty cache, with the kernels for any GPU or with those for Hopper."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from models.qwen3.attention import Attention
from models.qwen3.block import Block
from models.qwen3.cache import Cache, LayerCache
from models.qwen3.kernels.heads import split_heads
from models.qwen3.kernels.hopper_attention import hopper_attention
from models.qwen3.kernels.hopper_heads import prompt_heads
from models.qwen3.kernels.hopper_products import prompt_swiglu
from models.qwen3.kernels.mosaic import multiprocessors
from models.qwen3.kernels.prefill_attention import prefill_attention
from models.qwen3.kernels.rotation import Rows, rows_of
from models.qwen3.mlp import MLP
from models.qwen3.model import Qwen3


def prefill_with_kernels(
    model: Qwen3,
    cache: Cache,
    token_ids: Int[Array, "B T"],
    lengths: Int[Array, " B"],
    *,
    hopper: bool = False,
    interpret: bool = False,
) -> tuple[Float[Array, "B T D"], Cache]:
    """The residual stream before the final norm, and the cache, written in place.

    Args:
      hopper: take the kernels that a GPU of another generation cannot run, products with what
        follows them among these; otherwise the products are XLA's.
    """
    with jax.named_scope("embed"):
        x = model.embed(token_ids)
    with jax.named_scope("rope"):
        steps = jnp.arange(token_ids.shape[1], dtype=jnp.int32)
        rotation = rows_of(steps, head_dim=model.head_dim, theta=model.rope_theta)
    with_kernels = _with_hopper_kernels if hopper else _with_triton_kernels
    written: Cache = []
    for index, (layer, layer_cache) in enumerate(zip(model.layers, cache, strict=True)):
        with jax.named_scope(f"layers_{index}"):
            x, new = with_kernels(layer, x, rotation, lengths, layer_cache, interpret)
        written.append(new)
    return x, written


def _with_triton_kernels(
    layer: Block,
    x: Float[Array, "B T D"],
    rotation: Rows,
    lengths: Int[Array, " B"],
    cache: LayerCache,
    interpret: bool,
) -> tuple[Float[Array, "B T D"], LayerCache]:
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
        attended = prefill_attention(q, k, v, interpret=interpret)
        x = x + attention.output(attended.reshape(*x.shape[:2], -1))
    return layer.feed_forward(x), {"k": k, "v": v}


def _with_hopper_kernels(
    layer: Block,
    x: Float[Array, "B T D"],
    rotation: Rows,
    lengths: Int[Array, " B"],
    cache: LayerCache,
    interpret: bool,
) -> tuple[Float[Array, "B T D"], LayerCache]:
    attention, half = layer.attention, layer.attention.head_dim // 2
    # Of the first half's lanes: their sines are negated, the second half's are not.
    angles = jnp.concatenate([rotation.cos[:, :half], rotation.sin[:, half:]], axis=1)
    programs = multiprocessors(interpret)
    with jax.named_scope("input_norm"):
        normed = layer.input_norm(x)
    with jax.named_scope("attention"):
        q, k, v = prompt_heads(
            normed,
            attention.qkv_proj.weight[...],
            *(*_scales(attention), angles, lengths, cache["k"], cache["v"]),
            eps=attention.q_norm.eps,
            programs=programs,
            interpret=interpret,
        )
        attended = hopper_attention(q, k, v, interpret=interpret)
        x = x + attention.output(attended.reshape(*x.shape[:2], -1))
    with jax.named_scope("post_attention_norm"):
        normed = layer.post_attention_norm(x)
    with jax.named_scope("mlp"):
        x = x + _hopper_mlp(layer.mlp, normed, programs, interpret)
    return x, {"k": k, "v": v}


def _hopper_mlp(
    mlp: MLP, x: Float[Array, "B T D"], programs: int, interpret: bool
) -> Float[Array, "B T D"]:
    rows = x.reshape(-1, x.shape[-1])
    weight = mlp.gate_up_proj.weight[...]
    activated = prompt_swiglu(rows, weight, programs=programs, interpret=interpret)
    with jax.named_scope("down_proj"):
        return mlp.down_proj(activated).reshape(x.shape)


def _scales(attention: Attention) -> tuple[Any, Any]:
    return attention.q_norm.scale[...], attention.k_norm.scale[...]
