"""Temporary memory, gemms and kernels of a step: by XLA alone, or with this package's kernels."""

from collections.abc import Mapping, Sequence

from models.gemm_backends import BACKENDS, CUBLASLT_WORKSPACE_BYTES
from models.qwen3.argument_bytes import FLOAT32
from models.qwen3.config import Qwen3Config
from models.qwen3.expectations.bounds import (
    CUBLAS_ROW_MULTIPLE,
    SMALL_BYTES,
    padded_rows,
    split_k_bytes,
)
from models.qwen3.kernels.all_layers.sizes import CHUNK_SLOTS, Sizes
from models.qwen3.kernels.product_forms import batch_form_of, measured
from models.qwen3.kernels.tiling import (
    NAMELESS,
    jax_for_hopper,
    splits_of,
)
from xlapipe.expect import Expectation, GemmCount, KernelCount, Matmul, MatmulsAccounted, TempAtMost

# The last layer of a prompt computes these for the last token of each sequence only.
_AFTER_ATTENTION = ("attention/o_proj", "mlp/gate_up_proj", "mlp/down_proj")


def by_xla(
    config: Qwen3Config, *, batch: int, tokens: int, attended: int
) -> tuple[Expectation, ...]:
    """Temporary memory and matmuls by XLA alone; attention reads `attended` slots."""
    return (
        *_temp(config, batch=batch, tokens=tokens, attended=attended),
        *_matmuls(config, batch=batch, tokens=tokens, attended=attended),
    )


def with_decode_kernels(config: Qwen3Config, *, cache_length: int) -> tuple[Expectation, ...]:
    """Temporary memory and kernels of a decode step: five kernels per layer, and the head's."""
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    by_head = measured(config)
    attended = heads if by_head else config.num_key_value_heads
    splits = splits_of(attended, cache_length, by_head=by_head)
    parts = heads * splits * (config.head_dim + 1)
    vectors = 3 * config.hidden_size + config.qkv_size + config.q_size + config.intermediate_size
    return (
        TempAtMost(
            (parts + vectors) * FLOAT32 + SMALL_BYTES,
            because="float32 vectors of one layer, and each program's part of attention",
        ),
        GemmCount(0, because="kernels compute every product with a weight"),
        *_kernel_counts(
            norm_matvec=layers + 1,
            decode_attention=layers,
            matvec_add=2 * layers,
            norm_swiglu=layers,
        ),
    )


def with_batch_kernels(
    config: Qwen3Config, *, batch: int, cache_length: int
) -> tuple[Expectation, ...]:
    """Temporary memory and kernels of a decode step of several sequences: five kernels per layer.

    XLA computes the norms and the output head.
    """
    layers, d = config.num_hidden_layers, config.hidden_size
    heads, f = config.num_attention_heads, config.intermediate_size
    attention_splits = splits_of(batch * config.num_key_value_heads, cache_length)
    # Float32: partial sums of three products, and each program's part of attention.
    sums = sum(
        batch_form_of(shape).splits * shape[0]
        for shape in ((config.qkv_size, d), (d, config.q_size), (d, f))
    )
    sums += heads * attention_splits * (config.head_dim + 1) + 4 * config.head_dim
    # The residual stream, before and after, and its norm; attention's output, activations.
    values = (3 * d + config.q_size + f) * config.itemsize
    layer = batch * (sums * FLOAT32 + values) + SMALL_BYTES + _padded_logits(config, batch)
    on_cublas, on_triton = CUBLASLT_WORKSPACE_BYTES, split_k_bytes(batch, config.vocab_size)
    bounds = {"cublas": on_cublas, "triton": on_triton}
    bounds["auto"] = bounds["tpu"] = on_cublas + on_triton
    return (
        *(
            TempAtMost(
                layer + bound,
                because="partial sums and values of one layer, the output head's own memory",
                under=policy,
            )
            for policy, bound in bounds.items()
        ),
        *_accounted(({},) * layers, batch=batch),
        *_kernel_counts(
            batch_product=3 * layers,
            batch_attention=layers,
            batch_swiglu=layers,
        ),
    )


def with_persistent_kernel(config: Qwen3Config) -> tuple[Expectation, ...]:
    """Temporary memory and kernels of a decode step: one kernel for all layers, and the head's.

    It reads the model's weights where they are: temporary memory has no copy of them.
    """
    return (
        TempAtMost(
            Sizes(config, CHUNK_SLOTS).exchange_bytes + config.hidden_size * FLOAT32 + SMALL_BYTES,
            because="packets between blocks, and the residual stream after the layers",
        ),
        GemmCount(0, because="kernels compute every product with a weight"),
        KernelCount("decode_layers", 1, because="one kernel for all layers"),
        KernelCount("norm_matvec", 1, because="the output head"),
    )


def with_prompt_kernels(config: Qwen3Config, *, batch: int, tokens: int) -> tuple[Expectation, ...]:
    """Temporary memory, matmuls and kernels of prompts: two kernels per layer for attention.

    After the last layer's attention, only one token of each sequence is computed.
    """
    layers = config.num_hidden_layers
    rows = dict.fromkeys(("attention/qkv_proj", *_AFTER_ATTENTION), batch * tokens)
    last = rows | dict.fromkeys(_AFTER_ATTENTION, batch)
    return (
        *_temp(config, batch=batch, tokens=tokens, attended=0),
        *_accounted((rows,) * (layers - 1) + (last,), batch=batch),
        *_kernel_counts(split_heads=layers, prefill_attention=layers),
    )


