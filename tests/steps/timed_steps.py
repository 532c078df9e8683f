"""Steps with a loop that Python unrolls, and without."""

import jax
import jax.numpy as jnp

from xlapipe import Workload

X = jax.ShapeDtypeStruct((64, 128), jnp.float32)
W = jax.ShapeDtypeStruct((6, 128, 128), jnp.float32)


def layer(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w) + 1.0


def unrolled(x: jax.Array, w: jax.Array) -> jax.Array:
    for number in range(6):
        x = layer(x, w[number])
    return x


def scanned(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda x, w: (layer(x, w), None), x, w)[0]


def descend(weights: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return jax.tree.map(lambda w: w - 0.1 * jnp.tanh(w), weights)


def descend_in_a_loop(weights: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {name: w - 0.1 * jnp.tanh(w) for name, w in weights.items()}


EQUAL = {f"w{number}": W for number in range(8)}
OF_TWO_SHAPES = {f"w{number}": W if number % 2 else X for number in range(8)}
mapped_workload = Workload(name="mapped", fn=descend, args=(EQUAL,))
of_two_shapes_workload = Workload(name="two", fn=descend_in_a_loop, args=(OF_TWO_SHAPES,))
unrolled_workload = Workload(name="unrolled", fn=unrolled, args=(X, W))
scanned_workload = Workload(name="scanned", fn=scanned, args=(X, W))
