"""A fifteenth zoo: what people train and serve with JAX on one GPU, in common libraries' ways.

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
from fourteenth import grouped
from fourth import attend, norm, program, weight
from jax import lax
from ninth import carried, gated, rms, token_loss, turned
from sixth import attention, convolved, full, kernel
from tenth import applied
from thirteenth import layered, waves
from twelfth import cubed, cubes, later

from xlapipe.running.calibration.timed_program import Arg, TimedProgram

F32, BF16, F16, I32 = jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32
I8, U8, U32, F8 = jnp.int8, jnp.uint8, jnp.uint32, jnp.float8_e4m3fn
Zoo = Iterator[tuple[str, TimedProgram]]
_KEY = Arg((2,), U32, below=1 << 30)


def fifteenth_programs() -> dict[str, TimedProgram]:
    """Every program, by FAMILY/NAME."""
    families = (
        *(pretraining, sparse, tuning, decoding, prefilling, translation, pictures, convnets),
        *(pairing, samplers, denoisers, recommending, molecules, control, worlds, matter),
        *(operators, speech, proteins, preconditioning, trajectories, inference),
    )
    return {
        f"{family.__name__}/{name}": program for family in families for name, program in family()
    }


def parted(x: Any, w: Any, size: int) -> Any:
    """Heads of a product."""
    return (x @ w).reshape(*x.shape[:-1], -1, size)


def shared(q: Any, k: Any, v: Any, bias: Any = 0.0, cap: float = 0.0) -> Any:
    """Attention of groups of heads that share their keys and values."""
    b, s, heads, size = q.shape
    q = q.reshape(b, s, k.shape[2], -1, size)
    scores = jnp.einsum("bqgre,bkge->bgrqk", q, k, preferred_element_type=F32) * size**-0.5
    if cap:
        scores = cap * jnp.tanh(scores / cap)
    shares = jax.nn.softmax(scores + bias).astype(v.dtype)
    return jnp.einsum("bgrqk,bkge->bqgre", shares, v).reshape(b, s, heads * size)


def llama(x: Any, p: Any, places: Any, bias: Any, size: int) -> Any:
    """A layer of Llama."""
    y = rms(x, p["scale"][0])
    q, k, v = (parted(y, p[name], size) for name in "qkv")
    x = x + shared(turned(q, places), turned(k, places), v, bias) @ p["out"]
    return x + gated(rms(x, p["scale"][1]), p["up"], p["down"])


def llama_layer(
    d: int, wide: int, heads: int, groups: int, size: int, dtype: Any = F32
) -> dict[str, Arg]:
    """Its weights."""
    p = {"q": weight(d, heads * size, dtype=dtype), "k": weight(d, groups * size, dtype=dtype)}
    p |= {"v": weight(d, groups * size, dtype=dtype), "out": weight(heads * size, d, dtype=dtype)}
    p |= {"up": weight(d, 2 * wide, dtype=dtype), "down": weight(wide, d, dtype=dtype)}
    return p | {"scale": Arg((2, d))}


def dropped(key: Any, x: Any, share: float = 0.1) -> Any:
    """Dropout."""
    return jnp.where(jax.random.bernoulli(key, 1 - share, x.shape), x / (1 - share), 0)


def pretraining() -> Zoo:
    """Llama on packed texts as in MaxText, T5 with dropout as in T5X, and Qwen with Muon."""
    d, words = 2048, 32003
    rate = optax.warmup_cosine_decay_schedule(0.0, 3e-4, 1000, 100000)
    rule = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(rate, 0.9, 0.95, weight_decay=0.1, mu_dtype=BF16),
    )

    def collated(state: Any, tokens: Any, texts: Any) -> Any:
        """Six scanned layers that are computed twice; the sum of logits is kept small."""
        size = tokens.shape[1] - 1
        same = texts[:, :, None] == texts[:, None]
        seen = same & jnp.tril(jnp.ones((size, size), bool))
        bias = jnp.where(seen, 0.0, -1e9)[:, None, None]

        @jax.checkpoint
        def layer(x: Any, p: Any) -> Any:
            return llama(x, p, jnp.arange(size), bias, 128), None

        def loss(params: Any) -> Any:
            p = short(params)
            x, _ = lax.scan(layer, p["table"][tokens[:, :-1]], p["layers"])
            logits = (rms(x, p["last"]) @ p["head"]).astype(F32)
            total = jax.nn.logsumexp(logits, -1)
            return (token_loss(logits, tokens[:, 1:]) + 1e-4 * total**2).mean()

        return learned(rule, loss, state)

    params = {"layers": layered(6, llama_layer(d, 5632, 16, 4, 128)), "last": Arg((d,))}
    params |= {"table": Arg((words, d), scale=0.02), "head": full(d, words)}
    given = (Arg((4, 1025), I32, below=words), Arg((4, 1024), I32, below=3))
    yield "collated", carried(collated, started(rule, params), *given)

    e, many = 768, 32128
    factored = optax.adafactor(1e-3, multiply_by_parameter_scale=True)

    def near(table: Any, asked: int, told: int, both: bool) -> Any:
        """Biases of 12 heads by how far two tokens are from each other."""
        gap = jnp.arange(told) - jnp.arange(asked)[:, None]
        half = 16 if both else 32
        side = jnp.where(gap > 0, half, 0) if both else 0
        gap = jnp.abs(gap) if both else jnp.maximum(-gap, 0)
        far = jnp.log(jnp.maximum(gap, 1) * 2 / half) / jnp.log(256 / half) * half / 2 + half / 2
        bucket = jnp.where(gap < half // 2, gap, jnp.minimum(far.astype(I32), half - 1))
        return table[side + bucket].transpose(2, 0, 1).astype(F32)

    def spans(state: Any, tokens: Any, goals: Any, key: Any) -> Any:
        def part(x: Any, y: Any, told: Any, p: Any, bias: Any, key: Any) -> Any:
            q, k, v = (parted(a, p[n], 64) for a, n in ((y, "q"), (told, "k"), (told, "v")))
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(F32) + bias
            one, two = jax.random.split(key)
            shares = dropped(one, jax.nn.softmax(scores).astype(BF16))
            found = jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(x.shape)
            return x + dropped(two, found @ p["out"])

        def mixed(x: Any, p: Any, key: Any) -> Any:
            one, two = jax.random.split(key)
            gate, value = jnp.split(rms(x, p["scale"][0]) @ p["up"], 2, -1)
            return x + dropped(two, dropped(one, jax.nn.gelu(gate) * value) @ p["down"])

        def loss(params: Any) -> Any:
            p = short(params)
            keys = jax.random.split(key, 4)
            bias = near(p["near"][0], tokens.shape[1], tokens.shape[1], True)

            def reader(x: Any, given: Any) -> Any:
                q, key = given
                one, two = jax.random.split(key)
                y = rms(x, q["first"])
                return mixed(part(x, y, y, q["self"], bias, one), q["wide"], two), None

            x = dropped(keys[0], p["table"][tokens])
            told, _ = lax.scan(reader, x, (p["reader"], jax.random.split(keys[1], 3)))
            told, size = rms(told, p["last"][0]), goals.shape[1] - 1
            ahead = near(p["near"][1], size, size, False) + later(size)

            def writer(x: Any, given: Any) -> Any:
                q, key = given
                one, two, three = jax.random.split(key, 3)
                y = rms(x, q["first"])
                x = part(x, y, y, q["self"], ahead, one)
                x = part(x, rms(x, q["second"]), told, q["other"], 0.0, two)
                return mixed(x, q["wide"], three), None

            x = dropped(keys[2], p["table"][goals[:, :-1]])
            x, _ = lax.scan(writer, x, (p["writer"], jax.random.split(keys[3], 3)))
            logits = (rms(x, p["last"][1]) @ p["head"]).astype(F32)
            kept = goals[:, 1:] > 0
            lost = token_loss(logits, goals[:, 1:]) + 1e-4 * jax.nn.logsumexp(logits, -1) ** 2
            return (lost * kept).sum() / kept.sum()

        return learned(factored, loss, state)

    heads = {name: full(e, e) for name in ("q", "k", "v", "out")}
    wide = {"up": full(e, 4096), "down": full(2048, e), "scale": Arg((1, e))}
    reader = {"self": heads, "wide": wide, "first": Arg((e,))}
    writer = reader | {"other": heads, "second": Arg((e,))}
    params = {"reader": layered(3, reader), "writer": layered(3, writer), "last": Arg((2, e))}
    params |= {"near": Arg((2, 32, 12)), "table": Arg((many, e)), "head": full(e, many)}
    given = (Arg((24, 233), I32, below=many), Arg((24, 118), I32, below=many), _KEY)
    yield "spans", carried(spans, started(factored, params), *given)

    c, vast = 896, 151669
    plain = optax.adamw(3e-4, 0.9, 0.95)

    def orthogonal(x: Any) -> Any:
        """Five rounds of Newton and Schulz for matrices of all layers."""
        tall = x.shape[-2] > x.shape[-1]
        x = (x.swapaxes(-1, -2) if tall else x).astype(BF16)
        x = x / (jnp.linalg.norm(x.astype(F32), axis=(-2, -1), keepdims=True) + 1e-7).astype(BF16)
        for _ in range(5):
            a = x @ x.swapaxes(-1, -2)
            x = 3.4445 * x + (-4.775 * a + 2.0315 * (a @ a)) @ x
        return (x.swapaxes(-1, -2) if tall else x).astype(F32)

    def muon(state: Any, tokens: Any) -> Any:
        """Gradients of four parts are summed; parts of the words' losses are computed twice."""
        params, speed, others = state
        size = tokens.shape[-1] - 1
        bias = later(size)

        @jax.checkpoint
        def layer(x: Any, p: Any) -> Any:
            return llama(x, p, jnp.arange(size), bias, 64), None

        def loss(params: Any, tokens: Any) -> Any:
            p = short(params)
            x, _ = lax.scan(layer, p["rest"]["table"][tokens[:, :-1]], p["layers"])
            x = rms(x, p["rest"]["last"]).reshape(4, -1, c)

            @jax.checkpoint
            def some(total: Any, given: Any) -> Any:
                x, goals = given
                return total + token_loss(x @ p["rest"]["table"].T, goals).sum(), None

            goals = tokens[:, 1:].reshape(4, -1)
            return lax.scan(some, jnp.zeros(()), (x, goals))[0] / goals.size

        def part(total: Any, tokens: Any) -> Any:
            value, gradient = jax.value_and_grad(loss)(params, tokens)
            return jax.tree.map(jnp.add, total, gradient), value

        total, values = lax.scan(part, jax.tree.map(jnp.zeros_like, params), tokens)
        total = jax.tree.map(lambda x: x / tokens.shape[0], total)
        new, layers = {}, {}
        for name, w in params["layers"].items():
            new[name] = 0.95 * speed[name] + total["layers"][name]
            way = new[name]
            if name != "scale":
                way = orthogonal(total["layers"][name] + 0.95 * way) * 0.2 * max(w.shape[1:]) ** 0.5
            layers[name] = w * (1 - 2e-4) - 2e-3 * way
        rest, others = applied(plain, params["rest"], others, total["rest"])
        return ({"layers": layers, "rest": rest}, new, others), values.mean()

    layers = layered(4, llama_layer(c, 4864, 14, 2, 64))
    rest = {"table": Arg((vast, c), scale=0.02), "last": Arg((c,))}
    state = ({"layers": layers, "rest": rest}, layers, started(plain, rest)[1])
    yield "muon", carried(muon, state, Arg((4, 2, 513), I32, below=vast))


