"""A 27th zoo: steps that a reviewer would hold out; written without a look at the predictor."""

from collections.abc import Iterator
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
    zeros,
)

from xlapipe.running.calibration.timed_program import Arg, TimedProgram

F32, BF16, I32 = jnp.float32, jnp.bfloat16, jnp.int32
U8, U32, F8 = jnp.uint8, jnp.uint32, jnp.float8_e4m3fn
Zoo = Iterator[tuple[str, TimedProgram]]
_KEY = Arg((2,), U32, below=1 << 30)


def twentyseventh_programs() -> dict[str, TimedProgram]:
    """Every program, by FAMILY/NAME."""
    families = (
        *(pretraining, serving, experts, retrieval, diffusion, vision, video, speech),
        *(recommenders, agents, graphs, proteins, weather, series, multimodal),
        *(waves, walkers, materials, microscopy, evolution, folding, photographs),
        *(joins, survival, registration, solvers, factors),
    )
    return {
        f"{family.__name__}/{name}": program for family in families for name, program in family()
    }


def pretraining() -> Zoo:
    """Differences of two softmaxes, a block that is run six times, and gradients of low rank."""
    yield "differential", _differential()
    yield "recurrent_depth", _recurrent_depth()
    yield "galore", _galore()


def _differential() -> TimedProgram:
    """The Differential Transformer of four layers by AdEMAMix in bfloat16."""
    d, b, s, vocabulary, many = 1280, 4, 1024, 50304, 10

    def attended(x: Any, q: Any, n: int) -> Any:
        y, places = rms(x, q["one"]), jnp.arange(s)[None]
        a, k = (rope(heads(y @ q[name], 64), places) for name in ("q", "k"))
        v = heads(y @ q["v"], 128)
        scores = jnp.einsum("bqhd,bkhd->bhqk", a, k, preferred_element_type=F32) / 8
        shares = jax.nn.softmax(jnp.where(causal(s), scores, -1e30), -1).astype(BF16)
        first = 0.8 - 0.6 * jnp.exp(-0.3 * n)
        one, two, three, four = q["balance"].astype(F32)
        balance = jnp.exp((one * two).sum()) - jnp.exp((three * four).sum()) + first
        shares = shares.reshape(b, many, 2, s, s)
        shares = shares[:, :, 0] - balance.astype(BF16) * shares[:, :, 1]
        told = jnp.einsum("bhqk,bkhd->bqhd", shares, v)
        told = rms(told, q["inner"]) * (1 - first).astype(BF16)
        return x + told.reshape(b, s, -1) @ q["out"]

    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.contrib.ademamix(3e-4, b3=0.999))

    def update(state: Any, tokens: Any) -> Any:
        def loss(p: Any) -> Any:
            p = half(p)
            x = p["words"][tokens[:, :-1]]
            for n, q in enumerate(p["layers"]):
                x = attended(x, q, n)
                x = x + swiglu(rms(x, q["two"]), q)
            return cross_entropy(rms(x, p["last"]) @ p["head"], tokens[:, 1:]).mean()

        return learned(rule, loss, state)

    layer = {name: master(d, d) for name in ("q", "k", "v", "out")} | swiglu_weights(d, 3456)
    layer |= {"one": Arg((d,)), "two": Arg((d,)), "inner": Arg((128,))}
    layer |= {"balance": Arg((4, 64), scale=0.1)}
    p = {"words": Arg((vocabulary, d), scale=0.02), "layers": [layer] * 4, "last": Arg((d,))}
    p["head"] = master(d, vocabulary)
    return carried(update, started(rule, p), Arg((b, s + 1), I32, below=vocabulary))


def _recurrent_depth() -> TimedProgram:
    """Two layers that run six times over a noisy state; slopes pass through the last four."""
    d, b, s, vocabulary, rounds = 1024, 8, 768, 65536, 6

    def layer(x: Any, q: Any) -> Any:
        places = jnp.arange(s)[None]
        a, k, v = jnp.split(heads(rms(x, q["one"]) @ q["qkv"], 64), 3, 2)
        a, k = rope(a, places, 5e4), rope(k, places, 5e4)
        told = jax.nn.dot_product_attention(a, k, v, is_causal=True).reshape(b, s, d)
        x = rms(x + told @ q["out"], q["two"])
        return rms(x + swiglu(rms(x, q["three"]), q), q["four"])

    def loss(p: Any, tokens: Any, key: Any) -> Any:
        p = half(p)
        given = layer(p["words"][tokens[:, :-1]] * 32, p["before"])

        @jax.checkpoint
        def turn(x: Any, n: Any) -> Any:
            x = jnp.where(n == rounds - 4, lax.stop_gradient(x), x)
            x = jnp.concatenate([x, given], -1) @ p["adapter"]
            for q in p["core"]:
                x = layer(x, q)
            return x, None

        x = jax.random.truncated_normal(key, -3.0, 3.0, given.shape, BF16) * 0.02
        x, _ = lax.scan(turn, x, jnp.arange(rounds))
        x = rms(layer(x, p["after"]), p["last"])
        logits = (x @ p["words"].T).astype(F32)
        norm = jax.nn.logsumexp(logits, -1)
        right = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
        return (norm - right).mean()

    rule = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.contrib.adopt(optax.warmup_constant_schedule(0.0, 4e-4, 4096), b2=0.95),
        optax.add_decayed_weights(1e-5),
    )

    def update(state: Any, tokens: Any, key: Any) -> Any:
        return learned(rule, lambda p: loss(p, tokens, key), state)

    made = {"qkv": master(d, 3 * d), "out": master(d, d)} | swiglu_weights(d, 4096)
    made |= {name: Arg((d,)) for name in ("one", "two", "three", "four")}
    p = {"words": Arg((vocabulary, d), scale=0.02), "before": made, "core": [made] * 2}
    p |= {"after": made, "adapter": master(2 * d, d), "last": Arg((d,))}
    return carried(update, started(rule, p), Arg((b, s + 1), I32, below=vocabulary), _KEY)


def _galore() -> TimedProgram:
    """Eight layers of Llama by GaLore: Adam sees gradients in a space of 192 dimensions."""
    d, b, s, vocabulary, rank = 768, 32, 256, 32000, 192

    def loss(p: Any, tokens: Any) -> Any:
        places = jnp.arange(s)[None]

        def layer(x: Any, q: Any) -> Any:
            q = half(q)
            y = rms(x, q["one"])
            a, k, v = (heads(y @ q[name], 64) for name in ("q", "k", "v"))
            told = attention(rope(a, places), rope(k, places), v, causal(s))
            x = x + told @ q["out"]
            return x + swiglu(rms(x, q["two"]), q), None

        x, _ = lax.scan(layer, p["words"].astype(BF16)[tokens[:, :-1]], p["layers"])
        return cross_entropy(rms(x, p["last"]) @ p["head"].astype(BF16), tokens[:, 1:]).mean()

    def moved(m: Any, v: Any, g: Any, count: Any) -> Any:
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        return m, v, m / (1 - 0.9**count) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8)

    def update(state: Any, tokens: Any) -> Any:
        params, known, count = state
        value, grads = jax.value_and_grad(loss)(params, tokens)
        leaves, tree = jax.tree.flatten(params)
        slopes, count = tree.flatten_up_to(grads), count + 1
        new, later = [], []
        for w, slope, k in zip(leaves, slopes, tree.flatten_up_to(known), strict=True):
            g, basis = slope, k.get("basis")
            left = basis is not None and w.shape[-2] <= w.shape[-1]
            if basis is not None:
                g = jnp.einsum("nar,nab->nrb" if left else "nbr,nab->nar", basis, g)
            m, v, step = moved(k["m"], k["v"], g, count.astype(F32))
            if basis is not None:
                step = jnp.einsum("nar,nrb->nab" if left else "nbr,nar->nab", basis, step) / 4
            new.append(w - 1e-2 * step)
            later.append(k | {"m": m, "v": v})
        return (tree.unflatten(new), tree.unflatten(later), count), value

    def memory(w: Arg) -> Any:
        if len(w.shape) < 3:
            return {"m": zeros(w), "v": zeros(w)}
        n, a, c = w.shape
        low = Arg((n, rank, c) if a <= c else (n, a, rank), scale=0.0)
        return {"basis": Arg((n, min(a, c), rank), scale=min(a, c) ** -0.5), "m": low, "v": low}

    layer = {name: master(d, d) for name in ("q", "k", "v", "out")} | swiglu_weights(d, 2048)
    p = {"words": Arg((vocabulary, d), scale=0.02), "head": master(d, vocabulary)}
    p |= {"layers": times(8, layer | {"one": Arg((d,)), "two": Arg((d,))}), "last": Arg((d,))}
    state = (p, jax.tree.map(memory, p), Arg((), I32, below=9))
    return carried(update, state, Arg((b, s + 1), I32, below=vocabulary))


def serving() -> Zoo:
    """A token of 16 replies by gated delta states, and a prompt by float8 in blocks of 128^2."""
    yield "delta_token", _delta_token()
    yield "block_scales", _block_scales()


