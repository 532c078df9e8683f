"""Small workloads for TPUs."""

from random import Random

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jax.sharding import PartitionSpec as P

from xlapipe import Workload
from xlapipe.expect import AllocationOf, Donated, GemmCount, ParameterBytes

BF16, F32 = jnp.bfloat16, jnp.float32
ROWS, WIDTH, OUT = 17, 1024, 130


def _step(
    cache: dict[str, jax.Array], weight: jax.Array, row: jax.Array
) -> tuple[dict[str, jax.Array], jax.Array]:
    updated = cache["k"].at[3].set(row)
    return {"k": updated}, updated @ weight


def donated() -> Workload:
    """A cache of 17 rows, which are stored as 24, and a product."""
    weight, row = WIDTH * OUT * 2, WIDTH * 2
    return Workload(
        name="donated",
        fn=_step,
        args=(
            {"k": jax.ShapeDtypeStruct((ROWS, WIDTH), BF16)},
            jax.ShapeDtypeStruct((WIDTH, OUT), BF16),
            jax.ShapeDtypeStruct((WIDTH,), BF16),
        ),
        donate_argnums=0,
        expectations=[
            Donated("cache"),
            GemmCount(1, ("cublas", "cublaslt", "triton")),
            ParameterBytes(ROWS * WIDTH * 2 + weight + row),
            AllocationOf("cache", 24 * WIDTH * 2, under="tpu", because="17 rows are stored as 24"),
        ],
    )


def products(batch: int) -> Workload:
    """Two products of f32 without padding, whose arguments and outputs grow with the batch."""
    return Workload(
        name="products",
        fn=lambda weight, x: jnp.tanh(x @ weight) @ weight.T,
        args=(
            jax.ShapeDtypeStruct((8192, 8192), F32),
            jax.ShapeDtypeStruct((batch, 8192), F32),
        ),
    )


def doubled(rows: int) -> Workload:
    """An argument and an output of f32 without padding and without temporary memory."""
    x = jax.ShapeDtypeStruct((rows, 1024), F32)
    return Workload(name="doubled", fn=lambda x: x * 2, args=(x,))


def sharded() -> Workload:
    """A product over four devices that gathers its weight."""
    return Workload(
        name="sharded",
        fn=lambda weight, x: x @ weight,
        args=(
            jax.ShapeDtypeStruct((1024, 512), BF16),
            jax.ShapeDtypeStruct((256, 1024), BF16),
        ),
        mesh={"d": 4},
        in_specs=(P("d"), P("d")),
        out_specs=P("d"),
    )


