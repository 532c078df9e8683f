"""A bottleneck block: three convolutions, and a shortcut around them."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from jax import lax
from jaxtyping import Array

from models.compressed_resnet import conv_norm
from models.compressed_resnet.conv_norm import (
    Compressed,
    Low,
    Mask,
    Moments,
    SavedConvNorm,
    Unit,
    activate,
    affine_of,
    compress,
    normalised_codes,
    relu,
)
from models.compressed_resnet.convolution import Images, input_gradient
from models.compressed_resnet.differentiable import differentiable
from models.compressed_resnet.kernels import Affine
from models.compressed_resnet.sizes import Block

# Parameters of a block, by the names of its convolutions.
BlockParameters: TypeAlias = Mapping[str, Unit]
BlockMoments: TypeAlias = Mapping[str, Moments]


class SavedBlock(NamedTuple):
    """What the backward pass of a block needs.

    Attributes:
      units: of each convolution and its batch norm, by name.
      low: low-frequency components of the inputs of conv1, conv2 and conv3. The shortcut's
        convolution has conv1's input.
      masks: where the ReLU after conv1, conv2 and the sum with the shortcut is positive.
    """

    units: dict[str, SavedConvNorm]
    low: dict[str, Low]
    masks: dict[str, Mask]


def plain(block: Block, parameters: BlockParameters, x: Images) -> tuple[Images, BlockMoments]:
    """The block's output and its moments."""
    moments: dict[str, Moments] = {}

    def unit(name: str, x: Images) -> Images:
        y, moments[name] = conv_norm.plain(parameters[name], x, getattr(block, name).stride)
        return y

    y = unit("conv3", relu(unit("conv2", relu(unit("conv1", x), x.dtype)), x.dtype))
    shortcut = x if block.downsample is None else unit("downsample", x)
    return relu(y + shortcut, x.dtype), moments


def forward(
    block: Block,
    bits: Any,
    parameters: BlockParameters,
    x: Images,
) -> tuple[Images, SavedBlock, BlockMoments]:
    """The block's output, what its backward pass needs, and the moments of its batch norms."""
    saved = SavedBlock({}, {}, {})
    moments: dict[str, Moments] = {}

    def convolved(name: str, x: Images, inputs: Compressed) -> tuple[Images, Affine]:
        stride = getattr(block, name).stride
        z, moments[name] = conv_norm.forward(parameters[name], x, inputs.codes, stride)
        return z, affine_of(parameters[name], moments[name])

    def unit(name: str, x: Images, inputs: Compressed, *shortcut: Any) -> tuple[Images, Mask]:
        z, norm = convolved(name, x, inputs)
        h, mask, codes = activate(z, norm, bits, *shortcut)
        saved.units[name] = SavedConvNorm(inputs.codes, codes, norm.deviation)
        return h, mask

    first = compress(x, bits)
    saved.low["conv1"] = first.low
    h, saved.masks["before_conv2"] = unit("conv1", x, first)
    shortcut, shortcut_norm = x, None
    if block.downsample is not None:
        shortcut, shortcut_norm = convolved("downsample", x, first)
        shortcut, codes = normalised_codes(shortcut, shortcut_norm, bits)
        saved.units["downsample"] = SavedConvNorm(first.codes, codes, shortcut_norm.deviation)
    inputs = compress(h, bits)
    saved.low["conv2"] = inputs.low
    h, saved.masks["before_conv3"] = unit("conv2", h, inputs)
    inputs = compress(h, bits)
    saved.low["conv3"] = inputs.low
    out, saved.masks["out"] = unit("conv3", h, inputs, shortcut, shortcut_norm)
    return out, saved, moments


def backward(
    block: Block, parameters: BlockParameters, saved: SavedBlock, dy: Images
) -> tuple[dict[str, dict[str, Array]], Images]:
    """Gradients of the block's parameters and of its input."""
    gradients: dict[str, dict[str, Array]] = {}

    def unit(
        name: str, dy: Images, mask: Mask | None = None, *, keep_masked: bool = False
    ) -> tuple[Images, Images]:
        """The gradient of a convolution's output; and dy, for readers after this unit."""
        dz, dy, gradients[name] = conv_norm.parameter_gradients(
            parameters[name],
            saved.units[name],
            saved.low["conv1" if name == "downsample" else name],
            mask,
            dy,
            getattr(block, name).stride,
            getattr(block, name).input_shape(dy.shape[0]),
            keep_masked=keep_masked,
        )
        return dz, dy

    dz, dy = unit("conv3", dy, saved.masks["out"], keep_masked=True)
    d = input_gradient_of(block, parameters, "conv3", dz)
    dz, _ = unit("conv2", d, saved.masks["before_conv3"])
    d = input_gradient_of(block, parameters, "conv2", dz)
    dz, _ = unit("conv1", d, saved.masks["before_conv2"])
    # The shortcut waits for the other path, so that only one of them needs memory. The last
    # convolution adds its result to the shortcut's gradient.
    dz, dy = lax.optimization_barrier((dz, dy))
    shortcut = dy
    if block.downsample is not None:
        shortcut = input_gradient_of(block, parameters, "downsample", unit("downsample", dy)[0])
        dz, shortcut = lax.optimization_barrier((dz, shortcut))
    return gradients, input_gradient_of(block, parameters, "conv1", dz) + shortcut


def input_gradient_of(block: Block, parameters: BlockParameters, name: str, dz: Images) -> Images:
    """The gradient of a convolution's input, from that of its output."""
    convolution = getattr(block, name)
    shape = convolution.input_shape(dz.shape[0])
    return input_gradient(dz, parameters[name]["kernel"], convolution.stride, shape)


# The block, whose backward pass reads compressed activations of each layer.
saving_activations = differentiable(
    plain, forward, lambda block, _, *arrays: backward(block, *arrays)
)
