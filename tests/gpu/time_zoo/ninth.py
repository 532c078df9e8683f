"""A ninth zoo: steps that people train, serve and simulate, each family in one or two programs.

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

F32, BF16, F16, I32 = jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32
I8, I16, U8, U32 = jnp.int8, jnp.int16, jnp.uint8, jnp.uint32
E4, E5 = jnp.float8_e4m3fn, jnp.float8_e5m2
Zoo = Iterator[tuple[str, TimedProgram]]
_KEY = Arg((2,), U32, below=1 << 30)


def ninth_programs() -> dict[str, TimedProgram]:
    """Every program, by FAMILY/NAME."""
    families = (
        *(decoders, experts, serving, quantised, convolutions, masked, augmentation, denoisers),
        *(recurrences, forecasts, graphs, recommenders, contrastive, rollouts, decoding, states),
        *(speech, spectral, particles, multigrid, processes, curvature, orbitals, documents),
        *(search, evolution, radiation),
    )
    return {
        f"{family.__name__}/{name}": program for family in families for name, program in family()
    }


def carried(fn: Any, *args: Any) -> TimedProgram:
    """A program whose first argument is donated and comes back as its first result."""
    return TimedProgram(fn, args, carried=True)


def rms(x: Any, scale: Any = 1.0) -> Any:
    wide = x.astype(F32)
    return (wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def turned(x: Any, places: Any) -> Any:
    """Pairs of neighbours, rotated by the places of their tokens."""
    speed = 5e5 ** (-jnp.arange(0, 1, 2 / x.shape[-1]))
    angle = places[..., None, None] * speed
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    even, odd = x[..., ::2].astype(F32), x[..., 1::2].astype(F32)
    both = jnp.stack([even * cos - odd * sin, even * sin + odd * cos], -1)
    return both.reshape(x.shape).astype(x.dtype)


def gated(x: Any, up: Any, down: Any) -> Any:
    gate, value = jnp.split(x @ up, 2, -1)
    return (jax.nn.silu(gate) * value) @ down


def token_loss(logits: Any, labels: Any) -> Any:
    logits = logits.astype(F32)
    picked = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return jax.nn.logsumexp(logits, -1) - picked


def zeros_like(params: Any, dtype: Any = F32) -> Any:
    """Optimiser states of zeros."""
    return jax.tree.map(lambda arg: Arg(arg.shape, dtype, scale=0.0), params)


def adamw(params: Any, state: Any, gradient: Any, rate: float, decay: float) -> tuple[Any, Any]:
    mean = jax.tree.map(lambda m, g: m + 0.1 * (g.astype(F32) - m), state[0], gradient)
    var = jax.tree.map(lambda v, g: v + 0.05 * (g.astype(F32) ** 2 - v), state[1], gradient)
    params = jax.tree.map(
        lambda p, m, v: (p * (1 - rate * decay) - rate * m / (jnp.sqrt(v) + 1e-8)).astype(p.dtype),
        *(params, mean, var),
    )
    return params, (mean, var)


def decoders() -> Zoo:
    """Latent attention with Muon, and local attention in groups with Adafactor."""

    def latents(state: Any, tokens: Any) -> Any:
        """A step; embeddings are tied and layers are computed twice."""
        heads, plain, turning = 12, 64, 32

        def layer(x: Any, p: Any) -> Any:
            b, s, _ = x.shape
            places = jnp.arange(s)
            y = rms(x, p["scale"][0])
            q = (y @ p["q"]).reshape(b, s, heads, plain + turning)
            short = y @ p["short"]
            one = turned(short[:, :, None, -turning:], places)
            wide = (rms(short[..., :-turning]) @ p["wide"]).reshape(b, s, heads, 2 * plain)
            k, v = wide[..., :plain], wide[..., plain:]
            k = jnp.concatenate([k, jnp.broadcast_to(one, (b, s, heads, turning))], -1)
            q = jnp.concatenate([q[..., :plain], turned(q[..., plain:], places)], -1)
            mask = jnp.where(places[:, None] >= places, 0.0, -jnp.inf)
            x = x + attend(rms(q), rms(k), v, mask).reshape(b, s, -1) @ p["out"]
            return x + gated(rms(x, p["scale"][1]), p["up"], p["down"]), None

        def loss(params: Any) -> Any:
            short = jax.tree.map(lambda p: p.astype(BF16), params)
            x, _ = lax.scan(jax.checkpoint(layer), short["table"][tokens], short["layers"])
            logits = rms(x[:, :-1]) @ short["table"].T
            return token_loss(logits, tokens[:, 1:]).mean()

        def orthogonal(m: Any) -> Any:
            tall = m.shape[-2] > m.shape[-1]
            x = (m.swapaxes(-1, -2) if tall else m).astype(BF16)
            x = x / (jnp.linalg.norm(m, axis=(-2, -1), keepdims=True) + 1e-7).astype(BF16)
            for _ in range(5):
                square = x @ x.swapaxes(-1, -2)
                x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
            return (x.swapaxes(-1, -2) if tall else x).astype(F32)

        params, momentum = state
        value, gradient = jax.value_and_grad(loss)(params)

        def update(p: Any, m: Any, g: Any) -> tuple[Any, Any]:
            if p.ndim == 3 and p.shape[1] > 2:
                m = 0.95 * m + g
                size = max(1.0, p.shape[-2] / p.shape[-1]) ** 0.5
                return p - 0.01 * size * orthogonal(g + 0.95 * m), m
            step = jnp.sign(0.9 * m + 0.1 * g)
            return p - 1e-4 * (step + 0.1 * p), 0.99 * m + 0.01 * g

        flat, tree = jax.tree.flatten(params)
        both = zip(flat, jax.tree.leaves(momentum), jax.tree.leaves(gradient), strict=True)
        pairs = [update(*three) for three in both]
        params, momentum = (tree.unflatten([pair[n] for pair in pairs]) for n in range(2))
        return (params, momentum), value

    d, n = 896, 2
    layers = {"q": full(n, d, 12 * 96), "short": full(n, d, 256 + 32), "out": full(n, 768, d)}
    layers |= {"wide": full(n, 256, 12 * 128), "up": full(n, d, 4736), "down": full(n, 2368, d)}
    layers |= {"scale": Arg((n, 2, d))}
    params = {"layers": layers, "table": Arg((24600, d), scale=0.03)}
    ids = Arg((3, 1025), I32, below=24600)
    yield "latents", carried(latents, (params, zeros_like(params)), ids)

    def windows(state: Any, tokens: Any, goals: Any) -> Any:
        """Tokens see 176 tokens, by chunks, and a learned sink; the loss is by parts."""
        size, groups, each, width = 176, 3, 4, 80

        def layer(x: Any, p: Any) -> Any:
            b, s, _ = x.shape
            parts = (rms(x, p["scale"][0]) @ p["qkv"]).reshape(b, s, -1, width)
            places = jnp.arange(s)
            q, k, v = jnp.split(parts, [groups * each, groups * each + groups], 2)
            q = turned(q, places).reshape(b, -1, size, groups, each, width)

            def two(x: Any) -> Any:
                x = x.reshape(b, -1, size, groups, width)
                before = jnp.pad(x[:, :-1], ((0, 0), (1, 0), (0, 0), (0, 0), (0, 0)))
                return jnp.concatenate([before, x], 2)

            scores = jnp.einsum("bcqgrd,bckgd->bcgrqk", q, two(turned(k, places))).astype(F32)
            gap = size + jnp.arange(size)[:, None] - jnp.arange(2 * size)
            seen = (gap >= 0) & (gap < size)
            first = (jnp.arange(s // size) > 0)[:, None, None] | (jnp.arange(2 * size) >= size)
            seen = (seen & first)[:, None, None]
            scores = jnp.where(seen, scores * width**-0.5, -1e30)
            sink = jnp.broadcast_to(p["sink"][:, :, None, None], (*scores.shape[:-1], 1))
            shares = jax.nn.softmax(jnp.concatenate([scores, sink], -1), -1)[..., :-1]
            found = jnp.einsum("bcgrqk,bckgd->bcqgrd", shares.astype(BF16), two(v))
            x = x + found.reshape(b, s, -1) @ p["out"]
            return x + jax.nn.relu(rms(x, p["scale"][1]) @ p["up"]) ** 2 @ p["down"], None

        def loss(params: Any) -> Any:
            p = jax.tree.map(lambda p: p.astype(BF16) if p.ndim > 1 else p, params)
            p["layers"] |= {"sink": params["layers"]["sink"]}
            x, _ = lax.scan(layer, p["table"][tokens], p["layers"])

            @jax.checkpoint
            def part(pair: Any) -> Any:
                logits = (pair[0] @ p["head"]).astype(F32)
                top = jax.nn.logsumexp(logits, -1)
                right = jnp.take_along_axis(logits, pair[1][:, None], 1)[:, 0]
                return (top - right + 1e-4 * top * top).sum()

            rows = (rms(x, p["last"]).reshape(4, -1, x.shape[-1]), goals.reshape(4, -1))
            return lax.map(part, rows).sum() / goals.size

        params, moments = state
        value, gradient = jax.value_and_grad(loss)(params)

        def update(p: Any, v: Any, g: Any) -> Any:
            square = g * g + 1e-30
            if p.ndim > 1:
                row = 0.99 * v[0] + 0.01 * square.mean(-1)
                column = 0.99 * v[1] + 0.01 * square.mean(-2)
                part = row / row.mean(-1, keepdims=True)
                step = g * lax.rsqrt(part + 1e-30)[..., None]
                step = step * lax.rsqrt(column + 1e-30)[..., None, :]
                v = (row, column)
            else:
                v = (0.99 * v[0] + 0.01 * square,)
                step = g * lax.rsqrt(v[0] + 1e-30)
            step = step / jnp.maximum(1.0, jnp.sqrt((step * step).mean()))
            rate = 0.01 * jnp.maximum(1e-3, jnp.sqrt((p * p).mean()))
            return p - rate * step, v

        flat, tree = jax.tree.flatten(params)
        changes = zip(flat, moments, jax.tree.leaves(gradient), strict=True)
        pairs = [update(*three) for three in changes]
        return (tree.unflatten([p for p, _ in pairs]), [v for _, v in pairs]), value

    d, n, words = 960, 3, 17408
    layers = {"qkv": full(n, d, 18 * 80), "out": full(n, 960, d), "up": full(n, d, 3200)}
    layers |= {"down": full(n, 3200, d), "scale": Arg((n, 2, d)), "sink": Arg((n, 3, 4))}
    params = {"layers": layers, "table": Arg((words, d), scale=0.03), "head": full(d, words)}
    params |= {"last": Arg((d,))}
    moments = [
        (Arg(arg.shape[:-1], scale=0.0), Arg((*arg.shape[:-2], arg.shape[-1]), scale=0.0))
        if len(arg.shape) > 1
        else (Arg(arg.shape, scale=0.0),)
        for arg in jax.tree.leaves(params)
    ]
    ids = (Arg((2, 1760), I32, below=words), Arg((2, 1760), I32, below=words - 1))
    yield "windows", carried(windows, (params, moments), *ids)


def experts() -> Zoo:
    """Four of twenty small experts and a shared one, whose tokens are sorted by expert."""

    def sort_routed(params: Any, loads: Any, x: Any, goal: Any) -> Any:
        count, chosen, room = 20, 4, 576
        tokens, d = x.shape

        def loss(params: Any) -> Any:
            y = rms(x, params["scale"])
            shares = jax.nn.sigmoid(y.astype(F32) @ params["router"])
            _, index = lax.top_k(lax.stop_gradient(shares) + loads, chosen)
            best = jnp.take_along_axis(shares, index, 1)
            best = 2.5 * best / (best.sum(-1, keepdims=True) + 1e-9)
            flat = index.ravel()
            order = jnp.argsort(flat, stable=True)
            expert = flat[order]
            held = jnp.bincount(flat, length=count)
            start = jnp.cumsum(held) - held
            place = jnp.arange(flat.shape[0]) - start[expert]
            slot = jnp.where(place < room, expert * room + place, count * room)
            rows = jnp.zeros((count * room, d), BF16).at[slot].set(y[order // chosen], mode="drop")
            rows = rows.reshape(count, room, d)
            gate, value = jnp.split(jnp.einsum("ecd,edh->ech", rows, params["up"]), 2, -1)
            rows = jnp.einsum("ech,ehd->ecd", jax.nn.silu(gate) * value, params["down"])
            found = rows.reshape(-1, d).at[slot].get(mode="fill", fill_value=0)
            found = found * best.ravel()[order, None].astype(BF16)
            mixed = jnp.zeros((tokens, d), F32).at[order // chosen].add(found.astype(F32))
            out = x + mixed.astype(BF16) + gated(y, params["wide"], params["narrow"])
            return ((out - goal).astype(F32) ** 2).mean(), held

        (value, held), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        params = jax.tree.map(lambda p, g: (p - 0.02 * g).astype(p.dtype), params, gradient)
        return params, loads + 1e-3 * jnp.sign(held.mean() - held), value

    d, e = 704, 20
    params = {"router": full(d, e), "up": weight(e, d, 2 * 416), "down": weight(e, 416, d)}
    params |= {"wide": weight(d, 2 * 832), "narrow": weight(832, d), "scale": Arg((d,))}
    rest = (Arg((e,), scale=0.01), Arg((2300, d), BF16), Arg((2300, d), BF16))
    yield "sort_routed", carried(sort_routed, params, *rest)


def serving() -> Zoo:
    """A token of each reply with its cache in int8, and a part of each prompt with its pages."""

    def eight_bits(caches: Any, params: Any, table: Any, ids: Any, lengths: Any) -> Any:
        b, groups, each, width = ids.shape[0], 5, 3, 128
        rows = jnp.arange(b)
        seen = (jnp.arange(caches[0]["k"].shape[2]) <= lengths[:, None])[:, None, None]
        x, new_caches = table[ids], []

        def rounded(x: Any) -> Any:
            wide = x.astype(F32)
            most = jnp.abs(wide).max(-1) / 127 + 1e-8
            return jnp.round(wide / most[..., None]).astype(I8), most.astype(BF16)

        for p, cache in zip(params, caches, strict=True):
            parts = (rms(x, p["scale"][0]) @ p["qkv"]).reshape(b, 1, -1, width)
            q, k, v = jnp.split(parts, [groups * each, groups * each + groups], 2)
            q, k = (turned(part, lengths[:, None])[:, 0] for part in (q, k))
            new = {}
            for name, part in (("k", k), ("v", v[:, 0])):
                short, most = rounded(part)
                new[name] = cache[name].at[rows, :, lengths].set(short)
                new[name + "_scale"] = cache[name + "_scale"].at[rows, :, lengths].set(most)
            q = q.reshape(b, groups, each, width)
            scores = jnp.einsum("bgrd,bgkd->bgrk", q, new["k"].astype(BF16)).astype(F32)
            scores = scores * new["k_scale"][:, :, None].astype(F32) * width**-0.5
            shares = jax.nn.softmax(jnp.where(seen, scores, -1e9), -1)
            shares = (shares * new["v_scale"][:, :, None].astype(F32)).astype(BF16)
            found = jnp.einsum("bgrk,bgkd->bgrd", shares, new["v"].astype(BF16))
            x = x + found.reshape(b, -1) @ p["out"]
            x = x + gated(rms(x, p["scale"][1]), p["up"], p["down"])
            new_caches.append(new)
        return new_caches, (rms(x) @ table.T).argmax(-1)

    d, b, length, words = 1920, 22, 1540, 40960
    layer = {"qkv": weight(d, 25 * 128), "out": weight(1920, d), "scale": Arg((2, d))}
    layer |= {"up": weight(d, 2 * 5120), "down": weight(5120, d)}
    cache = {name: Arg((b, 5, length, 128), I8, below=120) for name in ("k", "v")}
    cache |= {name: Arg((b, 5, length), BF16, scale=0.02) for name in ("k_scale", "v_scale")}
    ids = (Arg((b,), I32, below=words), Arg((b,), I32, below=1500))
    given = ([layer] * 4, Arg((words, d), BF16, scale=0.03))
    yield "eight_bits", carried(eight_bits, [cache] * 4, *given, *ids)

    def chunk(pools: Any, params: Any, x: Any, pages: Any, lengths: Any) -> Any:
        b, s, _ = x.shape
        groups, each, width, size = 3, 6, 72, 32
        places = lengths[:, None] + jnp.arange(s)
        page = jnp.take_along_axis(pages, places // size, 1)
        end = pages.shape[1] * size
        mask = jnp.where(jnp.arange(end) <= places[..., None], 0.0, -1e9)[:, None, None]

        def layer(x: Any, given: Any) -> Any:
            p, pool = given
            parts = (rms(x, p["scale"][0]) @ p["qkv"]).reshape(b, s, -1, width)
            q, k, v = jnp.split(parts, [groups * each, groups * each + groups], 2)
            q = turned(q, places).reshape(b, s, groups, each, width)
            both = jnp.stack([turned(k, places), v], 2)
            pool = pool.at[page, places % size].set(both)
            k, v = jnp.moveaxis(pool[pages].reshape(b, end, 2, groups, width), 2, 0)
            scores = jnp.einsum("bqgrd,bkgd->bgrqk", q, k).astype(F32) * width**-0.5 + mask
            shares = jax.nn.softmax(scores, -1).astype(BF16)
            x = x + jnp.einsum("bgrqk,bkgd->bqgrd", shares, v).reshape(b, s, -1) @ p["out"]
            return x + gated(rms(x, p["scale"][1]), p["up"], p["down"]), pool

        x, pools = lax.scan(layer, x, (params, pools))
        return pools, rms(x[:, -1])

    d, n = 1296, 3
    params = {"qkv": weight(n, d, 24 * 72), "out": weight(n, d, d), "scale": Arg((n, 2, d))}
    params |= {"up": weight(n, d, 2 * 3456), "down": weight(n, 3456, d)}
    rest = (Arg((5, 224, d), BF16), Arg((5, 40), I32, below=420), Arg((5,), I32, below=1000))
    yield "chunk", carried(chunk, Arg((n, 420, 32, 2, 3, 72), BF16), params, *rest)


def quantised() -> Zoo:
    """An encoder with products of int8, and a feed-forward part that learns in eight bits."""

    def integers(params: Any, x: Any, lengths: Any) -> Any:
        def rows(x: Any) -> Any:
            wide = x.astype(F32)
            most = jnp.abs(wide).max(-1, keepdims=True) / 127 + 1e-6
            return jnp.clip(jnp.round(wide / most), -127, 127).astype(I8), most

        def product(x: Any, w: Any, scale: Any) -> Any:
            short, most = rows(x)
            total = lax.dot_general(
                short, w, (((x.ndim - 1,), (0,)), ((), ())), preferred_element_type=I32
            )
            return (total.astype(F32) * most * scale).astype(BF16)

        bias = jnp.where(jnp.arange(x.shape[1]) <= lengths[:, None], 0.0, -1e9)[:, None, None]

        def layer(x: Any, p: Any) -> Any:
            b, s, d = x.shape
            scales = jnp.abs(p["scales"])
            parts = product(norm(x, 1.0), p["qkv"], scales[: 3 * d]).reshape(b, s, 3, 10, -1)
            found = attend(parts[:, :, 0], parts[:, :, 1], parts[:, :, 2], bias)
            x = x + product(found.reshape(b, s, d), p["out"], scales[:d])
            y = jax.nn.gelu(product(norm(x, 1.0), p["up"], scales[: 4 * d]))
            return x + product(y, p["down"], scales[:d]), None

        x, _ = lax.scan(layer, x, params)
        kept = (bias[:, 0, 0] == 0)[..., None]
        mean = (x * kept).astype(F32).sum(1) / kept.sum(1)
        mean = mean / jnp.linalg.norm(mean, axis=-1, keepdims=True)
        return jnp.round(127 * mean).astype(I8)

    d, n = 640, 3
    shapes = {"qkv": (d, 3 * d), "out": (d, d), "up": (d, 4 * d), "down": (4 * d, d)}
    params = {name: Arg((n, *shape), I8, below=127) for name, shape in shapes.items()}
    params |= {"scales": Arg((n, 4 * d), scale=3e-4)}
    yield "integers", program(integers, params, Arg((19, 233, d), BF16), Arg((19,), I32, below=233))

    def short(x: Any, dtype: Any, scale: Any) -> Any:
        """What eight bits keep, in the type of `x`."""
        most = float(jnp.finfo(dtype).max)
        small = jnp.clip(x.astype(F32) / scale, -most, most).astype(dtype)
        return small.astype(x.dtype) * scale.astype(x.dtype)

    @jax.custom_vjp
    def product(x: Any, w: Any, scales: Any) -> Any:
        return short(x, E4, scales[0]) @ short(w, E4, scales[1])

    def forward(x: Any, w: Any, scales: Any) -> Any:
        x, w = short(x, E4, scales[0]), short(w, E4, scales[1])
        return x @ w, (x, w, scales)

    def backward(kept: Any, g: Any) -> Any:
        x, w, scales = kept
        small = short(g, E5, scales[2])
        change = jnp.stack([jnp.abs(y).max().astype(F32) for y in (x, w, g)])
        return small @ w.T, x.T @ small, change

    product.defvjp(forward, backward)

    def floats(state: Any, x: Any, goal: Any) -> Any:
        params, history = state
        scales = jnp.abs(history).max(1) / jnp.array([448.0, 448.0, 57344.0]) + 1e-6

        def loss(params: Any, scales: Any) -> Any:
            p = jax.tree.map(lambda w: w.astype(BF16), params)
            y = x
            for n in range(2):
                up = product(rms(y), p[n]["up"], scales[2 * n])
                gate, value = jnp.split(up, 2, -1)
                y = y + product(jax.nn.silu(gate) * value, p[n]["down"], scales[2 * n + 1])
            return ((y - goal).astype(F32) ** 2).mean()

        value, (gradient, most) = jax.value_and_grad(loss, (0, 1))(params, scales)
        params = jax.tree.map(lambda p, g: p - 0.05 * g, params, gradient)
        history = jnp.concatenate([most[:, None], history[:, :-1]], 1)
        return (params, history), value

    d, inner = 1280, 3456
    params = [{"up": full(d, 2 * inner), "down": full(inner, d)}] * 2
    batch = (Arg((2896, d), BF16), Arg((2896, d), BF16))
    yield "floats", carried(floats, (params, Arg((4, 16, 3))), *batch)


def convolutions() -> Zoo:
    """Grouped convolutions with statistics of batches, and volumes in float16 by scaled losses."""

    def grouped(state: Any, pictures: Any, labels: Any) -> Any:
        """A step of Nesterov's momentum; the statistics run along."""

        def loss(params: Any) -> Any:
            seen = []

            def normal(x: Any, scale: Any) -> Any:
                wide = x.astype(F32)
                mean = wide.mean((0, 1, 2))
                var = (wide * wide).mean((0, 1, 2)) - mean * mean
                seen.append(jnp.stack([mean, var]))
                return ((wide - mean) * lax.rsqrt(var + 1e-5) * scale[0] + scale[1]).astype(BF16)

            def around(x: Any, w: Any, stride: int = 1) -> Any:
                groups = x.shape[-1] // w.shape[2]
                return convolved(x, w.astype(BF16), stride, groups)

            x = pictures.astype(BF16) / 64 - 2
            x = jax.nn.relu(normal(around(x, params["stem"], 2), params["first"]))
            for p in params["blocks"]:
                y = jax.nn.relu(normal(around(x, p["one"]), p["scales"][0]))
                y = jax.nn.relu(normal(around(y, p["two"], p["skip"].shape[0]), p["scales"][1]))
                y = normal(around(y, p["three"]), p["scales"][2])
                skip = normal(around(x, p["skip"], 2), p["scales"][3])
                x = jax.nn.relu(y + skip)
            logits = x.astype(F32).mean((1, 2)) @ params["head"]
            logs = jax.nn.log_softmax(logits, -1)
            right = jnp.take_along_axis(logs, labels[:, None], 1)[:, 0]
            return -(0.9 * right + 0.1 * logs.mean(-1)).mean(), seen

        params, speeds, means = state
        (value, seen), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        gradient = jax.tree.map(lambda g, p: g + 5e-5 * p, gradient, params)
        speeds = jax.tree.map(lambda m, g: 0.9 * m + g, speeds, gradient)
        params = jax.tree.map(lambda p, m, g: p - 0.05 * (g + 0.9 * m), params, speeds, gradient)
        means = jax.tree.map(lambda m, s: 0.9 * m + 0.1 * s, means, seen)
        return (params, speeds, means), value

    blocks, means, before = [], [Arg((2, 32))], 32
    for c in (72, 168, 408):
        p = {"one": kernel(1, 1, before, c, dtype=F32), "two": kernel(3, 3, 24, c, dtype=F32)}
        p |= {"three": kernel(1, 1, c, c, dtype=F32), "skip": kernel(2, 2, before, c, dtype=F32)}
        blocks.append(p | {"scales": Arg((4, 2, c))})
        means += [Arg((2, c))] * 4
        before = c
    params = {"stem": kernel(3, 3, 3, 32, dtype=F32), "first": Arg((2, 32)), "blocks": blocks}
    params |= {"head": full(before, 365)}
    batch = (Arg((30, 176, 208, 3), U8, below=256), Arg((30,), I32, below=365))
    yield "grouped", carried(grouped, (params, zeros_like(params), means), *batch)

    names = ("NDHWC", "DHWIO", "NDHWC")

    def volumes(state: Any, x: Any, labels: Any) -> Any:
        def around(x: Any, w: Any, stride: int = 1) -> Any:
            y = lax.conv_general_dilated(x, w, (stride,) * 3, "SAME", dimension_numbers=names)
            wide = y.astype(F32)
            mean, var = (f(wide, (1, 2, 3), keepdims=True) for f in (jnp.mean, jnp.var))
            return jax.nn.leaky_relu((wide - mean) * lax.rsqrt(var + 1e-5)).astype(F16)

        def miss(x: Any, head: Any, labels: Any) -> Any:
            logits = (x @ head).astype(F32)
            shares, goal = jax.nn.softmax(logits, -1), jax.nn.one_hot(labels, logits.shape[-1])
            both, either = (shares * goal).sum((1, 2, 3)), (shares + goal).sum((1, 2, 3))
            return token_loss(logits, labels).mean() - ((2 * both + 1) / (either + 1)).mean()

        params, speeds, scale = state

        def loss(params: Any) -> Any:
            p = jax.tree.map(lambda w: w.astype(F16), params)
            y, kept = x, []
            for n, (one, two) in enumerate(p["down"]):
                y = around(around(y, one, 1 if n == 0 else 2), two)
                kept.append(y)
            total = 0.0
            for n, (up, one, head) in enumerate(p["up"]):
                y = lax.conv_transpose(y, up, (2, 2, 2), "SAME", dimension_numbers=names)
                y = around(jnp.concatenate([y, kept[-2 - n]], -1), one)
                step = 2 ** (1 - n)
                total = total + miss(y, head, labels[:, ::step, ::step, ::step]) / step
            return total * scale, total

        gradient, value = jax.grad(loss, has_aux=True)(params)
        gradient = jax.tree.map(lambda g: g / scale, gradient)
        good = jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(gradient)]).all()
        new = jax.tree.map(lambda m, g: 0.99 * m + g, speeds, gradient)
        speeds = jax.tree.map(lambda m, v: jnp.where(good, v, m), speeds, new)
        params = jax.tree.map(lambda p, m: jnp.where(good, p - 0.01 * m, p), params, speeds)
        return (params, speeds, jnp.where(good, scale, scale / 2 + 1)), value

    down = [(3, 2, 24), (3, 24, 48), (3, 48, 96)]
    down = [
        (kernel(k, k, k, a, b, dtype=F32), kernel(k, k, k, b, b, dtype=F32)) for k, a, b in down
    ]
    up = [
        (kernel(2, 2, 2, a, b, dtype=F32), kernel(3, 3, 3, a, b, dtype=F32), full(b, 5))
        for a, b in ((96, 48), (48, 24))
    ]
    params = {"down": down, "up": up}
    batch = (Arg((2, 40, 72, 56, 2), F16), Arg((2, 40, 72, 56), I32, below=5))
    yield "volumes", carried(volumes, (params, zeros_like(params), Arg((), scale=512.0)), *batch)


