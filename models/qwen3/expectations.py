"""What must hold of the plans, in closed form from the config. Imports no jax.

Sizes are bytes. Temporary memory is bounded by the sum of what one layer computes and of what the
GEMM policy adds. XLA overlays most of it, so that plans stay well below; what a bound is for is
anything that grows with the number of layers, with the vocabulary or with the cache.
"""

from collections.abc import Mapping
from dataclasses import replace

from models.qwen3.config import Qwen3Config
from models.qwen3.kernels.tiling import splits_of
from models.qwen3.settings import MAX_EOS
from models.qwen3.sizes import (
    FLOAT32,
    INT32,
    POINTER,
    ReferenceSizes,
    cache_bytes,
    cache_leaf_bytes,
    weight_bytes,
)
from xlapipe.expect import (
    Aliased,
    AllocationOf,
    AllocationsAre,
    BeyondAtMost,
    Expectation,
    FusionCount,
    GemmCount,
    KernelCount,
    LoopOfTrips,
    Matmul,
    MatmulsAccounted,
    NoAllocationAbove,
    NoCopyAbove,
    NoCopyInLoopAbove,
    NotAliased,
    NoValueOfShape,
    ParameterBytes,
    TempAtMost,
    TotalWithin,
)

CUBLAS = ("cublas", "cublaslt")
# What dump 003 itself came to ("Total bytes used").
DUMP_003_TOTAL_BYTES = 932_847_568
# XLA asks for at most this much for cuBLASLt on Hopper: 4 MiB where its autotuner has run, and,
# up to jaxlib 0.11, 32 MiB where it has not. The gemms of a step share one.
WORKSPACE_BYTES = 32 * 2**20
# Triton gemms that are short of blocks sum slices of the contracted axis apart, in float32.
MAX_SPLIT_K = 8
# Tables of pointers to tuples' leaves, scalars, and padding of each value to 128 bytes.
SMALL_BYTES = 16 * 1024
# cuBLAS is given rows in multiples of this.
ROWS = 8


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
    on_triton = _partials(tokens, both_o_proj) + _partials(tokens, 2 * config.intermediate_size)
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
      kernels: of the step that has them (`implementation="triton"`).
      hopper: of the step with those for Hopper (`implementation="hopper"`).
    """
    if hopper:
        computed = _with_hopper_kernels(config, batch=batch, tokens=length)
    elif kernels:
        computed = _with_prompt_kernels(config, batch=batch, tokens=length)
    else:
        computed = _by_xla(config, batch=batch, tokens=length, attended=length)
    # Logits of one position of each sequence are wanted, and may have such a shape themselves.
    shapes = {(batch, length), (batch * length,)} if length > 1 and batch > 1 else {(length,)}
    return (
        *_model(config, batch=batch, tokens=length, cache_length=cache_length),
        *computed,
        *(
            NoValueOfShape((*dims, config.vocab_size), because="logits of last positions only")
            for dims in sorted(shapes - {(batch,)})
        ),
    )


def decode(
    config: Qwen3Config, *, batch: int, cache_length: int, kernels: bool = False
) -> tuple[Expectation, ...]:
    """One token for each sequence; `kernels` as in `prefill`, and for one sequence."""
    return (
        *_model(config, batch=batch, tokens=1, cache_length=cache_length),
        *(
            _with_decode_kernels(config, cache_length=cache_length)
            if kernels
            else _by_xla(config, batch=batch, tokens=1, attended=cache_length)
        ),
    )


def _model(
    config: Qwen3Config, *, batch: int, tokens: int, cache_length: int
) -> tuple[Expectation, ...]:
    """What holds of every step of the whole model, `tokens` new ones of each sequence (T)."""
    leaf = cache_leaf_bytes(config, batch=batch, cache_length=cache_length)
    # Queries are brought into the order of the cache: a copy that belongs to the step.
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


def _by_xla(
    config: Qwen3Config, *, batch: int, tokens: int, attended: int
) -> tuple[Expectation, ...]:
    """Memory and products where XLA computes all; `attended` slots are read by attention."""
    return (
        *_temp(config, batch=batch, tokens=tokens, attended=attended),
        *_matmuls(config, batch=batch, tokens=tokens, attended=attended),
    )


def _with_decode_kernels(config: Qwen3Config, *, cache_length: int) -> tuple[Expectation, ...]:
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


def _with_prompt_kernels(
    config: Qwen3Config, *, batch: int, tokens: int
) -> tuple[Expectation, ...]:
    """Memory and kernels of prompts: two kernels a layer for attention, products are XLA's."""
    layers = config.num_hidden_layers
    return (
        *_temp(config, batch=batch, tokens=tokens, attended=0),
        *_matmuls(config, batch=batch, tokens=tokens, attended=None),
        *_kernel_counts(split_heads=layers, prefill_attention=layers),
    )


def _with_hopper_kernels(
    config: Qwen3Config, *, batch: int, tokens: int
) -> tuple[Expectation, ...]:
    """Memory and products of prompts on Hopper; the products of qkv, gate and up are kernels."""
    n, d, layers = batch * tokens, config.hidden_size, config.num_hidden_layers
    # Embedded, normed, and as either product left it; queries, what was attended to, activations.
    values = n * (4 * d + 2 * config.q_size + config.intermediate_size) * config.itemsize
    tables = 3 * tokens * config.head_dim * FLOAT32
    rows = batch * tokens
    scopes = {"attention/o_proj": rows, "mlp/down_proj": rows}
    # Triton may split both products, whose slices are left to their readers.
    bounds = {"cublas": WORKSPACE_BYTES, "triton": 2 * _partials(n, d)}
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
        *_accounted(config, scopes, batch=batch),
        *_kernel_counts(
            **dict.fromkeys(("prompt_heads", "hopper_attention", "prompt_swiglu"), layers)
        ),
    )


