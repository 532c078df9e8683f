"""Training steps through flax and optax, whose arrays are computed inside the libraries.

Comments mark the lines that a test looks for.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen, nnx

from xlapipe import Workload

X = jax.ShapeDtypeStruct((4096, 256), jnp.float32)
Y = jax.ShapeDtypeStruct((4096, 1024), jnp.float32)


class _NnxBlock(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.up = nnx.Linear(256, 1024, rngs=rngs)
        self.norm = nnx.LayerNorm(1024, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = self.up(x)  # line: nnx linear
        return self.norm(nnx.gelu(hidden))  # line: nnx norm


def nnx_step() -> Workload:
    model = nnx.eval_shape(lambda: _NnxBlock(nnx.Rngs(0)))
    optimizer = nnx.eval_shape(lambda: nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param))

    @nnx.jit
    def step(model: Any, optimizer: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        def loss(model: Any) -> jax.Array:
            return jnp.mean((model(x) - y) ** 2)  # line: nnx loss

        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)  # line: nnx update
        return value

    return Workload(name="nnx_step", fn=step, args=(model, optimizer, X, Y))


class _LinenBlock(linen.Module):
    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = linen.Dense(1024)(x)  # line: linen dense
        return linen.LayerNorm()(linen.gelu(hidden))  # line: linen norm


def linen_step() -> Workload:
    model, optimizer = _LinenBlock(), optax.adamw(1e-3)

    def step(params: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            return jnp.mean((model.apply(params, x) - y) ** 2)  # line: linen loss

        gradients = jax.grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)  # line: linen update
        return optax.apply_updates(params, updates), state  # line: linen apply

    params = jax.eval_shape(model.init, jax.random.key(0), X)
    state = jax.eval_shape(optimizer.init, params)
    return Workload(name="linen_step", fn=step, args=(params, state, X, Y))


def optax_step() -> Workload:
    """The optimizer alone, so that nothing else holds memory."""
    optimizer = optax.adamw(1e-3)

    def step(gradients: Any, state: Any, params: Any) -> Any:
        clipped = optax.tree.scale(0.5, gradients)  # line: optax scale
        updates, state = optimizer.update(clipped, state, params)  # line: optax update
        return optax.apply_updates(params, updates), state  # line: optax apply

    params = {"w": X}
    state = jax.eval_shape(optimizer.init, params)
    return Workload(name="optax_step", fn=step, args=(params, state, params))
