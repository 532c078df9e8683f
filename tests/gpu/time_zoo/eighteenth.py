"""An eighteenth zoo: half well-known small networks that learn or answer, half numeric kernels.

It was written without a look at the predictor or its calibration, to be timed once: no
calibration and no fit has used its programs.
"""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import optax
from eleventh import learned, perceptron, stack, started
from flax import linen as nn
from fourth import program, weight
from jax import lax
from jax.scipy.linalg import cho_factor, cho_solve
from jax.scipy.ndimage import map_coordinates
from ninth import carried
from seventeenth import (
    adamw,
    adamw_start,
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
    times,
)
from tenth import applied

from xlapipe.running.calibration.timed_program import Arg, TimedProgram

F32, BF16, F16, I32 = jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32
U8, U32 = jnp.uint8, jnp.uint32
Zoo = Iterator[tuple[str, TimedProgram]]
_KEY = Arg((2,), U32, below=1 << 30)


def eighteenth_programs() -> dict[str, TimedProgram]:
    """Every program, by FAMILY/NAME."""
    families = (
        *(texts, translation, vision, tables, sequences, clouds, samplers, agents, devices),
        *(kernels, oceans, potentials, flocks, outliers, ranks, pictures, markets, roads),
        *(volatility, motion, curves, chemistry, signals),
    )
    return {
        f"{family.__name__}/{name}": program for family in families for name, program in family()
    }


class BertLayer(nn.Module):
    """A layer of BERT with dropout, for a scan."""

    @nn.compact
    def __call__(self, x: Any, mask: Any) -> Any:
        y = nn.MultiHeadDotProductAttention(
            12, dtype=BF16, dropout_rate=0.1, deterministic=False, broadcast_dropout=False
        )(x, x, mask=mask)
        x = nn.LayerNorm(dtype=BF16)(x + nn.Dropout(0.1, deterministic=False)(y))
        y = nn.Dense(768, dtype=BF16)(nn.gelu(nn.Dense(3072, dtype=BF16)(x), approximate=False))
        return nn.LayerNorm(dtype=BF16)(x + nn.Dropout(0.1, deterministic=False)(y)), None


class Reader(nn.Module):
    """BERT that marks where an answer starts and ends."""

    @nn.compact
    def __call__(self, tokens: Any, kinds: Any, lengths: Any) -> Any:
        s = tokens.shape[1]
        x = nn.Embed(30522, 768, dtype=BF16)(tokens) + nn.Embed(2, 768, dtype=BF16)(kinds)
        x = x + nn.Embed(512, 768, dtype=BF16)(jnp.arange(s))
        x = nn.Dropout(0.1, deterministic=False)(nn.LayerNorm(dtype=BF16)(x))
        told = jnp.arange(s) < lengths[:, None]
        layers = nn.scan(
            BertLayer,
            variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=nn.broadcast,
            length=12,
        )
        x, _ = layers()(x, told[:, None, None])
        logits = nn.Dense(2, dtype=F32)(x.astype(F32))
        return jnp.where(told[..., None], logits, -1e9)


def texts() -> Zoo:
    """BERT and Pythia with a slow copy, both in training, FNet, and CLIP's texts in float16."""
    model = Reader()
    steps = optax.linear_schedule(3e-5, 0.0, 10000)
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(steps, weight_decay=0.01))

    def squad(state: Any, tokens: Any, kinds: Any, lengths: Any, spans: Any, key: Any) -> Any:
        """Twelve rows of 384 tokens."""

        def loss(params: Any) -> Any:
            logits = model.apply(params, tokens, kinds, 100 + lengths, rngs={"dropout": key})
            return cross_entropy(logits.swapaxes(1, 2), spans).mean()

        return learned(rule, loss, state)

    ids = Arg((12, 384), I32, below=30522)
    given = (ids, Arg((12, 384), I32), Arg((12,), I32, below=284))
    params = linen_weights(model, *given)
    spans = Arg((12, 2), I32, below=100)
    yield "squad", carried(squad, started(rule, params), *given, spans, _KEY)

    d, size, words = 768, 64, 50304

    def pythia(state: Any, slow: Any, tokens: Any) -> Any:
        """Attention beside the perceptron, a quarter of each head rotated; two parts of a batch."""
        s = tokens.shape[-1] - 1
        places, mask = jnp.arange(s), causal(s)

        @partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
        def layer(x: Any, p: Any) -> Any:
            y = layer_norm(x, p["scale"][0], p["shift"][0])
            q, k, v = jnp.split(heads(y @ p["qkv"] + p["b_qkv"], 3 * size), 3, -1)
            q, k = (jnp.concatenate([rope(a[..., :16], places), a[..., 16:]], -1) for a in (q, k))
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(F32) * size**-0.5
            shares = jax.nn.softmax(jnp.where(mask, scores, -1e9), -1).astype(BF16)
            found = jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(x.shape) @ p["out"]
            y = layer_norm(x, p["scale"][1], p["shift"][1])
            return x + found + jax.nn.gelu(y @ p["up"] + p["b_up"]) @ p["down"], None

        def loss(params: Any) -> Any:
            def part(total: Any, tokens: Any) -> Any:
                p = half(params)
                x, _ = lax.scan(layer, p["table"][tokens[:, :-1]], p["layers"])
                logits = layer_norm(x, p["last"]) @ p["head"]
                return total + cross_entropy(logits, tokens[:, 1:]).mean(), None

            total, _ = lax.scan(jax.checkpoint(part), 0.0, tokens)
            return total / tokens.shape[0]

        state, value = adamw(state, loss, 6e-4)
        slow = jax.tree.map(lambda m, w: 0.999 * m + 0.001 * w, slow, state[0])
        return state, (slow, value)

    layer = {"qkv": master(d, 3 * d), "b_qkv": Arg((3 * d,), scale=0.02), "out": master(d, d)}
    layer |= {"up": master(d, 4 * d), "b_up": Arg((4 * d,), scale=0.02), "down": master(4 * d, d)}
    layer |= {"scale": Arg((2, d)), "shift": Arg((2, d), scale=0.02)}
    params = {"layers": times(6, layer), "table": Arg((words, d), scale=0.02), "last": Arg((d,))}
    params |= {"head": master(d, words)}
    ids = Arg((2, 4, 778), I32, below=words)
    yield "pythia", carried(pythia, adamw_start(params), params, ids)

    low = optax.adamw(1e-3)

    def fnet(state: Any, tokens: Any, hidden: Any, goals: Any) -> Any:
        """Tokens mixed by Fourier transforms along both axes; 76 words of each row are hidden."""

        def layer(x: Any, p: Any) -> Any:
            y = jnp.fft.fft2(x.astype(F32)).real.astype(BF16)
            x = layer_norm(x + y, p["scale"][0], p["shift"][0])
            y = jax.nn.gelu(x @ p["up"] + p["b_up"]) @ p["down"]
            return layer_norm(x + y, p["scale"][1], p["shift"][1]), None

        def loss(params: Any) -> Any:
            p = half(params)
            x = layer_norm(p["table"][tokens] + p["places"])
            x, _ = lax.scan(layer, x, p["layers"])
            x = jnp.take_along_axis(x, hidden[..., None], 1)
            x = layer_norm(jax.nn.gelu(x @ p["middle"]))
            return cross_entropy(x @ p["table"].T + p["even"], goals).mean()

        return learned(low, loss, state)

    layer = {"up": master(d, 4 * d), "b_up": Arg((4 * d,), scale=0.02), "down": master(4 * d, d)}
    layer |= {"scale": Arg((2, d)), "shift": Arg((2, d), scale=0.02)}
    params = {"layers": times(6, layer), "table": Arg((32000, d), scale=0.02)}
    params |= {"places": Arg((512, d), scale=0.02), "middle": master(d, d)}
    params |= {"even": Arg((32000,), scale=0.02)}
    given = (Arg((24, 512), I32, below=32000), Arg((24, 76), I32, below=512))
    yield "fnet", carried(fnet, started(low, params), *given, Arg((24, 76), I32, below=32000))

    c = 512

    def clip(params: Any, tokens: Any, known: Any) -> Any:
        """Two hundred texts by CLIP's tower, and the ten pictures nearest to each."""
        mask = causal(77)

        def layer(x: Any, p: Any) -> Any:
            y = layer_norm(x, p["scale"][0], p["shift"][0])
            q, k, v = jnp.split(heads(y @ p["qkv"] + p["b_qkv"], 64), 3, 2)
            x = x + jax.nn.dot_product_attention(q, k, v, mask=mask).reshape(x.shape) @ p["out"]
            y = layer_norm(x, p["scale"][1], p["shift"][1]) @ p["up"] + p["b_up"]
            return x + (y * jax.nn.sigmoid(1.702 * y)) @ p["down"], None

        x, _ = lax.scan(layer, params["table"][tokens] + params["places"], params["layers"])
        x = layer_norm(x, params["last"])
        x = x[jnp.arange(x.shape[0]), tokens.argmax(-1)] @ params["join"]
        x = x.astype(F32)
        x = x / jnp.linalg.norm(x, axis=-1, keepdims=True)
        return lax.top_k(100 * (x.astype(F16) @ known.T).astype(F32), 10)

    def short(*shape: int) -> Arg:
        return weight(*shape, dtype=F16)

    layer = {"qkv": short(c, 3 * c), "b_qkv": Arg((3 * c,), F16, 0.02), "out": short(c, c)}
    layer |= {"up": short(c, 4 * c), "b_up": Arg((4 * c,), F16, 0.02), "down": short(4 * c, c)}
    layer |= {"scale": Arg((2, c)), "shift": Arg((2, c), scale=0.02)}
    params = {"layers": times(12, layer), "table": Arg((49408, c), F16, 0.02), "last": Arg((c,))}
    params |= {"places": Arg((77, c), F16, 0.01), "join": short(c, c)}
    known = Arg((30011, c), F16, 0.04)
    yield "clip", program(clip, params, Arg((200, 77), I32, below=49408), known)


