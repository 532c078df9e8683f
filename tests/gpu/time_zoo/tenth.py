"""A tenth zoo: common steps of training, serving, statistics and simulation, with Flax and without.

It was written without a look at the predictor or its calibration, to be timed once: no
calibration and no fit has used its programs.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from fourth import norm, program, weight
from jax import lax
from ninth import carried, rms, token_loss
from sixth import convolved, full, kernel

from xlapipe.running.calibration.timed_program import Arg, TimedProgram

F32, BF16, F16, I32 = jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32
U8, U32 = jnp.uint8, jnp.uint32
Zoo = Iterator[tuple[str, TimedProgram]]
_KEY = Arg((2,), U32, below=1 << 30)


def tenth_programs() -> dict[str, TimedProgram]:
    """Every program, by FAMILY/NAME."""
    families = (
        *(language, vision, denoisers, serving, experts, recurrences, graphs, recommenders),
        *(players, optimisers, attention, vocabularies, features, algebra, fluids, mixtures),
    )
    return {
        f"{family.__name__}/{name}": program for family in families for name, program in family()
    }


def args_of(structs: Any) -> Any:
    """Random arrays for a tree of shapes: matrices are scaled by their inputs."""

    def one(struct: Any) -> Arg:
        if not jnp.issubdtype(struct.dtype, jnp.floating):
            return Arg(struct.shape, struct.dtype, below=9)
        if len(struct.shape) < 2:
            return Arg(struct.shape, struct.dtype, scale=0.1)
        return kernel(*struct.shape, dtype=struct.dtype)

    return jax.tree.map(one, structs)


def initial(model: Any, *args: Arg) -> Any:
    """The variables of a model of Flax for some arguments."""
    keys = {"params": _KEY.struct(), "dropout": _KEY.struct()}
    return args_of(jax.eval_shape(model.init, keys, *[arg.struct() for arg in args]))


def states_of(rule: Any, params: Any) -> Any:
    """The states of a rule of Optax, without history."""
    structs = jax.eval_shape(rule.init, jax.tree.map(Arg.struct, params))
    return jax.tree.map(
        lambda s: Arg(s.shape, s.dtype, scale=0.0, below=9),
        structs,
    )


def applied(rule: Any, params: Any, state: Any, gradient: Any) -> tuple[Any, Any]:
    changes, state = rule.update(gradient, state, params)
    return optax.apply_updates(params, changes), state


class Layer(nn.Module):
    """A transformer layer, pre-norm or post-norm."""

    heads: int
    wide: int
    first: bool = True
    drop: float = 0.0

    @nn.compact
    def __call__(self, x: Any, mask: Any = None) -> Any:
        def attended(x: Any) -> Any:
            y = nn.MultiHeadDotProductAttention(
                self.heads, dtype=BF16, dropout_rate=self.drop, deterministic=not self.drop
            )(x, x, mask=mask)
            return nn.Dropout(self.drop, deterministic=not self.drop)(y)

        def mixed(x: Any) -> Any:
            y = nn.Dense(self.wide, dtype=BF16)(x)
            y = nn.gelu(y, approximate=self.first)
            return nn.Dense(x.shape[-1], dtype=BF16)(y)

        for part in (attended, mixed):
            scaled = nn.LayerNorm(dtype=BF16)
            x = x + part(scaled(x)) if self.first else scaled(x + part(x))
        return x


class MaskedWords(nn.Module):
    """A BERT-like encoder with a masked-language-model head."""

    words: int = 28996
    size: int = 576

    @nn.compact
    def __call__(self, tokens: Any, kinds: Any, lengths: Any, picked: Any) -> Any:
        table = nn.Embed(self.words, self.size, dtype=BF16)
        places = self.param("places", nn.initializers.normal(0.02), (512, self.size))
        x = table(tokens) + nn.Embed(2, self.size, dtype=BF16)(kinds)
        x = x + places[: tokens.shape[1]].astype(BF16)
        x = nn.Dropout(0.1, deterministic=False)(nn.LayerNorm(dtype=BF16)(x))
        valid = jnp.arange(tokens.shape[1]) < lengths[:, None]
        mask = nn.make_attention_mask(valid, valid)
        for _ in range(2):
            x = Layer(9, 4 * self.size, first=False, drop=0.1)(x, mask)
        x = jnp.take_along_axis(x, picked[..., None], 1)
        x = nn.LayerNorm(dtype=BF16)(nn.gelu(nn.Dense(self.size, dtype=BF16)(x)))
        return table.attend(x) + self.param("bias", nn.initializers.zeros, (self.words,))


def language() -> Zoo:
    """Training: BERT-like MLM in Flax, Llama-like scan with remat, BART-like with Adafactor."""
    model = MaskedWords()
    rule = optax.adamw(1e-4, weight_decay=0.01)

    def masked(
        state: Any, tokens: Any, kinds: Any, lengths: Any, picked: Any, goals: Any, key: Any
    ) -> Any:
        def loss(variables: Any) -> Any:
            given = (tokens, kinds, lengths, picked)
            logits = model.apply(variables, *given, rngs={"dropout": key})
            valid = picked < lengths[:, None]
            lost = optax.softmax_cross_entropy_with_integer_labels(logits.astype(F32), goals)
            right = (logits.argmax(-1) == goals) & valid
            return (lost * valid).sum() / (valid.sum() + 1), right.sum()

        (value, right), gradient = jax.value_and_grad(loss, has_aux=True)(state[0])
        return applied(rule, *state, gradient), value, right

    b, s, hidden = 10, 328, 49
    ids, kinds = Arg((b, s), I32, below=28996), Arg((b, s), I32, below=2)
    given = (ids, kinds, Arg((b,), I32, below=s), Arg((b, hidden), I32, below=s))
    params = initial(model, *given)
    rest = (*given, Arg((b, hidden), I32, below=28996), _KEY)
    yield "masked", carried(masked, (params, states_of(rule, params)), *rest)

    schedule = optax.warmup_cosine_decay_schedule(0.0, 3e-4, 100, 10000)
    clipped = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, 0.9, 0.95))

    def remade(state: Any, tokens: Any) -> Any:
        """Five query heads share a key head; only outputs of weight products are saved."""
        heads, shared, size = 10, 2, 128

        def layer(x: Any, p: Any) -> Any:
            b, s, _ = x.shape
            speed = 1e4 ** (-jnp.arange(0, 1, 2 / size))
            angle = jnp.arange(s)[:, None, None] * speed
            cos, sin = jnp.cos(angle).astype(BF16), jnp.sin(angle).astype(BF16)

            def turned(x: Any) -> Any:
                one, two = jnp.split(x, 2, -1)
                return jnp.concatenate([one * cos - two * sin, two * cos + one * sin], -1)

            y = rms(x, p["first"])
            q = turned((y @ p["q"]).reshape(b, s, heads, size))
            k = turned((y @ p["k"]).reshape(b, s, shared, size))
            v = (y @ p["v"]).reshape(b, s, shared, size)
            y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
            x = x + y.reshape(b, s, -1) @ p["out"]
            y = rms(x, p["second"])
            return x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"], None

        saved = jax.checkpoint_policies.dots_with_no_batch_dims_saveable

        def loss(params: Any) -> Any:
            short = jax.tree.map(lambda p: p.astype(BF16), params)
            x = short["table"][tokens[:, :-1]]
            x, _ = lax.scan(jax.checkpoint(layer, policy=saved), x, short["layers"])
            return token_loss(rms(x, short["last"]) @ short["head"], tokens[:, 1:]).mean()

        value, gradient = jax.value_and_grad(loss)(state[0])
        return applied(clipped, *state, gradient), value

    d, n, wide, words = 1280, 3, 3456, 32000
    layers = {"q": full(n, d, d), "k": full(n, d, 256), "v": full(n, d, 256), "out": full(n, d, d)}
    layers |= {"gate": full(n, d, wide), "up": full(n, d, wide), "down": full(n, wide, d)}
    layers |= {"first": Arg((n, d)), "second": Arg((n, d))}
    params = {"layers": layers, "table": Arg((words, d), scale=0.02), "head": full(d, words)}
    params |= {"last": Arg((d,))}
    state = (params, states_of(clipped, params))
    yield "remade", carried(remade, state, Arg((2, 1153), I32, below=words))

    factored = optax.adafactor(1e-3)

    def summaries(state: Any, texts: Any, lengths: Any, goals: Any) -> Any:
        """An encoder and a decoder in float32, with post-norm layers."""

        def heads(x: Any, count: int) -> Any:
            return jnp.split(x.reshape(*x.shape[:2], -1, 64), count, 2)

        def attended(q: Any, k: Any, v: Any, seen: Any) -> Any:
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 8
            shares = jax.nn.softmax(jnp.where(seen, scores, -1e9), -1)
            return jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(*q.shape[:2], -1)

        def loss(p: Any) -> Any:
            valid = (jnp.arange(texts.shape[1]) < lengths[:, None])[:, None, None]

            def encode(x: Any, p: Any) -> Any:
                x = norm(x + attended(*heads(x @ p["qkv"], 3), valid) @ p["out"], p["scale"][0])
                return norm(x + jax.nn.gelu(x @ p["up"]) @ p["down"], p["scale"][1]), None

            def decode(x: Any, p: Any) -> Any:
                seen = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
                x = norm(x + attended(*heads(x @ p["qkv"], 3), seen) @ p["out"], p["scale"][0])
                (q,), (k, v) = heads(x @ p["q"], 1), heads(read @ p["kv"], 2)
                x = norm(x + attended(q, k, v, valid) @ p["cross"], p["scale"][1])
                return norm(x + jax.nn.gelu(x @ p["up"]) @ p["down"], p["scale"][2]), None

            read = p["table"][texts] + p["places"][: texts.shape[1]]
            read, _ = lax.scan(encode, read, p["encoder"])
            x = p["table"][goals[:, :-1]] + p["places"][: goals.shape[1] - 1]
            x, _ = lax.scan(decode, x, p["decoder"])
            logs = jax.nn.log_softmax(x @ p["table"].T)
            wanted = optax.smooth_labels(jax.nn.one_hot(goals[:, 1:], logs.shape[-1]), 0.1)
            real = goals[:, 1:] > 3
            return -((wanted * logs).sum(-1) * real).sum() / real.sum()

        value, gradient = jax.value_and_grad(loss)(state[0])
        return applied(factored, *state, gradient), value

    d, n, words = 640, 2, 33001
    both = {"qkv": full(n, d, 3 * d), "out": full(n, d, d), "up": full(n, d, 2560)}
    both |= {"down": full(n, 2560, d), "scale": Arg((n, 3, d))}
    decoder = both | {"q": full(n, d, d), "kv": full(n, d, 2 * d), "cross": full(n, d, d)}
    params = {"encoder": both, "decoder": decoder, "table": Arg((words, d), scale=0.03)}
    params |= {"places": Arg((256, d), scale=0.03)}
    given = (Arg((14, 203), I32, below=words), Arg((14,), I32, below=203))
    goals = Arg((14, 78), I32, below=words)
    yield "summaries", carried(summaries, (params, states_of(factored, params)), *given, goals)


class Towers(nn.Module):
    """CLIP: unit vectors of images and of texts."""

    @nn.compact
    def __call__(self, images: Any, texts: Any) -> Any:
        x = nn.Conv(384, (14, 14), (14, 14), padding="VALID", dtype=BF16)(images)
        x = x.reshape(x.shape[0], -1, 384)
        head = self.param("head", nn.initializers.normal(0.02), (1, 1, 384)).astype(BF16)
        x = jnp.concatenate([jnp.broadcast_to(head, (x.shape[0], 1, 384)), x], 1)
        places = self.param("places", nn.initializers.normal(0.02), x.shape[1:])
        x = nn.LayerNorm(dtype=BF16)(x + places.astype(BF16))
        y = nn.Embed(20011, 320, dtype=BF16)(texts)
        y = y + self.param("times", nn.initializers.normal(0.02), y.shape[1:]).astype(BF16)
        for _ in range(2):
            x = Layer(6, 1536)(x)
            y = Layer(5, 1280)(y, nn.make_causal_mask(texts))
        y = y[jnp.arange(y.shape[0]), texts.argmax(-1)]
        both = [nn.LayerNorm(dtype=BF16)(z) for z in (x[:, 0], y)]
        both = [nn.Dense(256, use_bias=False)(z.astype(F32)) for z in both]
        scale = self.param("scale", nn.initializers.constant(2.6), ())
        return *(z / jnp.linalg.norm(z, axis=-1, keepdims=True) for z in both), scale


class Residual(nn.Module):
    """A ResNet of three stages of one bottleneck block each, with batch norm."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        def normed(x: Any) -> Any:
            return nn.BatchNorm(use_running_average=False, momentum=0.9, dtype=BF16)(x)

        def conv(x: Any, size: int, window: int, stride: int = 1) -> Any:
            return nn.Conv(size, (window,) * 2, stride, use_bias=False, dtype=BF16)(x)

        x = nn.relu(normed(conv(x, 48, 7, 2)))
        x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
        for number in range(3):
            size, stride = 48 << number, 1 + (number > 0)
            y = nn.relu(normed(conv(x, size, 1)))
            y = nn.relu(normed(conv(y, size, 3, stride)))
            y = normed(conv(y, 4 * size, 1))
            x = nn.relu(y + normed(conv(x, 4 * size, 1, stride)))
        return nn.Dense(365)(x.mean((1, 2)).astype(F32))


