"""A convolution followed by batch norm: forward, and its gradients.

Parameters of a unit: `kernel` [O, h, w, I], `scale` [O] and `bias` [O], in float32.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from models.compressed_resnet.compression import (
    Codes,
    dequantise,
    low_frequency,
    pack_mask,
    quantise,
    unpack_mask,
    upsample,
)
from models.compressed_resnet.convolution import Images, convolve, kernel_gradient
from models.compressed_resnet.kernels import (
    Affine,
    norm_relu_codes,
    norm_sums,
    quantise_residual,
    restore,
    supports,
)

EPSILON = 1e-5

Unit: TypeAlias = Mapping[str, Array]
# `mean` and `variance` of a convolution's output, for each channel, in float32.
Moments: TypeAlias = Mapping[str, Array]
Mask = Int[Array, "_ 32"]
Low = Float[Array, "N _ _ _"]


class SavedConvNorm(NamedTuple):
    """What the backward pass needs of one unit, in addition to the parameters.

    Attributes:
      inputs: codes of what the input differs by from its upsampled low-frequency component.
      normalised: codes of the normalised output, before scale and bias.
      deviation: reciprocal standard deviation, float32.
    """

    inputs: Codes
    normalised: Codes
    deviation: Float[Array, " _"]


class Compressed(NamedTuple):
    """A compressed array: its low-frequency component, and codes of the rest."""

    low: Low
    codes: Codes


def compress(x: Images, bits: int) -> Compressed:
    """Compresses an input of a convolution."""
    low = low_frequency(x)

    def by_fusions(x: Images, low: Low) -> Codes:
        return quantise(x - upsample(low, (x.shape[1], x.shape[2])), bits)

    if not (supports(x.shape) and low.size):
        return Compressed(low, by_fusions(x, low))
    by_kernel = partial(quantise_residual, bits=bits)
    return Compressed(low, lax.platform_dependent(x, low, cuda=by_kernel, default=by_fusions))


def decompress(low: Low, codes: Codes, shape: tuple[int, int, int, int]) -> Images:
    """The array of NHWC `shape` that `compress` got, but for rounding."""

    def by_fusions(codes: Codes, low: Low) -> Images:
        spread = upsample(low, (shape[1], shape[2])).astype(jnp.float32)
        return (dequantise(codes, shape, jnp.float32) + spread).astype(jnp.bfloat16)

    if not (supports(shape) and low.size):
        return by_fusions(codes, low)
    x: Images = lax.platform_dependent(
        codes, low, cuda=partial(restore, shape=shape), default=by_fusions
    )
    return x


def channel_sums(
    a: Float[Array, "N H W C"], b: Float[Array, "N H W C"]
) -> tuple[Float[Array, " C"], Float[Array, " C"]]:
    """Sums of two arrays over all but their channels.

    One reduction instead of two, so that XLA computes what both sums need in the same kernel.
    """
    zero = jnp.float32(0)
    sums: tuple[Array, Array] = lax.reduce(
        (a, b), (zero, zero), lambda x, y: (x[0] + y[0], x[1] + y[1]), (0, 1, 2)
    )
    return sums


def moments_of(z: Images) -> Moments:
    """Mean and biased variance of each channel, in float32, in one pass over z."""
    wide = z.astype(jnp.float32)
    count = z.size // z.shape[-1]
    total, squares = channel_sums(wide, wide * wide)
    mean = total / count
    return {"mean": mean, "variance": jnp.maximum(squares / count - mean * mean, 0.0)}


def deviation_of(moments: Moments) -> Float[Array, " _"]:
    """The reciprocal standard deviation."""
    return lax.rsqrt(moments["variance"] + EPSILON)


def plain(unit: Unit, x: Images, stride: int) -> tuple[Images, Moments]:
    """The unit's output in float32, and its moments."""
    z = convolve(x, unit["kernel"], stride)
    moments = moments_of(z)
    return affine_of(unit, moments)(z), moments


def forward(unit: Unit, x: Images, inputs: Codes, stride: int) -> tuple[Images, Moments]:
    """The convolution's output and its moments."""
    # What follows depends on the codes, so that XLA computes them here: left until the backward
    # pass, they would keep x alive.
    x, inputs = lax.optimization_barrier((x, inputs))
    z = convolve(x, unit["kernel"], stride)
    return z, moments_of(z)


def affine_of(unit: Unit, moments: Moments) -> Affine:
    """The unit's batch norm."""
    return Affine(moments["mean"], deviation_of(moments), unit["scale"], unit["bias"])


def normalised_codes(z: Images, norm: Affine, bits: int) -> tuple[Images, Codes]:
    """z, and codes of its normalised values, which are computed before z's readers run."""
    codes = quantise(norm.normalise(z).astype(z.dtype), bits)
    return lax.optimization_barrier((z, codes))  # type: ignore[no-any-return]


def activate(
    z: Images,
    norm: Affine,
    bits: int,
    shortcut: Images | None = None,
    shortcut_norm: Affine | None = None,
) -> tuple[Images, Mask, Codes]:
    """ReLU of the batch norm of z, and of the shortcut, if any; its mask; codes of z normalised."""
    if not supports(z.shape):
        return activate_by_fusions(z, norm, shortcut, shortcut_norm, bits=bits)
    both: tuple[Images, Mask, Codes] = lax.platform_dependent(
        z,
        norm,
        shortcut,
        shortcut_norm,
        cuda=partial(norm_relu_codes, bits=bits),
        default=partial(activate_by_fusions, bits=bits),
    )
    return both


