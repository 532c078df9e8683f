"""Small programs on several devices, one per property of collectives that is tested."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct, lax
from jax.sharding import PartitionSpec as P

from xlapipe import Workload

BF16 = jnp.bfloat16
HIDDEN = 16
WIDE, ROWS, DEVICES, LAYERS = 1024, 128, 4, 4


def gathered(shard: jax.Array) -> jax.Array:
    return lax.all_gather(shard, "d", tiled=True)


def scattered(gradient: jax.Array) -> jax.Array:
    return lax.psum_scatter(gradient, "d", tiled=True)


def backward(
    shards: tuple[jax.Array, ...], x: jax.Array, h1: jax.Array, h2: jax.Array, g: jax.Array
) -> Any:
    """The backward pass of three layers with ReLU; each weight is gathered where it is used."""
    with jax.named_scope("layer_2"):
        w3 = gathered(shards[2])
        dw3, d2 = g.T @ h2, g @ w3
    with jax.named_scope("layer_1"):
        w2 = gathered(shards[1])
        g2 = jnp.where(h2 <= 0, 0, d2)
        dw2, d1 = g2.T @ h1, g2 @ w2
    with jax.named_scope("layer_0"):
        gathered(shards[0])  # nothing reads it
        g1 = jnp.where(h1 <= 0, 0, d1)
        dw1 = g1.T @ x
    return scattered(dw1), scattered(dw2), scattered(dw3)


def reference() -> Workload:
    """Three gathers on two devices, one of which is dead."""
    shards = (ShapeDtypeStruct((HIDDEN, HIDDEN), BF16),) * 3
    rows = ShapeDtypeStruct((1, HIDDEN), BF16)
    manual = jax.shard_map(
        backward,
        in_specs=(P("d"), P(), P(), P(), P()),
        out_specs=P("d"),
        axis_names={"d"},
        check_vma=False,
    )
    return Workload(
        name="reference",
        fn=manual,
        args=(shards, rows, rows, rows, rows),
        mesh={"d": 2},
        in_specs=(P("d"), P(), P(), P(), P()),
    )


def loss(shards: tuple[jax.Array, ...], x: jax.Array) -> jax.Array:
    for shard in shards:
        x = jax.nn.relu(x @ gathered(shard))
    return jnp.sum(x.astype(jnp.float32))


NOT_COMBINED = (
    "xla_gpu_all_gather_combine_threshold_bytes",
    "xla_gpu_reduce_scatter_combine_threshold_bytes",
)


def _trained(name: str, fn: Any, weights: Any, spec: P) -> Workload:
    manual = jax.shard_map(
        fn, in_specs=(spec, P()), out_specs=spec, axis_names={"d"}, check_vma=False
    )
    x = ShapeDtypeStruct((ROWS, WIDE), BF16)
    return Workload(
        name=name, fn=manual, args=(weights, x), mesh={"d": DEVICES}, in_specs=(spec, P())
    )


def layers() -> Workload:
    """Gradients of four layers, whose gathers and scatters overlap with gemms."""
    weights = (ShapeDtypeStruct((WIDE, WIDE), BF16),) * LAYERS
    workload = _trained("layers", jax.grad(loss), weights, P("d"))
    return replace(workload, options=dict.fromkeys(NOT_COMBINED, 0))


def layer(h: jax.Array, shard: jax.Array) -> tuple[jax.Array, None]:
    return jax.nn.relu(h @ gathered(shard)), None


def _looped(name: str, layer: Any) -> Workload:
    def looped(stacked: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(lax.scan(layer, x, stacked)[0].astype(jnp.float32))

    weights = ShapeDtypeStruct((LAYERS, WIDE, WIDE), BF16)
    return _trained(name, jax.grad(looped), weights, P(None, "d"))


def scanned() -> Workload:
    """The same layers in a scan, which saves each gathered weight for the backward pass."""
    return _looped("scanned", layer)


def scanned_again() -> Workload:
    """The same scan with a backward pass that gathers each weight again."""
    return _looped("scanned-again", jax.checkpoint(layer))


def carried() -> Workload:
    """A weight that is gathered before a loop and read in each trip."""

    def looped(shard: jax.Array, x: jax.Array) -> jax.Array:
        whole = gathered(shard)
        return lax.scan(lambda h, _: (jax.nn.relu(h @ whole), None), x, None, length=3)[0]

    return _trained("carried", looped, ShapeDtypeStruct((WIDE, WIDE), BF16), P("d"))


def every_kind(x: jax.Array, limit: jax.Array) -> dict[str, Any]:
    """Every kind of collective, on a mesh with axis `b` within a host and `a` across hosts."""
    whole = lax.all_gather(x, "b", tiled=True)
    undefined = lax.empty((WIDE, 256), BF16)
    ring = [(0, 1), (1, 0)]

    def grow(carry: jax.Array) -> jax.Array:
        return lax.psum(carry, "a")

    return {
        "returned": whole,
        "sum": lax.psum(x, "a"),
        "both": lax.pmax(x * 2, ("a", "b")),
        "swapped": lax.all_to_all(x, "a", 0, 1, tiled=True),
        "passed_on": lax.ppermute(x, "b", ring),
        "undefined": (undefined, undefined),
        "looped": lax.while_loop(lambda carry: carry < limit[0], grow, limit[1]),
    }


def kinds() -> Workload:
    """`every_kind` on two hosts with two GPUs each."""
    spec = P(("a", "b"))
    manual = jax.shard_map(
        every_kind,
        in_specs=(spec, P()),
        out_specs=P(),
        axis_names={"a", "b"},
        check_vma=False,
    )
    args = (ShapeDtypeStruct((WIDE, 256), BF16), ShapeDtypeStruct((2,), BF16))
    return Workload(name="kinds", fn=manual, args=args, mesh={"a": 2, "b": 2}, in_specs=(spec, P()))


def convolved() -> Workload:
    """A convolution in groups, for which the partitioner gathers the images."""

    def step(images: jax.Array, kernel: jax.Array) -> jax.Array:
        dims = ("NHWC", "HWIO", "NHWC")
        groups = {"dimension_numbers": dims, "feature_group_count": 4}
        return lax.conv_general_dilated(images, kernel, (1, 1), "SAME", **groups)

    images = ShapeDtypeStruct((16, 8, 8, 16), jnp.float32)
    kernel = ShapeDtypeStruct((3, 3, 4, 32), jnp.float32)
    return Workload(
        name="convolved",
        fn=step,
        args=(images, kernel),
        mesh={"d": DEVICES},
        in_specs=(P("d"), P()),
        out_specs=P("d"),
    )


def by_sharding() -> Workload:
    """A program without collectives; the shardings of its weights make XLA add some."""

    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.nn.relu(x @ w) @ w

    spec = P("d", None)
    args = (ShapeDtypeStruct((ROWS, 512), BF16), ShapeDtypeStruct((512, 512), BF16))
    return Workload(
        name="by-sharding", fn=product, args=args, mesh={"d": 2}, in_specs=spec, out_specs=spec
    )


def nested() -> Workload:
    """A gather in a separate jitted function in nested scans, and a sum in a branch."""

    def outer(shard: jax.Array, flag: jax.Array) -> jax.Array:
        def inner(h: jax.Array, _: None) -> tuple[jax.Array, None]:
            return h + jax.jit(gathered)(shard), None

        def twice(h: jax.Array, _: None) -> tuple[jax.Array, None]:
            return lax.scan(inner, h, None, length=3)[0], None

        start = jnp.zeros((HIDDEN, HIDDEN), BF16)
        total = lax.scan(twice, start, None, length=5)[0]
        summed = partial(lax.psum, axis_name="d")
        return lax.cond(flag[0] > 0, summed, lambda value: value, total)

    manual = jax.shard_map(
        outer, in_specs=(P("d"), P()), out_specs=P(), axis_names={"d"}, check_vma=False
    )
    args = (ShapeDtypeStruct((HIDDEN, HIDDEN), BF16), ShapeDtypeStruct((1,), BF16))
    return Workload(name="nested", fn=manual, args=args, mesh={"d": 2}, in_specs=(P("d"), P()))
