"""Programs with the kernels of attention, norms, losses, convolutions and factorisations.

Their sizes are those that models have, also where they are no powers of two, and masks and scales
are shared by heads and rows as in models: both decide how XLA divides a kernel among blocks.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
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

_CONVOLUTIONS, _PRODUCTS = 36, 40
_NHWC = ("NHWC", "HWIO", "NHWC")


def model_programs() -> dict[str, TimedProgram]:
    """Every program of this module, by name."""
    parts = (
        *(_attention_weights, _attentions, _norms, _group_norms, _losses, _rotations),
        _experts,
        *(_triangles, _factors, _transforms, _selections, _recurrences, _scanned),
        *(_scattered, _convolutions, _products),
    )
    return programs_of(parts)


def _attention_weights(add: Add) -> None:
    """Softmaxes of scores with each kind of mask, and their gradients."""

    def causal(scores: Any, _: Any) -> Any:
        return jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)

    def windowed(scores: Any, _: Any) -> Any:
        distance = jnp.arange(scores.shape[-2])[:, None] - jnp.arange(scores.shape[-1])[None]
        return jnp.where((distance >= 0) & (distance < 128), scores, -1e9)

    # What each takes beside the scores: shape by that of the scores, and type.
    masks: dict[str, tuple[Callable[[Any, Any], Any], Any, Any]] = {
        "plain": (lambda s, _: s, lambda b, h, q, k: (), F32),
        "causal": (causal, lambda b, h, q, k: (), F32),
        "windowed": (windowed, lambda b, h, q, k: (), F32),
        "padded": (
            lambda s, m: jnp.where(m, s, -1e9),
            lambda b, h, q, k: (b, 1, 1, k),
            jnp.bool_,
        ),
        "masked": (
            lambda s, m: jnp.where(m, s, -1e9),
            lambda b, h, q, k: (1, 1, q, k),
            jnp.bool_,
        ),
        "biased": (lambda s, m: s + m, lambda b, h, q, k: (1, h, q, k), F32),
    }
    shapes = sizes(
        "8x12x197x197 4x16x512x512 32x8x77x77 2x32x768x768 1x16x1536x1536 2x16x2048x2048 "
        "1x16x4096x4096 1x8x8192x8192 16x8x256x256 1x32x1024x1024 8x16x128x128 64x4x64x64 "
        "2x4x16x3000"
    )
    for number, (shape, (name, (mask, beside, dtype))) in enumerate(
        itertools.product(shapes, masks.items())
    ):
        if name == "windowed" and shape[2] < 512:
            continue
        other, scores = Arg(beside(*shape), dtype), BF16 if number % 3 else F32

        def weights(x: Any, m: Any, mask: Any = mask) -> Any:
            return jax.nn.softmax(mask(x.astype(F32) * 0.1, m)).astype(x.dtype)

        def gradient(x: Any, m: Any, y: Any, weights: Any = weights) -> Any:
            return jax.vjp(lambda x: weights(x, m), x)[1](y)[0]

        label = f"attention_{name}_{joined(shape)}"
        add(label, weights, Arg(shape, scores), other)
        if number % 2 or name == "causal":
            add(f"{label}_gradient", gradient, Arg(shape, scores), other, Arg(shape, scores))


def _norms(add: Add) -> None:
    """Norms of sums, as between layers, and their gradients."""

    def layer(x: Any, scale: Any, shift: Any) -> Any:
        wide = x.astype(F32)
        mean = wide.mean(-1, keepdims=True)
        variance = (wide**2).mean(-1, keepdims=True) - mean**2
        return ((wide - mean) * lax.rsqrt(variance + 1e-6) * scale + shift).astype(x.dtype)

    def root(x: Any, scale: Any, _: Any) -> Any:
        wide = x.astype(F32)
        return (wide * lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * scale

    shapes = sizes(
        "4x197x192 64x49x384 2x1500x512 8x128x768 16x77x1024 1x2048x1280 4x1024x1536 2x4096x2048 "
        "1x8192x2560 8x512x4096 2x2048x5120 1x1024x8192 32x1024x96 128x256x64"
    )
    for number, (shape, norm) in enumerate(itertools.product(shapes, (layer, root))):
        dtype, terms = (BF16, F32, BF16)[number % 3], 1 + number % 4
        row = Arg(shape[-1:], dtype)

        def normed(xs: Any, scale: Any, shift: Any, norm: Any = norm) -> Any:
            total = sum(xs[1:], xs[0])
            return norm(total, scale, shift), total

        def gradient(xs: Any, scale: Any, shift: Any, y: Any, normed: Any = normed) -> Any:
            _, back = jax.vjp(lambda *a: normed(*a)[0], xs, scale, shift)
            into, scaled, shifted = back(y)
            return into[0] + y, scaled, shifted

        x = Arg(shape, dtype)
        label = f"{norm.__name__}_norm_of_{terms}_{joined(shape)}"
        add(label, normed, [x] * terms, row, row)
        add(f"{label}_gradient", gradient, [x] * terms, row, row, x)


def _group_norms(add: Add) -> None:
    for (batch, size, channels, groups), (dtype, tag) in itertools.product(
        sizes("4x64x128x32 16x32x256x8 2x128x64x16 32x16x512x1 8x56x96x96"), TYPES
    ):

        def normed(x: Any, scale: Any, groups: int = groups) -> Any:
            parts = x.astype(F32).reshape(*x.shape[:3], groups, -1)
            mean = parts.mean((1, 2, 4), keepdims=True)
            variance = ((parts - mean) ** 2).mean((1, 2, 4), keepdims=True)
            normed = ((parts - mean) * lax.rsqrt(variance + 1e-5)).reshape(x.shape)
            return jax.nn.silu(normed * scale).astype(x.dtype)

        x, scale = Arg((batch, size, size, channels), dtype), Arg((channels,))
        label = f"group_norm_{tag}_{batch}x{size}x{channels}by{groups}"
        add(label, normed, x, scale)
        loss = jax.grad(lambda x, s, n=normed: (n(x, s).astype(F32) ** 2).sum(), (0, 1))
        add(f"{label}_gradient", loss, x, scale)

        def batch_normed(x: Any, scale: Any) -> Any:
            wide = x.astype(F32)
            mean = wide.mean((0, 1, 2))
            variance = (wide**2).mean((0, 1, 2)) - mean**2
            return jax.nn.relu((wide - mean) * lax.rsqrt(variance + 1e-5) * scale).astype(x.dtype)

        if groups < channels:
            loss = jax.grad(lambda x, s: (batch_normed(x, s).astype(F32) ** 3).sum(), (0, 1))
            add(f"batch_norm_gradient_{tag}_{batch}x{size}x{channels}", loss, x, scale)


def _losses(add: Add) -> None:
    """Cross entropies, and what comes before them."""
    for number, (rows, columns) in enumerate(
        sizes("128x1000 4096x10000 2048x50257 1024x65536 512x151936 8192x32768 256x21843")
    ):
        dtype, tag = TYPES[number % 2]

        def loss(x: Any, index: Any) -> Any:
            wide = x.astype(F32)
            chosen = jnp.take_along_axis(wide, index[:, None], 1)[:, 0]
            return (jax.nn.logsumexp(wide, 1) - chosen).mean()

        def smoothed(x: Any, index: Any) -> Any:
            hot = jax.nn.one_hot(index, x.shape[1]) * 0.9 + 0.1 / x.shape[1]
            return -(hot * jax.nn.log_softmax(x.astype(F32))).sum(1).mean()

        x, index = Arg((rows, columns), dtype), Arg((rows,), jnp.int32, below=columns)
        add(f"cross_entropy_{tag}_{rows}x{columns}", jax.value_and_grad(loss), x, index)
        add(f"cross_entropy_forward_{tag}_{rows}x{columns}", loss, x, index)
        add(f"smoothed_{tag}_{rows}x{columns}", jax.value_and_grad(smoothed), x, index)


def _rotations(add: Add) -> None:
    """Rotary positions of queries and keys, heads split and joined, their gradients."""
    for number, (batch, length, heads, width) in enumerate(
        sizes("2x1024x12x64 1x4096x32x128 8x256x16x80 16x128x8x32 4x512x20x96")
    ):
        dtype, tag = TYPES[number % 2]

        def rotated(x: Any, angle: Any) -> Any:
            first, second = jnp.split(x.astype(F32), 2, -1)
            cos, sin = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]
            parts = [first * cos - second * sin, second * cos + first * sin]
            return jnp.concatenate(parts, -1).astype(x.dtype)

        def heads_of(qkv: Any, angle: Any, heads: int = heads) -> Any:
            parts = jnp.split(qkv.reshape(*qkv.shape[:2], 3 * heads, -1), 3, 2)
            turned = (rotated(parts[0], angle), rotated(parts[1], angle), parts[2])
            return [part.transpose(0, 2, 1, 3) for part in turned]

        def gradient(qkv: Any, angle: Any, y: Any, heads_of: Any = heads_of) -> Any:
            return jax.vjp(lambda x: heads_of(x, angle), qkv)[1]([y, y, y])[0]

        label = f"{tag}_{batch}x{length}x{heads}x{width}"
        qkv, angle = Arg((batch, length, 3 * heads * width), dtype), Arg((length, width // 2))
        add(f"heads_{label}", heads_of, qkv, angle)
        turned = Arg((batch, heads, length, width), dtype)
        add(f"heads_gradient_{label}", gradient, qkv, angle, turned)


def _experts(add: Add) -> None:
    """Routers of mixtures: the largest gates, places within experts, rows moved and weighted."""
    for tokens, experts, width, count in sizes(
        "2048x8x512x2 8192x16x1024x1 4096x64x768x4 16384x32x256x2"
    ):

        def routed(gates: Any, x: Any, count: int = count) -> Any:
            weights, chosen = lax.top_k(jax.nn.softmax(gates.astype(F32)), count)
            hot = jax.nn.one_hot(chosen.reshape(-1), gates.shape[1], dtype=jnp.int32)
            place = ((jnp.cumsum(hot, 0) - 1) * hot).sum(1)
            capacity = 2 * count * gates.shape[0] // gates.shape[1]
            to = jnp.where(place < capacity, chosen.reshape(-1) * capacity + place, 0)
            rows = jnp.repeat(x, count, 0)
            moved = jnp.zeros((gates.shape[1] * capacity, x.shape[1]), x.dtype).at[to].set(rows)
            return moved, (moved[to] * weights.reshape(-1, 1).astype(x.dtype)).sum(0)

        label = f"{tokens}x{experts}x{width}_{count}"
        add(f"routed_{label}", routed, Arg((tokens, experts), BF16), Arg((tokens, width), BF16))


def _drawn(rng: np.random.Generator, values: Sequence[int]) -> int:
    return values[int(rng.integers(len(values)))]


def _convolutions(add: Add) -> None:
    """Convolutions of random sizes, and their gradients."""
    for seed in range(_CONVOLUTIONS):
        rng = np.random.default_rng(seed)
        batch, size = _drawn(rng, (1, 4, 8, 16, 32, 64)), _drawn(rng, (7, 14, 16, 28, 32, 56, 64))
        inputs, outputs = (_drawn(rng, (16, 32, 64, 96, 128, 192, 256, 512)) for _ in range(2))
        window, stride = _drawn(rng, (1, 3, 3, 3, 5)), _drawn(rng, (1, 1, 2))
        exact = seed % 3 == 0 and batch * size * size * inputs < 1 << 23
        dtype, tag = TYPES[0 if exact else 1]
        x = Arg((batch, size, size, inputs), dtype)
        w = Arg((window, window, inputs, outputs), dtype, scale=0.05)

        def convolved(x: Any, w: Any, s: int = stride) -> Any:
            return lax.conv_general_dilated(x, w, (s, s), "SAME", dimension_numbers=_NHWC)

        def activated(x: Any, w: Any, convolved: Any = convolved) -> Any:
            return jax.nn.silu(convolved(x, w).astype(F32)).astype(x.dtype)

        label = f"{tag}_{batch}x{size}_{inputs}to{outputs}_{window}by{stride}"
        loss = jax.grad(lambda x, w, f=activated: (f(x, w).astype(F32) ** 2).sum(), (0, 1))
        add(f"drawn_convolution_{label}", activated, x, w)
        add(f"drawn_convolution_gradient_{label}", loss, x, w)


def _products(add: Add) -> None:
    """Products of random sizes, with bias, activation and gradients."""
    for seed in range(_PRODUCTS):
        rng = np.random.default_rng(1000 + seed)
        m, k, n = (int(2 ** rng.uniform(*r)) for r in ((5, 14.5), (5, 13), (5, 13)))
        if rng.random() < 0.7:
            m, k, n = (max(32, value // 32 * 32) for value in (m, k, n))
        dtype, tag = TYPES[seed % 2]

        def dense(x: Any, w: Any, b: Any, way: int = seed % 3) -> Any:
            y = x @ w
            return (y, y + b, jax.nn.gelu(y + b))[way]

        args = Arg((m, k), dtype), Arg((k, n), dtype, scale=k**-0.5), Arg((n,), dtype)
        add(f"drawn_product_{tag}_{m}x{k}x{n}", dense, *args)
        if seed % 2 or m * k * n < 1 << 33:
            loss = jax.grad(lambda *a, f=dense: (f(*a).astype(F32) ** 2).sum(), (0, 1, 2))
            add(f"drawn_product_gradient_{tag}_{m}x{k}x{n}", loss, *args)


def _triangles(add: Add) -> None:
    for number, (n, columns) in enumerate(
        sizes(
            "6x24 24x24 33x1 48x300 100x100 100x1 150x2000 200x200 300x300 384x1 500x500 700x64 "
            "768x768 1000x1000 1000x1 1200x300 2000x2000 3000x32 2048x2048 256x3072"
        )
    ):
        a, b = Arg((n, n), identity=4.0 * n, scale=0.01), Arg((n, columns))
        for lower in (True, False):
            add(
                f"solved_{n}x{columns}_{'lower' if lower else 'upper'}",
                lambda a, b, low=lower, t=number % 2: lax.linalg.triangular_solve(
                    a, b, left_side=True, lower=low, transpose_a=bool(t)
                ),
                a,
                b,
            )
        right = Arg((columns, n))
        add(
            f"solved_right_{n}x{columns}",
            lambda a, b: lax.linalg.triangular_solve(a, b, lower=True),
            a,
            right,
        )
    for batch, n, columns in sizes("10x100x100 32x24x1 200x8x8 1000x48x1 64x200x16 4x500x500"):
        a, b = Arg((batch, n, n), identity=4.0 * n, scale=0.01), Arg((batch, n, columns))
        add(
            f"solved_{batch}x{n}x{columns}",
            lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
            a,
            b,
        )


def _factors(add: Add) -> None:
    for n in (6, 12, 33, 48, 100, 128, 200, 300, 500, 768, 1000, 1500):
        matrix = Arg((n, n), identity=4.0 * n, scale=0.01)
        add(
            f"factor_cholesky_{n}", lambda a: lax.linalg.cholesky(a, symmetrize_input=False), matrix
        )
        add(f"factor_lu_{n}", lambda a: lax.linalg.lu(a)[0], matrix)
        add(f"factor_qr_{n}", lambda a: jnp.linalg.qr(a)[0], matrix)
        if n <= 500:
            add(f"factor_eigh_{n}", lambda a: jnp.linalg.eigh(a)[0], matrix)
    for rows, columns in sizes("200x50 1000x100 5000x20 2000x300 512x256"):
        add(f"factor_qr_{rows}x{columns}", lambda a: jnp.linalg.qr(a)[1], Arg((rows, columns)))
    for batch, n in ((8, 100), (50, 24), (500, 6), (128, 48), (4, 300)):
        matrix = Arg((batch, n, n), identity=4.0 * n, scale=0.01)
        add(f"factor_choleskys_{batch}x{n}", jnp.linalg.cholesky, matrix)
        add(f"factor_solves_{batch}x{n}", jnp.linalg.solve, matrix, Arg((batch, n, 1)))


def _transforms(add: Add) -> None:
    """Fourier transforms of two and three axes, and convolutions by them."""
    for batch, height, width in sizes(
        "1x100x100 1x320x320 4x96x160 8x384x384 16x128x128 2x1024x1024 1x640x480 64x32x32 "
        "32x240x240"
    ):
        x = Arg((batch, height, width))
        name = f"{batch}x{height}x{width}"
        add(f"transform_real_{name}", jnp.fft.rfft2, x)
        add(f"transform_complex_{name}", lambda x: jnp.fft.fft2(x + 0j), x)
        add(
            f"transform_filtered_{name}",
            lambda x: jnp.fft.irfft2(jnp.fft.rfft2(x) * 0.5, s=x.shape[1:]),
            x,
        )
    for n in (32, 100, 128):
        add(f"transform_cube_{n}", lambda x: jnp.fft.irfftn(jnp.fft.rfftn(x) * 2), Arg((n, n, n)))
    for rows, length in sizes("16x3000 64x6000 256x1500 4x100000 1000x96"):
        x = Arg((rows, length))
        name = f"{rows}x{length}"
        add(
            f"transform_long_{name}",
            lambda x: jnp.fft.irfft(jnp.fft.rfft(x, axis=1) * 0.5, n=x.shape[1], axis=1),
            x,
        )


def _selections(add: Add) -> None:
    """The largest of rows, sorts, and sums up to each element."""
    for rows, columns, count in sizes(
        "1x50257x50 8x32000x40 64x1000x5 512x100x10 2000x20000x15 4096x64x2 16384x8x2 32x100000x1 "
        "128x151936x20"
    ):
        x = Arg((rows, columns))
        add(f"chosen_largest_{rows}x{columns}_{count}", lambda x, n=count: lax.top_k(x, n), x)
    for rows, columns in sizes("32x3000 200x500 1x200000 1024x300 16x50257"):
        x = Arg((rows, columns))
        add(f"chosen_order_{rows}x{columns}", lambda x: jnp.argsort(x, 1), x)
        add(
            f"chosen_until_{rows}x{columns}",
            lambda x: jnp.cumsum(jax.nn.softmax(jnp.sort(x, 1)), 1) < 0.9,
            x,
        )


def _recurrences(add: Add) -> None:
    """Loops over time: LSTMs, GRUs and small matrices, and their gradients."""

    def gates(x: Any, count: int) -> list[Any]:
        return jnp.split(x, count, -1)

    def lstm(state: Any, x: Any, w: Any) -> Any:
        h, c = state
        i, f, g, o = gates(jnp.concatenate([x, h], -1) @ w, 4)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    def run(xs: Any, w: Any) -> Any:
        zero = jnp.zeros(xs.shape[1:], xs.dtype)
        return lax.scan(lambda s, x: lstm(s, x, w), (zero, zero), xs)[1]

    for number, (length, batch, width) in enumerate(
        sizes("32x32x256 16x64x512 48x8x128 12x256x1024")
    ):
        dtype, tag = TYPES[number % 2]
        xs, w = Arg((length, batch, width), dtype), Arg((2 * width, 4 * width), dtype, scale=0.03)
        add(f"lstm_{tag}_{length}x{batch}x{width}", run, xs, w)
        loss = jax.grad(lambda *a: (run(*a).astype(F32) ** 2).sum(), (0, 1))
        add(f"lstm_gradient_{tag}_{length}x{batch}x{width}", loss, xs, w)
    for length, batch, n in sizes("50x1x4 40x64x6 64x16x24"):
        a, x = Arg((batch, n, n), scale=0.3), Arg((length, batch, n))

        def filtered(a: Any, xs: Any) -> Any:
            def step(carry: Any, seen: Any) -> Any:
                mean, spread = carry
                spread = a @ spread @ a.mT + jnp.eye(a.shape[-1])
                gain = spread / (jnp.trace(spread, axis1=1, axis2=2)[:, None, None] + 1)
                mean = (a @ mean[..., None])[..., 0]
                mean = mean + (gain @ (seen - mean)[..., None])[..., 0]
                return (mean, spread - gain @ spread), mean

            return lax.scan(step, (xs[0], jnp.zeros_like(a)), xs)[1]

        add(f"followed_{length}x{batch}x{n}", filtered, a, x)
        loss = jax.grad(lambda a, x, f=filtered: (f(a, x) ** 2).sum(), (0, 1))
        add(f"followed_gradient_{length}x{batch}x{n}", loss, a, x)


def _scanned(add: Add) -> None:
    """State-space layers by associative scans, and their gradients."""
    for batch, length, width, states in sizes("2x512x128x16 4x1024x64x8 1x2048x256x4 8x256x512x1"):

        def mixed(x: Any, delta: Any, rate: Any) -> Any:
            decay = jnp.exp(-jax.nn.softplus(delta)[..., None] * jnp.exp(rate))
            driven = delta[..., None] * x[..., None] * rate

            def combine(left: Any, right: Any) -> Any:
                return left[0] * right[0], left[1] * right[0] + right[1]

            return (lax.associative_scan(combine, (decay, driven), axis=1)[1] * rate).sum(-1)

        x = Arg((batch, length, width))
        label = f"{batch}x{length}x{width}x{states}"
        add(f"state_space_{label}", mixed, x, x, Arg((width, states), scale=0.1))
        loss = jax.grad(lambda *a: (mixed(*a) ** 2).sum(), (0, 1, 2))
        add(f"state_space_gradient_{label}", loss, x, x, Arg((width, states), scale=0.1))


def _scattered(add: Add) -> None:
    """Sums of rows by an index, as of embeddings' gradients, messages and codes."""
    for number, (rows, width, places) in enumerate(
        sizes(
            "4096x64x1024 65536x64x1024 2048x768x30522 16384x1024x50257 100000x32x10000 "
            "262144x4x4096 1000000x1x1000 8192x256x8192 300000x128x100000"
        )
    ):
        index = Arg((rows,), jnp.int32, below=places)
        label = f"{rows}x{width}_in_{places}"
        summed = lambda x, i, p=places: jax.ops.segment_sum(x, i, p)  # noqa: E731
        for dtype, tag in TYPES if number % 2 else TYPES[:1]:
            add(f"summed_{tag}_{label}", summed, Arg((rows, width), dtype), index)
        add(
            f"averaged_{label}",
            lambda x, i, p=places: (
                jax.ops.segment_sum(x, i, p) / (jnp.bincount(i, length=p)[:, None] + 1)
            )[i],
            Arg((rows, width)),
            index,
        )


