"""An eleventh zoo: steps in the style of well-known public projects, each family in a few programs.

It was written without a look at the predictor or its calibration, to be timed once: no
calibration and no fit has used its programs.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from fourth import attend, norm, program, weight
from jax import lax
from ninth import carried, gated, rms, token_loss, turned
from sixth import convolved, full, kernel
from tenth import Layer, applied, initial, states_of

from xlapipe.running.calibration.timed_program import Arg, TimedProgram

F32, BF16, F16, I32 = jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32
I8, U8, U32 = jnp.int8, jnp.uint8, jnp.uint32
Zoo = Iterator[tuple[str, TimedProgram]]
_KEY = Arg((2,), U32, below=1 << 30)


def eleventh_programs() -> dict[str, TimedProgram]:
    """Every program, by FAMILY/NAME."""
    families = (
        *(language, translation, serving, experts, vision, generation, speech, sentences),
        *(recurrences, graphs, agents, recommenders, scenes, physics, statistics, equations),
    )
    return {
        f"{family.__name__}/{name}": program for family in families for name, program in family()
    }


def learned(rule: Any, loss: Callable[[Any], Any], state: Any) -> tuple[Any, Any]:
    """The state after a step of a rule of Optax, and the loss before it."""
    value, gradient = jax.value_and_grad(loss)(state[0])
    return applied(rule, *state, gradient), value


def started(rule: Any, params: Any) -> tuple[Any, Any]:
    return params, states_of(rule, params)


def short(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(BF16), tree)


def stack(*sizes: int) -> list[tuple[Arg, Arg]]:
    """Weights and biases of a perceptron."""
    return [(full(a, b), Arg((b,), scale=0.1)) for a, b in pairwise(sizes)]


def perceptron(x: Any, layers: Any, bend: Callable[[Any], Any] = jax.nn.relu) -> Any:
    for w, b in layers[:-1]:
        x = bend(x @ w + b)
    w, b = layers[-1]
    return x @ w + b


class Words(nn.Module):
    """The decoder of lm1b, with sines as places and the table as the head."""

    words: int = 30003
    size: int = 512

    @nn.compact
    def __call__(self, tokens: Any, parts: Any) -> Any:
        table = nn.Embed(self.words, self.size, dtype=BF16)
        speed = jnp.exp(-9.2 * jnp.arange(0, 1, 2 / self.size))
        angle = jnp.arange(tokens.shape[1])[:, None] * speed
        places = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1).astype(BF16)
        x = table(jnp.pad(tokens, ((0, 0), (1, 0)))[:, :-1]) + places
        x = nn.Dropout(0.1, deterministic=False)(x)
        own = nn.make_attention_mask(parts, parts, jnp.equal)
        mask = nn.combine_masks(nn.make_causal_mask(tokens), own)
        for _ in range(3):
            x = Layer(8, 2048, drop=0.1)(x, mask)
        return table.attend(nn.LayerNorm(dtype=BF16)(x)) / self.size**0.5


def language() -> Zoo:
    """Training: lm1b in Flax with packed rows, Gemma with windows, GPT-2 with Lion in parts."""
    model = Words()
    rule = optax.adamw(lambda n: 0.05 * lax.rsqrt(jnp.maximum(n, 1000.0)), 0.9, 0.98, 1e-9)

    def billion(state: Any, tokens: Any, parts: Any, key: Any) -> Any:
        def loss(variables: Any) -> Any:
            logits = model.apply(variables, tokens, parts, rngs={"dropout": key})
            real = tokens > 0
            return (token_loss(logits, tokens) * real).sum() / real.sum()

        return learned(rule, loss, state)

    given = (Arg((23, 256), I32, below=30003), Arg((23, 256), I32, below=5))
    yield "billion", carried(billion, started(rule, initial(model, *given)), *given, _KEY)

    schedule = optax.warmup_cosine_decay_schedule(0.0, 2e-4, 50, 5000)
    moments = optax.adamw(schedule, 0.9, 0.95, weight_decay=0.1, mu_dtype=BF16)
    clipped = optax.chain(optax.clip_by_global_norm(1.0), moments)

    def gemma(state: Any, tokens: Any) -> Any:
        """One layer sees 512 tokens, the next all of them; norms before and after."""
        places = jnp.arange(tokens.shape[1] - 1)
        gap = places[:, None] - places

        def layer(x: Any, p: Any, window: int) -> Any:
            b, s, _ = x.shape
            y, scales = rms(x, 1 + p["scales"][0]), 1 + p["scales"]
            q = (y @ p["q"]).reshape(b, s, 4, 256)
            k, v = jnp.split((y @ p["kv"])[:, :, None], 2, -1)
            q = turned(rms(q, 1 + p["heads"][0]), places)
            k = turned(rms(k, 1 + p["heads"][1]), places)
            scores = jnp.einsum("bqhd,bkd->bhqk", q, k[:, :, 0]).astype(F32) / 16
            scores = jnp.where((gap >= 0) & (gap < window), 50 * jnp.tanh(scores / 50), -1e30)
            shares = jax.nn.softmax(scores, -1).astype(BF16)
            found = jnp.einsum("bhqk,bkd->bqhd", shares, v[:, :, 0]).reshape(b, s, -1)
            x = x + rms(found @ p["out"], scales[1])
            gate, value = jnp.split(rms(x, scales[2]) @ p["up"], 2, -1)
            return x + rms((jax.nn.gelu(gate) * value) @ p["down"], scales[3])

        @jax.checkpoint
        def pair(x: Any, both: Any) -> Any:
            for number, window in enumerate((512, 1 << 20)):
                x = layer(x, {name: p[number] for name, p in both.items()}, window)
            return x, None

        def loss(params: Any) -> Any:
            p = short(params)
            x = p["table"][tokens[:, :-1]] * jnp.sqrt(1152.0).astype(BF16)
            x, _ = lax.scan(pair, x, p["layers"])
            logits = (rms(x, 1 + p["last"]) @ p["table"].T).astype(F32)
            return token_loss(30 * jnp.tanh(logits / 30), tokens[:, 1:]).mean()

        return learned(clipped, loss, state)

    d, n, wide, words = 1152, (2, 2), 6912, 32003
    layers = {"q": full(*n, d, 1024), "kv": full(*n, d, 512), "out": full(*n, 1024, d)}
    layers |= {"up": full(*n, d, 2 * wide), "down": full(*n, wide, d)}
    layers |= {"scales": Arg((*n, 4, d), scale=0.1), "heads": Arg((*n, 2, 256), scale=0.1)}
    params = {"layers": layers, "table": Arg((words, d), scale=0.03), "last": Arg((d,), scale=0.1)}
    yield "gemma", carried(gemma, started(clipped, params), Arg((2, 1025), I32, below=words))

    lion = optax.chain(optax.clip_by_global_norm(1.0), optax.lion(1e-4, weight_decay=0.1))

    def parts(state: Any, tokens: Any) -> Any:
        """Gradients summed over three parts of a batch, and a slow mean of the parameters."""
        params, memory, mean = state

        def loss(params: Any, tokens: Any) -> Any:
            p = short(params)
            x = p["table"][tokens[:, :-1]] + p["places"]
            b, s, d = x.shape
            later = jnp.where(jnp.tril(jnp.ones((s, s), bool)), 0.0, -1e9)
            for q in p["layers"]:
                qkv = (norm(x, q["scale"][0]) @ q["qkv"] + q["bias"]).reshape(b, s, 36, 64)
                found = attend(*jnp.split(qkv, 3, 2), later).reshape(b, s, d)
                x = x + found @ q["out"]
                x = x + jax.nn.gelu(norm(x, q["scale"][1]) @ q["up"]) @ q["down"]
            return token_loss(norm(x, p["last"]) @ p["table"].T, tokens[:, 1:]).mean()

        def part(total: Any, tokens: Any) -> Any:
            value, gradient = jax.value_and_grad(loss)(params, tokens)
            return jax.tree.map(lambda t, g: t + g / 3, total, gradient), value

        gradient, values = lax.scan(part, jax.tree.map(jnp.zeros_like, params), tokens)
        params, memory = applied(lion, params, memory, gradient)
        return (params, memory, optax.incremental_update(params, mean, 1e-3)), values.mean()

    d, words = 768, 50257
    layer = {"qkv": full(d, 3 * d), "bias": Arg((3 * d,), scale=0.1), "out": full(d, d)}
    layer |= {"up": full(d, 3072), "down": full(3072, d), "scale": Arg((2, d))}
    params = {"layers": [layer] * 2, "table": Arg((words, d), scale=0.03), "last": Arg((d,))}
    params |= {"places": Arg((512, d), scale=0.03)}
    state = (*started(lion, params), params)
    yield "parts", carried(parts, state, Arg((3, 3, 513), I32, below=words))


class Translated(nn.Module):
    """The decoder of the WMT example, which keeps keys and values in Flax's cache."""

    @nn.compact
    def __call__(self, tokens: Any, place: Any, read: Any) -> Any:
        table = nn.Embed(32003, 512, dtype=BF16)
        sines = self.param("places", nn.initializers.normal(0.02), (128, 512)).astype(BF16)
        x = table(tokens) + lax.dynamic_slice_in_dim(sines, place, 1)
        for _ in range(3):
            y = nn.LayerNorm(dtype=BF16)(x)
            x = x + nn.MultiHeadDotProductAttention(8, dtype=BF16, decode=True)(y)
            y = nn.LayerNorm(dtype=BF16)(x)
            x = x + nn.MultiHeadDotProductAttention(8, dtype=BF16)(y, read)
            y = nn.Dense(2048, dtype=BF16)(nn.LayerNorm(dtype=BF16)(x))
            x = x + nn.Dense(512, dtype=BF16)(nn.relu(y))
        return table.attend(nn.LayerNorm(dtype=BF16)(x))