def sparse() -> Zoo:
    """Training of Mixtral with GShard's products that send tokens to two of eight experts."""
    d, wide, words, count, room, size = 1024, 2816, 32768, 8, 160, 768
    rule = optax.adamw(3e-4, 0.9, 0.95, weight_decay=0.1)

    def mixture(state: Any, tokens: Any) -> Any:
        bias = later(size)

        def experts(x: Any, p: Any) -> Any:
            y = x.reshape(-1, 512, d)
            shares = jax.nn.softmax((y @ p["route"]).astype(F32))
            best, index = lax.top_k(shares, 2)
            best = best / best.sum(-1, keepdims=True)
            picked = jax.nn.one_hot(index, count, dtype=F32)
            balance = count * (picked[..., 0, :].mean(1) * shares.mean(1)).sum(-1).mean()
            flat = picked.swapaxes(1, 2).reshape(y.shape[0], -1, count)
            place = (jnp.cumsum(flat, 1) - 1) * flat
            place = place.reshape(y.shape[0], 2, -1, count).swapaxes(1, 2)
            slots = jax.nn.one_hot(place.astype(I32), room, dtype=F32) * picked[..., None]
            gather = jnp.einsum("gtkec,gtk->gtec", slots, best)
            sent = (gather > 0).astype(BF16)
            told = jnp.einsum("gtec,gtd->egcd", sent, y)
            gate, value = jnp.split(jnp.einsum("egcd,edf->egcf", told, p["up"]), 2, -1)
            told = jnp.einsum("egcf,efd->egcd", jax.nn.silu(gate) * value, p["down"])
            found = jnp.einsum("gtec,egcd->gtd", gather.astype(BF16), told)
            return found.reshape(x.shape), balance

        def layer(x: Any, p: Any) -> Any:
            y, places = rms(x, p["scale"][0]), jnp.arange(size)
            q, k, v = (parted(y, p[name], 64) for name in "qkv")
            x = x + shared(turned(q, places), turned(k, places), v, bias) @ p["out"]
            found, balance = experts(rms(x, p["scale"][1]), p)
            return x + found, balance

        def loss(params: Any) -> Any:
            p = short(params)
            x, balance = lax.scan(layer, p["table"][tokens[:, :-1]], p["layers"])
            logits = rms(x, p["last"]) @ p["head"]
            return token_loss(logits, tokens[:, 1:]).mean() + 0.02 * balance.mean()

        return learned(rule, loss, state)

    layer = {"q": full(d, d), "k": full(d, 256), "v": full(d, 256), "out": full(d, d)}
    layer |= {"route": full(d, count), "up": full(count, d, 2 * wide)}
    layer |= {"down": full(count, wide, d), "scale": Arg((2, d))}
    params = {"layers": layered(2, layer), "table": Arg((words, d)), "last": Arg((d,))}
    params |= {"head": full(d, words)}
    ids = Arg((6, size + 1), I32, below=words)
    yield "mixture", carried(mixture, started(rule, params), ids)


def tuning() -> Zoo:
    """Adapters by DPO, whose model is its own reference, and DistilBERT from its teacher."""
    d, words, size = 1536, 92553, 384
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(5e-6))

    def preferences(state: Any, frozen: Any, tokens: Any, starts: Any) -> Any:
        """The first half of the rows is chosen, the second is not; three scanned layers."""
        bias, places = later(size), jnp.arange(size)
        told = places >= starts[:, None]

        def scores(pairs: Any) -> Any:
            @jax.checkpoint
            def layer(x: Any, given: Any) -> Any:
                p, pair = given
                y = rms(x, p["scale"][0])
                q, k, v = (y @ p[name] for name in "qkv")
                if pair is not None:
                    q = q + 2 * (y @ pair["q"][0]) @ pair["q"][1]
                    v = v + 2 * (y @ pair["v"][0]) @ pair["v"][1]
                q, k, v = (a.reshape(*a.shape[:2], -1, 128) for a in (q, k, v))
                x = x + shared(turned(q, places), turned(k, places), v, bias) @ p["out"]
                return x + gated(rms(x, p["scale"][1]), p["up"], p["down"]), None

            x = frozen["table"][tokens[:, :-1]]
            x, _ = lax.scan(layer, x, (frozen["layers"], pairs))
            lost = token_loss(rms(x, frozen["last"]) @ frozen["table"].T, tokens[:, 1:])
            return -(lost * told).sum(1)

        fixed = scores(None)

        def loss(pairs: Any) -> Any:
            gain = scores(short(pairs)) - fixed
            half = gain.shape[0] // 2
            return -jax.nn.log_sigmoid(0.1 * (gain[:half] - gain[half:])).mean()

        return learned(rule, loss, state)

    frozen = {"layers": layered(3, llama_layer(d, 8960, 12, 2, 128, BF16)), "last": Arg((d,))}
    frozen |= {"table": Arg((words, d), BF16, scale=0.02)}
    pairs = {"q": (full(d, 16), full(16, d)), "v": (full(d, 16), full(16, 256))}
    given = (Arg((16, size + 1), I32, below=words), Arg((16,), I32, below=200))
    state = started(rule, layered(3, pairs))
    yield "preferences", carried(preferences, state, frozen, *given)

    lion = optax.lion(1e-4, weight_decay=0.01)

    def distilled(state: Any, teacher: Any, tokens: Any, picked: Any, goals: Any) -> Any:
        """Words that are hidden: what the teacher thinks of them at a temperature of two."""

        def read(p: Any) -> Any:
            x = norm(p["table"][tokens] + p["places"], p["first"])
            x, _ = lax.scan(lambda x, q: (cubed(x, q, 12), None), x, p["layers"])
            x = jnp.take_along_axis(x, picked[..., None], 1)
            return x, (norm(x, p["last"]) @ p["table"].T).astype(F32)

        told, wanted = read(teacher)

        def loss(params: Any) -> Any:
            x, logits = read(short(params))
            wide = jax.nn.log_softmax(wanted / 2)
            apart = (jnp.exp(wide) * (wide - jax.nn.log_softmax(logits / 2))).sum(-1).mean()
            x, y = x.astype(F32), told.astype(F32)
            sizes = jnp.linalg.norm(x, axis=-1) * jnp.linalg.norm(y, axis=-1) + 1e-6
            alike = ((x * y).sum(-1) / sizes).mean()
            return 20 * apart + 2 * token_loss(logits, goals).mean() + 1 - alike

        return learned(lion, loss, state)

    def bert(n: int, dtype: Any) -> dict[str, Any]:
        p = {"table": Arg((30522, 768), dtype), "places": Arg((128, 768), dtype)}
        p |= {"layers": layered(n, cubes(768, dtype)), "first": Arg((768,)), "last": Arg((768,))}
        return p

    given = (Arg((44, 128), I32, below=30522), Arg((44, 20), I32, below=128))
    state = started(lion, bert(3, F32))
    goals = Arg((44, 20), I32, below=30522)
    yield "distilled", carried(distilled, state, bert(6, BF16), *given, goals)


