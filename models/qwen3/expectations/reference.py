"""The step of reference dump 003, with and without donation."""

from models.gemm_backends import BACKENDS, CUBLASLT_WORKSPACE_BYTES
from models.qwen3.argument_bytes import FLOAT32, INT32, POINTER, ReferenceSizes
from models.qwen3.expectations.bounds import SMALL_BYTES, split_k_bytes
from xlapipe.expect import (
    Aliased,
    AllocationOf,
    AllocationsAre,
    BeyondAtMost,
    Expectation,
    FusionCount,
    GemmCount,
    Matmul,
    MatmulsAccounted,
    NoAllocationAbove,
    NoCopyAbove,
    NotAliased,
    ParameterBytes,
    TempAtMost,
    TotalWithin,
)

# Total of reference dump 003 ("Total bytes used").
DUMP_003_TOTAL_BYTES = 932_847_568


def reference_step(sizes: ReferenceSizes) -> tuple[Expectation, ...]:
    """The step without donation: the allocations of reference dump 003."""
    config = sizes.config
    # XLA numbers allocations by descending size. Parameter 1, a scalar, follows the constants.
    parameters = [size for size in sizes.parameter_bytes if size > FLOAT32]
    outputs = [sizes.half_cache_bytes] * 2 + [sizes.new_rows_bytes] * 2
    tuple_table = len(outputs) * POINTER
    allocations = [(size, ("parameter",)) for size in parameters]
    allocations += [(size, ("maybe-live-out",)) for size in (*outputs, tuple_table)]
    allocations.sort(key=lambda allocation: -allocation[0])
    activations = sizes.tokens * (2 * config.hidden_size + config.intermediate_size)
    return (
        AllocationsAre(
            tuple(allocations), because="allocations 0 to 20 of reference dump 003, from the config"
        ),
        ParameterBytes(sum(sizes.parameter_bytes), because="p0 to p16"),
        NotAliased(because="nothing is donated"),
        AllocationOf("p16", 2 * sizes.half_cache_bytes, because="2 blocks block_size K H itemsize"),
        AllocationOf("out[2]", sizes.half_cache_bytes, because="a copy of the cache's keys"),
        AllocationOf("out[3]", sizes.half_cache_bytes, because="a copy of the cache's values"),
        TotalWithin(
            DUMP_003_TOTAL_BYTES, 1e-4, because="total of reference dump 003", under="cublas"
        ),
        TempAtMost(
            activations * config.itemsize + SMALL_BYTES,
            because="both o_proj outputs T 2D and one SwiGLU output T F; gemm outputs and "
            "workspaces are in the cache outputs, which are written last",
        ),
        *_reference_kernels(),
    )


def reference_step_donated(sizes: ReferenceSizes) -> tuple[Expectation, ...]:
    """The step with the cache donated: it is updated in place."""
    config = sizes.config
    half = sizes.half_cache_bytes
    tokens, itemsize = sizes.tokens, config.itemsize
    both_o_proj = 2 * config.hidden_size
    constant_dot = (
        both_o_proj * config.q_size  # the two weights, concatenated
        + tokens * config.q_size  # the constant
        + tokens * both_o_proj  # the product
    ) * itemsize
    layer = tokens * (2 * config.hidden_size + 3 * config.intermediate_size) * itemsize
    on_cublas = CUBLASLT_WORKSPACE_BYTES + constant_dot + layer
    # The readers of o_proj's split-K slices sum them, in both layers.
    on_triton = split_k_bytes(tokens, both_o_proj)
    on_triton += split_k_bytes(tokens, 2 * config.intermediate_size) + layer
    bounds = {
        "cublas": (on_cublas, "workspace, the merged dot on a constant, activations"),
        "triton": (on_triton, "split-K partials of o_proj and gate_up, activations"),
        "auto": (on_cublas + on_triton, "what cuBLAS and Triton each need"),
        "tpu": (on_cublas + on_triton, "no more than on a GPU"),
    }
    outputs = ("out[0]", "out[1]")
    return (
        ParameterBytes(
            sum(sizes.parameter_bytes) + tokens * INT32, because="p0 to p16, and the slots p17"
        ),
        Aliased("p16", because="the cache is donated and written in place"),
        AllocationOf("p16", 2 * half, because="2 blocks block_size K H itemsize"),
        AllocationOf("out[0]", sizes.new_rows_bytes, because="k: T K H itemsize"),
        AllocationOf("out[1]", sizes.new_rows_bytes, because="v: T K H itemsize"),
        NoAllocationAbove(half - 1, ("p16", "p5"), because="no second half of the cache"),
        NoCopyAbove(half - 1, because="no copy of half the cache"),
        *(
            BeyondAtMost(bound + SMALL_BYTES, outputs, because=because, under=policy)
            for policy, (bound, because) in bounds.items()
        ),
        *_reference_kernels(),
    )


def _reference_kernels() -> tuple[Expectation, ...]:
    """Gemms and norms of the step, with and without donation."""
    six = "gate_up and down of two layers, qkv, and one gemm for both o_proj dots on a constant"
    return (
        *(
            GemmCount(6, backends, because=six, under=policy)
            for policy, backends in BACKENDS.items()
            if policy != "tpu"
        ),
        GemmCount(7, BACKENDS["tpu"], because="both o_proj dots are computed", under="tpu"),
        # With autotuning on a device, XLA may use Triton for reductions other than the norms.
        *(
            FusionCount(
                4,
                "kCustom",
                "__triton",
                because="two post-attention norms, input norm, key norm",
                under=policy,
            )
            for policy in ("cublas", "triton")
        ),
        _every_matmul(
            1, "XLA merges the two o_proj dots on the same constant into one gemm", under="cuda"
        ),
        _every_matmul(None, "XLA for TPUs does not merge the two o_proj dots", under="tpu"),
    )


def _every_matmul(o_proj: int | None, because: str, *, under: str) -> Expectation:
    """Every dot of the step is one of these; `o_proj` gemms are left of the first two."""
    return MatmulsAccounted(
        (
            Matmul("attention/o_proj", count=2, merged_into=o_proj),
            *(
                Matmul(f"layers_{layer}/mlp/{projection}")
                for layer in (0, 1)
                for projection in ("gate_up_proj", "down_proj")
            ),
            Matmul("layers_2/attention/qkv_proj"),
        ),
        because=because,
        under=under,
    )