def translation() -> Zoo:
    """Five steps of a beam search with Flax's cache, and T5's encoder in float16."""
    model = Translated()
    b, beams, times = 13, 4, 128

    def beam(state: Any, params: Any, read: Any) -> Any:
        def step(number: Any, state: Any) -> Any:
            cache, scores, texts = state
            last = lax.dynamic_slice_in_dim(texts, number, 1, 2).reshape(-1, 1)
            variables = {"params": params, "cache": cache}
            logits, new = model.apply(variables, last, number, read, mutable=["cache"])
            logs = jax.nn.log_softmax(logits[:, 0].astype(F32)).reshape(b, beams, -1)
            logs = jnp.where((last == 1).reshape(b, beams, 1), -1e7, logs)
            total = (scores[..., None] + logs).reshape(b, -1)
            scores, index = lax.top_k(total, 2 * beams)
            ended = index % logs.shape[-1] == 1
            _, order = lax.top_k(jnp.where(ended, -1e7, scores), beams)
            scores = jnp.take_along_axis(scores, order, 1)
            index = jnp.take_along_axis(index, order, 1)
            origin = index // logs.shape[-1]
            texts = jnp.take_along_axis(texts, origin[..., None], 1)
            texts = texts.at[:, :, number + 1].set(index % logs.shape[-1])

            def moved(x: Any) -> Any:
                if x.ndim < 4:
                    return x
                parts = x.reshape(b, beams, *x.shape[1:])
                return jax.vmap(lambda part, i: part[i])(parts, origin).reshape(x.shape)

            return jax.tree.map(moved, new["cache"]), scores, texts

        state = lax.fori_loop(40, 45, step, state)
        return state, state[1][:, 0]

    rows = b * beams
    read = Arg((rows, 67, 512), BF16)
    variables = initial(model, Arg((rows, times), I32), Arg((), I32), read)
    state = (variables["cache"], Arg((b, beams)), Arg((b, beams, times), I32, below=32003))
    yield "beam", carried(beam, state, variables["params"], read)

    def encoder(params: Any, tokens: Any, lengths: Any) -> Any:
        """Distances are in 32 buckets; the mean of the real tokens has length one."""
        b, s = tokens.shape
        gap = jnp.arange(s) - jnp.arange(s)[:, None]
        far = 8 + (jnp.log(jnp.maximum(jnp.abs(gap), 1) / 8) / jnp.log(16.0) * 8).astype(I32)
        near = jnp.where(jnp.abs(gap) < 8, jnp.abs(gap), jnp.minimum(far, 15))
        bias = params["buckets"][16 * (gap > 0) + near].transpose(2, 0, 1).astype(F32)
        real = jnp.arange(s) < lengths[:, None]
        bias = bias + jnp.where(real, 0.0, -1e9)[:, None, None]

        def layer(x: Any, p: Any) -> Any:
            q, k, v = jnp.split((rms(x, p["scale"][0]) @ p["qkv"]).reshape(b, s, 48, 64), 3, 2)
            x = x + attend(q * 8, k, v, bias).reshape(b, s, -1) @ p["out"]
            y = rms(x, p["scale"][1])
            return x + (jax.nn.gelu(y @ p["gate"]) * (y @ p["up"])) @ p["down"], None

        x, _ = lax.scan(layer, params["table"][tokens], params["layers"])
        x = (rms(x, params["last"]) * real[..., None]).sum(1) / lengths[:, None] @ params["head"]
        return x / jnp.linalg.norm(x.astype(F32), axis=-1, keepdims=True)

    d, n, wide = 1024, 5, 2816
    inner = ((d, 3 * d), (d, d), (d, wide), (d, wide), (wide, d))
    names = ("qkv", "out", "gate", "up", "down")
    layers = {a: weight(n, *b, dtype=F16) for a, b in zip(names, inner, strict=True)}
    layers |= {"scale": Arg((n, 2, d), F16)}
    params = {"layers": layers, "table": Arg((32128, d), F16), "buckets": Arg((32, 16), F16)}
    params |= {"last": Arg((d,), F16), "head": full(d, 768)}
    given = (Arg((3, 577), I32, below=32128), Arg((3,), I32, below=577))
    yield "encoder", program(encoder, params, *given)