def decoding() -> Zoo:
    """A token by DeepSeek with latent caches and experts, and by Llama with pages in float8."""
    b, n, d, times, heads, words = 21, 3, 2048, 3001, 16, 102400

    def latent(caches: Any, params: Any, tokens: Any, lengths: Any, key: Any) -> Any:
        """Queries go to the space of the latent cache; all 16 experts see all tokens."""
        rows = jnp.arange(b)
        seen = jnp.where(jnp.arange(times) <= lengths[:, None], 0.0, -1e9)[:, None]

        def layer(x: Any, given: Any) -> Any:
            p, (low, sides) = given
            y = rms(x, p["scale"][0])
            q = parted(y, p["q"], 192)
            q, side = q[..., :128], turned(q[..., 128:], lengths)
            new, turn = jnp.split(y @ p["less"], [512], -1)
            low = low.at[rows, lengths].set(rms(new, p["small"]))
            sides = sides.at[rows, lengths].set(turned(turn[:, None], lengths)[:, 0])
            q = jnp.einsum("bhe,che->bhc", q, p["more_k"])
            scores = jnp.einsum("bhc,btc->bht", q, low) + jnp.einsum("bhe,bte->bht", side, sides)
            shares = jax.nn.softmax(scores.astype(F32) * 192**-0.5 + seen).astype(BF16)
            found = jnp.einsum("bht,btc->bhc", shares, low)
            found = jnp.einsum("bhc,che->bhe", found, p["more_v"]).reshape(b, -1)
            x = x + found @ p["out"]
            y = rms(x, p["scale"][1])
            best, index = lax.top_k(jax.nn.softmax((y @ p["route"]).astype(F32)), 6)
            shares = jnp.zeros((b, 16)).at[rows[:, None], index].set(best).astype(BF16)
            gate, value = jnp.split(jnp.einsum("bd,edf->ebf", y, p["up"]), 2, -1)
            wide = jax.nn.silu(gate) * value * shares.T[..., None]
            x = x + jnp.einsum("ebf,efd->bd", wide, p["down"])
            return x + gated(y, p["both_up"], p["both_down"]), (low, sides)

        x, caches = lax.scan(layer, params["table"][tokens], (params["layers"], caches))
        logits = (rms(x, params["last"]) @ params["head"]).astype(F32)
        return caches, jax.random.categorical(key, logits / 0.6)

    layer = {"q": weight(d, heads * 192), "less": weight(d, 576), "small": Arg((512,))}
    layer |= {name: Arg((512, heads, 128), BF16, scale=0.05) for name in ("more_k", "more_v")}
    layer |= {"out": weight(heads * 128, d), "route": weight(d, 16), "scale": Arg((2, d))}
    layer |= {"up": weight(16, d, 2816), "down": weight(16, 1408, d)}
    layer |= {"both_up": weight(d, 5632), "both_down": weight(2816, d)}
    params = {"layers": layered(n, layer), "table": Arg((words, d), BF16), "last": Arg((d,))}
    params |= {"head": weight(d, words)}
    caches = (Arg((n, b, times, 512), BF16), Arg((n, b, times, 64), BF16))
    given = (Arg((b,), I32, below=words), Arg((b,), I32, below=times), _KEY)
    yield "latent", carried(latent, caches, params, *given)

    rows, pages, many, wide = 13, 61, 4096, 14336

    def paged(pool: Any, params: Any, tables: Any, lengths: Any, tokens: Any) -> Any:
        """Weights in int8 with a scale of each column; pages hold 32 tokens."""

        def times(x: Any, w: Any) -> Any:
            codes, scale = w
            return (x @ codes.astype(BF16)) * scale

        place = jnp.take_along_axis(tables, lengths[:, None] // 32, 1)[:, 0]
        seen = jnp.arange(pages * 32) <= lengths[:, None]
        bias = jnp.where(seen, 0.0, -1e9)[:, None, None, None]

        def layer(x: Any, given: Any) -> Any:
            p, pool = given
            qkv = times(rms(x, p["scale"][0]), p["qkv"]).reshape(rows, 48, 128)
            q, k, v = jnp.split(qkv, [32, 40], 1)
            both = jnp.stack([turned(k, lengths), v], 1).astype(F8)
            pool = pool.at[place, lengths % 32].set(both)
            known = pool[tables].reshape(rows, pages * 32, 2, 8, 128).astype(BF16)
            q = turned(q, lengths)[:, None]
            found = shared(q, known[:, :, 0], known[:, :, 1], bias)[:, 0]
            x = x + times(found, p["out"])
            gate, value = jnp.split(times(rms(x, p["scale"][1]), p["up"]), 2, -1)
            return x + times(jax.nn.silu(gate) * value, p["down"]), pool

        x, pool = lax.scan(layer, params["table"][tokens], (params["layers"], pool))
        logits = times(rms(x, params["last"]), params["head"]).astype(F32)
        best, index = lax.top_k(logits, 20)
        return pool, index[:, 0], jax.nn.log_softmax(best)

    def coded(a: int, b: int) -> tuple[Arg, Arg]:
        return Arg((a, b), I8, below=100), Arg((b,), BF16, scale=3e-4)

    layer = {"qkv": coded(many, 6144), "out": coded(many, many), "scale": Arg((2, many))}
    layer |= {"up": coded(many, 2 * wide), "down": coded(wide, many)}
    params = {"layers": layered(4, layer), "table": Arg((128256, many), BF16)}
    params |= {"last": Arg((many,)), "head": coded(many, 128256)}
    given = (Arg((rows, pages), I32, below=1201), Arg((rows,), I32, below=pages * 32))
    pool = Arg((4, 1201, 32, 2, 8, 128), F8)
    yield "paged", carried(paged, pool, params, *given, Arg((rows,), I32, below=128256))


def prefilling() -> Zoo:
    """A part of three long prompts for Gemma, whose caches know what came before."""
    b, n, d, size, times, part, words = 3, 3, 2560, 256, 4160, 1024, 256128

    def chunk(caches: Any, params: Any, tokens: Any, start: Any) -> Any:
        places = start % (times - part) + jnp.arange(part)
        gap = places[:, None] - jnp.arange(times)
        bias = jnp.where(gap >= 0, 0.0, -1e9)
        small = jnp.where((gap >= 0) & (gap < 1024), 0.0, -1e9)

        def layer(x: Any, given: Any) -> Any:
            p, cache, near = given
            y = rms(x, 1 + p["scale"][0])
            q, k, v = (parted(y, p[name], size) for name in "qkv")
            q, k = (turned(rms(a, 1 + p["turn"]), places) for a in (q, k))
            cache = lax.dynamic_update_slice(
                cache, jnp.stack([k, v]), (0, 0, start % (times - part), 0, 0)
            )
            y = shared(q, *cache, jnp.where(near > 0, small, bias)) @ p["out"]
            x = x + rms(y, 1 + p["scale"][1])
            gate, value = jnp.split(rms(x, 1 + p["scale"][2]) @ p["up"], 2, -1)
            y = (jax.nn.gelu(gate) * value) @ p["down"]
            return x + rms(y, 1 + p["scale"][3]), cache

        x = params["table"][tokens] * jnp.asarray(d**0.5, BF16)
        x, caches = lax.scan(layer, x, (params["layers"], caches, jnp.array([1, 1, 0])))
        logits = rms(x[:, -1], 1 + params["last"]) @ params["table"].T
        return caches, logits.astype(F32)

    layer = llama_layer(d, 10240, 8, 4, size, BF16) | {"scale": Arg((4, d), scale=0.1)}
    layer |= {"turn": Arg((size,), scale=0.1)}
    params = {"layers": layered(n, layer), "table": Arg((words, d), BF16, scale=0.02)}
    params |= {"last": Arg((d,), scale=0.1)}
    caches = Arg((n, 2, b, times, 4, size), BF16)
    given = (Arg((b, part), I32, below=words), Arg((), I32, below=times))
    yield "chunk", carried(chunk, caches, params, *given)


def translation() -> Zoo:
    """Whisper from sound to 28 tokens in float16, and twelve tokens of Marian's five beams."""
    b, d, heads, size, count, words = 6, 512, 8, 96, 28, 51865

    def spoken(params: Any, mel: Any, prompt: Any) -> Any:
        def folded(x: Any, w: Any, stride: int) -> Any:
            names = ("NWC", "WIO", "NWC")
            y = lax.conv_general_dilated(x, w, (stride,), [(1, 1)], dimension_numbers=names)
            return jax.nn.gelu(y)

        x = folded(folded(mel, params["one"], 1), params["two"], 2)
        x = x + waves(jnp.arange(x.shape[1]), d).astype(F16)
        x, _ = lax.scan(lambda x, p: (cubed(x, p, heads), None), x, params["reader"])
        x = norm(x, 1.0)
        known = [[parted(x, p[n], 64) for n in ("k", "v")] for p in params["writer"]]

        def step(carry: Any, place: Any) -> Any:
            token, caches = carry
            x = (params["table"][token] + params["places"][place])[:, None]
            bias, new = jnp.where(jnp.arange(size) <= place, 0.0, -1e9), []
            for p, old, (k, v) in zip(params["writer"], caches, known, strict=True):
                own = p["own"]
                qkv = parted(norm(x, own["scale"][0]), own["qkv"], 64)
                q, *both = jnp.split(qkv, 3, 2)
                cache = lax.dynamic_update_slice(old, jnp.stack(both), (0, 0, place, 0, 0))
                new.append(cache)
                x = x + attend(q, *cache, bias).reshape(b, 1, d) @ own["out"]
                found = attend(parted(norm(x, 1.0), p["q"], 64), k, v)
                x = x + found.reshape(b, 1, d) @ p["out"]
                x = x + jax.nn.gelu(norm(x, own["scale"][1]) @ own["up"]) @ own["down"]
            logits = (norm(x[:, 0], 1.0) @ params["table"].T).astype(F32) + params["quiet"]
            token = logits.argmax(-1).astype(I32)
            return (token, new), (token, jax.nn.log_softmax(logits).max(-1))

        caches = [jnp.zeros((2, b, size, heads, 64), F16) for _ in params["writer"]]
        return lax.scan(step, (prompt, caches), jnp.arange(count))[1]

    writer = {n: weight(d, d, dtype=F16) for n in ("q", "k", "v", "out")} | {"own": cubes(d, F16)}
    params = {"one": kernel(3, 80, d, dtype=F16), "two": kernel(3, d, d, dtype=F16)}
    params |= {"reader": layered(6, cubes(d, F16)), "writer": [writer] * 2, "quiet": Arg((words,))}
    params |= {"table": Arg((words, d), F16, scale=0.05), "places": Arg((448, d), F16)}
    given = (Arg((b, 3000, 80), F16), Arg((b,), I32, below=words))
    yield "spoken", program(spoken, params, *given)

    texts, beams, many, long = 4, 5, 58101, 64

    def ranked(state: Any, params: Any, known: Any) -> Any:
        """Caches follow the beams that stay; a layer of two is scanned."""
        rows = texts * beams

        def step(n: Any, state: Any) -> Any:
            tokens, scores, caches, first = state
            place = first % 48 + n
            last = lax.dynamic_slice_in_dim(tokens, place, 1, 2).reshape(rows, 1)
            x = params["table"][last] * 22.6 + waves(place[None], d)
            bias = jnp.where(jnp.arange(long) <= place, 0.0, -1e9)

            def layer(x: Any, given: Any) -> Any:
                p, cache, (k, v) = given
                q, *both = jnp.split(parted(x, p["qkv"], 64), 3, 2)
                cache = lax.dynamic_update_slice(cache, jnp.stack(both), (0, 0, place, 0, 0))
                y = attend(q, *cache, bias).reshape(rows, 1, d) @ p["out"]
                x = norm(x + y, p["scale"][0])
                y = attend(parted(x, p["q"], 64), k, v).reshape(rows, 1, d) @ p["more"]
                x = norm(x + y, p["scale"][1])
                return norm(x + jax.nn.silu(x @ p["up"]) @ p["down"], p["scale"][2]), cache

            x, caches = lax.scan(layer, x, (params["layers"], caches, known))
            logits = jax.nn.log_softmax(x[:, 0] @ params["table"].T + params["bias"])
            total = (scores[..., None] + logits.reshape(texts, beams, many)).reshape(texts, -1)
            scores, index = lax.top_k(total, beams)
            origin = index // many
            tokens = jnp.take_along_axis(tokens, origin[..., None], 1)
            tokens = tokens.at[:, :, place + 1].set((index % many).astype(I32))
            flat = (origin + beams * jnp.arange(texts)[:, None]).reshape(-1)
            return tokens, scores, caches[:, :, flat], first

        state = lax.fori_loop(0, 12, step, state)
        return state, state[1].max(-1)

    layer = cubes(d) | {"q": full(d, d), "more": full(d, d), "scale": Arg((3, d))}
    params = {"layers": layered(3, layer), "table": Arg((many, d), scale=0.03)}
    params |= {"bias": Arg((many,))}
    known = (Arg((3, texts * beams, 47, heads, 64)),) * 2
    state = (Arg((texts, beams, long), I32, below=many), Arg((texts, beams)))
    state += (Arg((3, 2, texts * beams, long, heads, 64)), Arg((), I32, below=48))
    yield "ranked", carried(ranked, state, params, known)


def pictures() -> Zoo:
    """Training of a small ViT on mixed pictures as in big_vision, and U-Net's dice in float32."""
    b, d = 112, 384
    rule = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(1e-3, weight_decay=1e-4, mu_dtype=BF16)
    )

    def patches(state: Any, images: Any, labels: Any, key: Any) -> Any:
        """Random parts, flips, and pairs mixed by a share; sigmoids for a thousand names."""
        one, two, three = jax.random.split(key, 3)

        def crop(image: Any, start: Any, flip: Any) -> Any:
            image = lax.dynamic_slice(image, (start[0], start[1], 0), (224, 224, 3))
            return jnp.where(flip, image[:, ::-1], image)

        starts = jax.random.randint(one, (b, 2), 0, 33)
        x = jax.vmap(crop)(images, starts, jax.random.bernoulli(two, shape=(b,)))
        share = jax.random.beta(three, 0.2, 0.2)
        x = x.astype(F32) / 127.5 - 1
        x = (share * x + (1 - share) * x[::-1]).astype(BF16)
        goals = jax.nn.one_hot(labels, 1000)
        goals = share * goals + (1 - share) * goals[::-1]
        x = x.reshape(b, 14, 16, 14, 16, 3).swapaxes(2, 3).reshape(b, 196, 768)

        def loss(params: Any) -> Any:
            p = short(params)
            y = x @ p["patch"] + waves(jnp.arange(196), d).astype(BF16)
            y, _ = lax.scan(lambda y, q: (cubed(y, q, 6), None), y, p["layers"])
            y = norm(y, p["last"]).mean(1)
            logits = (jnp.tanh(y @ p["hidden"]) @ p["head"]).astype(F32) - 6.9
            return optax.sigmoid_binary_cross_entropy(logits, goals).sum(-1).mean()

        return learned(rule, loss, state)

    params = {"patch": full(768, d), "layers": layered(8, cubes(d)), "last": Arg((d,))}
    params |= {"hidden": full(d, d), "head": full(d, 1000)}
    given = (Arg((b, 256, 256, 3), U8, below=256), Arg((b,), I32, below=1000), _KEY)
    yield "patches", carried(patches, started(rule, params), *given)

    simple = optax.sgd(0.01, 0.99, nesterov=True)

    def slices(state: Any, images: Any, organs: Any) -> Any:
        def both(x: Any, p: Any) -> Any:
            for w, scale in p:
                x = jax.nn.leaky_relu(grouped(convolved(x, w), scale, 8), 0.01)
            return x

        def larger(x: Any, w: Any) -> Any:
            b, h, n, _ = x.shape
            return (x @ w).reshape(b, h, n, 2, 2, -1).swapaxes(2, 3).reshape(b, 2 * h, 2 * n, -1)

        def loss(p: Any) -> Any:
            one = both(images, p["one"])
            two = both(halved(one), p["two"])
            three = both(halved(two), p["three"])
            x = both(jnp.concatenate([larger(three, p["up"][0]), two], -1), p["four"])
            x = both(jnp.concatenate([larger(x, p["up"][1]), one], -1), p["five"])
            logits = x @ p["head"]
            shares, goals = jax.nn.softmax(logits), jax.nn.one_hot(organs, 5)
            top = 2 * (shares * goals).sum((1, 2)) + 1e-5
            dice = top / (shares.sum((1, 2)) + goals.sum((1, 2)) + 1e-5)
            return 1 - dice[:, 1:].mean() + token_loss(logits, organs).mean()

        return learned(simple, loss, state)

    def halved(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    def pair(a: int, b: int) -> list[tuple[Arg, Arg]]:
        return [(kernel(3, 3, n, b, dtype=F32), Arg((2, b))) for n in (a, b)]

    params = {"one": pair(1, 32), "two": pair(32, 64), "three": pair(64, 128)}
    params |= {"four": pair(128, 64), "five": pair(64, 32), "head": full(32, 5)}
    params |= {"up": [full(128, 256), full(64, 128)]}
    given = (Arg((10, 192, 160, 1)), Arg((10, 192, 160), I32, below=5))
    yield "slices", carried(slices, started(simple, params), *given)


def convnets() -> Zoo:
    """Training of a short ResNet with momentum, and ConvNeXt for 33 pictures in float16."""
    rule = optax.chain(optax.add_decayed_weights(5e-5), optax.sgd(0.1, 0.9, nesterov=True))

    def bottlenecks(state: Any, images: Any, labels: Any) -> Any:
        """Means and variances of batches are kept too; goals are smoothed."""
        params, moments, kept = state

        def loss(params: Any) -> Any:
            seen: list[Any] = []

            def step(x: Any, p: Any, stride: int = 1, bend: bool = True) -> Any:
                x = convolved(x, p["w"].astype(BF16), stride).astype(F32)
                mean = x.mean((0, 1, 2))
                spread = jnp.maximum((x * x).mean((0, 1, 2)) - mean**2, 0.0)
                seen.append((mean, spread))
                x = (x - mean) * lax.rsqrt(spread + 1e-5) * p["scale"][0] + p["scale"][1]
                return (jax.nn.relu(x) if bend else x).astype(BF16)

            x = step(images.astype(BF16) / 128 - 1, params["stem"], 2)
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
            for n, block in enumerate(params["blocks"]):
                stride = 2 if n else 1
                y = step(step(x, block[0]), block[1], stride)
                y = step(y, block[2], bend=False)
                x = jax.nn.relu(y + step(x, block[3], stride, False))
            logits = x.astype(F32).mean((1, 2)) @ params["head"]
            goals = optax.smooth_labels(jax.nn.one_hot(labels, 1000), 0.1)
            return optax.softmax_cross_entropy(logits, goals).mean(), seen

        (value, seen), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        params, moments = applied(rule, params, moments, gradient)
        kept = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, kept, seen)
        return (params, moments, kept), value

    def layer(size: int, a: int, b: int) -> dict[str, Arg]:
        return {"w": kernel(size, size, a, b, dtype=F32), "scale": Arg((2, b))}

    def block(a: int, b: int) -> list[dict[str, Arg]]:
        return [layer(1, a, b), layer(3, b, b), layer(1, b, 4 * b), layer(1, a, 4 * b)]

    blocks = [block(64, 64), block(256, 128), block(512, 256)]
    params = {"stem": layer(7, 3, 64), "blocks": blocks, "head": full(1024, 1000)}
    sizes = [64, *(size for n in (64, 128, 256) for size in (n, n, 4 * n, 4 * n))]
    kept = [(Arg((size,)), Arg((size,))) for size in sizes]
    given = (Arg((120, 224, 224, 3), U8, below=256), Arg((120,), I32, below=1000))
    yield "bottlenecks", carried(bottlenecks, (*started(rule, params), kept), *given)

    def depthwise(params: Any, images: Any) -> Any:
        """Blocks of each size are scanned."""

        def block(x: Any, p: Any) -> Any:
            y = norm(convolved(x, p["w"], 1, x.shape[-1]), p["scale"][0])
            y = jax.nn.gelu(y @ p["up"] + p["bias"], approximate=False) @ p["down"]
            return x + y * p["scale"][1].astype(F16), None

        def smaller(x: Any, w: Any, size: int) -> Any:
            b, h, n, c = x.shape
            x = x.reshape(b, h // size, size, n // size, size, c).swapaxes(2, 3)
            return x.reshape(b, h // size, n // size, -1) @ w

        x = norm(smaller(images, params["stem"], 4), 1.0)
        for n, stage in enumerate(params["stages"]):
            if n:
                x = smaller(norm(x, 1.0), params["between"][n - 1], 2)
            x, _ = lax.scan(block, x, stage)
        return jax.nn.softmax((norm(x.mean((1, 2)), 1.0) @ params["head"]).astype(F32))

    def scanned(c: int, n: int) -> Any:
        p = {"w": kernel(7, 7, 1, c, dtype=F16), "up": weight(c, 4 * c, dtype=F16)}
        p |= {"down": weight(4 * c, c, dtype=F16), "bias": Arg((4 * c,), F16)}
        return layered(n, p | {"scale": Arg((2, c))})

    params = {"stem": weight(48, 96, dtype=F16), "head": weight(768, 1000, dtype=F16)}
    params |= {"stages": [scanned(96, 2), scanned(192, 2), scanned(384, 5), scanned(768, 2)]}
    params |= {"between": [weight(4 * c, 2 * c, dtype=F16) for c in (96, 192, 384)]}
    yield "depthwise", program(depthwise, params, Arg((33, 224, 224, 3), F16))


def pairing() -> Zoo:
    """Training of SigLIP: pictures and texts, and a sigmoid for every pair of them."""
    b, d, words = 176, 512, 32000
    rule = optax.adafactor(1e-3, min_dim_size_to_factor=64, momentum=0.9)

    def sigmoids(state: Any, images: Any, texts: Any) -> Any:
        x = images.reshape(b, 10, 16, 10, 16, 3).swapaxes(2, 3).reshape(b, 100, 768)
        x = x.astype(BF16) / 127.5 - 1

        def run(x: Any, layers: Any) -> Any:
            @jax.checkpoint
            def layer(x: Any, p: Any) -> Any:
                return cubed(x, p, 8), None

            return norm(lax.scan(layer, x, layers)[0], 1.0)

        def loss(params: Any) -> Any:
            p = short(params)
            seen = run(x @ p["patch"] + p["places"], p["pictures"])
            probe = jnp.broadcast_to(p["probe"], (b, 1, d))
            seen = attention(probe, seen, p["heads"], p["out"], 8)[:, 0]
            read = run(p["table"][texts] + p["order"], p["texts"])[:, -1] @ p["head"]
            both = (seen.astype(F32), read.astype(F32))
            both = tuple(y / (jnp.linalg.norm(y, axis=-1, keepdims=True) + 1e-8) for y in both)
            logits = both[0] @ both[1].T * jnp.exp(params["warm"]) + params["cold"]
            return -jax.nn.log_sigmoid((2 * jnp.eye(b) - 1) * logits).sum(-1).mean()

        return learned(rule, loss, state)

    params = {"pictures": layered(4, cubes(d)), "texts": layered(4, cubes(d)), "head": full(d, d)}
    params |= {"patch": full(768, d), "places": Arg((100, d)), "probe": Arg((1, 1, d))}
    params |= {"heads": tuple(full(d, d) for _ in range(3)), "out": full(d, d)}
    params |= {"table": Arg((words, d)), "order": Arg((64, d)), "warm": Arg(()), "cold": Arg(())}
    given = (Arg((b, 160, 160, 3), U8, below=256), Arg((b, 64), I32, below=words))
    yield "sigmoids", carried(sigmoids, started(rule, params), *given)


def samplers() -> Zoo:
    """Stable Diffusion's U with guidance for five steps of Euler, and four steps of Flux."""
    b, c = 3, 192

    def steered(x: Any, params: Any, text: Any, key: Any) -> Any:
        def block(x: Any, p: Any, time: Any) -> Any:
            y = convolved(jax.nn.silu(grouped(x, p["first"])), p["one"])
            y = y + (jax.nn.silu(time) @ p["time"])[:, None, None]
            y = convolved(jax.nn.silu(grouped(y, p["second"])), p["two"])
            return y + (x @ p["skip"] if "skip" in p else x)

        def reader(x: Any, p: Any) -> Any:
            n, h, w, d = x.shape
            y = grouped(x, p["scale"]).reshape(n, h * w, d)
            z = norm(y, 1.0)
            y = y + attention(z, z, p["self"], p["out"], 8)
            y = y + attention(norm(y, 1.0), text, p["other"], p["more"], 8)
            value, gate = jnp.split(norm(y, 1.0) @ p["up"], 2, -1)
            y = y + (value * jax.nn.gelu(gate)) @ p["down"]
            return x + y.reshape(x.shape)

        def model(x: Any, level: Any) -> Any:
            time = perceptron(waves(level[None], c).astype(BF16), params["time"], jax.nn.silu)
            one = block(convolved(x, params["in"]), params["blocks"][0], time)
            y = block(convolved(one, params["less"], 2), params["blocks"][1], time)
            y = block(reader(y, params["reader"]), params["blocks"][2], time)
            y = jnp.repeat(jnp.repeat(y, 2, 1), 2, 2)
            y = jnp.concatenate([convolved(y, params["more"]), one], -1)
            y = block(y, params["blocks"][3], time)
            return convolved(jax.nn.silu(grouped(y, params["last"])), params["end"])

        levels = jnp.exp(jnp.linspace(2.68, -3.5, 6))

        def step(x: Any, given: Any) -> Any:
            high, low, key = given
            y = (x / jnp.sqrt(high**2 + 1)).astype(BF16)
            free, told = jnp.split(model(jnp.concatenate([y, y]), jnp.log(high)), 2)
            noise = (free + 7.5 * (told - free)).astype(F32)
            up = jnp.sqrt(low**2 * (high**2 - low**2) / high**2)
            down = jnp.sqrt(low**2 - up**2)
            x = x + noise * (down - high) + up * jax.random.normal(key, x.shape)
            return x, jnp.square(noise).mean()

        return lax.scan(step, x, (levels[:-1], levels[1:], jax.random.split(key, 5)))

    def block(a: int, b: int) -> dict[str, Arg]:
        p = {"one": kernel(3, 3, a, b), "two": kernel(3, 3, b, b), "time": weight(4 * c, b)}
        p |= {"first": Arg((2, a)), "second": Arg((2, b))}
        return p | ({"skip": weight(a, b)} if a != b else {})

    e = 2 * c
    reader = {"self": (weight(e, e),) * 3, "out": weight(e, e), "more": weight(e, e)}
    reader |= {"other": (weight(e, e), weight(768, e), weight(768, e)), "scale": Arg((2, e))}
    reader |= {"up": weight(e, 8 * e), "down": weight(4 * e, e)}
    params = {"in": kernel(3, 3, 4, c), "less": kernel(3, 3, c, e), "more": kernel(3, 3, e, c)}
    params |= {"blocks": [block(c, c), block(e, e), block(e, e), block(e, c)], "reader": reader}
    params |= {"end": kernel(3, 3, c, 4), "last": Arg((2, c))}
    bias = Arg((4 * c,), BF16)
    params |= {"time": [(weight(c, 4 * c), bias), (weight(4 * c, 4 * c), bias)]}
    given = (Arg((2 * b, 77, 768), BF16), _KEY)
    yield "steered", carried(steered, Arg((b, 64, 64, 4), scale=14.0), params, *given)

    d, heads, told, drawn = 1536, 12, 256, 1024

    def flux(x: Any, params: Any, text: Any, pooled: Any) -> Any:
        """Blocks of two streams, then blocks of one, whose products of two kinds are one."""
        places = jnp.concatenate([jnp.zeros(told), 1 + jnp.arange(drawn)])

        def seen(qkv: Any) -> Any:
            q, k, v = jnp.split(qkv, 3, 2)
            q, k = turned(rms(q), places), turned(rms(k), places)
            return attend(q, k, v).reshape(*q.shape[:2], d)

        def model(x: Any, time: Any) -> Any:
            shift = perceptron(waves(time[None] * 1000, 256).astype(BF16), params["time"])
            shift = jax.nn.silu(shift + pooled @ params["pooled"])[:, None]

            def double(both: Any, p: Any) -> Any:
                mods = [jnp.split(shift @ q["mod"], 6, -1) for q in p]
                qkv = [
                    parted(norm(y, 1.0) * (1 + m[0]) + m[1], q["qkv"], 128)
                    for y, m, q in zip(both, mods, p, strict=True)
                ]
                found = seen(jnp.concatenate(qkv, 1))
                new = []
                parts = (found[:, :told], found[:, told:])
                for y, m, q, part in zip(both, mods, p, parts, strict=True):
                    z = y + m[2] * (part @ q["out"])
                    wide = jax.nn.gelu((norm(z, 1.0) * (1 + m[3]) + m[4]) @ q["up"])
                    new.append(z + m[5] * (wide @ q["down"]))
                return tuple(new), None

            def single(y: Any, p: Any) -> Any:
                m = jnp.split(shift @ p["mod"], 3, -1)
                wide = (norm(y, 1.0) * (1 + m[0]) + m[1]) @ p["in"]
                found = seen(wide[..., : 3 * d].reshape(*y.shape[:2], 3 * heads, 128))
                wide = jnp.concatenate([found, jax.nn.gelu(wide[..., 3 * d :])], -1)
                return y + m[2] * (wide @ p["out"]), None

            both = (text @ params["text"], x.astype(BF16) @ params["in"])
            both, _ = lax.scan(double, both, params["double"])
            y, _ = lax.scan(single, jnp.concatenate(both, 1), params["single"])
            return (norm(y[:, told:], 1.0) @ params["end"]).astype(F32)

        def step(x: Any, times: Any) -> Any:
            return x + (times[1] - times[0]) * model(x, times[0]), x.mean()

        times = jnp.linspace(1.0, 0.0, 5)
        return lax.scan(step, x, jnp.stack([times[:-1], times[1:]], 1))

    stream = {"qkv": weight(d, 3 * d), "out": weight(d, d), "mod": weight(d, 6 * d)}
    stream |= {"up": weight(d, 4 * d), "down": weight(4 * d, d)}
    single = {"in": weight(d, 7 * d), "out": weight(5 * d, d), "mod": weight(d, 3 * d)}
    params = {"double": layered(2, (stream, stream)), "single": layered(4, single)}
    params |= {"text": weight(2048, d), "in": weight(64, d), "end": weight(d, 64)}
    params |= {"time": [(weight(256, d), Arg((d,), BF16)), (weight(d, d), Arg((d,), BF16))]}
    params |= {"pooled": weight(768, d)}
    given = (Arg((2, told, 2048), BF16), Arg((2, 768), BF16))
    yield "flux", carried(flux, Arg((2, drawn, 64)), params, *given)


def denoisers() -> Zoo:
    """Training of a diffusion transformer of names, with a slow copy of its weights."""
    b, d = 38, 768
    rule = optax.adamw(1e-4, weight_decay=0.0)

    def velocities(state: Any, images: Any, names: Any, key: Any) -> Any:
        params, moments, slow = state
        keys = jax.random.split(key, 3)
        time = jax.nn.sigmoid(jax.random.normal(keys[0], (b,)))
        noise = jax.random.normal(keys[1], images.shape)
        names = jnp.where(jax.random.bernoulli(keys[2], 0.1, (b,)), 1000, names)
        mixed = (1 - time)[:, None, None] * images + time[:, None, None] * noise

        def loss(params: Any) -> Any:
            p = short(params)
            told = perceptron(waves(time * 1000, 256).astype(BF16), p["time"], jax.nn.silu)
            told = jax.nn.silu(told + p["names"][names])[:, None]

            def layer(x: Any, q: Any) -> Any:
                m = jnp.split(told @ q["mod"], 6, -1)
                y = norm(x, 1.0) * (1 + m[0]) + m[1]
                x = x + m[2] * attention(y, y, (q["q"], q["k"], q["v"]), q["out"], 12)
                y = norm(x, 1.0) * (1 + m[3]) + m[4]
                return x + m[5] * (jax.nn.gelu(y @ q["up"]) @ q["down"]), None

            x = mixed.astype(BF16) @ p["in"] + waves(jnp.arange(256), d).astype(BF16)
            x, _ = lax.scan(layer, x, p["layers"])
            found = (norm(x, 1.0) @ p["end"]).astype(F32)
            return jnp.square(found - (noise - images)).mean()

        (params, moments), value = learned(rule, loss, (params, moments))
        slow = jax.tree.map(lambda old, new: 0.9999 * old + 1e-4 * new, slow, params)
        return (params, moments, slow), value

    layer = {name: full(d, d) for name in ("q", "k", "v", "out")} | {"mod": full(d, 6 * d)}
    layer |= {"up": full(d, 4 * d), "down": full(4 * d, d)}
    params = {"layers": layered(4, layer), "in": full(16, d), "end": full(d, 16)}
    params |= {"time": stack(256, d, d), "names": Arg((1001, d))}
    given = (Arg((b, 256, 16)), Arg((b,), I32, below=1000), _KEY)
    yield "velocities", carried(velocities, (*started(rule, params), params), *given)


def recommending() -> Zoo:
    """DLRM, whose rows learn alone by Adagrad, and two towers of users and items."""
    b, fields, rows, d = 8192, 26, 2600003, 64
    simple = optax.sgd(0.1)

    def clicks(state: Any, numbers: Any, ids: Any, goals: Any) -> Any:
        params, moments, table, sums = state
        index = ids.reshape(-1)

        def loss(params: Any, found: Any) -> Any:
            p = short(params)
            dense = perceptron(jnp.log1p(jnp.abs(numbers)).astype(BF16), p["bottom"])
            every = jnp.concatenate([dense[:, None], found.astype(BF16)], 1)
            pairs = jnp.einsum("bid,bjd->bij", every, every)
            low = jnp.tril_indices(fields + 1, -1)
            x = jnp.concatenate([dense, pairs[:, low[0], low[1]]], -1)
            logits = perceptron(x, p["top"])[:, 0].astype(F32)
            return optax.sigmoid_binary_cross_entropy(logits, goals).mean()

        found = table[ids]
        value, (gradient, slopes) = jax.value_and_grad(loss, (0, 1))(params, found)
        params, moments = applied(simple, params, moments, gradient)
        slopes = slopes.reshape(-1, d)
        sums = sums.at[index].add(jnp.square(slopes).mean(-1))
        steps = 0.01 * slopes * lax.rsqrt(jnp.abs(sums[index]) + 1e-8)[:, None]
        return (params, moments, table.at[index].add(-steps), sums), value

    params = {"bottom": stack(13, 512, 256, d), "top": stack(415, 512, 512, 256, 1)}
    state = (*started(simple, params), Arg((rows, d), scale=0.02), Arg((rows,)))
    given = (Arg((b, 13)), Arg((b, fields), I32, below=rows), Arg((b,), I32, below=2))
    yield "clicks", carried(clicks, state, *given)

    n, users, items = 4500, 610011, 210007
    rule = optax.adagrad(0.05)

    def towers(state: Any, who: Any, past: Any, what: Any, often: Any) -> Any:
        """Bags of 30 items; other rows' items are the wrong ones, less those that are common."""

        def loss(p: Any) -> Any:
            kept = (past > 0)[..., None]
            bag = (p["items"][past] * kept).sum(1) / jnp.maximum(kept.sum(1), 1)
            x = jnp.concatenate([p["users"][who], bag], -1)
            both = (perceptron(x, p["one"]), perceptron(p["items"][what], p["two"]))
            both = tuple(y / (jnp.linalg.norm(y, axis=-1, keepdims=True) + 1e-6) for y in both)
            logits = both[0] @ both[1].T / 0.05 - jnp.log(jnp.abs(often) + 1e-6)
            twice = (what[:, None] == what) & ~jnp.eye(n, dtype=bool)
            return token_loss(jnp.where(twice, -1e9, logits), jnp.arange(n)).mean()

        return learned(rule, loss, state)

    params = {"users": Arg((users, 48), scale=0.1), "items": Arg((items, 48), scale=0.1)}
    params |= {"one": stack(96, 256, 128), "two": stack(48, 256, 128)}
    given = (Arg((n,), I32, below=users), Arg((n, 30), I32, below=items))
    given += (Arg((n,), I32, below=items), Arg((n,)))
    yield "towers", carried(towers, started(rule, params), *given)


def molecules() -> Zoo:
    """Training of a graph network of Jraph on 200 molecules, with dropout and unknown goals."""
    nodes, edges, graphs, d = 5300, 11500, 201, 300
    rule = optax.adam(1e-3)

    def assays(
        state: Any, atoms: Any, bonds: Any, ends: Any, graph: Any, goals: Any, key: Any
    ) -> Any:
        known = jnp.abs(goals) > 0.5

        def loss(p: Any) -> Any:
            x, e = p["atoms"][atoms].sum(1), p["bonds"][bonds].sum(1)
            g = jnp.zeros((graphs, d))

            def layer(carry: Any, given: Any) -> Any:
                x, e, g = carry
                q, key = given
                parts = (e, x[ends[0]], x[ends[1]], g[graph[ends[0]]])
                e = e + norm(perceptron(jnp.concatenate(parts, -1), q["edge"]), q["scale"][0])
                e = dropped(key, e)
                into = jax.ops.segment_sum(e, ends[1], nodes)
                out = jax.ops.segment_sum(e, ends[0], nodes)
                wide = jnp.concatenate([x, into, out, g[graph]], -1)
                x = x + norm(perceptron(wide, q["node"]), q["scale"][1])
                every = (
                    jax.ops.segment_sum(y, z, graphs) for y, z in ((x, graph), (e, graph[ends[0]]))
                )
                wide = jnp.concatenate([g, *every], -1)
                return (x, e, g + norm(perceptron(wide, q["whole"]), q["scale"][2])), None

            keys = jax.random.split(key, 3)
            (_, _, g), _ = lax.scan(layer, (x, e, g), (p["layers"], keys))
            lost = optax.sigmoid_binary_cross_entropy(g @ p["head"], goals > 0)
            return (lost * known).sum() / known.sum()

        return learned(rule, loss, state)

    layer = {"edge": stack(4 * d, d, d), "node": stack(4 * d, d, d), "whole": stack(3 * d, d, d)}
    params = {"layers": layered(3, layer | {"scale": Arg((3, d))}), "head": full(d, 128)}
    params |= {"atoms": Arg((174, d)), "bonds": Arg((13, d))}
    given = (Arg((nodes, 9), I32, below=174), Arg((edges, 3), I32, below=13))
    given += (Arg((2, edges), I32, below=nodes), Arg((nodes,), I32, below=graphs))
    yield "assays", carried(assays, started(rule, params), *given, Arg((graphs, 128)), _KEY)


def control() -> Zoo:
    """Twelve steps of SAC for an ant as in Brax, and PPO's pass over frames with IMPALA's net."""
    b, seen, moves = 256, 87, 8
    rule = optax.adam(3e-4)

    def soft(state: Any, batch: Any, key: Any) -> Any:
        def drawn(p: Any, x: Any, key: Any) -> Any:
            mean, spread = jnp.split(perceptron(x, p), 2, -1)
            spread = jnp.clip(spread, -5, 2)
            noise = jax.random.normal(key, mean.shape)
            raw = mean + jnp.exp(spread) * noise
            log = -0.5 * noise**2 - spread - 0.92 - 2 * (0.693 - raw - jax.nn.softplus(-2 * raw))
            return jnp.tanh(raw), log.sum(-1)

        def worth(p: Any, x: Any, a: Any) -> Any:
            given = jnp.concatenate([x, a], -1)
            return jax.vmap(lambda q: perceptron(given, q)[:, 0])(p)

        def step(state: Any, given: Any) -> Any:
            actor, critic, slow, heat = state
            (x, a, reward, y, alive), key = given
            one, two = jax.random.split(key)
            warm = jnp.exp(heat[0])
            ahead, log = drawn(actor[0], y, one)
            goal = worth(slow, y, ahead).min(0) - warm * log
            goal = reward + 0.99 * alive * goal

            def judged(p: Any) -> Any:
                return jnp.square(worth(p, x, a) - goal).mean()

            def acted(p: Any) -> Any:
                a, log = drawn(p, x, two)
                return (warm * log - worth(critic[0], x, a).min(0)).mean()

            critic, lost = learned(rule, judged, critic)
            actor, _ = learned(rule, acted, actor)
            heat, _ = learned(rule, lambda h: -(jnp.exp(h) * (log - moves)).mean(), heat)
            slow = jax.tree.map(lambda old, new: 0.995 * old + 0.005 * new, slow, critic[0])
            return (actor, critic, slow, heat), lost

        return lax.scan(step, state, (batch, jax.random.split(key, 12)))

    critics = layered(2, stack(seen + moves, 256, 256, 1))
    state = (started(rule, stack(seen, 256, 256, 2 * moves)), started(rule, critics), critics)
    state += (started(rule, Arg(())),)
    batch = (Arg((12, b, seen)), Arg((12, b, moves)), Arg((12, b)), Arg((12, b, seen)))
    yield "soft", carried(soft, state, (*batch, Arg((12, b), I32)), _KEY)

    envs, times, acts = 64, 48, 15
    quick = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(5e-4, eps=1e-5))

    def mazes(state: Any, frames: Any, actions: Any, old: Any, rewards: Any, key: Any) -> Any:
        """Gains are summed backwards in time; four parts of the frames, each a step."""

        def net(p: Any, x: Any) -> Any:
            x = x.astype(BF16) / 255
            for one, two, three in p["stages"]:
                x = lax.reduce_window(
                    convolved(x, one),
                    -jnp.inf,
                    lax.max,
                    (1, 3, 3, 1),
                    (1, 2, 2, 1),
                    "SAME",
                )
                x = x + convolved(jax.nn.relu(convolved(jax.nn.relu(x), two)), three)
            x = jax.nn.relu(jax.nn.relu(x).reshape(x.shape[0], -1) @ p["wide"])
            x = (x @ p["heads"]).astype(F32)
            return x[:, :acts], x[:, acts]

        values, done = old[1], jnp.abs(rewards) > 2.5

        def back(gain: Any, given: Any) -> Any:
            reward, value, ahead, done = given
            gap = reward + 0.999 * ahead * (1 - done) - value
            gain = gap + 0.999 * 0.95 * (1 - done) * gain
            return gain, gain

        given = (rewards, values[:-1], values[1:], done)
        _, gains = lax.scan(back, jnp.zeros(envs), given, reverse=True)
        goals = gains + values[:-1]
        order = jax.random.permutation(key, times * envs).reshape(4, -1)
        flat = [x.reshape(-1, *x.shape[2:]) for x in (frames, actions, old[0], gains, goals)]

        def part(state: Any, index: Any) -> Any:
            x, a, before, gain, goal = (y[index] for y in flat)
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)

            def loss(params: Any) -> Any:
                logits, value = net(short(params), x)
                logs = jax.nn.log_softmax(logits)
                log = jnp.take_along_axis(logs, a[:, None], 1)[:, 0]
                ratio = jnp.exp(log - before)
                kept = jnp.minimum(ratio * gain, jnp.clip(ratio, 0.8, 1.2) * gain).mean()
                unsure = -(jnp.exp(logs) * logs).sum(-1).mean()
                return 0.25 * jnp.square(value - goal).mean() - kept - 0.01 * unsure

            return learned(quick, loss, state)

        return lax.scan(part, state, order)

    def stage(a: int, b: int) -> tuple[Arg, Arg, Arg]:
        return tuple(kernel(3, 3, n, b, dtype=F32) for n in (a, b, b))

    params = {"stages": [stage(3, 32), stage(32, 64), stage(64, 64)], "wide": full(4096, 256)}
    params |= {"heads": full(256, acts + 1)}
    given = (Arg((times, envs, 64, 64, 3), U8, below=256), Arg((times, envs), I32, below=acts))
    old = (Arg((times, envs)), Arg((times + 1, envs)))
    yield "mazes", carried(mazes, started(quick, params), *given, old, Arg((times, envs)), _KEY)


