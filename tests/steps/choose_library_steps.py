"""Training steps of Flax's libraries for `xlapipe choose`: layers in loops of the libraries."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx

from xlapipe import Workload

LAYERS, WIDTH = 4, 256
X = jax.ShapeDtypeStruct((512, WIDTH), jnp.float32)


class LinenBlock(nn.Module):
    """Two products and what is between them; the carry of a scan."""

    @nn.compact
    def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
        hidden = nn.silu(nn.Dense(4 * WIDTH)(x))
        return x + jnp.tanh(nn.Dense(WIDTH)(hidden)), None


class LinenLoop(nn.Module):
    """Blocks in a Python loop."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(LAYERS):
            x, _ = LinenBlock()(x, None)
        return x


class LinenScan(nn.Module):
    """Scanned blocks."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scanned = nn.scan(
            LinenBlock, variable_axes={"params": 0}, split_rngs={"params": True}, length=LAYERS
        )
        return scanned()(x, None)[0]


def linen_workload(scan: bool = False) -> Workload:
    """A step of gradient descent."""
    model = LinenScan() if scan else LinenLoop()
    params = jax.eval_shape(model.init, jax.random.key(0), X)

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return jnp.mean(model.apply(params, x) ** 2)

    def step(params: Any, x: jax.Array) -> tuple[jax.Array, Any]:
        value, gradients = jax.value_and_grad(loss)(params, x)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)

    return Workload(name="choose-linen", fn=step, args=(params, X), donate_argnums=(0,))


class NnxBlock(nnx.Module):
    """Two products and what is between them."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + jnp.tanh(self.down(nnx.silu(self.up(x))))


def nnx_loss(model: NnxBlock, x: jax.Array) -> jax.Array:
    return jnp.mean(model(x) ** 2)


def nnx_body(x: jax.Array, block: NnxBlock) -> jax.Array:
    return block(x)


def nnx_scanned_loss(blocks: NnxBlock, x: jax.Array) -> jax.Array:
    forward = nnx.scan(nnx_body, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
    return jnp.mean(forward(x, blocks) ** 2)


def nnx_workload(scan: bool = False) -> Workload:
    """A step of gradient descent, of one block or of scanned ones."""

    def blocks() -> NnxBlock:
        @nnx.split_rngs(splits=LAYERS)
        @nnx.vmap(in_axes=0, out_axes=0)
        def make(rngs: nnx.Rngs) -> NnxBlock:
            return NnxBlock(rngs)

        return make(nnx.Rngs(0))

    model = nnx.eval_shape(blocks if scan else lambda: NnxBlock(nnx.Rngs(0)))

    @nnx.jit
    def step(model: NnxBlock, x: jax.Array) -> jax.Array:
        if scan:
            value, gradients = nnx.value_and_grad(nnx_scanned_loss)(model, x)
        else:
            value, gradients = nnx.value_and_grad(nnx_loss)(model, x)
        own = nnx.state(model, nnx.Param)
        nnx.update(model, jax.tree.map(lambda p, g: p - 0.1 * g, own, gradients))
        return value

    return Workload(name="choose-nnx", fn=step, args=(model, X))
