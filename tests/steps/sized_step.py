"""A step whose sizes are arguments: small, too large for any GPU, refused, or a crash."""

import os

import jax
import jax.numpy as jnp

from xlapipe import Workload


def sized(rows: int = 128, columns: int = 256) -> Workload:
    """Reads rows × columns numbers, and writes one of each row."""
    if rows < 0:
        os.abort()
    if rows % 2:
        raise ValueError(f"rows={rows}: expected an even number")

    def row_sums(x: jax.Array) -> jax.Array:
        return x.astype(jnp.float32).sum(axis=1)

    return Workload(
        name=f"sized-{rows}x{columns}",
        fn=row_sums,
        args=(jax.ShapeDtypeStruct((rows, columns), jnp.bfloat16),),
    )
