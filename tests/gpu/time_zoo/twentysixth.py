"""A 26th zoo: steps that a reviewer would hold out; written without a look at the predictor."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import optax
from eleventh import learned, started
from flax import linen as nn
from flax import nnx
from fourth import program, weight
from jax import lax
from jax.experimental import sparse
from ninth import carried
from seventeenth import (
    attention,
    causal,
    conv,
    cross_entropy,
    filters,
    half,
    heads,
    layer_norm,
    linen_weights,
    master,
    nnx_parts,
    rms,
    rope,
    swiglu,
    swiglu_weights,
    times,
)

from xlapipe.running.calibration.timed_program import Arg, TimedProgram

F32, F16, BF16, I32 = jnp.float32, jnp.float16, jnp.bfloat16, jnp.int32
F64, U8, U32 = jnp.float64, jnp.uint8, jnp.uint32
Zoo = Iterator[tuple[str, TimedProgram]]
_KEY = Arg((2,), U32, below=1 << 30)


def twentysixth_programs() -> dict[str, TimedProgram]:
    """Every program, by FAMILY/NAME."""
    families = (
        *(pretraining, serving, experts, rankers, embedders, diffusion, video),
        *(vision, detection, segmentation, music, speech, recommenders, graphs),
        *(agents, series, tabular, multimodal, fields, credit, transforms),
        *(spectra, estimates, orders, scans, tables, cloth, geometry),
    )
    return {
        f"{family.__name__}/{name}": program for family in families for name, program in family()
    }


def pretraining() -> Zoo:
    """A scanned decoder with normed queries and a z-loss, and one trained to live in four bits."""
    d, layers, vocabulary, b, s = 1024, 6, 49152, 6, 1024

    def decoder(p: Any, tokens: Any) -> Any:
        x = p["embedding"].astype(BF16)[tokens]
        places, mask = jnp.arange(s)[None], causal(s)

        @jax.checkpoint
        def layer(x: Any, q: Any) -> Any:
            q = half(q)
            y = rms(x, q["one"])
            a, k, v = (heads(y @ q[name], 128) for name in ("q", "k", "v"))
            a, k = (rope(rms(part), places, 5e5) for part in (a, k))
            x = x + attention(a, k, v, mask) @ q["out"]
            return x + swiglu(rms(x, q["two"]), q), None

        x, _ = lax.scan(layer, x, p["layers"])
        return rms(x, p["last"])

    rule = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(
            optax.warmup_cosine_decay_schedule(0.0, 6e-4, 1000, 50000),
            *(0.9, 0.95),
            mu_dtype=BF16,
            weight_decay=0.1,
        ),
    )

    def update(state: Any, tokens: Any) -> Any:
        def loss(p: Any) -> Any:
            x = decoder(p, tokens[:, :-1])
            table = p["embedding"].astype(BF16)

            @jax.checkpoint
            def part(total: Any, given: Any) -> Any:
                y, goals = given
                logits = (y @ table.T).astype(F32)
                norm = jax.nn.logsumexp(logits, -1)
                right = jnp.take_along_axis(logits, goals[:, None], -1)[:, 0]
                return total + (norm - right + 1e-4 * norm**2).sum(), None

            parts = (x.reshape(6, -1, d), tokens[:, 1:].reshape(6, -1))
            return lax.scan(part, jnp.zeros(()), parts)[0] / (b * s)

        return learned(rule, loss, state)

    layer = {"q": master(d, d), "k": master(d, 256), "v": master(d, 256), "out": master(d, d)}
    layer |= swiglu_weights(d, 2816) | {"one": Arg((d,)), "two": Arg((d,))}
    p = {"embedding": Arg((vocabulary, d), scale=0.02), "layers": times(layers, layer)}
    p["last"] = Arg((d,))
    tokens = Arg((b, s + 1), I32, below=vocabulary)
    yield "normed_queries", carried(update, started(rule, p), tokens)

    wide, length = 768, 512

    def fake(w: Any) -> Any:
        groups = w.reshape(-1, 64, w.shape[-1])
        most = jnp.maximum(jnp.abs(groups).max(1, keepdims=True), 1e-6) / 7
        near = jnp.clip(jnp.round(groups / most), -8, 7) * most
        return (w + lax.stop_gradient(near.reshape(w.shape) - w)).astype(BF16)

    def fake_rows(x: Any) -> Any:
        most = jnp.maximum(jnp.abs(x).max(-1, keepdims=True), 1e-5) / 127
        return x + lax.stop_gradient(jnp.round(x / most) * most - x)

    slow = optax.sgd(1e-2, momentum=0.9)

    def trained(state: Any, tokens: Any) -> Any:
        def loss(p: Any) -> Any:
            x = p["words"].astype(BF16)[tokens[:, :-1]] + p["places"].astype(BF16)
            for q in p["layers"]:
                y = fake_rows(layer_norm(x, q["one"]))
                a, k, v = jnp.split(heads(y @ fake(q["qkv"]), 64), 3, 2)
                x = x + fake_rows(attention(a, k, v, causal(length))) @ fake(q["out"])
                y = jax.nn.gelu(fake_rows(layer_norm(x, q["two"])) @ fake(q["up"]))
                x = x + fake_rows(y) @ fake(q["down"])
            return cross_entropy(layer_norm(x) @ p["words"].astype(BF16).T, tokens[:, 1:]).mean()

        return learned(slow, loss, state)

    layer = {"qkv": master(wide, 3 * wide), "out": master(wide, wide), "one": Arg((wide,))}
    layer |= {"up": master(wide, 3072), "down": master(3072, wide), "two": Arg((wide,))}
    q = {"words": Arg((32000, wide), scale=0.02), "places": Arg((length, wide), scale=0.02)}
    q["layers"] = [layer] * 4
    tokens = Arg((10, length + 1), I32, below=32000)
    yield "four_bits_in_mind", carried(trained, started(slow, q), tokens)


def serving() -> Zoo:
    """A token of 20 replies by parallel blocks, and perceptrons with adapters of 40 tenants."""
    d, layers, b, room, size = 2048, 10, 20, 1536, 64

    def token(caches: Any, p: Any, words: Any, lengths: Any) -> Any:
        lengths = lengths + room // 4
        x = p["embedding"][words]
        seen = (jnp.arange(room) <= lengths[:, None])[:, None, None]

        def layer(x: Any, given: Any) -> Any:
            q, keys, values = given
            y = layer_norm(x, q["scale"], q["shift"])
            a, k, v = jnp.split(heads(y @ q["qkv"] + q["bias"], size)[:, None], 3, 2)
            a, k = rope(a, lengths[:, None]), rope(k, lengths[:, None])
            rows = jnp.arange(b)
            keys = keys.at[rows, lengths].set(k[:, 0])
            values = values.at[rows, lengths].set(v[:, 0])
            told = attention(a, keys, values, seen)[:, 0] @ q["out"]
            return x + told + jax.nn.gelu(y @ q["up"]) @ q["down"], (keys, values)

        x, caches = lax.scan(layer, x, (p["layers"], *caches))
        logits = (layer_norm(x) @ p["head"]).astype(F32)
        return caches, logits.argmax(-1), jax.nn.log_softmax(logits).max(-1)

    layer = {"qkv": weight(d, 3 * d), "bias": Arg((3 * d,), BF16, 0.1), "out": weight(d, d)}
    layer |= {"up": weight(d, 4 * d), "down": weight(4 * d, d)}
    layer |= {"scale": Arg((d,), BF16), "shift": Arg((d,), BF16, 0.1)}
    p = {"embedding": weight(51200, d), "layers": times(layers, layer), "head": weight(d, 51200)}
    cache = Arg((layers, b, room, d // size, size), BF16)
    words, lengths = Arg((b,), I32, below=51200), Arg((b,), I32, below=room // 2)
    yield "phi_token", carried(token, (cache, cache), p, words, lengths)

    width, rank, tenants, rows = 1536, 16, 40, 32

    def adapted(p: Any, x: Any, who: Any) -> Any:
        def side(y: Any, pair: Any) -> Any:
            down, up = (jnp.take(part, who, axis=0) for part in pair)
            return jnp.einsum("br,bro->bo", jnp.einsum("bi,bir->br", y, down), up) * 2

        def layer(x: Any, q: Any) -> Any:
            y = rms(x)
            gate = y @ q["gate"] + side(y, q["gate_side"])
            up = y @ q["up"] + side(y, q["up_side"])
            y = jax.nn.silu(gate) * up
            return x + y @ q["down"] + side(y, q["down_side"]), None

        return rms(lax.scan(layer, x, p)[0])

    def pair(a: int, b: int) -> Any:
        return weight(tenants, a, rank), weight(tenants, rank, b)

    layer = swiglu_weights(width, 8960, weight)
    layer |= {"gate_side": pair(width, 8960), "up_side": pair(width, 8960)}
    layer |= {"down_side": pair(8960, width)}
    given = (Arg((rows, width), BF16), Arg((rows,), I32, below=tenants))
    yield "many_tenants", program(adapted, times(12, layer), *given)


class ChoosyExperts(nn.Module):
    """Experts that choose their tokens, rather than tokens their experts."""

    experts: int
    wide: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        b, s, d = x.shape
        kernel = nn.initializers.lecun_normal()
        up = self.param("up", kernel, (self.experts, d, self.wide)).astype(BF16)
        down = self.param("down", kernel, (self.experts, self.wide, d)).astype(BF16)
        rows = x.reshape(b * s, d)
        shares = nn.softmax(nn.Dense(self.experts, use_bias=False)(rows.astype(F32)))
        most, chosen = lax.top_k(shares.T, 2 * b * s // self.experts)
        y = jnp.einsum("ekd,edw->ekw", rows[chosen], up)
        y = jnp.einsum("ekw,ewd->ekd", nn.gelu(y), down) * most[..., None].astype(BF16)
        return jnp.zeros_like(rows).at[chosen.ravel()].add(y.reshape(-1, d)).reshape(x.shape)


class ChoosyModel(nn.Module):
    """Layers of a decoder, every second one of which has experts."""

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        table = nn.Embed(32128, 640, dtype=BF16)
        x = table(tokens)
        mask = nn.make_causal_mask(tokens)
        for n in range(4):
            y = nn.RMSNorm(dtype=BF16)(x)
            x = x + nn.MultiHeadDotProductAttention(10, dtype=BF16, use_bias=False)(y, mask=mask)
            y = nn.RMSNorm(dtype=BF16)(x)
            if n % 2:
                x = x + ChoosyExperts(24, 1280)(y)
            else:
                x = x + nn.Dense(640, dtype=BF16)(nn.gelu(nn.Dense(2560, dtype=BF16)(y)))
        return table.attend(nn.RMSNorm(dtype=BF16)(x))


def experts() -> Zoo:
    """Training of a small decoder in linen whose 24 experts choose their tokens."""
    model = ChoosyModel()
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-4, weight_decay=0.05))

    def update(state: Any, tokens: Any) -> Any:
        def loss(params: Any) -> Any:
            logits = model.apply(params, tokens[:, :-1])
            return cross_entropy(logits, tokens[:, 1:]).mean()

        return learned(rule, loss, state)

    params = linen_weights(model, Arg((8, 640), I32))
    yield "choosing", carried(update, started(rule, params), Arg((8, 641), I32, below=32128))


class CrossEncoder(nn.Module):
    """MiniLM, which reads a question with a passage."""

    @nn.compact
    def __call__(self, tokens: Any, kinds: Any, real: Any) -> Any:
        x = nn.Embed(30522, 384)(tokens) + nn.Embed(2, 384)(kinds)
        x = x + nn.Embed(512, 384)(jnp.arange(tokens.shape[1]))[None]
        x = nn.LayerNorm()(x).astype(BF16)
        for _ in range(6):
            mask = real[:, None, None]
            y = nn.MultiHeadDotProductAttention(12, dtype=BF16)(x, mask=mask)
            x = nn.LayerNorm(dtype=BF16)(x + y)
            y = nn.Dense(384, dtype=BF16)(nn.gelu(nn.Dense(1536, dtype=BF16)(x), False))
            x = nn.LayerNorm(dtype=BF16)(x + y)
        return nn.Dense(1)(jnp.tanh(nn.Dense(384)(x[:, 0].astype(F32))))[:, 0]


def rankers() -> Zoo:
    """A cross-encoder learns the order of 12 passages for each of eight questions."""
    model, asked, told, s = CrossEncoder(), 8, 12, 208
    rule = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(optax.linear_schedule(2e-5, 0.0, 20000))
    )

    def update(state: Any, tokens: Any, lengths: Any, grades: Any) -> Any:
        real = jnp.arange(s) < lengths[:, None] + 80
        kinds = jnp.broadcast_to(jnp.arange(s) > 24, tokens.shape).astype(I32)

        def loss(params: Any) -> Any:
            scores = model.apply(params, tokens, kinds, real).reshape(asked, told)
            gap = scores[:, :, None] - scores[:, None]
            gain = 2.0**grades - 1
            rank = 1 + (lax.stop_gradient(gap) < 0).sum(-1)
            discount = 1 / jnp.log2(1.0 + rank)
            swap = jnp.abs(gain[:, :, None] - gain[:, None])
            swap = swap * jnp.abs(discount[:, :, None] - discount[:, None])
            better = grades[:, :, None] > grades[:, None]
            return jnp.where(better, swap * jax.nn.softplus(-gap), 0).sum() / asked

        return learned(rule, loss, state)

    tokens = Arg((asked * told, s), I32, below=30522)
    params = linen_weights(model, tokens, tokens, tokens)
    lengths, grades = Arg((asked * told,), I32, below=s - 80), Arg((asked, told), I32, below=4)
    yield "lambda_loss", carried(update, started(rule, params), tokens, lengths, grades)


def embedders() -> Zoo:
    """Sentences by ModernBERT in float16: near and far attention, then bits of their means."""
    d, b, s = 768, 48, 320

    def embedded(p: Any, tokens: Any, lengths: Any) -> Any:
        places = jnp.arange(s)
        real = places < lengths[:, None] + s // 2
        near = jnp.abs(places[:, None] - places) <= 64
        x = layer_norm(p["embedding"][tokens], p["first"])

        def part(x: Any, q: Any, mask: Any, base: float) -> Any:
            y = layer_norm(x, q["one"])
            a, k, v = jnp.split(heads(y @ q["qkv"], 64), 3, 2)
            a, k = rope(a, places[None], base), rope(k, places[None], base)
            x = x + attention(a, k, v, mask) @ q["out"]
            up, gate = jnp.split(layer_norm(x, q["two"]) @ q["up"], 2, -1)
            return x + (jax.nn.gelu(up) * gate) @ q["down"]

        def three(x: Any, q: Any) -> Any:
            far, one, two = (jax.tree.map(lambda a, n=n: a[n], q) for n in range(3))
            mask = real[:, None, None]
            x = part(x, far, mask, 160000.0)
            return part(part(x, one, mask & near, 1e4), two, mask & near, 1e4), None

        x = layer_norm(lax.scan(three, x, p["layers"])[0], p["last"]).astype(F32)
        mean = jnp.where(real[..., None], x, 0).sum(1) / real.sum(1, keepdims=True)
        mean = mean / jnp.linalg.norm(mean, axis=-1, keepdims=True)
        return mean.astype(F16), jnp.packbits(mean > 0, axis=-1)

    def made(*shape: int) -> Arg:
        return weight(*shape, dtype=F16)

    layer = {"qkv": made(d, 3 * d), "out": made(d, d), "up": made(d, 2304), "down": made(1152, d)}
    layer |= {"one": Arg((d,), F16), "two": Arg((d,), F16)}
    p = {"embedding": Arg((50368, d), F16, 0.5), "layers": times(5, times(3, layer))}
    p |= {"first": Arg((d,), F16), "last": Arg((d,), F16)}
    given = (Arg((b, s), I32, below=50368), Arg((b,), I32, below=s // 2))
    yield "near_and_far", program(embedded, p, *given)


def diffusion() -> Zoo:
    """A U-Net with filters of unit length learns to denoise 40 latents, as in EDM 2."""
    b, side, widths = 40, 32, (160, 320, 320)

    def unit(w: Any) -> Any:
        axes = tuple(range(w.ndim - 1))
        return (w / (1e-4 + jnp.sqrt(jnp.sum(w * w, axes, keepdims=True)))).astype(BF16)

    def bend(x: Any) -> Any:
        return jax.nn.silu(x) / 0.596

    def joined(a: Any, c: Any, t: float = 0.3) -> Any:
        return ((1 - t) * a + t * c) / (t * t + (1 - t) ** 2) ** 0.5

    def pixels(x: Any) -> Any:
        y = x.astype(F32)
        return (y * lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-4)).astype(x.dtype)

    def block(x: Any, q: Any, level: Any) -> Any:
        if "side" in q:
            x = conv(x, unit(q["side"]))
        x = pixels(x)
        y = conv(bend(x), unit(q["one"]))
        y = bend(y * (1 + level @ unit(q["level"]) * q["gain"].astype(BF16))[:, None, None])
        x = joined(x, conv(y, unit(q["two"])))
        if "qkv" in q:
            _, h, w, d = x.shape
            y = heads((x.reshape(-1, h * w, d) @ unit(q["qkv"])), 64)
            a, k, v = (pixels(part) for part in jnp.split(y, 3, 2))
            y = attention(a, k, v) @ unit(q["out"])
            x = joined(x, y.reshape(x.shape))
        return jnp.clip(x, -256, 256)

    def net(p: Any, x: Any, noise: Any) -> Any:
        waves = jnp.cos(2 * jnp.pi * (noise[:, None] * p["speeds"] + p["shifts"])) * 2**0.5
        level = bend(waves.astype(BF16) @ unit(p["level"]))
        x = jnp.concatenate([x, jnp.ones_like(x[..., :1])], -1).astype(BF16)
        x = conv(x, unit(p["first"]))
        kept = [x]
        for n, stage in enumerate(p["down"]):
            if n:
                x = nn.avg_pool(x, (2, 2), (2, 2))
                kept.append(x)
            for q in stage:
                x = block(x, q, level)
                kept.append(x)
        for n, stage in enumerate(p["up"]):
            if n:
                x = jnp.repeat(jnp.repeat(x, 2, 1), 2, 2)
            for q in stage:
                x = block(jnp.concatenate([x, kept.pop()], -1), q, level)
        return conv(x, unit(p["last"])).astype(F32) * p["gain"]

    rule = optax.adam(optax.linear_schedule(1e-2, 1e-3, 70000), b2=0.99)

    def update(state: Any, latents: Any, key: Any) -> Any:
        params, known, mean = state
        one, two = jax.random.split(key)
        sigma = jnp.exp(jax.random.normal(one, (b,)) - 0.4)
        wide = sigma[:, None, None, None]
        shown = latents + wide * jax.random.normal(two, latents.shape)
        scale = jnp.sqrt(wide**2 + 0.25)

        def loss(params: Any) -> Any:
            found = net(params, shown / scale, jnp.log(sigma) / 4)
            clean = 0.25 / scale**2 * shown + wide * 0.5 / scale * found
            heed = (scale / (wide * 0.5)) ** 2
            unsure = jnp.cos(jnp.log(sigma)[:, None] * params["unsure"]).mean(-1)
            unsure = unsure[:, None, None, None]
            return (heed / jnp.exp(unsure) * (clean - latents) ** 2 + unsure).mean()

        (params, known), value = learned(rule, loss, (params, known))
        mean = jax.tree.map(lambda m, w: m + 5e-4 * (w - m), mean, params)
        return (params, known, mean), value

    def made(a: int, d: int, look: bool) -> Any:
        q = {"one": filters(3, 3, d, d), "two": filters(3, 3, d, d), "level": master(640, d)}
        q |= {"side": filters(1, 1, a, d)} if a != d else {}
        q |= {"qkv": master(d, 3 * d), "out": master(d, d)} if look else {}
        return q | {"gain": Arg((), scale=0.1)}

    before, kept, down = widths[0], [widths[0]], []
    for n, d in enumerate(widths):
        kept += [before] if n else []
        stage = [made(before, d, n > 0)]
        kept, before, down = [*kept, d], d, [*down, stage]
    up = []
    for n, d in enumerate(reversed(widths)):
        stage = []
        for _ in range(2):
            stage.append(made(before + kept.pop(), d, n < 2))
            before = d
        up.append(stage)
    p = {"speeds": Arg((160,)), "shifts": Arg((160,)), "level": master(160, 640), "down": down}
    p |= {"up": up, "first": filters(3, 3, 5, widths[0]), "last": filters(3, 3, widths[0], 4)}
    p |= {"gain": Arg(()), "unsure": Arg((64,))}
    latents = Arg((b, side, side, 4), scale=0.5)
    yield "unit_filters", carried(update, (*started(rule, p), p), latents, _KEY)


def video() -> Zoo:
    """Nine frames from three latent ones by a causal decoder of volumes in bfloat16."""

    def causal3(x: Any, p: Any) -> Any:
        w, b = p
        k = w.shape[0]
        x = jnp.concatenate([jnp.repeat(x[:, :1], k - 1, 1), x], 1) if k > 1 else x
        edge = w.shape[1] // 2
        return conv(x, w, 1, ((0, 0), (edge, edge), (edge, edge))) + b

    def grouped(x: Any, p: Any) -> Any:
        y = x.astype(F32).reshape(*x.shape[:-1], 32, -1)
        mean = y.mean((1, 2, 3, 5), keepdims=True)
        spread = jnp.square(y - mean).mean((1, 2, 3, 5), keepdims=True)
        y = ((y - mean) * lax.rsqrt(spread + 1e-6)).reshape(x.shape)
        return jax.nn.silu(y * p[0] + p[1]).astype(x.dtype)

    def block(x: Any, q: Any) -> Any:
        y = causal3(grouped(x, q["norm1"]), q["one"])
        y = causal3(grouped(y, q["norm2"]), q["two"])
        return y + (causal3(x, q["side"]) if "side" in q else x)

    def frames(p: Any, latents: Any) -> Any:
        x = causal3(latents / 0.7, p["first"])
        for n, stage in enumerate(p["stages"]):
            for q in stage:
                x = block(x, q)
            if n < 3:
                x = jnp.repeat(jnp.repeat(x, 2, 2), 2, 3)
                x = jnp.concatenate([x[:, :1], jnp.repeat(x[:, 1:], 2, 1)], 1) if n else x
        x = causal3(grouped(x, p["norm"]), p["last"]).astype(F32)
        return jnp.round(jnp.clip(x * 127.5 + 127.5, 0, 255)).astype(U8)

    def window(t: int, k: int, a: int, b: int) -> tuple[Arg, Arg]:
        return filters(t, k, k, a, b, dtype=BF16), Arg((b,), BF16, 0.1)

    def made(a: int, b: int) -> Any:
        q = {"norm1": (Arg((a,)), Arg((a,))), "norm2": (Arg((b,)), Arg((b,)))}
        q |= {"one": window(3, 3, a, b), "two": window(3, 3, b, b)}
        return q | ({"side": window(1, 1, a, b)} if a != b else {})

    widths = (384, 256, 192, 96)
    stages = [[made(a, b), made(b, b)] for a, b in pairwise((384, *widths))]
    p = {"first": window(3, 3, 16, 384), "stages": stages, "last": window(3, 3, 96, 3)}
    p["norm"] = (Arg((96,)), Arg((96,)))
    yield "causal_frames", program(frames, p, Arg((1, 3, 32, 40, 16), BF16))


class PoolBlock(nnx.Module):
    """Means of neighbours in place of attention, then a perceptron; both are scaled."""

    def __init__(self, d: int, rngs: nnx.Rngs):
        self.one, self.two = nnx.GroupNorm(d, 1, rngs=rngs), nnx.GroupNorm(d, 1, rngs=rngs)
        self.up = nnx.Conv(d, 4 * d, (1, 1), rngs=rngs)
        self.down = nnx.Conv(4 * d, d, (1, 1), rngs=rngs)
        self.scale1, self.scale2 = nnx.Param(jnp.ones(d)), nnx.Param(jnp.ones(d))

    def __call__(self, x: Any) -> Any:
        y = self.one(x)
        y = nnx.avg_pool(y, (3, 3), (1, 1), "SAME", count_include_pad=False) - y
        x = x + self.scale1[...] * y
        return x + self.scale2[...] * self.down(nnx.gelu(self.up(self.two(x))))


class PoolFormer(nnx.Module):
    """PoolFormer-S12."""

    def __init__(self, rngs: nnx.Rngs):
        widths = (64, 128, 320, 512)
        self.stem = nnx.Conv(3, 64, (7, 7), 4, rngs=rngs)
        self.fewer = nnx.List([nnx.Conv(a, b, (3, 3), 2, rngs=rngs) for a, b in pairwise(widths)])
        self.stages = nnx.List(
            [
                nnx.List([PoolBlock(d, rngs) for _ in range(depth)])
                for d, depth in zip(widths, (2, 2, 4, 2), strict=True)
            ]
        )
        self.norm = nnx.LayerNorm(512, rngs=rngs)
        self.head = nnx.Linear(512, 1000, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = self.stem(x)
        for n, stage in enumerate(self.stages):
            x = self.fewer[n - 1](x) if n else x
            for block in stage:
                x = block(x)
        return self.head(self.norm(x.mean((1, 2))))


def vision() -> Zoo:
    """PoolFormer in nnx learns 40 pictures, some with an erased box, in float32."""
    call, params = nnx_parts(lambda: PoolFormer(nnx.Rngs(0)))
    rule, b, side = optax.lamb(5e-3, weight_decay=0.02), 40, 192

    def update(state: Any, shown: Any, labels: Any, key: Any) -> Any:
        x = (shown.astype(F32) / 255 - 0.45) / 0.23
        corner = jax.random.randint(key, (b, 2, 1), 0, side - 48)
        rows, columns = (jnp.abs(jnp.arange(side) - corner[:, n] - 24) < 24 for n in (0, 1))
        x = jnp.where((rows[:, :, None] & columns[:, None])[..., None], 0, x)

        def loss(params: Any) -> Any:
            goals = jax.nn.one_hot(labels, 1000) * 0.9 + 1e-4
            return optax.sigmoid_binary_cross_entropy(call(params, x), goals).sum(-1).mean()

        return learned(rule, loss, state)

    shown = Arg((b, side, side, 3), U8, below=256)
    labels = Arg((b,), I32, below=1000)
    yield "poolformer", carried(update, started(rule, params), shown, labels, _KEY)


def detection() -> Zoo:
    """SSD learns boxes on 20 pictures of 304 x 304; of what is nothing, only the worst counts."""
    b, side, things, kinds = 20, 304, 12, 21
    sizes = (38, 19, 10, 5)

    def anchors() -> Any:
        parts = []
        for n, count in enumerate(sizes):
            centre = (jnp.arange(count) + 0.5) / count
            y, x = jnp.meshgrid(centre, centre, indexing="ij")
            for ratio in (0.5, 1.0, 2.0, 1.5):
                tall, broad = 0.1 * 2**n / ratio**0.5, 0.1 * 2**n * ratio**0.5
                ones = jnp.ones_like(x)
                parts.append(jnp.stack([y, x, tall * ones, broad * ones], -1).reshape(-1, 4))
        return jnp.concatenate(parts)

    def overlap(one: Any, two: Any) -> Any:
        low = jnp.maximum((one[..., :2] - one[..., 2:] / 2)[:, None], two[:, :2] - two[:, 2:] / 2)
        high = jnp.minimum((one[..., :2] + one[..., 2:] / 2)[:, None], two[:, :2] + two[:, 2:] / 2)
        both = jnp.maximum(high - low, 0).prod(-1)
        return both / (one[:, None, 2:].prod(-1) + two[:, 2:].prod(-1) - both)

    def matched(boxes: Any, names: Any, places: Any) -> Any:
        share = overlap(places, boxes)
        best = share.argmax(1)
        forced = share.argmax(0)
        best = best.at[forced].set(jnp.arange(things))
        sure = share.max(1).at[forced].set(1.0)
        box = boxes[best]
        shift = (box[:, :2] - places[:, :2]) / places[:, 2:] / 0.1
        grow = jnp.log(box[:, 2:] / places[:, 2:]) / 0.2
        return jnp.concatenate([shift, grow], -1), jnp.where(sure > 0.5, names[best] + 1, 0)

    def net(p: Any, x: Any) -> Any:
        found = []
        for n, stage in enumerate(p["stages"]):
            for q in stage:
                x = jax.nn.relu(conv(x, q[0]) + q[1])
            if n > 2:
                y = conv(x, p["heads"][n - 3])
                y = y.reshape(b, -1, 4, 4 + kinds).swapaxes(1, 2)
                found.append(y.reshape(b, -1, 4 + kinds))
            x = nn.max_pool(x, (2, 2), (2, 2), "SAME")
        return jnp.concatenate(found, 1).astype(F32)

    rule = optax.chain(optax.add_decayed_weights(5e-4), optax.sgd(1e-3, momentum=0.9))

    def update(state: Any, shown: Any, corners: Any, names: Any) -> Any:
        x = shown.astype(BF16) - 117
        boxes = jax.nn.sigmoid(corners) * jnp.array([0.9, 0.9, 0.4, 0.4]) + 0.04
        goals, labels = jax.vmap(matched, (0, 0, None))(boxes, names, anchors())
        real = labels > 0

        def loss(params: Any) -> Any:
            found = net(half(params), x)
            named = cross_entropy(found[..., 4:], labels)
            nothing = jnp.where(real, -jnp.inf, lax.stop_gradient(named))
            rank = jnp.argsort(jnp.argsort(-nothing, 1), 1)
            kept = real | (rank < 3 * real.sum(1, keepdims=True))
            placed = optax.huber_loss(found[..., :4], goals).sum(-1)
            return (jnp.where(kept, named, 0) + jnp.where(real, placed, 0)).sum() / real.sum()

        return learned(rule, loss, state)

    widths, stages, before = (64, 128, 256, 512, 512, 256, 256), [], 3
    for n, d in enumerate(widths):
        stages.append([])
        for _ in range(2 if n < 2 or n > 4 else 3):
            stages[-1].append((filters(3, 3, before, d), Arg((d,), scale=0.1)))
            before = d
    outs = [filters(3, 3, d, 4 * (4 + kinds)) for d in widths[3:]]
    p = {"stages": stages, "heads": outs}
    shown = Arg((b, side, side, 3), U8, below=256)
    given = (Arg((b, things, 4)), Arg((b, things), I32, below=kinds - 1))
    yield "worst_of_nothing", carried(update, started(rule, p), shown, *given)


class Volumes(nn.Module):
    """A U-Net of volumes, whose answers count at three sizes."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        def twice(x: Any, d: int, stride: int = 1) -> Any:
            for n in range(2):
                x = nn.Conv(d, (3, 3, 3), (1 if n else stride,) * 3, dtype=BF16)(x)
                x = nn.InstanceNorm(dtype=BF16)(x)
                x = nn.leaky_relu(x)
            return x

        widths, kept, told = (32, 64, 128, 256), [], []
        for n, d in enumerate(widths):
            x = twice(x, d, 2 if n else 1)
            kept.append(x)
        for n, d in enumerate(widths[2::-1]):
            x = nn.ConvTranspose(d, (2, 2, 2), (2, 2, 2), dtype=BF16)(x)
            x = twice(jnp.concatenate([x, kept[2 - n]], -1), d)
            told.append(nn.Conv(4, (1, 1, 1))(x.astype(F32)))
        return told[::-1]