def vision() -> Zoo:
    """Training in Flax: CLIP with softmax losses, and a small ResNet with batch norm."""
    towers = Towers()
    rule = optax.adamw(5e-4, b2=0.98, weight_decay=0.2)

    def paired(state: Any, images: Any, texts: Any) -> Any:
        def loss(variables: Any) -> Any:
            x, y, scale = towers.apply(variables, images, texts)
            scores = jnp.minimum(jnp.exp(scale), 100.0) * x @ y.T
            labels = jnp.arange(scores.shape[0])
            rows = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
            columns = optax.softmax_cross_entropy_with_integer_labels(scores.T, labels)
            return (rows + columns).mean() / 2

        value, gradient = jax.value_and_grad(loss)(state[0])
        return applied(rule, *state, gradient), value

    given = (Arg((72, 168, 168, 3)), Arg((72, 49), I32, below=20011))
    params = initial(towers, *given)
    yield "paired", carried(paired, (params, states_of(rule, params)), *given)

    model, descent = Residual(), optax.sgd(0.1, momentum=0.9, nesterov=True)

    def residual(state: Any, images: Any, labels: Any) -> Any:
        params, means, moments = state

        def loss(params: Any) -> Any:
            variables = {"params": params, "batch_stats": means}
            logits, new = model.apply(variables, images, mutable=["batch_stats"])
            lost = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
            size = sum((p * p).sum() for p in jax.tree.leaves(params) if p.ndim > 1)
            return lost + 5e-5 * size, (new["batch_stats"], logits)

        (value, (means, logits)), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        params, moments = applied(descent, params, moments, gradient)
        return (params, means, moments), value, (logits.argmax(-1) == labels).mean()

    images = Arg((44, 152, 152, 3), BF16)
    variables = initial(model, images)
    params, means = variables["params"], variables["batch_stats"]
    state = (params, means, states_of(descent, params))
    yield "residual", carried(residual, state, images, Arg((44,), I32, below=365))


