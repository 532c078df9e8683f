"""The layers before the blocks: a 7×7 convolution, batch norm, ReLU and max pooling."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int8

from models.compressed_resnet import conv_norm
from models.compressed_resnet.compression import (
    max_pool_gradient,
    max_pool_with_offsets,
)
from models.compressed_resnet.conv_norm import (
    Low,
    Mask,
    Moments,
    SavedConvNorm,
    Unit,
    activate,
    affine_of,
    compress,
    masked,
    parameter_gradients,
    relu,
)
from models.compressed_resnet.convolution import Images
from models.compressed_resnet.differentiable import differentiable
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


def plain(convolution: Convolution, unit: Unit, images: Images) -> tuple[Images, Moments]:
    """The stem's output and its moments."""
    y, moments = conv_norm.plain(unit, images, convolution.stride)
    return _max_pool(relu(y, images.dtype)), moments


def _max_pool(x: Images) -> Images:
    padding = [(0, 0), (1, 1), (1, 1), (0, 0)]
    pooled: Array = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), padding)
    return pooled


def forward(
    convolution: Convolution,
    bits: Any,
    unit: Unit,
    images: Images,
) -> tuple[Images, SavedStem, Moments]:
    """The stem's output, what its backward pass needs, and the moments of its batch norm."""
    inputs = compress(images, bits)
    z, moments = conv_norm.forward(unit, images, inputs.codes, convolution.stride)
    norm = affine_of(unit, moments)
    h, mask, codes = activate(z, norm, bits)
    saved = SavedConvNorm(inputs.codes, codes, norm.deviation)
    pooled, offsets = lax.optimization_barrier(max_pool_with_offsets(h))
    return pooled, SavedStem(saved, inputs.low, mask, offsets), moments


def backward(
    convolution: Convolution, unit: Unit, saved: SavedStem, dy: Images
) -> tuple[dict[str, Array], None]:
    """Gradients of the parameters; images get none."""
    batch = dy.shape[0]
    dy = max_pool_gradient(dy, saved.offsets, convolution.output_shape(batch))
    # Written once: its two readers would both select gradients of pixels.
    dy = lax.optimization_barrier(masked(dy, saved.mask))
    inputs = convolution.input_shape(batch)
    *_, gradients = parameter_gradients(
        unit, saved.unit, saved.low, None, dy, convolution.stride, inputs
    )
    return gradients, None


# The stem, whose backward pass reads compressed activations.
saving_activations = differentiable(
    plain, forward, lambda convolution, _, *arrays: backward(convolution, *arrays)
)
