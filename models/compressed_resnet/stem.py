"""The layers before the blocks: a 7×7 convolution, batch norm, ReLU and max pooling."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int8

from models.compressed_resnet import conv_norm
from models.compressed_resnet.compression import (
    max_pool_gradient,
    max_pool_with_offsets,
)
from models.compressed_resnet.conv_norm import (
    Compressed,
    Low,
    Mask,
    Moments,
    SavedConvNorm,
    Unit,
    compress,
    decompress,
    masked,
    parameter_gradients,
    relu,
    relu_and_mask,
)
from models.compressed_resnet.convolution import Images
from models.compressed_resnet.sizes import Convolution


class SavedStem(NamedTuple):
    """What the backward pass of the stem needs.

    Attributes:
      offsets: which of its 9 inputs each output of max pooling is, 0 to 8.
    """

    unit: SavedConvNorm
    low: Low
    mask: Mask
    offsets: Int8[Array, "N _ _ _"]


def plain(
    convolution: Convolution, unit: Unit, images: Images, running: Moments | None = None
) -> tuple[Images, Moments]:
    """The stem without compression, which `jax.grad` differentiates.

    Args:
      running: normalises by these moments, as after training; None for those of the batch.
    """
    y, moments = conv_norm.plain(unit, images, convolution.stride, running)
    return _max_pool(relu(y, images.dtype)), moments


def _max_pool(x: Images) -> Images:
    padding = [(0, 0), (1, 1), (1, 1), (0, 0)]
    pooled: Array = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), padding)
    return pooled


def forward(
    convolution: Convolution, bits: int, unit: Unit, images: Images, compressed: Compressed | None
) -> tuple[Images, SavedStem, Moments]:
    """The stem's output, what its backward pass needs, and the moments of its batch norm.

    Args:
      compressed: the images compressed, if they are already; None to compress them here.
    """
    inputs = compress(images, bits) if compressed is None else compressed
    y, saved, moments = conv_norm.forward(unit, images, inputs.codes, convolution.stride, bits)
    h, mask = relu_and_mask(y, images.dtype)
    pooled, offsets = lax.optimization_barrier(max_pool_with_offsets(h))
    return pooled, SavedStem(saved, inputs.low, mask, offsets), moments


def backward(
    convolution: Convolution, unit: Unit, saved: SavedStem, dy: Images
) -> dict[str, Array]:
    """Gradients of the parameters."""
    batch = dy.shape[0]
    shape = convolution.output_shape(batch)
    dy = max_pool_gradient(dy, saved.offsets, shape)
    inputs = convolution.input_shape(batch)
    dy = masked(dy, saved.mask)
    _, gradients = parameter_gradients(unit, saved.unit, saved.low, dy, convolution.stride, inputs)
    return gradients


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def saving_activations(
    convolution: Convolution, bits: int, unit: Unit, images: Images
) -> tuple[Images, Moments]:
    """The stem, whose backward pass reads compressed activations. Images get no gradient."""
    return plain(convolution, unit, images)


def _activations_forward(
    convolution: Convolution, bits: int, unit: Unit, images: Images
) -> tuple[tuple[Images, Moments], tuple[Unit, SavedStem]]:
    y, saved, moments = forward(convolution, bits, unit, images, None)
    return (y, moments), (unit, saved)


def _activations_backward(
    convolution: Convolution,
    bits: int,
    residuals: tuple[Unit, SavedStem],
    gradients: tuple[Images, Moments],
) -> tuple[dict[str, Array], None]:
    dy, _ = gradients
    (unit, saved), dy = lax.optimization_barrier((residuals, dy))
    return backward(convolution, unit, saved, dy), None


saving_activations.defvjp(_activations_forward, _activations_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def saving_input(
    convolution: Convolution, bits: int, unit: Unit, images: Images
) -> tuple[Images, Moments]:
    """The stem, whose backward pass computes it again from the compressed images."""
    return plain(convolution, unit, images)


def _input_forward(
    convolution: Convolution, bits: int, unit: Unit, images: Images
) -> tuple[tuple[Images, Moments], tuple[Unit, Compressed]]:
    # As in a block.
    images, compressed = lax.optimization_barrier((images, compress(images, bits)))
    y, moments = plain(convolution, unit, images)
    return (lax.optimization_barrier(y), moments), (unit, compressed)


def _input_backward(
    convolution: Convolution,
    bits: int,
    residuals: tuple[Unit, Compressed],
    gradients: tuple[Images, Moments],
) -> tuple[dict[str, Array], None]:
    dy, _ = gradients
    (unit, compressed), dy = lax.optimization_barrier((residuals, dy))
    return input_backward(convolution, bits, unit, compressed, dy), None


def input_backward(
    convolution: Convolution, bits: int, unit: Unit, compressed: Compressed, dy: Images
) -> dict[str, Array]:
    """Gradients of the parameters, from the compressed images alone."""
    images = decompress(compressed.low, compressed.codes, convolution.input_shape(dy.shape[0]))
    _, saved, _ = forward(convolution, bits, unit, images, compressed)
    saved, dy = lax.optimization_barrier((saved, dy))
    return backward(convolution, unit, saved, dy)


saving_input.defvjp(_input_forward, _input_backward)
