"""A blind zoo: 18 steps of machine learning and 12 numerical programs, at sizes nobody tuned for.

Written from what people do with jax and flax on one GPU, without a look at how kernels are
predicted.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax import nnx
from jax import lax

from xlapipe.run.calibration.timed_program import Arg, TimedProgram

F32, BF16, I32 = jnp.float32, jnp.bfloat16, jnp.int32
Zoo = Iterator[tuple[str, TimedProgram]]
KEY = Arg((2,), jnp.uint32, below=1 << 30)


def programs() -> dict[str, TimedProgram]:
    """Every program, by FAMILY/NAME."""
    return {
        f"{family.__name__}/{name}": program
        for family in (machine_learning, numerics)
        for name, program in family()
    }


def machine_learning() -> Zoo:
    yield "gpt_nnx", gpt_nnx()
    yield "llama_decode", llama_decode()
    yield "prefill", prefill()
    yield "vit", vit()
    yield "convnext", convnext()
    yield "unet_diffusion", unet_diffusion()
    yield "moe_ragged", moe_ragged()
    yield "mamba", mamba()
    yield "lstm", lstm()
    yield "graph_attention", graph_attention()
    yield "clip", clip()
    yield "ppo", ppo()
    yield "vae", vae()
    yield "lora", lora()
    yield "dlrm", dlrm()
    yield "quantised", quantised()
    yield "speculative", speculative()
    yield "beam_search", beam_search()


def numerics() -> Zoo:
    yield "heat_3d", heat_3d()
    yield "fft_poisson", fft_poisson()
    yield "conjugate_gradient", conjugate_gradient()
    yield "cholesky", cholesky()
    yield "qr_svd", qr_svd()
    yield "n_body", n_body()
    yield "asian_option", asian_option()
    yield "ising", ising()
    yield "k_means", k_means()
    yield "order_statistics", order_statistics()
    yield "lorenz_96", lorenz_96()
    yield "wave", wave()


def weights(tree: Any, scale: float = 0.03) -> Any:
    """Arguments of the shapes of a tree; integers are zero."""
    return jax.tree.map(
        lambda leaf: Arg(
            leaf.shape, leaf.dtype, scale if jnp.issubdtype(leaf.dtype, jnp.floating) else 0.0
        ),
        tree,
    )


def train(
    loss: Callable[..., Any],
    optimizer: Any,
    params: Any,
    *batch: Any,
    scale: float = 0.03,
) -> TimedProgram:
    """A step that updates (params, state) by the gradients of a loss.

    Args:
      params: a tree of things with a shape and a dtype.
    """

    def step(carry: Any, *batch: Any) -> Any:
        params, state = carry
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        updates, state = optimizer.update(gradients, state, params)
        return (optax.apply_updates(params, updates), state), value

    structs = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
    state = jax.eval_shape(optimizer.init, structs)
    carry = (weights(params, scale), weights(state, 0.0))
    return TimedProgram(step, (carry, *batch), carried=True)


def linen_params(model: nn.Module, *shapes: Any) -> Any:
    key = jax.ShapeDtypeStruct((2,), jnp.uint32)
    return jax.eval_shape(model.init, key, *shapes)


def struct(shape: tuple[int, ...], dtype: Any = F32) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


# Machine learning.


class GptBlock(nnx.Module):
    def __init__(self, width: int, heads: int, rngs: nnx.Rngs) -> None:
        options: dict[str, Any] = {"dtype": BF16, "rngs": rngs}
        self.norm_1 = nnx.LayerNorm(width, **options)
        self.attention = nnx.MultiHeadAttention(heads, width, decode=False, **options)
        self.norm_2 = nnx.LayerNorm(width, **options)
        self.up = nnx.Linear(width, 4 * width, **options)
        self.down = nnx.Linear(4 * width, width, **options)

    def __call__(self, x: Any, mask: Any) -> Any:
        x = x + self.attention(self.norm_1(x), mask=mask)
        return x + self.down(nnx.gelu(self.up(self.norm_2(x))))


class Gpt(nnx.Module):
    def __init__(self, layers: int, width: int, heads: int, vocab: int, rngs: nnx.Rngs) -> None:
        self.tokens = nnx.Embed(vocab, width, dtype=BF16, rngs=rngs)
        self.positions = nnx.Embed(1024, width, dtype=BF16, rngs=rngs)
        self.blocks = nnx.List([GptBlock(width, heads, rngs) for _ in range(layers)])
        self.norm = nnx.LayerNorm(width, dtype=BF16, rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
        x = self.tokens(tokens) + self.positions(jnp.arange(tokens.shape[1]))
        mask = nnx.make_causal_mask(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return self.tokens.attend(self.norm(x))


def gpt_nnx() -> TimedProgram:
    """nanoGPT's training step: flax.nnx, AdamW with clipping and a schedule, in mixed precision."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, 3e-4, 100, 10_000)
    transform = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(schedule, b2=0.95, weight_decay=0.1)
    )

    def make() -> Any:
        model = Gpt(4, 768, 12, 50257, nnx.Rngs(0))
        return model, nnx.Optimizer(model, transform, wrt=nnx.Param)

    graph, state = nnx.split(nnx.eval_shape(make))

    def loss(model: Any, tokens: Any) -> Any:
        logits = model(tokens[:, :-1]).astype(F32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    def step(values: Any, tokens: Any) -> Any:
        filled = jax.tree.unflatten(jax.tree.structure(state), jax.tree.leaves(values))
        model, optimizer = nnx.merge(graph, filled)
        value, gradients = nnx.value_and_grad(loss)(model, tokens)
        optimizer.update(model, gradients)
        return tuple(jax.tree.leaves(nnx.state((model, optimizer)))), value

    leaves = tuple(weights(leaf, 0.01) for leaf in jax.tree.leaves(state))
    return TimedProgram(step, (leaves, Arg((6, 641), I32, below=50257)), carried=True)


def rms_norm(x: Any, scale: Any) -> Any:
    wide = x.astype(F32)
    normal = wide * lax.rsqrt(jnp.mean(jnp.square(wide), -1, keepdims=True) + 1e-5)
    return normal.astype(x.dtype) * scale


def rope(x: Any, positions: Any, theta: float = 10000.0) -> Any:
    """Rotates (batch, length, heads, size) by positions of (batch, length)."""
    size = x.shape[-1]
    frequencies = theta ** (-jnp.arange(0, size, 2) / size)
    angles = positions[..., None, None] * frequencies
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    a, b = jnp.split(x.astype(F32), 2, -1)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1).astype(x.dtype)


