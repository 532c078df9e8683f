"""Sums of a batch norm's gradient over all but the channels, from masks and codes: Pallas kernel.

A program adds up many tiles in registers. XLA adds the sums of the programs.
"""

from functools import partial
from math import gcd
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pallas_triton
from jaxtyping import Array, Float, Int16

from models.compressed_resnet.compression import Codes
from models.compressed_resnet.convolution import Images
from models.compressed_resnet.kernels import tiles
from models.compressed_resnet.sizes import GROUP, SUMMED_GROUPS

# Groups of a tile, and warps of a program.
GROUPS, WARPS = 2, 1


@partial(jax.jit, static_argnames=("keep", "interpret"))
def norm_sums(
    dy: Images,
    mask: Int16[Array, "M 32"],
    normalised: Codes,
    *,
    keep: bool,
    interpret: bool = False,
) -> tuple[Images, Float[Array, "2 C"]]:
    """Sums over all but the channels of dy masked, and of its product with normalised values.

    Args:
      interpret: run the kernel in Pallas's interpreter, on any backend.
    """
    channels = dy.shape[-1]
    # Groups of different channels alternate. A program adds groups of the same channels.
    periods = max(1, channels // GROUP)
    count = dy.size // GROUP // periods
    block = gcd(count, SUMMED_GROUPS)
    lanes, rows = tiles.LANES, min(tiles.ROWS, channels // tiles.LANES)
    view = (count, periods, tiles.ROWS, lanes)
    codes = normalised.codes.reshape(count, periods, -1, lanes)
    spec: Any = pl.BlockSpec
    elements = spec((block, None, tiles.ROWS, lanes), lambda i, j: (i, j, 0, 0))
    number = spec((block, None), lambda i, j: (i, j))
    sums_spec = spec((None, 2, None, rows, lanes), lambda i, j: (i, 0, j, 0, 0))
    struct: Any = jax.ShapeDtypeStruct
    sums = struct((count // block, 2, periods, rows, lanes), jnp.float32)
    *masked, sums = pl.pallas_call(
        partial(_kernel, rows=rows, tall=gcd(block, GROUPS)),
        out_shape=(struct(view, dy.dtype), sums) if keep else (sums,),
        grid=(count // block, periods),
        in_specs=[
            elements,
            spec((block, None, lanes), lambda i, j: (i, j, 0)),
            spec((block, None, codes.shape[2], lanes), lambda i, j: (i, j, 0, 0)),
            number,
            number,
        ],
        out_specs=(elements, sums_spec) if keep else (sums_spec,),
        # Not in dy's place: in one buffer for both, the step's temp would be 6 % larger, since XLA
        # would place other arrays worse around it.
        compiler_params=pallas_triton.CompilerParams(num_warps=WARPS, num_stages=1),
        interpret=interpret,
        name="norm_sums_masked" if keep else "norm_sums",
    )(
        dy.reshape(view),
        mask.reshape(count, periods, lanes),
        codes,
        normalised.scale.reshape(count, periods),
        normalised.minimum.reshape(count, periods),
    )
    dy = masked[0].reshape(dy.shape) if keep else dy
    return dy, jnp.sum(sums, axis=0).reshape(2, channels)


def _kernel(
    dy_ref: Any,
    mask_ref: Any,
    codes_ref: Any,
    scale_ref: Any,
    minimum_ref: Any,
    *outputs: Any,
    rows: int,
    tall: int,
) -> None:
    *masked_ref, sums_ref = outputs

    def add(step: Any, sums: Any) -> Any:
        tile = pl.ds(step * tall, tall)
        of_dy, of_product = map(list, sums)
        mask = mask_ref[tile, :].astype(jnp.int32)
        value_of = tiles.read_codes(codes_ref, scale_ref, minimum_ref, tile)
        masked = [
            jnp.where((mask >> number) & 1 == 1, row, jnp.zeros_like(row))
            for number, row in enumerate(tiles.rows_of(dy_ref, tile))
        ]
        for ref in masked_ref:
            tiles.write_rows(ref, masked, tile)
        for number, row in enumerate(masked):
            wide = row.astype(jnp.float32)
            of_dy[number % rows] += wide
            of_product[number % rows] += wide * value_of(number)
        return tuple(of_dy), tuple(of_product)

    zeros = (jnp.zeros((tall, tiles.LANES), jnp.float32),) * rows
    sums = jax.lax.fori_loop(0, dy_ref.shape[0] // tall, add, (zeros, zeros))
    for position, of_rows in enumerate(sums):
        for number, row in enumerate(of_rows):
            sums_ref[position, number, :] = jnp.sum(row, axis=0)