def activate_by_fusions(
    z: Images, norm: Affine, shortcut: Images | None, shortcut_norm: Affine | None, *, bits: int
) -> tuple[Images, Mask, Codes]:
    """`activate` without the kernel."""
    z, codes = normalised_codes(z, norm, bits)
    y = norm(z)
    if shortcut is not None:
        y = y + (shortcut if shortcut_norm is None else shortcut_norm(shortcut))
    h, mask = relu_and_mask(y, z.dtype)
    return h, mask, codes


# A function of what a unit keeps of its output, and of the output's gradient: both in float32, the
# gradient after the ReLU's, and the normalised output.
Restore: TypeAlias = Callable[[Any, Images], tuple[Images, Images]]


def norm_gradients(
    unit: Unit,
    deviation: Float[Array, " _"],
    restore: Restore,
    kept: Any,
    dy: Images,
    sums: Float[Array, "2 _"] | None = None,
) -> tuple[Images, Images, dict[str, Array]]:
    """Gradients of the convolution's output, and of scale and bias.

    Args:
      sums: of the gradient after the ReLU's, and of its product with the normalised output, for
        each channel; None to compute them here.

    Returns:
      The gradient of the convolution's output; dy, for readers after this unit; the gradients.
    """
    if sums is None:
        wide, normalised = restore(kept, dy)
        dbias, dscale = channel_sums(wide, wide * normalised)
    else:
        dbias, dscale = sums
    kept, dy, dbias, dscale = lax.optimization_barrier((kept, dy, dbias, dscale))
    wide, normalised = restore(kept, dy)
    count = dy.size // dy.shape[-1]
    centred = wide - dbias / count - normalised * (dscale / count)
    dz = (centred * (unit["scale"] * deviation)).astype(dy.dtype)
    return dz, dy, {"scale": dscale, "bias": dbias}


def parameter_gradients(
    unit: Unit,
    saved: SavedConvNorm,
    low: Low,
    mask: Mask | None,
    dy: Images,
    stride: int,
    shape: tuple[int, int, int, int],
    *,
    keep_masked: bool = False,
) -> tuple[Images, Images, dict[str, Array]]:
    """Gradients of the convolution's output and of the parameters, from what is compressed.

    Args:
      low: the low-frequency component of the input, which has NHWC `shape`.
      mask: of the ReLU after the unit; None if dy is the gradient of the ReLU's input.
      dy: the gradient of the unit's output.

    Returns:
      The gradient of the convolution's output; dy, for readers after this unit; the gradients.
    """
    sums = None
    if mask is not None:
        dy, sums = masked_sums(dy, mask, saved.normalised, keep=keep_masked)
        mask = None if keep_masked else mask

    def restore(kept: tuple[Codes, Mask | None], dy: Images) -> tuple[Images, Images]:
        codes, mask = kept
        wide = dy.astype(jnp.float32)
        # A product: XLA would write what a comparison gives with a byte for each element.
        wide = wide if mask is None else wide * unpack_mask(mask, dy.shape, jnp.float32)
        return wide, dequantise(codes, dy.shape, jnp.float32)

    kept = saved.normalised, mask
    dz, dy, gradients = norm_gradients(unit, saved.deviation, restore, kept, dy, sums)
    # The input is restored only now, and is dead before the gradient of the input exists.
    dz, low, inputs = lax.optimization_barrier((dz, low, saved.inputs))
    x = decompress(low, inputs, shape)
    dkernel = kernel_gradient(x, dz, stride, unit["kernel"].shape)
    dz, dkernel = lax.optimization_barrier((dz, dkernel))
    return dz, dy, {"kernel": dkernel, **gradients}


def masked_sums(
    dy: Images, mask: Mask, normalised: Codes, *, keep: bool
) -> tuple[Images, Float[Array, "2 _"]]:
    """Sums over all but the channels of dy masked, and of its product with normalised values."""

    def by_fusions(dy: Images, mask: Mask, normalised: Codes) -> tuple[Images, Array]:
        wide = dy.astype(jnp.float32) * unpack_mask(mask, dy.shape, jnp.float32)
        sums = channel_sums(wide, wide * dequantise(normalised, dy.shape, jnp.float32))
        return masked(dy, mask) if keep else dy, jnp.stack(sums)

    if not supports(dy.shape):
        return by_fusions(dy, mask, normalised)
    both: tuple[Images, Array] = lax.platform_dependent(
        dy, mask, normalised, cuda=partial(norm_sums, keep=keep), default=by_fusions
    )
    return both


def relu(y: Images, dtype: Any) -> Images:
    """The ReLU of y, in `dtype`."""
    return jnp.maximum(y, 0.0).astype(dtype)


def relu_and_mask(y: Images, dtype: Any) -> tuple[Images, Mask]:
    """The ReLU of y in `dtype`, and where it is positive."""
    h = relu(y, dtype)
    # What reads h waits for its mask: left until the backward pass, it would keep h alive.
    return lax.optimization_barrier((h, pack_mask(h > 0)))  # type: ignore[no-any-return]


def masked(dy: Images, mask: Mask) -> Images:
    """The gradient of a ReLU's input, from that of its output."""
    return dy * unpack_mask(mask, dy.shape, dy.dtype)
