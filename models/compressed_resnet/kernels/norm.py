"""Batch norm, ReLU, its mask, and codes of the normalised values, in one pass: Pallas kernel.

XLA reads a convolution's output three times for them: for the range of each group, for the codes,
and for the ReLU. The kernel reads it once, and writes the result in its place.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pallas_triton
from jaxtyping import Array, Float, Int16

from models.compressed_resnet.compression import Codes
from models.compressed_resnet.convolution import Images
from models.compressed_resnet.kernels import tiles
from models.compressed_resnet.sizes import GROUP

# Groups of a program, and its warps.
GROUPS = 2
WARPS = 1

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


@partial(jax.jit, static_argnames=("bits", "interpret"))
def norm_relu_codes(
    z: Images,
    norm: Affine,
    shortcut: Images | None,
    shortcut_norm: Affine | None,
    *,
    bits: int,
    interpret: bool = False,
) -> tuple[Images, Int16[Array, "M 32"], Codes]:
    """ReLU of the batch norm of z, and of the shortcut, if any; its mask; codes of z normalised.

    Args:
      interpret: run the kernel in Pallas's interpreter, on any backend.
    """
    groups = z.size // GROUP
    tall = tiles.tall_of(groups, GROUPS)
    specs = tiles.group_specs(tall, bits)
    view = (groups, tiles.ROWS, tiles.LANES)
    inputs = [array.reshape(view) for array in (z, shortcut) if array is not None]
    vectors = [*norm, *(shortcut_norm or ())]
    words = tiles.code_rows(bits)
    struct: Any = jax.ShapeDtypeStruct
    h, mask, packed, scale, minimum = pl.pallas_call(
        partial(_kernel, inputs=len(inputs), channels=z.shape[-1]),
        out_shape=(
            struct(view, z.dtype),
            struct((groups, tiles.LANES), jnp.int16),
            struct((groups, words, tiles.LANES), jnp.int32),
            struct((groups,), jnp.bfloat16),
            struct((groups,), jnp.bfloat16),
        ),
        grid=(groups // tall,),
        in_specs=[specs["elements"]] * len(inputs) + [tiles.whole(vector) for vector in vectors],
        out_specs=tuple(specs[name] for name in ("elements", "mask", "codes", "number", "number")),
        # Nothing else reads z.
        input_output_aliases={0: 0},
        # Selects Triton: the default backend of jax 0.10 is Mosaic GPU.
        compiler_params=pallas_triton.CompilerParams(num_warps=WARPS, num_stages=1),
        interpret=interpret,
        name="norm_relu_codes",
    )(*inputs, *vectors)
    return h.reshape(z.shape), mask, Codes(packed.reshape(groups, -1), scale, minimum)


def _kernel(*refs: Any, inputs: int, channels: int) -> None:
    elements, vectors, outputs = refs[:inputs], refs[inputs:-5], refs[-5:]
    h_ref, mask_ref, codes_ref, scale_ref, minimum_ref = outputs
    vectors_of = tiles.channel_reader(vectors, channels, mask_ref.shape[0])
    z, *shortcut = (tiles.rows_of(ref) for ref in elements)
    h, normalised = [], []
    mask: Any = 0
    # The last row first: each shifts the bits of those before it.
    for number in reversed(range(tiles.ROWS)):
        mean, deviation, scale, bias, *of_shortcut = vectors_of(number)
        row = (z[number].astype(jnp.float32) - mean) * deviation
        y = row * scale + bias
        if shortcut:
            y = y + _affine(shortcut[0][number].astype(jnp.float32), of_shortcut)
        # A NaN compares as false, and so stays.
        h.append(jnp.where(y <= 0, 0.0, y).astype(h_ref.dtype))
        # The sign of -y; 0 - y is never -0.
        sign = jax.lax.bitcast_convert_type(0.0 - y, jnp.int32)
        mask = (mask << 1) | jax.lax.shift_right_logical(sign, 31)
        normalised.append(tiles.rounded(row))
    tiles.write_rows(h_ref, h[::-1])
    mask_ref[...] = mask.astype(jnp.int16)
    tiles.write_codes(normalised[::-1], codes_ref, scale_ref, minimum_ref)


def _affine(values: Any, vectors: Any) -> Any:
    if not vectors:
        return values
    mean, deviation, scale, bias = vectors
    return (values - mean) * deviation * scale + bias
