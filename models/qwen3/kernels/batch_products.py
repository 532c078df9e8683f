"""Products of weights with one token of each of several sequences: each weight is read once.

A program multiplies a tile of rows with all tokens on tensor cores. Few rows would leave most of
the GPU idle, so that the contracted axis is split over programs too: `batch_product` returns
partial sums, which the kernel that reads them adds.

The equivalents in plain JAX are `Projection`, and `MLP` without `down_proj`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float

from models.qwen3.kernels.tiling import (
    LEAST,
    PRODUCT_COLUMNS,
    PRODUCT_ROWS,
    SWIGLU_COLUMNS,
    SWIGLU_ROWS,
    power_of_two,
    product_splits_of,
)
from models.qwen3.kernels.triton_call import triton_call

NUM_WARPS = 4
NUM_STAGES = 4


@dataclass(frozen=True)
class _Tiles:
    """How a product's weights are divided.

    Attributes:
      rows, columns: of the tile that a program reads at once.
      splits: programs that the contracted axis is divided among.
    """

    rows: int
    columns: int
    splits: int


@partial(jax.jit, static_argnames=("interpret",))
def batch_product(
    x: Float[Array, "B I"], weight: Float[Array, "O I"], *, interpret: bool = False
) -> Float[Array, "splits B O"]:
    """Partial sums of `x weightᵀ`, float32; `tiling.product_splits_of` is their number."""
    outputs, inputs = weight.shape
    tiles = _Tiles(
        rows=power_of_two(outputs, PRODUCT_ROWS),
        columns=power_of_two(inputs, PRODUCT_COLUMNS),
        splits=product_splits_of(outputs, inputs),
    )
    out = jax.ShapeDtypeStruct((tiles.splits, x.shape[0], outputs), jnp.float32)
    return _call(x, weight, (0,), tiles, lambda sums: sums[0], out, "batch_product", interpret)


@partial(jax.jit, static_argnames=("interpret",))
def batch_swiglu(
    x: Float[Array, "B D"], gate_up: Float[Array, "gate_up D"], *, interpret: bool = False
) -> Float[Array, "B F"]:
    """`silu(gate x) * up x` in x's dtype; gate's F rows are first. Sums and silu in float32."""
    features, inputs = gate_up.shape[0] // 2, gate_up.shape[1]
    tiles = _Tiles(
        rows=power_of_two(features, SWIGLU_ROWS),
        columns=power_of_two(inputs, SWIGLU_COLUMNS),
        splits=1,
    )

    def swiglu(sums: tuple[Array, ...]) -> Array:
        gate, up = sums
        return gate / (1 + jnp.exp(-gate)) * up

    out = jax.ShapeDtypeStruct((x.shape[0], features), x.dtype)
    return _call(x, gate_up, (0, features), tiles, swiglu, out, "batch_swiglu", interpret)


def _call(
    x: Float[Array, "B I"],
    weight: Float[Array, "O I"],
    firsts: tuple[int, ...],
    tiles: _Tiles,
    finish: Callable[[tuple[Array, ...]], Array],
    out: jax.ShapeDtypeStruct,
    name: str,
    interpret: bool,
) -> Array:
    """Runs the kernel: `finish` of x's products with a tile's rows from each of `firsts` on."""
    batch, inputs = x.shape
    tokens = max(LEAST, 1 << (batch - 1).bit_length())
    steps = inputs // tiles.columns // tiles.splits

    def kernel(x_ref: Any, weight_ref: Any, out_ref: Any) -> None:
        start, split = pl.program_id(0) * tiles.rows, pl.program_id(1)
        token = jnp.arange(tokens)
        # Rows past the batch repeat its last token, and are not stored.
        member = jnp.minimum(token, batch - 1)[:, None]

        def add(step: Array, sums: tuple[Array, ...]) -> tuple[Array, ...]:
            column = (split * steps + step) * tiles.columns
            # Weights are read once per step: they should not evict activations from L2.
            weights = [
                plgpu.load(
                    weight_ref.at[pl.ds(first + start, tiles.rows), pl.ds(column, tiles.columns)],
                    eviction_policy="evict_first",
                )
                for first in firsts
            ]
            rows = plgpu.load(x_ref.at[member, column + jnp.arange(tiles.columns)[None, :]])
            return tuple(
                total + plgpu.dot(tile, rows.T) for total, tile in zip(sums, weights, strict=True)
            )

        nothing = jnp.zeros((tiles.rows, tokens), jnp.float32)
        sums = lax.fori_loop(0, steps, add, (nothing,) * len(firsts))
        row = (start + jnp.arange(tiles.rows))[:, None]
        target = ((split,) if len(out.shape) == 3 else ()) + (token[None, :], row)
        mask = jnp.broadcast_to((token < batch)[None, :], nothing.shape)
        plgpu.store(out_ref.at[target], finish(sums).astype(out.dtype), mask=mask)

    product: Array = triton_call(
        kernel,
        out,
        *(x, weight),
        grid=(out.shape[-1] // tiles.rows, tiles.splits),
        num_warps=NUM_WARPS,
        num_stages=NUM_STAGES,
        name=name,
        interpret=interpret,
    )
    return product
