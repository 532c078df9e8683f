"""A thirteenth zoo: everyday training and inference steps, many of them made of small kernels.

It was written without a look at the predictor or its calibration, to be timed once: no
calibration and no fit has used its programs.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import optax
from eleventh import learned, perceptron, short, stack, started
from fourth import attend, norm, program, weight
from jax import lax
from ninth import carried, gated, rms, token_loss, turned
from sixth import attention, convolved, full, kernel
from tenth import applied
from twelfth import cubed, cubes, later

from xlapipe.running.calibration.timed_program import Arg, TimedProgram

F32, BF16, F16, I32 = jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32
I8, U8, U32 = jnp.int8, jnp.uint8, jnp.uint32
Zoo = Iterator[tuple[str, TimedProgram]]
_KEY = Arg((2,), U32, below=1 << 30)


def thirteenth_programs() -> dict[str, TimedProgram]:
    """Every program, by FAMILY/NAME."""
    families = (
        *(language, serving, experts, retrieval, vision, augmentation, diffusion, graphs),
        *(agents, recommenders, audio, series, physics, probability, embeddings, regression),
        solvers,
    )
    return {
        f"{family.__name__}/{name}": program for family in families for name, program in family()
    }


def layered(count: int, tree: Any) -> Any:
    """The weights of `count` layers in one array each, to be scanned."""
    return jax.tree.map(lambda x: Arg((count, *x.shape), x.dtype, x.scale), tree)


def waves(times: Any, size: int) -> Any:
    """Sines and cosines of times."""
    angle = times[..., None] * jnp.exp(-9.2 * jnp.arange(size // 2) / (size // 2))
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1)


def language() -> Zoo:
    """Training: nanoGPT on letters in float32, adapters of weights in int8, and RWKV in steps."""
    clipped = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, 0.9, 0.99))

    def letters(state: Any, tokens: Any) -> Any:
        bias = later(tokens.shape[1] - 1)

        def loss(p: Any) -> Any:
            x = p["table"][tokens[:, :-1]] + p["places"]
            x, _ = lax.scan(lambda x, q: (cubed(x, q, 6, bias), None), x, p["layers"])
            return token_loss(norm(x, p["last"]) @ p["head"], tokens[:, 1:]).mean()

        return learned(clipped, loss, state)

    params = {"table": Arg((65, 384), scale=0.02), "places": Arg((256, 384), scale=0.02)}
    params |= {"layers": layered(3, cubes(384)), "last": Arg((384,)), "head": full(384, 65)}
    yield "letters", carried(letters, started(clipped, params), Arg((48, 257), I32, below=65))

    plain = optax.adamw(2e-4)

    def borrowed(state: Any, frozen: Any, tokens: Any) -> Any:
        """QLoRA-like: only pairs of rank 8 learn, by gradients summed over three parts."""
        places = jnp.arange(tokens.shape[-1] - 1)
        bias = later(tokens.shape[-1] - 1)

        def times(x: Any, w: Any, pair: Any) -> Any:
            codes, scale = w
            return x @ (codes.astype(BF16) * scale) + 2 * ((x @ pair[0]) @ pair[1])

        @jax.checkpoint
        def layer(x: Any, given: Any) -> Any:
            w, pairs = given
            b, s, _ = x.shape
            qkv = times(rms(x, w["scale"][0]), w["qkv"], pairs["qkv"]).reshape(b, s, 36, 128)
            q, k, v = jnp.split(qkv, 3, 2)
            found = attend(turned(q, places), turned(k, places), v, bias).reshape(x.shape)
            x = x + times(found, w["out"], pairs["out"])
            gate, value = jnp.split(times(rms(x, w["scale"][1]), w["up"], pairs["up"]), 2, -1)
            return x + times(jax.nn.silu(gate) * value, w["down"], pairs["down"]), None

        def loss(params: Any, tokens: Any) -> Any:
            x = frozen["table"][tokens[:, :-1]]
            x, _ = lax.scan(layer, x, (frozen["layers"], short(params)))
            return token_loss(rms(x, frozen["last"]) @ frozen["head"], tokens[:, 1:]).mean()

        def part(total: Any, tokens: Any) -> Any:
            value, gradient = jax.value_and_grad(loss)(state[0], tokens)
            return jax.tree.map(jnp.add, total, gradient), value

        total, values = lax.scan(part, jax.tree.map(jnp.zeros_like, state[0]), tokens)
        gradient = jax.tree.map(lambda x: x / tokens.shape[0], total)
        return applied(plain, *state, gradient), values.mean()

    d, wide, words = 1536, 4096, 50257
    sizes = {"qkv": (d, 3 * d), "out": (d, d), "up": (d, 2 * wide), "down": (wide, d)}
    codes = {
        name: (Arg((a, b), I8, below=16), Arg((1, b), BF16, scale=2e-3))
        for name, (a, b) in sizes.items()
    }
    pairs = {name: (full(a, 8), Arg((8, b), scale=0.01)) for name, (a, b) in sizes.items()}
    frozen = {"layers": layered(3, codes | {"scale": Arg((2, d))}), "last": Arg((d,))}
    frozen |= {"table": Arg((words, d), BF16), "head": weight(d, words)}
    state = started(plain, layered(3, pairs))
    yield "borrowed", carried(borrowed, state, frozen, Arg((3, 2, 258), I32, below=words))

    factored = optax.adafactor(1e-3)

    def weighted(state: Any, tokens: Any) -> Any:
        """RWKV 4: a mean of values by keys that fade, one time after the other."""

        def mean(k: Any, v: Any, fade: Any, first: Any) -> Any:
            def step(carry: Any, both: Any) -> Any:
                top, low, peak = carry
                k, v = both
                high = jnp.maximum(peak, first + k)
                old, new = jnp.exp(peak - high), jnp.exp(first + k - high)
                found = (old * top + new * v) / (old * low + new)
                high = jnp.maximum(peak - fade, k)
                old, new = jnp.exp(peak - fade - high), jnp.exp(k - high)
                return (old * top + new * v, old * low + new, high), found

            zero = jnp.zeros_like(k[0])
            return lax.scan(step, (zero, zero, zero - 1e30), (k, v))[1]

        def mixed(x: Any, share: Any) -> Any:
            past = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]
            return x * share + past * (1 - share)

        def loss(params: Any) -> Any:
            p = short(params)
            x = norm(p["table"][tokens[:, :-1]], 1.0)
            for q, wide in zip(p["layers"], params["layers"], strict=True):
                y = norm(x, q["scale"][0])
                k, v, r = (mixed(y, q["shares"][n]) @ q["kvr"][n] for n in range(3))
                k, v = (part.astype(F32).swapaxes(0, 1) for part in (k, v))
                found = mean(k, v, jnp.exp(wide["fade"]), wide["first"]).swapaxes(0, 1)
                x = x + (jax.nn.sigmoid(r) * found.astype(BF16)) @ q["out"]
                y = norm(x, q["scale"][1])
                k = jnp.square(jax.nn.relu(mixed(y, q["shares"][3]) @ q["up"]))
                x = x + jax.nn.sigmoid(mixed(y, q["shares"][4]) @ q["gate"]) * (k @ q["down"])
            return token_loss(norm(x, 1.0) @ p["head"], tokens[:, 1:]).mean()

        return learned(factored, loss, state)

    d = 512
    layer = {"kvr": full(3, d, d), "out": full(d, d), "gate": full(d, d), "scale": Arg((2, d))}
    layer |= {"up": full(d, 4 * d), "down": full(4 * d, d), "shares": Arg((5, d), scale=0.5)}
    layer |= {"fade": Arg((d,)), "first": Arg((d,))}
    params = {"layers": [layer] * 2, "table": Arg((4099, d)), "head": full(d, 4099)}
    yield "weighted", carried(weighted, started(factored, params), Arg((12, 161), I32, below=4099))


def serving() -> Zoo:
    """Tokens of Llama, GPT-NeoX in pages, Mamba and a model with a draft, and a long prompt."""

    def chat(caches: Any, params: Any, last: Any, lengths: Any, key: Any) -> Any:
        """A token of each of seven talks, drawn from the likeliest 50 within 90 percent."""
        b, times = last.shape[0], caches[0][0].shape[1]
        rows, new = jnp.arange(b), []
        unseen = jnp.where(jnp.arange(times) <= lengths[:, None], 0.0, -1e9)[:, None, None]
        x = params["table"][last]
        for p, cache in zip(params["layers"], caches, strict=True):
            y = rms(x, p["scale"][0])
            q = turned((y @ p["q"]).reshape(b, 32, 64), lengths).reshape(b, 8, 4, 64)
            k, v = jnp.split((y @ p["kv"]).reshape(b, 16, 64), 2, 1)
            keys = cache[0].at[rows, lengths].set(turned(k, lengths))
            values = cache[1].at[rows, lengths].set(v)
            new.append((keys, values))
            scores = jnp.einsum("bkgd,bskd->bkgs", q, keys).astype(F32) / 8 + unseen
            shares = jax.nn.softmax(scores).astype(BF16)
            found = jnp.einsum("bkgs,bskd->bkgd", shares, values).reshape(b, -1)
            x = x + found @ p["out"]
            x = x + gated(rms(x, p["scale"][1]), p["up"], p["down"])
        logits = (rms(x, params["last"]) @ params["table"].T).astype(F32)
        best, index = lax.top_k(logits / 0.7, 50)
        shares = jax.nn.softmax(best)
        kept = jnp.cumsum(shares, -1) - shares < 0.9
        drawn = jax.random.categorical(key, jnp.where(kept, best, -1e9))
        return new, jnp.take_along_axis(index, drawn[:, None], 1)[:, 0]

    d, words = 2048, 128256
    layer = {"q": weight(d, d), "kv": weight(d, 1024), "out": weight(d, d), "scale": Arg((2, d))}
    layer |= {"up": weight(d, 16384), "down": weight(8192, d)}
    params = {"layers": [layer] * 4, "table": Arg((words, d), BF16, scale=0.02), "last": Arg((d,))}
    caches = [(Arg((7, 1111, 8, 64), BF16), Arg((7, 1111, 8, 64), BF16))] * 4
    given = (Arg((7,), I32, below=words), Arg((7,), I32, below=1111), _KEY)
    yield "chat", carried(chat, caches, params, *given)

    def booklets(params: Any, pool: Any, scales: Any, pages: Any, lengths: Any, x: Any) -> Any:
        """Keys and values in int8, gathered from pages of 16; attention beside the rest."""
        b, d = x.shape
        seen = jnp.arange(pages.shape[1] * 16) < lengths[:, None]
        seen = jnp.pad(seen, ((0, 0), (0, 1)), constant_values=True)[:, None]

        def layer(x: Any, given: Any) -> Any:
            p, pool, scales = given
            q, k, v = jnp.split((norm(x, p["scale"][0]) @ p["qkv"]).reshape(b, 48, 64), 3, 1)
            q, k = turned(q, lengths), turned(k, lengths)
            wide = pool[:, pages].astype(F16) * scales[:, pages][..., None]
            keys, values = wide.reshape(2, b, -1, 16, 64)
            keys = jnp.concatenate([keys, k[:, None]], 1)
            values = jnp.concatenate([values, v[:, None]], 1)
            scores = jnp.einsum("bhd,bshd->bhs", q, keys).astype(F32) / 8
            shares = jax.nn.softmax(jnp.where(seen, scores, -1e9)).astype(F16)
            found = jnp.einsum("bhs,bshd->bhd", shares, values).reshape(b, d) @ p["out"]
            more = jax.nn.gelu(norm(x, p["scale"][1]) @ p["up"]) @ p["down"]
            return x + found + more, (k, v)

        x, new = lax.scan(layer, x, (params["layers"], pool, scales))
        return (norm(x, 1.0) @ params["head"]).astype(F32).argmax(-1), new

    n, d, count = 5, 1024, 1500
    params = {"layers": layered(n, cubes(d, F16)), "head": weight(d, 50432, dtype=F16)}
    pool = Arg((n, 2, count, 16, 16, 64), I8, below=100)
    given = (Arg((19, 47), I32, below=count), Arg((19,), I32, below=47 * 16), Arg((19, d), F16))
    scales = Arg((n, 2, count, 16, 16), F16, scale=0.02)
    yield "booklets", program(booklets, params, pool, scales, *given)

    def drafts(state: Any, small: Any, large: Any, key: Any) -> Any:
        """A small model guesses four tokens, and a large one checks them in one pass."""

        def read(p: Any, caches: Any, tokens: Any, place: Any) -> Any:
            b, t = tokens.shape
            x, new = p["table"][tokens], []
            places = place + jnp.arange(t)
            unseen = jnp.where(jnp.arange(caches[0].shape[2]) <= places[:, None], 0.0, -1e9)
            for q, old in zip(p["layers"], caches, strict=True):
                qkv = (rms(x, q["scale"][0]) @ q["qkv"]).reshape(b, t, -1, 64)
                one, *both = jnp.split(qkv, 3, 2)
                both[0] = turned(both[0], places)
                cache = lax.dynamic_update_slice(old, jnp.stack(both), (0, 0, place, 0, 0))
                new.append(cache)
                x = x + attend(turned(one, places), *cache, unseen).reshape(x.shape) @ q["out"]
                x = x + jax.nn.gelu(rms(x, q["scale"][1]) @ q["up"]) @ q["down"]
            return (rms(x) @ p["head"]).astype(F32), new

        few, many, texts, place = state
        place = place % 400
        keys = jax.random.split(key, 6)

        def guess(n: Any, carry: Any) -> Any:
            few, texts, shares = carry
            last = lax.dynamic_slice_in_dim(texts, place + n, 1, 1)
            logits, few = read(small, few, last, place + n)
            drawn = jax.random.categorical(keys[n], logits[:, 0])
            texts = lax.dynamic_update_slice(texts, drawn[:, None], (0, place + n + 1))
            return few, texts, shares.at[:, n].set(jax.nn.softmax(logits[:, 0]))

        shares = jnp.zeros((texts.shape[0], 4, small["head"].shape[1]))
        few, texts, shares = lax.fori_loop(0, 4, guess, (few, texts, shares))
        tokens = lax.dynamic_slice_in_dim(texts, place, 5, 1)
        logits, many = read(large, many, tokens, place)
        wanted = jax.nn.softmax(logits)
        picked = tokens[:, 1:, None]
        ratio = jnp.take_along_axis(wanted[:, :4], picked, 2) / (
            jnp.take_along_axis(shares, picked, 2) + 1e-9
        )
        kept = jax.random.uniform(keys[4], picked.shape[:2]) < ratio[..., 0]
        count = jnp.cumprod(kept.astype(I32), 1).sum(1)
        rest = jnp.maximum(wanted - jnp.pad(shares, ((0, 0), (0, 1), (0, 0))), 0.0)
        rest = jnp.take_along_axis(rest, count[:, None, None], 1)[:, 0]
        token = jax.random.categorical(keys[5], jnp.log(rest + 1e-9))
        texts = texts.at[jnp.arange(texts.shape[0]), place + 1 + count].set(token)
        return (few, many, texts, place + 1 + count.min()), count

    def model(d: int, n: int) -> tuple[Any, Any]:
        params = {"layers": [cubes(d, BF16)] * n, "table": Arg((32000, d), BF16)}
        return params | {"head": weight(d, 32000)}, [Arg((2, 3, 420, d // 64, 64), BF16)] * n

    (small, few), (large, many) = model(256, 2), model(1280, 4)
    state = (few, many, Arg((3, 420), I32, below=32000), Arg((), I32, below=400))
    yield "drafts", carried(drafts, state, small, large, _KEY)

    def document(params: Any, tokens: Any) -> Any:
        """A prompt of Mistral with a window of 1,024 tokens, and its cache."""
        b, s = tokens.shape
        places = jnp.arange(s)
        x, caches = params["table"][tokens], []
        for p in params["layers"]:
            y = rms(x, p["scale"][0])
            q, k, v = ((y @ w).reshape(b, s, -1, 128) for w in (p["q"], p["k"], p["v"]))
            q, k = turned(q, places), turned(k, places)
            found = jax.nn.dot_product_attention(
                q, k, v, is_causal=True, local_window_size=(1023, 0)
            )
            x = x + found.reshape(b, s, -1) @ p["out"]
            y = rms(x, p["scale"][1])
            x = x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]
            caches.append((k[:, -1024:], v[:, -1024:]))
        return rms(x[:, -1], params["last"]) @ params["head"], caches

    d, wide = 4096, 14336
    layer = {"q": weight(d, d), "k": weight(d, 1024), "v": weight(d, 1024), "out": weight(d, d)}
    layer |= {"gate": weight(d, wide), "up": weight(d, wide), "down": weight(wide, d)}
    layer |= {"scale": Arg((2, d))}
    params = {"layers": [layer] * 2, "table": Arg((32768, d), BF16), "last": Arg((d,))}
    params |= {"head": weight(d, 32768)}
    yield "document", program(document, params, Arg((1, 1900), I32, below=32768))

    def recurrence(state: Any, params: Any, tokens: Any) -> Any:
        """A token of Mamba for 33 readers: short convolutions and states of 16."""

        def layer(x: Any, given: Any) -> Any:
            p, (window, state) = given
            y, gate = jnp.split(rms(x, p["scale"]) @ p["into"], 2, -1)
            window = jnp.concatenate([window[:, 1:], y[:, None]], 1)
            y = jax.nn.silu((window * p["window"]).sum(1) + p["bias"])
            rate, b, c = jnp.split(y @ p["seen"], [48, 64], -1)
            rate = jax.nn.softplus((rate @ p["rate"]).astype(F32) + p["slow"])[..., None]
            state = jnp.exp(-rate * jnp.exp(p["fade"])) * state
            state = state + rate * b[:, None].astype(F32) * y[..., None].astype(F32)
            y = (state * c[:, None]).sum(-1).astype(BF16) + p["skip"] * y
            return x + (y * jax.nn.silu(gate)) @ p["out"], (window, state)

        x, state = lax.scan(layer, params["table"][tokens], (params["layers"], state))
        return state, (rms(x) @ params["table"].T).argmax(-1)

    n, b, d, wide = 8, 33, 768, 1536
    layer = {"scale": Arg((d,)), "into": weight(d, 2 * wide), "out": weight(wide, d)}
    layer |= {"window": Arg((4, wide), BF16), "bias": Arg((wide,), BF16), "seen": weight(wide, 80)}
    layer |= {"rate": weight(48, wide), "slow": Arg((wide,)), "fade": Arg((wide, 16))}
    layer |= {"skip": Arg((wide,), BF16)}
    params = {"layers": layered(n, layer), "table": Arg((50280, d), BF16, scale=0.03)}
    state = (Arg((n, b, 4, wide), BF16), Arg((n, b, wide, 16)))
    yield "recurrence", carried(recurrence, state, params, Arg((b,), I32, below=50280))


def experts() -> Zoo:
    """Training of a Switch layer: one of twelve experts, whose tokens are scattered to buffers."""
    rule = optax.sgd(0.03, 0.9, nesterov=True)
    count, room = 12, 224

    def switch(state: Any, tokens: Any) -> Any:
        b, s = tokens.shape[0], tokens.shape[1] - 1
        bias = later(s)

        def sent(x: Any, p: Any) -> Any:
            rows = x.reshape(b * s, -1)
            shares = jax.nn.softmax(rows.astype(F32) @ p["route"])
            gate, chosen = shares.max(-1), shares.argmax(-1)
            hot = jax.nn.one_hot(chosen, count, dtype=I32)
            order = ((jnp.cumsum(hot, 0) - 1) * hot).sum(-1)
            slot = jnp.where(order < room, chosen * room + order, count * room)
            buffers = jnp.zeros((count * room, x.shape[-1]), BF16).at[slot].set(rows, mode="drop")
            y = jnp.einsum("ecd,edf->ecf", buffers.reshape(count, room, -1), p["in"])
            y = jnp.einsum("ecf,efd->ecd", jax.nn.relu(y), p["back"]).reshape(count * room, -1)
            found = y.at[slot].get(mode="fill", fill_value=0) * gate[:, None].astype(BF16)
            even = count * (hot.astype(F32).mean(0) * shares.mean(0)).sum()
            return found.reshape(x.shape), even

        def loss(params: Any) -> Any:
            p = short(params)
            x, total = p["table"][tokens[:, :-1]], 0.0
            for q, wide in zip(p["layers"], params["layers"], strict=True):
                x = cubed(x, q, 8, bias)
                y, even = sent(norm(x, 1.0), q | {"route": wide["route"]})
                x, total = x + y, total + 0.01 * even
            return token_loss(norm(x, 1.0) @ p["head"], tokens[:, 1:]).mean() + total

        return learned(rule, loss, state)

    d, words = 512, 10007
    layer = cubes(d, wide=2) | {"route": full(d, count)}
    layer |= {"in": full(count, d, 1024), "back": full(count, 1024, d)}
    params = {"layers": [layer] * 2, "table": Arg((words, d)), "head": full(d, words)}
    yield "switch", carried(switch, started(rule, params), Arg((6, 342), I32, below=words))


def retrieval() -> Zoo:
    """Sixty-four passages against a question by MiniLM in float16, and their order."""

    def reranked(params: Any, tokens: Any, kinds: Any, lengths: Any) -> Any:
        b, s = tokens.shape
        bias = jnp.where(jnp.arange(s) < lengths[:, None], 0.0, -1e4)[:, None, None]
        x = params["table"][tokens] + params["places"] + params["kinds"][kinds]

        def layer(x: Any, p: Any) -> Any:
            parts = (x @ p["qkv"] + p["bias"]).reshape(b, s, 36, 32)
            found = attend(*jnp.split(parts, 3, 2), bias).reshape(x.shape)
            x = norm(x + found @ p["out"], p["scale"][0])
            y = jax.nn.gelu(x @ p["up"], approximate=False) @ p["down"]
            return norm(x + y, p["scale"][1]), None

        x, _ = lax.scan(layer, norm(x, params["first"]), params["layers"])
        scores = (jnp.tanh(x[:, 0] @ params["pool"]) @ params["head"])[:, 0].astype(F32)
        order = jnp.argsort(-scores)
        return order, jax.nn.sigmoid(scores[order])

    d = 384
    layer = cubes(d, F16) | {"bias": Arg((3 * d,), F16, scale=0.1)}
    params = {"layers": layered(6, layer), "first": Arg((d,)), "pool": weight(d, d, dtype=F16)}
    params |= {"table": Arg((30522, d), F16), "places": Arg((200, d), F16)}
    params |= {"kinds": Arg((2, d), F16), "head": weight(d, 1, dtype=F16)}
    given = (Arg((64, 200), I32, below=30522), Arg((64, 200), I32), Arg((64,), I32, below=200))
    yield "reranked", program(reranked, params, *given)


def vision() -> Zoo:
    """Training on digits, CIFAR and with scaled losses; MobileNet and ResNet for few images."""
    simple = optax.sgd(0.1, 0.9)

    def digits(state: Any, images: Any, labels: Any) -> Any:
        """Eight steps of Flax's first example, each with 32 images."""

        def loss(p: Any, x: Any, labels: Any) -> Any:
            for w, b in p["windows"]:
                x = jax.nn.relu(convolved(x, w) + b)
                total = lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
                x = total / 4
            return token_loss(perceptron(x.reshape(x.shape[0], -1), p["dense"]), labels).mean()

        def step(state: Any, given: Any) -> Any:
            x = given[0].astype(F32) / 255
            return learned(simple, lambda p: loss(p, x, given[1]), state)

        return lax.scan(step, state, (images, labels))

    params = {"windows": [(kernel(3, 3, 1, 32, dtype=F32), Arg((32,), scale=0.1))]}
    params["windows"].append((kernel(3, 3, 32, 64, dtype=F32), Arg((64,), scale=0.1)))
    params |= {"dense": stack(3136, 256, 10)}
    given = (Arg((8, 32, 28, 28, 1), U8, below=256), Arg((8, 32), I32, below=10))
    yield "digits", carried(digits, started(simple, params), *given)

    decayed = optax.chain(optax.add_decayed_weights(5e-4), optax.sgd(0.1, 0.9, nesterov=True))

    def small(state: Any, images: Any, labels: Any, key: Any) -> Any:
        """A ResNet of three stages in float32, whose images are flipped and moved."""
        params, means, moments = state
        b = images.shape[0]
        one, two = jax.random.split(key)
        flips = jax.random.bernoulli(one, 0.5, (b, 1, 1, 1))
        start = jax.random.randint(two, (b, 2), 0, 9)
        x = jnp.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0)))
        x = jax.vmap(lambda x, s: lax.dynamic_slice(x, (s[0], s[1], 0), (32, 32, 3)))(x, start)
        x = (jnp.where(flips, x[:, :, ::-1], x).astype(F32) - 120.0) / 64

        def loss(p: Any) -> Any:
            new = []

            def normed(x: Any, w: Any, stride: int = 1) -> Any:
                y = convolved(x, w[0], stride)
                mean = y.mean((0, 1, 2))
                var = jnp.square(y).mean((0, 1, 2)) - jnp.square(mean)
                new.append(jnp.stack([mean, var]))
                return (y - mean) * lax.rsqrt(var + 1e-5) * w[1] + w[2]

            y = jax.nn.relu(normed(x, p["first"]))
            for a, c, skip in p["blocks"]:
                stride = 1 if skip is None else 2
                z = normed(jax.nn.relu(normed(y, a, stride)), c)
                y = jax.nn.relu(z + (y if skip is None else convolved(y, skip, 2)))
            logits = y.mean((1, 2)) @ p["head"]
            return token_loss(logits, labels).mean(), (new, (logits.argmax(-1) == labels).mean())

        (value, (new, right)), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        means = jax.tree.map(lambda m, n: 0.9 * m + 0.1 * n, means, new)
        params, moments = applied(decayed, params, moments, gradient)
        return (params, means, moments), (value, right)

    def window(a: int, b: int) -> tuple[Arg, Arg, Arg]:
        return kernel(3, 3, a, b, dtype=F32), Arg((b,)), Arg((b,), scale=0.1)

    blocks: list[Any] = [(window(16, 16), window(16, 16), None)] * 2
    for c in (32, 64):
        blocks.append((window(c // 2, c), window(c, c), kernel(1, 1, c // 2, c, dtype=F32)))
        blocks.append((window(c, c), window(c, c), None))
    params = {"first": window(3, 16), "blocks": blocks, "head": full(64, 10)}
    means = [Arg((2, c), scale=0.1) for c in (16,) * 5 + (32,) * 4 + (64,) * 4]
    params, moments = started(decayed, params)
    given = (Arg((128, 32, 32, 3), U8, below=256), Arg((128,), I32, below=10), _KEY)
    yield "small", carried(small, (params, means, moments), *given)

    adam = optax.adamw(3e-4, weight_decay=0.05)

    def halves(state: Any, images: Any, labels: Any) -> Any:
        """A vision transformer of 257 tokens in float16, whose losses are scaled."""
        params, moments, scale, since = state
        b = images.shape[0]

        def loss(params: Any) -> Any:
            p = jax.tree.map(lambda x: x.astype(F16), params)
            x = convolved(images, p["patch"], 14).reshape(b, 256, -1)
            first = jnp.broadcast_to(p["first"], (b, 1, x.shape[-1]))
            x = jnp.concatenate([first, x], 1) + p["places"]
            x, _ = lax.scan(lambda x, q: (cubed(x, q, 6), None), x, p["layers"])
            lost = token_loss(norm(x[:, 0], 1.0) @ p["head"], labels).mean()
            return lost * scale, lost

        (_, lost), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        gradient = jax.tree.map(lambda g: g / scale, gradient)
        fine = jnp.all(jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(gradient)]))
        new = applied(adam, params, moments, gradient)
        params, moments = jax.tree.map(lambda n, o: jnp.where(fine, n, o), new, (params, moments))
        grown = jnp.where(since >= 2000, 2 * scale, scale)
        since = jnp.where(fine & (since < 2000), since + 1, 0)
        return (params, moments, jnp.where(fine, grown, scale / 2), since), lost

    d = 384
    params = {"patch": kernel(14, 14, 3, d, dtype=F32), "first": Arg((1, 1, d))}
    params |= {"places": Arg((257, d), scale=0.02), "layers": layered(4, cubes(d))}
    params |= {"head": full(d, 1000)}
    state = (*started(adam, params), Arg(()), Arg((), I32, below=9))
    given = (Arg((22, 224, 224, 3), F16), Arg((22,), I32, below=1000))
    yield "halves", carried(halves, state, *given)

    def mobile(params: Any, image: Any) -> Any:
        """MobileNet 2 for one image in float16, with folded norms."""

        def conv(x: Any, p: Any, stride: int = 1, groups: int = 1) -> Any:
            return convolved(x, p[0], stride, groups) + p[1]

        x = jnp.clip(conv((image.astype(F16) - 127.5) / 127.5, params["first"], 2), 0, 6)
        for stride, (up, deep, down) in zip(strides, params["blocks"], strict=True):
            y = jnp.clip(conv(x, up), 0, 6)
            y = conv(jnp.clip(conv(y, deep, stride, y.shape[-1]), 0, 6), down)
            x = x + y if y.shape == x.shape else y
        x = jnp.clip(conv(x, params["last"]), 0, 6).mean((1, 2))
        return jax.nn.softmax((x @ params["head"]).astype(F32))

    def folded(window: int, a: int, b: int) -> tuple[Arg, Arg]:
        return kernel(window, window, a, b, dtype=F16), Arg((b,), F16, scale=0.1)

    sizes, strides = (32, 24, 24, 32, 64, 64, 96, 160), (2, 1, 2, 2, 1, 1, 2)
    blocks = [
        (folded(1, a, 6 * a), folded(3, 1, 6 * a), folded(1, 6 * a, b)) for a, b in pairwise(sizes)
    ]
    params = {"first": folded(3, 3, 32), "blocks": blocks, "last": folded(1, 160, 1280)}
    params |= {"head": weight(1280, 1001, dtype=F16)}
    yield "mobile", program(mobile, params, Arg((1, 224, 224, 3), U8, below=256))

    def planes(params: Any, x: Any) -> Any:
        """A ResNet with channels before rows, in float32, for three images."""

        def conv(x: Any, p: Any, stride: int = 1) -> Any:
            w, scale, shift = p
            pad = [(w.shape[-1] // 2,) * 2] * 2
            x = lax.conv_general_dilated(x, w, (stride, stride), pad)
            return x * scale[:, None, None] + shift[:, None, None]

        x = jax.nn.relu(conv(x, params["first"], 2))
        pad = ((0, 0), (0, 0), (1, 1), (1, 1))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), pad)
        for n, (a, b, skip) in enumerate(params["blocks"]):
            stride = 2 if n else 1
            y = conv(jax.nn.relu(conv(x, a, stride)), b)
            x = jax.nn.relu(y + conv(x, skip, stride))
        return x.mean((2, 3)) @ params["head"]

    def plane(window: int, a: int, b: int) -> tuple[Arg, Arg, Arg]:
        w = Arg((b, a, window, window), scale=(a * window * window) ** -0.5)
        return w, Arg((b,)), Arg((b,), scale=0.1)

    pairs = ((64, 64), (64, 128), (128, 256), (256, 512))
    blocks = [(plane(3, a, b), plane(3, b, b), plane(1, a, b)) for a, b in pairs]
    params = {"first": plane(7, 3, 64), "blocks": blocks, "head": full(512, 1000)}
    yield "planes", program(planes, params, Arg((3, 3, 224, 224)))

    lion = optax.lion(1e-4, weight_decay=0.1)

    def responses(state: Any, images: Any, labels: Any) -> Any:
        """ConvNeXt 2 with norms of responses over all places, and Lion."""

        def loss(params: Any) -> Any:
            p = short(params)
            x = norm(convolved(images, p["patch"], 4), 1.0)
            for n, blocks in enumerate(p["stages"]):
                if n:
                    x = convolved(norm(x, 1.0), p["down"], 2)
                for q in blocks:
                    y = norm(convolved(x, q["deep"], 1, x.shape[-1]), q["scale"])
                    y = jax.nn.gelu(y @ q["up"])
                    size = jnp.sqrt(jnp.square(y.astype(F32)).sum((1, 2), keepdims=True) + 1e-6)
                    size = (size / (size.mean(-1, keepdims=True) + 1e-6)).astype(BF16)
                    x = x + (y * size * q["gain"] + q["shift"] + y) @ q["back"]
            wanted = optax.smooth_labels(jax.nn.one_hot(labels, 1000), 0.1)
            logits = (norm(x.mean((1, 2)), 1.0) @ p["head"]).astype(F32)
            return optax.softmax_cross_entropy(logits, wanted).mean()

        return learned(lion, loss, state)

    def block(c: int) -> dict[str, Arg]:
        p = {"deep": kernel(7, 7, 1, c, dtype=F32), "scale": Arg((c,)), "up": full(c, 4 * c)}
        return p | {"gain": Arg((4 * c,)), "shift": Arg((4 * c,)), "back": full(4 * c, c)}

    params = {
        "patch": kernel(4, 4, 3, 80, dtype=F32),
        "stages": [[block(80)] * 2, [block(160)] * 2],
    }
    params |= {"down": kernel(2, 2, 80, 160, dtype=F32), "head": full(160, 1000)}
    given = (Arg((30, 160, 160, 3), BF16), Arg((30,), I32, below=1000))
    yield "responses", carried(responses, started(lion, params), *given)


def augmentation() -> Zoo:
    """Parts of 40 images at random sizes, flipped, with other colours and mixed in pairs."""

    def drawn(images: Any, labels: Any, key: Any) -> Any:
        b, h, w, _ = images.shape
        keys = jax.random.split(key, 6)
        area = jax.random.uniform(keys[0], (b,), minval=0.2, maxval=1.0)
        ratio = jnp.exp(jax.random.uniform(keys[1], (b,), minval=-0.3, maxval=0.3))
        tall = jnp.clip(jnp.sqrt(area * h * w / ratio), 1, h)
        wide = jnp.clip(jnp.sqrt(area * h * w * ratio), 1, w)
        scale = 224 / jnp.stack([tall, wide], 1)
        share = jax.random.uniform(keys[2], (b, 2))
        start = -share * (jnp.array([h, w]) - jnp.stack([tall, wide], 1)) * scale

        def resized(image: Any, scale: Any, start: Any) -> Any:
            shape = (224, 224, 3)
            return jax.image.scale_and_translate(image, shape, (0, 1), scale, start, "linear")

        x = jax.vmap(resized)(images.astype(F32) / 255, scale, start)
        x = jnp.where(jax.random.bernoulli(keys[3], 0.5, (b, 1, 1, 1)), x[:, :, ::-1], x)
        light, contrast, colour = jax.random.uniform(
            keys[4], (3, b, 1, 1, 1), minval=0.6, maxval=1.4
        )
        x = jnp.clip(x * light, 0, 1)
        grey = x @ jnp.array([0.299, 0.587, 0.114])
        x = jnp.clip(contrast * x + (1 - contrast) * grey.mean((1, 2))[:, None, None, None], 0, 1)
        grey = (x @ jnp.array([0.299, 0.587, 0.114]))[..., None]
        x = jnp.clip(colour * x + (1 - colour) * grey, 0, 1)
        x = (x - jnp.array([0.485, 0.456, 0.406])) / jnp.array([0.229, 0.224, 0.225])
        mix = jax.random.uniform(keys[5])
        goals = jax.nn.one_hot(labels, 1000)
        x = mix * x + (1 - mix) * x[::-1]
        return x.astype(BF16), mix * goals + (1 - mix) * goals[::-1]

    given = (Arg((40, 375, 500, 3), U8, below=256), Arg((40,), I32, below=1000), _KEY)
    yield "drawn", program(drawn, *given)


def diffusion() -> Zoo:
    """Eight steps of a solver for a model that reads 77 tokens, and training on points."""

    def solver(params: Any, noise: Any, texts: Any) -> Any:
        """DPM-Solver++ of the second order; half of the batch sees no text."""
        b, h, w, c = noise.shape
        times = jnp.linspace(0.999, 0.001, 9)
        alpha, sigma = jnp.cos(times * jnp.pi / 2), jnp.sin(times * jnp.pi / 2)
        level = jnp.log(alpha / sigma)

        def clean(x: Any, n: Any) -> Any:
            y = x.astype(BF16).reshape(b, h // 2, 2, w // 2, 2, c).swapaxes(2, 3)
            y = y.reshape(b, -1, 4 * c) @ params["patch"] + params["places"]
            y = jnp.concatenate([y, y])
            seen = jax.nn.silu(waves(1000 * times[n], 256).astype(BF16) @ params["time"])
            for p in params["layers"]:
                shift, scale, gate = jnp.split(seen @ p["seen"], 3, -1)
                z = norm(y, 1.0) * (1 + scale) + shift
                y = y + gate * attention(z, z, p["own"], p["back"][0], 8)
                y = y + attention(norm(y, 1.0), texts, p["cross"], p["back"][1], 8)
                y = y + jax.nn.gelu(norm(y, 1.0) @ p["up"]) @ p["down"]
            y = (norm(y, 1.0) @ params["head"]).astype(F32)
            y = y[:b] + 4.5 * (y[b:] - y[:b])
            y = y.reshape(b, h // 2, w // 2, 2, 2, c).swapaxes(2, 3).reshape(x.shape)
            return (x - sigma[n] * y) / alpha[n]

        def step(n: Any, carry: Any) -> Any:
            x, old = carry
            new = clean(x, n)
            gap = level[n + 1] - level[n]
            ratio = (level[n] - level[n - 1]) / gap
            wanted = jnp.where(n > 0, new + (new - old) / (2 * ratio), new)
            x = sigma[n + 1] / sigma[n] * x - alpha[n + 1] * jnp.expm1(-gap) * wanted
            return x, new

        return lax.fori_loop(0, 8, step, (noise, jnp.zeros_like(noise)))[0]

    d = 512
    own, cross = [weight(d, d)] * 3, [weight(d, d), weight(768, d), weight(768, d)]
    layer = {"own": own, "cross": cross, "back": [weight(d, d)] * 2, "seen": weight(d, 3 * d)}
    layer |= {"up": weight(d, 4 * d), "down": weight(4 * d, d)}
    params = {"layers": [layer] * 3, "patch": weight(16, d), "places": Arg((144, d), BF16)}
    params |= {"time": weight(256, d), "head": weight(d, 16)}
    yield "solver", program(solver, params, Arg((3, 24, 24, 4)), Arg((6, 77, 768), BF16))

    rule = optax.adamw(1e-3)

    def planar(state: Any, points: Any, key: Any) -> Any:
        """Twenty steps of learning on points of a plane by a small perceptron."""
        total = jnp.cumprod(1 - jnp.linspace(1e-4, 0.02, 50))

        def step(n: Any, carry: Any) -> Any:
            state, lost = carry
            one, two, three = jax.random.split(jax.random.fold_in(key, n), 3)
            clean = points[jax.random.randint(one, (256,), 0, points.shape[0])]
            time = jax.random.randint(two, (256,), 0, 50)
            noise = jax.random.normal(three, clean.shape)
            share = total[time][:, None]
            x = jnp.sqrt(share) * clean + jnp.sqrt(1 - share) * noise

            def loss(p: Any) -> Any:
                parts = [waves(25 * x[:, 0], 128), waves(25 * x[:, 1], 128), waves(time, 128)]
                y = jax.nn.gelu(perceptron(jnp.concatenate(parts, -1), p["first"]))
                for w, b in p["layers"]:
                    y = y + jax.nn.gelu(y @ w + b)
                return ((perceptron(y, p["last"]) - noise) ** 2).mean()

            state, value = learned(rule, loss, state)
            return state, lost + value / 20

        return lax.fori_loop(0, 20, step, (state, jnp.zeros(())))

    params = {"first": stack(384, 128), "layers": stack(128, 128, 128, 128), "last": stack(128, 2)}
    yield "planar", carried(planar, started(rule, params), Arg((8000, 2)), _KEY)


def graphs() -> Zoo:
    """Five epochs of Kipf's network on the papers of Cora."""
    rule = optax.chain(optax.add_decayed_weights(5e-4), optax.adam(0.01))
    nodes, edges = 2708, 13264

    def papers(state: Any, x: Any, ends: Any, labels: Any, known: Any, key: Any) -> Any:
        def degree(index: Any) -> Any:
            return jax.ops.segment_sum(jnp.ones(edges), index, nodes)

        share = lax.rsqrt(jnp.maximum(degree(ends[0])[ends[0]] * degree(ends[1])[ends[1]], 1.0))

        def around(x: Any) -> Any:
            return jax.ops.segment_sum(x[ends[0]] * share[:, None], ends[1], nodes)

        def epoch(state: Any, key: Any) -> Any:
            one, two = jax.random.split(key)

            def dropped(x: Any, key: Any) -> Any:
                return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x * 2, 0.0)

            def loss(p: Any) -> Any:
                y = jax.nn.relu(around(dropped(x, one) @ p[0][0]) + p[0][1])
                y = around(dropped(y, two) @ p[1][0]) + p[1][1]
                return (token_loss(y, labels) * known).sum() / 140

            return learned(rule, loss, state)

        return lax.scan(epoch, state, jax.random.split(key, 5))

    params = stack(1433, 16, 7)
    given = (Arg((nodes, 1433)), Arg((2, edges), I32, below=nodes), Arg((nodes,), I32, below=7))
    yield "papers", carried(papers, started(rule, params), *given, Arg((nodes,), I32), _KEY)


def agents() -> Zoo:
    """PPO with poles in the same program, a decision transformer, and DQN on frames."""
    rule = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(2.5e-4, eps=1e-5))

    def poles(state: Any, key: Any) -> Any:
        """As in PureJaxRL: 32 moves of 1,024 poles, then two epochs of four parts."""
        learner, x = state
        count = x.shape[0]

        def moved(x: Any, act: Any, key: Any) -> Any:
            _, speed, angle, turn = x.T
            push = 20.0 * act - 10.0
            cos, sin = jnp.cos(angle), jnp.sin(angle)
            part = (push + 0.05 * turn**2 * sin) / 1.1
            bend = (9.8 * sin - cos * part) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
            pull = part - 0.05 * bend * cos / 1.1
            change = jnp.stack([speed, pull, turn, bend], 1)
            new = x + 0.02 * change
            done = (jnp.abs(new[:, 0]) > 2.4) | (jnp.abs(new[:, 2]) > 0.209)
            fresh = jax.random.uniform(key, x.shape, minval=-0.05, maxval=0.05)
            return jnp.where(done[:, None], fresh, new), done.astype(F32)

        def both(p: Any, x: Any) -> Any:
            return perceptron(x, p["actor"], jnp.tanh), perceptron(x, p["critic"], jnp.tanh)[..., 0]

        def move(x: Any, key: Any) -> Any:
            one, two = jax.random.split(key)
            logits, value = both(learner[0], x)
            act = jax.random.categorical(one, logits)
            new, done = moved(x, act, two)
            return new, (x, act, -token_loss(logits, act), value, done)

        one, two = jax.random.split(key)
        x, (seen, acts, logs, values, done) = lax.scan(move, x, jax.random.split(one, 32))

        def back(carry: Any, given: Any) -> Any:
            gain, ahead = carry
            value, done = given
            gain = 1.0 + 0.99 * ahead * (1 - done) - value + 0.99 * 0.95 * (1 - done) * gain
            return (gain, value), gain

        start = (jnp.zeros(count), both(learner[0], x)[1])
        _, gains = lax.scan(back, start, (values, done), reverse=True)
        rows = (seen, acts, logs, values, gains)
        rows = tuple(part.reshape(-1, *part.shape[2:]) for part in rows)

        def part(learner: Any, index: Any) -> Any:
            seen, acts, logs, values, gains = (part[index] for part in rows)

            def loss(p: Any) -> Any:
                logits, found = both(p, seen)
                ratio = jnp.exp(-token_loss(logits, acts) - logs)
                even = (gains - gains.mean()) / (gains.std() + 1e-8)
                near = jnp.clip(ratio, 0.8, 1.2)
                goal, kept = gains + values, values + jnp.clip(found - values, -0.2, 0.2)
                apart = jnp.maximum((found - goal) ** 2, (kept - goal) ** 2).mean()
                shares = jax.nn.log_softmax(logits)
                spread = -(jnp.exp(shares) * shares).sum(-1).mean()
                return -jnp.minimum(ratio * even, near * even).mean() + apart / 4 - 0.01 * spread

            return learned(rule, loss, learner)

        def epoch(learner: Any, key: Any) -> Any:
            index = jax.random.permutation(key, 32 * count).reshape(4, -1)
            return lax.scan(part, learner, index)

        learner, lost = lax.scan(epoch, learner, jax.random.split(two))
        return (learner, x), lost

    params = {"actor": stack(4, 64, 64, 2), "critic": stack(4, 64, 64, 1)}
    yield "poles", carried(poles, (started(rule, params), Arg((1024, 4), scale=0.05)), _KEY)

    slow = optax.chain(optax.clip_by_global_norm(0.25), optax.adamw(1e-4, weight_decay=1e-4))

    def decisions(state: Any, returns: Any, seen: Any, acts: Any, times: Any) -> Any:
        """Returns, states and actions in turn, as a sequence of 60 tokens."""
        b, s, _ = seen.shape

        def loss(p: Any) -> Any:
            parts = [perceptron(x, p[n]) for n, x in (("r", returns), ("s", seen), ("a", acts))]
            x = jnp.stack([part + p["times"][times] for part in parts], 2)
            x = norm(x.reshape(b, 3 * s, -1), 1.0)
            bias = later(3 * s)
            for q in p["layers"]:
                x = cubed(x, q, 1, bias)
            found = jnp.tanh(perceptron(x.reshape(b, s, 3, -1)[:, :, 1], p["head"]))
            return ((found - jnp.tanh(acts)) ** 2).mean()

        return learned(slow, loss, state)

    d = 128
    params = {"r": stack(1, d), "s": stack(17, d), "a": stack(6, d), "head": stack(d, 6)}
    params |= {"times": Arg((1000, d), scale=0.02), "layers": [cubes(d)] * 3}
    given = (Arg((64, 20, 1)), Arg((64, 20, 17)), Arg((64, 20, 6)))
    times = Arg((64, 20), I32, below=1000)
    yield "decisions", carried(decisions, started(slow, params), *given, times)

    quick = optax.adam(6.25e-5, eps=1.5e-4)

    def frames(state: Any, before: Any, after: Any, acts: Any, gains: Any, done: Any) -> Any:
        """Double Q-learning with heads for values and advantages, on 32 stacks of frames."""
        params, moments, goal = state

        def values(p: Any, x: Any) -> Any:
            x = x.astype(F32) / 255
            for (w, b), stride in zip(p["windows"], (4, 2, 1), strict=True):
                x = lax.conv_general_dilated(
                    x, w, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
                )
                x = jax.nn.relu(x + b)
            x = x.reshape(x.shape[0], -1)
            more = perceptron(x, p["more"])
            return perceptron(x, p["value"]) + more - more.mean(-1, keepdims=True)

        def picked(x: Any, index: Any) -> Any:
            return jnp.take_along_axis(x, index[:, None], 1)[:, 0]

        best = values(params, after).argmax(-1)
        wanted = gains + 0.99**3 * (1 - done) * picked(values(goal, after), best)

        def loss(p: Any) -> Any:
            apart = picked(values(p, before), acts) - wanted
            return optax.huber_loss(apart).mean(), jnp.abs(apart)

        (value, ranks), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        params, moments = applied(quick, params, moments, gradient)
        goal = optax.incremental_update(params, goal, 0.005)
        return (params, moments, goal), (value, ranks)

    shapes = ((8, 8, 4, 32), (4, 4, 32, 64), (3, 3, 64, 64))
    windows = [(kernel(*s, dtype=F32), Arg((s[-1],), scale=0.1)) for s in shapes]
    params = {"windows": windows, "value": stack(3136, 512, 1), "more": stack(3136, 512, 18)}
    images = Arg((32, 84, 84, 4), U8, below=256)
    given = (images, images, Arg((32,), I32, below=18), Arg((32,)), Arg((32,), scale=0.1))
    yield "frames", carried(frames, (*started(quick, params), params), *given)


def recommenders() -> Zoo:
    """Training of DeepFM on clicks, with dense steps of Adagrad for a million rows."""
    rule = optax.adagrad(0.01)

    def machines(state: Any, numbers: Any, ids: Any, clicks: Any) -> Any:
        def loss(p: Any) -> Any:
            rows = p["table"][ids]
            dense = jnp.log1p(jnp.abs(numbers))
            rows = jnp.concatenate([rows, dense[..., None] * p["numbers"]], 1)
            alone, rows = rows[..., 0].sum(1), rows[..., 1:]
            pairs = jnp.square(rows.sum(1)) - jnp.square(rows).sum(1)
            deep = perceptron(rows.reshape(rows.shape[0], -1), p["deep"])[:, 0]
            logit = alone + pairs.sum(-1) / 2 + deep
            return optax.sigmoid_binary_cross_entropy(logit, clicks).mean()

        return learned(rule, loss, state)

    params = {"table": Arg((1086810, 11), scale=0.01), "numbers": Arg((13, 11), scale=0.01)}
    params |= {"deep": stack(390, 400, 400, 400, 1)}
    given = (Arg((4096, 13)), Arg((4096, 26), I32, below=1086810), Arg((4096,), scale=0.5))
    yield "machines", carried(machines, started(rule, params), *given)


def audio() -> Zoo:
    """Which of twelve words sixteen seconds of sound hold: spectra and a small network."""

    def keywords(params: Any, sound: Any) -> Any:
        index = jnp.arange(98)[:, None] * 160 + jnp.arange(400)
        sound = jnp.pad(sound, ((0, 0), (1, 0)))
        parts = (sound[:, 1:] - 0.97 * sound[:, :-1])[:, index] * jnp.hanning(400)
        spectrum = jnp.fft.rfft(parts, 512)
        power = spectrum.real**2 + spectrum.imag**2
        x = jnp.log(power @ jnp.abs(params["mel"]) + 1e-6) @ params["cosines"]
        x = ((x - x.mean(1, keepdims=True)) / (x.std(1, keepdims=True) + 1e-5))[..., None]
        x = jax.nn.relu(convolved(x, params["first"][0], 2) + params["first"][1])
        for deep, (w, b) in params["layers"]:
            x = jax.nn.relu(convolved(x, deep[0], 1, 64) + deep[1])
            x = jax.nn.relu(x @ w + b)
        return jax.nn.softmax(perceptron(x.mean((1, 2)), params["head"]))

    params = {"mel": full(257, 40), "cosines": full(40, 40), "head": stack(64, 12)}
    params |= {"first": (kernel(10, 4, 1, 64, dtype=F32), Arg((64,)))}
    deep = (kernel(3, 3, 1, 64, dtype=F32), Arg((64,)))
    params |= {"layers": [(deep, *stack(64, 64)) for _ in range(4)]}
    yield "keywords", program(keywords, params, Arg((16, 16000)))


def series() -> Zoo:
    """Training of N-BEATS: blocks explain what the blocks before them left."""
    rule = optax.adam(1e-3)

    def stacks(state: Any, past: Any, future: Any) -> Any:
        def loss(blocks: Any) -> Any:
            scale = jnp.abs(past).mean(-1, keepdims=True) + 1e-5
            rest, total = past / scale, 0.0
            for layers in blocks:
                found = perceptron(rest, layers)
                rest, total = rest - found[:, : past.shape[1]], total + found[:, past.shape[1] :]
            total = total * scale
            apart = jnp.abs(total - future)
            return 200 * (apart / (jnp.abs(total) + jnp.abs(future) + 1e-5)).mean()

        return learned(rule, loss, state)

    params = [stack(90, 256, 256, 256, 256, 108)] * 5
    given = (Arg((257, 90)), Arg((257, 18)))
    yield "stacks", carried(stacks, started(rule, params), *given)


def physics() -> Zoo:
    """Training of a network that obeys Burgers' equation, and flames by their spectra."""
    rule = optax.adam(1e-3)

    def burgers(state: Any, inner: Any, edge: Any, goals: Any) -> Any:
        """Derivatives of the first and the second order go forward, then all goes back."""

        def loss(p: Any) -> Any:
            def u(t: Any, x: Any) -> Any:
                return perceptron(jnp.stack([t, x], 1), p, jnp.tanh)[:, 0]

            t, x = inner
            ones = jnp.ones_like(t)

            def slope(x: Any) -> Any:
                return jax.jvp(lambda x: u(t, x), (x,), (ones,))

            (value, first), (_, second) = jax.jvp(slope, (x,), (ones,))
            speed = jax.jvp(lambda t: u(t, x), (t,), (ones,))[1]
            rest = speed + value * first - 0.01 / jnp.pi * second
            return jnp.square(rest).mean() + jnp.square(u(*edge) - goals).mean()

        return learned(rule, loss, state)

    params = stack(2, *[20] * 8, 1)
    given = (Arg((2, 10000)), Arg((2, 456)), Arg((456,)))
    yield "burgers", carried(burgers, started(rule, params), *given)

    def flames(x: Any) -> Any:
        """Kuramoto and Sivashinsky: 24 exponential steps of the fourth order."""
        n, rate = x.shape[1], 0.25
        wave = jnp.fft.rfftfreq(n, 1 / n) / 16
        linear = wave**2 - wave**4
        whole, half = jnp.exp(rate * linear), jnp.exp(rate * linear / 2)
        angle = jnp.exp(1j * jnp.pi * (jnp.arange(16) + 0.5) / 16)
        around = rate * linear[:, None] + angle
        e = jnp.exp(around)
        q = rate * ((jnp.exp(around / 2) - 1) / around).mean(1).real
        cube = around**3
        a = rate * ((-4 - around + e * (4 - 3 * around + around**2)) / cube).mean(1).real
        b = rate * ((2 + around + e * (around - 2)) / cube).mean(1).real
        c = rate * ((-4 - 3 * around - around**2 + e * (4 - around)) / cube).mean(1).real

        def change(v: Any) -> Any:
            return -0.5j * wave * jnp.fft.rfft(jnp.fft.irfft(v, n) ** 2)

        def step(_: Any, v: Any) -> Any:
            first = change(v)
            one = half * v + q * first
            second = change(one)
            two = half * v + q * second
            third = change(two)
            last = change(half * one + q * (2 * third - first))
            return whole * v + a * first + 2 * b * (second + third) + c * last

        v = lax.fori_loop(0, 24, step, jnp.fft.rfft(x))
        return jnp.fft.irfft(v, n), (v.real**2 + v.imag**2).sum()

    yield "flames", carried(flames, Arg((63, 512), scale=0.1))


def probability() -> Zoo:
    """Sixteen leaps of four chains of weights of a network, and whether they are kept."""

    def bayes(state: Any, x: Any, y: Any, key: Any) -> Any:
        def energy(p: Any) -> Any:
            found = perceptron(x, p["layers"], jnp.tanh)[:, 0]
            fit = 0.5 * jnp.square((found - y) * jnp.exp(-p["noise"])).sum()
            prior = sum(jnp.square(w).sum() for w in jax.tree.leaves(p)) / 2
            return fit + y.size * p["noise"] + prior

        def chain(p: Any, key: Any) -> Any:
            keys = jax.random.split(key, 2)
            leaves, tree = jax.tree.flatten(p)
            drawn = [
                jax.random.normal(k, w.shape)
                for k, w in zip(jax.random.split(keys[0], len(leaves)), leaves, strict=True)
            ]
            speed = jax.tree.unflatten(tree, drawn)

            def pushed(v: Any, p: Any, rate: float) -> Any:
                return jax.tree.map(lambda v, g: v - rate * g, v, jax.grad(energy)(p))

            def leap(_: Any, carry: Any) -> Any:
                p, v = carry
                v = pushed(v, p, 5e-4)
                p = jax.tree.map(lambda p, v: p + 1e-3 * v, p, v)
                return p, pushed(v, p, 5e-4)

            new, last = lax.fori_loop(0, 16, leap, (p, speed))

            def total(p: Any, v: Any) -> Any:
                return energy(p) + sum(jnp.square(w).sum() for w in jax.tree.leaves(v)) / 2

            gain = total(p, speed) - total(new, last)
            kept = jnp.log(jax.random.uniform(keys[1])) < gain
            return jax.tree.map(lambda n, o: jnp.where(kept, n, o), new, p), gain

        return jax.vmap(chain)(state, jax.random.split(key, 4))

    params = layered(4, {"layers": stack(13, 50, 50, 1), "noise": Arg((), scale=0.1)})
    yield "bayes", carried(bayes, params, Arg((506, 13)), Arg((506,)), _KEY)


def embeddings() -> Zoo:
    """Five steps of t-SNE for 3,001 points, with gains of each coordinate."""

    def planar(state: Any, near: Any) -> Any:
        n = near.shape[0]

        def step(state: Any, _: Any) -> Any:
            y, speed, gains = state
            square = (y * y).sum(-1)
            close = 1 / (1 + square[:, None] + square - 2 * y @ y.T)
            close = jnp.where(jnp.eye(n, dtype=bool), 0.0, close)
            share = jnp.maximum(close / close.sum(), 1e-12)
            wanted = jnp.abs(near) / n**2
            pull = (wanted - share) * close
            slope = 4 * (pull.sum(1)[:, None] * y - pull @ y)
            gains = jnp.where((slope > 0) == (speed > 0), gains * 0.8, gains + 0.2)
            gains = jnp.maximum(gains, 0.01)
            speed = 0.8 * speed - 200 * gains * slope
            y = y + speed
            lost = (wanted * jnp.log((wanted + 1e-12) / share)).sum()
            return (y - y.mean(0), speed, gains), lost

        return lax.scan(step, state, None, 5)

    points = Arg((3001, 2), scale=0.01)
    yield "planar", carried(planar, (points, points, points), Arg((3001, 3001)))


def regression() -> Zoo:
    """Ridge regression by a Gaussian kernel of 3,501 rows: twenty rounds of conjugate gradients."""

    def ridge(w: Any, x: Any, y: Any, asked: Any) -> Any:
        def close(a: Any, b: Any) -> Any:
            square = (a * a).sum(-1)[:, None] + (b * b).sum(-1) - 2 * a @ b.T
            return jnp.exp(-jnp.maximum(square, 0.0) / 36)

        matrix = close(x, x) + 0.1 * jnp.eye(x.shape[0])
        rest = y - matrix @ w

        def step(_: Any, carry: Any) -> Any:
            w, rest, way, size = carry
            ahead = matrix @ way
            rate = size / ((way * ahead).sum(0) + 1e-9)
            w, rest = w + rate * way, rest - rate * ahead
            new = (rest * rest).sum(0)
            return w, rest, rest + new / (size + 1e-9) * way, new

        start = (w, rest, rest, (rest * rest).sum(0))
        w, _, _, size = lax.fori_loop(0, 20, step, start)
        return w, close(asked, x) @ w, size

    given = (Arg((3501, 18)), Arg((3501, 3)), Arg((600, 18)))
    yield "ridge", carried(ridge, Arg((3501, 3), scale=0.1), *given)


def solvers() -> Zoo:
    """The lasso by FISTA: ten rounds for the largest eigenvalue, then 50 steps."""

    def lasso(x: Any, a: Any, b: Any) -> Any:
        def larger(_: Any, v: Any) -> Any:
            v = a.T @ (a @ v)
            return v / (jnp.linalg.norm(v) + 1e-9)

        v = lax.fori_loop(0, 10, larger, jnp.ones(a.shape[1]))
        rate = 1 / (jnp.square(a @ v).sum() + 1e-6)

        def step(_: Any, carry: Any) -> Any:
            x, y, t = carry
            z = y - rate * (a.T @ (a @ y - b))
            new = jnp.sign(z) * jnp.maximum(jnp.abs(z) - 0.1 * rate, 0.0)
            later = (1 + jnp.sqrt(1 + 4 * t * t)) / 2
            return new, new + (t - 1) / later * (new - x), later

        x, _, _ = lax.fori_loop(0, 50, step, (x, x, jnp.ones(())))
        return x, 0.5 * jnp.square(a @ x - b).sum() + 0.1 * jnp.abs(x).sum()

    yield "lasso", carried(lasso, Arg((700, 9), scale=0.1), Arg((1500, 700)), Arg((1500, 9)))
