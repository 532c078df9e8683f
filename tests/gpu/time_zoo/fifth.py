"""A fifth zoo: training and serving steps as public projects have them.

It was written after all changes of its day, for one look only: no calibration and no fit has used
its programs.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from fourth import attend, norm, program, weight
from jax import lax

from xlapipe.running.calibration.timed_program import Arg, TimedProgram

F32, BF16, I32 = jnp.float32, jnp.bfloat16, jnp.int32
Zoo = Iterator[tuple[str, TimedProgram]]
_NHWC = ("NHWC", "HWIO", "NHWC")


def fifth_programs() -> dict[str, TimedProgram]:
    """Every program, by FAMILY/NAME."""
    families = (encoders, pictures, sequences, generators, agents, links, neighbours, prefills)
    return {
        f"{family.__name__}/{name}": program for family in families for name, program in family()
    }


def convolved(x: Any, w: Any, stride: int = 1) -> Any:
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=_NHWC)


def encoders() -> Zoo:
    """Masked tokens, relative positions, patches, latents that attend to a long input."""

    def masked(table: Any, qkv: Any, out: Any, up: Any, down: Any, tokens: Any, mask: Any) -> Any:
        def loss(table: Any, qkv: Any, out: Any, up: Any, down: Any) -> Any:
            x = table[jnp.where(mask > 0, 103, tokens)]
            b, s, d = x.shape
            for layer in range(2):
                parts = (x @ qkv[layer]).reshape(b, s, 3, d // 64, 64)
                y = attend(parts[:, :, 0], parts[:, :, 1], parts[:, :, 2]).reshape(b, s, d)
                x = norm(x + y @ out[layer], jnp.ones(d))
                x = norm(x + jax.nn.gelu(x @ up[layer]) @ down[layer], jnp.ones(d))
            logs = jax.nn.log_softmax((x @ table.T).astype(F32), -1)
            found = jnp.take_along_axis(logs, tokens[..., None], -1)[..., 0]
            return -(found * mask).sum() / (mask.sum() + 1)

        return jax.grad(loss, (0, 1, 2, 3, 4))(table, qkv, out, up, down)

    d = 512
    weights = (weight(2, d, 3 * d), weight(2, d, d), weight(2, d, 4 * d), weight(2, 4 * d, d))
    ids = (Arg((16, 384), I32, below=30522), Arg((16, 384), I32, below=2))
    yield "masked", program(masked, weight(30522, d), *weights, *ids)

    def relative(q: Any, k: Any, v: Any, table: Any) -> Any:
        distance = jnp.arange(k.shape[1]) - jnp.arange(q.shape[1])[:, None]
        far = 8 + (jnp.log1p(jnp.abs(distance)) * 3).astype(I32)
        bucket = jnp.where(jnp.abs(distance) < 8, jnp.abs(distance), far).clip(0, 31)
        return attend(q, k, v, jnp.moveaxis(table[bucket], -1, 0))

    yield "relative", program(relative, *[Arg((4, 640, 12, 64), BF16)] * 3, Arg((32, 12)))

    def latents(x: Any, query: Any, key: Any, value: Any) -> Any:
        k, v = ((x @ w).reshape(*x.shape[:2], 8, -1) for w in (key, value))
        return attend(query, k, v)

    given = (Arg((6, 256, 8, 48), BF16), weight(261, 384), weight(261, 384))
    yield "latents", program(latents, Arg((6, 12000, 261), BF16), *given)


def pictures() -> Zoo:
    """Residual blocks with batch norms, a small U, and volumes."""

    def residual(x: Any, w1: Any, w2: Any, skip: Any, s1: Any, s2: Any) -> Any:
        def normed(x: Any, scale: Any) -> Any:
            wide = x.astype(F32)
            mean, var = wide.mean((0, 1, 2)), wide.var((0, 1, 2))
            return ((wide - mean) * lax.rsqrt(var + 1e-5) * scale).astype(x.dtype)

        def loss(w1: Any, w2: Any, skip: Any, s1: Any, s2: Any) -> Any:
            y = jax.nn.relu(normed(convolved(x, w1, 2), s1))
            y = normed(convolved(y, w2), s2) + convolved(x, skip, 2)
            return (jax.nn.relu(y).mean((1, 2)).astype(F32) ** 2).sum()

        return jax.value_and_grad(loss, (0, 1, 2, 3, 4))(w1, w2, skip, s1, s2)

    kernels = (weight(3, 3, 64, 128), weight(3, 3, 128, 128), weight(1, 1, 64, 128))
    image = Arg((64, 56, 56, 64), BF16)
    yield "residual", program(residual, image, *kernels, Arg((128,)), Arg((128,)))

    def shaped(x: Any, down: Any, middle: Any, up: Any) -> Any:
        low = jax.nn.silu(convolved(x, down, 2))
        low = jax.nn.silu(convolved(low, middle))
        high = jnp.repeat(jnp.repeat(low, 2, 1), 2, 2)
        return convolved(jnp.concatenate([x, high], -1), up)

    kernels = (weight(3, 3, 48, 96), weight(3, 3, 96, 96), weight(3, 3, 144, 48))
    yield "shaped", program(shaped, Arg((12, 96, 96, 48), BF16), *kernels)

    def volumes(x: Any, w: Any) -> Any:
        y = lax.conv_general_dilated(
            x, w, (1, 1, 1), "SAME", dimension_numbers=("NDHWC", "DHWIO", "NDHWC")
        )
        return lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 2, 1), (1, 2, 2, 2, 1), "VALID")

    yield "volumes", program(volumes, Arg((2, 40, 64, 64, 16)), weight(3, 3, 3, 16, 32, dtype=F32))


def sequences() -> Zoo:
    """A recurrent language model and a diagonal state space by its kernel."""

    def recurrent(table: Any, wx: Any, wh: Any, tokens: Any) -> Any:
        def loss(wx: Any, wh: Any) -> Any:
            def move(carry: Any, x: Any) -> Any:
                h, c = carry
                i, f, g, o = jnp.split(x + h @ wh, 4, -1)
                c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
                h = jax.nn.sigmoid(o) * jnp.tanh(c)
                return (h, c), h

            start = jnp.zeros((tokens.shape[1], wh.shape[0]))
            hidden = lax.scan(move, (start, start), table[tokens] @ wx)[1]
            logits = hidden[:-1] @ table.T
            picked = jnp.take_along_axis(logits, tokens[1:, :, None], -1)[..., 0]
            return (jax.nn.logsumexp(logits, -1) - picked).mean()

        return jax.grad(loss, (0, 1))(wx, wh)

    weights = (weight(200, 800, dtype=F32), weight(200, 800, dtype=F32))
    tokens = Arg(
        (
            30,
            20,
        ),
        I32,
        below=10000,
    )
    yield "recurrent", program(recurrent, weight(10000, 200, dtype=F32), *weights, tokens)

    def diagonal(u: Any, a: Any, b: Any) -> Any:
        times = jnp.arange(u.shape[-1])
        kernel = (b[..., None] * jnp.exp(-jnp.abs(a)[..., None] * 0.01 * times)).sum(1)
        size = 2 * u.shape[-1]
        return jnp.fft.irfft(jnp.fft.rfft(u, size) * jnp.fft.rfft(kernel, size), size)[
            ..., : u.shape[-1]
        ]

    yield "diagonal", program(diagonal, Arg((8, 160, 2048)), Arg((160, 32)), Arg((160, 32)))


def generators() -> Zoo:
    """An autoencoder with noise, and the loss of a denoiser."""

    def noisy(x: Any, w1: Any, w2: Any, w3: Any, w4: Any, noise: Any) -> Any:
        def loss(w1: Any, w2: Any, w3: Any, w4: Any) -> Any:
            mean, spread = jnp.split(jax.nn.relu(x @ w1) @ w2, 2, -1)
            found = jax.nn.relu((mean + jnp.exp(spread) * noise) @ w3) @ w4
            both = jnp.maximum(found, 0) - found * x + jnp.log1p(jnp.exp(-jnp.abs(found)))
            apart = 0.5 * (mean**2 + jnp.exp(2 * spread) - 2 * spread - 1).sum(-1)
            return (both.sum(-1) + apart).mean()

        return jax.grad(loss, (0, 1, 2, 3))(w1, w2, w3, w4)

    shapes = ((784, 500), (500, 40), (20, 500), (500, 784))
    weights = [weight(*shape, dtype=F32) for shape in shapes]
    yield "noisy", program(noisy, Arg((1200, 784)), *weights, Arg((1200, 20)))

    def denoised(x: Any, noise: Any, level: Any, w1: Any, w2: Any) -> Any:
        share = jnp.cos(level)[:, None, None, None].astype(x.dtype)
        mixed = share * x + jnp.sqrt(1 - share * share) * noise

        def loss(w1: Any, w2: Any) -> Any:
            found = convolved(jax.nn.silu(convolved(mixed, w1)), w2)
            return ((found - noise).astype(F32) ** 2).mean()

        return jax.grad(loss, (0, 1))(w1, w2)

    pair = [Arg((96, 32, 32, 3), BF16)] * 2
    kernels = (weight(3, 3, 3, 128), weight(3, 3, 128, 3))
    yield "denoised", program(denoised, *pair, Arg((96,)), *kernels)


def agents() -> Zoo:
    """Values of pixels, and a search in many small trees."""

    def values(seen: Any, after: Any, w1: Any, w2: Any, w3: Any, act: Any, gain: Any) -> Any:
        def q(x: Any, w1: Any, w2: Any, w3: Any) -> Any:
            y = jax.nn.relu(
                lax.conv_general_dilated(x, w1, (4, 4), "VALID", dimension_numbers=_NHWC)
            )
            y = jax.nn.relu(
                lax.conv_general_dilated(y, w2, (2, 2), "VALID", dimension_numbers=_NHWC)
            )
            return y.reshape(y.shape[0], -1) @ w3

        def loss(w1: Any, w2: Any, w3: Any) -> Any:
            goal = gain + 0.99 * q(after, w1, w2, w3).max(-1)
            now = jnp.take_along_axis(q(seen, w1, w2, w3), act[:, None], 1)[:, 0]
            gap = now - lax.stop_gradient(goal)
            return jnp.where(jnp.abs(gap) < 1, 0.5 * gap * gap, jnp.abs(gap) - 0.5).mean()

        return jax.grad(loss, (0, 1, 2))(w1, w2, w3)

    frames = [Arg((256, 84, 84, 4))] * 2
    kernels = (weight(8, 8, 4, 32, dtype=F32), weight(4, 4, 32, 64, dtype=F32))
    more = (weight(5184, 6, dtype=F32), Arg((256,), I32, below=6), Arg((256,)))
    yield "values", program(values, *frames, *kernels, *more)

    def chosen(counts: Any, totals: Any, priors: Any) -> Any:
        visits = counts.sum(-1, keepdims=True)
        score = totals / (1 + counts) + 1.25 * priors * jnp.sqrt(visits) / (1 + counts)
        best = score.argmax(-1)
        add = jax.nn.one_hot(best, counts.shape[-1])
        return counts + add, totals + add * priors.max(-1, keepdims=True), best

    yield "chosen", program(chosen, *[Arg((9000, 50, 19))] * 3)


def links() -> Zoo:
    """Means over neighbours in a graph, words with negative samples, factors of ratings."""

    def sampled(x: Any, edges: Any, own: Any, other: Any) -> Any:
        def loss(own: Any, other: Any) -> Any:
            start, end = edges[:, 0], edges[:, 1]
            total = jax.ops.segment_sum(x[start], end, x.shape[0])
            count = jax.ops.segment_sum(jnp.ones(start.shape), end, x.shape[0])
            y = jax.nn.relu(x @ own + total / (count[:, None] + 1) @ other)
            return (y * y).mean()

        return jax.grad(loss, (0, 1))(own, other)

    arguments = (weight(100, 128, dtype=F32), weight(100, 128, dtype=F32))
    yield (
        "sampled",
        program(sampled, Arg((30000, 100)), Arg((240000, 2), I32, below=30000), *arguments),
    )

    def words(centre: Any, around: Any, pairs: Any, negatives: Any) -> Any:
        def loss(centre: Any, around: Any) -> Any:
            c = centre[pairs[:, 0]]
            good = jax.nn.log_sigmoid((c * around[pairs[:, 1]]).sum(-1))
            bad = jax.nn.log_sigmoid(-jnp.einsum("bd,bnd->bn", c, around[negatives])).sum(-1)
            return -(good + bad).mean()

        return jax.grad(loss, (0, 1))(centre, around)

    tables = [Arg((70000, 120), scale=0.1)] * 2
    ids = (Arg((4000, 2), I32, below=70000), Arg((4000, 5), I32, below=70000))
    yield "words", program(words, *tables, *ids)


def neighbours() -> Zoo:
    """The nearest rows, and directions of the largest variance."""

    def nearest(query: Any, rows: Any) -> Any:
        far = (rows * rows).sum(-1) - 2 * query @ rows.T
        return lax.top_k(-far, 10)

    yield "nearest", program(nearest, Arg((300, 96)), Arg((20000, 96)))

    def directions(x: Any, start: Any) -> Any:
        centred = x - x.mean(0)

        def one(_: Any, basis: Any) -> Any:
            return jnp.linalg.qr(centred.T @ (centred @ basis))[0]

        return lax.fori_loop(0, 5, one, start)

    yield "directions", program(directions, Arg((20000, 300)), Arg((300, 12)))


def prefills() -> Zoo:
    """A block with rotated positions and gates, and its cache."""

    def rotated(x: Any, q: Any, kv: Any, out: Any, gate: Any, up: Any, down: Any) -> Any:
        b, s, _ = x.shape
        angle = jnp.arange(s)[:, None] * 10000.0 ** (-jnp.arange(0, 1, 2 / 80))
        cos, sin = (f(angle)[:, None].astype(x.dtype) for f in (jnp.cos, jnp.sin))

        def turned(y: Any) -> Any:
            first, second = jnp.split(y, 2, -1)
            return jnp.concatenate([first * cos - second * sin, first * sin + second * cos], -1)

        k, v = jnp.split((norm(x, 1.0) @ kv).reshape(b, s, 2, -1, 80), 2, 2)
        k, v = turned(k[:, :, 0]), v[:, :, 0]
        queries = turned((norm(x, 1.0) @ q).reshape(b, s, -1, 80))
        wide = (jnp.repeat(part, queries.shape[2] // k.shape[2], 2) for part in (k, v))
        mask = jnp.where(jnp.tril(jnp.ones((s, s), bool)), 0.0, -1e9)
        x = x + attend(queries, *wide, mask).reshape(b, s, -1) @ out
        y = norm(x, 1.0)
        return x + (jax.nn.silu(y @ gate) * (y @ up)) @ down, k, v

    d, inner = 1600, 4300
    weights = (weight(d, 1600), weight(d, 640), weight(1600, d))
    gates = (weight(d, inner), weight(d, inner), weight(inner, d))
    yield "rotated", program(rotated, Arg((3, 850, d), BF16), *weights, *gates)
