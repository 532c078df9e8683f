"""Programs of any size: `chain_1000` has 1,000 layers, `leaves_1000` updates 1,000 leaves."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from xlapipe import Workload


def chain(layers: int) -> Workload:
    """Products with one weight each."""
    weight = jax.ShapeDtypeStruct((64, 64), jnp.float32)

    def step(x: jax.Array, weights: list[jax.Array]) -> jax.Array:
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return x

    x = jax.ShapeDtypeStruct((8, 64), jnp.float32)
    return Workload(name=f"chain-{layers}", fn=step, args=(x, [weight] * layers))


def leaves(count: int) -> Workload:
    """Parameters in a tree, updated in place."""
    weight = jax.ShapeDtypeStruct((16, 16), jnp.float32)

    def step(params: Any) -> Any:
        return jax.tree.map(lambda weight: weight * 0.9 + 1.0, params)

    params = {f"layer_{number}": {"weight": weight} for number in range(count)}
    return Workload(name=f"leaves-{count}", fn=step, args=(params,), donate_argnums=0)


def __getattr__(name: str) -> Callable[[], Workload]:
    program, _, count = name.partition("_")
    programs = {"chain": chain, "leaves": leaves}
    if program not in programs or not count.isdecimal():
        raise AttributeError(name)
    return lambda: programs[program](int(count))
