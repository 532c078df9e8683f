"""A step over two devices that splits the batch alone, with weights and momentum of other sizes."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from xlapipe import Workload


def step(params, momentum, x):  # type: ignore[no-untyped-def]
    def loss(params):  # type: ignore[no-untyped-def]
        return jnp.mean((jnp.tanh(x @ params["up"]) @ params["down"]) ** 2)

    gradients = jax.grad(loss)(params)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, {"a": gradients, "b": gradients})
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum["a"]), momentum


def data_parallel() -> Workload:
    params = {
        "up": jax.ShapeDtypeStruct((256, 1024), jnp.float32),
        "down": jax.ShapeDtypeStruct((1024, 128), jnp.float32),
    }
    return Workload(
        name="data-parallel",
        fn=step,
        args=(params, {"a": params, "b": params}, jax.ShapeDtypeStruct((64, 256), jnp.float32)),
        mesh={"data": 2},
        in_specs=(PartitionSpec(), PartitionSpec(), PartitionSpec("data")),
    )
