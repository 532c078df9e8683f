"""Expectations about the plans, in closed form from the sizes. Imports no jax. Sizes are bytes."""

from models.fsdp_mlp.sizes import BFLOAT16, FLOAT32, INT32, MLPSizes
from models.gemm_backends import BACKENDS, CUBLASLT_WORKSPACE_BYTES
from models.tpu_tiles import tpu_bytes
from xlapipe.expect import (
    AllocationOf,
    CollectiveBytes,
    CollectiveCount,
    CollectiveEach,
    CollectivesAskedFor,
    CollectivesOverlap,
    DeadCollective,
    Donated,
    Expectation,
    GatheredEndAtUse,
    GatheredLiveAtMost,
    GemmCount,
    Matmul,
    MatmulsAccounted,
    NoCopyAbove,
    NotAliased,
    NoUndefinedCopy,
    ParameterBytes,
    TempAtMost,
)

SUMS = ("all-reduce", "reduce-scatter")
# Chips that are a ring on every TPU: 2x2.
TPU_RING = 4
# Every value starts at a multiple of this many bytes.
ALIGNMENT = 128
# Scalars, tuple tables, and padding of each value to ALIGNMENT.
SMALL_BYTES = 64 * 1024


def reference(sizes: MLPSizes) -> tuple[Expectation, ...]:
    """The backward pass of reference dump 000."""
    mask_bytes = sizes.batch * sizes.hidden
    return (
        ParameterBytes(
            2 * sizes.shard_bytes + 3 * sizes.activation_bytes + mask_bytes + BFLOAT16,
            because="shards of W3 and W2 (JAX drops W1's with its gather); x, h1 and h2; mask; g",
        ),
        NotAliased(because="nothing is donated"),
        *(
            AllocationOf(f"out[{index}]", sizes.shard_bytes, because="a shard's gradient")
            for index in range(3)
        ),
        NoCopyAbove(sizes.activation_bytes, because="kernels and gradients are not copied"),
        TempAtMost(
            5 * sizes.gathered_bytes
            + 5 * sizes.activation_bytes
            + 12 * ALIGNMENT
            + (CUBLASLT_WORKSPACE_BYTES if sizes.batch > 1 else 0),
            because="gathered W3 and W2, three gradients before they are scattered; gradients of "
            "layer outputs",
        ),
        *_reference_matmuls(sizes),
        CollectivesAskedFor(3, "all-gather", because="W3, W2 and W1"),
        CollectivesAskedFor(3, "reduce-scatter", because="one for each weight gradient"),
        DeadCollective("all-gather", "w1", because="x has no gradient, so W1 is not used"),
        NoUndefinedCopy(because="reference dump 000 copies three uninitialised kernels"),
        *_exchanged(sizes, gathers=2, scatters=3),
    )


def _exchanged(sizes: MLPSizes, *, gathers: int, scatters: int) -> tuple[Expectation, ...]:
    """Collective bytes per device and step; XLA drops collectives over a single device."""
    if sizes.devices == 1:
        return (CollectiveCount(0, because="a single device exchanges nothing"),)
    return (
        CollectiveEach("all-gather", sizes.gathered_bytes, because="H·H"),
        CollectiveEach("reduce-scatter", sizes.shard_bytes, because="H·H/N", under="cuda"),
        CollectiveBytes(gathers * sizes.gathered_bytes, "all-gather"),
        CollectiveBytes(gathers * sizes.shard_bytes, "all-gather", operands=True),
        CollectiveBytes(
            scatters * sizes.gathered_bytes, "reduce-scatter", operands=True, under="cuda"
        ),
        # XLA for TPUs pads what it scatters, and exchanges the padded rows afterwards.
        CollectiveBytes(scatters * sizes.shard_bytes, "reduce-scatter", under="cuda"),
        GatheredEndAtUse(),
    )


def _reference_matmuls(sizes: MLPSizes) -> tuple[Expectation, ...]:
    """For one row, XLA turns outer products into multiplications and the others into reductions."""
    weight_gradients, input_gradients = ("dw3", "dw2", "dw1"), ("dh2", "dh1")
    if sizes.batch == 1:
        matmuls = tuple(Matmul(scope, merged_into=0) for scope in weight_gradients)
        matmuls += tuple(Matmul(scope, backends=("reduce",)) for scope in input_gradients)
        because = "five requested dots: three outer products and two reductions"
    else:
        matmuls = tuple(Matmul(scope) for scope in (*weight_gradients, *input_gradients))
        because = "exactly five: x has no gradient"
    return (MatmulsAccounted(matmuls, because=because),)


