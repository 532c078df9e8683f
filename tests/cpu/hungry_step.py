"""A training step that keeps more memory than it must: nothing is donated or rematerialised."""

import jax
import jax.numpy as jnp

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
