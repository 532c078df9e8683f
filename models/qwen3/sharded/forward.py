"""The model's forward pass on one device. Runs inside `jax.shard_map`.

Between layers, a device has the residual stream of T / tensor tokens of each of its B / fsdp
sequences (sequence parallelism: Korthikanti et al., arXiv:2205.05198). Tokens are gathered before
each pair of projections, and their sums are reduce-scattered after it. This transfers the same
number of bytes as an all-reduce, and keeps 1 / tensor of the residual stream.
"""

from collections.abc import Mapping
from functools import partial
from math import gcd
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from models.qwen3.config import Qwen3Config
from models.qwen3.modules.attention import grouped_query_attention
from models.qwen3.modules.norm import rms_norm
from models.qwen3.modules.rope import Rotation, rotate, rotation_of
from models.qwen3.sharded.gathered_weight import gathered
from models.qwen3.sharded.weight_layout import QUERIES_AT_ONCE, TENSOR

Weights: TypeAlias = Mapping[str, Any]


def embed(
    table: Float[Array, "d V"], token_ids: Int[Array, "B T"], dtype: str
) -> Float[Array, "B t D"]:
    """The residual stream before the first layer; t = T / tensor."""
    return _scattered(own_columns(gathered(table, 0, dtype), token_ids))


def own_columns(table: Float[Array, "D V"], token_ids: Int[Array, "B T"]) -> Float[Array, "B T D"]:
    """Columns of the tokens in this device's part of V; zeros for other tokens."""
    local_ids = token_ids - jax.lax.axis_index(TENSOR) * table.shape[1]
    is_local = (local_ids >= 0) & (local_ids < table.shape[1])
    columns = table.at[:, local_ids].get(mode="clip", wrap_negative_indices=False)
    return jnp.where(is_local[..., None], jnp.moveaxis(columns, 0, -1), 0)


def layers(
    x: Float[Array, "B t D"], stacked: Weights, config: Qwen3Config, *, unrolled: bool = False
) -> Float[Array, "B t D"]:
    """All layers; the backward pass recomputes each from the residual stream before it."""
    tokens = x.shape[1] * jax.lax.axis_size(TENSOR)
    rotation = rotation_of(
        jnp.arange(tokens)[None, :], head_dim=config.head_dim, theta=config.rope_theta
    )

    # In a scan, XLA cannot merge the two computations; `prevent_cse` would only prevent fusions.
    @partial(jax.checkpoint, prevent_cse=unrolled)
    def body(x: Array, weights: Weights) -> tuple[Array, None]:
        return layer(x, weights, rotation, config), None

    if unrolled:
        for number in range(config.num_hidden_layers):
            x, _ = body(x, {name: leaf[number] for name, leaf in stacked.items()})
        return x
    x, _ = jax.lax.scan(body, x, dict(stacked))
    return x


def layer(
    x: Float[Array, "B t D"], weights: Weights, rotation: Rotation, config: Qwen3Config
) -> Float[Array, "B t D"]:
    """One decoder layer over whole sequences, with causal attention."""
    eps, dtype = config.rms_norm_eps, config.dtype
    with jax.named_scope("attention"):
        tokens = _all_tokens(rms_norm(x, weights["input_norm"], eps))
        q, k, v = heads(tokens, gathered(weights["qkv"], 0, dtype), weights, rotation, config)
        attended = causal_attention(q, k, v)
        x = x + _scattered(attention_output(attended, gathered(weights["o"], 0, dtype)))
    with jax.named_scope("mlp"):
        tokens = _all_tokens(rms_norm(x, weights["post_attention_norm"], eps))
        gate_up, down = (gathered(weights[name], 0, dtype) for name in ("gate_up", "down"))
        return x + _scattered(feed_forward(tokens, gate_up, down))


