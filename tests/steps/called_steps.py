"""A step that a loop calls with batches of two sizes, and whose scatter adds by atomics."""

import jax
import jax.numpy as jnp

from xlapipe import Workload

Batch = tuple[jax.Array, jax.Array]
TABLE = jax.ShapeDtypeStruct((512, 64), jnp.float32)


def step(table: jax.Array, batch: Batch) -> jax.Array:
    numbers, rows = batch
    return table.at[numbers].add(rows.astype(table.dtype))


def batch(size: int) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    return jax.ShapeDtypeStruct((size,), jnp.int32), jax.ShapeDtypeStruct((size, 64), jnp.float32)


workload = Workload(
    name="called",
    fn=step,
    args=(TABLE, batch(32)),
    calls=[(TABLE, batch(32)), (TABLE, batch(5))],
)
