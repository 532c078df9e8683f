"""A sixteenth zoo: thirty held-out steps of one family each, from attention to lattices of gas.

It was written without a look at the predictor or its calibration, to be timed once: no
calibration and no fit has used its programs.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax
from eleventh import learned, perceptron, short, stack, started
from fourteenth import before, grouped, repeated
from fourth import attend, norm, program, weight
from jax import lax
from jax.scipy.linalg import cho_solve, solve_triangular
from ninth import carried, gated, rms, token_loss, turned
from sixth import convolved, full, kernel
from tenth import applied
from thirteenth import waves
from twelfth import cubed, cubes, later

from xlapipe.running.calibration.timed_program import Arg, TimedProgram

F32, BF16, I32, I8 = jnp.float32, jnp.bfloat16, jnp.int32, jnp.int8
U8, U32, F8 = jnp.uint8, jnp.uint32, jnp.float8_e4m3fn
Zoo = Iterator[tuple[str, TimedProgram]]
_KEY = Arg((2,), U32, below=1 << 30)


def sixteenth_programs() -> dict[str, TimedProgram]:
    """Every program, by FAMILY/NAME."""
    families = (
        *(language, vision, images, recurrent, experts, decoding, sampling, embeddings),
        *(graphs, contrast, vocabulary, signals, regression, solvers, clouds, tables),
        *(physics, finance, narrow, attention, folding),
    )
    return {
        f"{family.__name__}/{name}": program for family in families for name, program in family()
    }


def language() -> Zoo:
    """Training: gradients of four parts with remat, Muon, and preferences by pairs of rank 12."""
    d, heads, words = 960, 15, 32003
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-4, 0.9, 0.95))

    def accumulated(state: Any, tokens: Any) -> Any:
        """Four layers, scanned and computed twice; gradients are summed in float32."""
        bias = later(tokens.shape[-1] - 1)

        @jax.checkpoint
        def layer(x: Any, p: Any) -> Any:
            return cubed(x, short(p), heads, bias), None

        def loss(params: Any, tokens: Any) -> Any:
            x = params["table"].astype(BF16)[tokens[:, :-1]]
            x, _ = lax.scan(layer, x, params["layers"])
            logits = norm(x, params["last"]) @ params["head"].astype(BF16)
            return token_loss(logits, tokens[:, 1:]).mean()

        def part(total: Any, tokens: Any) -> Any:
            value, gradient = jax.value_and_grad(loss)(state[0], tokens)
            return jax.tree.map(jnp.add, total, gradient), value

        total, values = lax.scan(part, jax.tree.map(jnp.zeros_like, state[0]), tokens)
        gradient = jax.tree.map(lambda x: x / tokens.shape[0], total)
        return applied(rule, *state, gradient), values.mean()

    params = {"layers": repeated(4, cubes(d)), "table": Arg((words, d), scale=0.02)}
    params |= {"last": Arg((d,)), "head": full(d, words)}
    ids = Arg((4, 3, 641), I32, below=words)
    yield "accumulated", carried(accumulated, started(rule, params), ids)

    size, many = 768, 16007

    def orthogonal(state: Any, tokens: Any) -> Any:
        """Five rounds of Newton and Schulz for the matrices, signs of means for the rest."""
        params, means = state
        bias = later(tokens.shape[1] - 1)

        def loss(params: Any) -> Any:
            p = short(params)
            x = p["table"][tokens[:, :-1]]
            x, _ = lax.scan(lambda x, q: (cubed(x, q, 12, bias), None), x, p["layers"])
            return token_loss(norm(x, 1.0) @ p["table"].T, tokens[:, 1:]).mean()

        def change(mean: Any) -> Any:
            if mean.ndim < 3 or mean.shape[1] < 3:
                return 0.01 * jnp.sign(mean)
            tall = mean.shape[1] > mean.shape[2]
            x = (mean.swapaxes(1, 2) if tall else mean).astype(BF16)
            x = x / (jnp.sqrt(jnp.square(x.astype(F32)).sum((1, 2), keepdims=True)) + 1e-7)
            x = x.astype(BF16)
            for _ in range(5):
                square = jnp.einsum("lij,lkj->lik", x, x)
                x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
            return (x.swapaxes(1, 2) if tall else x).astype(F32)

        value, gradient = jax.value_and_grad(loss)(params)
        means = jax.tree.map(lambda m, g: 0.95 * m + g, means, gradient)
        params = jax.tree.map(lambda p, m: (1 - 1e-4) * p - 2e-3 * change(m), params, means)
        return (params, means), value

    params = {"layers": repeated(6, cubes(size)), "table": Arg((many, size), scale=0.02)}
    yield "orthogonal", carried(orthogonal, (params, params), Arg((8, 513), I32, below=many))

    low = optax.adamw(1e-4)
    d2, wide, rank = 1280, 3456, 12

    def preferred(state: Any, frozen: Any, tokens: Any, asked: Any) -> Any:
        """DPO: of two answers to three questions, the first is the better one."""
        n, b, s = tokens.shape
        ids = tokens.reshape(n * b, s)
        bias, places = later(s - 1), jnp.arange(s - 1)
        told = places >= asked[:, None] + 1

        def likely(pairs: Any) -> Any:
            def times(x: Any, w: Any, pair: Any) -> Any:
                return x @ w if pair is None else x @ w + 2 * ((x @ pair[0]) @ pair[1])

            @jax.checkpoint
            def layer(x: Any, given: Any) -> Any:
                w, pair = given
                pair = pair or dict.fromkeys(("qkv", "up", "down"))
                y = times(rms(x, w["scale"][0]), w["qkv"], pair["qkv"])
                q, k, v = jnp.split(y.reshape(n * b, s - 1, 30, 128), 3, 2)
                found = attend(turned(q, places), turned(k, places), v, bias).reshape(x.shape)
                x = x + found @ w["out"]
                gate, value = jnp.split(times(rms(x, w["scale"][1]), w["up"], pair["up"]), 2, -1)
                return x + times(jax.nn.silu(gate) * value, w["down"], pair["down"]), None

            x, _ = lax.scan(layer, frozen["table"][ids[:, :-1]], (frozen["layers"], pairs))
            lost = token_loss(rms(x, frozen["last"]) @ frozen["head"], ids[:, 1:])
            return -(lost.reshape(n, b, -1) * told).sum(-1)

        known = lax.stop_gradient(likely(None))

        def loss(pairs: Any) -> Any:
            gain = likely(short(pairs)) - known
            return -jax.nn.log_sigmoid(0.1 * (gain[0] - gain[1])).mean()

        return learned(low, loss, state)

    layer = {"qkv": weight(d2, 3 * d2), "out": weight(d2, d2), "scale": Arg((2, d2))}
    layer |= {"up": weight(d2, 2 * wide), "down": weight(wide, d2)}
    ends = {"qkv": (d2, 3 * d2), "up": (d2, 2 * wide), "down": (wide, d2)}
    pairs = {name: (full(a, rank), Arg((rank, b), scale=0.01)) for name, (a, b) in ends.items()}
    frozen = {"layers": repeated(4, layer), "table": Arg((50021, d2), BF16), "last": Arg((d2,))}
    frozen |= {"head": weight(d2, 50021)}
    given = (Arg((2, 3, 385), I32, below=50021), Arg((3,), I32, below=200))
    yield "preferred", carried(preferred, started(low, repeated(4, pairs)), frozen, *given)


def vision() -> Zoo:
    """A ViT's answer for 37 images, and training of residual blocks and of wide channels."""

    def patches(params: Any, x: Any) -> Any:
        x = x.astype(BF16) / 127.5 - 1
        x = lax.conv_general_dilated(
            x, params["first"], (16, 16), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        start = jnp.broadcast_to(params["class"], (x.shape[0], 1, x.shape[-1]))
        x = jnp.concatenate([start, x], 1) + params["places"]
        x, _ = lax.scan(lambda x, p: (cubed(x, p, 12), None), x, params["layers"])
        logits = norm(x[:, 0], params["last"]) @ params["head"]
        return jax.nn.softmax(logits.astype(F32))

    params = {"first": kernel(16, 16, 3, 768), "class": Arg((768,), BF16)}
    params |= {"places": Arg((197, 768), BF16, scale=0.02), "last": Arg((768,))}
    params |= {"layers": repeated(12, cubes(768, BF16)), "head": weight(768, 1000)}
    yield "patches", program(patches, params, Arg((37, 224, 224, 3), U8, below=256))

    rule = optax.chain(optax.add_decayed_weights(5e-5), optax.sgd(0.1, 0.9, nesterov=True))

    def residual(state: Any, x: Any, labels: Any) -> Any:
        """Blocks of two windows, with batch norms whose means are kept."""
        learner, kept = state
        x = x.astype(BF16)

        def loss(params: Any) -> Any:
            new: dict[str, Any] = {}

            def windowed(x: Any, name: str, stride: int = 1) -> Any:
                w, scale, shift = params[name]
                y = convolved(x, w.astype(BF16), stride).astype(F32)
                mean = y.mean((0, 1, 2))
                square = jnp.square(y).mean((0, 1, 2))
                spread = square - mean**2
                new[name] = 0.9 * kept[name] + 0.1 * jnp.stack([mean, spread])
                y = (y - mean) * lax.rsqrt(spread + 1e-5) * scale + shift
                return y.astype(BF16)

            y = jax.nn.relu(windowed(x, "first", 2))
            y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
            for n in range(3):
                stride = 1 + (n > 0)
                more = jax.nn.relu(windowed(y, f"one{n}", stride))
                more = windowed(more, f"two{n}")
                y = jax.nn.relu(more + (windowed(y, f"side{n}", stride) if n else y))
            logits = y.astype(F32).mean((1, 2)) @ params["head"]
            return token_loss(logits, labels).mean(), new

        (value, new), gradient = jax.value_and_grad(loss, has_aux=True)(learner[0])
        return (applied(rule, *learner, gradient), new), value

    shapes = {"first": (7, 7, 3, 64)}
    for n, (a, b) in enumerate(((64, 64), (64, 128), (128, 256))):
        shapes |= {f"one{n}": (3, 3, a, b), f"two{n}": (3, 3, b, b)}
        shapes |= {f"side{n}": (1, 1, a, b)} if n else {}
    params = {
        name: (kernel(*shape, dtype=F32), Arg((shape[-1],)), Arg((shape[-1],)))
        for name, shape in shapes.items()
    }
    kept = {name: Arg((2, shape[-1])) for name, shape in shapes.items()}
    params |= {"head": full(256, 1000)}
    given = (Arg((57, 176, 176, 3)), Arg((57,), I32, below=1000))
    yield "residual", carried(residual, (started(rule, params), kept), *given)

    slow = optax.adamw(4e-3, weight_decay=0.05)

    def channels(state: Any, x: Any, labels: Any) -> Any:
        """ConvNeXt: windows of seven for every channel, then a perceptron."""

        def loss(params: Any) -> Any:
            p = short(params)
            y = norm(convolved(x.astype(BF16), p["first"], 4), params["start"])
            for n in range(2):
                for q in p["blocks"][n]:
                    more = convolved(y, q["deep"], 1, y.shape[-1]) + q["shift"]
                    more = jax.nn.gelu(norm(more, q["scale"]) @ q["up"]) @ q["down"]
                    y = y + q["gain"] * more
                if not n:
                    y = convolved(norm(y, 1.0), p["half"], 2)
            logits = norm(y.mean((1, 2)), 1.0) @ p["head"]
            smooth = optax.smooth_labels(jax.nn.one_hot(labels, logits.shape[-1]), 0.1)
            return optax.softmax_cross_entropy(logits.astype(F32), smooth).mean()

        return learned(slow, loss, state)

    def block(d: int) -> dict[str, Arg]:
        p = {"deep": kernel(7, 7, 1, d, dtype=F32), "shift": Arg((d,)), "scale": Arg((d,))}
        return p | {"up": full(d, 4 * d), "down": full(4 * d, d), "gain": Arg((d,), scale=0.1)}

    params = {"first": kernel(4, 4, 3, 96, dtype=F32), "start": Arg((96,))}
    params |= {"half": kernel(2, 2, 96, 192, dtype=F32), "head": full(192, 1000)}
    params |= {"blocks": [[block(96)] * 2, [block(192)] * 2]}
    given = (Arg((21, 208, 208, 3)), Arg((21,), I32, below=1000))
    yield "channels", carried(channels, started(slow, params), *given)


def images() -> Zoo:
    """Training of a denoiser of latent images, and changes of 90 pictures by chance."""
    rule = optax.adam(1e-4)
    c = 128

    def denoiser(state: Any, x: Any, texts: Any, key: Any) -> Any:
        """A small U-Net that guesses speeds; a slow mean of its weights is kept."""
        learner, slow = state
        one, two = jax.random.split(key)
        b = x.shape[0]
        time = jax.random.uniform(one, (b,))
        noise = jax.random.normal(two, x.shape)
        angle = (time * jnp.pi / 2)[:, None, None, None]
        mixed = jnp.cos(angle) * x + jnp.sin(angle) * noise
        goal = jnp.cos(angle) * noise - jnp.sin(angle) * x

        def loss(params: Any) -> Any:
            p = short(params)
            when = perceptron(waves(time * 1000, c).astype(BF16), p["time"], jax.nn.silu)

            def block(x: Any, q: Any) -> Any:
                y = convolved(jax.nn.silu(grouped(x, q["one"])), q["windows"][0])
                y = y + (jax.nn.silu(when) @ q["when"])[:, None, None]
                y = convolved(jax.nn.silu(grouped(y, q["two"])), q["windows"][1])
                return y + (x @ q["side"] if "side" in q else x)

            def read(x: Any, q: Any) -> Any:
                y = grouped(x, q["scale"]).reshape(b, -1, x.shape[-1])
                parts = (y @ q["q"], texts.astype(BF16) @ q["k"], texts.astype(BF16) @ q["v"])
                found = attend(*(part.reshape(b, -1, 4, 64) for part in parts))
                return x + found.reshape(x.shape) @ q["out"]

            high = block(convolved(mixed.astype(BF16), p["first"]), p["down"])
            y = convolved(high, p["half"], 2)
            y = read(block(y, p["middle"]), p["text"])
            y = block(y, p["after"])
            y = jax.image.resize(y, (b, *high.shape[1:3], 2 * c), "nearest")
            y = block(jnp.concatenate([y, high], -1), p["up"])
            y = convolved(jax.nn.silu(grouped(y, p["scale"])), p["last"])
            return jnp.square(y.astype(F32) - goal).mean()

        learner, value = learned(rule, loss, learner)
        slow = optax.incremental_update(learner[0], slow, 1e-3)
        return (learner, slow), value

    def block(a: int, b: int) -> dict[str, Any]:
        p = {"one": Arg((2, a)), "two": Arg((2, b)), "when": full(512, b)}
        p |= {"side": full(a, b)} if a != b else {}
        return p | {"windows": [kernel(3, 3, a, b, dtype=F32), kernel(3, 3, b, b, dtype=F32)]}

    params = {"time": stack(c, 512, 512), "first": kernel(3, 3, 4, c, dtype=F32)}
    params |= {"down": block(c, c), "half": kernel(3, 3, c, 2 * c, dtype=F32)}
    params |= {"middle": block(2 * c, 2 * c), "after": block(2 * c, 2 * c)}
    params |= {"up": block(3 * c, c), "scale": Arg((2, c)), "last": kernel(3, 3, c, 4, dtype=F32)}
    params["text"] = {"scale": Arg((2, 2 * c)), "q": full(2 * c, 256), "k": full(768, 256)}
    params["text"] |= {"v": full(768, 256), "out": full(256, 2 * c)}
    given = (Arg((14, 72, 56, 4)), Arg((14, 77, 768)), _KEY)
    yield "denoiser", carried(denoiser, (started(rule, params), params), *given)

    def jittered(pictures: Any, key: Any) -> Any:
        """Cut out and resized, mirrored, of other light and colours, in part grey, blurred."""
        side = 224

        def one(picture: Any, key: Any) -> Any:
            keys = jax.random.split(key, 6)
            x = picture.astype(F32) / 255
            share = jax.random.uniform(keys[0], (), minval=0.2, maxval=1.0)
            wide = jnp.exp(jax.random.uniform(keys[1], (), minval=-0.28, maxval=0.28))
            size = jnp.stack([jnp.sqrt(share / wide), jnp.sqrt(share * wide)])
            size = jnp.minimum(size, 1.0) * jnp.array(x.shape[:2])
            start = jax.random.uniform(keys[2], (2,)) * (jnp.array(x.shape[:2]) - size)
            zoom = side / size
            x = jax.image.scale_and_translate(
                x, (side, side, 3), (0, 1), zoom, -start * zoom, "linear", antialias=True
            )
            x = jnp.where(jax.random.bernoulli(keys[3]), x[:, ::-1], x)
            light, sharp, vivid = jax.random.uniform(keys[4], (3,), minval=0.6, maxval=1.4)
            shades = jnp.array([0.299, 0.587, 0.114])
            x = jnp.clip(x * light, 0, 1)
            middle = (x @ shades).mean()
            x = jnp.clip(middle + sharp * (x - middle), 0, 1)
            grey = (x @ shades)[..., None]
            x = jnp.clip(grey + vivid * (x - grey), 0, 1)
            x = jnp.where(jax.random.bernoulli(keys[5], 0.2), grey, x)
            return (x - jnp.array([0.485, 0.456, 0.406])) / jnp.array([0.229, 0.224, 0.225])

        first, second = jax.random.split(key)
        x = jax.vmap(one)(pictures, jax.random.split(first, pictures.shape[0]))
        spread = jax.random.uniform(second, (x.shape[0], 1), minval=0.1, maxval=2.0)
        window = jnp.exp(-((jnp.arange(9) - 4) ** 2) / (2 * spread**2))
        window = window / window.sum(-1, keepdims=True)
        for axis in (1, 2):
            width = [(4, 4) if n == axis else (0, 0) for n in range(4)]
            padded = jnp.pad(x, width, mode="reflect")
            parts = (lax.slice_in_dim(padded, n, n + side, axis=axis) for n in range(9))
            x = sum(window[:, n, None, None, None] * part for n, part in enumerate(parts))
        return x.astype(BF16)

    yield "jittered", program(jittered, Arg((90, 300, 276, 3), U8, below=256), _KEY)


def recurrent() -> Zoo:
    """Training of an LSTM over 70 words, and of Mamba by an associative scan."""
    n, words = 650, 10007
    rule = optax.chain(optax.clip_by_global_norm(5.0), optax.sgd(1.0))

    def gates(state: Any, tokens: Any) -> Any:
        """Two layers; what they remember goes on to the next call."""
        learner, memory = state

        def loss(p: Any) -> Any:
            x, new = p["table"][tokens[:-1]], []
            for q, start in zip(p["layers"], memory, strict=True):
                given = x @ q["in"] + q["shift"]

                def step(carry: Any, y: Any, w: Any = q["again"]) -> Any:
                    h, c = carry
                    i, f, g, o = jnp.split(y + h @ w, 4, -1)
                    c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
                    h = jax.nn.sigmoid(o) * jnp.tanh(c)
                    return (h, c), h

                last, x = lax.scan(step, start, given)
                new.append(last)
            return token_loss(x @ p["head"], tokens[1:]).mean(), new

        (value, new), gradient = jax.value_and_grad(loss, has_aux=True)(learner[0])
        return (applied(rule, *learner, gradient), new), value

    layer = {"in": full(n, 4 * n), "again": full(n, 4 * n), "shift": Arg((4 * n,), scale=0.1)}
    params = {"layers": [layer] * 2, "table": Arg((words, n), scale=0.05), "head": full(n, words)}
    memory = [(Arg((50, n), scale=0.1),) * 2] * 2
    ids = Arg((71, 50), I32, below=words)
    yield "gates", carried(gates, (started(rule, params), memory), ids)

    low = optax.adamw(6e-4)
    d, inner, size = 512, 1024, 16

    def selective(state: Any, tokens: Any) -> Any:
        """States of 16 numbers for each of 1,024 channels; layers are computed twice."""

        def joined(left: Any, right: Any) -> Any:
            return left[0] * right[0], right[0] * left[1] + right[1]

        @jax.checkpoint
        def layer(x: Any, q: Any) -> Any:
            p = short(q)
            y, gate = jnp.split(rms(x, q["scale"]) @ p["in"], 2, -1)
            y = jax.nn.silu(before(y, p["window"]))
            rate, into, out = jnp.split(y @ p["pick"], (32, 32 + size), -1)
            rate = jax.nn.softplus((rate @ p["rate"]).astype(F32) + q["shift"])
            fade = jnp.exp(-rate[..., None] * jnp.exp(q["log"]))
            new = (rate * y.astype(F32))[..., None] * into.astype(F32)[:, :, None]
            _, held = lax.associative_scan(joined, (fade, new), axis=1)
            found = jnp.einsum("btdn,btn->btd", held, out.astype(F32)) + q["skip"] * y
            return x + (found.astype(BF16) * jax.nn.silu(gate)) @ p["out"], None

        def loss(p: Any) -> Any:
            x = p["table"].astype(BF16)[tokens[:, :-1]]
            x, _ = lax.scan(layer, x, p["layers"])
            return token_loss(rms(x) @ p["table"].astype(BF16).T, tokens[:, 1:]).mean()

        return learned(low, loss, state)

    layer = {"in": full(d, 2 * inner), "window": Arg((4, 1, inner), scale=0.5)}
    layer |= {"pick": full(inner, 32 + 2 * size), "rate": full(32, inner), "scale": Arg((d,))}
    layer |= {"shift": Arg((inner,)), "log": Arg((inner, size), scale=0.5), "skip": Arg((inner,))}
    layer |= {"out": full(inner, d)}
    params = {"layers": repeated(3, layer), "table": Arg((8192, d), scale=0.02)}
    ids = Arg((3, 769), I32, below=8192)
    yield "selective", carried(selective, started(low, params), ids)


def experts() -> Zoo:
    """Training of 12 experts told by products, and 32 experts told by a sort."""
    count, room, d = 12, 208, 768
    rule = optax.adamw(1e-4)

    def told(state: Any, x: Any, goal: Any) -> Any:
        """Two experts for each token of four groups; what is beyond their room is left out."""

        def loss(params: Any) -> Any:
            p = short(params)
            y = norm(x, params["scale"])
            shares = jax.nn.softmax(y.astype(F32) @ params["pick"])
            best, index = lax.top_k(shares, 2)
            best = best / best.sum(-1, keepdims=True)
            hot = jax.nn.one_hot(index, count)
            flat = hot.swapaxes(1, 2).reshape(x.shape[0], -1, count)
            place = (jnp.cumsum(flat, 1) - flat).reshape(x.shape[0], 2, -1, count)
            place = (place.swapaxes(1, 2) * hot).sum(-1).astype(I32)
            slot = jax.nn.one_hot(place, room)
            joint = jnp.einsum("gsk,gske,gskc->gsec", best, hot, slot)
            sent = jnp.einsum("gsec,gsd->egcd", (joint > 0).astype(BF16), y)
            gate, value = jnp.split(jnp.einsum("egcd,edf->egcf", sent, p["up"]), 2, -1)
            found = jnp.einsum("egcf,efd->egcd", jax.nn.silu(gate) * value, p["down"])
            y = x + jnp.einsum("gsec,egcd->gsd", joint.astype(BF16), found)
            even = count * (hot[:, :, 0].mean(1) * shares.mean(1)).sum(-1).mean()
            return jnp.square((y - goal).astype(F32)).mean() + 0.01 * even

        return learned(rule, loss, state)

    params = {"pick": full(d, count), "up": full(count, d, 4096), "down": full(count, 2048, d)}
    tokens = Arg((4, 1024, d), BF16)
    yield "told", carried(told, started(rule, params | {"scale": Arg((d,))}), tokens, tokens)

    many, chosen, wide, size, most = 32, 4, 704, 1024, 520

    def sorted_(params: Any, x: Any) -> Any:
        """Four of 32 experts and a shared one: rows are sorted, gathered and brought back."""

        def layer(x: Any, p: Any) -> Any:
            y = rms(x, p["scale"])
            scores = jax.nn.sigmoid((y @ p["pick"]).astype(F32))
            _, index = lax.top_k(scores + p["even"], chosen)
            best = jnp.take_along_axis(scores, index, 1)
            best = best / (best.sum(-1, keepdims=True) + 1e-9)
            order = jnp.argsort(index.reshape(-1))
            owner = index.reshape(-1)[order]
            counts = jnp.zeros(many, I32).at[owner].add(1)
            place = jnp.arange(owner.size) - (jnp.cumsum(counts) - counts)[owner]
            rows = jnp.zeros((many, most, size), BF16)
            rows = rows.at[owner, place].set(y[order // chosen], mode="drop")
            gate, value = jnp.split(jnp.einsum("ecd,edf->ecf", rows, p["up"]), 2, -1)
            found = jnp.einsum("ecf,efd->ecd", jax.nn.silu(gate) * value, p["down"])
            back = found.at[owner, place].get(mode="fill", fill_value=0)
            back = back * best.reshape(-1)[order][:, None].astype(BF16)
            summed = jnp.zeros_like(x).at[order // chosen].add(back)
            return x + summed + gated(y, p["shared"], p["last"]), counts.max()

        return lax.scan(layer, x, params)

    layer = {"pick": weight(size, many), "even": Arg((many,), scale=0.01), "scale": Arg((size,))}
    layer |= {"up": weight(many, size, 2 * wide), "down": weight(many, wide, size)}
    layer |= {"shared": weight(size, 2 * wide), "last": weight(wide, size)}
    yield "sorted", program(sorted_, repeated(3, layer), Arg((3000, size), BF16))


def decoding() -> Zoo:
    """A token with shared keys, a token with keys in int8, and a prompt with windows and caps."""
    b, d, times = 20, 3072, 2500

    def shared(caches: Any, params: Any, tokens: Any, place: Any) -> Any:
        """24 heads share eight keys; all rows are at one place."""
        x, new = params["table"][tokens], []
        seen = jnp.arange(times) <= place
        for p, cache in zip(params["layers"], caches, strict=True):
            y = rms(x, p["scale"][0])
            q, k, v = jnp.split((y @ p["qkv"]).reshape(b, 1, 40, 128), (24, 32), 2)
            q, k = (turned(part, place[None]) for part in (q, k))
            keys = lax.dynamic_update_slice(cache[0], k, (0, place, 0, 0))
            values = lax.dynamic_update_slice(cache[1], v, (0, place, 0, 0))
            new.append((keys, values))
            scores = jnp.einsum("bkgd,bskd->bkgs", q.reshape(b, 8, 3, 128), keys)
            scores = jnp.where(seen, scores.astype(F32) * 128**-0.5, -1e30)
            shares = jax.nn.softmax(scores).astype(BF16)
            x = x + jnp.einsum("bkgs,bskd->bkgd", shares, values).reshape(b, d) @ p["out"]
            x = x + gated(rms(x, p["scale"][1]), p["up"], p["down"])
        logits = (rms(x, params["last"]) @ params["table"].T).astype(F32)
        return new, logits.argmax(-1), jax.nn.logsumexp(logits, -1)

    layer = {"qkv": weight(d, 5120), "out": weight(d, d), "scale": Arg((2, d))}
    layer |= {"up": weight(d, 16384), "down": weight(8192, d)}
    params = {"layers": [layer] * 3, "table": Arg((128256, d), BF16, scale=0.02)}
    caches = [(Arg((b, times, 8, 128), BF16),) * 2] * 3
    given = (Arg((b,), I32, below=128256), Arg((), I32, below=times))
    yield "shared", carried(shared, caches, params | {"last": Arg((d,))}, *given)

    rows, heads, long, n = 13, 20, 1777, 1280

    def narrow_keys(state: Any, params: Any, tokens: Any, places: Any) -> Any:
        """Eight layers, scanned, whose scores fall with distance."""
        index = jnp.arange(rows)
        gap = places[:, None] - jnp.arange(long)
        slopes = 2.0 ** (-8 * (jnp.arange(heads) + 1) / heads)
        bias = jnp.where(gap[:, None] >= 0, -slopes[:, None] * gap[:, None], -1e30)

        def layer(x: Any, given: Any) -> Any:
            p, cache, scales = given
            q, *both = jnp.split(norm(x, p["scale"][0]) @ p["qkv"], 3, -1)
            both = jnp.stack(both).reshape(2, rows, heads, -1).astype(F32)
            size = jnp.abs(both).max(-1) / 127 + 1e-8
            codes = jnp.round(both / size[..., None]).astype(I8)
            cache = cache.at[:, index, places].set(codes)
            scales = scales.at[:, index, places].set(size)
            keys, values = cache.astype(BF16)
            q = q.reshape(rows, heads, -1)
            scores = jnp.einsum("bhd,bshd->bhs", q, keys).astype(F32) / 8
            shares = jax.nn.softmax(scores * scales[0].swapaxes(1, 2) + bias)
            shares = (shares * scales[1].swapaxes(1, 2)).astype(BF16)
            x = x + jnp.einsum("bhs,bshd->bhd", shares, values).reshape(x.shape) @ p["out"]
            y = jax.nn.gelu(norm(x, p["scale"][1]) @ p["up"]) @ p["down"]
            return x + y, (cache, scales)

        x, new = lax.scan(layer, params["table"][tokens], (params["layers"], *state))
        logits = (norm(x, 1.0) @ params["table"].T).astype(F32)
        return new, lax.top_k(logits, 8)

    params = {"layers": repeated(8, cubes(n, BF16)), "table": Arg((50257, n), BF16)}
    cache = Arg((8, 2, rows, long, heads, 64), I8, below=100)
    state = (cache, Arg((8, 2, rows, long, heads), scale=0.01))
    given = (Arg((rows,), I32, below=50257), Arg((rows,), I32, below=long))
    yield "narrow_keys", carried(narrow_keys, state, params, *given)

    size = 1536

    def prompt(params: Any, tokens: Any) -> Any:
        """Layers in pairs, the first with a window of 512; scores are capped at 50."""
        count, s = tokens.shape
        places = jnp.arange(s)
        gap = places[:, None] - places
        masks = ((gap >= 0) & (gap < 512), gap >= 0)

        def layer(x: Any, p: Any, mask: Any) -> Any:
            y = rms(x, p["scale"][0])
            qkv = (y @ p["qkv"]).reshape(count, s, 20, 128)
            q, k, v = jnp.split(qkv, (12, 16), 2)
            q, k = turned(q, places), turned(k, places)
            scores = jnp.einsum("bqkgd,bskd->bkgqs", q.reshape(count, s, 4, 3, 128), k)
            scores = 50 * jnp.tanh(scores.astype(F32) * 128**-0.5 / 50)
            shares = jax.nn.softmax(jnp.where(mask, scores, -1e30)).astype(BF16)
            found = jnp.einsum("bkgqs,bskd->bqkgd", shares, v).reshape(x.shape)
            x = x + rms(found @ p["out"], p["scale"][1])
            y = gated(rms(x, p["scale"][2]), p["up"], p["down"])
            return x + rms(y, p["scale"][3]), (k, v)

        def pair(x: Any, both: Any) -> Any:
            caches = []
            for p, mask in zip(both, masks, strict=True):
                x, cache = layer(x, p, mask)
                caches.append(cache)
            return x, caches

        x = params["table"][tokens] * jnp.asarray(size**0.5, BF16)
        x, caches = lax.scan(pair, x, params["layers"])
        logits = (rms(x[:, -1], params["last"]) @ params["table"].T).astype(F32)
        return 30 * jnp.tanh(logits / 30), caches

    layer = {"qkv": weight(size, 2560), "out": weight(size, size), "scale": Arg((4, size))}
    layer |= {"up": weight(size, 12288), "down": weight(6144, size)}
    params = {"layers": repeated(2, [layer] * 2), "last": Arg((size,))}
    params |= {"table": Arg((100003, size), BF16, scale=0.02)}
    yield "prompt", program(prompt, params, Arg((2, 1900), I32, below=100003))


def sampling() -> Zoo:
    """A word of 128,256 for each of 48 rows: penalties, a sort, the nucleus, and a draw."""
    words = 128256

    def nucleus(counts: Any, logits: Any, warmth: Any, share: Any, key: Any) -> Any:
        rows = jnp.arange(counts.shape[0])
        x = logits.astype(F32)
        x = jnp.where(counts > 0, jnp.where(x > 0, x / 1.1, x * 1.1), x) - 0.2 * counts
        plain = jax.nn.log_softmax(x)
        x = x / (0.1 + jnp.abs(warmth))[:, None]
        order = jnp.argsort(-x, axis=-1)
        best = jnp.take_along_axis(x, order, 1)
        chance = jax.nn.softmax(best)
        total = jnp.cumsum(chance, -1)
        kept = (total - chance < jax.nn.sigmoid(share)[:, None]) & (chance > 0.001 * chance[:, :1])
        noise = jax.random.gumbel(key, best.shape)
        place = jnp.where(kept, best + noise, -jnp.inf).argmax(-1)
        token = order[rows, place]
        few, names = lax.top_k(plain, 20)
        return counts.at[rows, token].add(1), token, plain[rows, token], few, names

    given = (Arg((48, words), BF16, scale=3.0), Arg((48,)), Arg((48,)), _KEY)
    yield "nucleus", carried(nucleus, Arg((48, words), I32, below=2), *given)


def embeddings() -> Zoo:
    """Training on bags of words: only the rows that were read are changed."""
    bags, seen, d = 4096, 61000, 72
    rule = optax.adam(1e-3)

    def bagged(state: Any, ids: Any, owners: Any, dense: Any, clicks: Any) -> Any:
        learner, table, sums = state
        owners = jnp.sort(owners)
        rows = table[ids]

        def loss(params: Any, rows: Any) -> Any:
            total = jax.ops.segment_sum(rows, owners, bags, indices_are_sorted=True)
            ones = jnp.ones(seen)
            count = jax.ops.segment_sum(ones, owners, bags, indices_are_sorted=True)
            x = total / jnp.maximum(count, 1)[:, None]
            x = jnp.concatenate([x, perceptron(dense, params["dense"])], -1)
            logit = perceptron(x, params["deep"])[:, 0]
            return optax.sigmoid_binary_cross_entropy(logit, clicks.astype(F32)).mean()

        value, (slope, by_row) = jax.value_and_grad(loss, (0, 1))(learner[0], rows)
        sums = sums.at[ids].add(jnp.square(by_row).mean(-1))
        table = table.at[ids].add(-0.05 * by_row * lax.rsqrt(sums[ids] + 1e-8)[:, None])
        return (applied(rule, *learner, slope), table, sums), value

    params = {"dense": stack(13, 128, d), "deep": stack(2 * d, 300, 200, 1)}
    count = 900001
    state = (started(rule, params), Arg((count, d), scale=0.01), Arg((count,), scale=0.0))
    given = (Arg((seen,), I32, below=count), Arg((seen,), I32, below=bags))
    rest = (Arg((bags, 13)), Arg((bags,), I32))
    yield "bagged", carried(bagged, state, *given, *rest)


def graphs() -> Zoo:
    """Training of two layers of attention to neighbours, with a softmax over each one's edges."""
    nodes, edges, heads, d = 20011, 160007, 4, 32
    rule = optax.adam(5e-3)

    def neighbours(state: Any, x: Any, sources: Any, ends: Any, labels: Any, key: Any) -> Any:
        def attended(x: Any, p: Any) -> Any:
            left, right = ((x @ p[name]).reshape(nodes, heads, -1) for name in ("from", "to"))
            y = left[sources]
            logits = (jax.nn.leaky_relu(y + right[ends], 0.2) * p["rate"]).sum(-1)
            top = lax.stop_gradient(jax.ops.segment_max(logits, ends, nodes))
            part = jnp.exp(logits - top[ends])
            part = part / (jax.ops.segment_sum(part, ends, nodes)[ends] + 1e-9)
            return jax.ops.segment_sum(y * part[..., None], ends, nodes)

        kept = jax.random.bernoulli(key, 0.6, x.shape)

        def loss(p: Any) -> Any:
            y = jnp.where(kept, x / 0.6, 0.0)
            y = jax.nn.elu(attended(y, p["one"]).reshape(nodes, -1) + y @ p["skip"])
            logits = attended(y, p["two"]).mean(1)
            return (token_loss(logits, labels) * (labels > 4)).mean()

        return learned(rule, loss, state)

    one = {"from": full(100, heads * d), "to": full(100, heads * d), "rate": Arg((heads, d))}
    two = {"from": full(heads * d, heads * 47), "to": full(heads * d, heads * 47)}
    params = {"one": one, "two": two | {"rate": Arg((heads, 47))}, "skip": full(100, heads * d)}
    ids = (Arg((edges,), I32, below=nodes), Arg((edges,), I32, below=nodes - 7))
    given = (Arg((nodes, 100)), *ids, Arg((nodes,), I32, below=47), _KEY)
    yield "neighbours", carried(neighbours, started(rule, params), *given)


def contrast() -> Zoo:
    """Training of heads that tell which of 6,016 pictures belongs to which text."""
    rule = optax.lamb(1e-3)

    def paired(state: Any, pictures: Any, texts: Any) -> Any:
        def loss(p: Any) -> Any:
            sides = []
            for x, name in ((pictures, "pictures"), (texts, "texts")):
                y = perceptron(x, short(p[name]), jax.nn.gelu).astype(F32)
                sides.append(y * lax.rsqrt(jnp.square(y).sum(-1, keepdims=True) + 1e-6))
            one, two = (side.astype(BF16) for side in sides)
            logits = jnp.einsum("id,jd->ij", one, two, preferred_element_type=F32)
            logits = logits * jnp.exp(jnp.minimum(p["warmth"], 4.6))
            own = jnp.diagonal(logits)
            lost = jax.nn.logsumexp(logits, 0) + jax.nn.logsumexp(logits, 1) - 2 * own
            return lost.mean() / 2

        return learned(rule, loss, state)

    params = {"pictures": stack(1024, 2048, 512), "texts": stack(768, 2048, 512)}
    params |= {"warmth": Arg(())}
    given = (Arg((6016, 1024), BF16), Arg((6016, 768), BF16))
    yield "paired", carried(paired, started(rule, params), *given)


def vocabulary() -> Zoo:
    """A step of a head of 256,000 words, for 2,048 tokens in four parts."""
    d, words = 896, 256000

    def parts(state: Any, x: Any, labels: Any) -> Any:
        head, scale = state

        def loss(head: Any, scale: Any, x: Any) -> Any:
            low = head.astype(BF16)

            @jax.checkpoint
            def part(total: Any, given: Any) -> Any:
                x, labels = given
                logits = (rms(x, scale) @ low.T).astype(F32)
                whole = jax.nn.logsumexp(logits, -1)
                own = jnp.take_along_axis(logits, labels[:, None], 1)[:, 0]
                return total + (whole - own + 1e-4 * whole**2).sum(), None

            given = (x.reshape(4, -1, d), labels.reshape(4, -1))
            return lax.scan(part, jnp.zeros(()), given)[0] / labels.size

        value, slopes = jax.value_and_grad(loss, (0, 1, 2))(head, scale, x)
        return (head - 0.01 * slopes[0], scale - 0.01 * slopes[1]), slopes[2], value

    state = (Arg((words, d), scale=0.03), Arg((d,)))
    given = (Arg((2048, d), BF16), Arg((2048,), I32, below=words))
    yield "parts", carried(parts, state, *given)


def signals() -> Zoo:
    """Training of Hyena: filters as long as the text, applied by Fourier transforms."""
    b, s, d = 6, 3000, 384
    rule = optax.adamw(5e-4)

    def filters(state: Any, tokens: Any) -> Any:
        time = jnp.arange(s) / s
        given = waves(time * 100, 32)

        def layer(x: Any, p: Any) -> Any:
            y = norm(x, p["scale"]) @ p["in"]
            one, two, v = jnp.split(before(y, p["window"]), 3, -1)
            for n, gate in enumerate((one, two)):
                long = jnp.sin(perceptron(given, p["filters"][n], jnp.sin))
                long = long * jnp.exp(-time[:, None] * jnp.exp(p["fade"][n]))
                spectrum = jnp.fft.rfft(long, 2 * s, axis=0)
                found = jnp.fft.irfft(jnp.fft.rfft(v, 2 * s, axis=1) * spectrum, axis=1)[:, :s]
                v = gate * (found + v * p["skip"][n])
            return x + v @ p["out"], None

        def loss(p: Any) -> Any:
            x, _ = lax.scan(layer, p["table"][tokens[:, :-1]], p["layers"])
            return token_loss(norm(x, 1.0) @ p["head"], tokens[:, 1:]).mean()

        return learned(rule, loss, state)

    layer = {"scale": Arg((d,)), "in": full(d, 3 * d), "window": Arg((3, 1, 3 * d), scale=0.5)}
    layer |= {"filters": [stack(32, 64, d)] * 2, "fade": Arg((2, d)), "skip": Arg((2, d))}
    layer |= {"out": full(d, d)}
    params = {"layers": repeated(2, layer), "table": Arg((259, d)), "head": full(d, 259)}
    ids = Arg((b, s + 1), I32, below=259)
    yield "filters", carried(filters, started(rule, params), ids)


def regression() -> Zoo:
    """A step of the widths of a Gaussian process of 1,800 rows, and its answers elsewhere."""
    rule = optax.adam(0.02)

    def process(state: Any, x: Any, y: Any, asked: Any) -> Any:
        def close(p: Any, a: Any, b: Any) -> Any:
            a, b = a * jnp.exp(-p["widths"]), b * jnp.exp(-p["widths"])
            square = (a * a).sum(-1)[:, None] + (b * b).sum(-1) - 2 * a @ b.T
            far = jnp.sqrt(5 * jnp.maximum(square, 1e-10))
            return jnp.exp(p["size"]) * (1 + far + far**2 / 3) * jnp.exp(-far)

        def solved(p: Any) -> Any:
            noise = jnp.exp(p["noise"]) + 0.1
            lower = jnp.linalg.cholesky(close(p, x, x) + noise * jnp.eye(x.shape[0]))
            return lower, cho_solve((lower, True), y)

        def loss(p: Any) -> Any:
            lower, found = solved(p)
            whole = y.shape[1] * jnp.log(jnp.diagonal(lower)).sum()
            return (0.5 * (y * found).sum() + whole) / y.size

        new, value = learned(rule, loss, state)
        lower, found = solved(state[0])
        near = close(state[0], asked, x)
        spread = jnp.square(solve_triangular(lower, near.T, lower=True)).sum(0)
        return new, value, near @ found, jnp.exp(state[0]["size"]) - spread

    params = {"widths": Arg((14,), scale=0.1), "size": Arg((), scale=0.1)}
    params |= {"noise": Arg((), scale=0.1)}
    given = (Arg((1800, 14)), Arg((1800, 3)), Arg((333, 14)))
    yield "process", carried(process, started(rule, params), *given)


def solvers() -> Zoo:
    """Heat that flows through uneven ground: 70 rounds of conjugate gradients in a while loop."""

    def ground(heat: Any, rock: Any, source: Any) -> Any:
        ease = jnp.exp(0.3 * rock)

        def flow(x: Any) -> Any:
            total = 0.01 * ease * x
            for axis in range(3):
                between = (ease + jnp.roll(ease, -1, axis)) / 2
                out = between * (x - jnp.roll(x, -1, axis))
                total = total + out - jnp.roll(out, 1, axis)
            return total

        around = sum(ease + (jnp.roll(ease, n, k) + ease) / 2 for k in range(3) for n in (1, -1))

        def eased(x: Any) -> Any:
            return x / around

        rest = source - flow(heat)
        start = (0, heat, rest, eased(rest), (rest * eased(rest)).sum())

        def go(carry: Any) -> Any:
            return (carry[0] < 70) & (carry[-1] >= 0)

        def step(carry: Any) -> Any:
            n, x, rest, way, size = carry
            ahead = flow(way)
            rate = size / ((way * ahead).sum() + 1e-20)
            x, rest = x + rate * way, rest - rate * ahead
            z = eased(rest)
            new = (rest * z).sum()
            return n + 1, x, rest, z + new / (size + 1e-20) * way, new

        count, heat, rest, _, size = lax.while_loop(go, step, start)
        return heat, count, size, jnp.abs(rest).max()

    shape = (130, 121, 96)
    yield "ground", carried(ground, Arg(shape, scale=0.1), Arg(shape), Arg(shape))


def clouds() -> Zoo:
    """Training on clouds of 1,100 points: every layer looks for the nearest 20 anew."""
    rule = optax.adamw(1e-3)

    def nearest(state: Any, points: Any, labels: Any) -> Any:
        def edges(x: Any, layers: Any) -> Any:
            square = (x * x).sum(-1)
            apart = square[:, :, None] + square[:, None] - 2 * jnp.einsum("bid,bjd->bij", x, x)
            _, index = lax.top_k(-lax.stop_gradient(apart), 20)
            near = jax.vmap(lambda x, index: x[index])(x, index)
            here = jnp.broadcast_to(x[:, :, None], near.shape)
            y = perceptron(jnp.concatenate([here, near - here], -1), layers, jax.nn.leaky_relu)
            return jax.nn.leaky_relu(y).max(2)

        def loss(p: Any) -> Any:
            one = edges(points, p["one"])
            two = edges(one, p["two"])
            x = jnp.concatenate([one, two], -1)
            x = jax.nn.leaky_relu(perceptron(x, p["all"]))
            x = jnp.concatenate([x.max(1), x.mean(1)], -1)
            return token_loss(perceptron(x, p["head"]), labels).mean()

        return learned(rule, loss, state)

    params = {"one": stack(6, 64, 64), "two": stack(128, 128), "all": stack(192, 768)}
    params |= {"head": stack(1536, 256, 40)}
    given = (Arg((16, 1100, 3)), Arg((16,), I32, below=40))
    yield "nearest", carried(nearest, started(rule, params), *given)


def tables() -> Zoo:
    """Sales by shop and day: sorts by two keys, sums of groups, a join, ranks and counts."""
    rows, shops, days = 2_500_000, 3001, 731

    def sales(shop: Any, date: Any, price: Any, wealth: Any) -> Any:
        day = date % days
        shop, day, price = lax.sort((shop, day, price), num_keys=2)
        new = (shop != jnp.roll(shop, 1)) | (day != jnp.roll(day, 1))
        group = jnp.cumsum(new.at[0].set(True).astype(I32)) - 1
        most = shops * days
        total = jax.ops.segment_sum(price, group, most, indices_are_sorted=True)
        high = jax.ops.segment_max(price, group, most, indices_are_sorted=True)
        names = jnp.sort(wealth[:, 0])
        place = jnp.clip(jnp.searchsorted(names, total), 0, names.size - 1)
        joined = total * wealth[place, 1]
        order = jnp.argsort(price)
        rank = jnp.zeros_like(order).at[order].set(jnp.arange(rows))
        cuts = price[order][jnp.linspace(0, rows - 1, 101).astype(I32)]
        counts, _ = jnp.histogram(price, 64, (-4.0, 4.0))
        first = jnp.nonzero(new, size=1_500_000, fill_value=rows)[0]
        by_shop = jnp.zeros(shops).at[shop].add(price)
        running = jnp.cumsum(price) / (1 + jnp.arange(rows))
        return joined, high, rank, cuts, counts, first, lax.top_k(by_shop, 10), running

    ids = (Arg((rows,), I32, below=shops), Arg((rows,), I32, below=days * 1009))
    yield "sales", program(sales, *ids, Arg((rows,)), Arg((5000, 2)))


def physics() -> Zoo:
    """Gas on a lattice of nine speeds around obstacles: 30 steps."""
    tall, wide = 410, 720

    def lattice(parts: Any, walls: Any) -> Any:
        ways = [(0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1)]
        back = jnp.array([0, 3, 4, 1, 2, 7, 8, 5, 6])
        share = jnp.array([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4)[:, None, None]
        speed = jnp.array(ways, F32)
        solid = walls > 2.0

        def step(_: Any, f: Any) -> Any:
            rho = f.sum(0)
            u = jnp.einsum("kc,kxy->cxy", speed, f) / rho
            along = jnp.einsum("kc,cxy->kxy", speed, u)
            calm = share * rho * (1 + 3 * along + 4.5 * along**2 - 1.5 * (u * u).sum(0))
            f = jnp.where(solid, f[back], f - (f - calm) / 0.6)
            f = f.at[1, 0].add(1e-4)
            return jnp.stack([jnp.roll(f[k], way, (0, 1)) for k, way in enumerate(ways)])

        parts = jnp.where(jnp.isfinite(parts) & (parts > 0.01), parts, 0.1)
        parts = lax.fori_loop(0, 30, step, parts)
        u = jnp.einsum("kc,kxy->cxy", speed, parts) / parts.sum(0)
        curl = jnp.roll(u[1], -1, 0) - u[1] - jnp.roll(u[0], -1, 1) + u[0]
        return parts, jnp.square(curl).mean()

    yield "lattice", carried(lattice, Arg((9, tall, wide), scale=0.2), Arg((tall, wide)))


def finance() -> Zoo:
    """Heston: 150,000 paths of 60 steps, prices of 11 options, and how they change."""
    paths, steps = 150_000, 60

    def heston(market: Any, strikes: Any, key: Any) -> Any:
        def price(market: Any) -> Any:
            start, pace, level, unrest, tie = jax.nn.sigmoid(market)
            rate = 1.0 / steps

            def step(carry: Any, key: Any) -> Any:
                log, var, low = carry
                one, two = jax.random.normal(key, (2, paths))
                two = -tie * one + jnp.sqrt(1 - tie**2) * two
                kept = jnp.maximum(var, 1e-6)
                root = jnp.sqrt(kept * rate)
                log = log + (0.02 - kept / 2) * rate + root * one
                var = var + 3 * pace * (level - kept) * rate + unrest * root * two
                return (log, var, jnp.minimum(low, log)), None

            zero = jnp.zeros(paths)
            begin = (zero, zero + start / 10, zero)
            (log, _, low), _ = lax.scan(step, begin, jax.random.split(key, steps))
            gain = jnp.maximum(jnp.exp(log) - jnp.exp(strikes)[:, None], 0.0)
            gain = jnp.where(low > -0.5, gain, 0.0) * jnp.exp(-0.02)
            return gain.mean(1), gain.std(1) / paths**0.5

        ones = jnp.eye(5)
        slopes = [jax.jvp(price, (market,), (ones[n],))[1][0] for n in (0, 2)]
        return price(market), slopes

    yield "heston", program(heston, Arg((5,)), Arg((11,), scale=0.1), _KEY)


def narrow() -> Zoo:
    """Two perceptrons with gates: the first in float8, the second in int8."""
    rows, d, wide = 4000, 2560, 6912

    def eighths(params: Any, x: Any) -> Any:
        def tight(x: Any) -> Any:
            size = jnp.abs(x.astype(F32)).max() / 448 + 1e-8
            return jnp.clip(x.astype(F32) / size, -448, 448).astype(F8), size.astype(BF16)

        def times(x: Any, w: Any) -> Any:
            codes, size = tight(x)
            return (codes.astype(BF16) * size) @ (w[0].astype(BF16) * w[1])

        def whole(x: Any, w: Any) -> Any:
            x = x.astype(F32)
            size = jnp.abs(x).max(-1, keepdims=True) / 127 + 1e-8
            codes = jnp.round(x / size).astype(I8)
            found = lax.dot(codes, w[0], preferred_element_type=I32)
            return (found.astype(F32) * size * w[1]).astype(BF16)

        for product, p in ((times, params["eight"]), (whole, params["whole"])):
            gate, value = jnp.split(product(rms(x, p["scale"]), p["up"]), 2, -1)
            x = x + product(jax.nn.silu(gate) * value, p["down"])
        return x

    eight = {"up": (weight(d, 2 * wide, dtype=F8), Arg((), BF16)), "scale": Arg((d,))}
    eight |= {"down": (weight(wide, d, dtype=F8), Arg((), BF16))}
    codes = {"up": (Arg((d, 2 * wide), I8, below=64), Arg((2 * wide,), scale=1e-3))}
    codes |= {"down": (Arg((wide, d), I8, below=64), Arg((d,), scale=1e-3))}
    params = {"eight": eight, "whole": codes | {"scale": Arg((d,))}}
    yield "eighths", program(eighths, params, Arg((rows, d), BF16))


def attention() -> Zoo:
    """Training of a layer with cuDNN's attention: 12 heads of 128 share four keys."""
    b, s, d = 3, 2300, 1536
    rule = optax.adamw(1e-4, mu_dtype=BF16)

    def fused(state: Any, x: Any, goal: Any) -> Any:
        places = jnp.arange(s)

        def loss(params: Any) -> Any:
            p = short(params)
            qkv = (rms(x, params["scale"]) @ p["qkv"]).reshape(b, s, 20, 128)
            q, k, v = jnp.split(qkv, (12, 16), 2)
            q, k = turned(q, places), turned(k, places)
            found = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")
            y = x + found.reshape(b, s, d) @ p["out"]
            return jnp.square((y - goal).astype(F32)).mean()

        return learned(rule, loss, state)

    params = {"qkv": full(d, 2560), "out": full(d, d), "scale": Arg((d,))}
    given = (Arg((b, s, d), BF16), Arg((b, s, d), BF16))
    yield "fused", carried(fused, started(rule, params), *given)


def folding() -> Zoo:
    """Triangles of 197 residues: products both ways, attention along rows, and a perceptron."""
    n, c, heads = 197, 128, 4

    def triangles(params: Any, pair: Any, mask: Any) -> Any:
        seen = jnp.where(mask > 0, 0.0, -1e9)

        def product(x: Any, p: Any, way: str) -> Any:
            y = norm(x, p["scale"][0])
            a, b = jnp.split(jax.nn.sigmoid(y @ p["gates"]) * (y @ p["both"]), 2, -1)
            a, b = (part * (mask > 0)[..., None] for part in (a, b))
            found = norm(jnp.einsum(way, a, b), p["scale"][1])
            return x + jax.nn.sigmoid(y @ p["gate"]) * (found @ p["out"])

        def rows(x: Any, p: Any) -> Any:
            y = norm(x, p["scale"][0])
            qkv = (y @ p["qkv"]).reshape(n, n, 3 * heads, -1)
            bias = jnp.einsum("qkc,ch->hqk", y, p["bias"]).astype(F32) + seen[:, None, None]
            found = attend(*jnp.split(qkv, 3, 2), bias).reshape(x.shape)
            return x + (jax.nn.sigmoid(y @ p["gate"]) * found) @ p["out"]

        def block(x: Any, p: Any) -> Any:
            x = product(x, p["out"], "ikc,jkc->ijc")
            x = product(x, p["in"], "kic,kjc->ijc")
            x = rows(x, p["rows"])
            x = rows(x.swapaxes(0, 1), p["columns"]).swapaxes(0, 1)
            return x + jax.nn.relu(norm(x, p["scale"]) @ p["up"]) @ p["down"], None

        x, _ = lax.scan(block, pair, params["blocks"])
        return x, jax.nn.log_softmax(((x + x.swapaxes(0, 1)) @ params["bins"]).astype(F32))

    one = {"scale": Arg((2, c)), "gates": weight(c, 2 * c), "both": weight(c, 2 * c)}
    one |= {"gate": weight(c, c), "out": weight(c, c)}
    two = {"scale": Arg((1, c)), "qkv": weight(c, 3 * c), "bias": weight(c, heads)}
    two |= {"gate": weight(c, c), "out": weight(c, c)}
    block = {"out": one, "in": one, "rows": two, "columns": two, "scale": Arg((c,))}
    block |= {"up": weight(c, 4 * c), "down": weight(4 * c, c)}
    params = {"blocks": repeated(2, block), "bins": weight(c, 64)}
    yield "triangles", program(triangles, params, Arg((n, n, c), BF16), Arg((n, n)))
