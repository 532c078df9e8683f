"""The backward pass of reference dump 000: three layers, weights in flat shards, few rows."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float

from models.fsdp_mlp.training import AXIS

# Shards, x, h1, h2 and the mask are split; g is replicated.
IN_SPECS = (*(PartitionSpec(AXIS),) * 5, PartitionSpec())
OUT_SPECS = PartitionSpec(AXIS)


def backward(
    shards: tuple[Float[Array, " S"], Float[Array, " S"], Float[Array, " S"]],
    x: Float[Array, "B I"],
    h1: Float[Array, "B I"],
    h2: Float[Array, "B I"],
    mask: Bool[Array, "B O"],
    g: Float[Array, ""],
) -> tuple[Float[Array, " S"], Float[Array, " S"], Float[Array, " S"]]:
    """Gradients of the shards of W1, W2 and W3, summed over devices.

    Args:
      shards: this device's rows of W1, W2 and W3 ([out, in]), flattened.
      mask: where the last ReLU's output is 0.
      g: the loss gradient, the same for every element of the last output.
    """
    features = x.shape[-1]
    # Gathers W1 too, as the dump does, although only a gradient of x would need it.
    w3, w2, _ = (_gather(f"w{n}", shards[n - 1], features) for n in (3, 2, 1))
    g3 = jnp.where(mask, jnp.zeros_like(g), g)
    with jax.named_scope("dw3"):
        dw3 = g3.T @ h2
    with jax.named_scope("dh2"):
        dh2 = g3 @ w3
    g2 = jnp.where(h2 <= 0, 0, dh2)
    with jax.named_scope("dw2"):
        dw2 = g2.T @ h1
    with jax.named_scope("dh1"):
        dh1 = g2 @ w2
    g1 = jnp.where(h1 <= 0, 0, dh1)
    with jax.named_scope("dw1"):
        dw1 = g1.T @ x
    return _reduce_scatter(dw1), _reduce_scatter(dw2), _reduce_scatter(dw3)


def _gather(name: str, shard: Float[Array, " S"], features: int) -> Float[Array, "O I"]:
    with jax.named_scope(name):
        gathered: Array = lax.all_gather(shard, AXIS, tiled=True)
    return gathered.reshape(-1, features)


def _reduce_scatter(gradient: Float[Array, "O I"]) -> Float[Array, " S"]:
    with jax.named_scope("reduce_scatter"):
        summed: Array = lax.psum_scatter(gradient.reshape(-1), AXIS, tiled=True)
    return summed


def backward_over_mesh() -> Callable[..., tuple[Array, Array, Array]]:
    """`backward` over the current mesh, on global arrays: shards f[H·H], rows f[B·devices, I]."""
    over_mesh: Callable[..., tuple[Array, Array, Array]] = jax.shard_map(
        backward, in_specs=IN_SPECS, out_specs=OUT_SPECS
    )
    return over_mesh