def masked() -> Zoo:
    """Patches that are drawn again from a quarter of them."""

    def autoencoder(state: Any, pictures: Any, key: Any) -> Any:
        def layer(x: Any, p: Any) -> Any:
            b, s, d = x.shape
            q, k, v = jnp.moveaxis((norm(x, 1.0) @ p["qkv"]).reshape(b, s, 3, -1, 48), 2, 0)
            x = x + attend(q, k, v).reshape(b, s, d) @ p["out"]
            return x + jax.nn.gelu(norm(x, 1.0) @ p["up"]) @ p["down"], None

        b, kept = pictures.shape[0], 49
        x = pictures.reshape(b, 14, 12, 14, 12, 3).transpose(0, 1, 3, 2, 4, 5)
        x = x.reshape(b, 196, -1).astype(F32) / 127.5 - 1
        order = jnp.argsort(jax.random.uniform(key, (b, 196)), -1)
        back = jnp.argsort(order, -1)
        mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        goal = (x - mean) * lax.rsqrt(var + 1e-6)

        def loss(params: Any) -> Any:
            p = jax.tree.map(lambda w: w.astype(BF16), params)
            y = x.astype(BF16) @ p["patch"] + p["places"]
            y = jnp.take_along_axis(y, order[:, :kept, None], 1)
            y, _ = lax.scan(layer, y, p["encoder"])
            y = norm(y, 1.0) @ p["narrow"]
            none = jnp.broadcast_to(p["none"], (b, 196 - kept, y.shape[-1]))
            y = jnp.take_along_axis(jnp.concatenate([y, none], 1), back[..., None], 1)
            y, _ = lax.scan(layer, y + p["spots"], p["decoder"])
            found = (norm(y, 1.0) @ p["pixels"]).astype(F32)
            missing = back >= kept
            return (((found - goal) ** 2).mean(-1) * missing).sum() / missing.sum()

        params, moments = state
        value, gradient = jax.value_and_grad(loss)(params)
        return adamw(params, moments, gradient, 1e-4, 0.05), value

    def layers(n: int, d: int) -> dict[str, Arg]:
        found = {"qkv": full(n, d, 3 * d), "out": full(n, d, d)}
        return found | {"up": full(n, d, 4 * d), "down": full(n, 4 * d, d)}

    wide, narrow = 576, 240
    params = {"encoder": layers(4, wide), "decoder": layers(1, narrow), "patch": full(432, wide)}
    params |= {"places": Arg((196, wide)), "spots": Arg((196, narrow)), "none": Arg((narrow,))}
    params |= {"narrow": full(wide, narrow), "pixels": full(narrow, 432)}
    state = (params, (zeros_like(params), zeros_like(params)))
    yield "autoencoder", carried(autoencoder, state, Arg((52, 168, 168, 3), U8, below=256), _KEY)


