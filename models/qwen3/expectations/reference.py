"""The step of dump 003, donated or not."""

from models.qwen3.argument_bytes import FLOAT32, INT32, POINTER, ReferenceSizes
from models.qwen3.expectations.bounds import CUBLAS, SMALL_BYTES, WORKSPACE_BYTES, partials
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

# What dump 003 itself came to ("Total bytes used").
DUMP_003_TOTAL_BYTES = 932_847_568


def reference_step(sizes: ReferenceSizes) -> tuple[Expectation, ...]:
    """The undonated step: dump 003, allocation by allocation."""
    config = sizes.config
    # XLA numbers allocations by falling size. Parameter 1, a scalar, comes after the constants.
    parameters = [n for n in sizes.parameter_bytes if n > FLOAT32]
    outputs = [sizes.half_cache_bytes] * 2 + [sizes.new_rows_bytes] * 2
    table = len(outputs) * POINTER
    allocations = [(n, ("parameter",)) for n in parameters]
    allocations += [(n, ("maybe-live-out",)) for n in (*outputs, table)]
    allocations.sort(key=lambda allocation: -allocation[0])
    activations = sizes.tokens * (2 * config.hidden_size + config.intermediate_size)
    return (
        AllocationsAre(
            tuple(allocations), because="allocations 0 to 20 of dump 003, from the config"
        ),
        ParameterBytes(sum(sizes.parameter_bytes), because="p0 to p16"),
        NotAliased(because="nothing is donated"),
        AllocationOf("p16", 2 * sizes.half_cache_bytes, because="2 blocks block_size K H itemsize"),
        AllocationOf("out[2]", sizes.half_cache_bytes, because="the cache's keys are copied out"),
        AllocationOf("out[3]", sizes.half_cache_bytes, because="the cache's values are copied out"),
        TotalWithin(DUMP_003_TOTAL_BYTES, 1e-4, because="total of dump 003", under="cublas"),
        TempAtMost(
            activations * config.itemsize + SMALL_BYTES,
            because="both o_proj outputs T 2D and one SwiGLU output T F; gemm outputs and "
            "workspaces lie in the cache outputs, which are written last",
        ),
        *_reference_kernels(),
    )


def reference_step_donated(sizes: ReferenceSizes) -> tuple[Expectation, ...]:
    """The same with the cache donated: it is updated where it is."""
    config = sizes.config
    half = sizes.half_cache_bytes
    tokens, itemsize = sizes.tokens, config.itemsize
    both_o_proj = 2 * config.hidden_size
    constant_dot = (
        both_o_proj * config.q_size  # the two weights, side by side
        + tokens * config.q_size  # the constant
        + tokens * both_o_proj  # the product
    ) * itemsize
    layer = tokens * (2 * config.hidden_size + 3 * config.intermediate_size) * itemsize
    on_cublas = WORKSPACE_BYTES + constant_dot + layer
    # The sums of o_proj's slices are left to their readers, in both layers.
    on_triton = partials(tokens, both_o_proj) + partials(tokens, 2 * config.intermediate_size)
    on_triton += layer
    bounds = {
        "cublas": (on_cublas, "workspace, the merged dot on a constant, activations"),
        "triton": (on_triton, "split-K partials of o_proj and gate_up, activations"),
        "auto": (on_cublas + on_triton, "as on cuBLAS and as on Triton"),
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
    """Gemms and norms of the step of dump 003, donated or not."""
    six = "gate_up and down of two layers, qkv, and one for both o_proj dots on a constant"
    return (
        GemmCount(6, CUBLAS, because=six, under="cublas"),
        GemmCount(6, ("triton",), because=six, under="triton"),
        GemmCount(6, (*CUBLAS, "triton"), because=six, under="auto"),
        # A device's autotuning may give reductions besides the norms to Triton.
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
        MatmulsAccounted(
            (
                Matmul("attention/o_proj", count=2, merged_into=1),
                *(
                    Matmul(f"layers_{layer}/mlp/{projection}")
                    for layer in (0, 1)
                    for projection in ("gate_up_proj", "down_proj")
                ),
                Matmul("layers_2/attention/qkv_proj"),
            ),
            because="the two o_proj dots on one constant become one gemm",
        ),
    )