def _delta_token() -> TimedProgram:
    """A token of Qwen3-Next's hybrid: three layers of states to one of gated attention."""
    d, b, room, groups, vocabulary, wide = 2048, 16, 3072, 4, 151936, 5632

    def unit(x: Any) -> Any:
        x = x.astype(F32)
        return x * lax.rsqrt(jnp.square(x).sum(-1, keepdims=True) + 1e-6)

    def stated(x: Any, given: Any) -> Any:
        q, state, window = given
        y = rms(x, q["one"])
        mixed, z = jnp.split(y @ q["qkvz"], [8192], -1)
        window = jnp.concatenate([window, mixed[:, None]], 1)
        mixed = jax.nn.silu((window.astype(F32) * q["conv"]).sum(1))
        a, k, v = jnp.split(mixed, [2048, 4096], -1)
        a, k = (jnp.repeat(unit(heads(part, 128)), 2, 1) for part in (a, k))
        write, fade = jnp.split((y @ q["gates"]).astype(F32), 2, -1)
        fade = jnp.exp(-jnp.exp(q["speed"]) * jax.nn.softplus(fade + q["shift"]))
        state = state * fade[..., None, None]
        new = heads(v, 128) - jnp.einsum("bhde,bhd->bhe", state, k)
        new = new * jax.nn.sigmoid(write)[..., None]
        state = state + k[..., None] * new[..., None, :]
        told = jnp.einsum("bhde,bhd->bhe", state, a * 128**-0.5)
        told = rms(told, q["inner"]) * jax.nn.silu(heads(z, 128).astype(F32))
        x = x + told.reshape(b, -1).astype(BF16) @ q["out"]
        return x + swiglu(rms(x, q["two"]), q), (state, window[:, 1:])

    def looked(x: Any, q: Any, keys: Any, values: Any, lengths: Any) -> Any:
        y = rms(x, q["one"])
        a, gate = jnp.split(heads(y @ q["q"], 512)[:, None], 2, -1)
        k, v = jnp.split(heads(y @ q["kv"], 256)[:, None], 2, 2)
        a, k = rms(a, q["inner"]), rms(k, q["inner"])
        places, rows = lengths[:, None], jnp.arange(b)

        def turned(part: Any) -> Any:
            near, rest = jnp.split(part, [64], -1)
            return jnp.concatenate([rope(near, places, 1e7), rest], -1)

        keys = keys.at[rows, lengths].set(turned(k)[:, 0])
        values = values.at[rows, lengths].set(v[:, 0])
        seen = (jnp.arange(room) <= places)[:, None, None]
        told = attention(turned(a), keys, values, seen)[:, 0]
        x = x + (told * jax.nn.sigmoid(gate.reshape(b, -1))) @ q["out"]
        return x + swiglu(rms(x, q["two"]), q), keys, values

    def token(caches: Any, p: Any, words: Any, lengths: Any) -> Any:
        lengths = lengths + room // 4

        def group(x: Any, given: Any) -> Any:
            q, (states, windows, keys, values) = given
            x, memory = lax.scan(stated, x, (q["states"], states, windows))
            x, keys, values = looked(x, q["look"], keys, values, lengths)
            return x, (*memory, keys, values)

        x, caches = lax.scan(group, p["words"][words], (p["groups"], caches))
        logits = (rms(x, p["last"]) @ p["head"]).astype(F32)
        best, names = lax.top_k(logits, 20)
        return caches, names[:, 0], jax.nn.log_softmax(best)

    both = swiglu_weights(d, wide, weight) | {"one": Arg((d,), BF16), "two": Arg((d,), BF16)}
    states = {"qkvz": weight(d, 12288), "conv": Arg((4, 8192), scale=0.5), "gates": weight(d, 64)}
    states |= {"speed": Arg((32,)), "shift": Arg((32,)), "inner": Arg((128,))}
    states |= {"out": weight(4096, d)} | both
    look = {"q": weight(d, 8192), "kv": weight(d, 1024), "out": weight(4096, d)}
    look |= {"inner": Arg((256,), BF16)} | both
    p = {"words": weight(vocabulary, d), "last": Arg((d,), BF16), "head": weight(d, vocabulary)}
    p["groups"] = times(groups, {"states": times(3, states), "look": look})
    cache = Arg((groups, b, room, 2, 256), BF16)
    caches = (Arg((groups, 3, b, 32, 128, 128), scale=0.1), Arg((groups, 3, b, 3, 8192), BF16))
    words, lengths = Arg((b,), I32, below=vocabulary), Arg((b,), I32, below=room // 2)
    return carried(token, (*caches, cache, cache), p, words, lengths)


def _block_scales() -> TimedProgram:
    """Eight layers read two prompts; weights and rows are float8 with scales of 128 as V3's."""
    d, b, s, wide, size = 2048, 2, 1024, 6144, 128

    def product(x: Any, p: Any) -> Any:
        w, scale = p
        groups = x.astype(F32).reshape(*x.shape[:-1], -1, 128)
        most = jnp.maximum(jnp.abs(groups).max(-1, keepdims=True), 1e-4) / 448
        x = ((groups / most).astype(F8).astype(F32) * most).astype(BF16).reshape(x.shape)
        blocks = w.reshape(w.shape[0] // 128, 128, w.shape[1] // 128, 128).astype(F32)
        return x @ (blocks * scale[:, None, :, None]).reshape(w.shape).astype(BF16)

    def prompt(p: Any, tokens: Any, lengths: Any) -> Any:
        places = jnp.arange(s)
        lengths = lengths + s // 2
        mask = causal(s) & (places < lengths[:, None])[:, None, None]

        def layer(x: Any, q: Any) -> Any:
            y = rms(x, q["one"])
            a, k, v = jnp.split(heads(product(y, q["qkv"]), size), [16, 20], 2)
            a, k = (rope(rms(part), places[None], 1e6) for part in (a, k))
            x = x + product(attention(a, k, v, mask), q["out"])
            gate, up = jnp.split(product(rms(x, q["two"]), q["up"]), 2, -1)
            return x + product(jax.nn.silu(gate) * up, q["down"]), (k.astype(F8), v.astype(F8))

        x, caches = lax.scan(layer, p["words"][tokens], p["layers"])
        last = jnp.take_along_axis(x, lengths[:, None, None] - 1, 1)[:, 0]
        return caches, (rms(last, p["last"]) @ p["head"]).astype(F32)

    def made(a: int, c: int) -> Any:
        return weight(a, c, dtype=F8), Arg((a // 128, c // 128))

    layer = {"qkv": made(d, 24 * size), "out": made(d, d), "up": made(d, 2 * wide)}
    layer |= {"down": made(wide, d), "one": Arg((d,), BF16), "two": Arg((d,), BF16)}
    p = {"words": weight(129280, d), "layers": times(8, layer), "last": Arg((d,), BF16)}
    p["head"] = weight(d, 129280)
    tokens = Arg((b, s), I32, below=129280)
    return program(prompt, p, tokens, Arg((b,), I32, below=s // 2))


class ProductKeys(nn.Module):
    """PEER: each head finds 16 of 512 x 512 experts of one neuron by two short lists of keys."""

    heads: int = 4
    side: int = 512
    most: int = 16

    @nn.compact
    def __call__(self, x: Any) -> Any:
        d, h, k = x.shape[-1], self.heads, self.most
        keys = self.param("keys", nn.initializers.lecun_normal(), (2, h, self.side, 64))
        rows = (self.side**2, d)
        down = self.param("down", nn.initializers.normal(0.02), rows)
        up = self.param("up", nn.initializers.normal(0.02), rows)
        asked = nn.Dense(2 * h * 64, use_bias=False, dtype=BF16)(x)
        asked = nn.LayerNorm(dtype=BF16)(asked.reshape(*x.shape[:-1], 2, h, 64))
        scores = jnp.einsum("bsphd,phkd->bsphk", asked, keys.astype(BF16)).astype(F32)
        best, where = lax.top_k(scores, k)
        both = best[:, :, 0, :, :, None] + best[:, :, 1, :, None, :]
        names = where[:, :, 0, :, :, None] * self.side + where[:, :, 1, :, None, :]
        best, where = lax.top_k(both.reshape(*both.shape[:-2], k * k), k)
        names = jnp.take_along_axis(names.reshape(*both.shape[:-2], k * k), where, -1)
        bent = jnp.einsum("bsd,bshkd->bshk", x, jnp.take(down, names, axis=0).astype(BF16))
        bent = nn.gelu(bent) * nn.softmax(best).astype(BF16)
        return jnp.einsum("bshk,bshkd->bsd", bent, jnp.take(up, names, axis=0).astype(BF16))


class PeerModel(nn.Module):
    """A decoder of four layers, whose third has experts of one neuron."""

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        table = nn.Embed(32000, 512, dtype=BF16)
        x = table(tokens) + nn.Embed(512, 512, dtype=BF16)(jnp.arange(tokens.shape[1]))
        mask = nn.make_causal_mask(tokens)
        for n in range(4):
            y = nn.LayerNorm(dtype=BF16)(x)
            x = x + nn.MultiHeadDotProductAttention(8, dtype=BF16)(y, mask=mask)
            y = nn.LayerNorm(dtype=BF16)(x)
            if n == 2:
                x = x + ProductKeys()(y)
            else:
                x = x + nn.Dense(512, dtype=BF16)(nn.gelu(nn.Dense(2048, dtype=BF16)(y)))
        return table.attend(nn.LayerNorm(dtype=BF16)(x))


def experts() -> Zoo:
    """Training of a decoder in linen with 262,144 experts of one neuron, found by product keys."""
    model, b, s = PeerModel(), 6, 512
    rule = optax.adam(optax.cosine_decay_schedule(1e-3, 100000), b2=0.99)

    def update(state: Any, tokens: Any) -> Any:
        def loss(params: Any) -> Any:
            return cross_entropy(model.apply(params, tokens[:, :-1]), tokens[:, 1:]).mean()

        return learned(rule, loss, state)

    params = linen_weights(model, Arg((b, s), I32))
    yield "product_keys", carried(update, started(rule, params), Arg((b, s + 1), I32, below=32000))


class Splade(nn.Module):
    """DistilBERT whose head says how much each word of 30,522 matters to a text."""

    @nn.compact
    def __call__(self, tokens: Any, real: Any) -> Any:
        words = nn.Embed(30522, 768, dtype=BF16)
        x = words(tokens) + nn.Embed(512, 768, dtype=BF16)(jnp.arange(tokens.shape[1]))
        x = nn.LayerNorm(dtype=BF16)(x)
        mask = real[:, None, None]
        for _ in range(6):
            y = nn.MultiHeadDotProductAttention(12, dtype=BF16)(x, mask=mask)
            x = nn.LayerNorm(dtype=BF16)(x + y)
            y = nn.Dense(768, dtype=BF16)(nn.gelu(nn.Dense(3072, dtype=BF16)(x), False))
            x = nn.LayerNorm(dtype=BF16)(x + y)
        x = nn.LayerNorm(dtype=BF16)(nn.gelu(nn.Dense(768, dtype=BF16)(x), False))
        bias = self.param("bias", nn.initializers.zeros, (30522,))
        said = jnp.log1p(nn.relu(words.attend(x).astype(F32) + bias))
        return jnp.where(real[..., None], said, 0).max(1)


def retrieval() -> Zoo:
    """SPLADE learns sparse words of 24 questions and 48 texts from a cross-encoder's margins."""
    model, asked, short, long = Splade(), 24, 32, 144
    rule = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 2e-5, 6000, 150000)),
    )

    def update(state: Any, questions: Any, texts: Any, lengths: Any, margins: Any) -> Any:
        real = jnp.arange(long) < lengths[:, None] + 40

        def loss(params: Any) -> Any:
            q = model.apply(params, questions, questions > 300)
            d = model.apply(params, texts, real)
            good, bad = jnp.split(d, 2)
            margin = (q * good).sum(-1) - (q * bad).sum(-1)
            sparse = 3e-4 * jnp.square(q.mean(0)).sum() + 1e-4 * jnp.square(d.mean(0)).sum()
            inside = cross_entropy(q @ d.T, jnp.arange(asked))
            return jnp.square(margin - margins).mean() + sparse + 0.1 * inside.mean()

        return learned(rule, loss, state)

    questions = Arg((asked, short), I32, below=30522)
    texts = Arg((2 * asked, long), I32, below=30522)
    params = linen_weights(model, questions, Arg((asked, short), jnp.bool_))
    given = (Arg((2 * asked,), I32, below=long - 40), Arg((asked,)))
    yield "splade", carried(update, started(rule, params), questions, texts, *given)


def _came(params: Any, known: Any, grads: Any, rate: float = 1e-4) -> Any:
    """A step of CAME: second moments by rows and columns, and how sure a step is."""

    def factors(x: Any, k: Any, decay: float, name: str) -> Any:
        rows = decay * k[f"{name}_rows"] + (1 - decay) * x.mean(-1)
        columns = decay * k[f"{name}_columns"] + (1 - decay) * x.mean(-2)
        share = lax.rsqrt(rows / rows.mean(-1, keepdims=True))
        kept = {f"{name}_rows": rows, f"{name}_columns": columns}
        return share[..., None] * lax.rsqrt(columns)[..., None, :], kept

    def step(w: Any, g: Any, k: Any) -> Any:
        square = g * g + 1e-30
        if w.ndim < 2:
            v = 0.999 * k["v"] + 0.001 * square
            u, k = g * lax.rsqrt(v), k | {"v": v}
        else:
            scale, new = factors(square, k, 0.999, "size")
            u, k = g * scale, k | new
        u = u / jnp.maximum(1.0, jnp.sqrt(jnp.square(u).mean()))
        m = 0.9 * k["m"] + 0.1 * u
        k, change = k | {"m": m}, m
        if w.ndim >= 2:
            scale, new = factors(jnp.square(u - m) + 1e-16, k, 0.9999, "doubt")
            change, k = m * scale, k | new
        return w - rate * change, k

    leaves, tree = jax.tree.flatten(params)
    both = (tree.flatten_up_to(grads), tree.flatten_up_to(known))
    moved = [step(*given) for given in zip(leaves, *both, strict=True)]
    return tree.unflatten([w for w, _ in moved]), tree.unflatten([k for _, k in moved])


def _came_memory(w: Arg) -> Any:
    if len(w.shape) < 2:
        return {"m": zeros(w), "v": zeros(w)}
    rows, columns = Arg(w.shape[:-1], scale=0.0), Arg((*w.shape[:-2], w.shape[-1]), scale=0.0)
    made = {f"{name}_rows": rows for name in ("size", "doubt")}
    return made | {f"{name}_columns": columns for name in ("size", "doubt")} | {"m": zeros(w)}


def diffusion() -> Zoo:
    """Sana: linear attention and gated windows learn the flow of 12 latents, by CAME."""
    d, b, side, channels, wide = 768, 12, 32, 32, 1920

    def linear(x: Any, q: Any) -> Any:
        a, k, v = jnp.split(heads(x @ q["qkv"], 32), 3, 2)
        a, k, v = jax.nn.relu(rms(a)), jax.nn.relu(rms(k)), v.astype(F32)
        v = jnp.pad(v, ((0, 0),) * 3 + ((0, 1),), constant_values=1.0)
        state = jnp.einsum("bnhd,bnhe->bhde", k.astype(F32), v)
        told = jnp.einsum("bnhd,bhde->bnhe", a.astype(F32), state)
        told = told[..., :-1] / (told[..., -1:] + 1e-6)
        return told.reshape(x.shape).astype(BF16) @ q["out"]

    def windows(x: Any, q: Any) -> Any:
        y = jax.nn.silu(x @ q["up"]).reshape(b, side, side, 2 * wide)
        y, gate = jnp.split(conv(y, q["near"], groups=2 * wide), 2, -1)
        return (y * jax.nn.silu(gate)).reshape(b, side * side, wide) @ q["down"]

    def velocity(p: Any, x: Any, text: Any, time: Any) -> Any:
        p = half(p)
        waves = time[:, None] * 1000 * 1e4 ** (-jnp.arange(128) / 128)
        level = jnp.concatenate([jnp.cos(waves), jnp.sin(waves)], -1).astype(BF16)
        level = jax.nn.silu(level @ p["time1"]) @ p["time2"]
        six = (jax.nn.silu(level) @ p["six"]).reshape(b, 6, 1, d)
        text = rms(jax.nn.gelu(text @ p["text1"]) @ p["text2"], p["text"])
        x = x.astype(BF16).reshape(b, side * side, channels) @ p["in"]

        def layer(x: Any, q: Any) -> Any:
            parts = six + q["table"][:, None]
            shift1, scale1, gate1, shift2, scale2, gate2 = (parts[:, n] for n in range(6))
            x = x + gate1 * linear(layer_norm(x) * (1 + scale1) + shift1, q)
            k, v = jnp.split(heads(text @ q["kv"], 64), 2, 2)
            x = x + attention(heads(x @ q["ask"], 64), k, v) @ q["told"]
            return x + gate2 * windows(layer_norm(x) * (1 + scale2) + shift2, q), None

        x, _ = lax.scan(layer, x, p["layers"])
        x = layer_norm(x) * (1 + level[:, None]) @ p["last"]
        return x.astype(F32).reshape(b, side, side, channels)

    def update(state: Any, latents: Any, text: Any, key: Any) -> Any:
        params, known = state
        one, two = jax.random.split(key)
        time = jax.nn.sigmoid(jax.random.normal(one, (b,)))
        noise, wide_time = jax.random.normal(two, latents.shape), time[:, None, None, None]

        def loss(params: Any) -> Any:
            x = (1 - wide_time) * latents + wide_time * noise
            return jnp.square(velocity(params, x, text, time) - (noise - latents)).mean()

        value, grads = jax.value_and_grad(loss)(params)
        return _came(params, known, grads), value

    layer = {"qkv": master(d, 3 * d), "out": master(d, d), "kv": master(d, 2 * d)}
    layer |= {"ask": master(d, d), "told": master(d, d), "up": master(d, 2 * wide)}
    layer |= {"near": filters(3, 3, 1, 2 * wide), "down": master(wide, d), "table": Arg((6, d))}
    p = {"time1": master(256, d), "time2": master(d, d), "six": master(d, 6 * d)}
    p |= {"text1": master(2304, d), "text2": master(d, d), "text": Arg((d,))}
    p |= {"in": master(channels, d), "layers": times(6, layer), "last": master(d, channels)}
    given = (Arg((b, side, side, channels)), Arg((b, 120, 2304), BF16))
    yield "sana", carried(update, (p, jax.tree.map(_came_memory, p)), *given, _KEY)


class ConvMixer(nn.Module):
    """Patches of seven pixels, then windows of nine by channel and products by pixel."""

    @nn.compact
    def __call__(self, x: Any, train: bool = True) -> Any:
        def normed(x: Any) -> Any:
            kw = {"use_running_average": not train, "momentum": 0.9, "dtype": BF16}
            return nn.BatchNorm(**kw)(nn.gelu(x))

        x = normed(nn.Conv(384, (7, 7), 7, dtype=BF16)(x))
        for _ in range(6):
            y = nn.Conv(384, (9, 9), feature_group_count=384, dtype=BF16)(x)
            x = x + normed(y)
            x = normed(nn.Conv(384, (1, 1), dtype=BF16)(x))
        return nn.Dense(1000)(x.mean((1, 2)).astype(F32))


def vision() -> Zoo:
    """ConvMixer in linen learns 40 pictures mixed in pairs, with batch norms, by NovoGrad."""
    model, b, side = ConvMixer(), 40, 196
    rule = optax.novograd(optax.cosine_onecycle_schedule(50000, 1e-2), weight_decay=1e-3)

    def update(state: Any, shown: Any, labels: Any, key: Any) -> Any:
        learner, stats = state
        one, two, three = jax.random.split(key, 3)
        x = (shown.astype(F32) / 255 - jnp.array([0.485, 0.456, 0.406])) / 0.225
        flip = jax.random.bernoulli(one, 0.5, (b, 1, 1, 1))
        x = jnp.where(flip, x[:, :, ::-1], x)
        gain = 1 + 0.4 * jax.random.uniform(two, (2, b, 1, 1, 1), minval=-1)
        grey = x.mean(-1, keepdims=True)
        x = grey + (x * gain[0] - grey) * gain[1]
        share = jax.random.uniform(three)
        x = share * x + (1 - share) * x[::-1]
        right = optax.smooth_labels(jax.nn.one_hot(labels, 1000), 0.1)
        right = share * right + (1 - share) * right[::-1]

        def loss(params: Any) -> Any:
            given = {"params": params, "batch_stats": stats}
            logits, new = model.apply(given, x, mutable=["batch_stats"])
            return optax.softmax_cross_entropy(logits, right).mean(), new["batch_stats"]

        params, known = learner
        (value, new), grads = jax.value_and_grad(loss, has_aux=True)(params)
        changes, known = rule.update(grads, known, params)
        return ((optax.apply_updates(params, changes), known), new), value

    shown = Arg((b, side, side, 3), U8, below=256)
    weights = linen_weights(model, Arg((b, side, side, 3)))
    state = (started(rule, weights["params"]), weights["batch_stats"])
    yield "conv_mixer", carried(update, state, shown, Arg((b,), I32, below=1000), _KEY)


class TimesBlock(nnx.Module):
    """Attention to the same place in other frames, then to the same frame, then a perceptron."""

    def __init__(self, d: int, rngs: nnx.Rngs):
        kw = {"dtype": BF16, "rngs": rngs}
        self.norms = nnx.List([nnx.LayerNorm(d, **kw) for _ in range(3)])
        self.qkv = nnx.List([nnx.Linear(d, 3 * d, **kw) for _ in range(2)])
        self.out = nnx.List([nnx.Linear(d, d, **kw) for _ in range(2)])
        self.after = nnx.Linear(d, d, **kw)
        self.up, self.down = nnx.Linear(d, 4 * d, **kw), nnx.Linear(4 * d, d, **kw)

    def look(self, x: Any, n: int) -> Any:
        y = self.qkv[n](self.norms[n](x)).reshape(-1, x.shape[-2], 3, x.shape[-1] // 64, 64)
        y = jax.nn.dot_product_attention(y[:, :, 0], y[:, :, 1], y[:, :, 2])
        return self.out[n](y.reshape(x.shape))

    def __call__(self, x: Any) -> Any:
        y = self.look(x.swapaxes(1, 2), 0).swapaxes(1, 2)
        x = x + self.after(y)
        x = x + self.look(x, 1)
        return x + self.down(nnx.gelu(self.up(self.norms[2](x))))


class TimeSformer(nnx.Module):
    """TimeSformer of six layers: patches of 16 pixels in eight frames."""

    def __init__(self, rngs: nnx.Rngs):
        d = 768
        self.patches = nnx.Conv(3, d, (1, 16, 16), (1, 16, 16), dtype=BF16, rngs=rngs)
        self.places = nnx.Param(jnp.zeros((1, 1, 196, d)))
        self.moments = nnx.Param(jnp.zeros((1, 8, 1, d)))
        self.blocks = nnx.List([TimesBlock(d, rngs) for _ in range(6)])
        self.norm = nnx.LayerNorm(d, dtype=BF16, rngs=rngs)
        self.head = nnx.Linear(d, 400, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = self.patches(x)
        x = x.reshape(*x.shape[:2], -1, x.shape[-1])
        x = (x + self.places[...] + self.moments[...]).astype(BF16)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean((1, 2)).astype(F32))


def video() -> Zoo:
    """TimeSformer in nnx learns six clips of eight frames: time first, then space."""
    call, params = nnx_parts(lambda: TimeSformer(nnx.Rngs(0)))
    b = 6
    rule = optax.chain(
        optax.add_decayed_weights(1e-4),
        optax.sgd(
            optax.piecewise_constant_schedule(5e-3, {11000: 0.1, 14000: 0.1}),
            momentum=0.9,
            nesterov=True,
        ),
    )

    def update(state: Any, clips: Any, labels: Any, key: Any) -> Any:
        flip = jax.random.bernoulli(key, 0.5, (b, 1, 1, 1, 1))
        x = (clips.astype(BF16) / 255 - 0.45) / 0.225
        x = jnp.where(flip, x[:, :, :, ::-1], x)

        def loss(params: Any) -> Any:
            return cross_entropy(call(params, x), labels).mean()

        return learned(rule, loss, state)

    clips = Arg((b, 8, 224, 224, 3), U8, below=256)
    labels = Arg((b,), I32, below=400)
    yield "timesformer", carried(update, started(rule, params), clips, labels, _KEY)


def _conv1(x: Any, w: Any, bias: Any = 0.0) -> Any:
    y = lax.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
    return y + bias


def _lstm(state: Any, given: Any, p: Any) -> Any:
    """A step of an LSTM, and its state."""
    h, c = state
    i, f, g, o = jnp.split(given @ p["in"] + h @ p["again"] + p["bias"], 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def _lstm_weights(a: int, h: int) -> Any:
    return {"in": master(a, 4 * h), "again": master(h, 4 * h), "bias": Arg((4 * h,), scale=0.1)}


def speech() -> Zoo:
    """Tacotron 2 in float32: 24 sentences, 72 steps of attention that knows where it looked."""
    b, letters, steps, mel, size = 24, 64, 72, 80, 1024

    def dropped(x: Any, key: Any, kept: float) -> Any:
        return jnp.where(jax.random.bernoulli(key, kept, x.shape), x / kept, 0)

    def encoded(p: Any, text: Any) -> Any:
        x = p["letters"][text]
        for w, scale in p["near"]:
            y = _conv1(x, w)
            mean, spread = y.mean((0, 1)), y.var((0, 1))
            x = jax.nn.relu((y - mean) * lax.rsqrt(spread + 1e-3) * scale)

        def way(x: Any, q: Any) -> Any:
            def step(state: Any, given: Any) -> Any:
                state = _lstm(state, given, q)
                return state, state[0]

            start = (jnp.zeros((b, 256)),) * 2
            return lax.scan(step, start, x.swapaxes(0, 1))[1].swapaxes(0, 1)

        forth, back = p["ways"]
        return jnp.concatenate([way(x, forth), way(x[:, ::-1], back)[:, ::-1]], -1)

    def spoken(p: Any, text: Any, frames: Any, lengths: Any, key: Any) -> Any:
        memory = encoded(p, text)
        keys = memory @ p["memory"]
        real = jnp.arange(letters) < lengths[:, None] + 16
        one, two = jax.random.split(key)
        before = jnp.pad(frames[:, :-1, -mel:], ((0, 0), (1, 0), (0, 0)))
        x = dropped(jax.nn.relu(before @ p["pre1"]), one, 0.5)
        x = dropped(jax.nn.relu(x @ p["pre2"]), two, 0.5)

        def step(state: Any, given: Any) -> Any:
            look, speak, shares, total, told = state
            look = _lstm(look, jnp.concatenate([given, told], -1), p["look"])
            where = _conv1(jnp.stack([shares, total], -1), p["where"]) @ p["place"]
            energy = jnp.tanh(keys + where + (look[0] @ p["ask"])[:, None]) @ p["energy"]
            shares = jax.nn.softmax(jnp.where(real, energy[..., 0], -1e9))
            told = jnp.einsum("bt,btd->bd", shares, memory)
            speak = _lstm(speak, jnp.concatenate([look[0], told], -1), p["speak"])
            out = jnp.concatenate([speak[0], told], -1)
            return (look, speak, shares, total + shares, told), (out, shares)

        zero, none = jnp.zeros((b, size)), jnp.zeros((b, letters))
        start = ((zero, zero), (zero, zero), none, none, jnp.zeros((b, 512)))
        out, shares = lax.scan(step, start, x.swapaxes(0, 1))[1]
        out = out.swapaxes(0, 1)
        return (out @ p["frames"]).reshape(b, 2 * steps, mel), (out @ p["stop"])[..., 0], shares

    def after(p: Any, x: Any) -> Any:
        y = x
        for n, w in enumerate(p["after"]):
            y = _conv1(y, w)
            y = (y - y.mean((0, 1))) * lax.rsqrt(y.var((0, 1)) + 1e-3)
            y = jnp.tanh(y) if n < 4 else y
        return x + y

    rule = optax.chain(
        optax.clip_by_global_norm(1.0), optax.add_decayed_weights(1e-6), optax.adam(1e-3, eps=1e-6)
    )

    def update(state: Any, text: Any, frames: Any, lengths: Any, key: Any) -> Any:
        def loss(p: Any) -> Any:
            sound, stop, _ = spoken(p, text, frames, lengths, key)
            truth = frames.reshape(b, 2 * steps, mel)
            wrong = jnp.square(sound - truth).mean() + jnp.square(after(p, sound) - truth).mean()
            ends = (jnp.arange(steps) >= lengths[:, None] + 20).astype(F32)
            return wrong + optax.sigmoid_binary_cross_entropy(stop, ends).mean()

        return learned(rule, loss, state)

    p = {"letters": Arg((148, 512)), "near": [(filters(5, 512, 512), Arg((512,)))] * 3}
    p |= {"ways": [_lstm_weights(512, 256)] * 2, "memory": master(512, 128)}
    p |= {"pre1": master(mel, 256), "pre2": master(256, 256), "where": filters(31, 2, 32)}
    p |= {"place": master(32, 128), "ask": master(size, 128), "energy": master(128, 1)}
    p |= {"look": _lstm_weights(256 + 512, size), "speak": _lstm_weights(size + 512, size)}
    p |= {"frames": master(size + 512, 2 * mel), "stop": master(size + 512, 1)}
    p["after"] = [filters(5, a, c) for a, c in ((mel, 512), *[(512, 512)] * 3, (512, mel))]
    given = (Arg((b, letters), I32, below=148), Arg((b, steps, 2 * mel)))
    lengths = Arg((b,), I32, below=letters - 16)
    yield "tacotron", carried(update, started(rule, p), *given, lengths, _KEY)


def recommenders() -> Zoo:
    """Mult-VAE: a variational autoencoder of what 512 users watched of 20,108 films, by Yogi."""
    b, items, most = 512, 20108, 160
    rule = optax.yogi(1e-3)

    def told(p: Any, x: Any, key: Any) -> Any:
        one, two = jax.random.split(key)
        x = x * lax.rsqrt(jnp.maximum(jnp.square(x).sum(-1, keepdims=True), 1e-9))
        x = jnp.where(jax.random.bernoulli(one, 0.5, x.shape), 2 * x, 0)
        x = jnp.tanh(x @ p["in"] + p["in_bias"])
        mean, spread = jnp.split(x @ p["code"] + p["code_bias"], 2, -1)
        z = mean + jnp.exp(0.5 * spread) * jax.random.normal(two, mean.shape)
        x = jnp.tanh(z @ p["back"] + p["back_bias"])
        kl = 0.5 * (jnp.exp(spread) + mean**2 - 1 - spread).sum(-1).mean()
        return x @ p["out"] + p["out_bias"], kl

    def update(state: Any, names: Any, counts: Any, key: Any) -> Any:
        learner, mean, count = state
        real = jnp.arange(most) < counts[:, None] + 5
        rows = jnp.arange(b)[:, None]
        seen = jnp.zeros((b, items)).at[rows, names].max(real.astype(F32))

        def loss(p: Any) -> Any:
            logits, kl = told(p, seen, key)
            likely = (jax.nn.log_softmax(logits) * seen).sum(-1).mean()
            return -likely + jnp.minimum(0.2, count / 200000) * kl

        learner, value = learned(rule, loss, learner)
        mean = optax.incremental_update(learner[0], mean, 1e-3)
        return (learner, mean, count + 1), value

    p = {"in": master(items, 600), "in_bias": Arg((600,), scale=0.1), "code": master(600, 400)}
    p |= {"code_bias": Arg((400,), scale=0.1), "back": master(200, 600)}
    p |= {"back_bias": Arg((600,), scale=0.1), "out": master(600, items)}
    p["out_bias"] = Arg((items,), scale=0.1)
    state = (started(rule, p), p, Arg((), I32, below=9))
    given = (Arg((b, most), I32, below=items), Arg((b,), I32, below=most - 5))
    yield "mult_vae", carried(update, state, *given, _KEY)


class TeamMember(nn.Module):
    """What each move is worth to one of a team, which remembers."""

    moves: int

    @nn.compact
    def __call__(self, seen: Any) -> Any:
        x = nn.relu(nn.Dense(64)(seen))
        return nn.Dense(self.moves)(nn.RNN(nn.GRUCell(64))(x))


class TeamValue(nn.Module):
    """QMIX: weights above zero that a state chooses mix the values of the team."""

    @nn.compact
    def __call__(self, values: Any, state: Any) -> Any:
        def chosen(d: int) -> Any:
            return nn.Dense(d)(nn.relu(nn.Dense(64)(state)))

        n = values.shape[-1]
        first = jnp.abs(chosen(n * 32)).reshape(*state.shape[:-1], n, 32)
        hidden = nn.elu(jnp.einsum("etn,etnk->etk", values, first) + nn.Dense(32)(state))
        return (hidden * jnp.abs(chosen(32))).sum(-1) + chosen(1)[..., 0]


def agents() -> Zoo:
    """QMIX learns from 32 battles of 48 steps: eight units with a GRU, and a mixing network."""
    e, t, n, moves, sees, size = 32, 48, 8, 14, 96, 168
    one, mix = TeamMember(moves), TeamValue()
    rule = optax.chain(optax.clip_by_global_norm(10.0), optax.rmsprop(5e-4, decay=0.99, eps=1e-5))

    def values(p: Any, seen: Any) -> Any:
        names = jnp.broadcast_to(jnp.eye(n)[None, None], (e, t + 1, n, n))
        x = jnp.concatenate([seen, names], -1).swapaxes(1, 2).reshape(e * n, t + 1, -1)
        return one.apply(p["one"], x).reshape(e, n, t + 1, moves).swapaxes(1, 2)

    def update(state: Any, seen: Any, world: Any, acts: Any, can: Any, gain: Any) -> Any:
        learner, slow = state
        alive = jnp.cumprod(jnp.where(gain > 2.2, 0.0, 1.0), 1)

        def loss(p: Any) -> Any:
            worth = values(p, seen)
            own = jnp.take_along_axis(worth[:, :-1], acts[..., None], -1)[..., 0]
            best = jnp.where(can, -1e8, lax.stop_gradient(worth))[:, 1:].argmax(-1)
            later = values(slow, seen)[:, 1:]
            later = jnp.take_along_axis(later, best[..., None], -1)[..., 0]
            now = mix.apply(p["mix"], own, world[:, :-1])
            goal = gain + 0.99 * alive * mix.apply(slow["mix"], later, world[:, 1:])
            wrong = jnp.square(now - lax.stop_gradient(goal)) * alive
            return wrong.sum() / alive.sum()

        learner, value = learned(rule, loss, learner)
        return (learner, optax.incremental_update(learner[0], slow, 0.01)), value

    p = {"one": linen_weights(one, Arg((e * n, t + 1, sees + n)))}
    p["mix"] = linen_weights(mix, Arg((e, t, n)), Arg((e, t, size)))
    given = (Arg((e, t + 1, n, sees)), Arg((e, t + 1, size)), Arg((e, t, n), I32, below=moves))
    given = (*given, Arg((e, t + 1, n, moves), jnp.bool_), Arg((e, t)))
    yield "qmix", carried(update, (started(rule, p), p), *given)


def graphs() -> Zoo:
    """DimeNet++ learns energies of 96 molecules: messages along 330,000 angles of edges."""
    molecules, atoms, each, angles, d = 96, 18, 15, 13, 128
    nodes = molecules * atoms
    edges = nodes * each
    triplets, radial, degrees = edges * angles, 6, 7
    bend = jax.nn.silu

    def spheres(far: Any, cosine: Any, partner: Any) -> Any:
        roots = jnp.pi * (jnp.arange(1, radial + 1) + jnp.arange(degrees)[:, None] / 2)
        z = far[:, None, None] * roots + 1e-3
        waves = [jnp.sin(z[:, 0]) / z[:, 0]]
        waves.append(jnp.sin(z[:, 1]) / z[:, 1] ** 2 - jnp.cos(z[:, 1]) / z[:, 1])
        for n in range(2, degrees):
            waves.append((2 * n - 1) / z[:, n] * waves[-1] - waves[-2])
        turns = [jnp.ones_like(cosine), cosine]
        for n in range(2, degrees):
            turns.append(((2 * n - 1) * cosine * turns[-1] - (n - 1) * turns[-2]) / n)
        waves, turns = jnp.stack(waves, 1)[partner], jnp.stack(turns, 1)
        return (waves * turns[..., None]).reshape(triplets, degrees * radial)

    def energy(p: Any, kinds: Any, places: Any, sources: Any, partners: Any) -> Any:
        goals = jnp.arange(edges) // each
        sources = goals // atoms * atoms + sources
        ji = jnp.arange(triplets) // angles
        kj = ji // (atoms * each) * (atoms * each) + partners
        gap = places[sources] - places[goals]
        far = jnp.sqrt(jnp.square(gap).sum(-1) + 1e-6)
        cosine = (gap[ji] * -gap[kj]).sum(-1) / (far[ji] * far[kj])
        x = far / 5
        cut = 1 / (x + 1e-3) - 28 * x**5 + 48 * x**6 - 21 * x**7
        rbf = cut[:, None] * jnp.sin(p["speeds"] * x[:, None])
        sbf = spheres(x, jnp.clip(cosine, -1, 1), kj)
        atom = p["atoms"][kinds]
        m = jnp.concatenate([atom[sources], atom[goals], bend(rbf @ p["rbf"])], -1)
        m, total = bend(m @ p["first"]), jnp.zeros((molecules, 1))
        for q in p["blocks"]:
            sent = bend(m @ q["kj"]) * ((rbf @ q["rbf1"]) @ q["rbf2"])
            sent = bend(sent @ q["down"])[kj] * ((sbf @ q["sbf1"]) @ q["sbf2"])
            sent = jax.ops.segment_sum(sent, ji, edges, indices_are_sorted=True)
            x = bend(m @ q["ji"]) + bend(sent @ q["up"])
            for a, c in q["residual"]:
                x = x + bend(bend(x @ a) @ c)
            m = m + x
            out = jax.ops.segment_sum((rbf @ q["rbf3"]) * m, goals, nodes, indices_are_sorted=True)
            out = out @ q["wide"]
            for w in q["out"]:
                out = bend(out @ w)
            total = total + (out @ q["last"]).reshape(molecules, atoms, 1).sum(1)
        return total[:, 0]

    rule = optax.chain(
        optax.clip_by_global_norm(1000.0),
        optax.amsgrad(optax.warmup_exponential_decay_schedule(0.0, 1e-3, 3000, 4000000, 0.01)),
    )

    def update(state: Any, kinds: Any, places: Any, sources: Any, partners: Any, t: Any) -> Any:
        learner, mean = state

        def loss(p: Any) -> Any:
            return jnp.abs(energy(p, kinds, places, sources, partners) - t).mean()

        learner, value = learned(rule, loss, learner)
        return (learner, optax.incremental_update(learner[0], mean, 1e-3)), value

    block = {"kj": master(d, d), "ji": master(d, d), "down": master(d, 64), "up": master(64, d)}
    block |= {"rbf1": master(radial, 8), "rbf2": master(8, d), "rbf3": master(radial, d)}
    block |= {"sbf1": master(degrees * radial, 8), "sbf2": master(8, 64)}
    block |= {"residual": [(master(d, d), master(d, d))] * 3, "wide": master(d, 256)}
    block |= {"out": [master(256, 256)] * 3, "last": master(256, 1)}
    p = {"speeds": Arg((radial,), scale=9.0), "atoms": Arg((95, d)), "rbf": master(radial, d)}
    p |= {"first": master(3 * d, d), "blocks": [block] * 4}
    given = (Arg((nodes,), I32, below=95), Arg((nodes, 3), scale=2.0))
    given = (*given, Arg((edges,), I32, below=atoms), Arg((triplets,), I32, below=atoms * each))
    yield "dimenet", carried(update, (started(rule, p), p), *given, Arg((molecules,)))


def proteins() -> Zoo:
    """MSA Transformer: 64 rows of 256 residues share one attention map, and guess what is hid."""
    d, rows, s, kinds = 768, 64, 256, 33
    rule = optax.adam(optax.linear_schedule(1e-4, 0.0, 100000), b2=0.98)

    def tied(x: Any, q: Any) -> Any:
        a, k, v = jnp.split(heads(layer_norm(x, *q["norm1"]) @ q["qkv1"], 64), 3, 2)
        scores = jnp.einsum("rihd,rjhd->hij", a, k, preferred_element_type=F32)
        shares = jax.nn.softmax(scores / (64 * rows) ** 0.5).astype(BF16)
        return jnp.einsum("hij,rjhd->rihd", shares, v).reshape(x.shape) @ q["out1"], shares

    def columns(x: Any, q: Any) -> Any:
        a, k, v = jnp.split(heads(layer_norm(x, *q["norm2"]) @ q["qkv2"], 64), 3, 2)
        scores = jnp.einsum("rihd,tihd->hirt", a, k, preferred_element_type=F32) / 8
        shares = jax.nn.softmax(scores).astype(BF16)
        return jnp.einsum("hirt,tihd->rihd", shares, v).reshape(x.shape) @ q["out2"]

    def guessed(p: Any, tokens: Any) -> Any:
        p = half(p)
        x = p["kinds"][tokens] + p["places"] + p["rows"][:, None]
        x = layer_norm(x, *p["before"])

        @jax.checkpoint
        def layer(x: Any, q: Any) -> Any:
            told, shares = tied(x, q)
            x = x + told
            x = x + columns(x, q)
            y = jax.nn.gelu(layer_norm(x, *q["norm3"]) @ q["up"], approximate=False)
            return x + y @ q["down"], shares

        x, maps = lax.scan(layer, x, p["layers"])
        x = layer_norm(x, *p["after"])
        x = layer_norm(jax.nn.gelu(x @ p["head"], approximate=False))
        maps = maps.reshape(-1, s, s).astype(F32)
        maps = maps + maps.swapaxes(1, 2)
        mean = maps.sum(1, keepdims=True) * maps.sum(2, keepdims=True)
        maps = maps - mean / maps.sum((1, 2), keepdims=True)
        near = jnp.einsum("mij,m->ij", maps, p["contacts"].astype(F32))
        return (x @ p["kinds"].T).astype(F32), near

    def update(state: Any, tokens: Any, touch: Any, key: Any) -> Any:
        one, two, three = jax.random.split(key, 3)
        hid = jax.random.bernoulli(one, 0.15, tokens.shape)
        way = jax.random.uniform(two, tokens.shape)
        other = jax.random.randint(three, tokens.shape, 4, 24)
        shown = jnp.where(way < 0.8, 32, jnp.where(way < 0.9, other, tokens))
        shown = jnp.where(hid, shown, tokens)

        def loss(p: Any) -> Any:
            logits, near = guessed(p, shown)
            wrong = jnp.where(hid, cross_entropy(logits, tokens), 0).sum() / hid.sum()
            return wrong + 0.1 * optax.sigmoid_binary_cross_entropy(near, touch).mean()

        return learned(rule, loss, state)

    def norm() -> Any:
        return Arg((d,)), Arg((d,), scale=0.1)

    layer = {f"qkv{n}": master(d, 3 * d) for n in (1, 2)} | {f"norm{n}": norm() for n in (1, 2, 3)}
    layer |= {"out1": master(d, d), "out2": master(d, d)}
    layer |= {"up": master(d, 4 * d), "down": master(4 * d, d)}
    p = {"kinds": Arg((kinds, d), scale=0.05), "places": Arg((s, d), scale=0.05)}
    p |= {"rows": Arg((rows, d), scale=0.01), "before": norm(), "after": norm()}
    p |= {"layers": times(6, layer), "head": master(d, d), "contacts": Arg((72,), scale=0.1)}
    given = (Arg((rows, s), I32, below=kinds), Arg((s, s), F32, scale=0.5))
    yield "tied_rows", carried(update, started(rule, p), *given, _KEY)


def weather() -> Zoo:
    """FourCastNet in float32: six AFNO layers mix the spectrum of 90 x 180 patches in blocks."""
    d, tall, broad, patch, channels, blocks = 768, 90, 180, 8, 20, 8
    size = d // blocks

    def mixed(x: Any, q: Any) -> Any:
        y = jnp.fft.rfft2(x, axes=(1, 2), norm="ortho")
        real, imaginary = (heads(part, size) for part in (y.real, y.imag))

        def product(a: Any, c: Any, w: Any, bias: Any) -> Any:
            def by(x: Any, n: int) -> Any:
                return jnp.einsum("bhwki,kio->bhwko", x, w[n])

            return by(a, 0) - by(c, 1) + bias[0], by(c, 0) + by(a, 1) + bias[1]

        real, imaginary = map(jax.nn.relu, product(real, imaginary, q["w1"], q["b1"]))
        parts = product(real, imaginary, q["w2"], q["b2"])
        real, imaginary = (jnp.sign(z) * jnp.maximum(jnp.abs(z) - 0.01, 0) for z in parts)
        y = lax.complex(real, imaginary).reshape(y.shape)
        return jnp.fft.irfft2(y, s=(tall, broad), axes=(1, 2), norm="ortho")

    def next_day(p: Any, sky: Any) -> Any:
        x = sky.reshape(-1, tall, patch, broad, patch, channels).swapaxes(2, 3)
        x = x.reshape(-1, tall, broad, patch * patch * channels) @ p["in"] + p["places"]

        def layer(x: Any, q: Any) -> Any:
            y = layer_norm(x, q["one"])
            y = mixed(y, q) + y + x
            z = jax.nn.gelu(layer_norm(y, q["two"]) @ q["up"] + q["up_bias"])
            return y + z @ q["down"], None

        x, _ = lax.scan(layer, x, p["layers"])
        x = (layer_norm(x) @ p["last"]).reshape(-1, tall, broad, patch, patch, channels)
        return x.swapaxes(2, 3).reshape(sky.shape)

    rule = optax.adam(optax.cosine_decay_schedule(5e-4, 80000))

    def update(state: Any, sky: Any, later: Any) -> Any:
        north = jnp.linspace(-jnp.pi / 2, jnp.pi / 2, tall * patch)
        share = (jnp.cos(north) / jnp.cos(north).mean())[:, None, None]

        def loss(p: Any) -> Any:
            gap = jnp.square(next_day(p, sky) - later) * share
            whole = jnp.square(later) * share
            return jnp.sqrt(gap.sum((1, 2)) / whole.sum((1, 2))).mean()

        return learned(rule, loss, state)

    w, bias = Arg((2, blocks, size, size), scale=0.02), Arg((2, blocks, size), scale=0.02)
    layer = {"w1": w, "w2": w, "b1": bias, "b2": bias, "one": Arg((d,)), "two": Arg((d,))}
    layer |= {"up": master(d, 4 * d), "up_bias": Arg((4 * d,)), "down": master(4 * d, d)}
    inner = patch * patch * channels
    p = {"in": master(inner, d), "places": Arg((tall, broad, d), scale=0.02)}
    p |= {"layers": times(6, layer), "last": master(d, inner)}
    sky = Arg((1, tall * patch, broad * patch, channels))
    yield "fourcastnet", carried(update, started(rule, p), sky, sky)


class Gated(nn.Module):
    """A gated residual network, as in the Temporal Fusion Transformer."""

    out: int
    drop: float = 0.1

    @nn.compact
    def __call__(self, x: Any, context: Any = None) -> Any:
        side = x if x.shape[-1] == self.out else nn.Dense(self.out)(x)
        y = nn.Dense(self.out)(x)
        if context is not None:
            y = y + nn.Dense(self.out, use_bias=False)(context)
        y = nn.Dense(self.out)(nn.elu(y))
        y = nn.Dropout(self.drop, deterministic=False)(y)
        return nn.LayerNorm()(side + nn.glu(nn.Dense(2 * self.out)(y)))


class Selected(nn.Module):
    """Variables, each by its own network, weighted by how much they matter."""

    size: int

    @nn.compact
    def __call__(self, parts: Any, context: Any = None) -> Any:
        shares = nn.softmax(Gated(len(parts))(jnp.concatenate(parts, -1), context))
        return sum(Gated(self.size)(x) * shares[..., n, None] for n, x in enumerate(parts))


class FusionTransformer(nn.Module):
    """The Temporal Fusion Transformer: an LSTM of the past and the known future, and a look."""

    size: int = 128
    quantiles: int = 7

    @nn.compact
    def __call__(self, names: Any, past: Any, known: Any) -> Any:
        d, ago = self.size, past.shape[1]
        fixed = Selected(d)([nn.Embed(400, d)(names[:, n]) for n in range(2)])
        choice, about, h, c = (Gated(d)(fixed) for _ in range(4))

        def embedded(x: Any) -> list[Any]:
            return [nn.Dense(d)(x[..., n, None]) for n in range(x.shape[-1])]

        old = embedded(past) + embedded(known[:, :ago])
        old = Selected(d)(old, choice[:, None])
        new = Selected(d)(embedded(known[:, ago:]), choice[:, None])
        first = nn.RNN(nn.OptimizedLSTMCell(d), return_carry=True)
        state, one = first(old, initial_carry=(c, h))
        two = nn.RNN(nn.OptimizedLSTMCell(d))(new, initial_carry=state)
        x = jnp.concatenate([old, new], 1)
        x = nn.LayerNorm()(x + nn.glu(nn.Dense(2 * d)(jnp.concatenate([one, two], 1))))
        y = Gated(d)(x, about[:, None])
        a, k = (nn.Dense(d)(y).reshape(*y.shape[:2], 4, d // 4) for _ in range(2))
        scores = jnp.einsum("bqhd,bkhd->bhqk", a, k) * (d // 4) ** -0.5
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        shares = nn.softmax(jnp.where(seen, scores, -1e9)).mean(1)
        told = nn.Dense(d)(jnp.einsum("bqk,bkd->bqd", shares, nn.Dense(d // 4)(y)))
        y = nn.LayerNorm()(y + nn.glu(nn.Dense(2 * d)(told)))[:, ago:]
        y = nn.LayerNorm()(x[:, ago:] + nn.glu(nn.Dense(2 * d)(Gated(d)(y))))
        return nn.Dense(self.quantiles)(y)


def series() -> Zoo:
    """A Temporal Fusion Transformer in float32 learns seven quantiles of 24 hours of power."""
    model, b, ago, ahead = FusionTransformer(), 128, 96, 24
    rule = optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-3))

    def update(state: Any, names: Any, past: Any, known: Any, truth: Any, key: Any) -> Any:
        levels = jnp.array([0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98])

        def loss(params: Any) -> Any:
            found = model.apply(params, names, past, known, rngs={"dropout": key})
            gap = truth[..., None] - found
            return jnp.maximum(levels * gap, (levels - 1) * gap).sum(-1).mean()

        return learned(rule, loss, state)

    given = (Arg((b, 2), I32, below=400), Arg((b, ago, 4)), Arg((b, ago + ahead, 4)))
    state = started(rule, linen_weights(model, *given))
    yield "fusion_transformer", carried(update, state, *given, Arg((b, ahead)), _KEY)


def multimodal() -> Zoo:
    """Transfusion: words are guessed and patches denoised by one decoder of bfloat16 weights."""
    d, b, part, vocabulary, inner = 1024, 8, 256, 32000, 32
    s = 4 * part

    def net(p: Any, words: Any, patches: Any, time: Any) -> Any:
        place = jnp.arange(s) // part
        same = (place[:, None] == place) & (place % 2 == 1)
        mask = causal(s) | same[None, None]
        waves = time[..., None] * 1000 * 1e4 ** (-jnp.arange(256) / 256)
        level = jnp.concatenate([jnp.cos(waves), jnp.sin(waves)], -1).astype(BF16)
        level = jax.nn.silu(level @ p["time1"]) @ p["time2"]
        shown = patches.astype(BF16) @ p["patch_in"] + level[:, :, None]
        text = p["words"][words].reshape(b, 2, part, d)
        x = jnp.stack([text, shown], 2).reshape(b, s, d)

        @jax.checkpoint
        def layer(x: Any, q: Any) -> Any:
            a, k, v = jnp.split(heads(rms(x, q["one"]) @ q["qkv"], 64), 3, 2)
            a, k = (rope(y, jnp.arange(s)[None]) for y in (a, k))
            y = jax.nn.dot_product_attention(a, k, v, mask=mask).reshape(b, s, d)
            x = x + y @ q["out"]
            return x + swiglu(rms(x, q["two"]), q), None

        x = rms(lax.scan(layer, x, p["layers"])[0], p["last"]).reshape(b, 2, 2, part, d)
        return x[:, :, 0] @ p["head"], (x[:, :, 1] @ p["patch_out"]).astype(F32)

    def rounded(x: Any, key: Any) -> Any:
        bits = lax.bitcast_convert_type(x, U32)
        bits = bits + jax.random.bits(key, x.shape, jnp.uint16).astype(U32)
        return lax.bitcast_convert_type(bits & U32(0xFFFF0000), F32).astype(BF16)

    def moved(state: Any, grads: Any, key: Any) -> Any:
        params, one, two, count = state
        count = count + 1
        t = count.astype(F32)
        one = jax.tree.map(lambda m, g: (0.9 * m + 0.1 * g).astype(BF16), one, grads)
        two = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * jnp.square(g.astype(F32)), two, grads)
        leaves, tree = jax.tree.flatten(params)
        keys = tree.unflatten(list(jax.random.split(key, len(leaves))))

        def step(w: Any, m: Any, v: Any, key: Any) -> Any:
            w = w.astype(F32)
            m = m.astype(F32) / (1 - 0.9**t)
            new = w - 3e-4 * (m / (jnp.sqrt(v / (1 - 0.95**t)) + 1e-8) + 0.1 * w)
            return rounded(new, key)

        return jax.tree.map(step, params, one, two, keys), one, two, count

    def update(state: Any, words: Any, latents: Any, key: Any) -> Any:
        one, two, three = jax.random.split(key, 3)
        time = jax.random.uniform(one, (b, 2))
        noise = jax.random.normal(two, latents.shape)
        angle = (time * jnp.pi / 2)[..., None, None]
        shown = jnp.cos(angle) * latents + jnp.sin(angle) * noise

        def loss(p: Any) -> Any:
            logits, found = net(p, words[:, :, :-1], shown, time)
            wrong = cross_entropy(logits, words[:, :, 1:]).mean()
            return wrong + 5 * jnp.square(found - noise).mean()

        value, grads = jax.value_and_grad(loss)(state[0])
        return moved(state, grads, three), value

    layer = {"qkv": weight(d, 3 * d), "out": weight(d, d)} | swiglu_weights(d, 2816, weight)
    layer |= {"one": Arg((d,), BF16), "two": Arg((d,), BF16)}
    p = {"words": weight(vocabulary, d), "head": weight(d, vocabulary), "last": Arg((d,), BF16)}
    p |= {"layers": times(6, layer), "time1": weight(512, d), "time2": weight(d, d)}
    p |= {"patch_in": weight(inner, d), "patch_out": weight(d, inner)}
    state = (p, zeros(p, BF16), zeros(p), Arg((), I32, below=9))
    words, latents = Arg((b, 2, part + 1), I32, below=vocabulary), Arg((b, 2, part, inner))
    yield "transfusion", carried(update, state, words, latents, _KEY)


def waves() -> Zoo:
    """Sound by discontinuous Galerkin: 40,000 triangles of order four, ten steps of five stages."""
    elements, points, face = 40000, 15, 5
    a = (0.0, -0.4178904745, -1.192151694643, -1.697784692471, -1.514183444257)
    c = (0.1496590219993, 0.3792103129999, 0.8229550293869, 0.6994504559488, 0.1530572479681)

    def sounded(state: Any, shape: Any, ways: Any, matrices: Any, faces: Any, gaps: Any) -> Any:
        dr, ds, lift = matrices[0], matrices[1], matrices[2]
        rx, ry, sx, sy = (1 + 0.1 * shape)[:, None]
        out = ways / jnp.sqrt(jnp.square(ways).sum(0) + 1e-6)
        nx, ny = (jnp.repeat(part, face, 0) for part in out)
        mine = jnp.array([0, 1, 2, 3, 4, 4, 8, 11, 13, 14, 0, 5, 9, 12, 14])
        whose = (jnp.arange(elements) + gaps - 150) % elements
        other = mine.reshape(3, face)[faces, ::-1].swapaxes(1, 2).reshape(3 * face, elements)
        other = other * elements + jnp.repeat(whose, face, 0)

        def slope(fields: Any) -> Any:
            u, v, p = fields
            gap = [jnp.take(f.ravel(), other) - f[mine] for f in (u, v, p)]
            across = nx * gap[0] + ny * gap[1]
            flux = [nx * (across - gap[2]) / 2, ny * (across - gap[2]) / 2, (gap[2] - across) / 2]
            u_r, u_s, v_r, v_s = dr @ u, ds @ u, dr @ v, ds @ v
            p_r, p_s = dr @ p, ds @ p
            spread = rx * u_r + sx * u_s + ry * v_r + sy * v_s
            inner = [-(rx * p_r + sx * p_s), -(ry * p_r + sy * p_s), -spread]
            return tuple(x + lift @ y for x, y in zip(inner, flux, strict=True))

        def step(given: Any, _: Any) -> Any:
            fields, rest = given
            for one, two in zip(a, c, strict=True):
                new = slope(fields)
                rest = tuple(one * r + 1e-3 * x for r, x in zip(rest, new, strict=True))
                fields = tuple(f + two * r for f, r in zip(fields, rest, strict=True))
            return (fields, rest), jnp.square(fields[2]).mean()

        rest = tuple(jnp.zeros_like(f) for f in state)
        (state, _), heard = lax.scan(step, (state, rest), None, length=10)
        return state, heard

    field = Arg((points, elements))
    given = (Arg((4, elements)), Arg((2, 3, elements)), Arg((3, points, points), scale=0.2))
    given = (*given, Arg((3, elements), I32, below=3), Arg((3, elements), I32, below=300))
    yield "discontinuous", carried(sounded, (field,) * 3, *given)


def walkers() -> Zoo:
    """Stretch moves of 2,048 walkers, as in emcee: two planets in 250 speeds, 60 rounds."""
    many, seen, rounds = 2048, 250, 60

    def likely(place: Any, times_: Any, speeds: Any, errors: Any) -> Any:
        planets = place[:10].reshape(2, 5)
        period, size = jnp.exp(2 + 0.3 * planets[:, 0]), jnp.exp(planets[:, 1])
        x, y = jnp.tanh(planets[:, 2]) * 0.6, jnp.tanh(planets[:, 3]) * 0.6
        round_ = jnp.clip(x * x + y * y, 1e-4, 0.9)
        turn = jnp.arctan2(y, x)
        mean = 2 * jnp.pi * times_ / period[:, None] + planets[:, 4, None]
        e = round_[:, None]

        def newton(_: int, angle: Any) -> Any:
            return angle - (angle - e * jnp.sin(angle) - mean) / (1 - e * jnp.cos(angle))

        angle = lax.fori_loop(0, 8, newton, mean + e * jnp.sin(mean))
        true = 2 * jnp.arctan2(
            jnp.sqrt(1 + e) * jnp.sin(angle / 2), jnp.sqrt(1 - e) * jnp.cos(angle / 2)
        )
        moved = size[:, None] * (jnp.cos(true + turn[:, None]) + e * jnp.cos(turn[:, None]))
        spread = errors**2 + jnp.exp(2 * place[11])
        gap = speeds - moved.sum(0) - place[10]
        return -0.5 * (gap**2 / spread + jnp.log(spread)).sum() - 0.5 * (place**2).sum()

    def sampled(key: Any, places: Any, times_: Any, speeds: Any, errors: Any) -> Any:
        times_, errors = 30 * times_, 0.1 + jnp.abs(errors)
        chance = jax.vmap(lambda x: likely(x, times_, speeds, errors))

        def half_step(key: Any, mine: Any, known: Any, others: Any) -> Any:
            one, two, three = jax.random.split(key, 3)
            stretch = jnp.square(jax.random.uniform(one, (many // 2,)) + 1) / 2
            other = others[jax.random.randint(two, (many // 2,), 0, many // 2)]
            new = other + stretch[:, None] * (mine - other)
            worth = chance(new)
            gain = 11 * jnp.log(stretch) + worth - known
            take = jnp.log(jax.random.uniform(three, gain.shape)) < gain
            return jnp.where(take[:, None], new, mine), jnp.where(take, worth, known), take.mean()

        def step(state: Any, key: Any) -> Any:
            a, b, worth_a, worth_b = state
            one, two = jax.random.split(key)
            a, worth_a, first = half_step(one, a, worth_a, b)
            b, worth_b, second = half_step(two, b, worth_b, a)
            kept = (jnp.concatenate([a, b]), jnp.concatenate([worth_a, worth_b]))
            return (a, b, worth_a, worth_b), (*kept, (first + second) / 2)

        a, b = jnp.split(places, 2)
        start = (a, b, chance(a), chance(b))
        return lax.scan(step, start, jax.random.split(key, rounds))[1]

    given = (Arg((many, 12), scale=0.3), *[Arg((seen,))] * 3)
    yield "stretch_moves", program(sampled, _KEY, *given)


def materials() -> Zoo:
    """Jelly, snow and water by MLS-MPM: 400,000 particles on a grid of 512^2, eight steps."""
    many, n, dt = 400000, 512, 5e-5

    def moved(raw: Any, speeds: Any, kinds: Any) -> Any:
        places = 0.1 + 0.8 * jax.nn.sigmoid(raw)
        mass = (0.5 / n) ** 2
        corners = jnp.stack(jnp.meshgrid(jnp.arange(3), jnp.arange(3), indexing="ij"), -1)
        corners = corners.reshape(9, 2)

        def rotation(f: Any) -> Any:
            x, y = f[:, 0, 0] + f[:, 1, 1], f[:, 1, 0] - f[:, 0, 1]
            size = lax.rsqrt(x * x + y * y + 1e-12)
            x, y = x * size, y * size
            return jnp.stack([jnp.stack([x, -y], -1), jnp.stack([y, x], -1)], -2)

        def step(state: Any, _: Any) -> Any:
            x, v, c, f, packed = state
            base = (x * n - 0.5).astype(I32)
            fx = x * n - base
            w = jnp.stack([0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1) ** 2, 0.5 * (fx - 0.5) ** 2], 1)
            w = w[:, corners[:, 0], 0] * w[:, corners[:, 1], 1]
            f = f + dt * jnp.einsum("pij,pjk->pik", c, f)
            size = f[:, 0, 0] * f[:, 1, 1] - f[:, 0, 1] * f[:, 1, 0]
            packed = jnp.where(kinds == 2, jnp.clip(packed * size, 0.6, 20.0), packed)
            hard = jnp.where(kinds == 1, 0.3, jnp.exp(10 * (1 - jnp.clip(packed, 0.9, 1.1))))
            mu, lam = jnp.where(kinds == 0, 0, 416.7 * hard), 277.8 * hard
            flat = jnp.sqrt(jnp.maximum(size, 1e-6))[:, None, None] * jnp.eye(2)
            f = jnp.where((kinds == 0)[:, None, None], flat, f)
            r = rotation(f)
            stress = 2 * mu[:, None, None] * jnp.einsum("pij,pkj->pik", f - r, f)
            stress = stress + (lam * size * (size - 1))[:, None, None] * jnp.eye(2)
            affine = -dt * mass * 4 * n * n * stress + mass * c
            far = (corners - fx[:, None]) / n
            push = mass * v[:, None] + jnp.einsum("pij,pnj->pni", affine, far)
            given = w[..., None] * jnp.concatenate([push, jnp.full((many, 9, 1), mass)], -1)
            cell = base[:, None] + corners
            grid = jnp.zeros((n, n, 3)).at[cell[..., 0], cell[..., 1]].add(given)
            flow = grid[..., :2] / jnp.maximum(grid[..., 2:], 1e-12)
            flow = flow + dt * jnp.array([0.0, -50.0])
            i, j = jnp.arange(n)[:, None], jnp.arange(n)
            low, high = 3, n - 3
            across = jnp.where(i < low, jnp.maximum(flow[..., 0], 0), flow[..., 0])
            across = jnp.where(i > high, jnp.minimum(across, 0), across)
            down = jnp.where(j < low, jnp.maximum(flow[..., 1], 0), flow[..., 1])
            down = jnp.where(j > high, jnp.minimum(down, 0), down)
            near = jnp.stack([across, down], -1)[cell[..., 0], cell[..., 1]] * w[..., None]
            v = near.sum(1)
            c = 4 * n * jnp.einsum("pni,pnj->pij", near, far * n)
            x = jnp.clip(x + dt * v, 2 / n, 1 - 2 / n)
            return (x, v, c, f, packed), jnp.square(v).mean()

        start = (jnp.zeros((many, 2, 2)), jnp.broadcast_to(jnp.eye(2), (many, 2, 2)))
        return lax.scan(step, (places, speeds, *start, jnp.ones(many)), None, length=8)

    given = (Arg((many, 2)), Arg((many, 2)), Arg((many,), I32, below=3))
    yield "material_points", program(moved, *given)


def microscopy() -> Zoo:
    """Ptychography: ePIE finds an object and its probe from 480 far fields of 128^2, by parts."""
    many, size, side, part = 480, 128, 1024, 40

    def found(start: Any, light: Any, corners: Any, seen: Any) -> Any:
        thing = lax.complex(1 + 0.1 * start[0], 0.1 * start[1])
        x = jnp.linspace(-2.0, 2.0, size)
        blob = jnp.exp(-(x[:, None] ** 2) - x**2)
        probe = lax.complex(blob * (1 + 0.1 * light[0]), blob * 0.1 * light[1])
        seen = jnp.abs(seen).reshape(-1, part, size, size)
        offsets = jnp.arange(size)

        def step(state: Any, given: Any) -> Any:
            thing, probe = state
            corner, size_ = given
            rows = (corner[:, 0, None] + offsets)[:, :, None]
            columns = (corner[:, 1, None] + offsets)[:, None]
            cut = thing[rows, columns]
            wave = probe * cut
            far = jnp.fft.fft2(wave, norm="ortho")
            length = jnp.abs(far)
            error = jnp.square(length - size_).sum()
            near = jnp.fft.ifft2(far * (size_ / (length + 1e-6)), norm="ortho")
            gap = near - wave
            most = jnp.square(jnp.abs(probe)).max()
            change = 0.9 * jnp.conj(probe) / most * gap / 4
            thing = thing.at[rows, columns].add(change)
            top = jnp.square(jnp.abs(cut)).max((1, 2), keepdims=True)
            probe = probe + 0.5 * (jnp.conj(cut) / top * gap).mean(0)
            return (thing, probe), error

        def sweep(state: Any, _: Any) -> Any:
            return lax.scan(step, state, (corners.reshape(-1, part, 2), seen))

        (thing, probe), errors = lax.scan(sweep, (thing, probe), None, length=3)
        return jnp.abs(thing), jnp.angle(thing), jnp.abs(probe), errors

    given = (Arg((2, side, side)), Arg((2, size, size)))
    given = (*given, Arg((many, 2), I32, below=side - size), Arg((many, size, size)))
    yield "ptychography", program(found, *given)


def evolution() -> Zoo:
    """Codons along 240 branches: exponentials of 61 x 61 rates, and what 1,500 sites say."""
    n, branches, sites = 61, 240, 1500

    def weighed(shares: Any, swaps: Any, kinds: Any, lengths: Any, given: Any) -> Any:
        selection, partials = given
        shares = jax.nn.softmax(0.3 * shares)
        strength = jnp.exp(0.5 * selection)[:, None, None]
        swaps = jnp.exp(0.2 * (swaps + swaps.T))
        kind = jnp.where(kinds > 5, 0.0, jnp.where(kinds % 2 == 0, 2.5, 1.0))
        rate = swaps * kind * jnp.where(kinds % 3 == 0, strength, 1.0) * shares
        rate = rate * (1 - jnp.eye(n))
        rate = rate - rate.sum(-1)[..., None] * jnp.eye(n)
        speed = -jnp.einsum("cii,i->c", rate, shares)
        time = 0.05 + 0.1 * jnp.abs(lengths)
        unit = rate[:, None] / speed[:, None, None, None]
        change = jax.scipy.linalg.expm(unit * time[:, None, None])
        told = jnp.einsum("cbij,bjs->cbis", change, jnp.abs(partials))
        told = told.reshape(2, branches // 4, 2, n, sites).prod(2)
        size = told.max(2, keepdims=True)
        log = jnp.log(jnp.einsum("cbis,i->cbs", told / size, shares)) + jnp.log(size[:, :, 0])
        return change, log.sum(1), jnp.square(change.sum(-1) - 1).max()

    given = (Arg((n,)), Arg((n, n)), Arg((n, n), I32, below=9), Arg((branches // 2,)))
    last = (Arg((2,)), Arg((branches // 2, n, sites)))
    yield "codons", program(weighed, *given, last)


def folding() -> Zoo:
    """Nussinov's folds of 20 strands of 288 letters: spans one by one, each by every cut."""
    b, n, loop = 20, 288, 3

    def folded(letters: Any, bonus: Any) -> Any:
        both = letters[:, :, None] * 4 + letters[:, None]
        strength = jnp.array([0, 0, 0, 2, 0, 0, 3, 0, 0, 3, 0, 1, 2, 0, 1, 0], F32)[both]
        strength = jnp.where(strength > 0, strength + 0.1 * jnp.abs(bonus), -1e3)
        i, k = jnp.arange(n), jnp.arange(n)[:, None]

        def span(d: Any, table: Any) -> Any:
            row, column = d - 1 - k, i + k + 1
            inside = (row >= 0) & (column < n)
            rest = table[:, jnp.clip(row, 0, n - 1), jnp.clip(column, 0, n - 1)]
            cut = jnp.where(inside, table + rest, 0).max(1)
            end = jnp.clip(i + d, 0, n - 1)
            pair = jnp.take(strength.reshape(b, n * n), i * n + end, axis=1)
            inner = lax.dynamic_index_in_dim(table, jnp.maximum(d - 2, 0), 1, False)
            inner = jnp.roll(inner, -1, 1)
            joined = jnp.where(d > loop, pair + jnp.where(d >= 2, inner, 0), 0)
            best = jnp.where(i + d < n, jnp.maximum(cut, joined), 0)
            return lax.dynamic_update_index_in_dim(table, best, d, 1)

        table = lax.fori_loop(1, n, span, jnp.zeros((b, n, n)))
        return table[:, n - 1, 0], table

    yield "nussinov", program(folded, Arg((b, n), I32, below=4), Arg((b, n, n)))


def photographs() -> Zoo:
    """Non-local means of 1,000 x 1,400 pixels in colour: 225 shifts, patches of seven pixels."""
    tall, broad, reach, patch = 1000, 1400, 7, 3

    def cleaned(shown: Any) -> Any:
        x = jnp.square(shown.astype(F32) / 255)
        edge = reach + patch
        wide = jnp.pad(x, ((edge, edge), (edge, edge), (0, 0)), mode="reflect")
        here = wide[reach:-reach, reach:-reach]
        level = jnp.median(jnp.abs(jnp.diff(x, axis=0))) / 0.6745

        def shift(state: Any, way: Any) -> Any:
            total, weights, most = state
            down, right = way // (2 * reach + 1), way % (2 * reach + 1)
            size = (tall + 2 * patch, broad + 2 * patch, 3)
            there = lax.dynamic_slice(wide, (down, right, 0), size)
            gap = jnp.square(there - here).sum(-1)
            window = (2 * patch + 1, 2 * patch + 1)
            far = lax.reduce_window(gap, 0.0, lax.add, window, (1, 1), "VALID")
            far = jnp.maximum(far / 147 - 2 * level**2, 0)
            alike = jnp.exp(-far / (0.35 * level) ** 2)
            alike = jnp.where(way == 2 * reach * (reach + 1), 0, alike)
            middle = there[patch:-patch, patch:-patch]
            state = (total + alike[..., None] * middle, weights + alike, jnp.maximum(most, alike))
            return state, None

        none = jnp.zeros((tall, broad))
        start = (jnp.zeros_like(x), none, none)
        (total, weights, most), _ = lax.scan(shift, start, jnp.arange((2 * reach + 1) ** 2))
        clean = (total + most[..., None] * x) / (weights + most + 1e-6)[..., None]
        return jnp.round(255 * jnp.sqrt(jnp.clip(clean, 0, 1))).astype(U8)

    yield "non_local_means", program(cleaned, Arg((tall, broad, 3), U8, below=256))


def joins() -> Zoo:
    """Two million trades find the last of four million quotes of their share, and its spread."""
    trades, quotes, shares = 2000000, 4000000, 5000

    def joined(names: Any, moments: Any, prices: Any, sizes: Any, quotes_: Any) -> Any:
        quoted, asked, bid = quotes_
        every = jnp.concatenate([quoted[0], names])
        when = jnp.concatenate([quoted[1], moments])
        index = jnp.arange(trades + quotes, dtype=I32)
        every, when, order = lax.sort((every, when, index), num_keys=2, is_stable=True)
        is_quote = order < quotes
        last = lax.cummax(jnp.where(is_quote, jnp.arange(trades + quotes, dtype=I32), -1))
        known = (last >= 0) & (every[last] == every)
        quote = jnp.where(known, order[last], 0)
        middle, gap = 50 + bid[quote], jnp.abs(asked[quote]) * 0.01
        old = jnp.where(known, when - when[last], 0)
        trade = jnp.where(is_quote, 0, order - quotes)
        cost = 2 * jnp.abs(50 + prices[trade] - middle)
        real = known & ~is_quote
        volume = jnp.where(real, sizes[trade], 0).astype(F32)
        kw = {"num_segments": shares, "indices_are_sorted": True}
        whole = jax.ops.segment_sum(volume, every, **kw)
        mean = jax.ops.segment_sum(volume * cost, every, **kw) / jnp.maximum(whole, 1)
        worst = jax.ops.segment_max(jnp.where(real, old, 0), every, **kw)
        place = jnp.where(is_quote, trades, trade)
        found = jnp.zeros((trades, 2)).at[place].set(jnp.stack([middle, gap], -1), mode="drop")
        return found, whole, mean, worst

    given = (Arg((trades,), I32, below=shares), Arg((trades,), I32, below=23400000))
    given = (*given, Arg((trades,)), Arg((trades,), I32, below=1000))
    quoted = (Arg((quotes,), I32, below=shares), Arg((quotes,), I32, below=23400000))
    yield "as_of", program(joined, *given, (quoted, *[Arg((quotes,))] * 2))


def survival() -> Zoo:
    """Cox's hazards of 250,000 patients with 40 columns: eight steps of Newton's, in float32."""
    n, columns, rounds = 250000, 40, 8

    def fitted(table: Any, days: Any, died: Any) -> Any:
        order = jnp.argsort(-days)
        x, event = table[order], died[order].astype(F32)
        x = (x - x.mean(0)) / (x.std(0) + 1e-6)

        def step(beta: Any, _: Any) -> Any:
            score = x @ beta
            top = score.max()
            w = jnp.exp(score - top)
            zero, one = jnp.cumsum(w), jnp.cumsum(w[:, None] * x, 0)
            mean = one / zero[:, None]
            slope = (event[:, None] * (x - mean)).sum(0) - 1e-3 * beta
            later = lax.cumsum(event / zero, reverse=True)
            curve = (x * (w * later)[:, None]).T @ x - (mean * event[:, None]).T @ mean
            curve = curve + 1e-3 * n * jnp.eye(columns)
            likely = (event * (score - top - jnp.log(zero))).sum()
            change = jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(curve), slope)
            return beta + jnp.clip(change, -1, 1), likely

        beta, likely = lax.scan(step, jnp.zeros(columns), None, length=rounds)
        risk = jnp.exp(x @ beta)
        base = lax.cumsum(event / jnp.cumsum(risk), reverse=True)
        rest = event - risk * base
        return beta, likely, base, jnp.sign(rest) * jnp.sqrt(jnp.abs(rest))

    days = Arg((n,), I32, below=4000)
    yield "cox", program(fitted, Arg((n, columns)), days, Arg((n,), I32, below=2))


def registration() -> Zoo:
    """A cloud of 16,384 points is laid on one of 20,000: six rounds of point-to-plane ICP."""
    n, goals, part = 16384, 20000, 2048

    def laid(cloud: Any, goal: Any, normals: Any) -> Any:
        normals = normals / jnp.linalg.norm(normals, axis=-1, keepdims=True)
        square = jnp.square(goal).sum(-1)

        def nearest(x: Any) -> Any:
            far = square - 2 * jnp.matmul(x, goal.T, precision="highest")
            return far.argmin(1)

        def turn(w: Any) -> Any:
            angle = jnp.sqrt(w @ w + 1e-12)
            x, y, z = w / angle
            k = jnp.array([[0.0, 0, 0], [0, 0, 0], [0, 0, 0]])
            k = k.at[0, 1].set(-z).at[0, 2].set(y).at[1, 0].set(z)
            k = k.at[1, 2].set(-x).at[2, 0].set(-y).at[2, 1].set(x)
            return jnp.eye(3) + jnp.sin(angle) * k + (1 - jnp.cos(angle)) * (k @ k)

        def step(state: Any, _: Any) -> Any:
            rotation, shift = state
            x = cloud @ rotation.T + shift
            near = lax.map(nearest, x.reshape(-1, part, 3)).reshape(n)
            y, m = goal[near], normals[near]
            gap = ((x - y) * m).sum(-1)
            wide = 4.685 * 1.4826 * jnp.median(jnp.abs(gap)) + 1e-9
            trust = jnp.square(jnp.maximum(1 - jnp.square(gap / wide), 0))
            row = jnp.concatenate([jnp.cross(x, m), m], -1)
            left = (row * trust[:, None]).T @ row + 1e-6 * jnp.eye(6)
            change = -jnp.linalg.solve(left, row.T @ (trust * gap))
            turned = turn(change[:3])
            return (turned @ rotation, turned @ shift + change[3:]), jnp.sqrt((gap**2).mean())

        return lax.scan(step, (jnp.eye(3), jnp.zeros(3)), None, length=6)

    yield "icp", program(laid, Arg((n, 3)), *[Arg((goals, 3))] * 2)


def solvers() -> Zoo:
    """GMRES(24), started twice, for 400,000 rows of 12 numbers in ELLPACK, by Jacobi's scales."""
    n, entries, size = 400000, 12, 24

    def solved(values: Any, gaps: Any, goal: Any) -> Any:
        columns = (jnp.arange(n)[:, None] + gaps - 3000) % n
        values = 0.1 * values
        scale = 1 / (jnp.abs(values).sum(1) + 1)

        def times_(x: Any) -> Any:
            return scale * ((values * x[columns]).sum(1) + x / scale)

        def restart(x: Any, _: Any) -> Any:
            rest = scale * goal - times_(x)
            length = jnp.linalg.norm(rest)
            basis = jnp.zeros((size + 1, n)).at[0].set(rest / length)

            def arnoldi(k: int, state: Any) -> Any:
                basis, h = state
                w = times_(basis[k])
                one = basis @ w
                w = w - one @ basis
                two = basis @ w
                w = w - two @ basis
                norm = jnp.linalg.norm(w)
                column = (one + two).at[k + 1].set(norm)
                return basis.at[k + 1].set(w / norm), h.at[:, k].set(column)

            start = (basis, jnp.zeros((size + 1, size)))
            basis, h = lax.fori_loop(0, size, arnoldi, start)
            q, r = jnp.linalg.qr(h)
            y = jax.scipy.linalg.solve_triangular(r, length * q[0])
            return x + y @ basis[:-1], length

        x, lengths = lax.scan(restart, jnp.zeros(n), None, length=2)
        return x, lengths, jnp.linalg.norm(scale * goal - times_(x))

    given = (Arg((n, entries)), Arg((n, entries), I32, below=6000), Arg((n,)))
    yield "gmres_ellpack", program(solved, *given)


def factors() -> Zoo:
    """Topics as factors above zero: 20 rounds by Kullback and Leibler of 6,000 x 8,000 counts."""
    texts, words, rank = 6000, 8000, 40

    def parted(counts: Any, w: Any, h: Any) -> Any:
        x = counts.astype(F32)
        w, h = jnp.abs(w) + 0.1, jnp.abs(h) + 0.1

        def step(state: Any, _: Any) -> Any:
            w, h = state
            ratio = x / (w @ h + 1e-6)
            h = h * (w.T @ ratio) / (w.sum(0)[:, None] + 0.01)
            ratio = x / (w @ h + 1e-6)
            w = w * (ratio @ h.T) / (h.sum(1) + 0.01)
            size = w.sum(0)
            return (w / size, h * size[:, None]), size

        (w, h), _ = lax.scan(step, (w, h), None, length=20)
        near = w @ h + 1e-6
        wrong = (jax.scipy.special.xlogy(x, x / near) - x + near).sum()
        return w, h, wrong, lax.top_k(h, 12)[1]

    given = (Arg((texts, words), U8, below=4), Arg((texts, rank)), Arg((rank, words)))
    yield "kl_nmf", program(parted, *given)
