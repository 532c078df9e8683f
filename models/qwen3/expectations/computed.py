"""Memory and products of a step, by what computes it: XLA alone, or kernels of ours."""

from collections.abc import Mapping, Sequence

from models.qwen3.argument_bytes import FLOAT32
from models.qwen3.config import Qwen3Config
from models.qwen3.expectations.bounds import (
    CUBLAS,
    ROWS,
    SMALL_BYTES,
    WORKSPACE_BYTES,
    partials,
    up,
)
from models.qwen3.kernels.tiling import NAMELESS, jax_for_hopper, splits_of
from xlapipe.expect import Expectation, GemmCount, KernelCount, Matmul, MatmulsAccounted, TempAtMost

# What a prompt's last layer computes for one token of each sequence alone.
_BEHIND_ATTENTION = ("attention/o_proj", "mlp/gate_up_proj", "mlp/down_proj")


def by_xla(
    config: Qwen3Config, *, batch: int, tokens: int, attended: int
) -> tuple[Expectation, ...]:
    """Memory and products where XLA computes all; `attended` slots are read by attention."""
    return (
        *_temp(config, batch=batch, tokens=tokens, attended=attended),
        *_matmuls(config, batch=batch, tokens=tokens, attended=attended),
    )


def with_decode_kernels(config: Qwen3Config, *, cache_length: int) -> tuple[Expectation, ...]:
    """Memory and kernels of a step of one sequence: five kernels a layer, and the head's."""
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    splits = splits_of(config.num_key_value_heads, cache_length)
    parts = heads * splits * (config.head_dim + 1)
    vectors = 3 * config.hidden_size + config.qkv_size + config.q_size + config.intermediate_size
    return (
        TempAtMost(
            (parts + vectors) * FLOAT32 + SMALL_BYTES,
            because="float32 vectors of one layer, and what each part of attention comes to",
        ),
        GemmCount(0, because="every product with a weight is a kernel's"),
        *_kernel_counts(
            norm_matvec=layers + 1,
            decode_attention=layers,
            matvec_add=2 * layers,
            norm_swiglu=layers,
        ),
    )


def with_prompt_kernels(config: Qwen3Config, *, batch: int, tokens: int) -> tuple[Expectation, ...]:
    """Memory and kernels of prompts: two kernels a layer for attention, products are XLA's.

    What is behind the last layer's attention is computed for one token of each sequence.
    """
    layers = config.num_hidden_layers
    rows = dict.fromkeys(("attention/qkv_proj", *_BEHIND_ATTENTION), batch * tokens)
    last = rows | dict.fromkeys(_BEHIND_ATTENTION, batch)
    return (
        *_temp(config, batch=batch, tokens=tokens, attended=0),
        *_accounted((rows,) * (layers - 1) + (last,), batch=batch),
        *_kernel_counts(split_heads=layers, prefill_attention=layers),
    )


def with_hopper_kernels(config: Qwen3Config, *, batch: int, tokens: int) -> tuple[Expectation, ...]:
    """Memory and products of prompts on Hopper; the products of qkv, gate and up are kernels.

    But in the last layer gate and up are those of one token of each sequence, and XLA's.
    """
    n, d, layers = batch * tokens, config.hidden_size, config.num_hidden_layers
    # Embedded, normed, and as either product left it; queries, what was attended to, activations.
    values = n * (4 * d + 2 * config.q_size + config.intermediate_size) * config.itemsize
    tables = 3 * tokens * config.head_dim * FLOAT32
    rows = {"attention/o_proj": n, "mlp/down_proj": n}
    last = dict.fromkeys(_BEHIND_ATTENTION, batch)
    # Triton may split both products, whose slices are left to their readers.
    bounds = {"cublas": WORKSPACE_BYTES, "triton": 2 * partials(n, d)}
    bounds["auto"] = sum(bounds.values())
    return (
        *(
            TempAtMost(
                values + tables + _added_logits(config, batch) + SMALL_BYTES + bound,
                because="values of one layer, RoPE's angles, what the products need",
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


def _added_logits(config: Qwen3Config, batch: int) -> int:
    """Logits of the rows that cuBLAS is given on top."""
    return up(batch) * config.vocab_size * FLOAT32 if batch % ROWS and batch > 1 else 0


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
    # Each value once as it is computed and, of those that attention reorders, once reordered.
    values = n * (4 * d + config.qkv_size + 4 * config.q_size + 4 * config.kv_size + 3 * f)
    # All queries that read one key/value head are the rows of one gemm. Scores and weights, in
    # float32, and weights in the model's dtype.
    rows = up(tokens * config.queries_per_kv_head)
    scores = batch * config.num_key_value_heads * rows * attended
    layer = values * config.itemsize + scores * (2 * FLOAT32 + config.itemsize)
    layer += n * config.head_dim * FLOAT32 + SMALL_BYTES  # and RoPE's cosines and sines
    on_cublas = WORKSPACE_BYTES + _added_logits(config, batch)
    on_triton = partials(n, config.qkv_size) + partials(n, 2 * f)
    bounds = {
        "cublas": (on_cublas, "values of one layer, workspace, logits of rows added"),
        "triton": (on_triton, "values of one layer, split-K partials of qkv and gate_up"),
        "auto": (on_cublas + on_triton, "values of one layer, as on cuBLAS and as on Triton"),
    }
    return tuple(
        TempAtMost(layer + bound, because=because, under=policy)
        for policy, (bound, because) in bounds.items()
    )


def _matmuls(
    config: Qwen3Config, *, batch: int, tokens: int, attended: int
) -> tuple[Expectation, ...]:
    """Seven matmuls, six of them in each layer.

    A product with one row is a matrix-vector product, which XLA may make a reduction; a sum over
    the one slot that a prompt of one token attends to is no product of matrices at all.
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
    """The matmuls of each layer, by scope with their rows, and the head's."""
    scopes = {
        f"layers_{layer}/{scope}": count
        for layer, rows in enumerate(layers)
        for scope, count in rows.items()
    }
    scopes["lm_head"] = batch
    backends = {"cublas": CUBLAS, "triton": ("triton",), "auto": (*CUBLAS, "triton")}
    return tuple(
        MatmulsAccounted(
            tuple(
                Matmul(
                    scope,
                    backends=(*allowed, "reduce") if count == 1 else allowed,
                    merged_into=0 if one_attended and scope.endswith("/values") else None,
                )
                for scope, count in scopes.items()
            ),
            because="every matmul of the model is found after optimisation",
            under=policy,
        )
        for policy, allowed in backends.items()
    )
