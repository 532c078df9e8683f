"""Layers whose gradients are written out instead of derived by jax."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import jax
from jax import lax

from models.compressed_resnet.conv_norm import Compressed, compress, decompress
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
      plain: function of the sizes, the parameters and the input; returns the output and the
        moments. It runs where no gradient is computed.
      forward: function of the sizes, the bits, the parameters and the input; returns the output,
        what the backward pass needs, and the moments.
      backward: function of the sizes, the bits, the parameters, what `forward` kept and the
        output's gradient; returns gradients of the parameters and of the input.

    Returns:
      A function of the sizes, the bits, the parameters and the input; returns the output and the
      moments.
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


def from_compressed_input(
    plain: Callable[[Any, Tree, Images], tuple[Images, Tree]],
    forward: Callable[[Any, int | None, Tree, Images, Compressed], tuple[Images, Tree, Tree]],
    backward: Callable[[Any, Tree, Tree, Images], tuple[Tree, Images | None]],
    input_shape: Callable[[Any, int], tuple[int, int, int, int]],
) -> tuple[Layer, Backward]:
    """A layer that keeps its input alone, compressed, and computes itself again from it.

    Its activations are compressed when it is computed again, so that no two of them need memory at
    once.

    Args:
      plain, forward, backward: as of `differentiable`; `forward` also takes the compressed input,
        and `backward` no bits.
      input_shape: function of a layer's sizes and of the size of the batch.

    Returns:
      The layer, and its backward pass as `differentiable` takes it.
    """

    def input_forward(
        sizes: Any, bits: Any, parameters: Tree, x: Images
    ) -> tuple[Images, Compressed, Tree]:
        # Codes before layers, so that only this layer's activations are alive; and x and y in
        # bfloat16: XLA may skip the rounding between layers and keep them in float32.
        x, compressed = lax.optimization_barrier((x, compress(x, bits)))
        y, moments = plain(sizes, parameters, x)
        return lax.optimization_barrier(y), compressed, moments

    def input_backward(
        sizes: Any, bits: Any, parameters: Tree, compressed: Compressed, dy: Images
    ) -> tuple[Tree, Images | None]:
        x = decompress(compressed.low, compressed.codes, input_shape(sizes, dy.shape[0]))
        _, saved, _ = forward(sizes, bits, parameters, x, compressed)
        saved, dy = lax.optimization_barrier((saved, dy))
        return backward(sizes, parameters, saved, dy)

    return differentiable(plain, input_forward, input_backward), input_backward