def heads(
    x: Float[Array, "B T D"],
    qkv_weight: Float[Array, "D K P H"],
    norms: Weights,
    rotation: Rotation,
    config: Qwen3Config,
) -> tuple[Float[Array, "B T N H"], Float[Array, "B T K H"], Float[Array, "B T K H"]]:
    """Queries, keys and values of this device's heads; `norms` has `q_norm` and `k_norm`."""
    qkv = jnp.einsum("BTD,DKPH->BTKPH", x, qkv_weight)
    q, k, v = qkv[..., :-2, :], qkv[..., -2, :], qkv[..., -1, :]
    q = q.reshape(*q.shape[:2], -1, config.head_dim)
    q = rotate(rms_norm(q, norms["q_norm"], config.rms_norm_eps), rotation)
    k = rotate(rms_norm(k, norms["k_norm"], config.rms_norm_eps), rotation)
    return q, k, v


def attention_output(
    attended: Float[Array, "B T N H"], weight: Float[Array, "D K G H"]
) -> Float[Array, "B T D"]:
    """The output projection of this device's heads, to be summed over `tensor`."""
    by_group = attended.reshape(*attended.shape[:2], *weight.shape[1:])
    return jnp.einsum("BTKGH,DKGH->BTD", by_group, weight)


def feed_forward(
    x: Float[Array, "B T D"], gate_up_weight: Float[Array, "D 2 F"], down: Float[Array, "D F"]
) -> Float[Array, "B T D"]:
    """SwiGLU of this device's part of F, to be summed over `tensor`; silu in float32."""
    gate_up = jnp.einsum("BTD,DPF->BTPF", x, gate_up_weight).astype(jnp.float32)
    activated = (jax.nn.silu(gate_up[:, :, 0]) * gate_up[:, :, 1]).astype(x.dtype)
    return jnp.einsum("BTF,DF->BTD", activated, down)


def causal_attention(
    q: Float[Array, "B T N H"], k: Float[Array, "B T K H"], v: Float[Array, "B T K H"]
) -> Float[Array, "B T N H"]:
    """Softmax attention of each token to those up to it, for `QUERIES_AT_ONCE` queries at a time.

    The backward pass recomputes the scores, so that only these are ever in memory. Masked keys are
    scored too, which takes twice the products of a kernel that skips them.
    """
    at_once = gcd(q.shape[1], _power_of_two(QUERIES_AT_ONCE // q.shape[0]))
    # In float32, so that the gradients of the parts are summed in float32.
    keys, values = (jnp.swapaxes(array, 1, 2).astype(jnp.float32) for array in (k, v))

    @partial(jax.checkpoint, prevent_cse=False)
    def attend(part: tuple[Array, Array]) -> Array:
        queries, positions = part
        return grouped_query_attention(
            queries, keys.astype(q.dtype), values.astype(q.dtype), positions
        )

    positions = jnp.broadcast_to(jnp.arange(q.shape[1]), q.shape[:2])
    parts = jax.lax.map(attend, (_split(q, at_once), _split(positions, at_once)))
    return jnp.moveaxis(parts, 0, 1).reshape(q.shape)


def _split(x: Array, at_once: int) -> Array:
    """[B, T, …] as [T / at_once, B, at_once, …]."""
    return jnp.moveaxis(x.reshape(x.shape[0], -1, at_once, *x.shape[2:]), 1, 0)


def _power_of_two(limit: int) -> int:
    """The largest power of two up to `limit`, at least 1."""
    return 1 << max(0, limit.bit_length() - 1)


def _all_tokens(x: Float[Array, "B t D"]) -> Float[Array, "B T D"]:
    whole: Array = jax.lax.all_gather(x, TENSOR, axis=1, tiled=True)
    return whole


def _scattered(x: Float[Array, "B T D"]) -> Float[Array, "B t D"]:
    """The sum over the devices of `tensor`, for this device's tokens."""
    part: Array = jax.lax.psum_scatter(x, TENSOR, scatter_dimension=1, tiled=True)
    return part
