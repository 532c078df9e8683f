"""Pairs of a good and a bad form of one computation, for which arithmetic says which is faster."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

from xlapipe import Workload

BF16, F32 = jnp.bfloat16, jnp.float32


class Pair(NamedTuple):
    """Two forms.

    Attributes:
      why: what the bad form has more of: `products`, `HBM`, `links`, `host` or `starts`.
      reason: what `show --time` prints of the bad form, or `diff` of both.
      form: the function of `bad`, its arguments and the partitions of those.
    """

    why: str
    reason: str
    form: Callable[[bool], tuple[Callable[..., Any], tuple[Any, ...], Any]]
    devices: int = 1
    target: str = "v6e"


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


def odd_vocabulary(bad: bool) -> Any:
    size = 257 if bad else 256
    return _product, (s(16384, size), s(size, 4096)), None


def other_layout(bad: bool) -> Any:
    def keys(x: jax.Array, w: jax.Array) -> jax.Array:
        product = x @ w
        return product.reshape(8, 2048, 16, 128).swapaxes(1, 2) if bad else product

    return keys, (s(8, 2048, 2048), s(2048, 2048)), None


def wide_gather(bad: bool) -> Any:
    def normed(w: jax.Array) -> jax.Array:
        return (w * lax.rsqrt(jnp.sum(w * w, 1, keepdims=True))).astype(BF16)

    def step(x: jax.Array, w: jax.Array) -> jax.Array:
        gathered = lax.all_gather(w if bad else normed(w), "d", tiled=True)
        return x @ (normed(gathered) if bad else gathered)

    run = jax.shard_map(step, in_specs=P("d"), out_specs=P("d"), check_vma=False)
    return run, (s(4096, 8192), s(8192, 8192, dtype=F32)), P("d")


def _gradient(policy: Any) -> Any:
    """Of a layer that saves what the policy says."""

    def layer(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        return jnp.tanh(checkpoint_name(x @ up, "inner")) @ down

    def loss(up: jax.Array, down: jax.Array, x: jax.Array) -> jax.Array:
        return jax.checkpoint(layer, policy=policy)(x, up, down).astype(F32).sum()

    args = (s(4096, 16384), s(16384, 4096), s(4096, 4096))
    return jax.value_and_grad(loss, argnums=(0, 1, 2)), args, None


def computed_again(bad: bool) -> Any:
    saves = jax.checkpoint_policies.save_only_these_names("inner")
    return _gradient(jax.checkpoint_policies.nothing_saveable if bad else saves)


def offloaded(bad: bool) -> Any:
    names = (["inner"], []) if not bad else ([], ["inner"])
    return _gradient(
        jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=names[0],
            names_which_can_be_offloaded=names[1],
            offload_src="device",
            offload_dst="pinned_host",
        )
    )


_WAITS = "the cores wait for a collective at"
PAIRS = {
    "lost sharding": Pair("products", r"computes [\d,]+ operations more", lost_sharding, 4),
    "float32 weights": Pair("HBM", r"reads [\d,]+ B more", float32),
    "float32 gathered": Pair("links", _WAITS, wide_gather, 4),
    "heads of 80": Pair("products", "compute what pads the tiles of the matrix unit", head_of_80),
    "vocabulary of 257": Pair("products", "what pads the tiles", odd_vocabulary, target="v5e"),
    "one row at a time": Pair("starts", "a loop of 1,024 trips at", serial),
    "experts' rows gathered": Pair("links", _WAITS, experts, 4),
    "all of a sum": Pair("links", _WAITS, summed, 4),
    "not fused": Pair("HBM", "launches 4 instead of 1", not_fused),
    "another layout": Pair("HBM", "copies to another layout at", other_layout),
    "computed again": Pair("products", "the forward pass again", computed_again),
    "offloaded": Pair("host", "the cores wait for a transfer (from|to) the host", offloaded),
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
