"""The qkv projection of a prompt on Hopper, written directly into queries and the cache.

Norms of queries and keys, RoPE and the change of axis order are the product's epilogue: the
projection's output is not written to memory. Tables of angles are fetched during the products.

The equivalent in plain JAX is `Attention.heads`, `queries` and `keys`, and `cache.write_positions`.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int

from models.qwen3.kernels.hopper_products import ROWS, Epilogue, Tile, pair_products
from models.qwen3.kernels.mosaic_call import COMPUTING, read, swizzled
from models.qwen3.kernels.tiling import HOPPER_COLUMNS, HOPPER_ROWS

HEAD = HOPPER_COLUMNS
HALF = HEAD // 2
WGMMA = plgpu.Layout.WGMMA


@partial(jax.jit, static_argnames=("eps", "programs", "interpret"))
def prompt_heads(
    x: Float[Array, "B T D"],
    qkv: Float[Array, "qkv D"],
    q_scale: Float[Array, " H"],
    k_scale: Float[Array, " H"],
    angles: Float[Array, "T H"],
    lengths: Int[Array, " B"],
    k_cache: Float[Array, "B K S H"],
    v_cache: Float[Array, "B K S H"],
    *,
    eps: float,
    programs: int,
    interpret: bool = False,
) -> tuple[Float[Array, "B T N H"], Float[Array, "B K S H"], Float[Array, "B K S H"]]:
    """Queries after norm and RoPE, and both caches with slots 0 to T - 1 written in place.

    Args:
      angles: of positions 0 to T - 1, float32: H / 2 cosines, then H / 2 sines.
      lengths: tokens of each sequence; the rest is padding, and is not written.
      programs: as in `pair_products`.
    """
    batch, length, width = x.shape
    kv_heads = k_cache.shape[1]
    heads = qkv.shape[0] // HEAD - 2 * kv_heads
    dtype = x.dtype
    caches = [jax.new_ref(cache) for cache in (k_cache, v_cache)]

    def fetch(refs: Any, scratch: Any, tile: Tile) -> None:
        angles_ref, (_, angles_smem, full, empty) = refs[2], scratch

        @pl.when(tile.number > 0)
        def _until_read() -> None:
            plgpu.barrier_wait(empty)

        part = angles_ref.at[pl.ds(tile.first_row % length, HOPPER_ROWS)]
        plgpu.copy_gmem_to_smem(part, angles_smem, full)

    def drain(scratch: Any) -> None:
        plgpu.barrier_wait(scratch[3])

    def finish(
        refs: Any, scratch: Any, warpgroup: Array, tile: Tile, one: Array, two: Array
    ) -> None:
        q_scale_ref, k_scale_ref, _, lengths_ref, k_ref, v_ref, q_ref = refs
        out_smem, angles_smem, full, empty = scratch
        sequence, first = tile.first_row // length, tile.first_row % length
        slots, head = pl.ds(first, ROWS), 2 * tile.pair
        tokens = lengths_ref[sequence]
        staged = out_smem.at[warpgroup]
        plgpu.barrier_wait(full)

        def rotated(x: Array, scale_ref: Any) -> tuple[Array, Array]:
            inverse = lax.rsqrt(jnp.sum(x * x, axis=1) / HEAD + eps)
            own = angles_smem.at[pl.ds(warpgroup * ROWS, ROWS)]
            cos, sin = (read(own.at[:, half], WGMMA, swizzled=True) for half in _HALVES)
            low, high = (
                x[:, half] * _along(inverse, 0) * _along(scale.astype(jnp.float32), 1)
                for half, scale in zip(_HALVES, scales_of(scale_ref), strict=True)
            )
            return (low * cos - high * sin).astype(dtype), (high * cos + low * sin).astype(dtype)

        def scales_of(ref: Any) -> list[Array]:
            return [read(ref.at[half], WGMMA.reduce(0), swizzled=False) for half in _HALVES]

        def split(x: Array) -> tuple[Array, Array]:
            low, high = (x[:, half].astype(dtype) for half in _HALVES)
            return low, high

        def write(target: Any, halves: tuple[Array, Array]) -> None:
            for half, part in zip(_HALVES, halves, strict=True):
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                staged[...] = part
                plgpu.commit_smem()
                plgpu.copy_smem_to_gmem(staged, target.at[:, half])

        def write_unpadded(target: Any, halves: tuple[Array, Array]) -> None:
            """As `write`, but slots of padding keep their values."""

            def with_old_padding() -> tuple[Array, Array]:
                number = plgpu.broadcasted_iota(jnp.int32, (ROWS, HALF), 0, layout=WGMMA)
                low, high = (
                    jnp.where(
                        first + number < tokens,
                        part,
                        read(target.at[:, half], WGMMA, swizzled=False),
                    )
                    for half, part in zip(_HALVES, halves, strict=True)
                )
                return low, high

            @pl.when(first < tokens)
            def _some() -> None:
                whole = first + ROWS <= tokens
                write(target, lax.cond(whole, lambda: halves, with_old_padding))

        pair = ((head, one), (head + 1, two))

        @pl.when(head < heads)
        def _queries() -> None:
            for number, x in pair:
                write(q_ref.at[sequence, slots, number], rotated(x, q_scale_ref))

        @pl.when((head >= heads) & (head < heads + kv_heads))
        def _keys() -> None:
            for number, x in pair:
                target = k_ref.at[sequence, number - heads, slots]
                write_unpadded(target, rotated(x, k_scale_ref))

        @pl.when(head >= heads + kv_heads)
        def _values() -> None:
            for number, x in pair:
                write_unpadded(v_ref.at[sequence, number - heads - kv_heads, slots], split(x))

        plgpu.barrier_arrive(empty)

    epilogue = Epilogue(
        outputs=(jax.ShapeDtypeStruct((batch, length, heads, HEAD), dtype),),
        arguments=(q_scale, k_scale, angles, lengths, *caches),
        scratch=(
            swizzled((COMPUTING, ROWS, HALF), dtype),
            swizzled((HOPPER_ROWS, HEAD), jnp.float32),
            plgpu.Barrier(),
            plgpu.Barrier(num_arrivals=COMPUTING),
        ),
        finish=finish,
        fetch=fetch,
        drain=drain,
    )
    (q,) = pair_products(
        x.reshape(batch * length, width),
        qkv,
        epilogue,
        pairs=qkv.shape[0] // (2 * HEAD),
        rows_of_pair=lambda pair: (2 * pair * HEAD, (2 * pair + 1) * HEAD),
        programs=programs,
        name="prompt_heads",
        interpret=interpret,
    )
    return q, caches[0][...], caches[1][...]


_HALVES = (slice(0, HALF), slice(HALF, HEAD))


def _along(x: Array, axis: int) -> Array:
    """A vector, broadcast along the rows (0) or the columns (1) of half a tile."""
    return lax.broadcast_in_dim(x, (ROWS, HALF), [axis])
