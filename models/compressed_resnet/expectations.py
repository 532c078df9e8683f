"""Expectations about the plans, in closed form from the sizes. Imports no jax. Sizes are bytes."""

from collections.abc import Iterator
from math import prod

from models.compressed_resnet.sizes import (
    BFLOAT16,
    CONVOLUTION,
    FLOAT32,
    GROUP,
    INPUT_GRADIENT,
    INT32,
    KERNEL_GRADIENT,
    ResNetConfig,
    convolutions,
    differentiation_bytes,
    groups,
    largest_activation_bytes,
    norm_channels,
    parameter_count,
    partial_sums_bytes,
    saved_bytes,
    stem,
)
from models.gemm_backends import CUBLASLT_WORKSPACE_BYTES
from xlapipe.expect import (
    ConvolutionCount,
    Donated,
    Expectation,
    GemmCount,
    LaunchesAtMost,
    LeavesTotal,
    NotAliased,
    NoValueAbove,
    ParameterBytes,
    TempAtMost,
    ValuesOfShapeAtMost,
)

# Kernels for each convolution with its batch norm, ReLU, codes and masks; for SGD one more; and
# those of the stem's pooling and of the head. Two of each are third passes of sums of channels,
# which XLA adds at batches of thousands.
FORWARD_LAUNCHES, BACKWARD_LAUNCHES, OTHER_LAUNCHES = 16, 14, 60
# Scalars, tables of tuples, statistics of channels, and padding of each value to 128 bytes.
SMALL_BYTES = 4 * 2**20


def forward(config: ResNetConfig, batch: int) -> tuple[Expectation, ...]:
    """The forward pass: logits and residuals."""
    return (
        ParameterBytes(
            parameter_count(config) * FLOAT32 + _image_bytes(config, batch),
            because="parameters and images",
        ),
        NotAliased(because="nothing is donated"),
        _residuals("out[1]", config, batch),
        *_convolutions(config, forward=1, gradients=0),
        GemmCount(1, because="the classifier"),
        *_no_wide_values(config, batch),
        _launches(config, FORWARD_LAUNCHES),
        _temp(config, batch, 3, 0, "a convolution's input and output, and a block's shortcut"),
    )


def backward(config: ResNetConfig, batch: int) -> tuple[Expectation, ...]:
    """The backward pass: gradients of the parameters, from donated residuals."""
    logits = batch * config.classes * FLOAT32
    return (
        ParameterBytes(
            _read_parameters(config) * FLOAT32 + _residual_bytes(config, batch) + logits,
            because="parameters that gradients depend on, residuals, the gradient of the logits",
        ),
        _residuals("residuals", config, batch),
        LeavesTotal(
            "out", parameter_count(config) * FLOAT32, because="gradients of all parameters"
        ),
        *_convolutions(config, forward=0, gradients=1),
        GemmCount(2, because="gradients of the classifier's kernel and input"),
        *_no_wide_values(config, batch),
        _launches(config, BACKWARD_LAUNCHES),
        _temp(
            config,
            batch,
            3,
            0,
            "gradients of a block's and a convolution's output, and the convolution's input or "
            "its gradient",
        ),
    )


def train(config: ResNetConfig, batch: int) -> tuple[Expectation, ...]:
    """A step of forward pass, backward pass and SGD with momentum."""
    parameters = parameter_count(config) * FLOAT32
    statistics = 2 * norm_channels(config) * FLOAT32
    images = _image_bytes(config, batch) + batch * INT32
    return (
        ParameterBytes(
            2 * parameters + statistics + images,
            because="parameters, momentum, running statistics, images and labels",
        ),
        Donated(
            "state",
            copies_up_to_bytes=config.features * config.classes * FLOAT32,
            because="the state is updated in place; XLA copies vectors and the classifier's kernel",
        ),
        *(_compressed_train(config, batch) if config.bits is not None else ()),
    )


def _compressed_train(config: ResNetConfig, batch: int) -> tuple[Expectation, ...]:
    return (
        *_convolutions(config, forward=1, gradients=1),
        GemmCount(3, because="the classifier, and gradients of its kernel and input"),
        *_no_wide_values(config, batch),
        _launches(config, FORWARD_LAUNCHES + BACKWARD_LAUNCHES + 1),
        _train_temp(config, batch),
    )


