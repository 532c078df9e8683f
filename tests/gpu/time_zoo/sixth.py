"""A sixth zoo: what people who never met the predictor would train, serve and simulate.

It was written without a look at the predictor or its calibration, to be timed once: no
calibration and no fit has used its programs.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from fourth import attend, norm, program, weight
from jax import lax

from xlapipe.running.calibration.timed_program import Arg, TimedProgram

F32, BF16, I32 = jnp.float32, jnp.bfloat16, jnp.int32
U8, U32, F8 = jnp.uint8, jnp.uint32, jnp.float8_e4m3fn
Zoo = Iterator[tuple[str, TimedProgram]]
_NHWC = ("NHWC", "HWIO", "NHWC")


def sixth_programs() -> dict[str, TimedProgram]:
    """Every program, by FAMILY/NAME."""
    families = (
        *(images, volumes, sounds, recurrences, tokens, experts, caches, finetuning),
        *(denoisers, densities, meshes, clicks, actors, processes, physics, motion, shapes),
        *(searches, narrow, updates),
    )
    return {
        f"{family.__name__}/{name}": program for family in families for name, program in family()
    }


def full(*shape: int) -> Arg:
    """A weight in float32."""
    return weight(*shape, dtype=F32)


def kernel(*shape: int, dtype: Any = BF16) -> Arg:
    """The kernel of a convolution, scaled by all that it sums."""
    total = 1
    for size in shape[:-1]:
        total *= size
    return Arg(shape, dtype, scale=total**-0.5)


def convolved(x: Any, w: Any, stride: int = 1, groups: int = 1) -> Any:
    return lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=_NHWC, feature_group_count=groups
    )


def attention(x: Any, given: Any, qkv: tuple[Any, Any, Any], out: Any, heads: int) -> Any:
    """Attention of `x` to `given`, between products."""
    b, s, _ = x.shape
    q = (x @ qkv[0]).reshape(b, s, heads, -1)
    k, v = ((given @ w).reshape(*given.shape[:2], heads, -1) for w in qkv[1:])
    return attend(q, k, v).reshape(b, s, -1) @ out


def images() -> Zoo:
    """A vision transformer with layer scales, and a block that squeezes and excites."""

    def transformer(params: Any, momentum: Any, pictures: Any, labels: Any) -> Any:
        """A step of momentum; the layers are scanned and computed twice."""

        def layer(x: Any, p: Any) -> Any:
            b, s, d = x.shape
            parts = (norm(x, p["scale"][0]) @ p["qkv"]).reshape(b, s, 3, -1, 64)
            y = attend(parts[:, :, 0], parts[:, :, 1], parts[:, :, 2]).reshape(b, s, d)
            x = x + p["gain"][0].astype(BF16) * (y @ p["out"])
            y = jax.nn.gelu(norm(x, p["scale"][1]) @ p["up"]) @ p["down"]
            return x + p["gain"][1].astype(BF16) * y, None

        def loss(params: Any) -> Any:
            b = pictures.shape[0]
            x = pictures.reshape(b, 14, 16, 14, 16, 3).transpose(0, 1, 3, 2, 4, 5)
            x = x.reshape(b, 196, 768) @ params["patch"]
            first = jnp.broadcast_to(params["class"], (b, 1, x.shape[-1]))
            x = jnp.concatenate([first, x], 1) + params["place"]
            x, _ = lax.scan(jax.checkpoint(layer), x, params["layers"])
            logs = jax.nn.log_softmax((x[:, 0] @ params["head"]).astype(F32))
            return -(jax.nn.one_hot(labels, 1000) * 0.9 + 1e-4).astype(F32).ravel() @ logs.ravel()

        value, gradient = jax.value_and_grad(loss)(params)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g.astype(F32), momentum, gradient)
        params = jax.tree.map(lambda p, m: (p - 0.01 * m).astype(p.dtype), params, momentum)
        return params, momentum, value

    d, n = 384, 4
    layers = {"qkv": weight(n, d, 3 * d), "out": weight(n, d, d), "up": weight(n, d, 4 * d)}
    layers |= {"down": weight(n, 4 * d, d), "scale": Arg((n, 2, d)), "gain": Arg((n, 2, d))}
    params = {"layers": layers, "patch": weight(768, d), "head": weight(d, 1000)}
    params |= {"class": Arg((1, 1, d), BF16), "place": Arg((197, d), BF16)}
    momentum = jax.tree.map(lambda arg: Arg(arg.shape, F32, scale=0.01), params)
    batch = (Arg((24, 224, 224, 3), BF16), Arg((24,), I32, below=1000))
    yield "transformer", program(transformer, params, momentum, *batch)

    def squeezed(x: Any, *weights: Any) -> Any:
        def loss(weights: Any) -> Any:
            wide, deep, less, more, narrow = weights
            y = jax.nn.hard_swish(x @ wide)
            y = jax.nn.hard_swish(convolved(y, deep, 1, y.shape[-1]))
            gate = jax.nn.hard_sigmoid(jax.nn.relu(y.mean((1, 2)) @ less) @ more)
            y = x + (y * gate[:, None, None]) @ narrow
            return (y.astype(F32) ** 2).mean()

        return jax.grad(loss)(weights)

    weights = (weight(80, 480), kernel(5, 5, 1, 480), weight(480, 20), weight(20, 480))
    yield "squeezed", program(squeezed, Arg((40, 28, 28, 80), BF16), *weights, weight(480, 80))


def volumes() -> Zoo:
    """A small U over a scan of a body, with the overlap of its classes as the loss."""

    def around(x: Any, w: Any, stride: int = 1) -> Any:
        names = ("NDHWC", "DHWIO", "NDHWC")
        y = lax.conv_general_dilated(x, w, (stride,) * 3, "SAME", dimension_numbers=names)
        mean, var = y.mean((1, 2, 3), keepdims=True), y.var((1, 2, 3), keepdims=True)
        return jax.nn.leaky_relu((y - mean) * lax.rsqrt(var + 1e-5), 0.01)

    def overlap(x: Any, labels: Any, *weights: Any) -> Any:
        def loss(weights: Any) -> Any:
            first, down, middle, up, last, head = weights
            high = around(x, first)
            low = around(around(high, down, 2), middle)
            names = ("NDHWC", "DHWIO", "NDHWC")
            back = lax.conv_transpose(low, up, (2, 2, 2), "SAME", dimension_numbers=names)
            logs = around(jnp.concatenate([high, back], -1), last) @ head
            found, truth = jax.nn.softmax(logs, -1), jax.nn.one_hot(labels, logs.shape[-1])
            both, either = (found * truth).sum((1, 2, 3)), (found + truth).sum((1, 2, 3))
            entropy = -(truth * jax.nn.log_softmax(logs, -1)).sum(-1).mean()
            return entropy + 1 - ((2 * both + 1) / (either + 1)).mean()

        return jax.value_and_grad(loss)(weights)

    shapes = ((3, 3, 3, 4, 24), (3, 3, 3, 24, 48), (3, 3, 3, 48, 48), (2, 2, 2, 48, 24))
    weights = [kernel(*shape, dtype=F32) for shape in (*shapes, (3, 3, 3, 48, 24), (24, 3))]
    scan = (Arg((1, 40, 56, 56, 4)), Arg((1, 40, 56, 56), I32, below=3))
    yield "overlap", program(overlap, *scan, *weights)


def sounds() -> Zoo:
    """The encoder of an audio codec, whose codes each correct the one before."""

    def codec(wave: Any, kernels: Any, slopes: Any, books: Any) -> Any:
        x = wave
        for w, slope, stride in zip(kernels, slopes, (1, 2, 4, 5), strict=True):
            x = lax.conv_general_dilated(
                x, w, (stride,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
            )
            x = x + jnp.sin(slope * x) ** 2 / (jnp.abs(slope) + 0.1)
        left, codes = x.reshape(-1, x.shape[-1]), []
        for book in books:
            far = (book * book).sum(-1) - 2 * left @ book.T
            codes.append(far.argmin(-1))
            left = left - book[codes[-1]]
        return jnp.stack(codes, -1), x.reshape(left.shape) - left

    widths = (32, 64, 128, 192)
    shapes = ((7, 1, 32), (4, 32, 64), (8, 64, 128), (10, 128, 192))
    kernels = [kernel(*shape, dtype=F32) for shape in shapes]
    books = [Arg((1024, 192))] * 4
    yield "codec", program(codec, Arg((6, 24000, 1)), kernels, [Arg((n,)) for n in widths], books)


def recurrences() -> Zoo:
    """Tags of words from both sides, and a block that mixes times by a decay."""

    def tagger(params: Any, table: Any, words: Any, tags: Any) -> Any:
        def run(p: Any, x: Any, reverse: bool) -> Any:
            def move(h: Any, row: Any) -> Any:
                gates, new = row[:, : 2 * h.shape[-1]], row[:, 2 * h.shape[-1] :]
                reset, keep = jnp.split(jax.nn.sigmoid(gates + h @ p["gates"]), 2, -1)
                h = keep * h + (1 - keep) * jnp.tanh(new + reset * (h @ p["new"]))
                return h, h

            start = jnp.zeros((x.shape[1], p["new"].shape[0]))
            return lax.scan(move, start, x @ p["in"] + p["bias"], reverse=reverse)[1]

        def loss(params: Any) -> Any:
            x = table[words]
            sides = [run(params["right"], x, False), run(params["left"], x, True)]
            logs = jax.nn.log_softmax(jnp.concatenate(sides, -1) @ params["head"], -1)
            return -jnp.take_along_axis(logs, tags[..., None], -1).mean()

        return jax.grad(loss)(params)

    side = {"in": full(300, 600), "gates": full(200, 400), "new": full(200, 200)}
    side |= {"bias": Arg((600,), scale=0.1)}
    params = {"right": side, "left": side, "head": full(400, 17)}
    batch = (Arg((22, 80), I32, below=20000), Arg((22, 80), I32, below=17))
    yield "tagger", program(tagger, params, Arg((20000, 300)), *batch)

    def mixed(x: Any, share: Any, products: Any, out: Any, decay: Any, bonus: Any) -> Any:
        y = norm(x, 1.0)
        before = jnp.pad(y, ((0, 0), (1, 0), (0, 0)))[:, :-1]
        k, v, r = (
            (y * part + before * (1 - part)) @ w for part, w in zip(share, products, strict=True)
        )
        speed = -jnp.exp(decay)

        def move(carry: Any, row: Any) -> Any:
            top, bottom, most = carry
            k, v = (part.astype(F32) for part in row)
            high = jnp.maximum(most, bonus + k)
            old, new = jnp.exp(most - high), jnp.exp(bonus + k - high)
            found = (old * top + new * v) / (old * bottom + new)
            high = jnp.maximum(most + speed, k)
            old, new = jnp.exp(most + speed - high), jnp.exp(k - high)
            return (old * top + new * v, old * bottom + new, high), found.astype(x.dtype)

        zero = jnp.zeros((x.shape[0], x.shape[-1]))
        rows = (k.swapaxes(0, 1), v.swapaxes(0, 1))
        found = lax.scan(move, (zero, zero, zero - 1e30), rows)[1].swapaxes(0, 1)
        return x + (jax.nn.sigmoid(r) * found) @ out

    given = (Arg((3, 768), BF16), [weight(768, 768)] * 3, weight(768, 768))
    pair = (Arg((768,)), Arg((768,)))
    yield "mixed", program(mixed, Arg((10, 120, 768), BF16), *given, *pair)


def tokens() -> Zoo:
    """The next token by penalties and a nucleus, and a student of a larger model."""

    def nucleus(logits: Any, past: Any, heat: Any, key: Any) -> Any:
        rows = jnp.arange(past.shape[0])[:, None]
        wide = logits.astype(F32)
        seen = jnp.take_along_axis(wide, past, 1)
        wide = wide.at[rows, past].set(jnp.where(seen > 0, seen / 1.2, seen * 1.2))
        wide = wide / (0.5 + jax.nn.sigmoid(heat))[:, None]
        best, index = lax.top_k(wide, 60)
        share = jnp.exp(best - jax.nn.logsumexp(wide, -1, keepdims=True))
        before = jnp.cumsum(share, -1) - share
        kept = jnp.where(before < 0.9, best, -jnp.inf)
        place = jax.random.categorical(key, kept)
        return jnp.take_along_axis(index, place[:, None], 1)[:, 0]

    logits, past = Arg((28, 128256), BF16), Arg((28, 600), I32, below=128256)
    yield "nucleus", program(nucleus, logits, past, Arg((28,)), Arg((2,), U32, below=1 << 30))

    def distilled(x: Any, head: Any, given: Any, teacher: Any, labels: Any) -> Any:
        goal = jax.nn.log_softmax((given @ teacher).astype(F32) / 2, -1)

        def loss(x: Any, head: Any) -> Any:
            logits = (x @ head).astype(F32)
            soft = jax.nn.log_softmax(logits / 2, -1)
            apart = (jnp.exp(goal) * (goal - soft)).sum(-1).mean()
            logs = jax.nn.log_softmax(logits, -1)
            return 4 * apart - jnp.take_along_axis(logs, labels[:, None], 1).mean()

        return jax.value_and_grad(loss, (0, 1))(x, head)

    student = (Arg((1000, 640), BF16), weight(640, 32100))
    rest = (Arg((1000, 1280), BF16), weight(1280, 32100), Arg((1000,), I32, below=32100))
    yield "distilled", program(distilled, *student, *rest)


def experts() -> Zoo:
    """Four of 24 experts from the best groups, in buffers, beside one that all tokens share."""

    def limited(x: Any, router: Any, bias: Any, first: Any, last: Any, shared: Any) -> Any:
        scores = jax.nn.sigmoid(x.astype(F32) @ router)
        groups = (scores + bias).reshape(x.shape[0], 4, -1)
        best = lax.top_k(lax.top_k(groups, 2)[0].sum(-1), 2)[1]
        open_ = jax.nn.one_hot(best, 4).sum(1)[..., None] > 0
        chosen = lax.top_k(jnp.where(open_, groups, -jnp.inf).reshape(scores.shape), 4)[1]
        share = jnp.take_along_axis(scores, chosen, 1)
        share = share / share.sum(-1, keepdims=True)

        ids, count, room = chosen.ravel(), router.shape[-1], 384
        order = jnp.argsort(ids)
        sizes = jnp.bincount(ids, length=count)
        ids = ids[order]
        rank = jnp.arange(ids.shape[0]) - (jnp.cumsum(sizes) - sizes)[ids]
        buffer = jnp.zeros((count, room, x.shape[-1]), x.dtype)
        buffer = buffer.at[ids, rank].set(x[order // 4], mode="drop")
        gate, value = jnp.split(jnp.einsum("ecd,edh->ech", buffer, first), 2, -1)
        found = jnp.einsum("ech,ehd->ecd", jax.nn.silu(gate) * value, last)
        found = found.at[ids, rank].get(mode="fill", fill_value=0)
        found = found * share.ravel()[order][:, None].astype(x.dtype)
        gate, value = jnp.split(x @ shared[0], 2, -1)
        y = x + (jax.nn.silu(gate) * value) @ shared[1]
        return y.at[order // 4].add(found), sizes

    d, inner = 1024, 704
    weights = (weight(24, d, 2 * inner), weight(24, inner, d))
    shared = [weight(d, 2 * inner), weight(inner, d)]
    yield (
        "limited",
        program(limited, Arg((1500, d), BF16), full(d, 24), Arg((24,)), *weights, shared),
    )


def caches() -> Zoo:
    """One token of each request, with keys in pages and with keys that a latent stands for."""

    def paged(q: Any, new: Any, keys: Any, values: Any, table: Any, lengths: Any) -> Any:
        rows = jnp.arange(q.shape[0])
        page, place = table[rows, lengths // 16], lengths % 16
        keys, values = (x.at[page, place].set(new[n]) for n, x in enumerate((keys, values)))
        b, h, d = q.shape
        k, v = (x[table].reshape(b, -1, *x.shape[2:]) for x in (keys, values))
        heads = k.shape[2]
        scores = jnp.einsum("bghd,bkgd->bghk", q.reshape(b, heads, -1, d), k).astype(F32)
        seen = jnp.arange(k.shape[1]) <= lengths[:, None]
        scores = jnp.where(seen[:, None, None], scores * d**-0.5, -1e9)
        shares = jax.nn.softmax(scores, -1).astype(v.dtype)
        return jnp.einsum("bghk,bkgd->bghd", shares, v).reshape(b, h, d), keys, values

    pool = Arg((2100, 16, 8, 128), BF16)
    request = (Arg((24, 85), I32, below=2100), Arg((24,), I32, below=85 * 16))
    new = Arg((2, 24, 8, 128), BF16)
    yield "paged", program(paged, Arg((24, 32, 128), BF16), new, pool, pool, *request)

    def latent(x: Any, weights: Any, cache: Any, places: Any, lengths: Any) -> Any:
        b = x.shape[0]
        q = (x @ weights["q"]).reshape(b, 16, 192)
        angle = lengths[:, None] * 10000.0 ** (-jnp.arange(0, 1, 2 / 64))
        first, second = jnp.split(q[..., 128:].astype(F32), 2, -1)
        cos, sin = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]
        turned = jnp.concatenate([first * cos - second * sin, first * sin + second * cos], -1)
        short = jnp.einsum("bhd,hdc->bhc", q[..., :128], weights["key"])
        scores = jnp.einsum("bhc,bkc->bhk", short, cache).astype(F32)
        scores += jnp.einsum("bhr,bkr->bhk", turned.astype(x.dtype), places).astype(F32)
        seen = jnp.arange(cache.shape[1]) <= lengths[:, None, None]
        shares = jax.nn.softmax(jnp.where(seen, scores * 192**-0.5, -1e9), -1).astype(x.dtype)
        found = jnp.einsum("bhk,bkc->bhc", shares, cache)
        found = jnp.einsum("bhc,hcd->bhd", found, weights["value"])
        return x + found.reshape(b, -1) @ weights["out"]

    weights = {"q": weight(2048, 16 * 192), "key": weight(16, 128, 512)}
    weights |= {"value": weight(16, 512, 128), "out": weight(2048, 2048)}
    held = (Arg((36, 2500, 512), BF16), Arg((36, 2500, 64), BF16), Arg((36,), I32, below=2500))
    yield "latent", program(latent, Arg((36, 2048), BF16), weights, *held)


_LEVELS = (
    *(-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0),
    *(0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.723, 1.0),
)


def finetuning() -> Zoo:
    """Adapters beside weights of 16 levels, and a feed-forward part that drops at random."""

    def levelled(adapters: Any, codes: Any, scales: Any, x: Any, goal: Any) -> Any:
        d = x.shape[-1]

        def opened(codes: Any, scales: Any) -> Any:
            both = jnp.stack([codes >> 4, codes & 15], -1).reshape(-1, 64)
            return (jnp.array(_LEVELS, BF16)[both] * scales[:, None]).reshape(d, d)

        def loss(adapters: Any) -> Any:
            y = norm(x, 1.0)
            parts = []
            for pair, *frozen in zip(adapters, codes[:3], scales[:3], strict=True):
                found = y @ opened(*frozen) + 2 * (y @ pair[0]) @ pair[1]
                parts.append(found.reshape(*x.shape[:2], -1, 128))
            mask = jnp.where(jnp.tril(jnp.ones((x.shape[1],) * 2, bool)), 0.0, -1e9)
            y = attend(parts[0], parts[1], parts[2], mask).reshape(x.shape)
            return ((x + y @ opened(codes[3], scales[3]) - goal).astype(F32) ** 2).mean()

        return jax.grad(loss)(adapters)

    d = 1536
    adapters = [(weight(d, 16), weight(16, d))] * 3
    codes, scales = [Arg((d * d // 2,), U8, below=256)] * 4, [Arg((d * d // 64,), BF16, 0.05)] * 4
    yield "levelled", program(levelled, adapters, codes, scales, *[Arg((3, 600, d), BF16)] * 2)

    def dropped(x: Any, up: Any, down: Any, key: Any) -> Any:
        def drop(key: Any, y: Any) -> Any:
            return jnp.where(jax.random.bernoulli(key, 0.9, y.shape), y / 0.9, 0)

        def loss(up: Any, down: Any) -> Any:
            one, two = jax.random.split(key)
            y = drop(one, jax.nn.gelu(x @ up, approximate=False))
            y = norm(x + drop(two, y @ down), jnp.ones(x.shape[-1]))
            return (y.astype(F32) * jnp.roll(y, 1, 0)).mean()

        return jax.grad(loss, (0, 1))(up, down)

    weights = (weight(768, 3072), weight(3072, 768))
    key = Arg((2,), U32, below=1 << 30)
    yield "dropped", program(dropped, Arg((11, 384, 768), BF16), *weights, key)


def denoisers() -> Zoo:
    """A level of a diffusion model that reads a text, and a transformer that a time modulates."""

    def grouped(x: Any, scale: Any) -> Any:
        wide = x.astype(F32).reshape(x.shape[0], -1, 32, x.shape[-1] // 32)
        mean, var = wide.mean((1, 3), keepdims=True), wide.var((1, 3), keepdims=True)
        wide = ((wide - mean) * lax.rsqrt(var + 1e-6)).reshape(x.shape)
        return (wide * scale).astype(x.dtype)

    def level(x: Any, time: Any, text: Any, p: Any) -> Any:
        y = convolved(jax.nn.silu(grouped(x, p["scale"][0])), p["first"])
        y = y + (jax.nn.silu(time) @ p["time"])[:, None, None]
        x = x + convolved(jax.nn.silu(grouped(y, p["scale"][1])), p["second"])
        flat = grouped(x, p["scale"][2]).reshape(x.shape[0], -1, x.shape[-1])
        y = norm(flat, 1.0)
        flat = flat + attention(y, y, p["self"], p["out"][0], 8)
        flat = flat + attention(norm(flat, 1.0), text, p["cross"], p["out"][1], 8)
        gate, value = jnp.split(norm(flat, 1.0) @ p["up"], 2, -1)
        return x + (flat + (jax.nn.gelu(gate) * value) @ p["down"]).reshape(x.shape)

    c = 320
    p: dict[str, Any] = {"scale": Arg((3, c))}
    p |= {"first": kernel(3, 3, c, c), "second": kernel(3, 3, c, c)}
    p |= {"time": weight(1280, c), "self": (weight(c, c),) * 3, "out": [weight(c, c)] * 2}
    p |= {"cross": (weight(c, c), weight(768, c), weight(768, c))}
    p |= {"up": weight(c, 8 * c), "down": weight(4 * c, c)}
    given = (Arg((6, 1280), BF16), Arg((6, 77, 768), BF16))
    yield "level", program(level, Arg((6, 32, 32, c), BF16), *given, p)

    def modulated(params: Any, x: Any, time: Any, noise: Any) -> Any:
        def loss(params: Any) -> Any:
            parts = jnp.split((jax.nn.silu(time) @ params["time"])[:, None], 6, -1)
            b, s, d = x.shape
            y = norm(x, 1.0) * (1 + parts[1]) + parts[0]
            q, k, v = (
                w[:, :, 0] for w in jnp.split((y @ params["qkv"]).reshape(b, s, 3, 16, -1), 3, 2)
            )
            y = x + parts[2] * (attend(q, k, v).reshape(b, s, d) @ params["out"])
            z = norm(y, 1.0) * (1 + parts[4]) + parts[3]
            y = y + parts[5] * (jax.nn.gelu(z @ params["up"]) @ params["down"])
            return ((y - noise).astype(F32) ** 2).mean()

        return jax.value_and_grad(loss)(params)

    d = 1152
    params = {"time": weight(d, 6 * d), "qkv": weight(d, 3 * d), "out": weight(d, d)}
    params |= {"up": weight(d, 4 * d), "down": weight(4 * d, d)}
    seen = Arg((9, 256, d), BF16)
    yield "modulated", program(modulated, params, seen, Arg((9, d), BF16), seen)


def densities() -> Zoo:
    """A flow whose couplings bend by rational splines of 8 bins."""

    def bent(x: Any, raw: Any) -> Any:
        """Splines within [-3, 3], and the logarithms of their slopes."""
        wide, high, slope = raw[..., :8], raw[..., 8:16], jax.nn.softplus(raw[..., 16:]) + 1e-3

        def knots(part: Any) -> Any:
            part = 1e-3 + (1 - 8e-3) * jax.nn.softmax(part, -1)
            ends = jnp.pad(jnp.cumsum(part, -1), [(0, 0)] * (part.ndim - 1) + [(1, 0)])
            return 6 * ends - 3

        inside = jnp.clip(x, -2.999, 2.999)
        xs, ys = knots(wide), knots(high)
        place = ((inside[..., None] >= xs).sum(-1, keepdims=True) - 1).clip(0, 7)
        x0, y0, d0 = (jnp.take_along_axis(part, place, -1)[..., 0] for part in (xs, ys, slope))
        x1, y1, d1 = (jnp.take_along_axis(part, place + 1, -1)[..., 0] for part in (xs, ys, slope))
        rise, t = (y1 - y0) / (x1 - x0), (inside - x0) / (x1 - x0)
        below = rise + (d1 + d0 - 2 * rise) * t * (1 - t)
        y = y0 + (y1 - y0) * (rise * t * t + d0 * t * (1 - t)) / below
        steep = rise**2 * (d1 * t * t + 2 * rise * t * (1 - t) + d0 * (1 - t) ** 2) / below**2
        held = jnp.abs(x) < 2.999
        return jnp.where(held, y, x), jnp.where(held, jnp.log(steep), 0.0)

    def splines(params: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            z, total = x, 0.0
            for layer in params:
                kept, moved = jnp.split(z, 2, -1)
                raw = jax.nn.relu(jax.nn.relu(kept @ layer[0]) @ layer[1]) @ layer[2]
                moved, logs = bent(moved, raw.reshape(*moved.shape, 25))
                total = total + logs.sum(-1)
                z = jnp.concatenate([moved, kept], -1)
            return (0.5 * (z * z).sum(-1) - total).mean()

        return jax.value_and_grad(loss)(params)

    layer = (full(3, 128), full(128, 128), full(128, 75))
    yield "splines", program(splines, [layer] * 2, Arg((20000, 6)))


def meshes() -> Zoo:
    """A learned simulator: edges and nodes of a mesh that change each other."""

    def simulator(params: Any, nodes: Any, edges: Any, ends: Any, goal: Any) -> Any:
        def mlp(p: Any, x: Any) -> Any:
            return norm(jax.nn.relu(jax.nn.relu(x @ p[0]) @ p[1]) @ p[2], 1.0)

        def loss(params: Any) -> Any:
            x, e = mlp(params["node"], nodes), mlp(params["edge"], edges)
            for step in params["steps"]:
                e = e + mlp(step["edge"], jnp.concatenate([e, x[ends[0]], x[ends[1]]], -1))
                total = jax.ops.segment_sum(e, ends[1], x.shape[0])
                x = x + mlp(step["node"], jnp.concatenate([x, total], -1))
            return ((x @ params["out"] - goal) ** 2).mean()

        return jax.value_and_grad(loss)(params)

    def three(inputs: int) -> list[Arg]:
        return [full(inputs, 128), full(128, 128), full(128, 128)]

    params = {"node": three(11), "edge": three(7), "out": full(128, 3)}
    steps = {"steps": [{"edge": three(384), "node": three(256)}] * 2}
    mesh = (Arg((5200, 11)), Arg((31000, 7)), Arg((2, 31000), I32, below=5200), Arg((5200, 3)))
    yield "simulator", program(simulator, params | steps, *mesh)


def clicks() -> Zoo:
    """Whether a user opens an item, by attention to what the user opened before."""

    def interest(table: Any, hidden: Any, tower: Any, past: Any, item: Any, rest: Any) -> Any:
        lengths, clicked = rest

        def loss(table: Any, hidden: Any, tower: Any) -> Any:
            old, new = table[past], table[item]
            wide = jnp.broadcast_to(new[:, None], old.shape)
            y = jnp.concatenate([old, wide, old - wide, old * wide], -1)
            for w in hidden[:-1]:
                y = jax.nn.sigmoid(y @ w)
            seen = jnp.arange(past.shape[1]) < lengths[:, None]
            scores = jnp.where(seen, (y @ hidden[-1])[..., 0], 0.0)
            user = jnp.einsum("bk,bkd->bd", scores, old)
            y = jnp.concatenate([user, new, user * new], -1)
            for w in tower[:-1]:
                y = jax.nn.leaky_relu(y @ w, 0.2)
            logit = (y @ tower[-1])[:, 0]
            return (jax.nn.softplus(logit) - clicked * logit).mean()

        gradients = jax.grad(loss, (0, 1, 2))(table, hidden, tower)
        return jax.tree.map(lambda p, g: p - 0.1 * g, (table, hidden, tower), gradients)

    hidden = [full(256, 80), full(80, 40), full(40, 1)]
    tower = [full(192, 200), full(200, 80), full(80, 1)]
    ids = (Arg((1800, 60), I32, below=250000), Arg((1800,), I32, below=250000))
    rest = (Arg((1800,), I32, below=60), Arg((1800,), I32, below=2))
    yield "interest", program(interest, Arg((250000, 64), scale=0.1), hidden, tower, *ids, rest)


def actors() -> Zoo:
    """A soft actor and two critics, with targets that follow slowly."""

    def soft(actor: Any, critics: Any, targets: Any, batch: Any, key: Any) -> Any:
        seen, act, gain, after = batch

        def mlp(ws: Any, x: Any) -> Any:
            for w in ws[:-1]:
                x = jax.nn.relu(x @ w)
            return x @ ws[-1]

        def draw(actor: Any, x: Any, key: Any) -> Any:
            mean, spread = jnp.split(mlp(actor, x), 2, -1)
            spread = jnp.clip(spread, -5, 2)
            noise = jax.random.normal(key, mean.shape)
            raw = mean + jnp.exp(spread) * noise
            logs = -0.5 * noise**2 - spread - 2 * (jnp.log(2.0) - raw - jax.nn.softplus(-2 * raw))
            return jnp.tanh(raw), logs.sum(-1)

        def both(critics: Any, x: Any, act: Any) -> Any:
            found = jax.vmap(mlp, (0, None))(critics, jnp.concatenate([x, act], -1))
            return found[..., 0]

        one, two = jax.random.split(key)
        following, logs = draw(actor, after, one)
        goal = gain + 0.99 * (both(targets, after, following).min(0) - 0.2 * logs)

        def critic_loss(critics: Any) -> Any:
            return ((both(critics, seen, act) - goal) ** 2).mean()

        def actor_loss(actor: Any) -> Any:
            found, logs = draw(actor, seen, two)
            return (0.2 * logs - both(critics, seen, found).min(0)).mean()

        gradients = jax.grad(critic_loss)(critics), jax.grad(actor_loss)(actor)
        critics, actor = jax.tree.map(lambda p, g: p - 3e-4 * g, (critics, actor), gradients)
        targets = jax.tree.map(lambda t, c: 0.995 * t + 0.005 * c, targets, critics)
        return actor, critics, targets

    actor = [full(376, 256), full(256, 256), full(256, 34)]
    critics = [full(2, 393, 256), full(2, 256, 256), full(2, 256, 1)]
    batch = (Arg((1200, 376)), Arg((1200, 17)), Arg((1200,)), Arg((1200, 376)))
    key = Arg((2,), U32, below=1 << 30)
    yield "soft", program(soft, actor, critics, critics, batch, key)


def processes() -> Zoo:
    """A Gaussian process by inducing points, and a filter of an ensemble of states."""

    def inducing(z: Any, mean: Any, root: Any, scales: Any, x: Any, y: Any) -> Any:
        def loss(z: Any, mean: Any, root: Any, scales: Any) -> Any:
            def near(a: Any, b: Any) -> Any:
                a, b = (part * jnp.exp(0.1 * scales) for part in (a, b))
                far = (a * a).sum(-1)[:, None] + (b * b).sum(-1) - 2 * a @ b.T
                return jnp.exp(-0.5 * jnp.maximum(far, 0))

            lower = jnp.linalg.cholesky(near(z, z) + 0.1 * jnp.eye(z.shape[0]))
            a = jax.scipy.linalg.solve_triangular(lower, near(z, x), lower=True)
            low = jnp.tril(root)
            var = 1.1 - (a * a).sum(0) + ((low.T @ a) ** 2).sum(0)
            fit = ((y - mean @ a) ** 2 + var).sum() / 0.1
            logs = jnp.log(jnp.abs(jnp.diag(low)) + 1e-3).sum()
            return 0.5 * fit + 0.5 * ((mean * mean).sum() + (low * low).sum()) - logs

        return jax.value_and_grad(loss, (0, 1, 2, 3))(z, mean, root, scales)

    given = (Arg((250, 8)), Arg((250,)), Arg((250, 250), scale=0.02, identity=1.0), Arg((8,)))
    yield "inducing", program(inducing, *given, Arg((1500, 8)), Arg((1500,)))

    def ensemble(states: Any, sites: Any, index: Any, seen: Any, noise: Any) -> Any:
        apart = states - states.mean(0)
        found = apart[:, index]
        far = jnp.linalg.norm(sites[:, None] - sites[index][None], axis=-1)
        taper = jnp.exp(-2 * far * far)
        members = states.shape[0] - 1
        cross = taper * (apart.T @ found) / members
        square = taper[index] * (found.T @ found) / members + jnp.eye(index.shape[0])
        gap = seen + 0.1 * noise - states[:, index]
        weights = jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(square), gap.T)
        return states + (cross @ weights).T

    index = Arg((300,), I32, below=12000)
    rest = (Arg((300,)), Arg((64, 300)))
    yield "ensemble", program(ensemble, Arg((64, 12000)), Arg((12000, 2)), index, *rest)


def physics() -> Zoo:
    """Weather by filters of frequencies, and pressures by grids of several sizes."""

    def weather(x: Any, first: Any, second: Any) -> Any:
        found = jnp.fft.rfft2(norm(x, 1.0), axes=(1, 2), norm="ortho")
        found = found.reshape(*found.shape[:3], 8, -1)
        real, imag = found.real, found.imag

        def turned(real: Any, imag: Any, w: Any) -> Any:
            def by(part: Any, w: Any) -> Any:
                return jnp.einsum("bhwni,nij->bhwnj", part, w)

            return by(real, w[0]) - by(imag, w[1]), by(real, w[1]) + by(imag, w[0])

        real, imag = (jax.nn.relu(part) for part in turned(real, imag, first))
        parts = turned(real, imag, second)
        real, imag = (jnp.sign(y) * jnp.maximum(jnp.abs(y) - 0.01, 0) for y in parts)
        found = lax.complex(real, imag).reshape(*real.shape[:3], -1)
        return x + jnp.fft.irfft2(found, x.shape[1:3], axes=(1, 2), norm="ortho")

    yield "weather", program(weather, Arg((2, 90, 180, 384)), *[full(2, 8, 48, 48)] * 2)

    def pressure(u: Any, source: Any) -> Any:
        def left(u: Any, f: Any) -> Any:
            p = jnp.pad(u, 1)
            return f + p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * u

        def cycle(u: Any, f: Any, levels: int) -> Any:
            for _ in range(2):
                u = u + 0.2 * left(u, f)
            if levels:
                h, w = u.shape
                small = 4 * left(u, f).reshape(h // 2, 2, w // 2, 2).mean((1, 3))
                fix = cycle(jnp.zeros_like(small), small, levels - 1)
                u = u + jnp.repeat(jnp.repeat(fix, 2, 0), 2, 1)
            for _ in range(2):
                u = u + 0.2 * left(u, f)
            return u

        for _ in range(2):
            u = cycle(u, source, 4)
        return u, jnp.abs(left(u, source)).max()

    yield "pressure", program(pressure, *[Arg((1440, 1200))] * 2)


def motion() -> Zoo:
    """Every pixel with every pixel of the next frame, and windows of that at three sizes."""

    def correlated(one: Any, two: Any, flow: Any) -> Any:
        h, w, c = one.shape
        pixels = jnp.stack(jnp.meshgrid(jnp.arange(h), jnp.arange(w), indexing="ij"), -1)
        volume = (one.reshape(-1, c) @ two.reshape(-1, c).T).reshape(-1, h, w) / c**0.5
        steps = jnp.arange(-4, 5)
        window = jnp.stack(jnp.meshgrid(steps, steps, indexing="ij"), -1).reshape(1, -1, 2)
        found = []
        for level in range(3):
            centre = (pixels + 4 * flow).reshape(-1, 1, 2) / 2**level + window
            low = jnp.floor(centre)
            part, cell = centre - low, low.astype(I32)
            total: Any = 0.0
            for dy, dx in ((0, 0), (0, 1), (1, 0), (1, 1)):
                y, x = cell[..., 0] + dy, cell[..., 1] + dx
                inside = (y >= 0) & (y < volume.shape[1]) & (x >= 0) & (x < volume.shape[2])
                place = y.clip(0, volume.shape[1] - 1) * volume.shape[2]
                place = place + x.clip(0, volume.shape[2] - 1)
                value = jnp.take_along_axis(volume.reshape(h * w, -1), place, 1)
                share = jnp.abs(1 - dy - part[..., 0]) * jnp.abs(1 - dx - part[..., 1])
                total = total + jnp.where(inside, share * value, 0.0)
            found.append(total)
            n, high, wide = volume.shape
            volume = volume.reshape(n, high // 2, 2, wide // 2, 2).mean((2, 4))
        return jnp.concatenate(found, -1).reshape(h, w, -1)

    frames = [Arg((48, 112, 256))] * 2
    yield "correlated", program(correlated, *frames, Arg((48, 112, 2)))


def shapes() -> Zoo:
    """A surface as the zeros of a network of sines, whose own gradient has length one."""

    def surface(params: Any, on: Any, normals: Any, off: Any) -> Any:
        def height(params: Any, x: Any) -> Any:
            for w, b in params[:-1]:
                x = jnp.sin(30 * (x @ w + b))
            return (x @ params[-1][0] + params[-1][1])[0]

        def loss(params: Any) -> Any:
            slope = jax.vmap(jax.value_and_grad(height, 1), (None, 0))
            value, up = slope(params, on)
            other, side = slope(params, off)
            length = jnp.sqrt((jnp.concatenate([up, side]) ** 2).sum(-1) + 1e-9)
            fit = 3e3 * jnp.abs(value).mean() + 1e2 * (1 - (up * normals).sum(-1)).mean()
            return (
                fit + 1e2 * jnp.exp(-1e2 * jnp.abs(other)).mean() + (50 * (length - 1) ** 2).mean()
            )

        return jax.grad(loss)(params)

    shapes = ((3, 256), (256, 256), (256, 256), (256, 1))
    params = [(Arg(shape, F32, scale=0.01), Arg(shape[1:], scale=0.01)) for shape in shapes]
    yield "surface", program(surface, params, *[Arg((7000, 3))] * 3)


def searches() -> Zoo:
    """The rows whose short codes are nearest, by tables of distances."""

    def coded(queries: Any, books: Any, codes: Any) -> Any:
        parts = queries.reshape(queries.shape[0], books.shape[0], 1, -1)
        tables = ((parts - books) ** 2).sum(-1)
        rows = codes.astype(I32).T
        far = sum(tables[:, n][:, rows[n]] for n in range(books.shape[0]))
        best, index = lax.top_k(-far, 100)
        return -best, index

    arguments = (Arg((48, 96)), Arg((12, 256, 8)), Arg((50000, 12), U8, below=256))
    yield "coded", program(coded, *arguments)


def narrow() -> Zoo:
    """A feed-forward part whose products have floats of eight bits."""

    def scaled(x: Any, up: Any, down: Any, scales: Any) -> Any:
        def product(x: Any, w: Any, scale: Any) -> Any:
            most = jnp.maximum(jnp.abs(x).max().astype(F32), 1e-6) / 448
            short = jnp.clip(x.astype(F32) / most, -448, 448).astype(F8)
            wide = short.astype(BF16) * most.astype(BF16)
            return wide @ (w.astype(BF16) * scale.astype(BF16))

        y = jax.nn.relu(product(norm(x, 1.0), up, scales[0])) ** 2
        return x + product(y, down, scales[1])

    weights = (Arg((3072, 8192), F8), Arg((8192, 3072), F8), Arg((2,), scale=0.02))
    yield "scaled", program(scaled, Arg((1800, 3072), BF16), *weights)


def updates() -> Zoo:
    """A step through fourth roots of the gradients' squares, which Newton's method finds."""

    def preconditioned(weights: Any, gradient: Any, squares: Any, second: Any) -> Any:
        def root(square: Any) -> Any:
            """The inverse fourth root of a matrix."""
            n = square.shape[0]
            unit = jnp.eye(n)
            square = square + 1e-4 * jnp.trace(square) / n * unit
            most = jnp.sqrt((square * square).sum())
            start = (2.5 / most * square, (2.5 / most) ** 0.25 * unit)

            def better(_: Any, pair: Any) -> Any:
                m, h = pair
                step = 1.25 * unit - 0.25 * m
                twice = step @ step
                return twice @ twice @ m, h @ step

            return lax.fori_loop(0, 8, better, start)[1]

        wide = gradient.astype(F32)
        left = 0.95 * squares[0] + 0.05 * wide @ wide.T
        right = 0.95 * squares[1] + 0.05 * wide.T @ wide
        second = 0.99 * jnp.abs(second) + 0.01 * wide * wide
        plain = wide * lax.rsqrt(second + 1e-8)
        change = root(left) @ wide @ root(right)
        change = change * (jnp.linalg.norm(plain) / (jnp.linalg.norm(change) + 1e-9))
        return weights * 0.9999 - 1e-3 * change, (left, right), second

    shape = (1100, 760)
    squares = tuple(Arg((n, n), scale=0.01, identity=30.0) for n in shape)
    rest = (Arg(shape, BF16), squares, Arg(shape))
    yield "preconditioned", program(preconditioned, Arg(shape), *rest)
