"""A decode step of one sequence: a kernel for all layers, then the output head."""

from collections.abc import Mapping
from decimal import Decimal, localcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from models.qwen3.config import Qwen3Config
from models.qwen3.kernels.all_layers.block import LayerArrays
from models.qwen3.kernels.all_layers.kernel import decode_layers
from models.qwen3.kernels.all_layers.sizes import Sizes
from models.qwen3.kernels.matvec import norm_matvec
from models.qwen3.modules.block import Block
from models.qwen3.modules.cache import Cache
from models.qwen3.modules.model import Qwen3


def decode_persistently(
    config: Qwen3Config,
    model: Qwen3,
    cache: Cache,
    token_ids: Int[Array, "1"],
    positions: Int[Array, "1"],
) -> tuple[Float[Array, "1 V"], Cache]:
    """Logits of the next token, float32, and the cache, written in place."""
    caches = [{name: jax.new_ref(leaf) for name, leaf in layer.items()} for layer in cache]
    with jax.named_scope("layers"):
        x = decode_layers(
            [_arrays_of(*pair) for pair in zip(model.layers, caches, strict=True)],
            model.embed.weight[...],
            _frequencies_of(model.head_dim, model.rope_theta),
            token_ids,
            positions,
            sizes=Sizes(config, cache[0]["k"].shape[2]),
        )
    norm = model.final_norm
    with jax.named_scope("lm_head"):
        logits = norm_matvec(x, norm.scale[...], model.head_weight, eps=norm.eps)
    written = [{name: jax.freeze(ref) for name, ref in layer.items()} for layer in caches]
    return logits[None], written


def _arrays_of(layer: Block, cache: Mapping[str, Any]) -> LayerArrays:
    attention, mlp = layer.attention, layer.mlp
    return LayerArrays(
        qkv=attention.qkv_proj.weight[...],
        out=attention.o_proj.weight[...],
        gate_up=mlp.gate_up_proj.weight[...],
        down=mlp.down_proj.weight[...],
        keys=cache["k"],
        values=cache["v"],
        before=layer.input_norm.scale[...],
        after=layer.post_attention_norm.scale[...],
        query_gain=attention.q_norm.scale[...],
        key_gain=attention.k_norm.scale[...],
    )


def _frequencies_of(head_dim: int, theta: float) -> Float[Array, " half_head"]:
    """The frequencies of `rotation.rows_of`, as a constant that no CPU rounds.

    NumPy's powers differ between CPUs in the last bit, and with them the executable.
    """
    with localcontext(prec=40):
        base = Decimal(theta)
        powers = [base ** (Decimal(-lane) / head_dim) for lane in range(0, head_dim, 2)]
    return jnp.asarray(np.array(powers, np.float64).astype(np.float32))