def llama_layer(width: int, hidden: int, heads: int, kv_heads: int, size: int) -> dict[str, Any]:
    shapes = {
        "q": (width, heads * size),
        "k": (width, kv_heads * size),
        "v": (width, kv_heads * size),
        "o": (heads * size, width),
        "gate": (width, hidden),
        "up": (width, hidden),
        "down": (hidden, width),
        "norm_1": (width,),
        "norm_2": (width,),
    }
    return {name: Arg(shape, BF16, scale=0.02) for name, shape in shapes.items()}


def projections(p: Any, x: Any, positions: Any, size: int) -> tuple[Any, Any, Any]:
    batch, length, _ = x.shape
    y = rms_norm(x, p["norm_1"])
    q, k, v = ((y @ p[name]).reshape(batch, length, -1, size) for name in "qkv")
    return rope(q, positions), rope(k, positions), v


def gated(p: Any, x: Any) -> Any:
    y = rms_norm(x, p["norm_2"])
    return x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]


def grouped_attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
    batch, length, heads, size = q.shape
    q = q.reshape(batch, length, k.shape[2], -1, size)
    scores = jnp.einsum("blkgd,bmkd->bkglm", q, k, preferred_element_type=F32) / math.sqrt(size)
    shares = jax.nn.softmax(jnp.where(mask, scores, -1e9), -1).astype(v.dtype)
    return jnp.einsum("bkglm,bmkd->blkgd", shares, v).reshape(batch, length, heads * size)


def llama_decode() -> TimedProgram:
    """One token for each of 12 sequences, with caches of 4096 and grouped queries; sampled."""
    batch, width, hidden, heads, kv_heads, size, vocab = 12, 2048, 5632, 32, 4, 64, 32000
    layers = [llama_layer(width, hidden, heads, kv_heads, size) for _ in range(6)]
    cache = [(Arg((batch, 4096, kv_heads, size), BF16),) * 2 for _ in layers]

    def step(cache: Any, params: Any, tokens: Any, lengths: Any, key: Any) -> Any:
        x = params["embedding"][tokens][:, None]
        mask = (jnp.arange(4096) <= lengths[:, None])[:, None, None, None]
        rows = jnp.arange(batch)
        written = []
        for p, old in zip(params["layers"], cache, strict=True):
            q, k, v = projections(p, x, lengths[:, None], size)
            keys = old[0].at[rows, lengths].set(k[:, 0])
            values = old[1].at[rows, lengths].set(v[:, 0])
            x = x + grouped_attention(q, keys, values, mask) @ p["o"]
            x = gated(p, x)
            written.append((keys, values))
        logits = (rms_norm(x[:, 0], params["norm"]) @ params["head"]).astype(F32) / 0.8
        return written, jax.random.categorical(key, logits)

    params = {
        "embedding": Arg((vocab, width), BF16),
        "layers": layers,
        "norm": Arg((width,), BF16),
        "head": Arg((width, vocab), BF16, scale=0.02),
    }
    tokens, lengths = Arg((batch,), I32, below=vocab), Arg((batch,), I32, below=4096)
    return TimedProgram(step, (cache, params, tokens, lengths, KEY), carried=True)


def prefill() -> TimedProgram:
    """Prompts of 1203 tokens through layers in a scan, which returns the cache and last logits."""
    width, hidden, heads, kv_heads, size, vocab = 1536, 8960, 12, 2, 128, 151936
    layer = llama_layer(width, hidden, heads, kv_heads, size)
    stacked = {name: Arg((3, *arg.shape), BF16, arg.scale) for name, arg in layer.items()}

    def run(params: Any, tokens: Any) -> Any:
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        mask = positions[0, :, None] >= positions[0]

        def body(x: Any, p: Any) -> Any:
            q, k, v = projections(p, x, positions, size)
            x = x + grouped_attention(q, k, v, mask) @ p["o"]
            return gated(p, x), (k, v)

        x, cache = lax.scan(body, params["embedding"][tokens], params["layers"])
        last = rms_norm(x[:, -1], params["norm"])
        return jnp.argmax(last @ params["embedding"].T, -1), cache

    params = {
        "embedding": Arg((vocab, width), BF16, scale=0.02),
        "layers": stacked,
        "norm": Arg((width,), BF16),
    }
    return TimedProgram(run, (params, Arg((3, 1203), I32, below=vocab)))


class Vit(nn.Module):
    width: int = 384
    layers: int = 5
    heads: int = 6

    @nn.compact
    def __call__(self, images: Any) -> Any:
        x = nn.Conv(self.width, (16, 16), (16, 16), dtype=BF16)(images)
        x = x.reshape(x.shape[0], -1, self.width)
        token = self.param("token", nn.initializers.zeros, (1, 1, self.width))
        x = jnp.concatenate([jnp.tile(token.astype(x.dtype), (x.shape[0], 1, 1)), x], 1)
        x = x + self.param("positions", nn.initializers.normal(0.02), (1, *x.shape[1:]))
        for _ in range(self.layers):
            y = nn.LayerNorm(dtype=BF16)(x)
            x = x + nn.MultiHeadDotProductAttention(self.heads, dtype=BF16)(y, y)
            y = nn.LayerNorm(dtype=BF16)(x)
            y = nn.gelu(nn.Dense(4 * self.width, dtype=BF16)(y))
            x = x + nn.Dense(self.width, dtype=BF16)(y)
        return nn.Dense(1000)(nn.LayerNorm()(x)[:, 0])


def labels_loss(model: nn.Module, params: Any, images: Any, labels: Any) -> Any:
    logits = model.apply(params, images.astype(F32) / 127.5 - 1)
    targets = optax.smooth_labels(jax.nn.one_hot(labels, 1000), 0.1)
    return optax.softmax_cross_entropy(jnp.asarray(logits, F32), targets).mean()


def vit() -> TimedProgram:
    """ViT-S/16 of five layers in flax.linen: 52 images, LAMB, smoothed labels."""
    model = Vit()
    params = linen_params(model, struct((1, 224, 224, 3)))
    images = Arg((52, 224, 224, 3), jnp.uint8, below=255)
    batch = (images, Arg((52,), I32, below=1000))
    return train(partial(labels_loss, model), optax.lamb(1e-3), params, *batch)


class ConvNextBlock(nn.Module):
    """A block of depthwise convolution, normalisation and two dense layers, scaled."""

    width: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        y = nn.Conv(self.width, (7, 7), feature_group_count=self.width, dtype=BF16)(x)
        y = nn.gelu(nn.Dense(4 * self.width, dtype=BF16)(nn.LayerNorm(dtype=BF16)(y)))
        y = nn.Dense(self.width, dtype=BF16)(y)
        return x + y * self.param("scale", nn.initializers.ones, (self.width,)).astype(BF16)


