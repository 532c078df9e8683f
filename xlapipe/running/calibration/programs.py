"""The programs of a calibration: small ones, each of which isolates what one kind of kernel costs.

No program is a model or a part of one: a calibration describes the GPU and XLA's kernels.
"""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from xlapipe.running.calibration.timed_program import (
    BF16,
    F32,
    TYPES,
    Add,
    Arg,
    TimedProgram,
    joined,
    programs_of,
    sizes,
)

_KIB = 1 << 10
_MIB = 1 << 20
_NO_GRAPH: dict[str, Any] = {"xla_gpu_enable_command_buffer": ""}


def calibration_programs() -> dict[str, TimedProgram]:
    """Every program of a calibration of one GPU, by name."""
    parts = (
        *(_launches, _elementwise, _arithmetic, _data_movement, _reductions, _transposes, _gathers),
        *(_sorts, _factorisations, _products, _convolutions, _attention, _copies, _loops),
        *(_mixtures, _masked, _wide_rows, _gradients),
    )
    return programs_of(parts)


def _chain(length: int, x: Any) -> Any:
    """Kernels that XLA cannot fuse."""
    for _ in range(length):
        x = lax.optimization_barrier(x + 1.0)
    return x


def _launches(add: Add) -> None:
    for length in (1, 2, 4, 8, 16, 64, 256):
        add(f"chain_{length}", partial(_chain, length), Arg((_KIB,)))
        add(f"chain_{length}_no_graph", partial(_chain, length), Arg((_KIB,)), **_NO_GRAPH)
    for size in (1 * _MIB, 16 * _MIB):
        add(f"chain_16_{size}", partial(_chain, 16), Arg((size,)))

    def independent(*arrays: Any) -> Any:
        return [lax.optimization_barrier(jnp.sin(array)) @ array for array in arrays]

    add("independent_products", independent, *[Arg((64, 64))] * 8)


def _cold(count: int, elements: int, xs: Any, flushing: Any) -> Any:
    """Reads arrays that are not in the L2 cache, since other kernels have replaced them."""
    results = []
    for index in range(count):
        flushing = lax.optimization_barrier(flushing * 1.5)
        x, flushing = lax.optimization_barrier((xs[index], flushing))
        results.append(lax.optimization_barrier(x + 1.0))
    return results, flushing


def _elementwise(add: Add) -> None:
    for power in (8, 12, 14, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27):
        n = 1 << power
        add(f"add_f32_{n}", lambda x: x + 1, Arg((n,)))
        if power >= 16 and power % 2 == 0:
            add(f"add_bf16_{n}", lambda x: x + 1, Arg((n,), BF16))
            add(f"add2_f32_{n}", lambda x, y: x + y, Arg((n,)), Arg((n,)))
            add(f"add5_f32_{n}", lambda *x: sum(x), *[Arg((n,))] * 5)
            add(f"iota_f32_{n}", lambda n=n: lax.iota(F32, n) * 0.5)
            add(f"read_bf16_write_f32_{n}", lambda x: x.astype(F32), Arg((n,), BF16))
            add(f"read_f32_write_bf16_{n}", lambda x: x.astype(BF16), Arg((n,)))
            add(f"adam_{n}", _adam, *[Arg((n,))] * 4)
            add(f"int8_{n}", lambda x: x + jnp.int8(1), Arg((n,), jnp.int8, below=100))
        if power >= 18 and power <= 24 and power % 2 == 0:
            flushing = Arg((32 * _MIB,))
            add(f"cold_{n}", partial(_cold, 3, n), [Arg((n,))] * 3, flushing)


def _adam(p: Any, m: Any, v: Any, g: Any) -> Any:
    m = 0.9 * m + 0.1 * g
    v = 0.99 * v + 0.01 * g * g
    return p - 0.001 * m / (jnp.sqrt(v) + 1e-8), m, v


