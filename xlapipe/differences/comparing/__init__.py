"""Compiles of one workload compared: XLA options, GEMM policies, and commits."""
