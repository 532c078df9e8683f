"""GEMM backends that each GEMM policy may choose, and cuBLASLt's workspace. Imports no jax.

The expectations of all models use these.
"""

CUBLAS = ("cublas", "cublaslt")
TRITON = ("triton",)
# Backends by GEMM policy (`xlapipe dump --gemm POLICY`), and on TPUs.
BACKENDS = {"cublas": CUBLAS, "triton": TRITON, "auto": (*CUBLAS, *TRITON), "tpu": ("mxu",)}
# XLA's largest cuBLASLt workspace on Hopper. It is 4 MiB after autotuning and, up to jaxlib 0.11,
# 32 MiB without. The gemms of a program share one workspace.
CUBLASLT_WORKSPACE_BYTES = 32 * 2**20