def _arithmetic(add: Add) -> None:
    functions: dict[str, Callable[[Any], Any]] = {
        "exp": jnp.exp,
        "log": lambda x: jnp.log(jnp.abs(x)),
        "sin": jnp.sin,
        "pow": lambda x: jnp.abs(x) ** 2.5,
        "tanh": jnp.tanh,
        "erf": jax.scipy.special.erf,
        "rsqrt": lambda x: lax.rsqrt(jnp.abs(x)),
        "divide": lambda x: 1 / x,
        "gelu": jax.nn.gelu,
        "silu": jax.nn.silu,
        "sigmoid": jax.nn.sigmoid,
        "log1p": lambda x: jnp.log1p(jnp.abs(x)),
        "expm1": jnp.expm1,
        "atan2": lambda x: jnp.atan2(x, x + 1),
        "erf_inv": lambda x: lax.erf_inv(jnp.tanh(x)),
        "lgamma": lambda x: lax.lgamma(jnp.abs(x)),
        "cbrt": jnp.cbrt,
        "sqrt": lambda x: jnp.sqrt(jnp.abs(x)),
        "fma64": lambda x: _repeat(lambda y: y * 1.5 + x, 64, x),
        "fma512": lambda x: _repeat(lambda y: y * 1.5 + x, 512, x),
    }
    for name, fn in functions.items():
        for dtype, tag in TYPES:
            add(f"{name}_{tag}", fn, Arg((1 << 24,), dtype))
    for name in ("exp", "sin", "tanh", "divide", "erf", "pow", "log"):
        repeated = partial(_repeat, functions[name], 16)
        add(f"{name}_16_times", repeated, Arg((1 << 24,)))
    n = 1 << 24
    integers: dict[str, Callable[[Any], Any]] = {
        "multiply": lambda x: _repeat(lambda y: y * 3 + x, 16, x),
        "divide": lambda x: 1234567 // (x + 1),
        "remainder": lambda x: x % 12345,
        "shift": lambda x: _repeat(lambda y: (y << 3) ^ (y >> 5), 16, x),
    }
    for name, fn in integers.items():
        add(f"s32_{name}", fn, Arg((n,), jnp.int32, below=1 << 20))
    for count in (1 << 14, 1 << 18, 1 << 22, 1 << 25):
        key = Arg((2,), jnp.uint32, below=1 << 30)
        add(f"random_bits_{count}", lambda k, c=count: jax.random.bits(k, (c,)), key)
        add(f"random_normal_{count}", lambda k, c=count: jax.random.normal(k, (c,)), key)
    add(
        "dropout",
        lambda k, x: jnp.where(jax.random.bernoulli(k, 0.9, x.shape), x, 0),
        Arg((2,), jnp.uint32, below=1 << 30),
        Arg((1 << 24,), BF16),
    )


def _repeat(fn: Callable[[Any], Any], times: int, x: Any) -> Any:
    for _ in range(times):
        x = fn(x)
    return x