def segmentation() -> Zoo:
    """A U-Net in linen learns the organs in two volumes of 80^3, supervised at three sizes."""
    model, b, n = Volumes(), 2, 80
    rule = optax.chain(
        optax.clip_by_global_norm(12.0),
        optax.sgd(optax.polynomial_schedule(1e-2, 0.0, 0.9, 250000), momentum=0.99, nesterov=True),
    )

    def update(state: Any, scan: Any, labels: Any, key: Any) -> Any:
        one, two = jax.random.split(key)
        x = scan * jax.random.uniform(one, (b, 1, 1, 1, 1), minval=0.7, maxval=1.4)
        flip = jax.random.bernoulli(two, 0.5, (b, 1, 1, 1))
        x = jnp.where(flip[..., None], x[:, ::-1], x)
        goals = jnp.where(flip, labels[:, ::-1], labels).astype(I32)

        def loss(params: Any) -> Any:
            total = jnp.zeros(())
            for m, logits in enumerate(model.apply(params, x)):
                every = 1 << m
                right = jax.nn.one_hot(goals[:, ::every, ::every, ::every], 4)
                shares = jax.nn.softmax(logits)
                hit = (shares * right).sum((0, 1, 2, 3))
                dice = (2 * hit + 1e-5) / (shares + right).sum((0, 1, 2, 3))
                sure = optax.softmax_cross_entropy(logits, right).mean()
                total = total + (sure - dice[1:].mean()) / 2**m
            return total

        return learned(rule, loss, state)

    scan, labels = Arg((b, n, n, n, 1)), Arg((b, n, n, n), U8, below=4)
    state = started(rule, linen_weights(model, scan))
    yield "volumes_deep", carried(update, state, scan, labels, _KEY)


