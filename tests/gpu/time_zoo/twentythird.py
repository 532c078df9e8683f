"""A 23rd zoo: steps that an outside reviewer would hold out, of mainstream learning and numerics.

It was written without a look at the predictor or its calibration, to be timed once: no
calibration and no fit has used its programs.
"""

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
from ninth import carried
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
    nnx_parts,
    rms,
    rope,
    swiglu,
    swiglu_weights,
    times,
)
from tenth import applied, states_of

from xlapipe.running.calibration.timed_program import Arg, TimedProgram

F32, BF16, I32, I8 = jnp.float32, jnp.bfloat16, jnp.int32, jnp.int8
U8, U32 = jnp.uint8, jnp.uint32
Zoo = Iterator[tuple[str, TimedProgram]]
_KEY = Arg((2,), U32, below=1 << 30)


def twentythird_programs() -> dict[str, TimedProgram]:
    """Every program, by FAMILY/NAME."""
    families = (
        *(images, clips, scenes_labelled, hearing, speaking, shops, corpora, graphs_of_molecules),
        *(arcade, sparse_layers, cheap_tuning, narrow_serving, rules, smaller_models, searching),
        *(noise, hidden_patches, committees, chatting, memories_of_matrices),
        *(elliptic, turbulent, hedging, eigenpairs, programmes, preparation, reductions, rankings),
    )
    return {
        f"{family.__name__}/{name}": program for family in families for name, program in family()
    }


def conv2(x: Any, p: Any, stride: int = 1, hole: int = 1, groups: int = 1) -> Any:
    """A convolution with its shift, into which a norm was folded."""
    w, b = p
    y = lax.conv_general_dilated(
        *(x, w, (stride, stride), "SAME"),
        rhs_dilation=(hole, hole),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )
    return y + b


def window(k: int, a: int, b: int, dtype: Any = BF16) -> tuple[Arg, Arg]:
    """Weights of such a convolution."""
    return filters(k, k, a, b, dtype=dtype), Arg((b,), dtype, scale=0.1)


# ------------------------------------------------------------------------------- machine learning


class WideBlock(nn.Module):
    """Two convolutions with their norms before them."""

    wide: int
    stride: int = 1

    @nn.compact
    def __call__(self, x: Any, train: bool = True) -> Any:
        def norm(y: Any) -> Any:
            return nn.relu(nn.BatchNorm(not train, momentum=0.9)(y))

        y = norm(x)
        old = x
        if self.stride > 1 or x.shape[-1] != self.wide:
            old = nn.Conv(self.wide, (1, 1), (self.stride,) * 2, use_bias=False)(y)
        y = nn.Conv(self.wide, (3, 3), (self.stride,) * 2, use_bias=False)(y)
        y = nn.Conv(self.wide, (3, 3), use_bias=False)(norm(y))
        return old + y


class WideResNet(nn.Module):
    """WRN-16-4 in float32."""

    @nn.compact
    def __call__(self, x: Any, train: bool = True) -> Any:
        x = nn.Conv(16, (3, 3), use_bias=False)(x)
        for stage in range(3):
            for n in range(2):
                x = WideBlock(64 << stage, 2 if stage and not n else 1)(x, train)
        x = nn.relu(nn.BatchNorm(not train, momentum=0.9)(x))
        return nn.Dense(100)(x.mean((1, 2)))


