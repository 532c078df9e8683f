"""Steps that are jitted already, and donate nothing; some of their jits say more."""

import jax
import jax.numpy as jnp
from flax import nnx

from xlapipe import Workload


def updated(weight: jax.Array, x: jax.Array) -> jax.Array:
    return weight - x.T @ x


ARGUMENTS = (jax.ShapeDtypeStruct((8, 8), jnp.float32), jax.ShapeDtypeStruct((4, 8), jnp.float32))
jitted = Workload(name="jitted", fn=jax.jit(updated), args=ARGUMENTS)
nnx_jitted = Workload(name="nnx-jitted", fn=nnx.jit(updated), args=ARGUMENTS)


def scaled(weight: jax.Array, x: jax.Array, times: int) -> jax.Array:
    return weight * times


with_options = Workload(
    name="with-options",
    fn=jax.jit(
        scaled,
        static_argnames="times",
        keep_unused=True,
        compiler_options={"xla_gpu_enable_triton_gemm": False},
    ),
    args=(*ARGUMENTS, 3),
)
nnx_with_options = Workload(
    name="nnx-with-options",
    fn=nnx.jit(scaled, static_argnums=2, keep_unused=True),
    args=(*ARGUMENTS, 3),
)
on_a_device = Workload(
    name="on-a-device",
    fn=jax.jit(updated, out_shardings=jax.sharding.SingleDeviceSharding(jax.devices()[0])),
    args=ARGUMENTS,
)
without_graph = Workload(name="without-graph", fn=nnx.jit(updated, graph=False), args=ARGUMENTS)
