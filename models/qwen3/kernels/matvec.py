"""Matrix-vector products for one token: each weight is read once, and no array of its size written.

XLA turns such a product into a multiplication, whose result has the weight's size, and a sum that
reads it again. Here a program loads a few rows, and computes the norm before the product, and the
activation or addition after it, in the same pass. Vectors between the kernels and sums are float32.
`product_forms` has the rows, columns and warps of a program by the weight's shape.

Each function is jitted, so that a kernel that every layer calls is traced and lowered once. The
equivalents in plain JAX are `rms_norm`, `Projection` and `MLP`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float

from models.qwen3.kernels.product_forms import Form, form_of
from models.qwen3.kernels.triton_call import triton_call

# This program's rows of a matrix, by number, times the vector: float32 sums.
_Product = Callable[[int], Float[Array, " R"]]
# PTX, constraints, and elements of each argument: weights times x, plus a sum.
_FMA = ("fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f", 1)
# Two weights in a register are the upper halves of two float32 values.
_FMA_BFLOAT16 = (
    """{
    .reg .f32 low, high;
    shl.b32 low, $2, 16;
    and.b32 high, $2, 0xffff0000;
    fma.rn.f32 $0, low, $3, $5;
    fma.rn.f32 $1, high, $4, $6;
    }""",
    "=f,=f,r,f,f,f,f",
    2,
)


@partial(jax.jit, static_argnames=("eps", "interpret", "form"))
def norm_matvec(
    x: Float[Array, " I"],
    scale: Float[Array, " I"],
    weight: Float[Array, "O I"],
    *,
    eps: float,
    interpret: bool = False,
    form: Form | None = None,
) -> Float[Array, " O"]:
    """`weight @ rms_norm(x, scale, eps)`, float32."""
    tiling = _Tiling(weight, 1, form, interpret)

    def kernel(x_ref: Any, scale_ref: Any, weight_ref: Any, y_ref: Any) -> None:
        product = tiling.normed_product(x_ref, scale_ref, weight_ref, eps)
        plgpu.store(y_ref.at[tiling.own_rows()], product(0))

    return tiling.call(kernel, "norm_matvec")(x, scale, weight)


@partial(jax.jit, static_argnames=("eps", "interpret", "form"))
def norm_swiglu(
    x: Float[Array, " I"],
    scale: Float[Array, " I"],
    gate_up: Float[Array, "gate_up I"],
    *,
    eps: float,
    interpret: bool = False,
    form: Form | None = None,
) -> Float[Array, " F"]:
    """`silu(gate @ n) * (up @ n)`, float32, with `n = rms_norm(x, scale, eps)`.

    The F rows of gate are first.
    """
    tiling = _Tiling(gate_up, 2, form, interpret)

    def kernel(x_ref: Any, scale_ref: Any, weight_ref: Any, y_ref: Any) -> None:
        product = tiling.normed_product(x_ref, scale_ref, weight_ref, eps)
        gate, up = product(0), product(1)
        plgpu.store(y_ref.at[tiling.own_rows()], gate / (1 + jnp.exp(-gate)) * up)

    return tiling.call(kernel, "norm_swiglu")(x, scale, gate_up)


@partial(jax.jit, static_argnames=("interpret", "form"))
def matvec_add(
    x: Float[Array, " I"],
    weight: Float[Array, "O I"],
    residual: Float[Array, " O"],
    *,
    interpret: bool = False,
    form: Form | None = None,
) -> Float[Array, " O"]:
    """`residual + weight @ x`, float32."""
    tiling = _Tiling(weight, 1, form, interpret)

    def kernel(x_ref: Any, weight_ref: Any, residual_ref: Any, y_ref: Any) -> None:
        product = tiling.product(x_ref, weight_ref)
        added = plgpu.load(residual_ref.at[tiling.own_rows()]).astype(jnp.float32)
        plgpu.store(y_ref.at[tiling.own_rows()], added + product(0))

    return tiling.call(kernel, "matvec_add")(x, weight, residual)


class _Tiling:
    """The rows of a program, and the column blocks in which it reads them.

    Args:
      weight: `matrices` matrices of the same size, one below the other.
      form: None for the one of its shape.
    """

    def __init__(
        self, weight: Float[Array, "O I"], matrices: int, form: Form | None, interpret: bool
    ) -> None:
        self.outputs, self.inputs = weight.shape[0] // matrices, weight.shape[1]
        self.interpret = interpret
        self.form = form or form_of(weight.shape, matrices)
        self.firsts = range(0, weight.shape[0], self.outputs)

    def own_rows(self) -> Any:
        """The rows of this program."""
        return pl.ds(pl.program_id(0) * self.form.rows, self.form.rows)

    def normed_product(self, x_ref: Any, scale_ref: Any, weight_ref: Any, eps: float) -> _Product:
        """Multiplies with x after RMSNorm.

        Multiplies the sums by the inverse RMS: it is a sum over all of x, which would otherwise
        delay the product.
        """

        def inverse_of(squares: Array) -> Array:
            return lax.rsqrt(squares / self.inputs + eps).reshape(1)

        if self.form.looped:
            *sums, squares = self._sums(weight_ref, x_ref, scale_ref)
            inverse = inverse_of(jnp.sum(squares, axis=1, keepdims=True))
            return lambda number: jnp.sum(sums[number], axis=1) * inverse
        matrices = [self._blocks(self._rows(weight_ref, first)) for first in self.firsts]
        x, scale = self._blocks(self._vector(x_ref)), self._blocks(self._vector(scale_ref))
        total: Any = sum(jnp.sum(block * block, axis=1, keepdims=True) for block in x)
        inverse = inverse_of(total)
        normed = [a * b for a, b in zip(x, scale, strict=True)]
        return lambda number: _dot(matrices[number], normed) * inverse

    def product(self, x_ref: Any, weight_ref: Any) -> _Product:
        """Multiplies with x."""
        if self.form.looped:
            return lambda number: jnp.sum(self._sums(weight_ref, x_ref)[number], axis=1)
        rows = self._blocks(self._rows(weight_ref, 0))
        return lambda _: _dot(rows, self._blocks(self._vector(x_ref)))

    def _sums(self, weight_ref: Any, x_ref: Any, scale_ref: Any = None) -> list[Array]:
        """This program's rows of each matrix times x; and x squared if a scale is given.

        [R, columns] each, so that columns are summed once.
        """
        form = self.form
        loads = [self._rows(weight_ref, first) for first in self.firsts]
        vectors = [self._vector(ref) for ref in (x_ref, scale_ref) if ref is not None]

        def add(number: Any, sums: list[Array]) -> list[Array]:
            column = number * form.columns
            rows = [load(column) for load in loads]
            x, *scale = (load(column) for load in vectors)
            scaled = x * scale[0] if scale else x
            factors = [(row, scaled) for row in rows] + [(x, x)] * len(scale)
            return [
                self._plus_product(total, *pair) for total, pair in zip(sums, factors, strict=True)
            ]

        shapes = [form.rows] * len(loads) + [1] * (scale_ref is not None)
        zeros = [jnp.zeros((rows, form.columns), jnp.float32) for rows in shapes]
        sums: list[Array] = lax.fori_loop(0, self.inputs // form.columns, add, zeros)
        return sums

    def _plus_product(self, total: Array, weights: Array, x: Array) -> Array:
        """`total + weights * x`, float32; x is [1, C].

        XLA's Triton would multiply and add in two instructions, and convert in one and a half.
        """
        asm = {jnp.dtype(jnp.bfloat16): _FMA_BFLOAT16, jnp.dtype(jnp.float32): _FMA}
        if self.interpret or weights.dtype not in asm:
            return total + weights.astype(jnp.float32) * x
        text, constraints, pack = asm[weights.dtype]
        [result] = plgpu.elementwise_inline_asm(
            text,
            args=[weights, jnp.broadcast_to(x, total.shape), total],
            constraints=constraints,
            pack=pack,
            result_shape_dtypes=[jax.ShapeDtypeStruct(total.shape, jnp.float32)],
        )
        return result

    def _blocks(self, load: Callable[[Any], Array]) -> list[Array]:
        """All column blocks."""
        return [load(column) for column in range(0, self.inputs, self.form.columns)]

    def _rows(self, ref: Any, first: int) -> Callable[[Any], Array]:
        """Loads a column block of this program's rows of a matrix that starts at row `first`."""
        start = first + pl.program_id(0) * self.form.rows
        return lambda column: plgpu.load(
            # Weights are read once per step: they should not evict the KV cache from L2.
            ref.at[pl.ds(start, self.form.rows), pl.ds(column, self.form.columns)],
            eviction_policy="evict_first",
        )

    def _vector(self, ref: Any) -> Callable[[Any], Array]:
        """Loads a column block of a vector in float32, [1, columns]."""
        return lambda column: plgpu.load(
            ref.at[column + jnp.arange(self.form.columns)[None, :]]
        ).astype(jnp.float32)

    def call(self, kernel: Callable[..., None], name: str) -> Callable[..., Float[Array, " O"]]:
        """A function that runs the kernel on all rows; its arguments are the kernel's."""
        return partial(
            triton_call,
            kernel,
            jax.ShapeDtypeStruct((self.outputs,), jnp.float32),
            grid=(self.outputs // self.form.rows,),
            num_warps=self.form.warps,
            name=name,
            interpret=self.interpret,
        )


def _dot(rows: list[Array], x: list[Array]) -> Float[Array, " R"]:
    """Rows times x, float32. Adds the blocks first, so that columns are summed once."""
    products = [w.astype(jnp.float32) * b for w, b in zip(rows, x, strict=True)]
    return jnp.sum(sum(products[1:], products[0]), axis=1)
