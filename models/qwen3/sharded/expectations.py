"""Expectations about plans over many devices, in closed form. Imports no jax.

Sizes are bytes of one device. The main risk of sharded programs is a weight that is gathered for
all layers at once, or outside the loop over layers. Its shape is forbidden, and the bound on
temporary memory fits the gathered weights of one layer only.
"""

from collections.abc import Iterator, Mapping
from math import prod

from models.gemm_backends import CUBLASLT_WORKSPACE_BYTES
from models.qwen3.argument_bytes import FLOAT32, INT32
from models.qwen3.config import Qwen3Config
from models.qwen3.sharded.weight_layout import (
    FSDP,
    QUERIES_AT_ONCE,
    TENSOR,
    TOKENS_AT_ONCE,
    shard_elements,
    weight_layouts,
)
from models.tpu_tiles import tpu_bytes
from xlapipe.expect import (
    AllocationOf,
    Donated,
    Expectation,
    NoValueOfShape,
    ParameterBytes,
    TempAtMost,
)

# Weights, and the two moments of AdamW.
FLOAT32_COPIES = 3
# Forward values of a layer, recomputed in the backward pass, and their gradients.
VALUES_AND_GRADIENTS = 2
# Allows for gemm workspaces of twice cuBLASLt's largest.
WORKSPACE_BYTES = 2 * CUBLASLT_WORKSPACE_BYTES


def train(
    config: Qwen3Config, mesh: Mapping[str, int], *, batch: int, seq: int
) -> tuple[Expectation, ...]:
    """The training step: `batch` sequences of `seq` tokens over all devices.

    Raises:
      ValueError: a mesh axis does not divide a dimension.
    """
    sequences = _divided("batch", batch, FSDP, mesh)
    tokens = _divided("seq", seq, TENSOR, mesh)
    weights = shard_elements(config, mesh)
    return (
        ParameterBytes(
            FLOAT32_COPIES * weights * FLOAT32 + INT32 + sequences * (seq + tokens) * INT32,
            because="float32 weights and two moments, the step count, token ids and targets",
        ),
        *_on_tpus(config, mesh, sequences=sequences, seq=seq),
        Donated("state", because="weights and optimiser state are updated in place"),
        *_no_whole_stack(config, mesh),
        TempAtMost(
            weights * FLOAT32
            + config.num_hidden_layers * sequences * tokens * config.hidden_size * config.itemsize
            + max(_layer(config, mesh, sequences=sequences, seq=seq), _head(config, mesh))
            + WORKSPACE_BYTES,
            because="all gradients, the residual stream before each layer, values of one layer or "
            "of the head",
            under="cuda",
        ),
    )


def _on_tpus(
    config: Qwen3Config, mesh: Mapping[str, int], *, sequences: int, seq: int
) -> tuple[Expectation, ...]:
    """Arguments, loss and temporary memory of the training step with the padding of a TPU's tiles.

    XLA for TPUs converts the matrices of all layers to the type of the model before the loops over
    layers, and keeps them to the end of both; it does so across an optimization barrier too.
    """
    tokens = seq // mesh[TENSOR]
    shards = [layout.shard_shape(mesh) for layout in weight_layouts(config)]
    weights = sum(tpu_bytes(shard, FLOAT32) for shard in shards)
    converted = sum(tpu_bytes(shard, config.itemsize) for shard in shards if len(shard) > 2)
    inputs = tpu_bytes((sequences, seq), INT32) + tpu_bytes((sequences, tokens), INT32)
    stream = (config.num_hidden_layers, sequences, tokens, config.hidden_size)
    return (
        ParameterBytes(
            FLOAT32_COPIES * weights + tpu_bytes((), INT32) + inputs,
            padded=True,
            because="whole tiles; the step count takes one",
            under="tpu",
        ),
        AllocationOf(
            "out[1]", tpu_bytes((), FLOAT32), because="the loss takes a whole tile", under="tpu"
        ),
        TempAtMost(
            converted
            + tpu_bytes(stream, config.itemsize)
            + max(
                weights + _layer_on_tpus(config, mesh, tokens=sequences * seq),
                _head_on_tpus(config, mesh),
            ),
            because="the matrices of all layers in the type of the model, the residual stream "
            "before each layer; all gradients and values of one layer, or values of the head",
            under="tpu",
        ),
    )


