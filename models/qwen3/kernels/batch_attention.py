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
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float, Int

from models.qwen3.kernels.rotation import Rows, partner_of
from models.qwen3.kernels.tiling import (
    LEAST,
    LEAST_SLOTS,
    batch_chunk_of,
    batch_splits_of,
    decode_fits,
)
from models.qwen3.kernels.triton_call import synchronize_threads, triton_call

NUM_WARPS = 2
NUM_STAGES = 3
# Initial value of a running maximum; with -inf, the difference of two would be NaN.
LOWEST = -1e30
LOG2_E = 1.4426950408889634

# Of R queries: weighted sums of values [R, H], the maximum score and the weights' sum [R, 1] each.
Softmax: TypeAlias = tuple[Array, Array, Array]


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
    """Writes each new key and value at its position, then attends to slots 0 up to there.

    A position of S or more writes nothing and attends to every slot, as in the plain model.

    Args:
      qkv: partial sums of the projection's output, without norms, float32.
      arrived: zeros; returned as zeros, so that the next layer can use them.

    Returns:
      The output of attention in the cache's dtype; both caches, updated in place; `arrived`.

    Raises:
      ValueError: S is neither a multiple of LEAST_SLOTS nor a smaller power of two.
    """
    batch, kv_heads, slots, head_dim = k_cache.shape
    heads = qkv.shape[2] // head_dim - 2 * kv_heads
    if not decode_fits(slots):
        raise ValueError(
            f"the cache has {slots} slots; expected a multiple of {LEAST_SLOTS}, or a smaller "
            "power of 2"
        )
    sizes = _Sizes(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        slots=slots,
        chunk=batch_chunk_of(slots),
        splits=batch_splits_of(batch, kv_heads, slots),
        partial_sums=qkv.shape[0],
        dtype=k_cache.dtype,
    )

    def kernel(*refs: Any) -> None:
        _kernel(_Refs(*refs), sizes, eps=eps, interpret=interpret)

    attended, k_cache, v_cache, arrived, *_ = triton_call(
        kernel,
        (
            jax.ShapeDtypeStruct((batch * heads, head_dim), sizes.dtype),
            jax.ShapeDtypeStruct(k_cache.shape, sizes.dtype),
            jax.ShapeDtypeStruct(v_cache.shape, sizes.dtype),
            jax.ShapeDtypeStruct(arrived.shape, arrived.dtype),
            jax.ShapeDtypeStruct((batch * heads, sizes.splits, head_dim), jnp.float32),
            jax.ShapeDtypeStruct((batch * heads, sizes.splits), jnp.float32),
        ),
        *(qkv, q_scale, k_scale, rotation.cos, rotation.sin, positions, k_cache, v_cache, arrived),
        grid=(batch, kv_heads, sizes.splits),
        num_warps=NUM_WARPS,
        num_stages=NUM_STAGES,
        name="batch_attention",
        interpret=interpret,
        aliases={6: 1, 7: 2, 8: 3},
    )
    return attended.reshape(batch, heads * head_dim), k_cache, v_cache, arrived


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """Static sizes of the kernel.

    Attributes:
      chunk: slots that a program reads at once.
      splits: programs among which the slots of a key/value head are split.
      partial_sums: of the projection's output.
      dtype: of the cache.
    """

    heads: int
    kv_heads: int
    head_dim: int
    slots: int
    chunk: int
    splits: int
    partial_sums: int
    dtype: Any

    @property
    def group(self) -> int:
        """Query heads that read one key/value head."""
        return self.heads // self.kv_heads

    @property
    def rows(self) -> int:
        """The rows of a product with the queries: the group, and padding."""
        return max(LEAST, 1 << (self.group - 1).bit_length())

    @property
    def scale(self) -> float:
        """Factor of scores; GPUs have an instruction for powers of 2, but not for powers of e."""
        return LOG2_E / math.sqrt(self.head_dim)


class _Refs(NamedTuple):
    """References of the kernel: arguments, then outputs.

    The last two outputs hold, for each query head and program, the attention over the program's
    slots, and the base 2 logarithm of its softmax weights' sum.
    """

    qkv: Any
    q_scale: Any
    k_scale: Any
    cos: Any
    sin: Any
    positions: Any
    aliased_k: Any  # `k`, `v` and `arrived` are the same memory
    aliased_v: Any
    aliased_arrived: Any
    attended: Any
    k: Any
    v: Any
    arrived: Any
    part: Any
    log_weight: Any


class _Program(NamedTuple):
    """A program: its sequence and key/value head, and the chunks `first` up to `end` that it reads.

    `occupied` is the number of the head's programs with any chunk.
    """

    sequence: Array
    kv_head: Array
    split: Array
    position: Array
    first: Array
    end: Array
    occupied: Array


