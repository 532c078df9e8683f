"""A twelfth zoo: kinds of public projects that the earlier zoos lack, half of them training.

It was written without a look at the predictor or its calibration, to be timed once: no
calibration and no fit has used its programs.
"""

from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from eleventh import learned, perceptron, short, stack, started
from fourth import attend, norm, program, weight
from jax import lax
from ninth import carried, gated, rms, token_loss, turned
from sixth import attention, convolved, full, kernel
from tenth import Layer, applied, initial

from xlapipe.running.calibration.timed_program import Arg, TimedProgram

F32, BF16, F16, I32 = jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32
I8, U8, U32 = jnp.int8, jnp.uint8, jnp.uint32
Zoo = Iterator[tuple[str, TimedProgram]]
_KEY = Arg((2,), U32, below=1 << 30)


def twelfth_programs() -> dict[str, TimedProgram]:
    """Every program, by FAMILY/NAME."""
    families = (
        *(language, serving, retrieval, speech, vision, selfteaching, generation, states),
        *(bridges, proteins, atoms, recommenders, series, privacy, fewshot, agents),
        *(topics, clouds, clusters, lattices, elements, spheres, optics),
    )
    return {
        f"{family.__name__}/{name}": program for family in families for name, program in family()
    }


def along(x: Any, w: Any, stride: int = 1, groups: int = 1) -> Any:
    """A convolution over times."""
    names = ("NWC", "WIO", "NWC")
    return lax.conv_general_dilated(
        x, w, (stride,), "SAME", dimension_numbers=names, feature_group_count=groups
    )


def later(size: int) -> Any:
    return jnp.where(jnp.tril(jnp.ones((size, size), bool)), 0.0, -1e9)


def cubed(x: Any, p: Any, heads: int, bias: Any = 0.0) -> Any:
    """A pre-norm layer with one product for queries, keys and values."""
    b, s, d = x.shape
    parts = jnp.split((norm(x, p["scale"][0]) @ p["qkv"]).reshape(b, s, 3 * heads, -1), 3, 2)
    x = x + attend(*parts, bias).reshape(b, s, d) @ p["out"]
    return x + jax.nn.gelu(norm(x, p["scale"][1]) @ p["up"]) @ p["down"]


def cubes(d: int, dtype: Any = F32, wide: int = 4) -> dict[str, Arg]:
    """The weights of such a layer."""
    p = {"qkv": weight(d, 3 * d, dtype=dtype), "out": weight(d, d, dtype=dtype)}
    p |= {"up": weight(d, wide * d, dtype=dtype), "down": weight(wide * d, d, dtype=dtype)}
    return p | {"scale": Arg((2, d))}


class Babbler(nn.Module):
    """The layers of nanoGPT with dropout, without the head."""

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        x = nn.Embed(50304, 768, dtype=BF16, name="table")(tokens)
        places = self.param("places", nn.initializers.normal(0.02), (577, 768))
        x = nn.Dropout(0.2, deterministic=False)(x + places.astype(BF16))
        for _ in range(2):
            x = Layer(12, 3072, drop=0.2)(x, nn.make_causal_mask(tokens))
        return nn.LayerNorm(dtype=BF16)(x)


def language() -> Zoo:
    """Training: nanoGPT with its loss in chunks, and its fast heir with Muon."""
    model = Babbler()
    schedule = optax.warmup_cosine_decay_schedule(0.0, 6e-4, 200, 6000, 6e-5)
    decayed = optax.adamw(
        schedule, 0.9, 0.95, weight_decay=0.1, mask=lambda p: jax.tree.map(lambda x: x.ndim > 1, p)
    )
    rule = optax.chain(optax.clip_by_global_norm(1.0), decayed)

    def dropped(state: Any, tokens: Any, goals: Any, key: Any) -> Any:
        def loss(variables: Any) -> Any:
            x = model.apply(variables, tokens, rngs={"dropout": key})
            head = variables["params"]["table"]["embedding"].astype(BF16)

            @jax.checkpoint
            def row(total: Any, given: Any) -> Any:
                return total + token_loss(given[0] @ head.T, given[1]).sum(), None

            total, _ = lax.scan(row, jnp.zeros(()), (x, goals))
            return total / goals.size

        return learned(rule, loss, state)

    ids = Arg((4, 577), I32, below=50257)
    yield "dropped", carried(dropped, started(rule, initial(model, ids)), ids, ids, _KEY)

    fast = optax.partition(
        {"muon": optax.contrib.muon(0.02), "adam": optax.adam(3e-3, 0.8, 0.95)},
        lambda p: {name: "muon" if name == "layers" else "adam" for name in p},
    )

    def speedrun(state: Any, tokens: Any) -> Any:
        """Queries and keys of length one, squared ReLUs, and a table that values add."""

        def loss(params: Any) -> Any:
            p, given = short(params), tokens[:, :-1]
            x = first = rms(p["table"][given])
            b, s, d = x.shape
            bias, places, more = later(s), jnp.arange(s), p["values"][given].reshape(b, s, 7, 128)
            for q, mix in zip(p["layers"], p["mixes"], strict=True):
                x = mix[0] * x + mix[1] * first
                parts = jnp.split((rms(x) @ q["qkv"]).reshape(b, s, 21, 128), 3, 2)
                rows = [turned(rms(part), places) for part in parts[:2]]
                x = x + attend(*rows, parts[2] + mix[2] * more, bias).reshape(b, s, d) @ q["out"]
                x = x + jnp.square(jax.nn.relu(rms(x) @ q["up"])) @ q["down"]
            logits = (rms(x) @ p["head"]).astype(F32)
            return token_loss(30 * jax.nn.sigmoid(logits / 7.5), tokens[:, 1:]).mean()

        return learned(fast, loss, state)

    d, words = 896, 32003
    layer = {"qkv": full(d, 3 * d), "out": full(d, d), "up": full(d, 4 * d), "down": full(4 * d, d)}
    params = {"layers": [layer] * 2, "mixes": Arg((2, 3)), "table": Arg((words, d))}
    params |= {"values": Arg((words, d)), "head": full(d, words)}
    yield "speedrun", carried(speedrun, started(fast, params), Arg((3, 1026), I32, below=words))


