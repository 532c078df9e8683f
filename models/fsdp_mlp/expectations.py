"""What must hold of the plans, in closed form from the sizes. Imports no jax. Sizes are bytes."""

from models.fsdp_mlp.sizes import BFLOAT16, FLOAT32, INT32, MLPSizes
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

CUBLAS = ("cublas", "cublaslt")
BACKENDS = {"cublas": CUBLAS, "triton": ("triton",), "auto": (*CUBLAS, "triton")}
# XLA asks for at most this much for cuBLASLt on Hopper; the gemms of a step share one.
WORKSPACE_BYTES = 32 * 2**20
# Every value begins at a multiple of this.
ALIGNMENT = 128
# Scalars, tables of pointers, and padding of each value to 128 bytes.
SMALL_BYTES = 64 * 1024


def reference(sizes: MLPSizes) -> tuple[Expectation, ...]:
    """The backward pass of dump 000."""
    flags = sizes.batch * sizes.hidden
    return (
        ParameterBytes(
            2 * sizes.shard_bytes + 3 * sizes.activation_bytes + flags + BFLOAT16,
            because="shards of W3 and W2 (JAX drops W1's, with its gather); x, h1 and h2; mask; g",
        ),
        NotAliased(because="nothing is donated"),
        *(
            AllocationOf(f"out[{index}]", sizes.shard_bytes, because="a shard's gradient")
            for index in range(3)
        ),
        NoCopyAbove(sizes.activation_bytes, because="kernels and gradients are not moved about"),
        TempAtMost(
            5 * sizes.gathered_bytes
            + 5 * sizes.activation_bytes
            + 12 * ALIGNMENT
            + (WORKSPACE_BYTES if sizes.batch > 1 else 0),
            because="W3 and W2, three gradients before they are scattered; of each layer's output",
        ),
        *_reference_matmuls(sizes),
        CollectivesAskedFor(3, "all-gather", because="W3, W2 and W1"),
        CollectivesAskedFor(3, "reduce-scatter", because="a gradient each"),
        DeadCollective("all-gather", "w1", because="x has no gradient"),
        NoUndefinedCopy(because="the dump copies three kernels that nobody has written"),
        *_exchanged(sizes, gathers=2, scatters=3),
    )


def _exchanged(sizes: MLPSizes, *, gathers: int, scatters: int) -> tuple[Expectation, ...]:
    """Bytes on one device in a step; on one device alone XLA drops what would be exchanged."""
    if sizes.devices == 1:
        return (CollectiveCount(0, because="there is nobody to exchange anything with"),)
    return (
        CollectiveEach("all-gather", sizes.gathered_bytes, because="H·H"),
        CollectiveEach("reduce-scatter", sizes.shard_bytes, because="H·H/N"),
        CollectiveBytes(gathers * sizes.gathered_bytes, "all-gather"),
        CollectiveBytes(gathers * sizes.shard_bytes, "all-gather", operands=True),
        CollectiveBytes(scatters * sizes.gathered_bytes, "reduce-scatter", operands=True),
        CollectiveBytes(scatters * sizes.shard_bytes, "reduce-scatter"),
        GatheredEndAtUse(),
    )


def _reference_matmuls(sizes: MLPSizes) -> tuple[Expectation, ...]:
    """At one row the outer products are multiplications, and the others reductions of such."""
    products = ("dw3", "dw2", "dw1"), ("dh2", "dh1")
    if sizes.batch == 1:
        outer, inner = products
        matmuls = tuple(Matmul(scope, merged_into=0) for scope in outer)
        matmuls += tuple(Matmul(scope, backends=("reduce",)) for scope in inner)
        because = "five dots asked for: three outer products and two reductions"
    else:
        matmuls = tuple(Matmul(scope) for scope in (*products[0], *products[1]))
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
            because="shards of kernels and of their two moments, the count; x and target",
        ),
        Donated("state", because="every leaf is written in place, and copied nowhere"),
        *(
            AllocationOf(f"{tree}{leaf}", shard, because="H·H/N, float32")
            for leaf in leaves
            for tree in ("state", "out[0]")
        ),
        NoCopyAbove(0, because="nothing is moved about"),
        TempAtMost(
            (sizes.layers + 1) * sizes.activation_bytes
            + 2 * sizes.layers * sizes.shard_bytes
            + 2 * sizes.gathered_bytes
            + WORKSPACE_BYTES
            + SMALL_BYTES,
            because="each layer's output, and one gradient of such; shards and their gradients in "
            "bfloat16; two kernels, gathered or before they are scattered; workspace",
        ),
        *_matmuls(sizes),
        *_collectives(sizes),
    )


def _collectives(sizes: MLPSizes) -> tuple[Expectation, ...]:
    gathers = 2 * sizes.layers - 1
    always = (
        CollectivesAskedFor(2 * sizes.layers, "all-gather", because="forward and backward"),
        CollectivesAskedFor(sizes.layers, "reduce-scatter", because="a gradient each"),
        *_exchanged(sizes, gathers=gathers, scatters=sizes.layers),
    )
    if sizes.devices == 1:
        return always
    return (
        *always,
        CollectiveCount(gathers, "all-gather", because="the first layer's input has no gradient"),
        CollectiveCount(sizes.layers, "reduce-scatter", because="each layer's on its own"),
        CollectiveCount(1, "all-reduce", because="the loss"),
        CollectiveBytes(FLOAT32, "all-reduce", because="the loss"),
        CollectivesOverlap("all-gather", all_but=1, gemms=True, because="all but the first"),
        CollectivesOverlap("reduce-scatter", all_but=1, gemms=True, because="all but the last"),
        GatheredLiveAtMost(2 * sizes.gathered_bytes, because="this layer's, and the next one's"),
    )


def _matmuls(sizes: MLPSizes) -> tuple[Expectation, ...]:
    because = "three each layer, but for the first, whose input has no gradient"
    return tuple(
        GemmCount(3 * sizes.layers - 1, backends, because=because, under=policy)
        for policy, backends in BACKENDS.items()
    )
