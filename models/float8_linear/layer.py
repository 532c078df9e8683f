"""`Float8Linear`: `nnx.Linear` with its matmuls in float8."""

from functools import partial
from math import prod
from typing import Any, Literal

import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from models.float8_linear.float8_support import gpu_without_float8
from models.float8_linear.matmul import float8_matmul

# cuBLASLt requires each axis of a float8 matrix to be a multiple of this.
AXIS_MULTIPLE = 16

Otherwise = Literal["raise", "unquantised"]


class Float8Linear(nnx.Linear):
    """`y = x kernel + bias`, forward and backward in float8 with per-tensor dynamic scaling.

    Has the parameters of `nnx.Linear`: `kernel` [I, O] and `bias` [O].

    Args:
      otherwise: what to do if a shape, a dtype or the GPU rules float8 out: `raise` an error, or
        multiply `unquantised`, in the dtype of the operands.
      linear: further arguments of `nnx.Linear`.
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
    """`lax.dot_general` in float8, for the axes that `nnx.Linear` contracts.

    Args:
      x, kernel: of the same dtype: bfloat16, float16 or float32. I, O and the product of B are
        multiples of 16.
      dimension_numbers: must contract the last axis of x with the first axis of kernel.
      precision, options: arguments of `lax.dot_general`, used by the unquantised product only.
        Float8 does not support the options and ignores the precision.
      otherwise: as in `Float8Linear`.

    Raises:
      ValueError: other axes; or float8 does not support a shape, a dtype, an option or the GPU,
        and `otherwise` is `raise`.
    """
    if dimension_numbers != (((x.ndim - 1,), (0,)), ((), ())) or kernel.ndim != 2:
        raise ValueError(
            f"float8 multiplies the last axis of x with the first of a matrix; found axes "
            f"{dimension_numbers} of {x.shape} and {kernel.shape}"
        )
    obstacle = _obstacle(x, kernel, [name for name, value in options.items() if value])
    if obstacle is not None:
        if otherwise == "raise":
            raise ValueError(f"{obstacle}; fix: otherwise='unquantised' multiplies without float8")
        return lax.dot_general(x, kernel, dimension_numbers, precision=precision, **options)
    rows = x.reshape(-1, x.shape[-1])
    return float8_matmul(rows, kernel).reshape(*x.shape[:-1], kernel.shape[-1])


def _obstacle(x: Array, kernel: Array, options: list[str]) -> str | None:
    """Why x and kernel cannot be multiplied in float8; None if they can."""
    if options:
        return f"float8 does not support {', '.join(options)}"
    if x.dtype != kernel.dtype or x.dtype not in (jnp.bfloat16, jnp.float16, jnp.float32):
        return (
            f"float8 needs x and kernel of the same dtype, bfloat16, float16 or float32; found "
            f"{x.dtype} and {kernel.dtype}"
        )
    sizes = {"rows of x": prod(x.shape[:-1]), "in_features": kernel.shape[0]}
    sizes["out_features"] = kernel.shape[1]
    for name, size in sizes.items():
        if size % AXIS_MULTIPLE or not size:
            return (
                f"float8 needs {name} to be a multiple of {AXIS_MULTIPLE}; found {size}, from x "
                f"{list(x.shape)} and kernel {list(kernel.shape)}"
            )
    gpu = gpu_without_float8()
    if gpu is not None:
        return f"float8 needs a GPU of compute capability 8.9 or newer (Ada, Hopper); found {gpu}"
    return None
