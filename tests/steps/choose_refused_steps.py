"""Steps for which `xlapipe choose --remat` has an error, each for another reason."""

import functools
import itertools
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from xlapipe import Workload

W = jax.ShapeDtypeStruct((64, 64), jnp.float32)
X = jax.ShapeDtypeStruct((128, 64), jnp.float32)
_TRACES = itertools.count(1)


def _mean(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.mean(jnp.tanh(jnp.tanh(x @ w) @ w) ** 2)


def _workload(loss: Callable[..., jax.Array]) -> Workload:
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        return w - 0.1 * jax.grad(loss)(w, x)

    return Workload(name="refused", fn=step, args=(W, X))


def without_gradient() -> Workload:
    return Workload(name="refused", fn=_mean, args=(W, X))


def without_a_place_for_a_policy() -> Workload:
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        loss, pull_back = jax.vjp(lambda w: _mean(w, x), w)
        return w - 0.1 * pull_back(jnp.ones_like(loss))[0]

    return Workload(name="refused", fn=step, args=(W, X))


def hidden_residuals() -> Workload:
    """All residuals of the custom_vjp are arguments of the step."""

    @jax.custom_vjp
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return _mean(w, x)

    def backward(residuals: Any, gradient: jax.Array) -> tuple[jax.Array, None]:
        return gradient * jax.grad(_mean)(*residuals), None

    loss.defvjp(lambda w, x: (_mean(w, x), (w, x)), backward)
    return _workload(loss)


def donated_residuals() -> Workload:
    """A jitted function donates what the backward pass needs."""

    @functools.partial(jax.jit, donate_argnums=0)
    def activation(hidden: jax.Array) -> jax.Array:
        return jnp.tanh(hidden) * hidden

    return _workload(lambda w, x: jnp.mean(activation(x @ w) @ w))


def side_effect(scan: bool = False) -> Workload:
    """The loss is printed; with `scan`, after scanned layers."""

    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return x + jnp.tanh(x @ w), None

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        if scan:
            x, _ = jax.lax.scan(layer, x, jnp.broadcast_to(w, (4, *w.shape)))
        value = _mean(w, x)
        jax.debug.print("loss {}", value)
        return value

    return _workload(loss)


def other_loop_in_each_trace() -> Workload:
    """One layer more in each trace."""

    def loss_of_traces(w: jax.Array, x: jax.Array) -> jax.Array:
        for _ in range(next(_TRACES)):
            x = jnp.tanh(jnp.sin(x @ w))
        return jnp.mean(x)

    return _workload(loss_of_traces)


def other_constant_in_each_process() -> Workload:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.mean(jnp.tanh(jnp.sin(x @ w) * os.getpid()))

    return _workload(loss)