def translation() -> Zoo:
    """Training of a GRU with additive attention, and eight words by T5's decoder."""
    b, n, words, long, told = 64, 512, 32003, 50, 45
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(5e-4))

    def gru(h: Any, x: Any, p: Any) -> Any:
        """A step, whose input was multiplied before."""
        r, z, new = jnp.split(x, 3, -1)
        hr, hz, hn = jnp.split(h @ p["again"] + p["shift"], 3, -1)
        z = jax.nn.sigmoid(z + hz)
        return (1 - z) * jnp.tanh(new + jax.nn.sigmoid(r + hr) * hn) + z * h

    def bahdanau(state: Any, source: Any, lengths: Any, goal: Any) -> Any:
        """Both directions are read; each word looks at all of the source."""
        seen = jnp.arange(long) < 10 + lengths[:, None]

        def loss(p: Any) -> Any:
            x = p["source"][source].swapaxes(0, 1)

            def read(q: Any, back: bool) -> Any:
                def step(h: Any, given: Any) -> Any:
                    x, here = given
                    h = jnp.where(here[:, None], gru(h, x, q), h)
                    return h, h

                return lax.scan(step, jnp.zeros((b, n)), (x @ q["in"], seen.T), reverse=back)

            (_, right), (last, left) = read(p["right"], False), read(p["left"], True)
            memory = jnp.concatenate([right, left], -1).swapaxes(0, 1)
            keys = memory @ p["keys"]

            def word(h: Any, x: Any) -> Any:
                scores = jnp.tanh(keys + (h @ p["asks"])[:, None]) @ p["worth"]
                shares = jax.nn.softmax(jnp.where(seen, scores, -1e9))
                found = jnp.einsum("bs,bsd->bd", shares, memory)
                h = gru(h, x + found @ p["found"], p["writer"])
                return h, jnp.concatenate([h, found], -1)

            x = (p["goal"][goal[:, :-1]] @ p["writer"]["in"]).swapaxes(0, 1)
            _, y = lax.scan(word, jnp.tanh(last @ p["start"]), x)
            logits = jnp.tanh(y @ p["narrow"]) @ p["head"]
            return cross_entropy(logits, goal[:, 1:].T).mean()

        return learned(rule, loss, state)

    cell = {"in": master(256, 3 * n), "again": master(n, 3 * n), "shift": Arg((3 * n,), scale=0.1)}
    params = {"right": cell, "left": cell, "writer": cell, "source": Arg((words, 256), scale=0.05)}
    params |= {"goal": Arg((words, 256), scale=0.05), "keys": master(2 * n, n), "worth": Arg((n,))}
    params |= {"asks": master(n, n), "found": master(2 * n, 3 * n), "start": master(n, n)}
    params |= {"narrow": master(3 * n, 256), "head": master(256, words)}
    given = (Arg((b, long), I32, below=words), Arg((b,), I32, below=40))
    goal = Arg((b, told + 1), I32, below=words)
    yield "bahdanau", carried(bahdanau, started(rule, params), *given, goal)

    rows, d, most, source, vast, count = 16, 768, 64, 300, 32128, 8

    def t5(caches: Any, params: Any, memory: Any, seen: Any, tokens: Any, place: Any) -> Any:
        """The likeliest word of each row, eight times; the caches have room for 64 words."""

        def word(carry: Any, step: Any) -> Any:
            caches, tokens = carry
            here = place + step
            gap = jnp.maximum(here - jnp.arange(most), 0)
            wide = 16 + jnp.log(jnp.maximum(gap, 1) / 16) / jnp.log(8.0) * 16
            bucket = jnp.where(gap < 16, gap, jnp.minimum(wide.astype(I32), 31))
            bias = params["near"][bucket].T[:, None]
            bias = jnp.where(jnp.arange(most) <= here, bias, -1e9)

            def look(q: Any, k: Any, v: Any, bias: Any) -> Any:
                scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(F32) + bias
                shares = jax.nn.softmax(scores, -1).astype(BF16)
                return jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(rows, 1, d)

            def layer(x: Any, given: Any) -> Any:
                p, cache, (far_k, far_v) = given
                q, k, v = jnp.split(heads(rms(x, p["scale"][0]) @ p["qkv"], 64), 3, 2)
                k = lax.dynamic_update_slice(cache[0], k, (0, here, 0, 0))
                v = lax.dynamic_update_slice(cache[1], v, (0, here, 0, 0))
                x = x + look(q, k, v, bias) @ p["out"]
                q = heads(rms(x, p["scale"][1]) @ p["q"], 64)
                far = jnp.where(seen[:, None, None] > 0, 0.0, -1e9)
                x = x + look(q, far_k, far_v, far) @ p["far_out"]
                y = jax.nn.relu(rms(x, p["scale"][2]) @ p["up"])
                return x + y @ p["down"], (k, v)

            x = params["table"][tokens][:, None]
            x, caches = lax.scan(layer, x, (params["layers"], caches, memory))
            logits = (rms(x[:, 0], params["last"]) * d**-0.5).astype(BF16) @ params["table"].T
            tokens = logits.argmax(-1).astype(I32)
            return (caches, tokens), tokens

        (caches, _), told = lax.scan(word, (caches, tokens), jnp.arange(count))
        return caches, told.T

    layer = {"qkv": weight(d, 3 * d), "out": weight(d, d), "q": weight(d, d)}
    layer |= {"far_out": weight(d, d), "up": weight(d, 3072), "down": weight(3072, d)}
    params = {"layers": times(12, layer | {"scale": Arg((3, d))}), "last": Arg((d,))}
    params |= {"table": Arg((vast, d), BF16), "near": Arg((32, 12))}
    caches = (Arg((12, rows, most, 12, 64), BF16),) * 2
    memory = (Arg((12, rows, source, 12, 64), BF16),) * 2
    given = (Arg((rows, source), I32), Arg((rows,), I32, below=vast), Arg((), I32, below=50))
    yield "t5", carried(t5, caches, params, memory, *given)


