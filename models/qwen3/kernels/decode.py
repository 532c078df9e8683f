"""A decode step with the kernels: same weights, cache and result as the model.

For one sequence a layer is five kernels, and the residual stream and all values between kernels are
float32. For several it is five other kernels, and two of XLA's: the norms, which add the partial
sums of the product before them to the residual stream. XLA then computes the output head too.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from models.qwen3.kernels.batch_attention import batch_attention
from models.qwen3.kernels.batch_products import batch_product, batch_swiglu
from models.qwen3.kernels.decode_attention import decode_attention
from models.qwen3.kernels.matvec import matvec_add, norm_matvec, norm_swiglu
from models.qwen3.kernels.product_forms import form_of
from models.qwen3.kernels.rotation import Rows, rows_of
from models.qwen3.modules.block import Block
from models.qwen3.modules.cache import Cache, LayerCache
from models.qwen3.modules.model import Qwen3


def decode_with_kernels(
    model: Qwen3,
    cache: Cache,
    token_ids: Int[Array, " B"],
    positions: Int[Array, " B"],
    *,
    interpret: bool = False,
) -> tuple[Float[Array, "B V"], Cache]:
    """Logits of each sequence's next token, float32, and the cache, written in place."""
    batch, attention = len(token_ids), model.layers[0].attention
    with jax.named_scope("embed"):
        x = model.embed(token_ids)
        if batch == 1:
            x = x[0].astype(jnp.float32)
    with jax.named_scope("rope"):
        rotation = rows_of(positions, head_dim=model.head_dim, theta=model.rope_theta)
    counters = (attention.num_heads,) if batch == 1 else (batch, attention.num_kv_heads)
    run = _layer_of_one if batch == 1 else _layer_of_several
    layer = partial(run, rotation=rotation, positions=positions, interpret=interpret)
    (x, _), written = model.over_layers(layer, (x, jnp.zeros(counters, jnp.int32)), cache)
    if batch > 1:
        return model.logits(x), written
    norm = model.final_norm
    with jax.named_scope("lm_head"):
        logits = norm_matvec(
            x, norm.scale[...], model.head_weight, eps=norm.eps, interpret=interpret
        )
    return logits[None], written


def _layer_of_one(
    layer: Block,
    carried: tuple[Float[Array, " D"], Int[Array, " N"]],
    cache: LayerCache,
    *,
    rotation: Rows,
    positions: Int[Array, "1"],
    interpret: bool,
) -> tuple[tuple[Float[Array, " D"], Int[Array, " N"]], LayerCache]:
    x, arrived = carried
    attention, mlp = layer.attention, layer.mlp
    before, after = layer.input_norm, layer.post_attention_norm
    with jax.named_scope("attention"):
        weight = attention.qkv_proj.weight[...]
        qkv = norm_matvec(x, before.scale[...], weight, eps=before.eps, interpret=interpret)
        attended, k_cache, v_cache, arrived = decode_attention(
            qkv,
            attention.q_norm.scale[...],
            attention.k_norm.scale[...],
            rotation,
            positions,
            cache["k"],
            cache["v"],
            arrived,
            eps=attention.q_norm.eps,
            by_head=form_of(weight.shape).looped,
            interpret=interpret,
        )
        x = matvec_add(attended, attention.o_proj.weight[...], x, interpret=interpret)
    with jax.named_scope("mlp"):
        weight = mlp.gate_up_proj.weight[...]
        activated = norm_swiglu(x, after.scale[...], weight, eps=after.eps, interpret=interpret)
        x = matvec_add(activated, mlp.down_proj.weight[...], x, interpret=interpret)
    return (x, arrived), {"k": k_cache, "v": v_cache}


def _layer_of_several(
    layer: Block,
    carried: tuple[Float[Array, "B D"], Int[Array, "B K"]],
    cache: LayerCache,
    *,
    rotation: Rows,
    positions: Int[Array, " B"],
    interpret: bool,
) -> tuple[tuple[Float[Array, "B D"], Int[Array, "B K"]], LayerCache]:
    x, arrived = carried
    attention, mlp = layer.attention, layer.mlp
    with jax.named_scope("input_norm"):
        normed = layer.input_norm(x)
    with jax.named_scope("attention"):
        qkv = batch_product(normed, attention.qkv_proj.weight[...], interpret=interpret)
        attended, k_cache, v_cache, arrived = batch_attention(
            qkv,
            attention.q_norm.scale[...],
            attention.k_norm.scale[...],
            rotation,
            positions,
            cache["k"],
            cache["v"],
            arrived,
            eps=attention.q_norm.eps,
            interpret=interpret,
        )
        parts = batch_product(attended, attention.o_proj.weight[...], interpret=interpret)
        x = _added(x, parts)
    with jax.named_scope("post_attention_norm"):
        normed = layer.post_attention_norm(x)
    with jax.named_scope("mlp"):
        activated = batch_swiglu(normed, mlp.gate_up_proj.weight[...], interpret=interpret)
        parts = batch_product(activated, mlp.down_proj.weight[...], interpret=interpret)
        x = _added(x, parts)
    return (x, arrived), {"k": k_cache, "v": v_cache}


def _added(x: Float[Array, "B D"], parts: Float[Array, "splits B D"]) -> Float[Array, "B D"]:
    """The residual stream plus partial sums; added in float32, then rounded to x's dtype."""
    return (x.astype(jnp.float32) + jnp.sum(parts, axis=0)).astype(x.dtype)
