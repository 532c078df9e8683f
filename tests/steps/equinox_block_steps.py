"""A small training step of unrolled Equinox blocks, with the interface of `block_steps`."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

WIDTH = 16


class Block(eqx.Module):
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        first, second = jax.random.split(key)
        self.up = eqx.nn.Linear(WIDTH, 2 * WIDTH, key=first)
        self.down = eqx.nn.Linear(2 * WIDTH, WIDTH, key=second)

    def __call__(self, x: jax.Array, scale: float) -> jax.Array:
        return x + scale * jnp.tanh(jax.vmap(self.down)(jax.nn.gelu(jax.vmap(self.up)(x))))


def loss(blocks: list[Block], x: jax.Array) -> jax.Array:
    def one(x: jax.Array) -> jax.Array:
        for block in blocks:
            x = block(x, scale=0.5)
        return x

    return jnp.mean(jax.vmap(one)(x) ** 2)


def transformer(*size: int) -> tuple[Any, tuple[Any, ...]]:
    keys = [*jax.random.split(jax.random.key(0), 4)]
    blocks = eqx.filter_eval_shape(lambda: [Block(key) for key in keys])
    x = jax.ShapeDtypeStruct((*size, WIDTH), jnp.float32)

    def step(blocks: list[Block], x: jax.Array) -> Any:
        return eqx.filter_value_and_grad(loss)(blocks, x)

    return step, (blocks, x)


STEPS: dict[str, Any] = {"equinox transformer": transformer}
