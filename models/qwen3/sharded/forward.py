"""What one device computes of the model's forward pass. Runs inside `jax.shard_map`.

Between layers a device holds the residual stream of T / tensor tokens of each of its B / fsdp
sequences (sequence parallelism: Korthikanti et al., arXiv:2205.05198). Tokens are gathered before
each pair of projections and their sums scattered behind it, which moves as many bytes as an
all-reduce would and keeps 1 / tensor of the residual stream.
"""

from collections.abc import Mapping
from functools import partial
from math import gcd
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from models.qwen3.attention import grouped_query_attention
from models.qwen3.config import Qwen3Config
from models.qwen3.norm import rms_norm
from models.qwen3.rope import Rotation, rotate, rotation_of
from models.qwen3.sharded.collectives import gathered
from models.qwen3.sharded.layout import TENSOR

Weights: TypeAlias = Mapping[str, Any]

# Queries whose scores exist at once, of all sequences of a device: [K, G, QUERIES, T] in float32.
QUERIES_AT_ONCE = 512


def embed(
    table: Float[Array, "V D"], token_ids: Int[Array, "B T"], dtype: str
) -> Float[Array, "B t D"]:
    """Rows of the tokens: each device looks up those of its part of V; t = T / tensor."""
    rows = gathered(table, 1, dtype)
    here = token_ids - jax.lax.axis_index(TENSOR) * rows.shape[0]
    mine = (here >= 0) & (here < rows.shape[0])
    found = rows.at[here].get(mode="clip", wrap_negative_indices=False)
    return _scattered(jnp.where(mine[..., None], found, 0))


def layers(
    x: Float[Array, "B t D"], stacked: Weights, config: Qwen3Config, *, unrolled: bool = False
) -> Float[Array, "B t D"]:
    """All layers, each computed anew in the backward pass from the residual stream before it.

    Args:
      stacked: weights with a first axis of layers, as `layout` has them.
      unrolled: one body for each layer in place of one for all: for comparison.
    """
    tokens = x.shape[1] * jax.lax.axis_size(TENSOR)
    rotation = rotation_of(
        jnp.arange(tokens)[None, :], head_dim=config.head_dim, theta=config.rope_theta
    )

    # A scan keeps XLA from sharing the two computations; a barrier would only cost fusions.
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
    """One decoder layer over whole sequences, causal."""
    eps, dtype = config.rms_norm_eps, config.dtype
    with jax.named_scope("attention"):
        tokens = _all_tokens(rms_norm(x, weights["input_norm"], eps))
        qkv = jnp.einsum("BTD,DKPH->BTKPH", tokens, gathered(weights["qkv"], 0, dtype))
        q, k, v = qkv[..., :-2, :], qkv[..., -2, :], qkv[..., -1, :]
        q = q.reshape(*q.shape[:2], -1, config.head_dim)
        q = rotate(rms_norm(q, weights["q_norm"], eps), rotation)
        k = rotate(rms_norm(k, weights["k_norm"], eps), rotation)
        attended = causal_attention(q, k, v)
        attended = attended.reshape(*qkv.shape[:3], -1, config.head_dim)
        out = jnp.einsum("BTKGH,DKGH->BTD", attended, gathered(weights["o"], 0, dtype))
        x = x + _scattered(out)
    with jax.named_scope("mlp"):
        tokens = _all_tokens(rms_norm(x, weights["post_attention_norm"], eps))
        gate_up = jnp.einsum("BTD,DPF->BTPF", tokens, gathered(weights["gate_up"], 0, dtype))
        gate, up = gate_up[:, :, 0].astype(jnp.float32), gate_up[:, :, 1].astype(jnp.float32)
        activated = (jax.nn.silu(gate) * up).astype(x.dtype)
        down = jnp.einsum("BTF,DF->BTD", activated, gathered(weights["down"], 0, dtype))
        return x + _scattered(down)


def causal_attention(
    q: Float[Array, "B T N H"], k: Float[Array, "B T K H"], v: Float[Array, "B T K H"]
) -> Float[Array, "B T N H"]:
    """Softmax attention of each token over those up to it, `QUERIES_AT_ONCE` queries at a time.

    Scores are computed anew in the backward pass, so that no more of them ever exist. All keys are
    scored, those that are masked too: twice the products of a kernel that skips them.
    """
    at_once = gcd(q.shape[1], _power_of_two(QUERIES_AT_ONCE // q.shape[0]))
    # In float32, so that the gradients of the parts are summed in float32.
    keys, values = (jnp.swapaxes(each, 1, 2).astype(jnp.float32) for each in (k, v))

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
    """The largest up to `limit`, at least 1."""
    return 1 << max(0, limit.bit_length() - 1)


def _all_tokens(x: Float[Array, "B t D"]) -> Float[Array, "B T D"]:
    whole: Array = jax.lax.all_gather(x, TENSOR, axis=1, tiled=True)
    return whole


def _scattered(x: Float[Array, "B T D"]) -> Float[Array, "B t D"]:
    """The sum over the devices of `tensor`, of this device's tokens."""
    part: Array = jax.lax.psum_scatter(x, TENSOR, scatter_dimension=1, tiled=True)
    return part
