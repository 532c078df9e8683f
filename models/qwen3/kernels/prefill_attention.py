"""Causal attention of a prompt's tokens to one another, without writing scores.

Flash attention (Dao, 2023, https://arxiv.org/abs/2307.08691): a program computes some queries of
one head, in a loop over the keys up to them, with a running softmax. The query heads of a group
read the same key/value head.

The equivalent in plain JAX is `attention.grouped_query_attention`.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float

from models.qwen3.kernels.tiling import KEYS, LEAST, QUERIES, prompt_fits
from models.qwen3.kernels.triton_call import triton_call

NUM_WARPS = 8
NUM_STAGES = 3
LOG2_E = 1.4426950408889634


@partial(jax.jit, static_argnames=("interpret",))
def prefill_attention(
    q: Float[Array, "B T N H"],
    k_cache: Float[Array, "B K S H"],
    v_cache: Float[Array, "B K S H"],
    *,
    interpret: bool = False,
) -> Float[Array, "B T N H"]:
    """Softmax attention of token t to cache slots 0 to t; softmax in float32.

    Raises:
      ValueError: T is neither a multiple of QUERIES, nor a power of two from LEAST to QUERIES.
    """
    batch, length, heads, head_dim = q.shape
    group = heads // k_cache.shape[1]
    queries, keys = min(QUERIES, length), min(KEYS, length)
    if not prompt_fits(length):
        raise ValueError(
            f"{length} tokens; expected a multiple of {QUERIES}, or a power of 2 from {LEAST}"
        )
    # GPUs have an instruction for powers of 2, but not for powers of e.
    scale = head_dim**-0.5 * LOG2_E

    def kernel(q_ref: Any, k_ref: Any, v_ref: Any, out_ref: Any) -> None:
        sequence, head = pl.program_id(0) // heads, pl.program_id(0) % heads
        # The blocks with the most keys first, so that short ones fill the GPU at the end.
        block = pl.num_programs(1) - 1 - pl.program_id(1)
        kv_head = head // group
        start = block * queries
        query = plgpu.load(q_ref.at[sequence, pl.ds(start, queries), head, :])

        def attend(number: Array, running: Any, masked: bool) -> Any:
            sums, top, total = running
            slots = pl.ds(number * keys, keys)
            key = plgpu.load(k_ref.at[sequence, kv_head, slots, :])
            scores = plgpu.dot(query, key.T) * scale
            if masked:
                row = start + jnp.arange(queries)[:, None]
                column = number * keys + jnp.arange(keys)[None, :]
                scores = jnp.where(column <= row, scores, -jnp.inf)
            new_top = jnp.maximum(top, jnp.max(scores, axis=1))
            weights = jnp.exp2(scores - new_top[:, None])
            rescale = jnp.exp2(top - new_top)
            value = plgpu.load(v_ref.at[sequence, kv_head, slots, :])
            sums = sums * rescale[:, None] + plgpu.dot(weights.astype(value.dtype), value)
            return sums, new_top, total * rescale + jnp.sum(weights, axis=1)

        running: Any = (
            jnp.zeros((queries, head_dim), jnp.float32),
            jnp.full((queries,), -jnp.inf, jnp.float32),
            jnp.zeros((queries,), jnp.float32),
        )
        # All keys before the block are attended to; only the block's own keys need the mask.
        whole = start // keys
        running = lax.fori_loop(0, whole, lambda n, r: attend(n, r, masked=False), running)
        sums, _, total = lax.fori_loop(
            whole, whole + queries // keys, lambda n, r: attend(n, r, masked=True), running
        )
        out = (sums / total[:, None]).astype(out_ref.dtype)
        plgpu.store(out_ref.at[sequence, pl.ds(start, queries), head, :], out)

    out: Array = triton_call(
        kernel,
        jax.ShapeDtypeStruct(q.shape, q.dtype),
        *(q, k_cache, v_cache),
        grid=(batch * heads, length // queries),
        num_warps=NUM_WARPS,
        num_stages=NUM_STAGES,
        name="prefill_attention",
        interpret=interpret,
    )
    return out
