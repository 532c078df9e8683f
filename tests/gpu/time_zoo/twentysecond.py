"""A 22nd zoo: steps as in public repositories of JAX and Flax, and numerics of eight sciences.

It was written without a look at the predictor or its calibration, to be timed once: no
calibration and no fit has used its programs.
"""

import math
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
from ninth import carried
from seventeenth import (
    adamw,
    adamw_start,
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
    rms,
    rope,
    swiglu,
    swiglu_weights,
    times,
)
from tenth import applied, states_of

from xlapipe.running.calibration.timed_program import Arg, TimedProgram

F32, BF16, F16, I32 = jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32
U8, U32, C64 = jnp.uint8, jnp.uint32, jnp.complex64
Zoo = Iterator[tuple[str, TimedProgram]]
_KEY = Arg((2,), U32, below=1 << 30)


def twentysecond_programs() -> dict[str, TimedProgram]:
    """Every program, by FAMILY/NAME."""
    families = (
        *(maxtext, big_vision, scenic, t5x, levanter, performers, ttt, lingvo),
        *(maxvit, diffusers, vdm, plenoxels, lidar, nowcasts, objects, processes),
        *(mace, purejaxql, crossings, pangu, quest, students, moco, kron),
        *(glaciers, interferometers, open_systems, cables, epidemics, cryo, phylogenies, plasmas),
    )
    return {
        f"{family.__name__}/{name}": program for family in families for name, program in family()
    }


def full(*sizes: int) -> Any:
    """Weights and shifts of a perceptron."""
    return [(master(a, b), Arg((b,), scale=0.1)) for a, b in pairwise(sizes)]


def perceptron(x: Any, layers: Any, bend: Any = jax.nn.relu) -> Any:
    """Its answer."""
    for w, b in layers[:-1]:
        x = bend(x @ w + b)
    w, b = layers[-1]
    return x @ w + b


# ------------------------------------------------------------------------------- machine learning


def maxtext() -> Zoo:
    """A token of 32 replies, which read a cache of the prompt and one of what was said since."""
    b, most, ahead, d, h, g, size, words, depth = 32, 1024, 256, 4096, 32, 8, 128, 32000, 4

    def part(q: Any, k: Any, v: Any, seen: Any) -> Any:
        scores = jnp.einsum("bgrd,bsgd->bgrs", q, k, preferred_element_type=F32)
        scores = jnp.where(seen[:, None, None], scores, -2e38)
        top = scores.max(-1, keepdims=True)
        shares = jnp.exp(scores - top)
        y = jnp.einsum("bgrs,bsgd->bgrd", shares.astype(v.dtype), v)
        return y, top, shares.sum(-1, keepdims=True)

    def token(caches: Any, params: Any, prompt: Any, tokens: Any, lengths: Any, at: Any) -> Any:
        prompt_seen = jnp.arange(most) < 200 + lengths[:, None]
        seen = jnp.broadcast_to(jnp.arange(ahead) <= at, (b, ahead))
        places = 200 + lengths + at

        def layer(x: Any, given: Any) -> Any:
            p, (old_k, old_v), (new_k, new_v) = given
            y = rms(x, p["scale"][0])
            q, k, v = (heads(y @ p[name], size) for name in ("q", "k", "v"))
            q, k = rope(q, places, 5e5) * size**-0.5, rope(k, places, 5e5)
            new_k = lax.dynamic_update_slice_in_dim(new_k, k[:, None], at, 1)
            new_v = lax.dynamic_update_slice_in_dim(new_v, v[:, None], at, 1)
            q = q.reshape(b, g, h // g, size)
            one, top_one, sum_one = part(q, old_k, old_v, prompt_seen)
            two, top_two, sum_two = part(q, new_k, new_v, seen)
            top = jnp.maximum(top_one, top_two)
            by_one, by_two = jnp.exp(top_one - top), jnp.exp(top_two - top)
            total = sum_one * by_one + sum_two * by_two
            y = one * (by_one / total).astype(BF16) + two * (by_two / total).astype(BF16)
            x = x + y.reshape(b, -1) @ p["out"]
            return x + swiglu(rms(x, p["scale"][1]), p), (new_k, new_v)

        given = (params["layers"], prompt, caches)
        x, caches = lax.scan(layer, params["table"][tokens], given)
        logits = (rms(x, params["last"]) @ params["head"]).astype(F32)
        return caches, logits.argmax(-1), at + 1

    layer = {"q": weight(d, h * size), "k": weight(d, g * size), "v": weight(d, g * size)}
    layer |= {"out": weight(h * size, d), "scale": Arg((2, d))} | swiglu_weights(d, 14336, weight)
    params = {"layers": times(depth, layer), "table": Arg((words, d), BF16, 0.02)}
    params |= {"last": Arg((d,)), "head": weight(d, words)}
    prompt = (Arg((depth, b, most, g, size), BF16),) * 2
    caches = (Arg((depth, b, ahead, g, size), BF16),) * 2
    given = (Arg((b,), I32, below=words), Arg((b,), I32, below=800), Arg((), I32, below=ahead))
    yield "two_caches", carried(token, caches, params, prompt, *given)


class MlpBlock(nn.Module):
    """A transformer's perceptron."""

    mlp_dim: int
    dropout: float = 0.0

    @nn.compact
    def __call__(self, x: Any, deterministic: bool = True) -> Any:
        d = x.shape[-1]
        x = nn.Dense(self.mlp_dim, dtype=BF16)(x)
        x = nn.gelu(x)
        x = nn.Dropout(self.dropout)(x, deterministic)
        return nn.Dense(d, dtype=BF16)(x)


class Encoder1DBlock(nn.Module):
    """A layer that is normed first."""

    num_heads: int
    mlp_dim: int
    dropout: float = 0.0

    @nn.compact
    def __call__(self, x: Any, deterministic: bool = True) -> Any:
        y = nn.LayerNorm(dtype=BF16)(x)
        y = nn.MultiHeadDotProductAttention(self.num_heads, dtype=BF16)(y, y)
        y = nn.Dropout(self.dropout)(y, deterministic)
        x = x + y
        y = nn.LayerNorm(dtype=BF16)(x)
        y = MlpBlock(self.mlp_dim, self.dropout)(y, deterministic)
        return x + nn.Dropout(self.dropout)(y, deterministic)


class DecoderBlock(nn.Module):
    """A layer that also reads an encoded picture."""

    num_heads: int
    mlp_dim: int

    @nn.compact
    def __call__(self, x: Any, encoded: Any, mask: Any) -> Any:
        y = nn.LayerNorm(dtype=BF16)(x)
        x = x + nn.MultiHeadDotProductAttention(self.num_heads, dtype=BF16)(y, y, mask=mask)
        y = nn.LayerNorm(dtype=BF16)(x)
        x = x + nn.MultiHeadDotProductAttention(self.num_heads, dtype=BF16)(y, encoded)
        y = nn.LayerNorm(dtype=BF16)(x)
        return x + MlpBlock(self.mlp_dim)(y)


class Captioner(nn.Module):
    """A vision transformer and a decoder of captions."""

    width: int = 512
    words: int = 32000

    @nn.compact
    def __call__(self, image: Any, text: Any, parallel: Any) -> Any:
        x = nn.Conv(self.width, (16, 16), (16, 16), "VALID", dtype=BF16)(image)
        n, h, w, c = x.shape
        x = x.reshape(n, h * w, c)
        normal = nn.initializers.normal(0.02)
        x = x + self.param("pos_embedding", normal, (1, h * w, c)).astype(BF16)
        for _ in range(5):
            x = Encoder1DBlock(c // 64, 4 * c)(x)
        encoded = nn.LayerNorm(dtype=BF16)(x)
        length = text.shape[1]
        before = jnp.pad(text[:, :-1], ((0, 0), (1, 0)))
        before = jnp.where(parallel[:, None], self.words - 1, before)
        y = nn.Embed(self.words, c, dtype=BF16)(before)
        y = y + self.param("pos_text", normal, (1, length, c)).astype(BF16)
        mask = jnp.tril(jnp.ones((length, length), bool))
        mask = (mask | parallel[:, None, None])[:, None]
        for _ in range(3):
            y = DecoderBlock(c // 64, 4 * c)(y, encoded, mask)
        y = nn.LayerNorm(dtype=BF16)(y)
        return nn.Dense(self.words, dtype=BF16)(y)


def big_vision() -> Zoo:
    """CapPa writes captions of 48 pictures, three fourths of them with all words at once."""
    model, b, length = Captioner(), 48, 64
    rule = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.scale_by_adam(b2=0.999, mu_dtype=BF16),
        optax.add_decayed_weights(1e-4, mask=lambda p: jax.tree.map(lambda x: x.ndim > 1, p)),
        optax.scale(-1e-3),
    )

    def update(state: Any, image: Any, text: Any, key: Any) -> Any:
        image = image.astype(F32) / 127.5 - 1
        parallel = jax.random.bernoulli(key, 0.75, (b,))

        def loss(params: Any) -> Any:
            logits = model.apply(params, image, text, parallel).astype(F32)
            found = optax.softmax_cross_entropy_with_integer_labels(logits, text)
            real = text > 0
            return (found * real).sum() / jnp.maximum(real.sum(), 1)

        return learned(rule, loss, state)

    image, text = Arg((b, 224, 224, 3), U8, below=256), Arg((b, length), I32, below=32000)
    shown = Arg(image.shape)
    params = linen_weights(model, shown, text, Arg((b,), jnp.bool_))
    yield "cappa", carried(update, started(rule, params), image, text, _KEY)


class Bottlenecks(nn.Module):
    """Frames and a spectrogram, which meet in a few tokens of their own."""

    d: int = 384
    alone: int = 2
    fused: int = 2
    few: int = 4

    @nn.compact
    def __call__(self, video: Any, sound: Any, train: bool = True) -> Any:
        normal = nn.initializers.normal(0.02)
        streams = []
        x = nn.Conv(self.d, (2, 16, 16), (2, 16, 16), "VALID", dtype=BF16, name="tubelets")(video)
        streams.append(x.reshape(x.shape[0], -1, self.d))
        x = nn.Conv(self.d, (16, 16), (16, 16), "VALID", dtype=BF16, name="patches")(sound)
        streams.append(x.reshape(x.shape[0], -1, self.d))
        for i, patches in enumerate(streams):
            place = self.param(f"place_{i}", normal, (1, patches.shape[1], self.d))
            x = nn.Dropout(0.1)(patches + place.astype(BF16), not train)
            for _ in range(self.alone):
                x = Encoder1DBlock(6, 4 * self.d, 0.1)(x, not train)
            streams[i] = x
        b = video.shape[0]
        shared = self.param("bottleneck", normal, (1, self.few, self.d)).astype(BF16)
        shared = jnp.broadcast_to(shared, (b, self.few, self.d))
        for _ in range(self.fused):
            said = []
            for i, x in enumerate(streams):
                y = jnp.concatenate([x, shared], 1)
                y = Encoder1DBlock(6, 4 * self.d, 0.1)(y, not train)
                streams[i], told = jnp.split(y, [x.shape[1]], 1)
                said.append(told)
            shared = (said[0] + said[1]) / 2
        ends = [nn.LayerNorm(dtype=BF16)(x).mean(1) for x in streams]
        head = nn.Dense(527, dtype=F32, name="output")
        return (head(ends[0]) + head(ends[1])) / 2


def scenic() -> Zoo:
    """MBT learns what is seen and heard in 16 clips, with dropout, mixed clips and momentum."""
    model, b = Bottlenecks(), 16
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9))

    def step(state: Any, video: Any, sound: Any, labels: Any, key: Any) -> Any:
        mix, drop = jax.random.split(key)
        share = jnp.square(jax.random.uniform(mix))
        video = video.astype(F32) / 127.5 - 1
        labels = labels.astype(F32)
        parts = (video, sound, labels)
        video, sound, labels = (share * a + (1 - share) * a[::-1] for a in parts)

        def loss(params: Any) -> Any:
            logits = model.apply(params, video, sound, rngs={"dropout": drop})
            return optax.sigmoid_binary_cross_entropy(logits, labels).sum(-1).mean()

        return learned(rule, loss, state)

    video, sound = Arg((b, 4, 224, 224, 3), U8, below=256), Arg((b, 400, 128, 1))
    params = linen_weights(model, Arg(video.shape), sound)
    given = (video, sound, Arg((b, 527), jnp.bool_), _KEY)
    yield "mbt", carried(step, started(rule, params), *given)