def _program(refs: _Refs, sizes: _Sizes) -> _Program:
    """This program. Chunks in use are divided among as few programs as possible."""
    sequence, kv_head, split = (pl.program_id(axis) for axis in range(3))
    position = plgpu.load(refs.positions.at[sequence])
    used = jnp.minimum(position, sizes.slots - 1) // sizes.chunk + 1
    per_program = (used + sizes.splits - 1) // sizes.splits
    occupied = (used + per_program - 1) // per_program
    first = split * per_program
    end = jnp.minimum(first + per_program, used)
    return _Program(sequence, kv_head, split, position, first, end, occupied)


def _kernel(refs: _Refs, sizes: _Sizes, *, eps: float, interpret: bool) -> None:
    program = _program(refs, sizes)

    @pl.when(program.split < program.occupied)
    def _attend() -> None:
        group, kv_head = sizes.group, program.kv_head
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
        owner = program.position // sizes.chunk
        owned = (program.first <= owner) & (owner < program.end)
        running = _with_new(running, sizes, queries, new_k, new_v, owned)

        @pl.when(owned)
        def _write() -> None:
            slot = (program.sequence, kv_head, pl.ds(program.position, 1), slice(None))
            plgpu.store(refs.k.at[slot], new_k)
            plgpu.store(refs.v.at[slot], new_v)

        if sizes.splits == 1:
            _store(refs, sizes, program, running)
            return
        _store_part(refs, sizes, program, running)
        synchronize_threads(interpret)
        zero = program.split * 0
        counter = (program.sequence, kv_head)
        finished_before = plgpu.atomic_add(refs.arrived, counter, zero + 1)

        @pl.when(finished_before == program.occupied - 1)
        def _combine() -> None:
            refs.arrived[counter] = zero
            _combine_parts(refs, sizes, program)


def _projected(refs: _Refs, sizes: _Sizes, program: _Program, columns: Array) -> Array:
    """Columns of the sequence's projection, float32."""
    parts = [
        plgpu.load(refs.qkv.at[number, program.sequence, columns])
        for number in range(sizes.partial_sums)
    ]
    return sum(parts[1:], parts[0])


def _rotated(
    refs: _Refs, sizes: _Sizes, program: _Program, heads: Array, scale_ref: Any, eps: float
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
    inverse = lax.rsqrt(jnp.sum(x * x, axis=1, keepdims=True) / sizes.head_dim + eps)
    return ((x * own * cos + swapped * other * sin) * inverse).astype(sizes.dtype)


def _attend_to_cache(refs: _Refs, sizes: _Sizes, program: _Program, queries: Array) -> Softmax:
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

    nothing = (
        jnp.zeros((sizes.rows, sizes.head_dim), jnp.float32),
        jnp.full((sizes.rows, 1), LOWEST, jnp.float32),
        jnp.zeros((sizes.rows, 1), jnp.float32),
    )
    running: Softmax = lax.fori_loop(program.first, program.end, attend, nothing)
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


def _store(refs: _Refs, sizes: _Sizes, program: _Program, running: Softmax) -> None:
    """Stores the attention of the group's heads."""
    sums, _, total = running
    heads, lanes, mask = _rows_of_group(sizes, program)
    out = (sums / total).astype(sizes.dtype)
    plgpu.store(refs.attended.at[heads, lanes], out, mask=mask)


def _store_part(refs: _Refs, sizes: _Sizes, program: _Program, running: Softmax) -> None:
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


def _combine_parts(refs: _Refs, sizes: _Sizes, program: _Program) -> None:
    """Writes each head's attention: the weighted mean of the parts of all programs."""
    first = (program.sequence * sizes.kv_heads + program.kv_head) * sizes.group
    programs = jnp.arange(sizes.splits)
    has_part = programs < program.occupied
    mask = jnp.broadcast_to(has_part[:, None], (sizes.splits, sizes.head_dim))
    # Issues all loads before the first use of any.
    parts_of_heads = [
        (
            plgpu.load(refs.log_weight.at[head, programs], mask=has_part, other=LOWEST),
            plgpu.load(refs.part.at[head, :, :], mask=mask, other=0.0),
        )
        for head in (first + member for member in range(sizes.group))
    ]
    for member, (logs, parts) in enumerate(parts_of_heads):
        weights = jnp.exp2(logs - jnp.max(logs))
        whole = jnp.sum(parts * weights[:, None], axis=0) / jnp.sum(weights)
        refs.attended[first + member, :] = whole.astype(sizes.dtype)
