"""A second blind zoo: 20 steps of machine learning and 10 numerical programs.

Written from what people do with jax and optax on one GPU, without a look at how kernels are
predicted. `programs(small=True)` has the same programs at sizes that a CPU runs.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from xlapipe.run.calibration.timed_program import Arg, TimedProgram

F32, BF16, I32 = jnp.float32, jnp.bfloat16, jnp.int32
KEY = Arg((2,), jnp.uint32, below=1 << 30)
Zoo = Iterator[tuple[str, TimedProgram]]


def programs(small: bool = False) -> dict[str, TimedProgram]:
    """Every program, by FAMILY/NAME: two of machine learning, and then one of numerics."""
    learning = [(f"learning/{build.__name__}", build, sizes) for build, sizes in LEARNING]
    numerics = [(f"numerics/{build.__name__}", build, sizes) for build, sizes in NUMERICS]
    mixed = []
    for index, item in enumerate(numerics):
        mixed += [*learning[2 * index : 2 * index + 2], item]
    return {name: build(**(sizes if small else {})) for name, build, sizes in mixed}


# What several programs use.


def shaped(tree: Any) -> Any:
    """Shapes and dtypes of a tree of `Arg`."""
    is_arg = lambda leaf: isinstance(leaf, Arg)  # noqa: E731
    return jax.tree.map(Arg.struct, tree, is_leaf=is_arg)


def zeros(tree: Any) -> Any:
    """Arguments that are zero, of the shapes of a tree."""
    return jax.tree.map(lambda leaf: Arg(leaf.shape, leaf.dtype, scale=0.0, below=1), tree)


def trained(
    loss: Callable[..., Any], optimizer: Any, params: Any, *batch: Any, has_aux: bool = False
) -> TimedProgram:
    """A step that carries (params, optimizer state)."""

    def step(carry: Any, *batch: Any) -> Any:
        params, state = carry
        value, gradients = jax.value_and_grad(loss, has_aux=has_aux)(params, *batch)
        updates, state = optimizer.update(gradients, state, params)
        return (optax.apply_updates(params, updates), state), value

    state = zeros(jax.eval_shape(optimizer.init, shaped(params)))
    return TimedProgram(step, ((params, state), *batch), carried=True)


def dense(inputs: int, outputs: int, dtype: Any = F32) -> dict[str, Arg]:
    """Weights and biases of a dense layer."""
    return {
        "w": Arg((inputs, outputs), dtype, scale=inputs**-0.5),
        "b": Arg((outputs,), dtype, scale=0.01),
    }


def apply(p: Any, x: Any) -> Any:
    return x @ p["w"].astype(x.dtype) + p["b"].astype(x.dtype)


def mlp(widths: Sequence[int], dtype: Any = F32) -> list[Any]:
    return [dense(a, b, dtype) for a, b in pairwise(widths)]


def apply_mlp(layers: Any, x: Any, activation: Callable[[Any], Any] = jax.nn.relu) -> Any:
    for p in layers[:-1]:
        x = activation(apply(p, x))
    return apply(layers[-1], x)


def scales(width: int) -> dict[str, Arg]:
    return {"scale": Arg((width,), scale=0.5), "bias": Arg((width,), scale=0.02)}


def layer_norm(x: Any, p: Any = None) -> Any:
    wide = x.astype(F32)
    mean = wide.mean(-1, keepdims=True)
    out = (wide - mean) * lax.rsqrt(wide.var(-1, keepdims=True) + 1e-6)
    if p is not None:
        out = out * p["scale"] + p["bias"]
    return out.astype(x.dtype)


def rms(x: Any, scale: Any = None) -> Any:
    wide = x.astype(F32)
    out = wide * lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + 1e-6)
    return (out if scale is None else out * scale.astype(F32)).astype(x.dtype)


def heads_of(x: Any, heads: int) -> Any:
    return x.reshape(*x.shape[:-1], heads, -1)


def attended(q: Any, k: Any, v: Any, bias: Any) -> Any:
    """Attention of (batch, length, heads, size), with a bias of the scores."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(F32) / math.sqrt(q.shape[-1])
    shares = jax.nn.softmax(scores + bias, -1).astype(v.dtype)
    out = jnp.einsum("bhqk,bkhd->bqhd", shares, v)
    return out.reshape(*out.shape[:2], -1)


def nll(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits.astype(F32), labels)


def dropped(key: Any, x: Any, rate: float = 0.1) -> Any:
    kept = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(kept, x / (1 - rate), 0).astype(x.dtype)