def _data_movement(add: Add) -> None:
    for n in (1 << 16, 1 << 20, 1 << 24, 1 << 26):
        rows = n >> 10
        x = Arg((rows, 1024))
        add(f"broadcast_row_{n}", lambda x, v: x * v, x, Arg((1024,)))
        add(f"broadcast_column_{n}", lambda x, v: x * v, x, Arg((rows, 1)))
        add(f"write_broadcast_{n}", lambda v, r=rows: jnp.tile(v, (r, 1)), Arg((1024,)))
        add(f"concatenate_{n}", lambda x, y: jnp.concatenate([x, y], 1), x, x)
        add(f"pad_{n}", lambda x: jnp.pad(x, ((1, 1), (8, 8))), x)
        add(f"slice_{n}", lambda x: x[:, 128:640] * 1.5, x)
        add(f"stride_{n}", lambda x: x[:, ::4] * 1.5, x)
        add(f"reverse_{n}", lambda x: x[:, ::-1], x)
        add(f"roll_{n}", lambda x: jnp.roll(x, 5, 1) + jnp.roll(x, -5, 0), x)
        add(f"add_transposed_{n}", lambda x: x.reshape(1024, -1) + x.T, x)
        add(
            f"update_slice_{n}",
            lambda x, u, i: (lax.dynamic_update_slice(x, u, (i, 0)), None),
            x,
            Arg((1, 1024)),
            Arg((), jnp.int32),
            carried=True,
        )
        add(
            f"dynamic_slice_{n}",
            lambda x, i: lax.dynamic_slice(x, (i, 0), (x.shape[0] // 2, 1024)) * 2,
            x,
            Arg((), jnp.int32),
        )
    for channels in (3, 16, 64):
        x = Arg((8, 224, 224, channels), BF16)
        add(f"nhwc_to_nchw_{channels}", lambda x: jnp.transpose(x, (0, 3, 1, 2)), x)
    for n in (256, 2048):
        x = Arg((n, n))
        add(f"stencil_{n}", _stencil, x)
        add(f"max_pool_{n}", partial(_pool, -jnp.inf, lax.max), x)
        add(f"mean_pool_{n}", partial(_pool, 0.0, lax.add), x)
        add(f"upsample_{n}", lambda x: jnp.repeat(jnp.repeat(x, 2, 0), 2, 1), x)
    image = Arg((32, 112, 112, 64), BF16)

    def pooled(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")

    add("max_pool_nhwc", pooled, image)
    add("max_pool_nhwc_gradient", jax.grad(lambda x: pooled(x).sum()), image)


def _pool(initial: float, combine: Any, x: Any) -> Any:
    return lax.reduce_window(x, initial, combine, (3, 3), (2, 2), "SAME")


def _stencil(x: Any) -> Any:
    neighbours = [jnp.roll(x, shift, axis) for shift in (1, -1) for axis in (0, 1)]
    return x + 0.1 * (sum(neighbours) - 4 * x)


def _reductions(add: Add) -> None:
    shape: tuple[int, ...]
    rows_of = (1, 8, 64, 512, 4096, 32768)
    columns_of = (16, 64, 256, 1024, 4096, 32768, 1 << 20)
    for rows, columns in itertools.product(rows_of, columns_of):
        if not 1 << 12 <= rows * columns <= 1 << 26:
            continue
        shape = (rows, columns)
        add(f"row_sum_{rows}x{columns}", lambda x: x.sum(1), Arg(shape))
        if rows > 1:
            add(f"column_sum_{rows}x{columns}", lambda x: x.sum(0), Arg(shape))
        if columns in (256, 4096, 32768) and rows in (8, 512, 32768):
            bf = Arg(shape, BF16)
            add(f"row_sum_bf16_{rows}x{columns}", _sum_f32(1), bf)
            add(f"column_sum_bf16_{rows}x{columns}", _sum_f32(0), bf)
            add(f"softmax_{rows}x{columns}", jax.nn.softmax, Arg(shape))
            add(f"softmax_bf16_{rows}x{columns}", _softmax_bf16, bf)
            add(f"rms_norm_{rows}x{columns}", _rms_norm, bf, Arg((columns,), BF16))
            add(f"layer_norm_{rows}x{columns}", _layer_norm, Arg(shape))
            add(f"argmax_{rows}x{columns}", lambda x: jnp.argmax(x, 1), Arg(shape))
    for shape in ((32, 1024, 256), (256, 64, 1024), (8, 4096, 64), (4096, 16, 64)):
        add(f"middle_sum_{joined(shape)}", lambda x: x.sum(1), Arg(shape))
        add(f"outer_sum_{joined(shape)}", lambda x: x.sum((0, 2)), Arg(shape))
    for shape in ((32, 56, 56, 64), (32, 14, 14, 512), (8, 112, 112, 32)):
        add(f"batch_norm_{joined(shape)}", _batch_norm, Arg(shape, BF16))
    for n in (1 << 14, 1 << 18, 1 << 22, 1 << 26):
        add(f"norm_{n}", lambda x: jnp.sqrt((x * x).sum()), Arg((n,)))
        add(f"minmax_{n}", lambda x: (x.min(), x.max(), x.mean()), Arg((n,)))
    for m, k in ((4096, 4096), (1024, 4096), (32768, 1024), (256, 512)):
        w, x = Arg((k, m), BF16), Arg((1, k), BF16)
        add(f"one_row_{m}x{k}", lambda x, w: x @ w, x, w)
        transposed = Arg((m, k), BF16)
        add(f"one_row_transposed_{m}x{k}", lambda x, w: x @ w.T, x, transposed)
        add(f"one_row_f32_{m}x{k}", lambda x, w: x @ w, Arg((1, k)), Arg((k, m)))


def _sum_f32(axis: int) -> Callable[[Any], Any]:
    return lambda x: x.astype(F32).sum(axis)


def _softmax_bf16(x: Any) -> Any:
    return jax.nn.softmax(x.astype(F32)).astype(BF16)


def _rms_norm(x: Any, scale: Any) -> Any:
    wide = x.astype(F32)
    return (wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)).astype(BF16) * scale


def _layer_norm(x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-6)


def _batch_norm(x: Any) -> Any:
    wide = x.astype(F32)
    mean, square = wide.mean((0, 1, 2)), (wide * wide).mean((0, 1, 2))
    return ((wide - mean) * lax.rsqrt(square - mean * mean + 1e-5)).astype(BF16)


def _transposes(add: Add) -> None:
    for n in (128, 512, 1024, 2048, 4096, 8192):
        for dtype, tag in TYPES:
            add(f"transpose_{tag}_{n}", lambda x: x.T + 0, Arg((n, n), dtype))
    for shape, order in (
        ((8, 1024, 16, 64), (0, 2, 1, 3)),
        ((8, 1024, 16, 64), (0, 2, 3, 1)),
        ((2, 256, 8, 64), (0, 2, 1, 3)),
        ((64, 512, 512), (0, 2, 1)),
        ((512, 512, 64), (1, 0, 2)),
        ((256, 256, 4), (2, 0, 1)),
    ):
        name = f"transpose_{joined(shape)}_{joined(order)}"
        add(name, lambda x, o=order: jnp.transpose(x, o) + 0, Arg(shape, BF16))


def _gathers(add: Add) -> None:
    for width, count, table in itertools.product(
        (1, 16, 64, 1024), (1 << 10, 1 << 15, 1 << 20), (1 << 20, 1 << 26)
    ):
        if width * count > 1 << 26:
            continue
        rows = table // width
        x, index = Arg((rows, width)), Arg((count,), jnp.int32, below=rows)
        name = f"{width}x{count}_of_{table}"
        add(f"gather_{name}", lambda x, i: x[i] * 2, x, index)
        if table == 1 << 20 or count == 1 << 20:
            updates = Arg((count, width))
            add(f"scatter_add_{name}", lambda x, i, u: x.at[i].add(u), x, index, updates)
    for rows, columns in ((4096, 1024), (64, 32768)):
        x, index = Arg((rows, columns)), Arg((rows, 1), jnp.int32, below=columns)
        add(f"take_along_{rows}x{columns}", lambda x, i: jnp.take_along_axis(x, i, 1), x, index)
    for segments, width in ((1024, 1), (1 << 16, 1), (1024, 64), (1 << 16, 64)):
        x, index = Arg((1 << 18, width)), Arg((1 << 18,), jnp.int32, below=segments)
        summed = partial(jax.ops.segment_sum, num_segments=segments)
        add(f"segment_sum_{segments}x{width}", summed, x, index)
        add(
            f"scatter_set_{segments}x{width}",
            lambda x, i, s=segments: jnp.zeros((s, x.shape[1])).at[i].set(x),
            x,
            index,
        )
    x, index = Arg((50304, 768), BF16), Arg((8, 1024), jnp.int32, below=50304)
    add("embedding_bf16", lambda x, i: x[i], x, index)
    add("embedding_bf16_gradient", _embedding_gradient, Arg((8, 1024, 768), BF16), index)


def _embedding_gradient(gradient: Any, index: Any) -> Any:
    return jnp.zeros((50304, 768), BF16).at[index].add(gradient)


def _sorts(add: Add) -> None:
    for power in (10, 14, 18, 20, 22, 24):
        n = 1 << power
        add(f"sort_f32_{n}", jnp.sort, Arg((n,)))
        if power % 4 == 2 or power == 24:
            add(f"sort_bf16_{n}", jnp.sort, Arg((n,), BF16))
            add(f"sort_s32_{n}", jnp.sort, Arg((n,), jnp.int32, below=1 << 30))
            add(f"argsort_f32_{n}", jnp.argsort, Arg((n,)))
            add(f"sort_stable_three_{n}", lambda *x: lax.sort(x, num_keys=2), *[Arg((n,))] * 3)
        if power >= 12:
            add(f"cumsum_{n}", jnp.cumsum, Arg((n,)))
            add(f"cummax_{n}", lax.cummax, Arg((n,)))
            add(f"cumprod_{n}", jnp.cumprod, Arg((n,)))
    for rows, columns in ((8, 1024), (1024, 1024), (64, 32768), (8192, 128), (4096, 4096)):
        x = Arg((rows, columns))
        add(f"sort_rows_{rows}x{columns}", lambda x: jnp.sort(x, 1), x)
        add(f"argsort_rows_{rows}x{columns}", lambda x: jnp.argsort(x, 1), x)
        add(f"cumsum_rows_{rows}x{columns}", lambda x: jnp.cumsum(x, 1), x)
        add(f"cumsum_columns_{rows}x{columns}", lambda x: jnp.cumsum(x, 0), x)
        for k in (1, 8, 64):
            add(f"top_{k}_{rows}x{columns}", lambda x, k=k: lax.top_k(x, k), x)
    for n in (1 << 16, 1 << 20):
        add(f"top_64_of_{n}", lambda x: lax.top_k(x, 64), Arg((n,)))
        add(f"scan_linear_{n}", _scan_linear, Arg((n,), scale=0.1), Arg((n,)))
    for shape in sizes("512x64 1024x1024 4096x256"):
        add(f"scan_linear_{joined(shape)}", _scan_linear, Arg(shape, scale=0.1), Arg(shape))


def _scan_linear(a: Any, b: Any) -> Any:
    return lax.associative_scan(lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), (a, b))


def _factorisations(add: Add) -> None:
    for n in (32, 64, 256, 512, 1024, 4096):
        matrix = Arg((n, n), identity=4.0 * n, scale=0.01)
        add(f"cholesky_{n}", _cholesky, matrix)
        for columns in (1, 64, n):
            add(f"solve_triangular_{n}x{columns}", _solve, matrix, Arg((n, columns)))
        if n <= 1024:
            add(f"lu_{n}", lambda a: lax.linalg.lu(a)[0], matrix)
            add(f"qr_{n}", lambda a: jnp.linalg.qr(a)[0], matrix)
        if n in (64, 256):
            add(f"eigh_{n}", lambda a: jnp.linalg.eigh(a)[0], matrix)
            add(f"svd_{n}", lambda a: jnp.linalg.svd(a)[1], matrix)
    for batch, n in ((16, 32), (256, 16), (256, 64), (64, 128), (1024, 32), (16, 256)):
        matrix = Arg((batch, n, n), identity=4.0 * n, scale=0.01)
        add(f"cholesky_{batch}x{n}", _cholesky, matrix)
        add(f"solve_triangular_{batch}x{n}x1", _solve, matrix, Arg((batch, n, 1)))
        add(f"solve_triangular_{batch}x{n}x{n}", _solve, matrix, Arg((batch, n, n)))
        add(f"lu_{batch}x{n}", lambda a: lax.linalg.lu(a)[0], matrix)
        add(f"qr_{batch}x{n}", lambda a: jnp.linalg.qr(a)[0], matrix)
    for n, total in itertools.product((64, 1000, 1024, 4096, 65536), (1 << 16, 1 << 20, 1 << 24)):
        if n <= total:
            x = Arg((total // n, n))
            add(f"fft_{total // n}x{n}", lambda x: jnp.fft.fft(x + 0j), x)
            add(f"rfft_{total // n}x{n}", jnp.fft.rfft, x)
            add(f"irfft_{total // n}x{n}", lambda x: jnp.fft.irfft(x + 0j), x)
    for batch, n in ((1, 256), (16, 256), (64, 512), (1, 2048), (256, 64)):
        add(f"fft2_{batch}x{n}", lambda x: jnp.fft.fft2(x + 0j), Arg((batch, n, n)))
        add(f"rfft2_{batch}x{n}", jnp.fft.rfft2, Arg((batch, n, n)))
    add("fft3_64", lambda x: jnp.fft.fftn(x + 0j), Arg((64, 64, 64)))


def _cholesky(a: Any) -> Any:
    return lax.linalg.cholesky(a, symmetrize_input=False)


def _solve(a: Any, b: Any) -> Any:
    return lax.linalg.triangular_solve(a, b, left_side=True, lower=True)


def _products(add: Add) -> None:
    for m, k, n in sizes(
        "8x1024x1024 8x4096x4096 16x768x3072 32x8192x1024 64x1024x4096 128x512x512 128x4096x1024 "
        "256x256x256 256x1024x1024 512x512x2048 512x4096x512 1000x1000x1000 1024x1024x1024 "
        "1024x64x1024 1024x4096x4096 2048x768x768 2048x768x3072 2048x3072x768 2048x2048x2048 "
        "4096x1024x128 4096x1024x1024 4096x1024x32000 4096x4096x4096 8192x64x64 8192x512x512 "
        "8192x1024x4096 8192x768x2304 8192x8192x8192 16384x2048x2048 65536x128x128 65536x256x1024 "
        "64x65536x64 768x8192x3072 128x65536x256"
    ):
        name = f"{m}x{k}x{n}"
        x, w = Arg((m, k), BF16), Arg((k, n), BF16)
        add(f"product_bf16_{name}", jnp.matmul, x, w)
        if m * n * k <= 1 << 36 and (m + k + n) % 3 != 0:
            add(f"product_f32_{name}", jnp.matmul, Arg((m, k)), Arg((k, n)))
    for m, k, n in sizes("1024x1024x1024 768x8192x768 3072x4096x768 256x16384x256 4096x2048x4096"):
        name = f"{m}x{k}x{n}"
        x, w = Arg((m, k), BF16), Arg((k, n), BF16)
        add(f"weight_gradient_{name}", lambda x, y: x.T @ y, Arg((k, m), BF16), w)
        add(f"input_gradient_{name}", lambda x, y: x @ y.T, x, Arg((n, k), BF16))
        add(f"product_gelu_{name}", lambda x, y, b: jax.nn.gelu(x @ y + b), x, w, Arg((n,), BF16))
        add(f"product_bf16_to_f32_{name}", partial(jnp.matmul, preferred_element_type=F32), x, w)
        add(f"product_f16_{name}", jnp.matmul, Arg((m, k), jnp.float16), Arg((k, n), jnp.float16))
    exact = partial(jnp.matmul, precision="highest")
    for n in (256, 1024, 4096):
        add(f"product_exact_{n}", exact, Arg((n, n)), Arg((n, n)))
    for m, k, n in ((512, 512, 512), (4096, 256, 1024), (128, 8192, 128)):
        add(f"product_exact_{m}x{k}x{n}", exact, Arg((m, k)), Arg((k, n)))
    for n in (1024, 4096):
        x = Arg((n, n), jnp.int8, below=100)
        add(f"product_s8_{n}", partial(jnp.matmul, preferred_element_type=jnp.int32), x, x)
    for batch, m, k, n in sizes(
        "8x128x64x128 16x64x64x64 64x512x64x512 64x512x512x64 128x1024x64x1024 128x1024x1024x64 "
        "32x256x128x256 512x64x32x64 16x2048x128x2048 256x1x64x1024 8x256x1024x1024 1024x16x16x16"
    ):
        name = f"{batch}x{m}x{k}x{n}"
        for dtype, tag in ((BF16, "bf16"), (F32, "f32")):
            args = Arg((batch, m, k), dtype), Arg((batch, k, n), dtype)
            add(f"batched_product_{tag}_{name}", jnp.matmul, *args)


def _convolve(x: Any, w: Any, stride: int = 1, groups: int = 1) -> Any:
    return lax.conv_general_dilated(
        x,
        w,
        (stride,) * (x.ndim - 2),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC") if x.ndim == 4 else ("NWC", "WIO", "NWC"),
        feature_group_count=groups,
    )


def _convolutions(add: Add) -> None:
    for batch, size, inputs, outputs, window, stride in sizes(
        "8x224x3x64x7x2 32x32x3x32x3x1 32x32x64x64x3x1 8x56x64x64x1x1 32x56x64x64x3x1 "
        "32x56x64x256x1x1 32x28x128x128x3x1 32x28x256x512x1x2 8x14x256x256x3x1 64x14x256x256x3x1 "
        "64x7x512x512x3x1 4x128x32x32x3x1 1x512x16x16x3x1 128x16x32x64x3x2"
    ):
        name = f"{batch}x{size}_{inputs}to{outputs}_{window}by{stride}"
        for dtype, tag in ((BF16, "bf16"), (F32, "f32")):
            if tag == "f32" and batch * size > 2000:
                continue
            x = Arg((batch, size, size, inputs), dtype)
            w = Arg((window, window, inputs, outputs), dtype)
            step = partial(_convolve, stride=stride)
            add(f"convolution_{tag}_{name}", step, x, w)
            if size in (14, 28, 32, 56) and tag == "bf16":
                gradient = jax.grad(lambda x, w, s=step: (s(x, w) ** 2).sum(), (0, 1))
                add(f"convolution_gradient_{tag}_{name}", gradient, x, w)
    for channels in (32, 256):
        x, w = Arg((16, 28, 28, channels), BF16), Arg((3, 3, 1, channels), BF16)
        add(f"depthwise_{channels}", partial(_convolve, groups=channels), x, w)
    for length, channels, window in ((4096, 64, 3), (1024, 256, 5)):
        x, w = Arg((16, length, channels), BF16), Arg((window, channels, channels), BF16)
        add(f"convolution_1d_{length}x{channels}", _convolve, x, w)


def _attention(add: Add) -> None:
    attend = partial(jax.nn.dot_product_attention, implementation="cudnn")
    for batch, length, heads, width in sizes(
        "1x512x8x64 4x1024x8x64 8x1024x16x64 2x4096x16x128 16x512x12x64"
    ):
        q = Arg((batch, length, heads, width), BF16)
        for causal in (False, True):
            step = partial(attend, is_causal=causal)
            name = f"{batch}x{length}x{heads}x{width}" + ("_causal" if causal else "")
            add(f"attention_{name}", step, q, q, q)
            gradient = jax.grad(lambda *x, s=step: s(*x).astype(F32).sum(), (0, 1, 2))
            add(f"attention_gradient_{name}", gradient, q, q, q)


def _copies(add: Add) -> None:
    for power in (10, 14, 18, 20, 22, 24, 26):
        n = 1 << power
        add(f"copy_{n}", jnp.copy, Arg((n,)))
        add(f"zeros_{n}", lambda n=n: jnp.zeros((n,)))
        add(f"ones_{n}", lambda n=n: jnp.ones((n,)))
        if power >= 14:
            add(f"to_host_{n}", lambda x: jax.device_put(x, jax.memory.Space.Host), Arg((n,)))
            add(f"there_and_back_{n}", _there_and_back, Arg((n,)))


def _there_and_back(x: Any) -> Any:
    on_host = jax.device_put(x, jax.memory.Space.Host)
    return jax.device_put(on_host, jax.memory.Space.Device) * 2


def _loops(add: Add) -> None:
    def until(limit: float, kernels: int, x: Any) -> Any:
        return lax.while_loop(
            lambda state: state[1] < limit,
            lambda state: (_chain(kernels, state[0]), state[0][0] * 0 + state[1] + 1),
            (x, jnp.float32(0)),
        )

    def scanned(trips: int, kernels: int, x: Any) -> Any:
        return lax.fori_loop(0, trips, lambda _, y: _chain(kernels, y), x)

    def products(trips: int, x: Any) -> Any:
        return lax.fori_loop(0, trips, lambda _, y: jnp.sin(y) @ y, x)

    for kernels in (1, 3, 10):
        loop, scan = partial(until, 100.0, kernels), partial(scanned, 100, kernels)
        add(f"while_100_of_{kernels}", loop, Arg((_KIB,)))
        add(f"scan_100_of_{kernels}", scan, Arg((_KIB,)))
        add(f"scan_100_of_{kernels}_no_graph", scan, Arg((_KIB,)), **_NO_GRAPH)
    for trips in (10, 100, 1000):
        add(f"loop_of_products_{trips}", partial(products, trips), Arg((64, 64)))
    add(f"scan_10_of_3_of_{_MIB}", partial(scanned, 10, 3), Arg((_MIB,)))
    add(
        "conditional",
        lambda x: lax.cond(x[0] > 0, partial(_chain, 4), partial(_chain, 2), x),
        Arg((_KIB,)),
    )
    add(
        "scan_rows",
        lambda x: lax.scan(lambda c, row: (c + row, c.sum()), jnp.zeros(1024), x),
        Arg((256, 1024)),
    )


def _different_kernels(x: Any, index: Any, weight: Any) -> Any:
    """Kernels of many kinds, each of which runs once, so that its code is not in a cache."""
    rows, columns = x.shape
    steps: list[Callable[[Any], Any]] = [
        jnp.exp,
        lambda x: x * x[:1],
        lambda x: x + x[:, :1],
        jax.nn.softmax,
        lambda x: x - x.mean(1, keepdims=True),
        lambda x: x * lax.rsqrt((x * x).mean(1, keepdims=True) + 1),
        lambda x: (x.T * 1.5).reshape(rows, columns),
        lambda x: x + x.sum(1, keepdims=True),
        lambda x: x + x.sum(0),
        lambda x: jnp.concatenate([x[rows // 2 :], x[: rows // 2]]),
        lambda x: jnp.pad(x[:, 1:], ((0, 0), (1, 0))),
        lambda x: x[index],
        lambda x: x.at[index].add(x * 0.5),
        lambda x: jnp.where(x > 0, x, x * 0.1),
        lambda x: lax.dynamic_update_slice(x, x[:1] * 2, (index[0], 0)),
        lambda x: jnp.sqrt(jnp.abs(x)),
        lambda x: x + x.max(1, keepdims=True),
        lambda x: x + jnp.argmax(x, 1)[:, None].astype(x.dtype),
        lambda x: x @ weight,
        lambda x: jnp.tanh(x @ weight),
        lambda x: x.reshape(-1, 2)[:, ::-1].reshape(rows, columns) * 2,
        lambda x: jnp.roll(x, 1, 0) + x,
        lambda x: x * jnp.sin(jnp.arange(columns, dtype=x.dtype)),
        lambda x: jax.nn.gelu(x) + x,
        lambda x: (x.astype(F32) * 3).astype(BF16).astype(x.dtype),
        lambda x: x / (1 + jnp.abs(x)),
        lambda x: x + (x * x).sum(),
        lambda x: jnp.minimum(x, x[0, 0]),
        lambda x: x + x.var(0),
        lambda x: x.reshape(rows, -1, 4).sum(2).repeat(4, 1),
    ]
    results = []
    for step in steps:
        x = lax.optimization_barrier(step(x))
        results.append(lax.optimization_barrier(x[0, 0] + 1))
    return x, results


def _mixtures(add: Add) -> None:
    for rows, columns in sizes("32x128 256x64 128x512 1024x256 512x2048 4096x1024 16384x512"):
        for dtype, tag in TYPES:
            x, index = Arg((rows, columns), dtype), Arg((rows,), jnp.int32, below=rows)
            weight = Arg((columns, columns), dtype, scale=0.05)
            add(f"different_{tag}_{rows}x{columns}", _different_kernels, x, index, weight)

    def stacked(xs: Any, w: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            gates = x @ w + state
            state = lax.optimization_barrier(jnp.tanh(gates) * state)
            return state, (state, state.sum(-1))

        return lax.scan(step, xs[0], xs)

    for trips, rows, columns in ((32, 16, 128), (64, 32, 512), (32, 512, 256), (16, 2048, 1024)):
        for dtype, tag in TYPES:
            xs, w = Arg((trips, rows, columns), dtype), Arg((columns, columns), dtype, scale=0.05)
            name = f"scan_stacked_{tag}_{trips}x{rows}x{columns}"
            add(name, stacked, xs, w)
            gradient = jax.grad(lambda x, w: stacked(x, w)[1][0].sum().astype(F32))
            add(f"{name}_gradient", gradient, xs, w)


def _masked(add: Add) -> None:
    def masked(x: Any) -> Any:
        mask = jnp.tril(jnp.ones(x.shape[-2:], bool))
        wide = jnp.where(mask, x.astype(F32) * 0.1, -1e30)
        return jax.nn.softmax(wide).astype(x.dtype)

    def plain(x: Any) -> Any:
        return jax.nn.softmax(x.astype(F32) * 0.1).astype(x.dtype)

    for shape in sizes(
        "16x4x128x128 2x12x512x512 2x8x1024x1024 8x4x1024x1024 4x4x2048x2048 4x4x256x1024 "
        "64x8x1x1024"
    ):
        for dtype, tag in TYPES:
            x = Arg(shape, dtype)
            if shape[2] == shape[3]:
                add(f"masked_softmax_{tag}_{joined(shape)}", masked, x)
                gradient = jax.grad(lambda x, y: (masked(x) * y).astype(F32).sum())
                add(f"masked_softmax_gradient_{tag}_{joined(shape)}", gradient, x, x)
            add(f"scores_softmax_{tag}_{joined(shape)}", plain, x)
            gradient = jax.grad(lambda x, y: (plain(x) * y).astype(F32).sum())
            add(f"scores_softmax_gradient_{tag}_{joined(shape)}", gradient, x, x)


def _wide_rows(add: Add) -> None:
    def loss(x: Any, index: Any) -> Any:
        wide = x.astype(F32)
        chosen = jnp.take_along_axis(wide, index[:, None], 1)[:, 0]
        return (jax.nn.logsumexp(wide, 1) - chosen).mean()

    for rows, columns in ((512, 8192), (1024, 32000), (3072, 50304), (64, 128256)):
        for dtype, tag in TYPES:
            x, index = Arg((rows, columns), dtype), Arg((rows,), jnp.int32, below=columns)
            add(f"row_loss_{tag}_{rows}x{columns}", jax.value_and_grad(loss), x, index)
        add(f"sort_wide_{rows}x{columns}", lambda x: jnp.sort(x, 1), Arg((rows, columns)))
    for rows, columns in ((5, 1 << 18), (16, 1 << 16), (4096, 128), (1024, 4096)):
        x = Arg((rows, columns))
        add(f"sort_columns_{rows}x{columns}", lambda x: jnp.sort(x, 0), x)
    for bins, values in ((64, 1 << 18), (1024, 1 << 18), (1024, 1 << 22), (1 << 18, 1 << 20)):
        x, index = Arg((values,)), Arg((values,), jnp.int32, below=bins)
        add(f"count_{values}_in_{bins}", partial(jnp.bincount, length=bins), index)
        largest = partial(jax.ops.segment_max, num_segments=bins)
        add(f"segment_max_{values}_in_{bins}", largest, x, index)
    for count, width in ((1024, 3), (3000, 3), (2048, 16), (8192, 2)):
        x = Arg((count, width))

        def forces(x: Any) -> Any:
            difference = x[:, None] - x[None]
            return (difference * ((difference**2).sum(-1, keepdims=True) + 1) ** -1.5).sum(1)

        add(f"pairs_{count}x{width}", forces, x)
        add(
            f"nearest_{count}x{width}",
            lambda x: (((x[:, None] - x[None]) ** 2).sum(-1) + 1).min(1),
            x,
        )


def _gradients(add: Add) -> None:
    def normalised(x: Any, scale: Any) -> Any:
        return (_rms_norm(x, scale).astype(F32) ** 2).sum()

    def centred(x: Any, scale: Any) -> Any:
        return ((_layer_norm(x.astype(F32)) * scale).astype(x.dtype).astype(F32) ** 2).sum()

    for rows, columns in ((1024, 512), (2048, 1024), (8192, 768), (4096, 2048)):
        for dtype, tag in TYPES:
            args = Arg((rows, columns), dtype), Arg((columns,), dtype)
            for name, fn in (("rms_norm", normalised), ("layer_norm", centred)):
                gradient = jax.grad(fn, (0, 1))
                add(f"{name}_gradient_{tag}_{rows}x{columns}", gradient, *args)

    def activated(x: Any, b: Any) -> Any:
        return (jax.nn.gelu(x + b).astype(F32) ** 2).sum()

    for rows, columns in ((1024, 1024), (4096, 3072)):
        for dtype, tag in TYPES:
            args = Arg((rows, columns), dtype), Arg((columns,), dtype)
            add(f"gelu_gradient_{tag}_{rows}x{columns}", jax.grad(activated, (0, 1)), *args)
    for batch, size, inputs, outputs, stride in sizes(
        "64x32x24x24x1 64x16x48x48x1 64x8x96x192x2 4x96x48x96x1 128x32x3x16x1"
    ):
        name = f"{batch}x{size}_{inputs}to{outputs}_3by{stride}"
        for dtype, tag in TYPES:
            x, w = Arg((batch, size, size, inputs), dtype), Arg((3, 3, inputs, outputs), dtype)
            gradient = jax.grad(
                lambda x, w, s=stride: (_convolve(x, w, s).astype(F32) ** 2).sum(), (0, 1)
            )
            add(f"convolution_gradient_again_{tag}_{name}", gradient, x, w)
    for m, k, n in sizes(
        "32x32x32 64x512x2048 64x256x1024 128x128x512 2048x64x64 2048x2048x8192 3072x1024x1024 "
        "1024x16384x2048 512x1024x50304 32768x128x64"
    ):
        for dtype, tag in TYPES:
            x, w = Arg((m, k), dtype), Arg((k, n), dtype)
            add(f"product_again_{tag}_{m}x{k}x{n}", jnp.matmul, x, w)
            if m * n * k >= 1 << 27:
                gradient = jax.grad(lambda x, w: (x @ w).astype(F32).sum() ** 2, (0, 1))
                add(f"product_gradient_{tag}_{m}x{k}x{n}", gradient, x, w)
    complex_pair = Arg((256, 16, 32), jnp.complex64), Arg((256, 32, 32), jnp.complex64)
    add("product_c64", jnp.matmul, *complex_pair)
