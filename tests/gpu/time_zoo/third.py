"""A third zoo, for evaluation only, of families that the other two lack.

It was written before any of its programs ran: no calibration and no fit has used them. They have
not been timed yet.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from xlapipe.running.calibration.timed_program import Arg, TimedProgram

F32, BF16, I32 = jnp.float32, jnp.bfloat16, jnp.int32
Zoo = Iterator[tuple[str, TimedProgram]]


def third_programs() -> dict[str, TimedProgram]:
    """Every program, by FAMILY/NAME."""
    families = (
        *(boosting, capsules, control, detection, evolution, finance, hashing, lattices, memories),
        *(
            molecules,
            segmentation,
            sets,
            speech,
            splats,
            tomography,
            triplets,
            windows,
            long_filters,
        ),
    )
    return {
        f"{family.__name__}/{name}": program for family in families for name, program in family()
    }


def program(fn: Any, *args: Any) -> TimedProgram:
    return TimedProgram(fn, args)


def boosting() -> Zoo:
    """Trees: histograms of gradients, and the evaluation of an ensemble."""

    def histograms(bins: Any, gradient: Any, node: Any) -> Any:
        place = node[:, None] * 64 + bins + jnp.arange(bins.shape[1]) * 64 * 8
        both = jnp.stack([gradient, gradient * gradient], -1)
        both = jnp.broadcast_to(both[:, None], (*place.shape, 2))
        sums = jnp.zeros((bins.shape[1] * 8 * 64, 2)).at[place].add(both)
        left = jnp.cumsum(sums.reshape(bins.shape[1], 8, 64, 2), 2)
        gain = left[..., 0] ** 2 / (left[..., 1] + 1)
        return jnp.argmax(gain.reshape(bins.shape[1], 8, -1), -1)

    bins = Arg((60000, 24), I32, below=64)
    yield "histograms", program(histograms, bins, Arg((60000,)), Arg((60000,), I32, below=8))

    def evaluate(x: Any, features: Any, thresholds: Any, leaves: Any) -> Any:
        bits = (x[:, features] > thresholds).astype(I32)
        index = (bits * (1 << jnp.arange(6))).sum(-1)
        return jnp.take_along_axis(leaves[None], index[..., None], 2)[..., 0].sum(1)

    features = Arg((128, 6), I32, below=40)
    yield (
        "ensemble",
        program(evaluate, Arg((8192, 40)), features, Arg((128, 6)), Arg((128, 64))),
    )


def capsules() -> Zoo:
    def routed(w: Any, u: Any) -> Any:
        votes = jnp.einsum("bid,ijdk->bijk", u, w)
        logits = jnp.zeros(votes.shape[:3])
        for _ in range(3):
            s = (jax.nn.softmax(logits, 2)[..., None] * votes).sum(1)
            norm = (s * s).sum(-1, keepdims=True)
            v = norm / (1 + norm) * s * lax.rsqrt(norm + 1e-6)
            logits = logits + (votes * v[:, None]).sum(-1)
        return v

    args = Arg((512, 10, 8, 16), scale=0.1), Arg((64, 512, 8))
    yield "routing", program(routed, *args)
    yield "routing_gradient", program(jax.grad(lambda w, u: (routed(w, u) ** 2).sum()), *args)


def control() -> Zoo:
    """Linear-quadratic control: a recursion backwards, then a rollout."""

    def regulate(a: Any, b: Any, q: Any, x: Any) -> Any:
        def back(p: Any, _: Any) -> Any:
            gain = jnp.linalg.solve(jnp.eye(b.shape[1]) + b.T @ p @ b, b.T @ p @ a)
            return q + a.T @ p @ (a - b @ gain), gain

        def forward(x: Any, gain: Any) -> Any:
            x = x @ (a - b @ gain).T
            return x, x

        gains = lax.scan(back, q, None, length=40)[1]
        return lax.scan(forward, x, gains[::-1])[1]

    matrix = Arg((24, 24), scale=0.1, identity=0.9)
    yield "regulator", program(regulate, matrix, Arg((24, 6)), matrix, Arg((256, 24)))


def detection() -> Zoo:
    def loss(scores: Any, boxes: Any, anchors: Any, truth: Any) -> Any:
        low = jnp.maximum(anchors[:, None, :2], truth[None, :, :2])
        high = jnp.minimum(anchors[:, None, 2:], truth[None, :, 2:])
        overlap = jnp.maximum(high - low, 0).prod(-1)
        best = jnp.argmax(overlap, 1)
        label = overlap.max(1) > 0.5
        target = truth[best] - anchors
        distance = jnp.where(label[:, None], jnp.abs(boxes - target), 0).sum()
        p = jax.nn.sigmoid(scores)
        focal = jnp.where(label[:, None], -((1 - p) ** 2) * jnp.log(p), -(p**2) * jnp.log1p(-p))
        return focal.sum() + distance

    args = Arg((49104, 80)), Arg((49104, 4)), Arg((49104, 4)), Arg((32, 4))
    yield "anchors", program(jax.value_and_grad(loss, (0, 1)), *args)


def evolution() -> Zoo:
    def step(ws: Any, key: Any, x: Any, y: Any) -> Any:
        keys = jax.random.split(key, len(ws))
        noise = [jax.random.normal(k, (64, *w.shape)) for k, w in zip(keys, ws, strict=True)]

        def fitness(parts: Any) -> Any:
            h = x
            for w, e in zip(ws, parts, strict=True):
                h = jnp.tanh(h @ (w + 0.1 * e))
            return -((h - y) ** 2).mean()

        scores = jax.vmap(fitness)(noise)
        rank = jnp.argsort(jnp.argsort(scores)) / 64 - 0.5
        return [w + jnp.tensordot(rank, e, 1) for w, e in zip(ws, noise, strict=True)]

    ws = [Arg((128, 256), scale=0.1), Arg((256, 16), scale=0.1)]
    key = Arg((2,), jnp.uint32, below=1 << 30)
    yield "strategies", program(step, ws, key, Arg((512, 128)), Arg((512, 16)))


def finance() -> Zoo:
    def price(spot: Any, vol: Any, key: Any) -> Any:
        z = jax.random.normal(key, (65536, 64))
        path = jnp.exp(jnp.cumsum((0.02 - vol**2 / 2) / 64 + vol / 8 * z, 1))
        return jnp.maximum((spot * path).mean(1) - 1.0, 0).mean()

    key = Arg((2,), jnp.uint32, below=1 << 30)
    yield "asian_option", program(jax.value_and_grad(price, (0, 1)), Arg(()), Arg(()), key)


def hashing() -> Zoo:
    def bag(table: Any, tokens: Any, w: Any) -> Any:
        rows = [table[(tokens * m + 7) % table.shape[0]] for m in (31, 1009, 40503)]
        h = sum(rows).mean(1)
        return jax.nn.log_softmax(h @ w)[:, 0].mean()

    table, tokens = Arg((1 << 16, 64)), Arg((2048, 50), I32, below=1 << 20)
    args = table, tokens, Arg((64, 1000))
    yield "bags", program(bag, *args)
    yield "bags_gradient", program(jax.grad(bag, (0, 2)), *args)


def lattices() -> Zoo:
    def ising(s: Any, key: Any) -> Any:
        index = jnp.arange(s.shape[0])
        parity = (index[:, None] + index[None]) % 2
        for half in (0, 1):
            near = sum(jnp.roll(s, d, a) for d in (1, -1) for a in (0, 1))
            accept = jax.random.uniform(jax.random.fold_in(key, half), s.shape)
            flip = (accept < jnp.exp(-0.88 * s * near)) & (parity == half)
            s = jnp.where(flip, -s, s)
        return s, s.mean()

    key = Arg((2,), jnp.uint32, below=1 << 30)
    yield "ising", program(ising, Arg((2048, 2048)), key)

    steps = [(x, y) for x in (0, 1, -1) for y in (0, 1, -1)]

    def boltzmann(f: Any) -> Any:
        for _ in range(4):
            f = jnp.stack([jnp.roll(f[n], step, (0, 1)) for n, step in enumerate(steps)])
            density = f.sum(0)
            u = sum(f[n] * x for n, (x, _) in enumerate(steps)) / density
            v = sum(f[n] * y for n, (_, y) in enumerate(steps)) / density
            speed = 1.5 * (u * u + v * v)
            rest = jnp.stack(
                [
                    density * (1 + 3 * (x * u + y * v) + 4.5 * (x * u + y * v) ** 2 - speed) / 9
                    for x, y in steps
                ]
            )
            f = f + 0.6 * (rest - f)
        return f

    yield "boltzmann", program(boltzmann, Arg((9, 768, 768)))


def memories() -> Zoo:
    """Reads and writes of a memory by content, step by step."""

    def run(memory: Any, xs: Any, w: Any) -> Any:
        def step(memory: Any, x: Any) -> Any:
            key, erase, add = jnp.split(x @ w, 3, -1)
            match = jnp.einsum("bnd,bd->bn", memory, key)
            match = match * lax.rsqrt((memory * memory).sum(-1) + 1e-6)
            weight = jax.nn.softmax(match)[..., None]
            read = (weight * memory).sum(1)
            memory = memory * (1 - weight * jax.nn.sigmoid(erase)[:, None])
            return memory + weight * add[:, None], read

        return lax.scan(step, memory, xs)[1]

    args = Arg((32, 128, 64)), Arg((48, 32, 64)), Arg((64, 192), scale=0.1)
    yield "turing", program(run, *args)


def molecules() -> Zoo:
    def energy(x: Any, pairs: Any) -> Any:
        d = x[pairs[:, 0]] - x[pairs[:, 1]]
        r2 = (d * d).sum(-1) + 0.1
        inverse = 1 / (r2 * r2 * r2)
        return jnp.where(r2 < 4, inverse * (inverse - 1), 0).sum()

    pairs = Arg((400000, 2), I32, below=16000)
    yield "lennard_jones", program(jax.value_and_grad(energy), Arg((16000, 3)), pairs)

    def filtered(ws: Any, h: Any, x: Any, pairs: Any) -> Any:
        d = jnp.sqrt(((x[pairs[:, 0]] - x[pairs[:, 1]]) ** 2).sum(-1) + 1e-3)
        basis = jnp.exp(-((d[:, None] - jnp.linspace(0, 5, 32)) ** 2))
        for a, b, c in ws:
            weight = jax.nn.softplus(basis @ a) @ b
            message = h[pairs[:, 1]] * weight
            h = h + jax.nn.softplus(jax.ops.segment_sum(message, pairs[:, 0], h.shape[0]) @ c)
        return h.sum()

    ws = [(Arg((32, 64), scale=0.1), Arg((64, 64), scale=0.1), Arg((64, 64), scale=0.1))] * 2
    args = ws, Arg((4096, 64)), Arg((4096, 3)), Arg((65536, 2), I32, below=4096)
    yield "filters_gradient", program(jax.grad(filtered), *args)


def segmentation() -> Zoo:
    def loss(w: Any, x: Any, labels: Any) -> Any:
        y = lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        y = jax.image.resize(y.astype(F32), (8, 256, 256, 21), "bilinear")
        p, hot = jax.nn.softmax(y), jax.nn.one_hot(labels, 21)
        both = (p * hot).sum((1, 2))
        return 1 - (2 * both / (p.sum((1, 2)) + hot.sum((1, 2)) + 1)).mean()

    x, labels = Arg((8, 64, 64, 128), BF16), Arg((8, 256, 256), I32, below=21)
    yield "dice", program(jax.value_and_grad(loss), Arg((3, 3, 128, 21), BF16, 0.05), x, labels)


def sets() -> Zoo:
    def pooled(ws: Any, queries: Any, x: Any) -> Any:
        for key, value, out in ws:
            scores = jnp.einsum("qd,bnd->bqn", queries, x @ key) / 16
            weight = jax.nn.softmax(scores.astype(F32)).astype(BF16)
            read = jnp.einsum("bqn,bnd->bqd", weight, x @ value)
            x = jnp.concatenate([x, read @ out], 1)
        return (x.astype(F32) ** 2).mean()

    ws = [(Arg((256, 256), BF16, 0.05),) * 3] * 3
    args = ws, Arg((32, 256), BF16), Arg((16, 2000, 256), BF16)
    yield "pooling_gradient", program(jax.grad(pooled), *args)


def speech() -> Zoo:
    def features(mel: Any, wave: Any) -> Any:
        frames = wave[:, jnp.arange(400) + 160 * jnp.arange(600)[:, None]] * jnp.hanning(400)
        power = jnp.abs(jnp.fft.rfft(frames, 512)) ** 2
        logs = jnp.log(power @ mel + 1e-5)
        return (logs - logs.mean(1, keepdims=True)) / (logs.std(1, keepdims=True) + 1e-3)

    yield "features", program(features, Arg((257, 80)), Arg((16, 96400)))

    def gated(ws: Any, x: Any) -> Any:
        for w, v in ws:
            y = lax.conv_general_dilated(
                x, w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
            )
            a, b = jnp.split(y, 2, -1)
            x = x + (a * jax.nn.sigmoid(b)) @ v
        return (x.astype(F32) ** 2).mean()

    ws = [(Arg((5, 192, 384), BF16, 0.05), Arg((192, 192), BF16, 0.05))] * 4
    yield "gated_gradient", program(jax.grad(gated), ws, Arg((16, 800, 192), BF16))


def splats() -> Zoo:
    def render(centre: Any, shape: Any, colour: Any) -> Any:
        y, x = jnp.meshgrid(jnp.linspace(-1, 1, 96), jnp.linspace(-1, 1, 96), indexing="ij")
        at = jnp.stack([x, y], -1).reshape(-1, 1, 2) - centre
        weight = jnp.exp(-(at**2 * jnp.exp(shape)).sum(-1))
        alpha = jnp.clip(weight, 0, 0.99)
        through = jnp.exp(jnp.cumsum(jnp.log1p(-alpha), 1))
        return (alpha * through) @ colour

    args = Arg((256, 2)), Arg((256, 2)), Arg((256, 3))
    yield "render", program(render, *args)
    loss = jax.grad(lambda *a: (render(*a) ** 2).mean(), (0, 1, 2))
    yield "render_gradient", program(loss, *args)


def tomography() -> Zoo:
    def project(image: Any, angles: Any) -> Any:
        grid = jnp.linspace(-1, 1, image.shape[0])
        u, t = jnp.meshgrid(grid, grid, indexing="ij")

        def line(angle: Any) -> Any:
            x = (jnp.cos(angle) * u - jnp.sin(angle) * t + 1) * (image.shape[0] - 1) / 2
            y = (jnp.sin(angle) * u + jnp.cos(angle) * t + 1) * (image.shape[0] - 1) / 2
            return jax.scipy.ndimage.map_coordinates(image, [x, y], 1).sum(1)

        return jax.vmap(line)(angles)

    yield "projections", program(project, Arg((256, 256)), Arg((60,)))


def triplets() -> Zoo:
    def loss(x: Any, labels: Any) -> Any:
        x = x * lax.rsqrt((x * x).sum(1, keepdims=True) + 1e-6)
        distance = 2 - 2 * x @ x.T
        same = labels[:, None] == labels[None]
        far = jnp.where(same, distance, -1.0).max(1)
        near = jnp.where(same, 9.0, distance).min(1)
        return jax.nn.relu(far - near + 0.2).mean()

    args = Arg((3000, 128)), Arg((3000,), I32, below=200)
    yield "hardest", program(jax.value_and_grad(loss), *args)


def windows() -> Zoo:
    """Attention in shifted windows of an image."""

    def block(w: Any, o: Any, bias: Any, x: Any) -> Any:
        x = jnp.roll(x, (-4, -4), (1, 2))
        parts = x.reshape(16, 7, 8, 7, 8, 128).transpose(0, 1, 3, 2, 4, 5).reshape(784, 64, 128)
        q, k, v = jnp.split((parts @ w).reshape(784, 64, 4, 96), 3, -1)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(F32) / 6 + bias
        y = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(BF16), v)
        y = y.reshape(16, 7, 7, 8, 8, 128).transpose(0, 1, 3, 2, 4, 5).reshape(16, 56, 56, 128)
        return x + y @ o

    args = (
        *(Arg((128, 384), BF16, 0.05), Arg((128, 128), BF16, 0.05), Arg((4, 64, 64))),
        Arg((16, 56, 56, 128), BF16),
    )
    yield "shifted", program(block, *args)
    loss = jax.grad(lambda *a: (block(*a).astype(F32) ** 2).mean(), (0, 1, 2, 3))
    yield "shifted_gradient", program(loss, *args)


def long_filters() -> Zoo:
    def mixed(x: Any, filters: Any, w: Any) -> Any:
        a, b, c = jnp.split(x @ w, 3, -1)
        spectrum = jnp.fft.rfft(a * b, 4096, axis=1) * jnp.fft.rfft(filters, 4096, axis=0)
        return jnp.fft.irfft(spectrum, axis=1)[:, :2048] * c

    yield "filters", program(mixed, Arg((4, 2048, 256)), Arg((2048, 256)), Arg((256, 768)))