def augmentation() -> Zoo:
    """Pictures that are turned, cut, blurred and coloured at random, each in its own way."""

    def pictures(images: Any, labels: Any, key: Any) -> Any:
        b, h, w, _ = images.shape
        size = 144

        def one(image: Any, key: Any) -> Any:
            keys = jax.random.split(key, 6)
            angle, zoom, left, top = jax.random.uniform(keys[0], (4,))
            angle, zoom = 0.6 * (angle - 0.5), 0.5 + 0.6 * zoom
            cos, sin = zoom * jnp.cos(angle), zoom * jnp.sin(angle)
            grid = jnp.arange(size) - size / 2
            y, x = grid[:, None], jnp.where(jax.random.bernoulli(keys[1]), grid, -grid)
            rows = y * cos - x * sin + h / 2 + 20 * (top - 0.5)
            columns = y * sin + x * cos + w / 2 + 40 * (left - 0.5)
            low_row, low_column = jnp.floor(rows), jnp.floor(columns)
            total = jnp.zeros((size, size, 3))
            for r in (0, 1):
                for c in (0, 1):
                    share = (1 - jnp.abs(rows - low_row - r)) * (
                        1 - jnp.abs(columns - low_column - c)
                    )
                    row = jnp.clip(low_row + r, 0, h - 1).astype(I32)
                    column = jnp.clip(low_column + c, 0, w - 1).astype(I32)
                    total = total + share[..., None] * image[row, column].astype(F32)
            x = total / 255
            bright, contrast, colour = 0.6 + 0.8 * jax.random.uniform(keys[2], (3,))
            x = x * bright
            x = (x - x.mean()) * contrast + x.mean()
            grey = (x * jnp.array([0.299, 0.587, 0.114])).sum(-1, keepdims=True)
            x = grey + (x - grey) * colour
            width = 0.1 + 1.9 * jax.random.uniform(keys[3])
            taps = jax.nn.softmax(-(jnp.arange(-4.0, 5.0) ** 2) / (2 * width * width))
            blur = taps[:, None] * taps
            x = jax.vmap(lambda x: jax.scipy.signal.convolve2d(x, blur, "same"), 2, 2)(x)
            solar = jax.random.bernoulli(keys[4], 0.2)
            x = jnp.where(solar & (x > 0.5), 1 - x, x)
            corner = jax.random.randint(keys[5], (2,), 0, size - 40)
            places = jnp.arange(size)
            cut = (places >= corner[:, None]) & (places < corner[:, None] + 40)
            return jnp.where((cut[0][:, None] & cut[1])[..., None], 0.5, x)

        keys = jax.random.split(key, b + 1)
        x = jax.vmap(one)(images, keys[:b])
        share = jax.random.beta(keys[b], 0.8, 0.8)
        x = share * x + (1 - share) * x[::-1]
        goal = jax.nn.one_hot(labels, 100)
        goal = share * goal + (1 - share) * goal[::-1]
        mean, spread = jnp.array([0.485, 0.456, 0.406]), jnp.array([0.229, 0.224, 0.225])
        return ((x - mean) / spread).astype(BF16), goal

    images = Arg((56, 190, 250, 3), U8, below=256)
    yield "pictures", program(pictures, images, Arg((56,), I32, below=100), _KEY)


