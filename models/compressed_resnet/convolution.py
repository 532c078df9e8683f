"""A convolution of NHWC images by an OHWI kernel, and its two gradients."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from models.compressed_resnet.sizes import CONVOLUTION, INPUT_GRADIENT, KERNEL_GRADIENT

Images = Float[Array, "N _ _ _"]
Kernel = Float[Array, "_ _ _ _"]

_DIMENSIONS = ("NHWC", "OHWI", "NHWC")


def convolve(x: Images, kernel: Kernel, stride: int) -> Images:
    """Convolves with padding of half the kernel, in x's dtype."""
    with jax.named_scope(CONVOLUTION):
        return _convolve(x, kernel, stride)


def input_gradient(
    dz: Images, kernel: Kernel, stride: int, shape: tuple[int, int, int, int]
) -> Images:
    """The gradient of the convolution's input, of NHWC `shape`."""
    x = jax.ShapeDtypeStruct(shape, dz.dtype)
    with jax.named_scope(INPUT_GRADIENT):
        (dx,) = jax.linear_transpose(lambda x: _convolve(x, kernel, stride), x)(dz)
    return dx  # type: ignore[no-any-return]


def kernel_gradient(x: Images, dz: Images, stride: int, shape: tuple[int, ...]) -> Kernel:
    """The gradient of the kernel, of OHWI `shape`, in float32.

    cuDNN accumulates in float32 and returns x's dtype.
    """
    kernel = jax.ShapeDtypeStruct(shape, x.dtype)
    with jax.named_scope(KERNEL_GRADIENT):
        (dkernel,) = jax.linear_transpose(lambda kernel: _convolve(x, kernel, stride), kernel)(dz)
    return dkernel.astype(jnp.float32)  # type: ignore[no-any-return]


def _convolve(x: Images, kernel: Kernel, stride: int) -> Images:
    padding = kernel.shape[1] // 2
    y: Array = lax.conv_general_dilated(
        x,
        kernel.astype(x.dtype),
        (stride, stride),
        [(padding, padding)] * 2,
        dimension_numbers=_DIMENSIONS,
    )
    return y
