"""A 28th zoo: steps that a reviewer would hold out; written without a look at the predictor."""

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

F32, BF16, I32 = jnp.float32, jnp.bfloat16, jnp.int32
F64, U8, U32 = jnp.float64, jnp.uint8, jnp.uint32
Zoo = Iterator[tuple[str, TimedProgram]]
_KEY = Arg((2,), U32, below=1 << 30)


def twentyeighth_programs() -> dict[str, TimedProgram]:
    """Every program, by FAMILY/NAME."""
    families = (
        *(pretraining, serving, depths, preferences, tuning, distillation, vision),
        *(restoration, scenes, audio, items, agents, weather, multimodal, tabular, images),
        *(robots, economies, plasmas, programmes, stereo, cells, elements, texts),
        *(volatility, clusters, liquids),
    )
    return {
        f"{family.__name__}/{name}": program for family in families for name, program in family()
    }


def unit(x: Any, axis: int = -1) -> Any:
    """Vectors of length one."""
    y = x.astype(F32)
    return (y * lax.rsqrt(jnp.square(y).sum(axis, keepdims=True) + 1e-8)).astype(x.dtype)


def gelu_layer(x: Any, q: Any, size: int, mask: Any = None) -> Any:
    """A layer that is normed first: attention, then a perceptron with GELU."""
    y = layer_norm(x, q["one"])
    a, k, v = jnp.split(heads(y @ q["qkv"], size), 3, -2)
    x = x + attention(a, k, v, mask) @ q["out"]
    return x + jax.nn.gelu(layer_norm(x, q["two"]) @ q["up"]) @ q["down"]


def gelu_weights(d: int, wide: int) -> dict[str, Arg]:
    """Its weights."""
    layer = {"qkv": master(d, 3 * d), "out": master(d, d), "one": Arg((d,)), "two": Arg((d,))}
    return layer | {"up": master(d, wide), "down": master(wide, d)}