def images() -> Zoo:
    """A wide ResNet learns CIFAR-100 in float32, and a RegNet in bfloat16 tells 96 pictures."""
    model, b = WideResNet(), 192
    rule = optax.chain(
        optax.add_decayed_weights(5e-4),
        optax.sgd(optax.cosine_decay_schedule(0.1, 40000), momentum=0.9, nesterov=True),
    )

    def update(state: Any, shown: Any, labels: Any, key: Any) -> Any:
        params, stats, known = state
        one, two = jax.random.split(key)
        x = jnp.pad(shown, ((0, 0), (4, 4), (4, 4), (0, 0)))
        corner = jax.random.randint(one, (b, 2), 0, 9)
        x = jax.vmap(lambda a, c: lax.dynamic_slice(a, (c[0], c[1], 0), (32, 32, 3)))(x, corner)
        turned = jax.random.bernoulli(two, 0.5, (b, 1, 1, 1))
        x = jnp.where(turned, x[:, :, ::-1], x).astype(F32)
        x = (x / 255 - jnp.array([0.507, 0.487, 0.441])) / jnp.array([0.267, 0.256, 0.276])

        def loss(params: Any) -> Any:
            variables = {"params": params, "batch_stats": stats}
            logits, new = model.apply(variables, x, mutable=["batch_stats"])
            goals = optax.smooth_labels(jax.nn.one_hot(labels, 100), 0.1)
            right = (logits.argmax(-1) == labels).mean()
            return optax.softmax_cross_entropy(logits, goals).mean(), (new, right)

        (value, (new, right)), grads = jax.value_and_grad(loss, has_aux=True)(params)
        params, known = applied(rule, params, known, grads)
        return (params, new["batch_stats"], known), (value, right)

    variables = linen_weights(model, Arg((b, 32, 32, 3)))
    state = (variables["params"], variables["batch_stats"])
    state = (*state, states_of(rule, variables["params"]))
    shown = Arg((b, 32, 32, 3), U8, below=256)
    yield "wrn_16_4", carried(update, state, shown, Arg((b,), I32, below=100), _KEY)

    widths, depths, size = (48, 120, 336, 888), (1, 3, 6, 2), 24

    def regnet(p: Any, shown: Any) -> Any:
        x = (shown.astype(BF16) - 118) / 58
        x = jax.nn.relu(conv2(x, p["stem"], 2))
        for stage in p["stages"]:
            for n, q in enumerate(stage):
                stride = 1 if n else 2
                y = jax.nn.relu(conv2(x, q["in"]))
                y = jax.nn.relu(conv2(y, q["mid"], stride, groups=y.shape[-1] // size))
                gate = jax.nn.relu(y.mean((1, 2)) @ q["squeeze"])
                y = y * jax.nn.sigmoid(gate @ q["excite"])[:, None, None]
                y = conv2(y, q["out"])
                x = jax.nn.relu(y + (x if n else conv2(x, q["side"], stride)))
        logits = (x.mean((1, 2)) @ p["head"]).astype(F32)
        return lax.top_k(jax.nn.softmax(logits), 5)

    stages, before = [], 32
    for wide, depth in zip(widths, depths, strict=True):
        stage = []
        for n in range(depth):
            q = {"in": window(1, before, wide), "out": window(1, wide, wide)}
            q |= {"mid": (filters(3, 3, size, wide, dtype=BF16), Arg((wide,), BF16, 0.1))}
            q |= {"squeeze": weight(wide, before // 4), "excite": weight(before // 4, wide)}
            if not n:
                q["side"] = window(1, before, wide)
            stage.append(q)
            before = wide
        stages.append(stage)
    p = {"stem": window(3, 3, 32), "stages": stages, "head": weight(888, 1000)}
    yield "regnet_y", program(regnet, p, Arg((96, 224, 224, 3), U8, below=256))


def clips() -> Zoo:
    """R(2+1)D tells 8 clips of 16 frames in bfloat16: windows of space, then windows of time."""

    def conv3(x: Any, w: Any, stride: Any) -> Any:
        names = ("NDHWC", "DHWIO", "NDHWC")
        return lax.conv_general_dilated(x, w, stride, "SAME", dimension_numbers=names)

    def both(x: Any, q: Any, stride: int) -> Any:
        x = jax.nn.relu(conv3(x, q["space"], (1, stride, stride)) + q["shift"])
        return conv3(x, q["time"], (stride, 1, 1))

    def told(p: Any, video: Any) -> Any:
        x = video.astype(BF16) / 128 - 1
        x = jax.nn.relu(conv3(x, p["stem"], (1, 2, 2)))
        x = jax.nn.relu(conv3(x, p["stem_time"], (1, 1, 1)))
        for n, q in enumerate(p["blocks"]):
            stride = 2 if n else 1
            y = both(jax.nn.relu(both(x, q["one"], stride)), q["two"], 1)
            x = jax.nn.relu(y + (conv3(x, q["side"], (2, 2, 2)) if n else x))
        return jax.nn.log_softmax((x.mean((1, 2, 3)) @ p["head"]).astype(F32))

    def pair(a: int, b: int) -> Any:
        mid = 27 * a * b // (9 * a + 3 * b) // 8 * 8
        q = {"space": filters(1, 3, 3, a, mid, dtype=BF16), "shift": Arg((mid,), BF16, 0.1)}
        return q | {"time": filters(3, 1, 1, mid, b, dtype=BF16)}

    blocks = [{"one": pair(64, 64), "two": pair(64, 64)}]
    for a, b in pairwise((64, 128, 256, 512)):
        side = filters(1, 1, 1, a, b, dtype=BF16)
        blocks.append({"one": pair(a, b), "two": pair(b, b), "side": side})
    p = {"stem": filters(1, 7, 7, 3, 48, dtype=BF16), "blocks": blocks, "head": weight(512, 400)}
    p |= {"stem_time": filters(3, 1, 1, 48, 64, dtype=BF16)}
    yield "r2plus1d", program(told, p, Arg((8, 16, 112, 112, 3), U8, below=256))


def scenes_labelled() -> Zoo:
    """DeepLab is judged by its confusions in float32; YOLO finds boxes in bfloat16."""
    b, side, kinds = 6, 512, 21

    def deeplab(confused: Any, p: Any, shown: Any, labels: Any) -> Any:
        x = (shown.astype(F32) / 255 - 0.45) / 0.225
        x = jax.nn.relu(conv2(x, p["stem"], 2))
        x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
        low = x
        for n, stage in enumerate(p["stages"]):
            for m, q in enumerate(stage):
                stride, hole = (2 if n == 1 or n == 2 else 1, 1) if not m else (1, 1 + (n == 3))
                y = jax.nn.relu(conv2(x, q["in"]))
                y = jax.nn.relu(conv2(y, q["mid"], stride, hole))
                y = conv2(y, q["out"])
                x = jax.nn.relu(y + (x if m else conv2(x, q["side"], stride)))
            low = x if not n else low
        parts = [jax.nn.relu(conv2(x, p["flat"]))]
        parts += [jax.nn.relu(conv2(x, q, 1, 6 * n + 6)) for n, q in enumerate(p["wide"])]
        pooled = jax.nn.relu(conv2(x.mean((1, 2), keepdims=True), p["pooled"]))
        parts.append(jnp.broadcast_to(pooled, parts[0].shape))
        x = jax.nn.relu(conv2(jnp.concatenate(parts, -1), p["join"]))
        x = jax.image.resize(x, (b, side // 4, side // 4, 256), "bilinear")
        x = jnp.concatenate([x, jax.nn.relu(conv2(low, p["low"]))], -1)
        x = conv2(jax.nn.relu(conv2(x, p["last"])), p["logits"])
        found = jax.image.resize(x, (b, side, side, kinds), "bilinear").argmax(-1)
        real = labels < kinds
        place = jnp.where(real, labels * kinds + found, kinds * kinds).ravel()
        seen = jnp.bincount(place, length=kinds * kinds + 1)[:-1].reshape(kinds, kinds)
        confused = confused + seen.astype(F32)
        hit = jnp.diagonal(confused)
        union = confused.sum(0) + confused.sum(1) - hit
        return confused, (hit / jnp.maximum(union, 1)).mean()

    stages, before = [], 64
    for wide, depth in ((256, 2), (512, 2), (1024, 2), (2048, 1)):
        stage = []
        for n in range(depth):
            q = {"in": window(1, before, wide // 4, F32), "out": window(1, wide // 4, wide, F32)}
            q |= {"mid": window(3, wide // 4, wide // 4, F32)}
            stage.append(q if n else q | {"side": window(1, before, wide, F32)})
            before = wide
        stages.append(stage)
    p = {"stem": window(7, 3, 64, F32), "stages": stages, "flat": window(1, 2048, 256, F32)}
    p |= {"wide": [window(3, 2048, 256, F32)] * 3, "pooled": window(1, 2048, 256, F32)}
    p |= {"join": window(1, 1280, 256, F32), "low": window(1, 256, 48, F32)}
    p |= {"last": window(3, 304, 256, F32), "logits": window(1, 256, kinds, F32)}
    given = (Arg((b, side, side, 3), U8, below=256), Arg((b, side, side), I32, below=22))
    yield "deeplab", carried(deeplab, Arg((kinds, kinds), scale=0.0), p, *given)

    rows, wide = 12, 640

    def many(x: Any, q: Any) -> Any:
        """C2f: half of the numbers pass through two bottlenecks, and all are joined."""
        x = jax.nn.silu(conv2(x, q["in"]))
        parts = jnp.split(x, 2, -1)
        for one, two in q["deep"]:
            y = jax.nn.silu(conv2(jax.nn.silu(conv2(parts[-1], one)), two))
            parts.append(parts[-1] + y)
        return jax.nn.silu(conv2(jnp.concatenate(parts, -1), q["out"]))

    def yolo(p: Any, shown: Any) -> Any:
        x = shown.astype(BF16) / 255
        levels = []
        for down, q in p["back"]:
            x = many(jax.nn.silu(conv2(x, down, 2)), q)
            levels.append(x)
        levels = levels[-3:]
        top = levels[-1]
        for n, q in ((1, p["up"][0]), (0, p["up"][1])):
            top = jnp.repeat(jnp.repeat(top, 2, 1), 2, 2)
            top = many(jnp.concatenate([top, levels[n]], -1), q)
            levels[n] = top
        boxes, scores = [], []
        for n, (x, q) in enumerate(zip(levels, p["heads"], strict=True)):
            step, (h, w) = 8 << n, x.shape[1:3]
            sides = conv2(jax.nn.silu(conv2(x, q["box"])), q["sides"]).astype(F32)
            sides = jax.nn.softmax(sides.reshape(rows, h, w, 4, 16), -1) @ jnp.arange(16.0)
            at = jnp.stack(jnp.meshgrid(jnp.arange(w), jnp.arange(h)), -1) + 0.5
            box = jnp.concatenate([at - sides[..., :2], at + sides[..., 2:]], -1) * step
            boxes.append(box.reshape(rows, -1, 4))
            kind = conv2(jax.nn.silu(conv2(x, q["kind"])), q["kinds"]).astype(F32)
            scores.append(jax.nn.sigmoid(kind).reshape(rows, -1, 80))
        boxes, scores = jnp.concatenate(boxes, 1), jnp.concatenate(scores, 1)
        best, index = lax.top_k(scores.max(-1), 300)
        kept = jnp.take_along_axis(boxes, index[..., None], 1)
        kind = jnp.take_along_axis(scores.argmax(-1), index, 1)
        far = kept + kind[..., None] * 4096.0
        low = jnp.maximum(far[:, :, None, :2], far[:, None, :, :2])
        high = jnp.minimum(far[:, :, None, 2:], far[:, None, :, 2:])
        shared = jnp.prod(jnp.maximum(high - low, 0), -1)
        area = jnp.prod(jnp.maximum(far[..., 2:] - far[..., :2], 0), -1)
        union = area[:, :, None] + area[:, None] - shared
        over = jnp.tril(shared / jnp.maximum(union, 1e-6), -1)
        fade = jnp.exp(-(over**2 - over.max(-1)[:, None] ** 2) * 2)
        return kept, kind, best * jnp.where(over > 0, fade, 1.0).min(-1)

    def c2f(a: int, b: int, depth: int) -> Any:
        deep = [(window(3, b // 2, b // 2), window(3, b // 2, b // 2))] * depth
        return {"in": window(1, a, b), "deep": deep, "out": window(1, b // 2 * (depth + 2), b)}

    sizes = (3, 32, 64, 128, 256, 512)
    back = [(window(3, a, b), c2f(b, b, min(2, n + 1))) for n, (a, b) in enumerate(pairwise(sizes))]
    ends = []
    for a in (128, 256, 512):
        q = {"box": window(3, a, 64), "sides": window(1, 64, 64)}
        ends.append(q | {"kind": window(3, a, 128), "kinds": window(1, 128, 80)})
    p = {"back": back, "up": [c2f(768, 256, 1), c2f(384, 128, 1)], "heads": ends}
    yield "yolo_v8", program(yolo, p, Arg((rows, wide, wide, 3), U8, below=256))


class Cnn14(nn.Module):
    """Six pairs of convolutions over a spectrogram."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.BatchNorm(False, axis=2)(x)
        for n, wide in enumerate((64, 128, 256, 512, 1024)):
            for _ in range(2):
                x = nn.Conv(wide, (3, 3), use_bias=False, dtype=BF16)(x)
                x = nn.relu(nn.BatchNorm(False, dtype=BF16)(x))
            x = nn.avg_pool(x, (2, 2), (2, 2)) if n < 4 else x
        x = x.mean(2)
        x = x.max(1) + x.mean(1)
        x = nn.relu(nn.Dense(2048, dtype=BF16)(x))
        return nn.Dense(527)(x)


def hearing() -> Zoo:
    """PANNs' CNN14 learns tags of 24 sounds of five seconds, mixed in pairs."""
    model, b, frames, bands = Cnn14(), 24, 496, 64
    rule = optax.adam(1e-3, eps=1e-8)

    def update(state: Any, sounds: Any, tags: Any, bank: Any, key: Any) -> Any:
        params, stats, known = state
        one, two, three = jax.random.split(key, 3)
        at = jnp.arange(frames)[:, None] * 320 + jnp.arange(1024)
        parts = sounds.astype(F32)[:, at] / 32768 * jnp.hanning(1024)
        power = jnp.square(jnp.abs(jnp.fft.rfft(parts)))
        x = 10 * jnp.log10(jnp.maximum(power @ jnp.abs(bank), 1e-10))
        start = jax.random.randint(one, (b, 1), 0, frames - 64)
        gap = (jnp.arange(frames) >= start) & (jnp.arange(frames) < start + 64)
        low = jax.random.randint(two, (b, 1), 0, bands - 8)
        hole = (jnp.arange(bands) >= low) & (jnp.arange(bands) < low + 8)
        x = jnp.where(gap[:, :, None] | hole[:, None], 0.0, x)
        share = jax.random.uniform(three, (b,))
        x = x * share[:, None, None] + x[::-1] * (1 - share)[:, None, None]
        goal = tags.astype(F32)
        goal = goal * share[:, None] + goal[::-1] * (1 - share)[:, None]

        def loss(params: Any) -> Any:
            variables = {"params": params, "batch_stats": stats}
            logits, new = model.apply(variables, x[..., None], mutable=["batch_stats"])
            return optax.sigmoid_binary_cross_entropy(logits, goal).mean(), new["batch_stats"]

        (value, new), grads = jax.value_and_grad(loss, has_aux=True)(params)
        params, known = applied(rule, params, known, grads)
        return (params, new, known), value

    v = linen_weights(model, Arg((b, frames, bands, 1)))
    state = (v["params"], v["batch_stats"], states_of(rule, v["params"]))
    sounds, tags = Arg((b, 160000), jnp.int16, below=20000), Arg((b, 527), jnp.bool_)
    yield "cnn14", carried(update, state, sounds, tags, Arg((513, bands), scale=0.01), _KEY)


class SpokenBlock(nn.Module):
    """Attention and two convolutions in time, each with its norm after it."""

    @nn.compact
    def __call__(self, x: Any, real: Any) -> Any:
        d = x.shape[-1]
        mask = (real[:, None] & real[:, :, None])[:, None]
        x = nn.LayerNorm()(x + nn.MultiHeadDotProductAttention(2)(x, x, mask=mask))
        y = nn.relu(nn.Conv(1024, (9,))(x))
        x = nn.LayerNorm()(x + nn.Conv(d, (1,))(y))
        return x * real[..., None]


class Foretold(nn.Module):
    """A number of each sound: its length, pitch or strength."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for _ in range(2):
            x = nn.LayerNorm()(nn.relu(nn.Conv(256, (3,))(x)))
        return nn.Dense(1)(x)[..., 0]


class FastSpeech(nn.Module):
    """FastSpeech 2 in float32."""

    frames: int = 800

    @nn.compact
    def __call__(self, letters: Any, lengths: Any) -> Any:
        s = letters.shape[1]
        real = jnp.arange(s) < lengths[:, None]
        x = nn.Embed(360, 256)(letters)
        x = x + self.param("place", nn.initializers.normal(0.02), (s, 256))
        for _ in range(4):
            x = SpokenBlock()(x, real)
        length = jnp.clip(jnp.round(jnp.exp(Foretold()(x)) * 4), 1, 12) * real
        for _ in range(2):
            level = jnp.searchsorted(jnp.linspace(-3, 3, 255), Foretold()(x))
            x = x + nn.Embed(256, 256)(level)
        ends = jnp.cumsum(length, -1)
        times_ = jnp.arange(self.frames)
        owner = jax.vmap(lambda e: jnp.searchsorted(e, times_, side="right"))(ends)
        x = jnp.take_along_axis(x, jnp.minimum(owner, s - 1)[..., None], 1)
        real = times_ < ends[:, -1:]
        x = x + self.param("time", nn.initializers.normal(0.02), (self.frames, 256))
        for _ in range(4):
            x = SpokenBlock()(x, real)
        mel = nn.Dense(80)(x)
        y = mel
        for n in range(5):
            y = nn.Conv(512 if n < 4 else 80, (5,))(y)
            y = jnp.tanh(y) if n < 4 else y
        return (mel + y) * real[..., None], ends[:, -1]


def speaking() -> Zoo:
    """FastSpeech 2 speaks 16 sentences: lengths of sounds are guessed, then sounds repeated."""
    given = (Arg((16, 120), I32, below=360), Arg((16,), I32, below=120))
    params = linen_weights(FastSpeech(), *given)
    yield "fast_speech", program(FastSpeech().apply, params, *given)


def shops() -> Zoo:
    """DLRM with 26 tables learns 16,384 clicks; only rows that were read move, by Adagrad."""
    b, count, rows, d = 16384, 26, 150000, 64
    rule = optax.adagrad(0.01)

    def dense(x: Any, layers: Any) -> Any:
        for n, (w, s) in enumerate(layers):
            x = x @ w + s
            x = jax.nn.relu(x) if n < len(layers) - 1 else x
        return x

    def update(state: Any, numbers: Any, ids: Any, clicked: Any) -> Any:
        params, known, tables, sums = state
        place = ids + jnp.arange(count) * rows
        read = tables[place]

        def loss(params: Any, read: Any) -> Any:
            low = jax.nn.relu(dense(jnp.log1p(jnp.abs(numbers)), params["low"]))
            all_ = jnp.concatenate([low[:, None], read], 1).astype(BF16)
            met = jnp.einsum("bnd,bmd->bnm", all_, all_).astype(F32)
            one, two = jnp.tril_indices(count + 1, -1)
            x = jnp.concatenate([low, met[:, one, two]], -1)
            logits = dense(x, params["high"])[:, 0]
            return optax.sigmoid_binary_cross_entropy(logits, clicked.astype(F32)).mean()

        value, (grads, way) = jax.value_and_grad(loss, (0, 1))(params, read)
        params, known = applied(rule, params, known, grads)
        place, way = place.ravel(), way.reshape(-1, d)
        sums = sums.at[place].add(jnp.square(way).mean(-1))
        way = way * lax.rsqrt(sums[place] + 1e-8)[:, None]
        return (params, known, tables.at[place].add(-0.01 * way), sums), value

    def layers(*sizes: int) -> Any:
        return [(master(a, b), Arg((b,), scale=0.1)) for a, b in pairwise(sizes)]

    params = {"low": layers(13, 512, 256, d), "high": layers(d + 351, 1024, 1024, 512, 256, 1)}
    state = (params, states_of(rule, params), Arg((count * rows, d), scale=0.01))
    state = (*state, Arg((count * rows,), scale=0.0))
    given = (Arg((b, 13)), Arg((b, count), I32, below=rows), Arg((b,), jnp.bool_))
    yield "dlrm_rowwise", carried(update, state, *given)


def corpora() -> Zoo:
    """ALBERT guesses masked words and the order of two parts in bfloat16, with LAMB."""
    b, s, d, words, picks = 32, 256, 768, 30000, 38
    rule = optax.lamb(1.76e-3, weight_decay=0.01)

    def update(state: Any, tokens: Any, kinds: Any, where: Any, goals: Any, order: Any) -> Any:
        def loss(params: Any) -> Any:
            p = half(params)
            x = p["table"][tokens] + p["kind"][kinds] + p["place"]
            x = layer_norm(x, p["first"]) @ p["wide"]

            def layer(x: Any, _: Any) -> Any:
                q = p["layer"]
                y = heads(x @ q["qkv"] + q["qkv_b"], 64)
                y = attention(*jnp.split(y, 3, 2)) @ q["out"]
                x = layer_norm(x + y, q["scale"][0])
                y = jax.nn.gelu(x @ q["up"] + q["up_b"]) @ q["down"]
                return layer_norm(x + y, q["scale"][1]), None

            x, _ = lax.scan(layer, x, length=8)
            y = jnp.take_along_axis(x, where[..., None], 1)
            y = layer_norm(jax.nn.gelu(y @ p["narrow"]), p["last"])
            told = cross_entropy(y @ p["table"].T + p["shift"], goals)
            real = (goals > 0).astype(F32)
            pair = jnp.tanh(x[:, 0] @ p["pool"]) @ p["order"]
            lost = (told * real).sum() / jnp.maximum(real.sum(), 1)
            return lost + cross_entropy(pair, order).mean()

        return learned(rule, loss, state)

    layer = {"qkv": master(d, 3 * d), "qkv_b": Arg((3 * d,), scale=0.02), "out": master(d, d)}
    layer |= {"up": master(d, 4 * d), "up_b": Arg((4 * d,), scale=0.02), "down": master(4 * d, d)}
    layer |= {"scale": Arg((2, d))}
    p = {"layer": layer, "table": Arg((words, 128), scale=0.05), "kind": Arg((2, 128), scale=0.02)}
    p |= {"place": Arg((s, 128), scale=0.02), "first": Arg((128,)), "last": Arg((128,))}
    p |= {"wide": master(128, d), "narrow": master(d, 128), "shift": Arg((words,), scale=0.02)}
    p |= {"pool": master(d, d), "order": master(d, 2)}
    given = (Arg((b, s), I32, below=words), Arg((b, s), I32), Arg((b, picks), I32, below=s))
    given = (*given, Arg((b, picks), I32, below=words), Arg((b,), I32))
    yield "albert_lamb", carried(update, started(rule, p), *given)


def graphs_of_molecules() -> Zoo:
    """GIN with a virtual node learns 128 tests of 512 molecules, of which some are unknown."""
    n, e, many, d, depth = 13312, 28672, 512, 300, 5
    rule = optax.adam(1e-3)

    def normed(x: Any, scale: Any) -> Any:
        mean, spread = x.mean(0), x.var(0)
        return (x - mean) * lax.rsqrt(spread + 1e-5) * scale

    def update(state: Any, atoms: Any, bonds: Any, ends: Any, owner: Any, tests: Any) -> Any:
        tests, known = tests

        def loss(p: Any) -> Any:
            x = sum(table[atoms[:, k]] for k, table in enumerate(p["atoms"]))
            whole = jnp.broadcast_to(p["whole"], (many, d))
            for k, q in enumerate(p["layers"]):
                x = x + whole[owner]
                bond = sum(table[bonds[:, j]] for j, table in enumerate(q["bonds"]))
                sent = jax.nn.relu(x[ends[0]] + bond)
                y = (1 + q["eps"]) * x + jax.ops.segment_sum(sent, ends[1], n)
                y = jax.nn.relu(normed(y @ q["one"], q["mid"])) @ q["two"]
                y = normed(y, q["scale"])
                if k < depth - 1:
                    w = jax.ops.segment_sum(x, owner, many) + whole
                    w = jax.nn.relu(normed(w @ q["w_one"], q["mid"]))
                    whole = jax.nn.relu(normed(w @ q["w_two"], q["scale"]))
                    y = jax.nn.relu(y)
                x = x + y
            size = jax.ops.segment_sum(jnp.ones(n), owner, many)
            pooled = jax.ops.segment_sum(x, owner, many) / jnp.maximum(size, 1)[:, None]
            lost = optax.sigmoid_binary_cross_entropy(pooled @ p["head"], tests.astype(F32))
            return jnp.where(known, lost, 0).sum() / jnp.maximum(known.sum(), 1)

        return learned(rule, loss, state)

    q = {"bonds": [Arg((6, d), scale=0.1)] * 3, "eps": Arg((), scale=0.1), "one": master(d, 2 * d)}
    q |= {"two": master(2 * d, d), "mid": Arg((2 * d,)), "scale": Arg((d,))}
    q |= {"w_one": master(d, 2 * d), "w_two": master(2 * d, d)}
    p = {"atoms": [Arg((120, d), scale=0.1)] * 9, "whole": Arg((d,), scale=0.1)}
    p |= {"layers": [q] * depth, "head": master(d, 128)}
    given = (Arg((n, 9), I32, below=120), Arg((e, 3), I32, below=6), Arg((2, e), I32, below=n))
    given = (*given, Arg((n,), I32, below=many), (Arg((many, 128), jnp.bool_),) * 2)
    yield "gin_virtual", carried(update, started(rule, p), *given)


class Watcher(nn.Module):
    """IMPALA's deep network: three stages with two residual blocks, a policy and a value."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = x.astype(F32) / 255
        for wide in (16, 32, 32):
            x = nn.max_pool(nn.Conv(wide, (3, 3))(x), (3, 3), (2, 2), "SAME")
            for _ in range(2):
                y = nn.Conv(wide, (3, 3))(nn.relu(x))
                x = x + nn.Conv(wide, (3, 3))(nn.relu(y))
        x = nn.relu(x).reshape(x.shape[0], -1)
        x = nn.relu(nn.Dense(256)(x))
        return nn.Dense(18)(x), nn.Dense(1)(x)[..., 0]


def arcade() -> Zoo:
    """IMPALA learns from 16 players' 20 moves, corrected by V-trace."""
    t, b, model = 20, 16, Watcher()
    rule = optax.chain(optax.clip_by_global_norm(40.0), optax.rmsprop(6e-4, 0.99, 0.1))

    def update(state: Any, seen: Any, acted: Any, old: Any, reward: Any, ended: Any) -> Any:
        def loss(params: Any) -> Any:
            logits, value = model.apply(params, seen.reshape(-1, 84, 84, 4))
            logits, value = logits.reshape(t + 1, b, 18)[:-1], value.reshape(t + 1, b)
            log = jax.nn.log_softmax(logits)
            chosen = jnp.take_along_axis(log, acted[..., None], -1)[..., 0]
            before = jax.nn.log_softmax(old)
            before = jnp.take_along_axis(before, acted[..., None], -1)[..., 0]
            ratio = jnp.minimum(1.0, jnp.exp(lax.stop_gradient(chosen) - before))
            worth, fade = lax.stop_gradient(value), 0.99 * (1 - ended.astype(F32))
            gain = jnp.clip(reward, -1, 1)
            delta = ratio * (gain + fade * worth[1:] - worth[:-1])

            def back(total: Any, given: Any) -> Any:
                d, f, r = given
                total = d + f * r * total
                return total, total

            _, extra = lax.scan(back, jnp.zeros(b), (delta, fade, ratio), reverse=True)
            goal = extra + worth[:-1]
            after = jnp.concatenate([goal[1:], worth[-1:]])
            merit = ratio * (gain + fade * after - worth[:-1])
            spread = -(jnp.exp(log) * log).sum(-1)
            lost = -(chosen * merit).sum() + 0.25 * jnp.square(goal - value[:-1]).sum()
            return lost - 0.01 * spread.sum()

        return learned(rule, loss, state)

    params = linen_weights(model, Arg((2, 84, 84, 4)))
    given = (Arg((t + 1, b, 84, 84, 4), U8, below=256), Arg((t, b), I32, below=18))
    given = (*given, Arg((t, b, 18)), Arg((t, b)), Arg((t, b), jnp.bool_))
    yield "impala", carried(update, started(rule, params), *given)


def sparse_layers() -> Zoo:
    """Two layers of GShard's 16 experts with room for 160 tokens, learned with Adafactor."""
    g, s, d, wide, e, room = 6, 1024, 1024, 2816, 16, 160
    rule = optax.adafactor(1e-3)

    @jax.checkpoint
    def layer(x: Any, p: Any) -> Any:
        y = rms(x, p["scale"])
        logits = (y @ p["route"]).astype(F32)
        likely = jax.nn.softmax(logits)
        best, index = lax.top_k(likely, 2)
        best = best / best.sum(-1, keepdims=True)
        picked = jax.nn.one_hot(index, e, dtype=I32)
        queue = picked.transpose(0, 2, 1, 3).reshape(g, 2 * s, e)
        queue = (jnp.cumsum(queue, 1) - queue).reshape(g, 2, s, e).transpose(0, 2, 1, 3)
        spot = (queue * picked).sum(-1)
        slots = jax.nn.one_hot(jnp.where(spot < room, spot, room), room, dtype=BF16)
        send = jnp.einsum("gske,gskc->gsec", picked.astype(BF16), slots)
        mix = jnp.einsum("gsk,gske,gskc->gsec", best.astype(BF16), picked.astype(BF16), slots)
        inside = jnp.einsum("gsec,gsd->egcd", send, y)
        up = jnp.einsum("egcd,edf->egcf", inside, p["up"])
        gate = jax.nn.gelu(jnp.einsum("egcd,edf->egcf", inside, p["gate"]))
        out = jnp.einsum("egcf,efd->egcd", up * gate, p["down"])
        share = picked[:, :, 0].astype(F32).mean(1) * likely.mean(1)
        lost = 0.01 * e * share.sum(-1).mean()
        lost = lost + 1e-3 * jnp.square(jax.nn.logsumexp(logits, -1)).mean()
        return x + jnp.einsum("gsec,egcd->gsd", mix, out), lost

    def update(state: Any, x: Any, goal: Any) -> Any:
        def loss(params: Any) -> Any:
            y, lost = lax.scan(layer, x, half(params))
            return jnp.square((y - goal).astype(F32)).mean() + lost.sum()

        return learned(rule, loss, state)

    p = {"route": master(d, e), "up": master(e, d, wide), "gate": master(e, d, wide)}
    p |= {"down": master(e, wide, d), "scale": Arg((d,))}
    x = Arg((g, s, d), BF16)
    yield "gshard", carried(update, started(rule, times(2, p)), x, x)


def cheap_tuning() -> Zoo:
    """DoRA tunes a frozen decoder: directions of low rank and lengths of columns."""
    b, s, d, wide, size, words, rank = 2, 1024, 2048, 5632, 128, 32000, 16
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(2e-4, weight_decay=0.0))
    tuned = {"q": (d, d), "v": (d, 512), "up": (d, wide), "down": (wide, d)}

    def moved(x: Any, w: Any, a: Any) -> Any:
        low, high, length = a
        new = w.astype(F32) + 2.0 * low @ high
        norm = lax.stop_gradient(jnp.sqrt(jnp.square(new).sum(0)) + 1e-6)
        y = x @ w + 2.0 * (x @ low.astype(BF16)) @ high.astype(BF16)
        return y * (length / norm).astype(BF16)

    def update(state: Any, frozen: Any, tokens: Any, told: Any) -> Any:
        places, mask = jnp.arange(s), causal(s)

        def layer(x: Any, given: Any) -> Any:
            p, a = given
            y = rms(x, p["scale"][0])
            q, k = heads(moved(y, p["q"], a["q"]), size), heads(y @ p["k"], size)
            v = heads(moved(y, p["v"], a["v"]), size)
            x = x + attention(rope(q, places), rope(k, places), v, mask) @ p["out"]
            y = rms(x, p["scale"][1])
            y = jax.nn.silu(y @ p["gate"]) * moved(y, p["up"], a["up"])
            return x + moved(y, p["down"], a["down"]), None

        def loss(params: Any) -> Any:
            x, _ = lax.scan(layer, frozen["table"][tokens[:, :-1]], (frozen["layers"], params))
            lost = cross_entropy(rms(x, frozen["last"]) @ frozen["head"], tokens[:, 1:])
            return (lost * told).sum() / jnp.maximum(told.sum(), 1)

        return learned(rule, loss, state)

    p = {"q": weight(d, d), "k": weight(d, 512), "v": weight(d, 512), "out": weight(d, d)}
    p |= {"scale": Arg((2, d))} | swiglu_weights(d, wide, weight)
    frozen = {"layers": times(3, p), "table": Arg((words, d), BF16, 0.02), "last": Arg((d,))}
    frozen |= {"head": weight(d, words)}
    a = {n: (master(i, rank), Arg((rank, o), scale=0.01), Arg((o,))) for n, (i, o) in tuned.items()}
    given = (Arg((b, s + 1), I32, below=words), Arg((b, s), jnp.bool_))
    yield "dora", carried(update, started(rule, times(3, a)), frozen, *given)


def narrow_serving() -> Zoo:
    """BERT-large in int8: known scales of activations, scales of columns, sums in int32."""
    b, s, d, depth = 32, 160, 1024, 12

    def narrow(x: Any, step: Any) -> Any:
        return jnp.clip(jnp.round(x.astype(F32) / step), -127, 127).astype(I8)

    def product(x: Any, step: Any, p: Any) -> Any:
        w, columns, shift = p
        step = jnp.abs(step) + 0.01
        dims = (((2,), (0,)), ((), ()))
        y = lax.dot_general(narrow(x, step), w, dims, preferred_element_type=I32)
        return (y.astype(F32) * (step * columns) + shift).astype(BF16)

    def encode(p: Any, tokens: Any, lengths: Any) -> Any:
        mask = (jnp.arange(s) < lengths[:, None] + 1)[:, None, None]

        def layer(x: Any, q: Any) -> Any:
            y = heads(product(x, q["steps"][0], q["qkv"]), 64)
            y = attention(*jnp.split(y, 3, 2), mask)
            x = layer_norm(x + product(y, q["steps"][1], q["out"]), q["scale"][0])
            y = jax.nn.gelu(product(x, q["steps"][2], q["up"]), approximate=False)
            x = layer_norm(x + product(y, q["steps"][3], q["down"]), q["scale"][1])
            return x, None

        x, _ = lax.scan(layer, p["table"][tokens] + p["place"], p["layers"])
        return jax.nn.log_softmax((jnp.tanh(x[:, 0] @ p["pool"]) @ p["head"]).astype(F32))

    def table(i: int, o: int) -> Any:
        return Arg((i, o), I8, below=127), Arg((o,), scale=3e-4), Arg((o,), scale=0.02)

    q = {"qkv": table(d, 3 * d), "out": table(d, d), "up": table(d, 4 * d)}
    q |= {"down": table(4 * d, d), "steps": Arg((4,), scale=0.02), "scale": Arg((2, d))}
    p = {"layers": times(depth, q), "table": Arg((30522, d), BF16), "place": Arg((s, d), BF16)}
    p |= {"pool": weight(d, d), "head": weight(d, 3)}
    given = (Arg((b, s), I32, below=30522), Arg((b,), I32, below=s))
    yield "bert_large_int8", program(encode, p, *given)


def rules() -> Zoo:
    """Adan with gradients clipped unit by unit and a mean of the weights: 120 million weights."""
    rule = optax.chain(optax.adaptive_grad_clip(0.01), optax.adan(1e-3, weight_decay=0.02))

    def update(state: Any, grads: Any) -> Any:
        params, known, mean = state
        grads = jax.tree.map(lambda g: g.astype(F32) / 1024, grads)
        good = jnp.all(jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]))
        new, then = applied(rule, params, known, grads)
        kept = jax.tree.map(lambda a, b: jnp.where(good, a, b), (new, then), (params, known))
        mean = jax.tree.map(lambda m, w: m + 2e-4 * (w - m), mean, kept[0])
        return (*kept, mean), optax.tree.norm(grads)

    d = 1280
    layer = {"qkv": master(d, 3 * d), "out": master(d, d), "up": master(d, 4 * d)}
    layer |= {"down": master(4 * d, d), "scale": Arg((d,)), "shift": Arg((4 * d,))}
    params = {"layers": [layer] * 5, "patches": filters(14, 14, 3, d), "head": master(d, 18000)}
    grads = jax.tree.map(lambda a: Arg(a.shape, BF16), params)
    state = (params, states_of(rule, params), params)
    yield "adan_clipped", carried(update, state, grads)


def smaller_models() -> Zoo:
    """A student of 4 layers learns the 64 best guesses of a teacher of 8 layers."""
    b, s, words = 4, 256, 32000
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.nadamw(5e-4))

    def guesses(p: Any, tokens: Any) -> Any:
        places, mask = jnp.arange(s), causal(s)

        def layer(x: Any, q: Any) -> Any:
            y = heads(rms(x, q["scale"][0]) @ q["qkv"], 64)
            one, two, three = jnp.split(y, 3, 2)
            x = x + attention(rope(one, places), rope(two, places), three, mask) @ q["out"]
            y = jnp.square(jax.nn.relu(rms(x, q["scale"][1]) @ q["up"]))
            return x + y @ q["down"], None

        x, _ = lax.scan(layer, p["table"][tokens], p["layers"])
        return (rms(x, p["last"]) @ p["table"].T).astype(F32)

    def update(state: Any, teacher: Any, tokens: Any) -> Any:
        best, index = lax.top_k(guesses(teacher, tokens[:, :-1]) / 2, 64)
        goal = jax.nn.softmax(best)

        def loss(params: Any) -> Any:
            logits = guesses(half(params), tokens[:, :-1])
            log = jax.nn.log_softmax(logits / 2)
            kept = jnp.take_along_axis(log, index, -1)
            far = (goal * (jnp.log(goal + 1e-9) - kept)).sum(-1).mean()
            return 4 * far + 0.5 * cross_entropy(logits, tokens[:, 1:]).mean()

        return learned(rule, loss, state)

    def made(d: int, depth: int, make: Any) -> Any:
        q = {"qkv": make(d, 3 * d), "out": make(d, d), "up": make(d, 4 * d)}
        q |= {"down": make(4 * d, d), "scale": Arg((2, d))}
        table = Arg((words, d), make(1, 1).dtype, scale=0.03)
        return {"layers": times(depth, q), "table": table, "last": Arg((d,))}

    given = (made(1024, 8, weight), Arg((b, s + 1), I32, below=words))
    yield "best_guesses", carried(update, started(rule, made(512, 4, master)), *given)


class MiniLm(nn.Module):
    """A small encoder of sentences, whose tokens are averaged."""

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        real = tokens > 3000
        x = nn.Embed(30522, 384, dtype=BF16)(tokens)
        place = self.param("place", nn.initializers.normal(0.02), (tokens.shape[1], 384))
        x = nn.LayerNorm(dtype=BF16)(x + place.astype(BF16))
        mask = real[:, None, None] & jnp.ones((1, 1, tokens.shape[1], 1), bool)
        for _ in range(4):
            y = nn.MultiHeadDotProductAttention(12, dtype=BF16)(x, x, mask=mask)
            x = nn.LayerNorm(dtype=BF16)(x + y)
            y = nn.Dense(384, dtype=BF16)(nn.gelu(nn.Dense(1536, dtype=BF16)(x)))
            x = nn.LayerNorm(dtype=BF16)(x + y)
        x = (x.astype(F32) * real[..., None]).sum(1)
        return x / jnp.maximum(real.sum(-1, keepdims=True), 1)


def searching() -> Zoo:
    """Questions find their answers among all answers and hard wrong ones, at four widths."""
    b, s, model = 160, 96, MiniLm()
    rate = optax.warmup_cosine_decay_schedule(0.0, 2e-4, 500, 20000)
    rule = optax.adamw(rate, weight_decay=0.01)

    def update(state: Any, asked: Any, right: Any, wrong: Any) -> Any:
        def loss(params: Any) -> Any:
            found = model.apply(params, jnp.concatenate([asked, right, wrong]))
            total = 0.0
            for wide in (384, 256, 128, 64):
                x = found[:, :wide]
                x = x * lax.rsqrt(jnp.square(x).sum(-1, keepdims=True) + 1e-12)
                scores = 20 * x[:b] @ x[b:].T
                same = optax.softmax_cross_entropy_with_integer_labels(scores, jnp.arange(b))
                back = scores[:, :b].T
                other = optax.softmax_cross_entropy_with_integer_labels(back, jnp.arange(b))
                total = total + same.mean() + other.mean()
            return total / 8

        return learned(rule, loss, state)

    texts = Arg((b, s), I32, below=30522)
    params = linen_weights(model, texts)
    yield "matryoshka", carried(update, started(rule, params), texts, texts, texts)


class NoiseBlock(nnx.Module):
    """Two convolutions, told the time between them."""

    def __init__(self, a: int, b: int, rngs: nnx.Rngs):
        kw = {"dtype": BF16, "rngs": rngs}
        self.norm1, self.norm2 = nnx.GroupNorm(a, 32, **kw), nnx.GroupNorm(b, 32, **kw)
        self.conv1, self.conv2 = nnx.Conv(a, b, (3, 3), **kw), nnx.Conv(b, b, (3, 3), **kw)
        self.time, self.side = nnx.Linear(512, b, **kw), nnx.Conv(a, b, (1, 1), **kw)

    def __call__(self, x: Any, time: Any) -> Any:
        y = self.conv1(nnx.silu(self.norm1(x))) + self.time(time)[:, None, None]
        return self.side(x) + self.conv2(nnx.silu(self.norm2(y)))


class NoiseUnet(nnx.Module):
    """A U-Net of three levels with attention at 16x16."""

    def __init__(self, rngs: nnx.Rngs):
        kw = {"dtype": BF16, "rngs": rngs}
        self.time1, self.time2 = nnx.Linear(128, 512, **kw), nnx.Linear(512, 512, **kw)
        self.first = nnx.Conv(3, 128, (3, 3), **kw)
        sizes = (128, 128, 256, 256)
        self.downs = nnx.List([NoiseBlock(a, b, rngs) for a, b in pairwise(sizes)])
        self.fewer = nnx.List([nnx.Conv(b, b, (3, 3), 2, **kw) for b in sizes[1:3]])
        self.norm = nnx.GroupNorm(256, 32, **kw)
        self.look = nnx.MultiHeadAttention(4, 256, decode=False, **kw)
        self.middle = NoiseBlock(256, 256, rngs)
        pairs = ((512, 256), (512, 256), (384, 128))
        self.ups = nnx.List([NoiseBlock(a, b, rngs) for a, b in pairs])
        self.last_norm = nnx.GroupNorm(128, 32, **kw)
        self.last = nnx.Conv(128, 3, (3, 3), **kw)

    def __call__(self, x: Any, level: Any) -> Any:
        angle = level[:, None] * jnp.exp(-9.2 * jnp.arange(64) / 64)
        time = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1)
        time = nnx.silu(self.time2(nnx.silu(self.time1(time))))
        x, kept = self.first(x), []
        for n, block in enumerate(self.downs):
            x = block(x, time)
            if n == 1:
                b, h, w, c = x.shape
                x = x + self.look(self.norm(x).reshape(b, h * w, c)).reshape(x.shape)
            kept.append(x)
            x = self.fewer[n](x) if n < 2 else x
        x = self.middle(x, time)
        for n, block in enumerate(self.ups):
            x = block(jnp.concatenate([x, kept.pop()], -1), time)
            if n < 2:
                b, h, w, c = x.shape
                x = jax.image.resize(x, (b, 2 * h, 2 * w, c), "nearest")
        return self.last(nnx.silu(self.last_norm(x)))


def noise() -> Zoo:
    """A U-Net in nnx learns the speed of noise in 96 small pictures, with a mean of weights."""
    b = 96
    call, params = nnx_parts(lambda: NoiseUnet(nnx.Rngs(0)))
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(2e-4))

    def update(state: Any, shown: Any, key: Any) -> Any:
        params, known, mean = state
        one, two, three = jax.random.split(key, 3)
        x = shown.astype(F32) / 127.5 - 1
        x = jnp.where(jax.random.bernoulli(three, 0.5, (b, 1, 1, 1)), x[:, :, ::-1], x)
        level = jax.random.uniform(one, (b,))
        drawn = jax.random.normal(two, x.shape)
        keep = jnp.cos(level * jnp.pi / 2)[:, None, None, None]
        add = jnp.sin(level * jnp.pi / 2)[:, None, None, None]
        goal, share = keep * drawn - add * x, keep**2 / jnp.maximum(add**2, 1e-4)

        def loss(params: Any) -> Any:
            found = call(params, keep * x + add * drawn, level * 1000).astype(F32)
            return (jnp.minimum(share, 5) / (share + 1) * jnp.square(found - goal)).mean()

        (params, known), value = learned(rule, loss, (params, known))
        mean = jax.tree.map(lambda m, w: 0.9999 * m + 0.0001 * w, mean, params)
        return (params, known, mean), value

    state = (params, states_of(rule, params), params)
    yield "speeds", carried(update, state, Arg((b, 32, 32, 3), U8, below=256), _KEY)


class PlainLayer(nn.Module):
    """A layer of a vision transformer."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        d = x.shape[-1]
        y = nn.LayerNorm(dtype=BF16)(x)
        x = x + nn.MultiHeadDotProductAttention(d // 64, dtype=BF16)(y, y)
        y = nn.Dense(4 * d, dtype=BF16)(nn.LayerNorm(dtype=BF16)(x))
        return x + nn.Dense(d, dtype=BF16)(nn.gelu(y))


class Restorer(nn.Module):
    """A masked autoencoder: three fourths of the patches are hidden from the encoder."""

    @nn.compact
    def __call__(self, patches: Any, order: Any) -> Any:
        normal = nn.initializers.normal(0.02)
        layer, seen = nn.remat(PlainLayer), order[:, :49, None]
        x = nn.Dense(768, dtype=BF16)(patches)
        x = x + self.param("place", normal, (1, 196, 768)).astype(BF16)
        x = jnp.take_along_axis(x, seen, 1)
        for _ in range(4):
            x = layer()(x)
        x = nn.Dense(384, dtype=BF16)(nn.LayerNorm(dtype=BF16)(x))
        hidden = self.param("hidden", normal, (1, 1, 384)).astype(BF16)
        hidden = jnp.broadcast_to(hidden, (x.shape[0], 147, 384))
        back = jnp.argsort(order, -1)[..., None]
        x = jnp.take_along_axis(jnp.concatenate([x, hidden], 1), back, 1)
        x = x + self.param("place_back", normal, (1, 196, 384)).astype(BF16)
        x = PlainLayer()(x)
        return nn.Dense(768, dtype=BF16)(nn.LayerNorm(dtype=BF16)(x))


def hidden_patches() -> Zoo:
    """A masked autoencoder with remat learns from two parts of 48 pictures, one after another."""
    model, parts, b = Restorer(), 2, 48
    rule = optax.adamw(1.5e-4, b2=0.95, weight_decay=0.05)

    def update(state: Any, shown: Any, key: Any) -> Any:
        params, known = state

        def part(total: Any, given: Any) -> Any:
            x, key = given
            x = x.astype(F32) / 127.5 - 1
            x = x.reshape(b, 14, 16, 14, 16, 3).transpose(0, 1, 3, 2, 4, 5).reshape(b, 196, 768)
            order = jnp.argsort(jax.random.uniform(key, (b, 196)), -1)
            mean, spread = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
            goal = (x - mean) * lax.rsqrt(spread + 1e-6)
            hidden = (jnp.argsort(order, -1) >= 49).astype(F32)

            def loss(params: Any) -> Any:
                lost = jnp.square(model.apply(params, x, order).astype(F32) - goal).mean(-1)
                return (lost * hidden).sum() / hidden.sum()

            value, grads = jax.value_and_grad(loss)(params)
            return jax.tree.map(lambda t, g: t + g / parts, total, grads), value

        start = jax.tree.map(jnp.zeros_like, params)
        grads, lost = lax.scan(part, start, (shown, jax.random.split(key, parts)))
        return applied(rule, params, known, grads), lost.mean()

    params = linen_weights(model, Arg((b, 196, 768)), Arg((b, 196), I32))
    shown = Arg((parts, b, 224, 224, 3), U8, below=256)
    yield "mae_in_parts", carried(update, started(rule, params), shown, _KEY)


class Digits(nn.Module):
    """The network of Flax's first example."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.avg_pool(nn.relu(nn.Conv(32, (3, 3))(x)), (2, 2), (2, 2))
        x = nn.avg_pool(nn.relu(nn.Conv(64, (3, 3))(x)), (2, 2), (2, 2))
        x = nn.relu(nn.Dense(256)(x.reshape(x.shape[0], -1)))
        return nn.Dense(10)(x)


def committees() -> Zoo:
    """Eight networks of digits, vmapped, each with its own weights of 256 shared pictures."""
    b, many, model = 256, 8, Digits()
    rule = optax.sgd(0.05, momentum=0.9)

    def update(state: Any, shown: Any, labels: Any, keys: Any) -> Any:
        x = shown.astype(F32) / 255

        def member(params: Any, known: Any, key: Any) -> Any:
            counts = -jnp.log(jax.random.uniform(key, (b,), minval=1e-6))

            def loss(params: Any) -> Any:
                logits = model.apply(params, x)
                lost = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
                return (lost * counts).mean(), jax.nn.softmax(logits)

            (value, likely), grads = jax.value_and_grad(loss, has_aux=True)(params)
            return applied(rule, params, known, grads), value, likely

        state, lost, likely = jax.vmap(member)(*state, keys)
        mean = likely.mean(0)
        unsure = -(mean * jnp.log(mean + 1e-9)).sum(-1)
        return state, (lost, unsure, (mean.argmax(-1) == labels).mean())

    params = linen_weights(model, Arg((b, 28, 28, 1)))
    state = times(many, started(rule, params))
    keys = Arg((many, 2), U32, below=1 << 30)
    given = (Arg((b, 28, 28, 1), U8, below=256), Arg((b,), I32, below=10), keys)
    yield "eight_networks", carried(update, state, *given)


def chatting() -> Zoo:
    """Qwen3 of 0.6 billion weights says a token in 8 chats of up to 2,048 tokens."""
    b, most, d, h, g, size, wide, words, depth = 8, 2048, 1024, 16, 8, 128, 3072, 151936, 28

    def token(state: Any, params: Any, key: Any) -> Any:
        keys, values, tokens, at = state
        seen = (jnp.arange(most) <= at[:, None])[:, None, None]
        rows = jnp.arange(b)

        def layer(carry: Any, given: Any) -> Any:
            x, keys, values = carry
            p, n = given
            y = rms(x, p["scale"][0])
            q, k, v = (heads(y @ p[name], size) for name in ("q", "k", "v"))
            q, k = rope(rms(q, p["turn"][0]), at, 1e6), rope(rms(k, p["turn"][1]), at, 1e6)
            keys, values = keys.at[n, rows, at].set(k), values.at[n, rows, at].set(v)
            y = attention(q[:, None], keys[n], values[n], seen)[:, 0]
            x = x + y @ p["out"]
            return (x + swiglu(rms(x, p["scale"][1]), p), keys, values), None

        given = (params["layers"], jnp.arange(depth))
        start = (params["table"][tokens], keys, values)
        (x, keys, values), _ = lax.scan(layer, start, given)
        logits = (rms(x, params["last"]) @ params["table"].T).astype(F32)
        best, index = lax.top_k(logits / 0.6, 20)
        likely = jax.nn.softmax(best)
        best = jnp.where(jnp.cumsum(likely, -1) - likely < 0.95, best, -jnp.inf)
        picked = jax.random.categorical(key, best)
        tokens = jnp.take_along_axis(index, picked[:, None], 1)[:, 0]
        return (keys, values, tokens, jnp.minimum(at + 1, most - 1)), tokens

    p = {"q": weight(d, h * size), "k": weight(d, g * size), "v": weight(d, g * size)}
    p |= {"out": weight(h * size, d), "scale": Arg((2, d)), "turn": Arg((2, size))}
    params = {"layers": times(depth, p | swiglu_weights(d, wide, weight)), "last": Arg((d,))}
    params |= {"table": Arg((words, d), BF16, 0.03)}
    cache = Arg((depth, b, most, g, size), BF16)
    state = (cache, cache, Arg((b,), I32, below=words), Arg((b,), I32, below=most))
    yield "qwen3_token", carried(token, state, params, _KEY)


class MatrixMemory(nnx.Module):
    """A block of mLSTM in its parallel form."""

    def __init__(self, d: int, rngs: nnx.Rngs):
        kw = {"dtype": BF16, "rngs": rngs}
        self.norm, self.inner = nnx.RMSNorm(d, **kw), nnx.RMSNorm(2 * d, **kw)
        self.up, self.down = nnx.Linear(d, 4 * d, **kw), nnx.Linear(2 * d, d, **kw)
        self.near = nnx.Conv(2 * d, 2 * d, 4, feature_group_count=2 * d, padding="CAUSAL", **kw)
        self.qk, self.v = nnx.Linear(2 * d, 2 * d, **kw), nnx.Linear(2 * d, 2 * d, **kw)
        self.gates = nnx.Linear(2 * d, 8, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        s = x.shape[1]
        y, z = jnp.split(self.up(self.norm(x)), 2, -1)
        c = nnx.silu(self.near(y))
        q, k = jnp.split(heads(self.qk(c), self.qk.out_features // 8), 2, 2)
        v = heads(self.v(y), self.v.out_features // 4)
        enter, stay = jnp.split(self.gates(y.astype(F32)), 2, -1)
        total = jnp.cumsum(jax.nn.log_sigmoid(stay + 4), 1).transpose(0, 2, 1)
        weights = total[..., None] - total[:, :, None] + enter.transpose(0, 2, 1)[:, :, None]
        weights = jnp.where(causal(s), weights, -jnp.inf)
        top = lax.stop_gradient(weights.max(-1, keepdims=True))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(F32) * q.shape[-1] ** -0.5
        scores = scores * jnp.exp(weights - top)
        scores = scores / jnp.maximum(jnp.abs(scores.sum(-1, keepdims=True)), jnp.exp(-top))
        found = jnp.einsum("bhqk,bkhd->bqhd", scores.astype(BF16), v).reshape(y.shape)
        return x + self.down((self.inner(found) + c) * nnx.silu(z))


class Xlstm(nnx.Module):
    """A language model of four such blocks."""

    def __init__(self, rngs: nnx.Rngs):
        self.table = nnx.Embed(32768, 768, dtype=BF16, rngs=rngs)
        self.blocks = nnx.List([MatrixMemory(768, rngs) for _ in range(4)])
        self.last = nnx.RMSNorm(768, dtype=BF16, rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x)
        return self.table.attend(self.last(x))


def memories_of_matrices() -> Zoo:
    """xLSTM in nnx learns 4 texts of 1,024 tokens."""
    call, params = nnx_parts(lambda: Xlstm(nnx.Rngs(0)))
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, b2=0.95))

    def update(state: Any, tokens: Any) -> Any:
        def loss(params: Any) -> Any:
            logits = call(params, tokens[:, :-1]).astype(F32)
            goals = tokens[:, 1:]
            return optax.softmax_cross_entropy_with_integer_labels(logits, goals).mean()

        return learned(rule, loss, state)

    yield "xlstm", carried(update, started(rule, params), Arg((4, 1025), I32, below=32768))


# --------------------------------------------------------------------------------------- numerics


def elliptic() -> Zoo:
    """20 steps of BiCGSTAB for a flow through 160^3 cells of uneven rock, with a wind."""
    n = 160

    def solve(rock: Any, source: Any) -> Any:
        k = jnp.exp(0.5 * rock)
        middle = 2.0 / (1 / k[1:] + 1 / k[:-1])
        sides = [middle]
        for axis in (1, 2):
            one = lax.slice_in_dim(k, 1, n, axis=axis)
            two = lax.slice_in_dim(k, 0, n - 1, axis=axis)
            sides.append(2.0 / (1 / one + 1 / two))

        def operator(x: Any) -> Any:
            y = 0.1 * x
            for axis, side in enumerate(sides):
                flux = side * jnp.diff(x, axis=axis)
                pads = [(0, 0)] * 3
                pads[axis] = (1, 1)
                y = y - jnp.diff(jnp.pad(flux, pads), axis=axis)
            return y + 0.2 * (x - jnp.roll(x, 1, 0))

        def step(_: Any, state: Any) -> Any:
            x, r, p, first, rho = state
            v = operator(p)
            alpha = rho / (jnp.vdot(first, v) + 1e-30)
            s = r - alpha * v
            t = operator(s)
            omega = jnp.vdot(t, s) / (jnp.vdot(t, t) + 1e-30)
            x, r = x + alpha * p + omega * s, s - omega * t
            new = jnp.vdot(first, r)
            beta = new / (rho + 1e-30) * alpha / (omega + 1e-30)
            return x, r, r + beta * (p - omega * v), first, new

        state = (jnp.zeros_like(source), source, source, source, jnp.vdot(source, source))
        x, r, *_ = lax.fori_loop(0, 20, step, state)
        return x, jnp.linalg.norm(r.ravel())

    yield "bicgstab", program(solve, Arg((n, n, n)), Arg((n, n, n)))


def turbulent() -> Zoo:
    """Two steps of Heun's rule of a periodic flow in 128^3 points, by Fourier series."""
    n = 128

    def steps(speed: Any) -> Any:
        one, last = jnp.fft.fftfreq(n, 1 / n), jnp.fft.rfftfreq(n, 1 / n)
        k = jnp.stack(jnp.meshgrid(one, one, last, indexing="ij"))
        square = jnp.square(k).sum(0)
        inverse = jnp.where(square > 0, 1 / jnp.maximum(square, 1), 0)
        kept = (jnp.abs(k) < n / 3).all(0)
        axes = (1, 2, 3)

        def change(u: Any) -> Any:
            turn = 1j * jnp.cross(k, u, axis=0)
            here = jnp.fft.irfftn(u, (n, n, n), axes)
            turn = jnp.fft.irfftn(turn, (n, n, n), axes)
            force = jnp.fft.rfftn(jnp.cross(here, turn, axis=0), axes=axes) * kept
            force = force - k * ((k * force).sum(0) * inverse)
            return force - 1e-3 * square * u

        def step(u: Any, _: Any) -> Any:
            first = change(u)
            second = change(u + 1e-3 * first)
            u = u + 5e-4 * (first + second)
            return u, jnp.square(jnp.abs(u)).sum()

        u, energy = lax.scan(step, jnp.fft.rfftn(speed, axes=axes), length=2)
        return jnp.fft.irfftn(u, (n, n, n), axes), energy

    yield "navier_stokes", carried(steps, Arg((3, n, n, n)))


def hedging() -> Zoo:
    """The price of a basket that dies at a barrier, and its slopes, by 65,536 paths."""
    paths, shares, days = 65536, 16, 40

    def price(start: Any, noise: Any, vol: Any, key: Any) -> Any:
        root = jnp.linalg.cholesky(noise @ noise.T / shares + jnp.eye(shares))
        root = root / jnp.linalg.norm(root, axis=1, keepdims=True)

        def value(logs: Any, vol: Any) -> Any:
            def day(carry: Any, key: Any) -> Any:
                x, alive = carry
                z = jax.random.normal(key, (paths, shares)) @ root.T
                x = x + (0.03 - 0.5 * vol**2) / 252 + vol * 252**-0.5 * z
                basket = jnp.exp(x).mean(-1)
                return (x, alive * jax.nn.sigmoid((basket - 0.8) * 100)), None

            first = (jnp.broadcast_to(logs, (paths, shares)), jnp.ones(paths))
            (x, alive), _ = lax.scan(jax.checkpoint(day), first, jax.random.split(key, days))
            paid = jnp.maximum(jnp.exp(x).mean(-1) - 1, 0) * alive
            return paid.mean(), paid.std() * paths**-0.5

        vol = 0.1 + 0.2 * jnp.abs(vol)
        return jax.value_and_grad(value, (0, 1), has_aux=True)(start, vol)

    given = (Arg((shares,), scale=0.05), Arg((shares, shares)), Arg((shares,)), _KEY)
    yield "barrier_basket", program(price, *given)


def eigenpairs() -> Zoo:
    """The 48 lowest states of a dense Hamiltonian of 6,144 rows, by a Chebyshev filter."""
    n, many = 6144, 48

    def refine(states: Any, noise: Any) -> Any:
        matrix = 0.5 * (noise + noise.T) + jnp.diag(jnp.linspace(0.0, 40.0, n))
        low, high = 4.0, 48.0
        centre, radius = (low + high) / 2, (high - low) / 2

        def apply(x: Any) -> Any:
            return (matrix @ x - centre * x) / radius

        before, now = states, apply(states)
        for _ in range(7):
            before, now = now, 2 * apply(now) - before
        now = now / jnp.linalg.norm(now, axis=0)
        basis, _ = jnp.linalg.qr(now)
        small = basis.T @ (matrix @ basis)
        energy, turn = jnp.linalg.eigh(0.5 * (small + small.T))
        states = basis @ turn
        left = jnp.linalg.norm(matrix @ states - states * energy, axis=0)
        return states, (energy, left)

    yield "chebyshev", carried(refine, Arg((n, many)), Arg((n, n), scale=0.01))


def programmes() -> Zoo:
    """Six steps of an interior-point method for 96 quadratic programmes of 64 unknowns."""
    b, n, m = 96, 64, 128

    def solve(root: Any, cost: Any, rows: Any, room: Any) -> Any:
        bends = jnp.einsum("bij,bkj->bik", root, root) / n + 0.1 * jnp.eye(n)
        limit = 1.0 + jnp.abs(room)

        def step(state: Any, _: Any) -> Any:
            x, slack, dual = state
            gap = (slack * dual).mean(-1, keepdims=True)
            dual_left = jnp.einsum("bij,bj->bi", bends, x) + cost
            dual_left = dual_left + jnp.einsum("bmi,bm->bi", rows, dual)
            left = jnp.einsum("bmi,bi->bm", rows, x) + slack - limit
            ratio = dual / slack
            system = bends + jnp.einsum("bmi,bm,bmj->bij", rows, ratio, rows)
            centred = (0.1 * gap - slack * dual) / slack
            right = -dual_left - jnp.einsum("bmi,bm->bi", rows, ratio * left + centred)
            factor = jnp.linalg.cholesky(system)
            dx = jax.scipy.linalg.cho_solve((factor, True), right[..., None])[..., 0]
            ds = -left - jnp.einsum("bmi,bi->bm", rows, dx)
            dz = centred - ratio * ds

            def most(v: Any, dv: Any) -> Any:
                bound = jnp.where(dv < 0, -v / jnp.minimum(dv, -1e-12), 1e9)
                return jnp.minimum(1.0, 0.95 * bound.min(-1, keepdims=True))

            a, c = most(slack, ds), most(dual, dz)
            return (x + a * dx, slack + a * ds, dual + c * dz), gap[:, 0]

        state = (jnp.zeros((b, n)), jnp.ones((b, m)), jnp.ones((b, m)))
        (x, *_), gaps = lax.scan(step, state, length=6)
        return x, gaps

    given = (Arg((b, n, n)), Arg((b, n)), Arg((b, m, n), scale=n**-0.5), Arg((b, m)))
    yield "interior_point", program(solve, *given)


# ----------------------------------------------------------------------------------------- simple


def preparation() -> Zoo:
    """Words of 8,192 rows of 512 tokens are hidden for BERT: 80 % masked, 10 % swapped."""
    b, s, words = 8192, 512, 30522

    def hide(tokens: Any, key: Any) -> Any:
        one, two, three = jax.random.split(key, 3)
        tokens = tokens.astype(I32)
        real = (tokens > 1000) & (jnp.arange(s) > 0)
        picked = jax.random.bernoulli(one, 0.15, (b, s)) & real
        kind = jax.random.uniform(two, (b, s))
        swapped = jax.random.randint(three, (b, s), 1000, words)
        shown = jnp.where(kind < 0.8, 103, jnp.where(kind < 0.9, swapped, tokens))
        goals = jnp.where(picked, tokens, -100)
        return jnp.where(picked, shown, tokens), goals, picked.sum(-1)

    yield "hidden_words", program(hide, Arg((b, s), jnp.uint16, below=words), _KEY)


def reductions() -> Zoo:
    """Means, deviations, extremes and zeros of each column of 400,000 rows in float32."""

    def columns(x: Any) -> Any:
        mean = x.mean(0)
        spread = jnp.sqrt(jnp.square(x - mean).mean(0))
        return mean, spread, x.min(0), x.max(0), (jnp.abs(x) < 0.01).sum(0)

    yield "columns", program(columns, Arg((400000, 768)))


def rankings() -> Zoo:
    """The 100 best of 262,144 items for each of 64 users, without those that they know."""
    b, items, d = 64, 262144, 64

    def best(users: Any, table: Any, known: Any) -> Any:
        scores = jnp.dot(users, table.T, preferred_element_type=F32)
        scores = scores.at[jnp.arange(b)[:, None], known].set(-jnp.inf)
        return lax.top_k(scores, 100)

    given = (Arg((b, d), BF16), Arg((items, d), BF16), Arg((b, 50), I32, below=items))
    yield "hundred_best", program(best, *given)