def music() -> Zoo:
    """Demucs learns to part 12 stereo seconds into four sources: strided windows and an LSTM."""
    b, samples, widths = 12, 16384, (48, 96, 192, 384)

    def conv1(x: Any, p: Any, stride: int = 1, padding: Any = "SAME") -> Any:
        y = lax.conv_general_dilated(
            *(x, p[0], (stride,), padding), dimension_numbers=("NWC", "WIO", "NWC")
        )
        return y + p[1]

    def spread(x: Any, p: Any) -> Any:
        y = lax.conv_transpose(x, p[0], (4,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
        return y + p[1]

    def recurrent(x: Any, p: Any) -> Any:
        size = p["again"].shape[0]

        def cell(state: Any, given: Any) -> Any:
            h, c = state
            i, f, g, o = jnp.split(given + h @ p["again"], 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        start = (jnp.zeros((b, size)),) * 2
        given = (x @ p["in"] + p["shift"]).swapaxes(0, 1)
        return lax.scan(cell, start, given)[1].swapaxes(0, 1)

    def parted(p: Any, x: Any) -> Any:
        kept = []
        for q in p["down"]:
            x = jax.nn.relu(conv1(x, q["far"], 4))
            x = jax.nn.glu(conv1(x, q["flat"]))
            kept.append(x)
        for forth, back in p["middle"]:
            x = jnp.concatenate([recurrent(x, forth), recurrent(x[:, ::-1], back)[:, ::-1]], -1)
        x = x @ p["join"]
        for n, q in enumerate(p["up"]):
            x = jax.nn.glu(conv1(x + kept.pop(), q["near"]))
            x = spread(x, q["far"])
            x = jax.nn.relu(x) if n < 3 else x
        return x.reshape(b, samples, 4, 2)

    rule = optax.adam(3e-4, b2=0.999)

    def update(state: Any, sources: Any, key: Any) -> Any:
        one, two = jax.random.split(key)
        loud = jax.random.uniform(one, (b, 1, 4, 1), minval=0.25, maxval=1.25)
        order = jnp.stack([jax.random.permutation(k, b) for k in jax.random.split(two, 4)], 1)
        sources = jnp.take_along_axis(sources, order[:, None, :, None], 0) * loud

        def loss(params: Any) -> Any:
            return jnp.abs(parted(params, sources.sum(2)) - sources).mean()

        return learned(rule, loss, state)

    def line(k: int, a: int, d: int) -> Any:
        return filters(k, a, d), Arg((d,), scale=0.1)

    down = [{"far": line(8, a, d), "flat": line(1, d, 2 * d)} for a, d in pairwise((2, *widths))]
    up = [
        {"near": line(3, d, 2 * d), "far": line(8, d, a)}
        for d, a in pairwise((*reversed(widths), 8))
    ]

    def way(a: int) -> Any:
        return {"in": master(a, 1536), "again": master(384, 1536), "shift": Arg((1536,), scale=0.1)}

    middle = [(way(384), way(384)), (way(768), way(768))]
    p = {"down": down, "middle": middle, "join": master(768, 384), "up": up}
    yield "demucs", carried(update, started(rule, p), Arg((b, samples, 4, 2), scale=0.3), _KEY)


def speech() -> Zoo:
    """F5-TTS: three guided steps from noise to 560 frames of sound that say 200 letters."""
    d, b, frames, mel = 768, 4, 560, 100

    def speak(p: Any, prompt: Any, letters: Any, noise: Any) -> Any:
        text = jnp.pad(p["letters"][letters], ((0, 0), (0, frames - letters.shape[1]), (0, 0)))
        for q in p["text"]:
            y = lax.conv_general_dilated(
                *(text, q["near"], (1,), "SAME"),
                dimension_numbers=("NWC", "WIO", "NWC"),
                feature_group_count=text.shape[-1],
            )
            y = jax.nn.gelu(layer_norm(y) @ q["up"])
            size = jnp.sqrt(jnp.square(y.astype(F32)).sum(1, keepdims=True))
            y = y + y * (size / (size.mean(-1, keepdims=True) + 1e-6)).astype(BF16) * q["gain"]
            text = text + y @ q["down"]
        heard = jnp.where(jnp.arange(frames)[:, None] < 180, prompt, 0)
        both_heard = jnp.concatenate([heard, jnp.zeros_like(heard)])
        both_text = jnp.concatenate([text, jnp.zeros_like(text)])

        def velocity(x: Any, time: Any) -> Any:
            angle = 1000 * time * 1e4 ** (-jnp.arange(128) / 128)
            level = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)]).astype(BF16)
            level = jax.nn.silu(jax.nn.silu(level @ p["time1"]) @ p["time2"])
            x = jnp.concatenate([jnp.concatenate([x, x]), both_heard, both_text], -1)
            x = x @ p["in"]
            x = x + jax.nn.silu(conv1(x, p["near"], 16))

            def layer(x: Any, q: Any) -> Any:
                shift1, scale1, gate1, shift2, scale2, gate2 = jnp.split(level @ q["level"], 6)
                y = layer_norm(x) * (1 + scale1) + shift1
                a, k, v = jnp.split(heads(y @ q["qkv"], 64), 3, 2)
                places = jnp.arange(frames)[None]
                y = attention(rope(a, places), rope(k, places), v) @ q["out"]
                x = x + gate1 * y
                y = layer_norm(x) * (1 + scale2) + shift2
                return x + gate2 * (jax.nn.gelu(y @ q["up"], approximate=True) @ q["down"]), None

            x = layer_norm(lax.scan(layer, x, p["layers"])[0]) @ p["last"]
            told, free = jnp.split(x.astype(F32), 2)
            return told + 2.0 * (told - free)

        def conv1(x: Any, w: Any, groups: int) -> Any:
            return lax.conv_general_dilated(
                *(x, w, (1,), "SAME"),
                dimension_numbers=("NWC", "WIO", "NWC"),
                feature_group_count=groups,
            )

        def step(n: int, x: Any) -> Any:
            one, two = (1 - jnp.cos(jnp.pi / 2 * (n + m) / 3) for m in (0, 1))
            return x + (two - one) * velocity(x.astype(BF16), one)

        return lax.fori_loop(0, 3, step, noise)

    text = {"near": filters(7, 1, 512, dtype=BF16), "up": weight(512, 1024)}
    text |= {"gain": Arg((1024,), BF16, 0.1), "down": weight(1024, 512)}
    layer = {"qkv": weight(d, 3 * d), "out": weight(d, d), "level": weight(d, 6 * d)}
    layer |= {"up": weight(d, 2 * d), "down": weight(2 * d, d)}
    p = {"letters": Arg((2546, 512), BF16), "text": [text] * 4, "layers": times(14, layer)}
    p |= {"time1": weight(256, d), "time2": weight(d, d), "in": weight(2 * mel + 512, d)}
    p |= {"near": filters(31, d // 16, d, dtype=BF16), "last": weight(d, mel)}
    given = (Arg((b, frames, mel), BF16), Arg((b, 200), I32, below=2546))
    yield "f5_tts", program(speak, p, *given, Arg((b, frames, mel)))


def recommenders() -> Zoo:
    """AutoInt learns 6,144 clicks: attention among 39 fields, whose rows are in one table."""
    b, fields, size, rows = 6144, 39, 16, 1 << 20

    def clicks(p: Any, ids: Any, dense: Any) -> Any:
        tricks = (ids.astype(U32) * U32(2654435761) + jnp.arange(26, dtype=U32) * U32(97531)) >> 12
        x = jnp.take(p["table"], tricks.astype(I32), axis=0)
        x = jnp.concatenate([x, jnp.log1p(jnp.abs(dense))[..., None] * p["dense"]], 1)
        flat = x.reshape(b, -1)
        for q in p["layers"]:
            a, k, v = (heads(x @ q[name], 16) for name in ("q", "k", "v"))
            x = jax.nn.relu(attention(a, k, v) + x @ q["side"])
        y = jax.nn.relu(flat @ p["one"])
        y = jax.nn.relu(y @ p["two"])
        return (jnp.concatenate([x.reshape(b, -1), y], -1) @ p["last"])[:, 0]

    rule = optax.adagrad(0.02)

    def update(state: Any, ids: Any, dense: Any, clicked: Any) -> Any:
        def loss(params: Any) -> Any:
            logits = clicks(params, ids, dense)
            return optax.sigmoid_binary_cross_entropy(logits, clicked.astype(F32)).mean()

        return learned(rule, loss, state)

    layers = [{name: master(a, 32) for name in ("q", "k", "v", "side")} for a in (size, 32, 32)]
    p = {"table": Arg((rows, size), scale=0.05), "dense": master(13, size), "layers": layers}
    p |= {"one": master(fields * size, 400), "two": master(400, 400)}
    p["last"] = master(fields * 32 + 400, 1)
    given = (Arg((b, 26), I32, below=1 << 24), Arg((b, 13)), Arg((b,), I32))
    yield "autoint", carried(update, started(rule, p), *given)


def graphs() -> Zoo:
    """PNA learns 3,000 molecules: four sums of sorted edges, each scaled in three ways."""
    edges, nodes, molecules, d, parts = 170000, 86000, 3000, 80, 4

    def told(p: Any, kinds: Any, sources: Any, goals: Any, bonds: Any, owner: Any) -> Any:
        x = p["atoms"][kinds].sum(1)
        degree = jax.ops.segment_sum(jnp.ones(edges), goals, nodes, indices_are_sorted=True)
        degree = jnp.maximum(degree, 1)[:, None]
        amplify = jnp.log(degree + 1) / 1.1

        def joined(message: Any) -> Any:
            kw = {"num_segments": nodes, "indices_are_sorted": True}
            mean = jax.ops.segment_sum(message, goals, **kw) / degree
            square = jax.ops.segment_sum(message * message, goals, **kw) / degree
            spread = jnp.sqrt(jax.nn.relu(square - mean * mean) + 1e-5)
            most, least = (
                jnp.where(jnp.isfinite(part), part, 0)
                for part in (
                    jax.ops.segment_max(message, goals, **kw),
                    jax.ops.segment_min(message, goals, **kw),
                )
            )
            return jnp.concatenate([mean, spread, most, least], -1)

        for q in p["layers"]:
            given = jnp.concatenate([x[goals], x[sources], p["bonds"][bonds]], -1)
            y = joined(jax.nn.relu(given @ q["message"]))
            y = jnp.concatenate([x, y, y * amplify, y / amplify], -1) @ q["update"]
            mean, spread = y.mean(0), y.var(0)
            x = x + jax.nn.relu((y - mean) * lax.rsqrt(spread + 1e-5) * q["scale"])
        x = jax.ops.segment_sum(x, owner, molecules, indices_are_sorted=True)
        return (jax.nn.relu(x @ p["one"]) @ p["two"])[:, 0]

    rule = optax.chain(optax.add_decayed_weights(3e-6), optax.adam(1e-3))

    def update(state: Any, kinds: Any, sources: Any, gaps: Any, bonds: Any, truth: Any) -> Any:
        goals = jnp.minimum(jnp.cumsum(gaps), nodes - 1)
        owner = jnp.arange(nodes) * molecules // nodes
        far = jnp.clip(goals + sources - 12, 0, nodes - 1)

        def loss(params: Any) -> Any:
            return jnp.abs(told(params, kinds, far, goals, bonds, owner) - truth).mean()

        return learned(rule, loss, state)

    layer = {"message": master(3 * d, d), "update": master(13 * d, d), "scale": Arg((d,))}
    p = {"atoms": Arg((64, d)), "bonds": Arg((8, d)), "layers": [layer] * parts}
    p |= {"one": master(d, 40), "two": master(40, 1)}
    given = (Arg((nodes, 3), I32, below=64), Arg((edges,), I32, below=25), Arg((edges,), I32))
    given = (*given, Arg((edges,), I32, below=8), Arg((molecules,)))
    yield "pna_sorted", carried(update, started(rule, p), *given)


def agents() -> Zoo:
    """Twelve updates of DroQ from a replay of 500,000 moves."""
    sees, acts, b = 48, 12, 512

    def mind(p: Any, x: Any, key: Any, drop: bool = True) -> Any:
        for n, (w, shift) in enumerate(p[:-1]):
            x = x @ w + shift
            if drop:
                x = x * jax.random.bernoulli(jax.random.fold_in(key, n), 0.99, x.shape) / 0.99
                x = layer_norm(x)
            x = jax.nn.relu(x)
        return x @ p[-1][0] + p[-1][1]

    def drawn(p: Any, seen: Any, key: Any) -> Any:
        mean, spread = jnp.split(mind(p, seen, key, False), 2, -1)
        spread = jnp.clip(spread, -10, 2)
        noise = jax.random.normal(key, mean.shape)
        raw = mean + jnp.exp(spread) * noise
        chance = -0.5 * noise**2 - spread - 2 * (jnp.log(2.0) - raw - jax.nn.softplus(-2 * raw))
        return jnp.tanh(raw), chance.sum(-1)

    def values(p: Any, seen: Any, act: Any, key: Any) -> Any:
        given = jnp.concatenate([seen, act], -1)
        return jax.vmap(mind, (0, None, 0))(p, given, jax.random.split(key, 2))[..., 0]

    rule = optax.adam(3e-4)

    def updates(state: Any, replay: Any, key: Any) -> Any:
        def one(state: Any, key: Any) -> Any:
            critic, slow, actor, warmth = state
            picks, *keys = jax.random.split(key, 5)
            rows = jax.random.randint(picks, (b,), 0, replay["gain"].shape[0])
            seen, act, gain, after, end = (
                replay[name][rows] for name in ("seen", "act", "gain", "after", "end")
            )
            heat = jnp.exp(warmth[0])
            new, chance = drawn(actor[0], after, keys[0])
            future = values(slow, after, new, keys[1]).min(0) - heat * chance
            goal = gain + 0.99 * jnp.where(end, 0, future)

            def wrong(p: Any) -> Any:
                return jnp.square(values(p, seen, act, keys[2]) - goal).mean()

            critic, value = learned(rule, wrong, critic)
            slow = optax.incremental_update(critic[0], slow, 0.005)

            def bad(p: Any) -> Any:
                act, chance = drawn(p, seen, keys[3])
                return (heat * chance - values(critic[0], seen, act, keys[3]).mean(0)).mean()

            actor, _ = learned(rule, bad, actor)
            _, chance = drawn(actor[0], seen, keys[0])
            warmth, _ = learned(rule, lambda w: -jnp.exp(w) * (chance.mean() - acts), warmth)
            return (critic, slow, actor, warmth), value

        return lax.scan(one, state, jax.random.split(key, 12))

    def layers(*sizes: int) -> Any:
        return [(master(a, c), Arg((c,), scale=0.1)) for a, c in pairwise(sizes)]

    critic = times(2, layers(sees + acts, 256, 256, 1))
    actor = started(rule, layers(sees, 256, 256, 2 * acts))
    state = (started(rule, critic), critic, actor, started(rule, Arg((), scale=0.1)))
    moves = 500000
    replay = {"seen": Arg((moves, sees)), "act": Arg((moves, acts)), "gain": Arg((moves,))}
    replay |= {"after": Arg((moves, sees)), "end": Arg((moves,), jnp.bool_)}
    yield "droq", carried(updates, state, replay, _KEY)


class PatchSeries(nn.Module):
    """PatchTST: each column of a series alone, in patches."""

    @nn.compact
    def __call__(self, x: Any, train: bool = True) -> Any:
        mean, spread = x.mean(1, keepdims=True), x.std(1, keepdims=True) + 1e-5
        y = ((x - mean) / spread).swapaxes(1, 2)
        b, columns, _ = y.shape
        y = jnp.pad(y, ((0, 0), (0, 0), (0, 8)), mode="edge")
        places = jnp.arange(64)[:, None] * 8 + jnp.arange(16)
        y = nn.Dense(128)(y[..., places].reshape(b * columns, 64, 16))
        y = y + self.param("places", nn.initializers.normal(0.02), (64, 128))
        y = nn.Dropout(0.2, deterministic=not train)(y)
        for _ in range(3):
            z = nn.MultiHeadDotProductAttention(16, dropout_rate=0.1, deterministic=not train)(y)
            y = nn.BatchNorm(not train)(y + z)
            z = nn.Dense(128)(nn.gelu(nn.Dense(256)(y)))
            y = nn.BatchNorm(not train)(y + nn.Dropout(0.2, deterministic=not train)(z))
        y = nn.Dense(96)(y.reshape(b, columns, -1)).swapaxes(1, 2)
        return y * spread + mean


def series() -> Zoo:
    """PatchTST in float32 learns 96 hours of 21 columns from the 512 hours before."""
    model, b = PatchSeries(), 24
    rule = optax.adam(optax.cosine_onecycle_schedule(20000, 1e-4))

    def update(state: Any, past: Any, future: Any, key: Any) -> Any:
        params, stats, known = state

        def loss(params: Any) -> Any:
            variables = {"params": params, "batch_stats": stats}
            kw = {"mutable": ["batch_stats"], "rngs": {"dropout": key}}
            found, new = model.apply(variables, past, **kw)
            return jnp.square(found - future).mean(), new["batch_stats"]

        (value, new), grads = jax.value_and_grad(loss, has_aux=True)(params)
        changes, known = rule.update(grads, known, params)
        return (optax.apply_updates(params, changes), new, known), value

    past = Arg((b, 512, 21))
    variables = linen_weights(model, past)
    params, known = started(rule, variables["params"])
    state = (params, variables["batch_stats"], known)
    yield "patch_tst", carried(update, state, past, Arg((b, 96, 21)), _KEY)


def tabular() -> Zoo:
    """TabM: 32 perceptrons share their weights but for signs, on 1,024 rows of 40 columns."""
    b, columns, team, d, bins = 1024, 40, 32, 384, 24

    def told(p: Any, table: Any) -> Any:
        low, high = p["edges"][:, :-1], p["edges"][:, 1:]
        x = jnp.clip((table[..., None] - low) / (high - low + 1e-3), 0, 1)
        x = jax.nn.relu(jnp.einsum("bcn,cnd->bcd", x, p["columns"])).reshape(b, 1, -1)
        for q in p["layers"]:
            y = (x * q["in"]) @ q["shared"]
            x = jax.nn.relu(y * q["out"] + q["shift"])
        return jnp.einsum("btd,tdo->bto", x, p["heads"])

    rule = optax.adamw(2e-3, weight_decay=3e-4)

    def update(state: Any, rows: Any, labels: Any, order: Any) -> Any:
        table, goals = rows[order], labels[order]

        def loss(params: Any) -> Any:
            logits = told(params, table)
            return cross_entropy(logits, jnp.broadcast_to(goals[:, None], (b, team))).mean()

        return learned(rule, loss, state)

    layers = [
        {"in": Arg((team, a)), "shared": master(a, d), "out": Arg((team, d)), "shift": Arg((d,))}
        for a in (columns * 12, d, d)
    ]
    p = {"edges": Arg((columns, bins + 1)), "columns": master(columns, bins, 12)}
    p |= {"layers": layers, "heads": master(team, d, 7)}
    given = (Arg((200000, columns)), Arg((200000,), I32, below=7), Arg((b,), I32, below=200000))
    yield "tabm", carried(update, started(rule, p), *given)


def multimodal() -> Zoo:
    """A Q-Former with 32 queries learns what 36 frozen pictures and their texts share."""
    d, b, s, patches, queries = 768, 36, 48, 257, 32

    def look(p: Any, pictures: Any) -> Any:
        x = jnp.broadcast_to(p["queries"].astype(BF16), (b, queries, d))
        for n, q in enumerate(map(half, p["layers"])):
            x = layer_norm(x + attention(*jnp.split(heads(x @ q["qkv"], 64), 3, 2)) @ q["out"])
            if n % 2 == 0:
                k, v = jnp.split(heads(pictures @ q["seen"], 64), 2, 2)
                x = layer_norm(x + attention(heads(x @ q["ask"], 64), k, v) @ q["told"])
            x = layer_norm(x + jax.nn.gelu(x @ q["up"]) @ q["down"])
        return x

    def read(p: Any, words: Any, real: Any) -> Any:
        x = p["words"].astype(BF16)[words] + p["places"].astype(BF16)
        for q in map(half, p["layers"]):
            a, k, v = jnp.split(heads(x @ q["qkv"], 64), 3, 2)
            x = layer_norm(x + attention(a, k, v, real[:, None, None]) @ q["out"])
            x = layer_norm(x + jax.nn.gelu(x @ q["up2"]) @ q["down2"])
        return x[:, 0]

    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-4, b2=0.98))

    def update(state: Any, pictures: Any, words: Any, lengths: Any) -> Any:
        real = jnp.arange(s) < lengths[:, None] + 6

        def unit(x: Any) -> Any:
            x = x.astype(F32)
            return x * lax.rsqrt(jnp.square(x).sum(-1, keepdims=True) + 1e-6)

        def loss(p: Any) -> Any:
            seen = unit(look(p, pictures) @ p["look"].astype(BF16))
            said = unit(read(p, words, real) @ p["read"].astype(BF16))
            alike = jnp.einsum("iqd,jd->ijq", seen, said).max(-1) * jnp.exp(p["warmth"])
            goals = jnp.arange(b)
            both = cross_entropy(alike, goals) + cross_entropy(alike.T, goals)
            return both.mean() / 2

        return learned(rule, loss, state)

    layer = {"qkv": master(d, 3 * d), "out": master(d, d), "up": master(d, 4 * d)}
    layer |= {"down": master(4 * d, d), "up2": master(d, 4 * d), "down2": master(4 * d, d)}
    cross = {"seen": master(1408, 2 * d), "ask": master(d, d), "told": master(d, d)}
    p = {"queries": Arg((queries, d), scale=0.02), "layers": [layer | cross, layer] * 3}
    p |= {"words": Arg((30523, d), scale=0.02), "places": Arg((s, d), scale=0.02)}
    p |= {"look": master(d, 256), "read": master(d, 256), "warmth": Arg(())}
    given = (Arg((b, patches, 1408), BF16), Arg((b, s), I32, below=30523))
    yield "q_former", carried(update, started(rule, p), *given, Arg((b,), I32, below=s - 6))


