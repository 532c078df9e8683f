"""Attention of one new token of each sequence, over a cache that is written in place.

Flash decoding, see `split_cache`. The same kernel computes norms of queries and keys, RoPE and the
write into the cache, so that a layer's attention is one kernel.

The equivalent in plain JAX is `Attention` without its projections.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

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
from models.qwen3.kernels.tiling import splits_of
from models.qwen3.kernels.triton_call import synchronize_threads

NUM_WARPS = 4


@partial(jax.jit, static_argnames=("eps", "by_head", "interpret"))
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
    by_head: bool = False,
    interpret: bool = False,
) -> tuple[
    Float[Array, " attended"], Float[Array, "1 K S H"], Float[Array, "1 K S H"], Int[Array, " N"]
]:
    """Writes the new key and value at `position`, then attends to slots 0 up to there.

    A position of S or more writes nothing and attends to every slot, as in the plain model.

    Args:
      qkv: [(N + 2 K) H], the projection's output, without norms, float32.
      arrived: zeros; returned as zeros, so that the next layer can use them.
      by_head: whether a program computes one query head. Otherwise it computes all of a key/value
        head, which read the same keys and values; each takes some 1.3 µs more, one after another.

    Returns:
      The output of attention, [N H], float32; both caches, updated in place; `arrived`.

    Raises:
      ValueError: S is neither a multiple of LEAST_SLOTS nor a smaller power of two.
    """
    _, kv_heads, slots, head_dim = k_cache.shape
    heads = qkv.shape[0] // head_dim - 2 * kv_heads
    sizes = Sizes(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        slots=slots,
        splits=splits_of(heads if by_head else kv_heads, slots, by_head=by_head),
        dtype=k_cache.dtype,
        by_head=by_head,
    )
    return attention_call(
        lambda refs: _kernel(refs, sizes, eps=eps, interpret=interpret),
        sizes,
        jax.ShapeDtypeStruct((heads * head_dim,), jnp.float32),
        qkv,
        (q_scale, k_scale),
        rotation,
        position,
        (k_cache, v_cache),
        arrived,
        grid=(heads // sizes.members, sizes.splits),
        num_warps=NUM_WARPS,
        name="decode_attention",
        interpret=interpret,
    )


class _Token(NamedTuple):
    """What the new token contributes to the heads of one program, as loaded.

    A row is one head's elements, [1, H], and the elements that RoPE combines them with.
    """

    q_rows: list[tuple[Array, Array]]
    k_row: tuple[Array, Array]
    v: Array
    q_scales: tuple[Array, Array]
    k_scales: tuple[Array, Array]
    rotation: tuple[Array, Array]


def _kernel(refs: Refs, sizes: Sizes, *, eps: float, interpret: bool) -> None:
    """One program: some slots of one key/value head, for all or one of its query heads."""
    number, split = pl.program_id(0), pl.program_id(1)
    kv_head = number // sizes.group if sizes.by_head else number
    # Pallas's interpreter does not accept Python integers together with slices.
    zero = split * 0
    position = refs.positions[0]
    # Issues all loads before the first use of any.
    token = _load_token(refs, sizes, kv_head, number, zero)
    chunks = chunks_of(sizes, split, position)
    program = Program(refs, sizes, zero, kv_head, split, position, *chunks)

    @pl.when(split < program.occupied)
    def _attend() -> None:
        first_chunk = program.load_chunk(program.first)
        scale = sizes.head_dim**-0.5
        queries = [
            normed_and_rotated(*row, token.q_scales, token.rotation, sizes, eps).astype(jnp.float32)
            * scale
            for row in token.q_rows
        ]
        new_k = normed_and_rotated(*token.k_row, token.k_scales, token.rotation, sizes, eps)
        running = _attend_to_cache(program, first_chunk, queries)
        # Uses the new key and value from registers: no program waits for their write.
        owned = program.owns_new()
        running = [
            _with(head, new_k.astype(jnp.float32), token.v.astype(jnp.float32), query, owned)
            for head, query in zip(running, queries, strict=True)
        ]
        program.write_new(owned, new_k, token.v)
        _store_parts(program, number, running)
        synchronize_threads(interpret)
        program.combine_last((number,), zero, lambda: _combine_parts(program, number))


def _heads_of(sizes: Sizes, number: Array) -> Iterator[Array]:
    """The query heads of the programs with this number."""
    return (number * sizes.members + member for member in range(sizes.members))


def _load_token(refs: Refs, sizes: Sizes, kv_head: Array, number: Array, zero: Array) -> _Token:
    """Loads the new token's rows. They are [1, H], so that each warp can sum a row on its own."""
    lanes = jnp.arange(sizes.head_dim)[None, :]
    partner = partner_of(lanes, sizes.head_dim)

    def row_of(head: Any) -> tuple[Array, Array]:
        base = head * sizes.head_dim
        return plgpu.load(refs.qkv.at[base + lanes]), plgpu.load(refs.qkv.at[base + partner])

    def scales_of(ref: Any) -> tuple[Array, Array]:
        own, swapped = plgpu.load(ref.at[lanes]), plgpu.load(ref.at[partner])
        return own.astype(jnp.float32), swapped.astype(jnp.float32)

    return _Token(
        q_rows=[row_of(head) for head in _heads_of(sizes, number)],
        k_row=row_of(sizes.heads + kv_head),
        v=row_of(sizes.heads + sizes.kv_heads + kv_head)[0].astype(sizes.dtype),
        q_scales=scales_of(refs.q_scale),
        k_scales=scales_of(refs.k_scale),
        rotation=(
            plgpu.load(refs.cos.at[zero, lanes]),
            plgpu.load(refs.sin.at[zero, lanes]),
        ),
    )


