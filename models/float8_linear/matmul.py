"""The product of two matrices in float8, forward and backward."""

from typing import TypedDict

import jax
from jaxtyping import Array, Float

from models.float8_linear.quantise import codes_and_transpose
from models.float8_linear.recipe import E4M3, E5M2, scale_of, scaled_dot


class Residuals(TypedDict):
    """What the forward pass keeps for the backward pass: codes (one byte each) and two scalars.

    Attributes:
      x_t: e4m3fn codes of xᵀ [I, M].
      kernel: e4m3fn codes of the kernel [I, O].
      x_unscale, kernel_unscale: float32 reciprocals of the scales.
    """

    x_t: Array
    kernel: Array
    x_unscale: Array
    kernel_unscale: Array


def forward(
    x: Float[Array, "M I"], kernel: Float[Array, "I O"]
) -> tuple[Float[Array, "M O"], Residuals]:
    """Computes `x kernel` in x's dtype, with fast accumulation, and the residuals.

    cuBLASLt requires the contracted axis to be last in both operands, so that forward and backward
    together need each tensor's codes and the codes of its transpose. Each tensor is read twice:
    for its largest magnitude, and for both sets of codes.
    """
    with jax.named_scope("quantise"):
        x_scale, kernel_scale = scale_of(x, E4M3), scale_of(kernel, E4M3)
        x_codes, x_t = codes_and_transpose(x, x_scale, E4M3)
        kernel_codes, kernel_t = codes_and_transpose(kernel, kernel_scale, E4M3)
        x_unscale, kernel_unscale = 1 / x_scale, 1 / kernel_scale
    with jax.named_scope("y"):
        y = scaled_dot(
            x_codes, kernel_t, x_unscale * kernel_unscale, dtype=x.dtype, fast_accumulation=True
        )
    return y, Residuals(
        x_t=x_t, kernel=kernel_codes, x_unscale=x_unscale, kernel_unscale=kernel_unscale
    )


def backward(
    residuals: Residuals, g: Float[Array, "M O"]
) -> tuple[Float[Array, "M I"], Float[Array, "I O"]]:
    """Computes the gradients of x and kernel from g, y's gradient; in g's dtype.

    Gemms accumulate in float32.
    """
    with jax.named_scope("quantise"):
        g_scale = scale_of(g, E5M2)
        g_codes, g_t = codes_and_transpose(g, g_scale, E5M2)
        g_unscale = 1 / g_scale
    with jax.named_scope("dx"):
        dx = scaled_dot(
            g_codes,
            residuals["kernel"],
            g_unscale * residuals["kernel_unscale"],
            dtype=g.dtype,
            fast_accumulation=False,
        )
    with jax.named_scope("dkernel"):
        dkernel = scaled_dot(
            residuals["x_t"],
            g_t,
            residuals["x_unscale"] * g_unscale,
            dtype=g.dtype,
            fast_accumulation=False,
        )
    return dx, dkernel


@jax.custom_vjp
def float8_matmul(x: Float[Array, "M I"], kernel: Float[Array, "I O"]) -> Float[Array, "M O"]:
    """`x kernel` in float8, for matrices of the same dtype; see `forward` and `backward`."""
    return forward(x, kernel)[0]


float8_matmul.defvjp(forward, backward)