def pretraining() -> Zoo:
    """nGPT, whose states and weights stay on a sphere, and MegaByte, which reads 32,768 bytes."""
    d, layers, words, b, s, size = 1024, 8, 50304, 6, 1024, 64

    def sphere(p: Any, tokens: Any) -> Any:
        places, mask = jnp.arange(s)[None], causal(s)

        def moved(x: Any, y: Any, rate: Any) -> Any:
            return unit(x + jnp.abs(rate * 0.05) * (unit(y) - x))

        @jax.checkpoint
        def layer(x: Any, q: Any) -> Any:
            q = half(q)
            a, k, v = (heads(x @ q[name], size) for name in ("q", "k", "v"))
            a, k = (unit(rope(part, places)) * q["turn"] for part in (a, k))
            x = moved(x, attention(a * size, k, v, mask) @ q["out"], q["rates"][0])
            gate = x @ q["gate"] * q["wide"] * d**0.5
            y = (jax.nn.silu(gate) * (x @ q["up"] * q["wide"])) @ q["down"]
            return moved(x, y, q["rates"][1]), None

        x, _ = lax.scan(layer, p["table"].astype(BF16)[tokens], p["layers"])
        return (x @ p["head"].astype(BF16)) * p["last"].astype(BF16)

    rule = optax.adam(optax.cosine_decay_schedule(1.5e-3, 100000), 0.9, 0.95)

    def update(state: Any, tokens: Any) -> Any:
        def loss(p: Any) -> Any:
            return cross_entropy(sphere(p, tokens[:, :-1]), tokens[:, 1:]).mean()

        (p, known), value = learned(rule, loss, state)
        inner = dict(p["layers"])
        for name in ("q", "k", "v", "gate", "up"):
            inner[name] = unit(inner[name], -2)
        inner |= {name: unit(inner[name]) for name in ("out", "down")}
        p = p | {"layers": inner, "table": unit(p["table"]), "head": unit(p["head"], 0)}
        return (p, known), value

    layer = {name: master(d, d) for name in ("q", "k", "v", "out")} | swiglu_weights(d, 2816)
    layer |= {"turn": Arg((size,)), "rates": Arg((2, d)), "wide": Arg((2816,))}
    p = {"layers": times(layers, layer), "table": Arg((words, d), scale=0.03)}
    p |= {"head": master(d, words), "last": Arg((words,))}
    tokens = Arg((b, s + 1), I32, below=words)
    yield "ngpt", carried(update, started(rule, p), tokens)

    rows, length, patch, far, near = 8, 4096, 8, 1024, 512
    prodigy = optax.contrib.prodigy(1.0, weight_decay=0.01)

    def megabyte(state: Any, given: Any) -> Any:
        goals = given.astype(I32)

        def loss(params: Any) -> Any:
            p = half(params)
            x = p["bytes"][goals].reshape(rows, length // patch, far) + p["places"]
            x = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]
            mask = causal(length // patch)

            def layer(x: Any, q: Any) -> Any:
                return gelu_layer(x, half(q), 64, mask), None

            x, _ = lax.scan(layer, x, p["far"])
            x = layer_norm(x).reshape(-1, patch, far // patch) @ p["join"]
            parts = goals.reshape(-1, patch)
            x = x + p["small"][jnp.pad(parts, ((0, 0), (1, 0)))[:, :-1]]
            for q in p["near"]:
                x = gelu_layer(x, q, 64, causal(patch))
            return cross_entropy(layer_norm(x) @ p["head"], parts).mean()

        return learned(prodigy, loss, state)

    p = {"bytes": Arg((256, far // patch), scale=0.05), "places": Arg((length // patch, far))}
    p |= {"far": times(6, gelu_weights(far, 4 * far)), "near": [gelu_weights(near, 4 * near)] * 3}
    p |= {"join": master(far // patch, near), "small": Arg((256, near), scale=0.05)}
    p |= {"head": master(near, 256)}
    given = Arg((rows, length), U8, below=256)
    yield "megabyte", carried(megabyte, started(prodigy, p), given)


def serving() -> Zoo:
    """A token of 8 replies with keys and values of two bits, and 32 tokens by eight unmaskings."""
    d, layers, b, g, size, room, fresh = 4096, 10, 8, 8, 128, 8192, 128
    shifts = 2 * jnp.arange(4, dtype=U8)

    def token(fresh_kv: Any, p: Any, packed: Any, words: Any, lengths: Any) -> Any:
        x = p["table"][words]
        old = (jnp.arange(room) < room // 2 + lengths[:, None])[:, None, None]
        spot = lengths % fresh
        new = (jnp.arange(fresh) <= spot[:, None])[:, None, None]

        def opened_keys(q: Any) -> Any:
            k = (q["k"][:, :, :, None] >> shifts[:, None]) & 3
            k = k.reshape(b, g, room // 32, 32, size).astype(BF16)
            k = k * q["k_scale"][:, :, :, None] + q["k_low"][:, :, :, None]
            return k.reshape(b, g, room, size)

        def opened_values(q: Any) -> Any:
            v = (q["v"][..., None] >> shifts) & 3
            v = v.reshape(b, g, room, 4, 32).astype(BF16)
            v = v * q["v_scale"][..., None] + q["v_low"][..., None]
            return v.reshape(b, g, room, size)

        def layer(x: Any, given: Any) -> Any:
            w, q, keys, values = given
            y = rms(x, w["one"])
            a, k, v = (heads(y @ w[name], size)[:, None] for name in ("q", "k", "v"))
            where = room // 2 + lengths[:, None]
            a, k = rope(a, where, 5e5), rope(k, where, 5e5)
            rows = jnp.arange(b)
            keys, values = keys.at[rows, spot].set(k[:, 0]), values.at[rows, spot].set(v[:, 0])
            a = a.reshape(b, g, -1, size)
            far = jnp.einsum("bgrd,bgtd->bgrt", a, opened_keys(q)).astype(F32)
            near = jnp.einsum("bgrd,btgd->bgrt", a, keys).astype(F32)
            far, near = jnp.where(old, far, -1e30), jnp.where(new, near, -1e30)
            shares = jax.nn.softmax(jnp.concatenate([far, near], -1) * size**-0.5, -1)
            shares = shares.astype(BF16)
            told = jnp.einsum("bgrt,bgtd->bgrd", shares[..., :room], opened_values(q))
            told = told + jnp.einsum("bgrt,btgd->bgrd", shares[..., room:], values)
            x = x + told.reshape(b, -1) @ w["out"]
            return x + swiglu(rms(x, w["two"]), w), (keys, values)

        x, fresh_kv = lax.scan(layer, x, (p["layers"], packed, *fresh_kv))
        logits = (rms(x, p["last"]) @ p["head"]).astype(F32)
        return fresh_kv, logits.argmax(-1)

    layer = {"q": weight(d, d), "k": weight(d, g * size), "v": weight(d, g * size)}
    layer |= {"out": weight(d, d), "one": Arg((d,), BF16), "two": Arg((d,), BF16)}
    layer |= swiglu_weights(d, 14336, weight)
    p = {"layers": times(layers, layer), "table": weight(128256, d), "head": weight(d, 128256)}
    p["last"] = Arg((d,), BF16)
    packed = {"k": Arg((b, g, room // 4, size), U8, below=256)}
    packed |= {"v": Arg((b, g, room, size // 4), U8, below=256)}
    packed |= {name: Arg((b, g, room // 32, size), BF16) for name in ("k_scale", "k_low")}
    packed |= {name: Arg((b, g, room, 4), BF16) for name in ("v_scale", "v_low")}
    recent = Arg((layers, b, fresh, g, size), BF16)
    given = (times(layers, packed), Arg((b,), I32, below=128256), Arg((b,), I32, below=4000))
    yield "two_bit_cache", carried(token, (recent, recent), p, *given)

    wide, many, rows, block, seen, hidden = 2048, 12, 4, 32, 1024, 126336

    def unmask(p: Any, caches: Any, lengths: Any, start: Any) -> Any:
        known = jnp.arange(seen) < seen // 2 + lengths[:, None]
        mask = jnp.concatenate([known, jnp.ones((rows, block), bool)], 1)[:, None, None]
        places = jnp.arange(block) + seen // 2 + lengths[:, None]

        def forward(tokens: Any) -> Any:
            def layer(x: Any, given: Any) -> Any:
                q, keys, values = given
                y = rms(x, q["one"])
                a, k, v = jnp.split(heads(y @ q["qkv"], 128), 3, 2)
                a, k = rope(a, places, 5e5), rope(k, places, 5e5)
                k, v = jnp.concatenate([keys, k], 1), jnp.concatenate([values, v], 1)
                x = x + attention(a, k, v, mask) @ q["out"]
                return x + swiglu(rms(x, q["two"]), q), None

            x, _ = lax.scan(layer, p["table"][tokens], (p["layers"], *caches))
            return (rms(x, p["last"]) @ p["head"]).astype(F32)

        def step(_: int, tokens: Any) -> Any:
            logits = forward(tokens)
            best = logits.argmax(-1)
            sure = jnp.exp(logits.max(-1) - jax.nn.logsumexp(logits, -1))
            sure = jnp.where(tokens == hidden, sure, -jnp.inf)
            _, chosen = lax.top_k(sure, block // 8)
            told = jax.nn.one_hot(chosen, block, dtype=jnp.bool_).any(1)
            return jnp.where(told & (tokens == hidden), best, tokens)

        tokens = jnp.where(start >= 0, hidden, start)
        return lax.fori_loop(0, 8, step, tokens)

    layer = {"qkv": weight(wide, 3 * wide), "out": weight(wide, wide)}
    layer |= {"one": Arg((wide,), BF16), "two": Arg((wide,), BF16)}
    layer |= swiglu_weights(wide, 6144, weight)
    p = {"layers": times(many, layer), "table": weight(126464, wide)}
    p |= {"head": weight(wide, 126464), "last": Arg((wide,), BF16)}
    cache = Arg((many, rows, seen, wide // 128, 128), BF16)
    given = (Arg((rows,), I32, below=500), Arg((rows, block), I32, below=100))
    yield "block_unmasked", program(unmask, p, (cache, cache), *given)


class DepthBlock(nn.Module):
    """A layer of a decoder, which all tokens or the chosen eighth of them pass."""

    chosen: bool

    @nn.compact
    def __call__(self, x: Any) -> Any:
        b, s, d = x.shape
        y, mask, share, index = x, nn.make_causal_mask(x[..., 0]), None, None
        if self.chosen:
            worth = nn.Dense(1, use_bias=False)(x.astype(F32))[..., 0]
            _, index = lax.top_k(worth, s // 8)
            index = jnp.sort(index, 1)
            y = jnp.take_along_axis(x, index[..., None], 1)
            share = jnp.take_along_axis(worth, index, 1)[..., None].astype(BF16)
            mask = nn.make_attention_mask(index, index, jnp.greater_equal)
            picked = jnp.zeros((b, s)).at[jnp.arange(b)[:, None], index].set(1.0)
            side = optax.sigmoid_binary_cross_entropy(worth, picked).mean()
            self.sow("losses", "choice", side)
        z = nn.RMSNorm(dtype=BF16)(y)
        z = nn.MultiHeadDotProductAttention(d // 64, dtype=BF16, use_bias=False)(z, mask=mask)
        w = nn.RMSNorm(dtype=BF16)(y + z)
        gate, up = jnp.split(nn.Dense(5504, use_bias=False, dtype=BF16)(w), 2, -1)
        z = z + nn.Dense(d, use_bias=False, dtype=BF16)(nn.silu(gate) * up)
        if not self.chosen:
            return x + z
        return x.at[jnp.arange(b)[:, None], index].add(z * share)


class Depths(nn.Module):
    """A decoder, every second layer of which only an eighth of the tokens pass."""

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        table = nn.Embed(32000, 1024, dtype=BF16)
        x = table(tokens)
        for n in range(8):
            x = DepthBlock(n % 2 == 1)(x)
        return table.attend(nn.RMSNorm(dtype=BF16)(x))


def depths() -> Zoo:
    """Training of a mixture of depths in linen: 8 layers, 8,192 tokens, AdamW."""
    model, b, s = Depths(), 4, 2048
    rate = optax.join_schedules(
        [optax.linear_schedule(0.0, 1e-3, 500), optax.constant_schedule(1e-3)], [500]
    )
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, b2=0.95))

    def update(state: Any, tokens: Any) -> Any:
        def loss(params: Any) -> Any:
            logits, told = model.apply(params, tokens[:, :-1], mutable=["losses"])
            side = sum(jax.tree.leaves(told))
            return cross_entropy(logits, tokens[:, 1:]).mean() + 0.01 * side

        return learned(rule, loss, state)

    params = {"params": linen_weights(model, Arg((b, s), I32))["params"]}
    tokens = Arg((b, s + 1), I32, below=32000)
    yield "mixture_of_depths", carried(update, started(rule, params), tokens)


def preferences() -> Zoo:
    """KTO: 10 answers are liked or not, next to a frozen copy and to swapped questions; SM3."""
    d, words, b, s = 768, 50257, 10, 512
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.sm3(3e-3))

    def chance(p: Any, tokens: Any, real: Any) -> Any:
        p = half(p)
        x = p["table"][tokens[:, :-1]] + p["places"]

        def layer(x: Any, q: Any) -> Any:
            return gelu_layer(x, q, 64, causal(s)), None

        x, _ = lax.scan(jax.checkpoint(layer), x, p["layers"])
        logits = layer_norm(x, p["last"]) @ p["table"].T
        return -(cross_entropy(logits, tokens[:, 1:]) * real).sum(1)

    def update(state: Any, frozen: Any, tokens: Any, asked: Any, liked: Any) -> Any:
        places = jnp.arange(s)
        real = (places >= 32 + asked[:, None]).astype(F32)
        answers = jnp.where(jnp.arange(s + 1) < 32 + asked[:, None], 0, tokens)
        swapped = jnp.where(answers > 0, jnp.roll(tokens, 1, 0), tokens)
        base, base_swapped = chance(frozen, tokens, real), chance(frozen, swapped, real)
        good = liked.astype(F32)

        def loss(p: Any) -> Any:
            apart = lax.stop_gradient(chance(p, swapped, real)) - base_swapped
            apart = jnp.maximum(apart.mean(), 0.0)
            gain = 0.1 * (chance(p, tokens, real) - base - apart)
            return (1 - jax.nn.sigmoid(jnp.where(good > 0, gain, -gain)) * (1 + 0.33 * good)).mean()

        return learned(rule, loss, state)

    p = {"layers": times(8, gelu_weights(d, 4 * d)), "table": Arg((words, d), scale=0.03)}
    p |= {"places": Arg((s, d), scale=0.03), "last": Arg((d,))}
    tokens = Arg((b, s + 1), I32, below=words)
    given = (p, tokens, Arg((b,), I32, below=128), Arg((b,), I32))
    yield "kto", carried(update, started(rule, p), *given)


def tuning() -> Zoo:
    """OFT v2 tunes six frozen layers: inputs are turned by blocks of 32, by Neumann's series."""
    d, wide, b, s, block = 2048, 5632, 4, 1024, 32
    sizes = {"qkv": d, "out": d, "gate": d, "up": d, "down": wide}

    def turn(flat: Any) -> Any:
        rows, columns = jnp.triu_indices(block, 1)
        skew = jnp.zeros((*flat.shape[:-1], block, block)).at[..., rows, columns].set(flat)
        skew = skew - skew.swapaxes(-1, -2)
        total, power = jnp.eye(block) + 2 * skew, skew
        for _ in range(3):
            power = power @ skew
            total = total + 2 * power
        return (total + power @ skew).astype(BF16)

    def turned(x: Any, side: Any) -> Any:
        y = x.reshape(*x.shape[:-1], -1, block)
        return jnp.einsum("bsnc,nce->bsne", y, turn(side)).reshape(x.shape)

    rule = optax.chain(optax.clip_by_global_norm(0.3), optax.nadamw(4e-4, weight_decay=0.0))

    def update(state: Any, p: Any, tokens: Any, asked: Any) -> Any:
        places, mask = jnp.arange(s)[None], causal(s)

        def loss(sides: Any) -> Any:
            @jax.checkpoint
            def layer(x: Any, given: Any) -> Any:
                q, side = given
                y = turned(rms(x, q["one"]), side["qkv"]) @ q["qkv"]
                a, k, v = (y[..., :d], y[..., d : d + 512], y[..., d + 512 :])
                a, k, v = heads(a, 64), heads(k, 64), heads(v, 64)
                y = attention(rope(a, places), rope(k, places), v, mask)
                x = x + turned(y, side["out"]) @ q["out"]
                y = rms(x, q["two"])
                gate = jax.nn.silu(turned(y, side["gate"]) @ q["gate"])
                y = gate * (turned(y, side["up"]) @ q["up"])
                return x + turned(y, side["down"]) @ q["down"], None

            x, _ = lax.scan(layer, p["table"][tokens[:, :-1]], (p["layers"], sides))
            losses = cross_entropy(rms(x, p["last"]) @ p["table"].T, tokens[:, 1:])
            real = jnp.arange(s) >= asked[:, None]
            return (losses * real).sum() / real.sum()

        return learned(rule, loss, state)

    layer = {"qkv": weight(d, d + 1024), "out": weight(d, d)} | swiglu_weights(d, wide, weight)
    layer |= {"one": Arg((d,), BF16), "two": Arg((d,), BF16)}
    p = {"layers": times(6, layer), "table": Arg((32000, d), BF16, 0.03), "last": Arg((d,), BF16)}
    count = block * (block - 1) // 2
    sides = {name: Arg((6, n // block, count), scale=0.01) for name, n in sizes.items()}
    given = (p, Arg((b, s + 1), I32, below=32000), Arg((b,), I32, below=300))
    yield "oft_v2", carried(update, started(rule, sides), *given)


class Relating(nn.Module):
    """BERT's encoder, which shows the queries, keys and values of its last layer."""

    width: int
    layers: int

    @nn.compact
    def __call__(self, tokens: Any, real: Any) -> Any:
        d, b, s = self.width, *tokens.shape
        x = nn.Embed(30522, d)(tokens) + nn.Embed(512, d)(jnp.arange(s))[None]
        x = nn.LayerNorm()(x).astype(BF16)
        parts = ()
        for _ in range(self.layers):
            qkv = nn.DenseGeneral((3, d // 64, 64), dtype=BF16)(x)
            parts = tuple(qkv[:, :, n] for n in range(3))
            y = nn.dot_product_attention(*parts, mask=real[:, None, None])
            x = nn.LayerNorm(dtype=BF16)(x + nn.Dense(d, dtype=BF16)(y.reshape(b, s, d)))
            y = nn.Dense(d, dtype=BF16)(nn.gelu(nn.Dense(4 * d, dtype=BF16)(x), False))
            x = nn.LayerNorm(dtype=BF16)(x + y)
        return parts


def distillation() -> Zoo:
    """MiniLM v2: a student of 384 learns how a frozen teacher's heads relate words, in linen."""
    student, teacher, b, s, relations = Relating(384, 6), Relating(1024, 10), 20, 256, 32
    rule = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(optax.warmup_exponential_decay_schedule(0.0, 6e-4, 4000, 100000, 0.1)),
    )

    def related(x: Any, real: Any) -> Any:
        x = x.reshape(b, s, relations, -1)
        scores = jnp.einsum("bqhd,bkhd->bhqk", x, x).astype(F32) * x.shape[-1] ** -0.5
        return jax.nn.log_softmax(jnp.where(real[:, None, None], scores, -1e9), -1)

    def update(state: Any, known: Any, tokens: Any, lengths: Any) -> Any:
        real = jnp.arange(s) < 64 + lengths[:, None]
        goals = [related(part, real) for part in teacher.apply(known, tokens, real)]

        def loss(params: Any) -> Any:
            total = jnp.zeros(())
            for goal, part in zip(goals, student.apply(params, tokens, real), strict=True):
                apart = (jnp.exp(goal) * (goal - related(part, real))).sum(-1).mean(1)
                total = total + (apart * real).sum() / real.sum()
            return total

        return learned(rule, loss, state)

    tokens = Arg((b, s), I32, below=30522)
    given = (tokens, Arg((b, s), jnp.bool_))
    mine, theirs = linen_weights(student, *given), linen_weights(teacher, *given)
    lengths = Arg((b,), I32, below=s - 64)
    yield "word_relations", carried(update, started(rule, mine), theirs, tokens, lengths)


class DenseNet(nn.Module):
    """DenseNet-121: every layer reads all that came before it at its size."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        def bent(x: Any) -> Any:
            return nn.relu(nn.BatchNorm(False, momentum=0.9, dtype=BF16)(x))

        def window(x: Any, d: int, k: int, stride: int = 1) -> Any:
            return nn.Conv(d, (k, k), stride, use_bias=False, dtype=BF16)(x)

        x = nn.max_pool(bent(window(x, 64, 7, 2)), (3, 3), (2, 2), "SAME")
        for n, layers in enumerate((6, 12, 24, 16)):
            if n:
                x = nn.avg_pool(window(bent(x), x.shape[-1] // 2, 1), (2, 2), (2, 2))
            for _ in range(layers):
                x = jnp.concatenate([x, window(bent(window(bent(x), 128, 1)), 32, 3)], -1)
        return nn.Dense(1000)(bent(x).mean((1, 2)).astype(F32))


class CrossCovariance(nnx.Module):
    """A layer of XCiT: channels attend to channels, windows join patches, then a perceptron."""

    def __init__(self, d: int, rngs: nnx.Rngs):
        kw = {"dtype": BF16, "rngs": rngs}
        self.norms = nnx.List([nnx.LayerNorm(d, **kw) for _ in range(4)])
        self.qkv, self.out = nnx.Linear(d, 3 * d, **kw), nnx.Linear(d, d, **kw)
        windows = {"feature_group_count": d} | kw
        self.near = nnx.List([nnx.Conv(d, d, (3, 3), **windows) for _ in range(2)])
        self.up, self.down = nnx.Linear(d, 4 * d, **kw), nnx.Linear(4 * d, d, **kw)
        self.warmth = nnx.Param(jnp.ones((d // 48, 1, 1)))
        self.scales = nnx.Param(jnp.ones((3, d)))

    def __call__(self, x: Any, side: int) -> Any:
        b, s, d = x.shape
        one, two, three = self.scales[...].astype(BF16)
        q, k, v = jnp.split(self.qkv(self.norms[0](x)).reshape(b, s, -1, 48), 3, 2)
        q, k = unit(q, 1), unit(k, 1)
        scores = jnp.einsum("bshc,bshe->bhce", q, k).astype(F32) * self.warmth[...]
        shares = jax.nn.softmax(scores, -1).astype(BF16)
        x = x + one * self.out(jnp.einsum("bhce,bshe->bshc", shares, v).reshape(b, s, d))
        y = self.near[0](self.norms[1](x).reshape(b, side, side, d))
        y = self.near[1](self.norms[2](nnx.gelu(y)))
        x = x + two * y.reshape(b, s, d)
        return x + three * self.down(nnx.gelu(self.up(self.norms[3](x))))


class Xcit(nnx.Module):
    """XCiT of ten layers on patches of 16 pixels, which four windows make."""

    def __init__(self, rngs: nnx.Rngs):
        kw = {"strides": 2, "use_bias": False, "dtype": BF16, "rngs": rngs}
        self.stem = nnx.List(
            [nnx.Conv(a, b, (3, 3), **kw) for a, b in pairwise((3, 48, 96, 192, 384))]
        )
        self.layers = nnx.List([CrossCovariance(384, rngs) for _ in range(10)])
        self.norm, self.head = nnx.LayerNorm(384, rngs=rngs), nnx.Linear(384, 1000, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        for n, window in enumerate(self.stem):
            x = window(nnx.gelu(x) if n else x)
        b, side, _, d = x.shape
        x = x.reshape(b, side * side, d)
        for layer in self.layers:
            x = layer(x, side)
        return self.head(self.norm(x.astype(F32)).mean(1))


def vision() -> Zoo:
    """DenseNet-121 in linen learns 64 pictures, and XCiT in nnx 48, with a mean of weights."""
    model, b, side = DenseNet(), 64, 160
    rule = optax.chain(optax.add_decayed_weights(1e-4), optax.sgd(0.1, momentum=0.9, nesterov=True))

    def dense(state: Any, shown: Any, labels: Any) -> Any:
        params, stats, known = state
        x = (shown.astype(BF16) - 120) / 60

        def loss(params: Any) -> Any:
            given = {"params": params, "batch_stats": stats}
            logits, new = model.apply(given, x, mutable=["batch_stats"])
            return cross_entropy(logits, labels).mean(), new["batch_stats"]

        (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(params)
        changes, known = rule.update(grads, known, params)
        return (optax.apply_updates(params, changes), stats, known), value

    variables = linen_weights(model, Arg((b, side, side, 3)))
    params, known = started(rule, variables["params"])
    given = (Arg((b, side, side, 3), U8, below=256), Arg((b,), I32, below=1000))
    yield "densenet_121", carried(dense, (params, variables["batch_stats"], known), *given)

    call, params = nnx_parts(lambda: Xcit(nnx.Rngs(0)))
    rows = 48
    slow = optax.adamw(optax.cosine_decay_schedule(5e-4, 300000), weight_decay=0.05)

    def crossed(state: Any, shown: Any, labels: Any, key: Any) -> Any:
        params, known, mean = state
        one, two = jax.random.split(key)
        x = (shown.astype(BF16) - 120) / 60
        share = jax.random.beta(one, 0.8, 0.8)
        order = jax.random.permutation(two, rows)
        x = share.astype(BF16) * x + (1 - share).astype(BF16) * x[order]
        goals = optax.smooth_labels(jax.nn.one_hot(labels, 1000), 0.1)
        goals = share * goals + (1 - share) * goals[order]

        def loss(params: Any) -> Any:
            return optax.softmax_cross_entropy(call(params, x), goals).mean()

        (params, known), value = learned(slow, loss, (params, known))
        return (params, known, optax.incremental_update(params, mean, 1e-4)), value

    given = (Arg((rows, 224, 224, 3), U8, below=256), Arg((rows,), I32, below=1000), _KEY)
    yield "xcit_s", carried(crossed, (*started(slow, params), params), *given)


def restoration() -> Zoo:
    """EDSR in float32 learns to double 16 pictures of 64 x 64, turned and mirrored by chance."""
    b, side, d = 16, 64, 64
    rule = optax.adam(optax.exponential_decay(1e-4, 200000, 0.5, staircase=True))

    def doubled(p: Any, x: Any) -> Any:
        first = x = conv(x - 0.45, p["first"])
        for one, two in p["blocks"]:
            x = x + 0.1 * (conv(jax.nn.relu(conv(x, one[0]) + one[1]), two[0]) + two[1])
        x = conv(conv(x, p["middle"]) + first, p["wide"])
        x = x.reshape(b, side, side, 2, 2, d).transpose(0, 1, 3, 2, 4, 5)
        return conv(x.reshape(b, 2 * side, 2 * side, d), p["last"]) + 0.45

    def update(state: Any, sharp: Any, key: Any) -> Any:
        one, two = jax.random.split(key)
        y = sharp.astype(F32) / 255
        y = jnp.where(jax.random.bernoulli(one, 0.5, (b, 1, 1, 1)), y[:, :, ::-1], y)
        y = jnp.where(jax.random.bernoulli(two, 0.5, (b, 1, 1, 1)), y.swapaxes(1, 2), y)
        x = jax.image.resize(y, (b, side, side, 3), "cubic", antialias=True)

        def loss(p: Any) -> Any:
            return jnp.abs(doubled(p, x) - y).mean()

        return learned(rule, loss, state)

    def window(a: int, c: int) -> Any:
        return filters(3, 3, a, c), Arg((c,), scale=0.1)

    p = {"first": filters(3, 3, 3, d), "middle": filters(3, 3, d, d), "last": filters(3, 3, d, 3)}
    p |= {"wide": filters(3, 3, d, 4 * d), "blocks": [(window(d, d), window(d, d))] * 16}
    sharp = Arg((b, 2 * side, 2 * side, 3), U8, below=256)
    yield "edsr", carried(update, started(rule, p), sharp, _KEY)


def scenes() -> Zoo:
    """50,000 Gaussians learn a picture of 256 x 256: each tile blends its 128 nearest ones."""
    n, side, tile, most = 50000, 256, 16, 128
    across = side // tile
    rates = {"place": 2e-4, "size": 5e-3, "turn": 1e-3, "dense": 5e-2, "colour": 2.5e-3}

    def matrices(turn: Any) -> Any:
        w, x, y, z = jnp.moveaxis(unit(turn), -1, 0)
        rows = (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y))
        rows += (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x))
        rows += (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y))
        return jnp.stack(rows, -1).reshape(-1, 3, 3)

    def flat(p: Any, view: Any) -> Any:
        """Middles in pixels, inverse spreads as three numbers, radii and depths."""
        seen = p["place"] @ view.T + jnp.array([0.0, 0.0, 5.0])
        depth = jnp.maximum(seen[:, 2], 0.2)
        middle = side * (seen[:, :2] / depth[:, None] + 0.5)
        zero = jnp.zeros_like(depth)
        slope = side / depth
        rows = (slope, zero, -slope * seen[:, 0] / depth, zero, slope, -slope * seen[:, 1] / depth)
        slopes = jnp.stack(rows, -1).reshape(-1, 2, 3) @ view
        grown = slopes @ (matrices(p["turn"]) * jnp.exp(0.3 * p["size"] - 4)[:, None])
        spread = grown @ grown.swapaxes(1, 2) + 0.3 * jnp.eye(2)
        a, b, c = spread[:, 0, 0], spread[:, 0, 1], spread[:, 1, 1]
        det = a * c - b * b
        middle_half = (a + c) / 2
        large = middle_half + jnp.sqrt(jnp.maximum(middle_half**2 - det, 0.1))
        return middle, jnp.stack([c, -b, a], -1) / det[:, None], 3 * jnp.sqrt(large), seen[:, 2]

    def drawn(p: Any, view: Any) -> Any:
        middle, inverse, radius, depth = flat(p, view)
        colour = jax.nn.sigmoid(p["colour"])
        corner = jnp.stack(jnp.meshgrid(*[jnp.arange(across) * tile] * 2), -1).reshape(-1, 1, 2)
        near = lax.stop_gradient(jnp.clip(middle, corner, corner + tile) - middle)
        hit = (jnp.abs(near) < lax.stop_gradient(radius)[:, None]).all(-1) & (depth > 0.2)
        order, index = lax.top_k(jnp.where(hit, -lax.stop_gradient(depth), -jnp.inf), most)
        spot = jnp.stack(jnp.meshgrid(*[jnp.arange(tile) + 0.5] * 2), -1).reshape(-1, 2)
        gap = (corner + spot)[:, :, None] - middle[index][:, None]
        q = inverse[index][:, None]
        power = -0.5 * (q[..., 0] * gap[..., 0] ** 2 + q[..., 2] * gap[..., 1] ** 2)
        power = power - q[..., 1] * gap[..., 0] * gap[..., 1]
        alpha = jax.nn.sigmoid(p["dense"])[index][:, None] * jnp.exp(jnp.minimum(power, 0))
        alpha = jnp.where(jnp.isfinite(order)[:, None], jnp.minimum(alpha, 0.99), 0)
        left = jnp.cumprod(1 - alpha, -1)
        left = jnp.concatenate([jnp.ones_like(left[..., :1]), left[..., :-1]], -1)
        x = jnp.einsum("tpn,tnc->tpc", alpha * left, colour[index])
        x = x.reshape(across, across, tile, tile, 3).swapaxes(1, 2)
        return x.reshape(side, side, 3)

    def update(state: Any, view: Any, photo: Any) -> Any:
        goal = photo.astype(F32) / 255

        def loss(p: Any) -> Any:
            return jnp.abs(drawn(p, jnp.linalg.qr(view)[0]) - goal).mean()

        return learned(rule, loss, state)

    rule = optax.multi_transform(
        {k: optax.adam(v, eps=1e-15) for k, v in rates.items()}, {k: k for k in rates}
    )
    p = {"place": Arg((n, 3)), "size": Arg((n, 3)), "turn": Arg((n, 4)), "dense": Arg((n,))}
    p |= {"colour": Arg((n, 3))}
    given = (Arg((3, 3)), Arg((side, side, 3), U8, below=256))
    yield "gaussian_splats", carried(update, started(rule, p), *given)


def audio() -> Zoo:
    """DiffWave in float32 learns the noise of eight sounds, by 30 windows that widen, from mels."""
    b, samples, d, hop = 8, 16384, 64, 256

    def line(x: Any, w: Any, wide: int = 1) -> Any:
        return lax.conv_general_dilated(
            *(x, w, (1,), "SAME"),
            rhs_dilation=(wide,),
            dimension_numbers=("NWC", "WIO", "NWC"),
        )

    def noise_of(p: Any, x: Any, level: Any, mel: Any) -> Any:
        angle = level[:, None] * 10 ** (jnp.arange(64) * 4 / 63)
        told = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1)
        told = jax.nn.silu(jax.nn.silu(told @ p["level1"]) @ p["level2"])
        mel = mel[..., None]
        for w in p["grow"]:
            ways = ("NHWC", "HWIO", "NHWC")
            mel = lax.conv_transpose(mel, w, (16, 1), "SAME", dimension_numbers=ways)
            mel = jax.nn.leaky_relu(mel, 0.4)
        mel = mel[..., 0]
        x, total = jax.nn.relu(x[..., None] * p["first"]), jnp.zeros((b, samples, d))
        for n, q in enumerate(p["layers"]):
            y = line(x + (told @ q["level"])[:, None], q["near"], 2 ** (n % 10)) + mel @ q["mel"]
            gate, value = jnp.split(y, 2, -1)
            y = jax.nn.sigmoid(gate) * jnp.tanh(value) @ q["out"] + q["shift"]
            left, kept = jnp.split(y, 2, -1)
            x, total = (x + left) * 0.5**0.5, total + kept
        x = jax.nn.relu(total / len(p["layers"]) ** 0.5 @ p["one"])
        return (x @ p["two"])[..., 0]

    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(2e-4))

    def update(state: Any, sound: Any, mel: Any, key: Any) -> Any:
        one, two = jax.random.split(key)
        kept = jnp.cumprod(1 - jnp.linspace(1e-4, 0.05, 50))
        when = jax.random.randint(one, (b,), 0, 50)
        noise = jax.random.normal(two, sound.shape)
        clean = kept[when][:, None]
        x = jnp.sqrt(clean) * sound + jnp.sqrt(1 - clean) * noise

        def loss(p: Any) -> Any:
            return jnp.abs(noise_of(p, x, when.astype(F32), mel) - noise).mean()

        return learned(rule, loss, state)

    layer = {"near": filters(3, d, 2 * d), "mel": master(80, 2 * d), "level": master(512, d)}
    layer |= {"out": master(d, 2 * d), "shift": Arg((2 * d,), scale=0.1)}
    p = {"layers": [layer] * 30, "first": Arg((d,)), "level1": master(128, 512)}
    p |= {"level2": master(512, 512), "grow": [Arg((32, 3, 1, 1), scale=0.2)] * 2}
    p |= {"one": master(d, d), "two": master(d, 1)}
    given = (Arg((b, samples), scale=0.3), Arg((b, samples // hop, 80)), _KEY)
    yield "diffwave", carried(update, started(rule, p), *given)


def items() -> Zoo:
    """Names of items as in TIGER: 8,192 texts' vectors become four codes of 256; idle ones move."""
    b, codes, levels, low = 8192, 256, 4, 64
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.amsgrad(1e-3))

    def chain(x: Any, layers: Any) -> Any:
        for n, (w, shift) in enumerate(layers):
            x = x @ w + shift
            x = jax.nn.relu(x) if n + 1 < len(layers) else x
        return x

    def coded(books: Any, z: Any) -> Any:
        left, total, lost, picks = z, jnp.zeros_like(z), jnp.zeros(()), []
        for book in books:
            far = jnp.square(left).sum(1, keepdims=True) - 2 * left @ book.T
            pick = (far + jnp.square(book).sum(1)).argmin(1)
            near = book[pick]
            stay = jnp.square(left - lax.stop_gradient(near)).sum(1)
            lost = lost + (jnp.square(lax.stop_gradient(left) - near).sum(1) + 0.25 * stay).mean()
            left, total = left - lax.stop_gradient(near), total + near
            picks.append(pick)
        return z + lax.stop_gradient(total - z), lost, jnp.stack(picks)

    def update(state: Any, texts: Any, key: Any) -> Any:
        params, known, used = state
        x = unit(texts.astype(F32))

        def loss(p: Any) -> Any:
            z = chain(x, p["in"])
            y, lost, picks = coded(p["books"], z)
            return jnp.square(chain(y, p["out"]) - x).sum(1).mean() + lost, (picks, z)

        (value, (picks, z)), grads = jax.value_and_grad(loss, has_aux=True)(params)
        changes, known = rule.update(grads, known, params)
        params = optax.apply_updates(params, changes)
        counts = jax.vmap(lambda pick: jnp.bincount(pick, length=codes))(picks)
        used = 0.99 * used + 0.01 * counts
        rows = jax.random.randint(key, (levels, codes), 0, b)
        books = jnp.where(used[..., None] < 0.1, z[rows], params["books"])
        names = ((picks[0] * codes + picks[1]) * codes + picks[2]) * codes + picks[3]
        names = jnp.sort(names)
        return (params | {"books": books}, known, used), value, (names[1:] == names[:-1]).mean()

    def layers(*sizes: int) -> Any:
        return [(master(a, c), Arg((c,), scale=0.1)) for a, c in pairwise(sizes)]

    p = {"in": layers(768, 512, 256, 128, low), "out": layers(low, 128, 256, 512, 768)}
    p["books"] = Arg((levels, codes, low), scale=0.1)
    state = (*started(rule, p), Arg((levels, codes)))
    yield "semantic_names", carried(update, state, Arg((b, 768), BF16), _KEY)


def agents() -> Zoo:
    """Contrastive RL as in JaxGCRL: 12 updates; goals are states that came later in a game."""
    games, long, sees, acts, goal, b, wide = 512, 250, 29, 8, 2, 512, 512

    def mind(p: Any, x: Any) -> Any:
        x = x @ p["in"]
        for one, two in p["blocks"]:
            y = jax.nn.silu(layer_norm(x) @ one)
            x = x + jax.nn.silu(layer_norm(y) @ two)
        return layer_norm(x) @ p["out"]

    def drawn(p: Any, seen: Any, key: Any) -> Any:
        mean, spread = jnp.split(mind(p, seen), 2, -1)
        spread = -5 + 3.5 * (jnp.tanh(spread) + 1)
        noise = jax.random.normal(key, mean.shape)
        act = jnp.tanh(mean + jnp.exp(spread) * noise)
        chance = -0.5 * noise**2 - spread - jnp.log(1 - act**2 + 1e-6)
        return act, chance.sum(-1)

    def apart(p: Any, seen: Any, act: Any, goals: Any) -> Any:
        one = mind(p["do"], jnp.concatenate([seen, act], -1))
        two = mind(p["goal"], goals)
        square = jnp.square(one).sum(1)[:, None] + jnp.square(two).sum(1) - 2 * one @ two.T
        return -jnp.sqrt(jnp.maximum(square, 1e-6))

    rule = optax.adam(3e-4)

    def updates(state: Any, seen: Any, done: Any, key: Any) -> Any:
        def one(state: Any, key: Any) -> Any:
            critic, actor, warmth = state
            keys = jax.random.split(key, 5)
            game = jax.random.randint(keys[0], (b,), 0, games)
            when = jax.random.randint(keys[1], (b,), 0, long - 1)
            ahead = jnp.arange(long)[None] - when[:, None]
            odds = jnp.where(ahead > 0, ahead * jnp.log(0.99), -jnp.inf)
            later = jax.random.categorical(keys[2], odds)
            x, act, goals = seen[game, when], done[game, when], seen[game, later, :goal]

            def wrong(p: Any) -> Any:
                logits = apart(p, x, act, goals)
                both = -2 * jnp.diagonal(logits) + jax.nn.logsumexp(logits, 0)
                every = jax.nn.logsumexp(logits, 1)
                return (both + every).mean() + 0.1 * jnp.square(every).mean()

            critic, value = learned(rule, wrong, critic)
            heat = jnp.exp(warmth[0])

            def bad(p: Any) -> Any:
                act, chance = drawn(p, jnp.concatenate([x, goals], -1), keys[3])
                worth = jnp.diagonal(apart(critic[0], x, act, goals))
                return (heat * chance - worth).mean()

            actor, _ = learned(rule, bad, actor)
            _, chance = drawn(actor[0], jnp.concatenate([x, goals], -1), keys[4])
            warmth, _ = learned(rule, lambda w: -(jnp.exp(w) * (chance - acts)).mean(), warmth)
            return (critic, actor, warmth), value

        return lax.scan(one, state, jax.random.split(key, 12))

    def made(a: int, c: int) -> Any:
        block = (master(wide, wide), master(wide, wide))
        return {"in": master(a, wide), "blocks": [block] * 2, "out": master(wide, c)}

    critic = started(rule, {"do": made(sees + acts, 64), "goal": made(goal, 64)})
    actor = started(rule, made(sees + goal, 2 * acts))
    state = (critic, actor, started(rule, Arg((), scale=0.1)))
    given = (Arg((games, long, sees)), Arg((games, long, acts)), _KEY)
    yield "contrastive_goals", carried(updates, state, *given)


def weather() -> Zoo:
    """SFNO in float32: six layers filter 192 channels by degree on the sphere; 2 weathers."""
    b, rows, columns, fields, d, most = 2, 121, 240, 26, 192, 120

    def forth(x: Any, table: Any) -> Any:
        wave = jnp.fft.rfft(x, axis=2, norm="forward")[:, :, :most] * (2 * jnp.pi)
        return jnp.einsum("bkmc,mlk->blmc", wave, table.astype(jnp.complex64))

    def back(wave: Any, table: Any) -> Any:
        x = jnp.einsum("blmc,mlk->bkmc", wave, table.astype(jnp.complex64))
        x = jnp.pad(x, ((0, 0), (0, 0), (0, columns // 2 + 1 - most), (0, 0)))
        return jnp.fft.irfft(x, columns, axis=2, norm="forward")

    def ahead(p: Any, x: Any, there: Any, home: Any) -> Any:
        first = x
        x = jax.nn.gelu(x @ p["in"]) @ p["in2"] + p["places"]

        @jax.checkpoint
        def layer(x: Any, q: Any) -> Any:
            y = (x - x.mean((1, 2), keepdims=True)) * lax.rsqrt(x.var((1, 2), keepdims=True) + 1e-6)
            wave = forth(y, there)
            filter_ = lax.complex(q["real"], q["imaginary"])
            y = back(jnp.einsum("blmc,lcd->blmd", wave, filter_), home)
            y = jax.nn.gelu(y + x @ q["side"])
            return x + jax.nn.gelu(y @ q["up"]) @ q["down"], None

        x, _ = lax.scan(layer, x, p["layers"])
        return jax.nn.gelu(jnp.concatenate([x, first], -1) @ p["out"]) @ p["out2"]

    rule = optax.chain(optax.clip_by_global_norm(32.0), optax.nadam(1e-3))

    def update(state: Any, now: Any, later: Any, there: Any, home: Any) -> Any:
        areas = jnp.sin(jnp.linspace(0.0, jnp.pi, rows))[:, None, None]

        def loss(p: Any) -> Any:
            gap = jnp.square(ahead(p, now, there, home) - later) * areas
            return jnp.sqrt(gap.sum((1, 2)) / (jnp.square(later) * areas).sum((1, 2))).mean()

        return learned(rule, loss, state)

    layer = {"real": Arg((most, d, d), scale=0.05), "imaginary": Arg((most, d, d), scale=0.05)}
    layer |= {"side": master(d, d), "up": master(d, 2 * d), "down": master(2 * d, d)}
    p = {"layers": times(6, layer), "in": master(fields, d), "in2": master(d, d)}
    p |= {"places": Arg((rows, columns, d), scale=0.02), "out": master(d + fields, d)}
    p |= {"out2": master(d, fields)}
    sky, table = Arg((b, rows, columns, fields)), Arg((most, most, rows), scale=0.1)
    yield "sfno", carried(update, started(rule, p), sky, sky, table, table)


def multimodal() -> Zoo:
    """CoCa: 32 pictures and captions find each other, and captions are written; Adafactor."""
    d, b, patches, s, words, layers = 768, 32, 256, 64, 49408, 6
    rule = optax.adafactor(
        optax.warmup_cosine_decay_schedule(0.0, 8e-4, 10000, 500000),
        weight_decay_rate=1e-5,
        clipping_threshold=1.0,
    )

    def pooled(x: Any, q: Any) -> Any:
        asked = jnp.broadcast_to(q["asked"], (b, *q["asked"].shape))
        k, v = jnp.split(heads(layer_norm(x) @ q["kv"], 64), 2, 2)
        return layer_norm(attention(heads(asked @ q["q"], 64), k, v) @ q["out"])

    def captions(p: Any, pixels: Any, tokens: Any) -> Any:
        def seen(x: Any, q: Any) -> Any:
            return gelu_layer(x, half(q), 64), None

        x = pixels.reshape(b, 16, 14, 16, 14, 3).swapaxes(2, 3).reshape(b, patches, -1)
        x = (x.astype(BF16) - 120) / 60 @ p["patch"] + p["spots"]
        x, _ = lax.scan(seen, x, p["look"])
        shown = pooled(x, p["many"])
        look = pooled(shown, p["one"])[:, 0]
        end = jnp.broadcast_to(p["end"], (b, 1, d))
        y = jnp.concatenate([p["table"][tokens[:, :-1]] + p["places"], end], 1)
        real = jnp.concatenate([tokens[:, :-1] > 400, jnp.ones((b, 1), bool)], 1)
        mask = causal(s + 1) & real[:, None, None]

        def read(x: Any, q: Any) -> Any:
            return gelu_layer(x, half(q), 64, mask), None

        y, _ = lax.scan(read, y, p["read"])
        text, y = layer_norm(y[:, -1]) @ p["text"], y[:, :-1]

        def write(x: Any, q: Any) -> Any:
            q = half(q)
            x = gelu_layer(x, q, 64, causal(s))
            k, v = jnp.split(heads(shown @ q["kv"], 64), 2, 2)
            return x + attention(heads(layer_norm(x) @ q["ask"], 64), k, v) @ q["told"], None

        y, _ = lax.scan(write, y, p["write"])
        return unit(look.astype(F32)), unit(text.astype(F32)), layer_norm(y) @ p["table"].T

    def update(state: Any, pixels: Any, tokens: Any) -> Any:
        def loss(params: Any) -> Any:
            look, text, logits = captions(half(params), pixels, tokens)
            alike = look @ text.T * jnp.exp(params["warmth"])
            goals, real = jnp.arange(b), tokens[:, 1:] > 400
            pairs = (cross_entropy(alike, goals) + cross_entropy(alike.T, goals)).mean() / 2
            said = (cross_entropy(logits, tokens[:, 1:]) * real).sum() / real.sum()
            return pairs + 2 * said

        return learned(rule, loss, state)

    layer = gelu_weights(d, 4 * d)
    cross = {"kv": master(d, 2 * d), "ask": master(d, d), "told": master(d, d)}
    pool = {"kv": master(d, 2 * d), "q": master(d, d), "out": master(d, d)}
    p = {"look": times(layers, layer), "read": times(layers, layer)}
    p |= {"write": times(layers, layer | cross), "patch": master(588, d)}
    p |= {"many": pool | {"asked": Arg((patches, d), scale=0.02)}}
    p |= {"one": pool | {"asked": Arg((1, d), scale=0.02)}, "text": master(d, d)}
    p |= {"spots": Arg((patches, d), scale=0.02), "places": Arg((s, d), scale=0.02)}
    p |= {"table": Arg((words, d), scale=0.02), "end": Arg((d,), scale=0.02), "warmth": Arg(())}
    given = (Arg((b, 224, 224, 3), U8, below=256), Arg((b, s + 1), I32, below=words))
    yield "coca", carried(update, started(rule, p), *given)


class GhostNorm(nn.Module):
    """A batch norm of parts of 256 rows."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        y = x.reshape(-1, 256, x.shape[-1])
        y = (y - y.mean(1, keepdims=True)) * lax.rsqrt(y.var(1, keepdims=True) + 1e-5)
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        return y.reshape(x.shape) * scale + self.param("shift", nn.initializers.zeros, x.shape[-1:])


class TabNet(nn.Module):
    """TabNet: five steps, each of which looks at few columns."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        size, steps = 64, 5
        shared = [nn.Dense(4 * size, use_bias=False, name=f"shared{n}") for n in range(2)]

        def sparsemax(z: Any) -> Any:
            order = -jnp.sort(-z, -1)
            total = jnp.cumsum(order, -1)
            counts = jnp.arange(1, z.shape[-1] + 1)
            most = (1 + counts * order > total).sum(-1, keepdims=True)
            bound = (jnp.take_along_axis(total, most - 1, -1) - 1) / most
            return jnp.maximum(z - bound, 0)

        def changed(x: Any) -> Any:
            own = [nn.Dense(4 * size, use_bias=False) for _ in range(2)]
            for n, dense in enumerate((*shared, *own)):
                y = nn.glu(GhostNorm()(dense(x)))
                x = (x + y) * 0.5**0.5 if n else y
            return x

        x = nn.BatchNorm(False)(x)
        free, total, cost = jnp.ones_like(x), jnp.zeros((x.shape[0], size)), jnp.zeros(())
        told = changed(x)[:, size:]
        for _ in range(steps):
            mask = sparsemax(GhostNorm()(nn.Dense(x.shape[1], use_bias=False)(told)) * free)
            free = free * (1.3 - mask)
            cost = cost - (mask * jnp.log(mask + 1e-10)).sum(-1).mean() / steps
            y = changed(mask * x)
            total, told = total + nn.relu(y[:, :size]), y[:, size:]
        return nn.Dense(7)(total), cost


def tabular() -> Zoo:
    """TabNet in linen learns 16,384 rows of 54 columns: sparsemax and norms of parts of a batch."""
    model, b, columns = TabNet(), 16384, 54
    rule = optax.chain(
        optax.clip(2.0), optax.adam(optax.exponential_decay(0.02, 500, 0.95, staircase=True))
    )

    def update(state: Any, x: Any, labels: Any) -> Any:
        params, stats, known = state

        def loss(params: Any) -> Any:
            given = {"params": params, "batch_stats": stats}
            (logits, cost), new = model.apply(given, x, mutable=["batch_stats"])
            return cross_entropy(logits, labels).mean() + 1e-4 * cost, new["batch_stats"]

        (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(params)
        changes, known = rule.update(grads, known, params)
        return (optax.apply_updates(params, changes), stats, known), value

    x = Arg((b, columns))
    variables = linen_weights(model, x)
    params, known = started(rule, variables["params"])
    state = (params, variables["batch_stats"], known)
    yield "tabnet", carried(update, state, x, Arg((b,), I32, below=7))


def images() -> Zoo:
    """MAR: 77 of 256 latents are read in random order; a small diffusion guesses the others."""
    d, b, s, kept, low, wide, often = 768, 32, 256, 77, 16, 1024, 2
    rule = optax.chain(optax.clip_by_global_norm(3.0), optax.adamw(1e-4, 0.9, 0.95))

    def imagined(p: Any, latents: Any, names: Any, order: Any) -> Any:
        def layer(x: Any, q: Any) -> Any:
            return gelu_layer(x, half(q), 64), None

        x = layer_norm(latents.astype(BF16) @ p["in"])
        label = jnp.broadcast_to(p["names"][names][:, None], (b, 16, d)) + p["buffer"]
        places = jnp.broadcast_to(p["places"], x.shape)
        x = jnp.take_along_axis(x + places, order[:, :kept, None], 1)
        x, _ = lax.scan(layer, jnp.concatenate([label, x], 1), p["encoder"])
        x = layer_norm(x) @ p["middle"]
        whole = jnp.broadcast_to(p["hidden"], (b, s, d))
        whole = whole.at[jnp.arange(b)[:, None], order[:, :kept]].set(x[:, 16:])
        x = jnp.concatenate([x[:, :16], whole + p["spots"]], 1)
        x, _ = lax.scan(layer, x, p["decoder"])
        return jnp.take_along_axis(layer_norm(x)[:, 16:] + places, order[:, kept:, None], 1)

    def noise_of(p: Any, x: Any, when: Any, told: Any) -> Any:
        angle = when[:, None] * 1e4 ** (-jnp.arange(128) / 128)
        y = jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], -1).astype(BF16)
        y = jax.nn.silu(jax.nn.silu(y @ p["when1"]) @ p["when2"] + told @ p["told"])
        x = x.astype(BF16) @ p["first"]
        for q in p["blocks"]:
            shift, scale, gate = jnp.split(y @ q["level"], 3, -1)
            z = layer_norm(x, q["norm"]) * (1 + scale) + shift
            x = x + gate * (jax.nn.silu(z @ q["up"]) @ q["down"])
        return (layer_norm(x) @ p["last"]).astype(F32)

    def update(state: Any, latents: Any, names: Any, key: Any) -> Any:
        params, known, mean = state
        keys = jax.random.split(key, 3)
        order = jnp.argsort(jax.random.uniform(keys[0], (b, s)), 1)
        goals = jnp.take_along_axis(latents, order[:, kept:, None], 1).reshape(-1, low)
        goals = jnp.tile(goals, (often, 1))
        when = jax.random.randint(keys[1], goals.shape[:1], 0, 1000)
        left = jnp.square(jnp.cos(jnp.pi / 2 * (jnp.arange(1000) + 8) / 1016))[when][:, None]
        noise = jax.random.normal(keys[2], goals.shape)
        shown = jnp.sqrt(left) * goals + jnp.sqrt(1 - left) * noise

        def loss(params: Any) -> Any:
            p = half(params)
            told = jnp.tile(imagined(p, latents, names, order).reshape(-1, d), (often, 1))
            found = noise_of(p["head"], shown, when.astype(F32), told)
            return jnp.square(found - noise).mean()

        (params, known), value = learned(rule, loss, (params, known))
        return (params, known, optax.incremental_update(params, mean, 1e-4)), value

    block = {"level": master(wide, 3 * wide), "up": master(wide, wide), "norm": Arg((wide,))}
    block |= {"down": master(wide, wide)}
    head = {"when1": master(256, wide), "when2": master(wide, wide), "told": master(d, wide)}
    head |= {"first": master(low, wide), "last": master(wide, low), "blocks": [block] * 3}
    layers = times(6, gelu_weights(d, 4 * d))
    p = {"head": head, "encoder": layers, "decoder": layers, "in": master(low, d)}
    p |= {"names": Arg((1001, d), scale=0.02), "buffer": Arg((16, d), scale=0.02)}
    p |= {name: Arg((s, d), scale=0.02) for name in ("places", "spots")}
    p |= {"middle": master(d, d), "hidden": Arg((d,), scale=0.02)}
    given = (Arg((b, s, low)), Arg((b,), I32, below=1000), _KEY)
    yield "masked_autoregression", carried(update, (*started(rule, p), p), *given)


def robots() -> Zoo:
    """pi0 acts: nine layers read three cameras and a task, and ten steps find 50 motions."""
    d, small, layers, seen, s, size, moves = 2048, 1024, 9, 768, 816, 256, 50

    def layer_of(x: Any, q: Any, places: Any, mask: Any, before: Any) -> Any:
        y = rms(x, 1 + q["one"])
        a, k, v = (heads(y @ q[name], size) for name in ("q", "k", "v"))
        a, k = rope(a, places), rope(k, places)
        if before is not None:
            k, v = jnp.concatenate([before[0], k], 1), jnp.concatenate([before[1], v], 1)
        x = x + attention(a, k, v, mask) @ q["out"]
        y = rms(x, 1 + q["two"])
        return x + (jax.nn.gelu(y @ q["gate"]) * (y @ q["up"])) @ q["down"], (k, v)

    def act(p: Any, patches: Any, task: Any, length: Any, pose: Any, key: Any) -> Any:
        words = p["table"][task] * d**0.5
        x = jnp.concatenate([patches @ p["patch"], words.astype(BF16)], 1)
        real = jnp.arange(s) < seen + length[:, None]
        places = jnp.cumsum(real, 1) - 1

        def read(x: Any, q: Any) -> Any:
            return layer_of(x, q, places, real[:, None, None], None)

        _, caches = lax.scan(read, x, p["reads"])
        after = real.sum(1, keepdims=True) + jnp.arange(moves + 1)
        own = jnp.arange(moves + 1)
        own = (own[:, None] > 0) | (own == 0)
        mask = jnp.concatenate([jnp.broadcast_to(real, (moves + 1, s)), own], 1)[None, None]

        def step(n: int, x: Any) -> Any:
            time = 1.0 - n / 10
            angle = 2 * jnp.pi * time / (4e-3 * 1000 ** jnp.linspace(0.0, 1.0, small // 2))
            when = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)]).astype(BF16)
            y = x.astype(BF16) @ p["move"]
            y = jnp.concatenate([y, jnp.broadcast_to(when, y.shape)], -1)
            y = jax.nn.silu(y @ p["mix1"]) @ p["mix2"]
            y = jnp.concatenate([(pose @ p["pose"])[:, None], y], 1)

            def layer(y: Any, given: Any) -> Any:
                q, before = given
                return layer_of(y, q, after, mask, before)[0], None

            y, _ = lax.scan(layer, y, (p["acts"], caches))
            return x - 0.1 * (rms(y[:, 1:], 1 + p["last"]) @ p["motion"]).astype(F32)

        return lax.fori_loop(0, 10, step, jax.random.normal(key, (1, moves, 32)))

    def made(d: int, wide: int) -> Any:
        layer = {"q": weight(d, 8 * size), "k": weight(d, size), "v": weight(d, size)}
        layer |= {"out": weight(8 * size, d), "one": Arg((d,), BF16, 0.1)}
        layer |= {"two": Arg((d,), BF16, 0.1)} | swiglu_weights(d, wide, weight)
        return times(layers, layer)

    p = {"reads": made(d, 16384), "acts": made(small, 4096), "patch": weight(1152, d)}
    p |= {"table": Arg((257152, d), BF16, 0.02), "move": weight(32, small)}
    p |= {"mix1": weight(2 * small, small), "mix2": weight(small, small)}
    p |= {"pose": weight(32, small), "motion": weight(small, 32), "last": Arg((small,), BF16, 0.1)}
    given = (Arg((1, seen, 1152), BF16), Arg((1, s - seen), I32, below=257152))
    given = (*given, Arg((1,), I32, below=s - seen), Arg((1, 32), BF16), _KEY)
    yield "pi0", program(act, p, *given)


def economies() -> Zoo:
    """Aiyagari's savers: 60 rounds of Bellman's on 800 x 12 x 800 choices, then who owns what."""
    n, kinds = 800, 12

    def solved(odds: Any, wages: Any, rate: Any) -> Any:
        odds = jax.nn.softmax(odds + 3 * jnp.eye(kinds), -1)
        wages, rate = jnp.exp(0.3 * wages), 0.01 + 0.02 * jax.nn.sigmoid(rate)
        owned = 60 * jnp.linspace(0.0, 1.0, n) ** 2
        income = (1 + rate) * owned[:, None] + wages
        spent = income[..., None] - owned
        joy = jnp.where(spent > 0, jnp.maximum(spent, 1e-8) ** -1.0 / -1.0, -jnp.inf)

        def better(value: Any, _: Any) -> Any:
            worth = joy + 0.96 * (odds @ value.T)
            new = worth.max(-1)
            return new, jnp.abs(new - value).max()

        value, gaps = lax.scan(better, jnp.zeros((n, kinds)), None, length=60)
        choice = (joy + 0.96 * (odds @ value.T)).argmax(-1)
        grid = jnp.broadcast_to(jnp.arange(kinds), (n, kinds))

        def moved(_: int, mass: Any) -> Any:
            return jnp.zeros((n, kinds)).at[choice, grid].add(mass) @ odds

        mass = lax.fori_loop(0, 150, moved, jnp.full((n, kinds), 1.0 / (n * kinds)))
        capital = (mass.sum(1) * owned).sum()
        shares = jnp.cumsum(mass.sum(1) * owned) / capital
        return value, choice, capital, shares, gaps

    yield "aiyagari", program(solved, Arg((kinds, kinds)), Arg((kinds,)), Arg(()))


def plasmas() -> Zoo:
    """Orszag and Tang's vortex: ideal MHD on 896^2 cells, limited slopes, HLL, eight steps."""
    n, gamma = 896, 5 / 3

    def pressure(u: Any) -> Any:
        speed = (u[1:4] ** 2).sum(0) / u[0]
        return (gamma - 1) * (u[4] - 0.5 * speed - 0.5 * (u[5:8] ** 2).sum(0))

    def flux(u: Any, way: int) -> Any:
        """Flux along a way, and the fast speed; the ninth number cleans the field."""
        v, field, p = u[1:4] / u[0], u[5:8], jnp.maximum(pressure(u), 1e-4)
        total = p + 0.5 * (field**2).sum(0)
        push = u[1:4] * v[way] - field * field[way]
        push = push.at[way].add(total)
        heat = (u[4] + total) * v[way] - field[way] * (v * field).sum(0)
        turn = (field * v[way] - v * field[way]).at[way].set(u[8])
        sound, wave = gamma * p / u[0], (field**2).sum(0) / u[0]
        root = (sound + wave) ** 2 - 4 * sound * field[way] ** 2 / u[0]
        fast = jnp.sqrt(0.5 * (sound + wave + jnp.sqrt(jnp.maximum(root, 0))))
        parts = (u[1 + way][None], push, heat[None], turn, 4 * field[way][None])
        return jnp.concatenate(parts), v[way], fast

    def change(u: Any, way: int) -> Any:
        axis = 1 + way
        before, after = u - jnp.roll(u, 1, axis), jnp.roll(u, -1, axis) - u
        least = jnp.minimum(jnp.abs(before), jnp.abs(after))
        slope = jnp.where(before * after > 0, jnp.sign(after) * least, 0)
        left, right = u + 0.5 * slope, jnp.roll(u - 0.5 * slope, -1, axis)
        one, v1, c1 = flux(left, way)
        two, v2, c2 = flux(right, way)
        low = jnp.minimum(jnp.minimum(v1 - c1, v2 - c2), -2.0)
        high = jnp.maximum(jnp.maximum(v1 + c1, v2 + c2), 2.0)
        f = (high * one - low * two + low * high * (right - left)) / (high - low)
        return f - jnp.roll(f, 1, axis)

    def evolved(noise: Any) -> Any:
        y, x = jnp.meshgrid(*[2 * jnp.pi * jnp.arange(n) / n] * 2, indexing="ij")
        mass = jnp.full((n, n), gamma**2) + 0.01 * noise
        v = jnp.stack([-jnp.sin(x), jnp.sin(y), jnp.zeros((n, n))])
        field = jnp.stack([-jnp.sin(x), jnp.sin(2 * y), jnp.zeros((n, n))])
        heat = gamma / (gamma - 1) + 0.5 * mass * (v**2).sum(0) + 0.5 * (field**2).sum(0)
        rest = (mass[None], mass * v, heat[None], field, jnp.zeros((1, n, n)))

        def step(u: Any, _: Any) -> Any:
            fast = jnp.sqrt((gamma * jnp.maximum(pressure(u), 0) + (u[5:8] ** 2).sum(0)) / u[0])
            dt = 0.3 / jnp.maximum((jnp.abs(u[1:3] / u[0]).max(0) + fast).max(), 2.0)
            one = u - dt * (change(u, 0) + change(u, 1))
            new = 0.5 * (u + one - dt * (change(one, 0) + change(one, 1)))
            return new.at[8].multiply(0.95), dt

        u, steps = lax.scan(step, jnp.concatenate(rest), None, length=8)
        return u, steps, pressure(u)

    yield "orszag_tang", program(evolved, Arg((n, n)))


def programmes() -> Zoo:
    """A linear programme of 120,000 rows as in MPAX: scales, then 40 primal and dual steps."""
    rows, columns, entries = 120000, 200000, 1500000

    def solved(data: Any, row: Any, column: Any, cost: Any, bound: Any) -> Any:
        up, across = jnp.ones(rows), jnp.ones(columns)
        for _ in range(4):
            size = jnp.abs(data) * up[row] * across[column]
            up = up * lax.rsqrt(jax.ops.segment_max(size, row, rows) + 1e-3)
            across = across * lax.rsqrt(jax.ops.segment_max(size, column, columns) + 1e-3)
        data = data * up[row] * across[column]
        cost, bound = cost * across, bound * up
        matrix = sparse.BCOO((data, jnp.stack([row, column], -1)), shape=(rows, columns))
        turned = matrix.T
        size = jnp.sqrt(jnp.square(data).sum() / rows * 4)

        def step(state: Any, _: Any) -> Any:
            x, y, mean_x, mean_y, weight_ = state
            new = jnp.clip(x - weight_ / size * (cost - turned @ y), 0, 10)
            far = 2 * new - x
            y = jnp.maximum(y + (bound - matrix @ far) / (size * weight_), 0)
            mean_x, mean_y = 0.9 * mean_x + 0.1 * new, 0.9 * mean_y + 0.1 * y
            gap = cost @ new - bound @ y
            return (new, y, mean_x, mean_y, weight_), gap

        def epoch(state: Any, _: Any) -> Any:
            x, y = state[:2]
            state, gaps = lax.scan(step, state, None, length=10)
            near = jnp.linalg.norm(state[2] - x) / (jnp.linalg.norm(state[3] - y) + 1e-6)
            weight_ = jnp.exp(0.5 * jnp.log(near + 1e-6) + 0.5 * jnp.log(state[4]))
            wrong = jnp.linalg.norm(jnp.maximum(bound - matrix @ state[2], 0))
            return (state[2], state[3], state[2], state[3], weight_), (gaps, wrong)

        start = (jnp.zeros(columns), jnp.zeros(rows)) * 2
        state, told = lax.scan(epoch, (*start, jnp.ones(())), None, length=4)
        return state[0] * across, state[1] * up, told

    given = (Arg((entries,)), Arg((entries,), I32, below=rows), Arg((entries,), I32, below=columns))
    yield "pdlp", program(solved, *given, Arg((columns,)), Arg((rows,)))


def stereo() -> Zoo:
    """Semi-global matching: depths of 270 x 480 pixels by 64 shifts, summed along four ways."""
    h, w, shifts, small, large = 270, 480, 64, 8, 96

    def census(x: Any) -> Any:
        wide = jnp.pad(x, 3, mode="edge")
        bits = jnp.zeros((2, h, w), U32)
        places = [(r, c) for r in range(7) for c in range(7) if (r, c) != (3, 3)]
        for n, (r, c) in enumerate(places):
            less = (wide[r : r + h, c : c + w] < x).astype(U32)
            bits = bits.at[n // 24].set((bits[n // 24] << 1) | less)
        return bits

    def along(cost: Any, backward: bool) -> Any:
        """Costs of the best path that comes along the first axis."""

        def step(before: Any, here: Any) -> Any:
            least = before.min(-1, keepdims=True)
            wide = jnp.pad(before, ((0, 0), (1, 1)), constant_values=30000)
            near = jnp.minimum(wide[:, :-2], wide[:, 2:]) + small
            best = jnp.minimum(jnp.minimum(before, near), least + large)
            new = here + best - least
            return new, new

        _, total = lax.scan(step, jnp.zeros_like(cost[0]), cost, reverse=backward)
        return total

    def depths_of(left: Any, right: Any, focus: Any) -> Any:
        one, two = census(left.astype(I32)), census(right.astype(I32))
        wide = jnp.pad(two, ((0, 0), (0, 0), (shifts - 1, 0)))
        apart = jnp.stack([wide[:, :, shifts - 1 - s : shifts - 1 - s + w] for s in range(shifts)])
        cost = lax.population_count(one ^ apart).sum(1).astype(jnp.int16)
        cost = cost.transpose(1, 2, 0)
        total = along(cost, False) + along(cost, True)
        turned = cost.swapaxes(0, 1)
        total = total + (along(turned, False) + along(turned, True)).swapaxes(0, 1)
        best = total.argmin(-1)
        low, middle, high = (
            jnp.take_along_axis(total, jnp.clip(best + n, 0, shifts - 1)[..., None], -1)[..., 0]
            for n in (-1, 0, 1)
        )
        bend = jnp.maximum(low + high - 2 * middle, 1).astype(F32)
        fine = best + 0.5 * (low - high).astype(F32) / bend
        place = jnp.arange(w)[None] + jnp.arange(shifts)[:, None]
        theirs = total[:, jnp.clip(place, 0, w - 1), jnp.arange(shifts)[:, None]].argmin(1)
        back = jnp.take_along_axis(theirs, jnp.clip(jnp.arange(w) - best, 0, w - 1), 1)
        return jnp.where(jnp.abs(back - best) <= 1, jnp.abs(focus) / jnp.maximum(fine, 0.5), 0)

    picture = Arg((h, w), U8, below=256)
    yield "semi_global", program(depths_of, picture, picture, Arg(()))


def cells() -> Zoo:
    """Wilcoxon's rank sums of 1,200 genes in 10,000 cells of 12 kinds, and Benjamini's bound."""
    n, genes, kinds, part = 10000, 1200, 12, 300

    def told(counts: Any, kind: Any) -> Any:
        depth = counts.astype(F32).sum(0)
        table = jnp.log1p(counts.astype(F32) / depth * 1e4)
        members = jax.nn.one_hot(kind, kinds)
        size = members.sum(0)
        places = jnp.arange(n, dtype=I32)

        def some(rows: Any) -> Any:
            whose = jnp.broadcast_to(kind, rows.shape)
            value, whose = lax.sort((rows, whose), dimension=1, num_keys=1)
            new = jnp.concatenate([jnp.ones((part, 1), bool), value[:, 1:] != value[:, :-1]], 1)
            end = jnp.concatenate([new[:, 1:], jnp.ones((part, 1), bool)], 1)
            first = lax.cummax(jnp.where(new, places, 0), axis=1)
            last = lax.cummin(jnp.where(end, places, n), axis=1, reverse=True)
            rank = 0.5 * (first + last).astype(F32) + 1
            ties = (jnp.square((last - first + 1).astype(F32)) - 1).sum(1)
            total = jnp.stack([jnp.where(whose == k, rank, 0).sum(1) for k in range(kinds)], 1)
            return total, ties, rows @ members

        total, ties, sums = lax.map(some, table.reshape(-1, part, n))
        total, ties, sums = (a.reshape(genes, *a.shape[2:]) for a in (total, ties, sums))
        spread = size * (n - size) / 12 * ((n + 1) - ties[:, None] / (n * (n - 1.0)))
        z = (total - size * (n + 1) / 2) / jnp.sqrt(spread)
        chance = 2 * jax.scipy.stats.norm.sf(jnp.abs(z))
        order = jnp.argsort(chance, 0)
        level = jnp.take_along_axis(chance, order, 0) * genes / jnp.arange(1, genes + 1)[:, None]
        level = jnp.minimum(lax.cummin(level, axis=0, reverse=True), 1)
        fold = jnp.log2((sums / size + 1e-9) / ((sums.sum(1, keepdims=True) - sums) / (n - size)))
        best, top = lax.top_k(z.T, 50)
        return order, level, fold, best, top

    given = (Arg((genes, n), jnp.uint16, below=9), Arg((n,), I32, below=kinds))
    yield "rank_sums", program(told, *given)


def elements() -> Zoo:
    """A soft block of 40^3 bricks: Newton's step by 20 conjugate gradients, from an energy."""
    n = 40
    nodes = n + 1

    def solved(moved: Any, stiff: Any, load: Any) -> Any:
        corner = jnp.stack(jnp.meshgrid(*[jnp.arange(2)] * 3, indexing="ij"), -1).reshape(8, 3)
        cell = jnp.stack(jnp.meshgrid(*[jnp.arange(n)] * 3, indexing="ij"), -1).reshape(-1, 1, 3)
        bricks = ((cell + corner) * jnp.array([nodes * nodes, nodes, 1])).sum(-1)
        spot = 0.5 + (corner - 0.5) / 3**0.5
        sign = 2.0 * corner - 1
        part = jnp.where(corner == 1, spot[:, None], 1 - spot[:, None])
        slopes = (
            jnp.stack(
                [
                    sign[:, m] * part[..., [k for k in range(3) if k != m]].prod(-1)
                    for m in range(3)
                ],
                -1,
            )
            * n
        )
        fixed = (jnp.arange(nodes**3) < nodes * nodes)[:, None]
        lame = jnp.exp(0.5 * stiff)[:, None]

        def energy(u: Any) -> Any:
            u = jnp.where(fixed, 0, u)
            f = jnp.einsum("eni,qnj->eqij", u[bricks], slopes) + jnp.eye(3)
            cross = jnp.cross(f[..., 0, :], f[..., 1, :])
            volume = jnp.maximum((cross * f[..., 2, :]).sum(-1), 1e-3)
            bend = jnp.log(volume)
            held = 0.5 * lame * (jnp.square(f).sum((-1, -2)) - 3 - 2 * bend) + lame * bend**2
            return held.sum() / (8 * n**3) - (u * load).sum() / nodes**3

        u = 1e-3 * moved
        slope, times_hessian = jax.linearize(jax.grad(energy), u)
        weights = jnp.broadcast_to(lame * jnp.square(slopes).sum((0, 2)), bricks.shape)
        scale = jnp.zeros(nodes**3).at[bricks].add(weights)[:, None] / (8 * n**3) + 1e-9

        def step(state: Any, _: Any) -> Any:
            x, r, p, old = state
            image = times_hessian(p) + jnp.where(fixed, p, 0)
            length = old / (p * image).sum()
            x, r = x + length * p, r - length * image
            z = r / scale
            new = (r * z).sum()
            return (x, r, z + new / old * p, new), new

        r = -slope
        start = (jnp.zeros_like(u), r, r / scale, (r * r / scale).sum())
        (x, *_), sizes = lax.scan(step, start, None, length=20)
        return u + x, energy(u + x), sizes

    place = Arg((nodes**3, 3))
    yield "neo_hookean", program(solved, place, Arg((n**3,)), place)


def texts() -> Zoo:
    """Near copies among 60,000 texts: hashes of five words, 112 least ones, and 16 sorted bands."""
    b, s, hashes, bands, gram = 60000, 160, 112, 16, 5

    def mixed(x: Any) -> Any:
        x = (x ^ (x >> 16)) * U32(0x7FEB352D)
        x = (x ^ (x >> 15)) * U32(0x846CA68B)
        return x ^ (x >> 16)

    def copies(tokens: Any, lengths: Any, first: Any, second: Any) -> Any:
        x, count = tokens.astype(U32), s - gram + 1
        shingle = jnp.zeros((b, count), U32)
        for n in range(gram):
            shingle = mixed(shingle * U32(31) + x[:, n : n + count])
        real = jnp.arange(count) < 32 + lengths[:, None]

        def least(given: Any) -> Any:
            one, two = given
            value = shingle[..., None] * (one | 1) + two
            return jnp.where(real[..., None], value, U32(0xFFFFFFFF)).min(1)

        parts = (first.reshape(-1, 16), second.reshape(-1, 16))
        signs = lax.map(least, parts).transpose(1, 0, 2).reshape(b, bands, -1)
        band = jnp.zeros((b, bands), U32)
        for n in range(hashes // bands):
            band = mixed(band ^ signs[..., n])
        ids = jnp.broadcast_to(jnp.arange(b, dtype=I32), (bands, b))
        band, ids = lax.sort((band.T, ids), dimension=1, num_keys=1)
        same = band[:, 1:] == band[:, :-1]
        one, two = ids[:, 1:], ids[:, :-1]
        flat = signs.reshape(b, hashes)
        alike = (flat[one[0]] == flat[two[0]]).mean(-1)
        owner = jnp.arange(b, dtype=I32)
        older = jnp.where(same, jnp.minimum(one, two), one)
        owner = owner.at[jnp.maximum(one, two).ravel()].min(older.ravel())
        for _ in range(4):
            owner = owner[owner]
        return owner, same.sum(1), alike

    given = (Arg((b, s), jnp.uint16, below=50000), Arg((b,), I32, below=s - 40))
    keys = Arg((hashes,), U32, below=1 << 30)
    yield "min_hash", program(copies, *given, keys, keys)


def volatility() -> Zoo:
    """Rough Bergomi: 49,152 paths of 312 steps by Fourier's convolution, and smiles of options."""
    paths, steps, strikes, power = 49152, 312, 21, -0.43

    def prices(key: Any, rough: Any, strike: Any) -> Any:
        eta, rho = 1.5 + 0.5 * jax.nn.sigmoid(rough[0]), -0.9 * jax.nn.sigmoid(rough[1] + 2)
        one, two, three = jax.random.split(key, 3)
        dt = 1.0 / steps
        near = jax.random.normal(one, (paths, steps)) * dt**0.5
        fine = jax.random.normal(two, (paths, steps))
        root = dt ** (2 * power + 1) / (2 * power + 1)
        shared = dt ** (power + 1) / (power + 1)
        last = shared / dt * near + jnp.sqrt(root - shared**2 / dt) * fine
        lag = jnp.arange(2, steps + 1, dtype=F32)
        best = ((lag ** (power + 1) - (lag - 1) ** (power + 1)) / (power + 1)) ** (1 / power)
        taps = jnp.concatenate([jnp.zeros(1), (best * dt) ** power])
        size = 640
        wave = jnp.fft.rfft(taps, size) * jnp.fft.rfft(near, size)
        volterra = jnp.sqrt(2 * power + 1) * (jnp.fft.irfft(wave, size)[:, :steps] + last)
        time = (jnp.arange(steps) + 1) * dt
        variance = 0.055 * jnp.exp(eta * volterra - 0.5 * eta**2 * time ** (2 * power + 1))
        variance = jnp.pad(variance, ((0, 0), (1, 0)), constant_values=0.055)[:, :-1]
        other = jax.random.normal(three, (paths, steps)) * dt**0.5
        drive = rho * near + jnp.sqrt(1 - rho**2) * other
        logs = jnp.cumsum(jnp.sqrt(variance) * drive - 0.5 * variance * dt, 1)
        ends = jnp.exp(logs[:, [77, 155, 233, 311]])
        levels = jnp.exp(0.1 * strike)
        gains = jnp.maximum(ends[..., None] - levels, 0)
        price, error = gains.mean(0), gains.std(0) / paths**0.5
        term = jnp.array([78, 156, 234, 312])[:, None] * dt

        def newton(_: int, spread: Any) -> Any:
            wide = spread * jnp.sqrt(term)
            far = -jnp.log(levels) / wide + wide / 2
            value = jax.scipy.stats.norm.cdf(far)
            value = value - levels * jax.scipy.stats.norm.cdf(far - wide)
            slope = jax.scipy.stats.norm.pdf(far) * jnp.sqrt(term)
            return jnp.clip(spread - (value - price) / (slope + 1e-6), 0.01, 2)

        return lax.fori_loop(0, 12, newton, jnp.full_like(price, 0.2)), price, error

    yield "rough_bergomi", program(prices, _KEY, Arg((2,)), Arg((strikes,)))


def clusters() -> Zoo:
    """Coupled cluster doubles of 18 and 72 orbitals, in float64: six rounds with DIIS."""
    o, v, rounds = 18, 72, 6

    def energies(vvvv: Any, oooo: Any, oovv: Any, ovov: Any, levels: Any) -> Any:
        with jax.enable_x64(True):
            vvvv, oooo, oovv, ovov, levels = (
                a.astype(F64) for a in (vvvv, oooo, oovv, ovov, levels)
            )
            levels = jnp.sort(levels) + jnp.where(jnp.arange(o + v) < o, -3.0, 3.0)
            low, high = levels[:o], levels[o:]
            gaps = low[:, None, None, None] + low[:, None, None] - high[:, None] - high
            pairs = 2 * oovv - oovv.swapaxes(2, 3)

            def changed(t: Any) -> Any:
                other = 2 * t - t.swapaxes(2, 3)
                part = 0.5 * oovv + 0.5 * jnp.einsum("ijcd,abcd->ijab", t, vvvv)
                holes = oooo + jnp.einsum("klcd,ijcd->klij", oovv, t)
                part = part + 0.5 * jnp.einsum("klij,klab->ijab", holes, t)
                one = jnp.einsum("klcd,ijcd->kilj", pairs, t)
                part = part - jnp.einsum("kilj,klab->ijab", one, t)
                occupied = jnp.einsum("klcd,ilcd->ki", pairs, t)
                virtual = jnp.einsum("klcd,klad->ac", pairs, t)
                part = part - jnp.einsum("ki,kjab->ijab", occupied, t)
                part = part - jnp.einsum("ac,ijcb->ijab", virtual, t)
                ring = oovv + 0.5 * jnp.einsum("klcd,ljdb->kjcb", pairs, other)
                part = part + jnp.einsum("ikac,kjcb->ijab", other, ring)
                part = part - jnp.einsum("ikac,kcjb->ijab", t, ovov)
                part = part - jnp.einsum("ikcb,kcja->ijab", t, ovov)
                return (part + part.transpose(1, 0, 3, 2)) / gaps

            def step(state: Any, _: Any) -> Any:
                tried, wrong = state
                new = changed(tried[-1])
                tried = jnp.concatenate([tried[1:], new[None]])
                wrong = jnp.concatenate([wrong[1:], (new - tried[-2])[None]])
                flat = wrong.reshape(4, -1)
                square = jnp.pad(flat @ flat.T, (0, 1), constant_values=-1.0)
                square = square.at[4, 4].set(0.0) + 1e-8 * jnp.eye(5, dtype=F64)
                mix = jnp.linalg.solve(square, jnp.array([0.0, 0, 0, 0, -1.0], F64))[:4]
                best = jnp.einsum("n,nijab->ijab", mix, tried)
                tried = tried.at[-1].set(best)
                return (tried, wrong), (pairs * best).sum()

            start = jnp.broadcast_to(oovv / gaps, (4, o, o, v, v))
            (tried, _), energy = lax.scan(step, (start, 0.1 * start), None, length=rounds)
            return tried[-1], energy

    def made(*shape: int) -> Arg:
        return Arg(shape, scale=0.01)

    given = (made(v, v, v, v), made(o, o, o, o), made(o, o, v, v), made(o, v, o, v), Arg((o + v,)))
    yield "doubles_diis_f64", program(energies, *given)


def liquids() -> Zoo:
    """Smoothed particles: 64,000 of them in 32^3 cells with room for eight, three steps."""
    n, side, room, near = 64000, 32, 8, 1 / 32
    mass, stiff, sound = 1.0 / n, 50.0, 20.0

    def bell(far: Any) -> tuple[Any, Any]:
        """Wendland's kernel, and its slope over the distance."""
        q = jnp.minimum(far / near, 1.0)
        norm = 21 / (2 * jnp.pi * near**3)
        return norm * (1 - q) ** 4 * (4 * q + 1), -20 * norm * (1 - q) ** 3 / near**2

    def flowed(places: Any, speeds: Any) -> Any:
        ways = jnp.stack(jnp.meshgrid(*[jnp.arange(-1, 2)] * 3), -1).reshape(-1, 3)

        def number(cell: Any) -> Any:
            return (cell * jnp.array([side * side, side, 1])).sum(-1)

        def neighbours(x: Any) -> Any:
            cell = jnp.clip((x * side).astype(I32), 0, side - 1)
            key = number(cell)
            order = jnp.argsort(key)
            key = key[order]
            first = jnp.searchsorted(key, jnp.arange(side**3))
            spot = jnp.arange(n) - first[key]
            table = jnp.full((side**3, room), n).at[key, spot].set(order, mode="drop")
            around = cell[:, None] + ways
            inside = ((around >= 0) & (around < side)).all(-1)
            around = number(jnp.clip(around, 0, side - 1))
            return jnp.where(inside[..., None], table[around], n).reshape(n, -1)

        def step(state: Any, _: Any) -> Any:
            x, v = state
            index = neighbours(x)
            real = index < n
            index = jnp.minimum(index, n - 1)
            gap = x[:, None] - x[index]
            far = jnp.sqrt(jnp.square(gap).sum(-1) + 1e-12)
            value, slope = bell(far)
            dense = mass * jnp.where(real, value, 0).sum(1)
            press = stiff * ((dense / 1.0) ** 7 - 1)
            share = press / (dense * dense + 1e-6)
            drift = ((v[:, None] - v[index]) * gap).sum(-1)
            slow = near * drift / (far**2 + 0.01 * near**2)
            mean = 0.5 * (dense[:, None] + dense[index]) + 1e-6
            rub = jnp.where(drift < 0, -0.1 * sound * slow / mean, 0)
            push = jnp.where(real, mass * slope * (share[:, None] + share[index] + rub), 0)
            force = -(push[..., None] * gap).sum(1) + jnp.array([0.0, 0.0, -9.8])
            v = v + 1e-4 * force
            x = x + 1e-4 * v
            v = jnp.where((x < 0) | (x > 1), -0.5 * v, v)
            return (jnp.clip(x, 0, 1), v), dense.max()

        x = jax.scipy.special.ndtr(places) * jnp.array([1.0, 1.0, 0.999])
        return lax.scan(step, (x, 0.1 * speeds), None, length=3)

    yield "smoothed_particles", program(flowed, Arg((n, 3)), Arg((n, 3)))
