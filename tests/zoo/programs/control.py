"""Programs by control flow and by transformation."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from step import f32, i32, step

from xlapipe import Workload


def scan() -> Workload:
    def fn(x: Any, weights: Any) -> Any:
        return lax.scan(lambda x, w: (jnp.tanh(x @ w), x.sum()), x, weights)

    return step("scan", fn, [f32(16, 64), f32(5, 64, 64)])


def scan_gradient() -> Workload:
    def loss(weights: Any, x: Any) -> Any:
        return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0].sum()

    return step("scan_gradient", jax.grad(loss), [f32(5, 64, 64), f32(16, 64)])


def scan_unrolled_in_reverse() -> Workload:
    def fn(x: Any, xs: Any) -> Any:
        return lax.scan(lambda c, y: (c + y, c * y), x, xs, reverse=True, unroll=3)

    return step("scan_unrolled_in_reverse", fn, [f32(64), f32(6, 64)])


def while_loop() -> Workload:
    def fn(x: Any) -> Any:
        return lax.while_loop(lambda x: x.sum() < 100, lambda x: x * 2, x)

    return step("while_loop", fn, [f32(64)])


def fori_loop() -> Workload:
    def fn(x: Any) -> Any:
        return lax.fori_loop(0, 10, lambda i, x: x.at[i].add(jnp.cos(x).sum()), x)

    return step("fori_loop", fn, [f32(64)])


def cond() -> Workload:
    def fn(flag: Any, x: Any) -> Any:
        return lax.cond(flag, lax.cumsum, lambda x: x * 2, x)

    return step("cond", fn, [jax.ShapeDtypeStruct((), jnp.bool_), f32(1000)])


def switch() -> Workload:
    branches = [jnp.sin, lambda x: x.T, lambda x: x @ x]
    return step("switch", lambda i, x: lax.switch(i, branches, x), [i32(), f32(64, 64)])


def remat() -> Workload:
    @jax.checkpoint
    def block(x: Any, w: Any) -> Any:
        return jnp.tanh(jnp.tanh(x @ w) @ w)

    def loss(w: Any, x: Any) -> Any:
        return block(block(x, w), w).sum()

    return step("remat", jax.grad(loss), [f32(64, 64), f32(16, 64)])


def remat_with_policy() -> Workload:
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable

    def loss(weights: Any, x: Any) -> Any:
        body = jax.checkpoint(lambda x, w: (jnp.tanh(x @ w), None), policy=policy)
        return lax.scan(body, x, weights)[0].sum()

    return step("remat_with_policy", jax.value_and_grad(loss), [f32(4, 64, 64), f32(16, 64)])


def custom_vjp() -> Workload:
    @jax.custom_vjp
    def clip(x: Any) -> Any:
        return jnp.clip(x, -1, 1)

    clip.defvjp(lambda x: (clip(x), x), lambda x, g: (g * (jnp.abs(x) < 2),))
    return step("custom_vjp", jax.grad(lambda x: clip(x * 3).sum()), [f32(1000)])


def custom_jvp() -> Workload:
    @jax.custom_jvp
    def soft(x: Any) -> Any:
        return jnp.log1p(jnp.exp(x))

    soft.defjvp(lambda x, t: (soft(x[0]), jax.nn.sigmoid(x[0]) * t[0]))
    return step("custom_jvp", lambda x: jax.jvp(soft, (x,), (x,)), [f32(1000)])


def linear_transpose() -> Workload:
    transposed = jax.linear_transpose(lambda y: jnp.cumsum(y) * 2, f32(64))
    return step("linear_transpose", transposed, [f32(64)])


def stop_gradient_and_names() -> Workload:
    def loss(x: Any) -> Any:
        with jax.named_scope("inside"):
            return (checkpoint_name(jnp.sin(x), "s") * lax.stop_gradient(x)).sum()

    return step("stop_gradient_and_names", jax.grad(loss), [f32(1000)])


def checkify() -> Workload:
    from jax.experimental import checkify as checking

    def fn(x: Any) -> Any:
        checking.check(x[0] > 0, "must be positive, is {}", x[0])
        return jnp.log(x)

    def without_raise(x: Any) -> Any:
        error, y = checking.checkify(fn)(x)
        return y, jax.tree.leaves(error)

    return step("checkify", without_raise, [f32(1000)])
