"""Sizes, in bytes, that bounds on temporary memory are made of. Imports no jax."""

from models.qwen3.argument_bytes import FLOAT32

CUBLAS = ("cublas", "cublaslt")
# XLA asks for at most this much for cuBLASLt on Hopper: 4 MiB where its autotuner has run, and,
# up to jaxlib 0.11, 32 MiB where it has not. The gemms of a step share one.
WORKSPACE_BYTES = 32 * 2**20
# Triton gemms that are short of blocks sum slices of the contracted axis apart, in float32.
MAX_SPLIT_K = 8
# Tables of pointers to tuples' leaves, scalars, and padding of each value to 128 bytes.
SMALL_BYTES = 16 * 1024
# cuBLAS is given rows in multiples of this.
ROWS = 8


def partials(rows: int, columns: int) -> int:
    """Partial sums of one split-K gemm."""
    return MAX_SPLIT_K * rows * columns * FLOAT32


def up(rows: int) -> int:
    """Rows, as cuBLAS is given them."""
    return -(-rows // ROWS) * ROWS