def fields() -> Zoo:
    """When a front reaches 176^3 cells of uneven speed: 24 rounds of Godunov's upwind rule."""
    n = 176

    def arrive(rock: Any) -> Any:
        slow = jnp.exp(0.4 * rock)
        start = jnp.full((n, n, n), 1e3).at[n // 2, n // 3, n // 4].set(0.0)

        def least(t: Any, axis: int) -> Any:
            wide = jnp.pad(t, [(1, 1) if m == axis else (0, 0) for m in range(3)], mode="edge")
            before = lax.slice_in_dim(wide, 0, n, axis=axis)
            return jnp.minimum(before, lax.slice_in_dim(wide, 2, n + 2, axis=axis))

        def step(t: Any, _: Any) -> Any:
            x, y, z = (least(t, axis) for axis in range(3))
            a, c = jnp.minimum(jnp.minimum(x, y), z), jnp.maximum(jnp.maximum(x, y), z)
            m = x + y + z - a - c
            one = a + slow
            two = (a + m + jnp.sqrt(jnp.maximum(2 * slow**2 - (a - m) ** 2, 0))) / 2
            total = a + m + c
            root = total**2 - 3 * (a * a + m * m + c * c - slow**2)
            three = (total + jnp.sqrt(jnp.maximum(root, 0))) / 3
            new = jnp.where(one <= m, one, jnp.where(two <= c, two, three))
            new = jnp.minimum(t, new)
            return new, jnp.abs(new - t).max()

        return lax.scan(step, start, None, length=24)

    yield "eikonal", program(arrive, Arg((n, n, n)))


def credit() -> Zoo:
    """Losses of 400 loans in 65,536 scenarios by Student's copula: value at risk, by name too."""
    names, factors, paths = 400, 12, 65536

    def risk(key: Any, loads: Any, chances: Any, sizes: Any) -> Any:
        one, two, three = jax.random.split(key, 3)
        chances = 0.001 + 0.05 * jax.nn.sigmoid(chances)
        loads = 0.6 * loads / jnp.linalg.norm(loads, axis=1, keepdims=True)
        common = jax.random.normal(one, (paths, factors)) @ loads.T
        own = jax.random.normal(two, (paths, names)) * 0.8
        squares = 2 * jax.random.exponential(three, (paths, 3)).sum(1, keepdims=True)
        shock = jnp.sqrt(6 / squares)
        bound = jax.scipy.special.ndtri(chances) * 1.15
        lost = jnp.where((common + own) * shock < bound, jnp.exp(sizes) * 0.6, 0.0)
        total = lost.sum(1)
        order = jnp.argsort(total)
        tail = order[-paths // 100 :]
        return total[order[-paths // 100]], total[tail].mean(), lost[tail].mean(0)

    yield "student_copula", program(risk, _KEY, Arg((names, factors)), *[Arg((names,))] * 2)


def transforms() -> Zoo:
    """Zoomed spectra of 160 records of 50,000 samples by Bluestein's chirps, in complex64."""
    samples, lines, room = 50000, 12000, 65536

    def zoomed(records: Any, low: Any) -> Any:
        x = records.astype(F32) / 32768
        x = (x - x.mean(1, keepdims=True)) * jnp.hanning(samples)
        step, n = 1e-6, jnp.arange(samples, dtype=F32)
        m = jnp.arange(lines, dtype=F32)
        rest = jnp.arange(-samples + 1, lines, dtype=F32)

        def turn(phase: Any) -> Any:
            return lax.complex(jnp.cos(phase), jnp.sin(phase))

        first = jnp.abs(low)[:, None] * 0.01
        x = x * turn(-2 * jnp.pi * jnp.mod(first * n, 1)) * turn(-jnp.pi * step * n * n)
        chirp = jnp.fft.fft(turn(jnp.pi * step * rest * rest), room)
        y = jnp.fft.ifft(jnp.fft.fft(x, room) * chirp)[:, samples - 1 : samples - 1 + lines]
        power = jnp.square(jnp.abs(y * turn(-jnp.pi * step * m * m)))
        top, where = lax.top_k(power, 16)
        return 10 * jnp.log10(power + 1e-12), top, where

    yield "chirp_z", program(zoomed, Arg((160, samples), jnp.int16, below=30000), Arg((160,)))


def spectra() -> Zoo:
    """The 32 main directions of words in texts: five rounds on a sparse BCOO matrix, with QR."""
    texts, words, entries, rank = 122000, 40000, 3000000, 32

    def directions(counts: Any, gaps: Any, columns: Any, start: Any) -> Any:
        rows = jnp.minimum(jnp.cumsum(gaps == 0), texts - 1).astype(I32)
        rarity = jnp.log(texts / (1.0 + jnp.bincount(columns, length=words)))
        data = jnp.log1p(counts.astype(F32)) * rarity[columns]
        index = jnp.stack([rows, columns], -1)
        matrix = sparse.BCOO((data, index), shape=(texts, words), indices_sorted=False)

        def step(q: Any, _: Any) -> Any:
            y = matrix @ q
            q, r = jnp.linalg.qr(matrix.T @ y)
            return q, jnp.sqrt(jnp.abs(jnp.diagonal(r)))

        q, sizes = lax.scan(step, start, None, length=5)
        return q, sizes[-1]

    given = (Arg((entries,), U8, below=20), Arg((entries,), U8, below=25))
    given = (*given, Arg((entries,), I32, below=words), Arg((words, rank)))
    yield "latent_words", program(directions, *given)


def estimates() -> Zoo:
    """Generalised least squares of 2,304 rows by Cholesky's factor, in float64."""
    n, columns = 2304, 24

    def fitted(places: Any, table: Any, goals: Any) -> Any:
        with jax.enable_x64(True):
            x, z, y = (a.astype(F64) for a in (places, table, goals))
            square = (x * x).sum(-1)
            far = jnp.sqrt(jnp.maximum(square[:, None] + square - 2 * x @ x.T, 0.0))
            k = (1 + far * 3.0**0.5) * jnp.exp(-far * 3.0**0.5)
            factor = jnp.linalg.cholesky(k + 0.1 * jnp.eye(n, dtype=F64))
            both = jnp.concatenate([z, y[:, None]], 1)
            white = jax.scipy.linalg.solve_triangular(factor, both, lower=True)
            q, r = jnp.linalg.qr(white[:, :columns])
            weights = jax.scipy.linalg.solve_triangular(r, q.T @ white[:, columns])
            left = white[:, columns] - white[:, :columns] @ weights
            size = 2 * jnp.log(jnp.diagonal(factor)).sum()
            return weights, -0.5 * (left @ left + size)

    yield "least_squares_f64", program(fitted, Arg((n, 3)), Arg((n, columns)), Arg((n,)))


def orders() -> Zoo:
    """Boxes of 1.5 million points are ordered by Morton's codes, and parted where codes part."""
    n = 1500000

    def tree(places: Any, radii: Any) -> Any:
        low, high = places.min(0), places.max(0)
        cell = ((places - low) / (high - low) * 1023).astype(U32)
        for shift, mask in ((16, 0x30000FF), (8, 0x300F00F), (4, 0x30C30C3), (2, 0x9249249)):
            cell = (cell | (cell << shift)) & U32(mask)
        code = cell[:, 0] | (cell[:, 1] << 1) | (cell[:, 2] << 2)
        code, order = lax.sort((code, jnp.arange(n, dtype=I32)), num_keys=1)
        common = lax.clz(code[1:] ^ code[:-1])
        near, size = places[order], jnp.abs(radii)[order, None]
        pad = -n % 32
        kw = {"mode": "edge"}
        lows = jnp.pad(near - size, ((0, pad), (0, 0)), **kw).reshape(-1, 32, 3).min(1)
        highs = jnp.pad(near + size, ((0, pad), (0, 0)), **kw).reshape(-1, 32, 3).max(1)
        first = jnp.concatenate([jnp.ones((1,), bool), code[1:] != code[:-1]])
        return order, jnp.cumsum(first), common, lows, highs

    yield "morton", program(tree, Arg((n, 3)), Arg((n,), scale=0.01))


def scans() -> Zoo:
    """Four biquads on 24 channels of 96,000 samples, by associative scans of 2 x 2 matrices."""
    channels, samples, bands = 24, 96000, 4

    def equalised(sound: Any, tuning: Any) -> Any:
        x = sound.astype(F32) / 32768
        pitch = 0.05 + jnp.pi * 0.8 * jax.nn.sigmoid(tuning[:, :, 0])
        loud = 10 ** (0.15 * tuning[:, :, 1])
        width = jnp.sin(pitch) / 1.4
        root = 1 + width / loud
        taps = jnp.stack([1 + width * loud, -2 * jnp.cos(pitch), 1 - width * loud], -1)
        a1, a2 = -2 * jnp.cos(pitch) / root, (1 - width / loud) / root
        taps = taps / root[..., None]

        def joined(one: Any, two: Any) -> Any:
            (a, u), (c, v) = one, two
            both = (c[..., None] * a[..., None, :, :]).sum(-2)
            return both, (c * u[..., None, :]).sum(-1) + v

        def band(x: Any, given: Any) -> Any:
            taps, a1, a2 = given
            past = jnp.pad(x, ((0, 0), (2, 0)))
            t = taps[:, :, None]
            drive = t[:, 0] * x + t[:, 1] * past[:, 1:-1] + t[:, 2] * past[:, :-2]
            top = jnp.stack([-a1, -a2], -1)
            turn = jnp.stack([top, jnp.broadcast_to(jnp.array([1.0, 0.0]), top.shape)], -2)
            turn = jnp.broadcast_to(turn[:, None], (channels, samples, 2, 2))
            drive = jnp.stack([drive, jnp.zeros_like(drive)], -1)
            return lax.associative_scan(joined, (turn, drive), axis=1)[1][..., 0], None

        x, _ = lax.scan(band, x, (taps, a1, a2))
        return x, jnp.sqrt(jnp.square(x).mean(1)), jnp.abs(x).max(1)

    sound = Arg((channels, samples), jnp.int16, below=30000)
    yield "biquads", program(equalised, sound, Arg((bands, channels, 2)))


def tables() -> Zoo:
    """Five million values and slopes read from a monotone cubic of 40,000 uneven knots."""
    knots, wanted = 40000, 5000000

    def read(gaps: Any, values: Any, places: Any) -> Any:
        x = jnp.cumsum(0.1 + jnp.abs(gaps))
        y = jnp.cumsum(values * 0.05)
        h, slope = jnp.diff(x), jnp.diff(y) / jnp.diff(x)
        one, two = 2 * h[1:] + h[:-1], h[1:] + 2 * h[:-1]
        safe = jnp.where(slope == 0, 1.0, slope)
        mean = (one + two) / (one / safe[:-1] + two / safe[1:])
        inner = jnp.where(slope[:-1] * slope[1:] > 0, mean, 0.0)
        d = jnp.concatenate([slope[:1], inner, slope[-1:]])
        at = jax.nn.sigmoid(places) * x[-1]
        n = jnp.clip(jnp.searchsorted(x, at, side="right") - 1, 0, knots - 2)
        wide, s = h[n], slope[n]
        t = (at - x[n]) / wide
        c = (3 * s - 2 * d[n] - d[n + 1]) / wide
        e = (d[n] + d[n + 1] - 2 * s) / wide**2
        u = t * wide
        return y[n] + u * (d[n] + u * (c + u * e)), d[n] + u * (2 * c + 3 * u * e)

    yield "monotone_cubic", program(read, *[Arg((knots,))] * 2, Arg((wanted,)))


def cloth() -> Zoo:
    """A flag of 640 x 640 points in the wind: two steps of ten rounds of constraints each."""
    n, rest = 640, 0.01
    ways = ((0, 1), (1, 0), (1, 1), (1, -1), (0, 2), (2, 0))

    def blown(state: Any, wind: Any) -> Any:
        def round_of(_: int, place: Any) -> Any:
            total = jnp.zeros_like(place)
            for down, right in ways:
                other = jnp.roll(place, (-down, -right), (0, 1))
                gap = other - place
                long = jnp.sqrt((gap * gap).sum(-1, keepdims=True) + 1e-12)
                row, column = jnp.arange(n)[:, None], jnp.arange(n)
                real = (row + down < n) & (column + right < n) & (column + right >= 0)
                size = rest * (down * down + right * right) ** 0.5
                push = jnp.where(real[..., None], 0.5 * (1 - size / long) * gap, 0)
                total = total + push - jnp.roll(push, (down, right), (0, 1))
            new = place + 0.25 * total
            return new.at[:, 0].set(place[:, 0])

        def step(state: Any, gust: Any) -> Any:
            place, speed = state
            across, along = jnp.gradient(place, axis=0), jnp.gradient(place, axis=1)
            out = jnp.cross(across, along)
            out = out / (jnp.linalg.norm(out, axis=-1, keepdims=True) + 1e-9)
            force = ((gust - speed) * out).sum(-1, keepdims=True) * out
            speed = 0.998 * (speed + 0.004 * (force + jnp.array([0.0, 0.0, -9.8])))
            new = lax.fori_loop(0, 10, round_of, place + 0.004 * speed)
            return (new, (new - place) / 0.004), jnp.square(speed).sum()

        return lax.scan(step, state, wind)

    points = Arg((n, n, 3))
    yield "flag", carried(blown, (points, points), Arg((2, 3), scale=5.0))


def geometry() -> Zoo:
    """Where 49,152 rays first meet 3,000 triangles, by Moeller and Trumbore, in float32."""
    rays, triangles, part = 49152, 3000, 4096

    def met(corners: Any, origins: Any, ways: Any) -> Any:
        a, b, c = corners[:, 0], corners[:, 1] * 0.1, corners[:, 2] * 0.1
        outward = jnp.cross(b, c)

        def some(given: Any) -> Any:
            o, w = given
            w = w / jnp.linalg.norm(w, axis=-1, keepdims=True)
            across = jnp.cross(w[:, None], c)
            det = (across * b).sum(-1)
            inverse = jnp.where(jnp.abs(det) > 1e-8, 1 / det, 0)
            gap = o[:, None] - a
            u = (gap * across).sum(-1) * inverse
            turned = jnp.cross(gap, b)
            v = (w[:, None] * turned).sum(-1) * inverse
            t = (turned * c).sum(-1) * inverse
            hit = (u >= 0) & (v >= 0) & (u + v <= 1) & (t > 1e-4) & (inverse != 0)
            t = jnp.where(hit, t, jnp.inf)
            first = t.argmin(1)
            shade = jnp.abs((outward[first] * w).sum(-1))
            return t.min(1), first, jnp.where(jnp.isfinite(t.min(1)), shade, 0)

        parts = (origins.reshape(-1, part, 3), ways.reshape(-1, part, 3))
        return lax.map(some, parts)

    yield "ray_triangles", program(met, Arg((triangles, 3, 3)), *[Arg((rays, 3))] * 2)
