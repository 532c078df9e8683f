"""A linear layer whose kernel is gathered where it is used, forward and backward."""

from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

Residuals: TypeAlias = tuple[Array, Array]


class ShardedLinear(nnx.Module):
    """`y = x Wᵀ`, no bias; W is stored [out, in] as float32, of which a device holds some rows.

    Called inside `jax.shard_map`, where the module holds this device's rows. Without an axis it
    is called anywhere, and holds all rows.
    """

    def __init__(self, features: int, *, axis: str | None, rngs: nnx.Rngs) -> None:
        # Keeps the second moment through a ReLU: He et al., "Delving Deep into Rectifiers" (2015).
        initializer = nnx.initializers.normal(stddev=(2 / features) ** 0.5)
        self.kernel = nnx.Param(initializer(rngs.params(), (features, features), jnp.float32))
        self.axis = axis

    def __call__(self, x: Float[Array, "B I"]) -> Float[Array, "B O"]:
        """Computes, gathers and reduces in x's dtype; gemms sum in float32 inside."""
        # Narrowed before the gather: half the bytes to send, and each device casts its own rows.
        kernel = self.kernel[...].astype(x.dtype)
        return x @ kernel.T if self.axis is None else gathered_matmul(x, kernel, self.axis)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def gathered_matmul(
    x: Float[Array, "B I"], shard: Float[Array, "S I"], axis: str
) -> Float[Array, "B O"]:
    """`x Wᵀ`, with the rows of W gathered from the devices of mesh axis `axis`.

    What is kept for backward is x and the shard; W is gathered there again. Plain autodiff would
    keep W, and `jax.checkpoint` ties the second gather to the gradient of y, so that it could
    not run ahead of it.
    """
    return x @ gather(shard, axis).T


def gather(shard: Float[Array, "S I"], axis: str) -> Float[Array, "O I"]:
    """All devices' rows, in the order of the axis."""
    with jax.named_scope("gather"):
        return lax.all_gather(shard, axis, tiled=True)


def reduce_scatter(gradient: Float[Array, "O I"], axis: str) -> Float[Array, "S I"]:
    """This device's rows of the sum over devices: the transpose of `gather`."""
    with jax.named_scope("reduce_scatter"):
        return lax.psum_scatter(gradient, axis, scatter_dimension=0, tiled=True)


def _forward(x: Array, shard: Array, axis: str) -> tuple[Array, Residuals]:
    return gathered_matmul(x, shard, axis), (x, shard)


def _backward(axis: str, residuals: Residuals, dy: Array) -> tuple[Array, Array]:
    x, shard = residuals
    with jax.named_scope("dkernel"):
        dkernel = dy.T @ x
    dshard = reduce_scatter(dkernel, axis)
    # Without the barrier XLA sees one gather of the shard, and keeps all layers' kernels.
    kernel = gather(lax.optimization_barrier(shard), axis)
    with jax.named_scope("dx"):
        dx = dy @ kernel
    return dx, dshard


gathered_matmul.defvjp(_forward, _backward)
