"""Batch norm, ReLU, its mask, and 2-bit codes of the normalised values, in one pass: Pallas kernel.

XLA reads a convolution's output three times for them: for the range of each group, for the codes,
and for the ReLU. The kernel reads a group of 512 elements once, into the registers of a warp.
"""

from functools import partial
from math import gcd
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pallas_triton
from jaxtyping import Array, Float, Int32

from models.compressed_resnet.compression import Codes
from models.compressed_resnet.compression.codes import LEAST_SCALE
from models.compressed_resnet.compression.groups import WORD_BITS
from models.compressed_resnet.convolution import Images
from models.compressed_resnet.sizes import GROUP

BITS = 2
LEVELS = 2**BITS - 1
# Fields of a word, and words of a group.
FIELDS = WORD_BITS // BITS
WORDS = GROUP // FIELDS
# Groups of a program, and its warps.
GROUPS = 8
WARPS = 4

Vector = Float[Array, " C"]


class Affine(NamedTuple):
    """`((z - mean) * deviation) * scale + bias`, for each channel."""

    mean: Vector
    deviation: Vector
    scale: Vector
    bias: Vector

    def normalise(self, z: Images) -> Images:
        """z less its mean, over the standard deviation, in float32."""
        return (z.astype(jnp.float32) - self.mean) * self.deviation

    def __call__(self, z: Images) -> Images:
        """The batch norm's output, in float32."""
        return self.normalise(z) * self.scale + self.bias


def supports(shape: tuple[int, ...], bits: int) -> bool:
    """Whether the kernel computes an array of this NHWC shape."""
    channels, elements = shape[-1], shape[0] * shape[1] * shape[2] * shape[3]
    # The channels of a group are the same in every group, or in every `channels / 512`th.
    return (
        bits == BITS and elements % GROUP == 0 and (GROUP % channels == 0 or channels % GROUP == 0)
    )


def norm_relu_codes(
    z: Images,
    norm: Affine,
    shortcut: Images | None,
    shortcut_norm: Affine | None,
    *,
    interpret: bool = False,
) -> tuple[Images, Int32[Array, "M 16"], Codes]:
    """ReLU of the batch norm of z, and of the shortcut, if any; its mask; codes of z normalised.

    Args:
      shortcut: is added before the ReLU.
      shortcut_norm: is applied to the shortcut; None to add it as it is.
      interpret: run the kernel in Pallas's interpreter, on any backend.
    """
    channels = z.shape[-1]
    # Groups of different channels, which alternate.
    periods = max(1, channels // GROUP)
    rows = z.size // GROUP // periods
    tall = gcd(rows, GROUPS)
    spec: Any = pl.BlockSpec
    tile = spec((tall, None, FIELDS, WORDS), lambda i, j: (i, j, 0, 0))
    table = spec((None, FIELDS, WORDS), lambda i, j: (j, 0, 0))
    words = spec((tall, None, WORDS), lambda i, j: (i, j, 0))
    mask = spec((tall, None, FIELDS), lambda i, j: (i, j, 0))
    number = spec((tall, None), lambda i, j: (i, j))

    def tables(norm: Affine) -> list[Array]:
        return [jnp.resize(vector, (periods, FIELDS, WORDS)) for vector in norm]

    view = (rows, periods, FIELDS, WORDS)
    tiles = [z.reshape(view)] + ([] if shortcut is None else [shortcut.reshape(view)])
    vectors = tables(norm) + ([] if shortcut_norm is None else tables(shortcut_norm))
    struct: Any = jax.ShapeDtypeStruct
    h, packed, bits, scale, minimum = pl.pallas_call(
        partial(_kernel, inputs=len(tiles)),
        out_shape=(
            struct(view, z.dtype),
            struct((rows, periods, WORDS), jnp.int32),
            struct((rows, periods, FIELDS), jnp.int32),
            struct((rows, periods), jnp.bfloat16),
            struct((rows, periods), jnp.bfloat16),
        ),
        grid=(rows // tall, periods),
        in_specs=[tile] * len(tiles) + [table] * len(vectors),
        out_specs=(tile, words, mask, number, number),
        # Nothing else reads z: the result is written in its place.
        input_output_aliases={0: 0},
        # Selects Triton: the default backend of jax 0.10 is Mosaic GPU.
        compiler_params=pallas_triton.CompilerParams(num_warps=WARPS, num_stages=1),
        interpret=interpret,
        name="norm_relu_codes",
    )(*tiles, *vectors)
    codes = Codes(packed.reshape(-1, WORDS), scale.reshape(-1), minimum.reshape(-1))
    return h.reshape(z.shape), bits.reshape(-1, FIELDS), codes


def _kernel(*refs: Any, inputs: int) -> None:
    tiles, vectors, outputs = refs[:inputs], refs[inputs:-5], refs[-5:]
    h_ref, codes_ref, mask_ref, scale_ref, minimum_ref = outputs
    mean, deviation, scale, bias = (ref[...][None] for ref in vectors[:4])
    normalised = (tiles[0][...].astype(jnp.float32) - mean) * deviation
    y = normalised * scale + bias
    if inputs > 1:
        y = y + _affine(tiles[1][...].astype(jnp.float32), vectors[4:])
    # Of NaN neither is true, and it stays.
    h = jnp.where(y <= 0, 0.0, y).astype(jnp.bfloat16)
    h_ref[...] = h
    shape = h.shape
    lane = jax.lax.broadcasted_iota(jnp.int32, shape, 2)
    mask_ref[...] = jnp.sum((h.astype(jnp.float32) > 0).astype(jnp.int32) << lane, axis=2)
    # Triton's minimum and maximum drop NaN. A value that is not finite is so because a moment of
    # its channel is not.
    not_finite = jnp.sum((mean + deviation) * 0)
    values = normalised.astype(jnp.bfloat16).astype(jnp.float32)
    least = jnp.min(jnp.min(values, axis=2), axis=1)
    extent = jnp.max(jnp.max(values, axis=2), axis=1) - least + not_finite
    step = (extent * (1 / LEVELS)).astype(jnp.bfloat16)
    scale_ref[...] = step
    minimum_ref[...] = least.astype(jnp.bfloat16)
    wide = step.astype(jnp.float32)
    reciprocal = jnp.where(wide >= LEAST_SCALE, 1 / wide, 0.0)
    distance = values - least[:, None, None]
    # Truncation after adding a half.
    nearest = jnp.minimum(distance * reciprocal[:, None, None] + 0.5, LEVELS).astype(jnp.int32)
    field = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
    codes_ref[...] = jnp.sum(nearest << (field * BITS), axis=1)


def _affine(values: Any, vectors: Any) -> Any:
    if not vectors:
        return values
    mean, deviation, scale, bias = (ref[...][None] for ref in vectors)
    return (values - mean) * deviation * scale + bias
