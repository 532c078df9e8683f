"""Codes of what an array differs by from its upsampled low-frequency component, and the inverse.

Two Pallas kernels. XLA reads the array twice for the codes: for the range of each group, and for
the codes. Where it restores the array, it writes it at two fifths of the memory's rate.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pallas_triton
from jaxtyping import Array, Float8e4m3fn

from models.compressed_resnet.compression import Codes
from models.compressed_resnet.convolution import Images
from models.compressed_resnet.kernels import tiles
from models.compressed_resnet.sizes import GROUP, POOL

Shape = tuple[int, ...]

# Groups of a program, and its warps.
GROUPS = 4
WARPS = 1


@partial(jax.jit, static_argnames=("bits", "interpret"))
def quantise_residual(
    x: Images, low: Float8e4m3fn[Array, "N h w C"], *, bits: int, interpret: bool = False
) -> Codes:
    """`quantise(x - upsample(low))`.

    Args:
      interpret: run the kernel in Pallas's interpreter, on any backend.
    """
    groups = x.size // GROUP
    tall = tiles.tall_of(groups, GROUPS)
    specs = tiles.group_specs(tall, bits)
    words = tiles.code_rows(bits)
    flat = low.reshape(-1)
    struct: Any = jax.ShapeDtypeStruct
    packed, scale, minimum = pl.pallas_call(
        partial(_quantise_kernel, shape=x.shape),
        out_shape=(
            struct((groups, words, tiles.LANES), jnp.int32),
            struct((groups,), jnp.bfloat16),
            struct((groups,), jnp.bfloat16),
        ),
        grid=(groups // tall,),
        in_specs=[specs["elements"], tiles.whole(flat)],
        out_specs=tuple(specs[name] for name in ("codes", "number", "number")),
        compiler_params=pallas_triton.CompilerParams(num_warps=WARPS, num_stages=1),
        interpret=interpret,
        name="quantise_residual",
    )(x.reshape(groups, tiles.ROWS, tiles.LANES), flat)
    return Codes(packed.reshape(groups, -1), scale, minimum)


@partial(jax.jit, static_argnames=("shape", "interpret"))
def restore(
    codes: Codes, low: Float8e4m3fn[Array, "N h w C"], shape: Shape, *, interpret: bool = False
) -> Images:
    """The array of NHWC `shape` in bfloat16 that `quantise_residual` got, but for rounding."""
    groups = codes.codes.shape[0]
    tall = tiles.tall_of(groups, GROUPS)
    words = codes.codes.reshape(groups, -1, tiles.LANES)
    specs = tiles.group_specs(tall, bits=2 * words.shape[1])
    flat = low.reshape(-1)
    struct: Any = jax.ShapeDtypeStruct
    x: Array = pl.pallas_call(
        partial(_restore_kernel, shape=shape),
        out_shape=struct((groups, tiles.ROWS, tiles.LANES), jnp.bfloat16),
        grid=(groups // tall,),
        in_specs=[*(specs[name] for name in ("codes", "number", "number")), tiles.whole(flat)],
        out_specs=specs["elements"],
        compiler_params=pallas_triton.CompilerParams(num_warps=WARPS, num_stages=1),
        interpret=interpret,
        name="restore_residual",
    )(words, codes.scale, codes.minimum, flat)
    return x.reshape(shape)


def _quantise_kernel(
    x_ref: Any, low_ref: Any, codes_ref: Any, scale_ref: Any, minimum_ref: Any, *, shape: Shape
) -> None:
    low_of = _low_reader(low_ref, shape, x_ref.shape[0])
    rows = []
    for number, row in enumerate(tiles.rows_of(x_ref)):
        # In bfloat16, which has every number of float8: the upper half of its float32.
        wide = jax.lax.bitcast_convert_type(low_of(number), jnp.int32)
        low = jax.lax.bitcast_convert_type((wide >> 16).astype(jnp.int16), jnp.bfloat16)
        rows.append((row - low).astype(jnp.float32))
    tiles.write_codes(rows, codes_ref, scale_ref, minimum_ref)


def _restore_kernel(
    codes_ref: Any, scale_ref: Any, minimum_ref: Any, low_ref: Any, x_ref: Any, *, shape: Shape
) -> None:
    low_of = _low_reader(low_ref, shape, x_ref.shape[0])
    value_of = tiles.read_codes(codes_ref, scale_ref, minimum_ref)
    rows = [value_of(number) + low_of(number) for number in range(tiles.ROWS)]
    tiles.write_rows(x_ref, [row.astype(x_ref.dtype) for row in rows])


def _low_reader(low_ref: Any, shape: Shape, tall: int) -> Any:
    """A function that returns the low-frequency component of a row of a tile, in float32."""
    _, height, width, channels = shape
    low_height, low_width = height // POOL, width // POOL
    offsets: dict[int, Any] = {}

    def offset_of(pixel: Any) -> Any:
        row = pixel // width
        image = row // height
        i, j = row - image * height, pixel - row * width
        low_row = image * low_height + i * low_height // height
        return (low_row * low_width + j * low_width // width) * channels

    def low(number: int) -> Any:
        group, lane = tiles.iotas(tall)
        start = number * tiles.LANES
        if channels <= GROUP:
            pixel, channel = group * (GROUP // channels) + start // channels, start % channels
        else:
            periods = channels // GROUP
            pixel, channel = group // periods, group % periods * GROUP + start
        key = start // channels
        if key not in offsets:
            offsets[key] = offset_of(pixel)
        return low_ref[offsets[key] + channel + lane].astype(jnp.float32)

    return low