def worlds() -> Zoo:
    """Training of Dreamer's world: 32 choices of 32 kinds a time, drawn with straight slopes."""
    b, times, deep, kinds, acts = 16, 50, 512, 32, 6
    rule = optax.chain(optax.clip_by_global_norm(1000.0), optax.adam(1e-4, eps=1e-8))

    def dreamer(state: Any, frames: Any, actions: Any, rewards: Any, key: Any) -> Any:
        images = frames.astype(BF16) / 255 - 0.5

        def loss(params: Any) -> Any:
            p = short(params)
            x = images.reshape(b * times, 64, 64, 3)
            for w in p["seen"]:
                x = jax.nn.silu(norm(convolved(x, w, 2), 1.0))
            told = x.reshape(b, times, -1).swapaxes(0, 1)

            def likely(x: Any, w: Any) -> Any:
                shares = jax.nn.softmax((x @ w).astype(F32).reshape(b, kinds, kinds))
                return jnp.log(0.99 * shares + 0.01 / kinds)

            def step(carry: Any, given: Any) -> Any:
                h, z = carry
                told, action, key = given
                x = jnp.concatenate(
                    [z.reshape(b, -1), jax.nn.one_hot(action, acts, dtype=BF16)], -1
                )
                x = jax.nn.silu(norm(x @ p["in"], 1.0))
                parts = norm(jnp.concatenate([x, h], -1) @ p["cell"], 1.0)
                reset, new, update = jnp.split(parts, 3, -1)
                new = jnp.tanh(jax.nn.sigmoid(reset) * new)
                update = jax.nn.sigmoid(update - 1)
                h = update * new + (1 - update) * h
                prior = likely(jax.nn.silu(norm(h @ p["prior"][0], 1.0)), p["prior"][1])
                x = jax.nn.silu(norm(jnp.concatenate([h, told], -1) @ p["post"][0], 1.0))
                post = likely(x, p["post"][1])
                drawn = jax.nn.one_hot(jax.random.categorical(key, post), kinds)
                z = (drawn + jnp.exp(post) - lax.stop_gradient(jnp.exp(post))).astype(BF16)
                return (h, z), (h, z, prior, post)

            start = (jnp.zeros((b, deep), BF16), jnp.zeros((b, kinds, kinds), BF16))
            given = (told, actions.T, jax.random.split(key, times))
            _, (h, z, prior, post) = lax.scan(step, start, given)

            def apart(one: Any, two: Any) -> Any:
                return jnp.maximum((jnp.exp(one) * (one - two)).sum((-1, -2)), 1.0).mean()

            x = jnp.concatenate([h, z.reshape(times, b, -1)], -1)
            bins = (jax.nn.silu(norm(x @ p["reward"][0], 1.0)) @ p["reward"][1]).astype(F32)
            edges = jnp.linspace(-20, 20, 255)
            goal = jnp.sign(rewards.T) * jnp.log1p(jnp.abs(rewards.T))
            share = jnp.maximum(1 - jnp.abs(goal[..., None] - edges) / (edges[1] - edges[0]), 0)
            lost = -(share * jax.nn.log_softmax(bins)).sum(-1).mean()
            x = (x @ p["wide"]).reshape(b * times, 8, 8, -1)
            for w in p["drawn"]:
                x = jax.nn.silu(norm(jnp.repeat(jnp.repeat(x, 2, 1), 2, 2), 1.0))
                x = convolved(x, w)
            x = x.reshape(times, b, 64, 64, 3).swapaxes(0, 1).astype(F32)
            picture = jnp.square(x - images.astype(F32)).sum((2, 3, 4)).mean()
            still = lax.stop_gradient
            return (
                picture + lost + 0.5 * apart(still(post), prior) + 0.1 * apart(post, still(prior))
            )

        return learned(rule, loss, state)

    sizes = ((3, 32), (32, 64), (64, 96), (96, 128))
    params = {"seen": [kernel(4, 4, *both, dtype=F32) for both in sizes]}
    params |= {"drawn": [kernel(3, 3, *s, dtype=F32) for s in ((64, 64), (64, 32), (32, 3))]}
    params |= {"in": full(1024 + acts, deep), "cell": full(2 * deep, 3 * deep)}
    params |= {"prior": (full(deep, deep), full(deep, 1024)), "wide": full(deep + 1024, 4096)}
    params |= {"post": (full(deep + 2048, deep), full(deep, 1024))}
    params |= {"reward": (full(deep + 1024, deep), full(deep, 255))}
    given = (Arg((b, times, 64, 64, 3), U8, below=256), Arg((b, times), I32, below=acts))
    yield "dreamer", carried(dreamer, started(rule, params), *given, Arg((b, times)), _KEY)


