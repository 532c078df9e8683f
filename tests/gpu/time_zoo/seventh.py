"""A seventh zoo: whole steps of mainstream machine learning, as public projects write them.

It was written without a look at the predictor or its calibration, to be timed once: no
calibration and no fit has used its programs.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from fourth import attend, norm, program, weight
from jax import lax
from sixth import convolved, full, kernel

from xlapipe.running.calibration.timed_program import Arg, TimedProgram

F32, BF16, I32 = jnp.float32, jnp.bfloat16, jnp.int32
U8, U32 = jnp.uint8, jnp.uint32
Zoo = Iterator[tuple[str, TimedProgram]]
_KEY = Arg((2,), U32, below=1 << 30)


def seventh_programs() -> dict[str, TimedProgram]:
    """Every program, by FAMILY/NAME."""
    families = (
        *(pretraining, replies, translation, listening, backbones, samplers, autoencoding),
        *(selfteaching, players, scanned, routing, atoms, bidders, preferences, detectors),
        *(scenes, stepping),
    )
    return {
        f"{family.__name__}/{name}": program for family in families for name, program in family()
    }


def adam(params: Any, state: Any, gradient: Any, decay: float = 0.0) -> tuple[Any, Any]:
    """New parameters and moments, which are in float32."""
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g.astype(F32), state[0], gradient)
    second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g.astype(F32) ** 2, state[1], gradient)

    def moved(p: Any, m: Any, v: Any) -> Any:
        wide = p.astype(F32)
        return (wide - 3e-4 * (m / (jnp.sqrt(v) + 1e-8) + decay * wide)).astype(p.dtype)

    return jax.tree.map(moved, params, first, second), (first, second)


def moments(params: Any) -> tuple[Any, Any]:
    """The state of `adam`, before its first step."""
    zeros = jax.tree.map(lambda arg: Arg(arg.shape, F32, scale=0.0), params)
    return zeros, zeros


def entropy(logits: Any, labels: Any) -> Any:
    logits = logits.astype(F32)
    picked = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return jax.nn.logsumexp(logits, -1) - picked


def block(x: Any, p: Any, size: int, bias: Any = 0.0) -> Any:
    """Attention in heads of `size`, and a feed-forward part."""
    b, s, d = x.shape
    parts = (norm(x, p["scale"][0]) @ p["qkv"]).reshape(b, s, 3, -1, size)
    x = x + attend(parts[:, :, 0], parts[:, :, 1], parts[:, :, 2], bias).reshape(b, s, d) @ p["out"]
    return x + jax.nn.gelu(norm(x, p["scale"][1]) @ p["up"]) @ p["down"]


def layers(n: int, d: int, dtype: Any) -> dict[str, Arg]:
    """The stacked weights of blocks."""
    shapes = {"qkv": (n, d, 3 * d), "out": (n, d, d), "up": (n, d, 4 * d), "down": (n, 4 * d, d)}
    found = {name: weight(*shape, dtype=dtype) for name, shape in shapes.items()}
    return found | {"scale": Arg((n, 2, d), F32)}


def causal(size: int) -> Any:
    return jnp.where(jnp.tril(jnp.ones((size, size), bool)), 0.0, -1e9)


def rms(x: Any, scale: Any) -> Any:
    wide = x.astype(F32)
    return (wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def turned(x: Any, places: Any) -> Any:
    """Rotated positions, of BATCH x TIMES x HEADS x SIZE."""
    half = x.shape[-1] // 2
    angle = places[..., None, None] * 1e4 ** (-jnp.arange(half, dtype=F32) / half)
    one, two = x[..., :half].astype(F32), x[..., half:].astype(F32)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([one * cos - two * sin, two * cos + one * sin], -1).astype(x.dtype)


def pretraining() -> Zoo:
    """Masked words with Adam, and letters by gradients summed over three parts of a batch."""

    def bert(params: Any, state: Any, words: Any, kinds: Any, places: Any, goals: Any) -> Any:
        def loss(params: Any) -> Any:
            x = params["words"][words] + params["kinds"][kinds] + params["places"]
            x = norm(x, 1.0)
            for n in range(4):
                x = block(x, jax.tree.map(lambda w, n=n: w[n], params["layers"]), 64)
            x = jnp.take_along_axis(x, places[..., None], 1)
            x = norm(jax.nn.gelu(x @ params["mix"]), 1.0)
            return entropy(x @ params["words"].T + params["bias"], goals).mean()

        value, gradient = jax.value_and_grad(loss)(params)
        return *adam(params, state, gradient, 0.01), value

    d = 768
    params = {"layers": layers(4, d, BF16), "mix": weight(d, d), "bias": Arg((30522,), BF16)}
    params |= {"words": Arg((30522, d), BF16, scale=0.03), "kinds": Arg((2, d), BF16, scale=0.03)}
    params |= {"places": Arg((128, d), BF16, scale=0.03)}
    ids = (Arg((28, 128), I32, below=30522), Arg((28, 128), I32, below=2))
    goals = (Arg((28, 20), I32, below=128), Arg((28, 20), I32, below=30522))
    yield "bert", program(bert, params, moments(params), *ids, *goals)

    def letters(params: Any, state: Any, parts: Any) -> Any:
        def loss(params: Any, ids: Any) -> Any:
            x = params["letters"][ids] + params["places"]
            mask = causal(ids.shape[1])
            x, _ = lax.scan(lambda x, p: (block(x, p, 64, mask), None), x, params["layers"])
            return entropy((x @ params["letters"].T)[:, :-1], ids[:, 1:]).mean()

        def add(total: Any, ids: Any) -> Any:
            value, gradient = jax.value_and_grad(loss)(params, ids)
            return jax.tree.map(jnp.add, total, gradient), value

        total, values = lax.scan(add, jax.tree.map(jnp.zeros_like, params), parts)
        length = jnp.sqrt(sum((g * g).sum() for g in jax.tree.leaves(total)))
        total = jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / length), total)
        return *adam(params, state, total, 0.1), values.mean()

    params = {"layers": layers(4, 384, F32), "letters": Arg((65, 384), scale=0.05)}
    params |= {"places": Arg((256, 384), scale=0.05)}
    yield "letters", program(letters, params, moments(params), Arg((3, 12, 256), I32, below=65))


def replies() -> Zoo:
    """A prompt with its cache, tokens one by one, and a step of a beam search with its cache."""
    parts = ("q", "kv", "out", "gates", "down", "scale")

    def stack(n: int, d: int, heads: int, groups: int, inner: int) -> dict[str, Arg]:
        shapes = (d, heads * 64), (d, groups * 128), (heads * 64, d), (d, 2 * inner), (inner, d)
        found = {part: weight(n, *shape) for part, shape in zip(parts, shapes, strict=False)}
        return found | {"scale": Arg((n, 2, d), F32)}

    def queries(x: Any, p: Any, places: Any) -> Any:
        b, s, _ = x.shape
        x = rms(x, p["scale"][0])
        k, v = jnp.split((x @ p["kv"]).reshape(b, s, -1, 128), 2, -1)
        return turned((x @ p["q"]).reshape(b, s, -1, 64), places), turned(k, places), v

    def read(x: Any, p: Any, q: Any, k: Any, v: Any, seen: Any) -> Any:
        """The rest of a layer, where groups of queries share keys and values."""
        b, s, h, d = q.shape
        q = q.reshape(b, s, k.shape[2], -1, d)
        scores = jnp.einsum("bqghd,bkgd->bghqk", q, k).astype(F32) * d**-0.5
        shares = jax.nn.softmax(jnp.where(seen, scores, -1e9), -1).astype(v.dtype)
        x = x + jnp.einsum("bghqk,bkgd->bqghd", shares, v).reshape(b, s, h * d) @ p["out"]
        gate, value = jnp.split(rms(x, p["scale"][1]) @ p["gates"], 2, -1)
        return x + (jax.nn.silu(gate) * value) @ p["down"]

    def prompt(params: Any, table: Any, head: Any, ids: Any, lengths: Any) -> Any:
        places = jnp.arange(ids.shape[1])
        seen = places <= places[:, None]

        def layer(x: Any, p: Any) -> Any:
            q, k, v = queries(x, p, places)
            return read(x, p, q, k, v, seen), (k, v)

        x, cache = lax.scan(layer, table[ids], params)
        last = jnp.take_along_axis(x, lengths[:, None, None], 1)[:, 0]
        return (rms(last, 1.0) @ head).astype(F32), cache

    d = 2048
    given = (stack(3, d, 32, 4, 5632), Arg((32000, d), BF16), weight(d, 32000))
    ids = (Arg((2, 730), I32, below=32000), Arg((2,), I32, below=730))
    yield "prompt", program(prompt, *given, *ids)

    def greedy(cache: Any, params: Any, table: Any, ids: Any, lengths: Any) -> Any:
        put = jax.vmap(lambda old, new, at: lax.dynamic_update_slice(old, new, (at, 0, 0)))

        def token(carry: Any, _: Any) -> Any:
            cache, ids, lengths = carry

            def layer(x: Any, given: Any) -> Any:
                p, old_k, old_v = given
                q, k, v = queries(x, p, lengths[:, None])
                k, v = put(old_k, k, lengths), put(old_v, v, lengths)
                seen = (jnp.arange(k.shape[1]) <= lengths[:, None])[:, None, None, None]
                return read(x, p, q, k, v, seen), (k, v)

            x, cache = lax.scan(layer, table[ids][:, None], (params, *cache))
            ids = (rms(x[:, 0], 1.0) @ table.T).astype(F32).argmax(-1).astype(I32)
            return (cache, ids, lengths + 1), ids

        return lax.scan(token, (cache, ids, lengths), None, length=5)

    cache = (Arg((6, 18, 1100, 4, 64), BF16),) * 2
    ids = (Arg((18,), I32, below=50304), Arg((18,), I32, below=1000))
    given = (stack(6, 1024, 16, 4, 2816), Arg((50304, 1024), BF16, scale=0.03))
    yield "greedy", program(greedy, cache, *given, *ids)

    def reordered(
        cache: Any, x: Any, head: Any, totals: Any, texts: Any, done: Any, at: Any
    ) -> Any:
        b, n = totals.shape
        logs = jax.nn.log_softmax(x @ head, -1).reshape(b, n, -1)
        size = logs.shape[-1]
        ended = jnp.where(jnp.arange(size) == 2, 0.0, -1e7)
        logs = jnp.where(done[..., None] > 0, ended, logs)
        logs = (logs + totals[..., None]).reshape(b, -1)
        best, index = lax.top_k(logs, n)
        parent, word = index // size, index % size
        rows = jnp.arange(b)[:, None]
        cache = jax.tree.map(lambda part: part[:, rows, parent], cache)
        texts = jnp.take_along_axis(texts, parent[..., None], 1)
        texts = lax.dynamic_update_slice(texts, word[..., None].astype(I32), (0, 0, at[0]))
        done = jnp.take_along_axis(done, parent, 1) | (word == 2)
        length = jnp.where(texts == 2, 0, 1).sum(-1)
        return cache, best, best / ((5.0 + length) / 6.0) ** 0.6, texts, done

    cache = (Arg((4, 9, 5, 380, 8, 64)),) * 2
    state = (Arg((9, 5)), Arg((9, 5, 140), I32, below=32128), Arg((9, 5), I32, below=2))
    rest = (full(512, 32128), *state, Arg((1,), I32, below=140))
    yield "reordered", program(reordered, cache, Arg((45, 512)), *rest)


def translation() -> Zoo:
    """An encoder and a decoder whose distances are in buckets, which learn with Adam."""

    def near(table: Any, q: int, k: int, both: bool) -> Any:
        gap = jnp.arange(k) - jnp.arange(q)[:, None]
        count = 16 if both else 32
        start = jnp.where(gap > 0, count, 0) if both else 0
        gap = jnp.abs(gap) if both else -jnp.minimum(gap, 0)
        part = jnp.log(jnp.maximum(gap, 1) / (count // 2)) / jnp.log(128 / (count // 2))
        far = jnp.minimum(count // 2 + (part * (count // 2)).astype(I32), count - 1)
        return table[start + jnp.where(gap < count // 2, gap, far)].transpose(2, 0, 1)

    def mixed(x: Any, given: Any, w: Any, bias: Any) -> Any:
        b, s, _ = x.shape
        q = (x @ w[0]).reshape(b, s, -1, 64)
        k, v = ((given @ part).reshape(*given.shape[:2], -1, 64) for part in w[1:3])
        return attend(q, k, v, bias).reshape(b, s, -1) @ w[3].T

    def gated(x: Any, w: Any) -> Any:
        return (jax.nn.gelu(rms(x, 1.0) @ w[0]) * (rms(x, 1.0) @ w[1])) @ w[2].T

    def step(params: Any, state: Any, source: Any, goal: Any) -> Any:
        def loss(params: Any) -> Any:
            x = params["words"][source]
            hidden = jnp.where(source > 0, 0.0, -1e9)[:, None, None]
            bias = near(params["near"], x.shape[1], x.shape[1], True) + hidden
            for own, wide in params["encoder"]:
                x = x + mixed(rms(x, 1.0), rms(x, 1.0), own, bias)
                x = x + gated(x, wide)
            x, y = rms(x, 1.0), params["words"][jnp.pad(goal, ((0, 0), (1, 0)))[:, :-1]]
            size = goal.shape[1]
            bias = near(params["past"], size, size, False) + causal(size)
            for own, other, wide in params["decoder"]:
                y = y + mixed(rms(y, 1.0), rms(y, 1.0), own, bias)
                y = y + mixed(rms(y, 1.0), x, other, hidden)
                y = y + gated(y, wide)
            lost = entropy(rms(y, 1.0) * y.shape[-1] ** -0.5 @ params["words"].T, goal)
            return (lost * (goal > 0)).sum() / (goal > 0).sum()

        value, gradient = jax.value_and_grad(loss)(params)
        return *adam(params, state, gradient), value

    own, wide = [full(512, 384)] * 4, [full(512, 1024)] * 3
    params = {"encoder": [(own, wide)] * 2, "decoder": [(own, own, wide)] * 2}
    params |= {"words": Arg((32128, 512)), "near": Arg((32, 6)), "past": Arg((32, 6))}
    ids = (Arg((14, 150), I32, below=32128), Arg((14, 110), I32, below=32128))
    yield "buckets", program(step, params, moments(params), *ids)


def listening() -> Zoo:
    """An encoder of spectrograms with the keys of its decoder, and the loss of a transducer."""

    def encoder(mels: Any, kernels: Any, params: Any, crosses: Any) -> Any:
        x, names = mels, ("NWC", "WIO", "NWC")
        for stride, w in zip((1, 2), kernels, strict=True):
            x = jax.nn.gelu(
                lax.conv_general_dilated(x, w, (stride,), [(1, 1)], dimension_numbers=names)
            )
        half = x.shape[-1] // 2
        angle = jnp.arange(x.shape[1])[:, None] * 1e4 ** (-jnp.arange(half) / (half - 1))
        x = x + jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1).astype(x.dtype)
        x, _ = lax.scan(lambda x, p: (block(x, p, 64), None), x, params)
        x = norm(x, 1.0)
        return jnp.einsum("bsd,nde->nbse", x, crosses).reshape(4, *x.shape[:2], 2, 8, 64)

    d = 512
    given = ([kernel(3, 80, d), kernel(3, d, d)], layers(4, d, BF16), weight(4, d, 2 * d))
    yield "encoder", program(encoder, Arg((5, 3000, 80), BF16), *given)

    def transducer(params: Any, frames: Any, labels: Any, times: Any, counts: Any) -> Any:
        def loss(params: Any) -> Any:
            past = jnp.pad(labels, ((0, 0), (2, 0)))
            past = jnp.stack([past[:, 1:], past[:, :-1]], 2)
            y = params["labels"][past].reshape(*past.shape[:2], -1) @ params["past"]
            x = jnp.tanh((frames @ params["frames"])[:, :, None] + y[:, None])
            logs = jax.nn.log_softmax(x @ params["head"], -1)
            blank, index = logs[..., 0], jnp.pad(labels, ((0, 0), (0, 1)))
            said = jnp.take_along_axis(logs, index[:, None, :, None], -1)[..., 0]
            said = jnp.pad(jnp.cumsum(said, -1), ((0, 0), (0, 0), (1, 0)))[..., :-1]

            def move(alpha: Any, row: Any) -> Any:
                said, blank = row
                alpha = said + lax.cumlogsumexp(alpha - said, 1)
                return alpha + blank, alpha + blank

            start = jnp.where(jnp.arange(said.shape[-1]) == 0, 0.0, -1e6)
            start = jnp.broadcast_to(start, said[:, 0].shape)
            _, found = lax.scan(move, start, (said.swapaxes(0, 1), blank.swapaxes(0, 1)))
            return -found[times, jnp.arange(times.shape[0]), counts].mean()

        return jax.value_and_grad(loss)(params)

    params = {"labels": Arg((400, 256)), "past": full(512, 320), "frames": full(288, 320)}
    params |= {"head": full(320, 400)}
    batch = (Arg((11, 140, 288)), Arg((11, 28), I32, below=400))
    ends = (Arg((11,), I32, below=140), Arg((11,), I32, below=29))
    yield "transducer", program(transducer, params, *batch, *ends)


def backbones() -> Zoo:
    """Wide depthwise kernels with mixed pictures, and layers that see all before them."""

    def step(params: Any, state: Any, mean: Any, pictures: Any, labels: Any, share: Any) -> Any:
        def deep(x: Any, p: Any) -> Any:
            y = norm(convolved(x, p["deep"], 1, x.shape[-1]), p["scale"])
            return x + p["gain"].astype(BF16) * (jax.nn.gelu(y @ p["up"]) @ p["down"])

        def loss(params: Any) -> Any:
            part = jax.nn.sigmoid(share)[:, None, None, None].astype(BF16)
            x = pictures * part + jnp.roll(pictures, 1, 0) * (1 - part)
            for first, blocks in params["stages"]:
                x = norm(convolved(x, first, first.shape[0]), 1.0)
                for p in blocks:
                    x = jax.checkpoint(deep)(x, p)
            logits, part = norm(x.mean((1, 2)), 1.0) @ params["head"], part.ravel()
            lost = entropy(logits, labels) * part + entropy(logits, jnp.roll(labels, 1)) * (
                1 - part
            )
            return lost.mean()

        value, gradient = jax.value_and_grad(loss)(params)
        params, state = adam(params, state, gradient, 0.05)
        mean = jax.tree.map(lambda m, p: 0.9999 * m + 1e-4 * p.astype(F32), mean, params)
        return params, state, mean, value

    stages = []
    for size, before, d in ((4, 3, 96), (2, 96, 192), (2, 192, 384)):
        p = {"deep": kernel(7, 7, 1, d), "scale": Arg((d,)), "gain": Arg((d,), scale=0.1)}
        p |= {"up": weight(d, 4 * d), "down": weight(4 * d, d)}
        stages.append((kernel(size, size, before, d), [p] * 2))
    params = {"stages": stages, "head": weight(384, 1000)}
    mean = jax.tree.map(lambda arg: Arg(arg.shape, scale=0.05), params)
    batch = (Arg((14, 224, 224, 3), BF16), Arg((14,), I32, below=1000), Arg((14,)))
    yield "mixed_up", program(step, params, moments(params), mean, *batch)

    def dense(params: Any, speeds: Any, means: Any, pictures: Any, labels: Any) -> Any:
        def loss(params: Any) -> Any:
            seen = []

            def active(x: Any, p: Any) -> Any:
                mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
                seen.append(jnp.stack([mean, var]))
                return jax.nn.relu((x - mean) * lax.rsqrt(var + 1e-5) * p[0] + p[1])

            x = convolved(pictures, params["first"])
            for blocks, between in params["stages"]:
                for scale, narrow, wide_scale, wide in blocks:
                    y = convolved(active(x, scale), narrow)
                    x = jnp.concatenate([x, convolved(active(y, wide_scale), wide)], -1)
                x = convolved(x, between)
                x = lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
            x = x.mean((1, 2)) @ params["head"]
            return entropy(x, labels).mean(), seen

        (value, seen), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        gradient = jax.tree.map(lambda p, g: g + 1e-4 * p, params, gradient)
        speeds = jax.tree.map(lambda m, g: 0.9 * m + g, speeds, gradient)
        params = jax.tree.map(lambda p, m, g: p - 0.1 * (0.9 * m + g), params, speeds, gradient)
        means = jax.tree.map(lambda m, s: 0.9 * m + 0.1 * s, means, seen)
        return params, speeds, means, value

    width, stages, means = 48, [], []
    for _ in range(2):
        blocks = []
        for _ in range(4):
            narrow, wide = kernel(1, 1, width, 96, dtype=F32), kernel(3, 3, 96, 24, dtype=F32)
            blocks.append((Arg((2, width)), narrow, Arg((2, 96)), wide))
            means += [Arg((2, width)), Arg((2, 96))]
            width += 24
        stages.append((blocks, kernel(1, 1, width, width // 2, dtype=F32)))
        width //= 2
    params = {"first": kernel(3, 3, 3, 48, dtype=F32), "stages": stages, "head": full(width, 100)}
    batch = (Arg((72, 32, 32, 3)), Arg((72,), I32, below=100))
    yield "concatenated", program(dense, params, moments(params)[0], means, *batch)


def samplers() -> Zoo:
    """Ten steps from noise to a picture of a class, by a small U."""

    def ddim(params: Any, x: Any, kinds: Any) -> Any:
        def grouped(x: Any) -> Any:
            b, h, w, c = x.shape
            y = x.astype(F32).reshape(b, h * w, 32, c // 32)
            y = (y - y.mean((1, 3), keepdims=True)) * lax.rsqrt(y.var((1, 3), keepdims=True) + 1e-5)
            return y.reshape(x.shape).astype(x.dtype)

        def residual(x: Any, p: Any, at: Any) -> Any:
            y = convolved(jax.nn.silu(grouped(x)), p["one"])
            scale, shift = jnp.split(at @ p["at"], 2, -1)
            y = grouped(y) * (1 + scale[:, None, None]) + shift[:, None, None]
            return x @ p["skip"] + convolved(jax.nn.silu(y), p["two"])

        def noise(x: Any, time: Any, kinds: Any) -> Any:
            angle = time * jnp.exp(-9.2 * jnp.arange(64) / 64)
            at = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)]).astype(BF16) @ params["time"]
            at = jax.nn.silu(at + params["kinds"][kinds])
            high = residual(convolved(x, params["in"]), params["high"], at)
            low = residual(convolved(high, params["down"], 2), params["low"], at)
            b, h, w, c = low.shape
            y = (grouped(low).reshape(b, h * w, c) @ params["qkv"]).reshape(b, h * w, 3, -1, 64)
            y = attend(y[:, :, 0], y[:, :, 1], y[:, :, 2]).reshape(low.shape)
            low = residual(low + y, params["low"], at)
            low = jax.image.resize(low, (b, 2 * h, 2 * w, c), "nearest")
            y = residual(jnp.concatenate([low, high], -1), params["up"], at)
            return convolved(jax.nn.silu(grouped(y)), params["out"]).astype(F32)

        def step(x: Any, time: Any) -> Any:
            now, then = (jnp.cos(t / 1000 * 1.5) ** 2 for t in (time, time - 100))
            twice = jnp.concatenate([x, x]).astype(BF16)
            both = jnp.concatenate([kinds, jnp.full_like(kinds, 1000)])
            given, free = jnp.split(noise(twice, time, both), 2)
            found = free + 4.0 * (given - free)
            clean = jnp.clip((x - jnp.sqrt(1 - now) * found) / jnp.sqrt(now), -3, 3)
            return jnp.sqrt(then) * clean + jnp.sqrt(1 - then) * found, None

        return lax.scan(step, x, jnp.linspace(1000.0, 100.0, 10))[0]

    def residual_params(before: int, after: int) -> dict[str, Arg]:
        found = {"one": kernel(3, 3, before, after), "two": kernel(3, 3, after, after)}
        return found | {"at": weight(512, 2 * after), "skip": weight(before, after)}

    params = {"time": weight(128, 512), "kinds": Arg((1001, 512), BF16), "in": kernel(3, 3, 4, 160)}
    params |= {"high": residual_params(160, 160), "low": residual_params(320, 320)}
    params |= {"up": residual_params(480, 160), "down": kernel(3, 3, 160, 320)}
    params |= {"qkv": weight(320, 960), "out": kernel(3, 3, 160, 4)}
    yield "guided", program(ddim, params, Arg((10, 32, 32, 4)), Arg((10,), I32, below=1000))


def autoencoding() -> Zoo:
    """Pictures through codes of a book, which follows the means of what it stands for."""

    def step(params: Any, state: Any, book: Any, sums: Any, counts: Any, pictures: Any) -> Any:
        def loss(params: Any) -> Any:
            x = pictures
            for w in params["down"]:
                x = jax.nn.relu(convolved(x, w, 2))
            for one, two in params["middle"]:
                x = x + convolved(jax.nn.relu(convolved(jax.nn.relu(x), one)), two)
            flat = x.reshape(-1, x.shape[-1])
            far = (flat**2).sum(1, keepdims=True) - 2 * flat @ book.T + (book**2).sum(1)
            codes = far.argmin(1)
            found = book[codes].reshape(x.shape)
            kept = ((lax.stop_gradient(found) - x) ** 2).mean()
            y = x + lax.stop_gradient(found - x)
            for w in params["up"]:
                y = lax.conv_transpose(jax.nn.relu(y), w, (2, 2), "SAME")
            return ((y - pictures) ** 2).mean() + 0.25 * kept, (codes, flat)

        (value, (codes, flat)), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        chosen = jax.nn.one_hot(codes, book.shape[0])
        counts = 0.99 * jnp.abs(counts) + 0.01 * chosen.sum(0)
        sums = 0.99 * sums + 0.01 * chosen.T @ flat
        total = counts.sum()
        smooth = (counts + 1e-5) / (total + book.shape[0] * 1e-5) * total
        share = chosen.mean(0)
        used = jnp.exp(-(share * jnp.log(share + 1e-10)).sum())
        params, state = adam(params, state, gradient)
        return params, state, sums / smooth[:, None], sums, counts, value, used

    def wide(*shape: int) -> Arg:
        return kernel(*shape, dtype=F32)

    params = {"down": [wide(4, 4, 3, 64), wide(4, 4, 64, 128)]}
    params |= {"middle": [(wide(3, 3, 128, 32), wide(1, 1, 32, 128))] * 2}
    params |= {"up": [wide(4, 4, 128, 64), wide(4, 4, 64, 3)]}
    books = (Arg((512, 128)), Arg((512, 128)), Arg((512,)))
    yield "book", program(step, params, moments(params), *books, Arg((36, 72, 72, 3)))


def selfteaching() -> Zoo:
    """A student of crops, whose teacher is the mean of its own past and sees more."""

    def step(params: Any, teacher: Any, centre: Any, large: Any, small: Any) -> Any:
        def features(params: Any, x: Any) -> Any:
            b, side = x.shape[0], x.shape[1] // 16
            x = x.reshape(b, side, 16, side, 16, 3).transpose(0, 1, 3, 2, 4, 5)
            x = x.reshape(b, side * side, 768) @ params["patch"]
            places = jax.image.resize(params["places"], (side, side, x.shape[-1]), "cubic")
            x = x + places.reshape(side * side, -1).astype(BF16)
            x = jnp.concatenate([jnp.broadcast_to(params["class"], (b, 1, x.shape[-1])), x], 1)
            x, _ = lax.scan(lambda x, p: (block(x, p, 64), None), x, params["layers"])
            x = jax.nn.gelu(x[:, 0] @ params["first"]) @ params["second"]
            length = jnp.linalg.norm(x.astype(F32), axis=-1, keepdims=True) + 1e-6
            return ((x / length.astype(BF16)) @ params["head"]).astype(F32)

        wanted = features(teacher, large)
        goals = jnp.split(jax.nn.softmax((wanted - centre) / 0.04, -1), 2)

        def loss(params: Any) -> Any:
            found = jnp.concatenate([features(params, large), features(params, small)]) / 0.1
            parts = jnp.split(jax.nn.log_softmax(found, -1), 6)
            pairs = [(n, m) for n in range(2) for m in range(6) if n != m]
            return -sum((goals[n] * parts[m]).sum(-1).mean() for n, m in pairs) / len(pairs)

        value, gradient = jax.value_and_grad(loss)(params)
        params = jax.tree.map(lambda p, g: (p - 0.01 * g).astype(p.dtype), params, gradient)
        teacher = jax.tree.map(
            lambda t, p: (0.996 * t + 0.004 * p).astype(t.dtype), teacher, params
        )
        return params, teacher, 0.9 * centre + 0.1 * wanted.mean(0), value

    d = 384
    params = {"patch": weight(768, d), "places": Arg((14, 14, d), scale=0.02)}
    params |= {"class": Arg((1, 1, d), BF16), "layers": layers(4, d, BF16)}
    params |= {"first": weight(d, 2048), "second": weight(2048, 256), "head": weight(256, 12000)}
    crops = (Arg((22, 224, 224, 3), BF16), Arg((44, 96, 96, 3), BF16))
    yield "crops", program(step, params, params, Arg((12000,), scale=0.1), *crops)


def players() -> Zoo:
    """Values as distributions with a replay, clipped policies, and a world that is imagined."""

    def replay(params: Any, old: Any, state: Any, memory: Any, priority: Any, draws: Any) -> Any:
        frames, acts, gains, ends = memory
        size = frames.shape[0]
        total = jnp.cumsum(jnp.abs(priority))
        index = jnp.searchsorted(total, jax.nn.sigmoid(draws) * total[-1])
        index = jnp.minimum(index, size - 8)
        near = frames[index[:, None] + jnp.arange(5)].transpose(0, 2, 3, 1).astype(F32) / 255
        values = jnp.linspace(-10.0, 10.0, 51)
        rows = jnp.arange(index.shape[0])

        def logits(params: Any, x: Any) -> Any:
            for w, stride in zip(params["kernels"], (4, 2, 1), strict=True):
                x = lax.conv_general_dilated(
                    x, w, (stride,) * 2, "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
                )
                x = jax.nn.relu(x)
            x = jax.nn.relu(x.reshape(x.shape[0], -1) @ params["wide"])
            side = (x @ params["gain"]).reshape(-1, 6, 51)
            return (x @ params["value"])[:, None] + side - side.mean(1, keepdims=True)

        best = (jax.nn.softmax(logits(params, near[..., 1:])) * values).sum(-1).argmax(-1)
        share = jax.nn.softmax(logits(old, near[..., 1:]))[rows, best]
        moved = gains[index, None] + 0.99 * (1 - ends[index, None]) * values
        apart = jnp.abs(jnp.clip(moved, -10, 10)[:, None] - values[:, None]) / 0.4
        goal = (jnp.clip(1 - apart, 0, 1) * share[:, None]).sum(-1)

        def loss(params: Any) -> Any:
            logs = jax.nn.log_softmax(logits(params, near[..., :4]))[rows, acts[index]]
            lost = -(goal * logs).sum(-1)
            fix = 1 / (jnp.abs(priority)[index] * size + 1e-3) ** 0.5
            return (fix / fix.max() * lost).mean(), lost

        gradient, lost = jax.grad(loss, has_aux=True)(params)
        params, state = adam(params, state, gradient)
        return params, state, priority.at[index].set(jnp.sqrt(lost + 1e-6))

    kernels = [kernel(*shape, dtype=F32) for shape in ((8, 8, 4, 32), (4, 4, 32, 64))]
    params = {"kernels": [*kernels, kernel(3, 3, 64, 64, dtype=F32)], "wide": full(3136, 512)}
    params |= {"value": full(512, 51), "gain": full(512, 6 * 51)}
    memory = (Arg((9000, 84, 84), U8, below=256), Arg((9000,), I32, below=6), Arg((9000,)))
    rest = ((*memory, Arg((9000,), scale=0.0)), Arg((9000,)), Arg((96,)))
    yield "replay", program(replay, params, params, moments(params), *rest)

    def proximal(params: Any, state: Any, seen: Any, acts: Any, gains: Any, key: Any) -> Any:
        def run(params: Any, x: Any) -> Any:
            for w, bias in params["body"]:
                x = jnp.tanh(x @ w + bias)
            return x @ params["mean"], (x @ params["value"])[..., 0]

        def logs(params: Any, mean: Any, acts: Any) -> Any:
            spread = params["spread"]
            return (-0.5 * ((acts - mean) * jnp.exp(-spread)) ** 2 - spread).sum(-1)

        mean, values = run(params, seen)
        before = logs(params, mean[:-1], acts)

        def back(carry: Any, row: Any) -> Any:
            gain, value, after = row
            carry = gain + 0.99 * after - value + 0.99 * 0.95 * carry
            return carry, carry

        rows = (gains, values[:-1], values[1:])
        _, better = lax.scan(back, jnp.zeros_like(gains[0]), rows, reverse=True)
        data = (seen[:-1], acts, before, better, better + values[:-1])
        data = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), data)

        def part(carry: Any, index: Any) -> Any:
            params, state = carry
            x, acts, before, better, goal = jax.tree.map(lambda x: x[index], data)
            better = (better - better.mean()) / (better.std() + 1e-8)

            def loss(params: Any) -> Any:
                mean, value = run(params, x)
                ratio = jnp.exp(logs(params, mean, acts) - before)
                least = jnp.minimum(ratio * better, jnp.clip(ratio, 0.8, 1.2) * better)
                return ((value - goal) ** 2).mean() - least.mean() - 0.01 * params["spread"].sum()

            value, gradient = jax.value_and_grad(loss)(params)
            return adam(params, state, gradient), value

        def epoch(carry: Any, key: Any) -> Any:
            order = jax.random.permutation(key, data[2].shape[0]).reshape(4, -1)
            return lax.scan(part, carry, order)

        return lax.scan(epoch, (params, state), jax.random.split(key, 3))

    params = {"body": [(full(60, 256), Arg((256,))), (full(256, 256), Arg((256,)))]}
    params |= {"mean": full(256, 12), "value": full(256, 1), "spread": Arg((12,), scale=0.1)}
    batch = (Arg((101, 90, 60)), Arg((100, 90, 12)), Arg((100, 90)), _KEY)
    yield "proximal", program(proximal, params, moments(params), *batch)

    def imagined(params: Any, seen: Any, acts: Any, goals: Any, key: Any) -> Any:
        def loss(params: Any) -> Any:
            def drawn(logits: Any, key: Any) -> Any:
                logits = logits.astype(F32).reshape(-1, 32, 32)
                share = 0.99 * jax.nn.softmax(logits, -1) + 0.01 / 32
                index = jax.random.categorical(key, jnp.log(share))
                hard = jax.nn.one_hot(index, 32) + share - lax.stop_gradient(share)
                return hard.reshape(-1, 1024).astype(BF16), share

            def move(carry: Any, row: Any) -> Any:
                h, z = carry
                seen, act, key = row
                x = jax.nn.silu(norm(jnp.concatenate([z, act], -1) @ params["in"], 1.0))
                gates = norm(jnp.concatenate([x, h], -1) @ params["gates"], 1.0)
                reset, new, keep = jnp.split(gates, 3, -1)
                new, keep = jnp.tanh(jax.nn.sigmoid(reset) * new), jax.nn.sigmoid(keep - 1)
                h = keep * new + (1 - keep) * h
                prior = drawn(
                    jax.nn.silu(norm(h @ params["prior"][0], 1.0)) @ params["prior"][1], key
                )
                y = jnp.concatenate([h, seen], -1) @ params["after"][0]
                z, share = drawn(jax.nn.silu(norm(y, 1.0)) @ params["after"][1], key)
                return (h, z), (h, z, prior[1], share)

            b = seen.shape[1]
            start = (jnp.zeros((b, 640), BF16), jnp.zeros((b, 1024), BF16))
            keys = jax.random.split(key, seen.shape[0])
            _, (h, z, prior, after) = lax.scan(move, start, (seen, acts, keys))

            def apart(p: Any, q: Any) -> Any:
                return jnp.maximum((p * (jnp.log(p) - jnp.log(q))).sum((-1, -2)), 1.0).mean()

            hold = lax.stop_gradient
            found = jax.nn.silu(jnp.concatenate([h, z], -1) @ params["out"][0]) @ params["out"][1]
            miss = ((found.astype(F32) - goals) ** 2).sum(-1).mean()
            return miss + 0.5 * apart(hold(after), prior) + 0.1 * apart(after, hold(prior))

        return jax.value_and_grad(loss)(params)

    params = {"in": weight(1030, 640), "gates": weight(1280, 1920)}
    params |= {"prior": [weight(640, 512), weight(512, 1024)], "out": [weight(1664, 800)]}
    params |= {"after": [weight(1664, 512), weight(512, 1024)]}
    params["out"] += [weight(800, 900)]
    seen = (Arg((40, 18, 1024), BF16), Arg((40, 18, 6), BF16), Arg((40, 18, 900)))
    yield "imagined", program(imagined, params, *seen, _KEY)


def scanned() -> Zoo:
    """Selective states by chunks of time, in two layers that are computed twice."""

    def selective(params: Any, x: Any) -> Any:
        inner, heads, size, chunk = 1536, 24, 64, 96

        def layer(x: Any, p: Any) -> Any:
            b, s, _ = x.shape
            y = rms(x, p["scale"]) @ p["in"]
            gate, rest, step = jnp.split(y, [inner, 2 * inner + 2 * size], -1)
            past = jnp.pad(rest, ((0, 0), (3, 0), (0, 0)))
            rest = jax.nn.silu(sum(past[:, n : n + s] * p["conv"][n] for n in range(4)))
            u, k, q = jnp.split(rest, [inner, inner + size], -1)
            step = jax.nn.softplus(step.astype(F32) + p["step"])
            u = u.reshape(b, -1, chunk, heads, inner // heads)
            k, q = (part.reshape(b, -1, chunk, size) for part in (k, q))
            step = step.reshape(b, -1, chunk, heads)
            total = jnp.cumsum(-jnp.exp(p["decay"]) * step, 2)
            gap = total[:, :, :, None] - total[:, :, None]
            gap = jnp.exp(jnp.where(jnp.tril(jnp.ones((chunk, chunk), bool))[..., None], gap, -1e9))
            near = jnp.einsum("bcqn,bckn->bcqk", q, k).astype(F32)[..., None] * gap
            moved = u * step[..., None].astype(u.dtype)
            found = jnp.einsum("bcqkh,bckhp->bcqhp", near.astype(u.dtype), moved)
            left = jnp.exp(total[:, :, -1:] - total).astype(u.dtype)
            states = jnp.einsum("bckn,bckh,bckhp->bchpn", k, left, moved).astype(F32)

            def carry_on(state: Any, row: Any) -> Any:
                new, decay = row
                return state * decay[..., None, None] + new, state

            rows = (states.swapaxes(0, 1), jnp.exp(total[:, :, -1]).swapaxes(0, 1))
            _, before = lax.scan(carry_on, jnp.zeros_like(states[:, 0]), rows)
            before = before.swapaxes(0, 1).astype(u.dtype)
            far = jnp.einsum("bcqn,bchpn->bcqhp", q, before)
            found = found + far * jnp.exp(total)[..., None].astype(u.dtype)
            found = (found + u * p["skip"][:, None].astype(u.dtype)).reshape(b, s, inner)
            return x + rms(found * jax.nn.silu(gate), 1.0) @ p["out"], None

        def loss(params: Any) -> Any:
            return (lax.scan(jax.checkpoint(layer), x, params)[0].astype(F32) ** 2).mean()

        return jax.value_and_grad(loss)(params)

    params = {"in": weight(2, 768, 2 * 1536 + 128 + 24), "out": weight(2, 1536, 768)}
    params |= {"conv": Arg((2, 4, 1664), BF16, scale=0.5), "scale": Arg((2, 768))}
    params |= {name: Arg((2, 24)) for name in ("step", "decay", "skip")}
    yield "selective", program(selective, params, Arg((4, 960, 768), BF16))


def routing() -> Zoo:
    """Two experts of each token, by products with one-hot masks and by gathered weights."""

    def balanced(params: Any, x: Any, goal: Any) -> Any:
        def loss(params: Any) -> Any:
            logits = x @ params["router"]
            share = jax.nn.softmax(logits, -1)
            best, index = lax.top_k(share, 2)
            best = best / best.sum(-1, keepdims=True)
            chosen = jax.nn.one_hot(index, 12)
            order = chosen.swapaxes(1, 2).reshape(x.shape[0], -1, 12)
            place = (jnp.cumsum(order, 1) - 1).reshape(x.shape[0], 2, -1, 12).swapaxes(1, 2)
            chosen = chosen * (place < 150)
            place = (place * chosen).sum(-1).astype(I32)
            slots = chosen[..., None] * jax.nn.one_hot(place, 150)[:, :, :, None]
            sent = slots.sum(2)
            back = (slots * best[..., None, None]).sum(2)
            y = jnp.einsum("gsec,gsd->egcd", sent, x)
            y = jax.nn.relu(jnp.einsum("egcd,edh->egch", y, params["up"]))
            y = jnp.einsum("egch,ehd->egcd", y, params["down"])
            y = x + jnp.einsum("gsec,egcd->gsd", back, y)
            even = (share.mean(1) * chosen[:, :, 0].mean(1)).sum(-1).mean() * 12
            flat = (jax.nn.logsumexp(logits, -1) ** 2).mean()
            return ((y - goal) ** 2).mean() + 0.01 * even + 1e-3 * flat

        return jax.value_and_grad(loss)(params)

    params = {"router": full(512, 12), "up": full(12, 512, 1400), "down": full(12, 1400, 512)}
    yield "balanced", program(balanced, params, *[Arg((4, 700, 512))] * 2)

    def gathered(params: Any, x: Any) -> Any:
        def layer(x: Any, p: Any) -> Any:
            y = rms(x, p["scale"])
            best, index = lax.top_k((y @ p["router"]).astype(F32), 2)
            share = jax.nn.softmax(best, -1).astype(BF16)
            gate, value = jnp.split(jnp.einsum("bd,bkdh->bkh", y, p["up"][index]), 2, -1)
            found = jnp.einsum("bkh,bkhd->bkd", jax.nn.silu(gate) * value, p["down"][index])
            return x + (found * share[..., None]).sum(1), index

        return lax.scan(layer, x, params)

    params = {"router": weight(3, 1536, 16), "up": weight(3, 16, 1536, 3072)}
    params |= {"down": weight(3, 16, 1536, 1536), "scale": Arg((3, 1536))}
    yield "gathered", program(gathered, params, Arg((7, 1536), BF16))


def atoms() -> Zoo:
    """Energies of molecules by messages along bonds, which also move the atoms."""

    def energies(params: Any, state: Any, kinds: Any, places: Any, bonds: Any, goals: Any) -> Any:
        one, two = bonds
        count = kinds.shape[0]

        def loss(params: Any) -> Any:
            h, x = params["kinds"][kinds], places
            for p in params["layers"]:
                gap = x[one] - x[two]
                far = (gap * gap).sum(-1, keepdims=True)
                y = jnp.concatenate([h[one], h[two], far], -1)
                y = jax.nn.silu(jax.nn.silu(y @ p["edge"][0]) @ p["edge"][1])
                y = y * jax.nn.sigmoid(y @ p["gate"])
                move = (
                    gap / (jnp.sqrt(far + 1e-8) + 1) * (jax.nn.silu(y @ p["edge"][1]) @ p["move"])
                )
                degree = jax.ops.segment_sum(jnp.ones_like(far), one, count)
                x = x + jax.ops.segment_sum(move, one, count) / jnp.maximum(degree, 1)
                sums = jax.ops.segment_sum(y, one, count)
                y = jnp.concatenate([h, sums], -1) @ p["node"][0]
                h = h + jax.nn.silu(y) @ p["node"][1]
            groups = jnp.arange(count) // 18
            found = jax.ops.segment_sum(h @ params["head"], groups, goals.shape[0])
            return jnp.abs(found[:, 0] - goals).mean()

        value, gradient = jax.value_and_grad(loss)(params)
        return *adam(params, state, gradient), value

    d = 128
    layer = {"edge": [full(2 * d + 1, d), full(d, d)], "node": [full(2 * d, d), full(d, d)]}
    layer |= {"gate": full(d, 1), "move": Arg((d, 1), scale=0.01)}
    params = {"layers": [layer] * 3, "kinds": Arg((11, d)), "head": full(d, 1)}
    graph = (Arg((3060,), I32, below=11), Arg((3060, 3)), Arg((2, 46000), I32, below=3060))
    yield "energies", program(energies, params, moments(params), *graph, Arg((170,)))


def bidders() -> Zoo:
    """Clicks by bags of rows with sparse steps, and two towers that take a batch as negatives."""

    def mlp(ws: Any, x: Any) -> Any:
        for w in ws[:-1]:
            x = jax.nn.relu(x @ w)
        return x @ ws[-1]

    def sparse(tables: Any, squares: Any, dense: Any, ids: Any, numbers: Any, clicks: Any) -> Any:
        names = jnp.arange(ids.shape[1])[:, None]
        rows = tables[names, ids]

        def loss(dense: Any, rows: Any) -> Any:
            x = mlp(dense["bottom"], jnp.log1p(jnp.abs(numbers)))
            parts = jnp.concatenate([x[:, None], rows.sum(2)], 1)
            both = jnp.einsum("bnd,bmd->bnm", parts, parts)
            one, two = jnp.tril_indices(parts.shape[1], -1)
            found = mlp(dense["top"], jnp.concatenate([x, both[:, one, two]], -1))[:, 0]
            return (
                jnp.maximum(found, 0) - found * clicks + jnp.log1p(jnp.exp(-jnp.abs(found)))
            ).mean()

        value, (slopes, moves) = jax.value_and_grad(loss, (0, 1))(dense, rows)
        dense = jax.tree.map(lambda p, g: p - 0.1 * g, dense, slopes)
        squares = squares.at[names, ids].add((moves * moves).mean(-1))
        speed = 0.05 * lax.rsqrt(jnp.abs(squares[names, ids]) + 1e-8)
        return tables.at[names, ids].add(-speed[..., None] * moves), squares, dense, value

    dense = {"bottom": [full(13, 512), full(512, 256), full(256, 32)]}
    dense |= {"top": [full(332, 512), full(512, 256), full(256, 1)]}
    rest = (Arg((1900, 24, 3), I32, below=40000), Arg((1900, 13)), Arg((1900,)))
    tables = (Arg((24, 40000, 32)), Arg((24, 40000)))
    yield "sparse", program(sparse, *tables, dense, *rest)

    def towers(params: Any, past: Any, items: Any, kinds: Any, seen: Any) -> Any:
        def loss(params: Any) -> Any:
            def unit(x: Any) -> Any:
                return x * lax.rsqrt((x * x).sum(-1, keepdims=True) + 1e-6)

            shown = (past > 0)[..., None].astype(BF16)
            mean = (params["items"][past] * shown).sum(1) / (shown.sum(1) + 1)
            user = unit(mlp(params["user"], mean))
            item = jnp.concatenate([params["items"][items], params["kinds"][kinds]], -1)
            item = unit(mlp(params["item"], item))
            logits = (user @ item.T).astype(F32) / 0.05 - jnp.log(jnp.abs(seen)[items] + 1e-6)
            own = jnp.eye(items.shape[0], dtype=bool)
            logits = jnp.where((items[:, None] == items) & ~own, -1e9, logits)
            hard = lax.top_k(jnp.where(own, -1e9, logits), 60)[0]
            right = jnp.diagonal(logits)
            close = jax.nn.relu(0.2 + hard - right[:, None]).mean()
            return (jax.nn.logsumexp(logits, -1) - right).mean() + 0.1 * close

        value, gradient = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: (p - 0.1 * g).astype(p.dtype), params, gradient), value

    params = {"items": Arg((210000, 96), BF16), "kinds": Arg((900, 32), BF16)}
    params |= {"user": [weight(96, 640), weight(640, 128)]}
    params |= {"item": [weight(128, 640), weight(640, 128)]}
    ids = (Arg((1300, 40), I32, below=210000), Arg((1300,), I32, below=210000))
    rest = (Arg((1300,), I32, below=900), Arg((210000,)))
    yield "towers", program(towers, params, *ids, *rest)


def preferences() -> Zoo:
    """Answers against the others of their group, by adapters of frozen products."""

    def group(adapters: Any, params: Any, table: Any, ids: Any, before: Any, gains: Any) -> Any:
        better = (gains - gains.mean(1, keepdims=True)) / (gains.std(1, keepdims=True) + 1e-4)
        better = better.reshape(-1, 1)
        mask = causal(ids.shape[1])

        def layer(x: Any, given: Any) -> Any:
            p, (down, up) = given
            return block(x, p | {"qkv": p["qkv"] + 2 * (down @ up)}, 64, mask), None

        def loss(adapters: Any) -> Any:
            x, _ = lax.scan(jax.checkpoint(layer), table[ids], (params, adapters))
            x, goals = norm(x, 1.0)[:, :-1], ids[:, 1:]

            @jax.checkpoint
            def logs(pair: Any) -> Any:
                return -entropy(pair[0] @ table.T, pair[1])

            parts = jax.tree.map(lambda a: a.reshape(6, -1, *a.shape[1:]), (x, goals))
            found = lax.map(logs, parts).reshape(goals.shape)
            ratio = jnp.exp(found - lax.stop_gradient(found))
            gap = before - found
            far = jnp.exp(gap) - gap - 1
            answer = jnp.arange(goals.shape[1]) >= 80
            return ((0.04 * far - ratio * better) * answer).sum() / answer.sum() / ids.shape[0]

        value, gradient = jax.value_and_grad(loss)(adapters)
        return jax.tree.map(lambda p, g: (p - 1e-4 * g).astype(p.dtype), adapters, gradient), value

    d = 896
    adapters = (weight(3, d, 16), Arg((3, 16, 3 * d), BF16, scale=0.01))
    given = (layers(3, d, BF16), Arg((32000, d), BF16, scale=0.03))
    ids = (Arg((24, 221), I32, below=32000), Arg((24, 220), scale=0.1), Arg((4, 6)))
    yield "group", program(group, adapters, *given, *ids)


def overlap(a: Any, b: Any) -> tuple[Any, Any]:
    """Overlaps of boxes, and these less the empty share of the box around both."""
    low, high = jnp.maximum(a[..., :2], b[..., :2]), jnp.minimum(a[..., 2:], b[..., 2:])
    inner = jnp.prod(jnp.maximum(high - low, 0), -1)
    sizes = (jnp.prod(jnp.maximum(box[..., 2:] - box[..., :2], 0), -1) for box in (a, b))
    either = sum(sizes) - inner + 1e-6
    low, high = jnp.minimum(a[..., :2], b[..., :2]), jnp.maximum(a[..., 2:], b[..., 2:])
    around = jnp.prod(high - low, -1) + 1e-6
    return inner / either, inner / either - (around - either) / around


def detectors() -> Zoo:
    """Boxes of anchors at four sizes, and the losses of queries that objects choose."""

    def pyramid(levels: Any, towers: Any, heads: Any) -> Any:
        scores, boxes = [], []
        for level, x in enumerate(levels):
            b, _, w, _ = x.shape
            kinds, moves = x, x
            for one, two in towers:
                kinds = jax.nn.relu(convolved(kinds, one))
                moves = jax.nn.relu(convolved(moves, two))
            share = jax.nn.sigmoid(convolved(kinds, heads[0]).astype(F32)).reshape(b, -1)
            moves = convolved(moves, heads[1]).astype(F32).reshape(b, -1, 4)
            best, index = lax.top_k(share, 300)
            place, kind = index // 40, index % 40
            move = jnp.take_along_axis(moves, place[..., None], 1)
            cell, anchor = place // 9, place % 9
            centre = jnp.stack([cell % w, cell // w], -1) + 0.5
            size = (2.0 ** (anchor // 3 / 3.0))[..., None] * 4
            size = size * jnp.stack([0.7 + 0.3 * (anchor % 3), 1.3 - 0.3 * (anchor % 3)], -1)
            centre = centre + move[..., :2] * size
            half = size * jnp.exp(jnp.clip(move[..., 2:], -4, 4)) / 2
            box = jnp.concatenate([centre - half, centre + half], -1) * 2.0 ** (level + 3)
            boxes.append(jnp.clip(box, 0, 800) + 1000.0 * kind[..., None])
            scores.append(best)
        best, index = lax.top_k(jnp.concatenate(scores, 1), 400)
        boxes = jnp.take_along_axis(jnp.concatenate(boxes, 1), index[..., None], 1)
        near = overlap(boxes[:, :, None], boxes[:, None])[0] > 0.5

        def drop(n: Any, kept: Any) -> Any:
            later = jnp.arange(kept.shape[1]) > n
            return kept & ~(near[:, n] & later & kept[:, n][:, None])

        kept = lax.fori_loop(0, 200, drop, best > 0.05)
        final, order = lax.top_k(jnp.where(kept, best, -1.0), 100)
        return final, jnp.take_along_axis(boxes, order[..., None], 1)

    d = 192
    levels = [Arg((2, h, w, d), BF16) for h, w in ((80, 100), (40, 50), (20, 25), (10, 13))]
    towers = [(kernel(3, 3, d, d), kernel(3, 3, d, d))] * 3
    yield "pyramid", program(pyramid, levels, towers, (kernel(3, 3, d, 360), kernel(3, 3, d, 36)))

    def queries(params: Any, x: Any, kinds: Any, truth: Any) -> Any:
        centre, size = jax.nn.sigmoid(truth[..., :2]), 0.3 * jax.nn.sigmoid(truth[..., 2:])
        truth = jnp.concatenate([centre - size, centre + size], -1)
        rows = jnp.arange(x.shape[0])

        def matched(cost: Any) -> Any:
            """Each object takes the cheapest query that is left."""

            def take(free: Any, row: Any) -> Any:
                index = jnp.where(free, row, jnp.inf).argmin(-1)
                return free.at[rows, index].set(False), index

            free = jnp.ones(cost.shape[:2], bool)
            return lax.scan(take, free, cost.transpose(2, 0, 1))[1].T

        def one_loss(y: Any, params: Any) -> Any:
            logs = jax.nn.log_softmax(y @ params["kind"], -1)
            box = jax.nn.sigmoid(jax.nn.relu(y @ params["box"][0]) @ params["box"][1])
            box = jnp.concatenate([box[..., :2] - box[..., 2:], box[..., :2] + box[..., 2:]], -1)
            far = jnp.abs(box[:, :, None] - truth[:, None]).sum(-1)
            near = overlap(box[:, :, None], truth[:, None])[1]
            each = jnp.take_along_axis(jnp.exp(logs), kinds[:, None], 2)
            index = lax.stop_gradient(matched(5 * far - 2 * near - each))
            goal = jnp.full(logs.shape[:2], 91).at[rows[:, None], index].set(kinds)
            heavy = jnp.where(goal == 91, 0.1, 1.0)
            lost = -jnp.take_along_axis(logs, goal[..., None], -1)[..., 0] * heavy
            mine = jnp.take_along_axis(box, index[..., None], 1)
            boxes = 5 * jnp.abs(mine - truth).sum(-1) + 2 * (1 - overlap(mine, truth)[1])
            return lost.sum() / heavy.sum() + boxes.mean()

        def heads(x: Any) -> Any:
            return x.reshape(*x.shape[:2], 8, -1)

        def loss(params: Any) -> Any:
            y = jnp.broadcast_to(params["queries"], (x.shape[0], *params["queries"].shape))
            total = 0.0
            for p, own in params["layers"]:
                y = block(y, p, 32)
                q, k, v = heads(norm(y, 1.0) @ own[0]), heads(x @ own[1]), heads(x @ own[2])
                y = y + attend(q, k, v).reshape(y.shape) @ own[3]
                total = total + one_loss(norm(y, 1.0), params)
            return total

        return jax.value_and_grad(loss)(params)

    d = 256
    each = jax.tree.map(lambda arg: Arg(arg.shape[1:], arg.dtype, arg.scale), layers(1, d, F32))
    params = {"layers": [(each, [full(d, d)] * 4)] * 3, "queries": Arg((100, d))}
    params |= {"kind": full(d, 92), "box": (full(d, d), full(d, 4))}
    objects = (Arg((6, 18), I32, below=91), Arg((6, 18, 4)))
    yield "queries", program(queries, params, Arg((6, 850, d)), *objects)


def scenes() -> Zoo:
    """Rays that look twice where something is, and Gaussians in the order of each tile."""

    def twice(params: Any, state: Any, rays: Any, goal: Any, draws: Any) -> Any:
        def waves(x: Any, count: int) -> Any:
            angle = (x[..., None, :] * 2.0 ** jnp.arange(count)[:, None]).reshape(*x.shape[:-1], -1)
            return jnp.concatenate([x, jnp.sin(angle), jnp.cos(angle)], -1)

        def rendered(p: Any, depth: Any) -> Any:
            start, way = rays[:, None, :3], rays[:, None, 3:]
            given = waves(start + way * depth[..., None], 8)
            x = given
            for n, w in enumerate(p["body"]):
                x = jax.nn.relu((jnp.concatenate([x, given], -1) if n == 2 else x) @ w)
            side = jnp.broadcast_to(waves(way, 4), (*depth.shape, 27))
            colour = jax.nn.relu(jnp.concatenate([x, side], -1) @ p["side"]) @ p["colour"]
            gaps = jnp.diff(depth, append=depth[:, -1:] + 1e3)
            thick = jax.nn.relu((x @ p["thick"])[..., 0]) * gaps
            before = jnp.pad(jnp.cumsum(thick, -1), ((0, 0), (1, 0)))[:, :-1]
            share = jnp.exp(-before) * (1 - jnp.exp(-thick))
            return (share[..., None] * jax.nn.sigmoid(colour)).sum(1), share

        def loss(params: Any) -> Any:
            part = jax.nn.sigmoid(draws)
            depth = 2 + 4 * (jnp.arange(48) + part[:, :48]) / 48
            first, share = rendered(params["coarse"], depth)
            share = lax.stop_gradient(share)[:, 1:-1] + 1e-5
            total = jnp.cumsum(share / share.sum(-1, keepdims=True), -1)
            total = jnp.pad(total, ((0, 0), (1, 0)))
            at = jnp.sort(part[:, 48:], -1)
            index = jax.vmap(lambda row, new: jnp.searchsorted(row, new, side="right"))(total, at)
            low, high = jnp.maximum(index - 1, 0), jnp.minimum(index, total.shape[1] - 1)
            middle = (depth[:, 1:] + depth[:, :-1]) / 2
            ends = [
                (jnp.take_along_axis(total, n, 1), jnp.take_along_axis(middle, n, 1))
                for n in (low, high)
            ]
            wide = ends[1][0] - ends[0][0]
            place = (at - ends[0][0]) / jnp.where(wide < 1e-5, 1.0, wide)
            new = ends[0][1] + place * (ends[1][1] - ends[0][1])
            second, _ = rendered(params["fine"], jnp.sort(jnp.concatenate([depth, new], -1), -1))
            return ((first - goal) ** 2).mean() + ((second - goal) ** 2).mean()

        value, gradient = jax.value_and_grad(loss)(params)
        return *adam(params, state, gradient), value

    one = {"body": [full(51, 160), full(160, 160), full(211, 160), full(160, 160)]}
    one |= {"thick": full(160, 1), "side": full(187, 80), "colour": full(80, 3)}
    params = {"coarse": one, "fine": one}
    batch = (Arg((1050, 6)), Arg((1050, 3)), Arg((1050, 128)))
    yield "twice", program(twice, params, moments(params), *batch)

    def tiles(params: Any, state: Any, picture: Any) -> Any:
        def loss(params: Any) -> Any:
            depth = 3 + jax.nn.sigmoid(params["place"][:, 2])
            centre = params["place"][:, :2] / depth[:, None] * 150 + jnp.array([64.0, 80.0])
            q = params["turn"] / (jnp.linalg.norm(params["turn"], axis=-1, keepdims=True) + 1e-6)
            w, x, y, z = q.T
            turn = jnp.stack([
                *(1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
                *(2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
            ], -1).reshape(-1, 2, 3)  # fmt: skip
            half = turn * jnp.exp(params["size"])[:, None] * (30 / depth)[:, None, None]
            spread = jnp.einsum("nij,nkj->nik", half, half) + 0.3 * jnp.eye(2)
            a, b, c = spread[:, 0, 0], spread[:, 0, 1], spread[:, 1, 1]
            inverse = jnp.stack([c, -b, a], -1) / (a * c - b * b)[:, None]
            reach = 3 * jnp.sqrt(jnp.maximum(a, c))
            pixels = jnp.stack(jnp.meshgrid(jnp.arange(16), jnp.arange(16), indexing="ij"), -1)

            def tile(corner: Any) -> Any:
                gap = jnp.abs(centre - corner - 8) - 8
                hit = (gap < reach[:, None]).all(-1)
                order = lax.top_k(jnp.where(hit, -depth, -jnp.inf), 160)[1]
                d = pixels.reshape(-1, 1, 2) + corner - centre[order]
                i = inverse[order]
                power = i[:, 0] * d[..., 0] ** 2 + i[:, 2] * d[..., 1] ** 2
                power = power / 2 + i[:, 1] * d[..., 0] * d[..., 1]
                alpha = jnp.exp(-power) * jax.nn.sigmoid(params["solid"])[order]
                alpha = jnp.where(hit[order] & (alpha > 1 / 255), jnp.minimum(alpha, 0.99), 0.0)
                left = jnp.cumprod(jnp.pad(1 - alpha, ((0, 0), (1, 0)), constant_values=1.0), 1)
                return (alpha * left[:, :-1]) @ jax.nn.sigmoid(params["colour"])[order]

            corners = jnp.stack(
                jnp.meshgrid(jnp.arange(8) * 16, jnp.arange(10) * 16, indexing="ij"), -1
            )
            found = lax.map(jax.checkpoint(jax.vmap(tile)), corners).reshape(8, 10, 16, 16, 3)
            return jnp.abs(found.transpose(0, 2, 1, 3, 4).reshape(128, 160, 3) - picture).mean()

        value, gradient = jax.value_and_grad(loss)(params)
        return *adam(params, state, gradient), value

    n = 7000
    params = {"place": Arg((n, 3)), "turn": Arg((n, 4)), "size": Arg((n, 3), scale=0.5)}
    params |= {"solid": Arg((n,)), "colour": Arg((n, 3))}
    yield "tiles", program(tiles, params, moments(params), Arg((128, 160, 3)))


def stepping() -> Zoo:
    """Adan on parameters of bfloat16, which are rounded by chance, with a mean of them."""

    def rounded(params: Any, state: Any, mean: Any, gradient: Any, key: Any) -> Any:
        length = jnp.sqrt(sum((g.astype(F32) ** 2).sum() for g in jax.tree.leaves(gradient)))
        less = jnp.minimum(1.0, 1.0 / (length + 1e-6))

        def one(p: Any, g: Any, old: Any, m: Any, v: Any, n: Any, key: Any) -> Any:
            g = g.astype(F32) * less
            change = g - old.astype(F32)
            m, v = 0.98 * m + 0.02 * g, 0.92 * v + 0.08 * change
            n = 0.99 * n + 0.01 * (g + 0.92 * change) ** 2
            new = (p.astype(F32) - 1e-3 * (m + 0.92 * v) / (jnp.sqrt(n) + 1e-8)) / (1 + 2e-5)
            bits = lax.bitcast_convert_type(new, U32)
            bits = bits + (jax.random.bits(key, p.shape, U32) & 0xFFFF)
            new = lax.bitcast_convert_type(bits & U32(0xFFFF0000), F32).astype(BF16)
            return new, (g.astype(BF16), m, v, n)

        keys = jax.random.split(key, len(params))
        found = {
            name: one(params[name], gradient[name], *state[name], keys[n])
            for n, name in enumerate(params)
        }
        params, state = ({name: pair[n] for name, pair in found.items()} for n in range(2))
        mean = jax.tree.map(lambda a, p: 0.999 * a + 0.001 * p.astype(F32), mean, params)
        return params, state, mean

    shapes = {"words": (24000, 640), "qkv": (8, 640, 1920), "out": (8, 640, 640), "scale": (640,)}
    shapes |= {"up": (8, 640, 3440), "down": (8, 1720, 640)}
    params = {name: Arg(shape, BF16, scale=0.03) for name, shape in shapes.items()}
    state = {
        name: (Arg(shape, BF16), Arg(shape), Arg(shape), Arg(shape, scale=0.0))
        for name, shape in shapes.items()
    }
    mean = {name: Arg(shape, scale=0.03) for name, shape in shapes.items()}
    yield "rounded", program(rounded, params, state, mean, params, _KEY)
