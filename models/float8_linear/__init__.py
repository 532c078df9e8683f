"""A linear layer whose three matmuls run in float8, with per-tensor dynamic scaling.

    recipe.py           scales, codes, and the product of codes
    quantise.py         codes of a matrix and of its transpose, by a Pallas kernel
    matmul.py           the product of two matrices, forward and backward
    layer.py            `Float8Linear`, to be put in place of `nnx.Linear`
    gpu.py              whether the GPU compiled for has float8
    sizes.py            shapes and bytes (no jax)
    workloads.py        what `xlapipe dump` compiles
    expectations.py     what must hold of the plans (no jax)

The recipe is torchao's (`Float8Linear`, tensorwise, dynamic), as dump 004 has it. Axis letters:
M rows of x, all leading axes taken together, I in, O out.
"""
