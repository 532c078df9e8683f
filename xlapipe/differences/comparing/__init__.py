"""Compiles of one workload compared: versions of jax, XLA options, GEMM policies, and processes."""
