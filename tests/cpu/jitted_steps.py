"""Steps that are jitted already, and donate nothing."""

import jax
import jax.numpy as jnp
from flax import nnx

from xlapipe import Workload


def updated(weight: jax.Array, x: jax.Array) -> jax.Array:
    return weight - x.T @ x


ARGUMENTS = (jax.ShapeDtypeStruct((8, 8), jnp.float32), jax.ShapeDtypeStruct((4, 8), jnp.float32))
jitted = Workload(name="jitted", fn=jax.jit(updated), args=ARGUMENTS)
nnx_jitted = Workload(name="nnx-jitted", fn=nnx.jit(updated), args=ARGUMENTS)
