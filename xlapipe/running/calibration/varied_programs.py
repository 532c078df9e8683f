"""More programs of a calibration: kernels that XLA fuses from several operations, in many forms.

They cover what single operations do not: reductions of computed values, products with what is
fused into them, associative scans, stencils, contended scatters, factorisations of other matrices
than squares.
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
_TYPES = ((_F32, "f32"), (_BF16, "bf16"))
Programs = Iterator[tuple[str, TimedProgram]]


def varied_programs() -> dict[str, TimedProgram]:
    """Every program of this module, by name."""
    parts = (
        *(_computed_reductions, _pairwise_reductions, _narrow_reductions, _statistics),
        *(_fused_products, _batched_products, _small_products, _scans, _stencils, _joined),
        *(_fused_transposes, _contended, _dispatched, _sorted, _spectra, _tall, _batches),
        *(_more_convolutions, _broadcasts, _small_loops, _samples),
    )
    return dict(itertools.chain.from_iterable(part() for part in parts))


def _program(fn: Callable[..., Any], *args: Any) -> TimedProgram:
    return TimedProgram(fn, args)


def _name(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _computed_reductions() -> Programs:
    """Sums along rows and columns of values that the same kernel computes."""
    values: dict[str, Callable[[Any, Any], Any]] = {
        "product": lambda x, y: x * y,
        "exp": lambda x, y: jnp.exp(x - y),
        "where": lambda x, y: jnp.where(x > y, x, y * 0.5),
    }
    shapes = ((128, 300), (512, 4096), (4096, 768), (65536, 64))
    for (name, value), shape, (dtype, tag) in itertools.product(values.items(), shapes, _TYPES):
        if (len(name) + shape[0]) % 2 and tag == "bf16":
            continue
        x = Arg(shape, dtype)
        for axis, way in ((1, "rows"), (0, "columns")):
            yield (
                f"sum_{name}_{way}_{tag}_{_name(shape)}",
                _program(
                    lambda x, y, v=value, a=axis: v(x.astype(_F32), y.astype(_F32)).sum(a), x, x
                ),
            )
    for shape, (dtype, tag) in itertools.product(((2048, 512), (8192, 1024)), _TYPES):
        x = Arg(shape, dtype)

        def normalised(x: Any, y: Any) -> Any:
            wide = x.astype(_F32) + y.astype(_F32)
            centred = wide - wide.mean(1, keepdims=True)
            return (centred * lax.rsqrt((centred**2).mean(1, keepdims=True) + 1e-5)).astype(x.dtype)

        yield f"add_norm_{tag}_{_name(shape)}", _program(normalised, x, x)
        gradient = jax.grad(lambda x, y: (normalised(x, y).astype(_F32) ** 3).sum(), (0, 1))
        yield f"add_norm_gradient_{tag}_{_name(shape)}", _program(gradient, x, x)


def _pairwise_reductions() -> Programs:
    """Reductions of what is broadcast from smaller arrays."""
    for rows, columns, width in (
        (1024, 1024, 8),
        (2048, 2048, 3),
        (512, 4096, 16),
        (64, 64, 1024),
    ):
        x, y = Arg((rows, width)), Arg((columns, width))
        name = f"{rows}x{columns}x{width}"
        yield (
            f"pair_distance_{name}",
            _program(lambda x, y: jnp.abs(x[:, None] - y[None]).sum(-1), x, y),
        )
        yield (
            f"pair_weights_{name}",
            _program(lambda x, y: jnp.exp(-((x[:, None] - y[None]) ** 2).sum(-1)).sum(1), x, y),
        )
        yield (
            f"pair_gradient_{name}",
            _program(
                jax.grad(lambda x, y: jnp.tanh((x[:, None] - y[None]) ** 2).sum(), (0, 1)), x, y
            ),
        )


def _narrow_reductions() -> Programs:
    """Short rows, and columns of few rows."""
    for length, kept, (dtype, tag) in itertools.product((3, 16, 64), (1 << 12, 1 << 19), _TYPES):
        x = Arg((kept, length), dtype)
        yield (
            f"short_rows_{tag}_{kept}x{length}",
            _program(lambda x: (x.astype(_F32) ** 2).sum(1), x),
        )
        yield (
            f"short_softmax_{tag}_{kept}x{length}",
            _program(lambda x: jax.nn.softmax(x.astype(_F32), 1).astype(x.dtype), x),
        )
        y = Arg((length, kept), dtype)
        yield (
            f"few_rows_{tag}_{length}x{kept}",
            _program(lambda x: (x.astype(_F32) * 0.5).sum(0).astype(x.dtype), y),
        )
    for shape, (dtype, tag) in itertools.product(((16, 64, 64, 32), (8, 2048, 16, 16)), _TYPES):
        for axis in (1, 2, (0, 3)):
            yield (
                f"sum_axis_{axis}_{tag}_{_name(shape)}".replace(" ", ""),
                _program(lambda x, a=axis: x.astype(_F32).sum(a), Arg(shape, dtype)),
            )


def _statistics() -> Programs:
    for shape in ((16384, 128), (256, 4096)):
        x = Arg(shape)
        yield f"correlation_{_name(shape)}", _program(lambda x: jnp.corrcoef(x.T), x)
        yield f"variance_columns_{_name(shape)}", _program(lambda x: x.var(0), x)
        yield f"standardised_{_name(shape)}", _program(lambda x: (x - x.mean(0)) / x.std(0), x)
        yield f"argmin_columns_{_name(shape)}", _program(lambda x: jnp.argmin(x, 0), x)
        yield f"any_rows_{_name(shape)}", _program(lambda x: ((x > 3).any(1), (x < 0).sum(1)), x)
        yield f"median_{_name(shape)}", _program(lambda x: jnp.median(x, 0), x)
    for count in (1 << 12, 1 << 18, 1 << 23):
        x = Arg((count,))
        yield f"moments_{count}", _program(lambda x: (x.mean(), x.var(), (x**3).mean()), x)
        yield f"finite_{count}", _program(lambda x: jnp.isfinite(x).all(), x)


def _fused_products() -> Programs:
    """Products with operations that XLA fuses into them or leaves beside them."""

    def biased(x: Any, w: Any, b: Any) -> Any:
        return x @ w + b

    def activated(x: Any, w: Any, b: Any) -> Any:
        return jax.nn.gelu(x @ w + b)

    def scaled(x: Any, w: Any, b: Any) -> Any:
        return (x * 0.5 + 1) @ w * b

    def cast(x: Any, w: Any, b: Any) -> Any:
        return (x.astype(_F32) @ w.astype(_F32)).astype(x.dtype) + b

    for (m, k, n), (dtype, tag) in itertools.product(
        (
            (16, 512, 512),
            (128, 256, 1024),
            (512, 1024, 256),
            (2048, 256, 1024),
            (16384, 64, 256),
        ),
        _TYPES,
    ):
        args = Arg((m, k), dtype), Arg((k, n), dtype, scale=0.05), Arg((n,), dtype)
        for fn in (biased, activated, scaled, cast):
            if fn is cast and tag == "f32":
                continue
            yield f"{fn.__name__}_product_{tag}_{m}x{k}x{n}", _program(fn, *args)
        if m * k * n >= 1 << 25:
            loss = jax.grad(lambda *a: (activated(*a).astype(_F32) ** 2).sum(), (0, 1, 2))
            yield f"activated_product_gradient_{tag}_{m}x{k}x{n}", _program(loss, *args)


def _batched_products() -> Programs:
    for batch, m, k, n in (
        (8, 128, 64, 128),
        (32, 512, 64, 512),
        (64, 64, 128, 64),
        (128, 32, 32, 32),
        (4, 1024, 128, 1024),
        (96, 197, 64, 197),
    ):
        for dtype, tag in _TYPES:
            x, y = Arg((batch, m, k), dtype), Arg((batch, n, k), dtype)
            name = f"{tag}_{batch}x{m}x{k}x{n}"
            yield f"scores_{name}", _program(lambda x, y: jnp.einsum("bmk,bnk->bmn", x, y), x, y)
            yield (
                f"scores_scaled_{name}",
                _program(
                    lambda x, y: (
                        jnp.einsum("bmk,bnk->bmn", x, y, preferred_element_type=_F32) * 0.125
                    ),
                    x,
                    y,
                ),
            )
            z = Arg((batch, m, n), dtype)
            yield f"weighted_{name}", _program(lambda z, y: jnp.einsum("bmn,bnk->bmk", z, y), z, y)
            heads = Arg((m, batch, k), dtype), Arg((n, batch, k), dtype)
            yield (
                f"scores_of_heads_{name}",
                _program(lambda x, y: jnp.einsum("mbk,nbk->bmn", x, y), *heads),
            )


def _small_products() -> Programs:
    for (m, k, n), (dtype, tag) in itertools.product(
        (
            (1, 256, 256),
            (1, 2048, 512),
            (4, 1024, 4096),
            (32, 64, 64),
            (128, 1024, 128),
            (300, 300, 300),
            (1024, 256, 10),
            (4096, 128, 2),
            (20000, 32, 64),
        ),
        _TYPES,
    ):
        x, w = Arg((m, k), dtype), Arg((k, n), dtype)
        yield f"small_product_{tag}_{m}x{k}x{n}", _program(jnp.matmul, x, w)
        yield (
            f"small_product_transposed_{tag}_{m}x{k}x{n}",
            _program(lambda x, w: x.T @ w, Arg((k, m), dtype), w),
        )
        if tag == "f32":
            exact = partial(jnp.matmul, precision=lax.Precision.HIGHEST)
            yield f"exact_product_{m}x{k}x{n}", _program(exact, x, w)


def _scans() -> Programs:
    def linear(a: Any, b: Any) -> Any:
        return lax.associative_scan(lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), (a, b))[1]

    for shape in ((256, 512), (2048, 512), (128, 64, 16), (512, 256, 16)):
        a, b = Arg(shape, scale=0.1), Arg(shape)
        yield f"linear_scan_{_name(shape)}", _program(linear, a, b)
        gradient = jax.grad(lambda a, b: (linear(a, b) ** 2).sum(), (0, 1))
        yield f"linear_scan_gradient_{_name(shape)}", _program(gradient, a, b)
        rows = jax.vmap(linear)
        yield f"linear_scan_inner_{_name(shape)}", _program(rows, a, b)

        def states(a: Any, b: Any) -> Any:
            return (linear(jnp.exp(-jnp.abs(a)), b * jnp.tanh(b)) * b).sum(-1)

        yield f"scanned_states_{_name(shape)}", _program(states, a, b)
        yield (
            f"scanned_states_gradient_{_name(shape)}",
            _program(jax.grad(lambda a, b: (states(a, b) ** 2).sum(), (0, 1)), a, b),
        )
    for shape, axis in (((4096, 256), 0), ((256, 4096), 1), ((64, 1024, 16), 1)):
        x = Arg(shape)
        yield (
            f"cumulative_loss_{_name(shape)}",
            _program(jax.grad(lambda x, a=axis: (jnp.cumsum(x, a) ** 2).sum()), x),
        )
        yield f"running_max_{_name(shape)}", _program(lambda x, a=axis: lax.cummax(x, a), x)


def _stencils() -> Programs:
    def neighbours(x: Any) -> Any:
        shifted = [jnp.roll(x, s, axis) for axis in range(x.ndim) for s in (1, -1)]
        return x + 0.1 * (sum(shifted) - 2 * x.ndim * x)

    def padded(x: Any) -> Any:
        wide = jnp.pad(x, [(1, 1)] * x.ndim, mode="edge")
        middle = tuple(slice(1, -1) for _ in range(x.ndim))
        total = -2 * x.ndim * wide[middle]
        for axis in range(x.ndim):
            for begin in (0, 2):
                window = list(middle)
                window[axis] = slice(begin, begin + x.shape[axis])
                total = total + wide[tuple(window)]
        return x + 0.1 * total

    for shape in ((65536,), (1024, 4096), (64, 64, 64), (160, 160, 160)):
        x = Arg(shape)
        yield f"periodic_{_name(shape)}", _program(neighbours, x)
        yield f"edges_{_name(shape)}", _program(padded, x)
        yield (
            f"wave_{_name(shape)}",
            _program(lambda u, v: (2 * u - v + 0.1 * (neighbours(u) - u), u), x, x),
        )
        yield (
            f"difference_{_name(shape)}",
            _program(lambda x: jnp.diff(x, axis=-1) * jnp.diff(x, axis=-1), x),
        )


def _joined() -> Programs:
    def rotated(x: Any, angle: Any) -> Any:
        first, second = jnp.split(x.astype(_F32), 2, -1)
        cos, sin = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]
        parts = [first * cos - second * sin, second * cos + first * sin]
        return jnp.concatenate(parts, -1).astype(x.dtype)

    for batch, length, heads, width in ((1, 2048, 16, 128), (8, 512, 8, 64), (32, 1, 16, 128)):
        for dtype, tag in _TYPES:
            x, angle = Arg((batch, length, heads, width), dtype), Arg((length, width // 2))
            yield f"rotated_{tag}_{batch}x{length}x{heads}x{width}", _program(rotated, x, angle)
    for rows, width in ((1024, 3), (65536, 3), (4096, 16)):
        powers = 2.0 ** jnp.arange(8)

        def encoded(x: Any, p: Any = powers) -> Any:
            angles = (x[..., None] * p).reshape(x.shape[0], -1)
            return jnp.concatenate([x, jnp.sin(angles), jnp.cos(angles)], -1)

        yield f"encoded_{rows}x{width}", _program(encoded, Arg((rows, width)))
    for shape, (dtype, tag) in itertools.product(((64, 256), (512, 8192)), _TYPES):
        x = Arg(shape, dtype)
        yield f"joined_{tag}_{_name(shape)}", _program(lambda *x: jnp.concatenate(x, 1), x, x, x)
        yield (
            f"joined_computed_{tag}_{_name(shape)}",
            _program(lambda x, y: jnp.concatenate([jnp.tanh(x), y * 2, x + y], 0), x, x),
        )
        yield f"stacked_{tag}_{_name(shape)}", _program(lambda x, y: jnp.stack([x, y], -1), x, x)
        yield f"causal_shift_{tag}_{_name(shape)}", _program(_shifted, x)
    for batch, size, channels in ((8, 64, 32), (16, 128, 16), (2, 256, 64)):
        x = Arg((batch, size, size, channels), _BF16)
        half = Arg((batch, size // 2, size // 2, channels), _BF16)

        def merged(x: Any, y: Any) -> Any:
            return jnp.concatenate([x, jnp.repeat(jnp.repeat(y, 2, 1), 2, 2)], -1)

        yield f"skip_{batch}x{size}x{channels}", _program(merged, x, half)
        yield (
            f"patches_{batch}x{size}x{channels}",
            _program(
                lambda x, s=size: (
                    x.reshape(x.shape[0], s // 8, 8, s // 8, 8, -1)
                    .transpose(0, 1, 3, 2, 4, 5)
                    .reshape(x.shape[0], (s // 8) ** 2, -1)
                    * 2
                ),
                x,
            ),
        )


def _shifted(x: Any) -> Any:
    return x + 0.5 * jnp.pad(x, ((1, 0), (0, 0)))[:-1] + 0.25 * jnp.pad(x, ((2, 0), (0, 0)))[:-2]


def _fused_transposes() -> Programs:
    for shape, order in (
        ((8, 512, 8, 64), (0, 2, 1, 3)),
        ((4, 1024, 16, 64), (0, 2, 3, 1)),
        ((64, 196, 768), (0, 2, 1)),
        ((16, 32, 32, 128), (0, 3, 1, 2)),
        ((300, 700), (1, 0)),
    ):
        for dtype, tag in _TYPES:
            x = Arg(shape, dtype)
            turned = Arg(tuple(shape[axis] for axis in order), dtype)
            name = f"{tag}_{_name(shape)}_{_name(order)}"
            yield (
                f"transposed_gelu_{name}",
                _program(lambda x, o=order: jax.nn.gelu(jnp.transpose(x, o)), x),
            )
            yield (
                f"transposed_sum_{name}",
                _program(lambda x, y, o=order: jnp.transpose(x, o) * 0.5 + y, x, turned),
            )


def _contended() -> Programs:
    """Scatters in which many updates meet in few places."""
    for values, bins in itertools.product((1 << 14, 1 << 18, 1 << 22), (16, 256, 1 << 13)):
        index = Arg((values,), jnp.int32, below=bins)
        yield (
            f"histogram_{values}_in_{bins}",
            _program(lambda i, b=bins: jnp.zeros(b, jnp.int32).at[i].add(1), index),
        )
        yield (
            f"weights_{values}_in_{bins}",
            _program(lambda i, w, b=bins: jnp.zeros(b).at[i].add(w), index, Arg((values,))),
        )
    for values, bins, width in (
        (1 << 12, 8, 256),
        (1 << 16, 64, 64),
        (1 << 16, 1 << 13, 128),
        (1 << 18, 1 << 14, 16),
        (1 << 14, 1 << 10, 512),
    ):
        index = Arg((values,), jnp.int32, below=bins)
        for dtype, tag in _TYPES:
            rows = Arg((values, width), dtype)
            name = f"{tag}_{values}x{width}_in_{bins}"
            yield (
                f"segment_{name}",
                _program(lambda x, i, b=bins: jax.ops.segment_sum(x, i, b), rows, index),
            )
            yield (
                f"segment_max_{name}",
                _program(lambda x, i, b=bins: jax.ops.segment_max(x, i, b), rows, index),
            )
            yield (
                f"messages_{name}",
                _program(lambda t, i: jnp.tanh(t[i]) * 2, Arg((bins, width), dtype), index),
            )


def _dispatched() -> Programs:
    """Rows that are moved to places and back, as tokens to experts."""
    for tokens, places, width in ((1024, 2048, 512), (8192, 16384, 1024)):
        for dtype, tag in _TYPES:
            x, index = Arg((tokens, width), dtype), Arg((tokens,), jnp.int32, below=places)
            name = f"{tag}_{tokens}x{width}_of_{places}"
            yield (
                f"dispatched_{name}",
                _program(
                    lambda x, i, p=places: jnp.zeros((p, x.shape[1]), x.dtype).at[i].add(x),
                    x,
                    index,
                ),
            )
            yield (
                f"placed_{name}",
                _program(
                    lambda x, i, p=places: (
                        jnp.zeros((p, x.shape[1]), x.dtype).at[i].set(x, mode="drop")
                    ),
                    x,
                    index,
                ),
            )
            table = Arg((places, width), dtype)
            yield (
                f"combined_{name}",
                _program(lambda t, i, x: t[i] * 0.5 + x, table, index, x),
            )
        hot = Arg((tokens,), jnp.int32, below=64)
        yield (
            f"one_hot_positions_{tokens}",
            _program(lambda i: jnp.cumsum(jax.nn.one_hot(i, 64, dtype=jnp.int32), 0), hot),
        )


def _sorted() -> Programs:
    for rows, columns in ((256, 1), (4096, 1), (16384, 64), (1024, 1024)):
        x = Arg((rows, columns))
        name = f"{rows}x{columns}"
        yield f"sorted_columns_{name}", _program(lambda x: jnp.sort(x, 0), x)
        yield f"ranked_columns_{name}", _program(lambda x: jnp.argsort(x, 0), x)
        yield f"ranked_twice_{name}", _program(lambda x: jnp.argsort(jnp.argsort(x, 0), 0), x)
        keys = Arg((rows, columns), jnp.int32, below=1 << 20)
        yield (
            f"sorted_pairs_{name}",
            _program(lambda k, x: lax.sort((k, x), dimension=0, num_keys=1), keys, x),
        )
        yield f"sorted_down_{name}", _program(lambda x: -jnp.sort(-x, 1), x)
    for count in (512, 1 << 14, 1 << 19):
        keys = Arg((count,), jnp.int32, below=count)
        yield (
            f"unique_{count}",
            _program(lambda k, n=count: jnp.unique(k, size=n, fill_value=-1), keys),
        )
        yield f"searched_{count}", _program(jnp.searchsorted, Arg((count,)), Arg((count,)))


def _spectra() -> Programs:
    shape: tuple[int, ...]
    for shape in ((1, 256, 256), (16, 240, 320), (64, 64, 64)):
        x, half = Arg(shape), (*shape[:2], shape[2] // 2 + 1)
        name = _name(shape)
        spectrum = Arg(half, jnp.complex64)
        yield f"irfft2_{name}", _program(lambda z, s=shape: jnp.fft.irfft2(z, s[1:]), spectrum)
        yield f"rfft2_{name}", _program(jnp.fft.rfft2, x)
        yield f"ifft2_{name}", _program(lambda x: jnp.fft.ifft2(x + 0j), x)
        yield (
            f"filtered_{name}",
            _program(lambda x, s=shape: jnp.fft.irfft2(jnp.fft.rfft2(x) * 0.5, s[1:]), x),
        )
        yield f"columns_fft_{name}", _program(lambda x: jnp.fft.rfft(x, axis=1), x)
        yield f"ifft_{name}", _program(lambda x: jnp.fft.ifft(x + 0j), x)
    for shape in ((4, 32, 32, 32), (128, 128, 64)):
        x = Arg(shape)
        yield f"rfftn_{_name(shape)}", _program(partial(jnp.fft.rfftn, axes=(-3, -2, -1)), x)
        yield (
            f"filtered3_{_name(shape)}",
            _program(
                lambda x, s=shape: jnp.fft.irfftn(
                    jnp.fft.rfftn(x, axes=(-3, -2, -1)) * 0.5, s[-3:], axes=(-3, -2, -1)
                ),
                x,
            ),
        )
    for batch, length in ((8, 16384), (512, 2048), (1024, 1500)):
        x = Arg((batch, length))
        yield (
            f"convolved_{batch}x{length}",
            _program(
                lambda x, k, n=length: jnp.fft.irfft(
                    jnp.fft.rfft(x, 2 * n) * jnp.fft.rfft(k, 2 * n), 2 * n
                )[:, :n],
                x,
                x,
            ),
        )


def _tall() -> Programs:
    """Factorisations of other matrices than squares, and what is made of them."""
    for rows, columns in (
        (128, 32),
        (512, 128),
        (1024, 512),
        (4096, 256),
        (32768, 16),
    ):
        a = Arg((rows, columns))
        name = f"{rows}x{columns}"
        yield f"qr_tall_{name}", _program(jnp.linalg.qr, a)
        yield f"qr_r_{name}", _program(lambda a: jnp.linalg.qr(a, mode="r"), a)
        if rows * columns <= 1 << 19:
            yield f"svd_tall_{name}", _program(partial(jnp.linalg.svd, full_matrices=False), a)
        yield (
            f"normal_equations_{name}",
            _program(
                lambda a, b: jax.scipy.linalg.solve(
                    a.T @ a + 10 * jnp.eye(a.shape[1]), a.T @ b, assume_a="pos"
                ),
                a,
                Arg((rows, 1)),
            ),
        )
    for n in (48, 100, 300, 768):
        matrix = Arg((n, n), identity=4.0 * n, scale=0.01)
        yield f"solve_{n}", _program(jnp.linalg.solve, matrix, Arg((n, 1)))
        yield f"inverse_{n}", _program(jnp.linalg.inv, matrix)
        yield f"slogdet_{n}", _program(jnp.linalg.slogdet, matrix)
        yield f"cholesky_of_{n}", _program(jnp.linalg.cholesky, matrix)
        if n <= 768:
            yield f"eigh_of_{n}", _program(jnp.linalg.eigh, matrix)
        if n <= 300:
            yield f"svd_of_{n}", _program(jnp.linalg.svd, matrix)


def _batches() -> Programs:
    for batch, n in ((512, 6), (4096, 16), (32, 48), (8, 128), (128, 24)):
        matrix = Arg((batch, n, n), identity=4.0 * n, scale=0.01)
        vector = Arg((batch, n, 1))
        yield f"solves_{batch}x{n}", _program(jnp.linalg.solve, matrix, vector)
        yield f"choleskys_{batch}x{n}", _program(jnp.linalg.cholesky, matrix)
        yield (
            f"cho_solves_{batch}x{n}",
            _program(
                jax.vmap(lambda a, b: jax.scipy.linalg.cho_solve((a, True), b)), matrix, vector
            ),
        )
        if n <= 48:
            yield f"eighs_{batch}x{n}", _program(jnp.linalg.eigh, matrix)
            yield f"svds_{batch}x{n}", _program(jnp.linalg.svd, matrix)
        yield f"qrs_{batch}x{n}", _program(jnp.linalg.qr, matrix)
        yield f"batch_of_vectors_{batch}x{n}", _program(jnp.matmul, matrix, vector)


def _more_convolutions() -> Programs:
    layouts = ("NHWC", "HWIO", "NHWC")
    for batch, size, inputs, outputs, window, stride in (
        (32, 32, 64, 64, 3, 1),
        (32, 16, 128, 128, 3, 1),
        (8, 64, 32, 64, 3, 2),
        (64, 32, 3, 64, 3, 1),
        (16, 224, 3, 768, 16, 16),
        (4, 128, 64, 3, 3, 1),
    ):
        for dtype, tag in _TYPES:
            x = Arg((batch, size, size, inputs), dtype)
            w = Arg((window, window, inputs, outputs), dtype, scale=0.05)

            def convolved(x: Any, w: Any, s: int = stride) -> Any:
                return lax.conv_general_dilated(x, w, (s, s), "SAME", dimension_numbers=layouts)

            name = f"{tag}_{batch}x{size}_{inputs}to{outputs}_{window}by{stride}"
            yield (
                f"convolved_relu_{name}",
                _program(lambda x, w: jax.nn.relu(convolved(x, w)), x, w),
            )
            gradient = jax.grad(lambda x, w: (convolved(x, w).astype(_F32) ** 2).sum(), (0, 1))
            if window < 16:
                yield f"convolved_gradient_{name}", _program(gradient, x, w)
    for batch, size, channels, window in ((32, 56, 64, 3), (16, 28, 384, 5), (8, 112, 96, 3)):
        for dtype, tag in _TYPES:
            x, w = (
                Arg((batch, size, size, channels), dtype),
                Arg((window, window, 1, channels), dtype),
            )

            def of_channels(x: Any, w: Any, c: int = channels) -> Any:
                return lax.conv_general_dilated(
                    x, w, (1, 1), "SAME", dimension_numbers=layouts, feature_group_count=c
                )

            name = f"{tag}_{batch}x{size}x{channels}_{window}"
            yield f"depthwise_{name}", _program(of_channels, x, w)


def _broadcasts() -> Programs:
    """Element-wise kernels of several arrays of different shapes, and several results."""
    for shape, (dtype, tag) in itertools.product(((256, 300), (2048, 768), (64, 1 << 16)), _TYPES):
        x, row, column = Arg(shape, dtype), Arg((1, shape[1]), dtype), Arg((shape[0], 1), dtype)
        name = f"{tag}_{_name(shape)}"
        yield f"affine_{name}", _program(lambda x, r, c: x * r + c, x, row, column)
        yield f"gated_{name}", _program(lambda x, y: jax.nn.silu(x) * y, x, x)
        gradient = jax.grad(lambda x, y: (jax.nn.silu(x) * y).astype(_F32).sum(), (0, 1))
        yield f"gated_gradient_{name}", _program(gradient, x, x)
        yield f"outer_{name}", _program(lambda r, c: jnp.tanh(r * c), row, column)
        yield f"clipped_{name}", _program(lambda x, y: jnp.clip(x, -1, 1) - 0.1 * y, x, x)
        mask = Arg(shape, jnp.bool_, below=2)
        yield f"masked_{name}", _program(lambda m, x: jnp.where(m, x * 1.1, 0), mask, x)
        yield (
            f"three_results_{name}",
            _program(lambda x, y: (x + y, x * y, jnp.maximum(x, y)), x, x),
        )
        wide = Arg((shape[0], 2 * (shape[1] // 2)), dtype)
        yield (
            f"halves_{name}",
            _program(
                lambda x: jax.nn.sigmoid(x[:, : x.shape[1] // 2]) * x[:, x.shape[1] // 2 :], wide
            ),
        )
        parameters = [Arg(shape), Arg(shape), Arg(shape), x]

        def updated(p: Any, m: Any, v: Any, g: Any) -> Any:
            wide = g.astype(_F32)
            m, v = 0.9 * m + 0.1 * wide, 0.99 * v + 0.01 * wide * wide
            return p - 0.01 * (m / (jnp.sqrt(v) + 1e-8) + 0.1 * p), m, v

        yield f"adamw_{name}", _program(updated, *parameters)


def _small_loops() -> Programs:
    def relaxed(x: Any, b: Any) -> Any:
        return lax.fori_loop(0, 20, lambda _, y: 0.5 * (jnp.roll(y, 1) + jnp.roll(y, -1)) + b, x)

    def conjugate(a: Any, b: Any) -> Any:
        def step(_: Any, state: Any) -> Any:
            x, r, p, rr = state
            ap = a @ p
            alpha = rr / (p @ ap)
            r = r - alpha * ap
            new = r @ r
            return x + alpha * p, r, r + new / rr * p, new

        return lax.fori_loop(0, 16, step, (jnp.zeros_like(b), b, b, b @ b))[0]

    def chosen(x: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            scores = carry + row
            best = jnp.argmax(scores)
            return jnp.where(scores > 0, scores * 0.9, scores) + scores[best], best

        return lax.scan(step, x[0], x)

    def recurrent(h: Any, xs: Any, w: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            gates = jnp.concatenate([h, x], 1) @ w
            update, candidate = jnp.split(gates, 2, 1)
            h = h + jax.nn.sigmoid(update) * (jnp.tanh(candidate) - h)
            return h, h

        return lax.scan(step, h, xs)

    for n in (1 << 10, 1 << 16, 1 << 21):
        yield f"relaxed_{n}", _program(relaxed, Arg((n,)), Arg((n,)))
    for n in (64, 256, 1024, 3000):
        yield f"conjugate_{n}", _program(conjugate, Arg((n, n), identity=4.0 * n), Arg((n,)))
    for rows, columns in ((64, 128), (32, 4096)):
        yield f"chosen_{rows}x{columns}", _program(chosen, Arg((rows, columns)))
    for batch, width, (dtype, tag) in itertools.product((16, 128), (64, 768), _TYPES):
        args = Arg((batch, width), dtype), Arg((24, batch, width), dtype)
        w = Arg((2 * width, 2 * width), dtype, scale=0.05)
        yield f"recurrent_{tag}_{batch}x{width}", _program(recurrent, *args, w)
        loss = jax.grad(lambda *a: (recurrent(*a)[1].astype(_F32) ** 2).sum(), (0, 2))
        yield f"recurrent_gradient_{tag}_{batch}x{width}", _program(loss, *args, w)


def _samples() -> Programs:
    key = Arg((2,), jnp.uint32, below=1 << 30)
    for rows, columns in ((1, 32000), (64, 4096), (256, 50000)):
        logits = Arg((rows, columns))
        name = f"{rows}x{columns}"
        yield f"categorical_{name}", _program(jax.random.categorical, key, logits)
        yield (
            f"likelihood_{name}",
            _program(lambda x: (jax.nn.log_softmax(x) * jnp.exp(x)).sum(1), logits),
        )
        index = Arg((rows,), jnp.int32, below=columns)

        def crossed(x: Any, i: Any) -> Any:
            hot = jax.nn.one_hot(i, x.shape[1])
            return -(hot * jax.nn.log_softmax(x)).sum(1).mean()

        yield f"crossed_{name}", _program(jax.value_and_grad(crossed), logits, index)
    for count in (1 << 12, 1 << 18):
        yield f"permutation_{count}", _program(jax.random.permutation, key, Arg((count,)))
        yield (
            f"uniform_points_{count}",
            _program(lambda k, n=count: jax.random.uniform(k, (n, 3)) * 2 - 1, key),
        )
