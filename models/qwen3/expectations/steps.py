"""Prefill and decode steps of the whole model, with its cache donated."""

from models.qwen3.argument_bytes import (
    FLOAT32,
    INT32,
    cache_bytes,
    cache_leaf_bytes,
    tpu_vector_padding_bytes,
    weight_bytes,
)
from models.qwen3.config import Qwen3Config
from models.qwen3.expectations.computed import (
    by_xla,
    with_batch_kernels,
    with_decode_kernels,
    with_hopper_kernels,
    with_persistent_kernel,
    with_prompt_kernels,
)
from xlapipe.expect import (
    Aliased,
    AllocationOf,
    Expectation,
    NoCopyAbove,
    NoValueOfShape,
    ParameterBytes,
    TrafficAtMost,
)


def prefill(
    config: Qwen3Config,
    *,
    batch: int,
    length: int,
    cache_length: int,
    kernels: bool = False,
    hopper: bool = False,
) -> tuple[Expectation, ...]:
    """Prompts of up to `length` tokens into a cache of `cache_length` slots.

    Args:
      kernels: the step has the kernels for any GPU (`implementation="triton"`).
      hopper: the step has the kernels for Hopper (`implementation="hopper"`).
    """
    if hopper:
        computed = with_hopper_kernels(config, batch=batch, tokens=length)
    elif kernels:
        computed = with_prompt_kernels(config, batch=batch, tokens=length)
    else:
        computed = by_xla(config, batch=batch, tokens=length, attended=length)
    # Logits of one position per sequence are expected, and the embedding is a value too: their
    # shapes must not be forbidden.
    shapes = {(batch, length), (batch * length,)} if length > 1 and batch > 1 else {(length,)}
    return (
        *_model(config, batch=batch, tokens=length, cache_length=cache_length),
        *computed,
        *(
            NoValueOfShape((*dims, config.vocab_size), because="logits of last positions only")
            for dims in sorted(shapes - {(batch,), (config.hidden_size,)})
        ),
    )


def decode(
    config: Qwen3Config,
    *,
    batch: int,
    cache_length: int,
    kernels: bool = False,
    persistent: bool = False,
) -> tuple[Expectation, ...]:
    """One token for each sequence.

    Args:
      kernels: as in `prefill`.
      persistent: the step has the persistent kernel, for a single sequence.
    """
    if persistent:
        computed = with_persistent_kernel(config)
    elif kernels and batch == 1:
        computed = with_decode_kernels(config, cache_length=cache_length)
    elif kernels:
        computed = with_batch_kernels(config, batch=batch, cache_length=cache_length)
    else:
        computed = by_xla(config, batch=batch, tokens=1, attended=cache_length)
    by_xla_alone = not (kernels or persistent)
    return (
        *_model(config, batch=batch, tokens=1, cache_length=cache_length),
        *_padded(config, batch=batch, cache_length=cache_length),
        *computed,
        *(_reads_once(config, cache_length=cache_length) if by_xla_alone and batch == 1 else ()),
    )


def _padded(config: Qwen3Config, *, batch: int, cache_length: int) -> tuple[Expectation, ...]:
    """Arguments of a decode step with the padding of a TPU, if only vectors are padded."""
    widths = (config.hidden_size, config.intermediate_size, config.kv_size, config.head_dim)
    if cache_length % 8 or config.vocab_size % 8 or any(width % 128 for width in widths):
        return ()
    return (
        ParameterBytes(
            weight_bytes(config)
            + cache_bytes(config, batch=batch, cache_length=cache_length)
            + 2 * batch * INT32
            + tpu_vector_padding_bytes(config, batch=batch),
            padded=True,
            because="norms, token ids and positions take whole tiles of 512 B or more",
            under="tpu",
        ),
    )


def _reads_once(config: Qwen3Config, *, cache_length: int) -> tuple[Expectation, ...]:
    """Weights and cache are read once by a step for one sequence, and little else is touched."""
    weights_and_cache = weight_bytes(config) + cache_bytes(
        config, batch=1, cache_length=cache_length
    )
    # The scores of attention are written and read in float32 and in the type of the model.
    scores = config.num_attention_heads * cache_length * 2 * (FLOAT32 + config.itemsize)
    widths = config.hidden_size + config.qkv_size + config.intermediate_size
    activations = config.num_hidden_layers * (scores + 16 * FLOAT32 * widths)
    limit_bytes = weights_and_cache + max(weights_and_cache // 100, activations)
    reason = "weights and cache once; 1 % or the activations on top"
    return tuple(
        TrafficAtMost(limit_bytes, because=reason, under=policy) for policy in ("cublas", "triton")
    )


def _model(
    config: Qwen3Config, *, batch: int, tokens: int, cache_length: int
) -> tuple[Expectation, ...]:
    """Expectations about every step of the whole model; `tokens` new ones per sequence (T)."""
    leaf = cache_leaf_bytes(config, batch=batch, cache_length=cache_length)
    # The step must copy its queries into the axis order of the cache.
    queries = batch * tokens * config.q_size * config.itemsize
    inputs = (batch * tokens + batch) * INT32
    return (
        ParameterBytes(
            weight_bytes(config)
            + cache_bytes(config, batch=batch, cache_length=cache_length)
            + inputs,
            because="weights, cache, token ids, lengths or positions",
        ),
        Aliased("cache", because="every leaf of the cache is donated and written in place"),
        AllocationOf("cache", leaf, because="B K S H itemsize"),
        AllocationOf(
            "out['logits']", batch * config.vocab_size * FLOAT32, because="B V in float32"
        ),
        NoCopyAbove(max(leaf - 1, queries), because="no copy of a cache leaf"),
    )
