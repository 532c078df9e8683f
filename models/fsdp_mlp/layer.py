"""`relu(x Wᵀ)` with W gathered where it is used, forward and backward."""

from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

Residuals: TypeAlias = tuple[Array, Array, Array]


def plain_layer(x: Float[Array, "B I"], kernel: Float[Array, "O I"]) -> Float[Array, "B O"]:
    """`relu(x Wᵀ)`; sums in float32 inside the gemm."""
    with jax.named_scope("y"):
        return jax.nn.relu(x @ kernel.T)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def gathered_layer(
    x: Float[Array, "B I"], shard: Float[Array, "S I"], axis: str
) -> Float[Array, "B O"]:
    """The same with the rows of W gathered from the devices of mesh axis `axis`.

    What is kept for backward is x, y and the shard; W is gathered there again. Plain autodiff
    would keep W, and `jax.checkpoint`, told to save the dot alone, what the ReLU reads beside
    what it writes.
    """
    return plain_layer(x, gather(shard, axis))


def gather(shard: Float[Array, "S I"], axis: str) -> Float[Array, "O I"]:
    """All devices' rows, in the order of the axis."""
    with jax.named_scope("gather"):
        gathered: Array = lax.all_gather(shard, axis, tiled=True)
    return gathered


def reduce_scatter(gradient: Float[Array, "O I"], axis: str) -> Float[Array, "S I"]:
    """This device's rows of the sum over devices: the transpose of `gather`."""
    with jax.named_scope("reduce_scatter"):
        summed: Array = lax.psum_scatter(gradient, axis, tiled=True)
    return summed


def _forward(x: Array, shard: Array, axis: str) -> tuple[Array, Residuals]:
    # XLA would mask by what the ReLU reads, and keep that for backward beside what it writes.
    y = lax.optimization_barrier(gathered_layer(x, shard, axis))
    return y, (x, y, shard)


def _backward(axis: str, residuals: Residuals, dy: Array) -> tuple[Array, Array]:
    x, y, shard = residuals
    dy = jnp.where(y > 0, dy, 0)
    # Without this barrier XLA sees one gather, and keeps all kernels from forward to here; with
    # dy in it, it cannot gather in forward already.
    dy, shard = lax.optimization_barrier((dy, shard))
    kernel = gather(shard, axis)
    with jax.named_scope("dkernel"):
        dkernel = dy.T @ x
    # First this gemm, beside the gather; then that of dx, beside the reduce-scatter.
    dy, dkernel = lax.optimization_barrier((dy, dkernel))
    with jax.named_scope("dx"):
        dx = dy @ kernel
    return dx, reduce_scatter(dkernel, axis)


gathered_layer.defvjp(_forward, _backward)
