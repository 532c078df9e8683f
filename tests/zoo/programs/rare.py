"""Operations that few steps use: sparse formats, updated factors, exported functions."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import checkify, sparse
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from step import array, f32, i32, step

from xlapipe import Workload

_DENSE = f32(32, 64)
_MESH = AbstractMesh((4,), ("x",))


def sparse_bcsr() -> Workload:
    def fn(m: Any, b: Any) -> Any:
        bcsr = sparse.BCSR.fromdense(m, nse=100)
        return bcsr @ b, bcsr.todense(), sparse.bcsr_extract(bcsr.indices, bcsr.indptr, m)

    return step("sparse_bcsr", fn, [_DENSE, f32(64, 8)])


def sparse_bcoo_more() -> Workload:
    def fn(m: Any, n: Any) -> Any:
        first, second = (sparse.BCOO.fromdense(it, nse=100) for it in (m, n))
        sampled = sparse.bcoo_dot_general_sampled(
            m, n, first.indices, dimension_numbers=(((1,), (0,)), ((), ()))
        )
        return (first @ second).todense(), first.sort_indices().data, sampled

    return step("sparse_bcoo_more", fn, [f32(32, 32), f32(32, 32)])


def composite() -> Workload:
    inner = lax.composite(lambda x: jnp.sin(x) / x, name="my.sinc")
    return step("composite", inner, [f32(64)])


def exported_function() -> Workload:
    exported = jax.export.export(jax.jit(jnp.sin), platforms=("cuda", "cpu"))(f32(64))
    return step("exported_function", lambda x: exported.call(x) + 1, [f32(64)])


def exported_for_any_size() -> Workload:
    (size,) = jax.export.symbolic_shape("n", constraints=["n >= 8"])
    exported = jax.export.export(
        jax.jit(lambda x: x.reshape(2, -1).sum(0) * x.shape[0]), platforms=("cuda",)
    )(jax.ShapeDtypeStruct((2 * size,), jnp.float32))
    return step("exported_for_any_size", exported.call, [f32(64)])


def call_of_a_library() -> Workload:
    """A custom call by name; XLA does not need the library to compile it."""
    call = jax.ffi.ffi_call("cusolver_getrf_ffi", (f32(32, 32), i32(32), i32()))
    return step("call_of_a_library", call, [f32(32, 32)])


def uninitialised() -> Workload:
    def fn(x: Any) -> Any:
        return lax.empty((64,), jnp.float32).at[:32].set(x)

    return step("uninitialised", fn, [f32(32)])


def subtracted_in_place() -> Workload:
    fn = lambda x, i, u: x.at[i].subtract(u)  # noqa: E731
    return step("subtracted_in_place", fn, [f32(64), i32(8), f32(8)], donate_argnums=0)


def derivative_of_max_pooling() -> Workload:
    def pool(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID")

    fn = lambda x, t: jax.jvp(pool, (x,), (t,))  # noqa: E731
    return step("derivative_of_max_pooling", fn, [f32(32, 32), f32(32, 32)])


def keys_from_seeds() -> Workload:
    def fn(seed: Any) -> Any:
        key = jax.random.clone(jax.random.key(seed))
        return jax.random.key_data(key), key

    return step("keys_from_seeds", fn, [i32()])


def custom_batching() -> Workload:
    @jax.custom_batching.custom_vmap
    def double(x: Any) -> Any:
        return 2 * x

    @double.def_vmap
    def _rule(size: int, batched: Any, x: Any) -> Any:
        return 2 * x, batched[0]

    return step("custom_batching", lambda x: double(x) + 1, [f32(64)])


def linear_function() -> Workload:
    def fn(x: Any) -> Any:
        return jax.custom_derivatives.linear_call(lambda r, x: r * x, lambda r, t: r * t, 2.0, x)

    return step("linear_function", fn, [f32(64)])


def checked_value() -> Workload:
    def positive(x: Any) -> Any:
        checkify.check(jnp.all(x > 0), "not positive")
        return jnp.log(x)

    return step("checked_value", checkify.checkify(positive), [f32(64)])


def product_in_blocks() -> Workload:
    """Float8 operands with a scale for each block of 32."""
    fp8, scale = array(jnp.float8_e4m3fn, 64, 128), array(jnp.float8_e8m0fnu, 64, 4)
    fn = lambda a, b, s, t: lax.scaled_dot(  # noqa: E731
        a, b, lhs_scale=s, rhs_scale=t, dimension_numbers=(((1,), (1,)), ((), ()))
    )
    return step("product_in_blocks", fn, [fp8, fp8, scale, scale])


def without_varying_axes() -> Workload:
    """Collectives under `check_vma=False`, which are other primitives."""

    def inner(x: Any) -> Any:
        total = lax.psum(x, "x")
        return total, lax.all_gather(x, "x"), lax.psum_scatter(total, "x", tiled=True)

    def fn(x: Any) -> Any:
        specs = (P(), P(), P("x"))
        return jax.shard_map(inner, mesh=_MESH, in_specs=P("x"), out_specs=specs, check_vma=False)(
            x
        )

    return step("without_varying_axes", fn, [f32(64, 32)], mesh=_MESH, in_specs=P("x"))


def gathered_alike() -> Workload:
    """An all-gather whose result is known to be the same on every device."""

    def inner(x: Any) -> Any:
        return lax.all_gather(x, "x", tiled=True, to="invarying")

    def fn(x: Any) -> Any:
        return jax.shard_map(inner, mesh=_MESH, in_specs=P("x"), out_specs=P())(x)

    return step("gathered_alike", fn, [f32(64, 32)], mesh=_MESH, in_specs=P("x"))
