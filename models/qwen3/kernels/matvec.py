"""Matrix-vector products for one token: each weight is read once, and no array of its size written.

XLA turns such a product into a multiplication, whose result has the weight's size, and a sum that
reads it again. Here a program loads a few rows at once, and computes the norm before the product,
and the activation or addition after it, in the same pass. Vectors between the kernels and sums are
float32.

Each function is jitted, so that a kernel that every layer calls is traced and lowered once. The
equivalents in plain JAX are `rms_norm`, `Projection` and `MLP`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float

from models.qwen3.kernels.triton_call import triton_call

# Elements of a row per load.
MAX_COLUMNS = 1024
# Elements of the weight per program, all in flight at once.
TILE_ELEMENTS = 4096
NUM_WARPS = 2


@partial(jax.jit, static_argnames=("eps", "interpret"))
def norm_matvec(
    x: Float[Array, " I"],
    scale: Float[Array, " I"],
    weight: Float[Array, "O I"],
    *,
    eps: float,
    interpret: bool = False,
) -> Float[Array, " O"]:
    """`weight @ rms_norm(x, scale, eps)`, float32."""
    outputs, inputs = weight.shape
    tiling = _Tiling(outputs, inputs)

    def kernel(x_ref: Any, scale_ref: Any, weight_ref: Any, y_ref: Any) -> None:
        rows = tiling.rows_of(weight_ref, 0)
        normed, inverse = _normed(tiling, x_ref, scale_ref, eps)
        plgpu.store(y_ref.at[tiling.own_rows()], _dot(rows, normed) * inverse)

    return tiling.call(kernel, "norm_matvec", interpret)(x, scale, weight)


@partial(jax.jit, static_argnames=("eps", "interpret"))
def norm_swiglu(
    x: Float[Array, " I"],
    scale: Float[Array, " I"],
    gate_up: Float[Array, "gate_up I"],
    *,
    eps: float,
    interpret: bool = False,
) -> Float[Array, " F"]:
    """`silu(gate @ n) * (up @ n)`, float32, with `n = rms_norm(x, scale, eps)`.

    The F rows of gate are first.
    """
    outputs, inputs = gate_up.shape[0] // 2, gate_up.shape[1]
    tiling = _Tiling(outputs, inputs, matrices=2)

    def kernel(x_ref: Any, scale_ref: Any, weight_ref: Any, y_ref: Any) -> None:
        gate_rows = tiling.rows_of(weight_ref, 0)
        up_rows = tiling.rows_of(weight_ref, outputs)
        normed, inverse = _normed(tiling, x_ref, scale_ref, eps)
        gate, up = _dot(gate_rows, normed) * inverse, _dot(up_rows, normed) * inverse
        plgpu.store(y_ref.at[tiling.own_rows()], gate / (1 + jnp.exp(-gate)) * up)

    return tiling.call(kernel, "norm_swiglu", interpret)(x, scale, gate_up)


@partial(jax.jit, static_argnames=("interpret",))
def matvec_add(
    x: Float[Array, " I"],
    weight: Float[Array, "O I"],
    residual: Float[Array, " O"],
    *,
    interpret: bool = False,
) -> Float[Array, " O"]:
    """`residual + weight @ x`, float32."""
    outputs, inputs = weight.shape
    tiling = _Tiling(outputs, inputs)

    def kernel(x_ref: Any, weight_ref: Any, residual_ref: Any, y_ref: Any) -> None:
        rows = tiling.rows_of(weight_ref, 0)
        added = plgpu.load(residual_ref.at[tiling.own_rows()]).astype(jnp.float32)
        plgpu.store(y_ref.at[tiling.own_rows()], added + _dot(rows, tiling.blocks_of(x_ref)))

    return tiling.call(kernel, "matvec_add", interpret)(x, weight, residual)


class _Tiling:
    """The rows of a program, and the column blocks in which it reads them.

    Triton requires powers of two. Columns are the largest one that divides the inputs; rows are the
    largest one that divides the outputs and keeps the tile within TILE_ELEMENTS.
    """

    def __init__(self, outputs: int, inputs: int, matrices: int = 1) -> None:
        self.outputs, self.inputs = outputs, inputs
        self.columns = _power_of_two(inputs, MAX_COLUMNS)
        self.rows = _power_of_two(outputs, max(1, TILE_ELEMENTS // (inputs * matrices)))

    def own_rows(self) -> Any:
        """The rows of this program."""
        return pl.ds(pl.program_id(0) * self.rows, self.rows)

    def rows_of(self, ref: Any, first: int) -> list[Array]:
        """This program's rows of a matrix that starts at row `first`, by column block."""
        start = first + pl.program_id(0) * self.rows
        return [
            # Weights are read once per step: they should not evict the KV cache from L2.
            plgpu.load(
                ref.at[pl.ds(start, self.rows), pl.ds(column, self.columns)],
                eviction_policy="evict_first",
            )
            for column in range(0, self.inputs, self.columns)
        ]

    def blocks_of(self, ref: Any) -> list[Array]:
        """A whole vector in float32, by column block, [1, columns] each."""
        return [
            plgpu.load(ref.at[column + jnp.arange(self.columns)[None, :]]).astype(jnp.float32)
            for column in range(0, self.inputs, self.columns)
        ]

    def call(
        self, kernel: Callable[..., None], name: str, interpret: bool
    ) -> Callable[..., Float[Array, " O"]]:
        """A function that runs the kernel on all rows; its arguments are the kernel's."""
        return partial(
            triton_call,
            kernel,
            jax.ShapeDtypeStruct((self.outputs,), jnp.float32),
            grid=(self.outputs // self.rows,),
            num_warps=NUM_WARPS,
            name=name,
            interpret=interpret,
        )


def _power_of_two(number: int, limit: int) -> int:
    """The largest power of two that divides `number` and is at most `limit`."""
    power = number & -number
    while power > limit:
        power //= 2
    return power


def _normed(
    tiling: _Tiling, x_ref: Any, scale_ref: Any, eps: float
) -> tuple[list[Array], Float[Array, "1"]]:
    """x times scale, by column block, and the inverse RMS of x.

    The caller multiplies the product by the inverse RMS: it is a sum over all of x, which would
    otherwise delay the product.
    """
    x, scale = tiling.blocks_of(x_ref), tiling.blocks_of(scale_ref)
    squares = sum(jnp.sum(block * block, axis=1, keepdims=True) for block in x)
    inverse = jax.lax.rsqrt(squares / tiling.inputs + eps).reshape(1)
    return [a * b for a, b in zip(x, scale, strict=True)], inverse


def _dot(rows: list[Array], x: list[Array]) -> Float[Array, " R"]:
    """Rows times x, float32. Adds the blocks first, so that columns are summed once."""
    products = [w.astype(jnp.float32) * b for w, b in zip(rows, x, strict=True)]
    return jnp.sum(sum(products[1:], products[0]), axis=1)