def scanned() -> Workload:
    """A scan over seven layers, and in each a loop of five trips that sums over four devices."""

    def layer(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
        x = jnp.tanh(x @ weight)
        return jax.lax.fori_loop(0, 5, lambda _, y: jax.lax.pmean(jnp.sin(y), "d"), x), None

    step = jax.shard_map(
        lambda weights, x: jax.lax.scan(layer, x, weights)[0],
        in_specs=(P(), P("d")),
        out_specs=P("d"),
        check_vma=False,
    )
    return Workload(
        name="scanned",
        fn=step,
        args=(jax.ShapeDtypeStruct((7, 512, 512), F32), jax.ShapeDtypeStruct((1024, 512), F32)),
        mesh={"d": 4},
        in_specs=(P(), P("d")),
        out_specs=P("d"),
    )


def scattered(devices: int = 4) -> Workload:
    """A sum over all devices of which each keeps its rows."""
    step = jax.shard_map(
        lambda x: jax.lax.psum_scatter(x * 2, "d", tiled=True),
        in_specs=P(),
        out_specs=P("d"),
        check_vma=False,
    )
    return Workload(
        name="scattered",
        fn=step,
        args=(jax.ShapeDtypeStruct((8192, 1024), BF16),),
        mesh={"d": devices},
        in_specs=P(),
        out_specs=P("d"),
    )


def odd_shapes() -> Workload:
    """Arrays of 0 to 4 dimensions, most of which are not multiples of a tile."""
    random = Random(0)
    dims = (1, 2, 3, 5, 8, 12, 17, 100, 128, 130, 160, 256, 1000)
    arrays = [
        jax.ShapeDtypeStruct(
            tuple(random.choices(dims, k=random.choice((0, 1, 2, 2, 3, 3, 4)))),
            random.choice((F32, BF16, jnp.int32)),
        )
        for _ in range(40)
    ]
    return Workload(name="odd-shapes", fn=lambda *xs: [x + 1 for x in xs], args=tuple(arrays))


def two_slices(devices: int = 8) -> Workload:
    """A sum of gradients over two slices: within each over its chips, and between the slices."""

    def step(weight: jax.Array, x: jax.Array) -> jax.Array:
        gradient = jax.grad(lambda weight: jnp.sum((x @ weight).astype(F32) ** 2))(weight)
        return jax.lax.psum(gradient, ("slice", "chip"))

    mesh = {"slice": 2, "chip": devices // 2}
    return Workload(
        name="two-slices",
        fn=jax.shard_map(
            step, in_specs=(P(), P(("slice", "chip"))), out_specs=P(), check_vma=False
        ),
        args=(
            jax.ShapeDtypeStruct((1024, 512), BF16),
            jax.ShapeDtypeStruct((512 * devices, 1024), BF16),
        ),
        mesh=mesh,
        in_specs=(P(), P(("slice", "chip"))),
        out_specs=P(),
    )


def over_two() -> Workload:
    """A mesh of two devices, for which no slice of a TPU has a default."""
    x = jax.ShapeDtypeStruct((256, 128), F32)
    return Workload(name="over-two", fn=lambda x: x * 2, mesh={"d": 2}, in_specs=P("d"), args=(x,))


def tpu_kernel() -> Workload:
    """A Pallas kernel for TPUs with the name `scale_kernel`."""

    def scale(x_ref, out_ref):  # type: ignore[no-untyped-def]
        out_ref[...] = x_ref[...] * 2

    def step(x: jax.Array) -> jax.Array:
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(scale, out_shape=shape, name="scale_kernel")(x) + 1

    return Workload(name="tpu-kernel", fn=step, args=(jax.ShapeDtypeStruct((256, 128), F32),))


def large_kernel() -> Workload:
    """A Pallas kernel whose block does not fit VMEM."""

    def scale(x_ref, out_ref):  # type: ignore[no-untyped-def]
        out_ref[...] = x_ref[...] * 2

    def step(x: jax.Array) -> jax.Array:
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(scale, out_shape=shape, name="scale_kernel")(x)

    return Workload(name="large-kernel", fn=step, args=(jax.ShapeDtypeStruct((65536, 1024), F32),))


def on_host() -> Workload:
    """A state in the host's memory, which is donated and updated through the device."""

    def step(state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        on_device = jax.device_put(state, jax.memory.Space.Device) + x
        return jax.device_put(on_device, jax.memory.Space.Host), on_device.sum()

    mesh = jax.sharding.AbstractMesh((1,), ("d",))
    host = jax.sharding.NamedSharding(mesh, P(), memory_kind="pinned_host")
    return Workload(
        name="on-host",
        fn=step,
        args=(
            jax.ShapeDtypeStruct((1000, 1000), F32, sharding=host),
            jax.ShapeDtypeStruct((1000, 1000), F32),
        ),
        donate_argnums=0,
    )


def gpu_kernel() -> Workload:
    """A Pallas kernel with compiler parameters of Triton."""

    def scale(x_ref, out_ref):  # type: ignore[no-untyped-def]
        out_ref[...] = x_ref[...] * 2

    def step(x: jax.Array) -> jax.Array:
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        parameters = plgpu.CompilerParams(num_warps=4)
        return pl.pallas_call(scale, out_shape=shape, compiler_params=parameters)(x)

    return Workload(name="gpu-kernel", fn=step, args=(jax.ShapeDtypeStruct((256, 128), F32),))
