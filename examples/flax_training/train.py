"""A training step: a Flax model, and Adam written by hand."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx


@dataclass(frozen=True)
class Config:
    width: int = 256
    hidden: int = 1024
    classes: int = 16
    learning_rate: float = 1e-3


class Classifier(nnx.Module):
    """A residual MLP block and a head."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs) -> None:
        self.block = Block(config, rngs=rngs)
        self.head = nnx.Linear(config.width, config.classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(self.block(x))


class Block(nnx.Module):
    def __init__(self, config: Config, *, rngs: nnx.Rngs) -> None:
        self.up = nnx.Linear(config.width, config.hidden, rngs=rngs)
        self.down = nnx.Linear(config.hidden, config.width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.down(nnx.relu(self.up(x)))


def init_optimizer(params: Any) -> dict[str, Any]:
    """Adam's first and second moments, and the number of steps."""
    zeros = partial(jax.tree.map, jnp.zeros_like)
    return {"m": zeros(params), "v": zeros(params), "t": jnp.zeros((), jnp.int32)}


def train_step(config: Config, graphdef: Any) -> Any:
    """One step of Adam: `step(params, optimizer, x, labels) -> params, optimizer, loss`."""

    def step(
        params: Any, optimizer: dict[str, Any], x: jax.Array, labels: jax.Array
    ) -> tuple[Any, dict[str, Any], jax.Array]:
        def loss_of(params: Any) -> jax.Array:
            logits = nnx.merge(graphdef, params)(x)
            picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)
            return -jnp.mean(picked)

        loss, gradients = jax.value_and_grad(loss_of)(params)
        t = optimizer["t"] + 1
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, optimizer["m"], gradients)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, optimizer["v"], gradients)
        rate = config.learning_rate * jnp.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        params = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), params, m, v)
        return params, {"m": m, "v": v, "t": t}, loss

    return step