def serving() -> Zoo:
    """Replies that share a long start, and a prompt by weights of three values."""
    b, d, heads, shared, size = 29, 2048, 16, 4, 128

    def cascade(own: Any, params: Any, start: Any, x: Any, lengths: Any) -> Any:
        """Attention to the shared start and to each reply's own cache, joined by their sums."""
        rows = jnp.arange(b)
        seen = jnp.arange(own.shape[3]) <= lengths[:, None]

        def part(q: Any, k: Any, v: Any, names: tuple[str, str], mask: Any) -> Any:
            scores = jnp.einsum(names[0], q, k, preferred_element_type=F32) * size**-0.5
            scores = jnp.where(mask, scores, -1e30)
            total = jax.nn.logsumexp(scores, -1)
            shares = jnp.exp(scores - total[..., None]).astype(BF16)
            return jnp.einsum(names[1], shares, v, preferred_element_type=F32), total

        for n, p in enumerate(params["layers"]):
            y = rms(x, p["scale"][0])
            q = turned((y @ p["q"]).reshape(b, heads, size), lengths + start.shape[2])
            k, v = jnp.split((y @ p["kv"]).reshape(b, 2 * shared, size), 2, 1)
            k = turned(k, lengths + start.shape[2])
            own = own.at[n, :, rows, lengths].set(jnp.stack([k, v], 1))
            q = q.reshape(b, shared, -1, size)
            one, first = part(q, *start[n], ("bkgd,skd->bkgs", "bkgs,skd->bkgd"), True)
            names = ("bkgd,bskd->bkgs", "bkgs,bskd->bkgd")
            two, second = part(q, *own[n], names, seen[:, None, None])
            share = jax.nn.sigmoid(first - second)[..., None]
            found = (share * one + (1 - share) * two).astype(BF16)
            x = x + found.reshape(b, -1) @ p["out"]
            x = x + gated(rms(x, p["scale"][1]), p["up"], p["down"])
        logits = (rms(x, params["last"]) @ params["head"]).astype(F32)
        return own, logits.argmax(-1), logits.max(-1) - jax.nn.logsumexp(logits, -1)

    n, wide = 3, 7168
    layer = {"q": weight(d, d), "kv": weight(d, 1024), "out": weight(d, d), "scale": Arg((2, d))}
    layer |= {"up": weight(d, 2 * wide), "down": weight(wide, d)}
    params = {"layers": [layer] * n, "last": Arg((d,)), "head": weight(d, 49155)}
    own, start = Arg((n, 2, b, 288, shared, size), BF16), Arg((n, 2, 3001, shared, size), BF16)
    given = (Arg((b, d), BF16), Arg((b,), I32, below=288))
    yield "cascade", carried(cascade, own, params, start, *given)

    def ternary(params: Any, x: Any) -> Any:
        """BitNet: four weights in a byte, rows of eight bits."""

        def times(x: Any, p: Any) -> Any:
            codes, scale = p
            wide = rms(x).astype(F32)
            step = jnp.maximum(jnp.abs(wide).max(-1, keepdims=True), 1e-5) / 127
            rows = jnp.clip(jnp.round(wide / step), -128, 127).astype(I8)
            shifts = jnp.arange(0, 8, 2, dtype=U8)[:, None]
            w = ((codes[:, None] >> shifts) & 3).astype(I8) - 1
            w = w.reshape(-1, codes.shape[-1])
            return (jnp.matmul(rows, w, preferred_element_type=I32) * step * scale).astype(BF16)

        def layer(x: Any, p: Any) -> Any:
            s, places = x.shape[0], jnp.arange(x.shape[0])
            qkv = times(x, p["qkv"]).reshape(1, s, 30, 128)
            q, k = turned(qkv[:, :, :20], places), turned(qkv[:, :, 20:25], places)
            y = jax.nn.dot_product_attention(q, k, qkv[:, :, 25:], is_causal=True)
            x = x + times(y.reshape(s, -1), p["out"])
            gate, value = jnp.split(times(x, p["up"]), 2, -1)
            return x + times(jnp.square(jax.nn.relu(gate)) * value, p["down"]), (k, qkv[:, :, 25:])

        return lax.scan(layer, x, params)

    def codes(a: int, b: int) -> tuple[Arg, Arg]:
        return Arg((4, a // 4, b), U8, below=256), Arg((4, 1), scale=0.02)

    params = {"qkv": codes(2560, 3840), "out": codes(2560, 2560)}
    params |= {"up": codes(2560, 13824), "down": codes(6912, 2560)}
    yield "ternary", program(ternary, params, Arg((311, 2560), BF16))


def retrieval() -> Zoo:
    """Documents by ModernBERT with near and far layers, and ColBERT's scores of queries."""

    def late(params: Any, tokens: Any, lengths: Any, queries: Any) -> Any:
        b, s = tokens.shape
        places = jnp.arange(s)
        gap = jnp.abs(places[:, None] - places)
        real = places < lengths[:, None]
        x = norm(params["table"][tokens], params["first"])
        for number, p in enumerate(params["layers"]):
            seen = real[:, None, None] & (gap <= (1 << 20 if number == 2 else 64))
            qkv = (norm(x, p["scale"][0]) @ p["qkv"]).reshape(b, s, 36, 64)
            q, k, v = jnp.split(qkv, 3, 2)
            bias = jnp.where(seen, 0.0, -1e9)
            found = attend(turned(q, places), turned(k, places), v, bias)
            x = x + found.reshape(b, s, -1) @ p["out"]
            gate, value = jnp.split(norm(x, p["scale"][1]) @ p["up"], 2, -1)
            x = x + (jax.nn.gelu(gate, approximate=False) * value) @ p["down"]
        rows = (norm(x, params["last"]) @ params["head"]).astype(F32)
        rows = (rows * lax.rsqrt((rows * rows).sum(-1, keepdims=True) + 1e-9)).astype(BF16)
        scores = jnp.einsum("qtd,nsd->qnts", queries, rows, preferred_element_type=F32)
        scores = jnp.where(real[:, None], scores, -1e9).max(-1).sum(-1)
        return rows, *lax.top_k(scores, 10)

    d, words = 768, 50368
    layer = {"qkv": weight(d, 3 * d), "out": weight(d, d), "up": weight(d, 2304)}
    layer |= {"down": weight(1152, d), "scale": Arg((2, d))}
    params = {"layers": [layer] * 3, "table": Arg((words, d), BF16), "head": weight(d, 128)}
    params |= {"first": Arg((d,)), "last": Arg((d,))}
    given = (Arg((41, 219), I32, below=words), Arg((41,), I32, below=219))
    yield "late", program(late, params, *given, Arg((19, 32, 128), BF16))


def speech() -> Zoo:
    """Whisper's decoder in float16, and training of wav2vec 2.0 with drawn codes."""
    b, d, n, times, words = 11, 768, 3, 224, 51865

    def decoder(state: Any, params: Any, read: Any, banned: Any) -> Any:
        """Three tokens; time stamps win where their sum is the likeliest."""

        def step(place: Any, state: Any) -> Any:
            caches, texts, total = state
            last = lax.dynamic_slice_in_dim(texts, place, 1, 1)
            x = params["table"][last] + lax.dynamic_slice_in_dim(params["places"], place, 1)
            seen = jnp.where(jnp.arange(times) <= place, 0.0, -1e9)
            for number, p in enumerate(params["layers"]):
                qkv = (norm(x, p["scale"][0]) @ p["qkv"]).reshape(b, 1, 36, 64)
                q, k, v = jnp.split(qkv, 3, 2)
                both = jnp.stack([k, v])[None]
                caches = lax.dynamic_update_slice(caches, both, (number, 0, 0, place, 0, 0))
                x = x + attend(q, *caches[number], seen).reshape(b, 1, d) @ p["out"]
                q = (norm(x, p["scale"][2]) @ p["q"]).reshape(b, 1, 12, 64)
                x = x + attend(q, *read[number]).reshape(b, 1, d) @ p["cross"]
                x = x + jax.nn.gelu(norm(x, p["scale"][1]) @ p["up"]) @ p["down"]
            logits = (norm(x[:, 0], params["last"]) @ params["table"].T).astype(F32)
            logs = jax.nn.log_softmax(jnp.where(banned > 0, -1e9, logits))
            stamps = jax.nn.logsumexp(logs[:, 50364:], -1) > logs[:, :50364].max(-1)
            text = jnp.arange(words) < 50364
            logs = jnp.where(stamps[:, None] & text, -1e9, logs)
            texts = lax.dynamic_update_slice_in_dim(texts, logs.argmax(-1)[:, None], place + 1, 1)
            return caches, texts, total + logs.max(-1)

        state = lax.fori_loop(31, 34, step, state)
        return state, state[2]

    layer = cubes(d, F16) | {"q": weight(d, d, dtype=F16), "cross": weight(d, d, dtype=F16)}
    layer |= {"scale": Arg((3, d))}
    params = {"layers": [layer] * n, "table": Arg((words, d), F16, scale=0.03), "last": Arg((d,))}
    params |= {"places": Arg((times, d), F16, scale=0.03)}
    state = (Arg((n, 2, b, times, 12, 64), F16), Arg((b, times), I32, below=words), Arg((b,)))
    rest = (Arg((n, 2, b, 1500, 12, 64), F16), Arg((words,), I32, below=2))
    yield "decoder", carried(decoder, state, params, *rest)

    rule = optax.adam(5e-4, 0.9, 0.98)
    windows = ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))

    def contrasted(state: Any, sound: Any, hidden: Any, others: Any, key: Any) -> Any:
        def loss(params: Any) -> Any:
            p = short(params)
            x = sound[..., None].astype(BF16)
            for (w, scale), (_, stride) in zip(p["windows"], windows, strict=True):
                x = jax.nn.gelu(norm(along(x, w, stride), scale))
            logits = (x @ p["codes"]).astype(F32).reshape(*x.shape[:2], 2, 160)
            soft = jax.nn.softmax((logits + jax.random.gumbel(key, logits.shape)) / 2)
            hard = jax.nn.one_hot(soft.argmax(-1), 160)
            hard = soft + lax.stop_gradient(hard - soft)
            goals = jnp.einsum("bsgv,gvd->bsgd", hard.astype(BF16), p["book"])
            goals = goals.reshape(*x.shape[:2], 256)
            x = jnp.where(hidden[..., None] > 0, p["mask"], x @ p["into"])
            x = x + jax.nn.gelu(along(x, p["near"], groups=16))
            for q in p["layers"]:
                x = cubed(x, q, 8)
            tries = jnp.take_along_axis(goals[:, None], others[..., None], 2)
            tries = jnp.concatenate([goals[:, :, None], tries], 2)

            def unit(x: Any) -> Any:
                x = x.astype(F32)
                return x * lax.rsqrt((x * x).sum(-1, keepdims=True) + 1e-6)

            scores = (unit(tries) * unit(x @ p["head"])[:, :, None]).sum(-1) / 0.1
            lost = (token_loss(scores, jnp.zeros_like(hidden)) * hidden).sum() / hidden.sum()
            mean = jax.nn.softmax(logits).mean((0, 1))
            return lost + 0.1 * (mean * jnp.log(mean + 1e-7)).sum() / 320

        return learned(rule, loss, state)

    c, e = 384, 512
    sizes = [1] + [c] * len(windows)
    kernels = [kernel(w, sizes[n], c, dtype=F32) for n, (w, _) in enumerate(windows)]
    params = {"windows": [(w, Arg((c,))) for w in kernels], "codes": full(c, 320)}
    params |= {"book": Arg((2, 160, 128)), "mask": Arg((e,)), "into": full(c, e)}
    params |= {"near": kernel(65, e // 16, e, dtype=F32), "layers": [cubes(e)] * 2}
    s = 250
    given = (Arg((6, 80000)), Arg((6, s), I32), Arg((6, s, 50), I32, below=s), _KEY)
    params |= {"head": full(e, 256)}
    yield "contrasted", carried(contrasted, started(rule, params), *given)


class Efficient(nn.Module):
    """EfficientNet with one block of each of its first stages."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        def normed(x: Any) -> Any:
            return nn.BatchNorm(use_running_average=False, momentum=0.99, dtype=BF16)(x)

        def conv(x: Any, size: int, window: int, stride: int = 1, groups: int = 1) -> Any:
            shape = (window, window)
            given = {"feature_group_count": groups, "use_bias": False, "dtype": BF16}
            return normed(nn.Conv(size, shape, stride, **given)(x))

        x = nn.swish(conv(x, 32, 3, 2))
        for size, more, stride, window in (
            (16, 1, 1, 3),
            (24, 6, 2, 3),
            (24, 6, 1, 3),
            (40, 6, 2, 5),
        ):
            wide = x.shape[-1] * more
            y = nn.swish(conv(x, wide, 1)) if more > 1 else x
            y = nn.swish(conv(y, wide, window, stride, wide))
            z = nn.swish(nn.Dense(x.shape[-1] // 4, dtype=BF16)(y.mean((1, 2))))
            y = y * nn.sigmoid(nn.Dense(wide, dtype=BF16)(z))[:, None, None]
            y = conv(y, size, 1)
            if y.shape == x.shape:
                y = x + nn.Dropout(0.2, broadcast_dims=(1, 2, 3), deterministic=False)(y)
            x = y
        x = nn.swish(conv(x, 640, 1)).mean((1, 2)).astype(F32)
        return nn.Dense(1000)(nn.Dropout(0.2, deterministic=False)(x))


def vision() -> Zoo:
    """Training of an EfficientNet and a U-Net; encoders as in Swin v2 and Segment Anything."""
    model = Efficient()
    slow = optax.rmsprop(0.016, 0.9, 1e-3, momentum=0.9)

    def efficient(state: Any, images: Any, labels: Any, key: Any) -> Any:
        params, means, moments, slowly = state

        def loss(params: Any) -> Any:
            variables, rngs = {"params": params, "batch_stats": means}, {"dropout": key}
            logits, new = model.apply(variables, images, mutable=["batch_stats"], rngs=rngs)
            wanted = optax.smooth_labels(jax.nn.one_hot(labels, 1000), 0.1)
            return optax.softmax_cross_entropy(logits, wanted).mean(), new["batch_stats"]

        (value, means), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        params, moments = applied(slow, params, moments, gradient)
        slowly = optax.incremental_update(params, slowly, 1e-4)
        return (params, means, moments, slowly), value

    images = Arg((38, 150, 150, 3), BF16)
    variables = initial(model, images)
    params, moments = started(slow, variables["params"])
    state = (params, variables["batch_stats"], moments, params)
    yield "efficient", carried(efficient, state, images, Arg((38,), I32, below=1000), _KEY)

    rule = optax.adamw(1e-3)
    names = ("NHWC", "HWIO", "NHWC")

    def segmented(state: Any, images: Any, labels: Any) -> Any:
        """A U-Net in float32 with the entropy and the overlap of 21 classes."""

        def loss(p: Any) -> Any:
            def both(x: Any, windows: Any) -> Any:
                for w in windows:
                    x = convolved(x, w)
                    x = x - x.mean((1, 2), keepdims=True)
                    x = jax.nn.relu(x * lax.rsqrt((x * x).mean((1, 2), keepdims=True) + 1e-5))
                return x

            x, kept = images, []
            for windows in p["down"]:
                x = both(x, windows)
                kept.append(x)
                x = nn.max_pool(x, (2, 2), (2, 2))
            x = both(x, p["middle"])
            for up, windows in zip(p["steps"], p["up"], strict=True):
                x = lax.conv_transpose(x, up, (2, 2), "SAME", dimension_numbers=names)
                x = both(jnp.concatenate([kept.pop(), x], -1), windows)
            logs = jax.nn.log_softmax(convolved(x, p["head"]))
            wanted = jax.nn.one_hot(labels, 21)
            shares = jnp.exp(logs)
            met = (shares * wanted).sum((1, 2))
            size = shares.sum((1, 2)) + wanted.sum((1, 2))
            return -(wanted * logs).sum(-1).mean() + 1 - ((2 * met + 1) / (size + 1)).mean()

        return learned(rule, loss, state)

    def pair(a: int, b: int) -> list[Arg]:
        return [kernel(3, 3, a, b, dtype=F32), kernel(3, 3, b, b, dtype=F32)]

    params = {"down": [pair(3, 32), pair(32, 64), pair(64, 128)], "middle": pair(128, 256)}
    params |= {"steps": [kernel(2, 2, 2 * c, c, dtype=F32) for c in (128, 64, 32)]}
    params |= {
        "up": [pair(2 * c, c) for c in (128, 64, 32)],
        "head": kernel(1, 1, 32, 21, dtype=F32),
    }
    given = (Arg((5, 208, 176, 3)), Arg((5, 208, 176), I32, below=21))
    yield "segmented", carried(segmented, started(rule, params), *given)

    def cosines(params: Any, x: Any) -> Any:
        """Swin v2 in float16: cosines as scores, biases by a network, norms after each part."""
        size = 12
        place = jnp.arange(size * size)
        place = jnp.stack([place // size, place % size], -1)
        gap = place[:, None] - place + size - 1
        index = gap[..., 0] * (2 * size - 1) + gap[..., 1]
        grid = (jnp.stack(jnp.meshgrid(*[jnp.arange(1 - size, size)] * 2, indexing="ij"), -1)) * 8.0
        grid = jnp.sign(grid) * jnp.log2(1 + jnp.abs(grid) / (size - 1)) / 3

        def windows(x: Any) -> Any:
            b, h, w, c = x.shape
            x = x.reshape(b, h // size, size, w // size, size, c).swapaxes(2, 3)
            return x.reshape(-1, size * size, c)

        def layer(x: Any, p: Any, heads: int, shift: int) -> Any:
            b, h, w, c = x.shape
            y = windows(jnp.roll(x, (-shift, -shift), (1, 2)))
            q, k, v = jnp.split((y @ p["qkv"]).reshape(*y.shape[:2], 3 * heads, -1), 3, 2)
            q, k = (rms(part, part.shape[-1] ** -0.5) for part in (q, k))
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=F32)
            scores = scores * jnp.exp(jnp.minimum(p["warmth"], 4.6))[:, None, None]
            bias = 16 * jax.nn.sigmoid(perceptron(grid, p["bias"]).reshape(-1, heads)[index])
            scores = scores + bias.transpose(2, 0, 1)
            if shift:
                edge = [jnp.arange(n) // (n - size) + (jnp.arange(n) >= n - shift) for n in (h, w)]
                part = windows((3 * edge[0][:, None] + edge[1])[None, :, :, None])[..., 0]
                apart = jnp.where(part[:, :, None] == part[:, None], 0.0, -100.0)
                split = scores.reshape(b, -1, *scores.shape[1:]) + apart[:, None]
                scores = split.reshape(scores.shape)
            y = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1).astype(F16), v)
            y = (y.reshape(*y.shape[:2], c) @ p["out"]).reshape(
                b, h // size, w // size, size, size, c
            )
            y = jnp.roll(y.swapaxes(2, 3).reshape(x.shape), (shift, shift), (1, 2))
            x = x + norm(y, p["scale"][0])
            return x + norm(jax.nn.gelu(x @ p["up"]) @ p["down"], p["scale"][1])

        for number, (merge, layers) in enumerate(params):
            if number:
                b, h, w, c = x.shape
                x = x.reshape(b, h // 2, 2, w // 2, 2, c).swapaxes(2, 3)
                x = norm(x.reshape(b, h // 2, w // 2, 4 * c) @ merge, 1.0)
            for n, p in enumerate(layers):
                x = layer(x, p, 6 << number, 6 * n)
        return x.mean((1, 2))

    stages = []
    for d, heads in ((192, 6), (384, 12)):
        layer = cubes(d, F16) | {"bias": stack(2, 512, heads), "warmth": Arg((heads,))}
        stages.append((weight(2 * d, d, dtype=F16), [layer] * 2))
    yield "cosines", program(cosines, stages, Arg((5, 48, 48, 192), F16))

    def anything(params: Any, images: Any) -> Any:
        """Windows of 14 x 14 patches, then all 40 x 40, with places by rows and by columns."""
        b, d = images.shape[0], 768
        x = convolved(images, params["patch"], 16) + params["places"]

        def attended(x: Any, p: Any) -> Any:
            b, h, w, _ = x.shape
            q, k, v = jnp.split((x @ p["qkv"] + p["bias"]).reshape(b, h * w, 36, 64), 3, 2)
            gap = jnp.arange(h)[:, None] - jnp.arange(h) + h - 1
            grid = q.reshape(b, h, w, 12, 64)
            tall = jnp.einsum("bhwnc,hkc->bnhwk", grid, p["tall"][gap])
            wide = jnp.einsum("bhwnc,wkc->bnhwk", grid, p["wide"][gap])
            bias = (tall[..., None] + wide[..., None, :]).reshape(b, 12, h * w, h * w)
            return attend(q, k, v, bias.astype(F32)).reshape(x.shape) @ p["out"]

        for p in params["layers"]:
            y = norm(x, p["scale"][0])
            if p["tall"].shape[0] == 27:
                y = jnp.pad(y, ((0, 0), (0, 2), (0, 2), (0, 0)))
                y = y.reshape(b, 3, 14, 3, 14, d).swapaxes(2, 3).reshape(-1, 14, 14, d)
                y = attended(y, p).reshape(b, 3, 3, 14, 14, d).swapaxes(2, 3)
                y = y.reshape(b, 42, 42, d)[:, :40, :40]
            else:
                y = attended(y, p)
            x = x + y
            x = x + jax.nn.gelu(norm(x, p["scale"][1]) @ p["up"]) @ p["down"]
        x = norm(x @ params["neck"][0], 1.0)
        return norm(convolved(x, params["neck"][1]), 1.0)

    d = 768
    layers = [
        cubes(d, BF16) | {"tall": Arg((n, 64), BF16), "wide": Arg((n, 64), BF16)}
        for n in (27, 27, 27, 79)
    ]
    layers = [p | {"bias": Arg((3 * d,), BF16, scale=0.1)} for p in layers]
    params = {"layers": layers, "patch": kernel(16, 16, 3, d), "places": Arg((40, 40, d), BF16)}
    params |= {"neck": (weight(d, 256), kernel(3, 3, 256, 256))}
    yield "anything", program(anything, params, Arg((2, 640, 640, 3), BF16))


def selfteaching() -> Zoo:
    """Training of a ResNeXt by Barlow's twins with LARS."""
    rule = optax.lars(0.2, 1.5e-6)

    def twins(state: Any, views: Any) -> Any:
        def loss(params: Any) -> Any:
            p = short(params)

            def normed(x: Any) -> Any:
                wide, axes = x.astype(F32), tuple(range(x.ndim - 1))
                wide = wide - wide.mean(axes)
                return (wide * lax.rsqrt((wide * wide).mean(axes) + 1e-5)).astype(BF16)

            def tower(x: Any) -> Any:
                x = jax.nn.relu(normed(convolved(x, p["first"], 2)))
                for a, b, c, skip in p["blocks"]:
                    y = jax.nn.relu(normed(convolved(x, a)))
                    y = jax.nn.relu(normed(convolved(y, b, 2, 32)))
                    x = jax.nn.relu(normed(convolved(y, c)) + normed(convolved(x, skip, 2)))
                x = x.mean((1, 2))
                for w in p["head"][:-1]:
                    x = jax.nn.relu(normed(x @ w))
                return normed(x @ p["head"][-1])

            one, two = jax.vmap(tower)(views)
            close = jnp.matmul(one.T, two, preferred_element_type=F32) / one.shape[0]
            right = jnp.diagonal(close)
            return ((right - 1) ** 2).sum() + 5e-3 * ((close**2).sum() - (right**2).sum())

        return learned(rule, loss, state)

    def block(a: int, b: int) -> list[Arg]:
        shapes = ((1, 1, a, b // 2), (3, 3, b // 64, b // 2), (1, 1, b // 2, b), (1, 1, a, b))
        return [kernel(*shape, dtype=F32) for shape in shapes]

    params = {"first": kernel(7, 7, 3, 64, dtype=F32), "blocks": [block(64, 256), block(256, 512)]}
    params["blocks"].append(block(512, 1024))
    params |= {"head": [full(1024, 2048), full(2048, 2048), full(2048, 2048)]}
    yield "twins", carried(twins, started(rule, params), Arg((2, 27, 136, 136, 3), BF16))


def generation() -> Zoo:
    """Training of mean flows, whose goal is a derivative along the path."""
    rule = optax.adam(1e-4, 0.9, 0.95)

    def meanflow(state: Any, images: Any, labels: Any, key: Any) -> Any:
        params, moments, slow = state
        b, h, w, c = images.shape

        def speed(p: Any, x: Any, start: Any, end: Any) -> Any:
            x = x.reshape(b, h // 2, 2, w // 2, 2, c).swapaxes(2, 3).reshape(b, -1, 4 * c)
            x = x @ p["patch"] + p["places"]
            rate = 1e3 * jnp.exp(-9.2 * jnp.arange(128) / 128)
            angle = jnp.stack([end, end - start], 1)[..., None] * rate
            seen = jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], -1).reshape(b, -1)
            seen = jax.nn.silu(seen.astype(BF16) @ p["time"] + p["kinds"][labels])
            for q in p["layers"]:
                shift, scale, gate, *more = jnp.split((seen @ q["seen"])[:, None], 6, -1)
                y = norm(x, 1.0) * (1 + scale) + shift
                parts = jnp.split((y @ q["qkv"]).reshape(b, -1, 24, 64), 3, 2)
                x = x + gate * (attend(*parts).reshape(x.shape) @ q["out"])
                y = norm(x, 1.0) * (1 + more[1]) + more[0]
                x = x + more[2] * (jax.nn.gelu(y @ q["up"]) @ q["down"])
            x = (norm(x, 1.0) @ p["head"]).reshape(b, h // 2, w // 2, 2, 2, c)
            return x.swapaxes(2, 3).reshape(b, h, w, c)

        def loss(params: Any) -> Any:
            p = short(params)
            one, two = jax.random.split(key)
            noise = jax.random.normal(one, images.shape, BF16)
            ends = jax.nn.sigmoid(jax.random.normal(two, (2, b)) - 0.4)
            start, end = ends.min(0), ends.max(0)
            wide = end[:, None, None, None].astype(BF16)
            x, way = (1 - wide) * images + wide * noise, noise - images
            found, slope = jax.jvp(
                lambda *given: speed(p, *given),
                (x, start, end),
                (way, jnp.zeros(b), jnp.ones(b)),
            )
            goal = lax.stop_gradient(way - (end - start)[:, None, None, None] * slope)
            lost = ((found - goal).astype(F32) ** 2).mean((1, 2, 3))
            return (lost / lax.stop_gradient(lost + 1e-3)).mean()

        (params, moments), value = learned(rule, loss, (params, moments))
        return (params, moments, optax.incremental_update(params, slow, 1e-4)), value

    d = 512
    params = {"patch": full(16, d), "places": Arg((252, d), scale=0.02), "time": full(512, d)}
    layer = cubes(d) | {"seen": full(d, 6 * d)}
    del layer["scale"]
    params |= {"kinds": full(1000, d), "layers": [layer] * 3}
    params |= {"head": full(d, 16)}
    state = (*started(rule, params), params)
    given = (Arg((10, 36, 28, 4), BF16), Arg((10,), I32, below=1000), _KEY)
    yield "meanflow", carried(meanflow, state, *given)


def states() -> Zoo:
    """Training of Mamba 2 on bytes, in chunks of 128 and layers that are computed twice."""
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(4e-4, 0.9, 0.95))
    d, wide, heads, size, part = 640, 1280, 20, 64, 128

    def chunks(state: Any, tokens: Any) -> Any:
        def layer(x: Any, p: Any) -> Any:
            b, s, _ = x.shape
            z, x_b_c, speed = jnp.split(
                rms(x, p["scale"]) @ p["into"], [wide, 2 * wide + 2 * size], -1
            )
            padded = jnp.pad(x_b_c, ((0, 0), (3, 0), (0, 0)))
            y = jax.nn.silu(sum(padded[:, n : n + s] * p["near"][n] for n in range(4)))
            y, ins, outs = jnp.split(y, [wide, wide + size], -1)
            speed = jax.nn.softplus(speed.astype(F32) + p["speed"])
            y = y.reshape(b, -1, part, heads, 64)
            ins, outs = (v.reshape(b, -1, part, size) for v in (ins, outs))
            speed = speed.reshape(b, -1, part, heads)
            fall = jnp.cumsum(-jnp.exp(p["fall"].astype(F32)) * speed, 2)
            moved = y * speed[..., None].astype(BF16)
            gap = fall[:, :, :, None] - fall[:, :, None]
            mask = jnp.tril(jnp.ones((part, part), bool))[..., None]
            shares = jnp.exp(jnp.where(mask, gap, -jnp.inf)).astype(BF16)
            scores = jnp.einsum("bcln,bcmn->bclm", outs, ins)[..., None] * shares
            near = jnp.einsum("bclmh,bcmhp->bclhp", scores, moved)
            left = jnp.exp(fall[:, :, -1:] - fall).astype(BF16)
            held = jnp.einsum("bcln,bclh,bclhp->bchpn", ins, left, moved)

            def step(state: Any, given: Any) -> Any:
                held, fall = given
                return state * jnp.exp(fall)[..., None, None] + held, state

            start = jnp.zeros((b, heads, 64, size))
            given = (held.swapaxes(0, 1).astype(F32), fall[:, :, -1].swapaxes(0, 1))
            _, before = lax.scan(step, start, given)
            far = jnp.einsum("bcln,cbhpn->bclhp", outs, before.astype(BF16))
            found = near + far * jnp.exp(fall)[..., None].astype(BF16) + p["skip"][:, None] * y
            return x + rms(found.reshape(b, s, -1) * jax.nn.silu(z), p["last"]) @ p["out"], None

        def loss(params: Any) -> Any:
            p = short(params)
            x, _ = lax.scan(jax.checkpoint(layer), p["table"][tokens[:, :-1]], p["layers"])
            return token_loss(rms(x, p["end"]) @ p["table"].T, tokens[:, 1:]).mean()

        return learned(rule, loss, state)

    n = 3
    layers = {"into": full(n, d, 2 * wide + 2 * size + heads), "out": full(n, wide, d)}
    layers |= {"near": Arg((n, 4, wide + 2 * size), scale=0.5), "scale": Arg((n, d))}
    layers |= {name: Arg((n, heads), scale=0.5) for name in ("speed", "fall", "skip")}
    layers |= {"last": Arg((n, wide))}
    params = {"layers": layers, "table": Arg((259, d), scale=0.1), "end": Arg((d,))}
    yield "chunks", carried(chunks, started(rule, params), Arg((3, 1153), I32, below=259))


def bridges() -> Zoo:
    """Training of what joins images to a frozen language model, as in Flamingo."""
    rule = optax.adamw(1e-4, weight_decay=0.1)
    d = 1024

    def resampled(state: Any, frozen: Any, images: Any, tokens: Any) -> Any:
        """The images become 64 rows each, which the layers read by gates that start closed."""

        def loss(params: Any) -> Any:
            p, x = short(params), frozen["table"][tokens[:, :-1]]
            read = jnp.broadcast_to(p["rows"], (images.shape[0], 64, d))
            for q in p["sampler"]:
                both = jnp.concatenate([norm(images, 1.0), norm(read, 1.0)], 1)
                read = read + attention(norm(read, 1.0), both, q["qkv"], q["out"], 16)
                read = read + jax.nn.gelu(norm(read, 1.0) @ q["up"]) @ q["down"]
            bias = later(x.shape[1])
            for q, fixed in zip(p["cross"], frozen["layers"], strict=True):
                gates = jnp.tanh(q["gates"])
                x = x + gates[0] * attention(norm(x, 1.0), read, q["qkv"], q["out"], 16)
                x = x + gates[1] * (jax.nn.gelu(norm(x, 1.0) @ q["up"]) @ q["down"])
                x = cubed(x, fixed, 16, bias)
            lost = token_loss(norm(x, frozen["last"]) @ frozen["table"].T, tokens[:, 1:])
            real = tokens[:, 1:] > 3
            return (lost * real).sum() / real.sum()

        return learned(rule, loss, state)

    part = {"qkv": (full(d, d),) * 3, "out": full(d, d), "up": full(d, 2048), "down": full(2048, d)}
    cross = part | {"gates": Arg((2,), scale=0.1)}
    params = {"rows": Arg((64, d)), "sampler": [part] * 2, "cross": [cross] * 2}
    frozen = {"layers": [cubes(d, BF16)] * 2, "table": Arg((32003, d), BF16, scale=0.03)}
    given = (frozen | {"last": Arg((d,))}, Arg((7, 257, d), BF16), Arg((7, 162), I32, below=32003))
    yield "resampled", carried(resampled, started(rule, params), *given)


def proteins() -> Zoo:
    """Two blocks of an Evoformer: rows, columns, mean outer products and rows of pairs."""

    def evolved(params: Any, found: Any, pair: Any) -> Any:
        def read(x: Any, p: Any, heads: int, bias: Any = 0.0) -> Any:
            y = norm(x, p["scale"])
            parts = jnp.split((y @ p["qkv"]).reshape(*x.shape[:2], 3 * heads, -1), 3, 2)
            y = attend(*parts, bias).reshape(x.shape) * jax.nn.sigmoid(y @ p["gate"])
            return x + y @ p["out"]

        def mixed(x: Any, p: Any) -> Any:
            return x + jax.nn.relu(norm(x, p["scale"]) @ p["up"]) @ p["down"]

        def block(both: Any, p: Any) -> Any:
            x, pair = both
            bias = (norm(pair, 1.0) @ p["bias"]).transpose(2, 0, 1).astype(F32)
            x = read(x, p["row"], 8, bias)
            x = read(x.swapaxes(0, 1), p["column"], 8).swapaxes(0, 1)
            x = mixed(x, p["mixed"])
            one, two = jnp.split(norm(x, 1.0) @ p["outer"], 2, -1)
            outer = jnp.einsum("sic,sjd->ijcd", one, two) / x.shape[0]
            pair = pair + outer.reshape(*pair.shape[:2], -1) @ p["joined"]
            for name in ("start", "end"):
                bias = (norm(pair, 1.0) @ p["edge"]).transpose(2, 0, 1).astype(F32)
                pair = read(pair, p[name], 4, bias).swapaxes(0, 1)
            return (x, mixed(pair, p["changed"])), None

        both, _ = lax.scan(block, (found, pair), params)
        return both

    n, d, c = 2, 128, 96

    def reads(d: int) -> dict[str, Arg]:
        p = {"qkv": weight(n, d, 3 * d), "gate": weight(n, d, d), "out": weight(n, d, d)}
        return p | {"scale": Arg((n, d))}

    def mixes(d: int) -> dict[str, Arg]:
        return {"up": weight(n, d, 4 * d), "down": weight(n, 4 * d, d), "scale": Arg((n, d))}

    params = {"row": reads(d), "column": reads(d), "start": reads(c), "end": reads(c)}
    params |= {"mixed": mixes(d), "changed": mixes(c), "bias": weight(n, c, 8)}
    params |= {"outer": weight(n, d, 56), "joined": weight(n, 784, c), "edge": weight(n, c, 4)}
    yield "evolved", program(evolved, params, Arg((53, 151, d), BF16), Arg((151, 151, c), BF16))


def atoms() -> Zoo:
    """Training on energies and forces with tensors of atoms, as in TensorNet."""
    rule = optax.chain(optax.clip_by_global_norm(10.0), optax.amsgrad(1e-3))
    c, count = 64, 23

    def tensors(state: Any, x: Any, kinds: Any, ends: Any, owner: Any, goals: Any) -> Any:
        n = x.shape[0]

        def parts(t: Any) -> list[Any]:
            even = jnp.trace(t, axis1=-2, axis2=-1)[..., None, None] * jnp.eye(3) / 3
            skew = (t - t.swapaxes(-1, -2)) / 2
            return [even, skew, t - even - skew]

        def calmed(t: Any) -> Any:
            return t / ((t * t).sum((-1, -2), keepdims=True) + 1)

        def mixed(t: Any, ws: Any) -> list[Any]:
            both = zip(parts(t), ws, strict=True)
            return [jnp.einsum("ncij,cd->ndij", part, w) for part, w in both]

        def energy(x: Any, p: Any) -> Any:
            gap = x[ends[1]] - x[ends[0]]
            far = jnp.sqrt((gap * gap).sum(-1) + 1e-6)
            way = gap / far[:, None]
            fade = jnp.where(far < 5, 0.5 * jnp.cos(jnp.pi * far / 5) + 0.5, 0.0)[:, None]
            bumps = fade * jnp.exp(-9 * (far[:, None] - jnp.linspace(0, 5, 32)) ** 2)
            skew = jnp.cross(jnp.eye(3), way[:, None])
            bases = jnp.broadcast_to(jnp.eye(3), skew.shape)
            bases = jnp.stack([bases, skew, way[:, :, None] * way[:, None] - bases / 3], 1)
            pair = p["kinds"][kinds[ends]].sum(0)
            rates = (bumps @ p["radial"]).reshape(-1, 3, c) * pair[:, None]
            t = jnp.einsum("epc,epij->ecij", rates, bases)
            t = jax.ops.segment_sum(t, ends[0], n)
            for q in p["layers"]:
                t = calmed(t)
                rates = fade * jax.nn.silu(perceptron(bumps, q["radial"], jax.nn.silu))
                given = mixed(t, q["into"])
                rates = jnp.split(rates[..., None, None], 3, 1)
                sent = sum(r * part[ends[1]] for r, part in zip(rates, given, strict=True))
                got, own = jax.ops.segment_sum(sent, ends[0], n), sum(given)
                new = own @ got + got @ own
                new = sum(mixed(calmed(new), q["out"]))
                t = t + new + new @ new
            sizes = jnp.concatenate([(part * part).sum((-1, -2)) for part in parts(t)], -1)
            each = perceptron(norm(sizes, 1.0), p["head"], jax.nn.silu)[:, 0]
            return each.sum(), jax.ops.segment_sum(each, owner, count)

        def loss(p: Any) -> Any:
            slope, total = jax.grad(energy, has_aux=True)(x, p)
            return ((total - goals[0]) ** 2).mean() + 10 * ((slope + goals[1]) ** 2).mean()

        return learned(rule, loss, state)

    n, e = 713, 9007
    layer = {"radial": stack(32, 64, 3 * c), "into": [full(c, c)] * 3, "out": [full(c, c)] * 3}
    params = {"kinds": Arg((20, c)), "radial": full(32, 3 * c), "layers": [layer] * 2}
    params |= {"head": stack(3 * c, 64, 1)}
    graph = (Arg((n, 3), scale=2.0), Arg((n,), I32, below=20), Arg((2, e), I32, below=n))
    goals = (Arg((count,)), Arg((n, 3)))
    given = (*graph, Arg((n,), I32, below=count), goals)
    yield "tensors", carried(tensors, started(rule, params), *given)


def recommenders() -> Zoo:
    """Training of LightGCN: three rounds along all that users bought, and ranks of pairs."""
    rule = optax.adam(1e-3)
    users, items = 20011, 9007

    def ranked(state: Any, ends: Any, degrees: Any, batch: Any) -> Any:
        def loss(table: Any) -> Any:
            rates = lax.rsqrt((1.0 + degrees[ends[0]]) * (1.0 + degrees[users + ends[1]]))[:, None]
            x = total = table
            for _ in range(3):
                one = jax.ops.segment_sum(x[users + ends[1]] * rates, ends[0], users)
                two = jax.ops.segment_sum(x[ends[0]] * rates, ends[1], items)
                x = jnp.concatenate([one, two])
                total = total + x
            who, liked, other = batch[0], users + batch[1], users + batch[2]
            gain = (total[who] * (total[liked] - total[other])).sum(-1) / 16
            size = (table[jnp.concatenate([who, liked, other])] ** 2).sum() / who.size
            return -jax.nn.log_sigmoid(gain).mean() + 5e-5 * size

        return learned(rule, loss, state)

    state = started(rule, Arg((users + items, 64), scale=0.1))
    given = (Arg((2, 301000), I32, below=items), Arg((users + items,), I32, below=60))
    yield "ranked", carried(ranked, state, *given, Arg((3, 2050), I32, below=items))


def series() -> Zoo:
    """Forecasts by an Informer: 30 queries of each head are worth a look at all keys."""

    def sparse(params: Any, past: Any, times: Any, key: Any) -> Any:
        b, s, _ = past.shape

        def split(x: Any, p: Any) -> list[Any]:
            return jnp.split((x @ p["qkv"]).reshape(b, -1, 24, 64), 3, 2)

        def read(x: Any, p: Any, key: Any) -> Any:
            q, k, v = split(x, p)
            index = jax.random.randint(key, (x.shape[1], 30), 0, x.shape[1])
            some = jnp.einsum("bqhd,bqkhd->bhqk", q, k[:, index]).astype(F32)
            _, best = lax.top_k(some.max(-1) - some.mean(-1), 30)
            rows = jnp.take_along_axis(q.swapaxes(1, 2), best[..., None], 2).swapaxes(1, 2)
            found = jnp.broadcast_to(v.mean(1, keepdims=True), v.shape).swapaxes(1, 2)
            new = attend(rows, k, v).swapaxes(1, 2)
            found = jax.vmap(jax.vmap(lambda a, i, y: a.at[i].set(y)))(found, best, new)
            return found.swapaxes(1, 2).reshape(x.shape) @ p["out"]

        def mixed(x: Any, p: Any) -> Any:
            return norm(x + jax.nn.gelu(x @ p["up"]) @ p["down"], p["scale"][1])

        def embedded(x: Any, times: Any, p: Any) -> Any:
            return along(x, p["window"]) + p["times"][times].sum(2) + p["places"][: x.shape[1]]

        x = embedded(past, times[:, :s], params["first"])
        for p, one in zip(params["encoder"], jax.random.split(key, 3), strict=True):
            x = mixed(norm(x + read(x, p, one), p["scale"][0]), p)
            x = jax.nn.elu(norm(along(x, p["window"]), 1.0))
            x = nn.max_pool(x, (3,), (2,), "SAME")
        given = jnp.pad(past[:, -48:], ((0, 0), (0, 96), (0, 0)))
        y = embedded(given, times[:, s - 48 :], params["second"])
        for p in params["decoder"]:
            found = attend(*split(y, p), later(y.shape[1])).reshape(y.shape)
            y = norm(y + found @ p["out"], p["scale"][0])
            y = mixed(norm(y + attention(y, x, p["cross"], p["join"], 8), 1.0), p)
        return (y @ params["head"])[:, -96:]

    d = 512
    first = {"window": kernel(3, 7, d), "times": Arg((60, d), BF16)}
    first |= {"places": Arg((336, d), BF16)}
    layer = cubes(d, BF16) | {"cross": (weight(d, d),) * 3, "join": weight(d, d)}
    encoder = cubes(d, BF16) | {"window": kernel(3, d, d)}
    params = {"first": first, "second": first, "encoder": [encoder] * 3, "decoder": [layer] * 2}
    params |= {"head": weight(d, 7)}
    given = (Arg((17, 336, 7), BF16), Arg((17, 432, 4), I32, below=60), _KEY)
    yield "sparse", program(sparse, params, *given)


def privacy() -> Zoo:
    """Training with a clipped gradient of every example and noise, as in DP-SGD."""
    rule = optax.sgd(0.15, momentum=0.9)

    def private(state: Any, images: Any, labels: Any, key: Any) -> Any:
        params = state[0]

        def loss(p: Any, image: Any, label: Any) -> Any:
            x = jax.nn.relu(convolved(image[None], p["first"], 2))
            x = nn.max_pool(x, (2, 2), (1, 1))
            x = jax.nn.relu(convolved(x, p["second"], 2))
            x = nn.max_pool(x, (2, 2), (1, 1)).reshape(1, -1)
            return token_loss(perceptron(x, p["head"]), label[None]).sum()

        values, each = jax.vmap(jax.value_and_grad(loss), (None, 0, 0))(params, images, labels)
        less = jax.vmap(lambda g: jnp.minimum(1.0, 1.5 / (optax.global_norm(g) + 1e-9)))(each)
        total = jax.tree.map(lambda g: jnp.tensordot(less, g, 1), each)
        leaves, tree = jax.tree.flatten(total)
        keys = jax.random.split(key, len(leaves))
        noisy = [
            (g + 1.95 * jax.random.normal(k, g.shape)) / labels.size
            for g, k in zip(leaves, keys, strict=True)
        ]
        return applied(rule, *state, jax.tree.unflatten(tree, noisy)), values.mean()

    params = {"first": kernel(8, 8, 3, 16, dtype=F32), "second": kernel(4, 4, 16, 32, dtype=F32)}
    params |= {"head": stack(1568, 32, 10)}
    given = (Arg((210, 32, 32, 3)), Arg((210,), I32, below=10), _KEY)
    yield "private", carried(private, started(rule, params), *given)


def fewshot() -> Zoo:
    """Training by MAML: a gradient through three steps of each of eleven tasks."""
    rule = optax.adam(1e-3)

    def adapted(state: Any, seen: Any, unseen: Any) -> Any:
        def lost(p: Any, images: Any, labels: Any) -> Any:
            x = images
            for w in p["windows"]:
                x = convolved(x, w, 2)
                x = x - x.mean((0, 1, 2))
                x = jax.nn.relu(x * lax.rsqrt((x * x).mean((0, 1, 2)) + 1e-3))
            return token_loss(perceptron(x.mean((1, 2)), p["head"]), labels).mean()

        def task(p: Any, seen: Any, unseen: Any) -> Any:
            def step(p: Any, _: Any) -> Any:
                return jax.tree.map(lambda w, g: w - 0.4 * g, p, jax.grad(lost)(p, *seen)), None

            p, _ = lax.scan(step, p, None, 3)
            return lost(p, *unseen)

        def loss(p: Any) -> Any:
            return jax.vmap(task, (None, 0, 0))(p, seen, unseen).mean()

        return learned(rule, loss, state)

    windows = [kernel(3, 3, a, 48, dtype=F32) for a in (1, 48, 48, 48)]
    state = started(rule, {"windows": windows, "head": stack(48, 5)})
    seen = (Arg((11, 25, 28, 28, 1)), Arg((11, 25), I32, below=5))
    yield "adapted", carried(adapted, state, seen, (Arg((11, 75, 28, 28, 1)), Arg((11, 75), I32)))


def agents() -> Zoo:
    """Training of MuZero through five moves, and plans of TD-MPC by drawn actions."""
    rule = optax.chain(optax.clip_by_global_norm(5.0), optax.adamw(1e-3, weight_decay=1e-4))

    def unrolled(state: Any, boards: Any, moves: Any, goals: Any) -> Any:
        """Boards of 9 x 9; values and rewards are shares of 61 bins."""

        def loss(params: Any) -> Any:
            p = short(params)

            def blocks(x: Any, windows: Any) -> Any:
                x = jax.nn.relu(norm(convolved(x, windows[0]), 1.0))
                for n in range(1, len(windows), 2):
                    y = jax.nn.relu(norm(convolved(x, windows[n]), 1.0))
                    x = jax.nn.relu(x + norm(convolved(y, windows[n + 1]), 1.0))
                return x

            def heads(x: Any) -> list[Any]:
                flat = jax.nn.relu(x @ p["flat"]).reshape(x.shape[0], -1)
                return [(flat @ w).astype(F32) for w in p["heads"]]

            def step(x: Any, move: Any) -> Any:
                plane = jax.nn.one_hot(move, 81, dtype=BF16).reshape(-1, 9, 9, 1)
                x = blocks(jnp.concatenate([x, plane], -1), p["moved"])
                low, high = x.min((1, 2), keepdims=True), x.max((1, 2), keepdims=True)
                x = (x - low) / (high - low + 1e-2)
                x = 0.5 * x + 0.5 * lax.stop_gradient(x)
                return x, heads(x)

            x = blocks(boards, p["seen"])
            first = heads(x)
            _, rest = lax.scan(step, x, moves)
            total = 0.0
            for one, more, goal in zip(first, rest, goals, strict=True):
                logs = jax.nn.log_softmax(jnp.concatenate([one[None], more / 5]))
                total = total - (jax.nn.softmax(goal) * logs).sum((0, -1)).mean()
            return total

        return learned(rule, loss, state)

    b, c = 97, 96
    params = {"seen": [kernel(3, 3, a, c, dtype=F32) for a in (17, c, c, c, c)]}
    params |= {"moved": [kernel(3, 3, a, c, dtype=F32) for a in (c + 1, c, c)]}
    params |= {"flat": full(c, 16), "heads": [full(1296, 82), full(1296, 61), full(1296, 61)]}
    goals = [Arg((6, b, size)) for size in (82, 61, 61)]
    given = (Arg((b, 9, 9, 17), BF16), Arg((5, b), I32, below=81), goals)
    yield "unrolled", carried(unrolled, started(rule, params), *given)

    def planned(means: Any, p: Any, states: Any, key: Any) -> Any:
        """Six rounds of 512 plans of four actions for each of five robots."""
        bins = jnp.linspace(-10, 10, 101)

        def bend(x: Any) -> Any:
            return jax.nn.mish(norm(x, 1.0))

        def moved(x: Any, act: Any) -> tuple[Any, Any]:
            x = jnp.concatenate([x, act], -1)
            gain = jax.nn.softmax(perceptron(x, p["gain"], bend)) @ bins
            x = perceptron(x, p["moved"], bend).reshape(x.shape[0], -1, 8)
            return jax.nn.softmax(x).reshape(x.shape[0], -1), jnp.sinh(gain / 4)

        def acted(x: Any) -> Any:
            return jnp.tanh(perceptron(x, p["actor"], bend))

        def worth(x: Any) -> Any:
            x = jnp.concatenate([x, acted(x)], -1)
            found = jax.vmap(lambda q: jax.nn.softmax(perceptron(x, q, bend)) @ bins)(p["critics"])
            return jnp.sinh(found / 4)[:2].mean(0)

        def plan(mean: Any, state: Any, key: Any) -> Any:
            def guess(x: Any, _: Any) -> Any:
                act = acted(x)
                return moved(x, act)[0], act

            start = jnp.broadcast_to(state, (24, state.size))
            _, own = lax.scan(guess, start, None, 4)

            def again(carry: Any, key: Any) -> Any:
                mean, spread = carry
                drawn = mean[:, None] + spread[:, None] * jax.random.normal(key, (4, 488, 19))
                acts = jnp.concatenate([jnp.clip(drawn, -1, 1), own], 1)

                def step(carry: Any, act: Any) -> Any:
                    x, total, rate = carry
                    x, gain = moved(x, act)
                    return (x, total + rate * gain, 0.99 * rate), None

                x = jnp.broadcast_to(state, (512, state.size))
                (x, total, rate), _ = lax.scan(step, (x, jnp.zeros(512), 1.0), acts)
                best, index = lax.top_k(total + rate * worth(x), 64)
                shares = jax.nn.softmax(0.5 * best)[:, None]
                acts = acts[:, index]
                mean = (shares * acts).sum(1)
                spread = jnp.sqrt((shares * (acts - mean[:, None]) ** 2).sum(1))
                return (mean, jnp.clip(spread, 0.05, 2.0)), best[0]

            start = (mean, jnp.full_like(mean, 2.0))
            (mean, _), best = lax.scan(again, start, jax.random.split(key, 6))
            return jnp.roll(mean, -1, 0).at[-1].set(0.0), mean[0], best

        return jax.vmap(plan)(means, states, jax.random.split(key, states.shape[0]))

    d, acts = 512, 19
    wide = d + acts
    params = {"moved": stack(wide, 512, 512, d), "gain": stack(wide, 512, 512, 101)}
    critics = jax.tree.map(lambda x: Arg((5, *x.shape), scale=x.scale), stack(wide, 512, 512, 101))
    params |= {"actor": stack(d, 512, 512, acts), "critics": critics}
    yield "planned", carried(planned, Arg((5, 4, acts), scale=0.3), params, Arg((5, d)), _KEY)


class Topics(nn.Module):
    """ProdLDA: documents as mixtures of 50 topics."""

    @nn.compact
    def __call__(self, counts: Any) -> Any:
        def normed(x: Any) -> Any:
            return nn.BatchNorm(use_running_average=False, use_scale=False, momentum=0.9)(x)

        x = counts
        for _ in range(2):
            x = nn.softplus(nn.Dense(200)(x))
        x = nn.Dropout(0.2, deterministic=False)(x)
        mean, logs = normed(nn.Dense(50)(x)), normed(nn.Dense(50)(x))
        noise = jax.random.normal(self.make_rng("dropout"), mean.shape)
        shares = nn.softmax(mean + jnp.exp(logs / 2) * noise)
        shares = nn.Dropout(0.2, deterministic=False)(shares)
        words = nn.log_softmax(normed(nn.Dense(counts.shape[-1], use_bias=False)(shares)))
        apart = 0.5 * (jnp.exp(logs) + mean**2 - 1 - logs).sum(-1)
        return apart - (counts * words).sum(-1)


def topics() -> Zoo:
    """Training of a topic model by variational inference, as in NumPyro's example."""
    model, rule = Topics(), optax.adam(1e-3)

    def documents(state: Any, counts: Any, key: Any) -> Any:
        params, means, moments = state
        wide = counts.astype(F32)

        def loss(params: Any) -> Any:
            variables, rngs = {"params": params, "batch_stats": means}, {"dropout": key}
            lost, new = model.apply(variables, wide, mutable=["batch_stats"], rngs=rngs)
            return lost.mean(), new["batch_stats"]

        (value, means), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        params, moments = applied(rule, params, moments, gradient)
        return (params, means, moments), value

    variables = initial(model, Arg((397, 12019)))
    params, moments = started(rule, variables["params"])
    state = (params, variables["batch_stats"], moments)
    yield "documents", carried(documents, state, Arg((397, 12019), U8, below=3), _KEY)


def clouds() -> Zoo:
    """Points as in PointNet++: 64 far from each other, their 32 nearest, and maxima of them."""

    def points(params: Any, x: Any, normals: Any) -> Any:
        def picked(x: Any) -> Any:
            def step(carry: Any, _: Any) -> Any:
                far, last = carry
                far = jnp.minimum(far, ((x - x[last]) ** 2).sum(-1))
                return (far, far.argmax()), last

            start = (jnp.full(x.shape[0], 1e9), jnp.zeros((), I32))
            return lax.scan(step, start, None, 64)[1]

        def grouped(x: Any, given: Any) -> Any:
            centres = x[picked(x)]
            square = ((centres[:, None] - x) ** 2).sum(-1)
            lost, index = lax.top_k(-square, 32)
            index = jnp.where(-lost < 0.4**2, index, index[:, :1])
            gap = x[index] - centres[:, None]
            return centres, jnp.concatenate([gap, given[index]], -1)

        centres, rows = jax.vmap(grouped)(x, normals)
        near = jax.nn.relu(perceptron(rows, params["near"])).max(2)
        rows = jnp.concatenate([centres, near], -1)
        return perceptron(jax.nn.relu(perceptron(rows, params["all"])).max(1), params["head"])

    params = {"near": stack(6, 64, 64, 128), "all": stack(131, 256, 512, 1024)}
    params |= {"head": stack(1024, 512, 256, 40)}
    yield "points", program(points, params, *[Arg((13, 2048, 3))] * 2)


def clusters() -> Zoo:
    """Six of Lloyd's rounds for 257 centres."""

    def lloyd(centres: Any, x: Any) -> Any:
        def once(centres: Any, _: Any) -> Any:
            square = (centres**2).sum(-1) - 2 * x @ centres.T
            nearest = square.argmin(-1)
            total = jax.ops.segment_sum(x, nearest, centres.shape[0])
            count = jax.ops.segment_sum(jnp.ones(x.shape[0]), nearest, centres.shape[0])[:, None]
            new = jnp.where(count > 0, total / jnp.maximum(count, 1), centres)
            return new, square.min(-1).sum() + (x * x).sum()

        return lax.scan(once, centres, None, 6)

    yield "lloyd", carried(lloyd, Arg((257, 48)), Arg((60007, 48)))


def lattices() -> Zoo:
    """Three leaps of a gauge field of SU(3) in four dimensions."""

    def gauge(state: Any, rate: Any) -> Any:
        def times(a: Any, b: Any) -> Any:
            return (a[..., :, :, None] * b[..., None, :, :]).sum(-2)

        def turned_back(a: Any) -> Any:
            return a.conj().swapaxes(-1, -2)

        def force(u: Any) -> Any:
            found = []
            for m in range(4):
                total = jnp.zeros_like(u[m])
                for n in (way for way in range(4) if way != m):
                    ahead = jnp.roll(u[n], -1, m)
                    total += times(ahead, turned_back(times(u[n], jnp.roll(u[m], -1, n))))
                    side = turned_back(times(u[m], ahead))
                    total += jnp.roll(times(side, u[n]), 1, n)
                plaque = times(u[m], total)
                skew = (plaque - turned_back(plaque)) / 2
                even = jnp.trace(skew, axis1=-2, axis2=-1)[..., None, None] / 3
                found.append(skew - even * jnp.eye(3))
            return -rate / 6 * jnp.stack(found)

        def leap(_: Any, state: Any) -> Any:
            u, speed = state
            speed = speed + 0.01 * force(u)
            term = turn = jnp.broadcast_to(jnp.eye(3, dtype=u.dtype), u.shape)
            for n in range(1, 6):
                term = times(term, speed) * (0.02 / n)
                turn = turn + term
            u = times(turn, u)
            return u, speed + 0.01 * force(u)

        u, speed = lax.fori_loop(0, 3, leap, state)
        return (u, speed), (speed.real**2 + speed.imag**2).sum() / 2

    field = Arg((4, 16, 12, 12, 10, 3, 3), jnp.complex64, scale=0.05, identity=1.0)
    speed = Arg(field.shape, jnp.complex64, scale=0.1)
    yield "gauge", carried(gauge, (field, speed), Arg(()))


def elements() -> Zoo:
    """A step of Newton's for an elastic body: 24 rounds of conjugate gradients without a matrix."""

    def elastic(moved: Any, cells: Any, slopes: Any, sizes: Any, load: Any, fixed: Any) -> Any:
        free = (fixed > 0)[:, None]

        def energy(moved: Any) -> Any:
            bend = jnp.einsum("cni,cqnj->cqij", moved[cells], slopes) + jnp.eye(3)
            strain = (jnp.einsum("cqki,cqkj->cqij", bend, bend) - jnp.eye(3)) / 2
            even = jnp.trace(strain, axis1=-2, axis2=-1)
            dense = 0.3 * even**2 + 0.4 * (strain**2).sum((-1, -2))
            return (jnp.abs(sizes) * dense).sum() - (load * moved).sum()

        pull = jax.grad(energy)
        rest = jnp.where(free, -pull(moved), 0.0)

        def step(_: Any, state: Any) -> Any:
            x, rest, way, size = state
            _, ahead = jax.jvp(pull, (moved,), (way,))
            ahead = jnp.where(free, ahead, way)
            rate = size / ((way * ahead).sum() + 1e-12)
            x, rest = x + rate * way, rest - rate * ahead
            new = (rest * rest).sum()
            return x, rest, rest + new / (size + 1e-12) * way, new

        start = (jnp.zeros_like(moved), rest, rest, (rest * rest).sum())
        x, rest, _, size = lax.fori_loop(0, 24, step, start)
        return moved + x, size

    nodes, cells = 14003, 12500
    given = (Arg((cells, 8), I32, below=nodes), Arg((cells, 8, 8, 3)), Arg((cells, 8)))
    rest = (Arg((nodes, 3), scale=0.1), Arg((nodes,), I32, below=5))
    yield "elastic", carried(elastic, Arg((nodes, 3), scale=0.01), *given, *rest)


def spheres() -> Zoo:
    """Winds on a sphere at 22 heights by spherical harmonics, as in NeuralGCM's core: six steps."""
    waves, degrees, rows, columns = 86, 87, 128, 256

    def winds(state: Any, table: Any, slopes: Any, sines: Any, shares: Any) -> Any:
        degree, wave = jnp.arange(degrees), jnp.arange(waves)[:, None]
        square = -(degree * (degree + 1.0)).at[0].set(1.0)
        fade = jnp.exp(-5e-9 * square**2)

        def there(table: Any, x: Any) -> Any:
            x = jnp.einsum("mrl,hkml->hkrm", table, x)
            return jnp.fft.irfft(lax.complex(x[:, 0], x[:, 1]), columns) * columns

        def back(x: Any) -> Any:
            x = jnp.fft.rfft(x * shares[:, None])[..., :waves] / columns
            return jnp.einsum("mrl,hkrm->hkml", table, jnp.stack([x.real, x.imag], 1))

        def around(x: Any) -> Any:
            return jnp.stack([-x[:, 1], x[:, 0]], 1) * wave

        def change(x: Any) -> Any:
            flow = x / square
            east, north = -there(slopes, flow), there(table, around(flow))
            push = there(table, around(x)) * east + there(slopes, x) * north
            return -back(push + 2 * sines[:, None] * north)

        def step(state: Any, _: Any) -> Any:
            old, x = state
            new = fade * (old + 2e-3 * change(x))
            return (x + 0.05 * (old - 2 * x + new), new), (x * x / square).sum((1, 2, 3))

        return lax.scan(step, state, None, 6)

    field = Arg((22, 2, waves, degrees), scale=0.01)
    tables = [Arg((waves, rows, degrees), scale=0.1)] * 2
    yield "winds", carried(winds, (field, field), *tables, Arg((rows,)), Arg((rows,)))


def optics() -> Zoo:
    """Training of a mask whose light makes given pictures at four depths, in three colours."""
    rule = optax.adam(0.05)

    def holograms(state: Any, beam: Any, depths: Any, pictures: Any) -> Any:
        h, w = beam.shape

        def loss(p: Any) -> Any:
            tall, wide = jnp.fft.fftfreq(h)[:, None], jnp.fft.fftfreq(w)
            lengths = jnp.array([0.21, 0.18, 0.15])[:, None, None]
            ahead = 1 / lengths**2 - tall**2 - wide**2
            mask = lax.complex(beam * jnp.cos(p["phase"]), beam * jnp.sin(p["phase"]))
            spectrum = jnp.fft.fft2(mask)

            def seen(depth: Any) -> Any:
                angle = 2 * jnp.pi * depth * jnp.sqrt(jnp.maximum(ahead, 0.0))
                turn = lax.complex(jnp.cos(angle), jnp.sin(angle))
                light = jnp.fft.ifft2(spectrum * jnp.where(ahead > 0, turn, 0))
                return light.real**2 + light.imag**2

            found = jax.vmap(seen)(depths) * jnp.exp(p["gain"])[:, None, None]
            return ((found - jnp.abs(pictures)) ** 2).mean()

        return learned(rule, loss, state)

    params = {"phase": Arg((3, 760, 648)), "gain": Arg((3,), scale=0.1)}
    given = (Arg((760, 648)), Arg((4,), scale=50.0), Arg((4, 3, 760, 648)))
    yield "holograms", carried(holograms, started(rule, params), *given)
