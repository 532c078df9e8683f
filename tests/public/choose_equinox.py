"""Training steps of Equinox for `xlapipe choose`."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from xlapipe import Workload

LAYERS, WIDTH = 4, 256
X = jax.ShapeDtypeStruct((512, WIDTH), jnp.float32)


class Block(eqx.Module):
    """Two products and what is between them."""

    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        first, second = jax.random.split(key)
        self.up = eqx.nn.Linear(WIDTH, 4 * WIDTH, key=first)
        self.down = eqx.nn.Linear(4 * WIDTH, WIDTH, key=second)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + jnp.tanh(self.down(jax.nn.silu(self.up(x))))


def loss(blocks: Block, x: jax.Array) -> jax.Array:
    for number in range(LAYERS):
        x = jax.vmap(jax.tree.map(lambda leaf: leaf[number], blocks))(x)  # noqa: B023
    return jnp.mean(x**2)


def body(x: jax.Array, block: Block) -> tuple[jax.Array, None]:
    return jax.vmap(block)(x), None


def scanned_loss(blocks: Block, x: jax.Array) -> jax.Array:
    x, _ = jax.lax.scan(body, x, blocks)
    return jnp.mean(x**2)


def workload(scan: bool = False) -> Workload:
    """A step of gradient descent."""
    keys = jax.random.split(jax.random.key(0), LAYERS)
    blocks = eqx.filter_eval_shape(lambda: eqx.filter_vmap(Block)(keys))

    @eqx.filter_jit
    def step(blocks: Block, x: jax.Array) -> tuple[jax.Array, Any]:
        if scan:
            value, gradients = eqx.filter_value_and_grad(scanned_loss)(blocks, x)
        else:
            value, gradients = eqx.filter_value_and_grad(loss)(blocks, x)
        return value, eqx.apply_updates(blocks, jax.tree.map(lambda g: -0.1 * g, gradients))

    return Workload(name="choose-equinox", fn=step, args=(blocks, X))
