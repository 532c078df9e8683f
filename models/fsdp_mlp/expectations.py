"""What must hold of the plans, in closed form from the sizes. Imports no jax. Sizes are bytes."""

from models.fsdp_mlp.sizes import BFLOAT16, FLOAT32, INT32, MLPSizes
from xlapipe.expect import (
    AllocationOf,
    Donated,
    Expectation,
    Matmul,
    MatmulsAccounted,
    NoCopyAbove,
    NotAliased,
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
            3 * sizes.shard_bytes + 3 * sizes.activation_bytes + flags + BFLOAT16,
            because="three shards; x, h1 and h2; a mask; g",
        ),
        NotAliased(because="nothing is donated"),
        *(
            AllocationOf(f"out[{index}]", sizes.shard_bytes, because="a shard's gradient")
            for index in range(3)
        ),
        NoCopyAbove(
            sizes.activation_bytes, because="the dump copied three kernels that nobody had written"
        ),
        TempAtMost(
            5 * sizes.gathered_bytes
            + 5 * sizes.activation_bytes
            + 12 * ALIGNMENT
            + (WORKSPACE_BYTES if sizes.batch > 1 else 0),
            because="W3 and W2, three gradients before they are scattered; of each layer's output",
        ),
        *_reference_matmuls(sizes),
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
    )


def _matmuls(sizes: MLPSizes) -> tuple[Expectation, ...]:
    counts = {"y": sizes.layers, "dkernel": sizes.layers, "dx": sizes.layers - 1}
    return tuple(
        MatmulsAccounted(
            tuple(Matmul(scope, count, backends) for scope, count in counts.items() if count),
            because="three each layer, but for the first, whose input has no gradient",
            under=policy,
        )
        for policy, backends in BACKENDS.items()
    )