def denoisers() -> Zoo:
    """Two guided Heun steps of a transformer, and a step of learning of a U for sounds."""

    def heun(p: Any, x: Any, kinds: Any, levels: Any) -> Any:
        b, h, w, c = x.shape

        def block(carry: Any, row: Any) -> Any:
            y, at = carry
            b, s, d = y.shape
            change = (at @ row["change"] + row["shift"])[:, None]
            one, two, gain, three, four, last = jnp.split(change, 6, -1)
            qkv = (norm(y, 1.0) * (1 + one) + two) @ row["qkv"]
            q, k, v = jnp.moveaxis(qkv.reshape(b, s, 3, -1, 72), 2, 0)
            y = y + gain * (attend(rms(q), rms(k), v).reshape(b, s, d) @ row["out"])
            z = jax.nn.gelu((norm(y, 1.0) * (1 + three) + four) @ row["up"]) @ row["down"]
            return (y + last * z, at), None

        def clean(x: Any, sigma: Any) -> Any:
            twice = jnp.concatenate([x, x]) * lax.rsqrt(sigma**2 + 0.25)
            y = twice.reshape(2 * b, h // 2, 2, w // 2, 2, c).transpose(0, 1, 3, 2, 4, 5)
            y = y.reshape(2 * b, -1, 4 * c).astype(BF16) @ p["in"] + p["places"]
            waves = jnp.log(sigma) / 4 * p["waves"]
            at = jnp.concatenate([jnp.cos(waves), jnp.sin(waves)]).astype(BF16) @ p["time"]
            given = jnp.concatenate([kinds, jnp.full_like(kinds, 1000)])
            at = jax.nn.silu(at + p["kinds"][given])
            (y, _), _ = lax.scan(block, (y, at), p["blocks"])
            y = (norm(y, 1.0) @ p["last"]).astype(F32)
            y = y.reshape(2 * b, h // 2, w // 2, 2, 2, c).transpose(0, 1, 3, 2, 4, 5)
            y = y.reshape(2 * b, h, w, c) * (0.5 * sigma * lax.rsqrt(sigma**2 + 0.25))
            told, free = jnp.split(y + jnp.concatenate([x, x]) * 0.25 / (sigma**2 + 0.25), 2)
            return free + 2.3 * (told - free)

        def step(x: Any, pair: Any) -> Any:
            now, then = pair
            slope = (x - clean(x, now)) / now
            guess = x + (then - now) * slope
            after = (guess - clean(guess, then)) / then
            return x + (then - now) * 0.5 * (slope + after), jnp.abs(after - slope).mean()

        sigmas = jnp.exp(jnp.array([1.0, 0.0, -1.0]) + 0.1 * levels)
        return lax.scan(step, x, (sigmas[:-1], sigmas[1:]))

    d, n = 864, 3
    blocks = {"change": weight(n, d, 6 * d), "shift": Arg((n, 6 * d), BF16, scale=0.1)}
    blocks |= {"qkv": weight(n, d, 3 * d), "out": weight(n, d, d)}
    blocks |= {"up": weight(n, d, 4 * d), "down": weight(n, 4 * d, d)}
    p = {"blocks": blocks, "in": weight(32, d), "places": Arg((234, d), BF16)}
    p |= {"waves": Arg((96,)), "time": weight(192, d), "kinds": Arg((1001, d), BF16)}
    p |= {"last": weight(d, 32)}
    yield "heun", program(heun, p, Arg((6, 36, 26, 8)), Arg((6,), I32, below=1000), Arg((3,)))

    names = ("NWC", "WIO", "NWC")

    def sounds(state: Any, x: Any, key: Any) -> Any:
        """The goal is a speed; levels that are too easy count for less."""
        keys = jax.random.split(key, 3)
        part = jax.random.uniform(keys[0], (x.shape[0], 1, 1))
        good, bad = jnp.cos(1.57 * part), jnp.sin(1.57 * part)
        noise = jax.random.normal(keys[1], x.shape)
        goal, ratio = good * noise - bad * x, (good / (bad + 1e-3)) ** 2

        def loss(params: Any) -> Any:
            p = jax.tree.map(lambda w: w.astype(BF16), params)
            angle = 30 * part[:, 0] * jnp.exp(-jnp.arange(48) / 12)
            at = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1).astype(BF16)
            at = jax.nn.silu(at @ p["time"])

            def around(x: Any, w: Any, stride: int = 1) -> Any:
                return lax.conv_general_dilated(x, w, (stride,), "SAME", dimension_numbers=names)

            def active(x: Any) -> Any:
                b, s, c = x.shape
                wide = x.astype(F32).reshape(b, s, 8, c // 8)
                mean, var = (f(wide, (1, 3), keepdims=True) for f in (jnp.mean, jnp.var))
                y = ((wide - mean) * lax.rsqrt(var + 1e-5)).reshape(b, s, c)
                return (y + jnp.sin(y) ** 2).astype(BF16)

            def residual(x: Any, w: Any) -> Any:
                scale, shift = jnp.split((at @ w["at"])[:, None], 2, -1)
                return x + around(
                    active(around(active(x), w["one"])) * (1 + scale) + shift, w["two"]
                )

            y, kept = around((good * x + bad * noise).astype(BF16), p["in"]), []
            for level in p["levels"]:
                y = residual(y, level["first"])
                kept.append(y)
                y = around(y, level["down"], 4)
            q, k, v = jnp.moveaxis((rms(y) @ p["qkv"]).reshape(*y.shape[:2], 3, -1, 64), 2, 0)
            y = y + attend(q, k, v).reshape(y.shape)
            for level, old in zip(p["levels"][::-1], kept[::-1], strict=True):
                y = lax.conv_transpose(y, level["up"], (4,), "SAME", dimension_numbers=names)
                y = residual(y + old, level["second"])
            found = around(active(y), p["out"]).astype(F32)
            return (((found - goal) ** 2) * jnp.minimum(ratio, 5.0) / (ratio + 1)).mean()

        params, moments, mean = state
        value, gradient = jax.value_and_grad(loss)(params)
        params, moments = adamw(params, moments, gradient, 1e-4, 1e-3)
        mean = jax.tree.map(lambda m, p: 0.9995 * m + 0.0005 * p, mean, params)
        return (params, moments, mean), value

    def one(c: int) -> dict[str, Arg]:
        found = {"one": kernel(5, c, c, dtype=F32), "two": kernel(5, c, c, dtype=F32)}
        return found | {"at": full(320, 2 * c)}

    levels = [
        {"first": one(a), "second": one(a), "down": kernel(8, a, b, dtype=F32)}
        | {"up": kernel(8, b, a, dtype=F32)}
        for a, b in ((104, 208), (208, 384))
    ]
    params = {"in": kernel(7, 2, 104, dtype=F32), "levels": levels, "time": full(96, 320)}
    params |= {"qkv": full(384, 3 * 384), "out": kernel(7, 104, 2, dtype=F32)}
    moments = (zeros_like(params), zeros_like(params))
    yield "sounds", carried(sounds, (params, moments, params), Arg((9, 6400, 2)), _KEY)


def recurrences() -> Zoo:
    """A linear recurrence with gates, all times at once by an associative scan."""

    def associative(params: Any, x: Any, goal: Any) -> Any:
        def loss(params: Any) -> Any:
            b, s, _ = x.shape
            y = rms(x, params["scale"])
            side, y = jax.nn.gelu(y @ params["side"]), y @ params["in"]
            past = jnp.pad(y, ((0, 0), (3, 0), (0, 0)))
            y = sum(past[:, n : n + s] * params["taps"][n] for n in range(4))
            parts = y.reshape(b, s, 6, -1)
            gates = jnp.einsum("bsnd,knde->kbsne", parts, params["gates"]).astype(F32)
            keep, new = jax.nn.sigmoid(gates).reshape(2, b, s, -1)
            logs = -8 * keep * jax.nn.softplus(params["decay"])
            decay = jnp.exp(logs)
            given = jnp.sqrt(-jnp.expm1(2 * logs) + 1e-6) * new * y.astype(F32)

            def join(one: Any, two: Any) -> Any:
                return one[0] * two[0], two[0] * one[1] + two[1]

            _, h = lax.associative_scan(join, (decay, given), axis=1)
            y = x + (h.astype(BF16) * side) @ params["out"]
            y = y + gated(rms(y), params["up"], params["down"])
            return ((y - goal).astype(F32) ** 2).mean()

        return jax.value_and_grad(loss)(params)

    d, inner = 672, 864
    params = {"side": weight(d, inner), "in": weight(d, inner), "out": weight(inner, d)}
    params |= {"taps": Arg((4, inner), BF16, scale=0.5), "gates": weight(2, 6, 144, 144)}
    params |= {"decay": Arg((inner,)), "scale": Arg((d,))}
    params |= {"up": weight(d, 2 * 2016), "down": weight(2016, d)}
    x = Arg((4, 1250, d), BF16)
    yield "associative", program(associative, params, x, x)


def forecasts() -> Zoo:
    """Drawn futures of series by two GRU layers, step by step, and their quantiles."""

    def drawn(params: Any, states: Any, last: Any, known: Any, items: Any, key: Any) -> Any:
        paths, series = 90, last.shape[0]
        states = jax.tree.map(lambda h: jnp.repeat(h, paths, 0), states)
        level = jnp.repeat(1 + jnp.abs(last), paths)
        item = params["items"][items]

        def gru(h: Any, x: Any, p: Any) -> Any:
            a, b = x @ p["x"] + p["bias"], h @ p["h"]
            a, b = jnp.split(a, 3, -1), jnp.split(b, 3, -1)
            reset, keep = jax.nn.sigmoid(a[0] + b[0]), jax.nn.sigmoid(a[1] + b[1])
            return keep * h + (1 - keep) * jnp.tanh(a[2] + reset * b[2])

        def step(carry: Any, row: Any) -> Any:
            states, value = carry
            known, key = row
            side = jnp.repeat(jnp.concatenate([known, item], -1), paths, 0)
            x = jnp.concatenate([(value / level)[:, None], side], -1)
            new = []
            for h, p in zip(states, params["layers"], strict=True):
                x = gru(h, x, p)
                new.append(x)
            middle, spread = (x @ params["head"]).T
            noise = jax.random.laplace(key, middle.shape)
            value = level * (middle + jax.nn.softplus(spread) * noise)
            return (new, value), value

        keys = jax.random.split(key, known.shape[0])
        _, values = lax.scan(step, (states, jnp.repeat(last, paths)), (known, keys))
        values = values.reshape(-1, series, paths)
        return values.mean(-1), jnp.quantile(values, jnp.array([0.1, 0.5, 0.9]), axis=-1)

    width, series = 112, 140
    layers = [
        {"x": full(n, 3 * width), "h": full(width, 3 * width), "bias": Arg((3 * width,))}
        for n in (1 + 7 + 12, width)
    ]
    params = {"layers": layers, "head": full(width, 2), "items": Arg((900, 12))}
    states = [Arg((series, width), scale=0.5)] * 2
    rest = (Arg((series,)), Arg((22, series, 7)), Arg((series,), I32, below=900))
    yield "drawn", program(drawn, params, states, *rest, _KEY)


def graphs() -> Zoo:
    """Attention along the edges of a graph, by heads, with edges that are dropped."""

    def attentive(state: Any, x: Any, edges: Any, ways: Any, labels: Any, key: Any) -> Any:
        n, heads = x.shape[0], 4
        alive = jax.random.bernoulli(key, 0.85, ways.shape[:1])
        source = jnp.concatenate([edges[0], jnp.arange(n)])
        target = jnp.concatenate([edges[1], jnp.arange(n)])
        alive = jnp.concatenate([alive, jnp.ones(n, bool)])

        def loss(params: Any) -> Any:
            y = x
            for p in params["layers"]:
                left = (y @ p["left"]).reshape(n, heads, -1)
                right = (y @ p["right"]).reshape(n, heads, -1)
                way = jnp.pad(ways @ p["way"], ((0, n), (0, 0))).reshape(-1, *left.shape[1:])
                both = jax.nn.leaky_relu(left[source] + right[target] + way, 0.2)
                score = jnp.where(alive[:, None], (both * p["score"]).sum(-1), -1e9)
                most = jax.ops.segment_max(score, target, n)
                share = jnp.exp(score - most[target])
                share = share / jax.ops.segment_sum(share, target, n)[target]
                found = jax.ops.segment_sum(share[..., None] * left[source], target, n)
                y = jax.nn.elu(norm(y @ p["skip"] + found.reshape(n, -1), p["scale"]))
            lost = token_loss(y @ params["head"], jnp.maximum(labels - 20, 0))
            known = labels >= 20
            return (lost * known).sum() / known.sum()

        params, moments = state
        value, gradient = jax.value_and_grad(loss)(params)
        return adamw(params, moments, gradient, 0.01, 5e-4), value

    layers = [
        {"left": full(a, 128), "right": full(a, 128), "skip": full(a, 128), "way": full(10, 128)}
        | {"score": Arg((4, 32), scale=0.2), "scale": Arg((128,))}
        for a in (200, 128)
    ]
    params = {"layers": layers, "head": full(128, 23)}
    graph = (Arg((13500, 200)), Arg((2, 105000), I32, below=13500), Arg((105000, 10)))
    state = (params, (zeros_like(params), zeros_like(params)))
    yield "attentive", carried(attentive, state, *graph, Arg((13500,), I32, below=43), _KEY)


def recommenders() -> Zoo:
    """The next items of readers against drawn ones, with a dense Adagrad step of the table."""

    def sequences(state: Any, past: Any, goals: Any, others: Any, often: Any, key: Any) -> Any:
        def loss(params: Any) -> Any:
            b, s = past.shape
            keys = jax.random.split(key, 3)

            def dropped(x: Any, key: Any) -> Any:
                return jnp.where(jax.random.bernoulli(key, 0.8, x.shape), x / 0.8, 0)

            shown = past > 0
            x = dropped((params["items"][past] * 8 + params["places"]) * shown[..., None], keys[0])
            mask = jnp.where(jnp.tril(jnp.ones((s, s), bool)) & shown[:, None, None], 0.0, -1e9)
            for p, own in zip(params["layers"], keys[1:], strict=True):
                y = norm(x, 1.0)
                q, k, v = ((y @ w).reshape(b, s, 2, -1) for w in p["qkv"])
                x = x + attend(q, k, v, mask).reshape(x.shape) @ p["out"]
                x = x + dropped(jax.nn.relu(norm(x, 1.0) @ p["up"]), own) @ p["down"]
            x = norm(x, 1.0)
            right = (x * params["items"][goals]).sum(-1) - jnp.log1p(jnp.abs(often[goals]))
            wrong = x @ params["items"][others].T - jnp.log1p(jnp.abs(often[others]))
            wrong = jnp.where(goals[..., None] == others, -1e9, wrong)
            total = jnp.logaddexp(jax.nn.logsumexp(wrong, -1), right)
            return ((total - right) * shown).sum() / shown.sum()

        params, squares = state
        value, gradient = jax.value_and_grad(loss)(params)
        squares = jax.tree.map(lambda s, g: s + g * g, squares, gradient)
        params = jax.tree.map(
            lambda p, g, s: p - 0.02 * g * lax.rsqrt(s + 1e-10), params, gradient, squares
        )
        return (params, squares), value

    d, items = 80, 190000
    layer = {"qkv": [full(d, d)] * 3, "out": full(d, d), "up": full(d, 2 * d)}
    layer |= {"down": full(2 * d, d)}
    params = {"items": Arg((items, d), scale=0.1), "places": Arg((60, d)), "layers": [layer] * 2}
    ids = Arg((150, 60), I32, below=items)
    rest = (ids, Arg((150, 60), I32, below=items - 1), Arg((640,), I32, below=items))
    yield "sequences", carried(sequences, (params, zeros_like(params)), *rest, Arg((items,)), _KEY)


def contrastive() -> Zoo:
    """Images and texts that belong together or not, by sigmoids over parts of the pairs."""

    def sigmoids(state: Any, images: Any, words: Any) -> Any:
        def tower(ws: Any, x: Any) -> Any:
            for w in ws[:-1]:
                x = jax.nn.gelu(norm(x @ w.astype(BF16), 1.0))
            x = (x @ ws[-1].astype(BF16)).astype(F32)
            return x * lax.rsqrt((x * x).sum(-1, keepdims=True) + 1e-8)

        def loss(params: Any) -> Any:
            shown = (words > 0)[..., None]
            mean = (params["words"][words] * shown).sum(1) / (shown.sum(1) + 1)
            left = tower(params["image"], images)
            right = tower(params["text"], mean.astype(BF16))
            count, size = left.shape[0], 350
            heat, bias = jnp.exp(params["heat"]) + 5, params["bias"] - 10

            @jax.checkpoint
            def part(total: Any, row: Any) -> Any:
                texts, at = row
                same = jnp.arange(count)[:, None] == at + jnp.arange(size)
                logits = heat * left @ texts.T + bias
                return total - jax.nn.log_sigmoid(jnp.where(same, logits, -logits)).sum(), None

            parts = right.reshape(-1, size, right.shape[-1])
            total, _ = lax.scan(part, jnp.zeros(()), (parts, jnp.arange(0, count, size)))
            return total / count

        params, momentum = state
        value, gradient = jax.value_and_grad(loss)(params)
        params = jax.tree.map(
            lambda p, m, g: p - 3e-5 * (jnp.sign(0.9 * m + 0.1 * g) + 0.1 * p),
            *(params, momentum, gradient),
        )
        momentum = jax.tree.map(lambda m, g: (0.99 * m + 0.01 * g).astype(BF16), momentum, gradient)
        return (params, momentum), value

    params = {"words": Arg((21000, 320), scale=0.1), "heat": Arg(()), "bias": Arg(())}
    params |= {"image": [full(1152, 1400), full(1400, 1400), full(1400, 448)]}
    params |= {"text": [full(320, 900), full(900, 448)]}
    batch = (Arg((2800, 1152), BF16), Arg((2800, 24), I32, below=21000))
    yield "sigmoids", carried(sigmoids, (params, zeros_like(params, BF16)), *batch)


def rollouts() -> Zoo:
    """Swings of two links that a policy moves, and a step along their advantages."""

    def acrobots(state: Any, worlds: Any, key: Any) -> Any:
        def change(s: Any, push: Any) -> Any:
            one, two, fast, faster = s
            cos, sin = jnp.cos(two), jnp.sin(two)
            a, b = 3.5 + cos, 1.25 + 0.5 * cos
            tilt = 4.9 * jnp.cos(one + two - 1.5708)
            pull = -0.5 * faster**2 * sin - faster * fast * sin
            pull = pull + 14.7 * jnp.cos(one - 1.5708) + tilt
            second = (push + b / a * pull - 0.5 * fast**2 * sin - tilt) / (1.25 - b * b / a)
            return jnp.stack([fast, faster, -(b * second + pull) / a, second])

        def moved(s: Any, push: Any) -> Any:
            a = change(s, push)
            b = change(s + 0.1 * a, push)
            c = change(s + 0.1 * b, push)
            d = change(s + 0.2 * c, push)
            s = s + 0.2 / 6 * (a + 2 * b + 2 * c + d)
            angles = (s[:2] + jnp.pi) % (2 * jnp.pi) - jnp.pi
            return jnp.concatenate([angles, jnp.clip(s[2:], -10.0, 10.0)])

        def seen(s: Any) -> Any:
            return jnp.concatenate([jnp.cos(s[:2]), jnp.sin(s[:2]), 0.2 * s[2:]])

        def run(params: Any, x: Any) -> Any:
            for w, bias in params["body"]:
                x = jnp.tanh(x @ w + bias)
            return x @ params["act"], (x @ params["value"])[..., 0]

        params, moments = state

        def step(carry: Any, key: Any) -> Any:
            worlds, times = carry
            x = jax.vmap(seen)(worlds)
            logits, value = run(params, x)
            keys = jax.random.split(key)
            act = jax.random.categorical(keys[0], logits)
            worlds = jax.vmap(moved)(worlds, act - 1.0)
            high = -jnp.cos(worlds[:, 0]) - jnp.cos(worlds[:, 0] + worlds[:, 1]) > 1
            done = high | (times >= 500)
            fresh = 0.1 * jax.random.uniform(keys[1], worlds.shape, minval=-1)
            worlds = jnp.where(done[:, None], fresh, worlds)
            logs = jnp.take_along_axis(jax.nn.log_softmax(logits), act[:, None], 1)[:, 0]
            row = (x, act, logs, value, jnp.where(high, 0.0, -1.0), done)
            return (worlds, jnp.where(done, 0, times + 1)), row

        keys = jax.random.split(key, 20)
        start = (worlds, jnp.zeros(worlds.shape[0], I32))
        (worlds, _), (x, act, before, value, gain, done) = lax.scan(step, start, keys)
        last = run(params, jax.vmap(seen)(worlds))[1]
        after = jnp.concatenate([value[1:], last[None]])
        alive = 1.0 - done
        gap = gain + 0.99 * alive * after - value

        def join(one: Any, two: Any) -> Any:
            return one[0] * two[0], two[0] * one[1] + two[1]

        _, better = lax.associative_scan(join, (0.94 * alive, gap), reverse=True)
        goal = better + value
        better = (better - better.mean()) / (better.std() + 1e-8)

        def loss(params: Any) -> Any:
            logits, found = run(params, x)
            logs = jax.nn.log_softmax(logits)
            ratio = jnp.exp(jnp.take_along_axis(logs, act[..., None], -1)[..., 0] - before)
            least = jnp.minimum(ratio * better, jnp.clip(ratio, 0.8, 1.2) * better)
            spread = -(jnp.exp(logs) * logs).sum(-1)
            return (0.5 * (found - goal) ** 2 - least - 0.01 * spread).mean()

        value, gradient = jax.value_and_grad(loss)(params)
        size = jnp.sqrt(sum((g * g).sum() for g in jax.tree.leaves(gradient)))
        gradient = jax.tree.map(lambda g: g * jnp.minimum(1.0, 0.5 / size), gradient)
        return adamw(params, moments, gradient, 3e-4, 0.0), worlds, value

    wide = 136
    params = {"body": [(full(6, wide), Arg((wide,))), (full(wide, wide), Arg((wide,)))]}
    params |= {"act": full(wide, 3), "value": full(wide, 1)}
    state = (params, (zeros_like(params), zeros_like(params)))
    yield "acrobots", carried(acrobots, state, Arg((3300, 4)), _KEY)


def decoding() -> Zoo:
    """Which of five guessed tokens stay, and the token that follows them."""

    def speculative(target: Any, draft: Any, guesses: Any, heat: Any, key: Any) -> Any:
        rows, count, _ = draft.shape
        heat = (0.5 + jax.nn.sigmoid(heat))[:, None, None]

        def shares(logits: Any) -> Any:
            p = jax.nn.softmax(logits.astype(F32) / heat, -1)
            p = jnp.where(p < 0.02 * p.max(-1, keepdims=True), 0.0, p)
            return p / p.sum(-1, keepdims=True)

        p, q = shares(target), shares(draft)
        keys = jax.random.split(key)
        at = guesses[..., None]
        wanted = jnp.take_along_axis(p[:, :count], at, -1)[..., 0]
        given = jnp.take_along_axis(q, at, -1)[..., 0]
        kept = jax.random.uniform(keys[0], (rows, count)) * given < wanted
        right = jnp.cumprod(kept.astype(I32), -1).sum(-1)
        ended = right == count
        here = jnp.take_along_axis(p, right[:, None, None], 1)[:, 0]
        less = jnp.take_along_axis(q, jnp.minimum(right, count - 1)[:, None, None], 1)[:, 0]
        left = jnp.where(ended[:, None], here, jnp.maximum(here - less, 0))
        left = jnp.where(left.sum(-1, keepdims=True) > 0, left, here)
        token = jax.random.categorical(keys[1], jnp.log(left))
        places = jnp.arange(count + 1)
        padded = jnp.pad(guesses, ((0, 0), (0, 1)))
        text = jnp.where(places == right[:, None], token[:, None], padded)
        return jnp.where(places <= right[:, None], text, -1), right, jnp.log(here.max(-1))

    words = 128256
    given = (Arg((14, 6, words), BF16, scale=3.0), Arg((14, 5, words), BF16, scale=3.0))
    rest = (Arg((14, 5), I32, below=words), Arg((14,)), _KEY)
    yield "speculative", program(speculative, *given, *rest)


def states() -> Zoo:
    """The likeliest path through hidden states of sequences, by backward pointers."""

    def viterbi(first: Any, moves: Any, means: Any, frames: Any, lengths: Any) -> Any:
        moves = jax.nn.log_softmax(moves, -1)
        near = 2 * jnp.einsum("btd,sd->tbs", frames, means)
        fit = -0.5 * ((means * means).sum(-1) - near)
        start = jax.nn.log_softmax(first) + fit[0]

        def step(best: Any, row: Any) -> Any:
            fit, time = row
            total = best[:, :, None] + moves
            new = total.max(1) + fit
            alive = (time < lengths)[:, None]
            pointer = jnp.where(alive, total.argmax(1), jnp.arange(moves.shape[0]))
            return jnp.where(alive, new, best), pointer.astype(I16)

        times = jnp.arange(1, fit.shape[0])
        best, pointers = lax.scan(step, start, (fit[1:], times))
        last = best.argmax(-1)

        def back(state: Any, row: Any) -> Any:
            before = jnp.take_along_axis(row, state[:, None].astype(I32), 1)[:, 0].astype(I32)
            return before, state

        state, path = lax.scan(back, last.astype(I32), pointers, reverse=True)
        return jnp.concatenate([state[None], path]).T, best.max(-1)

    given = (Arg((310,)), Arg((310, 310)), Arg((310, 26)))
    rest = (Arg((21, 56, 26)), Arg((21,), I32, below=57))
    yield "viterbi", program(viterbi, *given, *rest)


def speech() -> Zoo:
    """Waves whose spectra are known but not their phases, by five rounds."""

    def phases(logs: Any, inverse: Any, noise: Any) -> Any:
        size, hop = 960, 240
        window = 0.5 - 0.5 * jnp.cos(2 * jnp.pi * jnp.arange(size) / size)
        wanted = jnp.maximum(jnp.exp(0.5 * logs) @ inverse, 1e-3) ** 1.2
        b, times, _ = wanted.shape
        length = (times + 3) * hop

        def added(frames: Any) -> Any:
            parts = frames.reshape(b, times, 4, hop)
            total = jnp.zeros((b, times + 3, hop))
            for n in range(4):
                total = total + jnp.pad(parts[:, :, n], ((0, 0), (n, 3 - n), (0, 0)))
            return total.reshape(b, length)

        weight = jnp.maximum(added(jnp.broadcast_to(window**2, (b, times, size))), 1e-3)
        index = jnp.arange(times)[:, None] * hop + jnp.arange(size)

        def wave(spectrum: Any) -> Any:
            return added(jnp.fft.irfft(spectrum, size) * window) / weight

        def rounded(_: Any, pair: Any) -> Any:
            angles, before = pair
            again = jnp.fft.rfft(wave(wanted * angles)[:, index] * window)
            new = again - 0.497 * before
            return new / (jnp.abs(new) + 1e-9), again

        start = jnp.exp(1j * noise)
        angles, _ = lax.fori_loop(0, 5, rounded, (start, jnp.zeros_like(start)))
        sound = wave(wanted * angles)
        past = 0.85 * jnp.pad(sound, ((0, 0), (1, 0)))[:, :-1]
        return jnp.round(32767 * jnp.clip(sound + past, -1, 1)).astype(I16)

    given = (Arg((11, 410, 80)), Arg((80, 481), scale=0.1), Arg((11, 410, 481)))
    yield "phases", program(phases, *given)


def spectral() -> Zoo:
    """Turbulence in a plane by its spectrum, in steps of four stages."""

    def turbulence(whirls: Any, push: Any) -> Any:
        _, h, w = whirls.shape
        rows, columns = jnp.fft.fftfreq(h, 1 / h)[:, None], jnp.fft.rfftfreq(w, 1 / w)
        square = rows**2 + columns**2
        inverse = jnp.where(square > 0, 1 / jnp.maximum(square, 1), 0)
        kept = (jnp.abs(rows) < h / 3) & (columns < w / 3)
        decay = 1e-3 * square + 0.05
        force = jnp.fft.rfft2(0.1 * jnp.tanh(push))

        def change(z: Any) -> Any:
            flow = z * inverse
            spectra = jnp.stack([1j * rows * flow, -1j * columns * flow, 1j * columns * z])
            spectra = jnp.concatenate([spectra, (1j * rows * z)[None]])
            u, v, x, y = jnp.fft.irfft2(spectra, (h, w))
            return kept * (force - jnp.fft.rfft2(u * x + v * y))

        def step(z: Any, _: Any) -> Any:
            dt = 1e-3
            half, whole = jnp.exp(-decay * dt / 2), jnp.exp(-decay * dt)
            a = change(z)
            b = change(half * (z + dt / 2 * a))
            c = change(half * z + dt / 2 * b)
            d = change(whole * z + dt * half * c)
            z = whole * z + dt / 6 * (whole * a + 2 * half * (b + c) + d)
            return z, (jnp.abs(z) ** 2 * inverse).sum((1, 2))

        z, energy = lax.scan(step, jnp.fft.rfft2(whirls), None, 3)
        return jnp.fft.irfft2(z, (h, w)), energy

    yield "turbulence", carried(turbulence, Arg((2, 480, 576)), Arg((480, 576)))


def particles() -> Zoo:
    """A fluid of particles, each of which meets those of the cells around it."""

    def cells(state: Any, masses: Any) -> Any:
        places, speeds = state[0] % 1.0, state[1]
        n, side, room = places.shape[0], 20, 8
        reach = 1 / side
        cell = jnp.floor(places * side).astype(I32).clip(0, side - 1)
        flat = (cell[:, 0] * side + cell[:, 1]) * side + cell[:, 2]
        order = jnp.argsort(flat)
        flat, cell = flat[order], cell[order]
        places, speeds, mass = places[order], speeds[order], 1 + jnp.abs(masses[order])
        starts = jnp.searchsorted(flat, jnp.arange(side**3 + 1))
        ways = jnp.stack(jnp.meshgrid(*[jnp.arange(-1, 2)] * 3, indexing="ij"), -1).reshape(-1, 3)
        around = (cell[:, None] + ways) % side
        around = (around[..., 0] * side + around[..., 1]) * side + around[..., 2]
        index = starts[around][..., None] + jnp.arange(room)
        valid = (index < starts[around + 1][..., None]).reshape(n, -1)
        index = jnp.minimum(index, n - 1).reshape(n, -1)
        gap = places[:, None] - places[index]
        gap = gap - jnp.round(gap)
        far = jnp.sqrt((gap * gap).sum(-1) + 1e-9)
        near = jnp.where(valid, jnp.maximum(1 - far / reach, 0), 0)
        dense = (mass[index] * near**3).sum(-1) + 0.1
        press = 0.5 * jnp.maximum(dense - 3, 0)
        both = press / dense**2
        push = mass[index] * (both[:, None] + both[index]) * near**2
        slide = mass[index] * near / dense[index]
        force = (push[..., None] * gap / far[..., None]).sum(1)
        force = force + 0.1 * (slide[..., None] * (speeds[index] - speeds[:, None])).sum(1)
        speeds = speeds + 2e-3 * force.at[:, 2].add(-1.0)
        return ((places + 2e-3 * speeds) % 1.0, speeds), dense.mean()

    n = 21000
    yield "cells", carried(cells, (Arg((n, 3)), Arg((n, 3), scale=0.1)), Arg((n,)))


def multigrid() -> Zoo:
    """Pressure in a box by two cycles over five sizes of its grid."""

    def cycles(x: Any, given: Any) -> Any:
        def around(x: Any) -> Any:
            p = jnp.pad(x, 1)
            one = p[2:, 1:-1, 1:-1] + p[:-2, 1:-1, 1:-1]
            two = p[1:-1, 2:, 1:-1] + p[1:-1, :-2, 1:-1]
            return one + two + p[1:-1, 1:-1, 2:] + p[1:-1, 1:-1, :-2]

        def smooth(x: Any, f: Any) -> Any:
            for _ in range(2):
                x = x + 0.8 * ((f + around(x)) / 6 - x)
            return x

        def cycle(x: Any, f: Any, depth: int) -> Any:
            x = smooth(x, f)
            if depth == 0:
                return smooth(smooth(x, f), f)
            left = f - (6 * x - around(x))
            h, w, d = (n // 2 for n in left.shape)
            less = 4 * left.reshape(h, 2, w, 2, d, 2).mean((1, 3, 5))
            fix = cycle(jnp.zeros_like(less), less, depth - 1)
            return smooth(x + jax.image.resize(fix, x.shape, "linear"), f)

        def once(x: Any, _: Any) -> Any:
            x = cycle(x, given, 4)
            return x, jnp.linalg.norm((given - (6 * x - around(x))).ravel())

        return lax.scan(once, x, None, 2)

    yield "cycles", carried(cycles, *[Arg((208, 144, 112))] * 2)


def processes() -> Zoo:
    """Where to try next: a Gaussian process, and starts that climb its hoped-for gain."""

    def tried(logs: Any, x: Any, y: Any, candidates: Any) -> Any:
        scales = jnp.exp(0.1 * logs)
        places = x * scales

        def kernel_of(a: Any, b: Any) -> Any:
            far = (a * a).sum(-1)[:, None] + (b * b).sum(-1) - 2 * a @ b.T
            far = jnp.sqrt(5 * jnp.maximum(far, 1e-9))
            return (1 + far + far * far / 3) * jnp.exp(-far)

        lower = jnp.linalg.cholesky(kernel_of(places, places) + 0.3 * jnp.eye(x.shape[0]))
        middle = y.mean()
        shares = jax.scipy.linalg.cho_solve((lower, True), y - middle)
        most = y.max()

        def gain(z: Any) -> Any:
            near = kernel_of(z * scales, places)
            half = lax.linalg.triangular_solve(lower, near.T, left_side=True, lower=True)
            spread = jnp.sqrt(jnp.maximum(1 - (half * half).sum(0), 1e-6))
            part = (middle + near @ shares - most) / spread
            density = jnp.exp(-0.5 * part * part) * 0.39894
            return spread * (density + part * jax.scipy.stats.norm.cdf(part))

        _, index = lax.top_k(gain(candidates), 48)
        starts = candidates[index]

        def climb(carry: Any, _: Any) -> Any:
            z, speed = carry
            slope = jax.grad(lambda z: jnp.log(gain(z) + 1e-9).sum())(z)
            speed = 0.8 * speed + jnp.clip(slope, -1, 1)
            return (jnp.clip(z + 0.03 * speed, -3, 3), speed), None

        (z, _), _ = lax.scan(climb, (starts, jnp.zeros_like(starts)), None, 4)
        return z[gain(z).argmax()], -jnp.log(jnp.diagonal(lower)).sum() - 0.5 * (
            y - middle
        ) @ shares

    given = (Arg((11,)), Arg((820, 11)), Arg((820,)), Arg((3600, 11)))
    yield "tried", program(tried, *given)


def curvature() -> Zoo:
    """Adam in bases that turn slowly towards those of the gradients' squares, by QR."""

    def turning(state: Any, gradients: Any) -> Any:
        def one(p: Any, s: Any, g: Any) -> Any:
            left = 0.95 * s["left"] + 0.05 * g @ g.T
            right = 0.95 * s["right"] + 0.05 * g.T @ g
            mean = 0.9 * s["mean"] + 0.1 * g
            inside = s["rows"].T @ g @ s["columns"]
            var = 0.95 * s["var"] + 0.05 * inside**2
            step = (s["rows"].T @ mean @ s["columns"]) * lax.rsqrt(var + 1e-12)
            p = p - 3e-3 * (s["rows"] @ step @ s["columns"].T + 0.01 * p)
            rows, _ = jnp.linalg.qr(left @ s["rows"])
            columns, _ = jnp.linalg.qr(right @ s["columns"])
            state = {"left": left, "right": right, "mean": mean, "var": var}
            return p, state | {"rows": rows, "columns": columns}

        params, states = state
        size = jnp.sqrt(sum((g * g).sum() for g in gradients))
        pairs = [
            one(p, s, g / jnp.maximum(size, 1.0))
            for p, s, g in zip(params, states, gradients, strict=True)
        ]
        return ([p for p, _ in pairs], [s for _, s in pairs]), size

    params, states = [], []
    for a, b in ((448, 256), (256, 320)):
        params.append(full(a, b))
        square = {"left": Arg((a, a), identity=30.0), "right": Arg((b, b), identity=30.0)}
        square |= {"rows": full(a, a), "columns": full(b, b)}
        states.append(square | {"mean": Arg((a, b)), "var": Arg((a, b), scale=0.0)})
    yield "turning", carried(turning, (params, states), params)


def orbitals() -> Zoo:
    """Orbitals in the field that they make, by rounds of eigenvectors."""

    def consistent(overlap: Any, core: Any, fits: Any) -> Any:
        n, filled = core.shape[0], 24
        core, fits = 0.5 * (core + core.T), 0.02 * (fits + fits.swapaxes(1, 2))
        lower = jnp.linalg.cholesky(overlap @ overlap.T / n + jnp.eye(n))
        back = lax.linalg.triangular_solve(lower, jnp.eye(n), left_side=True, lower=True)

        def orbits(field: Any) -> Any:
            _, inside = jnp.linalg.eigh(back @ field @ back.T)
            return back.T @ inside[:, :filled]

        def field_of(held: Any) -> Any:
            dense = held @ held.T
            charge = jnp.einsum("pij,ij->p", fits, dense)
            half = jnp.einsum("pij,jo->pio", fits, held)
            swap = jnp.einsum("pio,pjo->ij", half, half)
            return core + 2 * jnp.einsum("p,pij->ij", charge, fits) - swap, dense

        def rounds(field: Any, _: Any) -> Any:
            new, dense = field_of(orbits(field))
            return 0.6 * field + 0.4 * new, (dense * (core + new)).sum()

        return lax.scan(rounds, core, None, 2)

    n = 118
    yield "consistent", program(consistent, *[Arg((n, n))] * 2, Arg((340, n, n)))


def documents() -> Zoo:
    """Texts that are nearly the same, by the least of many hashes, and their groups."""

    def alike(words: Any, hashes: Any) -> Any:
        n, length = words.shape
        x = (words.astype(U32) + 1) * U32(2654435761)
        run = jnp.zeros((n, length - 4), U32)
        for k in range(5):
            run = (run ^ x[:, k : k + length - 4]) * U32(16777619)
            run = run ^ (run >> 15)
        a, b = hashes[0] | 1, hashes[1]
        least = lax.map(lambda ab: ((run * ab[0]) ^ ab[1]).min(1), (a, b), batch_size=16).T
        bands = jnp.zeros((n, 16), U32)
        for k in range(5):
            bands = (bands ^ least.reshape(n, 16, 5)[..., k]) * U32(2246822519)
        label = jnp.arange(n)

        def joined(_: Any, label: Any) -> Any:
            def band(column: Any) -> Any:
                column, order = lax.sort((column, jnp.arange(n)), num_keys=1)
                new = jnp.concatenate([jnp.zeros(1, bool), column[1:] != column[:-1]])
                group = jnp.cumsum(new)
                low = jax.ops.segment_min(label[order], group, n, indices_are_sorted=True)
                return jnp.zeros(n, I32).at[order].set(low[group])

            return jnp.minimum(label, jax.vmap(band, 1)(bands).min(0))

        label = lax.fori_loop(0, 2, joined, label)
        other = least[label]
        share = (least == other).mean(1)
        kept = (label == jnp.arange(n)) | (share < 0.6)
        return jnp.nonzero(kept, size=n, fill_value=-1)[0], label, share

    yield (
        "alike",
        program(alike, Arg((5200, 260), I32, below=6000), Arg((2, 80), U32, below=1 << 31)),
    )


def search() -> Zoo:
    """The nearest rows by codes of their parts in the closest lists, and again in full."""

    def coded(queries: Any, centres: Any, books: Any, codes: Any, ids: Any, rows: Any) -> Any:
        q, d = queries.shape
        parts = codes.shape[-1]
        scores = queries @ centres.T - 0.5 * (centres * centres).sum(-1)
        _, probes = lax.top_k(scores, 14)
        split = queries.reshape(q, parts, d // parts)
        table = jnp.einsum("qpd,pcd->qpc", split, books).astype(BF16)

        def one(table: Any, probes: Any) -> Any:
            near = codes[probes].reshape(-1, parts).astype(I32)
            total = table[jnp.arange(parts), near].astype(F32).sum(-1)
            best, index = lax.top_k(total, 100)
            return best, ids[probes].reshape(-1)[index]

        _, found = lax.map(lambda pair: one(*pair), (table, probes), batch_size=60)
        exact = jnp.einsum("qd,qkd->qk", queries, rows[found].astype(F32))
        best, order = lax.top_k(exact, 10)
        return best, jnp.take_along_axis(found, order, 1)

    queries, centres = Arg((180, 112)), Arg((1600, 112))
    codes = Arg((1600, 240, 28), U8, below=256)
    rest = (Arg((1600, 240), I32, below=384000), Arg((384000, 112), BF16))
    yield "coded", program(coded, queries, centres, Arg((28, 256, 4)), codes, *rest)


def evolution() -> Zoo:
    """Policies that are kept if none of their kind does better, and children of two of them."""

    def elites(archive: Any, centres: Any, starts: Any, key: Any) -> Any:
        genes, fits = archive
        cells = genes.shape[0]
        keys = jax.random.split(key, 3)
        parents = jax.random.randint(keys[0], (2, 6000), 0, cells)
        one, two = genes[parents[0]], genes[parents[1]]
        noise = jax.random.normal(keys[1], one.shape)
        along = jax.random.normal(keys[2], (one.shape[0], 1))
        young = one + 0.02 * noise + 0.1 * along * (two - one)

        def life(gene: Any, start: Any) -> Any:
            first, last = gene[:120].reshape(6, 20), gene[120:].reshape(20, 2)

            def move(s: Any, _: Any) -> Any:
                place, speed = s[:2], s[2:4]
                seen = jnp.concatenate([s, jnp.sin(3 * place)])
                act = jnp.tanh(jnp.tanh(seen @ first) @ last)
                speed = 0.9 * speed + 0.1 * act
                bound = jnp.abs(place + speed) > 1
                speed = jnp.where(bound, -0.5 * speed, speed)
                return jnp.concatenate([place + speed, speed]), (act * act).sum()

            s, cost = lax.scan(move, start, None, 24)
            return -cost.sum(), s[:2]

        fit, kind = jax.vmap(life)(young, jnp.tile(0.1 * starts, (6000 // starts.shape[0], 1)))
        far = (kind * kind).sum(-1)[:, None] + (centres * centres).sum(-1) - 2 * kind @ centres.T
        cell = far.argmin(-1)
        best = jax.ops.segment_max(fit, cell, cells)
        wins = (fit >= best[cell]) & (fit > fits[cell])
        slot = jnp.where(wins, cell, cells)
        genes = genes.at[slot].set(young, mode="drop")
        fits = fits.at[slot].set(fit, mode="drop")
        return (genes, fits), wins.sum(), fits.max()

    archive = (Arg((7400, 160), scale=0.4), Arg((7400,), scale=20.0))
    yield "elites", carried(elites, archive, Arg((7400, 2)), Arg((50, 4)), _KEY)


def radiation() -> Zoo:
    """Light that scatters in layers of tissue until it is taken up or leaves."""

    def photons(scatter: Any, absorb: Any, forward: Any, key: Any) -> Any:
        count, side = 120000, 72
        scatter, absorb = 2 + jnp.abs(scatter), 0.2 + jnp.abs(absorb)
        forward = 0.9 * jnp.tanh(forward)
        down = jnp.tile(jnp.array([[0.0], [0.0], [1.0]]), (1, count))
        grid = jnp.zeros((side, side))
        start = (jnp.zeros((3, count)), down, jnp.ones(count), grid, key, 0)

        def alive(carry: Any) -> Any:
            return (carry[5] < 36) & (carry[2] > 0).any()

        def step(carry: Any) -> Any:
            place, way, left, grid, key, n = carry
            key, own = jax.random.split(key)
            draw = jax.random.uniform(own, (4, count), minval=1e-7)
            layer = jnp.clip(place[2] * 3, 0, scatter.shape[0] - 1).astype(I32)
            total = scatter[layer] + absorb[layer]
            place = place - way * jnp.log(draw[0]) / total
            left = jnp.where(place[2] < 0, 0.0, left)
            taken = left * absorb[layer] / total
            row = jnp.clip(place[2] * 24, 0, side - 1).astype(I32)
            column = jnp.clip(jnp.hypot(place[0], place[1]) * 24, 0, side - 1).astype(I32)
            grid = grid.at[row, column].add(taken)
            left = left - taken
            g = forward[layer] + 1e-4
            part = (1 - g * g) / (1 - g + 2 * g * draw[1])
            cos = jnp.clip((1 + g * g - part * part) / (2 * g), -1, 1)
            sin, angle = jnp.sqrt(1 - cos * cos), 2 * jnp.pi * draw[2]
            x, y, z = way
            steep = jnp.sqrt(jnp.maximum(1 - z * z, 1e-8))
            a, b = sin * jnp.cos(angle), sin * jnp.sin(angle)
            turned = jnp.stack([
                a * (x * z) / steep - b * y / steep + x * cos,
                a * (y * z) / steep + b * x / steep + y * cos,
                -a * steep + z * cos,
            ])  # fmt: skip
            plain = jnp.stack([a, b, jnp.sign(z) * cos])
            way = jnp.where(jnp.abs(z) > 0.9999, plain, turned)
            weak = left < 0.01
            left = jnp.where(weak, jnp.where(draw[3] < 0.1, 10 * left, 0.0), left)
            return place, way, left, grid, key, n + 1

        _, _, left, grid, _, n = lax.while_loop(alive, step, start)
        return grid / count, left.sum(), n

    yield "photons", program(photons, *[Arg((5,))] * 3, _KEY)