def _attentions(add: Add) -> None:
    """Attention with its products and their gradients, computed again or not."""
    kinds = ("plain", "causal", "masked", "biased", "capped")
    shapes = sizes(
        "8x1024x16x64 4x512x16x64 2x2048x8x128 1x4096x16x64 16x256x8x64 1x8192x4x64 "
        "4x1024x12x64 32x128x8x32 2x1536x12x128 1x2048x32x80"
    )
    for number, (batch, length, heads, width) in enumerate(shapes):
        for kind in (kinds[number % 5], kinds[(number + 1) % 5], "causal")[
            : 3 if number % 5 else 2
        ]:
            dtype, tag = TYPES[0 if number % 3 == 2 else 1]

            def attended(q: Any, k: Any, v: Any, m: Any, kind: str = kind) -> Any:
                scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
                rows = jnp.arange(q.shape[1])
                if kind == "causal":
                    scores = jnp.where(rows[:, None] >= rows[None], scores, -1e9)
                elif kind == "masked":
                    scores = jnp.where(m, scores, -1e9)
                elif kind == "biased":
                    scores = scores + m
                elif kind == "capped":
                    scores = jnp.tanh(scores.astype(F32) / 30) * 30
                weights = jax.nn.softmax(scores.astype(F32)).astype(q.dtype)
                return jnp.einsum("bhqk,bkhd->bqhd", weights, v)

            x = Arg((batch, length, heads, width), dtype)
            beside = Arg((1, 1, length, length), jnp.bool_)
            if kind == "biased":
                beside = Arg((1, heads, length, length), dtype)

            def gradient(q: Any, k: Any, v: Any, m: Any, y: Any, attended: Any = attended) -> Any:
                step = attended if y.shape[0] % 2 else jax.checkpoint(attended)
                return jax.vjp(lambda *a: step(*a, m), q, k, v)[1](y)

            add(
                f"layer_of_attention_{kind}_{tag}_{batch}x{length}x{heads}x{width}",
                gradient,
                *(x, x, x, beside, x),
            )
