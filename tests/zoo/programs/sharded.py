"""Programs over four devices: collectives, and each way to give a mesh."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from step import f32, i32, step

from xlapipe import Workload
from xlapipe.expect import ParameterBytes

_MESH = AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,))
_SPLIT = P("x")


def _over_four(name: str, fn: Any, args: list[Any], out_specs: Any = _SPLIT) -> Workload:
    """`fn` under shard_map with `args` split over four devices."""
    mapped = jax.shard_map(fn, mesh=_MESH, in_specs=P("x"), out_specs=out_specs)
    return step(name, mapped, args, mesh=_MESH, in_specs=tuple(_SPLIT for _ in args))


def psum() -> Workload:
    return _over_four("psum", lambda x: lax.psum(x, "x"), [f32(64, 128)], P())


def reductions_over_devices() -> Workload:
    def fn(x: Any) -> Any:
        return lax.pmax(x, "x"), lax.pmin(x, "x"), lax.pmean(x, "x")

    return _over_four("reductions_over_devices", fn, [f32(64, 128)], P())


def all_gather() -> Workload:
    def fn(x: Any) -> Any:
        return lax.all_gather(x, "x", tiled=True)

    return _over_four("all_gather", fn, [f32(64, 128)])


def reduce_scatter() -> Workload:
    fn = lambda x: lax.psum_scatter(x, "x", tiled=True)  # noqa: E731
    return _over_four("reduce_scatter", fn, [f32(64, 128)])


def all_to_all() -> Workload:
    fn = lambda x: lax.all_to_all(x, "x", 1, 0, tiled=True)  # noqa: E731
    return _over_four("all_to_all", fn, [f32(64, 128)])


def ppermute() -> Workload:
    fn = lambda x: lax.ppermute(x, "x", [(i, (i + 1) % 4) for i in range(4)])  # noqa: E731
    return _over_four("ppermute", fn, [f32(64, 128)])


def axis_index() -> Workload:
    fn = lambda x: x * lax.axis_index("x") + lax.axis_size("x")  # noqa: E731
    return _over_four("axis_index", fn, [f32(64, 128)])


def gradient_through_a_mesh() -> Workload:
    def loss(w: Any, x: Any) -> Any:
        return ((x @ w) ** 2).mean()

    args, specs = [f32(128, 32), f32(64, 128)], (P(), P("x"))
    return step("gradient_through_a_mesh", jax.grad(loss), args, mesh={"x": 4}, in_specs=specs)


def sharding_constraint() -> Workload:
    def fn(x: Any, w: Any) -> Any:
        y = lax.with_sharding_constraint(x @ w, NamedSharding(_MESH, P(None, "x")))
        return jnp.sin(y)

    specs = (P("x"), P())
    return step("sharding_constraint", fn, [f32(64, 128), f32(128, 64)], mesh={"x": 4},
                in_specs=specs)  # fmt: skip


def output_shardings() -> Workload:
    return step("output_shardings", lambda x: (x * 2, x.sum(0)), [f32(64, 128)], mesh={"x": 4},
                in_specs=P("x"), out_specs=(P(None, "x"), P()), donate_argnums=0)  # fmt: skip


def sharded_arguments_without_mesh() -> Workload:
    x = jax.ShapeDtypeStruct((64, 128), jnp.float32, sharding=NamedSharding(_MESH, P("x")))
    fn = jax.shard_map(lambda x: lax.psum(x, "x"), mesh=_MESH, in_specs=P("x"), out_specs=P())
    return step("sharded_arguments_without_mesh", fn, [x], expectations=[
        ParameterBytes(64 * 128 * 4 // 4),
    ])  # fmt: skip


def sharded_arguments_with_mesh() -> Workload:
    x = jax.ShapeDtypeStruct((64, 128), jnp.float32, sharding=NamedSharding(_MESH, P(None, "x")))
    return step("sharded_arguments_with_mesh", lambda x: x * 2, [x], mesh={"x": 4}, expectations=[
        ParameterBytes(64 * 128 * 4 // 4),
    ])  # fmt: skip


def mesh_made_in_the_step() -> Workload:
    def fn(x: Any) -> Any:
        mesh = jax.make_mesh((4,), ("x",))
        assert jax.device_count() == 4
        return jax.shard_map(lambda x: lax.psum(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())(
            x
        )

    return step("mesh_made_in_the_step", fn, [f32(64, 128)], mesh={"x": 4}, in_specs=P("x"),
                explicit_axes=("x",))  # fmt: skip


def explicit_axes() -> Workload:
    def fn(x: Any, w: Any) -> Any:
        return jax.sharding.reshard(x @ w, P(None, "x"))

    return step("explicit_axes", fn, [f32(64, 128), f32(128, 64)], mesh={"x": 4},
                in_specs=(P("x"), P()), explicit_axes=("x",))  # fmt: skip


def two_axes() -> Workload:
    args, specs = [f32(64, 128), f32(128, 64)], (P("d", "m"), P("m"))
    return step("two_axes", lambda x, w: jax.nn.relu(x @ w), args, mesh={"d": 2, "m": 2},
                in_specs=specs)  # fmt: skip


def ragged_all_to_all() -> Workload:
    def fn(x: Any, out: Any, start: Any, sizes: Any) -> Any:
        return lax.ragged_all_to_all(x, out, start, sizes, start, sizes, axis_name="x")

    args = [f32(64, 8), f32(64, 8), i32(16), i32(16)]
    return _over_four("ragged_all_to_all", fn, args)


def shard_map_over_the_mesh_of_the_workload() -> Workload:
    fn = jax.shard_map(lambda x: lax.psum(x, "x"), in_specs=P("x"), out_specs=P())
    return step("shard_map_over_the_mesh_of_the_workload", fn, [f32(64, 128)], mesh={"x": 4},
                in_specs=P("x"))  # fmt: skip
