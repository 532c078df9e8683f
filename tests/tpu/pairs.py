"""Pairs of a good and a bad form of one computation, for which arithmetic says which is faster."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from xlapipe import Workload

BF16, F32 = jnp.bfloat16, jnp.float32


class Pair(NamedTuple):
    """Two forms.

    Attributes:
      why: what the bad form has more of: `products`, `HBM`, `links` or `starts`.
      form: the function of `bad`, its arguments and the partitions of those.
    """

    why: str
    form: Callable[[bool], tuple[Callable[..., Any], tuple[Any, ...], Any]]
    devices: int = 1


def s(*shape: int, dtype: Any = BF16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _product(x: jax.Array, w: jax.Array) -> jax.Array:
    return x @ w


def lost_sharding(bad: bool) -> Any:
    return _product, (s(8192, 4096), s(4096, 4096)), (P() if bad else P("d"), P())


def float32(bad: bool) -> Any:
    dtype = F32 if bad else BF16
    return _product, (s(256, 8192, dtype=dtype), s(8192, 8192, dtype=dtype)), None


def head_of_80(bad: bool) -> Any:
    heads, size = (16, 80) if bad else (10, 128)
    scores = partial(jnp.einsum, "bqhd,bkhd->bhqk")
    q = s(8, 1024, heads, size)
    return (lambda q, k, v: jnp.einsum("bhqk,bkhd->bqhd", scores(q, k), v)), (q, q, q), None


def serial(bad: bool) -> Any:
    def of_rows(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.map(lambda row: row @ w, x) if bad else x @ w

    return of_rows, (s(1024, 8, 512), s(512, 512)), None


def experts(bad: bool) -> Any:
    def gathered(x: jax.Array) -> jax.Array:
        every = lax.all_gather(x, "d", axis=0)  # 4 devices, 4 experts, rows, features
        return lax.dynamic_index_in_dim(every, lax.axis_index("d"), 1, keepdims=False)

    def exchanged(x: jax.Array) -> jax.Array:
        return lax.all_to_all(x, "d", 0, 0)

    run = jax.shard_map(
        gathered if bad else exchanged, in_specs=P("d"), out_specs=P("d"), check_vma=False
    )
    return run, (s(16, 2048, 1024),), P("d")


def summed(bad: bool) -> Any:
    def whole(x: jax.Array) -> jax.Array:
        rows = x.shape[0] // 4
        return lax.dynamic_slice_in_dim(lax.psum(x, "d"), lax.axis_index("d") * rows, rows)

    def part(x: jax.Array) -> jax.Array:
        return lax.psum_scatter(x, "d", tiled=True)

    run = jax.shard_map(whole if bad else part, in_specs=P(), out_specs=P("d"), check_vma=False)
    return run, (s(8192, 8192),), P()


def not_fused(bad: bool) -> Any:
    def chain(x: jax.Array) -> jax.Array:
        for _ in range(4):
            x = jnp.tanh(x)
            x = lax.optimization_barrier(x) if bad else x
        return x

    return chain, (s(8192, 8192),), None


PAIRS = {
    "lost sharding": Pair("products", lost_sharding, 4),
    "float32 weights": Pair("HBM", float32),
    "heads of 80": Pair("products", head_of_80),
    "one row at a time": Pair("starts", serial),
    "experts' rows gathered": Pair("links", experts, 4),
    "all of a sum": Pair("links", summed, 4),
    "not fused": Pair("HBM", not_fused),
}


def form(name: str, bad: bool) -> Workload:
    """One form of a pair."""
    pair = PAIRS[name]
    fn, args, specs = pair.form(bad)
    word = name.replace(" ", "-").replace("'", "")
    return Workload(
        name=f"{word}-{'bad' if bad else 'good'}",
        fn=fn,
        args=args,
        mesh={"d": 4} if pair.devices > 1 else None,
        in_specs=specs,
    )