def matter() -> Zoo:
    """Twenty steps of Langevin's motion of a liquid by lists of neighbours, as in JAX MD."""
    n, count, box = 4000, 58, 17.1

    def liquid(state: Any, near: Any, key: Any) -> Any:
        def energy(x: Any) -> Any:
            gap = x[:, None] - x[near]
            gap = gap - box * jnp.round(gap / box)
            square = (gap**2).sum(-1)
            kept = (near != jnp.arange(n)[:, None]) & (square < 6.25) & (square > 0)
            safe = jnp.maximum(jnp.where(kept, square, 1.0), 0.7)
            part = 1 / safe**3
            smooth = jnp.clip((6.25 - safe) / 2.25, 0.0, 1.0) ** 2
            return jnp.where(kept, 2 * (part**2 - part) * smooth, 0.0).sum()

        force = jax.grad(lambda x: -energy(x))

        def step(state: Any, key: Any) -> Any:
            x, speed, pull = state
            speed = speed + 2e-3 * pull
            x = jnp.mod(x + 2e-3 * speed, box)
            keep = jnp.exp(-4e-4)
            noise = jax.random.normal(key, x.shape)
            speed = keep * speed + jnp.sqrt(0.7 * (1 - keep**2)) * noise
            x = jnp.mod(x + 2e-3 * speed, box)
            pull = force(x)
            speed = speed + 2e-3 * pull
            return (x, speed, pull), 0.5 * (speed**2).sum()

        state, heat = lax.scan(step, state, jax.random.split(key, 20))
        return state, heat, energy(state[0])

    state = (Arg((n, 3), scale=5.0), Arg((n, 3)), Arg((n, 3)))
    yield "liquid", carried(liquid, state, Arg((n, count), I32, below=n), _KEY)


