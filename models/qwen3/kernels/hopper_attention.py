"""Causal attention of a prompt's tokens to one another on Hopper, without writing scores.

FlashAttention-3 (Shah et al., 2024, https://arxiv.org/abs/2407.08608), modelled on Pallas's kernel
(`jax.experimental.pallas.ops.gpu.attention_mgpu`): of a block's two computing warpgroups, one uses
the tensor cores while the other computes its softmax; the third fetches keys and values. Blocks
with the most keys start first.

The equivalent in plain JAX is `attention.grouped_query_attention`.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from models.qwen3.kernels.mosaic_call import COMPUTING, accumulator, by_role, mosaic_call, swizzled
from models.qwen3.kernels.tiling import HOPPER_ROWS

# Queries per warpgroup.
QUERIES = HOPPER_ROWS // COMPUTING
# Keys per chunk: equal to a block's queries, so that only the last chunk needs a mask.
KEYS = HOPPER_ROWS
# Chunks of keys in flight.
STAGES = 2


@partial(jax.jit, static_argnames=("interpret",))
def hopper_attention(
    q: Float[Array, "B T N H"],
    k_cache: Float[Array, "B K S H"],
    v_cache: Float[Array, "B K S H"],
    *,
    interpret: bool = False,
) -> Float[Array, "B T N H"]:
    """Softmax attention of token t to cache slots 0 to t; softmax in float32.

    T is a multiple of HOPPER_ROWS, S is at least T, and H is 128; see `tiling.hopper_fits`.
    """
    batch, length, heads, head_dim = q.shape
    group = heads // k_cache.shape[1]
    blocks = length // HOPPER_ROWS
    # GPUs have an instruction for powers of 2, but not for powers of e.
    scale = head_dim**-0.5 * math.log2(math.e)

    def body(
        q_ref: Any,
        k_ref: Any,
        v_ref: Any,
        out_ref: Any,
        q_smem: Any,
        k_smem: Any,
        v_smem: Any,
        q_full: Any,
        k_full: Any,
        v_full: Any,
        k_empty: Any,
        v_empty: Any,
        turn: Any,
    ) -> None:
        sequence, head = lax.axis_index("sequence"), lax.axis_index("head")
        block = blocks - 1 - lax.axis_index("block")
        # Chunks of keys; those before the block's own need no mask.
        chunks = block + 1

        def slot_of(chunk: Array) -> Array:
            return lax.rem(chunk, jnp.int32(STAGES))

        def fetch() -> None:
            @pl.loop(0, chunks)
            def _chunk(chunk: Array) -> None:
                slot = slot_of(chunk)
                part = (sequence, head // group, pl.ds(chunk * KEYS, KEYS))
                for ref, smem, full, empty in (
                    (k_ref, k_smem, k_full, k_empty),
                    (v_ref, v_smem, v_full, v_empty),
                ):

                    @pl.when(chunk >= STAGES)
                    def _until_read(empty: Any = empty) -> None:
                        plgpu.barrier_wait(empty.at[slot])

                    plgpu.copy_gmem_to_smem(ref.at[part], smem.at[slot], full.at[slot])

            @pl.loop(jnp.maximum(chunks - STAGES, 0), chunks)
            def _until_all_is_read(chunk: Array) -> None:
                plgpu.barrier_wait(k_empty.at[slot_of(chunk)])
                plgpu.barrier_wait(v_empty.at[slot_of(chunk)])

        def compute(warpgroup: Array) -> None:
            own = q_smem.at[warpgroup]
            start = block * HOPPER_ROWS + warpgroup * QUERIES
            queries = pl.ds(start, QUERIES)

            def change_turns() -> None:
                plgpu.barrier_arrive(turn)
                plgpu.barrier_wait(turn)

            plgpu.copy_gmem_to_smem(q_ref.at[sequence, queries, head], own, q_full.at[warpgroup])
            plgpu.barrier_wait(q_full.at[warpgroup])
            plgpu.barrier_wait(k_full.at[0])
            pl.when(warpgroup == 1)(change_turns)

            def attend(chunk: Array, running: Any, masked: bool) -> Any:
                sums, top, total = running
                slot = slot_of(chunk)

                def scores_of(into: Any) -> Array:
                    plgpu.wgmma(into, own, k_smem.at[slot].transpose((1, 0)))
                    change_turns()
                    scores: Array = into[...]
                    return scores

                scores = pl.run_scoped(scores_of, accumulator(QUERIES, KEYS))
                plgpu.barrier_arrive(k_empty.at[slot])
                if masked:
                    row, column = (
                        plgpu.broadcasted_iota(
                            jnp.int32, scores.shape, axis, layout=plgpu.Layout.WGMMA
                        )
                        for axis in (0, 1)
                    )
                    scores = jnp.where(row + start >= column + chunk * KEYS, scores, -jnp.inf)
                new_top = jnp.maximum(top, jnp.max(scores, axis=1) * scale)
                rescale = jnp.exp2(top - new_top)
                weights = jnp.exp2(scores * scale - _rows(new_top, KEYS))
                total = total * rescale + jnp.sum(weights, axis=1)
                weights = weights.astype(q.dtype)
                if not interpret:
                    # The softmax must end before the other warpgroup starts its own.
                    weights, total, rescale = lax.optimization_barrier((weights, total, rescale))
                plgpu.barrier_arrive(turn)
                plgpu.barrier_wait(v_full.at[slot])
                plgpu.barrier_wait(turn)

                @pl.when(chunk + 1 < chunks)
                def _next_keys() -> None:
                    plgpu.barrier_wait(k_full.at[slot_of(chunk + 1)])

                def values_of(into: Any) -> Array:
                    plgpu.wgmma(into, weights, v_smem.at[slot])
                    values: Array = into[...]
                    return values

                if interpret:  # the interpreter supports wgmma from shared memory only
                    values = jnp.dot(weights, v_smem[slot], preferred_element_type=jnp.float32)
                else:
                    values = pl.run_scoped(values_of, accumulator(QUERIES, head_dim))
                plgpu.barrier_arrive(v_empty.at[slot])
                return sums * _rows(rescale, head_dim) + values, new_top, total

            running: Any = (
                _filled((QUERIES, head_dim), 0.0, plgpu.Layout.WGMMA),
                _filled((QUERIES,), -jnp.inf, plgpu.Layout.WGMMA.reduce(1)),
                _filled((QUERIES,), 0.0, plgpu.Layout.WGMMA.reduce(1)),
            )
            running = lax.fori_loop(0, block, partial(attend, masked=False), running)
            sums, _, total = attend(block, running, masked=True)
            pl.when(warpgroup == 0)(change_turns)
            own[...] = (sums * _rows(1 / total, head_dim)).astype(q.dtype)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(own, out_ref.at[sequence, queries, head])
            plgpu.wait_smem_to_gmem(0)

        by_role(compute, fetch)

    (out,) = mosaic_call(
        body,
        (jax.ShapeDtypeStruct(q.shape, q.dtype),),
        *(q, k_cache, v_cache),
        grid=(blocks, batch, heads),
        grid_names=("block", "sequence", "head"),
        scratch=(
            swizzled((COMPUTING, QUERIES, head_dim), q.dtype),
            swizzled((STAGES, KEYS, head_dim), q.dtype),
            swizzled((STAGES, KEYS, head_dim), q.dtype),
            plgpu.Barrier(num_barriers=COMPUTING),
            plgpu.Barrier(num_barriers=STAGES),
            plgpu.Barrier(num_barriers=STAGES),
            plgpu.Barrier(num_arrivals=COMPUTING, num_barriers=STAGES),
            plgpu.Barrier(num_arrivals=COMPUTING, num_barriers=STAGES),
            plgpu.Barrier(num_arrivals=COMPUTING),
        ),
        name="hopper_attention",
        interpret=interpret,
    )
    return out


def _filled(shape: tuple[int, ...], value: float, layout: Any) -> Array:
    filled: Array = plgpu.layout_cast(jnp.full(shape, value, jnp.float32), layout)
    return filled


def _rows(x: Float[Array, " Q"], columns: int) -> Float[Array, "Q C"]:
    """One value for each row."""
    return lax.broadcast_in_dim(x, (x.shape[0], columns), [0])