def conv(x: Any, w: Any, stride: int = 1, groups: int = 1, dilation: int = 1) -> Any:
    return lax.conv_general_dilated(
        x,
        w.astype(x.dtype),
        (stride, stride),
        "SAME",
        rhs_dilation=(dilation, dilation),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def window(size: int, inputs: int, outputs: int) -> Arg:
    return Arg((size, size, inputs, outputs), scale=(size * size * inputs) ** -0.5)


def group_norm(x: Any, p: Any, groups: int) -> Any:
    parts = x.reshape(*x.shape[:-1], groups, -1).astype(F32)
    axes = (*range(1, x.ndim - 1), x.ndim)
    mean = parts.mean(axes, keepdims=True)
    parts = (parts - mean) * lax.rsqrt(parts.var(axes, keepdims=True) + 1e-5)
    return (parts.reshape(x.shape) * p["scale"] + p["bias"]).astype(x.dtype)


# Machine learning.


def mbconv(images: int = 56, pixels: int = 176, classes: int = 1000) -> TimedProgram:
    """EfficientNet-like classifier in bfloat16: depthwise windows, squeeze and excite, statistics
    of batches that are carried, an average of the parameters, RMSProp."""
    stem = 32
    plan = (
        (16, 1, 1, 3),
        (24, 6, 2, 3),
        (24, 6, 1, 3),
        (40, 6, 2, 5),
        (40, 6, 1, 5),
        (80, 6, 2, 3),
        (80, 6, 1, 3),
        (112, 6, 1, 5),
    )
    blocks: list[Any] = []
    stats: list[Any] = [(Arg((stem,)), Arg((stem,)))]
    inputs = stem
    for outputs, expansion, _, size in plan:
        hidden = inputs * expansion
        squeezed = max(4, inputs // 4)
        blocks.append(
            {
                "expand": window(1, inputs, hidden),
                "depth": window(size, 1, hidden),
                "squeeze": dense(hidden, squeezed),
                "excite": dense(squeezed, hidden),
                "project": window(1, hidden, outputs),
                "norms": [scales(hidden), scales(hidden), scales(outputs)],
            }
        )
        stats += [(Arg((w,)), Arg((w,))) for w in (hidden, hidden, outputs)]
        inputs = outputs
    params = {
        "stem": window(3, 3, stem),
        "stem_norm": scales(stem),
        "blocks": blocks,
        "top": window(1, inputs, 640),
        "head": dense(640, classes),
    }
    optimizer = optax.rmsprop(1e-2, decay=0.9, momentum=0.9, eps=1e-3)

    def batch_norm(x: Any, p: Any, old: Any, new: list[Any]) -> Any:
        wide = x.astype(F32)
        mean = wide.mean((0, 1, 2))
        variance = jnp.square(wide).mean((0, 1, 2)) - jnp.square(mean)
        new.append((0.99 * old[0] + 0.01 * mean, 0.99 * old[1] + 0.01 * variance))
        out = (wide - mean) * lax.rsqrt(variance + 1e-3) * p["scale"] + p["bias"]
        return out.astype(x.dtype)

    def loss(params: Any, stats: Any, pictures: Any, labels: Any) -> Any:
        x = (pictures.astype(F32) / 255 - 0.45).astype(BF16)
        new: list[Any] = []
        x = batch_norm(conv(x, params["stem"], 2), params["stem_norm"], stats[0], new)
        x = jax.nn.silu(x)
        for p, (outputs, _, stride, _) in zip(params["blocks"], plan, strict=True):
            old = stats[len(new) : len(new) + 3]
            y = jax.nn.silu(batch_norm(conv(x, p["expand"]), p["norms"][0], old[0], new))
            y = conv(y, p["depth"], stride, y.shape[-1])
            y = jax.nn.silu(batch_norm(y, p["norms"][1], old[1], new))
            pooled = y.astype(F32).mean((1, 2))
            gate = apply(p["excite"], jax.nn.silu(apply(p["squeeze"], pooled)))
            y = y * jax.nn.sigmoid(gate)[:, None, None].astype(y.dtype)
            y = batch_norm(conv(y, p["project"]), p["norms"][2], old[2], new)
            x = x + y if stride == 1 and x.shape[-1] == outputs else y
        pooled = jax.nn.silu(conv(x, params["top"])).astype(F32).mean((1, 2))
        logits = apply(params["head"], pooled)
        smooth = optax.smooth_labels(jax.nn.one_hot(labels, classes), 0.1)
        return optax.softmax_cross_entropy(logits, smooth).mean(), new

    def step(carry: Any, pictures: Any, labels: Any) -> Any:
        params, average, stats, state = carry
        gradient = jax.value_and_grad(loss, has_aux=True)
        (value, stats), gradients = gradient(params, stats, pictures, labels)
        updates, state = optimizer.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        average = optax.incremental_update(params, average, 1e-4)
        return (params, average, stats, state), value

    state = zeros(jax.eval_shape(optimizer.init, shaped(params)))
    batch = (
        Arg((images, pixels, pixels, 3), jnp.uint8, below=255),
        Arg((images,), I32, below=classes),
    )
    return TimedProgram(step, ((params, params, stats, state), *batch), carried=True)


def segmentation(
    images: int = 10, pixels: int = 272, widths: tuple[int, ...] = (40, 80, 160), classes: int = 21
) -> TimedProgram:
    """DeepLab-like network in float32: dilated windows, bilinear resizing, Dice loss, AdamW."""
    rates = (1, 3, 6)
    stages = []
    inputs = 3
    for width in widths:
        stages.append(
            {
                "first": window(3, inputs, width),
                "second": window(3, width, width),
                "norms": [scales(width), scales(width)],
            }
        )
        inputs = width
    deep = widths[-1]
    params = {
        "stages": stages,
        "pyramid": [window(3, deep, deep // 2) for _ in rates],
        "pooled": dense(deep, deep // 2),
        "merge": window(1, (len(rates) + 1) * (deep // 2), deep // 2),
        "low": window(1, widths[0], 24),
        "last": window(3, deep // 2 + 24, deep // 2),
        "head": window(1, deep // 2, classes),
    }

    def loss(params: Any, x: Any, labels: Any) -> Any:
        kept = []
        for p in params["stages"]:
            x = jax.nn.relu(group_norm(conv(x, p["first"], 2), p["norms"][0], 8))
            x = x + jax.nn.relu(group_norm(conv(x, p["second"]), p["norms"][1], 8))
            kept.append(x)
        parts = [
            jax.nn.relu(conv(x, w, dilation=rate))
            for w, rate in zip(params["pyramid"], rates, strict=True)
        ]
        pooled = jax.nn.relu(apply(params["pooled"], x.mean((1, 2))))[:, None, None]
        parts.append(jnp.broadcast_to(pooled, parts[0].shape))
        x = jax.nn.relu(conv(jnp.concatenate(parts, -1), params["merge"]))
        low = jax.nn.relu(conv(kept[0], params["low"]))
        x = jax.image.resize(x, (*low.shape[:3], x.shape[-1]), "bilinear")
        x = jax.nn.relu(conv(jnp.concatenate([x, low], -1), params["last"]))
        logits = conv(x, params["head"])
        logits = jax.image.resize(logits, (*labels.shape, classes), "bilinear")
        known = labels > 0
        entropy = jnp.where(known, nll(logits, labels), 0).sum() / known.sum().clip(1)
        shares = jax.nn.softmax(logits)
        target = jax.nn.one_hot(labels, classes)
        both = (shares * target).sum((1, 2))
        dice = 1 - (2 * both + 1) / ((shares + target).sum((1, 2)) + 1)
        return entropy + dice.mean()

    batch = (
        Arg((images, pixels, pixels, 3)),
        Arg((images, pixels, pixels), I32, below=classes),
    )
    return trained(loss, optax.adamw(3e-4, weight_decay=0.02), params, *batch)


def bert_pretraining(
    batch: int = 22,
    length: int = 360,
    width: int = 640,
    layers: int = 4,
    vocab: int = 30522,
    masked: int = 54,
) -> TimedProgram:
    """Masked words and next sentence: padding, dropout, erf, tied words; float32 parameters that
    compute in bfloat16, AdamW that decays matrices only, a linear schedule."""
    heads = width // 64

    def layer_params() -> dict[str, Any]:
        return {
            "qkv": dense(width, 3 * width),
            "out": dense(width, width),
            "up": dense(width, 4 * width),
            "down": dense(4 * width, width),
            "norm_1": scales(width),
            "norm_2": scales(width),
        }

    params = {
        "words": Arg((vocab, width), scale=0.02),
        "places": Arg((512, width), scale=0.02),
        "kinds": Arg((2, width), scale=0.02),
        "norm": scales(width),
        "layers": [layer_params() for _ in range(layers)],
        "transform": dense(width, width),
        "transform_norm": scales(width),
        "word_bias": Arg((vocab,), scale=0.01),
        "pooler": dense(width, width),
        "following": dense(width, 2),
    }

    def loss(
        params: Any,
        words: Any,
        kinds: Any,
        lengths: Any,
        at: Any,
        targets: Any,
        following: Any,
        key: Any,
    ) -> Any:
        keys = iter(jax.random.split(key, 2 * layers + 1))
        present = jnp.arange(length) < lengths[:, None]
        bias = jnp.where(present, 0.0, -1e9)[:, None, None]
        x = params["words"][words] + params["places"][:length] + params["kinds"][kinds]
        x = dropped(next(keys), layer_norm(x, params["norm"]).astype(BF16))
        for p in params["layers"]:
            q, k, v = (heads_of(part, heads) for part in jnp.split(apply(p["qkv"], x), 3, -1))
            y = dropped(next(keys), apply(p["out"], attended(q, k, v, bias)))
            x = layer_norm(x + y, p["norm_1"])
            y = apply(p["down"], jax.nn.gelu(apply(p["up"], x), approximate=False))
            x = layer_norm(x + dropped(next(keys), y), p["norm_2"])
        picked = jnp.take_along_axis(x, at[..., None], 1)
        picked = jax.nn.gelu(apply(params["transform"], picked), approximate=False)
        picked = layer_norm(picked, params["transform_norm"])
        logits = picked @ params["words"].T.astype(BF16) + params["word_bias"].astype(BF16)
        used = (targets > 0).astype(F32)
        words_loss = (nll(logits, targets) * used).sum() / used.sum().clip(1)
        first = jnp.tanh(apply(params["pooler"], x[:, 0]))
        return words_loss + nll(apply(params["following"], first), following).mean()

    matrices = jax.tree.map(lambda leaf: len(leaf.shape) > 1, shaped(params))
    schedule = optax.linear_schedule(1e-4, 0.0, 100_000)
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(schedule, mask=matrices, weight_decay=0.01)
    )
    return trained(
        loss,
        optimizer,
        params,
        Arg((batch, length), I32, below=vocab),
        Arg((batch, length), I32, below=2),
        Arg((batch,), I32, below=length),
        Arg((batch, masked), I32, below=length),
        Arg((batch, masked), I32, below=vocab),
        Arg((batch,), I32, below=2),
        KEY,
    )


def t5_seq2seq(
    batch: int = 18,
    source: int = 300,
    target: int = 110,
    width: int = 512,
    hidden: int = 1024,
    layers: int = 3,
    vocab: int = 32128,
) -> TimedProgram:
    """T5 1.1: relative positions in buckets, gated GELU, cross attention, teacher forcing,
    Adafactor; bfloat16 from float32 parameters."""
    heads, buckets = width // 64, 32

    def attention_params() -> dict[str, Any]:
        return {name: Arg((width, width), scale=width**-0.5) for name in "qkvo"}

    def layer_params(cross: bool) -> dict[str, Any]:
        params: dict[str, Any] = {
            "own": attention_params(),
            "gate": Arg((width, hidden), scale=width**-0.5),
            "up": Arg((width, hidden), scale=width**-0.5),
            "down": Arg((hidden, width), scale=hidden**-0.5),
            "norms": [Arg((width,), scale=0.5) for _ in range(3 if cross else 2)],
        }
        return {**params, "cross": attention_params()} if cross else params

    params = {
        "words": Arg((vocab, width), scale=0.05),
        "head": Arg((width, vocab), scale=0.05),
        "encoder": [layer_params(False) for _ in range(layers)],
        "decoder": [layer_params(True) for _ in range(layers)],
        "encoder_places": Arg((buckets, heads), scale=0.1),
        "decoder_places": Arg((buckets, heads), scale=0.1),
        "norms": [Arg((width,), scale=0.5)] * 2,
    }

    def places(table: Any, size: int, both_ways: bool) -> Any:
        distance = jnp.arange(size) - jnp.arange(size)[:, None]
        count = buckets // 2 if both_ways else buckets
        base = jnp.where(distance > 0, count, 0) if both_ways else 0
        distance = jnp.abs(distance) if both_ways else jnp.maximum(-distance, 0)
        near = count // 2
        ratio = jnp.log(distance.clip(1) / near) / math.log(128 / near)
        far = (near + ratio * (count - near)).astype(I32).clip(max=count - 1)
        return table[base + jnp.where(distance < near, distance, far)].transpose(2, 0, 1)[None]

    def attention(p: Any, x: Any, memory: Any, bias: Any) -> Any:
        q = heads_of(x @ p["q"].astype(BF16), heads) * 8
        k, v = (heads_of(memory @ p[name].astype(BF16), heads) for name in "kv")
        return attended(q, k, v, bias) @ p["o"].astype(BF16)

    def feed(p: Any, x: Any) -> Any:
        gate, up, down = (p[name].astype(BF16) for name in ("gate", "up", "down"))
        return (jax.nn.gelu(x @ gate) * (x @ up)) @ down

    def loss(params: Any, inputs: Any, outputs: Any) -> Any:
        hidden_pads = jnp.where(inputs > 0, 0.0, -1e9)[:, None, None]
        x = params["words"][inputs].astype(BF16)
        bias = places(params["encoder_places"], source, True) + hidden_pads
        for p in params["encoder"]:
            y = rms(x, p["norms"][0])
            x = x + attention(p["own"], y, y, bias)
            x = x + feed(p, rms(x, p["norms"][1]))
        memory = rms(x, params["norms"][0])
        shifted = jnp.pad(outputs[:, :-1], ((0, 0), (1, 0)))
        x = params["words"][shifted].astype(BF16)
        causal = jnp.where(jnp.tri(target, dtype=bool), 0.0, -1e9)
        bias = places(params["decoder_places"], target, False) + causal
        for p in params["decoder"]:
            y = rms(x, p["norms"][0])
            x = x + attention(p["own"], y, y, bias)
            x = x + attention(p["cross"], rms(x, p["norms"][1]), memory, hidden_pads)
            x = x + feed(p, rms(x, p["norms"][2]))
        logits = rms(x, params["norms"][1]) @ params["head"].astype(BF16)
        used = (outputs > 0).astype(F32)
        return (nll(logits, outputs) * used).sum() / used.sum().clip(1)

    return trained(
        loss,
        optax.adafactor(1e-3),
        params,
        Arg((batch, source), I32, below=vocab),
        Arg((batch, target), I32, below=vocab),
    )


def gqa_remat(
    batch: int = 3,
    length: int = 1152,
    width: int = 1024,
    hidden: int = 2816,
    layers: int = 6,
    vocab: int = 49152,
    local: int = 256,
) -> TimedProgram:
    """A decoder with grouped queries, whose layers are a scan that recomputes all but products;
    windows in every second layer, normalised queries, capped logits, z loss, clipped AdamW."""
    heads, groups, size = width // 64, width // 256, 64

    def stacked(*shape: int) -> Arg:
        return Arg((layers, *shape), scale=shape[0] ** -0.5)

    params = {
        "words": Arg((vocab, width), scale=0.02),
        "layers": {
            "q": stacked(width, heads, size),
            "kv": stacked(width, 2, groups, size),
            "o": stacked(heads, size, width),
            "gate_up": stacked(width, 2, hidden),
            "down": stacked(hidden, width),
            "norm_1": Arg((layers, width), scale=0.5),
            "norm_2": Arg((layers, width), scale=0.5),
            "norm_q": Arg((layers, size), scale=0.5),
            "norm_k": Arg((layers, size), scale=0.5),
        },
        "norm": Arg((width,), scale=0.5),
    }

    def turned(x: Any) -> Any:
        angles = jnp.arange(length)[:, None] * 500_000.0 ** (-jnp.arange(0, size, 2) / size)
        cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
        even, odd = x[..., ::2].astype(F32), x[..., 1::2].astype(F32)
        pairs = jnp.stack([even * cos - odd * sin, even * sin + odd * cos], -1)
        return pairs.reshape(x.shape).astype(x.dtype)

    distance = np.arange(length)[:, None] - np.arange(length)

    def layer(x: Any, scanned: Any) -> Any:
        p, windowed = scanned
        p = jax.tree.map(lambda leaf: leaf.astype(BF16), p)
        y = rms(x, p["norm_1"])
        q = jnp.einsum("blw,whd->blhd", y, p["q"])
        k, v = jnp.moveaxis(jnp.einsum("blw,wnhd->blnhd", y, p["kv"]), 2, 0)
        q, k = turned(rms(q, p["norm_q"])), turned(rms(k, p["norm_k"]))
        mask = (distance >= 0) & ((distance < local) | ~windowed)
        mixed = jax.nn.dot_product_attention(q, k, v, mask=mask[None, None])
        x = x + jnp.einsum("blhd,hdw->blw", mixed, p["o"])
        both = jnp.einsum("blw,wnf->nblf", rms(x, p["norm_2"]), p["gate_up"])
        return x + (jax.nn.silu(both[0]) * both[1]) @ p["down"], None

    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    recomputed = jax.checkpoint(layer, policy=policy)

    def loss(params: Any, words: Any) -> Any:
        x = params["words"].astype(BF16)[words[:, :-1]]
        windowed = jnp.arange(layers) % 2 == 1
        x, _ = lax.scan(recomputed, x, (params["layers"], windowed))
        logits = jnp.einsum(
            "blw,vw->blv",
            rms(x, params["norm"]),
            params["words"].astype(BF16),
            preferred_element_type=F32,
        )
        logits = 30 * jnp.tanh(logits / 30)
        total = jax.nn.logsumexp(logits, -1)
        picked = jnp.take_along_axis(logits, words[:, 1:, None], -1)[..., 0]
        return (total - picked).mean() + 1e-4 * jnp.square(total).mean()

    schedule = optax.cosine_decay_schedule(3e-4, 20_000)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, 0.9, 0.95))
    return trained(loss, optimizer, params, Arg((batch, length + 1), I32, below=vocab))


def moe_slots(
    tokens: int = 3400, width: int = 832, hidden: int = 1216, experts: int = 14, layers: int = 2
) -> TimedProgram:
    """Layers of experts: top-2, tokens scattered to slots of limited number, one shared expert,
    bias-free balance and router losses, Adam on bfloat16 parameters with float32 moments."""
    chosen = 2
    slots = int(1.25 * chosen * tokens / experts) // 8 * 8

    def layer_params() -> dict[str, Any]:
        return {
            "norm": Arg((width,), BF16, scale=0.5),
            "router": Arg((width, experts), scale=width**-0.5),
            "in": Arg((experts, width, 2 * hidden), BF16, scale=width**-0.5),
            "out": Arg((experts, hidden, width), BF16, scale=hidden**-0.5),
            "shared_in": Arg((width, 2 * hidden), BF16, scale=width**-0.5),
            "shared_out": Arg((hidden, width), BF16, scale=hidden**-0.5),
        }

    def glu(x: Any) -> Any:
        a, b = jnp.split(x, 2, -1)
        return jax.nn.silu(a) * b

    def layer(p: Any, x: Any) -> Any:
        y = rms(x, p["norm"])
        logits = y.astype(F32) @ p["router"]
        shares = jax.nn.softmax(logits)
        top, index = lax.top_k(shares, chosen)
        top = top / top.sum(-1, keepdims=True)
        ones = jax.nn.one_hot(index.T.reshape(-1), experts, dtype=I32)
        place = ((jnp.cumsum(ones, 0) - 1) * ones).sum(-1)
        expert = index.T.reshape(-1)
        at = jnp.where(place < slots, expert * slots + place, experts * slots)
        rows = (
            jnp.zeros((experts * slots, width), BF16)
            .at[at]
            .add(jnp.tile(y, (chosen, 1)), mode="drop")
        )
        rows = rows.reshape(experts, slots, width)
        rows = jnp.einsum("esh,ehw->esw", glu(jnp.einsum("esw,ewh->esh", rows, p["in"])), p["out"])
        back = rows.reshape(-1, width).at[at].get(mode="fill", fill_value=0)
        weighted = back.reshape(chosen, tokens, width) * top.T[..., None].astype(BF16)
        shared = glu(y @ p["shared_in"]) @ p["shared_out"]
        load = ones.reshape(chosen, tokens, experts).sum(0).astype(F32).mean(0)
        balance = experts * (load * shares.mean(0)).sum()
        spread = jnp.square(jax.nn.logsumexp(logits, -1)).mean()
        return x + weighted.sum(0) + shared, 0.01 * balance + 1e-3 * spread

    def loss(params: Any, x: Any, y: Any) -> Any:
        extra = jnp.zeros(())
        for p in params:
            x, more = layer(p, x)
            extra += more
        return jnp.square((x - y).astype(F32)).mean() + extra

    x = Arg((tokens, width), BF16)
    optimizer = optax.adam(1e-4, mu_dtype=F32)
    return trained(loss, optimizer, [layer_params() for _ in range(layers)], x, x)


def rwkv(
    batch: int = 6,
    length: int = 180,
    width: int = 448,
    layers: int = 2,
    vocab: int = 6100,
) -> TimedProgram:
    """RWKV with a matrix of state for each head: a scan over words, decays that depend on the
    data, token shifts, squared ReLU; float32; clipped Adam."""
    size = 64
    heads = width // size

    def layer_params() -> dict[str, Any]:
        square = Arg((width, width), scale=width**-0.5)
        return {
            **dict.fromkeys("rkvgo", square),
            "mix": Arg((5, width), scale=0.2),
            "decay": Arg((width,), scale=0.5),
            "decay_a": Arg((width, 32), scale=width**-0.5),
            "decay_b": Arg((32, width), scale=0.1),
            "bonus": Arg((heads, size), scale=0.5),
            "norm": scales(width),
            "norm_1": scales(width),
            "norm_2": scales(width),
            "channel_mix": Arg((2, width), scale=0.2),
            "channel_k": Arg((width, 3 * width), scale=width**-0.5),
            "channel_v": Arg((3 * width, width), scale=(3 * width) ** -0.5),
            "channel_r": square,
        }

    def shifted(x: Any) -> Any:
        return jnp.pad(x[:, :-1], ((0, 0), (1, 0), (0, 0)))

    def time_mix(p: Any, x: Any) -> Any:
        change = shifted(x) - x
        mixed = [x + change * jax.nn.sigmoid(m) for m in p["mix"]]
        r, k, v = (heads_of(part @ p[n], heads) for part, n in zip(mixed, "rkv", strict=False))
        gate = jax.nn.silu(mixed[3] @ p["g"])
        slow = p["decay"] + jnp.tanh(mixed[4] @ p["decay_a"]) @ p["decay_b"]
        decay = heads_of(jnp.exp(-jnp.exp(slow)), heads)

        def word(state: Any, now: Any) -> Any:
            r, k, v, decay = now
            outer = k[..., :, None] * v[..., None, :]
            out = jnp.einsum("bhi,bhij->bhj", r, state + p["bonus"][..., None] * outer)
            return decay[..., None] * state + outer, out

        start = jnp.zeros((batch, heads, size, size))
        words = jax.tree.map(lambda leaf: leaf.swapaxes(0, 1), (r, k, v, decay))
        _, out = lax.scan(word, start, words)
        out = layer_norm(out.swapaxes(0, 1)).reshape(batch, length, width)
        return ((out * p["norm"]["scale"] + p["norm"]["bias"]) * gate) @ p["o"]

    def channel_mix(p: Any, x: Any) -> Any:
        change = shifted(x) - x
        a, b = (x + change * jax.nn.sigmoid(m) for m in p["channel_mix"])
        hidden = jnp.square(jax.nn.relu(a @ p["channel_k"]))
        return jax.nn.sigmoid(b @ p["channel_r"]) * (hidden @ p["channel_v"])

    def loss(params: Any, words: Any) -> Any:
        x = layer_norm(params["words"][words[:, :-1]])
        for p in params["layers"]:
            x = x + time_mix(p, layer_norm(x, p["norm_1"]))
            x = x + channel_mix(p, layer_norm(x, p["norm_2"]))
        return nll(layer_norm(x) @ params["head"], words[:, 1:]).mean()

    params = {
        "words": Arg((vocab, width), scale=0.02),
        "layers": [layer_params() for _ in range(layers)],
        "head": Arg((width, vocab), scale=width**-0.5),
    }
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    return trained(loss, optimizer, params, Arg((batch, length + 1), I32, below=vocab))


def retnet(
    batch: int = 5,
    length: int = 1920,
    width: int = 768,
    layers: int = 3,
    chunk: int = 160,
    vocab: int = 16384,
) -> TimedProgram:
    """Retention by chunks: products within a chunk, a state between chunks; Lion; bfloat16."""
    heads = 6
    size, wide = width // heads, 2 * width // heads
    rates = np.log(1 - np.exp2(-5.0 - np.arange(heads)))
    steps = np.arange(chunk)
    inside = np.where(
        steps[:, None] >= steps, np.exp(rates[:, None, None] * (steps[:, None] - steps)), 0.0
    ).astype(np.float32)
    from_start = np.exp(rates[:, None] * (steps + 1)).astype(np.float32)
    to_end = np.exp(rates[:, None] * (chunk - 1 - steps)).astype(np.float32)
    whole = np.exp(rates * chunk).astype(np.float32)

    def layer_params() -> dict[str, Any]:
        return {
            "qk": Arg((width, 2 * width), scale=width**-0.5),
            "vg": Arg((width, 4 * width), scale=width**-0.5),
            "o": Arg((2 * width, width), scale=(2 * width) ** -0.5),
            "up": dense(width, 2 * width),
            "down": dense(2 * width, width),
            "norm_1": scales(width),
            "norm_2": scales(width),
        }

    def retention(p: Any, x: Any) -> Any:
        q, k = jnp.split(x @ p["qk"].astype(BF16), 2, -1)
        v, gate = jnp.split(x @ p["vg"].astype(BF16), 2, -1)

        def chunks(part: Any) -> Any:
            part = part.reshape(batch, length // chunk, chunk, heads, -1)
            return part.transpose(1, 0, 3, 2, 4)

        def body(state: Any, now: Any) -> Any:
            q, k, v = now
            scores = jnp.einsum("bhid,bhjd->bhij", q, k) * inside.astype(BF16)
            near = jnp.einsum("bhij,bhje->bhie", scores, v).astype(F32)
            far = jnp.einsum("bhid,bhde->bhie", q.astype(F32), state)
            faded = k * to_end[..., None].astype(BF16)
            new = jnp.einsum("bhjd,bhje->bhde", faded, v, preferred_element_type=F32)
            state = whole[:, None, None] * state + new
            return state, near + far * from_start[..., None]

        start = jnp.zeros((batch, heads, size, wide))
        _, out = lax.scan(body, start, (chunks(q), chunks(k) / math.sqrt(size), chunks(v)))
        out = out.transpose(1, 0, 3, 2, 4).reshape(batch, length, heads, wide)
        out = layer_norm(out).reshape(batch, length, -1).astype(BF16)
        return (jax.nn.silu(gate) * out) @ p["o"].astype(BF16)

    def loss(params: Any, words: Any) -> Any:
        x = params["words"][words[:, :-1]].astype(BF16)
        for p in params["layers"]:
            x = x + retention(p, layer_norm(x, p["norm_1"]))
            y = layer_norm(x, p["norm_2"])
            x = x + apply(p["down"], jax.nn.gelu(apply(p["up"], y)))
        return nll(layer_norm(x) @ params["words"].T.astype(BF16), words[:, 1:]).mean()

    params = {
        "words": Arg((vocab, width), scale=0.02),
        "layers": [layer_params() for _ in range(layers)],
    }
    words = Arg((batch, length + 1), I32, below=vocab)
    return trained(loss, optax.lion(1e-4, weight_decay=0.1), params, words)


def dit(
    batch: int = 36, side: int = 32, width: int = 576, layers: int = 5, classes: int = 1000
) -> TimedProgram:
    """A diffusion transformer: patches of latents, modulated norms that begin at zero, labels that
    are left out at random, rectified flow, an average of the parameters."""
    heads, patch, channels = width // 72, 2, 4
    tokens = (side // patch) ** 2

    def layer_params() -> dict[str, Any]:
        return {
            "modulation": dense(width, 6 * width),
            "qkv": dense(width, 3 * width),
            "out": dense(width, width),
            "up": dense(width, 4 * width),
            "down": dense(4 * width, width),
        }

    params = {
        "patches": dense(patch * patch * channels, width),
        "places": Arg((tokens, width), scale=0.02),
        "labels": Arg((classes + 1, width), scale=0.02),
        "time": mlp((256, width, width)),
        "layers": [layer_params() for _ in range(layers)],
        "modulation": dense(width, 2 * width),
        "head": dense(width, patch * patch * channels),
    }

    def patches(x: Any) -> Any:
        x = x.reshape(batch, side // patch, patch, side // patch, patch, channels)
        return x.transpose(0, 1, 3, 2, 4, 5).reshape(batch, tokens, -1)

    def modulated(x: Any, shift: Any, scale: Any) -> Any:
        return layer_norm(x) * (1 + scale[:, None]) + shift[:, None]

    def network(params: Any, x: Any, time: Any, labels: Any) -> Any:
        angles = 1000 * time[:, None] * jnp.exp(-math.log(10_000) * jnp.arange(128) / 128)
        waves = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], -1)
        given = apply_mlp(params["time"], waves, jax.nn.silu) + params["labels"][labels]
        given = jax.nn.silu(given).astype(BF16)
        x = apply(params["patches"], x.astype(BF16)) + params["places"].astype(BF16)
        for p in params["layers"]:
            parts = jnp.split(apply(p["modulation"], given), 6, -1)
            y = modulated(x, parts[0], parts[1])
            q, k, v = (heads_of(part, heads) for part in jnp.split(apply(p["qkv"], y), 3, -1))
            mixed = jax.nn.dot_product_attention(q, k, v).reshape(x.shape)
            x = x + parts[2][:, None] * apply(p["out"], mixed)
            y = jax.nn.gelu(apply(p["up"], modulated(x, parts[3], parts[4])))
            x = x + parts[5][:, None] * apply(p["down"], y)
        shift, scale = jnp.split(apply(params["modulation"], given), 2, -1)
        return apply(params["head"], modulated(x, shift, scale)).astype(F32)

    def loss(params: Any, latents: Any, labels: Any, key: Any) -> Any:
        a, b, c = jax.random.split(key, 3)
        time = jax.nn.sigmoid(jax.random.normal(a, (batch,)))
        noise = jax.random.normal(b, latents.shape)
        labels = jnp.where(jax.random.uniform(c, (batch,)) < 0.1, classes, labels)
        at = time[:, None, None, None]
        found = network(params, patches((1 - at) * latents + at * noise), time, labels)
        return jnp.square(found - patches(noise - latents)).mean()

    optimizer = optax.adamw(1e-4, weight_decay=0.0)

    def step(carry: Any, latents: Any, labels: Any, key: Any) -> Any:
        params, average, state = carry
        value, gradients = jax.value_and_grad(loss)(params, latents, labels, key)
        updates, state = optimizer.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        average = jax.tree.map(lambda a, p: 0.9999 * a + 0.0001 * p, average, params)
        return (params, average, state), value

    state = zeros(jax.eval_shape(optimizer.init, shaped(params)))
    batch_args = (
        Arg((batch, side, side, channels)),
        Arg((batch,), I32, below=classes),
        KEY,
    )
    return TimedProgram(step, ((params, params, state), *batch_args), carried=True)


def audio_tagging(
    clips: int = 40, samples: int = 40_000, width: int = 224, layers: int = 6, tags: int = 120
) -> TimedProgram:
    """Log-mel spectra by framing and FFT, masked bands, dilated gated windows over time in
    float32, attentive pooling, several tags for each clip; NAdam."""
    frame, hop, bands = 400, 160, 64
    frames = 1 + (samples - frame) // hop
    bins = 257
    mel = np.linspace(0, 1, bins)[:, None] * 2595 - np.linspace(0, 2595, bands + 2)
    edges = np.maximum(0, np.minimum(mel[:, :-2], -mel[:, 2:]) / 40 + 1).astype(np.float32)
    index = np.arange(frame) + hop * np.arange(frames)[:, None]
    hann = np.hanning(frame).astype(np.float32)

    params = {
        "in": dense(bands, width),
        "layers": [
            {
                "w": Arg((3, width, 2 * width), scale=(3 * width) ** -0.5),
                "b": Arg((2 * width,), scale=0.01),
                "skip": dense(width, width),
                "norm": scales(width),
            }
            for _ in range(layers)
        ],
        "attention": dense(width, tags),
        "head": dense(width, tags),
    }

    def features(sound: Any, key: Any) -> Any:
        emphasised = sound - 0.97 * jnp.pad(sound[:, :-1], ((0, 0), (1, 0)))
        spectrum = jnp.fft.rfft(emphasised[:, index] * hann, 512)
        logs = jnp.log(jnp.square(jnp.abs(spectrum)) @ edges + 1e-6)
        logs = (logs - logs.mean((1, 2), keepdims=True)) / (logs.std((1, 2), keepdims=True) + 1e-5)
        first, second = jax.random.split(key)
        start = jax.random.randint(first, (clips, 1), 0, frames - 30)
        band = jax.random.randint(second, (clips, 1), 0, bands - 8)
        time = (jnp.arange(frames) >= start) & (jnp.arange(frames) < start + 30)
        tone = (jnp.arange(bands) >= band) & (jnp.arange(bands) < band + 8)
        return jnp.where(time[:, :, None] | tone[:, None], 0.0, logs)

    def loss(params: Any, sound: Any, targets: Any, key: Any) -> Any:
        x = apply(params["in"], features(sound, key))
        total = jnp.zeros_like(x)
        for level, p in enumerate(params["layers"]):
            y = lax.conv_general_dilated(
                group_norm(x, p["norm"], 4),
                p["w"],
                (1,),
                "SAME",
                rhs_dilation=(2 ** (level % 4),),
                dimension_numbers=("NWC", "WIO", "NWC"),
            )
            a, b = jnp.split(y + p["b"], 2, -1)
            y = jnp.tanh(a) * jax.nn.sigmoid(b)
            total += apply(p["skip"], y)
            x = x + y
        y = jax.nn.relu(total)
        shares = jax.nn.softmax(apply(params["attention"], y), 1)
        logits = (shares * apply(params["head"], y)).sum(1)
        return optax.sigmoid_binary_cross_entropy(logits, targets.astype(F32)).mean()

    batch = (Arg((clips, samples), scale=0.1), Arg((clips, tags), I32), KEY)
    return trained(loss, optax.nadam(1e-3), params, *batch)


def simclr(
    images: int = 224, pixels: int = 64, widths: tuple[int, ...] = (48, 96, 192)
) -> TimedProgram:
    """Two random views of each picture (crop, flip, colour), a residual network in bfloat16, a
    projection, the loss over all pairs of views; LARS."""
    view = pixels * 3 // 4

    def stage(inputs: int, width: int) -> dict[str, Any]:
        return {
            "first": window(3, inputs, width),
            "second": window(3, width, width),
            "third": window(3, width, width),
            "norms": [scales(width) for _ in range(3)],
        }

    pairs = zip((3, *widths[:-1]), widths, strict=True)
    params = {
        "stages": [stage(a, b) for a, b in pairs],
        "projection": mlp((widths[-1], 512, 128)),
    }

    def augmented(key: Any, picture: Any) -> Any:
        where, flip, light, contrast = jax.random.split(key, 4)
        row, column = jax.random.randint(where, (2,), 0, pixels - view)
        x = lax.dynamic_slice(picture, (row, column, 0), (view, view, 3)).astype(F32) / 255
        x = jnp.where(jax.random.bernoulli(flip), x[:, ::-1], x)
        x = x + jax.random.uniform(light, (3,), minval=-0.3, maxval=0.3)
        return (x - x.mean()) * jax.random.uniform(contrast, minval=0.6, maxval=1.4) + x.mean()

    def network(params: Any, x: Any) -> Any:
        x = x.astype(BF16)
        for number, p in enumerate(params["stages"]):
            x = conv(x, p["first"], 1 if number == 0 else 2)
            x = jax.nn.relu(group_norm(x, p["norms"][0], 16))
            y = jax.nn.relu(group_norm(conv(x, p["second"]), p["norms"][1], 16))
            x = jax.nn.relu(x + group_norm(conv(y, p["third"]), p["norms"][2], 16))
        z = apply_mlp(params["projection"], x.astype(F32).mean((1, 2)))
        return z / jnp.linalg.norm(z, axis=-1, keepdims=True).clip(1e-6)

    def loss(params: Any, pictures: Any, key: Any) -> Any:
        keys = jax.random.split(key, 2 * images)
        views = jax.vmap(augmented)(keys, jnp.concatenate([pictures, pictures]))
        z = network(params, views)
        scores = z @ z.T / 0.2
        scores = jnp.where(jnp.eye(2 * images, dtype=bool), -1e9, scores)
        partner = (jnp.arange(2 * images) + images) % (2 * images)
        value = nll(scores, partner).mean()
        return value, (scores.argmax(-1) == partner).mean()

    pictures = Arg((images, pixels, pixels, 3), jnp.uint8, below=255)
    return trained(loss, optax.lars(0.3, 1e-6), params, pictures, KEY, has_aux=True)


def interatomic(
    atoms: int = 7000, edges: int = 98_000, graphs: int = 250, width: int = 64, layers: int = 3
) -> TimedProgram:
    """SchNet-like energies of molecules by segment_sum, trained on forces, which are gradients
    too; radial functions, a smooth cutoff, AMSGrad; float32."""
    radial = 24
    params = {
        "kinds": Arg((20, width), scale=0.5),
        "layers": [
            {
                "filter": mlp((radial, width, width)),
                "in": dense(width, width),
                "out": mlp((width, width, width)),
            }
            for _ in range(layers)
        ],
        "energy": mlp((width, width // 2, 1)),
    }
    centres = np.linspace(0, 5, radial).astype(np.float32)

    def softplus(x: Any) -> Any:
        return jax.nn.softplus(x) - math.log(2)

    def energy(places: Any, params: Any, kinds: Any, ends: Any, graph: Any) -> Any:
        senders, receivers = ends
        apart = places[senders] - places[receivers]
        distance = jnp.sqrt(jnp.square(apart).sum(-1) + 1e-3)
        basis = jnp.exp(-8.0 * jnp.square(distance[:, None] - centres))
        fade = 0.5 * (jnp.cos(jnp.pi * distance.clip(max=5) / 5) + 1)
        x = params["kinds"][kinds]
        for p in params["layers"]:
            filters = apply_mlp(p["filter"], basis, softplus) * fade[:, None]
            messages = apply(p["in"], x)[senders] * filters
            sums = jax.ops.segment_sum(messages, receivers, atoms)
            x = x + apply_mlp(p["out"], sums / 14, softplus)
        each = apply_mlp(params["energy"], x, softplus)[:, 0]
        energies = jax.ops.segment_sum(each, graph, graphs)
        return energies.sum(), energies

    def loss(
        params: Any, places: Any, kinds: Any, ends: Any, graph: Any, known: Any, forces: Any
    ) -> Any:
        slope, energies = jax.grad(energy, has_aux=True)(places, params, kinds, ends, graph)
        value = jnp.square(energies - known).mean()
        return value + 50 * jnp.square(slope + forces).mean()

    return trained(
        loss,
        optax.amsgrad(1e-3),
        params,
        Arg((atoms, 3), scale=1.5),
        Arg((atoms,), I32, below=20),
        (Arg((edges,), I32, below=atoms), Arg((edges,), I32, below=atoms)),
        Arg((atoms,), I32, below=graphs),
        Arg((graphs,)),
        Arg((atoms, 3)),
    )


def tabular(
    rows: int = 9000,
    numbers: int = 28,
    categories: tuple[int, ...] = (12, 3000, 50, 7, 220, 31, 900, 16),
    width: int = 416,
    blocks: int = 3,
) -> TimedProgram:
    """A residual MLP over periodic embeddings of numbers and embeddings of categories: batch
    norms, dropout, focal loss, mixed rows, AdamW; float32."""
    waves, size = 12, 10
    inputs = numbers * size + len(categories) * size
    params = {
        "frequencies": Arg((numbers, waves), scale=0.5),
        "number_w": Arg((numbers, 2 * waves, size), scale=0.2),
        "number_b": Arg((numbers, size), scale=0.02),
        "categories": [Arg((count, size), scale=0.3) for count in categories],
        "in": dense(inputs, width),
        "blocks": [
            {"norm": scales(width), "up": dense(width, 2 * width), "down": dense(2 * width, width)}
            for _ in range(blocks)
        ],
        "norm": scales(width),
        "head": dense(width, 1),
    }

    def batch_norm(x: Any, p: Any) -> Any:
        normal = (x - x.mean(0)) * lax.rsqrt(x.var(0) + 1e-5)
        return normal * p["scale"] + p["bias"]

    def loss(params: Any, values: Any, ids: Any, targets: Any, key: Any) -> Any:
        first, second, *keys = jax.random.split(key, 2 + blocks)
        angles = 2 * jnp.pi * values[..., None] * params["frequencies"]
        both = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)
        embedded = jnp.einsum("rnf,nfs->rns", both, params["number_w"]) + params["number_b"]
        parts = [table[i] for table, i in zip(params["categories"], ids, strict=True)]
        x = jnp.concatenate([jax.nn.relu(embedded).reshape(rows, -1), *parts], -1)
        share = jax.random.beta(first, 0.4, 0.4)
        other = jax.random.permutation(second, rows)
        x = share * x + (1 - share) * x[other]
        wanted = share * targets + (1 - share) * targets[other]
        x = apply(params["in"], x)
        for p, key in zip(params["blocks"], keys, strict=True):
            y = jax.nn.relu(apply(p["up"], batch_norm(x, p["norm"])))
            x = x + apply(p["down"], dropped(key, y, 0.2))
        logits = apply(params["head"], jax.nn.relu(batch_norm(x, params["norm"])))[:, 0]
        return optax.sigmoid_focal_loss(logits, wanted, alpha=0.3).mean()

    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-3, 200, 8000)
    return trained(
        loss,
        optax.adamw(schedule),
        params,
        Arg((rows, numbers)),
        [Arg((rows,), I32, below=count) for count in categories],
        Arg((rows,), scale=0.5),
        KEY,
    )


def distillation(
    images: int = 96, pixels: int = 128, teacher: int = 704, student: int = 240, classes: int = 400
) -> TimedProgram:
    """A small MLP mixer learns from a larger frozen one: softened shares, features and labels;
    bfloat16; SGD with Nesterov's momentum."""
    patch = 16
    tokens = (pixels // patch) ** 2

    def mixer(width: int, layers: int) -> dict[str, Any]:
        return {
            "in": dense(patch * patch * 3, width),
            "layers": [
                {
                    "norm_1": scales(width),
                    "tokens": mlp((tokens, width // 2, tokens)),
                    "norm_2": scales(width),
                    "channels": mlp((width, 4 * width, width)),
                }
                for _ in range(layers)
            ],
            "norm": scales(width),
            "head": dense(width, classes),
        }

    def network(params: Any, x: Any) -> Any:
        side = pixels // patch
        x = x.reshape(images, side, patch, side, patch, 3).transpose(0, 1, 3, 2, 4, 5)
        x = apply(params["in"], x.reshape(images, tokens, -1))
        for p in params["layers"]:
            y = layer_norm(x, p["norm_1"]).swapaxes(1, 2)
            x = x + apply_mlp(p["tokens"], y, jax.nn.gelu).swapaxes(1, 2)
            x = x + apply_mlp(p["channels"], layer_norm(x, p["norm_2"]), jax.nn.gelu)
        pooled = layer_norm(x, params["norm"]).astype(F32).mean(1)
        return pooled, apply(params["head"], pooled)

    def loss(params: Any, frozen: Any, pictures: Any, labels: Any) -> Any:
        x = (pictures.astype(F32) / 127.5 - 1).astype(BF16)
        features, goal = jax.tree.map(lax.stop_gradient, network(frozen, x))
        found, logits = network(params["student"], x)
        soft = optax.kl_divergence(jax.nn.log_softmax(logits / 4), jax.nn.softmax(goal / 4)).mean()
        near = jnp.square(apply(params["match"], found) - features).mean()
        return 16 * soft + 0.1 * near + 0.1 * nll(logits, labels).mean()

    params = {"student": mixer(student, 5), "match": dense(student, teacher)}
    frozen = jax.tree.map(
        lambda arg: Arg(arg.shape, BF16, arg.scale),
        mixer(teacher, 6),
        is_leaf=lambda leaf: isinstance(leaf, Arg),
    )
    batch = (
        Arg((images, pixels, pixels, 3), jnp.uint8, below=255),
        Arg((images,), I32, below=classes),
    )
    optimizer = optax.sgd(0.05, momentum=0.9, nesterov=True)
    return trained(loss, optimizer, params, frozen, *batch)


def four_bit_decode(
    batch: int = 7,
    length: int = 1800,
    width: int = 2304,
    hidden: int = 5888,
    layers: int = 4,
    vocab: int = 32000,
) -> TimedProgram:
    """One word for each sequence, with weights of four bits in groups of 64 and caches of int8
    with a scale for each row."""
    size, groups, block = 96, 6, 64
    heads = width // size

    def packed(inputs: int, outputs: int) -> dict[str, Arg]:
        return {
            "bits": Arg((inputs // 2, outputs), jnp.uint8, below=256),
            "scale": Arg((inputs // block, outputs), BF16, scale=0.003),
        }

    def product(x: Any, p: Any) -> Any:
        low, high = p["bits"] & 15, p["bits"] >> 4
        halves = jnp.stack([low, high], 1).astype(jnp.int8) - 8
        outputs = halves.shape[-1]
        grouped = halves.reshape(-1, block, outputs).astype(BF16) * p["scale"][:, None]
        return x @ grouped.reshape(-1, outputs)

    def turned(x: Any, at: Any) -> Any:
        angles = at[:, None, None] * 10_000.0 ** (-jnp.arange(size // 2) / (size // 2))
        a, b = jnp.split(x.astype(F32), 2, -1)
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def rounded(x: Any) -> Any:
        scale = jnp.abs(x).max(-1) / 127 + 1e-8
        return jnp.round(x / scale[..., None]).astype(jnp.int8), scale

    def step(caches: Any, params: Any, words: Any, lengths: Any) -> Any:
        rows = jnp.arange(batch)
        x = params["words"][words]
        bias = jnp.where(jnp.arange(length) <= lengths[:, None], 0.0, -1e9)[:, None, None]
        written = []
        for p, before in zip(params["layers"], caches, strict=True):
            parts = product(rms(x, p["norm_1"]), p["qkv"])
            q, k, v = jnp.split(parts, [width, width + groups * size], -1)
            q = turned(heads_of(q, heads), lengths).reshape(batch, groups, -1, size)
            k, v = turned(heads_of(k, groups), lengths), heads_of(v, groups).astype(F32)
            new = (*rounded(k), *rounded(v))
            cache = [old.at[rows, lengths].set(part) for old, part in zip(before, new, strict=True)]
            keys, key_scale, values, value_scale = cache
            scores = jnp.einsum("bghd,bmgd->bghm", q.astype(BF16), keys.astype(BF16))
            scores = scores.astype(F32) * key_scale.swapaxes(1, 2)[:, :, None]
            shares = jax.nn.softmax(scores / math.sqrt(size) + bias, -1)
            shares = (shares * value_scale.swapaxes(1, 2)[:, :, None]).astype(BF16)
            mixed = jnp.einsum("bghm,bmgd->bghd", shares, values.astype(BF16))
            x = x + product(mixed.reshape(batch, width), p["out"])
            y = rms(x, p["norm_2"])
            x = x + product(jax.nn.silu(product(y, p["gate"])) * product(y, p["up"]), p["down"])
            written.append(tuple(cache))
        logits = rms(x, params["norm"]) @ params["head"]
        return written, jnp.argmax(logits, -1).astype(I32)

    def norm() -> Arg:
        return Arg((width,), BF16, scale=0.5)

    layer = {
        "qkv": packed(width, width + 2 * groups * size),
        "out": packed(width, width),
        "gate": packed(width, hidden),
        "up": packed(width, hidden),
        "down": packed(hidden, width),
        "norm_1": norm(),
        "norm_2": norm(),
    }
    part = (
        Arg((batch, length, groups, size), jnp.int8, below=120),
        Arg((batch, length, groups), scale=0.01),
    )
    params = {
        "words": Arg((vocab, width), BF16),
        "layers": [layer] * layers,
        "norm": norm(),
        "head": Arg((width, vocab), BF16, scale=width**-0.5),
    }
    words, lengths = Arg((batch,), I32, below=vocab), Arg((batch,), I32, below=length)
    caches = [(*part, *part) for _ in range(layers)]
    return TimedProgram(step, (caches, params, words, lengths), carried=True)


def latent_generation(
    batch: int = 14,
    length: int = 704,
    new: int = 18,
    width: int = 1152,
    heads: int = 12,
    latent: int = 320,
    layers: int = 2,
    vocab: int = 20_000,
) -> TimedProgram:
    """18 words in a scan, with a cache of latents: queries are multiplied into them, a gated MLP,
    sampling from the 40 best by Gumbel noise; bfloat16."""
    size, turning, hidden = 64, 32, 3072

    def matrix(*shape: int, inputs: int | None = None) -> Arg:
        return Arg(shape, BF16, scale=(inputs or shape[0]) ** -0.5)

    layer = {
        "q": matrix(width, heads, size + turning),
        "down": matrix(width, latent + turning),
        "up_k": matrix(latent, heads, size),
        "up_v": matrix(latent, heads, size),
        "out": matrix(heads, size, width, inputs=heads * size),
        "gate": matrix(width, hidden),
        "up": matrix(width, hidden),
        "back": matrix(hidden, width),
        "norm_1": Arg((width,), BF16, scale=0.5),
        "norm_2": Arg((width,), BF16, scale=0.5),
        "norm_c": Arg((latent,), BF16, scale=0.5),
    }

    def turned(x: Any, at: Any) -> Any:
        angles = at * 10_000.0 ** (-jnp.arange(turning // 2) / (turning // 2))
        a, b = jnp.split(x.astype(F32), 2, -1)
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1).astype(BF16)

    def attention(p: Any, x: Any, cache: Any, at: Any) -> Any:
        q = jnp.einsum("bw,whd->bhd", x, p["q"])
        plain, rotated = q[..., :size], turned(q[..., size:], at)
        c, k = jnp.split(x @ p["down"], [latent], -1)
        row = jnp.concatenate([rms(c, p["norm_c"]), turned(k, at)], -1)
        cache = lax.dynamic_update_slice(cache, row[:, None], (0, at, 0))
        absorbed = jnp.einsum("bhd,lhd->bhl", plain, p["up_k"])
        query = jnp.concatenate([absorbed, rotated], -1)
        scores = jnp.einsum("bhl,bml->bhm", query, cache, preferred_element_type=F32)
        scores = jnp.where(jnp.arange(length) <= at, scores / math.sqrt(size + turning), -1e9)
        shares = jax.nn.softmax(scores, -1).astype(BF16)
        mixed = jnp.einsum("bhm,bml->bhl", shares, cache[..., :latent])
        values = jnp.einsum("bhl,lhd->bhd", mixed, p["up_v"])
        return jnp.einsum("bhd,hdw->bw", values, p["out"]), cache

    def generate(carry: Any, params: Any, start: Any, key: Any) -> Any:
        def word(carry: Any, key: Any) -> Any:
            caches, words, at = carry
            x = params["words"][words]
            written = []
            for p, before in zip(params["layers"], caches, strict=True):
                y, cache = attention(p, rms(x, p["norm_1"]), before, at)
                x = x + y
                y = rms(x, p["norm_2"])
                x = x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["back"]
                written.append(cache)
            logits = (rms(x) @ params["words"].T).astype(F32)
            best, index = lax.top_k(logits / 0.7, 40)
            picked = jnp.argmax(best + jax.random.gumbel(key, best.shape), -1)
            words = jnp.take_along_axis(index, picked[:, None], 1)[:, 0]
            return (written, words, at + 1), words

        caches, words = carry
        first = (caches, words, start)
        (caches, words, _), generated = lax.scan(word, first, jax.random.split(key, new))
        return (caches, words), generated.T

    caches = [Arg((batch, length, latent + turning), BF16) for _ in range(layers)]
    params = {"words": matrix(vocab, width, inputs=width), "layers": [layer] * layers}
    start = Arg((), I32, below=length - new)
    carry = (caches, Arg((batch,), I32, below=vocab))
    return TimedProgram(generate, (carry, params, start, KEY), carried=True)


def hyena(batch: int = 4, length: int = 3600, width: int = 352, layers: int = 2) -> TimedProgram:
    """Long windows by FFT, given by a small network of positions with decays; short depthwise
    windows, gates and MLPs; a classifier of sequences; AdamW."""
    features, order = 17, 2
    decay = np.geomspace(1.5, 60.0, width).astype(np.float32)

    def layer_params() -> dict[str, Any]:
        return {
            "norm_1": scales(width),
            "norm_2": scales(width),
            "in": dense(width, (order + 1) * width),
            "short": Arg((3, (order + 1) * width), scale=0.5),
            "filter": mlp((features, 48, 48, order * width)),
            "bias": Arg((order, width), scale=0.5),
            "out": dense(width, width),
            "up": dense(width, 2 * width),
            "down": dense(2 * width, width),
        }

    def long_conv(x: Any, h: Any, bias: Any) -> Any:
        spectrum = jnp.fft.rfft(x, 2 * length, axis=1) * jnp.fft.rfft(h, 2 * length, axis=0)
        return jnp.fft.irfft(spectrum, 2 * length, axis=1)[:, :length] + x * bias

    def operator(p: Any, x: Any) -> Any:
        time = jnp.linspace(0, 1, length)[:, None]
        waves = 2 * jnp.pi * time * jnp.arange(1, features // 2 + 1)
        places = jnp.concatenate([time, jnp.sin(waves), jnp.cos(waves)], -1)
        filters = apply_mlp(p["filter"], places, lambda y: jnp.sin(14 * y))
        filters = filters.reshape(length, order, width) * jnp.exp(-decay * time)[:, None]
        projected = apply(p["in"], x)
        padded = jnp.pad(projected, ((0, 0), (2, 0), (0, 0)))
        short = p["short"].astype(x.dtype)
        projected = sum(padded[:, i : i + length] * short[i] for i in range(3))
        *gates, v = jnp.split(projected, order + 1, -1)
        v = v.astype(F32)
        for n, gate in enumerate(gates):
            v = gate.astype(F32) * long_conv(v, filters[:, n], p["bias"][n])
        return apply(p["out"], v.astype(x.dtype))

    def loss(params: Any, words: Any, labels: Any) -> Any:
        x = params["words"][words].astype(BF16)
        for p in params["layers"]:
            x = x + operator(p, layer_norm(x, p["norm_1"]))
            y = jax.nn.gelu(apply(p["up"], layer_norm(x, p["norm_2"])))
            x = x + apply(p["down"], y)
        return nll(apply(params["head"], layer_norm(x).mean(1)), labels).mean()

    params = {
        "words": Arg((256, width), scale=0.5),
        "layers": [layer_params() for _ in range(layers)],
        "head": dense(width, 10),
    }
    batch_args = (Arg((batch, length), I32, below=256), Arg((batch,), I32, below=10))
    return trained(loss, optax.adamw(6e-4), params, *batch_args)


def spline_flow(
    rows: int = 7200, dims: int = 36, width: int = 288, layers: int = 4, bins: int = 8
) -> TimedProgram:
    """A normalising flow: couplings of rational quadratic splines, triangular linear maps between
    them, log likelihoods; clipped Adam; float32."""
    half, bound = dims // 2, 4.0
    layer = {
        "lower": Arg((dims, dims), scale=0.05),
        "upper": Arg((dims, dims), scale=0.05),
        "diagonal": Arg((dims,), scale=0.1),
        "network": mlp((half, width, width, half * (3 * bins - 1))),
    }

    def knots(raw: Any) -> Any:
        sizes = 1e-3 + (1 - 1e-3 * bins) * jax.nn.softmax(raw, -1)
        ends = jnp.pad(jnp.cumsum(sizes, -1), ((0, 0), (0, 0), (1, 0)))
        return 2 * bound * ends - bound

    def spline(x: Any, raw: Any) -> Any:
        xs, ys = knots(raw[..., :bins]), knots(raw[..., bins : 2 * bins])
        inner = 1e-3 + jax.nn.softplus(raw[..., 2 * bins :])
        slopes = jnp.pad(inner, ((0, 0), (0, 0), (1, 1)), constant_values=1.0)
        inside = jnp.abs(x) < bound
        held = x.clip(-bound + 1e-4, bound - 1e-4)
        at = (held[..., None] >= xs[..., 1:-1]).sum(-1, keepdims=True)

        def pick(values: Any, offset: int = 0) -> Any:
            return jnp.take_along_axis(values, at + offset, -1)[..., 0]

        x0, x1, y0, y1 = pick(xs), pick(xs, 1), pick(ys), pick(ys, 1)
        d0, d1 = pick(slopes), pick(slopes, 1)
        slope = (y1 - y0) / (x1 - x0)
        t = (held - x0) / (x1 - x0)
        rest = t * (1 - t)
        below = slope + (d1 + d0 - 2 * slope) * rest
        y = y0 + (y1 - y0) * (slope * t**2 + d0 * rest) / below
        top = slope**2 * (d1 * t**2 + 2 * slope * rest + d0 * (1 - t) ** 2)
        logs = jnp.log(top) - 2 * jnp.log(below)
        return jnp.where(inside, y, x), jnp.where(inside, logs, 0.0).sum(-1)

    def loss(params: Any, x: Any) -> Any:
        total = jnp.zeros(rows)
        for p in params:
            lower = jnp.tril(p["lower"], -1) + jnp.eye(dims)
            upper = jnp.triu(p["upper"], 1) + jnp.diag(jnp.exp(p["diagonal"]))
            x = x @ (lower @ upper)
            total += p["diagonal"].sum()
            a, b = jnp.split(x, 2, -1)
            raw = apply_mlp(p["network"], a, jax.nn.leaky_relu)
            b, logs = spline(b, raw.reshape(rows, half, -1))
            total += logs
            x = jnp.concatenate([b, a], -1)
        logs = -0.5 * (jnp.square(x) + math.log(2 * math.pi)).sum(-1)
        return -(logs + total).mean()

    optimizer = optax.chain(optax.clip_by_global_norm(5.0), optax.adam(5e-4))
    return trained(loss, optimizer, [layer] * layers, Arg((rows, dims)))


def nerf(rays: int = 2900, samples: int = 56, width: int = 240) -> TimedProgram:
    """Volume rendering of rays by an MLP of encoded places and directions: random samples, a skip,
    transmittance by cumprod, a distortion loss; Adam; float32."""
    place_size, way_size = 3 + 6 * 10, 3 + 6 * 4
    params = {
        "first": mlp((place_size, width, width, width)),
        "second": mlp((width + place_size, width, width)),
        "density": dense(width, 1),
        "feature": dense(width, width),
        "colour": mlp((width + way_size, width // 2, 3)),
    }

    def encoded(x: Any, levels: int) -> Any:
        angles = (x[..., None, :] * 2.0 ** jnp.arange(levels)[:, None]).reshape(*x.shape[:-1], -1)
        return jnp.concatenate([x, jnp.sin(angles), jnp.cos(angles)], -1)

    def loss(params: Any, origins: Any, ways: Any, colours: Any, key: Any) -> Any:
        ways = ways / jnp.linalg.norm(ways, axis=-1, keepdims=True)
        edges = jnp.linspace(2.0, 6.0, samples + 1)
        draws = jax.random.uniform(key, (rays, samples))
        depth = edges[:-1] + draws * (edges[1:] - edges[:-1])
        places = origins[:, None] + depth[..., None] * ways[:, None]
        x = encoded(places, 10)
        y = jax.nn.relu(apply_mlp(params["first"], x))
        y = jax.nn.relu(apply_mlp(params["second"], jnp.concatenate([y, x], -1)))
        density = jax.nn.softplus(apply(params["density"], y)[..., 0] - 1)
        way = jnp.broadcast_to(encoded(ways, 4)[:, None], (rays, samples, way_size))
        both = jnp.concatenate([apply(params["feature"], y), way], -1)
        colour = jax.nn.sigmoid(apply_mlp(params["colour"], both))
        step = jnp.diff(depth, axis=-1, append=jnp.full((rays, 1), 6.5))
        alpha = 1 - jnp.exp(-density * step)
        clear = jnp.cumprod(1 - alpha + 1e-10, -1)
        shares = alpha * jnp.concatenate([jnp.ones((rays, 1)), clear[:, :-1]], -1)
        found = (shares[..., None] * colour).sum(1) + (1 - shares.sum(-1, keepdims=True))
        apart = jnp.abs(depth[:, :, None] - depth[:, None])
        spread = jnp.einsum("ri,rj,rij->r", shares, shares, apart).mean()
        return jnp.square(found - colours).mean() + 0.01 * spread

    ray = Arg((rays, 3))
    return trained(loss, optax.adam(5e-4, eps=1e-15), params, ray, ray, ray, KEY)


def two_towers(
    batch: int = 5000,
    users: int = 420_000,
    items: int = 160_000,
    size: int = 56,
    history: int = 24,
) -> TimedProgram:
    """Recommender of two towers: bags of past items, negatives from the batch with corrected
    frequencies, rows of tables that are updated alone, Adagrad on the rest; float32."""
    optimizer = optax.adagrad(0.02)
    towers = {
        "user": mlp((2 * size, 256, 128, 64)),
        "item": mlp((size + 16, 192, 64)),
        "heat": Arg((), scale=0.1),
    }
    genres = 300

    def loss(towers: Any, rows: Any, kept: Any, frequency: Any, hidden: Any) -> Any:
        user, past, item, genre = rows
        weight = kept / kept.sum(-1, keepdims=True).clip(1)
        taste = (past * weight[..., None]).sum(1)
        a = apply_mlp(towers["user"], jnp.concatenate([user, taste], -1))
        b = apply_mlp(towers["item"], jnp.concatenate([item, genre], -1))
        a, b = (x * lax.rsqrt(jnp.square(x).sum(-1, keepdims=True) + 1e-6) for x in (a, b))
        scores = jnp.exp(towers["heat"]) * 10 * a @ b.T - jnp.log(frequency)
        scores = jnp.where(hidden, -1e9, scores)
        return nll(scores, jnp.arange(batch)).mean()

    def step(carry: Any, ids: Any, past: Any, frequency: Any) -> Any:
        towers, tables, state = carry
        user, item, genre = ids
        rows = (
            tables["user"][user],
            tables["item"][past],
            tables["item"][item],
            tables["genre"][genre],
        )
        kept = (past > 0).astype(F32)
        hidden = (item[:, None] == item) & ~jnp.eye(batch, dtype=bool)
        frequency = jnp.square(frequency) + 1e-3
        gradient = jax.value_and_grad(loss, argnums=(0, 1))
        value, (towers_slope, rows_slope) = gradient(towers, rows, kept, frequency, hidden)
        updates, state = optimizer.update(towers_slope, state, towers)
        towers = optax.apply_updates(towers, updates)
        slopes = [-0.1 * slope for slope in rows_slope]
        tables = {
            "user": tables["user"].at[user].add(slopes[0]),
            "item": tables["item"].at[past].add(slopes[1]).at[item].add(slopes[2]),
            "genre": tables["genre"].at[genre].add(slopes[3]),
        }
        return (towers, tables, state), value

    tables = {
        "user": Arg((users, size), scale=0.1),
        "item": Arg((items, size), scale=0.1),
        "genre": Arg((genres, 16), scale=0.1),
    }
    state = zeros(jax.eval_shape(optimizer.init, shaped(towers)))
    ids = tuple(Arg((batch,), I32, below=count) for count in (users, items, genres))
    past = Arg((batch, history), I32, below=items)
    return TimedProgram(step, ((towers, tables, state), ids, past, Arg((batch,))), carried=True)


# Numerics.


def in_float64(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Computes in float64 from arguments and to results of float32."""

    def run(*args: Any) -> Any:
        def to(dtype: Any, other: Any, tree: Any) -> Any:
            cast = lambda leaf: leaf.astype(dtype) if leaf.dtype == other else leaf  # noqa: E731
            return jax.tree.map(cast, tree)

        with jax.enable_x64(True):
            return to(F32, jnp.float64, fn(*to(jnp.float64, F32, args)))

    run.__name__ = fn.__name__
    return run


def shallow_water(rows: int = 880, columns: int = 1180, steps: int = 40) -> TimedProgram:
    """Steps of the nonlinear shallow water equations on a staggered grid: Coriolis, drag,
    viscosity, an uneven floor."""
    dx, dt, gravity = 1e3, 2.0, 9.81

    def run(carry: Any, floor: Any) -> Any:
        depth = 100.0 + 5.0 * floor
        turning = 1e-4 * (1 + jnp.linspace(-0.1, 0.1, rows))[:, None]

        def body(carry: Any, _: Any) -> Any:
            h, u, v = carry
            total = depth + h
            flux_x = u * 0.5 * (total + jnp.roll(total, -1, 1))
            flux_y = v * 0.5 * (total + jnp.roll(total, -1, 0))
            out = (flux_x - jnp.roll(flux_x, 1, 1)) + (flux_y - jnp.roll(flux_y, 1, 0))
            h = h - dt / dx * out
            at_u = 0.25 * (
                v + jnp.roll(v, -1, 1) + jnp.roll(v, 1, 0) + jnp.roll(v, (1, -1), (0, 1))
            )
            at_v = 0.25 * (
                u + jnp.roll(u, -1, 0) + jnp.roll(u, 1, 1) + jnp.roll(u, (-1, 1), (0, 1))
            )

            def smooth(x: Any) -> Any:
                near = sum(jnp.roll(x, s, axis) for s in (1, -1) for axis in (0, 1))
                return 50.0 / dx**2 * (near - 4 * x)

            speed_u, speed_v = jnp.sqrt(u**2 + at_u**2), jnp.sqrt(v**2 + at_v**2)
            push_u = -gravity / dx * (jnp.roll(h, -1, 1) - h) - 2e-3 * speed_u * u / total
            push_v = -gravity / dx * (jnp.roll(h, -1, 0) - h) - 2e-3 * speed_v * v / total
            u_new = u + dt * (push_u + turning * at_u + smooth(u))
            v_new = v + dt * (push_v - turning * at_v + smooth(v))
            return (h, u_new, v_new.at[-1].set(0.0)), jnp.abs(h).max()

        return lax.scan(body, carry, length=steps)

    field = Arg((rows, columns), scale=0.1)
    return TimedProgram(run, ((field, field, field), field), carried=True)


def navier_stokes(side: int = 720, steps: int = 5) -> TimedProgram:
    """Vorticity in a periodic square by real FFTs: Heun's steps, dealiasing, forcing, a passive
    tracer, and the spectrum of the energy in rings."""

    def run(carry: Any, force: Any) -> Any:
        kx = jnp.fft.fftfreq(side, 1 / side)[:, None]
        ky = jnp.fft.rfftfreq(side, 1 / side)[None]
        square = kx**2 + ky**2
        kept = (jnp.abs(kx) < side / 3) & (ky < side / 3)
        inverse = jnp.where(square > 0, 1 / jnp.where(square > 0, square, 1), 0)
        pushed = jnp.fft.rfft2(force)

        def back(spectrum: Any) -> Any:
            return jnp.fft.irfft2(spectrum, (side, side))

        def slope(w: Any, c: Any) -> Any:
            stream = w * inverse
            u, v = back(1j * ky * stream), back(-1j * kx * stream)

            def carried(x: Any) -> Any:
                flow = u * back(1j * kx * x) + v * back(1j * ky * x)
                return -jnp.fft.rfft2(flow) * kept

            return carried(w) - 1e-4 * square * w + pushed, carried(c) - 2e-4 * square * c

        def body(_: Any, carry: Any) -> Any:
            w, c = carry
            first = slope(w, c)
            second = slope(w + 1e-3 * first[0], c + 1e-3 * first[1])
            return w + 5e-4 * (first[0] + second[0]), c + 5e-4 * (first[1] + second[1])

        w, c = lax.fori_loop(0, steps, body, tuple(jnp.fft.rfft2(x) for x in carry))
        ring = jnp.round(jnp.sqrt(square)).astype(I32)
        energy = jnp.bincount(ring.ravel(), (jnp.abs(w) ** 2 * inverse).ravel(), length=side // 2)
        return (back(w), back(c)), energy

    field = Arg((side, side))
    return TimedProgram(run, ((field, field), field), carried=True)


def graph_solve(nodes: int = 140_000, edges: int = 560_000, iterations: int = 20) -> TimedProgram:
    """A weighted graph Laplacian in float64, solved by jax's conjugate gradients with the diagonal
    as preconditioner: gathers and scattered sums."""

    def solve(b: Any, weight: Any, ends: Any) -> Any:
        weight = jnp.square(weight) + 0.1
        left, right = ends
        degree = jnp.zeros(nodes).at[left].add(weight).at[right].add(weight)

        def product(x: Any) -> Any:
            flow = weight * (x[left] - x[right])
            return 0.05 * x + jnp.zeros(nodes).at[left].add(flow).at[right].add(-flow)

        found, _ = jax.scipy.sparse.linalg.cg(
            product, b, tol=0.0, maxiter=iterations, M=lambda r: r / (0.05 + degree)
        )
        return found, jnp.linalg.norm(product(found) - b)

    end = Arg((edges,), I32, below=nodes)
    return TimedProgram(in_float64(solve), (Arg((nodes,)), Arg((edges,)), (end, end)))


def small_spectra(
    windows: int = 230, length: int = 400, dims: int = 30, clouds: int = 2600, points: int = 70
) -> TimedProgram:
    """Whitening of windows by eigh of their covariances, and the rotations between pairs of point
    clouds by SVD of 3×3 matrices."""

    def run(series: Any, first: Any, second: Any) -> Any:
        centred = series - series.mean(1, keepdims=True)
        covariance = jnp.einsum("wti,wtj->wij", centred, centred) / (length - 1)
        values, vectors = jnp.linalg.eigh(covariance + 0.01 * jnp.eye(dims))
        whitener = jnp.einsum("wij,wj,wkj->wik", vectors, lax.rsqrt(values), vectors)
        white = jnp.einsum("wti,wij->wtj", centred, whitener)
        p = first - first.mean(1, keepdims=True)
        q = second - second.mean(1, keepdims=True)
        u, s, vt = jnp.linalg.svd(jnp.einsum("cpi,cpj->cij", p, q))
        sign = jnp.sign(jnp.linalg.det(u) * jnp.linalg.det(vt))
        flip = jnp.stack([jnp.ones_like(sign), jnp.ones_like(sign), sign], -1)
        rotation = jnp.einsum("cij,cj,cjk->cik", u, flip, vt)
        error = jnp.sqrt(jnp.square(p @ rotation - q).sum(-1).mean(-1))
        return white, values[:, -1] / values.sum(-1), error, s

    cloud = Arg((clouds, points, 3))
    return TimedProgram(run, (Arg((windows, length, dims)), cloud, cloud))


def american_option(paths: int = 120_000, steps: int = 24) -> TimedProgram:
    """Longstaff and Schwartz's price of an American put with jumps in float64: paths by cumsum,
    then regressions on four polynomials backwards in time."""

    def price(spot: Any, key: Any) -> Any:
        dt = 1.0 / steps
        normal, jump, large = jax.random.split(key, 3)
        z = jax.random.normal(normal, (steps, paths // 2), F32).astype(jnp.float64)
        z = jnp.concatenate([z, -z], 1)
        jumps = jax.random.uniform(jump, (steps, paths), F32) < 0.3 * dt
        sizes = jax.random.normal(large, (steps, paths), F32).astype(jnp.float64)
        sizes = -0.1 + 0.15 * sizes
        logs = jnp.cumsum((0.03 - 0.02) * dt + 0.2 * math.sqrt(dt) * z + jumps * sizes, 0)
        prices = (36.0 + 0.1 * spot) * jnp.exp(logs)
        fade = math.exp(-0.03 * dt)

        def body(cash: Any, now: Any) -> Any:
            cash = cash * fade
            gain = jnp.maximum(40.0 - now, 0.0)
            inside = (gain > 0).astype(jnp.float64)
            x = now / 40.0
            basis = jnp.stack([jnp.ones_like(x), x, x**2, x**3])
            weighted = basis * inside
            matrix = weighted @ basis.T + 1e-9 * jnp.eye(4)
            ratio = jnp.linalg.solve(matrix, weighted @ cash)
            use = (gain > ratio @ basis) & (gain > 0)
            return jnp.where(use, gain, cash), use.mean()

        last = jnp.maximum(40.0 - prices[-1], 0.0)
        cash, used = lax.scan(body, last, prices[:-1], reverse=True)
        return cash.mean() * fade, cash.std() / math.sqrt(paths), used

    return TimedProgram(in_float64(price), (Arg(()), KEY))


def molecular_dynamics(atoms: int = 44_000, neighbours: int = 40, steps: int = 4) -> TimedProgram:
    """Velocity Verlet of Lennard-Jones atoms by lists of neighbours: forces are a gradient whose
    transposed gather scatters; a thermostat; the virial."""
    box, dt = 30.0, 1e-3

    def energy(x: Any, near: Any) -> Any:
        apart = x[:, None] - x[near]
        apart = apart - box * jnp.round(apart / box)
        square = jnp.square(apart).sum(-1) + 0.3
        cube = 1.0 / square**3
        pair = jnp.where(square < 9.0, 4.0 * (cube**2 - cube) + 0.0055, 0.0)
        virial = jnp.where(square < 9.0, 24.0 * (2 * cube**2 - cube), 0.0)
        return 0.5 * pair.sum(), 0.5 * lax.stop_gradient(virial).sum()

    def run(carry: Any, near: Any) -> Any:
        gradient = jax.value_and_grad(energy, has_aux=True)

        def body(carry: Any, _: Any) -> Any:
            x, v, slope = carry
            v = v - 0.5 * dt * slope
            x = (x + dt * v) % box
            (potential, virial), slope = gradient(x, near)
            v = v - 0.5 * dt * slope
            heat = jnp.square(v).sum() / (3 * atoms)
            v = v * jnp.sqrt(1 + 0.05 * (1.0 / heat.clip(1e-3) - 1)).clip(0.9, 1.1)
            return (x, v, slope), (potential, virial, heat)

        return lax.scan(body, carry, length=steps)

    particles = Arg((atoms, 3))
    carry = (Arg((atoms, 3), scale=10.0), particles, particles)
    near = Arg((atoms, neighbours), I32, below=atoms)
    return TimedProgram(run, (carry, near), carried=True)


def pagerank(nodes: int = 210_000, edges: int = 1_500_000, iterations: int = 16) -> TimedProgram:
    """Edges sorted by target, then power iterations of a sparse matrix by gather and sorted sums,
    for four restart vectors at once; the ten best of each."""

    def run(source: Any, target: Any, restart: Any) -> Any:
        target, source = lax.sort((target, source), num_keys=1)
        degree = jnp.zeros(nodes).at[source].add(1.0)
        share = jnp.where(degree > 0, 1 / degree.clip(1), 0.0)[:, None]
        restart = jax.nn.softmax(restart, 0)

        def body(state: Any) -> Any:
            rank, _, count = state
            rows = (rank * share)[source]
            sums = jax.ops.segment_sum(rows, target, nodes, indices_are_sorted=True)
            lost = jnp.where(degree[:, None] > 0, 0.0, rank).sum(0)
            new = 0.85 * (sums + lost * restart) + 0.15 * restart
            return new, jnp.abs(new - rank).sum(), count + 1

        def going(state: Any) -> Any:
            return (state[1] > 0.0) & (state[2] < iterations)

        rank, change, _ = lax.while_loop(going, body, (restart, jnp.ones(()), 0))
        return (*lax.top_k(rank.T, 10), change)

    end = Arg((edges,), I32, below=nodes)
    return TimedProgram(run, (end, end, Arg((nodes, 4))))


def group_by(rows: int = 760_000, customers: int = 30_000, bins: int = 2000) -> TimedProgram:
    """Sales by customer: a sort by two keys, running sums within groups by associative_scan, bins
    by searchsorted, medians of groups, the largest 50, ranks with ties."""

    def run(customer: Any, day: Any, amount: Any, limits: Any) -> Any:
        amount = jnp.abs(amount)
        customer, day, amount = lax.sort((customer, day, amount), num_keys=2)
        starts = jnp.concatenate([jnp.ones(1, bool), customer[1:] != customer[:-1]])

        def combine(a: Any, b: Any) -> Any:
            return a[0] | b[0], jnp.where(b[0], b[1], a[1] + b[1])

        _, running = lax.associative_scan(combine, (starts, amount))
        totals = jax.ops.segment_sum(amount, customer, customers, indices_are_sorted=True)
        largest = jax.ops.segment_max(amount, customer, customers, indices_are_sorted=True)
        first = jnp.searchsorted(customer, jnp.arange(customers))
        count = jnp.diff(first, append=rows)
        middle = jnp.clip(first + count // 2, 0, rows - 1)
        ordered = lax.sort((customer, amount), num_keys=2)[1]
        places = jnp.searchsorted(jnp.sort(limits), amount, side="right")
        counts = jnp.bincount(places, length=bins + 1)
        best, who = lax.top_k(totals, 50)
        ranks = jnp.searchsorted(jnp.sort(totals), totals) / customers
        gaps = jnp.where(starts, 0, day - jnp.roll(day, 1))
        return running, largest, ordered[middle], counts, best, who, ranks, gaps.max()

    keys = (Arg((rows,), I32, below=customers), Arg((rows,), I32, below=365))
    return TimedProgram(run, (*keys, Arg((rows,)), Arg((bins,), scale=2.0)))


def alignment(pairs: int = 900, first: int = 150, second: int = 190) -> TimedProgram:
    """Smith and Waterman's scores with affine gaps for pairs of sequences in int32, by
    antidiagonals in a scan; then the longest common subsequences by rows."""
    letters = 24

    def run(a: Any, b: Any, table: Any) -> Any:
        table = (table % 16) - 6
        index = jnp.arange(first)
        padded = jnp.pad(b, ((0, 0), (first, first)))

        def diagonal(carry: Any, number: Any) -> Any:
            before, last, down, right, best = carry
            column = number - index
            valid = (column >= 0) & (column < second)
            letter = jnp.take_along_axis(padded, (column + first)[None].repeat(pairs, 0), 1)
            score = table[a, letter]

            def above(x: Any, fill: int) -> Any:
                return jnp.pad(x[:, :-1], ((0, 0), (1, 0)), constant_values=fill)

            down = jnp.maximum(above(last, 0) - 11, above(down, -1000) - 1)
            right = jnp.maximum(last - 11, right - 1)
            now = jnp.maximum(jnp.maximum(above(before, 0) + score, 0), jnp.maximum(down, right))
            now = jnp.where(valid, now, 0)
            return (last, now, down, right, jnp.maximum(best, now.max(1))), None

        zero = jnp.zeros((pairs, first), I32)
        low = jnp.full((pairs, first), -1000, I32)
        start = (zero, zero, low, low, jnp.zeros(pairs, I32))
        (*_, best), _ = lax.scan(diagonal, start, jnp.arange(first + second - 1))

        def row(old: Any, letter: Any) -> Any:
            grown = jnp.pad(old[:, :-1], ((0, 0), (1, 0))) + (letter[:, None] == b)
            return lax.cummax(jnp.maximum(old, grown), axis=1), None

        common, _ = lax.scan(row, jnp.zeros((pairs, second), I32), a.T)
        return best, common[:, -1]

    table = Arg((letters, letters), I32, below=1 << 20)
    sequences = (Arg((pairs, first), I32, below=letters), Arg((pairs, second), I32, below=letters))
    return TimedProgram(run, (*sequences, table))


def image_filters(images: int = 3, rows: int = 1000, columns: int = 1340) -> TimedProgram:
    """Filters of pictures of uint8: grey, a Gaussian, a bilateral filter, medians, opening, edges
    with thinning, histogram equalisation and corners."""

    def shifted(x: Any, row: int, column: int) -> Any:
        padded = jnp.pad(x, ((0, 0), (2, 2), (2, 2)), mode="edge")
        return padded[:, 2 + row : 2 + row + rows, 2 + column : 2 + column + columns]

    def smoothed(x: Any, taps: int, deviation: float) -> Any:
        weights = np.exp(-0.5 * ((np.arange(taps) - taps // 2) / deviation) ** 2)
        line = jnp.asarray(weights / weights.sum(), F32)
        for shape in ((taps, 1, 1, 1), (1, taps, 1, 1)):
            x = conv(x[..., None], line.reshape(shape))[..., 0]
        return x

    def bilateral(x: Any) -> Any:
        total, weight = jnp.zeros_like(x), jnp.zeros_like(x)
        for row in range(-2, 3):
            for column in range(-2, 3):
                near = shifted(x, row, column)
                share = jnp.exp(-(row**2 + column**2) / 4.5 - jnp.square(near - x) / 0.02)
                total, weight = total + share * near, weight + share
        return total / weight

    def pooled(x: Any, op: Any, start: float, size: int) -> Any:
        return lax.reduce_window(x, start, op, (1, size, size), (1, 1, 1), "SAME")

    def edges(x: Any) -> Any:
        near = {(r, c): shifted(x, r, c) for r in (-1, 0, 1) for c in (-1, 0, 1)}
        across = sum(w * (near[r, 1] - near[r, -1]) for r, w in ((-1, 1), (0, 2), (1, 1)))
        down = sum(w * (near[1, c] - near[-1, c]) for c, w in ((-1, 1), (0, 2), (1, 1)))
        size = jnp.hypot(across, down)
        side = jnp.round(jnp.arctan2(down, across) * 4 / jnp.pi).astype(I32) % 4
        ways = ((0, 1), (1, 1), (1, 0), (1, -1))
        ahead = jnp.select([side == n for n in range(4)], [shifted(size, *w) for w in ways])
        behind = jnp.select([side == n for n in range(4)], [shifted(size, -r, -c) for r, c in ways])
        return jnp.where((size >= ahead) & (size >= behind), size, 0.0), across, down

    def run(pictures: Any) -> Any:
        grey = (pictures.astype(F32) / 255) @ jnp.array([0.299, 0.587, 0.114])
        smooth = bilateral(grey)
        nine = jnp.stack([shifted(grey, r, c) for r in (-1, 0, 1) for c in (-1, 0, 1)])
        median = jnp.sort(nine, 0)[4]
        opened = pooled(pooled(grey, lax.min, jnp.inf, 7), lax.max, -jnp.inf, 7)
        thin, across, down = edges(smoothed(grey, 9, 1.6))
        a, b, c = (smoothed(x, 7, 1.2) for x in (across**2, across * down, down**2))
        corner = a * c - b**2 - 0.05 * jnp.square(a + c)
        peaks = (corner == pooled(corner, lax.max, -jnp.inf, 5)) & (corner > 1e-4)
        levels = (median * 255).astype(I32)
        histogram = jax.vmap(partial(jnp.bincount, length=256))(levels.reshape(images, -1))
        ladder = jnp.cumsum(histogram, -1) / (rows * columns)
        equal = jnp.take_along_axis(ladder, levels.reshape(images, -1), 1)
        equal = (255 * equal).astype(jnp.uint8).reshape(grey.shape)
        return smooth, opened, thin, peaks.sum((1, 2)), equal

    return TimedProgram(run, (Arg((images, rows, columns, 3), jnp.uint8, below=255),))


# Programs with the small sizes that a CPU runs.
LEARNING: tuple[tuple[Callable[..., TimedProgram], dict[str, Any]], ...] = (
    (mbconv, {"images": 2, "pixels": 32, "classes": 10}),
    (segmentation, {"images": 2, "pixels": 32, "widths": (8, 16, 32), "classes": 5}),
    (
        bert_pretraining,
        {"batch": 2, "length": 24, "width": 128, "layers": 2, "vocab": 90, "masked": 4},
    ),
    (
        t5_seq2seq,
        {"batch": 2, "source": 20, "target": 9, "width": 128, "hidden": 96, "vocab": 70},
    ),
    (
        gqa_remat,
        {
            "batch": 1,
            "length": 20,
            "width": 256,
            "hidden": 64,
            "layers": 2,
            "vocab": 80,
            "local": 5,
        },
    ),
    (moe_slots, {"tokens": 60, "width": 32, "hidden": 24, "experts": 4}),
    (rwkv, {"batch": 2, "length": 7, "width": 128, "vocab": 50}),
    (retnet, {"batch": 2, "length": 24, "width": 96, "layers": 2, "chunk": 8, "vocab": 40}),
    (dit, {"batch": 2, "side": 8, "width": 144, "layers": 2, "classes": 10}),
    (audio_tagging, {"clips": 2, "samples": 8000, "width": 16, "layers": 2, "tags": 5}),
    (simclr, {"images": 4, "pixels": 16, "widths": (16, 32)}),
    (interatomic, {"atoms": 40, "edges": 200, "graphs": 4, "width": 16, "layers": 2}),
    (tabular, {"rows": 50, "numbers": 4, "categories": (3, 9), "width": 16, "blocks": 2}),
    (distillation, {"images": 2, "pixels": 32, "teacher": 32, "student": 16, "classes": 7}),
    (
        four_bit_decode,
        {"batch": 2, "length": 20, "width": 576, "hidden": 128, "layers": 2, "vocab": 60},
    ),
    (
        latent_generation,
        {"batch": 2, "length": 20, "new": 4, "width": 64, "heads": 2, "latent": 16, "vocab": 60},
    ),
    (hyena, {"batch": 2, "length": 40, "width": 16}),
    (spline_flow, {"rows": 30, "dims": 6, "width": 16, "layers": 2}),
    (nerf, {"rays": 12, "samples": 8, "width": 16}),
    (two_towers, {"batch": 20, "users": 50, "items": 40, "size": 8, "history": 5}),
)
NUMERICS: tuple[tuple[Callable[..., TimedProgram], dict[str, Any]], ...] = (
    (shallow_water, {"rows": 20, "columns": 30, "steps": 3}),
    (navier_stokes, {"side": 24, "steps": 2}),
    (graph_solve, {"nodes": 60, "edges": 200, "iterations": 6}),
    (small_spectra, {"windows": 4, "length": 30, "dims": 5, "clouds": 6, "points": 9}),
    (american_option, {"paths": 400, "steps": 6}),
    (molecular_dynamics, {"atoms": 60, "neighbours": 6, "steps": 2}),
    (pagerank, {"nodes": 50, "edges": 300, "iterations": 5}),
    (group_by, {"rows": 400, "customers": 80, "bins": 9}),
    (alignment, {"pairs": 5, "first": 8, "second": 11}),
    (image_filters, {"images": 1, "rows": 30, "columns": 26}),
)