def t5x() -> Zoo:
    """LongT5: 4,096 tokens see near blocks and means of all blocks of 16; Adafactor."""
    b, s, tgt, d, size, wide, words, block, few = 3, 4096, 256, 512, 64, 1024, 32128, 128, 16
    h, n = d // size, s // block
    rule = optax.adafactor(1e-3, decay_rate=0.8)

    def dropped(x: Any, key: Any) -> Any:
        keep = jax.random.bernoulli(key, 0.9, (x.shape[0], 1, x.shape[2]))
        return jnp.where(keep, x / jnp.asarray(0.9, x.dtype), jnp.zeros((), x.dtype))

    def three(x: Any) -> Any:
        x = x.reshape(b, n, block, h, size)
        x = jnp.pad(x, ((0, 0), (1, 1), (0, 0), (0, 0), (0, 0)))
        return jnp.concatenate([x[:, :-2], x[:, 1:-1], x[:, 2:]], 2)

    def near(gap: Any, buckets: int = 32) -> Any:
        half_ = buckets // 2
        side, far = (gap > 0) * half_, jnp.abs(gap)
        exact = half_ // 2
        big = jnp.log(jnp.maximum(far, 1) / exact) / math.log(128 / exact) * (half_ - exact)
        big = jnp.minimum(exact + big.astype(I32), half_ - 1)
        return side + jnp.where(far < exact, far, big)

    def read(x: Any, p: Any, key: Any) -> Any:
        one, two = jax.random.split(key)
        y = rms(x, p["scale"][0])
        sums = y.reshape(b, s // few, few, d).sum(2)
        means = rms(sums, p["scale"][2])
        q, k, v = (heads(y @ p[name], size) for name in ("q", "k", "v"))
        far_k, far_v = heads(means @ p["k"], size), heads(means @ p["v"], size)
        q = q.reshape(b, n, block, h, size)
        local = jnp.einsum("bnqhd,bnkhd->bnhqk", q, three(k)).astype(F32)
        gap = jnp.arange(3 * block) - block - jnp.arange(block)[:, None]
        local = local + p["bias"][near(gap)].transpose(2, 0, 1)
        where = jnp.arange(n)[:, None] * block - block + jnp.arange(3 * block)
        open_ = (where >= 0) & (where < s)
        open_ = open_[:, None] & (jnp.abs(gap) < block)
        local = jnp.where(open_[:, None], local, -1e10)
        far = jnp.einsum("bnqhd,bkhd->bnhqk", q, far_k).astype(F32)
        gap = jnp.arange(s // few) - jnp.arange(s)[:, None] // few
        far = far + p["far_bias"][near(gap)].reshape(n, block, -1, h).transpose(0, 3, 1, 2)
        shares = jax.nn.softmax(jnp.concatenate([local, far], -1), -1).astype(BF16)
        y = jnp.einsum("bnhqk,bnkhd->bnqhd", shares[..., : 3 * block], three(v))
        y = y + jnp.einsum("bnhqk,bkhd->bnqhd", shares[..., 3 * block :], far_v)
        x = x + dropped(y.reshape(b, s, d) @ p["out"], one)
        return x + dropped(gated(rms(x, p["scale"][1]), p), two)

    def gated(y: Any, p: Any) -> Any:
        return (jax.nn.gelu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]

    def write(x: Any, p: Any, memory: Any, key: Any) -> Any:
        keys = jax.random.split(key, 3)
        y = rms(x, p["scale"][0])
        q, k, v = (heads(y @ p[name], size) for name in ("q", "k", "v"))
        x = x + dropped(attention(q, k, v, causal(tgt)) @ p["out"], keys[0])
        q = heads(rms(x, p["scale"][2]) @ p["cross_q"], size)
        k, v = heads(memory @ p["cross_k"], size), heads(memory @ p["cross_v"], size)
        x = x + dropped(attention(q, k, v) @ p["cross_out"], keys[1])
        return x + dropped(gated(rms(x, p["scale"][1]), p), keys[2])

    def step(state: Any, inputs: Any, targets: Any, key: Any) -> Any:
        keys = jax.random.split(key, 5)

        def loss(params: Any) -> Any:
            p = half(params)
            x = p["table"][inputs]
            for q, key in zip(p["read"], keys[:3], strict=True):
                x = jax.checkpoint(read)(x, q, key)
            x = rms(x, p["ends"][0])
            y = p["table"][jnp.pad(targets[:, :-1], ((0, 0), (1, 0)))]
            for q, key in zip(p["write"], keys[3:], strict=True):
                y = write(y, q, x, key)
            logits = (rms(y, p["ends"][1]) @ p["head"]).astype(F32)
            total = jax.nn.logsumexp(logits, -1)
            right = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
            return (total - right + 1e-4 * jnp.square(total)).mean()

        return learned(rule, loss, state)

    layer = {name: master(d, d) for name in ("q", "k", "v", "out")} | {"scale": Arg((3, d))}
    layer |= {"gate": master(d, wide), "up": master(d, wide), "down": master(wide, d)}
    one = layer | {"bias": Arg((32, h), scale=0.1), "far_bias": Arg((32, h), scale=0.1)}
    two = layer | {f"cross_{name}": master(d, d) for name in ("q", "k", "v", "out")}
    params = {"read": [one] * 3, "write": [two] * 2, "table": Arg((words, d))}
    params |= {"ends": Arg((2, d)), "head": master(d, words)}
    given = (Arg((b, s), I32, below=words), Arg((b, tgt), I32, below=words), _KEY)
    yield "long_t5", carried(step, started(rule, params), *given)


def levanter() -> Zoo:
    """GPT-2 by Sophia: a mean of gradients over a guess of the Hessian's diagonal."""
    b, s, d, words, depth = 8, 512, 512, 50257, 6

    def block(x: Any, p: Any) -> Any:
        y = layer_norm(x, p["scale"][0], p["shift"][0])
        q, k, v = jnp.split(heads(y @ p["qkv"], 64), 3, 2)
        x = x + attention(q, k, v, causal(s)) @ p["out"]
        y = layer_norm(x, p["scale"][1], p["shift"][1])
        return x + jax.nn.gelu(y @ p["up"]) @ p["down"], None

    def loss(params: Any, tokens: Any) -> Any:
        p = half(params)
        x = p["table"][tokens[:, :-1]] + p["places"]
        x, _ = lax.scan(jax.checkpoint(block), x, p["layers"])
        x = layer_norm(x, p["scale"], p["shift"])
        return cross_entropy(x @ p["table"].T, tokens[:, 1:]).mean()

    def step(state: Any, tokens: Any, key: Any) -> Any:
        params, means, bends, count = state
        value, slopes = jax.value_and_grad(loss)(params, tokens)
        leaves, tree = jax.tree.flatten(params)
        keys = jax.random.split(key, len(leaves))
        drawn = [jax.random.normal(k, w.shape) for k, w in zip(keys, leaves, strict=True)]
        way = jax.tree.unflatten(tree, drawn)
        _, turned = jax.jvp(lambda p: jax.grad(loss)(p, tokens[:2]), (params,), (way,))
        bends = jax.tree.map(lambda h, u, v: 0.99 * h + 0.01 * u * v, bends, way, turned)
        means = jax.tree.map(lambda m, g: 0.96 * m + 0.04 * g, means, slopes)

        def moved(w: Any, m: Any, h: Any) -> Any:
            change = jnp.clip(m / jnp.maximum(0.01 * h, 1e-12), -1.0, 1.0)
            return w - 6e-4 * (change + 0.1 * w)

        return (jax.tree.map(moved, params, means, bends), means, bends, count + 1), value

    layer = {"qkv": master(d, 3 * d), "out": master(d, d), "up": master(d, 4 * d)}
    layer |= {"down": master(4 * d, d), "scale": Arg((2, d)), "shift": Arg((2, d), scale=0.1)}
    params = {"layers": times(depth, layer), "table": Arg((words, d), scale=0.02)}
    params |= {"places": Arg((s, d), scale=0.02), "scale": Arg((d,)), "shift": Arg((d,), scale=0.1)}
    yield "sophia", carried(step, adamw_start(params), Arg((b, s + 1), I32, below=words), _KEY)


def performers() -> Zoo:
    """A Performer guesses hidden residues: positive random features instead of a softmax."""
    b, s, d, size, features, words = 3, 4096, 512, 64, 192, 30
    rule = optax.adam(1e-3, b2=0.98)

    def kernel(x: Any, ways: Any, query: bool) -> Any:
        x = x * size**-0.25
        y = jnp.einsum("bshd,md->bshm", x, ways)
        norm = jnp.square(x).sum(-1, keepdims=True) / 2
        top = y.max(-1, keepdims=True) if query else y.max((1, 3), keepdims=True)
        return features**-0.5 * (jnp.exp(y - norm - lax.stop_gradient(top)) + 1e-6)

    def block(x: Any, p: Any, ways: Any) -> Any:
        y = layer_norm(x, p["scale"][0], p["shift"][0])
        q, k, v = (heads(y @ p[name], size) for name in ("q", "k", "v"))
        q, k = kernel(q, ways, True), kernel(k, ways, False)
        memory = jnp.einsum("bshm,bshd->bhmd", k, v)
        total = jnp.einsum("bshm,bhm->bsh", q, k.sum(1))
        y = jnp.einsum("bshm,bhmd->bshd", q, memory) / total[..., None]
        x = x + y.reshape(x.shape) @ p["out"]
        y = layer_norm(x, p["scale"][1], p["shift"][1])
        return x + jax.nn.gelu(y @ p["up"] + p["b_up"]) @ p["down"]

    def step(state: Any, residues: Any, key: Any) -> Any:
        one, two = jax.random.split(key)
        hidden = jax.random.bernoulli(one, 0.15, residues.shape)
        ways = jax.random.normal(two, (features // size, size, size))
        ways, _ = jnp.linalg.qr(ways)
        ways = ways.reshape(features, size) * math.sqrt(size)

        def loss(p: Any) -> Any:
            x = p["table"][jnp.where(hidden, words - 1, residues)] + p["places"]
            for q in p["layers"]:
                x = block(x, q, ways)
            logits = layer_norm(x, p["last"]) @ p["table"].T
            return (cross_entropy(logits, residues) * hidden).sum() / (hidden.sum() + 1)

        return learned(rule, loss, state)

    layer = {name: master(d, d) for name in ("q", "k", "v", "out")} | {"up": master(d, 4 * d)}
    layer |= {"b_up": Arg((4 * d,), scale=0.02), "down": master(4 * d, d)}
    layer |= {"scale": Arg((2, d)), "shift": Arg((2, d), scale=0.1)}
    params = {"layers": [layer] * 3, "table": Arg((words, d)), "places": Arg((s, d), scale=0.02)}
    params |= {"last": Arg((d,))}
    yield "favor", carried(step, started(rule, params), Arg((b, s), I32, below=words), _KEY)


def ttt() -> Zoo:
    """TTT-Linear: a state is a linear model, which learns from 64 tokens at a time."""
    b, s, d, size, group, words = 6, 768, 768, 64, 64, 32000
    h, n = d // size, s // group

    def inner(carry: Any, given: Any) -> Any:
        w, bias, scale, shift = carry
        q, k, v, rate = given
        goal = v - k
        z = k @ w + bias
        mean, var = z.mean(-1, keepdims=True), z.var(-1, keepdims=True)
        spread = jnp.sqrt(var + 1e-6)
        unit = (z - mean) / spread
        slope = (scale * unit + shift - goal) * scale
        slope = slope * size - slope.sum(-1, keepdims=True)
        slope = (slope - unit * (slope * unit).sum(-1, keepdims=True) / size) / (size * spread)
        steps = jnp.tril(jnp.ones((group, group))) * rate[:, :, None]
        scores = jnp.tril(q @ k.swapaxes(-1, -2)) * rate[:, :, None]
        z = q @ w - scores @ slope + bias - steps @ slope
        mean, var = z.mean(-1, keepdims=True), z.var(-1, keepdims=True)
        y = q + (z - mean) * lax.rsqrt(var + 1e-6) * scale + shift
        w = w - (rate[..., None] * k).swapaxes(-1, -2) @ slope
        bias = bias - (rate[..., None] * slope).sum(-2, keepdims=True)
        return (w, bias, scale, shift), y

    def layer(x: Any, p: Any) -> Any:
        y = rms(x, p["norm"][0])

        def split(a: Any) -> Any:
            return heads(a, size).reshape(b, n, group, h, size).transpose(1, 0, 3, 2, 4)

        q, k, v = (split(y @ p[name]).astype(F32) for name in ("q", "k", "v"))
        rate = jax.nn.sigmoid((y @ p["rate"]).astype(F32) + p["b_rate"].astype(F32)) / size
        rate = rate.reshape(b, n, group, h).transpose(1, 0, 3, 2)
        w = jnp.broadcast_to(p["w"].astype(F32), (b, h, size, size))
        bias = jnp.zeros((b, h, 1, size))
        shifts = (p["inner"][0, :, None].astype(F32), p["inner"][1, :, None].astype(F32))
        _, z = lax.scan(jax.checkpoint(inner), (w, bias, *shifts), (q, k, v, rate))
        z = z.transpose(1, 0, 3, 2, 4).reshape(b, s, d)
        z = layer_norm(z).astype(BF16) * jax.nn.gelu(y @ p["g"])
        x = x + z @ p["out"]
        return x + swiglu(rms(x, p["norm"][1]), p)

    def step(state: Any, tokens: Any) -> Any:
        def loss(params: Any) -> Any:
            p = half(params)
            x = p["table"][tokens[:, :-1]]
            for q in p["layers"]:
                x = layer(x, q)
            return cross_entropy(rms(x, p["last"]) @ p["table"].T, tokens[:, 1:]).mean()

        return adamw(state, loss)

    one = {name: master(d, d) for name in ("q", "k", "v", "g", "out")} | {"rate": master(d, h)}
    one |= {"b_rate": Arg((h,)), "w": Arg((h, size, size), scale=0.02), "norm": Arg((2, d))}
    one |= {"inner": Arg((2, h, size), scale=0.2)} | swiglu_weights(d, 2048)
    params = {"layers": [one] * 2, "table": Arg((words, d), scale=0.02), "last": Arg((d,))}
    yield "linear", carried(step, adamw_start(params), Arg((b, s + 1), I32, below=words))


class Conformer(nn.Module):
    """A layer: half a perceptron, attention, a convolution, half a perceptron."""

    d: int

    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        drop = partial(nn.Dropout, 0.1, deterministic=not train)

        def mixed(x: Any) -> Any:
            y = nn.LayerNorm(dtype=BF16)(x)
            y = drop()(nn.swish(nn.Dense(4 * self.d, dtype=BF16)(y)))
            return drop()(nn.Dense(self.d, dtype=BF16)(y))

        x = x + 0.5 * mixed(x)
        y = nn.LayerNorm(dtype=BF16)(x)
        x = x + drop()(nn.MultiHeadDotProductAttention(6, dtype=BF16)(y, y))
        y = nn.LayerNorm(dtype=BF16)(x)
        y = nn.glu(nn.Dense(2 * self.d, dtype=BF16)(y))
        y = nn.Conv(self.d, (15,), feature_group_count=self.d, use_bias=False, dtype=BF16)(y)
        y = nn.swish(nn.GroupNorm(1, dtype=BF16)(y))
        x = x + drop()(nn.Dense(self.d, dtype=BF16)(y))
        x = x + 0.5 * mixed(x)
        return nn.LayerNorm(dtype=BF16)(x)


class Listener(nn.Module):
    """Frames of sound, four of which become one."""

    d: int = 384
    codes: int = 8192

    @nn.compact
    def __call__(self, x: Any, train: bool = True) -> Any:
        x = nn.relu(nn.Conv(96, (3, 3), (2, 2), dtype=BF16)(x[..., None]))
        x = nn.relu(nn.Conv(self.d // 2, (3, 3), (2, 2), dtype=BF16)(x))
        x = x.reshape(*x.shape[:2], -1)
        x = nn.Dense(self.d, dtype=BF16)(x)
        x = nn.Dropout(0.1)(x, not train)
        for _ in range(3):
            x = Conformer(self.d)(x, train)
        return nn.Dense(self.codes, dtype=BF16)(x)


def lingvo() -> Zoo:
    """BEST-RQ: a Conformer guesses hidden frames by codes of a random projection."""
    model, b, frames, mel = Listener(), 10, 1000, 80
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(4e-4, b2=0.98, eps=1e-9))

    def step(state: Any, sound: Any, lengths: Any, ways: Any, codes: Any, key: Any) -> Any:
        one, two, three = jax.random.split(key, 3)
        mean, spread = sound.mean((0, 1)), sound.std((0, 1))
        sound = (sound - mean) / (spread + 1e-5)
        stacked = sound.reshape(b, frames // 4, 4 * mel)
        seen = stacked @ ways
        seen = seen / (jnp.linalg.norm(seen, axis=-1, keepdims=True) + 1e-6)
        codes = codes / (jnp.linalg.norm(codes, axis=-1, keepdims=True) + 1e-6)
        goals = jnp.argmax(seen @ codes.T, -1)
        starts = jax.random.bernoulli(one, 0.01, (b, frames // 4)).astype(F32)
        spans = lax.reduce_window(starts, 0.0, lax.add, (1, 10), (1, 1), ((0, 0), (9, 0))) > 0
        hidden = jnp.repeat(spans, 4, 1)[..., None]
        noise = 0.1 * jax.random.normal(two, sound.shape)
        sound = jnp.where(hidden, noise, sound)
        real = jnp.arange(frames // 4) < 100 + lengths[:, None]

        def loss(params: Any) -> Any:
            logits = model.apply(params, sound, rngs={"dropout": three}).astype(F32)
            counted = spans & real
            found = optax.softmax_cross_entropy_with_integer_labels(logits, goals)
            right = ((logits.argmax(-1) == goals) & counted).sum()
            return (found * counted).sum() / (counted.sum() + 1), right

        (value, right), slopes = jax.value_and_grad(loss, has_aux=True)(state[0])
        return applied(rule, *state, slopes), (value, right)

    params = linen_weights(model, Arg((b, frames, mel)))
    given = (Arg((b, frames, mel)), Arg((b,), I32, below=150), Arg((4 * mel, 16)), Arg((8192, 16)))
    yield "best_rq", carried(step, started(rule, params), *given, _KEY)


class Windows(nn.Module):
    """Attention in windows with relative biases, and a perceptron."""

    size: int = 7
    grid: bool = False

    @nn.compact
    def __call__(self, x: Any) -> Any:
        b, h, w, c = x.shape
        s = self.size
        y = nn.LayerNorm(dtype=BF16)(x)
        if self.grid:
            y = y.reshape(b, s, h // s, s, w // s, c).transpose(0, 2, 4, 1, 3, 5)
        else:
            y = y.reshape(b, h // s, s, w // s, s, c).transpose(0, 1, 3, 2, 4, 5)
        y = y.reshape(-1, s * s, c)
        q, k, v = jnp.split(heads(nn.Dense(3 * c, dtype=BF16)(y), 32), 3, 2)
        table = self.param("bias", nn.initializers.normal(0.02), ((2 * s - 1) ** 2, c // 32))
        at = np.stack(np.meshgrid(np.arange(s), np.arange(s), indexing="ij"), -1).reshape(-1, 2)
        gap = at[:, None] - at + s - 1
        bias = table[gap[..., 0] * (2 * s - 1) + gap[..., 1]].transpose(2, 0, 1)[None]
        y = nn.Dense(c, dtype=BF16)(attention(q, k, v, bias=bias))
        if self.grid:
            y = y.reshape(b, h // s, w // s, s, s, c).transpose(0, 3, 1, 4, 2, 5)
        else:
            y = y.reshape(b, h // s, w // s, s, s, c).transpose(0, 1, 3, 2, 4, 5)
        x = x + y.reshape(b, h, w, c)
        y = nn.LayerNorm(dtype=BF16)(x)
        y = nn.Dense(c, dtype=BF16)(nn.gelu(nn.Dense(4 * c, dtype=BF16)(y)))
        return x + y


class Affine(nn.Module):
    """A norm with known statistics, as a scale and a shift."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        shift = self.param("shift", nn.initializers.zeros, (x.shape[-1],))
        return x * scale.astype(x.dtype) + shift.astype(x.dtype)


class MaxViT(nn.Module):
    """Inverted bottlenecks, windows, and grids at four sizes."""

    depths: tuple[int, ...] = (1, 1, 2, 1)
    widths: tuple[int, ...] = (64, 128, 256, 512)

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.gelu(nn.Conv(64, (3, 3), (2, 2), dtype=BF16)(x))
        x = nn.Conv(64, (3, 3), dtype=BF16)(x)
        for depth, c in zip(self.depths, self.widths, strict=True):
            for i in range(depth):
                stride = 2 if i == 0 else 1
                y = Affine()(x)
                y = nn.gelu(Affine()(nn.Conv(4 * c, (1, 1), use_bias=False, dtype=BF16)(y)))
                y = nn.Conv(
                    *(4 * c, (3, 3), (stride, stride)),
                    feature_group_count=4 * c,
                    use_bias=False,
                    dtype=BF16,
                )(y)
                y = nn.gelu(Affine()(y))
                z = y.astype(F32).mean((1, 2)).astype(BF16)
                z = nn.Dense(4 * c, dtype=BF16)(nn.silu(nn.Dense(c, dtype=BF16)(z)))
                y = y * nn.sigmoid(z)[:, None, None]
                y = nn.Conv(c, (1, 1), dtype=BF16)(y)
                if i == 0:
                    x = nn.avg_pool(x, (2, 2), (2, 2))
                    x = nn.Conv(c, (1, 1), dtype=BF16)(x)
                x = Windows(grid=True)(Windows()(x + y))
        x = nn.LayerNorm(dtype=BF16)(x.mean((1, 2)))
        x = jnp.tanh(nn.Dense(512, dtype=BF16)(x))
        return nn.Dense(1000, dtype=F32)(x)


def maxvit() -> Zoo:
    """MaxViT's answer for 24 pictures: attention in windows, then on a grid."""
    model, b = MaxViT(), 24

    def predict(params: Any, image: Any) -> Any:
        mean, spread = jnp.array([0.485, 0.456, 0.406]), jnp.array([0.229, 0.224, 0.225])
        image = (image.astype(F32) / 255 - mean) / spread
        logits = model.apply(params, image.astype(BF16))
        return lax.top_k(jax.nn.softmax(logits), 5)

    params = linen_weights(model, Arg((b, 224, 224, 3), BF16))
    yield "predict", program(predict, params, Arg((b, 224, 224, 3), U8, below=256))


class ResnetBlock(nn.Module):
    """Two convolutions, normed by groups."""

    out: int
    dtype: Any = F32

    @nn.compact
    def __call__(self, x: Any) -> Any:
        y = nn.swish(nn.GroupNorm(32, epsilon=1e-6, dtype=self.dtype)(x))
        y = nn.Conv(self.out, (3, 3), padding=((1, 1), (1, 1)), dtype=self.dtype)(y)
        y = nn.swish(nn.GroupNorm(32, epsilon=1e-6, dtype=self.dtype)(y))
        y = nn.Conv(self.out, (3, 3), padding=((1, 1), (1, 1)), dtype=self.dtype)(y)
        if x.shape[-1] != self.out:
            x = nn.Conv(self.out, (1, 1), dtype=self.dtype)(x)
        return x + y


class AutoencoderEncoder(nn.Module):
    """From pictures to means and deviations of latents."""

    widths: tuple[int, ...] = (128, 256, 512, 512)
    dtype: Any = BF16

    @nn.compact
    def __call__(self, x: Any) -> Any:
        t = self.dtype
        x = nn.Conv(self.widths[0], (3, 3), padding=((1, 1), (1, 1)), dtype=t)(x)
        for i, c in enumerate(self.widths):
            x = ResnetBlock(c, t)(x)
            x = ResnetBlock(c, t)(x)
            if i < len(self.widths) - 1:
                x = jnp.pad(x, ((0, 0), (0, 1), (0, 1), (0, 0)))
                x = nn.Conv(c, (3, 3), (2, 2), "VALID", dtype=t)(x)
        x = ResnetBlock(c, t)(x)
        b, h, w, c = x.shape
        y = nn.GroupNorm(32, epsilon=1e-6, dtype=t)(x).reshape(b, h * w, c)
        q, k, v = (nn.Dense(c, dtype=t)(y)[:, :, None] for _ in range(3))
        x = x + nn.Dense(c, dtype=t)(attention(q, k, v)).reshape(x.shape)
        x = ResnetBlock(c, t)(x)
        x = nn.swish(nn.GroupNorm(32, epsilon=1e-6, dtype=t)(x))
        x = nn.Conv(8, (3, 3), padding=((1, 1), (1, 1)), dtype=t)(x)
        return nn.Conv(8, (1, 1), dtype=t)(x)


def diffusers() -> Zoo:
    """Latents of three pictures of 320 x 320 by Stable Diffusion's encoder, drawn at random."""
    model, b = AutoencoderEncoder(), 3

    def encode(params: Any, pictures: Any, key: Any) -> Any:
        x = pictures.astype(F32) / 127.5 - 1
        moments = model.apply(params, x.astype(BF16)).astype(F32)
        mean, logvar = jnp.split(moments, 2, -1)
        spread = jnp.exp(0.5 * jnp.clip(logvar, -30.0, 20.0))
        return 0.18215 * (mean + spread * jax.random.normal(key, mean.shape))

    params = linen_weights(model, Arg((b, 320, 320, 3), BF16))
    yield "autoencoder_kl", program(encode, params, Arg((b, 320, 320, 3), U8, below=256), _KEY)


class ScoreNet(nn.Module):
    """Residual blocks at one size, with Fourier features of the picture."""

    c: int = 128
    depth: int = 4

    @nn.compact
    def __call__(self, z: Any, gamma: Any, train: bool = True) -> Any:
        t = (gamma + 13.3) / 18.3
        angle = 1000 * t[:, None] * jnp.exp(-jnp.arange(64) * math.log(1e4) / 63)
        time = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1)
        time = nn.swish(nn.Dense(4 * self.c)(time))
        time = nn.swish(nn.Dense(4 * self.c)(time))
        turns = jnp.concatenate([z * (2.0**k * jnp.pi) for k in (6, 7)], -1)
        x = nn.Conv(self.c, (3, 3))(jnp.concatenate([z, jnp.sin(turns), jnp.cos(turns)], -1))

        def block(x: Any) -> Any:
            y = nn.Conv(self.c, (3, 3))(nn.swish(nn.GroupNorm(32)(x)))
            y = y + nn.Dense(self.c, use_bias=False)(time)[:, None, None]
            y = nn.swish(nn.GroupNorm(32)(y))
            y = nn.Conv(self.c, (3, 3))(nn.Dropout(0.1)(y, not train))
            return y + (x if x.shape[-1] == self.c else nn.Dense(self.c)(x))

        kept = [x]
        for _ in range(self.depth):
            kept.append(block(kept[-1]))
        x = block(kept[-1])
        y = nn.GroupNorm(32)(x).reshape(x.shape[0], -1, self.c)
        q, k, v = (nn.Dense(self.c)(y)[:, :, None] for _ in range(3))
        x = block(x + nn.Dense(self.c)(attention(q, k, v)).reshape(x.shape))
        for y in kept[::-1]:
            x = block(jnp.concatenate([x, y], -1))
        x = nn.Conv(3, (3, 3))(nn.swish(nn.GroupNorm(32)(x)))
        return z + x


class NoiseSchedule(nn.Module):
    """A monotonic function of time."""

    @nn.compact
    def __call__(self, t: Any) -> Any:
        low, high = self.param("ends", nn.initializers.zeros, (2,))
        w1 = jnp.abs(self.param("w1", nn.initializers.normal(0.1), (1, 1)))
        w2 = jnp.abs(self.param("w2", nn.initializers.normal(0.1), (1, 1024)))
        w3 = jnp.abs(self.param("w3", nn.initializers.normal(0.1), (1024, 1)))
        y = t[:, None] @ w1
        wide = 2 * (nn.sigmoid(y @ w2) - 0.5)
        return -13.3 + low + (18.3 + high) * (y + wide @ w3 / 1024)[:, 0]


def vdm() -> Zoo:
    """A variational diffusion model in continuous time learns 24 pictures and its schedule."""
    net, schedule, b = ScoreNet(), NoiseSchedule(), 24
    rule = optax.adamw(2e-4, b2=0.99, weight_decay=0.01)

    def step(state: Any, pictures: Any, key: Any) -> Any:
        params, slow, moments = state
        keys = jax.random.split(key, 4)
        x = pictures.astype(F32)
        f = 2 * ((x + 0.5) / 256) - 1
        start = jax.random.uniform(keys[0])
        t = jnp.mod(start + jnp.arange(b) / b, 1.0)

        def loss(params: Any) -> Any:
            def at(t: Any) -> Any:
                return schedule.apply(params["schedule"], t)

            g0, g1 = at(jnp.zeros(1)), at(jnp.ones(1))
            alpha, var = jnp.sqrt(nn.sigmoid(-g0)), nn.sigmoid(g0)
            noise = jax.random.normal(keys[1], f.shape)
            z0 = f + jnp.exp(0.5 * g0) * noise
            bins = 2 * ((jnp.arange(256) + 0.5) / 256) - 1
            error = jnp.square((z0[..., None] - bins) * jnp.exp(-0.5 * g0))
            told = jax.nn.log_softmax(-0.5 * error, -1)
            told = jnp.take_along_axis(told, pictures.astype(I32)[..., None], -1)
            rebuilt = -told.sum((1, 2, 3, 4))
            mean = (1 - nn.sigmoid(g1)) * jnp.square(f)
            last = 0.5 * (mean + nn.sigmoid(g1) - jnp.log(nn.sigmoid(g1)) - 1).sum((1, 2, 3))
            gamma, speed = jax.jvp(at, (t,), (jnp.ones_like(t),))
            high = nn.sigmoid(gamma)[:, None, None, None]
            noise = jax.random.normal(keys[2], f.shape)
            z = jnp.sqrt(1 - high) * f + jnp.sqrt(high) * noise
            guess = net.apply(params["net"], z, gamma, rngs={"dropout": keys[3]})
            diffused = 0.5 * speed * jnp.square(noise - guess).sum((1, 2, 3))
            scale = 1 / (math.prod(f.shape[1:]) * math.log(2))
            parts = [scale * part.mean() for part in (rebuilt, last, diffused)]
            return sum(parts), (parts, alpha, var)

        (value, parts), slopes = jax.value_and_grad(loss, has_aux=True)(params)
        params, moments = applied(rule, params, moments, slopes)
        slow = jax.tree.map(lambda s, p: 0.9999 * s + 0.0001 * p, slow, params)
        return (params, slow, moments), value, parts

    params = {"net": linen_weights(net, Arg((b, 32, 32, 3)), Arg((b,)))}
    params["schedule"] = linen_weights(schedule, Arg((b,)))
    state = (params, params, states_of(rule, params))
    yield "train", carried(step, state, Arg((b, 32, 32, 3), U8, below=256), _KEY)


def plenoxels() -> Zoo:
    """Densities and harmonics on a grid of 128^3 cells: 4,096 rays, total variation, RMSProp."""
    side, rays, points = 128, 4096, 112

    def harmonics(way: Any) -> Any:
        x, y, z = way[:, 0], way[:, 1], way[:, 2]
        one = 0.28209479 * jnp.ones_like(x)
        parts = [one, -0.48860251 * y, 0.48860251 * z, -0.48860251 * x, 1.09254843 * x * y]
        parts += [-1.09254843 * y * z, 0.31539157 * (2 * z * z - x * x - y * y)]
        return jnp.stack([*parts, -1.09254843 * x * z, 0.54627421 * (x * x - y * y)], -1)

    def colours(grid: Any, start: Any, way: Any, shake: Any) -> Any:
        basis = harmonics(way)
        t = (jnp.arange(points) + shake[:, None]) * (3.4 / points) + 0.3
        x = (start[:, None] + t[..., None] * way[:, None] + 1) * (side - 1) / 2
        inside = ((x > 0) & (x < side - 1)).all(-1)
        x = jnp.clip(x, 0.0, side - 1.001)
        low = jnp.floor(x).astype(I32)
        part = x - low
        table = grid.reshape(-1, grid.shape[-1])
        found = 0.0
        for corner in np.ndindex(2, 2, 2):
            c = jnp.array(corner)
            at = low + c
            share = jnp.where(c == 1, part, 1 - part).prod(-1)
            index = (at[..., 0] * side + at[..., 1]) * side + at[..., 2]
            found = found + share[..., None] * table[index]
        density = jax.nn.relu(found[..., 0]) * inside
        colour = found[..., 1:].reshape(rays, points, 3, 9)
        colour = jax.nn.sigmoid((colour * basis[:, None, None]).sum(-1))
        depth = density * (3.4 / points) * 10
        before = jnp.cumsum(depth, 1) - depth
        shares = jnp.exp(-before) * (1 - jnp.exp(-depth))
        left = jnp.exp(-depth.sum(1))
        return (shares[..., None] * colour).sum(1) + left[:, None]

    def step(state: Any, start: Any, way: Any, pixels: Any, key: Any) -> Any:
        grid, second = state
        way = jnp.roll(way, 7, 0)
        way = way / jnp.linalg.norm(way, axis=-1, keepdims=True)
        start = -2 * way + 0.2 * start
        shake = jax.random.uniform(key, (rays,))

        def loss(grid: Any) -> Any:
            error = colours(grid, start, way, shake) - pixels.astype(F32) / 255
            rough = 0.0
            for axis in range(3):
                rough = rough + jnp.square(jnp.diff(grid, axis=axis)).mean()
            return jnp.square(error).mean() + 1e-4 * rough

        value, slope = jax.value_and_grad(loss)(grid)
        second = 0.95 * second + 0.05 * jnp.square(slope)
        grid = grid - 0.1 * slope * lax.rsqrt(second + 1e-8)
        return (grid, second), value, -10 * jnp.log10(value)

    grid = Arg((side, side, side, 28), scale=0.1)
    state = (grid, Arg(grid.shape, scale=0.0))
    given = (Arg((rays, 3)), Arg((rays, 3)), Arg((rays, 3), U8, below=256), _KEY)
    yield "step", carried(step, state, *given)


def lidar() -> Zoo:
    """PointPillars in float16: pillars of points become a map, which three sizes look at."""
    b, pillars, points, tall, wide, anchors = 2, 12000, 32, 496, 432, 6
    blocks = ((64, 64, 4), (64, 128, 6), (128, 256, 6))

    def norm(x: Any, p: Any) -> Any:
        return jax.nn.relu(x * p[0] + p[1])

    def detect(p: Any, cloud: Any, cells: Any, counts: Any) -> Any:
        counts = counts + 1
        real = (jnp.arange(points) < counts[..., None])[..., None]
        mean = (cloud[..., :3] * real).sum(2, keepdims=True) / counts[..., None, None]
        row, column = cells // wide, cells % wide
        centre = jnp.stack([column * 0.16 + 0.08, row * 0.16 - 39.6], -1)[:, :, None]
        parts = [cloud, cloud[..., :3] - mean, cloud[..., :2] - centre]
        x = (jnp.concatenate(parts, -1) * real).astype(F16)
        x = norm(x @ p["in"], p["in_norm"])
        x = jnp.where(real, x, 0).max(2)
        canvas = jnp.zeros((b, tall * wide, 64), F16)
        x = jax.vmap(lambda c, i, y: c.at[i].set(y))(canvas, cells, x)
        x = x.reshape(b, tall, wide, 64)
        levels = []
        for i, layers in enumerate(p["blocks"]):
            for j, (w, q) in enumerate(layers):
                x = norm(conv(x, w, 2 if j == 0 else 1), q)
            w, q = p["up"][i]
            k = 2**i
            y = lax.conv_transpose(x, w, (k, k), "SAME")
            levels.append(norm(y, q))
        y = jnp.concatenate(levels, -1)
        scores = jax.nn.sigmoid((y @ p["scores"]).astype(F32)).reshape(b, -1, 3)
        boxes = (y @ p["boxes"]).astype(F32).reshape(b, -1, 7)
        turns = (y @ p["turns"]).reshape(b, -1, 2).argmax(-1)
        best, index = lax.top_k(scores.max(-1), 512)
        boxes = jnp.take_along_axis(boxes, index[..., None], 1)
        sizes = jnp.exp(jnp.clip(boxes[..., 3:6], -4.0, 4.0))
        return best, boxes[..., :3], sizes, jnp.take_along_axis(turns, index, 1)

    window = partial(filters, dtype=F16)

    def pair(c: int) -> Any:
        return Arg((2, c), F16)

    params = {"in": weight(9, 64, dtype=F16), "in_norm": pair(64), "blocks": [], "up": []}
    for i, (a, c, n) in enumerate(blocks):
        layers = [(window(3, 3, a, c), pair(c))] + [(window(3, 3, c, c), pair(c))] * (n - 1)
        params["blocks"].append(layers)
        params["up"].append((window(2**i, 2**i, c, 128), pair(128)))
    for name, n in (("scores", 3), ("boxes", 7), ("turns", 2)):
        params[name] = weight(384, n * anchors, dtype=F16)
    cells = Arg((b, pillars), I32, below=tall * wide)
    counts = Arg((b, pillars), I32, below=points)
    yield "pillars", program(detect, params, Arg((b, pillars, points, 4)), cells, counts)


def nowcasts() -> Zoo:
    """Training of a ConvLSTM: eight frames of rain are read, and eight more are foretold."""
    b, frames, side, c = 16, 8, 32, 64

    def cell(p: Any, state: Any, x: Any) -> Any:
        y, memory = state
        z = conv(jnp.concatenate([x, y], -1), p["w"]) + p["b"]
        i, f, o, g = jnp.split(z, 4, -1)
        i = jax.nn.sigmoid(i + p["peep"][0] * memory)
        f = jax.nn.sigmoid(f + 1 + p["peep"][1] * memory)
        memory = f * memory + i * jnp.tanh(g)
        y = jax.nn.sigmoid(o + p["peep"][2] * memory) * jnp.tanh(memory)
        return y, memory

    def step(state: Any, movie: Any) -> Any:
        x = movie.astype(F32) / 255
        x = x.reshape(b, 2 * frames, side, 2, side, 2).transpose(1, 0, 2, 4, 3, 5)
        x = x.reshape(2 * frames, b, side, side, 4)
        past, future = x[:frames], x[frames:]

        def loss(params: Any) -> Any:
            def read(states: Any, x: Any) -> Any:
                new = []
                for p, old in zip(params["read"], states, strict=True):
                    state = cell(p, old, x)
                    x = state[0]
                    new.append(state)
                return new, None

            def tell(carry: Any, _: Any) -> Any:
                states, x = carry
                new = []
                for p, old in zip(params["tell"], states, strict=True):
                    state = cell(p, old, x)
                    x = state[0]
                    new.append(state)
                every = jnp.concatenate([s[0] for s in new], -1)
                x = jax.nn.sigmoid(every @ params["out"] + params["b_out"])
                return (new, x), x

            zero = jnp.zeros((b, side, side, c))
            states, _ = lax.scan(read, [(zero, zero)] * 2, past)
            _, guess = lax.scan(tell, (states, past[-1]), None, frames)
            guess = jnp.clip(guess, 1e-5, 1 - 1e-5)
            right = future * jnp.log(guess) + (1 - future) * jnp.log(1 - guess)
            return -right.sum((2, 3, 4)).mean()

        return adamw(state, loss, 1e-3, 0.0, 0.999)

    def one(a: int) -> Any:
        p = {"w": filters(3, 3, a + c, 4 * c), "b": Arg((4 * c,), scale=0.1)}
        return p | {"peep": Arg((3, c), scale=0.1)}

    params = {"read": [one(4), one(c)], "tell": [one(4), one(c)]}
    params |= {"out": master(2 * c, 4), "b_out": Arg((4,), scale=0.1)}
    movie = Arg((b, 2 * frames, 2 * side, 2 * side), U8, below=256)
    yield "conv_lstm", carried(step, adamw_start(params), movie)


class SlotAttention(nn.Module):
    """Slots that compete for what a picture shows."""

    slots: int = 7
    d: int = 64

    @nn.compact
    def __call__(self, image: Any, noise: Any) -> Any:
        b = image.shape[0]
        grid = jnp.stack(jnp.meshgrid(*[jnp.linspace(0, 1, 64)] * 2, indexing="ij"), -1)
        grid = jnp.concatenate([grid, 1 - grid], -1)[None]
        x = image
        for _ in range(4):
            x = nn.relu(nn.Conv(64, (5, 5))(x))
        x = (x + nn.Dense(64)(grid)).reshape(b, -1, 64)
        x = nn.Dense(64)(nn.relu(nn.Dense(64)(nn.LayerNorm()(x))))
        x = nn.LayerNorm()(x)
        k, v = nn.Dense(self.d, use_bias=False)(x), nn.Dense(self.d, use_bias=False)(x)
        mean = self.param("mean", nn.initializers.xavier_uniform(), (1, self.d))
        spread = self.param("spread", nn.initializers.xavier_uniform(), (1, self.d))
        slots = mean + jnp.exp(spread) * noise
        ask, gru = nn.Dense(self.d, use_bias=False), nn.GRUCell(self.d)
        norms, one, two = (nn.LayerNorm(), nn.LayerNorm()), nn.Dense(128), nn.Dense(self.d)
        for _ in range(3):
            q = ask(norms[0](slots)) * self.d**-0.5
            shares = jax.nn.softmax(jnp.einsum("bnd,bsd->bns", k, q), -1) + 1e-8
            shares = shares / shares.sum(1, keepdims=True)
            seen = jnp.einsum("bns,bnd->bsd", shares, v)
            slots, _ = gru(slots, seen)
            slots = slots + two(nn.relu(one(norms[1](slots))))
        y = jnp.broadcast_to(slots.reshape(-1, 1, 1, self.d), (b * self.slots, 8, 8, self.d))
        y = y + nn.Dense(self.d)(grid[:, ::8, ::8])
        for _ in range(3):
            y = nn.relu(nn.ConvTranspose(64, (5, 5), (2, 2))(y))
        y = nn.relu(nn.ConvTranspose(64, (5, 5))(y))
        y = nn.ConvTranspose(4, (3, 3))(y).reshape(b, self.slots, 64, 64, 4)
        colours, masks = y[..., :3], jax.nn.softmax(y[..., 3:], 1)
        return (colours * masks).sum(1), masks


def objects() -> Zoo:
    """Slot attention takes 16 pictures apart into seven things, in float32."""
    model, b = SlotAttention(), 16
    rate = optax.warmup_exponential_decay_schedule(0.0, 4e-4, 10000, 100000, 0.5)
    rule = optax.adam(rate)

    def step(state: Any, pictures: Any, key: Any) -> Any:
        x = pictures.astype(F32) / 127.5 - 1
        noise = jax.random.normal(key, (b, model.slots, model.d))

        def loss(params: Any) -> Any:
            guess, masks = model.apply(params, x, noise)
            return jnp.square(guess - x).mean(), masks.max(1).mean()

        (value, sure), slopes = jax.value_and_grad(loss, has_aux=True)(state[0])
        return applied(rule, *state, slopes), (value, sure)

    params = linen_weights(model, Arg((b, 64, 64, 3)), Arg((b, 7, 64)))
    yield "slots", carried(step, started(rule, params), Arg((b, 64, 64, 3), U8, below=256), _KEY)


def processes() -> Zoo:
    """A convolutional neural process learns 48 functions, as an Equinox module under vmap."""
    b, known, asked, points = 48, 50, 100, 512
    widths = (32, 64, 128)

    def along(x: Any, w: Any, stride: int = 1) -> Any:
        return lax.conv_general_dilated(
            *(x[None], w, (stride,), "SAME"), dimension_numbers=("NCH", "OIH", "NCH")
        )[0]

    def one(p: Any, x: Any, y: Any, where: Any) -> Any:
        grid = jnp.linspace(-3.0, 3.0, points)
        wide = jnp.exp(p["wide"])
        near = jnp.exp(-0.5 * jnp.square((grid[:, None] - x) / wide[0]))
        density = near.sum(1)
        mean = near @ y / (density + 1e-5)
        z = p["in"] @ jnp.stack([density, mean, grid])
        kept = []
        for w, bias in p["down"]:
            z = jax.nn.relu(along(z, w, 2) + bias[:, None])
            kept.append(z)
        for i, (w, bias) in enumerate(p["up"]):
            z = jnp.repeat(z, 2, 1)
            z = jax.nn.relu(along(z, w) + bias[:, None])
            if i < len(kept) - 1:
                z = jnp.concatenate([z, kept[-2 - i]], 0)
        near = jnp.exp(-0.5 * jnp.square((where[:, None] - grid) / wide[1]))
        z = near @ z.T / (near.sum(1, keepdims=True) + 1e-5)
        mean, spread = jnp.split(perceptron(z, p["head"]), 2, -1)
        return mean[:, 0], 0.01 + 0.99 * jax.nn.softplus(spread[:, 0])

    def step(state: Any, x: Any, y: Any, where: Any, goal: Any) -> Any:
        def loss(p: Any) -> Any:
            mean, spread = jax.vmap(one, (None, 0, 0, 0))(p, x, y, where)
            found = jax.scipy.stats.norm.logpdf(goal, mean, spread)
            return -found.sum(1).mean()

        return adamw(state, loss, 5e-4, 0.0, 0.999)

    def window(a: int, c: int) -> Any:
        return (Arg((c, a, 5), scale=(5 * a) ** -0.5), Arg((c,), scale=0.1))

    one_, two, three = widths
    params = {"wide": Arg((2,), scale=0.3), "in": Arg((one_, 3), scale=0.5)}
    params |= {"down": [window(one_, one_), window(one_, two), window(two, three)]}
    params |= {"up": [window(three, two), window(2 * two, one_), window(2 * one_, one_)]}
    params |= {"head": full(one_, 64, 2)}
    given = (Arg((b, known)), Arg((b, known)), Arg((b, asked)), Arg((b, asked)))
    yield "conv_cnp", carried(step, adamw_start(params), *given)


def harmonics(x: Any, y: Any, z: Any, m: Any = jnp) -> Any:
    """Nine real spherical harmonics of unit vectors, of degrees 0 to 2."""
    parts = [0.28209479 + 0 * x, 0.48860251 * y, 0.48860251 * z, 0.48860251 * x]
    parts += [1.09254843 * x * y, 1.09254843 * y * z, 0.31539157 * (3 * z * z - 1)]
    return m.stack([*parts, 1.09254843 * x * z, 0.54627421 * (x * x - y * y)], -1)


def gaunt() -> Any:
    """Integrals of three of them over the sphere."""
    z, shares = np.polynomial.legendre.leggauss(8)
    turn = np.arange(16) * np.pi / 8
    z, turn = np.repeat(z, 16), np.tile(turn, 8)
    shares = np.repeat(shares, 16) * np.pi / 8
    r = np.sqrt(1 - z * z)
    y = harmonics(r * np.cos(turn), r * np.sin(turn), z, np)
    found = np.einsum("n,na,nb,nc->abc", shares, y, y, y)
    return np.where(np.abs(found) > 1e-6, found, 0.0).astype(np.float32)


def mace() -> Zoo:
    """MACE learns energies and forces: products of two and three tensors of 48 channels."""
    n, e, c, kinds, graphs, bases = 768, 14000, 48, 10, 24, 8
    table = gaunt()
    degree = np.array([0, 1, 1, 1, 2, 2, 2, 2, 2])
    rule = optax.chain(optax.clip_by_global_norm(10.0), optax.amsgrad(1e-2))

    def energies(p: Any, places: Any, species: Any, one: Any, two: Any, group: Any) -> Any:
        gap = places[two] - places[one]
        far = jnp.sqrt(jnp.square(gap).sum(-1) + 1e-6)
        unit = gap / far[:, None]
        y = harmonics(unit[:, 0], unit[:, 1], unit[:, 2])
        u = jnp.minimum(far / 5.0, 1.0)
        smooth = 1 - 21 * u**5 + 35 * u**6 - 15 * u**7
        waves = jnp.sin(jnp.arange(1, bases + 1) * jnp.pi * u[:, None]) / far[:, None]
        radial_in = waves * smooth[:, None]
        mixed = jnp.einsum("abk,eb->eak", table, y)
        x = jnp.zeros((n, 9, c)).at[:, 0].set(p["kinds"][species])
        total = p["own"][species]
        for q in p["layers"]:
            radial = perceptron(radial_in, q["radial"], jax.nn.silu).reshape(e, 3, c)
            h = jnp.einsum("nac,acd->nad", x, q["up"][degree])
            sent = jnp.einsum("eac,eak->ekc", h[one], mixed) * radial[:, degree]
            a = jax.ops.segment_sum(sent, two, n) / 16.0
            a = jnp.einsum("nac,acd->nad", a, q["mix"][degree])
            pair = jnp.einsum("nac,nbc,abk->nkc", a, a, table)
            triple = jnp.einsum("nac,nbc,abk->nkc", pair, a, table)
            w = q["kinds"][species]
            b = w[:, 0, degree] * a + w[:, 1, degree] * pair + w[:, 2, degree] * triple
            x = jnp.einsum("nac,acd->nad", b, q["out"][degree]) + x * q["skip"][degree]
            total = total + perceptron(x[:, 0], q["read"], jax.nn.silu)[:, 0]
        return jax.ops.segment_sum(total, group, graphs)

    def step(state: Any, atoms: Any, ids: Any, goals: Any) -> Any:
        places, species = atoms
        one, two = ids[0], jnp.roll(ids[1], 4321)
        group = jnp.arange(n) // (n // graphs)
        energy, force = goals

        def loss(p: Any) -> Any:
            def summed(places: Any) -> Any:
                found = energies(p, places, species, one, two, group)
                return found.sum(), found

            slopes, found = jax.grad(summed, has_aux=True)(places)
            error = jnp.square((found - energy) / (n // graphs)).mean()
            return error + 100 * jnp.square(slopes + 0.1 * force).mean()

        return learned(rule, loss, state)

    layer = {"radial": full(bases, 64, 64, 3 * c), "up": master(3, c, c), "mix": master(3, c, c)}
    layer |= {"kinds": Arg((kinds, 3, 3, c), scale=0.3), "out": master(3, c, c)}
    layer |= {"skip": Arg((3, c), scale=0.3), "read": full(c, 16, 1)}
    params = {"kinds": Arg((kinds, c)), "own": Arg((kinds,)), "layers": [layer] * 2}
    atoms = (Arg((n, 3), scale=1.6), Arg((n,), I32, below=kinds))
    ids = (Arg((e,), I32, below=n), Arg((e,), I32, below=n))
    goals = (Arg((graphs,)), Arg((n, 3)))
    yield "energies_forces", carried(step, started(rule, params), atoms, ids, goals)


class QNetwork(nn.Module):
    """Values of moves on small pictures, with layer norms instead of a target."""

    actions: int = 6

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.Conv(32, (3, 3), padding="VALID")(x)
        x = nn.relu(nn.LayerNorm()(x))
        x = x.reshape(*x.shape[:-3], -1)
        for _ in range(2):
            x = nn.relu(nn.LayerNorm()(nn.Dense(256)(x)))
        return nn.Dense(self.actions)(x)


def purejaxql() -> Zoo:
    """PQN on MinAtar: returns by lambda over 32 moves of 128 games, two passes in four parts."""
    model, t, n, parts = QNetwork(), 32, 128, 4
    rule = optax.chain(optax.clip_by_global_norm(10.0), optax.radam(5e-4))

    def update(state: Any, seen: Any, moves: Any, rewards: Any, ended: Any, key: Any) -> Any:
        frames = seen.astype(F32)
        done = (ended == 0).astype(F32)

        def back(carry: Any, given: Any) -> Any:
            value, best = carry
            reward, done, q = given
            goal = reward + 0.99 * (1 - done) * best
            value = goal + 0.99 * 0.65 * (1 - done) * (value - best)
            return (value, q.max(-1)), value

        every = model.apply(state[0], frames)
        last = every[-1].max(-1)
        given = (rewards, done, every[:-1])
        _, goals = lax.scan(back, (last, last), given, reverse=True)
        data = (frames[:-1], moves, goals)
        data = jax.tree.map(lambda x: x.reshape(t * n, *x.shape[2:]), data)

        def part(state: Any, given: Any) -> Any:
            frames, moves, goals = given

            def loss(params: Any) -> Any:
                q = model.apply(params, frames)
                q = jnp.take_along_axis(q, moves[:, None], -1)[:, 0]
                return 0.5 * jnp.square(q - goals).mean()

            return learned(rule, loss, state)

        def epoch(state: Any, key: Any) -> Any:
            order = jax.random.permutation(key, t * n)

            def shared(x: Any) -> Any:
                return x[order].reshape(parts, -1, *x.shape[1:])

            return lax.scan(part, state, jax.tree.map(shared, data))

        return lax.scan(epoch, state, jax.random.split(key, 2))

    params = linen_weights(model, Arg((n, 10, 10, 4)))
    given = (Arg((t + 1, n, 10, 10, 4), jnp.bool_), Arg((t, n), I32, below=6), Arg((t, n)))
    given = (*given, Arg((t, n), I32, below=40), _KEY)
    yield "pqn", carried(update, started(rule, params), *given)


def crossings() -> Zoo:
    """xDeepFM on clicks: outer products of 32 fields in two layers, and dense Adam of its table."""
    b, fields, d, rows, sizes = 2048, 32, 12, 400000, (64, 64)
    rule = optax.adam(1e-3)

    def step(state: Any, ids: Any, numbers: Any, clicks: Any) -> Any:
        ids = (ids + jnp.arange(fields) * 12000) % rows
        clicks = (clicks == 0).astype(F32)

        def loss(p: Any) -> Any:
            x = p["table"][ids]
            line = p["line"][ids].sum(1) + numbers @ p["line_numbers"]
            y, pools = x, []
            for w, bias in p["crosses"]:
                pairs = y[:, :, None] * x[:, None]
                y = jnp.einsum("bhfd,hfo->bod", pairs, w) + bias[:, None]
                y = jax.nn.relu(y)
                pools.append(y.sum(-1))
            crossed = jnp.concatenate(pools, -1) @ p["crossed"]
            deep = perceptron(jnp.concatenate([x.reshape(b, -1), numbers], -1), p["deep"])[:, 0]
            logits = line + crossed + deep
            rough = 1e-5 * sum(jnp.square(w).sum() for w, _ in p["crosses"])
            return optax.sigmoid_binary_cross_entropy(logits, clicks).mean() + rough

        return learned(rule, loss, state)

    params = {"table": Arg((rows, d), scale=0.01), "line": Arg((rows,), scale=0.01)}
    params |= {"line_numbers": Arg((13,), scale=0.1), "crossed": Arg((sum(sizes),), scale=0.1)}
    params["crosses"] = [
        (Arg((h, fields, o), scale=(h * fields) ** -0.5), Arg((o,), scale=0.1))
        for h, o in ((fields, sizes[0]), (sizes[0], sizes[1]))
    ]
    params |= {"deep": full(fields * d + 13, 400, 400, 1)}
    given = (Arg((b, fields), I32, below=12000), Arg((b, 13)), Arg((b,), I32, below=4))
    yield "xdeepfm", carried(step, started(rule, params), *given)


def pangu() -> Zoo:
    """Pangu's weather: windows of heights, latitudes and longitudes, with biases of their place."""
    levels, tall, wide, d, window = 8, 48, 96, 192, (2, 6, 12)
    tokens = math.prod(window)

    def layer(x: Any, p: Any, shifted: bool) -> Any:
        z, h, w, c = x.shape
        counts = (z // window[0], h // window[1], w // window[2])
        y = x
        if shifted:
            y = jnp.roll(y, [-s // 2 for s in window], (0, 1, 2))
        y = y.reshape(counts[0], window[0], counts[1], window[1], counts[2], window[2], c)
        y = y.transpose(4, 0, 2, 1, 3, 5, 6).reshape(counts[2], -1, tokens, c)
        q, k, v = jnp.split(heads(y @ p["qkv"] + p["b_qkv"], 32), 3, 3)
        scores = jnp.einsum("ltqhd,ltkhd->lthqk", q, k).astype(F32) * 32**-0.5
        scores = scores + p["bias"][:, p["near"]].transpose(0, 3, 1, 2)
        if shifted:
            part = jnp.zeros((z, h), I32).at[-1:].add(2).at[:, -3:].add(1)
            part = part.reshape(counts[0], 2, counts[1], 6).transpose(0, 2, 1, 3)
            part = jnp.repeat(part.reshape(-1, 12), 12, -1)
            apart = part[:, :, None] != part[:, None]
            scores = jnp.where(apart[:, None], -100.0, 0.0) + scores
        shares = jax.nn.softmax(scores, -1).astype(BF16)
        y = jnp.einsum("lthqk,ltkhd->ltqhd", shares, v).reshape(*v.shape[:3], c) @ p["out"]
        y = y.reshape(counts[2], counts[0], counts[1], *window, c)
        y = y.transpose(1, 3, 2, 4, 0, 5, 6).reshape(x.shape)
        if shifted:
            y = jnp.roll(y, [s // 2 for s in window], (0, 1, 2))
        x = x + layer_norm(y, p["scale"][0], p["shift"][0])
        y = jax.nn.gelu(x @ p["up"] + p["b_up"]) @ p["down"]
        return x + layer_norm(y, p["scale"][1], p["shift"][1])

    def near() -> Any:
        at = np.stack(np.meshgrid(*map(np.arange, window), indexing="ij"), -1).reshape(-1, 3)
        rows = at[:, None, 0] + 2 * at[None, :, 0]
        columns = at[:, None, 1] + 6 * at[None, :, 1]
        gap = at[:, None, 2] - at[None, :, 2] + 11
        return (rows * 36 + columns) * 23 + gap

    places = near()

    def forecast(p: Any, upper: Any, surface: Any, masks: Any) -> Any:
        air = upper.reshape(7, 2, 48, 4, 96, 4, 5).transpose(0, 2, 4, 1, 3, 5, 6)
        air = air.reshape(7, 48, 96, -1).astype(BF16) @ p["in_air"]
        ground = jnp.concatenate([surface, masks], -1).reshape(48, 4, 96, 4, 7)
        ground = ground.transpose(0, 2, 1, 3, 4).reshape(48, 96, -1).astype(BF16) @ p["in_ground"]
        x = jnp.concatenate([ground[None], air])
        for i, q in enumerate(p["one"]):
            x = layer(x, q | {"near": places}, i % 2 == 1)
        kept = x
        x = x.reshape(levels, tall // 2, 2, wide // 2, 2, d).transpose(0, 1, 3, 2, 4, 5)
        x = layer_norm(x.reshape(levels, tall // 2, wide // 2, 4 * d), p["thin"]) @ p["half"]
        for i, q in enumerate(p["two"]):
            x = layer(x, q | {"near": places}, i % 2 == 1)
        x = (x @ p["twice"]).reshape(levels, tall // 2, wide // 2, 2, 2, d)
        x = x.transpose(0, 1, 3, 2, 4, 5).reshape(levels, tall, wide, d)
        x = layer_norm(x, p["after"]) @ p["same"]
        for i, q in enumerate(p["three"]):
            x = layer(x, q | {"near": places}, i % 2 == 1)
        x = jnp.concatenate([kept, x], -1)
        air = (x[1:] @ p["out_air"]).astype(F32).reshape(7, 48, 96, 2, 4, 4, 5)
        air = air.transpose(0, 3, 1, 4, 2, 5, 6).reshape(upper.shape)
        ground = (x[0] @ p["out_ground"]).astype(F32).reshape(48, 96, 4, 4, 4)
        ground = ground.transpose(0, 2, 1, 3, 4).reshape(surface.shape)
        return upper + 0.1 * air, surface + 0.1 * ground

    def one(c: int, types: int) -> Any:
        p = {"qkv": weight(c, 3 * c), "b_qkv": Arg((3 * c,), BF16, 0.02), "out": weight(c, c)}
        p |= {"bias": Arg((types, 4 * 36 * 23, c // 32), scale=0.02), "up": weight(c, 4 * c)}
        p |= {"b_up": Arg((4 * c,), BF16, 0.02), "down": weight(4 * c, c)}
        return p | {"scale": Arg((2, c)), "shift": Arg((2, c))}

    params = {"in_air": weight(160, d), "in_ground": weight(112, d), "thin": Arg((4 * d,))}
    params |= {"half": weight(4 * d, 2 * d), "twice": weight(2 * d, 4 * d), "after": Arg((d,))}
    params |= {"same": weight(d, d), "out_air": weight(2 * d, 160), "out_ground": weight(2 * d, 64)}
    params |= {"one": [one(d, 32)] * 2, "two": [one(2 * d, 16)] * 4, "three": [one(d, 32)] * 2}
    given = (Arg((14, 192, 384, 5)), Arg((192, 384, 4)), Arg((192, 384, 3)))
    yield "forecast", program(forecast, params, *given)


def quest() -> Zoo:
    """A token of 12 long replies: bounds of pages choose the 64 pages that each key head reads."""
    b, most, page, keep, d, h, g, size, words, depth = 12, 16384, 16, 64, 4096, 32, 8, 128, 32000, 2
    pages, each = most // page, h // g

    def token(caches: Any, params: Any, tokens: Any, lengths: Any) -> Any:
        lengths = 6000 + lengths
        rows, current = jnp.arange(b), lengths // page
        x, new = params["table"][tokens], []
        for p, cache in zip(params["layers"], caches, strict=True):
            keys, values, low, high = cache
            y = rms(x, p["scale"][0])
            q, k, v = jnp.split(heads(y @ p["qkv"], size), [h, h + g], 1)
            q, k = rope(q, lengths, 5e5), rope(k, lengths, 5e5)
            keys = keys.at[rows, current, :, lengths % page].set(k)
            values = values.at[rows, current, :, lengths % page].set(v)
            low = low.at[rows, current].min(k)
            high = high.at[rows, current].max(k)
            q = q.reshape(b, g, each, size)
            part = jnp.maximum(q, 0), jnp.minimum(q, 0)
            worth = jnp.einsum("bgrd,bpgd->bgrp", part[0], high)
            worth = worth + jnp.einsum("bgrd,bpgd->bgrp", part[1], low)
            worth = worth.astype(F32).max(2)
            seen = jnp.arange(pages) <= current[:, None]
            worth = jnp.where(seen[:, None], worth, -1e30)
            worth = jnp.where(jnp.arange(pages) == current[:, None, None], 1e30, worth)
            _, index = lax.top_k(worth, keep)
            at = (rows[:, None, None], index, jnp.arange(g)[:, None])
            k, v = (a[at].reshape(b, g, keep * page, size) for a in (keys, values))
            scores = jnp.einsum("bgrd,bgsd->bgrs", q, k).astype(F32) * size**-0.5
            where = (index[..., None] * page + jnp.arange(page)).reshape(b, g, 1, -1)
            scores = jnp.where(where <= lengths[:, None, None, None], scores, -1e30)
            shares = jax.nn.softmax(scores, -1).astype(BF16)
            y = jnp.einsum("bgrs,bgsd->bgrd", shares, v)
            x = x + y.reshape(b, -1) @ p["out"]
            x = x + swiglu(rms(x, p["scale"][1]), p)
            new.append((keys, values, low, high))
        logits = (rms(x, params["last"]) @ params["head"]).astype(F32)
        return new, logits.argmax(-1)

    layer = {"qkv": weight(d, (h + 2 * g) * size), "out": weight(h * size, d)}
    layer |= swiglu_weights(d, 11008, weight) | {"scale": Arg((2, d))}
    params = {"layers": [layer] * depth, "table": Arg((words, d), BF16, 0.02)}
    params |= {"last": Arg((d,)), "head": weight(d, words)}
    cache = (Arg((b, pages, g, page, size), BF16),) * 2 + (Arg((b, pages, g, size), BF16),) * 2
    given = (Arg((b,), I32, below=words), Arg((b,), I32, below=8000))
    yield "pages", carried(token, [cache] * depth, params, *given)


def students() -> Zoo:
    """A student of four layers nears a frozen teacher by a Jensen-Shannon loss on its replies."""
    b, s, words, beta = 6, 448, 32000, 0.5

    def body(p: Any, tokens: Any) -> Any:
        places, mask = jnp.arange(s), causal(s)

        def layer(x: Any, q: Any) -> Any:
            y = rms(x, q["scale"][0])
            a, k, v = (heads(y @ q[name], 64) for name in ("q", "k", "v"))
            x = x + attention(rope(a, places), rope(k, places), v, mask) @ q["out"]
            return x + swiglu(rms(x, q["scale"][1]), q), None

        x, _ = lax.scan(jax.checkpoint(layer), p["table"][tokens], p["layers"])
        return (rms(x, p["last"]) @ p["head"]).astype(F32)

    def step(state: Any, teacher: Any, tokens: Any, prompts: Any) -> Any:
        replies = (jnp.arange(s) >= 32 + prompts[:, None]).astype(F32)
        right = jax.nn.log_softmax(body(teacher, tokens) / 0.9, -1)

        def loss(params: Any) -> Any:
            found = jax.nn.log_softmax(body(half(params), tokens) / 0.9, -1)
            both = jnp.logaddexp(right + math.log(beta), found + math.log(1 - beta))
            one = (jnp.exp(right) * (right - both)).sum(-1)
            two = (jnp.exp(found) * (found - both)).sum(-1)
            return ((beta * one + (1 - beta) * two) * replies).sum() / replies.sum()

        return adamw(state, loss, 1e-4, 0.01, 0.999)

    def model(d: int, wide: int, depth: int, make: Any) -> Any:
        layer = {name: make(d, d) for name in ("q", "k", "v", "out")}
        layer |= swiglu_weights(d, wide, make) | {"scale": Arg((2, d))}
        kept = {"layers": times(depth, layer), "last": Arg((d,)), "head": make(d, words)}
        return kept | {"table": Arg((words, d), F32 if make is master else BF16, 0.02)}

    state, teacher = adamw_start(model(640, 1792, 4, master)), model(1536, 4096, 8, weight)
    given = (Arg((b, s), I32, below=words), Arg((b,), I32, below=200))
    yield "jensen_shannon", carried(step, state, teacher, *given)


def moco() -> Zoo:
    """MoCo on CIFAR: ResNet-18 against a ring of 65,536 keys, which a slow copy writes."""
    b, ring, d, plan = 192, 65536, 128, ((64, 1), (128, 2), (256, 2), (512, 2))

    def norm(x: Any, p: Any) -> Any:
        y = x.astype(F32)
        mean, square = y.mean((0, 1, 2)), jnp.square(y).mean((0, 1, 2))
        scale = lax.rsqrt(jnp.maximum(square - mean * mean, 0) + 1e-5) * p[0]
        return ((y - mean) * scale + p[1]).astype(x.dtype)

    def encode(params: Any, x: Any) -> Any:
        p = half(params)
        x = jax.nn.relu(norm(conv(x.astype(BF16), p["in"]), params["in_norm"]))
        stages = zip(p["stages"], params["stages"], plan, strict=True)
        for blocks, kept, (_, stride) in stages:
            for i, (q, wide) in enumerate(zip(blocks, kept, strict=True)):
                step = stride if i == 0 else 1
                y = jax.nn.relu(norm(conv(x, q["one"], step), wide["n_one"]))
                y = norm(conv(y, q["two"]), wide["n_two"])
                if "skip" in q:
                    x = norm(conv(x, q["skip"], step), wide["n_skip"])
                x = jax.nn.relu(x + y)
        x = x.astype(F32).mean((1, 2))
        x = perceptron(x, params["head"])
        return x * lax.rsqrt(jnp.square(x).sum(-1, keepdims=True) + 1e-6)

    def step(state: Any, one: Any, two: Any, key: Any) -> Any:
        params, slow, speed, keys, at = state
        one, two = ((x.astype(F32) / 255 - 0.47) / 0.25 for x in (one, two))
        slow = jax.tree.map(lambda s, p: 0.99 * s + 0.01 * p, slow, params)
        order = jax.random.permutation(key, b)
        found = encode(slow, two[order])[jnp.argsort(order)]

        def loss(params: Any) -> Any:
            q = encode(params, one)
            near = (q * found).sum(-1, keepdims=True)
            logits = jnp.concatenate([near, q @ keys.T], -1) / 0.1
            right = (logits.argmax(-1) == 0).mean()
            return (jax.nn.logsumexp(logits, -1) - logits[:, 0]).mean(), right

        (value, right), slopes = jax.value_and_grad(loss, has_aux=True)(params)
        slopes = jax.tree.map(lambda g, w: g + 5e-4 * w, slopes, params)
        speed = jax.tree.map(lambda m, g: 0.9 * m + g, speed, slopes)
        params = jax.tree.map(lambda w, m: w - 0.06 * m, params, speed)
        keys = lax.dynamic_update_slice(keys, found, (at, 0))
        return (params, slow, speed, keys, (at + b) % ring), value, right

    params = {"in": filters(3, 3, 3, 64), "in_norm": Arg((2, 64)), "stages": [], "head": None}
    last = 64
    for c, _ in plan:
        blocks = []
        for _ in range(2):
            p = {"one": filters(3, 3, last, c), "two": filters(3, 3, c, c)}
            p |= {"n_one": Arg((2, c)), "n_two": Arg((2, c))}
            if last != c:
                p |= {"skip": filters(1, 1, last, c), "n_skip": Arg((2, c))}
            blocks.append(p)
            last = c
        params["stages"].append(blocks)
    params["head"] = full(512, 512, d)
    speed = jax.tree.map(lambda a: Arg(a.shape, scale=0.0), params)
    state = (params, params, speed, Arg((ring, d), scale=d**-0.5), Arg((), I32, below=ring // 2))
    picture = Arg((b, 32, 32, 3), U8, below=256)
    yield "queue", carried(step, state, picture, picture, _KEY)


def kron() -> Zoo:
    """PSGD's Kronecker factors for weights of eight layers: triangular solves and a step."""
    n, d, wide = 8, 512, 1536
    shapes = {"qkv": (d, 3 * d), "out": (d, d), "up": (d, wide), "down": (wide, d)}

    def bound(a: Any) -> Any:
        most = jnp.max(jnp.abs(a))
        x = a / (most + 1e-30)
        row = x[jnp.argmax(jnp.square(x).sum(1))]
        x = row @ x
        return most * jnp.linalg.norm((x / (jnp.linalg.norm(x) + 1e-30)) @ (a / most).T)

    def fitted(left: Any, right: Any, slope: Any, noise: Any) -> Any:
        a = left @ slope @ right.T
        b = lax.linalg.triangular_solve(right, noise, left_side=False, lower=False)
        b = lax.linalg.triangular_solve(left, b, left_side=True, lower=False, transpose_a=True)
        for_left = (a @ a.T, b @ b.T)
        for_right = (a.T @ a, b.T @ b)
        new = []
        for q, (one, two) in ((left, for_left), (right, for_right)):
            change = jnp.triu(one - two)
            new.append(q - 0.1 / (bound(one + two) + 1e-30) * change @ q)
        return new

    def step(state: Any, slopes: Any, key: Any) -> Any:
        params, means, factors = state
        new = ({}, {}, {})
        for i, (name, slope) in enumerate(slopes.items()):
            mean = 0.9 * means[name] + 0.1 * slope
            noise = jax.random.normal(jax.random.fold_in(key, i), slope.shape)
            left, right = factors[name]
            left, right = jax.vmap(fitted)(jnp.triu(left), jnp.triu(right), mean, noise)
            way = left.swapaxes(1, 2) @ (left @ mean @ right.swapaxes(1, 2)) @ right
            rough = jnp.sqrt(jnp.square(way).mean((1, 2), keepdims=True))
            way = way * jnp.minimum(1.0, 1.1 / (rough + 1e-12))
            new[0][name] = params[name] - 3e-4 * (way + 0.1 * params[name])
            new[1][name], new[2][name] = mean, (left, right)
        return new

    def stepped(state: Any, slopes: Any, key: Any) -> Any:
        state = step(state, slopes, key)
        return state, sum(jnp.square(m).sum() for m in state[1].values())

    params = {name: Arg((n, *shape), scale=shape[0] ** -0.5) for name, shape in shapes.items()}
    factors = {
        name: tuple(Arg((n, k, k), scale=0.01, identity=1.0) for k in shape)
        for name, shape in shapes.items()
    }
    slopes = {name: Arg((n, *shape), scale=0.1) for name, shape in shapes.items()}
    yield "psgd", carried(stepped, (params, slopes, factors), slopes, _KEY)


# -------------------------------------------------------------------------------------- numerics


def glaciers() -> Zoo:
    """Ice that flows over rough ground: 24 explicit steps of the shallow ice equations."""
    tall, wide, rounds = 1200, 1400, 24
    flow, sliding, across = 1e-3, 1e-4, 1.0

    def step(state: Any, ground: Any, snow: Any) -> Any:
        thick = jnp.abs(state)
        ground = 0.3 * ground

        def forward(_: Any, thick: Any) -> Any:
            top = ground + thick
            dx = jnp.diff(top, axis=1) / across
            dy = jnp.diff(top, axis=0) / across
            dx_c = 0.5 * (dx[1:] + dx[:-1])
            dy_c = 0.5 * (dy[:, 1:] + dy[:, :-1])
            mean = 0.25 * (thick[1:, 1:] + thick[1:, :-1] + thick[:-1, 1:] + thick[:-1, :-1])
            steep = dx_c**2 + dy_c**2
            moves = (flow * mean**5 + sliding * mean**3) * steep
            moves = jnp.minimum(moves, 0.2)
            flux_x = -0.5 * (moves[1:] + moves[:-1]) * dx[1:-1]
            flux_y = -0.5 * (moves[:, 1:] + moves[:, :-1]) * dy[:, 1:-1]
            change = jnp.diff(flux_x, axis=1) / across + jnp.diff(flux_y, axis=0) / across
            inner = thick[1:-1, 1:-1] - 0.5 * change
            rate = jnp.minimum(0.01 * (top[1:-1, 1:-1] - 0.5 - 0.1 * snow), 0.02)
            return thick.at[1:-1, 1:-1].set(jnp.maximum(inner + 0.5 * rate, 0.0))

        new = lax.fori_loop(0, rounds, forward, thick)
        return new, new.sum(), (new > 0).mean(), jnp.abs(new - thick).max()

    ground = Arg((tall, wide))
    yield "shallow_ice", carried(step, Arg((tall, wide)), ground, Arg(()))


def interferometers() -> Zoo:
    """Visibilities are spread on a grid of 1,024^2, and 48 rounds of Hogbom's CLEAN follow."""
    n, side, taps, rounds = 200000, 1024, 6, 48

    def image(u: Any, v: Any, seen: Any, shares: Any) -> Any:
        x = side / 2 + 400 * jnp.tanh(u)
        y = side / 2 + 400 * jnp.tanh(jnp.roll(v, 777))
        shares = jnp.abs(shares)
        low_x, low_y = jnp.floor(x).astype(I32), jnp.floor(y).astype(I32)
        offset = jnp.arange(taps) - taps // 2 + 1

        def kernel(gap: Any) -> Any:
            z = 1 - jnp.square(gap / (taps / 2))
            return jnp.where(z > 0, jnp.exp(8.0 * (jnp.sqrt(jnp.maximum(z, 0.0)) - 1)), 0.0)

        wx = kernel(low_x[:, None] + offset - x[:, None])
        wy = kernel(low_y[:, None] + offset - y[:, None])
        weights = (wy[:, :, None] * wx[:, None]) * shares[:, None, None]
        rows = (low_y[:, None] + offset)[:, :, None]
        columns = (low_x[:, None] + offset)[:, None]
        zero = jnp.zeros((side, side))
        real = zero.at[rows, columns].add(weights * seen[0][:, None, None])
        imaginary = zero.at[rows, columns].add(weights * seen[1][:, None, None])
        density = zero.at[rows, columns].add(weights)

        def pictured(grid: Any) -> Any:
            return jnp.fft.fftshift(jnp.fft.ifft2(jnp.fft.ifftshift(grid))).real * side**2

        line = jnp.arange(side) / side - 0.5
        fade = jnp.exp(-6.0 * jnp.square(line)) + 1e-3
        dirty = pictured(real + 1j * imaginary) / (fade * fade[:, None]) / shares.sum()
        beam = pictured(density.astype(C64)) / shares.sum()
        wide = jnp.pad(beam / (beam.max() + 1e-12), side // 2)

        def clean(carry: Any, _: Any) -> Any:
            rest, model = carry
            at = jnp.argmax(jnp.abs(rest))
            row, column = at // side, at % side
            peak = 0.1 * rest[row, column]
            away = lax.dynamic_slice(wide, (side - row, side - column), (side, side))
            return (rest - peak * away, model.at[row, column].add(peak)), peak

        (rest, model), peaks = lax.scan(clean, (dirty, zero), None, rounds)
        gap = jnp.square(line * side)
        round_ = jnp.exp(-(gap + gap[:, None]) / 8.0)
        spread = jnp.fft.rfft2(model) * jnp.fft.rfft2(jnp.fft.ifftshift(round_))
        return jnp.fft.irfft2(spread, (side, side)) + rest, model, peaks

    given = (Arg((n,), scale=0.5), Arg((n,), scale=0.5), (Arg((n,)), Arg((n,))), Arg((n,)))
    yield "clean", program(image, *given)


def open_systems() -> Zoo:
    """Lindblad's equation for eight spins: six steps of Runge and Kutta, eight jump operators."""
    n, jumps, rounds = 256, 8, 6

    def evolve(state: Any, energy: Any, ways: Any, drive: Any) -> Any:
        rho = state[0] + 1j * state[1]
        rho = rho @ rho.conj().T
        rho = rho / jnp.trace(rho)
        own = (energy[0] + energy[0].T) / 2 + 0.5j * (energy[1] - energy[1].T)
        push = (drive + drive.T) / 2
        ways = ways[0] + 1j * jnp.roll(ways[1], 99, 1)
        loss = jnp.einsum("kji,kjl->il", ways.conj(), ways)

        def slope(t: Any, rho: Any) -> Any:
            h = own + jnp.cos(3.0 * t) * push
            whole = -1j * h - 0.5 * loss
            part = whole @ rho
            back = jnp.einsum("kij,jl,kml->im", ways, rho, ways.conj())
            return part + part.conj().T + back

        def step(carry: Any, t: Any) -> Any:
            rho, dt = carry, 0.01
            k1 = slope(t, rho)
            k2 = slope(t + dt / 2, rho + dt / 2 * k1)
            k3 = slope(t + dt / 2, rho + dt / 2 * k2)
            k4 = slope(t + dt, rho + dt * k3)
            rho = rho + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            purity = (jnp.abs(rho) ** 2).sum()
            return rho, (purity, jnp.diagonal(rho).real[:8])

        rho, told = lax.scan(step, rho, 0.01 * jnp.arange(rounds))
        rho = rho / jnp.trace(rho)
        return (rho.real, rho.imag), told

    matrix = Arg((n, n), scale=n**-0.5)
    ways = (Arg((jumps, n, n), scale=0.2 * n**-0.5),) * 2
    yield "lindblad", carried(evolve, (matrix, matrix), (matrix, matrix), ways, matrix)


def cables() -> Zoo:
    """Neurons of 256 compartments: Hodgkin and Huxley's gates, and a tridiagonal solve a step."""
    cells, parts, rounds, dt = 512, 256, 20, 0.025

    def step(state: Any, wide: Any, inputs: Any) -> Any:
        v, gates = state
        v = -65.0 + 5 * jnp.tanh(v)
        gates = jax.nn.sigmoid(gates)
        couple = 2.0 + jnp.tanh(wide)
        low = jnp.pad(couple[:, :-1], ((0, 0), (1, 0)))
        high = jnp.pad(couple[:, :-1], ((0, 0), (0, 1)))

        def ratio(x: Any, y: Any) -> Any:
            z = x / y
            safe = jnp.where(jnp.abs(z) < 1e-4, 1.0, z)
            return y * jnp.where(jnp.abs(z) < 1e-4, 1 + z / 2, safe / (1 - jnp.exp(-safe)))

        def rates(v: Any) -> Any:
            a = (0.1 * ratio(v + 40, 10.0), 0.07 * jnp.exp(-(v + 65) / 20))
            a = (*a, 0.01 * ratio(v + 55, 10.0))
            b = (4 * jnp.exp(-(v + 65) / 18), 1 / (1 + jnp.exp(-(v + 35) / 10)))
            return jnp.stack(a), jnp.stack([*b, 0.125 * jnp.exp(-(v + 65) / 80)])

        def forward(carry: Any, pushed: Any) -> Any:
            v, gates = carry
            a, b = rates(v)
            goal = a / (a + b)
            gates = goal + (gates - goal) * jnp.exp(-dt * (a + b))
            m, h, n = gates
            sodium, potassium = 120 * m**3 * h, 36 * n**4
            given = sodium * 50.0 + potassium * -77.0 + 0.3 * -54.4
            given = given.at[:, 0].add(10 * jnp.abs(pushed))
            whole = 1 + dt * (sodium + potassium + 0.3) + dt * (low + high)
            right = v + dt * given
            v = lax.linalg.tridiagonal_solve(-dt * low, whole, -dt * high, right[..., None])[..., 0]
            return (v, gates), v[:, -1]

        (v, gates), told = lax.scan(forward, (v, gates), inputs)
        back = jnp.log(gates + 1e-4) - jnp.log(1 - gates + 1e-4)
        return (jnp.clip((v + 65) / 20, -3, 3), back), told, (told > 0).sum(0)

    state = (Arg((cells, parts)), Arg((3, cells, parts)))
    yield "hodgkin_huxley", carried(step, state, Arg((cells, parts)), Arg((rounds, cells)))


def epidemics() -> Zoo:
    """An illness among 200,000 people who meet along 1.5 million ties: 20 days."""
    n, ties, days, groups = 200000, 1500000, 20, 9

    def spread(state: Any, ids: Any, strength: Any, ages: Any, table: Any, key: Any) -> Any:
        status, since = state
        status = jnp.where(status > 3, 0, status)
        one, two = ids[0], jnp.roll(ids[1], 54321)
        strength = 0.3 * jax.nn.sigmoid(strength)
        risk = jax.nn.sigmoid(table)[ages]

        def day(carry: Any, given: Any) -> Any:
            status, since = carry
            key, t = given
            k1, k2, k3 = jax.random.split(key, 3)
            ill = (status == 2).astype(F32)
            season = 1 + 0.2 * jnp.sin(2 * jnp.pi * t / 365)
            sent = strength * ill[one] * season
            pressure = jax.ops.segment_sum(sent, two, n)
            pressure = pressure + jax.ops.segment_sum(0.5 * strength * ill[two], one, n)
            caught = jax.random.uniform(k1, (n,)) < 1 - jnp.exp(-pressure * risk)
            caught = caught & (status == 0)
            sick = (status == 1) & (since > 3) & (jax.random.uniform(k2, (n,)) < 0.4)
            well = (status == 2) & (since > 5) & (jax.random.uniform(k3, (n,)) < 0.2)
            new = jnp.where(caught, 1, jnp.where(sick, 2, jnp.where(well, 3, status)))
            since = jnp.where(new != status, 0, since + 1)
            counts = jnp.zeros((groups, 4)).at[ages, new].add(1.0)
            return (new, since), (counts, caught.sum())

        given = (jax.random.split(key, days), jnp.arange(days))
        state, told = lax.scan(day, (status, since), given)
        return state, told

    state = (Arg((n,), I32, below=24), Arg((n,), I32, below=8))
    ids = (Arg((ties,), I32, below=n), Arg((ties,), I32, below=n))
    given = (ids, Arg((ties,)), Arg((n,), I32, below=groups), Arg((groups,)), _KEY)
    yield "seir", carried(spread, state, *given)


def cryo() -> Zoo:
    """Cryo-EM: 640 pictures against 600 views of a volume of 64^3, and the volume they imply."""
    side, views, pictures = 64, 600, 640
    wide = side // 2 + 1
    points = side * wide

    def turned(turns: Any) -> Any:
        q = turns / (jnp.linalg.norm(turns, axis=-1, keepdims=True) + 1e-6)
        w, x, y, z = q.T
        rows = [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)]
        rows += [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)]
        rows += [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)]
        return jnp.stack(rows, -1).reshape(-1, 3, 3)

    def expected(volume: Any, seen: Any, blurs: Any, turns: Any) -> Any:
        cube = jnp.fft.fftshift(jnp.fft.fftn(volume)) / side
        fy, fx = jnp.meshgrid(jnp.arange(side) - side // 2, jnp.arange(wide), indexing="ij")
        plane = jnp.stack([fx, fy, jnp.zeros_like(fx)], -1).reshape(points, 3).astype(F32)
        radius = jnp.linalg.norm(plane, axis=-1)
        real = radius < side // 2 - 2
        x = jnp.einsum("vij,pj->vpi", turned(turns), plane) + side // 2
        x = jnp.clip(x, 0.0, side - 1.01)
        low = jnp.floor(x).astype(I32)
        part = x - low
        corners = []
        for corner in np.ndindex(2, 2, 2):
            c = jnp.array(corner)
            at = low + c
            index = (at[..., 2] * side + at[..., 1]) * side + at[..., 0]
            corners.append((index, jnp.where(c == 1, part, 1 - part).prod(-1)))
        flat = cube.reshape(-1)
        slices = sum(share * flat[index] for index, share in corners) * real
        picture = jnp.fft.fftshift(jnp.fft.rfft2(seen), 1).reshape(pictures, points) / side
        defocus = 1.5 + 0.2 * jnp.tanh(blurs)
        phase = 0.01 * defocus[:, None] * jnp.square(radius)
        ctf = -jnp.sin(phase) * jnp.exp(-0.002 * jnp.square(radius)) * real
        corrected = ctf * picture
        cross = (corrected @ slices.conj().T).real
        power = jnp.square(ctf) @ jnp.square(jnp.abs(slices)).T
        scores = cross - 0.5 * power
        shares = jax.nn.softmax(scores, -1)
        evidence = jax.nn.logsumexp(scores, -1)
        sums = shares.T.astype(C64) @ corrected
        weights = shares.T @ jnp.square(ctf)
        top = jnp.zeros((side**3, 2))
        bottom = jnp.zeros(side**3)
        pair = jnp.stack([sums.real, sums.imag], -1)
        for index, share in corners:
            top = top.at[index].add(share[..., None] * pair)
            bottom = bottom.at[index].add(share * weights)
        new = (top[:, 0] + 1j * top[:, 1]) / (bottom + 1.0)
        new = jnp.fft.ifftshift(new.reshape(side, side, side))
        return jnp.fft.ifftn(new).real * side, evidence.sum(), shares.argmax(-1)

    given = (Arg((pictures, side, side)), Arg((pictures,)), Arg((views, 4)))
    yield "expectation", carried(expected, Arg((side,) * 3), *given)


def phylogenies() -> Zoo:
    """The likelihood of a tree of 128 sequences by Felsenstein's pruning, with its slopes."""
    leaves, sites, kinds = 128, 3000, 4
    branches = 2 * leaves - 2

    def likelihood(params: Any, letters: Any, counts: Any) -> Any:
        share = jax.nn.softmax(params["shares"])
        rates = jnp.zeros((4, 4)).at[jnp.triu_indices(4, 1)].set(jnp.exp(params["rates"]))
        rates = rates + rates.T
        flow = rates * share
        flow = flow - jnp.diag(flow.sum(1))
        flow = flow / -(share * jnp.diagonal(flow)).sum()
        root = jnp.sqrt(share)
        even = root[:, None] * flow / root
        values, vectors = jnp.linalg.eigh((even + even.T) / 2)
        left, right = vectors / root[:, None], vectors.T * root
        speeds = jnp.exp(0.5 * params["spread"] * jnp.array([-1.15, -0.32, 0.32, 1.15]))
        speeds = speeds / speeds.mean()
        lengths = 0.1 * jnp.exp(0.5 * params["lengths"])
        grown = jnp.exp(lengths[:, None, None] * speeds[:, None] * values)
        moves = jnp.einsum("ik,bck,kj->bcij", left, grown, right)
        partial_ = jax.nn.one_hot(letters, 4)[:, None]
        partial_ = jnp.broadcast_to(partial_, (leaves, kinds, sites, 4))
        total, used = jnp.zeros(sites), 0
        while partial_.shape[0] > 1:
            m = partial_.shape[0]
            up = jnp.einsum("bcij,bcsj->bcsi", moves[used : used + m], partial_)
            used += m
            partial_ = up[0::2] * up[1::2]
            most = partial_.max((1, 3), keepdims=True) + 1e-30
            total = total + jnp.log(most).sum((0, 1, 3))
            partial_ = partial_ / most
        found = jnp.einsum("csi,i->s", partial_[0], share) / kinds
        return (counts * (jnp.log(found + 1e-30) + total)).sum()

    def slopes(params: Any, letters: Any, counts: Any) -> Any:
        with jax.default_matmul_precision("float32"):
            return jax.value_and_grad(likelihood)(params, letters, counts)

    params = {"shares": Arg((4,), scale=0.3), "rates": Arg((6,), scale=0.3)}
    params |= {"spread": Arg(()), "lengths": Arg((branches,))}
    given = (Arg((leaves, sites), I32, below=4), Arg((sites,), I32, below=5))
    yield "felsenstein", program(slopes, params, *given)


def plasmas() -> Zoo:
    """Particles in cells: a million charges in a plane with a magnetic field, four steps."""
    n, side, rounds, dt = 1 << 20, 256, 4, 0.05

    def push(state: Any, turn: Any) -> Any:
        x, v = state
        k = 2 * jnp.pi * jnp.fft.fftfreq(side) * side
        kx, ky = k[: side // 2 + 1], k[:, None]
        square = kx**2 + ky**2
        inverse = jnp.where(square > 0, 1 / jnp.where(square > 0, square, 1.0), 0.0)
        field = 1.0 + 0.2 * jnp.tanh(turn)
        spin = 0.5 * dt * field
        bend = 2 * spin / (1 + spin**2)

        def step(carry: Any, _: Any) -> Any:
            x, v = carry
            x = x - jnp.floor(x)
            at = x * side
            low = jnp.floor(at).astype(I32)
            part = at - low
            corners = []
            for i, j in np.ndindex(2, 2):
                share = part[:, 0] if i else 1 - part[:, 0]
                share = share * (part[:, 1] if j else 1 - part[:, 1])
                corners.append((((low[:, 0] + i) % side, (low[:, 1] + j) % side), share))
            density = jnp.zeros((side, side))
            for index, share in corners:
                density = density.at[index].add(share)
            density = 1 - density * (side * side / n)
            waves = jnp.fft.rfft2(density) * inverse
            ex = jnp.fft.irfft2(-1j * ky * waves, (side, side))
            ey = jnp.fft.irfft2(-1j * kx * waves, (side, side))
            forces = jnp.stack([ex, ey], -1)
            felt = sum(share[:, None] * forces[index] for index, share in corners)
            v = v - 0.5 * dt * felt
            around = v + spin * jnp.stack([v[:, 1], -v[:, 0]], -1)
            v = v + bend * jnp.stack([around[:, 1], -around[:, 0]], -1)
            v = v - 0.5 * dt * felt
            energy = 0.5 * jnp.square(forces).mean()
            return (x + 0.01 * dt * v, v), (energy, 0.5 * jnp.square(v).mean())

        return lax.scan(step, (x, v), None, rounds)

    state = (Arg((n, 2)), Arg((n, 2)))
    yield "in_cells", carried(push, state, Arg(()))