def _attend_to_cache(
    program: Program, first_chunk: tuple[Array, Array], queries: list[Array]
) -> list[Softmax]:
    """The running softmax of each head over the program's slots before the position."""
    sizes = program.sizes

    def attend(number: Any, running: Any, chunk: tuple[Array, Array]) -> Any:
        slot = number * sizes.chunk + jnp.arange(sizes.chunk)[:, None]
        seen = slot < program.position
        keys, values = (array.astype(jnp.float32) for array in chunk)
        return [
            _with(head, keys, values, query, seen)
            for head, query in zip(running, queries, strict=True)
        ]

    nothing = of_no_slot(1, sizes)
    running: list[Softmax] = attend(program.first, [nothing] * sizes.members, first_chunk)
    if sizes.splits * sizes.chunk < sizes.slots:

        def next_chunk(number: Any, running: Any) -> Any:
            return attend(number, running, program.load_chunk(number))

        running = lax.fori_loop(program.first + 1, program.end, next_chunk, running)
    return running


def _store_parts(program: Program, number: Array, running: list[Softmax]) -> None:
    """Stores this program's part of each head's attention, and the part's weight."""
    own = pl.ds(program.split, 1)
    for head, (sums, top, total) in zip(_heads_of(program.sizes, number), running, strict=True):
        plgpu.store(program.refs.part.at[head, own, :], sums / total)
        plgpu.store(program.refs.log_weight.at[head, own], (top + jnp.log(total)).reshape(1))


def _combine_parts(program: Program, number: Array) -> None:
    """Writes each head's attention."""
    refs, sizes = program.refs, program.sizes
    for head, whole in program.combined_parts(_heads_of(sizes, number), jnp.exp):
        refs.attended[pl.ds(head * sizes.head_dim, sizes.head_dim)] = whole


def _with(
    running: Softmax,
    keys: Float[Array, "C H"],
    values: Float[Array, "C H"],
    query: Float[Array, "1 H"],
    seen: Any,
) -> Softmax:
    """Adds slots to the running softmax of one head.

    If none of the slots is `seen`, their contribution gets weight 0 when a seen one is added.
    """
    sums, top, total = running
    scores = jnp.sum(keys * query, axis=1, keepdims=True)
    scores = jnp.where(seen, scores, LOWEST)
    new_top = jnp.maximum(top, jnp.max(scores, axis=0, keepdims=True))
    weights = jnp.exp(scores - new_top)
    rescale = jnp.exp(top - new_top)
    sums = sums * rescale + jnp.sum(values * weights, axis=0, keepdims=True)
    total = total * rescale + jnp.sum(weights, axis=0, keepdims=True)
    return sums, new_top, total
