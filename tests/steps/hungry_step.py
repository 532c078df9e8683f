"""Training steps that keep more memory than they must: nothing is donated or rematerialised."""

import jax
import jax.numpy as jnp
from jax import value_and_grad

from xlapipe import Workload

LAYERS = 4
WIDTH = 64


def hungry(batch: int = 4096) -> Workload:
    """An MLP with gradient descent."""

    def loss(params: list[jax.Array], x: jax.Array) -> jax.Array:
        for weight in params:
            x = jnp.sin(jnp.tanh(x @ weight))
        return jnp.sum(x)

    def step(params: list[jax.Array], x: jax.Array) -> tuple[list[jax.Array], jax.Array]:
        value, gradients = jax.value_and_grad(loss)(params, x)
        return [w - 0.1 * g for w, g in zip(params, gradients, strict=True)], value

    return Workload(
        name="hungry",
        fn=step,
        args=(
            [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * LAYERS,
            jax.ShapeDtypeStruct((batch, WIDTH), jnp.float32),
        ),
    )


def attention(batch: int = 2, tokens: int = 512) -> Workload:
    """Layers of attention, whose probabilities are the largest values saved."""

    def loss(weight: jax.Array, x: jax.Array) -> jax.Array:
        for _ in range(LAYERS):
            keys = x @ weight
            scores = jnp.einsum("btd,bsd->bts", x, keys)
            x = x + jax.nn.softmax(scores) @ keys
        return jnp.sum(x)

    def step(weight: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, gradient = value_and_grad(loss)(weight, x)
        return weight - 0.1 * gradient, value

    return Workload(
        name="attention",
        fn=step,
        args=(
            jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32),
            jax.ShapeDtypeStruct((batch, tokens, WIDTH), jnp.float32),
        ),
    )
