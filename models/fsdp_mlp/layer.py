"""`relu(x Wᵀ)` with W gathered for each use, forward and backward."""

from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

Residuals: TypeAlias = tuple[Array, Array, Array]


def plain_layer(x: Float[Array, "B I"], kernel: Float[Array, "O I"]) -> Float[Array, "B O"]:
    """`relu(x Wᵀ)`; the gemm accumulates in float32."""
    with jax.named_scope("y"):
        return jax.nn.relu(x @ kernel.T)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def gathered_layer(
    x: Float[Array, "B I"], shard: Float[Array, "S I"], axis: str
) -> Float[Array, "B O"]:
    """`plain_layer` with the rows of W gathered from the devices of mesh axis `axis`.

    Keeps x, y and the shard for backward, which gathers W again. Plain autodiff would keep W;
    `jax.checkpoint` with a policy that saves the dot alone would keep the ReLU's input and output.
    """
    return plain_layer(x, gather(shard, axis))


def gather(shard: Float[Array, "S I"], axis: str) -> Float[Array, "O I"]:
    """The rows of all devices, in the order of the mesh axis."""
    with jax.named_scope("gather"):
        gathered: Array = lax.all_gather(shard, axis, tiled=True)
    return gathered


def reduce_scatter(gradient: Float[Array, "O I"], axis: str) -> Float[Array, "S I"]:
    """This device's rows of the sum over devices: the transpose of `gather`."""
    with jax.named_scope("reduce_scatter"):
        summed: Array = lax.psum_scatter(gradient, axis, tiled=True)
    return summed


def _forward(x: Array, shard: Array, axis: str) -> tuple[Array, Residuals]:
    # Without the barrier XLA masks dy by the ReLU's input and keeps that input as well as y.
    y = lax.optimization_barrier(gathered_layer(x, shard, axis))
    return y, (x, y, shard)


def _backward(axis: str, residuals: Residuals, dy: Array) -> tuple[Array, Array]:
    x, y, shard = residuals
    dy = jnp.where(y > 0, dy, 0)
    # Without this barrier XLA merges this gather with the forward one and keeps all kernels from
    # forward to backward. With dy in the barrier, it cannot move the gather into forward.
    dy, shard = lax.optimization_barrier((dy, shard))
    kernel = gather(shard, axis)
    with jax.named_scope("dkernel"):
        dkernel = dy.T @ x
    # Orders the gemms: this one overlaps the gather, that of dx overlaps the reduce-scatter.
    dy, dkernel = lax.optimization_barrier((dy, dkernel))
    with jax.named_scope("dx"):
        dx = dy @ kernel
    return dx, reduce_scatter(dkernel, axis)


gathered_layer.defvjp(_forward, _backward)