def with_hopper_kernels(config: Qwen3Config, *, batch: int, tokens: int) -> tuple[Expectation, ...]:
    """Temporary memory, matmuls and kernels of prompts on Hopper; kernels compute qkv, gate and up.

    In the last layer, XLA computes gate and up, for one token of each sequence.
    """
    n, d, layers = batch * tokens, config.hidden_size, config.num_hidden_layers
    # The residual stream before, between and after both additions, and its norm; queries,
    # attention's output, activations.
    values = n * (4 * d + 2 * config.q_size + config.intermediate_size) * config.itemsize
    tables = 3 * tokens * config.head_dim * FLOAT32
    rows = {"attention/o_proj": n, "mlp/down_proj": n}
    last = dict.fromkeys(_AFTER_ATTENTION, batch)
    # Triton may use split-K for both products; the readers of the slices sum them.
    bounds = {"cublas": CUBLASLT_WORKSPACE_BYTES, "triton": 2 * split_k_bytes(n, d)}
    bounds["auto"] = bounds["tpu"] = sum(bounds.values())
    return (
        *(
            TempAtMost(
                values + tables + _padded_logits(config, batch) + SMALL_BYTES + bound,
                because="values of one layer, RoPE's angles, the gemms' own memory",
                under=policy,
            )
            for policy, bound in bounds.items()
        ),
        *_accounted((rows,) * (layers - 1) + (last,), batch=batch),
        *_kernel_counts(
            **{
                "prompt_heads" if jax_for_hopper() else NAMELESS: layers,
                "hopper_attention": layers,
                "prompt_swiglu": layers - 1,
            }
        ),
    )


def _padded_logits(config: Qwen3Config, batch: int) -> int:
    """Bytes of the logits with padded rows, if cuBLAS needs padding."""
    if batch == 1 or batch % CUBLAS_ROW_MULTIPLE == 0:
        return 0
    return padded_rows(batch) * config.vocab_size * FLOAT32


def _kernel_counts(**counts: int) -> tuple[Expectation, ...]:
    return tuple(
        KernelCount(name, count, because="the same kernels in every layer")
        for name, count in counts.items()
    )


def _temp(
    config: Qwen3Config, *, batch: int, tokens: int, attended: int
) -> tuple[Expectation, ...]:
    """Bounds on temporary memory: all values of one layer, and what each policy adds."""
    n = batch * tokens
    d, f = config.hidden_size, config.intermediate_size
    # Each value once as computed, and once more if attention reorders it.
    values = n * (4 * d + config.qkv_size + 4 * config.q_size + 4 * config.kv_size + 3 * f)
    # All queries that read one key/value head are the rows of one gemm. Scores and weights in
    # float32, and weights in the model's dtype.
    rows = padded_rows(tokens * config.queries_per_kv_head)
    scores = batch * config.num_key_value_heads * rows * attended
    layer = values * config.itemsize + scores * (2 * FLOAT32 + config.itemsize)
    layer += n * config.head_dim * FLOAT32 + SMALL_BYTES  # and RoPE's cosines and sines
    on_cublas = CUBLASLT_WORKSPACE_BYTES + _padded_logits(config, batch)
    on_triton = split_k_bytes(n, config.qkv_size) + split_k_bytes(n, 2 * f)
    bounds = {
        "cublas": (on_cublas, "values of one layer, workspace, logits with padded rows"),
        "triton": (on_triton, "values of one layer, split-K partials of qkv and gate_up"),
        "auto": (on_cublas + on_triton, "values of one layer, what cuBLAS and Triton each need"),
        "tpu": (on_cublas + on_triton, "no more than on a GPU"),
    }
    return tuple(
        TempAtMost(layer + bound, because=because, under=policy)
        for policy, (bound, because) in bounds.items()
    )


def _matmuls(
    config: Qwen3Config, *, batch: int, tokens: int, attended: int
) -> tuple[Expectation, ...]:
    """The head's matmul, and six in each layer.

    XLA may turn a product with one row into a reduction. If attention reads a single slot, for a
    prompt of one token, XLA computes no matmul for its values.
    """
    rows = {
        "attention/qkv_proj": batch * tokens,
        "attention/o_proj": batch * tokens,
        "mlp/gate_up_proj": batch * tokens,
        "mlp/down_proj": batch * tokens,
    }
    queries = tokens * config.queries_per_kv_head
    rows["attention/scores"] = queries if attended > 1 else 1
    rows["attention/values"] = queries
    return _accounted((rows,) * config.num_hidden_layers, batch=batch, one_attended=attended == 1)


def _accounted(
    layers: Sequence[Mapping[str, int]], *, batch: int, one_attended: bool = False
) -> tuple[Expectation, ...]:
    """All matmuls are found: those of `layers`, which maps scopes to rows, and the head's."""
    rows_of_scope = {
        f"layers_{layer}/{scope}": count
        for layer, rows in enumerate(layers)
        for scope, count in rows.items()
    }
    rows_of_scope["lm_head"] = batch
    return tuple(
        MatmulsAccounted(
            tuple(
                Matmul(
                    scope,
                    backends=(*backends, "reduce") if rows == 1 else backends,
                    merged_into=0 if one_attended and scope.endswith("/values") else None,
                )
                for scope, rows in rows_of_scope.items()
            ),
            because="every matmul of the model is in the optimised module",
            under=policy,
        )
        for policy, backends in BACKENDS.items()
    )
