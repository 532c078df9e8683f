"""GEMM policies. The command line lists them in its help, so this module imports nothing else."""

from enum import StrEnum


class GemmPolicy(StrEnum):
    """Which GEMM backends XLA may use.

    `auto` keeps XLA's defaults; `cublas` excludes Triton; `triton` excludes cuBLAS.
    """

    AUTO = "auto"
    CUBLAS = "cublas"
    TRITON = "triton"
