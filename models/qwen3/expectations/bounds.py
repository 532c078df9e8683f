"""Parts of the bounds on temporary memory, in bytes. Imports no jax."""

from models.qwen3.argument_bytes import FLOAT32

# The most slices of the contracted axis that a split-K gemm of Triton sums separately, in float32.
# XLA splits a gemm that has too few output tiles to fill the GPU.
MAX_SPLIT_K = 8
# Tuple tables, scalars, and padding of each value to 128 bytes.
SMALL_BYTES = 16 * 1024
# XLA pads the rows of cuBLAS gemms to a multiple of this.
CUBLAS_ROW_MULTIPLE = 8


def split_k_bytes(rows: int, columns: int) -> int:
    """Bytes of the partial sums of one split-K gemm."""
    return MAX_SPLIT_K * rows * columns * FLOAT32


def padded_rows(rows: int) -> int:
    """Rows of a cuBLAS gemm, padding included."""
    return -(-rows // CUBLAS_ROW_MULTIPLE) * CUBLAS_ROW_MULTIPLE
