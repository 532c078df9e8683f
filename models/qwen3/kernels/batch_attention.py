"""Attention of one new token of each of several sequences, over a cache that is written in place.

Flash decoding, as in `decode_attention`, but on tensor cores: a program multiplies all queries of a
key/value head with some slots, and fetches the next ones meanwhile. With many sequences a program
reads all slots of a head, and nothing is combined. The kernel adds the partial sums of the qkv
projection, and computes norms, RoPE and the write into the cache.

The equivalent in plain JAX is `Attention` without its projections.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float, Int

from models.qwen3.kernels import split_cache
from models.qwen3.kernels.rotation import Rows, partner_of
from models.qwen3.kernels.split_cache import (
    LOWEST,
    Chunks,
    Refs,
    Softmax,
    attention_call,
    chunks_of,
    combine_last,
    combined_parts,
    normed_and_rotated,
    of_no_slot,
    write_new,
)
from models.qwen3.kernels.tiling import LEAST, splits_of
from models.qwen3.kernels.triton_call import synchronize_threads

NUM_WARPS = 2
NUM_STAGES = 3
LOG2_E = 1.4426950408889634


@partial(jax.jit, static_argnames=("eps", "interpret"))
def batch_attention(
    qkv: Float[Array, "splits B qkv"],
    q_scale: Float[Array, " H"],
    k_scale: Float[Array, " H"],
    rotation: Rows,
    positions: Int[Array, " B"],
    k_cache: Float[Array, "B K S H"],
    v_cache: Float[Array, "B K S H"],
    arrived: Int[Array, "B K"],
    *,
    eps: float,
    interpret: bool = False,
) -> tuple[
    Float[Array, "B attended"], Float[Array, "B K S H"], Float[Array, "B K S H"], Int[Array, "B K"]
]:
    """As `decode_attention`, for each sequence; the output is in the cache's dtype.

    Args:
      qkv: partial sums of the projection's output, without norms, float32.
    """
    batch, kv_heads, slots, head_dim = k_cache.shape
    heads = qkv.shape[2] // head_dim - 2 * kv_heads
    sizes = _Sizes(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        slots=slots,
        splits=splits_of(batch * kv_heads, slots),
        partial_sums=qkv.shape[0],
        dtype=k_cache.dtype,
    )
    attended, k_cache, v_cache, arrived = attention_call(
        lambda refs: _kernel(refs, sizes, eps=eps, interpret=interpret),
        sizes,
        jax.ShapeDtypeStruct((batch * heads, head_dim), sizes.dtype),
        qkv,
        (q_scale, k_scale),
        rotation,
        positions,
        (k_cache, v_cache),
        arrived,
        grid=(batch, kv_heads, sizes.splits),
        num_warps=NUM_WARPS,
        num_stages=NUM_STAGES,
        name="batch_attention",
        interpret=interpret,
    )
    return attended.reshape(batch, heads * head_dim), k_cache, v_cache, arrived


@dataclass(frozen=True, kw_only=True)
class _Sizes(split_cache.Sizes):
    """Static sizes of the kernel.

    Attributes:
      partial_sums: of the projection's output.
    """

    partial_sums: int

    @property
    def rows(self) -> int:
        """The rows of a product with the queries: the group, and padding."""
        return max(LEAST, 1 << (self.group - 1).bit_length())

    @property
    def scale(self) -> float:
        """Factor of scores; GPUs have an instruction for powers of 2, but not for powers of e."""
        return LOG2_E / math.sqrt(self.head_dim)


class _Program(NamedTuple):
    """A program: its sequence and key/value head, and the chunks that it reads."""

    sequence: Array
    kv_head: Array
    split: Array
    position: Array
    chunks: Chunks


def _kernel(refs: Refs, sizes: _Sizes, *, eps: float, interpret: bool) -> None:
    sequence, kv_head, split = (pl.program_id(axis) for axis in range(3))
    position = plgpu.load(refs.positions.at[sequence])
    program = _Program(sequence, kv_head, split, position, chunks_of(sizes, split, position))

    @pl.when(split < program.chunks.occupied)
    def _attend() -> None:
        group = sizes.group
        # Rows past the group repeat its last head, and are not stored.
        member = jnp.minimum(jnp.arange(sizes.rows), group - 1)[:, None]
        queries = _rotated(refs, sizes, program, kv_head * group + member, refs.q_scale, eps)
        one = jnp.zeros((1, 1), jnp.int32)
        new_k = _rotated(refs, sizes, program, sizes.heads + kv_head + one, refs.k_scale, eps)
        lanes = jnp.arange(sizes.head_dim)[None, :]
        v_head = sizes.heads + sizes.kv_heads + kv_head
        new_v = _projected(refs, sizes, program, v_head * sizes.head_dim + lanes)
        new_v = new_v.astype(sizes.dtype)
        running = _attend_to_cache(refs, sizes, program, queries)
        # Uses the new key and value from registers: no program waits for their write.
        owned = program.chunks.own(sizes, position)
        running = _with_new(running, sizes, queries, new_k, new_v, owned)

        slot = (sequence, kv_head, pl.ds(position, 1), slice(None))
        write_new(refs, slot, owned, new_k, new_v)
        if sizes.splits == 1:
            _store(refs, sizes, program, running)
            return
        _store_part(refs, sizes, program, running)
        synchronize_threads(interpret)
        counter, zero = (sequence, kv_head), split * 0
        combine_last(
            refs, counter, zero, program.chunks, lambda: _combine_parts(refs, sizes, program)
        )


def _projected(refs: Refs, sizes: _Sizes, program: _Program, columns: Array) -> Array:
    """Columns of the sequence's projection, float32."""
    parts = [
        plgpu.load(refs.qkv.at[number, program.sequence, columns])
        for number in range(sizes.partial_sums)
    ]
    return sum(parts[1:], parts[0])


