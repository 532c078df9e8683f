"""A 25th zoo: steps as public repositories write them, and numerics.

It was written without a look at the predictor.
"""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from eleventh import learned, started
from flax import linen as nn
from fourth import program, weight
from jax import lax
from jax.scipy.linalg import lu_factor, lu_solve, solve_triangular
from jax.scipy.ndimage import map_coordinates
from ninth import carried
from optax import contrib
from seventeenth import (
    attention,
    causal,
    cross_entropy,
    filters,
    half,
    heads,
    layer_norm,
    linen_weights,
    master,
    rms,
    rope,
    times,
)

from xlapipe.running.calibration.timed_program import Arg, TimedProgram

F32, BF16, F16, I32 = jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32
F64, C64, U8, U32 = jnp.float64, jnp.complex64, jnp.uint8, jnp.uint32
Zoo = Iterator[tuple[str, TimedProgram]]
_KEY = Arg((2,), U32, below=1 << 30)


def twentyfifth_programs() -> dict[str, TimedProgram]:
    """Every program, by FAMILY/NAME."""
    families = (
        *(decoders, long_texts, mixers, set_readers, detectors, free_of_norms, voices),
        *(agents, curvatures, recurrences, clouds, patched_runs),
        *(translators, gases, silicon, lenses, chains_of_spins, galaxies, spheres, bodies),
        *(registrations, suffixes, reads, samplers, processes, stiff, fits, webs),
    )
    return {
        f"{family.__name__}/{name}": program for family in families for name, program in family()
    }


def conv(x: Any, w: Any, stride: int = 1, padding: Any = "SAME", groups: int = 1) -> Any:
    """A convolution of pictures."""
    return lax.conv_general_dilated(
        *(x, w, (stride, stride), padding),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def ones(*shape: int, dtype: Any = F32) -> Arg:
    """Scales or shifts that are small."""
    return Arg(shape, dtype, scale=0.1)


def encoder_weights(d: int, wide: int, make: Any = master) -> dict[str, Arg]:
    """A layer with attention and a perceptron."""
    p = {"qkv": make(d, 3 * d), "out": make(d, d), "up": make(d, wide), "down": make(wide, d)}
    return p | {"one": ones(d), "two": ones(d)}


def encoded(x: Any, p: Any, size: int, mask: Any = None) -> Any:
    """What such a layer makes of tokens."""
    q, k, v = (heads(y, size) for y in jnp.split(layer_norm(x, 1 + p["one"]) @ p["qkv"], 3, -1))
    x = x + attention(q, k, v, mask) @ p["out"]
    return x + jax.nn.gelu(layer_norm(x, 1 + p["two"]) @ p["up"]) @ p["down"]


# ------------------------------------------------------------------------------- machine learning


def decoders() -> Zoo:
    """A scanned decoder with remat on packed documents, as MaxText trains it."""
    d, layers, b, s, words = 1024, 8, 4, 1024, 32000
    rule = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(optax.warmup_cosine_decay_schedule(0, 3e-4, 100, 10000), 0.9, 0.95),
    )

    def layer(seen: Any, places: Any, x: Any, p: Any) -> Any:
        p = half(p)
        y = rms(x, 1 + p["one"])
        q, k = (rope(heads(y @ p[n], 128), places) for n in ("q", "k"))
        y = attention(q, k, heads(y @ p["v"], 128), seen) @ p["o"]
        x = x + rms(y, 1 + p["after"])
        y = rms(x, 1 + p["two"])
        return x + (jax.nn.gelu(y @ p["gate"]) * (y @ p["up"])) @ p["down"], None

    def update(state: Any, tokens: Any, cuts: Any) -> Any:
        starts = cuts == 0
        segments = jnp.cumsum(starts, -1)
        index = jnp.arange(s)
        places = index - lax.cummax(jnp.where(starts, index, 0), axis=1)
        seen = (segments[:, :, None] == segments[:, None])[:, None] & causal(s)
        goals = jnp.roll(tokens, -1, 1)
        counted = (jnp.roll(segments, -1, 1) == segments).astype(F32)

        def loss(params: Any) -> Any:
            x = params["words"].astype(BF16)[tokens] * d**0.5
            step = jax.checkpoint(
                partial(layer, seen, places),
                policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
            )
            x, _ = lax.scan(step, x, params["layers"])
            logits = rms(x, 1 + params["last"]) @ params["words"].astype(BF16).T
            logits = 30 * jnp.tanh(logits.astype(F32) / 30)
            extra = 1e-4 * jnp.square(jax.nn.logsumexp(logits, -1))
            return ((cross_entropy(logits, goals) + extra) * counted).sum() / counted.sum()

        return learned(rule, loss, state)

    p = {"q": master(d, d), "k": master(d, 512), "v": master(d, 512), "o": master(d, d)}
    p |= {"gate": master(d, 4096), "up": master(d, 4096), "down": master(4096, d)}
    p |= {n: ones(d) for n in ("one", "two", "after")}
    params = {"words": Arg((words, d), scale=0.02), "layers": times(layers, p), "last": ones(d)}
    tokens = Arg((b, s), I32, below=words)
    yield (
        "packed_remat",
        carried(update, started(rule, params), tokens, Arg((b, s), I32, below=300)),
    )