def _divided(name: str, length: int, axis: str, mesh: Mapping[str, int]) -> int:
    if length % mesh[axis]:
        raise ValueError(
            f"{name}={length} is not a multiple of {mesh[axis]}, the size of mesh axis {axis!r}"
        )
    return length // mesh[axis]


def _no_whole_stack(config: Qwen3Config, mesh: Mapping[str, int]) -> Iterator[Expectation]:
    """No value has all layers of a matrix, gathered over one mesh axis or both."""
    matrices = [layout for layout in weight_layouts(config) if len(layout.shape) > 2]
    # The meshes that still split a matrix after it is gathered over `fsdp`, `tensor` or both.
    gathered: tuple[Mapping[str, int], ...] = ({TENSOR: mesh[TENSOR]}, {FSDP: mesh[FSDP]}, {})
    # Excludes shapes that a single layer may have: if the number of layers equals another
    # dimension, a stack of one matrix can have the shape of another matrix.
    of_one_layer = {
        _sorted_dims(matrix.shard_shape(split)[1:])
        for matrix in matrices
        for split in (mesh, *gathered)
    }
    for matrix in matrices:
        shard = matrix.shard_shape(mesh)
        for dims in dict.fromkeys(matrix.shard_shape(split) for split in gathered):
            if prod(dims) > prod(shard) and _sorted_dims(dims) not in of_one_layer:
                yield NoValueOfShape(dims, because=f"{matrix.path} is gathered a layer at a time")


def _sorted_dims(dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(dim for dim in dims if dim != 1))


def _layer(config: Qwen3Config, mesh: Mapping[str, int], *, sequences: int, seq: int) -> int:
    """Bytes of the values in the backward pass of one layer."""
    tensor, itemsize = mesh[TENSOR], config.itemsize
    d, f = config.hidden_size, config.intermediate_size // tensor
    qkv, q = config.qkv_size // tensor, config.q_size // tensor
    gathered = qkv * d + q * d + 3 * f * d
    # Two inputs and two sums of full width, and the values that are split over `tensor`.
    values = sequences * seq * (4 * d + qkv + 3 * q + 4 * f)
    queries = max(QUERIES_AT_ONCE, sequences)
    scores = config.num_attention_heads // tensor * queries * seq
    return VALUES_AND_GRADIENTS * (
        gathered * (itemsize + FLOAT32) + values * itemsize + scores * FLOAT32
    )


def _layer_on_tpus(config: Qwen3Config, mesh: Mapping[str, int], *, tokens: int) -> int:
    """Bytes of the values in the backward pass of one layer: its peak is in the MLP."""
    tensor, itemsize = mesh[TENSOR], config.itemsize
    d, f = config.hidden_size, config.intermediate_size // tensor
    qkv, q = config.qkv_size // tensor, config.q_size // tensor
    gathered = qkv * d + q * d + 3 * f * d
    # Four values of full width; gate and up with their gradients in float32.
    values = (4 * d + qkv + 3 * q) * itemsize + 4 * f * FLOAT32
    return gathered * (itemsize + FLOAT32) + tokens * values


def _head_on_tpus(config: Qwen3Config, mesh: Mapping[str, int]) -> int:
    """Bytes of the table's gradient before and after its conversion, and of the logits."""
    rows = config.vocab_size // mesh[TENSOR]
    logits = max(TOKENS_AT_ONCE, mesh[TENSOR]) * rows * FLOAT32
    return VALUES_AND_GRADIENTS * (rows * config.hidden_size * FLOAT32 + logits)


def _head(config: Qwen3Config, mesh: Mapping[str, int]) -> int:
    """Bytes of the logits of TOKENS_AT_ONCE tokens, and of the gathered table with its gradient."""
    rows = config.vocab_size // mesh[TENSOR]
    logits = max(TOKENS_AT_ONCE, mesh[TENSOR]) * rows * FLOAT32
    table = rows * config.hidden_size * (config.itemsize + FLOAT32)
    return VALUES_AND_GRADIENTS * (logits + table)
