"""Steps whose workloads have another name than they are referred to by."""

import jax
import jax.numpy as jnp

from xlapipe import Workload


def small(rows: int = 16, kind: str = "plain") -> Workload:
    def step(x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ x.T) * len(kind)

    x = jax.ShapeDtypeStruct((rows, 64), jnp.float32)
    return Workload(name="another-name", fn=step, args=(x,))


def other() -> Workload:
    x = jax.ShapeDtypeStruct((16, 64), jnp.float32)
    return Workload(name="another-name", fn=jnp.sin, args=(x,))