class ConvNext(nn.Module):
    widths: tuple[int, ...] = (80, 160, 320)

    @nn.compact
    def __call__(self, images: Any) -> Any:
        x = nn.Conv(self.widths[0], (4, 4), (4, 4), dtype=BF16)(images)
        x = nn.LayerNorm(dtype=BF16)(x)
        for stage, width in enumerate(self.widths):
            if stage:
                x = nn.LayerNorm(dtype=BF16)(x)
                x = nn.Conv(width, (2, 2), (2, 2), dtype=BF16)(x)
            for _ in range(2):
                x = ConvNextBlock(width)(x)
        return nn.Dense(1000)(nn.LayerNorm()(x.mean((1, 2))))


def convnext() -> TimedProgram:
    """Three stages of ConvNeXt in bfloat16 on 28 images of 192 pixels, SGD with momentum."""
    model = ConvNext()
    params = linen_params(model, struct((1, 192, 192, 3)))
    images = Arg((28, 192, 192, 3), jnp.uint8, below=255)
    batch = (images, Arg((28,), I32, below=1000))
    optimizer = optax.sgd(0.1, momentum=0.9, nesterov=True)
    return train(partial(labels_loss, model), optimizer, params, *batch)


class Residual(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x: Any, time: Any) -> Any:
        y = nn.Conv(self.width, (3, 3), dtype=BF16)(nn.swish(nn.GroupNorm(16, dtype=BF16)(x)))
        y = y + nn.Dense(self.width, dtype=BF16)(nn.swish(time))[:, None, None]
        y = nn.Conv(self.width, (3, 3), dtype=BF16)(nn.swish(nn.GroupNorm(16, dtype=BF16)(y)))
        if x.shape[-1] != self.width:
            x = nn.Conv(self.width, (1, 1), dtype=BF16)(x)
        return x + y


class Unet(nn.Module):
    width: int = 112

    @nn.compact
    def __call__(self, x: Any, time: Any) -> Any:
        angles = time[:, None] * jnp.exp(-math.log(10000) * jnp.arange(56) / 56)
        embedded = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)
        time = nn.Dense(448, dtype=BF16)(nn.swish(nn.Dense(448, dtype=BF16)(embedded)))
        first = Residual(self.width)(nn.Conv(self.width, (3, 3), dtype=BF16)(x), time)
        x = nn.Conv(self.width, (3, 3), (2, 2), dtype=BF16)(first)
        second = Residual(2 * self.width)(x, time)
        x = nn.Conv(2 * self.width, (3, 3), (2, 2), dtype=BF16)(second)
        x = Residual(3 * self.width)(x, time)
        y = nn.GroupNorm(16, dtype=BF16)(x).reshape(x.shape[0], -1, x.shape[-1])
        x = x + nn.MultiHeadDotProductAttention(6, dtype=BF16)(y, y).reshape(x.shape)
        for skip in (second, first):
            batch, height, breadth, width = x.shape
            x = jax.image.resize(x, (batch, 2 * height, 2 * breadth, width), "nearest")
            x = Residual(skip.shape[-1])(jnp.concatenate([x, skip], -1), time)
        return nn.Conv(4, (3, 3))(nn.swish(nn.GroupNorm(16)(x)))


def unet_diffusion() -> TimedProgram:
    """A latent diffusion step: noise by a key, a U-Net with attention, Adam."""
    model = Unet()
    params = linen_params(model, struct((1, 48, 48, 4)), struct((1,)))

    def loss(params: Any, latents: Any, key: Any) -> Any:
        time_key, noise_key = jax.random.split(key)
        time = jax.random.uniform(time_key, (latents.shape[0],))
        noise = jax.random.normal(noise_key, latents.shape)
        angle = (time * jnp.pi / 2)[:, None, None, None]
        noisy = jnp.cos(angle) * latents + jnp.sin(angle) * noise
        found: Any = model.apply(params, noisy, time * 1000)
        return jnp.mean((found.astype(F32) - noise) ** 2)

    return train(loss, optax.adam(1e-4), params, Arg((20, 48, 48, 4)), KEY)


