"""Programs of one line each: the function, and its arguments."""

import jax
import jax.numpy as jnp
import jax.scipy as jsp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from step import f32, i32, step

from xlapipe import Workload

STEPS = {
    # By operation.
    "cholesky": (lambda a: jnp.linalg.cholesky(a @ a.T + jnp.eye(64)), [f32(64, 64)]),
    "cholesky_of_a_batch": (jnp.linalg.cholesky, [f32(8, 32, 32)]),
    "singular_values": (jnp.linalg.svd, [f32(64, 32)]),
    "eigenvalues_of_symmetric": (jnp.linalg.eigh, [f32(64, 64)]),
    # jax chooses cuSOLVER by the version of the library.
    "eigenvalues": (jnp.linalg.eig, [f32(64, 64)]),
    "qr": (jnp.linalg.qr, [f32(64, 32)]),
    "lu": (jsp.linalg.lu, [f32(64, 64)]),
    "solve": (jnp.linalg.solve, [f32(64, 64), f32(64)]),
    "inverse": (jnp.linalg.inv, [f32(64, 64)]),
    "determinant": (jnp.linalg.slogdet, [f32(3, 64, 64)]),
    "triangular_solve": (
        lambda a, b: jsp.linalg.solve_triangular(a, b, lower=True),
        [f32(64, 64), f32(64, 8)],
    ),
    "tridiagonal_solve": (lax.linalg.tridiagonal_solve, [f32(64), f32(64), f32(64), f32(64, 4)]),
    "tridiagonal": (lax.linalg.tridiagonal, [f32(32, 32)]),
    "matrix_exponential": (jsp.linalg.expm, [f32(32, 32)]),
    "sort": (lambda x: (jnp.sort(x), jnp.argsort(x, descending=True)), [f32(50, 100)]),
    "sort_of_several": (lambda k, v: lax.sort((k, v, v * 2), num_keys=1), [i32(4096), f32(4096)]),
    "sort_on_cub": (jnp.sort, [f32(1 << 20)]),
    "top_k": (lambda x: lax.top_k(x, 7), [f32(8, 1000)]),
    "approx_top_k": (lambda x: lax.approx_max_k(x, 8), [f32(8, 4096)]),
    "unique_with_size": (
        lambda x: jnp.unique(x, size=16, return_counts=True, fill_value=0),
        [i32(256)],
    ),
    "gather": (
        lambda t, i: (t[i], jnp.take_along_axis(t, t[:, :2].astype(int), 1)),
        [f32(1000, 16), i32(8, 3)],
    ),
    "segment_sum": (
        lambda x, i: jax.ops.segment_sum(x, i, num_segments=10),
        [f32(100, 16), i32(100)],
    ),
    "ragged_dot": (lax.ragged_dot, [f32(64, 32), f32(4, 32, 16), i32(4)]),
    "convolution_transposed": (
        lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"),
        [f32(4, 8, 8, 8), f32(3, 3, 8, 16)],
    ),
    "windowed_sum": (lambda x: lax.reduce_window(x, 0.0, lax.add, (8,), (1,), "SAME"), [f32(1000)]),
    "einsum": (
        lambda a, b, c: jnp.einsum("bij,bjk,kl->bil", a, b, c),
        [f32(4, 16, 32), f32(4, 32, 8), f32(8, 64)],
    ),
    # Operations that few steps use.
    "pivoted_qr": (lambda a: jsp.linalg.qr(a, pivoting=True, mode="economic"), [f32(64, 32)]),
    "product_with_a_householder_factor": (jsp.linalg.qr_multiply, [f32(64, 64), f32(64, 64)]),
    "updated_cholesky_factor": (lax.linalg.cholesky_update, [f32(64, 64), f32(64)]),
    "symmetric_update": (
        lambda a, c: lax.linalg.symmetric_product(a, c, alpha=1.0, beta=2.0),
        [f32(64, 32), f32(64, 64)],
    ),
    "row_and_column_major": (
        lambda x: with_layout_constraint(x.T, Layout((1, 0))) @ x,
        [f32(64, 64)],
    ),
    "uniform_of_xla": (lambda low, high: lax.rng_uniform(low, high, (64,)), [f32(), f32()]),
    # By control flow and by transformation.
    "associative_scan": (
        lambda x: lax.associative_scan(lambda a, b: a * 0.9 + b, x),
        [f32(100, 8)],
    ),
    "map_in_batches": (lambda x: lax.map(jnp.cumsum, x, batch_size=4), [f32(16, 100)]),
    "vmap": (
        jax.vmap(jax.vmap(lambda x, w: jnp.sort(x) @ w, (0, None)), (0, 0)),
        [f32(3, 5, 64), f32(3, 64, 16)],
    ),
    "hessian": (jax.hessian(lambda x: jnp.sin(x).prod()), [f32(32)]),
    "optimization_barrier": (
        lambda x, y: lax.optimization_barrier((x + 1, y * 2)),
        [f32(1000), f32(77)],
    ),
}


def of(name: str) -> Workload:
    fn, args = STEPS[name]
    return step(name, fn, args)
