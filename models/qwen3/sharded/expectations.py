"""What must hold of the plans over many devices, in closed form; bytes of one device. No jax.

A weight that is gathered with all its layers at once, or hoisted out of the loop over them, is what
sharded programs fail by: it is forbidden by its shape, and by the bound on temporary memory,
which has room for the gathered weights of one layer.
"""

from collections.abc import Iterator, Mapping
from math import prod

from models.qwen3.argument_bytes import FLOAT32, INT32, cache_leaf_bytes
from models.qwen3.config import Qwen3Config
from models.qwen3.sharded.layout import (
    DATA,
    FSDP,
    QUERIES_AT_ONCE,
    TENSOR,
    TOKENS_AT_ONCE,
    shard_elements,
    weight_layouts,
)
from xlapipe.expect import (
    AllocationOf,
    Donated,
    Expectation,
    NoCopyAbove,
    NoValueOfShape,
    ParameterBytes,
    TempAtMost,
)

# Weights, and the two moments of AdamW.
FLOAT32_COPIES = 3
# Forward values of a layer, computed anew, and their gradients.
COMPUTED = 2
WORKSPACE_BYTES = 64 * 2**20


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
            because="float32 weights and two moments, the count of steps, token ids and targets",
        ),
        Donated("state", because="weights and optimiser state are updated in place"),
        *_no_whole_stack(config, mesh),
        TempAtMost(
            weights * FLOAT32
            + config.num_hidden_layers * sequences * tokens * config.hidden_size * config.itemsize
            + max(_layer(config, mesh, sequences=sequences, seq=seq), _head(config, mesh))
            + WORKSPACE_BYTES,
            because="all gradients, the residual stream before each layer, what one layer or the "
            "head computes",
        ),
    )


def serve(
    config: Qwen3Config, mesh: Mapping[str, int], *, batch: int, cache_length: int
) -> tuple[Expectation, ...]:
    """The decode step: `batch` sequences over all devices.

    Raises:
      ValueError: a mesh axis does not divide a dimension.
    """
    sequences, tensor = _divided("batch", batch, DATA, mesh), mesh[TENSOR]
    weights = shard_elements(config, {TENSOR: tensor}) * config.itemsize
    leaf = cache_leaf_bytes(config, batch=sequences, cache_length=cache_length) // tensor
    # Scores of all slots in float32 and as weights, and what one layer computes.
    rows = max(8, config.queries_per_kv_head)
    scores = sequences * config.num_key_value_heads // tensor * rows * cache_length
    widths = 4 * config.hidden_size + 4 * (config.qkv_size + 2 * config.intermediate_size) // tensor
    logits = sequences * config.vocab_size // tensor * FLOAT32
    return (
        ParameterBytes(
            weights + 2 * config.num_hidden_layers * leaf + 2 * sequences * INT32,
            because="weights, cache, token ids and positions",
        ),
        Donated("cache", because="every leaf of the cache is donated and written in place"),
        AllocationOf("cache", leaf, because="B K S H itemsize over data and tensor"),
        AllocationOf("out['logits']", logits, because="B V in float32 over data and tensor"),
        NoCopyAbove(max(leaf - 1, sequences * widths * FLOAT32), because="no copy of a cache leaf"),
        TempAtMost(
            COMPUTED * (scores * (2 * FLOAT32 + config.itemsize) + sequences * widths * FLOAT32)
            + WORKSPACE_BYTES,
            because="one layer's scores and values",
        ),
    )


def _divided(name: str, length: int, axis: str, mesh: Mapping[str, int]) -> int:
    if length % mesh[axis]:
        raise ValueError(
            f"{name}={length} does not divide into the {mesh[axis]} parts of mesh axis {axis!r}"
        )
    return length // mesh[axis]


def _no_whole_stack(config: Qwen3Config, mesh: Mapping[str, int]) -> Iterator[Expectation]:
    """No value holds all layers of a matrix with one of its cuts, or both, undone."""
    matrices = [each for each in weight_layouts(config) if len(each.shape) > 2]
    undone: tuple[Mapping[str, int], ...] = ({TENSOR: mesh[TENSOR]}, {FSDP: mesh[FSDP]}, {})
    # A stack of as many layers as an axis of a single one is long looks like that one.
    single = [each.shard_shape(left)[1:] for each in matrices for left in (mesh, *undone)]
    known = {tuple(sorted(dim for dim in dims if dim != 1)) for dims in single}
    for weight in matrices:
        shard = weight.shard_shape(mesh)
        for dims in dict.fromkeys(weight.shard_shape(left) for left in undone):
            seen = tuple(sorted(dim for dim in dims if dim != 1))
            if prod(dims) > prod(shard) and seen not in known:
                yield NoValueOfShape(dims, because=f"{weight.path} is gathered a layer at a time")


def _layer(config: Qwen3Config, mesh: Mapping[str, int], *, sequences: int, seq: int) -> int:
    """What the backward pass of one layer computes."""
    tensor, itemsize = mesh[TENSOR], config.itemsize
    d, f = config.hidden_size, config.intermediate_size // tensor
    qkv, q = config.qkv_size // tensor, config.q_size // tensor
    gathered = qkv * d + q * d + 3 * f * d
    # Two inputs and two sums of the whole width, and the cut ones.
    values = sequences * seq * (4 * d + qkv + 3 * q + 4 * f)
    queries = max(QUERIES_AT_ONCE, sequences)
    scores = config.num_attention_heads // tensor * queries * seq
    return COMPUTED * (gathered * (itemsize + FLOAT32) + values * itemsize + scores * FLOAT32)


def _head(config: Qwen3Config, mesh: Mapping[str, int]) -> int:
    """Logits of some tokens, and the tables gathered over D with their gradients."""
    rows = config.vocab_size // mesh[TENSOR]
    logits = max(TOKENS_AT_ONCE, mesh[TENSOR]) * rows * FLOAT32
    table = rows * config.hidden_size * (config.itemsize + FLOAT32)
    return COMPUTED * (logits + table)
