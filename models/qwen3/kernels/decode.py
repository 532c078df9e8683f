"""A decode step of one sequence with the kernels: same weights, cache and result as the model."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

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
    token_ids: Int[Array, "1"],
    positions: Int[Array, "1"],
    *,
    interpret: bool = False,
) -> tuple[Float[Array, "1 V"], Cache]:
    """Logits of the next token, float32, and the cache, written in place.

    A layer is five kernels. The residual stream and all values between kernels are float32.
    """
    with jax.named_scope("embed"):
        x = model.embed(token_ids)[0].astype(jnp.float32)
    with jax.named_scope("rope"):
        rotation = rows_of(positions, head_dim=model.head_dim, theta=model.rope_theta)
    arrived = jnp.zeros((model.layers[0].attention.num_heads,), jnp.int32)
    layer = partial(_layer, rotation=rotation, position=positions, interpret=interpret)
    (x, _), written = model.over_layers(layer, (x, arrived), cache)
    norm = model.final_norm
    with jax.named_scope("lm_head"):
        logits = norm_matvec(
            x, norm.scale[...], model.head_weight, eps=norm.eps, interpret=interpret
        )
    return logits[None], written


def _layer(
    layer: Block,
    carried: tuple[Float[Array, " D"], Int[Array, " N"]],
    cache: LayerCache,
    *,
    rotation: Rows,
    position: Int[Array, "1"],
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
            position,
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
