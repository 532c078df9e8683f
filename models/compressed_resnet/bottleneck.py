"""A bottleneck block: three convolutions, and a shortcut around them."""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
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
    compress,
    decompress,
    masked,
    relu,
    relu_and_mask,
)
from models.compressed_resnet.convolution import Images, input_gradient
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


def plain(
    block: Block, parameters: BlockParameters, x: Images, running: BlockMoments | None = None
) -> tuple[Images, BlockMoments]:
    """The block without compression, which `jax.grad` differentiates.

    Args:
      running: normalises by these moments, as after training; None for those of the batch.
    """
    moments: dict[str, Moments] = {}

    def unit(name: str, x: Images) -> Images:
        y, moments[name] = conv_norm.plain(
            parameters[name],
            x,
            getattr(block, name).stride,
            None if running is None else running[name],
        )
        return y

    y = unit("conv3", relu(unit("conv2", relu(unit("conv1", x), x.dtype)), x.dtype))
    shortcut = x if block.downsample is None else unit("downsample", x)
    return relu(y + shortcut, x.dtype), moments


def forward(
    block: Block, bits: int, parameters: BlockParameters, x: Images, compressed: Compressed | None
) -> tuple[Images, SavedBlock, BlockMoments]:
    """The block's output, what its backward pass needs, and the moments of its batch norms.

    Args:
      compressed: x compressed, if it is already; None to compress it here.
    """
    saved = SavedBlock({}, {}, {})
    moments: dict[str, Moments] = {}

    def unit(name: str, x: Images, compressed: Compressed) -> Images:
        stride = getattr(block, name).stride
        y, saved.units[name], moments[name] = conv_norm.forward(
            parameters[name], x, compressed.codes, stride, bits
        )
        return y

    first = compress(x, bits) if compressed is None else compressed
    saved.low["conv1"] = first.low
    y = unit("conv1", x, first)
    shortcut = x if block.downsample is None else unit("downsample", x, first)
    for name in ("conv2", "conv3"):
        h, saved.masks[f"before_{name}"] = relu_and_mask(y, x.dtype)
        inputs = compress(h, bits)
        saved.low[name] = inputs.low
        y = unit(name, h, inputs)
    out, saved.masks["out"] = relu_and_mask(y + shortcut, x.dtype)
    return out, saved, moments


def backward(
    block: Block, parameters: BlockParameters, saved: SavedBlock, dy: Images
) -> tuple[Images, dict[str, dict[str, Array]]]:
    """Gradients of the block's input and of its parameters."""
    gradients: dict[str, dict[str, Array]] = {}

    def unit(name: str, dy: Images) -> Images:
        """The gradient of a convolution's output."""
        dz, gradients[name] = conv_norm.parameter_gradients(
            parameters[name],
            saved.units[name],
            saved.low["conv1" if name == "downsample" else name],
            dy,
            getattr(block, name).stride,
            getattr(block, name).input_shape(dy.shape[0]),
        )
        return dz

    def input_of(name: str, dz: Images) -> Images:
        """The gradient of a convolution's input, from that of its output."""
        convolution = getattr(block, name)
        shape = convolution.input_shape(dz.shape[0])
        return input_gradient(dz, parameters[name]["kernel"], convolution.stride, shape)

    dy = masked(dy, saved.masks["out"])
    d = input_of("conv3", unit("conv3", dy))
    d = input_of("conv2", unit("conv2", masked(d, saved.masks["before_conv3"])))
    dz = unit("conv1", masked(d, saved.masks["before_conv2"]))
    # The shortcut waits for the other path, so that only one of them needs memory. The last
    # convolution adds its result to the shortcut's gradient.
    dz, dy = lax.optimization_barrier((dz, dy))
    shortcut = dy
    if block.downsample is not None:
        shortcut = input_of("downsample", unit("downsample", dy))
        dz, shortcut = lax.optimization_barrier((dz, shortcut))
    return input_of("conv1", dz) + shortcut, gradients


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def saving_activations(
    block: Block, bits: int, parameters: BlockParameters, x: Images
) -> tuple[Images, BlockMoments]:
    """The block, whose backward pass reads compressed activations of each layer."""
    return plain(block, parameters, x)


def _activations_forward(
    block: Block, bits: int, parameters: BlockParameters, x: Images
) -> tuple[tuple[Images, BlockMoments], tuple[BlockParameters, SavedBlock]]:
    y, saved, moments = forward(block, bits, parameters, x, None)
    return (y, moments), (parameters, saved)


def _activations_backward(
    block: Block,
    bits: int,
    residuals: tuple[BlockParameters, SavedBlock],
    gradients: tuple[Images, BlockMoments],
) -> tuple[dict[str, dict[str, Array]], Images]:
    dy, _ = gradients
    # The barrier keeps XLA from computing upsampled components once for both passes, and from
    # restoring activations before the gradient of the block's output is there.
    (parameters, saved), dy = lax.optimization_barrier((residuals, dy))
    dx, of_parameters = backward(block, parameters, saved, dy)
    return of_parameters, dx


saving_activations.defvjp(_activations_forward, _activations_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def saving_input(
    block: Block, bits: int, parameters: BlockParameters, x: Images
) -> tuple[Images, BlockMoments]:
    """The block, whose backward pass computes its layers again from the compressed input."""
    return plain(block, parameters, x)


def _input_forward(
    block: Block, bits: int, parameters: BlockParameters, x: Images
) -> tuple[tuple[Images, BlockMoments], tuple[BlockParameters, Compressed]]:
    # Codes before layers, so that only this block's activations are alive; and x and y in bfloat16:
    # XLA may skip the rounding between blocks and keep them in float32.
    x, compressed = lax.optimization_barrier((x, compress(x, bits)))
    y, moments = plain(block, parameters, x)
    return (lax.optimization_barrier(y), moments), (parameters, compressed)


def _input_backward(
    block: Block,
    bits: int,
    residuals: tuple[BlockParameters, Compressed],
    gradients: tuple[Images, BlockMoments],
) -> tuple[dict[str, dict[str, Array]], Images]:
    dy, _ = gradients
    (parameters, compressed), dy = lax.optimization_barrier((residuals, dy))
    return input_backward(block, bits, parameters, compressed, dy)


def input_backward(
    block: Block, bits: int, parameters: BlockParameters, compressed: Compressed, dy: Images
) -> tuple[dict[str, dict[str, Array]], Images]:
    """Gradients of the parameters and of the input, from the compressed input alone.

    The layers are computed again and their activations compressed, so that no two of them need
    memory at once.
    """
    x = decompress(compressed.low, compressed.codes, block.conv1.input_shape(dy.shape[0]))
    _, saved, _ = forward(block, bits, parameters, x, compressed)
    saved, dy = lax.optimization_barrier((saved, dy))
    dx, of_parameters = backward(block, parameters, saved, dy)
    return of_parameters, dx


saving_input.defvjp(_input_forward, _input_backward)