def denoisers() -> Zoo:
    """Training of a small U-Net with the EDM loss, Adam and averaged weights."""
    rule = optax.adam(2e-4)

    def preconditioned(state: Any, images: Any, key: Any) -> Any:
        params, averages, moments = state
        keys = jax.random.split(key)
        strength = jnp.exp(1.2 * jax.random.normal(keys[0], (images.shape[0], 1, 1, 1)) - 1.2)
        noise = strength * jax.random.normal(keys[1], images.shape)

        def grouped(x: Any, scale: Any) -> Any:
            b, h, w, c = x.shape
            wide = x.astype(F32).reshape(b, h * w, 16, -1)
            wide = wide - wide.mean((1, 3), keepdims=True)
            wide = wide * lax.rsqrt((wide * wide).mean((1, 3), keepdims=True) + 1e-5)
            return (wide.reshape(b, h, w, c) * scale[0] + scale[1]).astype(BF16)

        def block(x: Any, told: Any, p: Any) -> Any:
            y = convolved(jax.nn.silu(grouped(x, p["scales"])), p["first"])
            y = y + (told @ p["told"])[:, None, None]
            y = convolved(jax.nn.silu(grouped(y, p["more"])), p["second"])
            return (y + x @ p["skip"]) * BF16(0.5**0.5)

        def loss(params: Any) -> Any:
            p = jax.tree.map(lambda p: p.astype(BF16), params)
            total = strength**2 + 0.25
            x = ((images + noise) * lax.rsqrt(total)).astype(BF16)
            angle = jnp.log(strength[:, 0, 0]) / 4 * jnp.exp(jnp.linspace(0.0, 6.0, 48))
            told = jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], -1).astype(BF16)
            told = jax.nn.silu(jax.nn.silu(told @ p["told"][0]) @ p["told"][1])
            high = block(convolved(x, p["start"]), told, p["down"])
            b, h, w, c = high.shape
            low = high.reshape(b, h // 2, 2, w // 2, 2, c).mean((2, 4))
            low = block(low, told, p["low"])
            flat = grouped(low, p["scales"]).reshape(b, h * w // 4, -1)
            q, k, v = jnp.split((flat @ p["qkv"]).reshape(*flat.shape[:2], -1, 64), 3, 2)
            low = low + (
                jax.nn.dot_product_attention(q, k, v).reshape(flat.shape) @ p["out"]
            ).reshape(low.shape)
            low = jnp.repeat(jnp.repeat(low, 2, 1), 2, 2)
            x = block(jnp.concatenate([low, high], -1), told, p["up"])
            x = convolved(jax.nn.silu(x), p["end"]).astype(F32)
            found = 0.25 / total * (images + noise) + 0.5 * strength * lax.rsqrt(total) * x
            return (total / (0.5 * strength) ** 2 * (found - images) ** 2).mean()

        value, gradient = jax.value_and_grad(loss)(params)
        params, moments = applied(rule, params, moments, gradient)
        averages = jax.tree.map(lambda a, p: 0.9995 * a + 0.0005 * p, averages, params)
        return (params, averages, moments), value

    def block_args(a: int, b: int, told: int) -> Any:
        ends = {"first": kernel(3, 3, a, b, dtype=F32), "second": kernel(3, 3, b, b, dtype=F32)}
        ends |= {"scales": Arg((2, a)), "more": Arg((2, b)), "told": full(told, b)}
        return ends | {"skip": full(a, b)}

    c, told = 96, 288
    params = {"start": kernel(3, 3, 3, c, dtype=F32), "end": kernel(3, 3, c, 3, dtype=F32)}
    params |= {"down": block_args(c, c, told), "low": block_args(c, 2 * c, told)}
    params |= {"up": block_args(3 * c, c, told), "told": [full(96, told), full(told, told)]}
    params |= {"scales": Arg((2, 2 * c)), "qkv": full(2 * c, 6 * c), "out": full(2 * c, 2 * c)}
    state = (params, params, states_of(rule, params))
    yield "preconditioned", carried(preconditioned, state, Arg((22, 44, 44, 3)), _KEY)


def serving() -> Zoo:
    """Chunked prefill with grouped-query attention, and batched decoding with sampling."""

    def prompt(caches: Any, weights: Any, table: Any, head: Any, tokens: Any, start: Any) -> Any:
        """Layers are scanned, with their caches as scanned inputs and outputs."""
        size, shared = 128, 4
        places = start + jnp.arange(tokens.shape[1])
        angle = places[:, None, None] * 1e6 ** (-jnp.arange(0, 1, 2 / size))
        cos, sin = jnp.cos(angle), jnp.sin(angle)

        def turned(x: Any) -> Any:
            one, two = jnp.split(x.astype(F32), 2, -1)
            return jnp.concatenate([one * cos - two * sin, two * cos + one * sin], -1).astype(BF16)

        def layer(x: Any, given: Any) -> Any:
            p, keys, values = given
            b, s, _ = x.shape
            y = rms(x, p["first"])
            parts = (y @ p["qkv"]).reshape(b, s, -1, size)
            q, k, v = jnp.split(parts, [16, 16 + shared], 2)
            keys = lax.dynamic_update_slice(keys, turned(k), (0, start, 0, 0))
            values = lax.dynamic_update_slice(values, v, (0, start, 0, 0))
            q = turned(q).reshape(b, s, shared, -1, size)
            scores = jnp.einsum("bsgrd,btgd->bgrst", q, keys).astype(F32) * size**-0.5
            seen = jnp.arange(keys.shape[1]) <= places[:, None]
            shares = jax.nn.softmax(jnp.where(seen, scores, -1e30), -1).astype(BF16)
            y = jnp.einsum("bgrst,btgd->bsgrd", shares, values).reshape(b, s, -1)
            x = x + y @ p["out"]
            y = rms(x, p["second"])
            return x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"], (keys, values)

        x, caches = lax.scan(layer, table[tokens], (weights, *caches))
        logits = (rms(x[:, -1]) @ head).astype(F32)
        return caches, logits.argmax(-1)

    d, n, wide = 2048, 4, 5632
    weights = {"qkv": weight(n, d, 24 * 128), "out": weight(n, d, d), "gate": weight(n, d, wide)}
    weights |= {"up": weight(n, d, wide), "down": weight(n, wide, d)}
    weights |= {"first": Arg((n, d)), "second": Arg((n, d))}
    caches = (Arg((n, 1, 3072, 4, 128), BF16),) * 2
    ends = (Arg((50304, d), BF16), weight(d, 50304))
    given = (Arg((1, 744), I32, below=50304), Arg((), I32, below=2300))
    yield "prompt", carried(prompt, caches, weights, *ends, *given)

    def replies(state: Any, weights: Any, table: Any, scales: Any) -> Any:
        """Attention beside the feed-forward part; a quarter of each head is rotated."""
        caches, tokens, lengths, key = state
        b, heads, size, turning = tokens.shape[0], 24, 64, 16
        angle = lengths[:, None, None] * 1e4 ** (-jnp.arange(0, 1, 2 / turning))
        cos, sin = jnp.cos(angle), jnp.sin(angle)

        def turned(x: Any) -> Any:
            one, two, rest = jnp.split(x, [turning // 2, turning], -1)
            one, two = one.astype(F32), two.astype(F32)
            both = jnp.concatenate([one * cos - two * sin, two * cos + one * sin], -1)
            return jnp.concatenate([both.astype(BF16), rest], -1)

        x, new = table[tokens], []
        for p, scale, (old_keys, old_values) in zip(weights, scales, caches, strict=True):
            y = norm(x, scale[0])
            q, k, v = jnp.split((y @ p["qkv"] + p["bias"]).reshape(b, 3 * heads, size), 3, 1)
            keys = old_keys.at[jnp.arange(b), lengths].set(turned(k))
            values = old_values.at[jnp.arange(b), lengths].set(v)
            new.append((keys, values))
            scores = jnp.einsum("bhd,bthd->bht", turned(q), keys).astype(F32) / 8
            seen = jnp.arange(keys.shape[1]) <= lengths[:, None, None]
            shares = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1).astype(BF16)
            found = jnp.einsum("bht,bthd->bhd", shares, values).reshape(b, -1)
            x = x + found @ p["out"] + jax.nn.gelu(norm(x, scale[1]) @ p["up"]) @ p["down"]
        logits = (norm(x, 1.0) @ table.T).astype(F32)
        key, own = jax.random.split(key)
        tokens = jax.random.categorical(own, logits / 0.7).astype(I32)
        lengths = (lengths + 1) % caches[0][0].shape[1]
        return (new, tokens, lengths, key), jax.nn.log_softmax(logits).max(-1)

    d, n, b, times = 1536, 5, 28, 1104
    layer = {"qkv": weight(d, 3 * d), "bias": weight(3 * d), "out": weight(d, d)}
    layer |= {"up": weight(d, 4 * d), "down": weight(4 * d, d)}
    caches = [(Arg((b, times, 24, 64), BF16),) * 2] * n
    state = (caches, Arg((b,), I32, below=50432), Arg((b,), I32, below=times), _KEY)
    rest = ([layer] * n, weight(50432, d), [(Arg((d,)),) * 2] * n)
    yield "replies", carried(replies, state, *rest)


def experts() -> Zoo:
    """Training of a mixture of 12 experts with expert-choice routing."""

    def choosing(params: Any, x: Any, goal: Any) -> Any:
        count, each = 12, 640

        def loss(params: Any) -> Any:
            short = jax.tree.map(lambda p: p.astype(BF16), params)
            y = norm(x, params["scale"])
            shares = jax.nn.softmax(y.astype(F32) @ params["router"], -1)
            best, index = lax.top_k(shares.T, each)
            rows = y[index]
            rows = jax.nn.gelu(jnp.einsum("ekd,edf->ekf", rows, short["up"]))
            rows = jnp.einsum("ekf,efd->ekd", rows, short["down"])
            rows = (rows * best[..., None].astype(BF16)).reshape(count * each, -1)
            out = x + jnp.zeros_like(x).at[index.reshape(-1)].add(rows)
            return ((out - goal).astype(F32) ** 2).mean()

        value, gradient = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 1e-2 * g, params, gradient), value

    d, wide = 544, 1888
    params = {"router": full(d, 12), "up": full(12, d, wide), "down": full(12, wide, d)}
    params |= {"scale": Arg((d,))}
    yield "choosing", carried(choosing, params, *[Arg((4032, d), BF16)] * 2)


def recurrences() -> Zoo:
    """Training: a two-layer LSTM language model, and S4D layers as FFT convolutions."""

    def truncated(state: Any, words: Any, goals: Any, key: Any) -> Any:
        """Truncated backpropagation: the LSTM state is carried to the next call."""
        params, memory = state

        def loss(p: Any) -> Any:
            x = p["table"][words.T]
            keep = jax.random.bernoulli(key, 0.65, x.shape)
            x = jnp.where(keep, x / 0.65, 0.0)

            def cell(memory: Any, x: Any) -> Any:
                new = []
                for (h, old), w, u, b in zip(memory, p["in"], p["back"], p["bias"], strict=True):
                    i, f, g, o = jnp.split(x @ w + h @ u + b, 4, -1)
                    c = jax.nn.sigmoid(f + 1) * old + jax.nn.sigmoid(i) * jnp.tanh(g)
                    x = jax.nn.sigmoid(o) * jnp.tanh(c)
                    new.append((x, c))
                return new, x

            last, x = lax.scan(cell, memory, x)
            return token_loss(x @ p["head"], goals.T).sum(0).mean(), last

        (value, memory), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        size = optax.global_norm(gradient)
        rate = 1.0 * jnp.minimum(1.0, 5.0 / size)
        params = jax.tree.map(lambda p, g: p - rate * g, params, gradient)
        return (params, memory), value

    d, b, words = 650, 20, 10000
    params = {"table": Arg((words, d), scale=0.05), "head": full(d, words)}
    params |= {"in": [full(d, 4 * d)] * 2, "back": [full(d, 4 * d)] * 2}
    params |= {"bias": [Arg((4 * d,), scale=0.05)] * 2}
    memory = [(Arg((b, d), scale=0.1),) * 2] * 2
    ids = (Arg((b, 35), I32, below=words), Arg((b, 35), I32, below=words))
    yield "truncated", carried(truncated, (params, memory), *ids, _KEY)

    def diagonal(params: Any, x: Any, labels: Any) -> Any:
        """Diagonal state spaces with 32 complex modes."""

        def layer(x: Any, p: Any) -> Any:
            times = x.shape[1]
            step = jnp.exp(p["step"] - 5)[:, None]
            speed = lax.complex(-jnp.exp(p["decay"]), 3 * p["turn"])
            weights = lax.complex(p["real"], p["imaginary"]) * (jnp.exp(step * speed) - 1) / speed
            powers = jnp.exp((step * speed)[..., None] * jnp.arange(times))
            taps = 2 * jnp.einsum("hn,hnt->ht", weights, powers).real
            y = norm(x, 1.0)
            spectrum = jnp.fft.rfft(y, 2 * times, axis=1) * jnp.fft.rfft(taps, 2 * times).T
            found = jnp.fft.irfft(spectrum, 2 * times, axis=1)[:, :times] + p["direct"] * y
            value, gate = jnp.split(jax.nn.gelu(found) @ p["mixed"], 2, -1)
            return x + value * jax.nn.sigmoid(gate)

        def loss(params: Any) -> Any:
            y = x[..., None] * params["enter"]
            for p in params["layers"]:
                y = layer(y, p)
            return token_loss(y.mean(1) @ params["leave"], labels).mean()

        value, gradient = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, gradient), value

    h, modes = 144, 32
    layer = {name: Arg((h, modes)) for name in ("decay", "turn", "real", "imaginary")}
    layer |= {"step": Arg((h,)), "direct": Arg((h,)), "mixed": full(h, 2 * h)}
    params = {"layers": [layer] * 2, "enter": Arg((h,)), "leave": full(h, 10)}
    yield "diagonal", carried(diagonal, params, Arg((7, 1500)), Arg((7,), I32, below=10))


def graphs() -> Zoo:
    """Training of a PNA-like graph network that classifies nodes."""
    rule = optax.adamw(1e-3)

    def aggregated(state: Any, x: Any, sources: Any, targets: Any, labels: Any) -> Any:
        count = x.shape[0]

        def loss(params: Any) -> Any:
            degree = jax.ops.segment_sum(jnp.ones(sources.shape), targets, count)
            less = 1 / jnp.maximum(degree, 1)[:, None]
            more = (jnp.log1p(degree) / 2.3)[:, None]
            y = x
            for p in params["layers"]:
                sent = jax.nn.relu(y @ p["send"])[sources]
                mean = jax.ops.segment_sum(sent, targets, count) * less
                square = jax.ops.segment_sum(sent * sent, targets, count) * less
                most = jax.ops.segment_max(sent, targets, count)
                most = jnp.where(degree[:, None] > 0, most, 0.0)
                spread = jnp.sqrt(jax.nn.relu(square - mean * mean) + 1e-5)
                all_of = jnp.concatenate([mean, most, spread], -1)
                new = y @ p["own"] + jnp.concatenate([all_of, more * all_of], -1) @ p["found"]
                new = (new - new.mean(0)) * lax.rsqrt(new.var(0) + 1e-5)
                y = jax.nn.relu(new * p["scale"] + p["shift"])
            lost = token_loss(y @ params["head"], labels)
            known = jnp.arange(count) % 3 == 0
            return (lost * known).sum() / known.sum()

        value, gradient = jax.value_and_grad(loss)(state[0])
        return applied(rule, *state, gradient), value

    n, edges, d, h = 17011, 150003, 100, 72
    layers = [
        {"send": full(a, h), "own": full(a, h), "found": full(6 * h, h)}
        | {"scale": Arg((h,)), "shift": Arg((h,))}
        for a in (d, h)
    ]
    params = {"layers": layers, "head": full(h, 47)}
    given = (Arg((n, d)), *[Arg((edges,), I32, below=n)] * 2, Arg((n,), I32, below=47))
    yield "aggregated", carried(aggregated, (params, states_of(rule, params)), *given)


def recommenders() -> Zoo:
    """Training of a DLRM with 13 tables, and half a round of alternating least squares."""
    rule = optax.adagrad(0.02)
    counts = (181003, 120011, 92000, 64007, 30000, 12289, 7000, 3001, 1460, 600, 305, 40, 11)

    def crossed(state: Any, numbers: Any, indices: Any, clicks: Any) -> Any:
        def loss(p: Any) -> Any:
            x = jnp.log1p(jnp.abs(numbers))
            for w, b in p["bottom"]:
                x = jax.nn.relu(x @ w + b)
            rows = [table[i] for table, i in zip(p["tables"], indices, strict=True)]
            both = jnp.stack([x, *rows], 1)
            products = jnp.einsum("bid,bjd->bij", both, both)
            one, two = jnp.tril_indices(both.shape[1], -1)
            x = jnp.concatenate([x, products[:, one, two]], -1)
            for w, b in p["top"][:-1]:
                x = jax.nn.relu(x @ w + b)
            w, b = p["top"][-1]
            return optax.sigmoid_binary_cross_entropy((x @ w + b)[:, 0], clicks).mean()

        value, gradient = jax.value_and_grad(loss)(state[0])
        return applied(rule, *state, gradient), value

    d, b = 24, 3000

    def dense(*sizes: int) -> Any:
        pairs = pairwise(sizes)
        return [(full(a, b), Arg((b,), scale=0.1)) for a, b in pairs]

    params = {"tables": [Arg((n, d), scale=0.1) for n in counts], "bottom": dense(13, 256, d)}
    params |= {"top": dense(d + 91, 384, 192, 1)}
    indices = [Arg((b,), I32, below=n) for n in counts]
    given = (Arg((b, 13)), indices, Arg((b,), F32))
    yield "crossed", carried(crossed, (params, states_of(rule, params)), *given)

    def alternating(items: Any, read: Any, times: Any) -> Any:
        rows = items[read]
        trust = 2 * jnp.log1p(jnp.abs(times))
        square = items.T @ items + 0.1 * jnp.eye(items.shape[1])
        normal = square + jnp.einsum("un,und,une->ude", trust, rows, rows)
        right = jnp.einsum("un,und->ud", 1 + trust, rows)
        lower = jnp.linalg.cholesky(normal)
        readers = jax.scipy.linalg.cho_solve((lower, True), right[..., None])[..., 0]
        guess = jnp.einsum("ud,und->un", readers, rows)
        return readers, ((1 + trust) * (1 - guess) ** 2).sum() + 0.1 * (readers**2).sum()

    given = (Arg((26744, 40), scale=0.2), Arg((2600, 60), I32, below=26744), Arg((2600, 60)))
    yield "alternating", program(alternating, *given)


def players() -> Zoo:
    """An IMPALA update: convolutions over frames, V-trace and RMSprop."""
    rule = optax.chain(optax.clip_by_global_norm(40.0), optax.rmsprop(6e-4, 0.99, 0.01))

    def corrected(state: Any, screens: Any, acts: Any, rewards: Any, ends: Any, older: Any) -> Any:
        times, b = acts.shape

        def loss(p: Any) -> Any:
            x = screens.reshape(-1, *screens.shape[2:]).astype(F32) / 255
            for w, stride in zip(p["windows"], (4, 2, 1), strict=True):
                x = lax.conv_general_dilated(
                    x, w, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
                )
                x = jax.nn.relu(x)
            x = jax.nn.relu(x.reshape(x.shape[0], -1) @ p["wide"])
            logs = jax.nn.log_softmax(x @ p["acts"]).reshape(times + 1, b, -1)[:-1]
            values = (x @ p["value"]).reshape(times + 1, b)
            chosen = jnp.take_along_axis(logs, acts[..., None], -1)[..., 0]
            past = jax.nn.log_softmax(older)
            past = jnp.take_along_axis(past, acts[..., None], -1)[..., 0]
            ratio = jnp.minimum(jnp.exp(lax.stop_gradient(chosen) - past), 1.0)
            kept = 0.99 * (1 - ends.astype(F32))
            fixed = lax.stop_gradient(values)
            clipped = jnp.clip(rewards, -1, 1)
            gap = ratio * (clipped + kept * fixed[1:] - fixed[:-1])

            def back(later: Any, now: Any) -> Any:
                later = now[0] + now[1] * now[2] * later
                return later, later

            _, fix = lax.scan(back, jnp.zeros(b), (gap, kept, ratio), reverse=True)
            goals = fixed[:-1] + fix
            after = jnp.concatenate([goals[1:], fixed[-1:]])
            gain = ratio * (clipped + kept * after - fixed[:-1])
            entropy = -(jnp.exp(logs) * logs).sum(-1)
            return (-chosen * gain + 0.25 * (goals - values[:-1]) ** 2 - 0.01 * entropy).sum()

        value, gradient = jax.value_and_grad(loss)(state[0])
        return applied(rule, *state, gradient), value

    windows = [(8, 8, 4, 32), (4, 4, 32, 64), (3, 3, 64, 64)]
    params = {"windows": [kernel(*w, dtype=F32) for w in windows], "wide": full(3136, 512)}
    params |= {"acts": full(512, 18), "value": full(512, 1)}
    t, b = 20, 24
    played = (Arg((t + 1, b, 84, 84, 4), U8, below=256), Arg((t, b), I32, below=18))
    rest = (Arg((t, b)), Arg((t, b), jnp.bool_), Arg((t, b, 18)))
    yield "corrected", carried(corrected, (params, states_of(rule, params)), *played, *rest)


def optimisers() -> Zoo:
    """AdamW with clipping and averaging over 56 arrays, and Shampoo with blocks of 32 x 32."""
    rule = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.scale_by_adam(0.9, 0.98, mu_dtype=BF16),
        optax.add_decayed_weights(0.05, mask=lambda p: jax.tree.map(lambda x: x.ndim > 1, p)),
        optax.scale_by_learning_rate(2e-4),
    )

    def averaged(state: Any, gradients: Any) -> Any:
        params, averages, moments = state
        wide = jax.tree.map(lambda g: g.astype(F32), gradients)
        params, moments = applied(rule, params, moments, wide)
        averages = optax.incremental_update(params, averages, 0.001)
        return (params, averages, moments), optax.global_norm(wide)

    d = 704
    shapes = [(d, 3 * d), (3 * d,), (d, d), (d,), (d, 4 * d), (4 * d,), (4 * d, d), (d,), (d,)]
    params = {f"layer{n}": [Arg(s, scale=0.05) for s in shapes] for n in range(6)}
    params |= {"ends": [Arg((30522, d), scale=0.05), Arg((513, d), scale=0.05)]}
    gradients = jax.tree.map(lambda p: Arg(p.shape, BF16, scale=0.01), params)
    state = (params, params, states_of(rule, params))
    yield "averaged", carried(averaged, state, gradients)

    def blocks(state: Any, gradient: Any) -> Any:
        """Shampoo with fourth roots by batched eigh, and grafting to Adagrad."""
        p, left, right, total, speed = state
        h, w = p.shape
        g = gradient.reshape(h // 32, 32, w // 32, 32).swapaxes(1, 2).reshape(-1, 32, 32)
        left = 0.98 * left + 0.02 * g @ g.swapaxes(1, 2)
        right = 0.98 * right + 0.02 * g.swapaxes(1, 2) @ g
        values, vectors = jnp.linalg.eigh(jnp.concatenate([left, right]))
        roots = lax.rsqrt(jnp.sqrt(jnp.maximum(values, 0.0) + 1e-6))
        roots = (vectors * roots[:, None]) @ vectors.swapaxes(1, 2)
        one, two = jnp.split(roots, 2)
        step = (one @ g @ two).reshape(h // 32, w // 32, 32, 32).swapaxes(1, 2).reshape(h, w)
        total = total + gradient**2
        plain = gradient * lax.rsqrt(total + 1e-10)
        step = step * (jnp.linalg.norm(plain) / (jnp.linalg.norm(step) + 1e-16))
        speed = 0.9 * speed + step
        p = p - 0.02 * (speed + 0.01 * p)
        return (p, left, right, total, speed), values.min()

    h, w = 480, 672
    squares = Arg((h * w // 1024, 32, 32), identity=30.0)
    state = (full(h, w), squares, squares, Arg((h, w), scale=0.0), Arg((h, w), scale=0.0))
    yield "blocks", carried(blocks, state, Arg((h, w)))


def attention() -> Zoo:
    """Causal attention with online softmax over chunks of keys, and its gradients."""

    def online(q: Any, k: Any, v: Any, back: Any) -> Any:
        size = 176

        def forward(q: Any, k: Any, v: Any) -> Any:
            b, s, h, d = q.shape
            places = jnp.arange(s)[:, None]
            parts = [x.reshape(b, -1, size, h, d).swapaxes(0, 1) for x in (k, v)]

            @jax.checkpoint
            def part(carry: Any, given: Any) -> Any:
                top, total, found = carry
                k, v, number = given
                scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=F32)
                seen = number * size + jnp.arange(size) <= places
                scores = jnp.where(seen, scores * d**-0.5, -1e30)
                new = jnp.maximum(top, scores.max(-1))
                shares, less = jnp.exp(scores - new[..., None]), jnp.exp(top - new)
                total = total * less + shares.sum(-1)
                more = jnp.einsum(
                    "bhqk,bkhd->bhqd", shares.astype(BF16), v, preferred_element_type=F32
                )
                return (new, total, found * less[..., None] + more), None

            start = (jnp.full((b, h, s), -1e30), jnp.zeros((b, h, s)), jnp.zeros((b, h, s, d)))
            (_, total, found), _ = lax.scan(part, start, (*parts, jnp.arange(s // size)))
            return (found / total[..., None]).swapaxes(1, 2).astype(BF16)

        found, pull = jax.vjp(forward, q, k, v)
        return found, pull(back)

    yield "online", program(online, *[Arg((2, 1584, 7, 72), BF16)] * 4)


def vocabularies() -> Zoo:
    """A label-smoothed loss over 61,443 words with gradients, and typical sampling."""

    def smoothed(x: Any, head: Any, labels: Any) -> Any:
        def loss(x: Any, head: Any) -> Any:
            logits = (x @ head).astype(F32)
            top = jax.nn.logsumexp(logits, -1)
            right = jnp.take_along_axis(logits, labels[:, None], -1)[:, 0]
            lost = top - 0.9 * right - 0.1 * logits.mean(-1) + 1e-4 * top**2
            real = labels > 200
            sure = (right >= logits.max(-1)) & real
            return (lost * real).sum() / real.sum(), (sure.sum(), jnp.exp((top - right).mean()))

        return jax.value_and_grad(loss, (0, 1), has_aux=True)(x, head)

    given = (Arg((2200, 592), BF16), weight(592, 61443), Arg((2200,), I32, below=61443))
    yield "smoothed", program(smoothed, *given)

    def typical(logits: Any, warmth: Any, key: Any) -> Any:
        logs = jax.nn.log_softmax(logits.astype(F32) / (0.5 + jnp.abs(warmth))[:, None])
        shares = jnp.exp(logs)
        entropy = -(shares * logs).sum(-1, keepdims=True)
        order = jnp.argsort(jnp.abs(-logs - entropy), -1)
        total = jnp.cumsum(jnp.take_along_axis(shares, order, -1), -1)
        count = (total < 0.92).sum(-1, keepdims=True)
        ranked = jnp.take_along_axis(logs, order, -1)
        ranked = jnp.where(jnp.arange(ranked.shape[-1]) <= count, ranked, -jnp.inf)
        drawn = (ranked + jax.random.gumbel(key, ranked.shape)).argmax(-1)
        tokens = jnp.take_along_axis(order, drawn[:, None], -1)
        return tokens[:, 0], jnp.take_along_axis(logs, tokens, -1)[:, 0], count[:, 0]

    yield "typical", program(typical, Arg((37, 32779), F16, scale=3.0), Arg((37,)), _KEY)


def features() -> Zoo:
    """Log-mel spectra of speech with deltas, normalisation and SpecAugment masks."""

    def mel(sound: Any, bands: Any, starts: Any) -> Any:
        sound = sound - 0.97 * jnp.pad(sound, ((0, 0), (1, 0)))[:, :-1]
        sound = jnp.pad(sound, ((0, 0), (200, 200)), "reflect")
        count = (sound.shape[1] - 400) // 160 + 1
        index = 160 * jnp.arange(count)[:, None] + jnp.arange(400)
        frames = sound[:, index] * jnp.hanning(400)
        power = jnp.abs(jnp.fft.rfft(frames)) ** 2
        logs = jnp.log10(jnp.maximum(power @ jnp.abs(bands), 1e-10))
        logs = jnp.maximum(logs, logs.max((1, 2), keepdims=True) - 8)
        near = jnp.pad(logs, ((0, 0), (2, 2), (0, 0)), "edge")
        slopes = (2 * (near[:, 4:] - near[:, :-4]) + near[:, 3:-1] - near[:, 1:-3]) / 10
        both = jnp.concatenate([logs, slopes], -1)
        both = (both - both.mean(1, keepdims=True)) / (both.std(1, keepdims=True) + 1e-5)
        times, tones = jnp.arange(count), jnp.arange(both.shape[-1])
        early = (times >= starts[:, :1]) & (times < starts[:, :1] + 40)
        low = (tones >= starts[:, 1:] % 140) & (tones < starts[:, 1:] % 140 + 18)
        return jnp.where(early[..., None] | low[:, None], 0.0, both).astype(BF16)

    yield "mel", program(mel, Arg((14, 95200)), Arg((201, 80)), Arg((14, 2), I32, below=540))


def algebra() -> Zoo:
    """A randomised PCA with power iterations: QR and a small SVD."""

    def leading(x: Any, directions: Any) -> Any:
        x = x - x.mean(0)
        rows, _ = jnp.linalg.qr(x @ directions)
        columns, _ = jnp.linalg.qr(x.T @ rows)
        rows, _ = jnp.linalg.qr(x @ columns)
        columns, rest = jnp.linalg.qr(x.T @ rows)
        left, values, right = jnp.linalg.svd(rest.T)
        share = values**2 / (x * x).sum()
        return (rows @ left)[:, :40], values[:40], (right @ columns.T)[:40], jnp.cumsum(share)

    yield "leading", program(leading, Arg((5600, 820)), Arg((820, 48)))


def fluids() -> Zoo:
    """A D2Q9 lattice Boltzmann flow around random obstacles."""

    def collided(flow: Any, solid: Any) -> Any:
        ways = ((0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1))
        shares = [4 / 9] + [1 / 9] * 4 + [1 / 36] * 4
        opposite = jnp.array([0, 3, 4, 1, 2, 7, 8, 5, 6])
        x, y = (jnp.array([way[n] for way in ways], F32) for n in range(2))
        shares = jnp.array(shares)[:, None, None]
        solid = solid > 2.6

        def settled(dense: Any, u: Any, v: Any) -> Any:
            along = x[:, None, None] * u + y[:, None, None] * v
            still = 1 - 1.5 * (u * u + v * v)
            return dense * shares * (still + 3 * along + 4.5 * along**2)

        def step(_: Any, f: Any) -> Any:
            f = jnp.stack([jnp.roll(f[n], way, (0, 1)) for n, way in enumerate(ways)])
            dense = f.sum(0)
            u = jnp.einsum("n,nhw->hw", x, f) / dense
            v = jnp.einsum("n,nhw->hw", y, f) / dense
            new = f + (settled(dense, u, v) - f) / 0.58
            new = jnp.where(solid, f[opposite], new)
            return new.at[:, 0].set(settled(jnp.ones(f.shape[2:]), 0.08, 0.0)[:, 0])

        flow = lax.fori_loop(0, 14, step, flow + shares) - shares
        return flow, flow.sum(0).mean()

    yield "collided", carried(collided, Arg((9, 660, 412), scale=0.01), Arg((660, 412)))


def mixtures() -> Zoo:
    """Three EM rounds of a mixture of 36 Gaussians with full covariances."""

    def expected(state: Any, x: Any) -> Any:
        n, d = x.shape

        def once(state: Any, _: Any) -> Any:
            logs, means, spreads = state
            lower = jnp.linalg.cholesky(spreads)
            gap = (x[None] - means[:, None]).swapaxes(1, 2)
            half = lax.linalg.triangular_solve(lower, gap, left_side=True, lower=True)
            volume = jnp.log(jnp.diagonal(lower, axis1=1, axis2=2)).sum(-1)
            fits = (logs - volume)[:, None] - 0.5 * (half * half).sum(1)
            total = jax.nn.logsumexp(fits, 0)
            held = jnp.exp(fits - total)
            count = held.sum(1) + 1e-3
            means = held @ x / count[:, None]
            gap = x[None] - means[:, None]
            spreads = jnp.einsum("kn,knd,kne->kde", held, gap, gap) / count[:, None, None]
            spreads = spreads + 1e-3 * jnp.eye(d)
            return (jnp.log(count / n), means, spreads), total.mean()

        return lax.scan(once, state, None, 3)

    k, d = 36, 14
    state = (Arg((k,)), Arg((k, d)), Arg((k, d, d), scale=0.0, identity=1.0))
    yield "expected", carried(expected, state, Arg((24000, d)))
