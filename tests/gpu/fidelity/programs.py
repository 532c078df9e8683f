"""Programs in which XLA asks the device: sorts, the workspace of attention, the memory limit."""

import jax
import jax.numpy as jnp
from jax import lax

from xlapipe import Workload


def sort(dtype: str, shape: tuple[int, ...]) -> Workload:
    name = f"sort_{dtype}_{'x'.join(map(str, shape))}"
    array = jax.ShapeDtypeStruct(shape, getattr(jnp, dtype))
    return Workload(name=name, fn=lambda x: jnp.sort(x, descending=False), args=(array,))


def sort_pairs(key: str, value: str, n: int) -> Workload:
    arrays = [jax.ShapeDtypeStruct((n,), getattr(jnp, dtype)) for dtype in (key, value)]
    return Workload(
        name=f"sort_pairs_{key}_{value}_{n}",
        fn=lambda keys, values: lax.sort((keys, values), num_keys=1, is_stable=False),
        args=arrays,
    )


def cudnn_attention_train(n: int, t: int, h: int, d: int) -> Workload:
    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        out = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
        return out.astype(jnp.float32).sum()

    name = f"cudnn_attention_train_{n}_{t}_{h}_{d}"
    qkv = jax.ShapeDtypeStruct((n, t, h, d), jnp.bfloat16)
    return Workload(name=name, fn=jax.grad(loss, (0, 1, 2)), args=(qkv, qkv, qkv))


def memory_limit(gib: int) -> Workload:
    """A gradient that keeps about `gib` GiB of residuals, each of which can be computed again."""
    layers = 24
    x = jax.ShapeDtypeStruct((gib * (1 << 30) // 4 // layers,), jnp.float32)

    def loss(x: jax.Array) -> jax.Array:
        for _ in range(layers):
            x = jnp.sin(x - lax.optimization_barrier(x.mean()))
        return x.sum()

    return Workload(name=f"memory_limit_{gib}", fn=jax.grad(loss), args=(x,), donate_argnums=0)
