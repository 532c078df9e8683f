"""Programs by operation: linear algebra, sorting, gathering, windows, matrix products."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy as jsp
from jax import lax
from step import array, f32, i32, step

from xlapipe import Workload


def fft() -> Workload:
    def fn(x: Any, y: Any) -> Any:
        return jnp.fft.fft(y), jnp.fft.irfft(jnp.fft.rfft(x)), jnp.fft.ifft2(y)

    return step("fft", fn, [f32(16, 128), array(jnp.complex64, 16, 128)])


def cholesky() -> Workload:
    fn = lambda a: jnp.linalg.cholesky(a @ a.T + jnp.eye(64))  # noqa: E731
    return step("cholesky", fn, [f32(64, 64)])


def cholesky_of_a_batch() -> Workload:
    return step("cholesky_of_a_batch", jnp.linalg.cholesky, [f32(8, 32, 32)])


def singular_values() -> Workload:
    return step("singular_values", jnp.linalg.svd, [f32(64, 32)])


def eigenvalues_of_symmetric() -> Workload:
    return step("eigenvalues_of_symmetric", jnp.linalg.eigh, [f32(64, 64)])


def eigenvalues() -> Workload:
    """jax chooses cuSOLVER by the version of the library."""
    return step("eigenvalues", jnp.linalg.eig, [f32(64, 64)])


def qr() -> Workload:
    return step("qr", jnp.linalg.qr, [f32(64, 32)])


def lu() -> Workload:
    return step("lu", jsp.linalg.lu, [f32(64, 64)])


def solve() -> Workload:
    return step("solve", jnp.linalg.solve, [f32(64, 64), f32(64)])


def inverse() -> Workload:
    return step("inverse", jnp.linalg.inv, [f32(64, 64)])


def determinant() -> Workload:
    return step("determinant", jnp.linalg.slogdet, [f32(3, 64, 64)])


def triangular_solve() -> Workload:
    fn = lambda a, b: jsp.linalg.solve_triangular(a, b, lower=True)  # noqa: E731
    return step("triangular_solve", fn, [f32(64, 64), f32(64, 8)])


def tridiagonal_solve() -> Workload:
    args = [f32(64), f32(64), f32(64), f32(64, 4)]
    return step("tridiagonal_solve", lax.linalg.tridiagonal_solve, args)


def tridiagonal() -> Workload:
    return step("tridiagonal", lax.linalg.tridiagonal, [f32(32, 32)])


def matrix_exponential() -> Workload:
    return step("matrix_exponential", jsp.linalg.expm, [f32(32, 32)])


def sort() -> Workload:
    return step("sort", lambda x: (jnp.sort(x), jnp.argsort(x, descending=True)), [f32(50, 100)])


def sort_of_several() -> Workload:
    fn = lambda k, v: lax.sort((k, v, v * 2), num_keys=1)  # noqa: E731
    return step("sort_of_several", fn, [i32(4096), f32(4096)])


def sort_on_cub() -> Workload:
    return step("sort_on_cub", jnp.sort, [f32(1 << 20)])


def top_k() -> Workload:
    return step("top_k", lambda x: lax.top_k(x, 7), [f32(8, 1000)])


def approx_top_k() -> Workload:
    return step("approx_top_k", lambda x: lax.approx_max_k(x, 8), [f32(8, 4096)])


def unique_with_size() -> Workload:
    fn = lambda x: jnp.unique(x, size=16, return_counts=True, fill_value=0)  # noqa: E731
    return step("unique_with_size", fn, [i32(256)])


def cumulative() -> Workload:
    def fn(x: Any) -> Any:
        results = lax.cumsum(x), lax.cumprod(x), lax.cummax(x), lax.cummin(x, reverse=True)
        return *results, lax.cumlogsumexp(x, axis=1)

    return step("cumulative", fn, [f32(128, 64)])


def gather() -> Workload:
    return step("gather", lambda t, i: (t[i], jnp.take_along_axis(t, t[:, :2].astype(int), 1)), [
        f32(1000, 16), i32(8, 3),
    ])  # fmt: skip


def scatter() -> Workload:
    def fn(x: Any, i: Any, u: Any) -> Any:
        at = x.at[i]
        return at.set(u), at.add(u), at.mul(u), at.min(u), at.max(u), at.apply(jnp.sin)

    return step("scatter", fn, [f32(100, 16), i32(8), f32(8, 16)])


def scatter_in_place() -> Workload:
    fn = lambda x, i, u: x.at[i].add(u)  # noqa: E731
    return step("scatter_in_place", fn, [f32(100, 16), i32(8), f32(8, 16)], donate_argnums=0)


def segment_sum() -> Workload:
    fn = lambda x, i: jax.ops.segment_sum(x, i, num_segments=10)  # noqa: E731
    return step("segment_sum", fn, [f32(100, 16), i32(100)])


def slices() -> Workload:
    def fn(x: Any, i: Any, u: Any) -> Any:
        return (
            lax.dynamic_slice(x, (i, 0), (4, 16)),
            lax.dynamic_update_slice(x, u, (i, i)),
            x[::-1, 1::2],
            lax.pad(x, 0.0, ((1, 2, 1), (0, 0, 0))),
            jnp.concatenate([x, u]),
        )

    return step("slices", fn, [f32(100, 16), i32(), f32(4, 16)])


def ragged_dot() -> Workload:
    return step("ragged_dot", lax.ragged_dot, [f32(64, 32), f32(4, 32, 16), i32(4)])


def ragged_dot_gradient() -> Workload:
    def fn(x: Any, w: Any, sizes: Any) -> Any:
        return jax.grad(lambda x, w: lax.ragged_dot(x, w, sizes).sum(), (0, 1))(x, w)

    return step("ragged_dot_gradient", fn, [f32(64, 32), f32(4, 32, 16), i32(4)])


def sparse_bcoo() -> Workload:
    from jax.experimental import sparse

    def fn(data: Any, indices: Any, v: Any) -> Any:
        return sparse.BCOO((data, indices), shape=(64, 32)) @ v

    return step("sparse_bcoo", fn, [f32(100), i32(100, 2), f32(32, 8)])


def sparse_todense() -> Workload:
    from jax.experimental import sparse

    def fn(data: Any, indices: Any) -> Any:
        matrix = sparse.BCOO((data, indices), shape=(64, 32))
        return matrix.sum_duplicates(nse=50).todense(), matrix.T.data

    return step("sparse_todense", fn, [f32(100), i32(100, 2)])


def _convolve(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def convolution() -> Workload:
    return step("convolution", _convolve, [f32(4, 16, 16, 8), f32(3, 3, 8, 16)])


def convolution_backward() -> Workload:
    fn = jax.grad(lambda x, w: (_convolve(x, w) ** 2).sum(), (0, 1))
    return step("convolution_backward", fn, [f32(4, 16, 16, 8), f32(3, 3, 8, 16)])


def convolution_transposed() -> Workload:
    fn = lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME")  # noqa: E731
    return step("convolution_transposed", fn, [f32(4, 8, 8, 8), f32(3, 3, 8, 16)])


def convolution_by_groups() -> Workload:
    def fn(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (2,), "VALID", feature_group_count=8)

    return step("convolution_by_groups", fn, [f32(4, 8, 32), f32(16, 1, 3)])


def pooling() -> Workload:
    def pool(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    fn = lambda x: (pool(x), jax.grad(lambda x: pool(x).sum())(x))  # noqa: E731
    return step("pooling", fn, [f32(2, 16, 16, 4)])


def windowed_sum() -> Workload:
    fn = lambda x: lax.reduce_window(x, 0.0, lax.add, (8,), (1,), "SAME")  # noqa: E731
    return step("windowed_sum", fn, [f32(1000)])


def general_reduce() -> Workload:
    def fn(x: Any) -> Any:
        both = lax.reduce((x, x * 2), (0.0, 1.0), lambda a, b: (a[0] + b[0], a[1] * b[1]), (0,))
        flags = x > 0
        return *both, flags.any(), flags.all(0), x.argmax(1), x.argmin(0), x.prod(), x.min()

    return step("general_reduce", fn, [f32(64, 32)])


def dot_with_preferred_type() -> Workload:
    def fn(a: Any, b: Any) -> Any:
        return lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)

    args = [array(jnp.bfloat16, 64, 128), array(jnp.bfloat16, 128, 32)]
    return step("dot_with_preferred_type", fn, args)


def dot_of_integers() -> Workload:
    def fn(a: Any, b: Any) -> Any:
        return lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)

    return step("dot_of_integers", fn, [array(jnp.int8, 64, 128), array(jnp.int8, 128, 32)])


def dot_of_float8() -> Workload:
    def fn(a: Any, b: Any) -> Any:
        return lax.dot_general(a, b, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)

    args = [array(jnp.float8_e4m3fn, 64, 128), array(jnp.float8_e4m3fn, 32, 128)]
    return step("dot_of_float8", fn, args)


def einsum() -> Workload:
    fn = lambda a, b, c: jnp.einsum("bij,bjk,kl->bil", a, b, c)  # noqa: E731
    return step("einsum", fn, [f32(4, 16, 32), f32(4, 32, 8), f32(8, 64)])


def attention() -> Workload:
    fn = lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True)  # noqa: E731
    qkv = array(jnp.bfloat16, 2, 64, 4, 32)
    return step("attention", fn, [qkv, qkv, qkv])


def random_distributions() -> Workload:
    def fn(key: Any) -> Any:
        keys = jax.random.split(key, 6)
        return (
            jax.random.gamma(keys[0], 2.0, (16,)),
            jax.random.permutation(keys[1], 64),
            jax.random.categorical(keys[2], jnp.zeros((4, 10))),
            jax.random.truncated_normal(keys[3], -1, 1, (16,)),
            jax.random.fold_in(keys[4], 3),
            jax.random.randint(keys[5], (16,), 0, 9),
        )

    return step("random_distributions", fn, [jax.eval_shape(lambda: jax.random.key(0))])


def random_bit_generator() -> Workload:
    def fn(key: Any) -> Any:
        return lax.rng_bit_generator(key, (64, 16), dtype=jnp.uint32)

    return step("random_bit_generator", fn, [array(jnp.uint32, 4)])


_UNARY = "abs acos acosh asin asinh atan atanh cbrt ceil cos cosh digamma erf erf_inv erfc exp exp2 expm1 floor is_finite lgamma log log1p logistic neg round rsqrt sign sin sinh sqrt square tan tanh bessel_i0e bessel_i1e"  # noqa: E501
_BINARY = "add atan2 div eq ge gt igamma igammac le lt max min mul ne nextafter pow rem sub zeta"


def unary_operations() -> Workload:
    names = _UNARY.split()
    return step("unary_operations", lambda x: [getattr(lax, name)(x) for name in names], [f32(64)])


def binary_operations() -> Workload:
    def fn(x: Any, y: Any) -> Any:
        return [getattr(lax, name)(x, y) for name in _BINARY.split()]

    return step("binary_operations", fn, [f32(64), f32(64)])


def special_functions() -> Workload:
    def fn(x: Any) -> Any:
        return (
            lax.betainc(x, x, x),
            lax.polygamma(x, x),
            lax.random_gamma_grad(x, x),
            lax.integer_pow(x, 3),
            lax.clamp(0.0, x, 1.0),
            lax.select(x > 0, x, -x),
            lax.reduce_precision(x, 5, 10),
            jax.grad(lambda x: lax.igamma(x, 2.0).sum())(x),
        )

    return step("special_functions", fn, [f32(64)])


def integer_operations() -> Workload:
    def fn(x: Any, y: Any) -> Any:
        binary = ["bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right_logical"]
        unary = ["bitwise_not", "population_count", "clz"]
        return (
            [getattr(lax, name)(x, y) for name in [*binary, "shift_right_arithmetic"]],
            [getattr(lax, name)(x) for name in unary],
            lax.bitcast_convert_type(x, jnp.float32),
            lax.reduce_and(x, (0,)),
            lax.reduce_or(x, (0,)),
            lax.reduce_xor(x, (0,)),
            lax.mulhi(x, y),
        )

    return step("integer_operations", fn, [i32(64), i32(64)])


def complex_operations() -> Workload:
    def fn(z: Any, x: Any) -> Any:
        return lax.real(z), lax.imag(z), lax.conj(z), lax.complex(x, x), jnp.abs(z), z @ z

    return step("complex_operations", fn, [array(jnp.complex64, 64, 64), f32(64)])


def shapes() -> Workload:
    def fn(x: Any) -> Any:
        return (
            lax.broadcast_in_dim(x, (3, 8, 16), (1, 2)) * 2,
            x.reshape(16, 8).T,
            lax.iota(jnp.int32, 10),
            jnp.split(x, [3], axis=1),
            lax.rev(x, (0,)),
            lax.squeeze(x[:1], (0,)),
            lax.expand_dims(x, (1,)),
            jnp.tile(x, (2, 2)),
        )

    return step("shapes", fn, [f32(8, 16)])
