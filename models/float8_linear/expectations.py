"""What must hold of the plans, in closed form from the sizes. Imports no jax. Sizes are bytes."""

from models.float8_linear.sizes import BFLOAT16, FLOAT8, FLOAT32, Float8Sizes
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
# XLA asks for at most this much for cuBLASLt on Hopper; the gemms of a step share one.
WORKSPACE_BYTES = 32 * 2**20
# Row maxima, scalars, tables of pointers, and padding of each value to 128 bytes.
SMALL_BYTES = 64 * 1024


def forward(sizes: Float8Sizes) -> tuple[Expectation, ...]:
    """y and the residuals; the product's own operands are temporary."""
    operands = (sizes.x + sizes.kernel) * FLOAT8
    return (
        ParameterBytes((sizes.x + sizes.kernel) * BFLOAT16, because="x and kernel"),
        NotAliased(because="nothing is donated"),
        AllocationOf("out[0]", sizes.y * BFLOAT16, because="y: M O"),
        AllocationOf("out[1]['kernel']", sizes.kernel * FLOAT8, because="codes: I O"),
        AllocationOf("out[1]['x_t']", sizes.x * FLOAT8, because="codes: I M"),
        AllocationOf("out[1]['kernel_unscale']", FLOAT32, because="a scalar"),
        AllocationOf("out[1]['x_unscale']", FLOAT32, because="a scalar"),
        *_read_twice("x", "kernel"),
        *_no_float32(sizes),
        *_temp(operands, "codes of x and kernelᵀ"),
        *_gemms(1, fast=("y",)),
    )


def backward(sizes: Float8Sizes) -> tuple[Expectation, ...]:
    """Both gradients, from donated residuals."""
    return (
        ParameterBytes(
            sizes.residual_bytes + sizes.y * BFLOAT16,
            because="codes of xᵀ and kernel, two scalars; g",
        ),
        # The two scalars are donated too, but no output is a scalar for JAX to pair them with.
        GivenUp("residuals['kernel']", because="needed no more"),
        GivenUp("residuals['x_t']", because="needed no more"),
        AllocationOf("residuals['kernel']", sizes.kernel * FLOAT8, because="codes: I O"),
        AllocationOf("residuals['x_t']", sizes.x * FLOAT8, because="codes: I M"),
        AllocationOf("out[0]", sizes.x * BFLOAT16, because="dx: M I"),
        AllocationOf("out[1]", sizes.kernel * BFLOAT16, because="dkernel: I O"),
        ReadAtMost("residuals['kernel']", 1, because="the gemm alone: no transposed copy"),
        ReadAtMost("residuals['x_t']", 1, because="the gemm alone: no transposed copy"),
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
                shape, 2, "bf16", because=f"{names}: nothing is dequantised before a gemm"
            )
            for shape, names in (
                ((sizes.rows, sizes.in_features), "x and dx"),
                ((sizes.in_features, sizes.out_features), "kernel and dkernel"),
                ((sizes.rows, sizes.out_features), "g and y"),
            )
        ),
        *_temp(codes, "codes of x, kernel and g, both ways round"),
        *_gemms(3, fast=("y",)),
    )


def _read_twice(*names: str) -> tuple[Expectation, ...]:
    return tuple(
        ReadAtMost(name, 2, because="for the largest magnitude, and for the codes both ways round")
        for name in names
    )


def _no_float32(sizes: Float8Sizes) -> tuple[Expectation, ...]:
    shapes = (
        (sizes.rows, sizes.in_features),
        (sizes.in_features, sizes.out_features),
        (sizes.rows, sizes.out_features),
    )
    return tuple(
        ValuesOfShapeAtMost(shape, 0, "f32", because="codes and products are written narrow")
        for shape in shapes
    )


def _temp(codes_bytes: int, because: str) -> tuple[Expectation, ...]:
    limit = codes_bytes + WORKSPACE_BYTES + SMALL_BYTES
    return (TempAtMost(limit, because=f"{because}, workspace"),)


def _gemms(count: int, *, fast: tuple[str, ...]) -> tuple[Expectation, ...]:
    """The dot's algorithm names cuBLASLt's float8 gemm, whichever policy is set.

    jax 0.12.0.1 cannot name it (models/float8_linear/recipe.py): Triton's policy gets Triton's.
    """
    one_each = "one gemm for each product of codes"
    return (
        GemmCount(count, because=one_each),
        GemmCount(count, FLOAT8_GEMM, because=one_each, under="auto"),
        GemmCount(count, FLOAT8_GEMM, because=one_each, under="cublas"),
        GemmCount(count, (*FLOAT8_GEMM, "triton"), because=one_each, under="triton"),
        FastAccumulation(fast, because="forward alone: gradients are summed in float32"),
    )
