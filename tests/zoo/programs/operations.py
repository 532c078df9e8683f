"""Programs by operation: linear algebra, sorting, gathering, windows, matrix products."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from step import array, f32, i32, step

from xlapipe import Workload


def fft() -> Workload:
    def fn(x: Any, y: Any) -> Any:
        return jnp.fft.fft(y), jnp.fft.irfft(jnp.fft.rfft(x)), jnp.fft.ifft2(y)

    return step("fft", fn, [f32(16, 128), array(jnp.complex64, 16, 128)])


def cumulative() -> Workload:
    def fn(x: Any) -> Any:
        results = lax.cumsum(x), lax.cumprod(x), lax.cummax(x), lax.cummin(x, reverse=True)
        return *results, lax.cumlogsumexp(x, axis=1)

    return step("cumulative", fn, [f32(128, 64)])


def scatter() -> Workload:
    def fn(x: Any, i: Any, u: Any) -> Any:
        at = x.at[i]
        return at.set(u), at.add(u), at.mul(u), at.min(u), at.max(u), at.apply(jnp.sin)

    return step("scatter", fn, [f32(100, 16), i32(8), f32(8, 16)])


def scatter_in_place() -> Workload:
    fn = lambda x, i, u: x.at[i].add(u)  # noqa: E731
    return step("scatter_in_place", fn, [f32(100, 16), i32(8), f32(8, 16)], donate_argnums=0)


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


def convolution_by_groups() -> Workload:
    def fn(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (2,), "VALID", feature_group_count=8)

    return step("convolution_by_groups", fn, [f32(4, 8, 32), f32(16, 1, 3)])


def pooling() -> Workload:
    def pool(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    fn = lambda x: (pool(x), jax.grad(lambda x: pool(x).sum())(x))  # noqa: E731
    return step("pooling", fn, [f32(2, 16, 16, 4)])


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