def _rotated(
    refs: Refs, sizes: _Sizes, program: _Program, heads: Array, scale_ref: Any, eps: float
) -> Array:
    """Heads [R, 1] of the projection after RMSNorm and RoPE, [R, H], in the cache's dtype."""
    lanes = jnp.arange(sizes.head_dim)[None, :]
    partner = partner_of(lanes, sizes.head_dim)
    x, swapped = (
        _projected(refs, sizes, program, heads * sizes.head_dim + columns)
        for columns in (lanes, partner)
    )
    own, other = (
        plgpu.load(scale_ref.at[columns]).astype(jnp.float32) for columns in (lanes, partner)
    )
    cos, sin = (plgpu.load(ref.at[program.sequence, lanes]) for ref in (refs.cos, refs.sin))
    return normed_and_rotated(x, swapped, (own, other), (cos, sin), sizes, eps)


def _attend_to_cache(refs: Refs, sizes: _Sizes, program: _Program, queries: Array) -> Softmax:
    """The running softmax over the program's slots before the position.

    If none of them is before it, their contribution gets weight 0 when the new slot is added.
    """

    def attend(number: Array, running: Softmax) -> Softmax:
        sums, top, total = running
        slots = pl.ds(number * sizes.chunk, sizes.chunk)
        keys = plgpu.load(refs.k.at[program.sequence, program.kv_head, slots, :])
        values = plgpu.load(refs.v.at[program.sequence, program.kv_head, slots, :])
        scores = plgpu.dot(queries, keys.T) * sizes.scale
        slot = number * sizes.chunk + jnp.arange(sizes.chunk)[None, :]
        scores = jnp.where(slot < program.position, scores, LOWEST)
        new_top = jnp.maximum(top, jnp.max(scores, axis=1, keepdims=True))
        weights, rescale = jnp.exp2(scores - new_top), jnp.exp2(top - new_top)
        sums = sums * rescale + plgpu.dot(weights.astype(sizes.dtype), values)
        return sums, new_top, total * rescale + jnp.sum(weights, axis=1, keepdims=True)

    nothing = of_no_slot(sizes.rows, sizes)
    running: Softmax = lax.fori_loop(program.chunks.first, program.chunks.end, attend, nothing)
    return running


def _with_new(
    running: Softmax, sizes: _Sizes, queries: Array, new_k: Array, new_v: Array, owned: Array
) -> Softmax:
    """Adds the new slot, if this program owns it."""
    sums, top, total = running
    products = queries.astype(jnp.float32) * new_k.astype(jnp.float32)
    score = jnp.sum(products, axis=1, keepdims=True) * sizes.scale
    score = jnp.where(owned, score, LOWEST)
    new_top = jnp.maximum(top, score)
    weight, rescale = jnp.exp2(score - new_top), jnp.exp2(top - new_top)
    sums = sums * rescale + weight * new_v.astype(jnp.float32)
    return sums, new_top, total * rescale + weight


def _store(refs: Refs, sizes: _Sizes, program: _Program, running: Softmax) -> None:
    """Stores the attention of the group's heads."""
    sums, _, total = running
    heads, lanes, mask = _rows_of_group(sizes, program)
    out = (sums / total).astype(sizes.dtype)
    plgpu.store(refs.attended.at[heads, lanes], out, mask=mask)


def _store_part(refs: Refs, sizes: _Sizes, program: _Program, running: Softmax) -> None:
    """Stores this program's part of each head's attention, and the part's weight."""
    sums, top, total = running
    heads, lanes, mask = _rows_of_group(sizes, program)
    plgpu.store(refs.part.at[heads, program.split, lanes], sums / total, mask=mask)
    weight_of = refs.log_weight.at[heads, program.split]
    plgpu.store(
        weight_of, top + jnp.log2(total), mask=jnp.arange(sizes.rows)[:, None] < sizes.group
    )


def _rows_of_group(sizes: _Sizes, program: _Program) -> tuple[Array, Array, Array]:
    """Numbers of the group's heads among all sequences' [R, 1], lanes [1, H], and a mask."""
    first = (program.sequence * sizes.kv_heads + program.kv_head) * sizes.group
    member = jnp.arange(sizes.rows)[:, None]
    mask = jnp.broadcast_to(member < sizes.group, (sizes.rows, sizes.head_dim))
    return first + member, jnp.arange(sizes.head_dim)[None, :], mask


def _combine_parts(refs: Refs, sizes: _Sizes, program: _Program) -> None:
    """Writes each head's attention."""
    first = (program.sequence * sizes.kv_heads + program.kv_head) * sizes.group
    heads = (first + member for member in range(sizes.group))
    parts = combined_parts(refs, sizes, program.chunks, heads, jnp.exp2)
    for member, (_, whole) in enumerate(parts):
        refs.attended[first + member, :] = whole.astype(sizes.dtype)