class Wide(nn.Module):
    """WideResNet 16-8, whose norms come first."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        norm = partial(nn.BatchNorm, use_running_average=False, momentum=0.9)
        x = nn.Conv(16, (3, 3), use_bias=False)(x)
        for width, stride in ((128, 1), (256, 2), (512, 2)):
            for n in range(2):
                step = (1 if n else stride,) * 2
                y = nn.relu(norm()(x))
                side = x if n else nn.Conv(width, (1, 1), step, use_bias=False)(y)
                y = nn.Conv(width, (3, 3), step, use_bias=False)(y)
                y = nn.Conv(width, (3, 3), use_bias=False)(nn.relu(norm()(y)))
                x = side + y
        return nn.Dense(100)(nn.relu(norm()(x)).mean((1, 2)))


class Shuffle(nn.Module):
    """ShuffleNet v2 of two blocks a stage."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        def pointwise(x: Any, width: int) -> Any:
            y = nn.Conv(width, (1, 1), use_bias=False, dtype=BF16)(x)
            return nn.relu(nn.BatchNorm(use_running_average=False, dtype=BF16)(y))

        def deep(x: Any, stride: int) -> Any:
            c = x.shape[-1]
            y = nn.Conv(
                c, (3, 3), (stride,) * 2, feature_group_count=c, use_bias=False, dtype=BF16
            )(x)
            return nn.BatchNorm(use_running_average=False, dtype=BF16)(y)

        x = nn.Conv(24, (3, 3), (2, 2), use_bias=False, dtype=BF16)(x)
        x = nn.relu(nn.BatchNorm(use_running_average=False, dtype=BF16)(x))
        x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
        for width in (116, 232, 464):
            for n in range(2):
                if n:
                    kept, y = jnp.split(x, 2, -1)
                else:
                    kept, y = pointwise(deep(x, 2), width // 2), x
                y = deep(pointwise(y, width // 2), 1 if n else 2)
                x = jnp.concatenate([kept, pointwise(y, width // 2)], -1)
                x = x.reshape(*x.shape[:-1], 2, width // 2).swapaxes(-1, -2).reshape(x.shape)
        x = pointwise(x, 1024).mean((1, 2))
        return nn.Dense(1000, dtype=F32)(x)


def vision() -> Zoo:
    """Training in linen: WideResNet in float32 with holes in pictures, and ShuffleNet."""
    wide, shuffle = Wide(), Shuffle()
    rule = optax.chain(
        optax.add_decayed_weights(5e-4),
        optax.sgd(optax.cosine_decay_schedule(0.1, 40000), 0.9, nesterov=True),
    )

    def cutout(state: Any, x: Any, labels: Any, key: Any) -> Any:
        """Pictures are moved and mirrored, and a square of 16 pixels is blank."""
        learner, kept = state
        one, two, three = jax.random.split(key, 3)
        b = x.shape[0]
        x = x.astype(F32) / 127.5 - 1
        x = jnp.pad(x, ((0, 0), (4, 4), (4, 4), (0, 0)), mode="reflect")
        place = jax.random.randint(one, (b, 2), 0, 9)
        x = jax.vmap(lambda x, p: lax.dynamic_slice(x, (p[0], p[1], 0), (32, 32, 3)))(x, place)
        x = jnp.where(jax.random.bernoulli(two, 0.5, (b, 1, 1, 1)), x[:, :, ::-1], x)
        middle = jax.random.randint(three, (b, 2), 0, 32)
        near = jnp.abs(jnp.arange(32) - middle[..., None]) < 8
        x = jnp.where((near[:, 0, :, None] & near[:, 1, None])[..., None], 0.0, x)

        def loss(params: Any) -> Any:
            logits, new = wide.apply(
                {"params": params, "batch_stats": kept}, x, mutable=["batch_stats"]
            )
            return cross_entropy(logits, labels).mean(), new["batch_stats"]

        (value, new), gradient = jax.value_and_grad(loss, has_aux=True)(learner[0])
        return (applied(rule, *learner, gradient), new), value

    given = (Arg((96, 32, 32, 3), U8, below=256), Arg((96,), I32, below=100))
    made = linen_weights(wide, Arg((96, 32, 32, 3)))
    state = (started(rule, made["params"]), made["batch_stats"])
    yield "cutout", carried(cutout, state, *given, _KEY)

    quick = optax.rmsprop(0.03, 0.9, 1e-3, momentum=0.9)

    def channels(state: Any, x: Any, labels: Any) -> Any:
        """Half of the channels goes on untouched, and then they change places."""
        learner, kept = state

        def loss(params: Any) -> Any:
            logits, new = shuffle.apply(
                {"params": params, "batch_stats": kept}, x, mutable=["batch_stats"]
            )
            smooth = optax.smooth_labels(jax.nn.one_hot(labels, 1000), 0.1)
            lost = optax.softmax_cross_entropy(logits, smooth).mean()
            return lost, new["batch_stats"]

        (value, new), gradient = jax.value_and_grad(loss, has_aux=True)(learner[0])
        return (applied(quick, *learner, gradient), new), value

    x = Arg((60, 192, 192, 3), BF16)
    made = linen_weights(shuffle, x)
    state = (started(quick, made["params"]), made["batch_stats"])
    yield "shuffled", carried(channels, state, x, Arg((60,), I32, below=1000))


class Columns(nn.Module):
    """FT-Transformer: every column is a token."""

    @nn.compact
    def __call__(self, numbers: Any, names: Any) -> Any:
        d, n, m = 192, numbers.shape[1], names.shape[1]
        gain = self.param("gain", nn.initializers.normal(0.1), (n, d))
        table = self.param("table", nn.initializers.normal(0.1), (m, 100, d))
        shift = self.param("shift", nn.initializers.normal(0.1), (1 + n + m, d))
        x = [jnp.zeros((numbers.shape[0], 1, d)), numbers[..., None] * gain]
        x = jnp.concatenate([*x, table[jnp.arange(m), names]], 1) + shift
        for n in range(3):
            y = nn.LayerNorm()(x) if n else x
            x = x + nn.MultiHeadDotProductAttention(8, dropout_rate=0.2, deterministic=False)(y, y)
            y = nn.Dense(512)(nn.LayerNorm()(x))
            value, gate = jnp.split(y, 2, -1)
            y = nn.Dropout(0.1, deterministic=False)(value * nn.relu(gate))
            x = x + nn.Dense(d)(y)
        return nn.Dense(1)(nn.relu(nn.LayerNorm()(x[:, 0])))[:, 0]


def tables() -> Zoo:
    """Training of the FT-Transformer in linen: prices of 1,000 rows of 27 columns."""
    model, rule = Columns(), optax.adamw(1e-4, weight_decay=1e-5)

    def columns(state: Any, numbers: Any, names: Any, goal: Any, key: Any) -> Any:
        def loss(params: Any) -> Any:
            found = model.apply(params, numbers, names, rngs={"dropout": key})
            return optax.huber_loss(found, goal).mean()

        return learned(rule, loss, state)

    given = (Arg((1000, 19)), Arg((1000, 8), I32, below=100))
    params = linen_weights(model, *given)
    yield "ft_transformer", carried(columns, started(rule, params), *given, Arg((1000,)), _KEY)


def sequences() -> Zoo:
    """Training of a temporal convolutional network on letters, with weight norms."""
    b, s, c, letters = 24, 777, 320, 98
    rule = optax.chain(optax.clip_by_global_norm(0.15), optax.sgd(4.0))

    def temporal(state: Any, tokens: Any, key: Any) -> Any:
        """Five blocks of two windows of three letters, whose gaps grow from one to 16."""

        def loss(params: Any) -> Any:
            x = params["table"][tokens[:, :-1]]
            for n, p in enumerate(params["blocks"]):
                y = x
                for m, (w, size, shift) in enumerate(p["windows"]):
                    scaled = w * size / (jnp.sqrt(jnp.square(w).sum((0, 1))) + 1e-6)
                    y = jnp.pad(y, ((0, 0), (2 * 2**n, 0), (0, 0)))
                    y = lax.conv_general_dilated(
                        *(y, scaled, (1,), "VALID"),
                        rhs_dilation=(2**n,),
                        dimension_numbers=("NWC", "WIO", "NWC"),
                    )
                    y = jax.nn.relu(y + shift)
                    drawn = jax.random.fold_in(key, 2 * n + m)
                    keep = jax.random.bernoulli(drawn, 0.9, (b, 1, y.shape[-1]))
                    y = jnp.where(keep, y / 0.9, 0.0)
                x = jax.nn.relu(y + (x @ p["side"] if "side" in p else x))
            return cross_entropy(x @ params["head"], tokens[:, 1:])[:, 40:].mean()

        return learned(rule, loss, state)

    def block(a: int) -> dict[str, Any]:
        windows = [
            (filters(3, wide, c), Arg((c,), scale=0.5), Arg((c,), scale=0.01)) for wide in (a, c)
        ]
        return {"windows": windows} | ({"side": master(a, c)} if a != c else {})

    params = {"blocks": [block(100), *[block(c)] * 4], "table": Arg((letters, 100), scale=0.1)}
    params |= {"head": master(c, letters)}
    ids = Arg((b, s + 1), I32, below=letters)
    yield "temporal", carried(temporal, started(rule, params), ids, _KEY)


class Turn(nn.Module):
    """A square matrix for every cloud, near the unit matrix."""

    size: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for width in (64, 128, 1024):
            x = nn.relu(nn.BatchNorm(use_running_average=False)(nn.Dense(width)(x)))
        x = x.max(1)
        for width in (512, 256):
            x = nn.relu(nn.BatchNorm(use_running_average=False)(nn.Dense(width)(x)))
        x = nn.Dense(self.size**2)(x).reshape(-1, self.size, self.size)
        return x + jnp.eye(self.size)


class PointNet(nn.Module):
    """PointNet with both of its turns."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        def layer(x: Any, width: int) -> Any:
            return nn.relu(nn.BatchNorm(use_running_average=False)(nn.Dense(width)(x)))

        x = layer(layer(x @ Turn(3)(x), 64), 64)
        turn = Turn(64)(x)
        x = x @ turn
        for width in (64, 128, 1024):
            x = layer(x, width)
        x = layer(layer(x.max(1), 512), 256)
        return nn.Dense(40)(nn.Dropout(0.3, deterministic=False)(x)), turn


def clouds() -> Zoo:
    """Training of PointNet in linen on 28 clouds of 1,024 points that turn and shake."""
    model, rule = PointNet(), optax.adam(1e-3)

    def pointnet(state: Any, x: Any, labels: Any, key: Any) -> Any:
        learner, kept = state
        one, two, three = jax.random.split(key, 3)
        angle = jax.random.uniform(one, (x.shape[0],), maxval=2 * jnp.pi)
        cos, sin, no, yes = jnp.cos(angle), jnp.sin(angle), 0 * angle, 0 * angle + 1
        turn = jnp.stack([cos, no, sin, no, yes, no, -sin, no, cos], -1).reshape(-1, 3, 3)
        x = x @ turn + jnp.clip(0.01 * jax.random.normal(two, x.shape), -0.05, 0.05)

        def loss(params: Any) -> Any:
            (logits, turn), new = model.apply(
                {"params": params, "batch_stats": kept},
                x,
                mutable=["batch_stats"],
                rngs={"dropout": three},
            )
            gap = jnp.eye(64) - turn @ turn.swapaxes(1, 2)
            far = jnp.sqrt(jnp.square(gap).sum((1, 2)) + 1e-9).mean()
            return cross_entropy(logits, labels).mean() + 1e-3 * far, new["batch_stats"]

        (value, new), gradient = jax.value_and_grad(loss, has_aux=True)(learner[0])
        return (applied(rule, *learner, gradient), new), value

    x = Arg((28, 1024, 3))
    made = linen_weights(model, x)
    state = (started(rule, made["params"]), made["batch_stats"])
    yield "pointnet", carried(pointnet, state, x, Arg((28,), I32, below=40), _KEY)


def samplers() -> Zoo:
    """Nine steps of a score model's predictor, each with one of Langevin's corrections."""
    b, c, count = 50, 128, 9

    def corrected(x: Any, params: Any, key: Any) -> Any:
        """Noise that decays with its own speed; the network's convolutions are in bfloat16."""

        def score(x: Any, time: Any) -> Any:
            angle = 2 * jnp.pi * time * params["waves"]
            when = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)]).astype(BF16)
            when = jax.nn.silu(when @ params["when"])

            def block(y: Any, p: Any) -> Any:
                z = y.astype(F32).reshape(b, -1, 32, c // 32)
                mean, spread = z.mean((1, 3), keepdims=True), z.var((1, 3), keepdims=True)
                z = ((z - mean) * lax.rsqrt(spread + 1e-5)).reshape(y.shape) * p["scale"]
                z = conv(jax.nn.silu(z).astype(BF16), p["one"]) + when @ p["time"]
                return (y + conv(jax.nn.silu(z), p["two"])) * jnp.asarray(0.7071, BF16), None

            y, _ = lax.scan(block, conv(x.astype(BF16), params["first"]), params["blocks"])
            y = conv(jax.nn.silu(y), params["last"]).astype(F32)
            return -y / jnp.sqrt(1 - jnp.exp(-0.1 * time - 9.95 * time**2) + 1e-5)

        def step(carry: Any, time: Any) -> Any:
            x, key = carry
            key, one, two = jax.random.split(key, 3)
            rate = (0.1 + 19.9 * time) / count
            noise = jax.random.normal(one, x.shape)
            x = (2 - jnp.sqrt(1 - 0.3 * rate)) * x + rate * score(x, time) + jnp.sqrt(rate) * noise
            slope, noise = score(x, time), jax.random.normal(two, x.shape)
            norms = (jnp.sqrt(jnp.square(a).sum((1, 2, 3))).mean() for a in (slope, noise))
            small, large = norms
            pace = 2 * jnp.square(0.16 * large / (small + 1e-6))
            return (x + pace * slope + jnp.sqrt(2 * pace) * noise, key), None

        (x, _), _ = lax.scan(step, (x, key), jnp.linspace(1.0, 0.01, count))
        return jnp.clip((x + 1) * 127.5, 0, 255).astype(U8)

    block = {"one": filters(3, 3, c, c, dtype=BF16), "two": filters(3, 3, c, c, dtype=BF16)}
    block |= {"scale": Arg((c,)), "time": weight(256, c)}
    params = {"blocks": times(5, block), "first": filters(3, 3, 3, c, dtype=BF16)}
    params |= {"last": filters(3, 3, c, 3, dtype=BF16), "waves": Arg((64,), scale=16.0)}
    params |= {"when": weight(128, 256)}
    yield "score_sde", program(corrected, Arg((b, 32, 32, 3)), params, _KEY)


def agents() -> Zoo:
    """Ten updates of TD3 from a buffer of 200,000 moves; the actor follows every second one."""
    rule, size, b = optax.adam(3e-4), 200000, 256

    def delayed(state: Any, buffer: Any, key: Any) -> Any:
        def act(p: Any, seen: Any) -> Any:
            return jnp.tanh(perceptron(seen, p))

        def worth(p: Any, seen: Any, done: Any) -> Any:
            both = jnp.concatenate([seen, done], -1)
            return jax.vmap(lambda p: perceptron(both, p)[:, 0])(p)

        def update(state: Any, key: Any) -> Any:
            (actor, critics), goals = state
            one, two = jax.random.split(key)
            rows = jax.random.randint(one, (2, b), 0, size)

            def critic(critics: Any, rows: Any, key: Any) -> Any:
                seen, move, pay, after, last = (part[rows] for part in buffer)
                noise = jnp.clip(0.2 * jax.random.normal(key, move.shape), -0.5, 0.5)
                then = jnp.clip(act(goals[0], after) + noise, -1, 1)
                goal = pay + 0.99 * (1 - last) * worth(goals[1], after, then).min(0)

                def loss(p: Any) -> Any:
                    return jnp.square(worth(p, seen, move) - goal).mean(1).sum()

                return learned(rule, loss, critics)

            for n, drawn in enumerate(jax.random.split(two)):
                critics, value = critic(critics, rows[n], drawn)
            seen = buffer[0][rows[1]]

            def loss(p: Any) -> Any:
                return -worth(critics[0], seen, act(p, seen))[0].mean()

            actor, gain = learned(rule, loss, actor)
            goals = optax.incremental_update((actor[0], critics[0]), goals, 0.005)
            return ((actor, critics), goals), (value, gain)

        return lax.scan(update, state, jax.random.split(key, 5))

    actor = stack(17, 256, 256, 6)
    critics = times(2, stack(23, 256, 256, 1))
    state = ((started(rule, actor), started(rule, critics)), (actor, critics))
    seen, one = Arg((size, 17)), Arg((size,))
    buffer = (seen, Arg((size, 6), scale=0.5), one, seen, Arg((size,), scale=0.0))
    yield "td3", carried(delayed, state, buffer, _KEY)


def devices() -> Zoo:
    """Federated averaging: nine clients learn written letters for four steps, then they meet."""

    def averaged(params: Any, x: Any, labels: Any, sizes: Any) -> Any:
        def client(x: Any, labels: Any) -> Any:
            def loss(p: Any, x: Any, labels: Any) -> Any:
                for w, shift in p["windows"]:
                    x = jax.nn.relu(conv(x, w) + shift)
                    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")
                return cross_entropy(perceptron(x.reshape(x.shape[0], -1), p["dense"]), labels)

            def step(p: Any, given: Any) -> Any:
                value, slope = jax.value_and_grad(lambda p: loss(p, *given).mean())(p)
                return jax.tree.map(lambda w, g: w - 0.06 * g, p, slope), value

            new, values = lax.scan(step, params, (x, labels))
            return jax.tree.map(jnp.subtract, new, params), values.mean()

        changes, values = jax.vmap(client)(x.astype(F32) / 255, labels)
        share = 1 + jnp.abs(sizes)
        share = share / share.sum()
        new = jax.tree.map(lambda w, c: w + jnp.einsum("c,c...->...", share, c), params, changes)
        return new, share @ values

    params = {
        "windows": [
            (filters(5, 5, 1, 32), Arg((32,), scale=0.02)),
            (filters(5, 5, 32, 64), Arg((64,), scale=0.02)),
        ],
        "dense": stack(3136, 512, 62),
    }
    given = (Arg((9, 4, 20, 28, 28, 1), U8, below=256), Arg((9, 4, 20), I32, below=62))
    yield "fedavg", carried(averaged, params, *given, Arg((9,)))


def kernels() -> Zoo:
    """Kernel ridge regression of 3,000 rows by Cholesky, with every row left out in turn."""

    def ridge(x: Any, y: Any, asked: Any, width: Any) -> Any:
        def matern(a: Any, b: Any) -> Any:
            a, b = a / (1 + jnp.abs(width)), b / (1 + jnp.abs(width))
            square = (a * a).sum(1)[:, None] + (b * b).sum(1) - 2 * a @ b.T
            far = jnp.sqrt(5 * jnp.maximum(square, 1e-12))
            return (1 + far + far**2 / 3) * jnp.exp(-far)

        factor = cho_factor(matern(x, x) + 0.1 * jnp.eye(x.shape[0]), lower=True)
        found = cho_solve(factor, y)
        apart = jnp.diagonal(cho_solve(factor, jnp.eye(x.shape[0])))
        missed = found / apart[:, None]
        return matern(asked, x) @ found, jnp.square(missed).mean(0)

    given = (Arg((3000, 18)), Arg((3000, 4)), Arg((7001, 18)), Arg((18,)))
    yield "matern", program(ridge, *given)


def oceans() -> Zoo:
    """Shallow water on a turning plane: 40 steps of heights and speeds on staggered grids."""

    def shallow(state: Any, ground: Any, twist: Any) -> Any:
        dt, g, d = 0.05, 9.81, 10.0

        def step(state: Any, _: Any) -> Any:
            h, u, v = state

            def right(a: Any) -> Any:
                return jnp.roll(a, -1, 1)

            def up(a: Any) -> Any:
                return jnp.roll(a, -1, 0)

            deep = 100 + h - ground
            flow_u = u * 0.5 * (deep + right(deep))
            flow_v = v * 0.5 * (deep + up(deep))
            h = h - dt / d * (flow_u - jnp.roll(flow_u, 1, 1) + flow_v - jnp.roll(flow_v, 1, 0))
            v_at_u = 0.25 * (v + right(v) + jnp.roll(v, 1, 0) + jnp.roll(right(v), 1, 0))
            u_at_v = 0.25 * (u + up(u) + jnp.roll(u, 1, 1) + jnp.roll(up(u), 1, 1))
            smooth_u = right(u) + jnp.roll(u, 1, 1) + up(u) + jnp.roll(u, 1, 0) - 4 * u
            smooth_v = right(v) + jnp.roll(v, 1, 1) + up(v) + jnp.roll(v, 1, 0) - 4 * v
            drag = 1e-3 * jnp.sqrt(u * u + v * v) / 100
            u = u + dt * (twist * v_at_u - g * (right(h) - h) / d + 0.1 * smooth_u - drag * u)
            v = v + dt * (-twist * u_at_v - g * (up(h) - h) / d + 0.1 * smooth_v - drag * v)
            return (h, u, v), jnp.square(h).mean()

        return lax.scan(step, state, None, length=40)

    shape = (1100, 1500)
    state = (Arg(shape, scale=0.1), Arg(shape, scale=0.01), Arg(shape, scale=0.01))
    yield "shallow", carried(shallow, state, Arg(shape), Arg((1100, 1), scale=1e-4))


def potentials() -> Zoo:
    """The gravity of 400,000 masses in a box, by a mesh of 192 x 192 x 160 and its spectrum."""

    def poisson(places: Any, masses: Any) -> Any:
        shape = (192, 192, 160)
        room = jnp.array(shape)
        at = (places % 1.0) * room
        low = jnp.floor(at).astype(I32)
        part = at - low
        mesh = jnp.zeros(shape)
        corners = [(i, j, k) for i in (0, 1) for j in (0, 1) for k in (0, 1)]
        spots = []
        for corner in corners:
            side = jnp.array(corner)
            share = jnp.prod(jnp.where(side, part, 1 - part), -1)
            spot = tuple(((low + side) % room).T)
            spots.append((spot, share))
            mesh = mesh.at[spot].add(share * jnp.abs(masses))
        waves = [2 * jnp.pi * jnp.fft.fftfreq(n, 1 / n) for n in shape[:2]]
        waves.append(2 * jnp.pi * jnp.arange(shape[2] // 2 + 1))
        kx, ky, kz = jnp.meshgrid(*waves, indexing="ij")
        square = kx**2 + ky**2 + kz**2
        field = -jnp.fft.rfftn(mesh) / jnp.where(square > 0, square, 1.0) * (square > 0)
        pulls = [jnp.fft.irfftn(-1j * k * field, shape) for k in (kx, ky, kz)]
        pull = jnp.stack(pulls, -1)
        return sum(share[:, None] * pull[spot] for spot, share in spots)

    yield "poisson", program(poisson, Arg((400000, 3)), Arg((400000,)))


def flocks() -> Zoo:
    """Five thousand birds that keep apart, fly alike and stay together: three steps."""

    def boids(state: Any, rates: Any) -> Any:
        def step(_: Any, state: Any) -> Any:
            x, v = state
            gap = x[None] - x[:, None]
            square = jnp.square(gap).sum(-1)
            ahead = jnp.einsum("ijk,ik->ij", gap, v) > -0.5 * jnp.sqrt(square + 1e-9)
            near = (square < 0.25) & (square > 0) & ahead
            close = near & (square < 0.01)
            count = jnp.maximum(near.sum(1), 1)[:, None]
            apart = -jnp.where(close[..., None], gap / (square[..., None] + 1e-3), 0.0).sum(1)
            alike = near.astype(F32) @ v / count - v
            middle = near.astype(F32) @ x / count - x
            v = v + 0.01 * (rates[0] * apart + rates[1] * alike + rates[2] * middle)
            pace = jnp.linalg.norm(v, axis=-1, keepdims=True)
            v = v * jnp.clip(pace, 0.3, 1.0) / (pace + 1e-9)
            return x + 0.02 * v, v

        state = lax.fori_loop(0, 3, step, state)
        return state, jnp.linalg.norm(state[1].mean(0))

    yield "boids", carried(boids, (Arg((5000, 3)), Arg((5000, 3))), Arg((3,)))


def outliers() -> Zoo:
    """How lonely each of 9,001 rows is among its 20 nearest: the local outlier factor."""

    def lonely(x: Any) -> Any:
        x = (x - x.mean(0)) / (x.std(0) + 1e-6)
        size = (x * x).sum(1)
        square = size[:, None] + size - 2 * x @ x.T
        square = jnp.where(jnp.eye(x.shape[0], dtype=bool), jnp.inf, square)
        far, index = lax.top_k(-square, 20)
        far = jnp.sqrt(jnp.maximum(-far, 0.0))
        reach = jnp.maximum(far, far[:, -1][index])
        dense = 1 / (reach.mean(1) + 1e-10)
        factor = dense[index].mean(1) / dense
        return factor, jnp.argsort(-factor)[:90]

    yield "lonely", program(lonely, Arg((9001, 24)))


def ranks() -> Zoo:
    """Genes of 384 samples: quantiles made equal by sorts, and how ranks go together."""

    def quantiles(counts: Any) -> Any:
        x = jnp.log1p(counts.astype(F32))
        order = jnp.argsort(x, 0)
        sorted_ = jnp.take_along_axis(x, order, 0)
        rank = jnp.argsort(order, 0)
        level = sorted_.mean(1)
        even = level[rank]
        y = rank - rank.mean(0, dtype=F32)
        y = y / jnp.sqrt(jnp.square(y).sum(0))
        return even, y.T @ y, jnp.quantile(even, jnp.array([0.05, 0.5, 0.95]), 1)

    yield "quantiles", program(quantiles, Arg((16001, 384), I32, below=5000))


def pictures() -> Zoo:
    """Ten grey pictures whose contrast is made equal in tiles, with clipped histograms."""
    n, tall, wide, bins = 8, 768, 1024, 256

    def contrast(x: Any) -> Any:
        high, broad = tall // n, wide // n

        def one(x: Any) -> Any:
            tiles = x.reshape(n, high, n, broad).swapaxes(1, 2).reshape(n * n, -1).astype(I32)
            count = jax.vmap(lambda t: jnp.bincount(t, length=bins))(tiles)
            limit = 3 * high * broad // bins
            extra = jnp.maximum(count - limit, 0).sum(1, keepdims=True)
            count = jnp.minimum(count, limit) + extra // bins
            curve = jnp.cumsum(count, 1).astype(F32)
            curve = (curve * 255 / curve[:, -1:]).reshape(n, n, bins)
            y = (jnp.arange(tall) + 0.5) / high - 0.5
            z = (jnp.arange(wide) + 0.5) / broad - 0.5
            top, left = jnp.floor(y).astype(I32), jnp.floor(z).astype(I32)
            down, right = (y - top)[:, None], z - left

            def at(i: Any, j: Any) -> Any:
                i, j = jnp.clip(i, 0, n - 1), jnp.clip(j, 0, n - 1)
                return curve[i[:, None], j, x.astype(I32)]

            upper = (1 - right) * at(top, left) + right * at(top, left + 1)
            lower = (1 - right) * at(top + 1, left) + right * at(top + 1, left + 1)
            return jnp.round((1 - down) * upper + down * lower).astype(U8)

        return jax.vmap(one)(x)

    yield "contrast", program(contrast, Arg((10, tall, wide), U8, below=256))


def markets() -> Zoo:
    """Black and Scholes' prices of three million options, their slopes, and the spread behind."""

    def options(spot: Any, strike: Any, years: Any, spread: Any, rate: Any) -> Any:
        spot, strike = 100 * jnp.exp(0.2 * spot), 100 * jnp.exp(0.2 * strike)
        years, spread = 0.1 + jnp.abs(years), 0.1 + 0.2 * jnp.abs(spread)

        def price(spot: Any, spread: Any, years: Any, strike: Any, rate: Any) -> Any:
            wide = spread * jnp.sqrt(years)
            one = (jnp.log(spot / strike) + (rate + spread**2 / 2) * years) / wide
            now = spot * jax.scipy.stats.norm.cdf(one)
            return now - strike * jnp.exp(-rate * years) * jax.scipy.stats.norm.cdf(one - wide)

        given = (spot, spread, years, strike)
        axes = (0, 0, 0, 0, None)
        value, slopes = jax.vmap(jax.value_and_grad(price, (0, 1, 2)), axes)(*given, rate)
        bend = jax.vmap(jax.grad(jax.grad(price)), axes)(*given, rate)
        vega = jax.vmap(jax.value_and_grad(price, 1), axes)

        def newton(_: Any, guess: Any) -> Any:
            found, slope = vega(spot, guess, years, strike, rate)
            return jnp.clip(guess - (found - value) / jnp.maximum(slope, 1e-4), 0.01, 3.0)

        implied = lax.fori_loop(0, 7, newton, jnp.full_like(spread, 0.3))
        return value, slopes, bend, implied

    yield "options", program(options, *[Arg((3000000,))] * 4, Arg((), scale=0.03))


def roads() -> Zoo:
    """The shortest ways from four places along 900,000 roads, by 24 rounds of Bellman's."""
    n, edges = 120000, 900000

    def shortest(start: Any, ends: Any, long: Any, places: Any) -> Any:
        long = 0.1 + jnp.abs(long)
        far = jnp.full((n, 4), jnp.inf).at[places, jnp.arange(4)].set(0.0)

        def round_(_: Any, far: Any) -> Any:
            offer = far[start] + long[:, None]
            return jnp.minimum(far, jax.ops.segment_min(offer, ends, n))

        far = lax.fori_loop(0, 24, round_, far)
        return far, jnp.isfinite(far).sum(0)

    ids = Arg((edges,), I32, below=n)
    yield "shortest", program(shortest, ids, ids, Arg((edges,)), Arg((4,), I32, below=n))


def volatility() -> Zoo:
    """Hidden spreads of seven shares by 8,192 particles each, over 90 days."""

    def particles(returns: Any, key: Any) -> Any:
        """Weights, a systematic draw of survivors, and their next states."""
        rows, count = returns.shape[1], 8192

        def day(carry: Any, given: Any) -> Any:
            x, key = carry
            key, one, two = jax.random.split(key, 3)
            x = -0.02 + 0.97 * (x + 0.02) + 0.2 * jax.random.normal(one, x.shape)
            log = -0.5 * (x + jnp.square(given)[:, None] * jnp.exp(-x))
            most = log.max(1, keepdims=True)
            share = jnp.exp(log - most)
            total = share.sum(1, keepdims=True)
            likely = most[:, 0] + jnp.log(total[:, 0] / count)
            sums = jnp.cumsum(share / total, 1)
            ticks = (jnp.arange(count) + jax.random.uniform(two, (rows, 1))) / count
            index = jax.vmap(jnp.searchsorted)(sums, ticks)
            x = jnp.take_along_axis(x, jnp.minimum(index, count - 1), 1)
            return (x, key), (likely, x.mean(1), jnp.exp(x / 2).mean(1))

        key, one = jax.random.split(key)
        start = jax.random.normal(one, (rows, count))
        _, (likely, *means) = lax.scan(day, (start, key), returns)
        return likely.sum(0), means

    yield "hidden_spreads", program(particles, Arg((90, 7)), _KEY)


def motion() -> Zoo:
    """Lucas and Kanade's flow between two pairs of frames, at three sizes, thrice at each."""

    def flow(one: Any, two: Any) -> Any:
        def box(x: Any) -> Any:
            return lax.reduce_window(x, 0.0, lax.add, (15, 15), (1, 1), "SAME") / 225

        def pair(one: Any, two: Any) -> Any:
            one, two = one.astype(F32) / 255, two.astype(F32) / 255
            shape = one.shape
            found = jnp.zeros((2, shape[0] // 4, shape[1] // 4))
            for level in (4, 2, 1):
                size = (shape[0] // level, shape[1] // level)
                a, b = (jax.image.resize(x, size, "linear") for x in (one, two))
                if level < 4:
                    found = 2 * jax.image.resize(found, (2, *size), "linear")
                gy, gx = jnp.gradient(a)
                yy, xx, xy = box(gy * gy) + 1e-4, box(gx * gx) + 1e-4, box(gx * gy)
                area = yy * xx - xy * xy
                grid = jnp.stack(jnp.meshgrid(*map(jnp.arange, size), indexing="ij")).astype(F32)
                for _ in range(3):
                    gap = map_coordinates(b, list(grid + found), 1, mode="nearest") - a
                    ey, ex = box(gy * gap), box(gx * gap)
                    step = jnp.stack([xx * ey - xy * ex, yy * ex - xy * ey]) / (area + 1e-9)
                    found = found - jnp.clip(step, -3, 3)
            return found

        return jax.vmap(pair)(one, two)

    frames = Arg((2, 720, 1280), U8, below=256)
    yield "lucas_kanade", program(flow, frames, frames)


def curves() -> Zoo:
    """Five numbers for each of 9,000 decays, by eight of Levenberg and Marquardt's steps."""

    def fitted(start: Any, times: Any, counts: Any) -> Any:
        start = 1 + 0.1 * start

        def curve(p: Any, t: Any) -> Any:
            fast = p[0] * jnp.exp(-t / (0.05 + p[1] ** 2))
            return fast + p[2] * jnp.exp(-t / (0.5 + p[3] ** 2)) + p[4]

        def one(p: Any, t: Any, y: Any) -> Any:
            def missed(p: Any) -> Any:
                return curve(p, t) - y

            def step(_: Any, carry: Any) -> Any:
                p, damp, cost = carry
                gap, slope = missed(p), jax.jacfwd(missed)(p)
                square = slope.T @ slope
                square = square + damp * jnp.diag(jnp.diagonal(square) + 1e-6)
                new = p - jnp.linalg.solve(square, slope.T @ gap)
                less = jnp.square(missed(new)).sum()
                good = less < cost
                p, cost = jnp.where(good, new, p), jnp.where(good, less, cost)
                return p, jnp.where(good, damp / 3, damp * 4), cost

            return lax.fori_loop(0, 8, step, (p, jnp.float32(1e-2), jnp.square(missed(p)).sum()))

        return jax.vmap(one)(start, jnp.sort(jnp.abs(times), 1), counts)

    yield "decays", program(fitted, Arg((9000, 5)), Arg((9000, 60)), Arg((9000, 60)))


def chemistry() -> Zoo:
    """The second order of Moller and Plesset: integrals of 100 functions in other bases."""

    def energy(integrals: Any, orbitals: Any, levels: Any) -> Any:
        taken, free = orbitals[:, :22], orbitals[:, 22:]
        x = jnp.einsum("pqrs,pi->iqrs", integrals, taken, precision="highest")
        x = jnp.einsum("iqrs,qa->iars", x, free, precision="highest")
        x = jnp.einsum("iars,rj->iajs", x, taken, precision="highest")
        x = jnp.einsum("iajs,sb->iajb", x, free, precision="highest")
        low, high = -1 - jnp.abs(levels[:22]), jnp.abs(levels[22:])
        gap = (low[:, None, None, None] - high[:, None, None]) + (low[:, None] - high)
        share = x / gap
        turned = share.swapaxes(1, 3)
        return (x * (2 * share - turned)).sum(), (x * share).sum()

    given = (Arg((100, 100, 100, 100), scale=0.01), master(100, 100), Arg((100,)))
    yield "second_order", program(energy, *given)


def signals() -> Zoo:
    """Where 144 chirps may be in a noisy strain of 131,072 samples: a bank of matched filters."""

    def bank(strain: Any, masses: Any) -> Any:
        n, rate = strain.shape[0], 4096.0
        parts = strain.reshape(-1, 4096)
        parts = jnp.concatenate([parts, jnp.roll(strain, -2048).reshape(-1, 4096)])
        power = jnp.square(jnp.abs(jnp.fft.rfft(parts * jnp.hanning(4096)))) + 1e-6
        noise = jnp.median(power, 0)
        wave = jnp.fft.rfftfreq(n, 1 / rate)
        noise = jnp.interp(wave, jnp.fft.rfftfreq(4096, 1 / rate), noise)
        mass = (1.2 + jnp.abs(masses))[:, None] * 4.9e-6
        safe = jnp.maximum(wave, 20.0)
        phase = 3 / 128 * (jnp.pi * mass * safe) ** (-5 / 3)
        chirp = safe ** (-7 / 6) * jnp.exp(-1j * phase) * ((wave > 20) & (wave < 1500))
        size = jnp.sqrt((jnp.square(jnp.abs(chirp)) / noise).sum(-1, keepdims=True))
        joint = jnp.fft.rfft(strain) * chirp.conj() / noise / size
        whole = jnp.abs(jnp.fft.ifft(jnp.pad(joint, ((0, 0), (0, n - joint.shape[1])))))
        bands = (20, 80, 180, 500, 1500)
        apart = jnp.zeros_like(whole)
        for low, high in pairwise(bands):
            part = jnp.where((wave >= low) & (wave < high), joint, 0)
            part = jnp.abs(jnp.fft.ifft(jnp.pad(part, ((0, 0), (0, n - joint.shape[1])))))
            apart = apart + 4 * jnp.square(part - whole / 4)
        score = whole / (0.5 * (1 + (apart / 6) ** 3)) ** (1 / 6)
        peak = score.reshape(score.shape[0], -1, 1024).max(-1)
        return lax.top_k(peak.reshape(-1), 50)

    yield "chirps", program(bank, Arg((131072,)), Arg((144,)))
