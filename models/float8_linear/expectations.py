"""Expectations about the plans, in closed form from the sizes. Imports no jax. Sizes are bytes."""

from models.float8_linear.sizes import BFLOAT16, FLOAT8, FLOAT32, Float8Sizes
from models.gemm_backends import CUBLASLT_WORKSPACE_BYTES, TRITON
from xlapipe.expect import (
    AllocationOf,
    Expectation,
    FastAccumulation,
    GemmCount,
    GivenUp,
    NotAliased,
    ParameterBytes,
    ReadAtMost,
    TempAtMost,
    ValuesOfShapeAtMost,
)

FLOAT8_GEMM = ("cublaslt_f8",)
# Row maxima, scalars, tuple tables, and padding of each value to 128 bytes.
SMALL_BYTES = 64 * 1024


def forward(sizes: Float8Sizes) -> tuple[Expectation, ...]:
    """The forward pass: returns y and the residuals; the gemm's operands are temporary."""
    operands = (sizes.x + sizes.kernel) * FLOAT8
    return (
        ParameterBytes((sizes.x + sizes.kernel) * BFLOAT16, because="x and kernel"),
        NotAliased(because="nothing is donated"),
        AllocationOf("out[0]", sizes.y * BFLOAT16, because="y: M O"),
        AllocationOf("out[1]['kernel']", sizes.kernel * FLOAT8, because="codes of kernel: I O"),
        AllocationOf("out[1]['x_t']", sizes.x * FLOAT8, because="codes of xᵀ: I M"),
        AllocationOf("out[1]['kernel_unscale']", FLOAT32, because="a scalar"),
        AllocationOf("out[1]['x_unscale']", FLOAT32, because="a scalar"),
        *_read_twice("x", "kernel"),
        *_no_float32(sizes),
        *_temp(operands, "codes of x and kernelᵀ"),
        *_gemms(1, fast=("y",)),
    )


def backward(sizes: Float8Sizes) -> tuple[Expectation, ...]:
    """The backward pass: both gradients, from donated residuals."""
    return (
        ParameterBytes(
            sizes.residual_bytes + sizes.y * BFLOAT16,
            because="residuals (codes of xᵀ and kernel, two scalars) and g",
        ),
        # The two scalars are donated too, but JAX has no scalar output to pair them with.
        GivenUp("residuals['kernel']", because="not needed after its gemm"),
        GivenUp("residuals['x_t']", because="not needed after its gemm"),
        AllocationOf("residuals['kernel']", sizes.kernel * FLOAT8, because="codes of kernel: I O"),
        AllocationOf("residuals['x_t']", sizes.x * FLOAT8, because="codes of xᵀ: I M"),
        AllocationOf("out[0]", sizes.x * BFLOAT16, because="dx: M I"),
        AllocationOf("out[1]", sizes.kernel * BFLOAT16, because="dkernel: I O"),
        ReadAtMost("residuals['kernel']", 1, because="only its gemm reads it: no transposed copy"),
        ReadAtMost("residuals['x_t']", 1, because="only its gemm reads it: no transposed copy"),
        *_read_twice("g"),
        *_no_float32(sizes),
        *_temp(2 * sizes.y * FLOAT8, "codes of g and gᵀ"),
        *_gemms(2, fast=()),
    )


def step(sizes: Float8Sizes) -> tuple[Expectation, ...]:
    """Forward and backward in one program."""
    codes = 2 * (sizes.x + sizes.kernel + sizes.y) * FLOAT8
    return (
        ParameterBytes((sizes.x + sizes.kernel + sizes.y) * BFLOAT16, because="x, kernel and g"),
        AllocationOf("out['y']", sizes.y * BFLOAT16, because="M O"),
        AllocationOf("out['dx']", sizes.x * BFLOAT16, because="M I"),
        AllocationOf("out['dkernel']", sizes.kernel * BFLOAT16, because="I O"),
        *_read_twice("x", "kernel", "g"),
        *_no_float32(sizes),
        *(
            ValuesOfShapeAtMost(
                shape, 2, "bf16", because=f"{names}: no operand is dequantised before a gemm"
            )
            for shape, names in (
                ((sizes.rows, sizes.in_features), "x and dx"),
                ((sizes.in_features, sizes.out_features), "kernel and dkernel"),
                ((sizes.rows, sizes.out_features), "g and y"),
            )
        ),
        *_temp(codes, "codes of x, kernel and g and of their transposes"),
        *_gemms(3, fast=("y",)),
    )


def _read_twice(*names: str) -> tuple[Expectation, ...]:
    return tuple(
        ReadAtMost(name, 2, because="once for the largest magnitude, once for both sets of codes")
        for name in names
    )


def _no_float32(sizes: Float8Sizes) -> tuple[Expectation, ...]:
    shapes = (
        (sizes.rows, sizes.in_features),
        (sizes.in_features, sizes.out_features),
        (sizes.rows, sizes.out_features),
    )
    return tuple(
        ValuesOfShapeAtMost(shape, 0, "f32", because="codes are float8, products are bfloat16")
        for shape in shapes
    )


def _temp(codes_bytes: int, because: str) -> tuple[Expectation, ...]:
    limit = codes_bytes + CUBLASLT_WORKSPACE_BYTES + SMALL_BYTES
    return (TempAtMost(limit, because=f"{because}, workspace"),)


def _gemms(count: int, *, fast: tuple[str, ...]) -> tuple[Expectation, ...]:
    """Number and backend of the gemms; `fast` are the scopes with fast accumulation.

    The dot's algorithm selects cuBLASLt's float8 gemm under every policy. jax 0.12.0.1 cannot
    specify the algorithm (see recipe.py), so that only the cuBLAS policy excludes Triton there: an
    H100's tuner chose it for the gradient of x.
    """
    one_gemm_each = "one gemm for each product of codes"
    return (
        GemmCount(count, (*FLOAT8_GEMM, *TRITON), because=one_gemm_each),
        GemmCount(count, FLOAT8_GEMM, because=one_gemm_each, under="cublas"),
        FastAccumulation(fast, because="forward only: gradients accumulate in float32"),
    )
