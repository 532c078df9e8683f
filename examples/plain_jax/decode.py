"""Attention over a key/value cache, one token at a time, in plain JAX."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

Weights = dict[str, jax.Array]
Cache = dict[str, jax.Array]


def init(width: int, length: int) -> tuple[Weights, Cache]:
    """Weights and an empty cache of `length` slots, in bfloat16."""
    keys = jax.random.split(jax.random.key(0), 4)
    weights = {
        name: jax.random.normal(key, (width, width), jnp.bfloat16) * width**-0.5
        for name, key in zip(("query", "key", "value", "out"), keys, strict=True)
    }
    cache = {name: jnp.zeros((length, width), jnp.bfloat16) for name in ("key", "value")}
    return weights, cache


def decode_step(scale: float) -> Callable[..., tuple[jax.Array, Cache]]:
    """Returns the step for one token; `scale` of the attention scores is a constant in it."""

    def step(
        weights: Weights, cache: Cache, x: jax.Array, position: jax.Array
    ) -> tuple[jax.Array, Cache]:
        updated = {
            name: jax.lax.dynamic_update_slice(
                cache[name], (x @ weights[name])[None], (position, 0)
            )
            for name in ("key", "value")
        }
        scores = (x @ weights["query"]) @ updated["key"].T * scale
        slots = jnp.arange(scores.shape[0])
        attention = jax.nn.softmax(jnp.where(slots <= position, scores, -jnp.inf))
        return (attention @ updated["value"]) @ weights["out"], updated

    return step
