"""Workloads of the float8 linear layer, at the sizes of reference dump 004.

Building a workload allocates no arrays.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from models.float8_linear import expectations
from models.float8_linear.matmul import backward, forward
from models.float8_linear.sizes import Float8Sizes
from xlapipe import Workload

DUMP_004_SIZES = Float8Sizes()


def step(
    x: Float[Array, "M I"], kernel: Float[Array, "I O"], g: Float[Array, "M O"]
) -> dict[str, Array]:
    """Computes y and, from its gradient g, the gradients of x and kernel.

    The result is that of `jax.vjp(float8_matmul, …)`.
    """
    y, residuals = forward(x, kernel)
    # As in training, g depends on y, and backward reads the residuals rather than x and kernel.
    g, _ = lax.optimization_barrier((g, y))
    residuals = jax.tree.map(lax.optimization_barrier, residuals)
    dx, dkernel = backward(residuals, g)
    return {"y": y, "dx": dx, "dkernel": dkernel}


def float8_linear_forward(sizes: Float8Sizes = DUMP_004_SIZES) -> Workload:
    """The forward pass: y and the residuals."""
    return Workload(
        name="float8-linear-forward",
        fn=forward,
        args=(_x(sizes), _kernel(sizes)),
        expectations=expectations.forward(sizes),
    )


def float8_linear_backward(sizes: Float8Sizes = DUMP_004_SIZES) -> Workload:
    """The backward pass: gradients of x and kernel. The residuals are donated."""
    _, residuals = jax.eval_shape(forward, _x(sizes), _kernel(sizes))
    return Workload(
        name="float8-linear-backward",
        fn=backward,
        args=(residuals, _y(sizes)),
        donate_argnums=0,
        expectations=expectations.backward(sizes),
    )


def float8_linear_step(sizes: Float8Sizes = DUMP_004_SIZES) -> Workload:
    """Forward and backward in one program."""
    return Workload(
        name="float8-linear-step",
        fn=step,
        args=(_x(sizes), _kernel(sizes), _y(sizes)),
        expectations=expectations.step(sizes),
    )


def _x(sizes: Float8Sizes) -> Any:
    return jax.ShapeDtypeStruct((sizes.rows, sizes.in_features), jnp.bfloat16)


def _kernel(sizes: Float8Sizes) -> Any:
    return jax.ShapeDtypeStruct((sizes.in_features, sizes.out_features), jnp.bfloat16)


def _y(sizes: Float8Sizes) -> Any:
    return jax.ShapeDtypeStruct((sizes.rows, sizes.out_features), jnp.bfloat16)