def long_texts() -> Zoo:
    """Attention of long texts: block by block, in sparse blocks, and within sorted buckets."""
    d, s, size, words, block = 768, 8192, 64, 32000, 1024
    rule = optax.adafactor(1e-3)

    def blockwise(q: Any, k: Any, v: Any) -> Any:
        def parts(a: Any) -> Any:
            return jnp.moveaxis(a.reshape(1, -1, block, d // size, size), 1, 0)

        count = s // block

        def one(_: Any, given: Any) -> Any:
            n, q = given

            @jax.checkpoint
            def meet(known: Any, given: Any) -> Any:
                top, total, y = known
                m, k, v = given
                scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(F32) * size**-0.5
                rows = n * block + jnp.arange(block)[:, None]
                scores = jnp.where(rows >= m * block + jnp.arange(block), scores, -1e30)
                new = jnp.maximum(top, scores.max(-1))
                shares = jnp.exp(scores - new[..., None])
                fade = jnp.exp(top - new)
                y = y * fade[..., None] + jnp.einsum("bhqk,bkhd->bhqd", shares.astype(BF16), v)
                return (new, total * fade + shares.sum(-1), y), None

            shape = (1, d // size, block)
            start = (jnp.full(shape, -1e30), jnp.zeros(shape), jnp.zeros((*shape, size)))
            (_, total, y), _ = lax.scan(meet, start, (jnp.arange(count), parts(k), parts(v)))
            return None, (y / total[..., None]).astype(BF16)

        y = lax.scan(one, None, (jnp.arange(count), parts(q)))[1]
        return y.transpose(1, 0, 3, 2, 4).reshape(1, s, d)

    def update(state: Any, tokens: Any) -> Any:
        def loss(p: Any) -> Any:
            x = p["words"].astype(BF16)[tokens[:, :-1]]

            def layer(x: Any, q: Any) -> Any:
                q = half(q)
                y = layer_norm(x, 1 + q["one"]) @ q["qkv"]
                a, k, v = (heads(part, size) for part in jnp.split(y, 3, -1))
                a, k = (rope(part, jnp.arange(s)[None]) for part in (a, k))
                x = x + blockwise(a, k, v) @ q["out"]
                return x + jax.nn.gelu(layer_norm(x, 1 + q["two"]) @ q["up"]) @ q["down"], None

            x, _ = lax.scan(layer, x, p["layers"])
            x = x.reshape(8, -1, d)
            goals = tokens[:, 1:].reshape(8, -1)

            @jax.checkpoint
            def part(total: Any, given: Any) -> Any:
                y, goal = given
                return total + cross_entropy(y @ p["words"].astype(BF16).T, goal).sum(), None

            return lax.scan(part, jnp.zeros(()), (x, goals))[0] / s

        return learned(rule, loss, state)

    params = {"words": Arg((words, d), scale=0.02), "layers": times(3, encoder_weights(d, 3072))}
    yield "blockwise", carried(update, started(rule, params), Arg((1, s + 1), I32, below=words))

    b, s2, near = 3, 3072, 64
    n = s2 // near
    drawn = np.random.default_rng(3).integers(0, n, (n, 3))

    def sparse(x: Any, p: Any, real: Any) -> Any:
        q, k, v = (
            heads(y, size).reshape(b, n, near, -1, size).transpose(0, 3, 1, 2, 4)
            for y in jnp.split(x @ p["qkv"], 3, -1)
        )

        def gathered(a: Any) -> Any:
            sides = [jnp.roll(a, 1, 2), a, jnp.roll(a, -1, 2)]
            ends = [jnp.broadcast_to(a[:, :, i : i + 1], a.shape) for i in (0, n - 1)]
            far = a[:, :, drawn].reshape(*a.shape[:2], n, 3 * near, a.shape[-1])
            return jnp.concatenate([*sides, *ends, far], 3)

        mask = gathered(real.reshape(b, 1, n, near, 1))[..., 0]
        scores = jnp.einsum("bhnqd,bhnkd->bhnqk", q, gathered(k)) * size**-0.5
        scores = scores + jnp.where(mask, 0, -1e9)[:, :, :, None]
        y = jnp.einsum("bhnqk,bhnkd->bhnqd", jax.nn.softmax(scores, -1), gathered(v))
        ends = jnp.array([0, n - 1])
        first = q[:, :, ends]
        scores = jnp.einsum("bhmqd,bhnkd->bhmqnk", first, k)
        shares = jax.nn.softmax(scores.reshape(*first.shape[:4], -1) * size**-0.5, -1)
        all_v = v.reshape(b, -1, s2, size)
        y = y.at[:, :, ends].set(jnp.einsum("bhmqk,bhkd->bhmqd", shares, all_v))
        return y.transpose(0, 2, 3, 1, 4).reshape(b, s2, d) @ p["out"]

    adam = optax.adam(3e-5)

    def answer(state: Any, tokens: Any, length: Any, span: Any) -> Any:
        real = jnp.arange(s2) < (length + s2 // 2)[:, None]

        def loss(p: Any) -> Any:
            x = p["words"][tokens] + p["places"]
            for q in p["layers"]:
                x = layer_norm(x + sparse(x, q, real), 1 + q["one"])
                x = layer_norm(x + jax.nn.gelu(x @ q["up"]) @ q["down"], 1 + q["two"])
            logits = jnp.where(real[:, :, None], x @ p["ends"], -1e9)
            return cross_entropy(logits.transpose(0, 2, 1), span).mean()

        return learned(adam, loss, state)

    params = {"words": Arg((50358, d), scale=0.02), "places": Arg((s2, d), scale=0.02)}
    params |= {"layers": [encoder_weights(d, 3072) for _ in range(3)], "ends": master(d, 2)}
    given = (Arg((b, s2), I32, below=50358), Arg((b,), I32, below=s2 // 2))
    state = started(adam, params)
    yield "bigbird_qa", carried(answer, state, *given, Arg((b, 2), I32, below=s2 // 2))

    e, s3, rounds, bucket = 512, 4096, 2, 64

    def hashed(qk: Any, v: Any, turn: Any) -> Any:
        y = jnp.einsum("sd,drn->rsn", qk, turn)
        codes = jnp.concatenate([y, -y], -1).argmax(-1)

        def one(code: Any) -> Any:
            order = jnp.argsort(code * s3 + jnp.arange(s3))
            back = jnp.argsort(order)
            q = qk[order].reshape(-1, bucket, size)
            k = q * lax.rsqrt(jnp.square(q).mean(-1, keepdims=True) + 1e-6)
            place = order.reshape(-1, bucket)

            def wider(a: Any) -> Any:
                return jnp.concatenate([jnp.roll(a, 1, 0), a], 1)

            scores = jnp.einsum("nqd,nkd->nqk", q, wider(k)) * size**-0.5
            other = wider(place)[:, None]
            scores = jnp.where(place[:, :, None] >= other, scores, -1e9)
            scores = jnp.where(place[:, :, None] == other, -1e5, scores)
            total = jax.nn.logsumexp(scores, -1, keepdims=True)
            values = wider(v[order].reshape(-1, bucket, size))
            z = jnp.einsum("nqk,nkd->nqd", jnp.exp(scores - total), values)
            return z.reshape(s3, size)[back], total.reshape(s3)[back]

        z, total = jax.vmap(one)(codes)
        return (z * jax.nn.softmax(total, 0)[..., None]).sum(0)

    def reformer(p: Any, tokens: Any, turn: Any) -> Any:
        x1 = x2 = p["words"][tokens]
        every = jax.vmap(jax.vmap(hashed, (1, 1, None), 1), (0, 0, None))
        for q in p["layers"]:
            y = layer_norm(x2, 1 + q["one"])
            y = every(heads(y @ q["qk"], size), heads(y @ q["v"], size), turn)
            x1 = x1 + y.reshape(x1.shape) @ q["out"]
            x2 = x2 + jax.nn.relu(layer_norm(x1, 1 + q["two"]) @ q["up"]) @ q["down"]
        logits = jnp.concatenate([x1, x2], -1) @ p["head"]
        return cross_entropy(logits[:, :-1], tokens[:, 1:]).mean(-1)

    layer = {"qk": master(e, e), "v": master(e, e), "out": master(e, e), "one": ones(e)}
    layer |= {"up": master(e, 2048), "down": master(2048, e), "two": ones(e)}
    p = {"words": Arg((320, e)), "layers": [layer] * 3, "head": master(2 * e, 320)}
    turn = Arg((size, rounds, s3 // bucket // 2))
    yield "reformer", program(reformer, p, Arg((4, s3), I32, below=320), turn)


class MixerBlock(nn.Module):
    """Patches are mixed, then channels."""

    patches_wide: int
    wide: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        def mlp(y: Any, wide: int) -> Any:
            size = y.shape[-1]
            y = nn.gelu(nn.Dense(wide, dtype=BF16)(y))
            return nn.Dense(size, dtype=BF16)(y)

        y = nn.LayerNorm(dtype=BF16)(x).swapaxes(1, 2)
        x = x + mlp(y, self.patches_wide).swapaxes(1, 2)
        return x + mlp(nn.LayerNorm(dtype=BF16)(x), self.wide)


class Mixer(nn.Module):
    """Mixer-S/16 with fewer layers."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.Conv(512, (16, 16), (16, 16), dtype=BF16)(x)
        x = x.reshape(x.shape[0], -1, 512)
        for _ in range(6):
            x = MixerBlock(256, 2048)(x)
        x = nn.LayerNorm(dtype=BF16)(x).mean(1)
        return nn.Dense(1000)(x.astype(F32))


def mixers() -> Zoo:
    """An MLP-Mixer learns 160 pictures by a rule without a schedule."""
    model, b = Mixer(), 160
    rule = contrib.schedule_free_adamw(2e-3, warmup_steps=200, weight_decay=0.05)

    def update(state: Any, shown: Any, labels: Any, key: Any) -> Any:
        share = jax.random.beta(key, 0.5, 0.5)
        x = shown.astype(F32) / 127.5 - 1
        x = share * x + (1 - share) * x[::-1]
        goals = jax.nn.one_hot(labels, 1000)
        goals = share * goals + (1 - share) * goals[::-1]

        def loss(params: Any) -> Any:
            logits = model.apply({"params": params}, x)
            return optax.sigmoid_binary_cross_entropy(logits, goals).sum(-1).mean()

        return learned(rule, loss, state)

    params = linen_weights(model, Arg((b, 224, 224, 3)))["params"]
    shown = Arg((b, 224, 224, 3), U8, below=256)
    labels = Arg((b,), I32, below=1000)
    yield "schedule_free", carried(update, started(rule, params), shown, labels, _KEY)


def set_readers() -> Zoo:
    """Perceiver IO reads all pixels of six pictures; TabPFN reads a table and answers its rest."""
    d, inner = 1024, 261

    def perceiver(p: Any, shown: Any) -> Any:
        b = shown.shape[0]
        lines = jnp.linspace(-1, 1, 224)
        waves = jnp.linspace(1, 112, 64) * jnp.pi
        angle = jnp.stack(jnp.meshgrid(lines, lines, indexing="ij"), -1)[..., None] * waves
        place = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1).reshape(-1, 256)
        spots = jnp.stack(jnp.meshgrid(lines, lines), -1).reshape(-1, 2)
        place = jnp.concatenate([place, spots], -1)
        x = (shown.astype(F32) / 127.5 - 1).reshape(b, -1, 3)
        x = jnp.concatenate([x, jnp.broadcast_to(place, (b, *place.shape))], -1).astype(BF16)
        x = layer_norm(x)
        z = jnp.broadcast_to(p["latents"], (b, *p["latents"].shape))
        k, v = x @ p["k"], x @ p["v"]
        y = attention(heads(layer_norm(z) @ p["q"], inner), heads(k, inner), heads(v, inner))
        z = z + y @ p["o"]
        z = lax.scan(lambda z, q: (encoded(z, q, 128), None), z, p["layers"])[0]
        query = jnp.broadcast_to(p["query"], (b, 1, d))
        k, v = z @ p["last_k"], z @ p["last_v"]
        y = attention(*(heads(a, d) for a in (query, k, v)))
        return jax.nn.softmax((y[:, 0] @ p["head"]).astype(F32))

    p = {
        "latents": Arg((512, d), BF16, scale=0.02),
        "k": weight(inner, inner),
        "o": weight(inner, d),
    }
    p |= {"v": weight(inner, inner), "q": weight(d, inner), "query": Arg((1, d), BF16)}
    p |= {"last_k": weight(d, d), "last_v": weight(d, d), "head": weight(d, 1000)}
    p |= {"layers": times(8, encoder_weights(d, d, weight))}
    yield "perceiver_io", program(perceiver, p, Arg((6, 224, 224, 3), U8, below=256))

    e, rows, known, columns = 192, 1280, 1024, 24

    def table(p: Any, x: Any, y: Any) -> Any:
        mean, spread = x[:known].mean(0), x[:known].std(0) + 1e-6
        x = jnp.clip((x - mean) / spread, -10, 10)
        orders = jnp.stack([jnp.roll(x, n, -1) for n in range(4)])
        z = orders[..., None] * p["enter"] + p["column"]
        label = jnp.where((jnp.arange(rows) < known)[:, None], p["label"][y], p["unknown"])
        label = jnp.broadcast_to(label[None, :, None], (4, rows, 1, e))
        z = jnp.concatenate([z, label], 2).astype(F16)

        def layer(z: Any, q: Any) -> Any:
            a, k, v = (
                heads(t, 32) for t in jnp.split(z.reshape(-1, columns + 1, e) @ q["over"], 3, -1)
            )
            z = layer_norm(z + (attention(a, k, v) @ q["over_out"]).reshape(z.shape))
            w = z.swapaxes(1, 2).reshape(-1, rows, e)
            a = heads(w @ q["q"], 32)
            k, v = (heads(t, 32) for t in jnp.split(w[:, :known] @ q["kv"], 2, -1))
            u = (attention(a, k, v) @ q["out"]).reshape(4, columns + 1, rows, e)
            z = layer_norm(z + u.swapaxes(1, 2))
            return layer_norm(z + jax.nn.gelu(z @ q["up"]) @ q["down"]), None

        z = lax.scan(layer, z, p["layers"])[0][:, known:, -1]
        logits = (jax.nn.gelu(z @ p["mid"]) @ p["head"]).astype(F32)
        return jax.nn.softmax(jax.nn.log_softmax(logits / 0.9).mean(0))

    def make(*shape: int) -> Arg:
        return weight(*shape, dtype=F16)

    q = {"over": make(e, 3 * e), "over_out": make(e, e), "q": make(e, e), "kv": make(e, 2 * e)}
    q |= {"out": make(e, e), "up": make(e, 768), "down": make(768, e)}
    p = {"enter": Arg((e,)), "column": Arg((columns, e)), "label": Arg((10, e))}
    p |= {"unknown": Arg((e,)), "layers": times(6, q), "mid": make(e, 768), "head": make(768, 10)}
    yield "tabpfn", program(table, p, Arg((rows, columns)), Arg((rows,), I32, below=10))


def overlap(a: Any, b: Any) -> Any:
    """Shares of boxes' unions that both have."""
    low = jnp.maximum(a[:, None, :2], b[None, :, :2])
    high = jnp.minimum(a[:, None, 2:], b[None, :, 2:])
    both = jnp.maximum(high - low, 0).prod(-1)
    sizes = [jnp.maximum(c[:, 2:] - c[:, :2], 0).prod(-1) for c in (a, b)]
    return both / (sizes[0][:, None] + sizes[1] - both + 1e-9)


def detectors() -> Zoo:
    """OWL-ViT finds what words name, with greedy suppression; the heads of Mask R-CNN."""
    d, side = 768, 768

    def owl(p: Any, shown: Any, queries: Any) -> Any:
        b = shown.shape[0]
        x = conv(shown.astype(BF16) / 128 - 1, p["stem"], 32, "VALID").reshape(b, -1, d)
        x = jnp.concatenate([jnp.broadcast_to(p["cls"], (b, 1, d)), x], 1) + p["places"]
        x = lax.scan(lambda x, q: (encoded(x, q, 64), None), layer_norm(x), p["layers"])[0]
        x = layer_norm(x[:, 1:] * x[:, :1])
        found = (x @ p["class"]).astype(F32)
        found = found / (jnp.linalg.norm(found, axis=-1, keepdims=True) + 1e-6)
        q = queries / jnp.linalg.norm(queries, axis=-1, keepdims=True)
        logits = jnp.einsum("bnd,qd->bnq", found, q)
        shift, scale = jnp.split((x @ p["scale"]).astype(F32), 2, -1)
        chance = jax.nn.sigmoid((logits + shift) * (jax.nn.elu(scale) + 1))
        box = jax.nn.gelu(jax.nn.gelu(x @ p["box"][0]) @ p["box"][1]) @ p["box"][2]
        line = jnp.log(jnp.linspace(0.02, 0.98, 24))
        bias = jnp.stack(jnp.meshgrid(line, line), -1).reshape(-1, 2)
        bias = jnp.concatenate([bias, jnp.full((576, 2), -3.0)], -1)
        center, size = jnp.split(jax.nn.sigmoid(box.astype(F32) + bias), 2, -1)
        corners = jnp.concatenate([center - size / 2, center + size / 2], -1) * side

        def kept(boxes: Any, chance: Any) -> Any:
            score, kind = chance.max(-1), chance.argmax(-1)
            score, order = lax.top_k(score, 256)
            boxes, kind = boxes[order], kind[order]
            near = overlap(boxes, boxes) > 0.5

            def one(i: Any, alive: Any) -> Any:
                return alive & ~(near[i] & (jnp.arange(256) > i) & alive[i])

            alive = lax.fori_loop(0, 256, one, jnp.ones(256, bool))
            return boxes, jnp.where(alive, score, 0), kind

        return jax.vmap(kept)(corners, chance)

    p = {"stem": filters(32, 32, 3, d, dtype=BF16), "cls": Arg((1, 1, d), BF16)}
    p |= {"places": Arg((577, d), BF16), "layers": times(12, encoder_weights(d, 3072, weight))}
    p |= {"class": weight(d, 512), "scale": weight(d, 2)}
    p |= {"box": [weight(d, d), weight(d, d), weight(d, 4)]}
    yield "owl_vit", program(owl, p, Arg((8, side, side, 3), U8, below=256), Arg((80, 512)))

    b, n, wide = 2, 256, 256

    def aligned(maps: Any, boxes: Any, size: int) -> Any:
        """RoIAlign with two by two samples in a bin."""

        def one(image: Any, box: Any) -> Any:
            at = (jnp.arange(2 * size) + 0.5) / (2 * size)
            y = (box[0] + at * (box[2] - box[0]))[:, None]
            x = (box[1] + at * (box[3] - box[1]))[None]
            low_y, low_x = jnp.floor(y).astype(I32), jnp.floor(x).astype(I32)
            total = 0.0
            for i in (0, 1):
                for j in (0, 1):
                    share = (1 - abs(y - low_y - i)) * (1 - abs(x - low_x - j))
                    row = jnp.clip(low_y + i, 0, image.shape[0] - 1)
                    total = total + share[..., None] * image[row, jnp.clip(low_x + j, 0, 199)]
            return total.reshape(size, 2, size, 2, wide).mean((1, 3))

        return jax.vmap(jax.vmap(one, (None, 0)))(maps, boxes)

    def rcnn(p: Any, maps: Any, corners: Any, sizes: Any) -> Any:
        start = 90 + 40 * jnp.clip(corners, -2, 2)
        boxes = jnp.concatenate([start, start + 4 + 12 * jnp.abs(sizes)], -1)
        x = aligned(maps, boxes, 7).reshape(b * n, -1)
        x = jax.nn.relu(jax.nn.relu(x @ p["one"]) @ p["two"])
        chance = jax.nn.softmax(x @ p["kinds"]).reshape(b, n, 81)
        moves = (x @ p["moves"]).reshape(b, n, 81, 4)
        kind = chance[..., 1:].argmax(-1) + 1
        score = chance[..., 1:].max(-1)
        move = jnp.take_along_axis(moves, kind[..., None, None], 2)[:, :, 0]
        extent = boxes[..., 2:] - boxes[..., :2]
        center = boxes[..., :2] + extent / 2 + move[..., :2] * extent / 10
        extent = extent * jnp.exp(jnp.minimum(move[..., 2:] / 5, 4.13))
        boxes = jnp.concatenate([center - extent / 2, center + extent / 2], -1)
        score, order = lax.top_k(score, 64)
        boxes = jnp.take_along_axis(boxes, order[..., None], 1)
        kind = jnp.take_along_axis(kind, order, 1)
        y = aligned(maps, boxes, 14).reshape(-1, 14, 14, wide)
        for w in p["masks"]:
            y = jax.nn.relu(conv(y, w))
        y = jax.nn.relu(lax.conv_transpose(y, p["wider"], (2, 2), "SAME"))
        y = (y @ p["mask"]).reshape(b, 64, 28, 28, 81)
        y = jnp.take_along_axis(y, kind[..., None, None, None], -1)[..., 0]
        return boxes, score, kind, jax.nn.sigmoid(y) > 0.5

    p = {"one": master(49 * wide, 1024), "two": master(1024, 1024), "kinds": master(1024, 81)}
    p |= {"moves": master(1024, 324), "masks": [filters(3, 3, wide, wide)] * 4}
    p |= {"wider": filters(2, 2, wide, wide), "mask": master(wide, 81)}
    given = (Arg((b, 200, 200, wide)), Arg((b, n, 2)), Arg((b, n, 2)))
    yield "mask_rcnn_heads", program(rcnn, p, *given)


def free_of_norms() -> Zoo:
    """An NFNet learns 64 pictures: standardised windows, gradients clipped by units."""
    widths, b = (256, 512), 64
    rule = optax.chain(
        optax.adaptive_grad_clip(0.01), optax.add_decayed_weights(2e-5), optax.sgd(0.1, 0.9, True)
    )

    def standard(x: Any, q: Any, stride: int = 1, groups: int = 1) -> Any:
        w, gain, shift = q
        axes = (0, 1, 2)
        mean, spread = w.mean(axes), w.var(axes)
        size = w.shape[0] * w.shape[1] * w.shape[2]
        w = (w - mean) * (gain + 1) * lax.rsqrt(jnp.maximum(spread * size, 1e-4))
        return conv(x, w.astype(BF16), stride, groups=groups) + shift.astype(BF16)

    def bent(x: Any) -> Any:
        return jax.nn.gelu(x) * 1.7015

    def update(state: Any, shown: Any, labels: Any) -> Any:
        def loss(p: Any) -> Any:
            x = (shown.astype(BF16) - 118) / 58
            x = standard(bent(standard(x, p["stem"][0], 2)), p["stem"][1], 2)
            for n, stage in enumerate(p["stages"]):
                spread = 1.0
                for m, q in enumerate(stage):
                    y = bent(x) / spread**0.5
                    stride = 2 if n and not m else 1
                    old = x
                    if not m:
                        old = nn.avg_pool(y, (2, 2), (2, 2)) if stride > 1 else y
                        old = standard(old, q["side"])
                    y = bent(standard(y, q["in"]))
                    y = bent(standard(y, q["one"], stride, y.shape[-1] // 64))
                    y = bent(standard(y, q["two"], 1, y.shape[-1] // 64))
                    y = standard(y, q["out"])
                    gate = jax.nn.relu(y.mean((1, 2)) @ q["squeeze"].astype(BF16))
                    y = 2 * y * jax.nn.sigmoid(gate @ q["excite"].astype(BF16))[:, None, None]
                    x = old + 0.2 * q["gain"].astype(BF16) * y
                    spread = spread + 0.04 if m else 1.04
            logits = bent(x).mean((1, 2)).astype(F32) @ p["head"]
            goals = optax.smooth_labels(jax.nn.one_hot(labels, 1000), 0.1)
            return optax.softmax_cross_entropy(logits, goals).mean()

        return learned(rule, loss, state)

    def windows(k: int, a: int, c: int) -> tuple[Arg, ...]:
        return filters(k, k, a, c), ones(c), ones(c)

    stages, before = [], 128
    for wide in widths:
        stage = []
        for n in range(2):
            mid = wide // 2
            q = {"in": windows(1, before, mid), "one": windows(3, 64, mid), "gain": Arg(())}
            q |= {"two": windows(3, 64, mid), "out": windows(1, mid, wide)}
            q |= {"squeeze": master(wide, wide // 4), "excite": master(wide // 4, wide)}
            if not n:
                q["side"] = windows(1, before, wide)
            stage.append(q)
            before = wide
        stages.append(stage)
    p = {"stem": [windows(3, 3, 32), windows(3, 32, 128)], "stages": stages}
    p |= {"head": master(before, 1000)}
    given = (Arg((b, 192, 192, 3), U8, below=256), Arg((b,), I32, below=1000))
    yield "nfnet_clipped", carried(update, started(rule, p), *given)


def voices() -> Zoo:
    """HiFi-GAN's judges by periods learn to tell 16 real sounds of 8,192 samples from false."""
    b, length, widths = 16, 8192, (1, 32, 128, 512, 1024)
    rule = optax.adamw(optax.exponential_decay(2e-4, 1000, 0.999), 0.8, 0.99, weight_decay=0.01)

    def judged(p: Any, sound: Any, period: int) -> Any:
        x = jnp.pad(sound, ((0, 0), (0, -length % period)), mode="reflect")
        x = x.reshape(x.shape[0], -1, period, 1)
        for v, g, shift in p[:-1]:
            w = g * v * lax.rsqrt(jnp.square(v).sum((0, 1, 2)) + 1e-12)
            pads = [(v.shape[0] // 2,) * 2, (0, 0)]
            x = lax.conv_general_dilated(
                *(x, w, (3, 1), pads), dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = jax.nn.leaky_relu(x + shift, 0.1)
        return conv(x, p[-1])[..., 0]

    periods = (2, 5, 11)

    def update(state: Any, real: Any, false: Any) -> Any:
        def loss(p: Any) -> Any:
            total = 0.0
            for q, period in zip(p, periods, strict=True):
                good, bad = jnp.split(judged(q, jnp.concatenate([real, false]), period), 2)
                total += jnp.square(1 - good).mean() + jnp.square(bad).mean()
            return total

        return learned(rule, loss, state)

    one = [(filters(5, 1, a, c), Arg((c,)), ones(c)) for a, c in pairwise(widths)]
    p = [[*one, filters(3, 1, 1024, 1)] for _ in periods]
    sound = Arg((b, length), scale=0.2)
    yield "period_judges", carried(update, started(rule, p), sound, sound)


def agents() -> Zoo:
    """PPO with a GRU that forgets at ends, and slopes through the physics of 2,048 pendulums."""
    steps, games, size, moves = 64, 256, 128, 5
    rule = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(2.5e-4, eps=1e-5))

    def ppo(state: Any, seen: Any, done: Any, taken: Any, old: Any, gains: Any, goals: Any) -> Any:
        gains = (gains - gains.mean()) / (gains.std() + 1e-8)

        def loss(p: Any) -> Any:
            x = jax.nn.relu(seen @ p["enter"])

            def step(h: Any, given: Any) -> Any:
                x, end = given
                h = jnp.where((end == 0)[:, None], 0, h)
                a, c = x @ p["x"], h @ p["h"]
                r = jax.nn.sigmoid(a[:, :size] + c[:, :size])
                z = jax.nn.sigmoid(a[:, size : 2 * size] + c[:, size : 2 * size])
                h = (1 - z) * jnp.tanh(a[:, 2 * size :] + r * c[:, 2 * size :]) + z * h
                return h, h

            _, h = lax.scan(step, jnp.zeros((games, size)), (x, done))
            logits = jax.nn.relu(h @ p["actor"]) @ p["policy"]
            value = (jax.nn.relu(h @ p["critic"]) @ p["value"])[..., 0]
            logs = jax.nn.log_softmax(logits)
            chosen = jnp.take_along_axis(logs, taken[..., None], -1)[..., 0]
            before = jnp.take_along_axis(jax.nn.log_softmax(old), taken[..., None], -1)[..., 0]
            ratio = jnp.exp(chosen - before)
            near = jnp.clip(ratio, 0.8, 1.2)
            spread = -(jnp.exp(logs) * logs).sum(-1).mean()
            actor = -jnp.minimum(ratio * gains, near * gains).mean()
            return actor + 0.5 * jnp.square(value - goals).mean() - 0.01 * spread

        return lax.scan(lambda s, _: learned(rule, loss, s), state, None, length=4)

    p = {"enter": master(64, size), "x": master(size, 3 * size), "h": master(size, 3 * size)}
    p |= {"actor": master(size, size), "policy": master(size, moves)}
    p |= {"critic": master(size, size), "value": master(size, 1)}
    shape = (steps, games)
    given = (Arg((*shape, 64)), Arg(shape, I32, below=40), Arg(shape, I32, below=moves))
    given = (*given, Arg((*shape, moves)), Arg(shape), Arg(shape))
    yield "ppo_gru", carried(ppo, started(rule, p), *given)

    places, ahead, wide = 2048, 32, 128

    def physics(q: Any, push: Any) -> Any:
        a1, a2, w1, w2 = jnp.moveaxis(q, -1, 0)

        def sub(_: Any, s: Any) -> Any:
            a1, a2, w1, w2 = s
            c, sn = jnp.cos(a1 - a2), jnp.sin(a1 - a2)
            f1 = push - sn * w2 * w2 - 19.62 * jnp.sin(a1) - 0.05 * w1
            f2 = sn * w1 * w1 - 9.81 * jnp.sin(a2) - 0.05 * w2
            det = 2 - c * c
            w1, w2 = w1 + 0.01 * (f1 - c * f2) / det, w2 + 0.01 * (2 * f2 - c * f1) / det
            return a1 + 0.01 * w1, a2 + 0.01 * w2, w1, w2

        return jnp.stack(lax.fori_loop(0, 4, sub, (a1, a2, w1, w2)), -1)

    def apg(state: Any, start: Any, key: Any) -> Any:
        shakes = 0.05 * jax.random.normal(key, (ahead, places))

        def loss(p: Any) -> Any:
            def step(q: Any, shake: Any) -> Any:
                x = jnp.concatenate([jnp.sin(q[:, :2]), jnp.cos(q[:, :2]), q[:, 2:]], -1)
                for w in p[:-1]:
                    x = jax.nn.silu(x @ w)
                push = 5 * jnp.tanh((x @ p[-1])[:, 0]) + shake
                q = physics(q, push)
                cost = jnp.cos(q[:, :2]).sum(-1) + 0.01 * jnp.square(q[:, 2:]).sum(-1)
                return q, cost.mean() + 1e-3 * jnp.square(push).mean()

            return lax.scan(step, start, shakes)[1].mean()

        return learned(rule, loss, state)

    p = [master(6, wide), master(wide, wide), master(wide, wide), master(wide, 1)]
    yield "through_physics", carried(apg, started(rule, p), Arg((places, 4)), _KEY)


def curvatures() -> Zoo:
    """K-FAC on an autoencoder of 1,000 digits: factors, inverses, a step with momentum."""
    sizes, b, damp = (784, 1000, 500, 250, 30, 250, 500, 1000, 784), 1000, 0.15

    def update(state: Any, shown: Any, key: Any) -> Any:
        params, inner, outer, speed = state
        x = shown.astype(F32) / 255
        probes = [jnp.zeros((b, n)) for n in sizes[1:]]

        def run(params: Any, probes: Any) -> Any:
            y, inputs = x, []
            for n, (w, probe) in enumerate(zip(params, probes, strict=True)):
                y = jnp.concatenate([y, jnp.ones((b, 1))], -1)
                inputs.append(y)
                y = y @ w + probe
                y = jnp.tanh(y) if n not in (3, 7) else y
            return y, inputs

        def loss(params: Any, probes: Any, goal: Any) -> Any:
            y, inputs = run(params, probes)
            return optax.sigmoid_binary_cross_entropy(y, goal).sum(-1).mean(), (y, inputs)

        (value, (y, inputs)), grads = jax.value_and_grad(loss, has_aux=True)(params, probes, x)
        drawn = jax.random.bernoulli(key, jax.nn.sigmoid(y)).astype(F32)
        back = jax.grad(loss, 1, has_aux=True)(params, probes, drawn)[0]
        new_inner = [0.95 * a + 0.05 * h.T @ h / b for a, h in zip(inner, inputs, strict=True)]
        new_outer = [0.95 * a + 0.05 * b * g.T @ g for a, g in zip(outer, back, strict=True)]
        ways = []
        for w, grad, a, g in zip(params, grads, new_inner, new_outer, strict=True):
            balance = jnp.sqrt(jnp.trace(a) * g.shape[0] / (jnp.trace(g) * a.shape[0]))
            left = jnp.linalg.cholesky(a + balance * damp**0.5 * jnp.eye(a.shape[0]))
            right = jnp.linalg.cholesky(g + damp**0.5 / balance * jnp.eye(g.shape[0]))
            way = jax.scipy.linalg.cho_solve((left, True), grad + 1e-5 * w)
            ways.append(jax.scipy.linalg.cho_solve((right, True), way.T).T)
        length = sum((w * g).sum() for w, g in zip(ways, grads, strict=True))
        scale = jnp.minimum(1.0, jnp.sqrt(1e-3 / (jnp.abs(length) + 1e-9)))
        speed = [0.9 * v - 0.05 * scale * w for v, w in zip(speed, ways, strict=True)]
        params = [w + v for w, v in zip(params, speed, strict=True)]
        return (params, new_inner, new_outer, speed), value

    pairs = list(pairwise(sizes))
    params = [master(a + 1, c) for a, c in pairs]
    inner = [Arg((a + 1, a + 1), scale=1e-4, identity=1.0) for a, _ in pairs]
    outer = [Arg((c, c), scale=1e-4, identity=1.0) for _, c in pairs]
    speed = [Arg((a + 1, c), scale=1e-3) for a, c in pairs]
    shown = Arg((b, 784), U8, below=256)
    yield "kfac_autoencoder", carried(update, (params, inner, outer, speed), shown, _KEY)


def recurrences() -> Zoo:
    """RWKV 4 learns 16 texts of 256 tokens, whose weighted means pass from token to token."""
    d, layers, b, s, words = 768, 3, 16, 256, 50277
    rule = optax.adamw(6e-4, 0.9, 0.99)

    def wkv(k: Any, v: Any, decay: Any, bonus: Any) -> Any:
        def step(known: Any, given: Any) -> Any:
            top, bottom, peak = known
            k, v = given
            new = jnp.maximum(peak, bonus + k)
            a, c = jnp.exp(peak - new), jnp.exp(bonus + k - new)
            y = (a * top + c * v) / (a * bottom + c)
            new = jnp.maximum(peak + decay, k)
            a, c = jnp.exp(peak + decay - new), jnp.exp(k - new)
            return (a * top + c * v, a * bottom + c, new), y

        zero = jnp.zeros((b, d))
        given = (k.swapaxes(0, 1), v.swapaxes(0, 1))
        return lax.scan(step, (zero, zero, zero - 1e38), given)[1].swapaxes(0, 1)

    def update(state: Any, tokens: Any) -> Any:
        def loss(p: Any) -> Any:
            def layer(x: Any, q: Any) -> Any:
                q = {n: w.astype(BF16) if w.ndim > 1 else w for n, w in q.items()}

                def mixed(y: Any, n: str) -> Any:
                    old = jnp.pad(y, ((0, 0), (1, 0), (0, 0)))[:, :-1]
                    share = jax.nn.sigmoid(q[n]).astype(BF16)
                    return y * share + old * (1 - share)

                y = layer_norm(x, 1 + q["one"])
                k, v = (mixed(y, "mix_" + n) @ q[n] for n in ("k", "v"))
                r = jax.nn.sigmoid(mixed(y, "mix_r") @ q["r"])
                y = wkv(k.astype(F32), v.astype(F32), -jnp.exp(q["decay"]), q["bonus"])
                x = x + (r * y.astype(BF16)) @ q["out"]
                y = layer_norm(x, 1 + q["two"])
                gate = jax.nn.sigmoid(mixed(y, "mix_g") @ q["g"])
                y = jnp.square(jax.nn.relu(mixed(y, "mix_u") @ q["up"])) @ q["down"]
                return x + gate * y, None

            x = layer_norm(p["words"][tokens[:, :-1]]).astype(BF16)
            x, _ = lax.scan(layer, x, p["layers"])
            logits = layer_norm(x) @ p["head"].astype(BF16)
            return cross_entropy(logits, tokens[:, 1:]).mean()

        return learned(rule, loss, state)

    q = {n: master(d, d) for n in ("k", "v", "r", "out", "g")}
    q |= {n: ones(d) for n in ("one", "two", "decay", "bonus")}
    q |= {"mix_" + n: ones(d) for n in "kvrgu"} | {"up": master(d, 3072), "down": master(3072, d)}
    p = {"words": Arg((words, d), scale=0.02), "layers": times(layers, q), "head": master(d, words)}
    yield "rwkv4", carried(update, started(rule, p), Arg((b, s + 1), I32, below=words))


def clouds() -> Zoo:
    """DGCNN learns 16 clouds of 1,024 points, whose neighbours change from layer to layer."""
    b, n, k = 16, 1024, 20
    rule = optax.sgd(optax.cosine_decay_schedule(0.1, 10000), 0.9)

    def edges(x: Any, w: Any, scale: Any) -> Any:
        square = jnp.square(x).sum(-1)
        apart = square[:, :, None] + square[:, None] - 2 * x @ x.swapaxes(1, 2)
        near = lax.top_k(-lax.stop_gradient(apart), k)[1]
        other = jax.vmap(lambda a, i: a[i])(x, near)
        here = jnp.broadcast_to(x[:, :, None], other.shape)
        y = jnp.concatenate([other - here, here], -1) @ w
        mean, spread = y.mean((0, 1, 2)), y.var((0, 1, 2))
        y = (y - mean) * lax.rsqrt(spread + 1e-5) * (1 + scale)
        return jax.nn.leaky_relu(y, 0.2).max(2)

    def update(state: Any, points: Any, labels: Any, key: Any) -> Any:
        one, two = jax.random.split(key)
        scale = jax.random.uniform(one, (b, 1, 3), minval=0.66, maxval=1.5)
        shown = points * scale + jax.random.uniform(two, (b, 1, 3), minval=-0.2, maxval=0.2)

        def loss(p: Any) -> Any:
            x, kept = shown, []
            for w, scale in p["edges"]:
                x = edges(x, w, scale)
                kept.append(x)
            x = jax.nn.leaky_relu(jnp.concatenate(kept, -1) @ p["mid"], 0.2)
            x = jnp.concatenate([x.max(1), x.mean(1)], -1)
            logits = jax.nn.leaky_relu(x @ p["last"], 0.2) @ p["head"]
            goals = optax.smooth_labels(jax.nn.one_hot(labels, 40), 0.2)
            return optax.softmax_cross_entropy(logits, goals).mean()

        return learned(rule, loss, state)

    widths = (3, 64, 64, 128, 256)
    p = {"edges": [(master(2 * a, c), ones(c)) for a, c in pairwise(widths)]}
    p |= {"mid": master(512, 1024), "last": master(2048, 512), "head": master(512, 40)}
    given = (Arg((b, n, 3), scale=0.4), Arg((b,), I32, below=40), _KEY)
    yield "dgcnn", carried(update, started(rule, p), *given)


def patched_runs() -> Zoo:
    """Which layer of GPT-2 knows: a clean state is put into each layer of 12 float32 runs."""
    d, layers, b, s, words = 768, 12, 3, 72, 50257

    def traced(p: Any, clean: Any, spoilt: Any, right: Any, wrong: Any) -> Any:
        mask = causal(s)

        def run(tokens: Any, where: Any, states: Any) -> Any:
            x = p["words"][tokens] + p["places"]

            def layer(x: Any, given: Any) -> Any:
                q, n, state = given
                x = encoded(x, q, 64, mask)
                x = x.at[:, -8:].set(jnp.where(n == where, state[:, -8:], x[:, -8:]))
                return x, x

            x, all_states = lax.scan(layer, x, (p["layers"], jnp.arange(layers), states))
            return layer_norm(x[:, -1]) @ p["words"].T, all_states

        none = jnp.zeros((layers, b, s, d))
        best, states = run(clean, -1, none)
        worst, _ = run(spoilt, -1, none)
        changed = jax.vmap(lambda n: run(spoilt, n, states)[0])(jnp.arange(layers))

        def margin(logits: Any) -> Any:
            chosen = [jnp.take_along_axis(logits, a, -1) for a in (right, wrong)]
            return (chosen[0] - chosen[1])[..., 0]

        low, high = margin(worst), margin(best)
        gains = [(margin(changed[n]) - low) / (high - low) for n in range(layers)]
        return jnp.stack(gains)

    p = {"words": Arg((words, d), scale=0.02), "places": Arg((s, d), scale=0.02)}
    p |= {"layers": times(layers, encoder_weights(d, 3072))}
    tokens, goal = Arg((b, s), I32, below=words), Arg((b, 1), I32, below=words)
    yield "gpt2_layers", program(traced, p, tokens, tokens, goal, goal)


def translators() -> Zoo:
    """Marian translates eight sentences: six words by six beams, whose caches are reordered."""
    d, layers, b, k, s, read, words = 512, 6, 8, 6, 64, 48, 58101

    def step(p: Any, read_keys: Any, real: Any, n: Any, state: Any) -> Any:
        scores, texts, keys, values, done = state
        last = lax.dynamic_index_in_dim(texts, n, 2, keepdims=False)
        x = p["words"][last.reshape(-1)] * d**0.5 + p["places"][n]
        new_k, new_v = [], []
        for i, q in enumerate(p["layers"]):
            one, two, three = jnp.split(x @ q["qkv"], 3, -1)
            ks = lax.dynamic_update_slice(keys[i], two.reshape(b, k, 1, d), (0, 0, n, 0))
            vs = lax.dynamic_update_slice(values[i], three.reshape(b, k, 1, d), (0, 0, n, 0))
            new_k.append(ks)
            new_v.append(vs)
            old = [heads(a.reshape(b * k, s, d), 64) for a in (ks, vs)]
            seen = (jnp.arange(s) <= n)[None, None, None]
            y = attention(heads(one[:, None], 64), *old, seen)[:, 0] @ q["out"]
            x = layer_norm(x + y, 1 + q["one"])
            ask = heads((x @ q["ask"]).reshape(b, k, d), 64)
            told = [heads(a, 64) for a in read_keys[i]]
            y = attention(ask, *told, real[:, None, None]).reshape(b * k, d) @ q["told"]
            x = layer_norm(x + y, 1 + q["mid"])
            x = layer_norm(x + jax.nn.silu(x @ q["up"]) @ q["down"], 1 + q["two"])
        logs = jax.nn.log_softmax(x @ p["words"].T + p["bias"]).reshape(b, k, words)
        ended = jnp.where(jnp.arange(words) == 0, 0.0, -1e9)
        logs = jnp.where(done[..., None], ended, logs) + scores[..., None]
        scores, place = lax.top_k(logs.reshape(b, -1), k)
        beam, word = place // words, place % words

        def turned(a: Any) -> Any:
            return jax.vmap(lambda x, i: x[i])(a, beam)

        texts = lax.dynamic_update_slice(turned(texts), word[..., None], (0, 0, n + 1))
        done = turned(done) | (word == 0)
        return scores, texts, [turned(a) for a in new_k], [turned(a) for a in new_v], done

    def translated(p: Any, source: Any, length: Any) -> Any:
        real = jnp.arange(read) < (length + 12)[:, None]
        x = p["words"][source] * d**0.5 + p["places"][:read]
        for q in p["encoder"]:
            x = encoded(x, q, 64, real[:, None, None])
        read_keys = [jnp.split(x @ q["keys"], 2, -1) for q in p["layers"]]
        scores = jnp.where(jnp.arange(k) > 0, -1e9, jnp.zeros((b, k)))
        caches = [jnp.zeros((b, k, s, d)) for _ in range(layers)]
        start = (scores, jnp.full((b, k, s), words - 1), caches, caches, jnp.zeros((b, k), bool))
        end = lax.fori_loop(0, 6, partial(step, p, read_keys, real), start)
        return end[1][:, 0], end[0] / 6.0

    q = {n: master(d, d) for n in ("out", "ask", "told")} | {"qkv": master(d, 3 * d)}
    q |= {"keys": master(d, 2 * d), "up": master(d, 2048), "down": master(2048, d)}
    q |= {n: ones(d) for n in ("one", "mid", "two")}
    p = {"words": Arg((words, d), scale=0.03), "places": Arg((s, d)), "layers": [q] * layers}
    p |= {"encoder": [encoder_weights(d, 2048)] * layers, "bias": Arg((words,))}
    source = Arg((b, read), I32, below=words)
    yield "marian_beams", program(translated, p, source, Arg((b,), I32, below=36))


# --------------------------------------------------------------------------------------- numerics


def gases() -> Zoo:
    """Euler's equations on 1,024 x 1,024 cells: WENO of order five, HLLC, two steps of RK3."""
    n, gamma = 1024, 1.4

    def weno(a: Any, b: Any, c: Any, d: Any, e: Any) -> Any:
        s0 = 13 / 12 * (a - 2 * b + c) ** 2 + (a - 4 * b + 3 * c) ** 2 / 4
        s1 = 13 / 12 * (b - 2 * c + d) ** 2 + (b - d) ** 2 / 4
        s2 = 13 / 12 * (c - 2 * d + e) ** 2 + (3 * c - 4 * d + e) ** 2 / 4
        w = [g / (1e-6 + s) ** 2 for g, s in zip((0.1, 0.6, 0.3), (s0, s1, s2), strict=True)]
        parts = (2 * a - 7 * b + 11 * c, -b + 5 * c + 2 * d, 2 * c + 5 * d - e)
        return sum(x * y for x, y in zip(w, parts, strict=True)) / (6 * sum(w))

    def flux(w: Any, axis: int) -> Any:
        along = 1 + axis
        shifted = [jnp.roll(w, -m, along) for m in range(-2, 4)]
        left, right = weno(*shifted[:5]), weno(*shifted[:0:-1])

        def known(w: Any) -> Any:
            rho, p = jnp.maximum(w[0], 1e-4), jnp.maximum(w[3], 1e-4)
            u = w[1 + axis]
            energy = p / (gamma - 1) + rho * (w[1] ** 2 + w[2] ** 2) / 2
            state = jnp.stack([rho, rho * w[1], rho * w[2], energy])
            moved = u * state
            moved = moved.at[1 + axis].add(p).at[3].add(u * p)
            return rho, p, u, jnp.sqrt(gamma * p / rho), state, moved

        r1, p1, u1, c1, q1, f1 = known(left)
        r2, p2, u2, c2, q2, f2 = known(right)
        low, high = jnp.minimum(u1 - c1, u2 - c2), jnp.maximum(u1 + c1, u2 + c2)
        mass1, mass2 = r1 * (low - u1), r2 * (high - u2)
        mid = (p2 - p1 + u1 * mass1 - u2 * mass2) / (mass1 - mass2)

        def star(rho: Any, p: Any, u: Any, q: Any, s: Any, f: Any, mass: Any) -> Any:
            scale = mass / (s - mid)
            new = scale * q / rho
            new = new.at[1 + axis].set(scale * mid)
            energy = scale * (q[3] / rho + (mid - u) * (mid + p / mass))
            return f + s * (new.at[3].set(energy) - q)

        one, two = star(r1, p1, u1, q1, low, f1, mass1), star(r2, p2, u2, q2, high, f2, mass2)
        return jnp.where(low > 0, f1, jnp.where(mid > 0, one, jnp.where(high > 0, two, f2)))

    def change(q: Any) -> Any:
        rho = jnp.maximum(q[0], 1e-4)
        u, v = q[1] / rho, q[2] / rho
        p = (gamma - 1) * (q[3] - rho * (u * u + v * v) / 2)
        w = jnp.stack([rho, u, v, p])
        parts = [flux(w, axis) for axis in (0, 1)]
        return -sum(f - jnp.roll(f, 1, 1 + a) for a, f in enumerate(parts)) * n

    def stepped(q: Any, _: Any) -> Any:
        dt = 0.1 / n
        a = q + dt * change(q)
        b = 0.75 * q + 0.25 * (a + dt * change(a))
        return q / 3 + 2 / 3 * (b + dt * change(b)), None

    def run(noise: Any) -> Any:
        q = noise + jnp.array([1.0, 0.0, 0.0, 2.5])[:, None, None]
        q, _ = lax.scan(stepped, q, None, length=2)
        return q - jnp.array([1.0, 0.0, 0.0, 2.5])[:, None, None], q[0].max()

    yield "weno_hllc", carried(run, Arg((4, n, n), scale=0.02))


def silicon() -> Zoo:
    """Stillinger and Weber's forces of pairs and triples on 27,000 atoms, five leaps."""
    side, gap = 30, 1.25
    n = side**3
    ways = [
        (i, j, k)
        for i in (-1, 0, 1)
        for j in (-1, 0, 1)
        for k in (-1, 0, 1)
        if 0 < abs(i) + abs(j) + abs(k) < 3
    ]

    def energy(place: Any, near: Any) -> Any:
        r = place[near] - place[:, None]
        box = side * gap
        r = r - box * jnp.round(r / box)
        d = jnp.sqrt(jnp.square(r).sum(-1) + 1e-9)
        inside = d < 1.8
        safe = jnp.where(inside, d - 1.8, -1.0)
        pair = 7.05 * (0.602 * d**-4 - 1) * jnp.exp(1 / safe)
        fade = jnp.where(inside, jnp.exp(1.2 / safe), 0.0)
        unit = r / d[..., None]
        cos = jnp.einsum("nid,njd->nij", unit, unit)
        three = 21 * fade[:, :, None] * fade[:, None] * jnp.square(cos + 1 / 3)
        three = three * (1 - jnp.eye(len(ways)))
        return jnp.where(inside, pair, 0).sum() / 2 + three.sum() / 2

    def run(state: Any) -> Any:
        index = jnp.arange(n)
        i, j, k = index // side**2, index // side % side, index % side
        near = [
            ((i + a) % side * side + (j + b) % side) * side + (k + c) % side for a, b, c in ways
        ]
        near = jnp.stack(near, -1)
        start = gap * jnp.stack([i, j, k], -1)

        def leap(state: Any, _: Any) -> Any:
            moved, speed, force = state
            speed = speed + 0.0025 * force
            moved = moved + 0.005 * speed
            value, slope = jax.value_and_grad(lambda m: energy(start + m, near))(moved)
            return (moved, speed - 0.0025 * slope, -slope), value

        return lax.scan(leap, state, None, length=5)

    state = (Arg((n, 3), scale=0.03), Arg((n, 3), scale=0.1), Arg((n, 3), scale=0.1))
    yield "stillinger_weber", carried(run, state)


def lenses() -> Zoo:
    """A thick sample from 48 patterns of light: a wave passes six slices, and slopes of Adam."""
    size, slices, wide, many = 256, 6, 768, 48
    rule = optax.adam(1e-2)

    def update(state: Any, spots: Any, seen: Any) -> Any:
        f = jnp.fft.fftfreq(size)
        far = jnp.exp(-1j * 6.0 * (f[:, None] ** 2 + f**2)).astype(C64)

        def loss(p: Any) -> Any:
            sample = jnp.exp(1j * p["phase"].astype(C64) - jnp.abs(p["loss"]))
            probe = lax.complex(p["probe"][..., 0], p["probe"][..., 1])

            def crop(spot: Any) -> Any:
                return lax.dynamic_slice(sample, (0, spot[0], spot[1]), (slices, size, size))

            parts = jax.vmap(crop)(spots)

            def pass_slice(wave: Any, part: Any) -> Any:
                return jnp.fft.ifft2(far * jnp.fft.fft2(wave * part)), None

            start = jnp.broadcast_to(probe, (many, size, size))
            wave = lax.scan(pass_slice, start, parts.swapaxes(0, 1))[0]
            found = jnp.abs(jnp.fft.fft2(wave, norm="ortho")) + 1e-6
            flat = sum(jnp.abs(jnp.diff(p["phase"], axis=a)).mean() for a in (1, 2))
            return jnp.square(found - jnp.sqrt(jnp.abs(seen))).mean() + 1e-3 * flat

        return learned(rule, loss, state)

    p = {
        "phase": Arg((slices, wide, wide), scale=0.1),
        "loss": Arg((slices, wide, wide), scale=0.01),
    }
    p |= {"probe": Arg((size, size, 2))}
    given = (Arg((many, 2), I32, below=wide - size), Arg((many, size, size)))
    yield "multislice", carried(update, started(rule, p), *given)


def chains_of_spins() -> Zoo:
    """A matrix product state of 32 spins: two sweeps of gates on odd and even bonds, with SVDs."""
    sites, chi = 32, 16

    def gated(a: Any, b: Any, gate: Any) -> Any:
        both = jnp.einsum("nlir,nrjs->nlijs", a, b)
        both = jnp.einsum("nijkm,nlkms->nlijs", gate, both)
        n = both.shape[0]
        u, s, v = jnp.linalg.svd(both.reshape(n, 2 * chi, 2 * chi), full_matrices=False)
        s = s[:, :chi]
        lost = 1 - jnp.square(s).sum(-1)
        s = (s / jnp.linalg.norm(s, axis=-1, keepdims=True)).astype(C64)
        a = (u[:, :, :chi] * jnp.sqrt(s)[:, None]).reshape(n, chi, 2, chi)
        b = (jnp.sqrt(s)[:, :, None] * v[:, :chi]).reshape(n, chi, 2, chi)
        return a, b, lost

    def run(state: Any, strength: Any) -> Any:
        h = strength.reshape(sites, 4, 4)
        values, ways = jnp.linalg.eigh(h + h.swapaxes(1, 2))
        turn = jnp.exp(-0.05j * values.astype(C64))
        ways = ways.astype(C64)
        gates = jnp.einsum("nij,nj,nkj->nik", ways, turn, ways.conj())
        gates = gates.reshape(sites, 2, 2, 2, 2)

        def sweep(state: Any, _: Any) -> Any:
            a, b, one = gated(state[0::2], state[1::2], gates[0::2])
            state = jnp.stack([a, b], 1).reshape(state.shape)
            state = jnp.roll(state, -1, 0)
            a, b, two = gated(state[0::2], state[1::2], gates[1::2])
            state = jnp.roll(jnp.stack([a, b], 1).reshape(state.shape), 1, 0)
            return state, one.max() + two.max()

        return lax.scan(sweep, state, None, length=2)

    state = Arg((sites, chi, 2, chi), C64, scale=0.2)
    yield "tebd", carried(run, state, Arg((sites, 16)))


def galaxies() -> Zoo:
    """Pictures of 1,536 sheared galaxies behind a telescope, and how they change with a shear."""
    n, big = 64, 128

    def drawn(shape: Any, shift: Any, shear: Any, blur: Any) -> Any:
        k = jnp.fft.fftfreq(big) * 2 * jnp.pi
        ky, kx = k[:, None], jnp.fft.rfftfreq(big)[None] * 2 * jnp.pi
        size, flux = 1.5 + jnp.abs(shape[0]), 100 * jnp.exp(0.3 * shape[1])
        e1, e2 = 0.2 * jnp.tanh(shape[2]) + shear[0], 0.2 * jnp.tanh(shape[3]) + shear[1]
        scale = lax.rsqrt(1 - e1 * e1 - e2 * e2)
        x = scale * ((1 + e1) * kx + e2 * ky)
        y = scale * (e2 * kx + (1 - e1) * ky)
        square = jnp.square(size) * (x * x + y * y)
        disc = (1 + square) ** -1.5
        bulge = (1 + 0.2 * square) ** -0.7
        share = jax.nn.sigmoid(shape[4])
        seen = jnp.exp(-0.5 * jnp.square(2 + 0.1 * blur) * (kx * kx + ky * ky)) ** 0.8
        turn = jnp.exp(-1j * (kx * shift[0] + ky * shift[1]))
        pixel = jnp.sinc(kx / 2 / jnp.pi) * jnp.sinc(ky / 2 / jnp.pi)
        wave = flux * (share * bulge + (1 - share) * disc) * seen * pixel * turn
        image = jnp.fft.fftshift(jnp.fft.irfft2(wave, (big, big)))
        return image[32 : 32 + n, 32 : 32 + n]

    def run(shapes: Any, shifts: Any, blur: Any, noise: Any) -> Any:
        def one(shape: Any, shift: Any, noise: Any) -> Any:
            def picture(shear: Any) -> Any:
                return drawn(shape, shift, shear, blur)

            way = jnp.array([0.01, 0.02])
            image, slope = jax.jvp(picture, (way,), (jnp.ones(2),))
            noisy = image + noise * jnp.sqrt(jnp.abs(image) + 0.1)
            line = jnp.arange(n) - n / 2
            near = jnp.exp(-(line[:, None] ** 2 + line**2) / 72)
            total = (near * noisy).sum()
            xx, yy = (near * noisy * line**2).sum(), (near * noisy * line[:, None] ** 2).sum()
            xy = (near * noisy * line * line[:, None]).sum()
            return jnp.stack([xx - yy, 2 * xy, xx + yy]) / total, (near * slope).sum()

        return jax.vmap(one)(shapes, shifts, noise)

    many = 1536
    given = (Arg((many, 5)), Arg((many, 2)), Arg(()), Arg((many, n, n)))
    yield "sheared", program(run, *given)


def spheres() -> Zoo:
    """Harmonics of six maps of the sky up to degree 383: Fourier, then Legendre's recursion."""
    band, many = 384, 6

    def run(maps: Any) -> Any:
        rings = 2 * band
        theta = (jnp.arange(rings, dtype=F32) + 0.5) * jnp.pi / rings
        waves = jnp.fft.rfft(maps, axis=-1)[..., :band] * (jnp.sin(theta) / rings**2)[:, None]
        m = jnp.arange(band, dtype=F32)
        logs = 0.5 * jnp.cumsum(jnp.where(m > 0, jnp.log1p(0.5 / jnp.maximum(m, 1)), 0))
        start = jnp.exp(logs + m * jnp.log(jnp.sin(theta))[:, None]) * (4 * jnp.pi) ** -0.5
        cos = jnp.cos(theta)[:, None]

        def degree(known: Any, n: Any) -> Any:
            old, now = known
            wide = jnp.maximum(n * n - m * m, 1.0)
            a = jnp.sqrt((4 * n * n - 1) / wide)
            c = jnp.sqrt(jnp.maximum((n - 1) ** 2 - m * m, 0) / (4 * (n - 1) ** 2 - 1))
            new = a * (cos * now - c * old)
            new = jnp.where(m == n, start, jnp.where(m < n, new, 0))
            return (now, new), jnp.einsum("tm,btm->bm", new, waves)

        zero = jnp.zeros((rings, band))
        first = jnp.where(m == 0, start, zero)
        _, table = lax.scan(degree, (zero, first), jnp.arange(1, band, dtype=F32))
        return table, jnp.square(jnp.abs(table)).sum(-1)

    yield "harmonics", program(run, Arg((many, 2 * band, 2 * band)))


def bodies() -> Zoo:
    """Four leaps of 4,096 bodies that attract each other, in float64."""
    count = 4096

    def leaps(state: Any, mass: Any) -> Any:
        with jax.enable_x64(True):
            place, speed = (a.astype(F64) for a in state)
            heavy = jnp.abs(mass).astype(F64) * 1e-4

            def pull(place: Any) -> Any:
                r = place[None] - place[:, None]
                near = (r * r).sum(-1) + jnp.asarray(1e-3, F64)
                return jnp.einsum("ijd,ij->id", r, heavy[None] * near**-1.5)

            force = pull(place)
            for _ in range(4):
                speed = speed + 0.005 * force
                place = place + 0.01 * speed
                force = pull(place)
                speed = speed + 0.005 * force
            energy = 0.5 * (heavy[:, None] * speed * speed).sum()
            return (place.astype(F32), speed.astype(F32)), energy.astype(F32)

    yield "doubles", carried(leaps, (Arg((count, 3)), Arg((count, 3))), Arg((count,)))


def registrations() -> Zoo:
    """Demons move a volume of 128^3 voxels onto another: six rounds of warps and blurs."""
    n = 128

    def blurred(x: Any, sigma: float) -> Any:
        line = jnp.arange(-4, 5)
        kernel = jnp.exp(-(line**2) / (2 * sigma**2))
        kernel = kernel / kernel.sum()
        for axis in (-3, -2, -1):
            padded = jnp.moveaxis(x, axis, -1)
            padded = jnp.pad(padded, [(0, 0)] * (x.ndim - 1) + [(4, 4)], mode="edge")
            total = sum(kernel[i] * padded[..., i : i + n] for i in range(9))
            x = jnp.moveaxis(total, -1, axis)
        return x

    def run(moved: Any, fixed: Any, loose: Any) -> Any:
        fixed, loose = blurred(fixed, 1.5), blurred(loose, 1.5)
        grid = jnp.stack(jnp.meshgrid(*[jnp.arange(n, dtype=F32)] * 3, indexing="ij"))
        way = jnp.stack(jnp.gradient(fixed))
        steep = jnp.square(way).sum(0)

        def step(field: Any, _: Any) -> Any:
            warped = map_coordinates(loose, list(grid + field), 1, mode="nearest")
            apart = fixed - warped
            force = way * apart / (steep + jnp.square(apart) + 1e-6)
            field = field + blurred(jnp.clip(force, -2, 2), 1.0)
            return blurred(field, 1.2), jnp.square(apart).mean()

        return lax.scan(step, moved, None, length=6)

    image = Arg((n, n, n))
    yield "demons", carried(run, Arg((3, n, n, n), scale=0.5), image, image)


def suffixes() -> Zoo:
    """The suffix array of a text of 400,000 letters, by ten rounds of doubled prefixes."""
    n = 400_000

    def run(text: Any) -> Any:
        index = jnp.arange(n, dtype=I32)

        def step(i: Any, known: Any) -> Any:
            rank, _ = known
            far = index + (1 << i)
            second = jnp.where(far < n, rank[jnp.minimum(far, n - 1)] + 1, 0)
            one, two, order = lax.sort((rank, second, index), num_keys=2)
            new = (one[1:] != one[:-1]) | (two[1:] != two[:-1])
            place = jnp.concatenate([jnp.zeros(1, I32), jnp.cumsum(new.astype(I32))])
            return jnp.zeros(n, I32).at[order].set(place, unique_indices=True), order

        rank, order = lax.fori_loop(0, 10, step, (text.astype(I32), index))
        last = text[(order - 1) % n]
        counts = jax.nn.one_hot(last, 4, dtype=I32)[::64].cumsum(0)
        return last, counts, rank

    yield "doubling", program(run, Arg((n,), U8, below=4))


def reads() -> Zoo:
    """GATK's PairHMM: 2,048 reads of 100 letters against eight haplotypes, by antidiagonals."""
    many, length, kinds, hap = 2048, 100, 8, 240

    def run(read: Any, quality: Any, haps: Any) -> Any:
        wrong = 10.0 ** (-(quality.astype(F32) + 10) / 10)
        gap, longer = 10**-4.5, 0.1
        rows = jnp.arange(length)

        def one(read: Any, wrong: Any, letters: Any) -> Any:
            padded = jnp.pad(letters, (length, length), constant_values=9)

            def diagonal(known: Any, n: Any) -> Any:
                older, (match, put, cut) = known
                other = lax.dynamic_slice(padded, (n + 1,), (length,))[::-1]
                inside = (n - rows >= 0) & (n - rows < hap)
                fit = jnp.where(read == other, 1 - wrong, wrong / 3)

                def down(x: Any, first: Any) -> Any:
                    return jnp.concatenate([first[None], x[:-1]])

                zero, start = jnp.zeros(()), jnp.asarray(1.0 / hap)
                m = (1 - 2 * gap) * down(older[0], zero)
                m = m + (1 - longer) * (down(older[1], zero) + down(older[2], start))
                m = jnp.where(inside, fit * m, 0)
                i = jnp.where(inside, gap * down(match, zero) + longer * down(put, zero), 0)
                d = jnp.where(inside, gap * match + longer * cut, 0)
                return ((match, put, cut), (m, i, d)), m[-1] + i[-1]

            zero = (jnp.zeros(length),) * 3
            ends = lax.scan(diagonal, (zero, zero), jnp.arange(length + hap - 1))[1]
            return jnp.log(ends.sum() + 1e-37)

        every = jax.vmap(jax.vmap(one, (None, None, 0)), (0, 0, None))
        found = every(read, wrong, haps)
        return found, jax.nn.softmax(found, -1).sum(0)

    given = (Arg((many, length), I32, below=4), Arg((many, length), I32, below=30))
    yield "pair_hmm", program(run, *given, Arg((kinds, hap), I32, below=4))


def samplers() -> Zoo:
    """Microcanonical Langevin steps of 1,024 chains on a regression with groups."""
    chains, rows, columns, groups, steps = 1024, 1500, 24, 30, 10
    size = columns + groups + 1

    def run(state: Any, x: Any, group: Any, y: Any, key: Any) -> Any:
        def density(q: Any) -> Any:
            slopes, shifts, spread = q[:columns], q[columns:-1], q[-1]
            logits = x @ slopes + shifts[group] * jnp.exp(spread)
            fit = (y * logits - jax.nn.softplus(logits)).sum()
            return fit - 0.5 * jnp.square(q).sum()

        slope = jax.vmap(jax.grad(density))

        def turned(u: Any, g: Any, step: float) -> Any:
            length = jnp.linalg.norm(g, axis=-1, keepdims=True) + 1e-9
            e = g / length
            along = (u * e).sum(-1, keepdims=True)
            delta = step * length / (size - 1)
            zeta = jnp.exp(-jnp.minimum(delta, 30.0))
            new = e * (1 - zeta) * (1 + zeta + along * (1 - zeta)) + 2 * zeta * u
            return new / jnp.linalg.norm(new, axis=-1, keepdims=True)

        def move(state: Any, key: Any) -> Any:
            q, u = state
            for a, b in ((0.1931833, 0.5), (0.6136334, 0.5)):
                u = turned(u, slope(q), a * 0.05)
                q = q + b * 0.05 * u
            u = turned(u, slope(q), 0.1931833 * 0.05)
            u = u + 0.1 * jax.random.normal(key, u.shape) / size**0.5
            u = u / jnp.linalg.norm(u, axis=-1, keepdims=True)
            return (q, u), (q.mean(0), q.var(0))

        return lax.scan(move, state, jax.random.split(key, steps))

    q = Arg((chains, size), scale=0.1)
    given = (Arg((rows, columns)), Arg((rows,), I32, below=groups), Arg((rows,), I32))
    yield "microcanonical", carried(run, (q, q), *given, _KEY)


def processes() -> Zoo:
    """Vecchia's likelihood of 6,000 places, each given 24 near ones, and its slopes."""
    n, k = 6000, 24
    rule = optax.adam(0.02)

    def update(state: Any, places: Any, seen: Any) -> Any:
        order = jnp.argsort(places[:, 0] + 0.3 * places[:, 1])
        places, seen = places[order], seen[order]
        near = jnp.maximum(jnp.arange(n)[:, None] - 1 - jnp.arange(k), 0)

        def loss(p: Any) -> Any:
            scale, spread, noise = jnp.exp(p["scale"]), jnp.exp(p["spread"]), jnp.exp(p["noise"])

            def kernel(a: Any, b: Any) -> Any:
                r = jnp.sqrt(jnp.square((a[:, None] - b[None]) / scale).sum(-1) + 1e-8)
                return spread * (1 + 1.7320508 * r) * jnp.exp(-1.7320508 * r)

            def one(i: Any, near: Any) -> Any:
                others = places[near]
                real = jnp.arange(k) < i
                cov = jnp.where(real[:, None] & real, kernel(others, others), 0)
                cov = cov + (noise + 1e-3 + 1.0 * ~real) * jnp.eye(k)
                root = jnp.linalg.cholesky(cov)
                cross = jnp.where(real, kernel(others, places[i][None])[:, 0], 0)
                both = jnp.stack([cross, jnp.where(real, seen[near], 0)], -1)
                both = solve_triangular(root, both, lower=True)
                mean = both[:, 0] @ both[:, 1]
                var = spread + noise + 1e-3 - both[:, 0] @ both[:, 0]
                var = jnp.maximum(var, 1e-4)
                return 0.5 * (jnp.log(var) + jnp.square(seen[i] - mean) / var)

            return jax.vmap(one)(jnp.arange(n), near).mean()

        return learned(rule, loss, state)

    p = {"scale": Arg((2,), scale=0.1), "spread": Arg((), scale=0.1), "noise": Arg((), scale=0.1)}
    yield "vecchia", carried(update, started(rule, p), Arg((n, 2)), Arg((n,)))


def stiff() -> Zoo:
    """Rosenbrock's steps of 4,096 stiff reactors of 16 kinds, each with a Jacobian and its LU."""
    many, kinds, reactions, steps = 4096, 16, 40, 8
    rng = np.random.default_rng(5)
    left, right = rng.integers(0, kinds, (2, reactions, 2))
    change = np.zeros((reactions, kinds), np.float32)
    np.add.at(change, (np.arange(reactions)[:, None], left), -1.0)
    np.add.at(change, (np.arange(reactions)[:, None], right), 1.0)

    def rate(y: Any, heat: Any, speed: Any) -> Any:
        k = jnp.exp(jnp.clip(speed, -3, 3) - 1 / (1 + jnp.abs(heat)))
        return (k * y[left[:, 0]] * y[left[:, 1]]) @ change

    def run(state: Any, heat: Any, speed: Any) -> Any:
        gamma, h = 1 + 0.5**0.5, 0.02

        def one(y: Any, heat: Any) -> Any:
            y = jnp.abs(y)

            def f(y: Any) -> Any:
                return rate(y, heat, speed)

            parts = lu_factor(jnp.eye(kinds) - gamma * h * jax.jacfwd(f)(y))
            k1 = lu_solve(parts, f(y))
            k2 = lu_solve(parts, f(y + h * k1) - 2 * k1)
            new = jnp.maximum(y + 1.5 * h * k1 + 0.5 * h * k2, 0)
            return new, jnp.abs(0.5 * h * (k1 + k2)).max()

        return lax.scan(lambda y, _: jax.vmap(one)(y, heat), state, None, length=steps)

    yield "rosenbrock", carried(run, Arg((many, kinds)), Arg((many,)), Arg((reactions,)))


def fits() -> Zoo:
    """L-BFGS with a zoom along lines: three steps of a softmax regression of 50,000 rows."""
    rows, columns, kinds = 50_000, 512, 20
    rule = optax.lbfgs(memory_size=8)

    def update(p: Any, x: Any, y: Any) -> Any:
        def loss(p: Any) -> Any:
            w, shift = p
            return cross_entropy(x @ w + shift, y).mean() + 1e-4 * jnp.square(w).sum()

        both = optax.value_and_grad_from_state(loss)

        def step(state: Any, _: Any) -> Any:
            p, known = state
            value, grad = both(p, state=known)
            way, known = rule.update(grad, known, p, value=value, grad=grad, value_fn=loss)
            return (optax.apply_updates(p, way), known), value

        (p, _), values = lax.scan(step, (p, rule.init(p)), None, length=3)
        return p, values

    p = (Arg((columns, kinds), scale=0.01), ones(kinds))
    yield "lbfgs", carried(update, p, Arg((rows, columns)), Arg((rows,), I32, below=kinds))


def webs() -> Zoo:
    """PageRank for eight tastes over 300,000 pages and three million links, twelve rounds."""
    pages, links, tastes = 300_000, 3_000_000, 8

    def run(rank: Any, source: Any, gaps: Any, taste: Any) -> Any:
        into = jnp.minimum(jnp.cumsum(gaps == 0), pages - 1)
        out = jnp.zeros(pages).at[source].add(1.0)
        start = jax.nn.softmax(taste, 0)

        def step(rank: Any, _: Any) -> Any:
            sent = rank / jnp.maximum(out, 1)[:, None]
            new = jax.ops.segment_sum(sent[source], into, pages, indices_are_sorted=True)
            lost = jnp.where((out == 0)[:, None], rank, 0).sum(0)
            new = 0.85 * (new + lost * start) + 0.15 * start
            return new, jnp.abs(new - rank).sum(0)

        rank, apart = lax.scan(step, jnp.abs(rank), None, length=12)
        return rank, apart, lax.top_k(rank.T, 20)[1]

    given = (Arg((links,), I32, below=pages), Arg((links,), I32, below=10), Arg((pages, tastes)))
    yield "pagerank", carried(run, Arg((pages, tastes), scale=1e-5), *given)