def _train_temp(config: ResNetConfig, batch: int) -> Expectation:
    deviations = norm_channels(config) * FLOAT32
    return _temp(
        config,
        batch,
        0,
        differentiation_bytes(config, batch, activations=3)
        + deviations
        + parameter_count(config) * BFLOAT16,
        "residuals that a block and the blocks before it have not used yet, and "
        "three arrays of the block's largest activation, where they total most; kernels in "
        "bfloat16",
    )


def _read_parameters(config: ResNetConfig) -> int:
    """Parameters that the backward pass reads: no bias, and not the stem's kernel."""
    return parameter_count(config) - norm_channels(config) - prod(stem(config).kernel_shape)


def _image_bytes(config: ResNetConfig, batch: int) -> int:
    return prod(stem(config).input_shape(batch)) * BFLOAT16


def _residual_bytes(config: ResNetConfig, batch: int) -> int:
    """Saved activations, and the reciprocal deviation of each channel."""
    return saved_bytes(config, batch) + norm_channels(config) * FLOAT32


def _residuals(name: str, config: ResNetConfig, batch: int) -> Expectation:
    return LeavesTotal(
        name,
        _residual_bytes(config, batch),
        because="codes, masks, low-frequency components, pooling offsets, deviations",
    )


def _convolutions(config: ResNetConfig, *, forward: int, gradients: int) -> Iterator[Expectation]:
    """Calls of cuDNN: `forward` passes over all convolutions, and `gradients` backward ones."""
    count = len(convolutions(config))
    yield ConvolutionCount(
        count * (forward + 2 * gradients) - gradients, because="no convolution is computed twice"
    )
    yield ConvolutionCount(count * forward, CONVOLUTION, because="one for each unit")
    yield ConvolutionCount(
        (count - 1) * gradients, INPUT_GRADIENT, because="images need no gradient"
    )
    yield ConvolutionCount(count * gradients, KERNEL_GRADIENT, because="one for each kernel")


def _no_wide_values(config: ResNetConfig, batch: int) -> Iterator[Expectation]:
    """No activation in float32 and no mask of a byte per element is in memory."""
    largest = max(convolutions(config), key=lambda item: prod(item.output_shape(batch)))
    shape = largest.output_shape(batch)
    group_count = groups(prod(shape))
    yield NoValueAbove(
        largest_activation_bytes(config, batch), because="activations are bfloat16 or codes"
    )
    parameters_and_features = FLOAT32 * max(
        *(prod(convolution.kernel_shape) for convolution in convolutions(config)),
        batch * config.features,
        batch * _padded(config.classes),
        group_count,
    )
    sums = (partial_sums_bytes(layer.output_shape(batch)) for layer in convolutions(config))
    yield NoValueAbove(
        max(parameters_and_features, *sums),
        "f32",
        because="parameters, features, scales of groups, partial sums; activations are bfloat16",
    )
    yield NoValueAbove(group_count, "pred", because="masks have a bit for each element")
    for dims in (shape, (group_count, GROUP), (group_count, GROUP // 32, 32)):
        yield ValuesOfShapeAtMost(dims, 0, "s8", because="masks have a bit for each element")


def _padded(classes: int) -> int:
    """Columns of the logits as XLA's gemm writes them: a multiple of 8."""
    return -(-classes // 8) * 8


def _launches(config: ResNetConfig, per_layer: int) -> Expectation:
    """Launches in proportion to the layers."""
    return LaunchesAtMost(
        per_layer * len(convolutions(config)) + OTHER_LAUNCHES,
        because=f"{per_layer} for each convolution and what belongs to it",
    )


def _temp(
    config: ResNetConfig, batch: int, activations: int, others: int, because: str
) -> Expectation:
    kernel = FLOAT32 * max(prod(convolution.kernel_shape) for convolution in convolutions(config))
    return TempAtMost(
        others
        + activations * largest_activation_bytes(config, batch)
        + 2 * kernel
        + CUBLASLT_WORKSPACE_BYTES
        + SMALL_BYTES,
        because=f"{because}; a kernel in bfloat16, its gradient; workspace",
    )
