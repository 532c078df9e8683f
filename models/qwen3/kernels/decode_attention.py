"""Attention of one new token of each sequence, over a cache that is written in place.

Flash decoding (Dao et al., 2023, https://crfm.stanford.edu/2023/10/12/flashdecoding.html): the
slots of a sequence are split among programs, each attends to its own with a running softmax, and
the last of a head to finish puts the parts together. Norms of queries and keys, RoPE and the write
into the cache are done on the way, so that a layer's attention is one kernel.

The twin in plain JAX is `Attention` without its projections.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float, Int

from models.qwen3.kernels.call import synchronize_threads, triton_call
from models.qwen3.kernels.rotation import Rows, partner_of
from models.qwen3.kernels.tiling import LEAST_SLOTS, chunk_of, decode_fits, splits_of

NUM_WARPS = 4
# Where a running maximum starts; less would make differences of it NaN.
LOWEST = -1e30


@partial(jax.jit, static_argnames=("eps", "interpret"))
def decode_attention(
    qkv: Float[Array, " qkv"],
    q_scale: Float[Array, " H"],
    k_scale: Float[Array, " H"],
    rotation: Rows,
    position: Int[Array, "1"],
    k_cache: Float[Array, "1 K S H"],
    v_cache: Float[Array, "1 K S H"],
    arrived: Int[Array, " N"],
    *,
    eps: float,
    interpret: bool = False,
) -> tuple[
    Float[Array, " attended"], Float[Array, "1 K S H"], Float[Array, "1 K S H"], Int[Array, " N"]
]:
    """Writes the new key and value at `position`, then attends to slots 0 to there.

    A position of S or more writes nothing and sees every slot, as in the plain model. A program
    has the query heads of one key/value head, which share what it reads.

    Args:
      qkv: [(N + 2 K) H], what the projection gave, not normed, float32.
      arrived: zeros; come back as zeros, so that the next layer can have them.

    Returns:
      What was attended to, [N H], float32; both caches, in place; `arrived`.

    Raises:
      ValueError: S is neither a multiple of LEAST_SLOTS nor a smaller power of two.
    """
    _, kv_heads, slots, head_dim = k_cache.shape
    heads = qkv.shape[0] // head_dim - 2 * kv_heads
    group = heads // kv_heads
    if not decode_fits(slots):
        raise ValueError(
            f"the cache has {slots} slots; expected a multiple of {LEAST_SLOTS}, or a smaller "
            "power of 2"
        )
    chunk = chunk_of(slots)
    splits = splits_of(kv_heads, slots)
    dtype = k_cache.dtype
    scale = head_dim**-0.5

    def kernel(
        qkv_ref: Any,
        q_scale_ref: Any,
        k_scale_ref: Any,
        cos_ref: Any,
        sin_ref: Any,
        position_ref: Any,
        _k_in: Any,
        _v_in: Any,
        _arrived_in: Any,
        out_ref: Any,
        k_ref: Any,
        v_ref: Any,
        arrived_ref: Any,
        part_ref: Any,
        log_weight_ref: Any,
    ) -> None:
        kv_head, split = pl.program_id(0), pl.program_id(1)
        # Pallas's interpreter takes no Python integers beside slices.
        zero = split * 0
        position = position_ref[0]
        lanes = jnp.arange(head_dim)[None, :]
        partner = partner_of(lanes, head_dim)

        # Everything is asked for before anything is waited for. Rows are [1, H], so that each
        # warp holds all of one and sums over it need no other.
        def row_of(number: Any) -> tuple[Array, Array]:
            base = number * head_dim
            return plgpu.load(qkv_ref.at[base + lanes]), plgpu.load(qkv_ref.at[base + partner])

        def scale_of(ref: Any) -> tuple[Array, Array]:
            own, swapped = plgpu.load(ref.at[lanes]), plgpu.load(ref.at[partner])
            return own.astype(jnp.float32), swapped.astype(jnp.float32)

        q_rows = [row_of(kv_head * group + member) for member in range(group)]
        k_row = row_of(heads + kv_head)
        new_v = row_of(heads + kv_heads + kv_head)[0].astype(dtype)
        q_scales, k_scales = scale_of(q_scale_ref), scale_of(k_scale_ref)
        cos, sin = plgpu.load(cos_ref.at[zero, lanes]), plgpu.load(sin_ref.at[zero, lanes])

        last = jnp.minimum(position, slots - 1)
        # Chunks in use, how many of them a program takes, and how many programs that occupies.
        used = last // chunk + 1
        each = (used + splits - 1) // splits
        occupied = (used + each - 1) // each
        first = split * each
        behind = jnp.minimum(first + each, used)

        def read(number: Any) -> tuple[Array, Array]:
            at = (zero, kv_head, pl.ds(number * chunk, chunk), slice(None))
            return plgpu.load(k_ref.at[at]), plgpu.load(v_ref.at[at])

        @pl.when(split < occupied)
        def _attend() -> None:
            old = read(first)

            def rotated(row: tuple[Array, Array], scales: tuple[Array, Array]) -> Array:
                x, swapped = row
                inverse = lax.rsqrt(jnp.sum(x * x, axis=1, keepdims=True) / head_dim + eps)
                return ((x * scales[0] * cos + swapped * scales[1] * sin) * inverse).astype(dtype)

            queries = [rotated(row, q_scales).astype(jnp.float32) * scale for row in q_rows]
            new_k = rotated(k_row, k_scales)

            def attend(number: Any, running: Any, old: tuple[Array, Array]) -> Any:
                slot = number * chunk + jnp.arange(chunk)[:, None]
                seen = slot < position
                keys, values = (each.astype(jnp.float32) for each in old)
                return [
                    _with(head, keys, values, query, seen)
                    for head, query in zip(running, queries, strict=True)
                ]

            none: Any = (
                jnp.zeros((1, head_dim), jnp.float32),
                jnp.full((1, 1), LOWEST, jnp.float32),
                jnp.zeros((1, 1), jnp.float32),
            )
            running = attend(first, [none] * group, old)
            if splits * chunk < slots:

                def next_chunk(number: Any, running: Any) -> Any:
                    return attend(number, running, read(number))

                running = lax.fori_loop(first + 1, behind, next_chunk, running)
            # The new token, from registers: nobody has to wait for the write.
            owner = position // chunk
            owned = (first <= owner) & (owner < behind)
            running = [
                _with(head, new_k.astype(jnp.float32), new_v.astype(jnp.float32), query, owned)
                for head, query in zip(running, queries, strict=True)
            ]

            @pl.when(owned)
            def _write() -> None:
                at = (zero, kv_head, pl.ds(position, 1), slice(None))
                plgpu.store(k_ref.at[at], new_k)
                plgpu.store(v_ref.at[at], new_v)

            here = pl.ds(split, 1)
            for member, (sums, top, total) in enumerate(running):
                head = kv_head * group + member
                plgpu.store(part_ref.at[head, here, :], sums / total)
                plgpu.store(log_weight_ref.at[head, here], (top + jnp.log(total)).reshape(1))
            synchronize_threads(interpret)
            before = plgpu.atomic_add(arrived_ref, (kv_head,), zero + 1)

            @pl.when(before == occupied - 1)
            def _combine() -> None:
                arrived_ref[kv_head] = zero
                every = jnp.arange(splits)
                there = every < occupied
                mask = jnp.broadcast_to(there[:, None], (splits, head_dim))
                found = []
                for member in range(group):
                    head = kv_head * group + member
                    logs = plgpu.load(log_weight_ref.at[head, every], mask=there, other=LOWEST)
                    parts = plgpu.load(part_ref.at[head, :, :], mask=mask, other=0.0)
                    found.append((head, logs, parts))
                for head, logs, parts in found:
                    weights = jnp.exp(logs - jnp.max(logs))
                    whole = jnp.sum(parts * weights[:, None], axis=0) / jnp.sum(weights)
                    out_ref[pl.ds(head * head_dim, head_dim)] = whole

    outputs = triton_call(
        kernel,
        (
            jax.ShapeDtypeStruct((heads * head_dim,), jnp.float32),
            jax.ShapeDtypeStruct(k_cache.shape, dtype),
            jax.ShapeDtypeStruct(v_cache.shape, dtype),
            jax.ShapeDtypeStruct(arrived.shape, arrived.dtype),
            jax.ShapeDtypeStruct((heads, splits, head_dim), jnp.float32),
            jax.ShapeDtypeStruct((heads, splits), jnp.float32),
        ),
        *(qkv, q_scale, k_scale, rotation.cos, rotation.sin, position, k_cache, v_cache, arrived),
        grid=(kv_heads, splits),
        num_warps=NUM_WARPS,
        name="decode_attention",
        interpret=interpret,
        aliases={6: 1, 7: 2, 8: 3},
    )
    attended, k_cache, v_cache, arrived = outputs[:4]
    return attended, k_cache, v_cache, arrived


def _with(
    running: tuple[Array, Array, Array],
    keys: Float[Array, "C H"],
    values: Float[Array, "C H"],
    query: Float[Array, "1 H"],
    seen: Any,
) -> tuple[Array, Array, Array]:
    """A running softmax of one head with more slots: weighted sums, the maximum, the weights' sum.

    Where none are `seen`, what they add has no weight once another is.
    """
    sums, top, total = running
    scores = jnp.sum(keys * query, axis=1, keepdims=True)
    scores = jnp.where(seen, scores, LOWEST)
    new_top = jnp.maximum(top, jnp.max(scores, axis=0, keepdims=True))
    weights = jnp.exp(scores - new_top)
    kept = jnp.exp(top - new_top)
    sums = sums * kept + jnp.sum(values * weights, axis=0, keepdims=True)
    total = total * kept + jnp.sum(weights, axis=0, keepdims=True)
    return sums, new_top, total
