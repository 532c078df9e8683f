"""A linear layer whose three matmuls run in float8, with per-tensor dynamic scaling.

    recipe.py           scales, float8 codes, and the product of codes
    quantise.py         codes of a matrix and of its transpose, by one Pallas kernel
    matmul.py           the product of two matrices, forward and backward
    layer.py            `Float8Linear`, a replacement for `nnx.Linear`
    float8_support.py   whether the target GPU supports float8
    sizes.py            shapes and bytes (no jax)
    workloads.py        the workloads that `xlapipe dump` compiles
    expectations.py     expectations about the plans (no jax)

The recipe is torchao's (`Float8Linear`, tensorwise, dynamic), as in reference dump 004 (float8
linear layer, docs/lab/seeds.md). A code is a float8 element of a quantised tensor. Axis letters:
M rows of x (all leading axes together), I in, O out.
"""
