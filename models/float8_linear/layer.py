"""`Float8Linear`: the same parameters and calls as `nnx.Linear`, the matmuls in float8."""

from functools import partial
from math import prod
from typing import Any, Literal

import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from models.float8_linear.gpu import gpu_without_float8
from models.float8_linear.matmul import float8_matmul

# cuBLASLt takes float8 matrices whose every axis is a multiple of this.
MULTIPLE = 16

Otherwise = Literal["raise", "unquantised"]


class Float8Linear(nnx.Linear):
    """`y = x kernel + bias`, forward and backward in float8 with per-tensor dynamic scaling.

    Takes what `nnx.Linear` takes, and has its parameters: `kernel` [I, O] and `bias` [O].

    Args:
      otherwise: where float8 is not to be had, because of a shape or of the GPU, `raise` says
        so, and `unquantised` multiplies in the dtype of the operands.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        otherwise: Otherwise = "raise",
        rngs: nnx.Rngs,
        **linear: Any,
    ) -> None:
        if otherwise not in ("raise", "unquantised"):
            raise ValueError(f"otherwise must be 'raise' or 'unquantised', not {otherwise!r}")
        super().__init__(
            in_features,
            out_features,
            dot_general=partial(float8_dot_general, otherwise=otherwise),
            rngs=rngs,
            **linear,
        )


def float8_dot_general(
    x: Float[Array, "*B I"],
    kernel: Float[Array, "I O"],
    dimension_numbers: lax.DotDimensionNumbers,
    precision: lax.PrecisionLike = None,
    *,
    otherwise: Otherwise = "raise",
    **options: Any,
) -> Float[Array, "*B O"]:
    """What `nnx.Linear` asks of a `dot_general`: the last axis of x with the first of kernel.

    Args:
      x, kernel: both of one dtype, bfloat16, float16 or float32; I, O and the product of B are
        multiples of 16.
      precision, options: of `lax.dot_general`; for where float8 is not used. Float8 has its own
        precision, and refuses options that are set.

    Raises:
      ValueError: a shape, a dtype or a GPU that float8 cannot be had with, unless `otherwise`
        allows for it; other axes than these.
    """
    if dimension_numbers != (((x.ndim - 1,), (0,)), ((), ())) or kernel.ndim != 2:
        raise ValueError(
            f"float8 multiplies the last axis of x with the first of a matrix; found axes "
            f"{dimension_numbers} of {x.shape} and {kernel.shape}"
        )
    hindrance = _hindrance(x, kernel, [name for name, value in options.items() if value])
    if hindrance is not None:
        if otherwise == "raise":
            raise ValueError(f"{hindrance}; otherwise='unquantised' multiplies without float8")
        return lax.dot_general(x, kernel, dimension_numbers, precision=precision, **options)
    rows = x.reshape(-1, x.shape[-1])
    return float8_matmul(rows, kernel).reshape(*x.shape[:-1], kernel.shape[-1])


def _hindrance(x: Array, kernel: Array, options: list[str]) -> str | None:
    """Why x and kernel cannot be multiplied in float8; None if they can."""
    if options:
        return f"float8 has no {' and no '.join(options)}"
    if x.dtype != kernel.dtype or x.dtype not in (jnp.bfloat16, jnp.float16, jnp.float32):
        return (
            f"float8 needs x and kernel of one dtype of bfloat16, float16 and float32; found "
            f"{x.dtype} and {kernel.dtype}"
        )
    sizes = {"rows of x": prod(x.shape[:-1]), "in_features": kernel.shape[0]}
    sizes["out_features"] = kernel.shape[1]
    for name, size in sizes.items():
        if size % MULTIPLE or not size:
            return (
                f"float8 needs {name} to be a multiple of {MULTIPLE}; found {size}, of x "
                f"{list(x.shape)} and kernel {list(kernel.shape)}"
            )
    older = gpu_without_float8()
    if older is not None:
        return f"float8 needs a GPU of compute capability 8.9 or newer (Ada, Hopper); found {older}"
    return None
