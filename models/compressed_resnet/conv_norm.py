"""A convolution followed by batch norm: forward, and backward from compressed activations.

Parameters of a unit: `kernel` [O, h, w, I], `scale` [O] and `bias` [O], in float32.
"""

from collections.abc import Mapping
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

EPSILON = 1e-5

Unit: TypeAlias = Mapping[str, Array]
# `mean` and `variance` of a convolution's output, for each channel, in float32.
Moments: TypeAlias = Mapping[str, Array]
Mask = Int[Array, "_ 16"]
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
    return Compressed(low, quantise(x - upsample(low, (x.shape[1], x.shape[2])), bits))


def decompress(low: Low, codes: Codes, shape: tuple[int, int, int, int]) -> Images:
    """The array of NHWC `shape` that `compress` got, but for rounding."""
    return dequantise(codes, shape) + upsample(low, (shape[1], shape[2]))


def moments_of(z: Images) -> Moments:
    """Mean and biased variance of each channel, in float32, in one pass over z."""
    wide = z.astype(jnp.float32)
    mean = jnp.mean(wide, (0, 1, 2))
    square = jnp.mean(wide * wide, (0, 1, 2))
    return {"mean": mean, "variance": jnp.maximum(square - mean * mean, 0.0)}


def deviation_of(moments: Moments) -> Float[Array, " _"]:
    """The reciprocal standard deviation."""
    return lax.rsqrt(moments["variance"] + EPSILON)


def normalise(z: Images, moments: Moments) -> Images:
    """z less its mean, over the standard deviation, in float32."""
    return (z.astype(jnp.float32) - moments["mean"]) * deviation_of(moments)


def plain(
    unit: Unit, x: Images, stride: int, running: Moments | None = None
) -> tuple[Images, Moments]:
    """The unit without compression, which `jax.grad` differentiates; the output is float32.

    Args:
      running: normalises by these moments, as after training; None for those of the batch.
    """
    z = convolve(x, unit["kernel"], stride)
    moments = moments_of(z) if running is None else running
    return normalise(z, moments) * unit["scale"] + unit["bias"], moments


def forward(
    unit: Unit, x: Images, inputs: Codes, stride: int, bits: int
) -> tuple[Images, SavedConvNorm, Moments]:
    """The unit's output in float32, and what its backward pass needs.

    Args:
      inputs: codes of x, from `compress`.
    """
    # Each barrier makes what follows depend on the codes, so that XLA computes them here: left
    # until the backward pass, they would keep x and z alive.
    x, inputs = lax.optimization_barrier((x, inputs))
    z = convolve(x, unit["kernel"], stride)
    moments = moments_of(z)
    codes = quantise(normalise(z, moments).astype(x.dtype), bits)
    z, codes = lax.optimization_barrier((z, codes))
    y = normalise(z, moments) * unit["scale"] + unit["bias"]
    return y, SavedConvNorm(inputs, codes, deviation_of(moments)), moments


def parameter_gradients(
    unit: Unit,
    saved: SavedConvNorm,
    low: Low,
    dy: Images,
    stride: int,
    shape: tuple[int, int, int, int],
) -> tuple[Images, dict[str, Array]]:
    """Gradients of the convolution's output and of the parameters.

    Args:
      low: the low-frequency component of the input, which has NHWC `shape`.
      dy: the gradient of the unit's output.
    """
    dz, gradients = _norm_backward(unit, saved, dy)
    # The input is restored only now, and is dead before the gradient of the input exists.
    dz, low, inputs = lax.optimization_barrier((dz, low, saved.inputs))
    x = decompress(low, inputs, shape)
    dkernel = kernel_gradient(x, dz, stride, unit["kernel"].shape)
    dz, dkernel = lax.optimization_barrier((dz, dkernel))
    return dz, {"kernel": dkernel, **gradients}


def _norm_backward(unit: Unit, saved: SavedConvNorm, dy: Images) -> tuple[Images, dict[str, Array]]:
    """Gradients of the convolution's output, and of scale and bias."""
    wide = dy.astype(jnp.float32)
    normalised = dequantise(saved.normalised, dy.shape).astype(jnp.float32)
    dbias = jnp.sum(wide, (0, 1, 2))
    dscale = jnp.sum(wide * normalised, (0, 1, 2))
    # The codes are read a second time: without the barrier XLA would keep in memory what it
    # restored for the sums.
    codes, dbias, dscale = lax.optimization_barrier((saved.normalised, dbias, dscale))
    normalised = dequantise(codes, dy.shape).astype(jnp.float32)
    count = dy.size // dy.shape[-1]
    centred = wide - dbias / count - normalised * (dscale / count)
    dz = (centred * (unit["scale"] * saved.deviation)).astype(dy.dtype)
    return dz, {"scale": dscale, "bias": dbias}


def relu(y: Images, dtype: Any) -> Images:
    """The ReLU of y, in `dtype`."""
    return jnp.maximum(y, 0.0).astype(dtype)


def relu_and_mask(y: Images, dtype: Any) -> tuple[Images, Mask]:
    """The ReLU of y in `dtype`, and where it is positive."""
    h = relu(y, dtype)
    # What reads h waits for its mask: left until the backward pass, it would keep h alive.
    return lax.optimization_barrier((h, pack_mask(h > 0)))  # type: ignore[no-any-return]


def masked(dy: Images, mask: Mask) -> Images:
    """The gradient of a ReLU's input, from that of its output.

    The barrier makes XLA write it once. Otherwise each of its readers would unpack the mask, or
    read a mask with a byte for each element.
    """
    dx = jnp.where(unpack_mask(mask, dy.shape), dy, jnp.zeros_like(dy))
    return lax.optimization_barrier(dx)  # type: ignore[no-any-return]
