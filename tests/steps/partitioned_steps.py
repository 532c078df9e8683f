"""Steps over a mesh with calls for which jax wants devices while it lowers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from xlapipe import Workload

ARRAY = jax.ShapeDtypeStruct((8, 256, 4, 64), jnp.bfloat16)


def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jax.nn.dot_product_attention(q, k, v, implementation="cudnn", is_causal=True)


def gradients(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
    def loss(*arrays: jax.Array) -> jax.Array:
        return attend(*arrays).astype(jnp.float32).sum()

    return jax.grad(loss, argnums=(0, 1, 2))(q, k, v)


def _workload(name: str, fn: Any, mesh: dict[str, int], spec: P) -> Workload:
    return Workload(name=name, fn=fn, args=(ARRAY,) * 3, mesh=mesh, in_specs=spec, out_specs=spec)


def by_batch() -> Workload:
    return _workload("by-batch", gradients, {"d": 4}, P("d"))


def by_batch_and_heads() -> Workload:
    return _workload("by-batch-and-heads", attend, {"d": 2, "h": 2}, P("d", None, "h"))


def in_shard_map() -> Workload:
    mapped = jax.shard_map(gradients, in_specs=P("d"), out_specs=P("d"), check_vma=False)
    return _workload("in-shard-map", mapped, {"d": 4}, P("d"))


def callback() -> Workload:
    def step(x: jax.Array) -> jax.Array:
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x) + 1

    x = jax.ShapeDtypeStruct((8, 16), jnp.float32)
    return Workload(
        name="callback", fn=step, args=(x,), mesh={"d": 4}, in_specs=P("d"), out_specs=P("d")
    )
