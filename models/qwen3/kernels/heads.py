"""Splits a prompt's qkv projection into queries, and keys and values in the cache, in one pass.

XLA splits, norms, rotates and transposes in six passes over the projection's output. Here each
program reads one head of some tokens, and writes the result to its final place.

The equivalent in plain JAX is `Attention.queries`, `Attention.keys` and `cache.write_positions`.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float, Int

from models.qwen3.kernels.rotation import Rows, partner_of
from models.qwen3.kernels.triton_call import triton_call

# Tokens per program.
TOKENS = 64
NUM_WARPS = 4


@partial(jax.jit, static_argnames=("eps", "interpret"))
def split_heads(
    qkv: Float[Array, "B T qkv"],
    q_scale: Float[Array, " H"],
    k_scale: Float[Array, " H"],
    rotation: Rows,
    lengths: Int[Array, " B"],
    k_cache: Float[Array, "B K S H"],
    v_cache: Float[Array, "B K S H"],
    *,
    eps: float,
    interpret: bool = False,
) -> tuple[Float[Array, "B T N H"], Float[Array, "B K S H"], Float[Array, "B K S H"]]:
    """Queries after norm and RoPE, and both caches with slots 0 to T - 1 written in place.

    Args:
      qkv: [B, T, (N + 2 K) H], the projection's output.
      rotation: of positions 0 to T - 1, [T, H] each.
      lengths: tokens of each sequence; the rest is padding, and is not written.
    """
    batch, length, width = qkv.shape
    kv_heads, head_dim = k_cache.shape[1], k_cache.shape[3]
    heads = width // head_dim - 2 * kv_heads
    tokens = min(TOKENS, length)
    if length % tokens or tokens & (tokens - 1):
        raise ValueError(
            f"{length} tokens; expected a multiple of {TOKENS}, or a smaller power of two"
        )

    def kernel(
        qkv_ref: Any,
        q_scale_ref: Any,
        k_scale_ref: Any,
        cos_ref: Any,
        sin_ref: Any,
        lengths_ref: Any,
        _k_in: Any,
        _v_in: Any,
        q_ref: Any,
        k_ref: Any,
        v_ref: Any,
    ) -> None:
        sequence, block = pl.program_id(0), pl.program_id(1)
        head = pl.program_id(2)
        lanes = jnp.arange(head_dim)
        partner = partner_of(lanes, head_dim)
        positions = block * tokens + jnp.arange(tokens)
        written = jnp.broadcast_to((positions < lengths_ref[sequence])[:, None], (tokens, head_dim))

        def read(order: Array) -> Float[Array, "tokens H"]:
            columns = head * head_dim + order[None, :]
            rows: Array = plgpu.load(qkv_ref.at[sequence, positions[:, None], columns])
            return rows

        def rotated(scale_ref: Any) -> Float[Array, "tokens H"]:
            x, swapped = read(lanes).astype(jnp.float32), read(partner).astype(jnp.float32)
            inverse = jax.lax.rsqrt(jnp.sum(x * x, axis=1, keepdims=True) / head_dim + eps)
            # Rounds where the plain model does: after the norm, and after the rotation.
            dtype = q_ref.dtype
            x = (x * inverse * plgpu.load(scale_ref.at[lanes])[None, :]).astype(dtype)
            swapped = (swapped * inverse * plgpu.load(scale_ref.at[partner])[None, :]).astype(dtype)
            cos = plgpu.load(cos_ref.at[positions[:, None], lanes[None, :]])
            sin = plgpu.load(sin_ref.at[positions[:, None], lanes[None, :]])
            return (x * cos + swapped * sin).astype(dtype)

        def write(ref: Any, kv_head: Array, rows: Float[Array, "tokens H"]) -> None:
            slots = ref.at[sequence, kv_head, pl.ds(block * tokens, tokens), :]
            plgpu.store(slots, rows, mask=written)

        @pl.when(head < heads)
        def _query() -> None:
            rows = rotated(q_scale_ref)
            plgpu.store(q_ref.at[sequence, pl.ds(block * tokens, tokens), head, :], rows)

        @pl.when((head >= heads) & (head < heads + kv_heads))
        def _key() -> None:
            write(k_ref, head - heads, rotated(k_scale_ref))

        @pl.when(head >= heads + kv_heads)
        def _value() -> None:
            write(v_ref, head - heads - kv_heads, read(lanes))

    q, k, v = triton_call(
        kernel,
        (
            jax.ShapeDtypeStruct((batch, length, heads, head_dim), qkv.dtype),
            jax.ShapeDtypeStruct(k_cache.shape, k_cache.dtype),
            jax.ShapeDtypeStruct(v_cache.shape, v_cache.dtype),
        ),
        *(qkv, q_scale, k_scale, rotation.cos, rotation.sin, lengths, k_cache, v_cache),
        grid=(batch, length // tokens, heads + 2 * kv_heads),
        num_warps=NUM_WARPS,
        name="split_heads",
        interpret=interpret,
        aliases={6: 1, 7: 2},
    )
    return q, k, v
