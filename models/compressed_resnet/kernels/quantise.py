"""A Pallas kernel (Triton) that quantises in one pass over the array.

XLA's fusions read the array twice: for each group's minimum and maximum, and for the codes. Here a
program keeps its groups in registers between the two.
"""

from functools import partial, reduce
from math import gcd
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float

from models.compressed_resnet.compression.codes import LEAST_SCALE, Codes
from models.compressed_resnet.compression.saved_bytes import GROUP, WORD_BITS, groups_of

# Groups of a program: 16,384 elements at most, which 128 threads hold in registers.
MAX_GROUPS = 32
WARPS = 4
# Added to a float32 below 2**22, it leaves the nearest integer in the low bits.
_TO_INTEGER = 1.5 * 2**23


def quantise_by_kernel(x: Float[Array, "..."], bits: int, *, interpret: bool = False) -> Codes:
    """`quantise`, for a bfloat16 array whose size is a multiple of 512."""
    groups = groups_of(x.shape)
    return _call(partial(_kernel, bits=bits), groups, bits, interpret, x.reshape(groups, GROUP))


def quantise_residual_by_kernel(
    x: Float[Array, "N H W C"], low: Float[Array, "N h w C"], bits: int, *, interpret: bool = False
) -> Codes:
    """`quantise(x - upsample(low, (H, W)), bits)`."""
    groups = groups_of(x.shape)
    kernel = partial(_residual_kernel, bits=bits, shape=x.shape, low_shape=low.shape)
    return _call(kernel, groups, bits, interpret, x.reshape(groups, GROUP), low.reshape(-1))


def _call(kernel: Any, groups: int, bits: int, interpret: bool, *args: Array) -> Codes:
    rows = gcd(groups, MAX_GROUPS)
    params = None if interpret else plgpu.CompilerParams(num_warps=WARPS, num_stages=1)
    outputs = (
        jax.ShapeDtypeStruct((groups, GROUP * bits // WORD_BITS), jnp.int32),
        jax.ShapeDtypeStruct((groups,), jnp.bfloat16),
        jax.ShapeDtypeStruct((groups,), jnp.bfloat16),
    )
    results = pl.pallas_call(
        partial(kernel, rows=rows),
        out_shape=outputs,
        grid=(groups // rows,),
        compiler_params=params,
        interpret=interpret,
        name="quantise",
    )(*args)
    return Codes(*results)


def _kernel(x_ref: Any, *outputs: Any, bits: int, rows: int) -> None:
    words = GROUP * bits // WORD_BITS
    own = pl.ds(pl.program_id(0) * rows, rows)
    parts = [
        plgpu.load(x_ref.at[own, pl.ds(start, words)]).astype(jnp.float32)
        for start in range(0, GROUP, words)
    ]
    _write(parts, outputs, own, bits)


def _residual_kernel(
    x_ref: Any,
    low_ref: Any,
    *outputs: Any,
    bits: int,
    rows: int,
    shape: tuple[int, ...],
    low_shape: tuple[int, ...],
) -> None:
    words = GROUP * bits // WORD_BITS
    first = pl.program_id(0) * rows
    own = pl.ds(first, rows)
    lanes = jnp.arange(words, dtype=jnp.int32)[None, :]
    parts = []
    for start in range(0, GROUP, words):
        x = plgpu.load(x_ref.at[own, pl.ds(start, words)]).astype(jnp.float32)
        elements = (first + jnp.arange(rows, dtype=jnp.int32)) * GROUP + start
        low = plgpu.load(low_ref.at[_low_index(elements, shape, low_shape)[:, None] + lanes])
        residual = x - low.astype(jnp.float32)
        parts.append(residual.astype(jnp.bfloat16).astype(jnp.float32))
    _write(parts, outputs, own, bits)


def _low_index(element: Array, shape: tuple[int, ...], low_shape: tuple[int, ...]) -> Array:
    """The index of the average of an element; both indices are into flat arrays."""
    _, height, width, channels = shape
    _, low_height, low_width, _ = low_shape
    pixel, channel = lax.div(element, channels), lax.rem(element, channels)
    row, column = lax.rem(lax.div(pixel, width), height), lax.rem(pixel, width)
    image = lax.div(pixel, height * width)
    low_row = image * low_height + lax.div(row * low_height, height)
    return (low_row * low_width + lax.div(column * low_width, width)) * channels + channel


def _write(parts: list[Array], outputs: Any, own: Any, bits: int) -> None:
    """Writes the codes, scale and minimum of groups, whose elements are in `parts`."""
    codes_ref, scale_ref, minimum_ref = outputs
    levels = 2**bits - 1
    # Triton's minimum and maximum drop NaNs; the product with zero is NaN for them and infinities.
    spoilt = jnp.sum(sum(part * 0 for part in parts), axis=1)
    minimum = jnp.min(reduce(jnp.minimum, parts), axis=1)
    maximum = jnp.max(reduce(jnp.maximum, parts), axis=1)
    scale = ((maximum - minimum) * (1 / levels) + spoilt).astype(jnp.bfloat16)
    step = scale.astype(jnp.float32)
    usable = step >= LEAST_SCALE
    inverse = jnp.where(usable, 1 / step, 0.0)[:, None]
    word = jnp.zeros(parts[0].shape, jnp.int32)
    for number, part in enumerate(parts):
        nearest = jnp.minimum((part - minimum[:, None]) * inverse, 1.0 * levels) + _TO_INTEGER
        code = lax.bitcast_convert_type(nearest, jnp.int32) & levels
        word |= code << (number * bits)
    plgpu.store(codes_ref.at[own, :], word)
    plgpu.store(scale_ref.at[own], scale)
    plgpu.store(minimum_ref.at[own], minimum.astype(jnp.bfloat16))