def moe_ragged() -> TimedProgram:
    """Gradients of a layer with 20 experts: top-2, sorted tokens, ragged products."""
    tokens, width, hidden, experts = 2640, 1152, 1408, 20

    def layer(params: Any, x: Any) -> Any:
        logits = x.astype(F32) @ params["router"]
        shares, chosen = lax.top_k(jax.nn.softmax(logits), 2)
        shares = shares / shares.sum(-1, keepdims=True)
        flat = chosen.reshape(-1)
        order = jnp.argsort(flat, stable=True)
        sizes = jnp.bincount(flat, length=experts).astype(I32)
        rows = x[order // 2]
        up = lax.ragged_dot(rows, params["up"], sizes)
        gate = lax.ragged_dot(rows, params["gate"], sizes)
        out = lax.ragged_dot(jax.nn.silu(gate) * up, params["down"], sizes)
        back = jnp.zeros_like(out).at[order].set(out).reshape(tokens, 2, width)
        fractions = jax.nn.one_hot(chosen[:, 0], experts).mean(0)
        balance = experts * jnp.sum(fractions * jax.nn.softmax(logits).mean(0))
        return x + jnp.einsum("tkw,tk->tw", back, shares.astype(BF16)), balance

    def loss(params: Any, x: Any, y: Any) -> Any:
        out, balance = layer(params, x)
        return jnp.mean((out - y).astype(F32) ** 2) + 0.01 * balance

    params = {
        "router": Arg((width, experts), scale=0.03),
        "up": Arg((experts, width, hidden), BF16, scale=0.03),
        "gate": Arg((experts, width, hidden), BF16, scale=0.03),
        "down": Arg((experts, hidden, width), BF16, scale=0.03),
    }
    x = Arg((tokens, width), BF16)
    return TimedProgram(jax.value_and_grad(loss), (params, x, x))


def mamba() -> TimedProgram:
    """Gradients of a selective state space block, by associative_scan, with a short convolution."""
    batch, length, width, inner, states, rank = 3, 1100, 320, 640, 12, 20

    def combine(first: Any, second: Any) -> Any:
        return first[0] * second[0], second[0] * first[1] + second[1]

    def block(p: Any, x: Any) -> Any:
        u, gate = jnp.split(rms_norm(x, p["norm"]) @ p["in"], 2, -1)
        padded = jnp.pad(u, ((0, 0), (3, 0), (0, 0)))
        u = jax.nn.silu(sum(padded[:, i : i + length] * p["conv"][i] for i in range(4)))
        low, b, c = jnp.split(u @ p["project"], [rank, rank + states], -1)
        delta = jax.nn.softplus((low @ p["delta"] + p["bias"]).astype(F32))
        decay = jnp.exp(delta[..., None] * -jnp.exp(p["log_a"]))
        driven = (delta * u.astype(F32))[..., None] * b.astype(F32)[:, :, None]
        _, h = lax.associative_scan(combine, (decay, driven), axis=1)
        y = jnp.einsum("blds,bls->bld", h, c.astype(F32)) + p["skip"] * u.astype(F32)
        return x + (y.astype(BF16) * jax.nn.silu(gate)) @ p["out"]

    def loss(params: Any, x: Any) -> Any:
        return jnp.mean(jnp.square(block(params, x).astype(F32)))

    params = {
        "norm": Arg((width,), BF16),
        "in": Arg((width, 2 * inner), BF16, scale=0.05),
        "conv": Arg((4, inner), BF16, scale=0.4),
        "project": Arg((inner, rank + 2 * states), BF16, scale=0.04),
        "delta": Arg((rank, inner), BF16, scale=0.2),
        "bias": Arg((inner,), BF16),
        "log_a": Arg((inner, states), scale=0.3),
        "skip": Arg((inner,)),
        "out": Arg((inner, width), BF16, scale=0.04),
    }
    return TimedProgram(jax.value_and_grad(loss), (params, Arg((batch, length, width), BF16)))


class Lstm(nn.Module):
    vocab: int = 9000

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        x = nn.Embed(self.vocab, 300)(tokens)
        for width in (420, 420):
            x = nn.RNN(nn.OptimizedLSTMCell(width))(x)
        return nn.Dense(self.vocab)(x)


def lstm() -> TimedProgram:
    """A word model of two LSTM layers in float32, truncated at 56 words; clipped Adagrad."""
    model = Lstm()
    params = linen_params(model, struct((1, 56), I32))

    def loss(params: Any, tokens: Any) -> Any:
        logits: Any = model.apply(params, tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    optimizer = optax.chain(optax.clip_by_global_norm(5.0), optax.adagrad(0.01))
    return train(loss, optimizer, params, Arg((44, 57), I32, below=9000))


def graph_attention() -> TimedProgram:
    """Gradients of two layers of a GAT: softmax over each node's edges by segments."""
    nodes, edges, width, heads, classes = 34_000, 410_000, 100, 4, 41

    def layer(p: Any, x: Any, senders: Any, receivers: Any) -> Any:
        h = (x @ p["w"]).reshape(nodes, heads, -1)
        left, right = (h * p["left"]).sum(-1), (h * p["right"]).sum(-1)
        logits = jax.nn.leaky_relu(left[senders] + right[receivers], 0.2)
        top = jax.ops.segment_max(logits, receivers, nodes)
        shares = jnp.exp(logits - lax.stop_gradient(top)[receivers])
        total = jax.ops.segment_sum(shares, receivers, nodes)
        shares = shares / (total[receivers] + 1e-9)
        sums = jax.ops.segment_sum(shares[..., None] * h[senders], receivers, nodes)
        return sums.reshape(nodes, -1)

    def loss(params: Any, x: Any, senders: Any, receivers: Any, labels: Any) -> Any:
        x = jax.nn.elu(layer(params["first"], x, senders, receivers))
        logits = layer(params["second"], x, senders, receivers)[:, :classes]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def layer_args(inputs: int, outputs: int) -> dict[str, Arg]:
        head = Arg((heads, outputs // heads), scale=0.1)
        return {"w": Arg((inputs, outputs), scale=0.1), "left": head, "right": head}

    params = {"first": layer_args(width, 64), "second": layer_args(64, 44)}
    ends = Arg((edges,), I32, below=nodes)
    args = (params, Arg((nodes, width)), ends, ends, Arg((nodes,), I32, below=classes))
    return TimedProgram(jax.value_and_grad(loss), args)


class Tower(nn.Module):
    width: int
    layers: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.Dense(self.width, dtype=BF16)(x)
        for _ in range(self.layers):
            y = nn.gelu(nn.Dense(3 * self.width, dtype=BF16)(nn.LayerNorm(dtype=BF16)(x)))
            x = x + nn.Dense(self.width, dtype=BF16)(y)
        x = nn.Dense(384)(nn.LayerNorm()(x)).astype(F32)
        return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def clip() -> TimedProgram:
    """Contrastive loss of 3,300 pairs of features through two towers; AdamW of bfloat16 moments."""
    pairs = 3300
    image, text = Tower(700, 3), Tower(520, 2)
    params = {
        "image": linen_params(image, struct((1, 1152))),
        "text": linen_params(text, struct((1, 768))),
        "scale": struct(()),
    }

    def loss(params: Any, images: Any, texts: Any) -> Any:
        a: Any = image.apply(params["image"], images)
        b: Any = text.apply(params["text"], texts)
        logits = jnp.exp(params["scale"]) * a @ b.T
        labels = jnp.arange(pairs)
        both = [
            optax.softmax_cross_entropy_with_integer_labels(side, labels).mean()
            for side in (logits, logits.T)
        ]
        return sum(both) / 2

    optimizer = optax.adamw(5e-4, b2=0.98, mu_dtype=BF16)
    return train(loss, optimizer, params, Arg((pairs, 1152)), Arg((pairs, 768)))


class ActorCritic(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        for width in (200, 120):
            x = nn.tanh(nn.Dense(width)(x))
        return nn.Dense(7)(x), nn.Dense(1)(x)[..., 0]


def ppo() -> TimedProgram:
    """GAE over 90 steps of 600 environments, then an epoch of five shuffled minibatches."""
    steps, environments, observed, parts = 90, 600, 46, 5
    model = ActorCritic()
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(3e-4))

    def advantages(values: Any, rewards: Any, done: Any) -> Any:
        def body(after: Any, now: Any) -> Any:
            value, following, reward, alive = now
            delta = reward + 0.99 * following * alive - value
            after = delta + 0.99 * 0.95 * alive * after
            return after, after

        now = (values[:-1], values[1:], rewards, 1 - done)
        return lax.scan(body, jnp.zeros(environments), now, reverse=True)[1]

    def loss(params: Any, batch: Any) -> Any:
        x, actions, old, advantage, target = batch
        logits, values = model.apply(params, x)
        logs = jax.nn.log_softmax(logits)
        log = jnp.take_along_axis(logs, actions[:, None], 1)[:, 0]
        ratio = jnp.exp(log - old)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        clipped = jnp.clip(ratio, 0.8, 1.2) * advantage
        entropy = -(jnp.exp(logs) * logs).sum(-1).mean()
        policy = -jnp.minimum(ratio * advantage, clipped).mean()
        return policy + 0.5 * jnp.mean((values - target) ** 2) - 0.01 * entropy

    def update(
        carry: Any, x: Any, actions: Any, old: Any, rewards: Any, done: Any, key: Any
    ) -> Any:
        _, values = model.apply(carry[0], x)
        gains = advantages(values, rewards, done.astype(F32))
        data = (x[:-1], actions, old, gains, gains + values[:-1])
        flat = jax.tree.map(lambda leaf: leaf.reshape(steps * environments, *leaf.shape[2:]), data)
        order = jax.random.permutation(key, steps * environments)
        shuffled = jax.tree.map(lambda leaf: leaf[order].reshape(parts, -1, *leaf.shape[1:]), flat)

        def body(carry: Any, batch: Any) -> Any:
            params, state = carry
            value, gradients = jax.value_and_grad(loss)(params, batch)
            updates, state = optimizer.update(gradients, state)
            return (optax.apply_updates(params, updates), state), value

        return lax.scan(body, carry, shuffled)

    params = linen_params(model, struct((1, observed)))
    carry = (weights(params, 0.1), weights(jax.eval_shape(optimizer.init, params), 0.0))
    batch = (
        Arg((steps + 1, environments, observed)),
        Arg((steps, environments), I32, below=7),
        Arg((steps, environments)),
        Arg((steps, environments)),
        Arg((steps, environments), I32),
    )
    return TimedProgram(update, (carry, *batch, KEY), carried=True)


class Vae(nn.Module):
    @nn.compact
    def __call__(self, images: Any, key: Any) -> Any:
        x = images
        for width in (40, 80, 136):
            x = nn.relu(nn.Conv(width, (4, 4), (2, 2))(x))
        x = x.reshape(x.shape[0], -1)
        mean, log_variance = nn.Dense(72)(x), nn.Dense(72)(x)
        z = mean + jnp.exp(0.5 * log_variance) * jax.random.normal(key, mean.shape)
        x = nn.relu(nn.Dense(8 * 8 * 136)(z)).reshape(-1, 8, 8, 136)
        for width in (80, 40):
            x = nn.relu(nn.ConvTranspose(width, (4, 4), (2, 2))(x))
        return nn.ConvTranspose(3, (4, 4), (2, 2))(x), mean, log_variance


def vae() -> TimedProgram:
    """A convolutional VAE in float32 on 150 images of 64 pixels: transposed convolutions, Adam."""
    model = Vae()
    params = linen_params(model, struct((1, 64, 64, 3)), struct((2,), jnp.uint32))

    def loss(params: Any, images: Any, key: Any) -> Any:
        found: Any = model.apply(params, images, key)
        logits, mean, log_variance = found
        bits = optax.sigmoid_binary_cross_entropy(logits, jax.nn.sigmoid(images))
        divergence = 0.5 * (jnp.exp(log_variance) + mean**2 - 1 - log_variance).sum(-1)
        return (bits.sum((1, 2, 3)) + divergence).mean()

    return train(loss, optax.adam(1e-3), params, Arg((150, 64, 64, 3)), KEY)


def lora() -> TimedProgram:
    """Adapters of rank 12 on q and v of four frozen layers, with remat; loss over 31,000 words."""
    width, hidden, heads, size, vocab, rank = 1664, 4480, 13, 128, 31_000, 12
    frozen = {
        "embedding": Arg((vocab, width), BF16, scale=0.02),
        "layers": [llama_layer(width, hidden, heads, heads, size) for _ in range(4)],
        "norm": Arg((width,), BF16),
    }
    pair = {"a": struct((width, rank)), "b": struct((rank, width))}
    adapters = [{"q": pair, "v": pair} for _ in frozen["layers"]]

    @jax.checkpoint
    def layer(p: Any, adapter: Any, x: Any) -> Any:
        batch, length, _ = x.shape
        positions = jnp.broadcast_to(jnp.arange(length), (batch, length))
        y = rms_norm(x, p["norm_1"])

        def adapted(name: str) -> Any:
            a, b = (adapter[name][part].astype(BF16) for part in "ab")
            return (y @ p[name] + 2.0 * (y @ a) @ b).reshape(batch, length, heads, size)

        k = (y @ p["k"]).reshape(batch, length, heads, size)
        q, k, v = rope(adapted("q"), positions), rope(k, positions), adapted("v")
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + mixed.reshape(batch, length, width) @ p["o"]
        return gated(p, x)

    def loss(adapters: Any, frozen: Any, tokens: Any, mask: Any) -> Any:
        x = frozen["embedding"][tokens[:, :-1]]
        for p, adapter in zip(frozen["layers"], adapters, strict=True):
            x = layer(p, adapter, x)
        logits = (rms_norm(x, frozen["norm"]) @ frozen["embedding"].T).astype(F32)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        kept = mask[:, 1:].astype(F32)
        return (losses * kept).sum() / kept.sum().clip(1)

    batch = (Arg((2, 725), I32, below=vocab), Arg((2, 725), I32))
    return train(loss, optax.adamw(2e-4), adapters, frozen, *batch)


def dlrm() -> TimedProgram:
    """18 embedding tables, dot interactions and two MLPs, with gradients of whole tables; SGD."""
    batch, size = 5200, 40
    rows = [int(90 * 1.62**i) for i in range(18)]
    tables = [struct((count, size)) for count in rows]

    def mlp(*widths: int) -> list[Any]:
        return [
            (struct((inputs, outputs)), struct((outputs,))) for inputs, outputs in pairwise(widths)
        ]

    params = {
        "tables": tables,
        "bottom": mlp(13, 480, 240, size),
        "top": mlp(size + 19 * 18 // 2, 700, 260, 1),
    }

    def run_mlp(layers: Any, x: Any) -> Any:
        for index, (w, b) in enumerate(layers):
            x = x @ w + b
            x = jax.nn.relu(x) if index < len(layers) - 1 else x
        return x

    def loss(params: Any, dense: Any, sparse: Any, clicked: Any) -> Any:
        x = run_mlp(params["bottom"], dense)
        found = [table[ids] for table, ids in zip(params["tables"], sparse, strict=True)]
        stacked = jnp.stack([x, *found], 1)
        products = jnp.einsum("bid,bjd->bij", stacked, stacked)
        first, second = np.tril_indices(19, -1)
        top = jnp.concatenate([x, products[:, first, second]], 1)
        logits = run_mlp(params["top"], top)[:, 0]
        return optax.sigmoid_binary_cross_entropy(logits, clicked.astype(F32)).mean()

    sparse = [Arg((batch,), I32, below=count) for count in rows]
    return train(
        loss, optax.sgd(0.05), params, Arg((batch, 13)), sparse, Arg((batch,), I32), scale=0.05
    )


def quantised() -> TimedProgram:
    """An MLP block in int8 with a scale for each row, and one in float8 with a scale for each."""
    tokens, width, hidden = 1180, 2560, 6784

    def int8(x: Any, w: Any, scale: Any) -> Any:
        largest = jnp.max(jnp.abs(x.astype(F32)), -1, keepdims=True) / 127 + 1e-8
        rounded = jnp.round(x / largest).astype(jnp.int8)
        out = jnp.dot(rounded, w, preferred_element_type=I32)
        return (out.astype(F32) * largest * scale).astype(BF16)

    def float8(x: Any, w: Any, scale: Any) -> Any:
        largest = jnp.max(jnp.abs(x.astype(F32))) / 448 + 1e-8
        small = jnp.clip(x.astype(F32) / largest, -448, 448).astype(jnp.float8_e4m3fn)
        w = lax.bitcast_convert_type(w, jnp.float8_e4m3fn)
        out = jnp.dot(small, w, preferred_element_type=F32)
        return (out * largest * scale).astype(BF16)

    def run(params: Any, x: Any) -> Any:
        for product, layer in ((int8, params["int8"]), (float8, params["float8"])):
            y = rms_norm(x, layer["norm"])
            gate, up = (product(y, *layer[name]) for name in ("gate", "up"))
            x = x + product(jax.nn.silu(gate) * up, *layer["down"])
        return x

    def layer(dtype: Any, scales: Callable[[int], Arg]) -> dict[str, Any]:
        return {
            "norm": Arg((width,), BF16),
            "gate": (Arg((width, hidden), dtype, below=100), scales(hidden)),
            "up": (Arg((width, hidden), dtype, below=100), scales(hidden)),
            "down": (Arg((hidden, width), dtype, below=100), scales(width)),
        }

    params = {
        "int8": layer(jnp.int8, lambda outputs: Arg((outputs,), scale=1e-3)),
        "float8": layer(jnp.uint8, lambda _: Arg((), scale=1e-3)),
    }
    return TimedProgram(run, (params, Arg((tokens, width), BF16)))


def speculative() -> TimedProgram:
    """Verifies five drafted tokens of 14 sequences: a pass with a cache, acceptance, resampling."""
    batch, drafted, length = 14, 5, 1500
    width, hidden, heads, kv_heads, size, vocab = 1280, 3456, 20, 5, 64, 42_000
    layers = [llama_layer(width, hidden, heads, kv_heads, size) for _ in range(4)]

    def verify(params: Any, cache: Any, tokens: Any, draft: Any, start: Any, key: Any) -> Any:
        positions = start[:, None] + jnp.arange(drafted + 1)
        mask = (jnp.arange(length) <= positions[..., None])[:, None, None]
        insert = jax.vmap(lambda old, new, at: lax.dynamic_update_slice(old, new, (at, 0, 0)))
        x = params["embedding"][tokens]
        written = []
        for p, old in zip(params["layers"], cache, strict=True):
            q, k, v = projections(p, x, positions, size)
            keys, values = insert(old[0], k, start), insert(old[1], v, start)
            x = gated(p, x + grouped_attention(q, keys, values, mask) @ p["o"])
            written.append((keys, values))
        target = jax.nn.softmax((rms_norm(x, params["norm"]) @ params["head"]).astype(F32))
        guess = jax.nn.softmax(draft)
        chosen = tokens[:, 1:, None]
        ratio = jnp.take_along_axis(target[:, :-1], chosen, -1) / (
            jnp.take_along_axis(guess, chosen, -1) + 1e-9
        )
        draw, other = jax.random.split(key)
        accepted = jax.random.uniform(draw, (batch, drafted)) < ratio[..., 0]
        count = jnp.cumprod(accepted.astype(I32), -1).sum(-1)
        padded = jnp.pad(guess, ((0, 0), (0, 1), (0, 0)))
        at = count[:, None, None]
        rest = jnp.take_along_axis(target, at, 1) - jnp.take_along_axis(padded, at, 1)
        following = jax.random.categorical(other, jnp.log(jnp.maximum(rest[:, 0], 1e-12)))
        return count, following, written

    cache = [(Arg((batch, length, kv_heads, size), BF16),) * 2 for _ in layers]
    params = {
        "embedding": Arg((vocab, width), BF16),
        "layers": layers,
        "norm": Arg((width,), BF16),
        "head": Arg((width, vocab), BF16, scale=0.02),
    }
    tokens = Arg((batch, drafted + 1), I32, below=vocab)
    start = Arg((batch,), I32, below=length - drafted - 1)
    draft = Arg((batch, drafted, vocab))
    return TimedProgram(verify, (params, cache, tokens, draft, start, KEY))


def beam_search() -> TimedProgram:
    """A step of a beam search: a GRU decoder with attention, top-k, caches and histories moved."""
    batch, beams, width, source, vocab, limit = 90, 6, 600, 110, 24_000, 64

    def step(carry: Any, params: Any, memory: Any, at: Any) -> Any:
        state, scores, history = carry
        last = lax.dynamic_index_in_dim(history, at, 2, keepdims=False)
        x = params["embedding"][last].astype(F32)
        attended = jax.nn.softmax(jnp.einsum("bkw,bsw->bks", state, memory) / math.sqrt(width))
        context = jnp.einsum("bks,bsw->bkw", attended, memory)
        inputs = jnp.concatenate([x, context], -1) @ params["input"]
        reset, update, new = jnp.split(inputs, 3, -1)
        hidden = jnp.split(state @ params["hidden"], 3, -1)
        gate = jax.nn.sigmoid(update + hidden[1])
        new = jnp.tanh(new + jax.nn.sigmoid(reset + hidden[0]) * hidden[2])
        state = gate * state + (1 - gate) * new
        logs = jax.nn.log_softmax(state @ params["output"])
        total = (scores[..., None] + logs).reshape(batch, beams * vocab)
        scores, flat = lax.top_k(total, beams)
        parent, token = flat // vocab, flat % vocab
        state = jnp.take_along_axis(state, parent[..., None], 1)
        history = jnp.take_along_axis(history, parent[..., None], 1)
        history = lax.dynamic_update_index_in_dim(history, token, at + 1, 2)
        return (state, scores, history), token

    carry = (
        Arg((batch, beams, width)),
        Arg((batch, beams)),
        Arg((batch, beams, limit), I32, below=vocab),
    )
    params = {
        "embedding": Arg((vocab, width), BF16),
        "input": Arg((2 * width, 3 * width), scale=0.03),
        "hidden": Arg((width, 3 * width), scale=0.03),
        "output": Arg((width, vocab), scale=0.03),
    }
    memory, at = Arg((batch, source, width)), Arg((), I32, below=limit - 1)
    return TimedProgram(step, (carry, params, memory, at), carried=True)


# Numerics.


def heat_3d() -> TimedProgram:
    """30 explicit steps of the heat equation with a varying conductivity, edges held."""
    shape = (212, 180, 196)

    def run(u: Any, conductivity: Any) -> Any:
        def body(_: Any, u: Any) -> Any:
            padded = jnp.pad(u, 1, mode="edge")
            neighbours = (
                padded[:-2, 1:-1, 1:-1]
                + padded[2:, 1:-1, 1:-1]
                + padded[1:-1, :-2, 1:-1]
                + padded[1:-1, 2:, 1:-1]
                + padded[1:-1, 1:-1, :-2]
                + padded[1:-1, 1:-1, 2:]
            )
            return u + 0.1 * conductivity * (neighbours - 6 * u)

        return lax.fori_loop(0, 30, body, u)

    return TimedProgram(run, (Arg(shape), Arg(shape, scale=0.1)), carried=True)


def fft_poisson() -> TimedProgram:
    """Poisson's equation in a periodic box by real transforms, and the field's gradient."""
    shape = (240, 216, 180)

    def solve(density: Any) -> Any:
        full = [jnp.fft.fftfreq(size) * 2 * jnp.pi for size in shape[:2]]
        last = jnp.fft.rfftfreq(shape[2]) * 2 * jnp.pi
        x, y, z = jnp.meshgrid(*full, last, indexing="ij", sparse=True)
        square = x**2 + y**2 + z**2
        spectrum = jnp.fft.rfftn(density - density.mean())
        potential = jnp.where(square > 0, -spectrum / jnp.where(square > 0, square, 1), 0)
        field = [jnp.fft.irfftn(-1j * k * potential, shape) for k in (x, y, z)]
        return jnp.fft.irfftn(potential, shape), jnp.stack(field)

    return TimedProgram(solve, (Arg(shape),))


def conjugate_gradient() -> TimedProgram:
    """28 iterations with Jacobi's preconditioner for a five-point operator that varies."""
    shape = (1530, 1290)

    def solve(b: Any, east: Any, south: Any) -> Any:
        east, south = jnp.exp(east), jnp.exp(south)
        diagonal = 1e-3 + east + south + jnp.roll(east, 1, 1) + jnp.roll(south, 1, 0)

        def product(u: Any) -> Any:
            out = diagonal * u - east * jnp.roll(u, -1, 1) - south * jnp.roll(u, -1, 0)
            out = out - jnp.roll(east, 1, 1) * jnp.roll(u, 1, 1)
            return out - jnp.roll(south, 1, 0) * jnp.roll(u, 1, 0)

        def body(carry: Any, _: Any) -> Any:
            x, r, p, rz = carry
            ap = product(p)
            alpha = rz / jnp.vdot(p, ap)
            x, r = x + alpha * p, r - alpha * ap
            z = r / diagonal
            new = jnp.vdot(r, z)
            return (x, r, z + (new / rz) * p, new), jnp.sqrt(jnp.vdot(r, r))

        z = b / diagonal
        carry = (jnp.zeros_like(b), b, z, jnp.vdot(b, z))
        (x, *_), residuals = lax.scan(body, carry, length=28)
        return x, residuals

    return TimedProgram(solve, (Arg(shape), Arg(shape, scale=0.3), Arg(shape, scale=0.3)))


def cholesky() -> TimedProgram:
    """Log likelihoods and predictions of 520 Gaussian processes of 74 points."""
    groups, points, queries = 520, 74, 30

    def kernel(a: Any, b: Any, length: Any) -> Any:
        distance = ((a[:, None] - b[None]) ** 2 / length**2).sum(-1)
        return jnp.exp(-0.5 * distance)

    def one(x: Any, y: Any, queries: Any, length: Any) -> Any:
        length = 0.5 + jnp.abs(length)
        matrix = kernel(x, x, length) + 0.1 * jnp.eye(points)
        factor = jnp.linalg.cholesky(matrix)
        solved = jax.scipy.linalg.cho_solve((factor, True), y)
        cross = kernel(queries, x, length)
        half = jax.scipy.linalg.solve_triangular(factor, cross.T, lower=True)
        likelihood = -0.5 * y @ solved - jnp.log(jnp.diagonal(factor)).sum()
        return likelihood, cross @ solved, 1.1 - (half**2).sum(0)

    args = (
        Arg((groups, points, 3)),
        Arg((groups, points)),
        Arg((groups, queries, 3)),
        Arg((groups, 3)),
    )
    return TimedProgram(jax.vmap(one), args)


def qr_svd() -> TimedProgram:
    """Least squares by QR of 380 matrices of 50×14, and the polar factors of 260 of 18×18."""

    def run(systems: Any, targets: Any, squares: Any) -> Any:
        q, r = jnp.linalg.qr(systems)
        solved = jax.scipy.linalg.solve_triangular(r, q.mT @ targets[..., None])
        u, s, vt = jnp.linalg.svd(squares)
        return solved, u @ vt, s[:, 0] / s[:, -1]

    return TimedProgram(run, (Arg((380, 50, 14)), Arg((380, 50)), Arg((260, 18, 18))))


def n_body() -> TimedProgram:
    """Three leapfrog steps of 8,700 bodies by all pairs, softened; with the energy."""
    bodies = 8700

    def forces(x: Any, mass: Any) -> Any:
        away = x[None] - x[:, None]
        inverse = lax.rsqrt((away**2).sum(-1) + 1e-2)
        return ((mass * inverse**3)[..., None] * away).sum(1), -(mass * inverse).sum(1) @ mass

    def run(carry: Any, mass: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:
            x, v = carry
            half = v + 0.005 * forces(x, mass)[0]
            x = x + 0.01 * half
            force, potential = forces(x, mass)
            v = half + 0.005 * force
            return (x, v), potential / 2 + 0.5 * (mass[:, None] * v**2).sum()

        return lax.scan(body, carry, length=3)

    particles = Arg((bodies, 3))
    return TimedProgram(run, ((particles, particles), Arg((bodies,), scale=1e-4)), carried=True)


def asian_option() -> TimedProgram:
    """Price and Greeks of an Asian call under Heston's model: 330,000 paths of 40 steps."""
    paths, steps = 330_000, 40

    def price(spot: Any, variance: Any, key: Any) -> Any:
        dt = 1.0 / steps

        def body(carry: Any, key: Any) -> Any:
            log, v, total = carry
            first, second = jax.random.normal(key, (2, paths))
            positive = jnp.maximum(v, 1e-6)
            root = jnp.sqrt(positive * dt)
            log = log + (0.02 - positive / 2) * dt + root * first
            v = v + 1.5 * (0.04 - positive) * dt + 0.3 * root * (-0.7 * first + 0.714 * second)
            return (log, v, total + jnp.exp(log)), None

        start = jnp.full(paths, jnp.log(spot)), jnp.full(paths, variance), jnp.zeros(paths)
        (_, _, total), _ = lax.scan(body, start, jax.random.split(key, steps))
        payoff = jnp.exp(-0.02) * jnp.maximum(total / steps - 1.0, 0.0)
        return payoff.mean(), payoff.std() / math.sqrt(paths)

    def greeks(spot: Any, variance: Any, key: Any) -> Any:
        return jax.value_and_grad(price, (0, 1), has_aux=True)(
            1 + 0.01 * spot, 0.04 + 0.001 * variance**2, key
        )

    return TimedProgram(greeks, (Arg(()), Arg(()), KEY))


def ising() -> TimedProgram:
    """Eight sweeps of a checkerboard of int8 spins by Metropolis, with the magnetisation."""
    rows, columns = 1740, 1380

    def run(spins: Any, key: Any) -> Any:
        spins = jnp.where(spins > 0, 1, -1).astype(jnp.int8)
        parity = (jnp.arange(rows)[:, None] + jnp.arange(columns)) % 2

        def body(spins: Any, key: Any) -> Any:
            for colour, part in enumerate(jax.random.split(key)):
                near = sum(jnp.roll(spins, s, axis) for s in (1, -1) for axis in (0, 1))
                cost = 2.0 * spins * near
                draw = jax.random.uniform(part, spins.shape)
                flip = (draw < jnp.exp(-0.44 * cost)) & (parity == colour)
                spins = jnp.where(flip, -spins, spins)
            return spins, spins.mean(dtype=F32)

        return lax.scan(body, spins, jax.random.split(key, 8))

    return TimedProgram(run, (Arg((rows, columns), jnp.int8), KEY), carried=True)


def k_means() -> TimedProgram:
    """Four of Lloyd's iterations: 130,000 points of 22 coordinates, 75 clusters."""
    points, size, clusters = 130_000, 22, 75

    def run(centres: Any, x: Any) -> Any:
        def body(_: Any, centres: Any) -> Any:
            distance = (x**2).sum(1)[:, None] - 2 * x @ centres.T + (centres**2).sum(1)
            nearest = distance.argmin(1)
            sums = jax.ops.segment_sum(x, nearest, clusters)
            counts = jax.ops.segment_sum(jnp.ones(points), nearest, clusters)
            return jnp.where(counts[:, None] > 0, sums / counts[:, None].clip(1), centres)

        return lax.fori_loop(0, 4, body, centres)

    return TimedProgram(run, (Arg((clusters, size)), Arg((points, size))), carried=True)


def order_statistics() -> TimedProgram:
    """Ranks of 1.3 million scores, the top 25 of rows, quantiles and a weighted median."""

    def run(scores: Any, rows: Any, samples: Any, mass: Any) -> Any:
        order = jnp.argsort(scores)
        ranks = jnp.zeros(order.shape, I32).at[order].set(jnp.arange(order.size, dtype=I32))
        top = lax.top_k(rows, 25)
        quantiles = jnp.quantile(samples, jnp.array([0.05, 0.5, 0.95]), axis=0)
        keys, sorted_mass = lax.sort((samples, mass**2), dimension=0, num_keys=1)
        below = jnp.cumsum(sorted_mass, 0) < 0.5 * sorted_mass.sum(0)
        median = jnp.take_along_axis(keys, below.sum(0)[None], 0)[0]
        return ranks, top, quantiles, median

    samples = Arg((2100, 330))
    return TimedProgram(run, (Arg((1_300_000,)), Arg((270, 21_000)), samples, samples))


def lorenz_96() -> TimedProgram:
    """45 steps of Runge and Kutta for an ensemble of 26,000 in 36 dimensions by vmap."""

    def slope(x: Any, forcing: Any) -> Any:
        return (jnp.roll(x, -1) - jnp.roll(x, 2)) * jnp.roll(x, 1) - x + forcing

    def step(x: Any, forcing: Any) -> Any:
        h = 0.01
        a = slope(x, forcing)
        b = slope(x + h / 2 * a, forcing)
        c = slope(x + h / 2 * b, forcing)
        d = slope(x + h * c, forcing)
        return x + h / 6 * (a + 2 * b + 2 * c + d)

    def run(x: Any, forcing: Any) -> Any:
        def body(x: Any, _: Any) -> Any:
            x = jax.vmap(step)(x, forcing)
            return x, (x.mean(0), x.var(0))

        return lax.scan(body, x, length=45)

    return TimedProgram(run, (Arg((26_000, 36)), Arg((26_000,))), carried=True)


def wave() -> TimedProgram:
    """70 steps of the acoustic wave equation, fourth order in space: a source and 60 receivers."""
    shape = (1120, 940)

    def second(u: Any, axis: int) -> Any:
        near = jnp.roll(u, 1, axis) + jnp.roll(u, -1, axis)
        far = jnp.roll(u, 2, axis) + jnp.roll(u, -2, axis)
        return (-2.5 * u) + (4 / 3) * near - far / 12

    def run(carry: Any, speed: Any, damping: Any, source: Any) -> Any:
        factor = (1.5 + 0.1 * speed) ** 2 * 0.04
        sponge = jnp.exp(-0.01 * damping**2)
        receivers = 20 + 15 * jnp.arange(60)

        def body(carry: Any, pulse: Any) -> Any:
            before, now = carry
            after = 2 * now - before + factor * (second(now, 0) + second(now, 1))
            after = (after * sponge).at[560, 470].add(pulse)
            return (now * sponge, after), after[8, receivers]

        return lax.scan(body, carry, source)

    field = Arg(shape, scale=0.01)
    return TimedProgram(run, ((field, field), Arg(shape), Arg(shape), Arg((70,))), carried=True)
