"""More programs of a calibration: kernels that XLA fuses from several operations, in many forms.

They cover what single operations do not: reductions of computed values, products with what is
fused into them, associative scans, stencils, contended scatters, factorisations of other matrices
than squares.
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


def varied_programs() -> dict[str, TimedProgram]:
    """Every program of this module, by name."""
    parts = (
        *(_computed_reductions, _pairwise_reductions, _narrow_reductions, _statistics),
        *(_fused_products, _batched_products, _small_products, _scans, _stencils, _joined),
        *(_fused_transposes, _contended, _dispatched, _sorted, _spectra, _tall, _batches),
        *(_more_convolutions, _broadcasts, _small_loops, _samples),
    )
    return programs_of(parts)


def _computed_reductions(add: Add) -> None:
    """Sums along rows and columns of values that the same kernel computes."""
    values: dict[str, Callable[[Any, Any], Any]] = {
        "product": lambda x, y: x * y,
        "exp": lambda x, y: jnp.exp(x - y),
        "where": lambda x, y: jnp.where(x > y, x, y * 0.5),
    }
    shapes = ((128, 300), (512, 4096), (4096, 768), (65536, 64))
    for (name, value), shape, (dtype, tag) in itertools.product(values.items(), shapes, TYPES):
        if (len(name) + shape[0]) % 2 and tag == "bf16":
            continue
        x = Arg(shape, dtype)
        for axis, way in ((1, "rows"), (0, "columns")):
            add(
                f"sum_{name}_{way}_{tag}_{joined(shape)}",
                lambda x, y, v=value, a=axis: v(x.astype(F32), y.astype(F32)).sum(a),
                x,
                x,
            )
    for shape, (dtype, tag) in itertools.product(((2048, 512), (8192, 1024)), TYPES):
        x = Arg(shape, dtype)

        def normalised(x: Any, y: Any) -> Any:
            wide = x.astype(F32) + y.astype(F32)
            centred = wide - wide.mean(1, keepdims=True)
            return (centred * lax.rsqrt((centred**2).mean(1, keepdims=True) + 1e-5)).astype(x.dtype)

        add(f"add_norm_{tag}_{joined(shape)}", normalised, x, x)
        gradient = jax.grad(lambda x, y: (normalised(x, y).astype(F32) ** 3).sum(), (0, 1))
        add(f"add_norm_gradient_{tag}_{joined(shape)}", gradient, x, x)


def _pairwise_reductions(add: Add) -> None:
    """Reductions of what is broadcast from smaller arrays."""
    for rows, columns, width in sizes("1024x1024x8 2048x2048x3 512x4096x16 64x64x1024"):
        x, y = Arg((rows, width)), Arg((columns, width))
        name = f"{rows}x{columns}x{width}"
        add(f"pair_distance_{name}", lambda x, y: jnp.abs(x[:, None] - y[None]).sum(-1), x, y)
        add(
            f"pair_weights_{name}",
            lambda x, y: jnp.exp(-((x[:, None] - y[None]) ** 2).sum(-1)).sum(1),
            x,
            y,
        )
        add(
            f"pair_gradient_{name}",
            jax.grad(lambda x, y: jnp.tanh((x[:, None] - y[None]) ** 2).sum(), (0, 1)),
            x,
            y,
        )


def _narrow_reductions(add: Add) -> None:
    """Short rows, and columns of few rows."""
    for length, kept, (dtype, tag) in itertools.product((3, 16, 64), (1 << 12, 1 << 19), TYPES):
        x = Arg((kept, length), dtype)
        add(f"short_rows_{tag}_{kept}x{length}", lambda x: (x.astype(F32) ** 2).sum(1), x)
        add(
            f"short_softmax_{tag}_{kept}x{length}",
            lambda x: jax.nn.softmax(x.astype(F32), 1).astype(x.dtype),
            x,
        )
        y = Arg((length, kept), dtype)
        add(
            f"few_rows_{tag}_{length}x{kept}",
            lambda x: (x.astype(F32) * 0.5).sum(0).astype(x.dtype),
            y,
        )
    for shape, (dtype, tag) in itertools.product(((16, 64, 64, 32), (8, 2048, 16, 16)), TYPES):
        for axis in (1, 2, (0, 3)):
            add(
                f"sum_axis_{axis}_{tag}_{joined(shape)}".replace(" ", ""),
                lambda x, a=axis: x.astype(F32).sum(a),
                Arg(shape, dtype),
            )


def _statistics(add: Add) -> None:
    for shape in ((16384, 128), (256, 4096)):
        x = Arg(shape)
        add(f"correlation_{joined(shape)}", lambda x: jnp.corrcoef(x.T), x)
        add(f"variance_columns_{joined(shape)}", lambda x: x.var(0), x)
        add(f"standardised_{joined(shape)}", lambda x: (x - x.mean(0)) / x.std(0), x)
        add(f"argmin_columns_{joined(shape)}", lambda x: jnp.argmin(x, 0), x)
        add(f"any_rows_{joined(shape)}", lambda x: ((x > 3).any(1), (x < 0).sum(1)), x)
        add(f"median_{joined(shape)}", lambda x: jnp.median(x, 0), x)
    for count in (1 << 12, 1 << 18, 1 << 23):
        x = Arg((count,))
        add(f"moments_{count}", lambda x: (x.mean(), x.var(), (x**3).mean()), x)
        add(f"finite_{count}", lambda x: jnp.isfinite(x).all(), x)


def _fused_products(add: Add) -> None:
    """Products with operations that XLA fuses into them or leaves beside them."""

    def biased(x: Any, w: Any, b: Any) -> Any:
        return x @ w + b

    def activated(x: Any, w: Any, b: Any) -> Any:
        return jax.nn.gelu(x @ w + b)

    def scaled(x: Any, w: Any, b: Any) -> Any:
        return (x * 0.5 + 1) @ w * b

    def cast(x: Any, w: Any, b: Any) -> Any:
        return (x.astype(F32) @ w.astype(F32)).astype(x.dtype) + b

    for (m, k, n), (dtype, tag) in itertools.product(
        sizes("16x512x512 128x256x1024 512x1024x256 2048x256x1024 16384x64x256"),
        TYPES,
    ):
        args = Arg((m, k), dtype), Arg((k, n), dtype, scale=0.05), Arg((n,), dtype)
        for fn in (biased, activated, scaled, cast):
            if fn is cast and tag == "f32":
                continue
            add(f"{fn.__name__}_product_{tag}_{m}x{k}x{n}", fn, *args)
        if m * k * n >= 1 << 25:
            loss = jax.grad(lambda *a: (activated(*a).astype(F32) ** 2).sum(), (0, 1, 2))
            add(f"activated_product_gradient_{tag}_{m}x{k}x{n}", loss, *args)


def _batched_products(add: Add) -> None:
    for batch, m, k, n in sizes(
        "8x128x64x128 32x512x64x512 64x64x128x64 128x32x32x32 4x1024x128x1024 96x197x64x197"
    ):
        for dtype, tag in TYPES:
            x, y = Arg((batch, m, k), dtype), Arg((batch, n, k), dtype)
            name = f"{tag}_{batch}x{m}x{k}x{n}"
            add(f"scores_{name}", lambda x, y: jnp.einsum("bmk,bnk->bmn", x, y), x, y)
            add(
                f"scores_scaled_{name}",
                lambda x, y: jnp.einsum("bmk,bnk->bmn", x, y, preferred_element_type=F32) * 0.125,
                x,
                y,
            )
            z = Arg((batch, m, n), dtype)
            add(f"weighted_{name}", lambda z, y: jnp.einsum("bmn,bnk->bmk", z, y), z, y)
            heads = Arg((m, batch, k), dtype), Arg((n, batch, k), dtype)
            add(f"scores_of_heads_{name}", lambda x, y: jnp.einsum("mbk,nbk->bmn", x, y), *heads)


def _small_products(add: Add) -> None:
    for (m, k, n), (dtype, tag) in itertools.product(
        sizes(
            "1x256x256 1x2048x512 4x1024x4096 32x64x64 128x1024x128 300x300x300 1024x256x10 "
            "4096x128x2 20000x32x64"
        ),
        TYPES,
    ):
        x, w = Arg((m, k), dtype), Arg((k, n), dtype)
        add(f"small_product_{tag}_{m}x{k}x{n}", jnp.matmul, x, w)
        add(
            f"small_product_transposed_{tag}_{m}x{k}x{n}",
            lambda x, w: x.T @ w,
            Arg((k, m), dtype),
            w,
        )
        if tag == "f32":
            exact = partial(jnp.matmul, precision=lax.Precision.HIGHEST)
            add(f"exact_product_{m}x{k}x{n}", exact, x, w)


def _scans(add: Add) -> None:
    def linear(a: Any, b: Any) -> Any:
        return lax.associative_scan(lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), (a, b))[1]

    for shape in ((256, 512), (2048, 512), (128, 64, 16), (512, 256, 16)):
        a, b = Arg(shape, scale=0.1), Arg(shape)
        add(f"linear_scan_{joined(shape)}", linear, a, b)
        gradient = jax.grad(lambda a, b: (linear(a, b) ** 2).sum(), (0, 1))
        add(f"linear_scan_gradient_{joined(shape)}", gradient, a, b)
        rows = jax.vmap(linear)
        add(f"linear_scan_inner_{joined(shape)}", rows, a, b)

        def states(a: Any, b: Any) -> Any:
            return (linear(jnp.exp(-jnp.abs(a)), b * jnp.tanh(b)) * b).sum(-1)

        add(f"scanned_states_{joined(shape)}", states, a, b)
        add(
            f"scanned_states_gradient_{joined(shape)}",
            jax.grad(lambda a, b: (states(a, b) ** 2).sum(), (0, 1)),
            a,
            b,
        )
    for shape, axis in (((4096, 256), 0), ((256, 4096), 1), ((64, 1024, 16), 1)):
        x = Arg(shape)
        add(
            f"cumulative_loss_{joined(shape)}",
            jax.grad(lambda x, a=axis: (jnp.cumsum(x, a) ** 2).sum()),
            x,
        )
        add(f"running_max_{joined(shape)}", lambda x, a=axis: lax.cummax(x, a), x)


def _stencils(add: Add) -> None:
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
        add(f"periodic_{joined(shape)}", neighbours, x)
        add(f"edges_{joined(shape)}", padded, x)
        add(f"wave_{joined(shape)}", lambda u, v: (2 * u - v + 0.1 * (neighbours(u) - u), u), x, x)
        add(f"difference_{joined(shape)}", lambda x: jnp.diff(x, axis=-1) * jnp.diff(x, axis=-1), x)


def _joined(add: Add) -> None:
    def rotated(x: Any, angle: Any) -> Any:
        first, second = jnp.split(x.astype(F32), 2, -1)
        cos, sin = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]
        parts = [first * cos - second * sin, second * cos + first * sin]
        return jnp.concatenate(parts, -1).astype(x.dtype)

    for batch, length, heads, width in ((1, 2048, 16, 128), (8, 512, 8, 64), (32, 1, 16, 128)):
        for dtype, tag in TYPES:
            x, angle = Arg((batch, length, heads, width), dtype), Arg((length, width // 2))
            add(f"rotated_{tag}_{batch}x{length}x{heads}x{width}", rotated, x, angle)
    for rows, width in ((1024, 3), (65536, 3), (4096, 16)):
        powers = 2.0 ** jnp.arange(8)

        def encoded(x: Any, p: Any = powers) -> Any:
            angles = (x[..., None] * p).reshape(x.shape[0], -1)
            return jnp.concatenate([x, jnp.sin(angles), jnp.cos(angles)], -1)

        add(f"encoded_{rows}x{width}", encoded, Arg((rows, width)))
    for shape, (dtype, tag) in itertools.product(((64, 256), (512, 8192)), TYPES):
        x = Arg(shape, dtype)
        add(f"joined_{tag}_{joined(shape)}", lambda *x: jnp.concatenate(x, 1), x, x, x)
        add(
            f"joined_computed_{tag}_{joined(shape)}",
            lambda x, y: jnp.concatenate([jnp.tanh(x), y * 2, x + y], 0),
            x,
            x,
        )
        add(f"stacked_{tag}_{joined(shape)}", lambda x, y: jnp.stack([x, y], -1), x, x)
        add(f"causal_shift_{tag}_{joined(shape)}", _shifted, x)
    for batch, size, channels in ((8, 64, 32), (16, 128, 16), (2, 256, 64)):
        x = Arg((batch, size, size, channels), BF16)
        half = Arg((batch, size // 2, size // 2, channels), BF16)

        def merged(x: Any, y: Any) -> Any:
            return jnp.concatenate([x, jnp.repeat(jnp.repeat(y, 2, 1), 2, 2)], -1)

        add(f"skip_{batch}x{size}x{channels}", merged, x, half)
        add(
            f"patches_{batch}x{size}x{channels}",
            lambda x, s=size: (
                x.reshape(x.shape[0], s // 8, 8, s // 8, 8, -1)
                .transpose(0, 1, 3, 2, 4, 5)
                .reshape(x.shape[0], (s // 8) ** 2, -1)
                * 2
            ),
            x,
        )


def _shifted(x: Any) -> Any:
    return x + 0.5 * jnp.pad(x, ((1, 0), (0, 0)))[:-1] + 0.25 * jnp.pad(x, ((2, 0), (0, 0)))[:-2]


def _fused_transposes(add: Add) -> None:
    for shape, order in (
        ((8, 512, 8, 64), (0, 2, 1, 3)),
        ((4, 1024, 16, 64), (0, 2, 3, 1)),
        ((64, 196, 768), (0, 2, 1)),
        ((16, 32, 32, 128), (0, 3, 1, 2)),
        ((300, 700), (1, 0)),
    ):
        for dtype, tag in TYPES:
            x = Arg(shape, dtype)
            turned = Arg(tuple(shape[axis] for axis in order), dtype)
            name = f"{tag}_{joined(shape)}_{joined(order)}"
            add(f"transposed_gelu_{name}", lambda x, o=order: jax.nn.gelu(jnp.transpose(x, o)), x)
            add(
                f"transposed_sum_{name}",
                lambda x, y, o=order: jnp.transpose(x, o) * 0.5 + y,
                x,
                turned,
            )


def _contended(add: Add) -> None:
    """Scatters in which many updates meet in few places."""
    for values, bins in itertools.product((1 << 14, 1 << 18, 1 << 22), (16, 256, 1 << 13)):
        index = Arg((values,), jnp.int32, below=bins)
        add(
            f"histogram_{values}_in_{bins}",
            lambda i, b=bins: jnp.zeros(b, jnp.int32).at[i].add(1),
            index,
        )
        add(
            f"weights_{values}_in_{bins}",
            lambda i, w, b=bins: jnp.zeros(b).at[i].add(w),
            index,
            Arg((values,)),
        )
    for values, bins, width in sizes(
        "4096x8x256 65536x64x64 65536x8192x128 262144x16384x16 16384x1024x512"
    ):
        index = Arg((values,), jnp.int32, below=bins)
        for dtype, tag in TYPES:
            rows = Arg((values, width), dtype)
            name = f"{tag}_{values}x{width}_in_{bins}"
            add(f"segment_{name}", lambda x, i, b=bins: jax.ops.segment_sum(x, i, b), rows, index)
            add(
                f"segment_max_{name}",
                lambda x, i, b=bins: jax.ops.segment_max(x, i, b),
                rows,
                index,
            )
            add(
                f"messages_{name}",
                lambda t, i: jnp.tanh(t[i]) * 2,
                Arg((bins, width), dtype),
                index,
            )


def _dispatched(add: Add) -> None:
    """Rows that are moved to places and back, as tokens to experts."""
    for tokens, places, width in ((1024, 2048, 512), (8192, 16384, 1024)):
        for dtype, tag in TYPES:
            x, index = Arg((tokens, width), dtype), Arg((tokens,), jnp.int32, below=places)
            name = f"{tag}_{tokens}x{width}_of_{places}"
            add(
                f"dispatched_{name}",
                lambda x, i, p=places: jnp.zeros((p, x.shape[1]), x.dtype).at[i].add(x),
                x,
                index,
            )
            add(
                f"placed_{name}",
                lambda x, i, p=places: (
                    jnp.zeros((p, x.shape[1]), x.dtype).at[i].set(x, mode="drop")
                ),
                x,
                index,
            )
            table = Arg((places, width), dtype)
            add(f"combined_{name}", lambda t, i, x: t[i] * 0.5 + x, table, index, x)
        hot = Arg((tokens,), jnp.int32, below=64)
        add(
            f"one_hot_positions_{tokens}",
            lambda i: jnp.cumsum(jax.nn.one_hot(i, 64, dtype=jnp.int32), 0),
            hot,
        )


def _sorted(add: Add) -> None:
    for rows, columns in ((256, 1), (4096, 1), (16384, 64), (1024, 1024)):
        x = Arg((rows, columns))
        name = f"{rows}x{columns}"
        add(f"sorted_columns_{name}", lambda x: jnp.sort(x, 0), x)
        add(f"ranked_columns_{name}", lambda x: jnp.argsort(x, 0), x)
        add(f"ranked_twice_{name}", lambda x: jnp.argsort(jnp.argsort(x, 0), 0), x)
        keys = Arg((rows, columns), jnp.int32, below=1 << 20)
        add(f"sorted_pairs_{name}", lambda k, x: lax.sort((k, x), dimension=0, num_keys=1), keys, x)
        add(f"sorted_down_{name}", lambda x: -jnp.sort(-x, 1), x)
    for count in (512, 1 << 14, 1 << 19):
        keys = Arg((count,), jnp.int32, below=count)
        add(f"unique_{count}", lambda k, n=count: jnp.unique(k, size=n, fill_value=-1), keys)
        add(f"searched_{count}", jnp.searchsorted, Arg((count,)), Arg((count,)))


def _spectra(add: Add) -> None:
    shape: tuple[int, ...]
    for shape in ((1, 256, 256), (16, 240, 320), (64, 64, 64)):
        x, half = Arg(shape), (*shape[:2], shape[2] // 2 + 1)
        name = joined(shape)
        spectrum = Arg(half, jnp.complex64)
        add(f"irfft2_{name}", lambda z, s=shape: jnp.fft.irfft2(z, s[1:]), spectrum)
        add(f"rfft2_{name}", jnp.fft.rfft2, x)
        add(f"ifft2_{name}", lambda x: jnp.fft.ifft2(x + 0j), x)
        add(f"filtered_{name}", lambda x, s=shape: jnp.fft.irfft2(jnp.fft.rfft2(x) * 0.5, s[1:]), x)
        add(f"columns_fft_{name}", lambda x: jnp.fft.rfft(x, axis=1), x)
        add(f"ifft_{name}", lambda x: jnp.fft.ifft(x + 0j), x)
    for shape in ((4, 32, 32, 32), (128, 128, 64)):
        x = Arg(shape)
        add(f"rfftn_{joined(shape)}", partial(jnp.fft.rfftn, axes=(-3, -2, -1)), x)
        add(
            f"filtered3_{joined(shape)}",
            lambda x, s=shape: jnp.fft.irfftn(
                jnp.fft.rfftn(x, axes=(-3, -2, -1)) * 0.5, s[-3:], axes=(-3, -2, -1)
            ),
            x,
        )
    for batch, length in ((8, 16384), (512, 2048), (1024, 1500)):
        x = Arg((batch, length))
        add(
            f"convolved_{batch}x{length}",
            lambda x, k, n=length: jnp.fft.irfft(
                jnp.fft.rfft(x, 2 * n) * jnp.fft.rfft(k, 2 * n), 2 * n
            )[:, :n],
            x,
            x,
        )


def _tall(add: Add) -> None:
    """Factorisations of other matrices than squares, and what is made of them."""
    for rows, columns in sizes("128x32 512x128 1024x512 4096x256 32768x16"):
        a = Arg((rows, columns))
        name = f"{rows}x{columns}"
        add(f"qr_tall_{name}", jnp.linalg.qr, a)
        add(f"qr_r_{name}", lambda a: jnp.linalg.qr(a, mode="r"), a)
        if rows * columns <= 1 << 19:
            add(f"svd_tall_{name}", partial(jnp.linalg.svd, full_matrices=False), a)
        add(
            f"normal_equations_{name}",
            lambda a, b: jax.scipy.linalg.solve(
                a.T @ a + 10 * jnp.eye(a.shape[1]), a.T @ b, assume_a="pos"
            ),
            a,
            Arg((rows, 1)),
        )
    for n in (48, 100, 300, 768):
        matrix = Arg((n, n), identity=4.0 * n, scale=0.01)
        add(f"solve_{n}", jnp.linalg.solve, matrix, Arg((n, 1)))
        add(f"inverse_{n}", jnp.linalg.inv, matrix)
        add(f"slogdet_{n}", jnp.linalg.slogdet, matrix)
        add(f"cholesky_of_{n}", jnp.linalg.cholesky, matrix)
        if n <= 768:
            add(f"eigh_of_{n}", jnp.linalg.eigh, matrix)
        if n <= 300:
            add(f"svd_of_{n}", jnp.linalg.svd, matrix)


def _batches(add: Add) -> None:
    for batch, n in ((512, 6), (4096, 16), (32, 48), (8, 128), (128, 24)):
        matrix = Arg((batch, n, n), identity=4.0 * n, scale=0.01)
        vector = Arg((batch, n, 1))
        add(f"solves_{batch}x{n}", jnp.linalg.solve, matrix, vector)
        add(f"choleskys_{batch}x{n}", jnp.linalg.cholesky, matrix)
        add(
            f"cho_solves_{batch}x{n}",
            jax.vmap(lambda a, b: jax.scipy.linalg.cho_solve((a, True), b)),
            matrix,
            vector,
        )
        if n <= 48:
            add(f"eighs_{batch}x{n}", jnp.linalg.eigh, matrix)
            add(f"svds_{batch}x{n}", jnp.linalg.svd, matrix)
        add(f"qrs_{batch}x{n}", jnp.linalg.qr, matrix)
        add(f"batch_of_vectors_{batch}x{n}", jnp.matmul, matrix, vector)


def _more_convolutions(add: Add) -> None:
    layouts = ("NHWC", "HWIO", "NHWC")
    for batch, size, inputs, outputs, window, stride in sizes(
        "32x32x64x64x3x1 32x16x128x128x3x1 8x64x32x64x3x2 64x32x3x64x3x1 16x224x3x768x16x16 "
        "4x128x64x3x3x1"
    ):
        for dtype, tag in TYPES:
            x = Arg((batch, size, size, inputs), dtype)
            w = Arg((window, window, inputs, outputs), dtype, scale=0.05)

            def convolved(x: Any, w: Any, s: int = stride) -> Any:
                return lax.conv_general_dilated(x, w, (s, s), "SAME", dimension_numbers=layouts)

            name = f"{tag}_{batch}x{size}_{inputs}to{outputs}_{window}by{stride}"
            add(f"convolved_relu_{name}", lambda x, w: jax.nn.relu(convolved(x, w)), x, w)
            gradient = jax.grad(lambda x, w: (convolved(x, w).astype(F32) ** 2).sum(), (0, 1))
            if window < 16:
                add(f"convolved_gradient_{name}", gradient, x, w)
    for batch, size, channels, window in ((32, 56, 64, 3), (16, 28, 384, 5), (8, 112, 96, 3)):
        for dtype, tag in TYPES:
            x, w = (
                Arg((batch, size, size, channels), dtype),
                Arg((window, window, 1, channels), dtype),
            )

            def of_channels(x: Any, w: Any, c: int = channels) -> Any:
                return lax.conv_general_dilated(
                    x, w, (1, 1), "SAME", dimension_numbers=layouts, feature_group_count=c
                )

            name = f"{tag}_{batch}x{size}x{channels}_{window}"
            add(f"depthwise_{name}", of_channels, x, w)


def _broadcasts(add: Add) -> None:
    """Element-wise kernels of several arrays of different shapes, and several results."""
    for shape, (dtype, tag) in itertools.product(((256, 300), (2048, 768), (64, 1 << 16)), TYPES):
        x, row, column = Arg(shape, dtype), Arg((1, shape[1]), dtype), Arg((shape[0], 1), dtype)
        name = f"{tag}_{joined(shape)}"
        add(f"affine_{name}", lambda x, r, c: x * r + c, x, row, column)
        add(f"gated_{name}", lambda x, y: jax.nn.silu(x) * y, x, x)
        gradient = jax.grad(lambda x, y: (jax.nn.silu(x) * y).astype(F32).sum(), (0, 1))
        add(f"gated_gradient_{name}", gradient, x, x)
        add(f"outer_{name}", lambda r, c: jnp.tanh(r * c), row, column)
        add(f"clipped_{name}", lambda x, y: jnp.clip(x, -1, 1) - 0.1 * y, x, x)
        mask = Arg(shape, jnp.bool_, below=2)
        add(f"masked_{name}", lambda m, x: jnp.where(m, x * 1.1, 0), mask, x)
        add(f"three_results_{name}", lambda x, y: (x + y, x * y, jnp.maximum(x, y)), x, x)
        wide = Arg((shape[0], 2 * (shape[1] // 2)), dtype)
        add(
            f"halves_{name}",
            lambda x: jax.nn.sigmoid(x[:, : x.shape[1] // 2]) * x[:, x.shape[1] // 2 :],
            wide,
        )
        parameters = [Arg(shape), Arg(shape), Arg(shape), x]

        def updated(p: Any, m: Any, v: Any, g: Any) -> Any:
            wide = g.astype(F32)
            m, v = 0.9 * m + 0.1 * wide, 0.99 * v + 0.01 * wide * wide
            return p - 0.01 * (m / (jnp.sqrt(v) + 1e-8) + 0.1 * p), m, v

        add(f"adamw_{name}", updated, *parameters)


def _small_loops(add: Add) -> None:
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
        add(f"relaxed_{n}", relaxed, Arg((n,)), Arg((n,)))
    for n in (64, 256, 1024, 3000):
        add(f"conjugate_{n}", conjugate, Arg((n, n), identity=4.0 * n), Arg((n,)))
    for rows, columns in ((64, 128), (32, 4096)):
        add(f"chosen_{rows}x{columns}", chosen, Arg((rows, columns)))
    for batch, width, (dtype, tag) in itertools.product((16, 128), (64, 768), TYPES):
        args = Arg((batch, width), dtype), Arg((24, batch, width), dtype)
        w = Arg((2 * width, 2 * width), dtype, scale=0.05)
        add(f"recurrent_{tag}_{batch}x{width}", recurrent, *args, w)
        loss = jax.grad(lambda *a: (recurrent(*a)[1].astype(F32) ** 2).sum(), (0, 2))
        add(f"recurrent_gradient_{tag}_{batch}x{width}", loss, *args, w)


def _samples(add: Add) -> None:
    key = Arg((2,), jnp.uint32, below=1 << 30)
    for rows, columns in ((1, 32000), (64, 4096), (256, 50000)):
        logits = Arg((rows, columns))
        name = f"{rows}x{columns}"
        add(f"categorical_{name}", jax.random.categorical, key, logits)
        add(f"likelihood_{name}", lambda x: (jax.nn.log_softmax(x) * jnp.exp(x)).sum(1), logits)
        index = Arg((rows,), jnp.int32, below=columns)

        def crossed(x: Any, i: Any) -> Any:
            hot = jax.nn.one_hot(i, x.shape[1])
            return -(hot * jax.nn.log_softmax(x)).sum(1).mean()

        add(f"crossed_{name}", jax.value_and_grad(crossed), logits, index)
    for count in (1 << 12, 1 << 18):
        add(f"permutation_{count}", jax.random.permutation, key, Arg((count,)))
        add(
            f"uniform_points_{count}", lambda k, n=count: jax.random.uniform(k, (n, 3)) * 2 - 1, key
        )