def training_step(sizes: MLPSizes) -> tuple[Expectation, ...]:
    """The training step; all sizes are of one device."""
    shard = sizes.shard * FLOAT32
    leaves = [
        f"['{tree}']['layers'][*]['kernel']" for tree in ("params", "first_moment", "second_moment")
    ]
    return (
        ParameterBytes(
            3 * sizes.parameter_shard_bytes + INT32 + 2 * sizes.activation_bytes,
            because="shards of kernels and of their two moments, the step count; x and target",
        ),
        *_padded(sizes),
        Donated("state", because="every leaf is updated in place, without a copy"),
        *(
            AllocationOf(f"{tree}{leaf}", shard, because="H·H/N, float32")
            for leaf in leaves
            for tree in ("state", "out[0]")
        ),
        NoCopyAbove(0, because="no array is copied", under="cuda"),
        NoCopyAbove(
            2 * sizes.shard_bytes,
            because="only rows of a scattered gradient, which XLA pads and exchanges",
            under="tpu",
        ),
        TempAtMost(
            sizes.layers * (sizes.activation_bytes + 2 * sizes.shard_bytes)
            + 3 * sizes.gathered_bytes
            + SMALL_BYTES,
            because="each layer's output; shards and their gradients in bfloat16; a gathered "
            "kernel, and two gradients that wait to be summed",
            under="tpu",
        ),
        TempAtMost(
            (sizes.layers + 1) * sizes.activation_bytes
            + 2 * sizes.layers * sizes.shard_bytes
            + 2 * sizes.gathered_bytes
            + CUBLASLT_WORKSPACE_BYTES
            + SMALL_BYTES,
            because="each layer's output, and the gradient of one output; shards and their "
            "gradients in bfloat16; two gathered kernels or unscattered gradients; workspace",
            under="cuda",
        ),
        *_matmuls(sizes),
        *_collectives(sizes),
    )


def _padded(sizes: MLPSizes) -> tuple[Expectation, ...]:
    """Arguments, kernels and the loss with the padding of a TPU's tiles."""
    kernel = tpu_bytes((sizes.hidden // sizes.devices, sizes.hidden), FLOAT32)
    rows = tpu_bytes((sizes.batch, sizes.hidden), BFLOAT16)
    return (
        ParameterBytes(
            3 * sizes.layers * kernel + tpu_bytes((), INT32) + 2 * rows,
            padded=True,
            because="whole tiles; the step count takes one",
            under="tpu",
        ),
        AllocationOf(
            "out[1]", tpu_bytes((), FLOAT32), because="the loss takes a whole tile", under="tpu"
        ),
    )


def _collectives(sizes: MLPSizes) -> tuple[Expectation, ...]:
    gathers = 2 * sizes.layers - 1
    always = (
        CollectivesAskedFor(2 * sizes.layers, "all-gather", because="forward and backward"),
        CollectivesAskedFor(sizes.layers, "reduce-scatter", because="one for each weight gradient"),
        *_exchanged(sizes, gathers=gathers, scatters=sizes.layers),
    )
    if sizes.devices == 1:
        return always
    return (
        *always,
        CollectiveCount(gathers, "all-gather", because="the first layer's input has no gradient"),
        CollectiveCount(
            sizes.layers, "reduce-scatter", because="not combined across layers", under="cuda"
        ),
        CollectiveCount(1, "all-reduce", because="the loss", under="cuda"),
        CollectiveBytes(FLOAT32, "all-reduce", because="the loss", under="cuda"),
        *_sums_on_tpus(sizes),
        *(
            CollectivesOverlap(kind, all_but=1, gemms=True, because=because, under="cuda")
            for kind, because in (
                ("all-gather", "all but the first"),
                ("reduce-scatter", "all but the last"),
            )
        ),
        GatheredLiveAtMost(2 * sizes.gathered_bytes, because="this layer's and the next one's"),
    )


def _sums_on_tpus(sizes: MLPSizes) -> tuple[Expectation, ...]:
    """Sums of the gradients and of the loss.

    XLA for TPUs scatters a sum over chips that form a ring: 2x2, 2x4, 2x8. Over 4x4 or 2x2x2 chips
    it all-reduces, which sends twice the bytes, and each device slices its part.
    """
    gradients = sizes.layers * sizes.gathered_bytes
    if sizes.devices == TPU_RING:
        because = "one for each gradient: four chips are a ring"
        return (
            CollectiveCount(sizes.layers, "reduce-scatter", because=because, under="tpu"),
            CollectiveBytes(gradients, "reduce-scatter", operands=True, under="tpu"),
            CollectiveBytes(FLOAT32, "all-reduce", because="the loss", under="tpu"),
        )
    because = "gradients and the loss: scattered over a ring, sliced afterwards over a grid"
    return (
        CollectiveCount(sizes.layers + 1, SUMS, because=because, under="tpu"),
        CollectiveBytes(gradients + FLOAT32, SUMS, operands=True, because=because, under="tpu"),
    )


def _matmuls(sizes: MLPSizes) -> tuple[Expectation, ...]:
    because = "three per layer; two for the first layer, whose input has no gradient"
    return tuple(
        GemmCount(3 * sizes.layers - 1, backends, because=because, under=policy)
        for policy, backends in BACKENDS.items()
    )
