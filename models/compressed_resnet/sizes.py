"""Configuration, shapes and bytes of the network. Imports no jax: expectations do not need it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import gcd, prod
from typing import Any, Literal, TypeVar

BFLOAT16 = 2
FLOAT32 = 4
INT32 = 4
# Elements that share a scale and a minimum.
GROUP = 512
# Edge of the squares that the low-frequency component averages.
POOL = 3
# Most groups whose sums for a batch norm's gradient a program adds.
SUMMED_GROUPS = 32
# Channels of a block's output, per channel of its 3×3 convolution.
EXPANSION = 4

# Name scopes of the three kinds of convolutions.
CONVOLUTION = "convolution"
INPUT_GRADIENT = "input_gradient"
KERNEL_GRADIENT = "kernel_gradient"

# An array: jax's, a tracer, or a ShapeDtypeStruct.
_Images = TypeVar("_Images", bound=Any)

Save = Literal["activations", "block_inputs"]


@dataclass(frozen=True, kw_only=True)
class ResNetConfig:
    """A ResNet v1.5 of bottleneck blocks; the defaults are ResNet-50 for ImageNet.

    Attributes:
      blocks: number of blocks of each stage. (3, 4, 6, 3), (3, 4, 23, 3) and (3, 8, 36, 3) are
        ResNet-50, 101 and 152.
      width: channels of the stem, and of the 3×3 convolutions of the first stage.
      classes: number of classes.
      image: rows and columns of an image.
      bits: 2, 4 or 8 bits for each saved element; None for training without compression.
      save: what the forward pass keeps for the backward pass: the `activations` of each layer, or,
        without `bits`, only `block_inputs`: `jax.checkpoint` around each block.
    """

    blocks: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    classes: int = 1000
    image: int = 224
    bits: int | None = 2
    save: Save = "activations"

    def __post_init__(self) -> None:
        if self.bits not in (None, 2, 4, 8):
            raise ValueError(f"bits must be 2, 4, 8 or None, not {self.bits!r}")
        if self.save not in ("activations", "block_inputs"):
            raise ValueError(f"save must be 'activations' or 'block_inputs', not {self.save!r}")
        if self.bits is not None and self.save == "block_inputs":
            raise ValueError("save='block_inputs' trains without compression; fix: bits=None")
        if not self.blocks or min(self.blocks) < 1:
            raise ValueError(f"blocks must name at least 1 block for each stage, not {self.blocks}")
        for name in ("width", "classes", "image"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")

    @property
    def features(self) -> int:
        """Channels of the last block's output."""
        return EXPANSION * (self.width << (len(self.blocks) - 1))


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """One convolution, which batch norm follows.

    Attributes:
      inputs, outputs: channels.
      kernel: rows and columns of the kernel.
      size: rows and columns of the input.
    """

    inputs: int
    outputs: int
    kernel: int
    stride: int
    size: int

    @property
    def output_size(self) -> int:
        """Rows and columns of the output."""
        return (self.size + 2 * (self.kernel // 2) - self.kernel) // self.stride + 1

    @property
    def kernel_shape(self) -> tuple[int, int, int, int]:
        """OHWI."""
        return self.outputs, self.kernel, self.kernel, self.inputs

    def input_shape(self, batch: int) -> tuple[int, int, int, int]:
        """NHWC."""
        return batch, self.size, self.size, self.inputs

    def output_shape(self, batch: int) -> tuple[int, int, int, int]:
        """NHWC."""
        return batch, self.output_size, self.output_size, self.outputs


@dataclass(frozen=True, kw_only=True)
class Block:
    """The convolutions of a bottleneck block: 1×1, 3×3 with the stride, 1×1, and the shortcut's.

    Attributes:
      downsample: the 1×1 convolution of the shortcut; None where the shortcut is the input itself.
    """

    conv1: Convolution
    conv2: Convolution
    conv3: Convolution
    downsample: Convolution | None

    @property
    def convolutions(self) -> tuple[Convolution, ...]:
        """All of them."""
        shortcut = () if self.downsample is None else (self.downsample,)
        return self.conv1, self.conv2, self.conv3, *shortcut

    @property
    def names(self) -> tuple[str, ...]:
        """Their names, in the order of `convolutions`."""
        return ("conv1", "conv2", "conv3", "downsample")[: len(self.convolutions)]


def stem(config: ResNetConfig) -> Convolution:
    """The first convolution, 7×7 with stride 2."""
    return Convolution(inputs=3, outputs=config.width, kernel=7, stride=2, size=config.image)


def checked_images(config: ResNetConfig, images: _Images) -> _Images:
    """The array of images, if it has the shape that the config states: NHWC, with 3 channels.

    Raises:
      ValueError: it has another shape.
    """
    _, *expected = stem(config).input_shape(0)
    if len(images.shape) != 4 or list(images.shape[1:]) != expected:
        raise ValueError(
            f"images: expected an array [N, {', '.join(map(str, expected))}], with channels last; "
            f"found {list(images.shape)}; fix: transpose or resize the images, or set `image` of "
            "the config"
        )
    return images


def pooled_size(config: ResNetConfig) -> int:
    """Rows and columns after the stem's max pooling, 3×3 with stride 2 and padding 1."""
    return (stem(config).output_size - 1) // 2 + 1


def blocks(config: ResNetConfig) -> tuple[Block, ...]:
    """The blocks, in the order in which they run."""
    return tuple(_blocks(config))


def _blocks(config: ResNetConfig) -> Iterator[Block]:
    channels, size = config.width, pooled_size(config)
    for stage, count in enumerate(config.blocks):
        width = config.width << stage
        for index in range(count):
            # The first block of a stage halves the image, except in the first stage.
            stride = 2 if stage and not index else 1
            conv1 = Convolution(inputs=channels, outputs=width, kernel=1, stride=1, size=size)
            conv2 = Convolution(inputs=width, outputs=width, kernel=3, stride=stride, size=size)
            after = conv2.output_size
            outputs = EXPANSION * width
            conv3 = Convolution(inputs=width, outputs=outputs, kernel=1, stride=1, size=after)
            shortcut = Convolution(
                inputs=channels, outputs=outputs, kernel=1, stride=stride, size=size
            )
            yield Block(
                conv1=conv1, conv2=conv2, conv3=conv3, downsample=None if index else shortcut
            )
            channels, size = outputs, after


def convolutions(config: ResNetConfig) -> tuple[Convolution, ...]:
    """All convolutions."""
    return (
        stem(config),
        *(convolution for block in blocks(config) for convolution in block.convolutions),
    )


def parameter_count(config: ResNetConfig) -> int:
    """Kernels, scales and biases of batch norms, and the classifier, which has no bias."""
    kernels = sum(prod(convolution.kernel_shape) for convolution in convolutions(config))
    return kernels + 2 * norm_channels(config) + config.features * config.classes


def norm_channels(config: ResNetConfig) -> int:
    """Channels of all batch norms together."""
    return sum(convolution.outputs for convolution in convolutions(config))


def code_bytes(elements: int, bits: int) -> int:
    """Codes of `elements` values, and the scale and minimum of each group."""
    return groups(elements) * (GROUP * bits // 8 + 2 * BFLOAT16)


def mask_bytes(elements: int) -> int:
    """One bit for each of `elements` values, in whole groups."""
    return groups(elements) * GROUP // 8


def groups(elements: int) -> int:
    """Groups of 512 that hold `elements` values; the last may be partly used."""
    return -(-elements // GROUP)


def low_bytes(shape: tuple[int, int, int, int]) -> int:
    """The low-frequency component of an array of NHWC `shape`: one byte per average."""
    batch, height, width, channels = shape
    return batch * (height // POOL) * (width // POOL) * channels


def input_bytes(convolution: Convolution, batch: int, bits: int) -> int:
    """What is saved of a convolution's input: codes and the low-frequency component."""
    shape = convolution.input_shape(batch)
    return code_bytes(prod(shape), bits) + low_bytes(shape)


def saved_bytes(config: ResNetConfig, batch: int) -> int:
    """What the forward pass keeps of `batch` images for the backward pass.

    Not counted: reciprocal deviations of batch norms (4 B per channel), parameters.

    Raises:
      ValueError: the config has no `bits`: XLA decides what training without compression keeps.
    """
    if config.bits is None:
        raise ValueError("saved_bytes needs bits: expected 2, 4 or 8, found None")
    features = code_bytes(batch * config.features, config.bits)
    of_blocks = sum(_block_bytes(block, batch, config.bits) for block in blocks(config))
    return _stem_bytes(config, batch, config.bits) + of_blocks + features


def differentiation_bytes(config: ResNetConfig, batch: int, activations: int) -> int:
    """The most that the backward pass of a block needs, over the blocks.

    That is what the block and the layers before it saved, and `activations` arrays of the block's
    largest activation in bfloat16.

    Raises:
      ValueError: the config has no `bits`.
    """
    if config.bits is None:
        raise ValueError("differentiation_bytes needs bits: expected 2, 4 or 8, found None")
    saved = _stem_bytes(config, batch, config.bits)
    most = 0
    for block in blocks(config):
        saved += _block_bytes(block, batch, config.bits)
        most = max(most, saved + activations * _largest_bytes(block.convolutions, batch))
    return most


def _stem_bytes(config: ResNetConfig, batch: int, bits: int) -> int:
    """What the stem saves: its input, its output and the offsets of max pooling."""
    offsets = pooled_size(config) ** 2 * batch * config.width
    return (
        input_bytes(stem(config), batch, bits) + _output_bytes(stem(config), batch, bits) + offsets
    )


def _block_bytes(block: Block, batch: int, bits: int) -> int:
    """What a block saves; the shortcut's convolution shares conv1's low-frequency component."""
    main = (block.conv1, block.conv2, block.conv3)
    saved = sum(
        input_bytes(convolution, batch, bits) + _output_bytes(convolution, batch, bits)
        for convolution in main
    )
    if block.downsample is None:
        return saved
    return (
        saved
        + code_bytes(prod(block.downsample.input_shape(batch)), bits)
        + code_bytes(prod(block.downsample.output_shape(batch)), bits)
    )


def _output_bytes(convolution: Convolution, batch: int, bits: int) -> int:
    """Codes of the normalised output, and the mask of the ReLU after it."""
    elements = prod(convolution.output_shape(batch))
    return code_bytes(elements, bits) + mask_bytes(elements)


def partial_sums_bytes(shape: tuple[int, ...]) -> int:
    """Sums for a batch norm's gradient of NHWC `shape` that XLA adds: two of each program."""
    channels = shape[-1]
    periods = max(1, channels // GROUP)
    count = groups(prod(shape)) // periods
    return count // gcd(count, SUMMED_GROUPS) * periods * 2 * min(channels, GROUP) * FLOAT32


def largest_activation_bytes(config: ResNetConfig, batch: int) -> int:
    """The largest input or output of a convolution, in bfloat16."""
    return _largest_bytes(convolutions(config), batch)


def _largest_bytes(layers: Iterable[Convolution], batch: int) -> int:
    return BFLOAT16 * max(
        prod(shape)
        for layer in layers
        for shape in (layer.input_shape(batch), layer.output_shape(batch))
    )