def _added_logits(config: Qwen3Config, batch: int) -> int:
    """Logits of the rows that cuBLAS is given on top."""
    return _up(batch) * config.vocab_size * FLOAT32 if batch % ROWS and batch > 1 else 0


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
    rows = _up(tokens * config.queries_per_kv_head)
    scores = batch * config.num_key_value_heads * rows * attended
    layer = values * config.itemsize + scores * (2 * FLOAT32 + config.itemsize)
    layer += n * config.head_dim * FLOAT32 + SMALL_BYTES  # and RoPE's cosines and sines
    on_cublas = WORKSPACE_BYTES + _added_logits(config, batch)
    on_triton = _partials(n, config.qkv_size) + _partials(n, 2 * f)
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
    config: Qwen3Config, *, batch: int, tokens: int, attended: int | None
) -> tuple[Expectation, ...]:
    """Seven matmuls, six of them in each layer; two fewer where attention is a kernel's (None).

    A product with one row is a matrix-vector product, which XLA may make a reduction; a sum over
    the one slot that a prompt of one token attends to is no product of matrices at all.
    """
    rows = {
        "attention/qkv_proj": batch * tokens,
        "attention/o_proj": batch * tokens,
        "mlp/gate_up_proj": batch * tokens,
        "mlp/down_proj": batch * tokens,
    }
    if attended is not None:
        queries = tokens * config.queries_per_kv_head
        rows["attention/scores"] = queries if attended > 1 else 1
        rows["attention/values"] = queries
    return _accounted(config, rows, batch=batch, one_attended=attended == 1)


def _accounted(
    config: Qwen3Config, rows: Mapping[str, int], *, batch: int, one_attended: bool = False
) -> tuple[Expectation, ...]:
    """The matmuls of each layer, by scope with their rows, and the head's."""
    scopes = {
        f"layers_{layer}/{scope}": count
        for layer in range(config.num_hidden_layers)
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


def _partials(rows: int, columns: int) -> int:
    """Partial sums of one split-K gemm."""
    return MAX_SPLIT_K * rows * columns * FLOAT32


def _up(rows: int) -> int:
    """Rows, as cuBLAS is given them."""
    return -(-rows // ROWS) * ROWS


def generate(
    config: Qwen3Config,
    *,
    batch: int,
    cache_length: int,
    steps: int,
    candidates: int | None,
    kernels: bool = False,
) -> tuple[Expectation, ...]:
    """A loop of `steps` decode steps that draws their tokens: each is as `decode` expects."""
    held = decode(config, batch=batch, cache_length=cache_length, kernels=kernels)
    held = _drawing(held, config, batch=batch, candidates=candidates)
    in_loop = tuple(
        NoCopyInLoopAbove(each.limit_bytes, because="no trip copies a cache leaf")
        for each in held
        if isinstance(each, NoCopyAbove)
    )
    # A loop of one trip is none.
    loop = LoopOfTrips(steps, because="one trip for each token; the host is not asked")
    return (*held, *in_loop, loop) if steps > 1 else held


def prompts(
    config: Qwen3Config,
    *,
    batch: int,
    length: int,
    cache_length: int,
    candidates: int | None,
    kernels: bool = False,
    hopper: bool = False,
) -> tuple[Expectation, ...]:
    """Prompts of up to `length` tokens, and the first token behind each: as `prefill` expects."""
    held = prefill(
        config,
        batch=batch,
        length=length,
        cache_length=cache_length,
        kernels=kernels,
        hopper=hopper,
    )
    return _drawing(held, config, batch=batch, candidates=candidates)


def _drawing(
    held: tuple[Expectation, ...], config: Qwen3Config, *, batch: int, candidates: int | None
) -> tuple[Expectation, ...]:
    """What `held` comes to where tokens are drawn from the logits, which then do not come out."""
    logits = batch * config.vocab_size * FLOAT32
    # Ordering takes values and ids, each as they come and as they go, and the sort's own scratch
    # of as much again; drawing by temperature alone takes a second array of logits.
    temp = logits * {1: 1, None: 2}.get(candidates, 6) + SMALL_BYTES
    # Ids that end a sequence; seed, temperature, top-k, top-p, and the sequences' indices.
    state = (MAX_EOS + (0 if candidates == 1 else 4 + batch)) * INT32
    # Sorted arrays, and rows that cuBLAS was given on top, are cut off by copying.
    copied = 0 if candidates == 1 and (batch == 1 or batch % ROWS == 0) else logits
    changed: list[Expectation] = []
    for each in held:
        match each:
            case ParameterBytes():
                total = each.total_bytes + state
                changed.append(replace(each, total_bytes=total, because=f"{each.because}, state"))
            case TempAtMost():
                because = f"{each.because}, logits and drawing"
                changed.append(replace(each, limit_bytes=each.limit_bytes + temp, because=because))
            case NoCopyAbove():
                changed.append(replace(each, limit_bytes=max(each.limit_bytes, copied)))
            case AllocationOf(name="out['logits']"):
                continue
            case _:
                changed.append(each)
    return (*changed, Aliased("state", because="the state is written in place"))