def operators() -> Zoo:
    """Training of a Fourier operator for flow through pores, in float32."""
    b, side, c, low = 18, 85, 40, 12
    rule = optax.adamw(1e-3, weight_decay=1e-4)

    def darcy(state: Any, field: Any, goal: Any) -> Any:
        place = jnp.linspace(0, 1, side)
        places = jnp.stack(jnp.meshgrid(place, place, indexing="ij"), -1)
        places = jnp.broadcast_to(places, (b, side, side, 2))

        def layer(x: Any, p: Any) -> Any:
            wave = jnp.fft.rfft2(x, axes=(1, 2))
            both = lax.complex(p["waves"][0], p["waves"][1])
            top = jnp.einsum("bxyi,xyio->bxyo", wave[:, :low, :low], both[0])
            end = jnp.einsum("bxyi,xyio->bxyo", wave[:, -low:, :low], both[1])
            wave = jnp.zeros_like(wave).at[:, :low, :low].set(top).at[:, -low:, :low].set(end)
            return jax.nn.gelu(
                jnp.fft.irfft2(wave, (side, side), (1, 2)) + x @ p["w"] + p["b"]
            ), None

        def loss(p: Any) -> Any:
            x = jnp.concatenate([field, places], -1) @ p["in"]
            x, _ = lax.scan(layer, x, p["layers"])
            found = perceptron(x, p["out"], jax.nn.gelu)[..., 0]
            gap = jnp.sqrt(jnp.square(found - goal).sum((1, 2)))
            return (gap / jnp.sqrt(jnp.square(goal).sum((1, 2)))).mean()

        return learned(rule, loss, state)

    layer = {"waves": Arg((2, 2, low, low, c, c), scale=0.02), "w": full(c, c), "b": Arg((c,))}
    params = {"layers": layered(4, layer), "in": full(3, c), "out": stack(c, 128, 1)}
    given = (Arg((b, side, side, 1)), Arg((b, side, side)))
    yield "darcy", carried(darcy, started(rule, params), *given)


