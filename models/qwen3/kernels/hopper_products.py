"""Products of a prompt with weights on Hopper, with an epilogue before results are written.

A block computes tiles of 128 tokens by twice 128 outputs, one after another. Its third warpgroup
prefetches tokens and weights, also for the next tile. Each half of a tile is any 128 rows of the
weights: the same features of gate and up, or two heads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from models.qwen3.kernels.mosaic_call import COMPUTING, accumulator, by_role, mosaic_call, swizzled
from models.qwen3.kernels.tiling import HOPPER_COLUMNS, HOPPER_INNER, HOPPER_ROWS

# Tokens per warpgroup.
ROWS = HOPPER_ROWS // COMPUTING
# Slices of the contracted axis in flight.
STAGES = 3


@dataclass(frozen=True)
class Tile:
    """The position of a tile.

    Attributes:
      number: number of the tile among those of the block, from 0.
      first_row: first row of x: of the warpgroup's rows or, for the fetching one, of the block's.
      pair: number of the pair of column blocks.
    """

    number: Array
    first_row: Array
    pair: Array


@dataclass(frozen=True)
class Epilogue:
    """What a kernel does with the products of each tile.

    Attributes:
      outputs: shapes and dtypes of the kernel's outputs.
      arguments: further arrays and references that the kernel reads or writes.
      scratch: scratch memory and barriers, in addition to those of the products.
      finish: `finish(refs, scratch, warpgroup, tile, one, two)`: uses both products, [ROWS, 128] in
        float32. `refs` are those of `arguments`, then of `outputs`.
      fetch: `fetch(refs, scratch, tile)`: runs in the fetching warpgroup, ahead of `finish`.
      drain: `drain(scratch)`: runs in the fetching warpgroup after the last tile.
    """

    outputs: tuple[jax.ShapeDtypeStruct, ...]
    arguments: tuple[Any, ...]
    scratch: tuple[Any, ...]
    finish: Callable[..., None]
    fetch: Callable[..., None] = lambda refs, scratch, tile: None
    drain: Callable[..., None] = lambda scratch: None


def pair_products(
    x: Float[Array, "R I"],
    weight: Float[Array, "O I"],
    epilogue: Epilogue,
    *,
    pairs: int,
    rows_of_pair: Callable[[Array], tuple[Array, Array]],
    programs: int,
    name: str,
    interpret: bool,
) -> tuple[Array, ...]:
    """Products of x with pairs of 128 rows of the weight, and their epilogue.

    Args:
      pairs: number of pairs.
      rows_of_pair: the first rows of a pair's halves in the weight.
      programs: number of blocks: that of the GPU's multiprocessors.
    """
    row_tiles, steps = x.shape[0] // HOPPER_ROWS, x.shape[1] // HOPPER_INNER
    tiles = row_tiles * pairs
    programs = min(programs, tiles)
    scratch_count = len(epilogue.scratch)

    def body(x_ref: Any, weight_ref: Any, *rest: Any) -> None:
        own, scratch = rest[: len(rest) - scratch_count], rest[len(rest) - scratch_count :]
        *refs, x_smem, weight_smem, full, empty = own
        program = lax.axis_index("program")
        tiles_of_program = (tiles - program + programs - 1) // programs

        def tile_of(number: Array, warpgroup: Array | int = 0) -> Tile:
            # Consecutive tiles share the weights' rows; the tokens are smaller and stay in L2.
            tile = program + number * programs
            first_row = tile % row_tiles * HOPPER_ROWS + warpgroup * ROWS
            return Tile(number, first_row, tile // row_tiles)

        def slot_of(step: Array) -> Array:
            return lax.rem(step, jnp.int32(STAGES))

        def fetch() -> None:
            def fetch_tile(number: Array, step: Array) -> Array:
                tile = tile_of(number)
                halves = rows_of_pair(tile.pair)

                def fetch_slice(k: Array, step: Array) -> Array:
                    slot = slot_of(step)

                    @pl.when(step >= STAGES)
                    def _until_read() -> None:
                        plgpu.barrier_wait(empty.at[slot])

                    inner = pl.ds(k * HOPPER_INNER, HOPPER_INNER)
                    rows = x_ref.at[pl.ds(tile.first_row, HOPPER_ROWS), inner]
                    plgpu.copy_gmem_to_smem(rows, x_smem.at[slot], full.at[slot])
                    for half, first in enumerate(halves):
                        part = weight_ref.at[pl.ds(first, HOPPER_COLUMNS), inner]
                        target = weight_smem.at[slot, pl.ds(half * HOPPER_COLUMNS, HOPPER_COLUMNS)]
                        plgpu.copy_gmem_to_smem(part, target, full.at[slot])
                    return step + 1

                step = lax.fori_loop(0, steps, fetch_slice, step)
                epilogue.fetch(refs, scratch, tile)
                return step

            step = lax.fori_loop(0, tiles_of_program, fetch_tile, jnp.int32(0))

            @pl.loop(jnp.maximum(step - STAGES, 0), step)
            def _until_all_is_read(step: Array) -> None:
                plgpu.barrier_wait(empty.at[slot_of(step)])

            epilogue.drain(scratch)

        def compute(warpgroup: Array) -> None:
            def compute_tile(number: Array, step: Array) -> Array:
                def multiply(sums: Any) -> Array:
                    def multiply_slice(k: Array, step: Array) -> Array:
                        slot = slot_of(step)
                        plgpu.barrier_wait(full.at[slot])
                        own = x_smem.at[slot, pl.ds(warpgroup * ROWS, ROWS)]
                        # One product for both halves reads the tokens from shared memory once.
                        plgpu.wgmma(sums, own, weight_smem.at[slot].transpose((1, 0)))
                        # Leaves this one in flight while the next one starts.
                        plgpu.wgmma_wait(1)

                        @pl.when(k > 0)
                        def _read() -> None:
                            plgpu.barrier_arrive(empty.at[slot_of(step - 1)])

                        return step + 1

                    lax.fori_loop(0, steps, multiply_slice, step)
                    plgpu.wgmma_wait(0)
                    plgpu.barrier_arrive(empty.at[slot_of(step + steps - 1)])
                    products: Array = sums[...]
                    return products

                products = pl.run_scoped(multiply, accumulator(ROWS, 2 * HOPPER_COLUMNS))
                one, two = products[:, :HOPPER_COLUMNS], products[:, HOPPER_COLUMNS:]
                tile = tile_of(number, warpgroup)
                epilogue.finish(refs, scratch, warpgroup, tile, one, two)
                return step + steps

            lax.fori_loop(0, tiles_of_program, compute_tile, jnp.int32(0))
            plgpu.wait_smem_to_gmem(0)

        by_role(compute, fetch)

    return mosaic_call(
        body,
        epilogue.outputs,
        *(x, weight, *epilogue.arguments),
        grid=(programs,),
        grid_names=("program",),
        scratch=(
            swizzled((STAGES, HOPPER_ROWS, HOPPER_INNER), x.dtype),
            swizzled((STAGES, 2 * HOPPER_COLUMNS, HOPPER_INNER), x.dtype),
            plgpu.Barrier(num_arrivals=3, num_barriers=STAGES),
            plgpu.Barrier(num_arrivals=COMPUTING, num_barriers=STAGES),
            *epilogue.scratch,
        ),
        name=name,
        interpret=interpret,
    )


@partial(jax.jit, static_argnames=("programs", "interpret"))
def prompt_swiglu(
    x: Float[Array, "R D"],
    gate_up: Float[Array, "gate_up D"],
    *,
    programs: int,
    interpret: bool = False,
) -> Float[Array, "R F"]:
    """`silu(gate x) * up x` in x's dtype; gate's F rows are first. Sums and silu in float32.

    Supports the shapes of `tiling.hopper_fits`. The equivalent in plain JAX is `MLP` without
    `down_proj`.
    """
    features = gate_up.shape[0] // 2

    def finish(
        refs: Any, scratch: Any, warpgroup: Array, tile: Tile, gate: Array, up: Array
    ) -> None:
        (y_ref,), (y_smem,) = refs, scratch
        # An inverse square root is one instruction, a division several.
        root = lax.rsqrt(1 + jnp.exp(-gate))
        y = (gate * up * root * root).astype(x.dtype)
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        y_smem[warpgroup] = y
        plgpu.commit_smem()
        columns = pl.ds(tile.pair * HOPPER_COLUMNS, HOPPER_COLUMNS)
        plgpu.copy_smem_to_gmem(
            y_smem.at[warpgroup], y_ref.at[pl.ds(tile.first_row, ROWS), columns]
        )

    epilogue = Epilogue(
        outputs=(jax.ShapeDtypeStruct((x.shape[0], features), x.dtype),),
        arguments=(),
        scratch=(swizzled((COMPUTING, ROWS, HOPPER_COLUMNS), x.dtype),),
        finish=finish,
    )
    (y,) = pair_products(
        x,
        gate_up,
        epilogue,
        pairs=features // HOPPER_COLUMNS,
        rows_of_pair=lambda pair: (pair * HOPPER_COLUMNS, features + pair * HOPPER_COLUMNS),
        programs=programs,
        name="prompt_swiglu",
        interpret=interpret,
    )
    return y