def serving() -> Zoo:
    """Eight tokens by scans over layers, adapters of each request, and weights of four bits."""

    def generated(state: Any, params: Any) -> Any:
        """Llama with four query heads of each key head, and caches that are stacked by layer."""

        def token(state: Any, _: Any) -> Any:
            caches, tokens, place, key = state
            b = tokens.shape[0]

            def layer(x: Any, given: Any) -> Any:
                p, keys, values = given
                y = rms(x, p["scale"][0])
                q, k, v = jnp.split((y @ p["qkv"]).reshape(b, 1, 18, 128), [12, 15], 2)
                q, k = turned(q, place[None]), turned(k, place[None])
                keys = lax.dynamic_update_slice_in_dim(keys, k, place, 1)
                values = lax.dynamic_update_slice_in_dim(values, v, place, 1)
                q = q.reshape(b, 3, 4, 128)
                scores = jnp.einsum("bkgd,btkd->bkgt", q, keys).astype(F32) * 128**-0.5
                scores = jnp.where(jnp.arange(keys.shape[1]) <= place, scores, -1e30)
                shares = jax.nn.softmax(scores, -1).astype(BF16)
                found = jnp.einsum("bkgt,btkd->bkgd", shares, values).reshape(b, -1)
                x = x + found @ p["out"]
                return x + gated(rms(x, p["scale"][1]), p["up"], p["down"]), (keys, values)

            x, caches = lax.scan(layer, params["table"][tokens], (params["layers"], *caches))
            logits = (rms(x, params["last"]) @ params["head"]).astype(F32)
            key, own = jax.random.split(key)
            best, index = lax.top_k(logits / 0.8, 40)
            drawn = jax.random.categorical(own, best)[:, None]
            tokens = jnp.take_along_axis(index, drawn, -1)[:, 0]
            return (caches, tokens, (place + 1) % caches[0].shape[2], key), tokens

        return lax.scan(token, state, None, 8)

    d, n, wide, words, b = 1536, 5, 4096, 32003, 11
    layers = {"qkv": weight(n, d, 2304), "out": weight(n, d, d), "scale": Arg((n, 2, d), BF16)}
    layers |= {"up": weight(n, d, 2 * wide), "down": weight(n, wide, d)}
    params = {"layers": layers, "table": Arg((words, d), BF16), "head": weight(d, words)}
    caches = (Arg((n, b, 768, 3, 128), BF16),) * 2
    state = (caches, Arg((b,), I32, below=words), Arg((), I32, below=600), _KEY)
    yield "generated", carried(generated, state, params | {"last": Arg((d,), BF16)})

    def adapters(params: Any, x: Any, chosen: Any) -> Any:
        """A prompt of each request, beside whose weights its own product of rank 16 acts."""
        b, s, d = x.shape
        places = jnp.arange(s)
        later = jnp.where(places[:, None] >= places, 0.0, -1e9)

        def layer(x: Any, p: Any) -> Any:
            def product(x: Any, name: str) -> Any:
                down, up = (p[name + part][chosen] for part in ("_down", "_up"))
                less = jnp.einsum("bsd,bdr->bsr", x, down)
                return x @ p[name] + 2 * jnp.einsum("bsr,brf->bsf", less, up)

            y = rms(x, p["scale"][0])
            q, k, v = jnp.split(product(y, "qkv").reshape(b, s, 48, 128), 3, 2)
            found = attend(turned(q, places), turned(k, places), v, later)
            x = x + product(found.reshape(b, s, d), "out")
            return x + gated(rms(x, p["scale"][1]), p["up"], p["down"]), (k, v)

        return lax.scan(layer, x, params)

    d, n, wide, own, rank = 2048, 3, 5504, 37, 16
    params = {"qkv": weight(n, d, 3 * d), "out": weight(n, d, d), "scale": Arg((n, 2, d), BF16)}
    params |= {"up": weight(n, d, 2 * wide), "down": weight(n, wide, d)}
    params |= {"qkv_down": weight(n, own, d, rank), "qkv_up": weight(n, own, rank, 3 * d)}
    params |= {"out_down": weight(n, own, d, rank), "out_up": weight(n, own, rank, d)}
    given = (Arg((5, 389, d), BF16), Arg((5,), I32, below=own))
    yield "adapters", program(adapters, params, *given)

    def packed(layers: Any, x: Any) -> Any:
        """Two values in a byte with scales of 128 rows, and a product of rounded inputs."""

        def opened(codes: Any, scales: Any) -> Any:
            both = jnp.stack([codes & 15, codes >> 4], 1).astype(I8) - 8
            both = both.reshape(-1, 128, codes.shape[-1]).astype(BF16)
            return (both * scales[:, None]).reshape(-1, codes.shape[-1])

        for p in layers:
            y = rms(x, 1.0)
            most = jnp.abs(y).max(-1, keepdims=True).astype(F32) / 127 + 1e-6
            whole = jnp.round(y / most).astype(I8)
            y = lax.dot(whole, p["whole"], preferred_element_type=I32).astype(F32) * most
            x = x + (y * p["size"]).astype(BF16)
            x = x + gated(rms(x, 1.0), opened(*p["up"]), opened(*p["down"]))
        return x

    d, wide = 4096, 11008
    layer = {"whole": Arg((d, d), I8, below=90), "size": Arg((d,), scale=1e-4)}
    layer |= {"up": (Arg((d // 2, 2 * wide), U8, below=256), Arg((d // 128, 2 * wide), BF16, 0.01))}
    layer |= {"down": (Arg((wide // 2, d), U8, below=256), Arg((wide // 128, d), BF16, 0.01))}
    yield "packed", program(packed, [layer] * 2, Arg((19, d), BF16))


def experts() -> Zoo:
    """Training: two of eight experts by one-hot products within groups, as in GShard."""
    rule = optax.adafactor(1e-3)

    def dispatched(state: Any, x: Any, goals: Any) -> Any:
        count, room = 8, 160

        def layer(x: Any, p: Any) -> Any:
            y = rms(x, p["scale"])
            logits = y.astype(F32) @ p["router"]
            shares = jax.nn.softmax(logits, -1)
            best, index = lax.top_k(shares, 2)
            picked = jax.nn.one_hot(index, count)
            order = picked.swapaxes(1, 2).reshape(x.shape[0], -1, count)
            order = (jnp.cumsum(order, 1) * order - 1).reshape(x.shape[0], 2, -1, count)
            slots = jax.nn.one_hot(order.swapaxes(1, 2), room, dtype=BF16)
            best = best / best.sum(-1, keepdims=True)
            sent = slots.sum(2)
            back = jnp.einsum("gsk,gskec->gsec", best.astype(BF16), slots)
            rows = jnp.einsum("gsec,gsd->egcd", sent, y)
            rows = jax.nn.relu(jnp.einsum("egcd,edf->egcf", rows, p["up"].astype(BF16)))
            rows = jnp.einsum("egcf,efd->egcd", rows, p["down"].astype(BF16))
            even = (picked[:, :, 0].mean(1) * shares.mean(1)).sum(-1).mean() * count
            calm = (jax.nn.logsumexp(logits, -1) ** 2).mean()
            return x + jnp.einsum("gsec,egcd->gsd", back, rows), 0.01 * even + 1e-3 * calm

        def loss(params: Any) -> Any:
            y, more = lax.scan(layer, x, params)
            return ((y - goals).astype(F32) ** 2).mean() + more.sum()

        return learned(rule, loss, state)

    d, n, wide = 704, 2, 2112
    params = {"router": full(n, d, 8), "up": full(n, 8, d, wide), "down": full(n, 8, wide, d)}
    state = started(rule, params | {"scale": Arg((n, d))})
    yield "dispatched", carried(dispatched, state, *[Arg((6, 512, d), BF16)] * 2)


class Mixer(nn.Module):
    """An MLP-Mixer of three layers."""

    @nn.compact
    def __call__(self, images: Any) -> Any:
        x = nn.Conv(448, (16, 16), (16, 16), dtype=BF16)(images)
        x = x.reshape(x.shape[0], -1, 448)

        def mixed(x: Any, wide: int) -> Any:
            y = nn.gelu(nn.Dense(wide, dtype=BF16)(x))
            return nn.Dense(x.shape[-1], dtype=BF16)(y)

        for _ in range(3):
            y = nn.LayerNorm(dtype=BF16)(x).swapaxes(1, 2)
            x = x + mixed(y, 224).swapaxes(1, 2)
            x = x + mixed(nn.LayerNorm(dtype=BF16)(x), 1792)
        return nn.Dense(1000)(nn.LayerNorm()(x.astype(F32)).mean(1))


def vision() -> Zoo:
    """SigLIP's image tower, training of a Mixer with SAM and of a ResNet without norms."""

    def tower(params: Any, images: Any) -> Any:
        """729 patches of 14 x 14 and a head that attends to them."""
        b, d = images.shape[0], 1152
        x = images.reshape(b, 27, 14, 27, 14, 3).swapaxes(2, 3).reshape(b, 729, -1)
        x = x @ params["patch"] + params["places"]

        def layer(x: Any, p: Any) -> Any:
            qkv = norm(x, p["scale"][0]) @ p["qkv"] + p["bias"]
            parts = jnp.split(qkv.reshape(b, -1, 48, 72), 3, 2)
            x = x + attend(*parts).reshape(b, -1, d) @ p["out"]
            return x + jax.nn.gelu(norm(x, p["scale"][1]) @ p["up"]) @ p["down"], None

        x, _ = lax.scan(layer, x, params["layers"])
        k, v = jnp.split((norm(x, 1.0) @ params["kv"]).reshape(b, -1, 32, 72), 2, 2)
        probe = jnp.broadcast_to(params["probe"].reshape(1, 1, 16, 72), (b, 1, 16, 72))
        x = attend(probe, k, v).reshape(b, d) @ params["head"]
        x = x + jax.nn.gelu(norm(x, 1.0) @ params["up"]) @ params["down"]
        return x / (jnp.linalg.norm(x.astype(F32), axis=-1, keepdims=True) + 1e-8)

    d, n, wide = 1152, 4, 4304
    layers = {"qkv": weight(n, d, 3 * d), "bias": Arg((n, 3 * d), BF16), "out": weight(n, d, d)}
    layers |= {"up": weight(n, d, wide), "down": weight(n, wide, d), "scale": Arg((n, 2, d))}
    params = {"layers": layers, "patch": weight(588, d), "places": Arg((729, d), BF16)}
    params |= {"kv": weight(d, 2 * d), "probe": Arg((d,), BF16), "head": weight(d, d)}
    params |= {"up": weight(d, wide), "down": weight(wide, d)}
    yield "tower", program(tower, params, Arg((3, 378, 378, 3), BF16))

    model, descent = Mixer(), optax.sgd(0.05, momentum=0.9)

    def sharpness(state: Any, images: Any, labels: Any) -> Any:
        """The gradient at the worst point near the parameters."""

        def loss(variables: Any) -> Any:
            logits = model.apply(variables, images.astype(BF16) / 127.5 - 1)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        value, gradient = jax.value_and_grad(loss)(state[0])
        rate = 0.05 / (optax.global_norm(gradient) + 1e-9)
        worst = jax.tree.map(lambda p, g: p + rate * g, state[0], gradient)
        return applied(descent, *state, jax.grad(loss)(worst)), value

    images = Arg((60, 192, 192, 3), U8, below=256)
    state = started(descent, initial(model, images))
    yield "sharpness", carried(sharpness, state, images, Arg((60,), I32, below=1000))

    careful = optax.chain(optax.adaptive_grad_clip(0.01), optax.sgd(0.1, 0.9, nesterov=True))

    def unnormed(state: Any, images: Any, labels: Any) -> Any:
        """An NF-ResNet: kernels are standardised, and gradients clipped by unit."""

        def conv(x: Any, p: Any, stride: int = 1, groups: int = 1) -> Any:
            w, gain = p
            w = w - w.mean((0, 1, 2))
            w = w * lax.rsqrt(w.var((0, 1, 2)) * w[..., 0].size + 1e-4) * gain
            return convolved(x, w.astype(BF16), stride, groups)

        def loss(p: Any) -> Any:
            x = conv(jax.nn.relu(conv(images, p["stem"][0], 2)), p["stem"][1], 2)
            for number, q in enumerate(p["blocks"]):
                stride = 1 + (number > 0)
                y = 1.7 * jax.nn.relu(x / (1 + 0.04 * number) ** 0.5)
                other = conv(nn.avg_pool(y, (stride,) * 2, (stride,) * 2), q["other"])
                y = jax.nn.relu(conv(y, q["in"]))
                y = jax.nn.relu(conv(y, q["middle"], stride, 2))
                y = conv(y, q["out"])
                share = jax.nn.sigmoid(jax.nn.relu(y.mean((1, 2)) @ q["less"]) @ q["more"])
                x = other + 0.2 * q["gain"].astype(BF16) * 2 * share.astype(BF16)[:, None, None] * y
            return token_loss(x.mean((1, 2)).astype(F32) @ p["head"], labels).mean()

        return learned(careful, loss, state)

    def pair(*shape: int) -> tuple[Arg, Arg]:
        return kernel(*shape, dtype=F32), Arg((shape[-1],))

    blocks = []
    for a, b in ((64, 192), (192, 384), (384, 768)):
        block = {"other": pair(1, 1, a, b), "in": pair(1, 1, a, b // 2), "gain": Arg(())}
        block |= {"middle": pair(3, 3, b // 4, b // 2), "out": pair(1, 1, b // 2, b)}
        blocks.append(block | {"less": full(b, b // 4), "more": full(b // 4, b)})
    params = {"stem": [pair(3, 3, 3, 32), pair(3, 3, 32, 64)], "blocks": blocks}
    state = started(careful, params | {"head": full(768, 1000)})
    given = (Arg((36, 176, 176, 3), BF16), Arg((36,), I32, below=1000))
    yield "unnormed", carried(unnormed, state, *given)


class Variational(nn.Module):
    """The VAE example for digits."""

    @nn.compact
    def __call__(self, x: Any, key: Any) -> Any:
        mean, logs = jnp.split(nn.Dense(40)(nn.relu(nn.Dense(500)(x))), 2, -1)
        drawn = mean + jnp.exp(0.5 * logs) * jax.random.normal(key, mean.shape)
        return nn.Dense(784)(nn.relu(nn.Dense(500)(drawn))), mean, logs


def generation() -> Zoo:
    """Training: sixteen steps of a VAE, a Glow of two levels, and a critic with R1."""
    model, rule = Variational(), optax.adam(1e-3)

    def variational(state: Any, batches: Any, key: Any) -> Any:
        def step(state: Any, given: Any) -> Any:
            x, key = given

            def loss(variables: Any) -> Any:
                logits, mean, logs = model.apply(variables, x, key)
                lost = optax.sigmoid_binary_cross_entropy(logits, x).sum(-1).mean()
                return lost - 0.5 * (1 + logs - mean**2 - jnp.exp(logs)).sum(-1).mean()

            return learned(rule, loss, state)

        batches = (batches.astype(F32) / 255).reshape(16, -1, 784)
        return lax.scan(step, state, (batches, jax.random.split(key, 16)))

    digits = Arg((16, 128, 28, 28), U8, below=256)
    state = started(rule, initial(model, Arg((128, 784)), _KEY))
    yield "variational", carried(variational, state, digits, _KEY)

    largest = optax.adamax(1e-3)

    def glow(state: Any, images: Any, key: Any) -> Any:
        def step(carry: Any, p: Any) -> Any:
            x, total = carry
            area = x.shape[1] * x.shape[2]
            x = (x + p["shift"]) * jnp.exp(p["scale"]) @ p["turn"]
            total = total + area * (p["scale"].sum() + jnp.linalg.slogdet(p["turn"])[1])
            one, two = jnp.split(x, 2, -1)
            y = jax.nn.relu(convolved(one, p["in"]))
            y = convolved(jax.nn.relu(y @ p["middle"]), p["out"])
            scale, shift = jnp.split(y, 2, -1)
            scale = jax.nn.log_sigmoid(scale + 2)
            x = jnp.concatenate([one, (two + shift) * jnp.exp(scale)], -1)
            return (x, total + scale.sum((1, 2, 3))), None

        def squeezed(x: Any) -> Any:
            b, h, w, c = x.shape
            x = x.reshape(b, h // 2, 2, w // 2, 2, c).transpose(0, 1, 3, 5, 2, 4)
            return x.reshape(b, h // 2, w // 2, 4 * c)

        def loss(levels: Any) -> Any:
            x = (images + jax.random.uniform(key, images.shape)) / 256 - 0.5
            total = jnp.zeros(images.shape[0])
            for p in levels:
                (x, total), _ = lax.scan(step, (squeezed(x), total), p)
                x, left = jnp.split(x, 2, -1)
                total = total - 0.5 * (left**2).sum((1, 2, 3))
            total = total - 0.5 * (x**2).sum((1, 2, 3))
            return -total.mean() / images[0].size

        return learned(largest, loss, state)

    levels, n, wide = [], 5, 256
    for c in (12, 24):
        level = {"shift": Arg((n, c), scale=0.1), "scale": Arg((n, c), scale=0.1)}
        level |= {"turn": Arg((n, c, c), scale=0.1, identity=1.0), "middle": full(n, wide, wide)}
        level |= {"in": Arg((n, 3, 3, c // 2, wide), scale=0.1)}
        levels.append(level | {"out": Arg((n, 3, 3, wide, c), scale=0.01)})
    yield "glow", carried(glow, started(largest, levels), Arg((44, 32, 32, 3), U8, below=256), _KEY)

    fast = optax.adam(2e-3, 0.0, 0.99)

    def critic(state: Any, real: Any, drawn: Any) -> Any:
        """The slope at real images is punished."""

        def score(p: Any, x: Any) -> Any:
            x = convolved(x, p["first"])
            for w in p["convs"]:
                x = jax.nn.leaky_relu(convolved(x, w, 2), 0.2) * 1.4
            spread = jnp.sqrt(x.var(0) + 1e-8).mean()
            x = jnp.concatenate([x, jnp.full_like(x[..., :1], spread)], -1)
            return perceptron(x.reshape(x.shape[0], -1), p["head"])[:, 0]

        def loss(p: Any) -> Any:
            scores, pull = jax.vjp(lambda x: score(p, x), real)
            (slope,) = pull(jnp.ones_like(scores))
            lost = jax.nn.softplus(-scores) + jax.nn.softplus(score(p, drawn))
            return lost.mean() + 5.0 * (slope**2).sum((1, 2, 3)).mean()

        return learned(fast, loss, state)

    sizes = ((32, 64), (64, 128), (128, 256), (256, 256))
    params = {"first": kernel(1, 1, 3, 32, dtype=F32), "head": stack(4 * 4 * 257, 256, 1)}
    params |= {"convs": [kernel(3, 3, *size, dtype=F32) for size in sizes]}
    yield "critic", carried(critic, started(fast, params), *[Arg((20, 64, 64, 3))] * 2)


def speech() -> Zoo:
    """Training of a Conformer with the CTC loss."""
    rule = optax.chain(optax.clip_by_global_norm(5.0), optax.adamw(5e-4, b2=0.98))

    def conformer(state: Any, sounds: Any, lengths: Any, labels: Any, blanks: Any) -> Any:
        def layer(x: Any, p: Any) -> Any:
            b, s, d = x.shape
            scales = p["scales"]
            x = x + 0.5 * jax.nn.silu(norm(x, scales[0]) @ p["up"][0]) @ p["down"][0]
            qkv = (norm(x, scales[1]) @ p["qkv"]).reshape(b, s, 12, 64)
            q, k, v = jnp.split(qkv, 3, 2)
            places = jnp.arange(s)
            past = jnp.where(places < lengths[:, None], 0.0, -1e9)[:, None, None]
            found = attend(turned(q, places), turned(k, places), v, past)
            x = x + found.reshape(b, s, d) @ p["out"]
            value, gate = jnp.split(norm(x, scales[2]) @ p["pair"], 2, -1)
            ways = ("NWC", "WIO", "NWC")
            y = lax.conv_general_dilated(
                *(value * jax.nn.sigmoid(gate), p["taps"], (1,), "SAME"),
                dimension_numbers=ways,
                feature_group_count=d,
            )
            x = x + jax.nn.silu(norm(y, scales[3])) @ p["point"]
            x = x + 0.5 * jax.nn.silu(norm(x, scales[4]) @ p["up"][1]) @ p["down"][1]
            return norm(x, scales[5]), None

        def loss(params: Any) -> Any:
            p = short(params)
            x = sounds[..., None].astype(BF16)
            for w in p["convs"]:
                x = jax.nn.relu(convolved(x, w, 2))
            x = x.reshape(*x.shape[:2], -1) @ p["enter"]
            x, _ = lax.scan(jax.checkpoint(layer), x, p["layers"])
            ends = (jnp.arange(x.shape[1]) >= lengths[:, None]).astype(F32)
            logits = (x @ p["head"]).astype(F32)
            return optax.ctc_loss(logits, ends, labels, blanks.astype(F32)).mean()

        return learned(rule, loss, state)

    d, n, c, b, words = 256, 4, 96, 18, 1024
    layers = {"up": full(n, 2, d, 4 * d), "down": full(n, 2, 4 * d, d), "scales": Arg((n, 6, d))}
    layers |= {"qkv": full(n, d, 3 * d), "out": full(n, d, d), "pair": full(n, d, 2 * d)}
    layers |= {"taps": Arg((n, 31, 1, d), scale=0.2), "point": full(n, d, d)}
    convs = [kernel(3, 3, 1, c, dtype=F32), kernel(3, 3, c, c, dtype=F32)]
    params = {"layers": layers, "convs": convs, "enter": full(20 * c, d), "head": full(d, words)}
    given = (Arg((b, 252, 80)), Arg((b,), I32, below=63), Arg((b, 21), I32, below=words))
    yield "conformer", carried(conformer, started(rule, params), *given, Arg((b, 21), I32))


class Sentences(nn.Module):
    """The SST-2 example: an LSTM in both directions, and a classifier that attends to it."""

    @nn.compact
    def __call__(self, tokens: Any, lengths: Any) -> Any:
        x = nn.Embed(14816, 300)(tokens)
        x = nn.Dropout(0.5, deterministic=False)(x)
        both = [nn.RNN(nn.OptimizedLSTMCell(256)) for _ in range(2)]
        x = nn.Bidirectional(*both)(x, seq_lengths=lengths)
        keys = nn.tanh(nn.Dense(256, use_bias=False)(x))
        scores = nn.Dense(1, use_bias=False)(keys)[..., 0]
        scores = jnp.where(jnp.arange(x.shape[1]) < lengths[:, None], scores, -1e9)
        x = jnp.einsum("bt,btd->bd", nn.softmax(scores), x)
        return nn.Dense(1)(nn.tanh(nn.Dense(256)(x)))[:, 0]


def sentences() -> Zoo:
    """Training in Flax of an LSTM that tells kind sentences from others."""
    model = Sentences()
    rule = optax.chain(optax.add_decayed_weights(3e-6), optax.sgd(0.1, 0.9))

    def kind(state: Any, tokens: Any, lengths: Any, labels: Any, key: Any) -> Any:
        def loss(variables: Any) -> Any:
            logits = model.apply(variables, tokens, lengths, rngs={"dropout": key})
            return optax.sigmoid_binary_cross_entropy(logits, labels.astype(F32)).mean()

        return learned(rule, loss, state)

    given = (Arg((67, 52), I32, below=14816), Arg((67,), I32, below=52))
    state = started(rule, initial(model, *given))
    yield "kind", carried(kind, state, *given, Arg((67,), I32), _KEY)


def recurrences() -> Zoo:
    """Training of linear recurrent units, whose complex states come from an associative scan."""
    rule = optax.adamw(1e-3, weight_decay=0.05)

    def units(state: Any, x: Any, labels: Any) -> Any:
        def layer(x: Any, p: Any) -> Any:
            turn = lax.complex(-jnp.exp(p["decay"] - 3), jnp.exp(p["angle"]))
            ahead = jnp.exp(turn)
            gain = jnp.sqrt(1 - jnp.abs(ahead) ** 2)
            y = norm(x, p["scale"])
            inner = gain * lax.complex(y @ p["real_in"], y @ p["imaginary_in"])

            def joined(one: Any, two: Any) -> Any:
                return one[0] * two[0], two[0] * one[1] + two[1]

            pairs = (jnp.broadcast_to(ahead, inner.shape), inner)
            _, hidden = lax.associative_scan(joined, pairs, axis=1)
            out = hidden.real @ p["real_out"] - hidden.imag @ p["imaginary_out"]
            y = jax.nn.gelu(out + p["direct"] * y)
            return x + y * jax.nn.sigmoid(y @ p["gate"])

        def loss(p: Any) -> Any:
            y = x[..., None] * p["enter"]
            for q in p["layers"]:
                y = layer(y, q)
            return token_loss(y.mean(1) @ p["head"], labels).mean()

        return learned(rule, loss, state)

    d, h = 160, 208
    layer = {name: Arg((h,), scale=0.5) for name in ("decay", "angle")}
    layer |= {"real_in": full(d, h), "imaginary_in": full(d, h), "real_out": full(h, d)}
    layer |= {"imaginary_out": full(h, d), "direct": Arg((d,)), "gate": full(d, d)}
    params = {"layers": [layer | {"scale": Arg((d,))}] * 2, "enter": Arg((d,)), "head": full(d, 10)}
    given = (Arg((9, 784)), Arg((9,), I32, below=10))
    yield "units", carried(units, started(rule, params), *given)


def graphs() -> Zoo:
    """Training of a graph network on molecules with 128 tasks, as in ogbg-molpcba."""
    rule = optax.adam(1e-3)

    def molecules(state: Any, graph: Any, labels: Any, known: Any, key: Any) -> Any:
        nodes, edges, sources, targets, places = graph
        count, total = labels.shape[0], nodes.shape[0]
        bonds = places[sources]

        def loss(p: Any) -> Any:
            x, e, u = nodes @ p["nodes"], edges @ p["edges"], jnp.zeros((count, 256))
            for number, q in enumerate(p["steps"]):
                keys = jax.random.split(jax.random.fold_in(key, number), 3)

                def changed(old: Any, parts: Any, layers: Any, key: Any) -> Any:
                    y = perceptron(jnp.concatenate(parts, -1), layers)
                    return norm(old + jnp.where(jax.random.bernoulli(key, 0.9, y.shape), y, 0), 1.0)

                e = changed(e, [e, x[sources], x[targets], u[bonds]], q["edges"], keys[0])
                sent = jax.ops.segment_sum(e, sources, total)
                received = jax.ops.segment_sum(e, targets, total)
                x = changed(x, [x, sent, received, u[places]], q["nodes"], keys[1])
                all_of = [jax.ops.segment_sum(x, places, count)]
                all_of.append(jax.ops.segment_sum(e, bonds, count))
                u = changed(u, [u, *all_of], q["globals"], keys[2])
            lost = optax.sigmoid_binary_cross_entropy(u @ p["head"], labels.astype(F32))
            return (lost * known).sum() / known.sum()

        return learned(rule, loss, state)

    total, bonds, count, d = 6401, 13007, 257, 256
    step = {"edges": stack(4 * d, d, d), "nodes": stack(4 * d, d, d), "globals": stack(3 * d, d, d)}
    params = {"nodes": full(9, d), "edges": full(3, d), "steps": [step] * 3, "head": full(d, 128)}
    ends = [Arg((bonds,), I32, below=total)] * 2
    graph = (Arg((total, 9)), Arg((bonds, 3)), *ends, Arg((total,), I32, below=count))
    labels = [Arg((count, 128), I32)] * 2
    yield "molecules", carried(molecules, started(rule, params), graph, *labels, _KEY)


def agents() -> Zoo:
    """Critics in an ensemble, and a tree search with a learned model."""
    adam = optax.adam(3e-4)

    def ensemble(state: Any, actor: Any, batches: Any, key: Any) -> Any:
        """REDQ: ten critics with layer norms, and goals from two of them, five times."""

        def values(layers: Any, seen: Any, action: Any) -> Any:
            def one(layers: Any) -> Any:
                x = jnp.concatenate([seen, action], -1)
                return perceptron(x, layers, lambda y: jax.nn.relu(norm(y, 1.0)))[:, 0]

            return jax.vmap(one)(layers)

        def update(carry: Any, given: Any) -> Any:
            (state, slow), (seen, action, reward, later, key) = carry, given
            first, second = jax.random.split(key)
            mean, logs = jnp.split(perceptron(later, actor), 2, -1)
            noise = jax.random.normal(first, mean.shape)
            tried = jnp.tanh(mean + jnp.exp(jnp.clip(logs, -5, 2)) * noise)
            log = (-0.5 * noise**2 - logs - jnp.log(1 - tried**2 + 1e-6)).sum(-1)
            two = jax.random.permutation(second, 10)[:2]
            least = values(jax.tree.map(lambda p: p[two], slow), later, tried).min(0)
            goal = reward + 0.99 * (least - 0.2 * log)

            def loss(layers: Any) -> Any:
                return ((values(layers, seen, action) - goal) ** 2).mean(1).sum()

            state, value = learned(adam, loss, state)
            return (state, optax.incremental_update(state[0], slow, 0.005)), value

        return lax.scan(update, state, (*batches, jax.random.split(key, 5)))

    critics = jax.tree.map(lambda a: Arg((10, *a.shape), scale=a.scale), stack(23, 256, 256, 1))
    seen, action, reward = Arg((5, 256, 17)), Arg((5, 256, 6), scale=0.3), Arg((5, 256))
    batches = (seen, action, reward, seen)
    state = (started(adam, critics), critics)
    yield "ensemble", carried(ensemble, state, stack(17, 256, 256, 12), batches, _KEY)

    def tree(params: Any, seen: Any, key: Any) -> Any:
        """MuZero: sixteen visits, each to a new node at most six moves from the root."""
        b, visits, depth, moves, d = seen.shape[0], 16, 6, 18, 256
        row = jnp.arange(b)

        def judged(x: Any) -> Any:
            policy, value = jnp.split(perceptron(x, params["judge"]), [moves], -1)
            return jax.nn.softmax(policy), jnp.tanh(value[:, 0])

        root = jnp.tanh(perceptron(seen, params["see"]))
        policy, value = judged(root)
        noise = jax.random.exponential(key, policy.shape)
        noise = noise / noise.sum(-1, keepdims=True)
        prior = jnp.zeros((b, visits + 1, moves)).at[:, 0].set(0.75 * policy + 0.25 * noise)
        states = jnp.zeros((b, visits + 1, d)).at[:, 0].set(root)
        child = jnp.full((b, visits + 1, moves), -1)
        counts, sums = jnp.zeros((2, b, visits + 1, moves))

        def visit(number: Any, carry: Any) -> Any:
            prior, states, child, counts, sums = carry

            def down(carry: Any, _: Any) -> Any:
                node, done, last, move = carry
                n = counts[row, node]
                score = sums[row, node] / jnp.maximum(n, 1)
                more = prior[row, node] * jnp.sqrt(n.sum(-1, keepdims=True) + 1) / (1 + n)
                best = (score + 1.25 * more).argmax(-1)
                last, move = jnp.where(done, last, node), jnp.where(done, move, best)
                step = (last, move, ~done)
                following = child[row, last, move]
                done = done | (following < 0)
                return (jnp.where(done, node, following), done, last, move), step

            zero = jnp.zeros(b, I32)
            start = (zero, jnp.zeros(b, bool), zero, zero)
            (_, _, last, move), path = lax.scan(down, start, None, depth)
            x = jnp.concatenate([states[row, last], jax.nn.one_hot(move, moves)], -1)
            new = jnp.tanh(perceptron(x, params["move"]))
            policy, value = judged(new)
            prior = prior.at[:, number + 1].set(policy)
            states = states.at[:, number + 1].set(new)
            child = child.at[row, last, move].set(number + 1)

            def up(carry: Any, step: Any) -> Any:
                counts, sums, value = carry
                node, move, real = step
                counts = counts.at[row, node, move].add(real.astype(F32))
                sums = sums.at[row, node, move].add(jnp.where(real, value, 0.0))
                return (counts, sums, jnp.where(real, 0.997 * value, value)), None

            (counts, sums, _), _ = lax.scan(up, (counts, sums, value), path, reverse=True)
            return prior, states, child, counts, sums

        found = lax.fori_loop(0, visits, visit, (prior, states, child, counts, sums))
        shares = found[3][:, 0] / found[3][:, 0].sum(-1, keepdims=True)
        return shares.argmax(-1), shares, value

    params = {"see": stack(128, 512, 256), "move": stack(274, 512, 256)}
    params |= {"judge": stack(256, 256, 19)}
    yield "tree", program(tree, params, Arg((150, 128)), _KEY)


def recommenders() -> Zoo:
    """Training of DCN-v2 on clicks: crosses of low rank, and one table for 26 columns."""
    rule = optax.chain(optax.clip_by_global_norm(10.0), optax.adagrad(0.01))

    def crosses(state: Any, numbers: Any, ids: Any, clicks: Any) -> Any:
        def loss(params: Any) -> Any:
            rows = params["table"][ids + 45000 * jnp.arange(26)].reshape(ids.shape[0], -1)
            x = first = jnp.concatenate([jnp.log1p(jnp.abs(numbers)), rows], -1).astype(BF16)
            p = short({name: part for name, part in params.items() if name != "table"})
            for less, more, bias in p["crosses"]:
                x = first * (x @ less @ more + bias) + x
            y = jnp.concatenate([x, jax.nn.relu(perceptron(first, p["deep"]))], -1)
            logits = perceptron(y, p["head"])[:, 0].astype(F32)
            return optax.sigmoid_binary_cross_entropy(logits, clicks.astype(F32)).mean()

        return learned(rule, loss, state)

    d, rank, b = 13 + 26 * 24, 96, 6007
    layer = (full(d, rank), full(rank, d), Arg((d,), scale=0.1))
    params = {"table": Arg((26 * 45000, 24), scale=0.1), "crosses": [layer] * 3}
    params |= {"deep": stack(d, 768, 384, 256), "head": stack(d + 256, 1)}
    given = (Arg((b, 13)), Arg((b, 26), I32, below=45000), Arg((b,), I32))
    yield "crosses", carried(crosses, started(rule, params), *given)


def scenes() -> Zoo:
    """Training of a radiance field with hashed grids of ten sizes."""
    rule = optax.adam(1e-2, 0.9, 0.99, 1e-15)

    def hashed(state: Any, origins: Any, ways: Any, colours: Any, key: Any) -> Any:
        count, samples, size = origins.shape[0], 32, 1 << 17
        corners = jnp.array([[n & 1, n >> 1 & 1, n >> 2] for n in range(8)], U32)
        primes = jnp.array([1, 2654435761, 805459861], U32)
        depth = (jnp.arange(samples) + jax.random.uniform(key, (count, samples))) / samples
        points = jax.nn.sigmoid(origins[:, None] + 2 * depth[..., None] * ways[:, None])

        def grid(table: Any, scale: Any) -> Any:
            scaled = points.reshape(-1, 3) * scale
            low = jnp.floor(scaled)
            part = (scaled - low)[:, None]
            index = (low.astype(U32)[:, None] + corners) * primes
            index = (index[..., 0] ^ index[..., 1] ^ index[..., 2]) % size
            shares = jnp.where(corners > 0, part, 1 - part).prod(-1)
            return (table[index] * shares[..., None]).sum(1)

        def loss(p: Any) -> Any:
            x = jax.vmap(grid)(p["tables"], 16.0 * 1.45 ** jnp.arange(10))
            x = x.swapaxes(0, 1).reshape(count * samples, -1).astype(BF16)
            x = perceptron(x, short(p["dense"]))
            thick = jnp.exp(jnp.clip(x[:, 0].astype(F32), -10, 10)).reshape(count, samples)
            a, b, c = jnp.moveaxis(ways, -1, 0)
            waves = jnp.stack([a, b, c, a * b, b * c, a * c, a * a - b * b, 3 * c * c - 1], -1)
            waves = jnp.repeat(waves.astype(BF16), samples, 0)
            x = perceptron(jnp.concatenate([x, waves], -1), short(p["colour"]))
            seen = jax.nn.sigmoid(x.astype(F32)).reshape(count, samples, 3)
            left = jnp.cumsum(thick, 1) / samples
            shares = jnp.exp(thick / samples - left) * (1 - jnp.exp(-thick / samples))
            drawn = (shares[..., None] * seen).sum(1) + 1 - shares.sum(1, keepdims=True)
            return optax.huber_loss(drawn, colours, delta=0.1).mean()

        return learned(rule, loss, state)

    params = {"tables": Arg((10, 1 << 17, 2), scale=1e-3), "dense": stack(20, 64, 16)}
    state = started(rule, params | {"colour": stack(24, 64, 64, 3)})
    yield "hashed", carried(hashed, state, *[Arg((2300, 3))] * 3, _KEY)


def physics() -> Zoo:
    """Atoms with lists of neighbours, stars, jointed bodies and light in a box."""

    def neighbours(state: Any, lists: Any, key: Any) -> Any:
        """Lennard-Jones atoms in a warm bath, as in JAX MD: eight steps of Langevin's kind."""
        side = 24.0

        def energy(x: Any) -> Any:
            gap = x[:, None] - x[lists]
            gap = gap - side * jnp.round(gap / side)
            square = jnp.maximum((gap**2).sum(-1), 0.8)
            sixth = 1 / square**3
            fade = jnp.where(square < 6.25, (1 - square / 6.25) ** 2, 0.0)
            own = lists == jnp.arange(x.shape[0])[:, None]
            return jnp.where(own, 0.0, 2 * (sixth**2 - sixth) * fade).sum()

        def step(state: Any, key: Any) -> Any:
            x, v, force = state
            v = v + 0.0025 * force
            x = x + 0.0025 * v
            v = 0.99 * v + 0.14 * jax.random.normal(key, v.shape)
            x = (x + 0.0025 * v) % side
            lost, slope = jax.value_and_grad(energy)(x)
            v = v - 0.0025 * slope
            return (x, v, -slope), lost + 0.5 * (v**2).sum()

        return lax.scan(step, state, jax.random.split(key, 8))

    n = 12007
    state = (Arg((n, 3), scale=8.0), Arg((n, 3)), Arg((n, 3)))
    yield "neighbours", carried(neighbours, state, Arg((n, 46), I32, below=n), _KEY)

    def stars(state: Any, masses: Any) -> Any:
        """Every star pulls every other: three leaps."""

        def pull(x: Any) -> Any:
            gap = x - x[:, None]
            near = lax.rsqrt((gap**2).sum(-1) + 0.01)
            return jnp.einsum("ij,ijc->ic", jnp.abs(masses) * near**3, gap)

        def step(_: Any, state: Any) -> Any:
            x, v = state
            v = v + 5e-4 * pull(x)
            x = x + 1e-3 * v
            return x, v + 5e-4 * pull(x)

        x, v = lax.fori_loop(0, 3, step, state)
        return (x, v), (jnp.abs(masses)[:, None] * v * v).sum() / 2

    yield "stars", carried(stars, (Arg((4001, 3)), Arg((4001, 3))), Arg((4001,)))

    def joints(state: Any, policy: Any) -> Any:
        """Chains of nine bodies with springs as joints on a floor, as in Brax: twelve substeps."""

        def spun(q: Any, v: Any) -> Any:
            axis = q[..., 1:]
            return v + 2 * jnp.cross(axis, jnp.cross(axis, v) + q[..., :1] * v)

        def substep(state: Any, twist: Any) -> Any:
            x, q, v, w = state
            tip = jnp.array([0.3, 0.0, 0.0])
            ends = jnp.stack([spun(q, jnp.broadcast_to(tip * s, x.shape)) for s in (1, -1)])
            speeds = v + jnp.cross(jnp.broadcast_to(w, ends.shape), ends)
            places = x + ends
            gap = places[0, :, :-1] - places[1, :, 1:]
            rate = speeds[0, :, :-1] - speeds[1, :, 1:]
            push = 4000 * gap + 40 * rate
            force = jnp.zeros_like(places).at[0, :, :-1].add(-push).at[1, :, 1:].add(push)
            deep = jnp.maximum(0.1 - places[..., 2], 0.0)
            lift = jnp.maximum(3000 * deep - 30 * speeds[..., 2] * (deep > 0), 0.0)
            drag = jnp.clip(-20 * speeds[..., :2], -0.8 * lift[..., None], 0.8 * lift[..., None])
            force = force + jnp.concatenate([drag, lift[..., None]], -1)
            torque = jnp.cross(ends, force).sum(0)
            torque = torque.at[:, :-1].add(-twist).at[:, 1:].add(twist)
            v = 0.999 * (v + 1e-3 * (force.sum(0) - jnp.array([0.0, 0.0, 9.8])))
            w = 0.99 * (w + 1e-3 * 30 * torque)
            real, axis = q[..., :1], q[..., 1:]
            turn = [-(w * axis).sum(-1, keepdims=True), real * w + jnp.cross(w, axis)]
            q = q + 5e-4 * jnp.concatenate(turn, -1)
            q = q * lax.rsqrt((q * q).sum(-1, keepdims=True) + 1e-9)
            return (x + 1e-3 * v, q, v, w), None

        seen = jnp.concatenate([part.reshape(part.shape[0], -1) for part in state], -1)
        twist = jnp.tanh(perceptron(seen, policy, jax.nn.swish)).reshape(-1, 8, 3)
        state, _ = lax.scan(lambda s, _: substep(s, twist), state, None, 12)
        return state, state[2][:, :, 0].mean(1) - 0.01 * (twist**2).sum((1, 2))

    part, policy = Arg((1500, 9, 3)), stack(117, 256, 128, 24)
    yield "joints", carried(joints, (part, Arg((1500, 9, 4)), part, part), policy)

    def light(state: Any, glass: Any) -> Any:
        """Maxwell's equations on Yee's grid, with walls that absorb: ten steps."""

        def curl(f: Any, way: int) -> Any:
            def slope(part: Any, axis: int) -> Any:
                return way * (jnp.roll(part, -way, axis) - part)

            x, y, z = f
            both = (slope(z, 1) - slope(y, 2), slope(x, 2) - slope(z, 0))
            return jnp.stack([*both, slope(y, 0) - slope(x, 1)])

        fade = 1.0
        for axis, size in enumerate(glass.shape):
            near = jnp.minimum(jnp.arange(size), size - 1 - jnp.arange(size))
            one = 1 - 0.3 * jnp.maximum(1 - near / 10, 0.0) ** 3
            fade = fade * one.reshape([-1 if n == axis else 1 for n in range(3)])
        speed = 0.5 * fade / (1 + jnp.abs(glass))

        def step(number: Any, state: Any) -> Any:
            e, h = state
            e = fade * e + speed * curl(h, -1)
            e = e.at[2, 20, 30:90, 30:90].add(jnp.sin(0.3 * number))
            return e, fade * h - 0.5 * fade * curl(e, 1)

        e, h = lax.fori_loop(0, 10, step, state)
        return (e, h), (e[:, -20] * jnp.roll(h[:, -20], 1, 0)).sum()

    shape = (150, 132, 117)
    yield "light", carried(light, (Arg((3, *shape)),) * 2, Arg(shape))


def statistics() -> Zoo:
    """Chains of a logistic regression, a Gaussian process, and a filter of series."""

    def logistic(state: Any, x: Any, labels: Any, key: Any) -> Any:
        """NumPyro on the cover types: two transitions of ten leaps, in five chains."""

        def potential(w: Any) -> Any:
            logits = x @ w
            lost = jax.nn.softplus(logits) - labels.astype(F32) * logits
            return lost.sum() + 0.5 * (w * w).sum()

        def chain(state: Any, key: Any) -> Any:
            def transition(state: Any, key: Any) -> Any:
                w, value, slope = state
                one, two = jax.random.split(key)
                start = jax.random.normal(one, w.shape)

                def leap(carry: Any, _: Any) -> Any:
                    w, speed, _, slope = carry
                    speed = speed - 5e-4 * slope
                    w = w + 1e-3 * speed
                    value, slope = jax.value_and_grad(potential)(w)
                    return (w, speed - 5e-4 * slope, value, slope), None

                new, _ = lax.scan(leap, (w, start, value, slope), None, 10)
                rise = new[2] - value + 0.5 * ((new[1] ** 2).sum() - (start**2).sum())
                taken = jnp.log(jax.random.uniform(two)) < -rise
                old = (w, value, slope)
                return jax.tree.map(
                    lambda a, b: jnp.where(taken, a, b), (new[0], new[2], new[3]), old
                ), jnp.minimum(1.0, jnp.exp(-rise))

            return lax.scan(transition, state, jax.random.split(key, 2))

        return jax.vmap(chain)(state, jax.random.split(key, 5))

    n, d = 50003, 55
    state = (Arg((5, d), scale=0.1), Arg((5,)), Arg((5, d)))
    yield "logistic", carried(logistic, state, Arg((n, d)), Arg((n,), I32), _KEY)

    rule = optax.adam(0.01)

    def process(state: Any, x: Any, y: Any) -> Any:
        """The evidence of a kernel of Matern's, by Cholesky's factors."""

        def loss(p: Any) -> Any:
            scaled = x / jax.nn.softplus(p["lengths"])
            size = (scaled**2).sum(-1)
            square = size[:, None] + size - 2 * scaled @ scaled.T
            gap = jnp.sqrt(5 * jnp.maximum(square, 1e-9))
            spread = jax.nn.softplus(p["gain"]) * (1 + gap + gap**2 / 3) * jnp.exp(-gap)
            spread = spread + (jax.nn.softplus(p["noise"]) + 0.1) * jnp.eye(x.shape[0])
            lower = jnp.linalg.cholesky(spread)
            half = jax.scipy.linalg.solve_triangular(lower, y - p["mean"], lower=True)
            return 0.5 * half @ half + jnp.log(jnp.diagonal(lower)).sum()

        return learned(rule, loss, state)

    params = {"lengths": Arg((7,)), "gain": Arg(()), "noise": Arg(()), "mean": Arg(())}
    yield "process", carried(process, started(rule, params), Arg((1450, 7)), Arg((1450,)))

    def filtered(ahead: Any, seen: Any, series: Any) -> Any:
        """Kalman's filter of 420 series, time by time, and how likely they are."""
        one = jnp.eye(ahead.shape[0])

        def step(state: Any, y: Any) -> Any:
            mean, spread = state
            mean, spread = ahead @ mean, ahead @ spread @ ahead.T + 0.1 * one
            total = seen @ spread @ seen.T + 0.5 * jnp.eye(seen.shape[0])
            lower = jax.scipy.linalg.cho_factor(total, lower=True)
            gain = jax.scipy.linalg.cho_solve(lower, seen @ spread).T
            gap = y - seen @ mean
            fit = 0.5 * gap @ jax.scipy.linalg.cho_solve(lower, gap)
            fit = fit + jnp.log(jnp.diagonal(lower[0])).sum()
            less = one - gain @ seen
            spread = less @ spread @ less.T + 0.5 * gain @ gain.T
            state = (mean + gain @ gap, spread)
            return state, (*state, fit)

        def one_series(series: Any) -> Any:
            start = (jnp.zeros(ahead.shape[0]), one)
            _, (means, spreads, fits) = lax.scan(step, start, series)
            return means, jnp.diagonal(spreads, axis1=1, axis2=2), fits.sum()

        return jax.vmap(one_series)(series)

    given = (Arg((6, 6), scale=0.1, identity=0.6), Arg((3, 6)), Arg((420, 50, 3)))
    yield "filtered", program(filtered, *given)


def equations() -> Zoo:
    """Training of a neural ODE by Tsitouras' method, whose steps are computed twice."""
    rule = optax.adabelief(3e-3)
    rows = (
        (0.161,),
        (-0.008480655, 0.335480655),
        (2.897153057, -6.359448490, 4.362295433),
        (5.325864828, -11.748883564, 7.495539343, -0.092495066),
        (5.861455443, -12.920969318, 8.159367899, -0.071584973, -0.028269050),
        (0.096460767, 0.01, 0.479889650, 1.379008574, -3.290069515, 2.324710524),
    )

    def neural(state: Any, starts: Any, goals: Any) -> Any:
        def loss(p: Any) -> Any:
            def slope(x: Any) -> Any:
                return p["gain"] * jnp.tanh(perceptron(x, p["layers"], jax.nn.softplus))

            @jax.checkpoint
            def step(x: Any, _: Any) -> Any:
                slopes = [slope(x)]
                for row in rows[:-1]:
                    moved = sum(a * k for a, k in zip(row, slopes, strict=True))
                    slopes.append(slope(x + 0.05 * moved))
                moved = sum(a * k for a, k in zip(rows[-1], slopes, strict=True))
                x = x + 0.05 * moved
                return x, x

            _, found = lax.scan(step, starts, None, goals.shape[0])
            return ((found - goals) ** 2).mean()

        return learned(rule, loss, state)

    params = {"layers": stack(6, 96, 96, 6), "gain": Arg(())}
    yield "neural", carried(neural, started(rule, params), Arg((900, 6)), Arg((24, 900, 6)))
