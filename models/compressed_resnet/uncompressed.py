"""Training without compression: the stem and blocks that keep what their backward pass reads.

Derived by `jax.grad`, the gradient of a ReLU is a chain of comparisons, whose results XLA writes
with a byte for each element, and gradients of a batch norm's mean and variance are separate passes.
Written out, a training step at a batch of 256 moves 91 GB instead of 119.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int8

from models.compressed_resnet import bottleneck, stem
from models.compressed_resnet.bottleneck import (
    BlockMoments,
    BlockParameters,
    input_gradient_of,
)
from models.compressed_resnet.compression import max_pool_gradient, max_pool_with_offsets
from models.compressed_resnet.conv_norm import (
    Moments,
    Unit,
    affine_of,
    moments_of,
    norm_gradients,
    relu,
)
from models.compressed_resnet.convolution import Images, convolve, kernel_gradient
from models.compressed_resnet.differentiable import differentiable
from models.compressed_resnet.kernels import Affine
from models.compressed_resnet.sizes import Block, Convolution


class KeptUnit(NamedTuple):
    """Input and output of a convolution, and the moments of the output."""

    x: Images
    z: Images
    moments: Moments

    def norm(self, unit: Unit) -> Affine:
        """The batch norm after the convolution."""
        return affine_of(unit, self.moments)


class KeptBlock(NamedTuple):
    """What the backward pass of a block reads: its units by name, and its output."""

    units: dict[str, KeptUnit]
    out: Images


class KeptStem(NamedTuple):
    """What the backward pass of the stem reads.

    Attributes:
      offsets: which of its 9 inputs each output of max pooling is, 0 to 8.
    """

    unit: KeptUnit
    offsets: Int8[Array, "N _ _ _"]


def _unit_forward(unit: Unit, x: Images, stride: int) -> KeptUnit:
    z = convolve(x, unit["kernel"], stride)
    return KeptUnit(x, z, moments_of(z))


def _relu(y: Float[Array, "N _ _ _"], dtype: Any) -> Images:
    # The barrier makes XLA write it in `dtype` alone: it may skip the rounding, and keep y too.
    return lax.optimization_barrier(relu(y, dtype))  # type: ignore[no-any-return]


def _unit_backward(
    unit: Unit, kept: KeptUnit, dy: Images, stride: int, *, relu_after: bool
) -> tuple[Images, Images, dict[str, Array]]:
    """Gradients, in the order of `norm_gradients`."""

    norm = kept.norm(unit)

    def restore(z: Images, dy: Images) -> tuple[Images, Images]:
        wide = dy.astype(jnp.float32)
        if relu_after:
            # A product: XLA would write what a comparison gives with a byte for each element.
            wide = wide * jnp.maximum(jnp.sign(norm(z)), 0)
        return wide, norm.normalise(z)

    dz, dy, gradients = norm_gradients(unit, norm.deviation, restore, kept.z, dy)
    dkernel = kernel_gradient(kept.x, dz, stride, unit["kernel"].shape)
    return dz, dy, {"kernel": dkernel, **gradients}


def _block_forward(
    block: Block, _bits: Any, parameters: BlockParameters, x: Images
) -> tuple[Images, KeptBlock, BlockMoments]:
    units: dict[str, KeptUnit] = {}

    def unit(name: str, x: Images) -> Float[Array, "N _ _ _"]:
        units[name] = _unit_forward(parameters[name], x, getattr(block, name).stride)
        return units[name].norm(parameters[name])(units[name].z)

    h = _relu(unit("conv1", x), x.dtype)
    y = unit("conv3", _relu(unit("conv2", h), x.dtype))
    out = _relu(y + (x if block.downsample is None else unit("downsample", x)), x.dtype)
    moments = {name: kept.moments for name, kept in units.items()}
    return out, KeptBlock(units, out), moments


def _block_backward(
    block: Block, _bits: Any, parameters: BlockParameters, kept: KeptBlock, dy: Images
) -> tuple[dict[str, dict[str, Array]], Images]:
    gradients: dict[str, dict[str, Array]] = {}

    def unit(name: str, dy: Images, *, relu_after: bool) -> tuple[Images, Images]:
        stride = getattr(block, name).stride
        dz, dy, gradients[name] = _unit_backward(
            parameters[name], kept.units[name], dy, stride, relu_after=relu_after
        )
        return dz, dy

    dy = jnp.where(kept.out > 0, dy, jnp.zeros_like(dy))
    dz, dy = unit("conv3", dy, relu_after=False)
    shortcut = dy
    if block.downsample is not None:
        dshortcut, _ = unit("downsample", dy, relu_after=False)
        shortcut = input_gradient_of(block, parameters, "downsample", dshortcut)
    for name, previous in (("conv3", "conv2"), ("conv2", "conv1")):
        d = input_gradient_of(block, parameters, name, dz)
        dz, _ = unit(previous, d, relu_after=True)
    return gradients, input_gradient_of(block, parameters, "conv1", dz) + shortcut


def _stem_forward(
    convolution: Convolution, _bits: Any, unit: Unit, images: Images
) -> tuple[Images, KeptStem, Moments]:
    kept = _unit_forward(unit, images, convolution.stride)
    h = relu(kept.norm(unit)(kept.z), images.dtype)
    pooled, offsets = lax.optimization_barrier(max_pool_with_offsets(h))
    return pooled, KeptStem(kept, offsets), kept.moments


def _stem_backward(
    convolution: Convolution, _bits: Any, unit: Unit, kept: KeptStem, dy: Images
) -> tuple[dict[str, Array], None]:
    dy = max_pool_gradient(dy, kept.offsets, convolution.output_shape(dy.shape[0]))
    # Written once: its two readers would both select gradients of pixels.
    dy = lax.optimization_barrier(dy)
    *_, gradients = _unit_backward(unit, kept.unit, dy, convolution.stride, relu_after=True)
    return gradients, None


block_layer = differentiable(bottleneck.plain, _block_forward, _block_backward)
stem_layer = differentiable(stem.plain, _stem_forward, _stem_backward)
