"""The programs of a calibration: small ones, each of which isolates what one kind of kernel costs.

No program is a model or a part of one: a calibration describes the GPU and XLA's kernels.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from xlapipe.running.calibration.timed_program import Arg, TimedProgram

_F32, _BF16 = jnp.float32, jnp.bfloat16
_KIB = 1 << 10
_MIB = 1 << 20
Programs = Iterator[tuple[str, TimedProgram]]


def calibration_programs() -> dict[str, TimedProgram]:
    """Every program of a calibration of one GPU, by name."""
    parts = (
        _launches,
        _elementwise,
        _arithmetic,
        _data_movement,
        _reductions,
        _transposes,
        _gathers,
        _sorts,
        _factorisations,
        _products,
        _convolutions,
        _attention,
        _copies,
        _loops,
        _mixtures,
        _masked,
        _wide_rows,
        _gradients,
    )
    return dict(itertools.chain.from_iterable(part() for part in parts))


def _program(fn: Callable[..., Any], *args: Any, carried: bool = False, **options: Any) -> Any:
    return TimedProgram(fn, args, carried, options)


def _chain(length: int, x: Any) -> Any:
    """Kernels that XLA cannot fuse."""
    for _ in range(length):
        x = lax.optimization_barrier(x + 1.0)
    return x


def _launches() -> Programs:
    for length in (1, 2, 4, 8, 16, 64, 256):
        yield f"chain_{length}", _program(partial(_chain, length), Arg((_KIB,)))
        yield (
            f"chain_{length}_no_graph",
            _program(partial(_chain, length), Arg((_KIB,)), xla_gpu_enable_command_buffer=""),
        )
    for size in (1 * _MIB, 16 * _MIB):
        yield f"chain_16_{size}", _program(partial(_chain, 16), Arg((size,)))

    def independent(*arrays: Any) -> Any:
        return [lax.optimization_barrier(jnp.sin(array)) @ array for array in arrays]

    yield "independent_products", _program(independent, *[Arg((64, 64))] * 8)


def _cold(count: int, elements: int, xs: Any, flushing: Any) -> Any:
    """Reads arrays that are not in the L2 cache, since other kernels have replaced them."""
    results = []
    for index in range(count):
        flushing = lax.optimization_barrier(flushing * 1.5)
        x, flushing = lax.optimization_barrier((xs[index], flushing))
        results.append(lax.optimization_barrier(x + 1.0))
    return results, flushing


def _elementwise() -> Programs:
    for power in (8, 12, 14, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27):
        n = 1 << power
        yield f"add_f32_{n}", _program(lambda x: x + 1, Arg((n,)))
        if power >= 16 and power % 2 == 0:
            yield f"add_bf16_{n}", _program(lambda x: x + 1, Arg((n,), _BF16))
            yield f"add2_f32_{n}", _program(lambda x, y: x + y, Arg((n,)), Arg((n,)))
            yield f"add5_f32_{n}", _program(lambda *x: sum(x), *[Arg((n,))] * 5)
            yield f"iota_f32_{n}", _program(lambda n=n: lax.iota(_F32, n) * 0.5)
            yield f"read_bf16_write_f32_{n}", _program(lambda x: x.astype(_F32), Arg((n,), _BF16))
            yield f"read_f32_write_bf16_{n}", _program(lambda x: x.astype(_BF16), Arg((n,)))
            yield f"adam_{n}", _program(_adam, *[Arg((n,))] * 4)
            yield f"int8_{n}", _program(lambda x: x + jnp.int8(1), Arg((n,), jnp.int8, below=100))
        if power >= 18 and power <= 24 and power % 2 == 0:
            flushing = Arg((32 * _MIB,))
            yield f"cold_{n}", _program(partial(_cold, 3, n), [Arg((n,))] * 3, flushing)


def _adam(p: Any, m: Any, v: Any, g: Any) -> Any:
    m = 0.9 * m + 0.1 * g
    v = 0.99 * v + 0.01 * g * g
    return p - 0.001 * m / (jnp.sqrt(v) + 1e-8), m, v


def _arithmetic() -> Programs:
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
        for dtype, tag in ((_F32, "f32"), (_BF16, "bf16")):
            yield f"{name}_{tag}", _program(fn, Arg((1 << 24,), dtype))
    for name in ("exp", "sin", "tanh", "divide", "erf", "pow", "log"):
        repeated = partial(_repeat, functions[name], 16)
        yield f"{name}_16_times", _program(repeated, Arg((1 << 24,)))
    n = 1 << 24
    integers: dict[str, Callable[[Any], Any]] = {
        "multiply": lambda x: _repeat(lambda y: y * 3 + x, 16, x),
        "divide": lambda x: 1234567 // (x + 1),
        "remainder": lambda x: x % 12345,
        "shift": lambda x: _repeat(lambda y: (y << 3) ^ (y >> 5), 16, x),
    }
    for name, fn in integers.items():
        yield f"s32_{name}", _program(fn, Arg((n,), jnp.int32, below=1 << 20))
    for count in (1 << 14, 1 << 18, 1 << 22, 1 << 25):
        key = Arg((2,), jnp.uint32, below=1 << 30)
        yield f"random_bits_{count}", _program(lambda k, c=count: jax.random.bits(k, (c,)), key)
        yield f"random_normal_{count}", _program(lambda k, c=count: jax.random.normal(k, (c,)), key)
    yield (
        "dropout",
        _program(
            lambda k, x: jnp.where(jax.random.bernoulli(k, 0.9, x.shape), x, 0),
            Arg((2,), jnp.uint32, below=1 << 30),
            Arg((1 << 24,), _BF16),
        ),
    )


def _repeat(fn: Callable[[Any], Any], times: int, x: Any) -> Any:
    for _ in range(times):
        x = fn(x)
    return x


def _data_movement() -> Programs:
    for n in (1 << 16, 1 << 20, 1 << 24, 1 << 26):
        rows = n >> 10
        x = Arg((rows, 1024))
        yield f"broadcast_row_{n}", _program(lambda x, v: x * v, x, Arg((1024,)))
        yield f"broadcast_column_{n}", _program(lambda x, v: x * v, x, Arg((rows, 1)))
        yield f"write_broadcast_{n}", _program(lambda v, r=rows: jnp.tile(v, (r, 1)), Arg((1024,)))
        yield f"concatenate_{n}", _program(lambda x, y: jnp.concatenate([x, y], 1), x, x)
        yield f"pad_{n}", _program(lambda x: jnp.pad(x, ((1, 1), (8, 8))), x)
        yield f"slice_{n}", _program(lambda x: x[:, 128:640] * 1.5, x)
        yield f"stride_{n}", _program(lambda x: x[:, ::4] * 1.5, x)
        yield f"reverse_{n}", _program(lambda x: x[:, ::-1], x)
        yield f"roll_{n}", _program(lambda x: jnp.roll(x, 5, 1) + jnp.roll(x, -5, 0), x)
        yield f"add_transposed_{n}", _program(lambda x: x.reshape(1024, -1) + x.T, x)
        yield (
            f"update_slice_{n}",
            _program(
                lambda x, u, i: (lax.dynamic_update_slice(x, u, (i, 0)), None),
                x,
                Arg((1, 1024)),
                Arg((), jnp.int32),
                carried=True,
            ),
        )
        yield (
            f"dynamic_slice_{n}",
            _program(
                lambda x, i: lax.dynamic_slice(x, (i, 0), (x.shape[0] // 2, 1024)) * 2,
                x,
                Arg((), jnp.int32),
            ),
        )
    for channels in (3, 16, 64):
        x = Arg((8, 224, 224, channels), _BF16)
        yield f"nhwc_to_nchw_{channels}", _program(lambda x: jnp.transpose(x, (0, 3, 1, 2)), x)
    for n in (256, 2048):
        x = Arg((n, n))
        yield f"stencil_{n}", _program(_stencil, x)
        yield f"max_pool_{n}", _program(partial(_pool, -jnp.inf, lax.max), x)
        yield f"mean_pool_{n}", _program(partial(_pool, 0.0, lax.add), x)
        yield f"upsample_{n}", _program(lambda x: jnp.repeat(jnp.repeat(x, 2, 0), 2, 1), x)
    image = Arg((32, 112, 112, 64), _BF16)

    def pooled(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")

    yield "max_pool_nhwc", _program(pooled, image)
    yield "max_pool_nhwc_gradient", _program(jax.grad(lambda x: pooled(x).sum()), image)


def _pool(initial: float, combine: Any, x: Any) -> Any:
    return lax.reduce_window(x, initial, combine, (3, 3), (2, 2), "SAME")


def _stencil(x: Any) -> Any:
    neighbours = [jnp.roll(x, shift, axis) for shift in (1, -1) for axis in (0, 1)]
    return x + 0.1 * (sum(neighbours) - 4 * x)


def _reductions() -> Programs:
    shape: tuple[int, ...]
    rows_of = (1, 8, 64, 512, 4096, 32768)
    columns_of = (16, 64, 256, 1024, 4096, 32768, 1 << 20)
    for rows, columns in itertools.product(rows_of, columns_of):
        if not 1 << 12 <= rows * columns <= 1 << 26:
            continue
        shape = (rows, columns)
        yield f"row_sum_{rows}x{columns}", _program(lambda x: x.sum(1), Arg(shape))
        if rows > 1:
            yield f"column_sum_{rows}x{columns}", _program(lambda x: x.sum(0), Arg(shape))
        if columns in (256, 4096, 32768) and rows in (8, 512, 32768):
            bf = Arg(shape, _BF16)
            yield f"row_sum_bf16_{rows}x{columns}", _program(_sum_f32(1), bf)
            yield f"column_sum_bf16_{rows}x{columns}", _program(_sum_f32(0), bf)
            yield f"softmax_{rows}x{columns}", _program(jax.nn.softmax, Arg(shape))
            yield f"softmax_bf16_{rows}x{columns}", _program(_softmax_bf16, bf)
            yield f"rms_norm_{rows}x{columns}", _program(_rms_norm, bf, Arg((columns,), _BF16))
            yield f"layer_norm_{rows}x{columns}", _program(_layer_norm, Arg(shape))
            yield f"argmax_{rows}x{columns}", _program(lambda x: jnp.argmax(x, 1), Arg(shape))
    for shape in ((32, 1024, 256), (256, 64, 1024), (8, 4096, 64), (4096, 16, 64)):
        yield f"middle_sum_{_name(shape)}", _program(lambda x: x.sum(1), Arg(shape))
        yield f"outer_sum_{_name(shape)}", _program(lambda x: x.sum((0, 2)), Arg(shape))
    for shape in ((32, 56, 56, 64), (32, 14, 14, 512), (8, 112, 112, 32)):
        yield f"batch_norm_{_name(shape)}", _program(_batch_norm, Arg(shape, _BF16))
    for n in (1 << 14, 1 << 18, 1 << 22, 1 << 26):
        yield f"norm_{n}", _program(lambda x: jnp.sqrt((x * x).sum()), Arg((n,)))
        yield f"minmax_{n}", _program(lambda x: (x.min(), x.max(), x.mean()), Arg((n,)))
    for m, k in ((4096, 4096), (1024, 4096), (32768, 1024), (256, 512)):
        w, x = Arg((k, m), _BF16), Arg((1, k), _BF16)
        yield f"one_row_{m}x{k}", _program(lambda x, w: x @ w, x, w)
        transposed = Arg((m, k), _BF16)
        yield f"one_row_transposed_{m}x{k}", _program(lambda x, w: x @ w.T, x, transposed)
        yield f"one_row_f32_{m}x{k}", _program(lambda x, w: x @ w, Arg((1, k)), Arg((k, m)))


def _sum_f32(axis: int) -> Callable[[Any], Any]:
    return lambda x: x.astype(_F32).sum(axis)


def _softmax_bf16(x: Any) -> Any:
    return jax.nn.softmax(x.astype(_F32)).astype(_BF16)


def _rms_norm(x: Any, scale: Any) -> Any:
    wide = x.astype(_F32)
    return (wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)).astype(_BF16) * scale


def _layer_norm(x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-6)


def _batch_norm(x: Any) -> Any:
    wide = x.astype(_F32)
    mean, square = wide.mean((0, 1, 2)), (wide * wide).mean((0, 1, 2))
    return ((wide - mean) * lax.rsqrt(square - mean * mean + 1e-5)).astype(_BF16)


def _name(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _transposes() -> Programs:
    for n in (128, 512, 1024, 2048, 4096, 8192):
        for dtype, tag in ((_F32, "f32"), (_BF16, "bf16")):
            yield f"transpose_{tag}_{n}", _program(lambda x: x.T + 0, Arg((n, n), dtype))
    for shape, order in (
        ((8, 1024, 16, 64), (0, 2, 1, 3)),
        ((8, 1024, 16, 64), (0, 2, 3, 1)),
        ((2, 256, 8, 64), (0, 2, 1, 3)),
        ((64, 512, 512), (0, 2, 1)),
        ((512, 512, 64), (1, 0, 2)),
        ((256, 256, 4), (2, 0, 1)),
    ):
        name = f"transpose_{_name(shape)}_{_name(order)}"
        yield name, _program(lambda x, o=order: jnp.transpose(x, o) + 0, Arg(shape, _BF16))


def _gathers() -> Programs:
    for width, count, table in itertools.product(
        (1, 16, 64, 1024), (1 << 10, 1 << 15, 1 << 20), (1 << 20, 1 << 26)
    ):
        if width * count > 1 << 26:
            continue
        rows = table // width
        x, index = Arg((rows, width)), Arg((count,), jnp.int32, below=rows)
        name = f"{width}x{count}_of_{table}"
        yield f"gather_{name}", _program(lambda x, i: x[i] * 2, x, index)
        if table == 1 << 20 or count == 1 << 20:
            updates = Arg((count, width))
            yield (
                f"scatter_add_{name}",
                _program(lambda x, i, u: x.at[i].add(u), x, index, updates),
            )
    for rows, columns in ((4096, 1024), (64, 32768)):
        x, index = Arg((rows, columns)), Arg((rows, 1), jnp.int32, below=columns)
        yield (
            f"take_along_{rows}x{columns}",
            _program(lambda x, i: jnp.take_along_axis(x, i, 1), x, index),
        )
    for segments, width in ((1024, 1), (1 << 16, 1), (1024, 64), (1 << 16, 64)):
        index = Arg((1 << 18,), jnp.int32, below=segments)
        yield (
            f"segment_sum_{segments}x{width}",
            _program(
                lambda x, i, s=segments: jax.ops.segment_sum(x, i, s),
                Arg((1 << 18, width)),
                index,
            ),
        )
        yield (
            f"scatter_set_{segments}x{width}",
            _program(
                lambda x, i, s=segments: jnp.zeros((s, x.shape[1])).at[i].set(x),
                Arg((1 << 18, width)),
                index,
            ),
        )
    x, index = Arg((50304, 768), _BF16), Arg((8, 1024), jnp.int32, below=50304)
    yield "embedding_bf16", _program(lambda x, i: x[i], x, index)
    yield (
        "embedding_bf16_gradient",
        _program(lambda g, i: jnp.zeros((50304, 768), _BF16).at[i].add(g), *_pair(), index),
    )


def _pair() -> tuple[Arg]:
    return (Arg((8, 1024, 768), _BF16),)


def _sorts() -> Programs:
    for power in (10, 14, 18, 20, 22, 24):
        n = 1 << power
        yield f"sort_f32_{n}", _program(jnp.sort, Arg((n,)))
        if power % 4 == 2 or power == 24:
            yield f"sort_bf16_{n}", _program(jnp.sort, Arg((n,), _BF16))
            yield f"sort_s32_{n}", _program(jnp.sort, Arg((n,), jnp.int32, below=1 << 30))
            yield f"argsort_f32_{n}", _program(jnp.argsort, Arg((n,)))
            yield (
                f"sort_stable_three_{n}",
                _program(lambda *x: lax.sort(x, num_keys=2), *[Arg((n,))] * 3),
            )
        if power >= 12:
            yield f"cumsum_{n}", _program(jnp.cumsum, Arg((n,)))
            yield f"cummax_{n}", _program(lax.cummax, Arg((n,)))
            yield f"cumprod_{n}", _program(jnp.cumprod, Arg((n,)))
    for rows, columns in ((8, 1024), (1024, 1024), (64, 32768), (8192, 128), (4096, 4096)):
        x = Arg((rows, columns))
        yield f"sort_rows_{rows}x{columns}", _program(lambda x: jnp.sort(x, 1), x)
        yield f"argsort_rows_{rows}x{columns}", _program(lambda x: jnp.argsort(x, 1), x)
        yield f"cumsum_rows_{rows}x{columns}", _program(lambda x: jnp.cumsum(x, 1), x)
        yield f"cumsum_columns_{rows}x{columns}", _program(lambda x: jnp.cumsum(x, 0), x)
        for k in (1, 8, 64):
            yield (
                f"top_{k}_{rows}x{columns}",
                _program(lambda x, k=k: lax.top_k(x, k), x),
            )
    for n in (1 << 16, 1 << 20):
        yield f"top_64_of_{n}", _program(lambda x: lax.top_k(x, 64), Arg((n,)))
        yield (
            f"scan_linear_{n}",
            _program(
                lambda a, b: lax.associative_scan(
                    lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), (a, b)
                ),
                Arg((n,), scale=0.1),
                Arg((n,)),
            ),
        )
    for length, width in ((512, 64), (1024, 1024), (4096, 256)):
        yield (
            f"scan_linear_{length}x{width}",
            _program(
                lambda a, b: lax.associative_scan(
                    lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), (a, b)
                ),
                Arg((length, width), scale=0.1),
                Arg((length, width)),
            ),
        )


def _factorisations() -> Programs:
    for n in (32, 64, 256, 512, 1024, 4096):
        matrix = Arg((n, n), identity=4.0 * n, scale=0.01)
        yield f"cholesky_{n}", _program(_cholesky, matrix)
        for columns in (1, 64, n):
            yield (
                f"solve_triangular_{n}x{columns}",
                _program(_solve, matrix, Arg((n, columns))),
            )
        if n <= 1024:
            yield f"lu_{n}", _program(lambda a: lax.linalg.lu(a)[0], matrix)
            yield f"qr_{n}", _program(lambda a: jnp.linalg.qr(a)[0], matrix)
        if n in (64, 256):
            yield f"eigh_{n}", _program(lambda a: jnp.linalg.eigh(a)[0], matrix)
            yield f"svd_{n}", _program(lambda a: jnp.linalg.svd(a)[1], matrix)
    for batch, n in ((16, 32), (256, 16), (256, 64), (64, 128), (1024, 32), (16, 256)):
        matrix = Arg((batch, n, n), identity=4.0 * n, scale=0.01)
        yield f"cholesky_{batch}x{n}", _program(_cholesky, matrix)
        yield f"solve_triangular_{batch}x{n}x1", _program(_solve, matrix, Arg((batch, n, 1)))
        yield f"solve_triangular_{batch}x{n}x{n}", _program(_solve, matrix, Arg((batch, n, n)))
        yield f"lu_{batch}x{n}", _program(lambda a: lax.linalg.lu(a)[0], matrix)
        yield f"qr_{batch}x{n}", _program(lambda a: jnp.linalg.qr(a)[0], matrix)
    for n, total in itertools.product((64, 1000, 1024, 4096, 65536), (1 << 16, 1 << 20, 1 << 24)):
        if n <= total:
            x = Arg((total // n, n))
            yield f"fft_{total // n}x{n}", _program(lambda x: jnp.fft.fft(x + 0j), x)
            yield f"rfft_{total // n}x{n}", _program(jnp.fft.rfft, x)
            yield f"irfft_{total // n}x{n}", _program(lambda x: jnp.fft.irfft(x + 0j), x)
    for batch, n in ((1, 256), (16, 256), (64, 512), (1, 2048), (256, 64)):
        yield f"fft2_{batch}x{n}", _program(lambda x: jnp.fft.fft2(x + 0j), Arg((batch, n, n)))
        yield f"rfft2_{batch}x{n}", _program(jnp.fft.rfft2, Arg((batch, n, n)))
    yield "fft3_64", _program(lambda x: jnp.fft.fftn(x + 0j), Arg((64, 64, 64)))


def _cholesky(a: Any) -> Any:
    return lax.linalg.cholesky(a, symmetrize_input=False)


def _solve(a: Any, b: Any) -> Any:
    return lax.linalg.triangular_solve(a, b, left_side=True, lower=True)


def _products() -> Programs:
    for m, k, n in (
        (8, 1024, 1024),
        (8, 4096, 4096),
        (16, 768, 3072),
        (32, 8192, 1024),
        (64, 1024, 4096),
        (128, 512, 512),
        (128, 4096, 1024),
        (256, 256, 256),
        (256, 1024, 1024),
        (512, 512, 2048),
        (512, 4096, 512),
        (1000, 1000, 1000),
        (1024, 1024, 1024),
        (1024, 64, 1024),
        (1024, 4096, 4096),
        (2048, 768, 768),
        (2048, 768, 3072),
        (2048, 3072, 768),
        (2048, 2048, 2048),
        (4096, 1024, 128),
        (4096, 1024, 1024),
        (4096, 1024, 32000),
        (4096, 4096, 4096),
        (8192, 64, 64),
        (8192, 512, 512),
        (8192, 1024, 4096),
        (8192, 768, 2304),
        (8192, 8192, 8192),
        (16384, 2048, 2048),
        (65536, 128, 128),
        (65536, 256, 1024),
        (64, 65536, 64),
        (768, 8192, 3072),
        (128, 65536, 256),
    ):
        name = f"{m}x{k}x{n}"
        x, w = Arg((m, k), _BF16), Arg((k, n), _BF16)
        yield f"product_bf16_{name}", _program(jnp.matmul, x, w)
        if m * n * k <= 1 << 36 and (m + k + n) % 3 != 0:
            yield f"product_f32_{name}", _program(jnp.matmul, Arg((m, k)), Arg((k, n)))
    for m, k, n in (
        (1024, 1024, 1024),
        (768, 8192, 768),
        (3072, 4096, 768),
        (256, 16384, 256),
        (4096, 2048, 4096),
    ):
        name = f"{m}x{k}x{n}"
        yield (
            f"weight_gradient_{name}",
            _program(lambda x, y: x.T @ y, Arg((k, m), _BF16), Arg((k, n), _BF16)),
        )
        yield (
            f"input_gradient_{name}",
            _program(lambda x, y: x @ y.T, Arg((m, k), _BF16), Arg((n, k), _BF16)),
        )
        yield (
            f"product_gelu_{name}",
            _program(
                lambda x, y, b: jax.nn.gelu(x @ y + b),
                Arg((m, k), _BF16),
                Arg((k, n), _BF16),
                Arg((n,), _BF16),
            ),
        )
        yield (
            f"product_bf16_to_f32_{name}",
            _program(
                lambda x, y: jnp.matmul(x, y, preferred_element_type=_F32),
                Arg((m, k), _BF16),
                Arg((k, n), _BF16),
            ),
        )
        yield (
            f"product_f16_{name}",
            _program(jnp.matmul, Arg((m, k), jnp.float16), Arg((k, n), jnp.float16)),
        )
    exact = partial(jnp.matmul, precision="highest")
    for n in (256, 1024, 4096):
        yield f"product_exact_{n}", _program(exact, Arg((n, n)), Arg((n, n)))
    for m, k, n in ((512, 512, 512), (4096, 256, 1024), (128, 8192, 128)):
        yield f"product_exact_{m}x{k}x{n}", _program(exact, Arg((m, k)), Arg((k, n)))
    for n in (1024, 4096):
        yield (
            f"product_s8_{n}",
            _program(
                lambda x, y: jnp.matmul(x, y, preferred_element_type=jnp.int32),
                *[Arg((n, n), jnp.int8, below=100)] * 2,
            ),
        )
    for batch, m, k, n in (
        (8, 128, 64, 128),
        (16, 64, 64, 64),
        (64, 512, 64, 512),
        (64, 512, 512, 64),
        (128, 1024, 64, 1024),
        (128, 1024, 1024, 64),
        (32, 256, 128, 256),
        (512, 64, 32, 64),
        (16, 2048, 128, 2048),
        (256, 1, 64, 1024),
        (8, 256, 1024, 1024),
        (1024, 16, 16, 16),
    ):
        name = f"{batch}x{m}x{k}x{n}"
        for dtype, tag in ((_BF16, "bf16"), (_F32, "f32")):
            args = Arg((batch, m, k), dtype), Arg((batch, k, n), dtype)
            yield f"batched_product_{tag}_{name}", _program(jnp.matmul, *args)


def _convolve(x: Any, w: Any, stride: int = 1, groups: int = 1) -> Any:
    return lax.conv_general_dilated(
        x,
        w,
        (stride,) * (x.ndim - 2),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC") if x.ndim == 4 else ("NWC", "WIO", "NWC"),
        feature_group_count=groups,
    )


def _convolutions() -> Programs:
    for batch, size, inputs, outputs, window, stride in (
        (8, 224, 3, 64, 7, 2),
        (32, 32, 3, 32, 3, 1),
        (32, 32, 64, 64, 3, 1),
        (8, 56, 64, 64, 1, 1),
        (32, 56, 64, 64, 3, 1),
        (32, 56, 64, 256, 1, 1),
        (32, 28, 128, 128, 3, 1),
        (32, 28, 256, 512, 1, 2),
        (8, 14, 256, 256, 3, 1),
        (64, 14, 256, 256, 3, 1),
        (64, 7, 512, 512, 3, 1),
        (4, 128, 32, 32, 3, 1),
        (1, 512, 16, 16, 3, 1),
        (128, 16, 32, 64, 3, 2),
    ):
        name = f"{batch}x{size}_{inputs}to{outputs}_{window}by{stride}"
        for dtype, tag in ((_BF16, "bf16"), (_F32, "f32")):
            if tag == "f32" and batch * size > 2000:
                continue
            x = Arg((batch, size, size, inputs), dtype)
            w = Arg((window, window, inputs, outputs), dtype)
            step = partial(_convolve, stride=stride)
            yield f"convolution_{tag}_{name}", _program(step, x, w)
            if size in (14, 28, 32, 56) and tag == "bf16":
                gradient = jax.grad(lambda x, w, s=step: (s(x, w) ** 2).sum(), (0, 1))
                yield f"convolution_gradient_{tag}_{name}", _program(gradient, x, w)
    for channels in (32, 256):
        x, w = Arg((16, 28, 28, channels), _BF16), Arg((3, 3, 1, channels), _BF16)
        yield f"depthwise_{channels}", _program(partial(_convolve, groups=channels), x, w)
    for length, channels, window in ((4096, 64, 3), (1024, 256, 5)):
        x, w = Arg((16, length, channels), _BF16), Arg((window, channels, channels), _BF16)
        yield f"convolution_1d_{length}x{channels}", _program(_convolve, x, w)


def _attention() -> Programs:
    attend = partial(jax.nn.dot_product_attention, implementation="cudnn")
    for batch, length, heads, width in (
        (1, 512, 8, 64),
        (4, 1024, 8, 64),
        (8, 1024, 16, 64),
        (2, 4096, 16, 128),
        (16, 512, 12, 64),
    ):
        q = Arg((batch, length, heads, width), _BF16)
        for causal in (False, True):
            step = partial(attend, is_causal=causal)
            name = f"{batch}x{length}x{heads}x{width}" + ("_causal" if causal else "")
            yield f"attention_{name}", _program(step, q, q, q)
            gradient = jax.grad(lambda *x, s=step: s(*x).astype(_F32).sum(), (0, 1, 2))
            yield f"attention_gradient_{name}", _program(gradient, q, q, q)


def _copies() -> Programs:
    for power in (10, 14, 18, 20, 22, 24, 26):
        n = 1 << power
        yield f"copy_{n}", _program(jnp.copy, Arg((n,)))
        yield f"zeros_{n}", _program(lambda n=n: jnp.zeros((n,)))
        yield f"ones_{n}", _program(lambda n=n: jnp.ones((n,)))
        if power >= 14:
            yield (
                f"to_host_{n}",
                _program(lambda x: jax.device_put(x, jax.memory.Space.Host), Arg((n,))),
            )
            yield (
                f"there_and_back_{n}",
                _program(
                    lambda x: (
                        jax.device_put(
                            jax.device_put(x, jax.memory.Space.Host), jax.memory.Space.Device
                        )
                        * 2
                    ),
                    Arg((n,)),
                ),
            )


def _loops() -> Programs:
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
        yield f"while_100_of_{kernels}", _program(partial(until, 100.0, kernels), Arg((_KIB,)))
        yield f"scan_100_of_{kernels}", _program(partial(scanned, 100, kernels), Arg((_KIB,)))
        yield (
            f"scan_100_of_{kernels}_no_graph",
            _program(
                partial(scanned, 100, kernels), Arg((_KIB,)), xla_gpu_enable_command_buffer=""
            ),
        )
    for trips in (10, 100, 1000):
        yield f"loop_of_products_{trips}", _program(partial(products, trips), Arg((64, 64)))
    yield f"scan_10_of_3_of_{_MIB}", _program(partial(scanned, 10, 3), Arg((_MIB,)))
    yield (
        "conditional",
        _program(
            lambda x: lax.cond(x[0] > 0, partial(_chain, 4), partial(_chain, 2), x), Arg((_KIB,))
        ),
    )
    yield (
        "scan_rows",
        _program(
            lambda x: lax.scan(lambda c, row: (c + row, c.sum()), jnp.zeros(1024), x),
            Arg((256, 1024)),
        ),
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
        lambda x: (x.astype(_F32) * 3).astype(_BF16).astype(x.dtype),
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


def _mixtures() -> Programs:
    for rows, columns in (
        (32, 128),
        (256, 64),
        (128, 512),
        (1024, 256),
        (512, 2048),
        (4096, 1024),
        (16384, 512),
    ):
        for dtype, tag in ((_F32, "f32"), (_BF16, "bf16")):
            index = Arg((rows,), jnp.int32, below=rows)
            weight = Arg((columns, columns), dtype, scale=0.05)
            yield (
                f"different_{tag}_{rows}x{columns}",
                _program(_different_kernels, Arg((rows, columns), dtype), index, weight),
            )

    def stacked(xs: Any, w: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            gates = x @ w + state
            state = lax.optimization_barrier(jnp.tanh(gates) * state)
            return state, (state, state.sum(-1))

        return lax.scan(step, xs[0], xs)

    for trips, rows, columns in ((32, 16, 128), (64, 32, 512), (32, 512, 256), (16, 2048, 1024)):
        for dtype, tag in ((_F32, "f32"), (_BF16, "bf16")):
            xs, w = Arg((trips, rows, columns), dtype), Arg((columns, columns), dtype, scale=0.05)
            name = f"scan_stacked_{tag}_{trips}x{rows}x{columns}"
            yield name, _program(stacked, xs, w)
            yield (
                f"{name}_gradient",
                _program(jax.grad(lambda x, w: stacked(x, w)[1][0].sum().astype(_F32)), xs, w),
            )


def _masked() -> Programs:
    def masked(x: Any) -> Any:
        mask = jnp.tril(jnp.ones(x.shape[-2:], bool))
        wide = jnp.where(mask, x.astype(_F32) * 0.1, -1e30)
        return jax.nn.softmax(wide).astype(x.dtype)

    def plain(x: Any) -> Any:
        return jax.nn.softmax(x.astype(_F32) * 0.1).astype(x.dtype)

    for shape in (
        (16, 4, 128, 128),
        (2, 12, 512, 512),
        (2, 8, 1024, 1024),
        (8, 4, 1024, 1024),
        (4, 4, 2048, 2048),
        (4, 4, 256, 1024),
        (64, 8, 1, 1024),
    ):
        for dtype, tag in ((_F32, "f32"), (_BF16, "bf16")):
            x = Arg(shape, dtype)
            if shape[2] == shape[3]:
                yield f"masked_softmax_{tag}_{_name(shape)}", _program(masked, x)
                gradient = jax.grad(lambda x, y: (masked(x) * y).astype(_F32).sum())
                yield f"masked_softmax_gradient_{tag}_{_name(shape)}", _program(gradient, x, x)
            yield f"scores_softmax_{tag}_{_name(shape)}", _program(plain, x)
            gradient = jax.grad(lambda x, y: (plain(x) * y).astype(_F32).sum())
            yield f"scores_softmax_gradient_{tag}_{_name(shape)}", _program(gradient, x, x)


def _wide_rows() -> Programs:
    def loss(x: Any, index: Any) -> Any:
        wide = x.astype(_F32)
        chosen = jnp.take_along_axis(wide, index[:, None], 1)[:, 0]
        return (jax.nn.logsumexp(wide, 1) - chosen).mean()

    for rows, columns in ((512, 8192), (1024, 32000), (3072, 50304), (64, 128256)):
        for dtype, tag in ((_F32, "f32"), (_BF16, "bf16")):
            x, index = Arg((rows, columns), dtype), Arg((rows,), jnp.int32, below=columns)
            yield f"row_loss_{tag}_{rows}x{columns}", _program(jax.value_and_grad(loss), x, index)
        yield (
            f"sort_wide_{rows}x{columns}",
            _program(lambda x: jnp.sort(x, 1), Arg((rows, columns))),
        )
    for rows, columns in ((5, 1 << 18), (16, 1 << 16), (4096, 128), (1024, 4096)):
        x = Arg((rows, columns))
        yield f"sort_columns_{rows}x{columns}", _program(lambda x: jnp.sort(x, 0), x)
    for bins, values in ((64, 1 << 18), (1024, 1 << 18), (1024, 1 << 22), (1 << 18, 1 << 20)):
        index = Arg((values,), jnp.int32, below=bins)
        yield f"count_{values}_in_{bins}", _program(partial(jnp.bincount, length=bins), index)
        yield (
            f"segment_max_{values}_in_{bins}",
            _program(lambda x, i, n=bins: jax.ops.segment_max(x, i, n), Arg((values,)), index),
        )
    for count, width in ((1024, 3), (3000, 3), (2048, 16), (8192, 2)):
        x = Arg((count, width))

        def forces(x: Any) -> Any:
            difference = x[:, None] - x[None]
            return (difference * ((difference**2).sum(-1, keepdims=True) + 1) ** -1.5).sum(1)

        yield f"pairs_{count}x{width}", _program(forces, x)
        yield (
            f"nearest_{count}x{width}",
            _program(lambda x: (((x[:, None] - x[None]) ** 2).sum(-1) + 1).min(1), x),
        )


def _gradients() -> Programs:
    def normalised(x: Any, scale: Any) -> Any:
        return (_rms_norm(x, scale).astype(_F32) ** 2).sum()

    def centred(x: Any, scale: Any) -> Any:
        return ((_layer_norm(x.astype(_F32)) * scale).astype(x.dtype).astype(_F32) ** 2).sum()

    for rows, columns in ((1024, 512), (2048, 1024), (8192, 768), (4096, 2048)):
        for dtype, tag in ((_F32, "f32"), (_BF16, "bf16")):
            args = Arg((rows, columns), dtype), Arg((columns,), dtype)
            for name, fn in (("rms_norm", normalised), ("layer_norm", centred)):
                gradient = jax.grad(fn, (0, 1))
                yield f"{name}_gradient_{tag}_{rows}x{columns}", _program(gradient, *args)

    def activated(x: Any, b: Any) -> Any:
        return (jax.nn.gelu(x + b).astype(_F32) ** 2).sum()

    for rows, columns in ((1024, 1024), (4096, 3072)):
        for dtype, tag in ((_F32, "f32"), (_BF16, "bf16")):
            args = Arg((rows, columns), dtype), Arg((columns,), dtype)
            yield (
                f"gelu_gradient_{tag}_{rows}x{columns}",
                _program(jax.grad(activated, (0, 1)), *args),
            )
    for batch, size, inputs, outputs, stride in (
        (64, 32, 24, 24, 1),
        (64, 16, 48, 48, 1),
        (64, 8, 96, 192, 2),
        (4, 96, 48, 96, 1),
        (128, 32, 3, 16, 1),
    ):
        name = f"{batch}x{size}_{inputs}to{outputs}_3by{stride}"
        for dtype, tag in ((_F32, "f32"), (_BF16, "bf16")):
            x, w = Arg((batch, size, size, inputs), dtype), Arg((3, 3, inputs, outputs), dtype)
            gradient = jax.grad(
                lambda x, w, s=stride: (_convolve(x, w, s).astype(_F32) ** 2).sum(), (0, 1)
            )
            yield f"convolution_gradient_again_{tag}_{name}", _program(gradient, x, w)
    for m, k, n in (
        (32, 32, 32),
        (64, 512, 2048),
        (64, 256, 1024),
        (128, 128, 512),
        (2048, 64, 64),
        (2048, 2048, 8192),
        (3072, 1024, 1024),
        (1024, 16384, 2048),
        (512, 1024, 50304),
        (32768, 128, 64),
    ):
        for dtype, tag in ((_F32, "f32"), (_BF16, "bf16")):
            x, w = Arg((m, k), dtype), Arg((k, n), dtype)
            yield f"product_again_{tag}_{m}x{k}x{n}", _program(jnp.matmul, x, w)
            if m * n * k >= 1 << 27:
                gradient = jax.grad(lambda x, w: (x @ w).astype(_F32).sum() ** 2, (0, 1))
                yield f"product_gradient_{tag}_{m}x{k}x{n}", _program(gradient, x, w)
    complex_pair = Arg((256, 16, 32), jnp.complex64), Arg((256, 32, 32), jnp.complex64)
    yield "product_c64", _program(jnp.matmul, *complex_pair)
