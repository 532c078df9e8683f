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
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float, Int

from models.qwen3.kernels.rotation import Rows, partner_of
from models.qwen3.kernels.split_cache import (
    LOWEST,
    Program,
    Refs,
    Sizes,
    Softmax,
    attention_call,
    chunks_of,
    normed_and_rotated,
    of_no_slot,
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
    sizes = Sizes(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        slots=slots,
        splits=splits_of(batch * kv_heads, slots),
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


@dataclass(frozen=True)
class _Program(Program):
    """A program, for all query heads of its sequence's key/value head: the group."""

    @property
    def rows(self) -> int:
        """The rows of a product with the queries: the group, and padding."""
        return max(LEAST, 1 << (self.sizes.group - 1).bit_length())

    @property
    def scale(self) -> float:
        """Factor of scores; GPUs have an instruction for powers of 2, but not for powers of e."""
        return LOG2_E / math.sqrt(self.sizes.head_dim)

    def projected(self, columns: Array) -> Array:
        """Columns of the sequence's projection, float32."""
        qkv = self.refs.qkv
        parts = [
            plgpu.load(qkv.at[number, self.sequence, columns]) for number in range(qkv.shape[0])
        ]
        return sum(parts[1:], parts[0])

    def rotated(self, heads: Array, scale_ref: Any, eps: float) -> Array:
        """Heads [R, 1] of the projection after RMSNorm and RoPE, [R, H], in the cache's dtype."""
        refs, head_dim = self.refs, self.sizes.head_dim
        lanes = jnp.arange(head_dim)[None, :]
        partner = partner_of(lanes, head_dim)
        x, swapped = (self.projected(heads * head_dim + columns) for columns in (lanes, partner))
        own, other = (
            plgpu.load(scale_ref.at[columns]).astype(jnp.float32) for columns in (lanes, partner)
        )
        cos, sin = (plgpu.load(ref.at[self.sequence, lanes]) for ref in (refs.cos, refs.sin))
        return normed_and_rotated(x, swapped, (own, other), (cos, sin), self.sizes, eps)

    def attend_to_cache(self, queries: Array) -> Softmax:
        """The running softmax over the program's slots before the position.

        If none of them is before it, their contribution gets weight 0 when the new slot is added.
        """
        sizes = self.sizes

        def attend(number: Array, running: Softmax) -> Softmax:
            sums, top, total = running
            keys, values = self.load_chunk(number)
            scores = plgpu.dot(queries, keys.T) * self.scale
            slot = number * sizes.chunk + jnp.arange(sizes.chunk)[None, :]
            scores = jnp.where(slot < self.position, scores, LOWEST)
            new_top = jnp.maximum(top, jnp.max(scores, axis=1, keepdims=True))
            weights, rescale = jnp.exp2(scores - new_top), jnp.exp2(top - new_top)
            sums = sums * rescale + plgpu.dot(weights.astype(sizes.dtype), values)
            return sums, new_top, total * rescale + jnp.sum(weights, axis=1, keepdims=True)

        nothing = of_no_slot(self.rows, sizes)
        running: Softmax = lax.fori_loop(self.first, self.end, attend, nothing)
        return running

    def with_new(
        self, running: Softmax, queries: Array, new_k: Array, new_v: Array, owned: Array
    ) -> Softmax:
        """Adds the new slot, if this program owns it."""
        sums, top, total = running
        products = queries.astype(jnp.float32) * new_k.astype(jnp.float32)
        score = jnp.sum(products, axis=1, keepdims=True) * self.scale
        score = jnp.where(owned, score, LOWEST)
        new_top = jnp.maximum(top, score)
        weight, rescale = jnp.exp2(score - new_top), jnp.exp2(top - new_top)
        sums = sums * rescale + weight * new_v.astype(jnp.float32)
        return sums, new_top, total * rescale + weight

    def store(self, running: Softmax) -> None:
        """Stores the attention of the group's heads."""
        sums, _, total = running
        heads, lanes, mask = self._rows_of_group()
        out = (sums / total).astype(self.sizes.dtype)
        plgpu.store(self.refs.attended.at[heads, lanes], out, mask=mask)

    def store_part(self, running: Softmax) -> None:
        """Stores this program's part of each head's attention, and the part's weight."""
        sums, top, total = running
        heads, lanes, mask = self._rows_of_group()
        plgpu.store(self.refs.part.at[heads, self.split, lanes], sums / total, mask=mask)
        target = self.refs.log_weight.at[heads, self.split]
        log_weight = top + jnp.log2(total)
        member = jnp.arange(self.rows)[:, None]
        plgpu.store(target, log_weight, mask=member < self.sizes.group)

    def combine_parts(self) -> None:
        """Writes each head's attention."""
        first = self._first_head()
        heads = (first + member for member in range(self.sizes.group))
        for member, (_, whole) in enumerate(self.combined_parts(heads, jnp.exp2)):
            self.refs.attended[first + member, :] = whole.astype(self.sizes.dtype)

    def _first_head(self) -> Array:
        """The group's first query head among those of all sequences."""
        return (self.sequence * self.sizes.kv_heads + self.kv_head) * self.sizes.group

    def _rows_of_group(self) -> tuple[Array, Array, Array]:
        """Numbers of the group's heads among all sequences' [R, 1], lanes [1, H], and a mask."""
        first, head_dim = self._first_head(), self.sizes.head_dim
        member = jnp.arange(self.rows)[:, None]
        mask = jnp.broadcast_to(member < self.sizes.group, (self.rows, head_dim))
        return first + member, jnp.arange(head_dim)[None, :], mask


def _kernel(refs: Refs, sizes: Sizes, *, eps: float, interpret: bool) -> None:
    sequence, kv_head, split = (pl.program_id(axis) for axis in range(3))
    position = plgpu.load(refs.positions.at[sequence])
    chunks = chunks_of(sizes, split, position)
    program = _Program(refs, sizes, sequence, kv_head, split, position, *chunks)

    @pl.when(split < program.occupied)
    def _attend() -> None:
        group = sizes.group
        # Rows past the group repeat its last head, and are not stored.
        member = jnp.minimum(jnp.arange(program.rows), group - 1)[:, None]
        queries = program.rotated(kv_head * group + member, refs.q_scale, eps)
        one = jnp.zeros((1, 1), jnp.int32)
        new_k = program.rotated(sizes.heads + kv_head + one, refs.k_scale, eps)
        lanes = jnp.arange(sizes.head_dim)[None, :]
        v_head = sizes.heads + sizes.kv_heads + kv_head
        new_v = program.projected(v_head * sizes.head_dim + lanes).astype(sizes.dtype)
        running = program.attend_to_cache(queries)
        # Uses the new key and value from registers: no program waits for their write.
        owned = program.owns_new()
        running = program.with_new(running, queries, new_k, new_v, owned)
        program.write_new(owned, new_k, new_v)
        if sizes.splits == 1:
            program.store(running)
            return
        program.store_part(running)
        synchronize_threads(interpret)
        program.combine_last((sequence, kv_head), split * 0, program.combine_parts)