def speech() -> Zoo:
    """Training of a Conformer by CTC on sounds with hidden parts."""
    b, times, d, words = 14, 656, 256, 1025
    rule = optax.chain(optax.clip_by_global_norm(5.0), optax.adamw(1e-3, 0.9, 0.98))

    def conformers(state: Any, mel: Any, lengths: Any, labels: Any, pads: Any, key: Any) -> Any:
        one, two = jax.random.split(key)
        starts, widths = jax.random.randint(one, (2, b, 2), 0, 40)
        place = jnp.arange(times)[None, :, None]
        hidden = ((place >= 16 * starts[:, None]) & (place < (16 * starts + widths)[:, None])).any(
            -1
        )
        low = jax.random.randint(two, (b, 1), 0, 60)
        bands = (jnp.arange(80) >= low) & (jnp.arange(80) < low + 20)
        x = jnp.where(hidden[..., None] | bands[:, None], 0.0, mel).astype(BF16)[..., None]
        late = (jnp.arange(times // 4) >= lengths[:, None] + 80).astype(F32)
        bias = jnp.where(late > 0, -1e9, 0.0)[:, None, None]

        def half(x: Any, scale: Any, p: Any) -> Any:
            return x + 0.5 * (jax.nn.silu(norm(x, scale) @ p[0]) @ p[1])

        def layer(x: Any, p: Any) -> Any:
            x = half(x, p["scale"][0], p["one"])
            qkv = parted(norm(x, p["scale"][1]), p["qkv"], 64)
            x = x + attend(*jnp.split(qkv, 3, 2), bias).reshape(x.shape) @ p["out"]
            value, gate = jnp.split(norm(x, p["scale"][2]) @ p["in"], 2, -1)
            y = lax.conv_general_dilated(
                *(value * jax.nn.sigmoid(gate), p["near"], (1,), "SAME"),
                dimension_numbers=("NWC", "WIO", "NWC"),
                feature_group_count=d,
            )
            x = x + jax.nn.silu(norm(y, p["scale"][3])) @ p["more"]
            return norm(half(x, p["scale"][4], p["two"]), p["scale"][5]), None

        def loss(params: Any) -> Any:
            p = short(params)
            y = jax.nn.relu(convolved(jax.nn.relu(convolved(x, p["first"], 2)), p["second"], 2))
            y = y.reshape(b, times // 4, -1) @ p["wide"]
            y, _ = lax.scan(layer, y, p["layers"])
            logits = (y @ p["head"]).astype(F32)
            order = jnp.arange(labels.shape[1]) >= pads[:, None] + 8
            return optax.ctc_loss(logits, late, labels + 1, order.astype(F32)).mean()

        return learned(rule, loss, state)

    layer = {"one": (full(d, 4 * d), full(4 * d, d)), "two": (full(d, 4 * d), full(4 * d, d))}
    layer |= {"qkv": full(d, 3 * d), "out": full(d, d), "in": full(d, 2 * d), "more": full(d, d)}
    layer |= {"near": kernel(15, 1, d, dtype=F32), "scale": Arg((6, d))}
    params = {"layers": layered(4, layer), "first": kernel(3, 3, 1, 96, dtype=F32)}
    params |= {"second": kernel(3, 3, 96, 96, dtype=F32), "wide": full(20 * 96, d)}
    params |= {"head": full(d, words)}
    given = (Arg((b, times, 80)), Arg((b,), I32, below=84), Arg((b, 33), I32, below=words - 1))
    state = started(rule, params)
    yield "conformers", carried(conformers, state, *given, Arg((b,), I32, below=25), _KEY)


def proteins() -> Zoo:
    """Two blocks of the Evoformer on 96 sequences of 226 residues."""
    rows, n, d, c = 96, 226, 256, 128

    def evoformer(params: Any, family: Any, pair: Any) -> Any:
        def seen(x: Any, p: Any, bias: Any) -> Any:
            """Attention with gates along the axis before the last one."""
            q, k, v = jnp.split(parted(x, p["qkv"], 32), 3, 2)
            y = attend(q, k, v, bias).reshape(*x.shape[:2], -1)
            return (jax.nn.sigmoid(x @ p["gate"]) * y) @ p["out"]

        def triangle(z: Any, p: Any, how: str) -> Any:
            y = norm(z, 1.0)
            a, b = jnp.split(jax.nn.sigmoid(y @ p["gates"]) * (y @ p["both"]), 2, -1)
            found = norm(jnp.einsum(how, a, b), 1.0) @ p["out"]
            return z + jax.nn.sigmoid(y @ p["last"]) * found

        def wide(x: Any, p: Any) -> Any:
            return x + jax.nn.relu(norm(x, 1.0) @ p[0]) @ p[1]

        def block(carry: Any, p: Any) -> Any:
            m, z = carry
            bias = (norm(z, 1.0) @ p["bias"]).transpose(2, 0, 1).astype(F32)
            m = m + seen(norm(m, 1.0), p["rows"], bias)
            across = norm(m, 1.0).swapaxes(0, 1)
            m = m + seen(across, p["columns"], 0.0).swapaxes(0, 1)
            m = wide(m, p["wide"])
            a, b = jnp.split(norm(m, 1.0) @ p["outer"], 2, -1)
            outer = jnp.einsum("sic,sjd->ijcd", a, b).reshape(n, n, -1) / rows
            z = z + outer @ p["square"]
            z = triangle(z, p["out"], "ikc,jkc->ijc")
            z = triangle(z, p["in"], "kic,kjc->ijc")
            for name, turn in (("start", False), ("end", True)):
                y = norm(z.swapaxes(0, 1) if turn else z, 1.0)
                bias = (y @ p[name]["bias"]).transpose(2, 0, 1).astype(F32)
                y = seen(y, p[name], bias)
                z = z + (y.swapaxes(0, 1) if turn else y)
            return (m, wide(z, p["last"])), None

        (m, z), _ = lax.scan(block, (family, pair), params["blocks"])
        logits = (z + z.swapaxes(0, 1)) @ params["far"]
        return m[0] @ params["single"], jax.nn.softmax(logits.astype(F32))

    def heads(d: int, count: int) -> dict[str, Arg]:
        size = 32 * count
        return {"qkv": weight(d, 3 * size), "gate": weight(d, size), "out": weight(size, d)}

    three = {"gates": weight(c, 2 * c), "both": weight(c, 2 * c), "out": weight(c, c)}
    three |= {"last": weight(c, c)}
    block = {"rows": heads(d, 8), "columns": heads(d, 8), "bias": weight(c, 8)}
    block |= {"wide": (weight(d, 4 * d), weight(4 * d, d)), "outer": weight(d, 64)}
    block |= {"square": weight(1024, c), "out": three, "in": three}
    block |= {name: heads(c, 4) | {"bias": weight(c, 4)} for name in ("start", "end")}
    block |= {"last": (weight(c, 4 * c), weight(4 * c, c))}
    params = {"blocks": layered(2, block), "far": weight(c, 64), "single": weight(d, 384)}
    given = (Arg((rows, n, d), BF16), Arg((n, n, c), BF16))
    yield "evoformer", program(evoformer, params, *given)


def preconditioning() -> Zoo:
    """An autoencoder of digits by Shampoo, whose roots are found by Newton's rounds."""
    sizes = (784, 1000, 500, 30, 500, 1000, 784)

    def shampoo(state: Any, images: Any) -> Any:
        params, speed, factors = state
        x = images.astype(F32).reshape(images.shape[0], -1) / 255

        def loss(p: Any) -> Any:
            logits = perceptron(x, p, jnp.tanh)
            return optax.sigmoid_binary_cross_entropy(logits, x).sum(-1).mean()

        def root(a: Any) -> Any:
            """The inverse fourth root."""
            eye = jnp.eye(a.shape[0])
            a = a @ a.T + 1e-4 * jnp.trace(a @ a.T) / a.shape[0] * eye
            top = jnp.linalg.norm(a)

            def step(_: Any, carry: Any) -> Any:
                m, h = carry
                part = (5 * eye - m) / 4
                square = part @ part
                return square @ square @ m, h @ part

            z = 5 / (2 * top)
            return lax.fori_loop(0, 8, step, (z * a, z**0.25 * eye))[1]

        value, gradient = jax.value_and_grad(loss)(params)
        new = []
        for layer, slopes, fast, pair in zip(params, gradient, speed, factors, strict=True):
            g = slopes[0]
            left, right = 0.99 * pair[0] + 0.01 * g @ g.T, 0.99 * pair[1] + 0.01 * g.T @ g
            way = root(left) @ g @ root(right)
            way = way * jnp.linalg.norm(g) / (jnp.linalg.norm(way) + 1e-9)
            moved = tuple(0.9 * v + s for v, s in zip(fast, (way, slopes[1]), strict=True))
            stepped = tuple(w - 1e-3 * v for w, v in zip(layer, moved, strict=True))
            new.append((stepped, moved, (left, right)))
        params, speed, factors = (list(part) for part in zip(*new, strict=True))
        return (params, speed, factors), value

    params = stack(*sizes)
    factors = [
        (Arg((a, a), scale=0.01, identity=1.0), Arg((b, b), scale=0.01, identity=1.0))
        for a, b in pairwise(sizes)
    ]
    state = (params, params, factors)
    yield "shampoo", carried(shampoo, state, Arg((1000, 28, 28), U8, below=256))


def trajectories() -> Zoo:
    """Training of a flow in continuous time, with a random guess of the trace, as in Diffrax."""
    rule = optax.adabelief(1e-3)

    def continuous(state: Any, x: Any, key: Any) -> Any:
        """Sixteen steps of Runge and Kutta, each of which is computed twice."""
        noise = jnp.sign(jax.random.normal(key, x.shape))

        def loss(p: Any) -> Any:
            def speed(time: Any, x: Any) -> Any:
                def field(x: Any) -> Any:
                    for w, b, gate, shift in p:
                        x = jnp.tanh(x @ w + b) * jax.nn.sigmoid(time * gate) + time * shift
                    return x

                value, turned = jax.jvp(field, (x,), (noise,))
                return value, (turned * noise).sum(-1)

            @jax.checkpoint
            def step(carry: Any, time: Any) -> Any:
                x, log = carry
                h = 1 / 16
                one = speed(time, x)
                two = speed(time + h / 2, x + h / 2 * one[0])
                three = speed(time + 0.75 * h, x + 0.75 * h * two[0])
                x, log = (
                    y + h / 9 * (2 * a + 3 * b + 4 * c)
                    for y, a, b, c in zip((x, log), one, two, three, strict=True)
                )
                return (x, log), None

            start = (x, jnp.zeros(x.shape[0]))
            (z, log), _ = lax.scan(step, start, jnp.arange(16) / 16)
            return (0.5 * (z**2).sum(-1) - log).mean()

        return learned(rule, loss, state)

    sizes = ((6, 64), (64, 64), (64, 6))
    params = [(full(a, b), *[Arg((b,), scale=0.1)] * 3) for a, b in sizes]
    yield "continuous", carried(continuous, started(rule, params), Arg((777, 6)), _KEY)


def inference() -> Zoo:
    """Twenty steps of NumPyro's variational inference for radon in 386 counties."""
    counties, homes, particles = 386, 12573, 8
    rule = optax.adam(5e-3)

    def radon(state: Any, floors: Any, county: Any, ground: Any, levels: Any, key: Any) -> Any:
        def joint(z: Any) -> Any:
            spread = jnp.exp(z["spreads"])
            slope = z["centres"][0] + spread[0] * z["a"] + z["centres"][1] * ground
            tilt = z["centres"][2] + spread[1] * z["b"]
            mean = slope[county] + tilt[county] * floors
            gap = (levels - mean) / spread[2]
            fit = jnp.log1p(gap**2 / 4).sum() * 2.5 + homes * z["spreads"][2]
            prior = sum((w**2).sum() for w in (z["a"], z["b"], z["centres"])) / 2
            return -fit - prior - (spread**2).sum() / 2 + z["spreads"].sum()

        def step(state: Any, key: Any) -> Any:
            def lost(params: Any) -> Any:
                def one(key: Any) -> Any:
                    leaves, tree = jax.tree.flatten(params["mean"])
                    keys = jax.tree.unflatten(tree, list(jax.random.split(key, len(leaves))))
                    z = jax.tree.map(
                        lambda m, s, k: m + jnp.exp(s) * jax.random.normal(k, m.shape),
                        *(params["mean"], params["wide"], keys),
                    )
                    return joint(z)

                unsure = sum(w.sum() for w in jax.tree.leaves(params["wide"]))
                return -jax.vmap(one)(jax.random.split(key, particles)).mean() - unsure

            return learned(rule, lost, state)

        return lax.scan(step, state, jax.random.split(key, 20))

    sites = {"a": Arg((counties,), scale=0.1), "b": Arg((counties,), scale=0.1)}
    sites |= {"centres": Arg((3,), scale=0.1), "spreads": Arg((3,), scale=0.1)}
    given = (Arg((homes,)), Arg((homes,), I32, below=counties), Arg((counties,)), Arg((homes,)))
    yield "radon", carried(radon, started(rule, {"mean": sites, "wide": sites}), *given, _KEY)
