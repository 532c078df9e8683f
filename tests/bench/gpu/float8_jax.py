"""This repository's float8 linear layer at the sizes of reference dump 004; JAX in bfloat16."""

import jax
import jax.numpy as jnp
import numpy as np
from jax_timing import jax_timings, rotating
from jaxtyping import Array

from models.float8_linear.matmul import backward, forward
from models.float8_linear.sizes import Float8Sizes
from models.float8_linear.workloads import step

SIZES = Float8Sizes()
CASE = "float8 linear fwd+bwd"


def arguments(seed: int) -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(seed)
    m, i, o = SIZES.rows, SIZES.in_features, SIZES.out_features
    return tuple(
        jnp.asarray(rng.standard_normal(shape, np.float32), jnp.bfloat16)
        for shape in ((m, i), (i, o), (m, o))
    )


def unquantised(x: Array, kernel: Array, g: Array) -> tuple[Array, ...]:
    y, pull_back = jax.vjp(jnp.matmul, x, kernel)
    return y, *pull_back(g)


if __name__ == "__main__":
    sets = rotating(arguments, SIZES.least_step_bytes // 2)
    forward_sets = [(x, kernel) for x, kernel, _ in sets]
    backward_sets = [(jax.jit(forward)(x, kernel)[1], g) for x, kernel, g in sets]
    read_bytes = 2 * (SIZES.x + SIZES.kernel)
    jax_timings(
        [
            (CASE, "float8", step, sets, SIZES.least_step_bytes),
            (
                "float8 linear forward",
                "float8",
                forward,
                forward_sets,
                read_bytes + 2 * SIZES.y + SIZES.residual_bytes,
            ),
            (
                "float8 linear backward",
                "float8",
                backward,
                backward_sets,
                read_bytes + 2 * SIZES.y + SIZES.residual_bytes,
            ),
            (CASE, "bfloat16", unquantised, sets, SIZES.least_step_bytes),
        ]
    )
