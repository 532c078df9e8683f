"""Layers whose gradients are written out instead of derived by jax."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import jax
from jax import lax

from models.compressed_resnet.convolution import Images

# Parameters of a layer, what it keeps for its backward pass, and its moments: trees of arrays.
Tree: TypeAlias = Any
Layer: TypeAlias = Callable[[Any, int | None, Tree, Images], tuple[Images, Tree]]
Backward: TypeAlias = Callable[[Any, int | None, Tree, Tree, Images], tuple[Tree, Any]]


def differentiable(
    plain: Callable[[Any, Tree, Images], tuple[Images, Tree]],
    forward: Callable[[Any, int | None, Tree, Images], tuple[Images, Tree, Tree]],
    backward: Backward,
) -> Layer:
    """A layer for `jax.grad`; gradients of its moments are ignored.

    Args:
      forward: function of the sizes, the bits, the parameters and the input; returns the output,
        what the backward pass needs, and the moments.
      backward: function of the sizes, the bits, the parameters, what `forward` kept and the
        output's gradient; returns gradients of the parameters and of the input.

    Returns:
      A function of the sizes, the bits, the parameters and the input; returns the output and the
    """

    @partial(jax.custom_vjp, nondiff_argnums=(0, 1))
    def layer(sizes: Any, bits: int | None, parameters: Tree, x: Images) -> tuple[Images, Tree]:
        return plain(sizes, parameters, x)

    def with_residuals(sizes: Any, bits: int | None, parameters: Tree, x: Images) -> Any:
        y, saved, moments = forward(sizes, bits, parameters, x)
        return (y, moments), (parameters, saved)

    def gradients(sizes: Any, bits: int | None, residuals: Any, outputs: Any) -> Any:
        dy, _ = outputs
        # The barrier keeps XLA from computing something once for both passes, and from restoring
        # activations before the gradient of the output is there.
        (parameters, saved), dy = lax.optimization_barrier((residuals, dy))
        return backward(sizes, bits, parameters, saved, dy)

    layer.defvjp(with_residuals, gradients)
    return layer
