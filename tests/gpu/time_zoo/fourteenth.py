"""A fourteenth zoo: steps as more public JAX projects write them, many of them of small kernels.

It was written without a look at the predictor or its calibration, to be timed once: no
calibration and no fit has used its programs.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from eleventh import learned, perceptron, short, stack, started
from fourth import attend, norm, program, weight
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve
from ninth import carried, gated, rms, token_loss, turned
from sixth import convolved, full, kernel
from tenth import Layer, applied, initial
from twelfth import cubed, cubes

from xlapipe.running.calibration.timed_program import Arg, TimedProgram

F32, BF16, F16, I32 = jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32
U8, U32 = jnp.uint8, jnp.uint32
Zoo = Iterator[tuple[str, TimedProgram]]
_KEY = Arg((2,), U32, below=1 << 30)


def fourteenth_programs() -> dict[str, TimedProgram]:
    """Every program, by FAMILY/NAME."""
    families = (
        *(language, replies, memories, filters, generation, vision, video, scenes, sounds),
        *(gymnasts, robots, neurons, cells, evolution, transport, cosmology, posteriors, flows),
        *(equations, wavefunctions, packings, oceans, residues),
    )
    return {
        f"{family.__name__}/{name}": program for family in families for name, program in family()
    }


def repeated(count: int, layer: Any) -> Any:
    """The weights of `count` layers, one above the other."""
    return jax.tree.map(lambda arg: replace(arg, shape=(count, *arg.shape)), layer)


def before(x: Any, w: Any) -> Any:
    """A convolution over times of every channel, which sees nothing later."""
    names, size = ("NWC", "WIO", "NWC"), w.shape[0]
    return lax.conv_general_dilated(
        *(x, w, (1,), [(size - 1, 0)]), dimension_numbers=names, feature_group_count=x.shape[-1]
    )


def grouped(x: Any, scale: Any, groups: int = 32) -> Any:
    """A group norm with a scale and a shift."""
    wide = x.astype(F32).reshape(*x.shape[:-1], groups, -1)
    axes = (*range(1, x.ndim - 1), x.ndim)
    wide = (wide - wide.mean(axes, keepdims=True)) * lax.rsqrt(wide.var(axes, keepdims=True) + 1e-6)
    return (wide.reshape(x.shape) * scale[0] + scale[1]).astype(x.dtype)


def language() -> Zoo:
    """Training: DeBERTa's attention to words and distances, and LLaDA's diffusion of tokens."""
    b, s, d, heads, words, span = 9, 224, 576, 9, 31013, 128
    parts = (optax.linear_schedule(0.0, 2e-4, 1000), optax.linear_schedule(2e-4, 0.0, 89000))
    schedule = optax.join_schedules(parts, [1000])
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.01))

    def disentangled(state: Any, tokens: Any, picked: Any, goals: Any) -> Any:
        def loss(params: Any) -> Any:
            p = short(params)
            gap = jnp.arange(s)[:, None] - jnp.arange(s)
            far = jnp.log(jnp.maximum(jnp.abs(gap), 1) / 64) / jnp.log(511 / 64) * 63
            far = jnp.sign(gap) * (jnp.ceil(far).astype(I32) + 64)
            gap = jnp.where(jnp.abs(gap) < 64, gap, far)
            ahead, back = (jnp.clip(span + way * gap, 0, 2 * span - 1) for way in (1, -1))
            ahead, back = (jnp.broadcast_to(way, (b, heads, s, s)) for way in (ahead, back))
            x, places = norm(p["table"][tokens], p["first"]), norm(p["places"], p["near"])

            def parted(x: Any, w: Any) -> Any:
                return (x @ w).reshape(*x.shape[:-1], heads, -1)

            for layer in p["layers"]:
                q, k, v = (parted(x, layer[name]) for name in "qkv")
                scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
                by_place = jnp.einsum("bqhd,khd->bhqk", q, parted(places, layer["k"]))
                scores = scores + jnp.take_along_axis(by_place, ahead, -1)
                by_place = jnp.einsum("bkhd,qhd->bhkq", k, parted(places, layer["q"]))
                scores = scores + jnp.take_along_axis(by_place, back, -1).swapaxes(-1, -2)
                shares = jax.nn.softmax(scores.astype(F32) * (3 * 64) ** -0.5).astype(BF16)
                y = jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(b, s, d)
                x = norm(x + y @ layer["out"], layer["scale"][0])
                y = jax.nn.gelu(x @ layer["up"], approximate=False) @ layer["down"]
                x = norm(x + y, layer["scale"][1])
            x = jnp.take_along_axis(x, picked[..., None], 1)
            x = norm(jax.nn.gelu(x @ p["head"]), p["last"])
            return token_loss(x @ p["table"].T + p["bias"], goals).mean()

        return learned(rule, loss, state)

    layer = {name: full(d, d) for name in ("q", "k", "v", "out")}
    layer |= {"up": full(d, 4 * d), "down": full(4 * d, d), "scale": Arg((2, d))}
    params = {"layers": [layer] * 2, "table": Arg((words, d)), "places": Arg((2 * span, d))}
    params |= {name: Arg((d,)) for name in ("first", "near", "last")}
    params |= {"head": full(d, d), "bias": Arg((words,))}
    ids = (
        Arg((b, s), I32, below=words),
        Arg((b, 34), I32, below=s),
        Arg((b, 34), I32, below=words),
    )
    yield "disentangled", carried(disentangled, started(rule, params), *ids)

    size, wide, many, mask = 1152, 3072, 24007, 24006
    low = optax.adamw(3e-4, 0.9, 0.95, weight_decay=0.1, mu_dtype=BF16)

    def unmasked(state: Any, tokens: Any, key: Any) -> Any:
        """Each row loses its own share of tokens; the layers are scanned and computed twice."""
        rows, times = tokens.shape
        one, two = jax.random.split(key)
        share = 1e-3 + (1 - 1e-3) * jax.random.uniform(one, (rows, 1))
        lost = jax.random.uniform(two, tokens.shape) < share

        def layer(x: Any, p: Any) -> Any:
            p, places = short(p), jnp.arange(times)
            y = rms(x, p["scale"][0])
            q, k, v = ((y @ p[name]).reshape(rows, times, -1, 96) for name in "qkv")
            y = attend(turned(q, places), turned(k, places), v)
            x = x + y.reshape(rows, times, -1) @ p["out"]
            return x + gated(rms(x, p["scale"][1]), p["up"], p["down"]), None

        def loss(params: Any) -> Any:
            x = params["table"].astype(BF16)[jnp.where(lost, mask, tokens)]
            x, _ = lax.scan(jax.checkpoint(layer), x, params["layers"])
            logits = rms(x, params["last"]) @ params["head"].astype(BF16)
            return (token_loss(logits, tokens) * lost / share).sum() / tokens.size

        return learned(low, loss, state)

    layer = {name: full(size, size) for name in ("q", "k", "v", "out")}
    layer |= {"up": full(size, 2 * wide), "down": full(wide, size), "scale": Arg((2, size))}
    params = {"layers": repeated(4, layer), "table": Arg((many, size)), "last": Arg((size,))}
    params |= {"head": full(size, many)}
    ids = Arg((3, 832), I32, below=mask)
    yield "unmasked", carried(unmasked, started(low, params), ids, _KEY)


def replies() -> Zoo:
    """A token by Gemma 2, whose near layers keep a ring of tokens, and seven tokens by RWKV 6."""
    b, d, heads, shared, size, ring, times = 7, 2304, 8, 4, 256, 1024, 2816

    def capped(caches: Any, params: Any, tokens: Any, places: Any) -> Any:
        """Scores and logits are capped by tanh; norms come before and after each part."""
        rows, new = jnp.arange(b), []
        x = params["table"][tokens] * jnp.asarray(d**0.5, BF16)
        for held, p in zip(caches, params["layers"], strict=True):
            y = rms(x, 1 + p["scale"][0])
            q = jnp.einsum("bd,hde->bhe", y, p["q"])
            k, v = jnp.einsum("bd,chde->cbhe", y, p["kv"])
            q, k = turned(q, places), turned(k, places)
            length = held["k"].shape[1]
            slot = places % length
            cache = {
                "k": held["k"].at[rows, slot].set(k),
                "v": held["v"].at[rows, slot].set(v),
            }
            q = (q * size**-0.5).reshape(b, shared, -1, size)
            scores = jnp.einsum("bkgh,bskh->bkgs", q, cache["k"]).astype(F32)
            scores = 50 * jnp.tanh(scores / 50)
            seen = (jnp.arange(length) <= places[:, None]) | (places[:, None] >= length)
            scores = jnp.where(seen[:, None, None], scores, -2.3819763e38)
            shares = jax.nn.softmax(scores).astype(BF16)
            y = jnp.einsum("bkgs,bskh->bkgh", shares, cache["v"]).reshape(b, heads, size)
            y = jnp.einsum("bhe,hed->bd", y, p["out"])
            x = x + rms(y, 1 + p["scale"][1])
            y = rms(x, 1 + p["scale"][2])
            gate, value = jnp.einsum("bd,cdf->cbf", y, p["up"])
            x = x + rms((jax.nn.gelu(gate) * value) @ p["down"], 1 + p["scale"][3])
            new.append(cache)
        logits = jnp.dot(rms(x, 1 + params["last"]), params["table"].T)
        logits = 30 * jnp.tanh(logits.astype(F32) / 30)
        return new, logits.argmax(-1), logits

    layer = {"q": weight(heads, d, size), "kv": weight(2, shared, d, size)}
    layer |= {"out": weight(heads, size, d), "scale": Arg((4, d), scale=0.1)}
    layer |= {"up": weight(2, d, 9216), "down": weight(9216, d)}
    params = {"layers": [layer] * 4, "table": Arg((128003, d), BF16, scale=0.02)}
    params |= {"last": Arg((d,), scale=0.1)}
    near, far = ({k: Arg((b, n, shared, size), BF16) for k in "kv"} for n in (ring, times))
    ids = (Arg((b,), I32, below=128003), Arg((b,), I32, below=times))
    yield "capped", carried(capped, [near, far] * 2, params, *ids)

    n, c, rows, words = 3, 1024, 33, 65536

    def shifted(state: Any, params: Any) -> Any:
        """Matrices of 16 heads that decay as the token says; layers are scanned."""

        def layer(x: Any, given: Any) -> Any:
            p, (last, past, matrix) = given
            y = norm(x, p["scale"][0])
            gap = last - y
            mixes = jnp.tanh((y + gap * p["mix"][0]) @ p["less"]).reshape(rows, 5, 32)
            mixes = jnp.einsum("bnr,nrd->nbd", mixes, p["more"]) + p["mix"][1:6, None]
            w, k, v, r, g = y + gap * mixes
            decay = p["decay"] + jnp.tanh(w @ p["slow"][0]) @ p["slow"][1].T
            decay = jnp.exp(-jnp.exp(decay.astype(F32))).reshape(rows, 16, 64, 1)
            r, k, v = (
                (part @ p[name]).astype(F32).reshape(rows, 16, 64)
                for part, name in ((r, "r"), (k, "k"), (v, "v"))
            )
            pair = k[..., None] * v[..., None, :]
            bonus = p["bonus"].reshape(16, 64, 1)
            out = jnp.einsum("bhi,bhij->bhj", r, matrix + bonus * pair)
            matrix = matrix * decay + pair
            out = grouped(out.reshape(rows, c), p["scale"][2:4], 16).astype(BF16)
            x = x + (out * jax.nn.silu(g @ p["g"])) @ p["out"]
            z = norm(x, p["scale"][1])
            key = jnp.square(jax.nn.relu((z + (past - z) * p["mix"][6]) @ p["up"]))
            gate = jax.nn.sigmoid((z + (past - z) * p["mix"][7]) @ p["gate"])
            return x + gate * (key @ p["down"]), (y, z, matrix)

        def step(carry: Any, _: Any) -> Any:
            tokens, states = carry
            x = norm(params["table"][tokens], params["first"])
            x, states = lax.scan(layer, x, (params["layers"], states))
            logits = norm(x, params["last"]) @ params["head"]
            return (logits.argmax(-1).astype(I32), states), tokens

        return lax.scan(step, state, None, 7)

    layer = {name: weight(c, c) for name in ("r", "k", "v", "g", "out", "gate")}
    layer |= {"up": weight(c, 3584), "down": weight(3584, c), "scale": Arg((4, c))}
    layer |= {"less": weight(c, 160), "more": weight(5, 32, c), "slow": weight(2, c, 64)}
    layer |= {"mix": Arg((8, c), BF16), "decay": Arg((c,), BF16), "bonus": Arg((c,))}
    params = {"layers": repeated(n, layer), "table": Arg((words, c), BF16), "first": Arg((c,))}
    params |= {"last": Arg((c,)), "head": weight(c, words)}
    states = (*[Arg((n, rows, c), BF16)] * 2, Arg((n, rows, 16, 64, 64)))
    yield "shifted", carried(shifted, (Arg((rows,), I32, below=words), states), params)


def memories() -> Zoo:
    """Training: xLSTM's matrices and cells with exponential gates, and RecurrentGemma's layers."""
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, 0.9, 0.95))
    b, s, d, heads, words = 13, 120, 384, 4, 8011

    def matrices(x: Any, p: Any) -> Any:
        """All times at once, as attention with sums of the gates."""
        y, z = jnp.split(norm(x, p["scale"]) @ p["up"], 2, -1)
        near = jax.nn.silu(before(y, p["near"]))
        q, k, v = (
            (part @ p[name]).reshape(b, s, heads, -1)
            for part, name in ((near, "q"), (near, "k"), (y, "v"))
        )
        gates = (near @ p["gates"] + p["shift"]).astype(F32).swapaxes(1, 2)
        enter, keep = gates[:, :heads], jax.nn.log_sigmoid(gates[:, heads:])
        total = keep.cumsum(-1)
        size = total[..., :, None] - total[..., None, :] + enter[..., None, :]
        size = jnp.where(jnp.tril(jnp.ones((s, s), bool)), size, -jnp.inf)
        top = size.max(-1, keepdims=True)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(F32) * q.shape[-1] ** -0.5
        scores = scores * jnp.exp(size - top)
        scores = scores / jnp.maximum(jnp.abs(scores.sum(-1, keepdims=True)), jnp.exp(-top))
        out = jnp.einsum("bhqk,bkhd->bqhd", scores.astype(BF16), v)
        out = rms(out).reshape(b, s, -1) + p["skip"] * near
        return x + (out * jax.nn.silu(z)) @ p["down"]

    def scalars(x: Any, p: Any) -> Any:
        """Cells of four heads, time by time."""
        given = (norm(x, p["scale"]) @ p["in"]).astype(F32).reshape(b, s, 4, heads, -1)

        def step(state: Any, given: Any) -> Any:
            c, n, h, m = state
            parts = given + jnp.einsum("bhd,ghde->bghe", h, p["turn"]).astype(F32)
            z, i, f, o = parts[:, 0], parts[:, 1], parts[:, 2], parts[:, 3]
            keep = jax.nn.log_sigmoid(f) + m
            top = jnp.maximum(keep, i)
            i, f = jnp.exp(i - top), jnp.exp(keep - top)
            c, n = f * c + i * jnp.tanh(z), f * n + i
            h = (jax.nn.sigmoid(o) * c / jnp.maximum(n, 1e-6)).astype(BF16)
            return (c, n, h, top), h

        zero = jnp.zeros((b, heads, d // heads))
        _, out = lax.scan(step, (zero, zero, zero.astype(BF16), zero), given.swapaxes(0, 1))
        x = x + rms(out.swapaxes(0, 1)).reshape(b, s, d)
        return x + gated(norm(x, p["last"]), p["up"], p["down"])

    def exponential(state: Any, tokens: Any) -> Any:
        def loss(params: Any) -> Any:
            p = short(params)
            x = p["table"][tokens[:, :-1]]
            x = scalars(matrices(x, p["matrices"]), p["scalars"])
            return token_loss(norm(x, p["last"]) @ p["table"].T, tokens[:, 1:]).mean()

        return learned(rule, loss, state)

    e = 2 * d
    one = {name: full(e, e) for name in "qkv"} | {"near": kernel(4, 1, e, dtype=F32)}
    one |= {"up": full(d, 2 * e), "down": full(e, d), "gates": full(e, 2 * heads)}
    one |= {"shift": Arg((2 * heads,)), "skip": Arg((e,)), "scale": Arg((d,))}
    two = {"in": full(d, 4 * d), "turn": full(4, heads, d // heads, d // heads)}
    two |= {"scale": Arg((d,)), "last": Arg((d,)), "up": full(d, 1024), "down": full(512, d)}
    params = {"matrices": one, "scalars": two, "table": Arg((words, d)), "last": Arg((d,))}
    ids = Arg((b, s + 1), I32, below=words)
    yield "exponential", carried(exponential, started(rule, params), ids)

    rows, times, wide, reach = 4, 1024, 640, 256

    def recurrent(x: Any, p: Any) -> Any:
        """Real gates in blocks, four neighbours in time, and a scan over pairs."""
        p = short(p)
        y = rms(x, 1 + p["scale"][0])
        side, y = jax.nn.gelu(y @ p["side"]), y @ p["in"]
        padded = jnp.pad(y, ((0, 0), (3, 0), (0, 0)))
        y = sum(padded[:, n : n + times] * p["near"][n] for n in range(4)) + p["shift"]
        blocks = y.reshape(rows, times, 10, -1)
        enter, keep = jax.nn.sigmoid(
            jnp.einsum("bthi,ghij->gbthj", blocks, p["gates"]).reshape(2, rows, times, wide)
        ).astype(F32)
        logs = -8 * keep * jax.nn.softplus(p["decay"].astype(F32))
        more = jnp.sqrt(jnp.maximum(1 - jnp.exp(2 * logs), 1e-6)) * enter * y

        def joined(a: Any, b: Any) -> Any:
            return a[0] * b[0], a[1] * b[0] + b[1]

        _, y = lax.associative_scan(joined, (jnp.exp(logs), more), axis=1)
        x = x + (y.astype(BF16) * side) @ p["out"]
        y = rms(x, 1 + p["scale"][1])
        return x + (jax.nn.gelu(y @ p["gate"]) * (y @ p["up"])) @ p["down"], None

    def griffin(state: Any, tokens: Any) -> Any:
        def loss(params: Any) -> Any:
            x = short(params["table"])[tokens[:, :-1]] * d**0.5
            x, _ = lax.scan(recurrent, x.astype(BF16), params["layers"])
            p, places = short(params["near"]), jnp.arange(times)
            y = rms(x, 1 + p["scale"][0])
            q = turned((y @ p["q"]).reshape(rows, times, 6, 64), places)
            k, v = (part[:, :, None] for part in jnp.split(y @ p["kv"], 2, -1))
            k = turned(k, places)
            gap = places[:, None] - places
            bias = jnp.where((gap >= 0) & (gap < reach), 0.0, -1e9)
            k, v = (jnp.broadcast_to(part, q.shape) for part in (k, v))
            x = x + attend(q, k, v, bias).reshape(rows, times, -1) @ p["out"]
            y = rms(x, 1 + p["scale"][1])
            x = x + (jax.nn.gelu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]
            logits = rms(x, 1 + params["last"]) @ short(params["table"]).T
            logits = 30 * jnp.tanh(logits.astype(F32) / 30)
            return token_loss(logits, tokens[:, 1:]).mean()

        return learned(rule, loss, state)

    both = {"gate": full(d, 1152), "up": full(d, 1152), "down": full(1152, d)}
    both |= {"scale": Arg((2, d), scale=0.1)}
    layer = both | {"side": full(d, wide), "in": full(d, wide), "out": full(wide, d)}
    layer |= {"near": full(4, wide), "shift": Arg((wide,)), "decay": Arg((wide,))}
    layer |= {"gates": full(2, 10, 64, 64)}
    near = both | {"q": full(d, 384), "kv": full(d, 128), "out": full(384, d)}
    params = {"layers": repeated(2, layer), "near": near, "table": Arg((words, d), scale=0.05)}
    params |= {"last": Arg((d,), scale=0.1)}
    ids = Arg((rows, times + 1), I32, below=words)
    yield "griffin", carried(griffin, started(rule, params), ids)


def filters() -> Zoo:
    """Training of HyenaDNA: long filters that a network of sines makes, and products of parts."""
    b, s, d = 6, 1500, 192
    rule = optax.adamw(optax.cosine_decay_schedule(6e-4, 10000), weight_decay=0.1)

    def implicit(state: Any, tokens: Any) -> Any:
        def filtered(p: Any) -> Any:
            at = jnp.linspace(0, 1, s)[:, None]
            angle = 2 * jnp.pi * at * jnp.linspace(1e-4, 15, 16)
            y = jnp.concatenate([at, jnp.cos(angle), -jnp.sin(angle)], -1)
            for w, shift in p["sines"]:
                y = jnp.sin(p["speed"] * (y @ w + shift))
            fade = jnp.exp(-at * jnp.linspace(3.07, 15.35, d))
            return (y @ p["wide"]) * (fade + 0.05)

        def mixed(x: Any, p: Any) -> Any:
            parts = before(norm(x, p["scale"][0]) @ p["in"], p["near"])
            one, two, v = jnp.split(parts, 3, -1)
            y = (v * two).astype(F32)
            spectrum = jnp.fft.rfft(filtered(p), 2 * s, axis=0) / (2 * s)
            long = jnp.fft.irfft(jnp.fft.rfft(y, 2 * s, axis=1) * spectrum, 2 * s, 1, "forward")
            y = ((long[:, :s] + y * p["skip"]) * one).astype(BF16)
            return x + y @ p["out"].astype(BF16)

        def loss(params: Any) -> Any:
            x = params["table"].astype(BF16)[tokens[:, :-1]]
            for p in params["layers"]:
                x = mixed(x, p | short({k: p[k] for k in ("in", "near")}))
                y = jax.nn.gelu(norm(x, p["scale"][1]) @ short(p["up"]))
                x = x + y @ short(p["down"])
            logits = norm(x, params["last"]).astype(F32) @ params["head"]
            return token_loss(logits, tokens[:, 1:]).mean()

        return learned(rule, loss, state)

    layer = {"in": full(d, 3 * d), "near": kernel(3, 1, 3 * d, dtype=F32), "out": full(d, d)}
    layer |= {"sines": stack(33, 64, 64, 64), "speed": Arg((64,)), "wide": full(64, d)}
    layer |= {"skip": Arg((d,)), "scale": Arg((2, d)), "up": full(d, 4 * d), "down": full(4 * d, d)}
    params = {"layers": [layer] * 2, "table": Arg((12, d)), "last": Arg((d,)), "head": full(d, 12)}
    yield "implicit", carried(implicit, started(rule, params), Arg((b, s + 1), I32, below=12))


class Denoiser(nn.Module):
    """A small U of two sizes with group norms, which a level of noise shifts."""

    size: int = 96

    @nn.compact
    def __call__(self, x: Any, noise: Any) -> Any:
        speed = self.param("speed", nn.initializers.normal(16.0), (self.size // 2,))
        angle = 2 * jnp.pi * noise[:, None] * lax.stop_gradient(speed)
        given = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1).astype(BF16)
        for _ in range(2):
            given = nn.silu(nn.Dense(4 * self.size, dtype=BF16)(given))

        def block(x: Any, size: int) -> Any:
            y = nn.Conv(size, (3, 3), dtype=BF16)(nn.silu(nn.GroupNorm(16, dtype=BF16)(x)))
            y = y + nn.Dense(size, dtype=BF16)(given)[:, None, None]
            y = nn.Dropout(0.3, deterministic=False)(nn.silu(nn.GroupNorm(16, dtype=BF16)(y)))
            y = nn.Conv(size, (3, 3), dtype=BF16)(y)
            x = x if x.shape[-1] == size else nn.Dense(size, dtype=BF16)(x)
            return (x + y) * 0.5**0.5

        x = whole = block(nn.Conv(self.size, (3, 3), dtype=BF16)(x.astype(BF16)), self.size)
        x = block(nn.avg_pool(x, (2, 2), (2, 2)), 2 * self.size)
        y = nn.GroupNorm(16, dtype=BF16)(x).reshape(x.shape[0], -1, x.shape[-1])
        y = nn.MultiHeadDotProductAttention(3, dtype=BF16)(y, y)
        x = block(x + y.reshape(x.shape), 2 * self.size)
        x = jax.image.resize(x, (*whole.shape[:3], x.shape[-1]), "nearest")
        x = block(jnp.concatenate([x, whole], -1), self.size)
        return nn.Conv(3, (3, 3), dtype=F32)(nn.silu(nn.GroupNorm(16)(x)))


def generation() -> Zoo:
    """Training of a consistency model, MaskGIT's rounds, and StyleGAN 2 from noise to pictures."""
    model, rule = Denoiser(), optax.radam(1e-4)

    def consistent(state: Any, images: Any, key: Any) -> Any:
        """Two neighbouring levels of noise shall lead to the same picture."""
        learner, mean = state
        images = images.astype(F32) / 127.5 - 1
        drawn, noisy, dropped = jax.random.split(key, 3)
        sigmas = (
            0.002 ** (1 / 7) + jnp.linspace(0, 1, 161) * (80 ** (1 / 7) - 0.002 ** (1 / 7))
        ) ** 7
        logs = (jnp.log(sigmas) + 1.1) / (2.0 * 2**0.5)
        odds = jnp.log(jnp.diff(jax.lax.erf(logs)) + 1e-12)
        index = jax.random.categorical(drawn, odds, shape=images.shape[:1])
        noise = jax.random.normal(noisy, images.shape)

        def clean(variables: Any, sigma: Any) -> Any:
            wide = sigma[:, None, None, None]
            x = images + wide * noise
            skip, out = 0.25 / ((wide - 0.002) ** 2 + 0.25), 0.5 * (wide - 0.002)
            inner = x * lax.rsqrt(wide**2 + 0.25)
            y = model.apply(variables, inner, jnp.log(sigma) / 4, rngs={"dropout": dropped})
            return skip * x + out * lax.rsqrt(wide**2 + 0.25) * y

        def loss(variables: Any) -> Any:
            goal = lax.stop_gradient(clean(variables, sigmas[index]))
            gap = ((clean(variables, sigmas[index + 1]) - goal) ** 2).sum((1, 2, 3))
            c = 0.00054 * images[0].size ** 0.5
            return ((jnp.sqrt(gap + c * c) - c) / (sigmas[index + 1] - sigmas[index])).mean()

        learner, value = learned(rule, loss, learner)
        return (learner, optax.incremental_update(learner[0], mean, 1e-4)), value

    variables = initial(model, Arg((1, 32, 32, 3)), Arg((1,)))
    state = (started(rule, variables), variables)
    yield "consistent", carried(consistent, state, Arg((40, 32, 32, 3), U8, below=256), _KEY)

    b, s, d, codes = 11, 257, 640, 1024

    def iterated(params: Any, labels: Any, key: Any) -> Any:
        """Six rounds; the least sure codes are masked again."""
        mask = codes + 1000
        first = jnp.concatenate([labels[:, None] + codes, jnp.full((b, s - 1), mask)], 1, dtype=I32)

        def layer(x: Any, p: Any) -> Any:
            return cubed(x, p, 10), None

        def once(n: Any, carry: Any) -> Any:
            tokens, key = carry
            key, one, two = jax.random.split(key, 3)
            x = norm(params["table"][tokens] + params["places"], params["first"])
            x, _ = lax.scan(layer, x, params["layers"])
            x = norm(jax.nn.gelu(x @ params["head"]), params["last"])
            logits = (x @ params["table"].T).astype(F32)[..., :codes]
            drawn = jax.random.categorical(one, logits).astype(I32)
            unknown = tokens == mask
            tokens = jnp.where(unknown, drawn, tokens)
            ratio = jnp.cos(jnp.pi / 2 * (n + 1) / 6)
            odds = jax.nn.softmax(logits)
            picked = jnp.take_along_axis(odds, drawn[..., None], -1)[..., 0]
            picked = jnp.where(unknown, picked, jnp.inf)
            count = jnp.floor(ratio * (s - 1)).astype(I32)
            count = jnp.maximum(1, jnp.minimum(unknown.sum(-1, keepdims=True) - 1, count))
            sure = jnp.log(picked) + 4.5 * (1 - (n + 1) / 6) * jax.random.gumbel(two, picked.shape)
            cut = jnp.take_along_axis(jnp.sort(sure, -1), count, -1)
            return jnp.where(sure < cut, mask, tokens), key

        return lax.fori_loop(0, 6, once, (first, key))[0]

    params = {"layers": repeated(5, cubes(d, BF16)), "table": Arg((codes + 1001, d), BF16)}
    params |= {"places": Arg((s, d), BF16), "first": Arg((d,)), "last": Arg((d,))}
    params |= {"head": weight(d, d)}
    yield "iterated", program(iterated, params, Arg((b,), I32, below=1000), _KEY)

    sizes = (320, 320, 320, 256, 192)

    def styles(params: Any, z: Any, key: Any) -> Any:
        """Kernels are scaled by a style through their inputs and outputs, in float16."""
        z = z * lax.rsqrt((z * z).mean(-1, keepdims=True) + 1e-8)
        style = z
        for w, shift in params["mapping"]:
            style = jax.nn.leaky_relu(style @ (w * 0.01) + shift * 0.01, 0.2) * 2**0.5
        style = params["mean"] + 0.7 * (style - params["mean"])
        blur = jnp.array([1.0, 3.0, 3.0, 1.0])
        blur = (blur[:, None] * blur / 16).astype(F16)[:, :, None, None]

        def doubled(x: Any) -> Any:
            b, h, w, c = x.shape
            x = x.transpose(0, 3, 1, 2).reshape(b * c, h, w, 1)
            x = lax.conv_general_dilated(
                *(x, blur, (1, 1), [(2, 2)] * 2),
                lhs_dilation=(2, 2),
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
            )
            return x.reshape(b, c, 2 * h, 2 * w).transpose(0, 2, 3, 1)

        def modulated(x: Any, p: Any, plain: bool = False) -> Any:
            own = style @ p["style"][0] + p["style"][1]
            w = p["kernel"]
            y = convolved(x * own[:, None, None].astype(F16), w.astype(F16))
            if not plain:
                total = (own**2) @ (w**2).sum((0, 1))
                y = y * lax.rsqrt(total + 1e-8)[:, None, None].astype(F16)
            return y

        x = jnp.broadcast_to(params["constant"], (z.shape[0], 4, 4, sizes[0])).astype(F16)
        picture = 0
        for number, p in enumerate(params["levels"]):
            if number:
                x, picture = doubled(x), doubled(picture)
            for part in p["convs"]:
                x = modulated(x, part)
                key, now = jax.random.split(key)
                noise = jax.random.normal(now, (*x.shape[:3], 1))
                x = x + (noise * part["noise"]).astype(F16) + part["shift"].astype(F16)
                x = jnp.clip(jax.nn.leaky_relu(x, 0.2) * 2**0.5, -256, 256)
            picture = picture + modulated(x, p["colours"], plain=True) + p["base"].astype(F16)
        return jnp.clip(picture.astype(F32) * 127.5 + 128, 0, 255).astype(U8)

    def conv(a: int, b: int, size: int) -> dict[str, Any]:
        return {
            "kernel": kernel(size, size, a, b, dtype=F32),
            "style": (full(512, a), Arg((a,))),
            "noise": Arg(()),
            "shift": Arg((b,)),
        }

    levels = []
    for number, size in enumerate(sizes):
        pairs = [(sizes[number - 1], size), (size, size)] if number else [(size, size)]
        convs = [conv(*pair, 3) for pair in pairs]
        levels.append({"convs": convs, "colours": conv(size, 3, 1), "base": Arg((3,))})
    params = {"mapping": stack(*[512] * 9), "mean": Arg((512,)), "levels": levels}
    params |= {"constant": Arg((4, 4, sizes[0]))}
    yield "styles", program(styles, params, Arg((5, 512)), _KEY)


def vision() -> Zoo:
    """MobileNet v2 for few pictures, and YOLO's heads with a suppression of boxes."""
    stages = ((1, 16, 1), (6, 24, 2), (6, 24, 1), (6, 48, 2), (6, 48, 1), (6, 96, 2), (6, 160, 2))

    def phones(params: Any, pictures: Any) -> Any:
        def scaled(x: Any, p: Any, bend: bool = True) -> Any:
            mean, var, gain, shift = p
            x = ((x.astype(F32) - mean) * lax.rsqrt(var**2 + 1e-3) * gain + shift).astype(BF16)
            return jnp.clip(x, 0, 6) if bend else x

        mean, var = jnp.array([0.485, 0.456, 0.406]), jnp.array([0.229, 0.224, 0.225])
        x = ((pictures.astype(F32) / 255 - mean) / var).astype(BF16)
        x = scaled(convolved(x, params["first"], 2), params["scale"])
        for p, (_, size, stride) in zip(params["blocks"], stages, strict=True):
            y = scaled(x @ p["wide"], p["scale"][0]) if "wide" in p else x
            y = scaled(convolved(y, p["deep"], stride, y.shape[-1]), p["scale"][1])
            y = scaled(y @ p["narrow"], p["scale"][2], bend=False)
            x = x + y if stride == 1 and x.shape[-1] == size else y
        x = scaled(x @ params["last"], params["end"]).mean((1, 2))
        return jax.nn.softmax((x @ params["head"]).astype(F32) + params["bias"])

    blocks, c = [], 32
    for wider, size, _ in stages:
        e = wider * c
        block = {"wide": weight(c, e)} if wider > 1 else {}
        block |= {"deep": kernel(3, 3, 1, e), "narrow": weight(e, size)}
        blocks.append(block | {"scale": [Arg((4, e)), Arg((4, e)), Arg((4, size))]})
        c = size
    params = {"first": kernel(3, 3, 3, 32), "scale": Arg((4, 32)), "blocks": blocks}
    params |= {"last": weight(c, 960), "end": Arg((4, 960)), "head": weight(960, 1000)}
    params |= {"bias": Arg((1000,))}
    yield "phones", program(phones, params, Arg((4, 192, 192, 3), U8, below=256))

    classes, kept, most = 80, 320, 60

    def boxes(params: Any, levels: Any) -> Any:
        """Sides as means of 16 bins; the best 320 boxes of each picture suppress each other."""
        found = []
        for p, x in zip(params, levels, strict=True):
            b, h, w, _ = x.shape
            sides = jax.nn.silu(convolved(x, p["sides"][0])) @ p["sides"][1] + p["sides"][2]
            kinds = jax.nn.silu(convolved(x, p["kinds"][0])) @ p["kinds"][1] + p["kinds"][2]
            bins = jax.nn.softmax(sides.astype(F32).reshape(b, h * w, 4, 16))
            sides = (bins * jnp.arange(16.0)).sum(-1)
            at = jnp.stack(jnp.meshgrid(jnp.arange(w), jnp.arange(h)), -1).reshape(-1, 2) + 0.5
            corners = jnp.concatenate([at - sides[..., :2], at + sides[..., 2:]], -1)
            found.append((corners * (640 // h), kinds.reshape(b, h * w, classes)))
        corners, kinds = (jnp.concatenate(part, 1) for part in zip(*found, strict=True))
        scores = jax.nn.sigmoid(kinds.astype(F32))

        def suppressed(corners: Any, scores: Any) -> Any:
            best, kind = scores.max(-1), scores.argmax(-1)
            best, index = lax.top_k(best, kept)
            corners, kind = corners[index], kind[index]
            moved = corners + kind[:, None] * 7680.0
            low = jnp.maximum(moved[:, None, :2], moved[:, :2])
            high = jnp.minimum(moved[:, None, 2:], moved[:, 2:])
            both = jnp.maximum(high - low, 0).prod(-1)
            area = (moved[:, 2:] - moved[:, :2]).prod(-1)
            overlap = both / (area[:, None] + area - both + 1e-9)

            def pick(n: Any, carry: Any) -> Any:
                alive, picked = carry
                at = jnp.argmax(alive)
                picked = picked.at[n].set(jnp.where(alive[at] > 0.001, at, -1))
                return jnp.where(overlap[at] > 0.7, 0.0, alive).at[at].set(0.0), picked

            _, picked = lax.fori_loop(0, most, pick, (best, jnp.full(most, -1)))
            return corners[picked], best[picked], kind[picked], picked >= 0

        return jax.vmap(suppressed)(corners, scores)

    def tower(c: int, out: int) -> tuple[Arg, Arg, Arg]:
        return kernel(3, 3, c, 80), weight(80, out), Arg((out,), BF16)

    sizes = ((80, 64), (40, 128), (20, 256))
    params = [{"sides": tower(c, 64), "kinds": tower(c, classes)} for _, c in sizes]
    yield "boxes", program(boxes, params, [Arg((3, n, n, c), BF16) for n, c in sizes])


class Clips(nn.Module):
    """ViViT's factorised encoder: layers over space, then over time."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.Conv(448, (2, 16, 16), (2, 16, 16), dtype=BF16)(x)
        b, t, h, w, d = x.shape
        x = x.reshape(b * t, h * w, d)
        first = self.param("first", nn.initializers.zeros, (1, 1, d)).astype(BF16)
        x = jnp.concatenate([jnp.broadcast_to(first, (b * t, 1, d)), x], 1)
        x = x + self.param("places", nn.initializers.normal(0.02), x.shape[1:]).astype(BF16)
        for _ in range(2):
            x = Layer(7, 1792, drop=0.1)(x)
        x = nn.LayerNorm(dtype=BF16)(x)[:, 0].reshape(b, t, d)
        x = x + self.param("times", nn.initializers.normal(0.02), (t, d)).astype(BF16)
        for _ in range(2):
            x = Layer(7, 1792, drop=0.1)(x)
        return nn.Dense(400)(nn.LayerNorm(dtype=BF16)(x).mean(1).astype(F32))


def video() -> Zoo:
    """Training of ViViT in Flax on mixed clips, with momentum."""
    model = Clips()
    rule = optax.chain(
        optax.clip_by_global_norm(1.0), optax.sgd(optax.cosine_decay_schedule(0.5, 30000), 0.9)
    )

    def factorised(state: Any, clips: Any, labels: Any, key: Any) -> Any:
        share, dropped = jax.random.split(key)
        share = jax.random.beta(share, 0.3, 0.3)
        clips = clips.astype(BF16) / 127.5 - 1
        clips = (share * clips + (1 - share) * clips[::-1]).astype(BF16)
        goals = optax.smooth_labels(jax.nn.one_hot(labels, 400), 0.2)
        goals = share * goals + (1 - share) * goals[::-1]

        def loss(variables: Any) -> Any:
            logits = model.apply(variables, clips, rngs={"dropout": dropped})
            return optax.softmax_cross_entropy(logits, goals).mean()

        return learned(rule, loss, state)

    clips = Arg((5, 14, 192, 192, 3), U8, below=256)
    state = started(rule, initial(model, replace(clips, dtype=BF16)))
    yield "factorised", carried(factorised, state, clips, Arg((5,), I32, below=400), _KEY)


def scenes() -> Zoo:
    """Training of K-planes: fields as products of three planes at two sizes."""
    rays, marks, c = 1021, 40, 16
    rule = optax.adam(optax.warmup_cosine_decay_schedule(0.0, 1e-2, 512, 30000))

    def planes(state: Any, starts: Any, ways: Any, colours: Any, key: Any) -> Any:
        def looked(plane: Any, at: Any) -> Any:
            at = (jnp.clip(at, -1, 1) + 1) / 2 * (plane.shape[0] - 1)
            low = jnp.clip(jnp.floor(at).astype(I32), 0, plane.shape[0] - 2)
            y, x = jnp.split(at - low, 2, -1)
            i, j = low[..., 0], low[..., 1]
            upper = plane[i, j] * (1 - x) + plane[i, j + 1] * x
            lower = plane[i + 1, j] * (1 - x) + plane[i + 1, j + 1] * x
            return upper * (1 - y) + lower * y

        def loss(p: Any) -> Any:
            way = ways * lax.rsqrt((ways**2).sum(-1, keepdims=True) + 1e-9)
            edges = jnp.linspace(0.2, 2.2, marks + 1)
            depth = edges[:-1] + 0.05 * jax.random.uniform(key, (rays, marks))
            at = (starts[:, None] * 0.1 + way[:, None] * depth[..., None]).reshape(-1, 3)
            pairs = ((0, 1), (0, 2), (1, 2))
            parts = []
            for level in p["planes"]:
                part = 1.0
                for plane, pair in zip(level, pairs, strict=True):
                    part = part * looked(plane, at[:, pair])
                parts.append(part)
            y = perceptron(jnp.concatenate(parts, -1), p["dense"])
            dense = jax.nn.softplus(y[:, 0] - 1).reshape(rays, marks)
            angle = way[:, None, :] * 2.0 ** jnp.arange(4)[:, None]
            angle = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1).reshape(rays, 1, -1)
            angle = jnp.broadcast_to(angle, (rays, marks, 24)).reshape(-1, 24)
            y = jax.nn.sigmoid(perceptron(jnp.concatenate([y[:, 1:], angle], -1), p["colour"]))
            steps = jnp.diff(depth, append=depth[:, -1:] + 0.05)
            gone = dense * steps
            light = jnp.exp(-jnp.concatenate([jnp.zeros((rays, 1)), gone.cumsum(-1)[:, :-1]], -1))
            shares = light * -jnp.expm1(-gone)
            seen = (shares[..., None] * y.reshape(rays, marks, 3)).sum(1)
            seen = seen + 1 - shares.sum(-1, keepdims=True)
            rough = sum(
                (jnp.diff(plane, axis=n) ** 2).mean()
                for level in p["planes"]
                for plane in level
                for n in (0, 1)
            )
            return ((seen - colours) ** 2).mean() + 1e-4 * rough

        return learned(rule, loss, state)

    levels = [[Arg((n, n, c), scale=0.5)] * 3 for n in (96, 224)]
    params = {"planes": levels, "dense": stack(2 * c, 64, 16), "colour": stack(39, 64, 64, 3)}
    yield "planes", carried(planes, started(rule, params), *[Arg((rays, 3))] * 3, _KEY)


def sounds() -> Zoo:
    """Training of DDSP: overtones and filtered noise, by spectra of five sizes."""
    b, frames, hop, tones = 5, 250, 64, 60
    rule = optax.chain(
        optax.clip_by_global_norm(3.0), optax.adam(optax.exponential_decay(1e-3, 10000, 0.98))
    )

    def overtones(state: Any, pitch: Any, loud: Any, sound: Any, key: Any) -> Any:
        count = frames * hop

        def spread(x: Any) -> Any:
            return jax.image.resize(x, (b, count, x.shape[-1]), "linear")

        def bounded(x: Any) -> Any:
            return 2 * jax.nn.sigmoid(x) ** 2.3026 + 1e-7

        def heard(p: Any) -> Any:
            high = 440 * jnp.exp2(pitch)[..., None]
            given = (pitch[..., None], loud[..., None])
            parts = [
                jax.nn.leaky_relu(perceptron(x, q)) for x, q in zip(given, p["in"], strict=True)
            ]
            x = jnp.concatenate(parts, -1)
            for n, (w, scale) in enumerate(p["dilated"]):
                y = lax.conv_general_dilated(
                    *(jax.nn.relu(norm(x, scale)), w, (1,), "SAME"),
                    rhs_dilation=(2**n,),
                    dimension_numbers=("NWC", "WIO", "NWC"),
                )
                x = x + y
            x = x @ p["head"]
            size, shares, pass_by = x[..., :1], x[..., 1 : tones + 1], x[..., tones + 1 :]
            multiples = jnp.arange(1.0, tones + 1)
            shares = jnp.where(high * multiples < 8000, bounded(shares), 0.0)
            shares = bounded(size) * shares / (shares.sum(-1, keepdims=True) + 1e-9)
            phase = (2 * jnp.pi / 16000 * spread(high)).cumsum(1)
            wave = (spread(shares) * jnp.sin(phase * multiples)).sum(-1)
            tap = jnp.fft.irfft(bounded(pass_by - 5)).astype(F32)
            tap = jnp.roll(tap, 64, -1) * jnp.hanning(128)
            noise = jax.random.uniform(key, (b, frames, hop), minval=-1, maxval=1)
            parts = jnp.fft.irfft(jnp.fft.rfft(noise, 256) * jnp.fft.rfft(tap, 256))
            parts = parts.reshape(b, frames, 4, hop)
            total = sum(
                jnp.pad(parts[:, : frames - n, n], ((0, 0), (n, 0), (0, 0))) for n in range(4)
            )
            return wave + total.reshape(b, count)

        def spectrum(x: Any, size: int) -> Any:
            starts = jnp.arange(0, count - size + 1, size // 4)
            x = x[:, starts[:, None] + jnp.arange(size)] * jnp.hanning(size)
            x = jnp.fft.rfft(x)
            return jnp.sqrt(x.real**2 + x.imag**2 + 1e-7)

        def loss(params: Any) -> Any:
            found, total = heard(params), 0.0
            for size in (2048, 1024, 512, 256, 64):
                one, two = spectrum(found, size), spectrum(sound, size)
                total += jnp.abs(one - two).mean() + jnp.abs(jnp.log(one) - jnp.log(two)).mean()
            return total

        return learned(rule, loss, state)

    d = 256
    params = {"in": [stack(1, d // 2, d // 2)] * 2, "head": full(d, tones + 66)}
    params |= {"dilated": [(kernel(3, d, d, dtype=F32), Arg((d,)))] * 5}
    given = (*[Arg((b, frames), scale=0.4)] * 2, Arg((b, frames * hop), scale=0.1))
    yield "overtones", carried(overtones, started(rule, params), *given, _KEY)


def gymnasts() -> Zoo:
    """Training: PPO on poles as in PureJaxRL, and implicit Q-learning from played games."""
    count, length = 61, 24
    rule = optax.chain(
        optax.clip_by_global_norm(0.5),
        optax.adam(optax.linear_schedule(2.5e-4, 0.0, 9000), eps=1e-5),
    )

    def poles(state: Any, key: Any) -> Any:
        learner, worlds, ages = state

        def played(p: Any, x: Any) -> Any:
            logits = perceptron(x, p["actor"], jnp.tanh)
            return jax.nn.log_softmax(logits), perceptron(x, p["critic"], jnp.tanh)[..., 0]

        def moved(world: Any, age: Any, act: Any, key: Any) -> Any:
            x, speed, angle, turn = world
            force = jnp.where(act == 1, 10.0, -10.0)
            cos, sin = jnp.cos(angle), jnp.sin(angle)
            push = (force + 0.05 * turn**2 * sin) / 1.1
            twist = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
            pull = push - 0.05 * twist * cos / 1.1
            new = jnp.stack([x + 0.02 * speed, speed + 0.02 * pull])
            new = jnp.concatenate([new, jnp.stack([angle + 0.02 * turn, turn + 0.02 * twist])])
            fell = (jnp.abs(new[0]) > 2.4) | (jnp.abs(new[2]) > 0.2095)
            done = fell | (age + 1 >= 500)
            fresh = jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)
            return jnp.where(done, fresh, new), jnp.where(done, 0, age + 1), done

        def step(carry: Any, key: Any) -> Any:
            worlds, ages = carry
            one, two = jax.random.split(key)
            logs, value = played(learner[0], worlds)
            act = jax.random.categorical(one, logs)
            log = jnp.take_along_axis(logs, act[:, None], -1)[:, 0]
            keys = jax.random.split(two, count)
            new, ages, done = jax.vmap(moved)(worlds, ages, act, keys)
            return (new, ages), (worlds, act, log, value, done)

        rolled, *keys = jax.random.split(key, 4)
        (worlds, ages), seen = lax.scan(step, (worlds, ages), jax.random.split(rolled, length))
        x, act, log, value, done = seen
        last = played(learner[0], worlds)[1]

        def back(carry: Any, given: Any) -> Any:
            gain, after = carry
            value, done = given
            rest = 1.0 - done
            gain = 1.0 + 0.99 * after * rest - value + 0.99 * 0.95 * rest * gain
            return (gain, value), gain

        _, gains = lax.scan(back, (jnp.zeros(count), last), (value, done), reverse=True, unroll=8)
        batch = (x, act, log, value, gains, gains + value)
        batch = jax.tree.map(lambda part: part.reshape(-1, *part.shape[2:]), batch)

        def minibatch(learner: Any, given: Any) -> Any:
            x, act, log, value, gains, goals = given

            def loss(p: Any) -> Any:
                logs, found = played(p, x)
                now = jnp.take_along_axis(logs, act[:, None], -1)[:, 0]
                near = value + jnp.clip(found - value, -0.2, 0.2)
                lost = jnp.maximum((found - goals) ** 2, (near - goals) ** 2).mean() / 2
                ratio = jnp.exp(now - log)
                gain = (gains - gains.mean()) / (gains.std() + 1e-8)
                won = jnp.minimum(ratio * gain, jnp.clip(ratio, 0.8, 1.2) * gain).mean()
                return 0.5 * lost - won + 0.01 * (jnp.exp(logs) * logs).sum(-1).mean()

            return learned(rule, loss, learner)

        def epoch(learner: Any, key: Any) -> Any:
            order = jax.random.permutation(key, count * length)
            parts = jax.tree.map(lambda x: x[order].reshape(4, -1, *x.shape[1:]), batch)
            return lax.scan(minibatch, learner, parts)

        learner, lost = lax.scan(epoch, learner, jnp.stack(keys[:2]))
        return (learner, worlds, ages), lost

    params = {"actor": stack(4, 64, 64, 2), "critic": stack(4, 64, 64, 1)}
    state = (started(rule, params), Arg((count, 4), scale=0.05), Arg((count,), I32, below=9))
    yield "poles", carried(poles, state, _KEY)

    plain = optax.adam(3e-4)
    slow = optax.chain(
        optax.scale_by_adam(), optax.scale_by_schedule(optax.cosine_decay_schedule(-3e-4, 10**6))
    )

    def expectiles(state: Any, batch: Any, key: Any) -> Any:
        actor, critic, value, target = state
        x, act, reward, rest, after = batch

        def judged(critics: Any, x: Any, act: Any) -> Any:
            return jax.vmap(lambda p: perceptron(jnp.concatenate([x, act], -1), p)[:, 0])(critics)

        goal = judged(target, x, act).min(0)

        def value_loss(p: Any) -> Any:
            gap = goal - perceptron(x, p)[:, 0]
            return (jnp.where(gap > 0, 0.7, 0.3) * gap**2).mean()

        value, lost = learned(plain, value_loss, value)
        gain = jnp.minimum(jnp.exp(3.0 * (goal - perceptron(x, value[0])[:, 0])), 100.0)

        def actor_loss(p: Any) -> Any:
            y = perceptron(x, p["layers"])
            kept = jax.random.bernoulli(key, 0.9, y.shape)
            mean = jnp.tanh(jnp.where(kept, y / 0.9, 0.0) @ p["mean"])
            logs = jnp.clip(p["logs"], -5.0, 2.0)
            odds = (-(((act - mean) * jnp.exp(-logs)) ** 2) / 2 - logs).sum(-1)
            return -(gain * odds).mean()

        actor, _ = learned(slow, actor_loss, actor)
        later = reward + 0.99 * rest * perceptron(after, value[0])[:, 0]

        def critic_loss(p: Any) -> Any:
            return ((judged(p, x, act) - later) ** 2).sum(0).mean()

        critic, _ = learned(plain, critic_loss, critic)
        target = optax.incremental_update(critic[0], target, 0.005)
        return (actor, critic, value, target), lost

    d, acts, n = 17, 6, 256
    params = {"layers": stack(d, n, n), "mean": full(n, acts), "logs": Arg((acts,))}
    critics = repeated(2, stack(d + acts, n, n, 1))
    state = (started(slow, params), started(plain, critics), started(plain, stack(d, n, n, 1)))
    batch = (Arg((n, d)), Arg((n, acts)), Arg((n,)), Arg((n,)), Arg((n, d)))
    yield "expectiles", carried(expectiles, (*state, critics), batch, _KEY)


def robots() -> Zoo:
    """Octo: a transformer reads pictures and a task, and noise becomes four actions."""
    b, d, patches, frames, words = 2, 384, 144, 2, 16

    def actions(params: Any, pictures: Any, task: Any, real: Any, key: Any) -> Any:
        x = pictures.astype(F32) / 127.5 - 1
        x = jax.nn.relu(convolved(x.reshape(-1, 192, 192, 3), params["stem"][0], 4))
        x = convolved(x, params["stem"][1], 4).reshape(b, frames, patches, d)
        reads = jnp.broadcast_to(params["reads"], (b, frames, 1, d))
        x = jnp.concatenate([x + params["places"], reads], 2).reshape(b, -1, d)
        x = jnp.concatenate([task @ params["task"], x], 1)
        times = jnp.concatenate([jnp.full(words, -1), jnp.repeat(jnp.arange(frames), patches + 1)])
        last = jnp.arange(frames * (patches + 1)) % (patches + 1) == patches
        hidden = jnp.concatenate([jnp.zeros(words, bool), last])
        others = ~jnp.eye(x.shape[1], dtype=bool)
        seen = (times[:, None] >= times) & ~(hidden & others)
        padded = jnp.pad(real > 0, ((0, 0), (0, len(times) - words)), constant_values=True)
        seen = seen[None] & padded[:, None]
        bias = jnp.where(seen[:, None], 0.0, -1e9)
        for p in params["layers"]:
            x = cubed(x, p, 6, bias)
        given = norm(x[:, -1], params["last"])

        def score(noisy: Any, time: Any) -> Any:
            angle = 2 * jnp.pi * time * params["speed"]
            y = jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], -1)
            y = jnp.broadcast_to(perceptron(y, params["time"], jax.nn.swish), (b, 32))
            y = jnp.concatenate([y, given, noisy], -1) @ params["in"]
            for p in params["blocks"]:
                y = y + perceptron(norm(y, p["scale"]), p["layers"], jax.nn.swish)
            return jax.nn.swish(y) @ params["out"]

        at = jnp.linspace(0, 1, 21)
        kept = jnp.cos((at + 0.008) / 1.008 * jnp.pi / 2) ** 2
        betas = jnp.clip(1 - kept[1:] / kept[:-1], 0, 0.999)
        alphas = 1 - betas
        products = jnp.cumprod(alphas)

        def step(carry: Any, time: Any) -> Any:
            noisy, key = carry
            found = score(noisy, time[None].astype(F32))
            rate = (1 - alphas[time]) / jnp.sqrt(1 - products[time])
            noisy = (noisy - rate * found) / jnp.sqrt(alphas[time])
            key, now = jax.random.split(key)
            noise = jax.random.normal(now, noisy.shape)
            noisy = noisy + (time > 0) * jnp.sqrt(betas[time]) * noise
            return (jnp.clip(noisy, -5, 5), key), None

        start = jax.random.normal(key, (b, 28))
        (found, _), _ = lax.scan(step, (start, key), jnp.arange(19, -1, -1))
        return found.reshape(b, 4, 7)

    block = {"scale": Arg((256,)), "layers": stack(256, 1024, 256)}
    params = {"stem": [kernel(7, 7, 3, 64, dtype=F32), kernel(4, 4, 64, d, dtype=F32)]}
    params |= {"reads": Arg((1, 1, d)), "places": Arg((frames, patches, d)), "task": full(768, d)}
    params |= {"layers": [cubes(d)] * 3, "last": Arg((d,)), "speed": Arg((16,))}
    params |= {"time": stack(32, 64, 32), "in": full(32 + d + 28, 256), "blocks": [block] * 3}
    params |= {"out": full(256, 28)}
    given = (Arg((b, frames, 192, 192, 3), U8, below=256), Arg((b, words, 768)))
    yield "actions", program(actions, params, *given, Arg((b, words), I32), _KEY)


@jax.custom_jvp
def fired(x: Any) -> Any:
    """Whether a neuron fires, with a slope that is not zero."""
    return (x > 0).astype(x.dtype)


@fired.defjvp
def _(given: Any, ways: Any) -> Any:
    return fired(*given), ways[0] / (1 + 25 * jnp.abs(given[0])) ** 2


def neurons() -> Zoo:
    """Training of spiking neurons on spoken digits, as with Spyx."""
    rule = optax.lion(5e-4)
    times, b, d, n, classes = 64, 150, 140, 320, 20

    def spikes(state: Any, events: Any, labels: Any) -> Any:
        def loss(p: Any) -> Any:
            keep = jax.nn.sigmoid(p["keep"])
            x = events.astype(F32) @ p["in"]

            def step(carry: Any, x: Any) -> Any:
                (one, was), (two, spoke), out = carry
                one = keep[0] * one * (1 - was) + x + was @ p["turn"]
                was = fired(one - 1)
                two = keep[1] * two * (1 - spoke) + was @ p["up"]
                spoke = fired(two - 1)
                out = jax.nn.sigmoid(p["leak"]) * out + spoke @ p["head"]
                return ((one, was), (two, spoke), out), (out, was.mean() + spoke.mean())

            zero = jnp.zeros((b, n))
            start = ((zero, zero), (zero, zero), jnp.zeros((b, classes)))
            _, (outs, busy) = lax.scan(step, start, x)
            lost = optax.softmax_cross_entropy_with_integer_labels(outs.mean(0), labels)
            return lost.mean() + 0.1 * jnp.square(busy.mean() - 0.2)

        return learned(rule, loss, state)

    params = {"in": full(d, n), "turn": full(n, n), "up": full(n, n), "head": full(n, classes)}
    params |= {"keep": Arg((2, n)), "leak": Arg((classes,))}
    given = (Arg((times, b, d), U8), Arg((b,), I32, below=classes))
    yield "spikes", carried(spikes, started(rule, params), *given)


def cells() -> Zoo:
    """Training of cells on a grid that grow a picture by their neighbours, as in CAX."""
    rule = optax.adam(optax.piecewise_constant_schedule(2e-3, {2000: 0.1}))
    b, size, c = 7, 48, 16

    def grown(state: Any, seeds: Any, goal: Any, key: Any) -> Any:
        side = jnp.outer(jnp.array([1.0, 2.0, 1.0]), jnp.array([-1.0, 0.0, 1.0])) / 8
        one = jnp.zeros((3, 3)).at[1, 1].set(1.0)
        filters = jnp.stack([one, side, side.T], -1)
        filters = jnp.tile(filters[:, :, None], (1, 1, 1, c))

        def alive(x: Any) -> Any:
            return nn.max_pool(x[..., 3:4], (3, 3), padding="SAME") > 0.1

        def loss(p: Any) -> Any:
            def step(x: Any, key: Any) -> Any:
                was = alive(x)
                y = perceptron(convolved(x, filters, groups=c), p["layers"])
                moves = jax.random.bernoulli(key, 0.5, (*x.shape[:3], 1))
                x = x + y * moves
                return x * (was & alive(x)), None

            x, _ = lax.scan(step, seeds, jax.random.split(key, 24))
            return ((x[..., :4] - goal) ** 2).mean(), x

        learner = state
        (value, x), gradient = jax.value_and_grad(loss, has_aux=True)(learner[0])
        gradient = jax.tree.map(lambda g: g / (jnp.linalg.norm(g) + 1e-8), gradient)
        return applied(rule, *learner, gradient), (value, x)

    params = {"layers": stack(3 * c, 128, c)}
    given = (Arg((b, size, size, c), scale=0.2), Arg((size, size, 4)))
    yield "grown", carried(grown, started(rule, params), *given, _KEY)


def evolution() -> Zoo:
    """Three generations of CMA-ES on a turned function with many valleys, as in evosax."""
    d, many = 56, 192

    def covariance(state: Any, turn: Any, key: Any) -> Any:
        elite = many // 2
        shares = jnp.log(elite + 0.5) - jnp.log(jnp.arange(1, elite + 1))
        shares = shares / shares.sum()
        mass = 1 / (shares**2).sum()
        rate = (mass + 2) / (d + mass + 5)
        damp = 1 + rate + 2 * jnp.maximum(0, jnp.sqrt((mass - 1) / (d + 1)) - 1)
        slow = (4 + mass / d) / (d + 4 + 2 * mass / d)
        first = 2 / ((d + 1.3) ** 2 + mass)
        rest = jnp.minimum(1 - first, 2 * (mass - 2 + 1 / mass) / ((d + 2) ** 2 + mass))
        length = d**0.5 * (1 - 1 / (4 * d) + 1 / (21 * d**2))

        def valleys(x: Any) -> Any:
            x = turn @ x
            return 10 * d + (x**2 - 10 * jnp.cos(2 * jnp.pi * x)).sum()

        def generation(state: Any, key: Any) -> Any:
            mean, sigma, spread, path, steps, age = state
            spread = (spread + spread.T) / 2
            squares, axes = jnp.linalg.eigh(spread)
            sizes = jnp.sqrt(jnp.maximum(squares, 1e-10))
            z = jax.random.normal(key, (many, d))
            y = (axes @ jnp.diag(sizes) @ z.T).T
            lost = jax.vmap(valleys)(mean + sigma * y)
            y = y[jnp.argsort(lost)[:elite]]
            move = shares @ y
            mean = mean + sigma * move
            back = axes @ jnp.diag(1 / sizes) @ axes.T
            steps = (1 - rate) * steps + jnp.sqrt(rate * (2 - rate) * mass) * (back @ move)
            long = jnp.linalg.norm(steps)
            calm = long / jnp.sqrt(1 - (1 - rate) ** (2 * (age + 1))) < (1.4 + 2 / (d + 1)) * length
            path = (1 - slow) * path + calm * jnp.sqrt(slow * (2 - slow) * mass) * move
            loss = (1 - calm) * slow * (2 - slow)
            spread = (1 - first - rest + first * loss) * spread + first * jnp.outer(path, path)
            spread = spread + rest * jnp.einsum("n,ni,nj->ij", shares, y, y)
            sigma = sigma * jnp.exp(jnp.minimum(1.0, (long / length - 1) * rate / damp))
            return (mean, sigma, spread, path, steps, age + 1), lost.min()

        return lax.scan(generation, state, jax.random.split(key, 3))

    spread = Arg((d, d), scale=0.01, identity=1.0)
    state = (Arg((d,)), Arg(()), spread, *[Arg((d,), scale=0.0)] * 2, Arg((), I32, below=9))
    yield "covariance", carried(covariance, state, full(d, d), _KEY)


def transport() -> Zoo:
    """Gromov-Wasserstein plans of OTT-JAX: five problems, each by twelve of Sinkhorn's rounds."""

    def structures(x: Any, y: Any, ours: Any, theirs: Any) -> Any:
        def gaps(x: Any) -> Any:
            square = (x * x).sum(-1)
            return jnp.maximum(square[:, None] + square - 2 * x @ x.T, 0.0)

        a, b = jax.nn.softmax(ours), jax.nn.softmax(theirs)
        one, two = gaps(x), gaps(y)
        fixed = ((one**2) @ a)[:, None] + (two**2) @ b

        def outer(plan: Any, _: Any) -> Any:
            cost = fixed - 2 * one @ plan @ two.T
            scale = 0.05 * jnp.abs(cost).mean()

            def inner(carry: Any, _: Any) -> Any:
                f, g = carry
                g = g + scale * (jnp.log(b) - jax.nn.logsumexp((f[:, None] + g - cost) / scale, 0))
                f = f + scale * (jnp.log(a) - jax.nn.logsumexp((f[:, None] + g - cost) / scale, 1))
                return (f, g), None

            (f, g), _ = lax.scan(inner, (jnp.zeros_like(a), jnp.zeros_like(b)), None, 12)
            plan = jnp.exp((f[:, None] + g - cost) / scale)
            return plan, (jnp.abs(plan.sum(0) - b).sum(), (plan * cost).sum())

        return lax.scan(outer, a[:, None] * b, None, 5)

    given = (Arg((610, 9)), Arg((530, 14)), Arg((610,), scale=0.1), Arg((530,), scale=0.1))
    yield "structures", program(structures, *given)


def cosmology() -> Zoo:
    """How well lensing tells five numbers, as with jax-cosmo, and JaxPM's universe in a box."""
    ells, depths, bins = 47, 192, 4

    def lensing(guess: Any, peaks: Any) -> Any:
        lengths = jnp.logspace(1, 3.4, ells)
        z = jnp.linspace(0.02, 3.0, depths)
        pairs = jnp.triu_indices(bins)

        def simpson(y: Any, x: Any) -> Any:
            part = jnp.ones(x.shape[0]).at[1:-1:2].set(4.0).at[2:-1:2].set(2.0)
            return (y * part).sum(-1) * (x[1] - x[0]) / 3

        def spectra(p: Any) -> Any:
            matter, baryon, h = 0.3 * jnp.exp(p[0]), 0.05 * jnp.exp(p[1]), 0.7 * jnp.exp(p[2])
            tilt, height = 0.96 * jnp.exp(p[3]), 0.8 * jnp.exp(p[4])

            def speed(a: Any) -> Any:
                return jnp.sqrt(matter * a**-3 + 1 - matter)

            def change(log: Any, y: Any) -> Any:
                a = jnp.exp(log)
                omega = matter * a**-3 / speed(a) ** 2
                far = -2998.0 / (a * speed(a))
                return jnp.stack([y[1], 1.5 * omega * y[0] - (2 - 1.5 * omega) * y[1], far])

            logs = jnp.linspace(jnp.log(1e-2), 0.0, 129)
            step = logs[1] - logs[0]

            def runge(y: Any, log: Any) -> Any:
                one = change(log, y)
                two = change(log + step / 2, y + step / 2 * one)
                three = change(log + step / 2, y + step / 2 * two)
                four = change(log + step, y + step * three)
                return y + step / 6 * (one + 2 * two + 2 * three + four), y

            last, seen = lax.scan(runge, jnp.array([1e-2, 1e-2, 0.0]), logs[:-1])
            seen = jnp.concatenate([seen, last[None]])
            at = -jnp.log1p(z)
            growth = jnp.interp(at, logs, seen[:, 0] / last[0])
            chi = jnp.interp(at, logs, seen[:, 2] - last[2])

            def transfer(k: Any) -> Any:
                shape = matter * h * jnp.exp(-baryon * (1 + jnp.sqrt(2 * h) / matter))
                q = k / shape
                more = 14.2 + 731 / (1 + 62.5 * q)
                log = jnp.log(2 * jnp.e + 1.8 * q)
                return log / (log + more * q * q)

            k = jnp.logspace(-4, 1.5, 513)
            power = k**tilt * transfer(k) ** 2
            x = 8 * k
            window = 3 * (jnp.sin(x) - x * jnp.cos(x)) / x**3
            sigma = simpson(k**3 * power * window**2, jnp.log(k)) / (2 * jnp.pi**2)
            power = power * height**2 / sigma
            shape = z**2 * jnp.exp(-(((z - 0.3 * peaks[:, None]) / 0.4) ** 2))
            shape = shape / simpson(shape, z)[:, None]
            ahead = jnp.maximum(1 - chi[:, None] / chi, 0.0)
            lens = 1.5 * matter * chi * (1 + z) / 2998.0**2 * simpson(shape[:, None] * ahead, z)
            wave = (lengths[:, None] + 0.5) / chi
            found = jnp.exp(jnp.interp(jnp.log(wave), jnp.log(k), jnp.log(power))) * growth**2
            both = lens[pairs[0]] * lens[pairs[1]]
            measure = 2998.0 / (speed(1 / (1 + z)) * chi**2)
            return simpson(found[:, None] * both * measure, z)

        means, slopes = spectra(guess), jax.jacfwd(spectra)(guess)
        whole = jnp.zeros((ells, bins, bins)).at[:, pairs[0], pairs[1]].set(means)
        whole = whole.at[:, pairs[1], pairs[0]].set(means) + 3e-9 * jnp.eye(bins)
        i, j = pairs
        one = whole[:, i[:, None], i] * whole[:, j[:, None], j]
        two = whole[:, i[:, None], j] * whole[:, j[:, None], i]
        wide = (one + two) * 1e16 / ((2 * lengths + 1) * 0.25 * 30)[:, None, None]
        fisher = jnp.einsum("lap,lab,lbq->pq", slopes * 1e8, jnp.linalg.inv(wide), slopes * 1e8)
        return means, jnp.linalg.inv(fisher)

    yield "lensing", program(lensing, Arg((5,), scale=0.01), Arg((bins,)))

    n = 80

    def mesh(state: Any, factors: Any) -> Any:
        """Particles are shared among eight points, which pull them by a potential: two leaps."""
        corners = jnp.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)])
        waves = [2 * jnp.pi * jnp.fft.fftfreq(n)] * 2 + [2 * jnp.pi * jnp.fft.rfftfreq(n)]
        waves = jnp.meshgrid(*waves, indexing="ij", sparse=True)
        square = sum(k**2 for k in waves)

        def near(at: Any) -> Any:
            low = jnp.floor(at)[:, None] + corners
            share = (1 - jnp.abs(at[:, None] - low)).prod(-1)
            index = low.astype(I32) % n
            return (index[..., 0], index[..., 1], index[..., 2]), share

        def leap(state: Any, factor: Any) -> Any:
            at, speed = state
            at = at + factor * speed
            index, share = near(at)
            field = jnp.zeros((n, n, n)).at[index].add(share) - 1
            field = jnp.fft.rfftn(field)
            field = jnp.where(square > 0, -field / jnp.maximum(square, 1e-6), 0)
            pulls = []
            for k in waves:
                slope = jnp.fft.irfftn(1j * (8 * jnp.sin(k) - jnp.sin(2 * k)) / 6 * field, (n,) * 3)
                pulls.append((slope[index] * share).sum(-1))
            return (at, speed - factor * jnp.stack(pulls, -1)), (field.real**2).mean()

        return lax.scan(leap, state, factors)

    state = (Arg((n**3, 3), scale=20.0), Arg((n**3, 3), scale=0.1))
    yield "mesh", carried(mesh, state, Arg((2,), scale=0.1))


def posteriors() -> Zoo:
    """BlackJAX's tempered particles of a regression: five heats, two moves of four leaps each."""
    many, d, n = 700, 13, 883

    def tempered(particles: Any, x: Any, y: Any, key: Any) -> Any:
        def likely(w: Any) -> Any:
            return -jnp.logaddexp(0.0, -(2 * y - 1) * (x @ w[:-1] + w[-1])).sum()

        def prior(w: Any) -> Any:
            return -(w**2).sum() / 8

        def heated(particles: Any, given: Any) -> Any:
            low, heat, key = given
            drawn, *keys = jax.random.split(key, 3)
            logs = (heat - low) * jax.vmap(likely)(particles)
            shares = jax.nn.softmax(logs)
            at = (jnp.arange(many) + jax.random.uniform(drawn)) / many
            index = jnp.clip(jnp.searchsorted(jnp.cumsum(shares), at), 0, many - 1)

            def potential(w: Any) -> Any:
                return -prior(w) - heat * likely(w)

            def moved(w: Any, key: Any) -> Any:
                one, two = jax.random.split(key)
                speed = jax.random.normal(one, w.shape)

                def leap(carry: Any, _: Any) -> Any:
                    w, speed, slope, _ = carry
                    speed = speed - 0.01 * slope
                    w = w + 0.02 * speed
                    value, slope = jax.value_and_grad(potential)(w)
                    return (w, speed - 0.01 * slope, slope, value), None

                value, slope = jax.value_and_grad(potential)(w)
                (new, last, _, after), _ = lax.scan(leap, (w, speed, slope, value), None, 4)
                gain = value - after + (speed @ speed - last @ last) / 2
                yes = jnp.log(jax.random.uniform(two)) < gain
                return jnp.where(yes, new, w), jnp.exp(jnp.minimum(gain, 0.0))

            def move(particles: Any, key: Any) -> Any:
                return jax.vmap(moved)(particles, jax.random.split(key, many))

            particles, odds = lax.scan(move, particles[index], jnp.stack(keys))
            return particles, (jax.nn.logsumexp(logs) - jnp.log(many), odds.mean())

        heats = jnp.linspace(0, 1, 6) ** 2
        return lax.scan(heated, particles, (heats[:-1], heats[1:], jax.random.split(key, 5)))

    given = (Arg((n, d)), Arg((n,), I32), _KEY)
    yield "tempered", carried(tempered, Arg((many, d + 1)), *given)


def flows() -> Zoo:
    """Samples of two masked autoregressive layers, value by value, as in FlowJAX."""
    b, d, n = 3000, 26, 160

    def inverted(layers: Any, z: Any) -> Any:
        inner = jnp.arange(n) % (d - 1)
        masks = (
            inner[None] >= jnp.arange(d)[:, None],
            inner[None] >= inner[:, None],
            jnp.tile(jnp.arange(d), 2)[None] > inner[:, None],
        )

        def network(p: Any, x: Any) -> Any:
            for number, ((w, shift), mask) in enumerate(zip(p, masks, strict=True)):
                x = x @ jnp.where(mask, w, 0.0) + shift
                x = jnp.tanh(x) if number < 2 else x
            return jnp.split(x, 2, -1)

        def layer(carry: Any, p: Any) -> Any:
            z, total = carry

            def value(n: Any, x: Any) -> Any:
                shift, log = network(p, x)
                new = (z * jax.nn.softplus(log) + shift)[:, n]
                return x.at[:, n].set(new)

            x = lax.fori_loop(0, d, value, jnp.zeros_like(z))
            _, log = network(p, x)
            total = total - jnp.log(jax.nn.softplus(log)).sum(-1)
            return (x[:, ::-1], total), None

        start = (z, -(z * z).sum(-1) / 2 - d / 2 * jnp.log(2 * jnp.pi))
        return lax.scan(layer, start, layers)[0]

    yield "inverted", program(inverted, repeated(2, stack(d, n, n, 2 * d)), Arg((b, d)))


def equations() -> Zoo:
    """Training: Diffrax's neural controlled equation, and a network that solves Allen-Cahn's."""
    rule = optax.adam(1e-2)
    b, times, c, d = 200, 48, 4, 12

    def controlled(state: Any, splines: Any, starts: Any, labels: Any) -> Any:
        """Heun's steps along cubic pieces of the data."""

        def loss(p: Any) -> Any:
            def field(y: Any) -> Any:
                y = jnp.tanh(perceptron(y, p["field"], jax.nn.softplus))
                return y.reshape(*y.shape[:-1], d, c)

            def step(y: Any, piece: Any) -> Any:
                one, two, three = piece
                first = jnp.einsum("bdc,bc->bd", field(y), one)
                last = one + 2 * two + 3 * three
                second = jnp.einsum("bdc,bc->bd", field(y + first), last)
                return y + (first + second) / 2, None

            y = perceptron(starts, p["start"], jax.nn.softplus)
            y, _ = lax.scan(step, y, splines)
            logits = (y @ p["head"])[:, 0]
            return optax.sigmoid_binary_cross_entropy(logits, labels).mean()

        return learned(rule, loss, state)

    params = {"field": stack(d, 128, d * c), "start": stack(c, 128, d), "head": full(d, 1)}
    given = ([Arg((times, b, c), scale=0.1)] * 3, Arg((b, c)), Arg((b,), I32))
    yield "controlled", carried(controlled, started(rule, params), *given)

    slow = optax.adam(optax.exponential_decay(1e-3, 2000, 0.9))
    points, chunks, n = 3072, 24, 224

    def informed(state: Any, starts: Any, weights: Any, key: Any) -> Any:
        """Slopes of slopes at drawn points; later times count once earlier ones are learnt."""

        def dense(x: Any, layer: Any) -> Any:
            return x @ (layer["size"] * layer["way"]) + layer["shift"]

        def network(p: Any, t: Any, x: Any) -> Any:
            y = jnp.stack([t, jnp.cos(jnp.pi * x), jnp.sin(jnp.pi * x)])
            y = y @ p["speed"]
            y = jnp.concatenate([jnp.cos(y), jnp.sin(y)])
            one, two = (jnp.tanh(dense(y, layer)) for layer in p["gates"])
            for layer in p["layers"]:
                y = jnp.tanh(dense(y, layer))
                y = y * one + (1 - y) * two
            return dense(y, p["last"])[0]

        def left(p: Any, t: Any, x: Any) -> Any:
            u = network(p, t, x)
            by_time = jax.grad(network, 1)(p, t, x)
            bend = jax.grad(jax.grad(network, 2), 2)(p, t, x)
            return by_time + 5 * u**3 - 5 * u - 1e-4 * bend

        one, two = jax.random.split(key)
        t = jnp.sort(jax.random.uniform(one, (points,)))
        x = jax.random.uniform(two, (points,), minval=-1, maxval=1)

        def loss(p: Any) -> Any:
            at = jnp.linspace(-1, 1, starts.shape[0])
            found = jax.vmap(network, (None, None, 0))(p, 0.0, at)
            lost = jax.vmap(left, (None, 0, 0))(p, t, x)
            lost = (lost.reshape(chunks, -1) ** 2).mean(1)
            sums = jnp.tril(jnp.ones((chunks, chunks)), -1)
            shares = lax.stop_gradient(jnp.exp(-1.0 * sums @ lost))
            both = jnp.stack([((found - starts) ** 2).mean(), (lost * shares).mean()])
            return (both * weights).sum()

        return learned(slow, loss, state)

    def factored(a: int, b: int) -> dict[str, Arg]:
        return {"size": Arg((b,)), "way": full(a, b), "shift": Arg((b,), scale=0.1)}

    params = {"speed": Arg((3, n // 2), scale=2.0), "gates": [factored(n, n)] * 2}
    params |= {"layers": [factored(n, n)] * 3, "last": factored(n, 1)}
    given = (Arg((512,)), Arg((2,)), _KEY)
    yield "informed", carried(informed, started(slow, params), *given)


def wavefunctions() -> Zoo:
    """Training of a Boltzmann machine as the state of spins, as in NetKet with minSR."""
    spins, hidden, chains, samples = 36, 72, 128, 6

    def machine(state: Any, key: Any) -> Any:
        params, x = state

        def log(p: Any, x: Any) -> Any:
            y = x @ p["w"] + p["b"]
            y = jnp.abs(y) + jnp.log1p(jnp.exp(-2 * jnp.abs(y))) - jnp.log(2.0)
            return y.sum(-1) + x @ p["a"]

        def flip(carry: Any, key: Any) -> Any:
            x, value = carry
            one, two = jax.random.split(key)
            at = jax.random.randint(one, (chains,), 0, spins)
            new = x.at[jnp.arange(chains), at].multiply(-1)
            after = log(params, new)
            yes = jnp.log(jax.random.uniform(two, (chains,))) < 2 * (after - value)
            return (jnp.where(yes[:, None], new, x), jnp.where(yes, after, value)), yes.mean()

        def sample(carry: Any, key: Any) -> Any:
            carry, taken = lax.scan(flip, carry, jax.random.split(key, spins))
            return carry, (carry[0], taken.mean())

        x = jnp.where(x > 0, 1.0, -1.0)
        start = (x, log(params, x))
        (x, _), (seen, taken) = lax.scan(sample, start, jax.random.split(key, samples))
        seen = seen.reshape(-1, spins)
        flips = seen[:, None] * (1 - 2 * jnp.eye(spins))
        ratios = jnp.exp(log(params, flips) - log(params, seen)[:, None])
        energy = -(seen * jnp.roll(seen, 1, -1)).sum(-1) - ratios.sum(-1)
        flat, restored = ravel_pytree(params)
        slopes = jax.vmap(jax.grad(lambda w, x: log(restored(w), x)), (None, 0))(flat, seen)
        count = seen.shape[0]
        slopes = (slopes - slopes.mean(0)) / count**0.5
        gap = (energy - energy.mean()) / count**0.5
        matrix = slopes @ slopes.T + 1e-2 * jnp.eye(count)
        solved = solve(matrix, gap, assume_a="pos")
        params = restored(flat - 0.02 * slopes.T @ solved)
        return (params, x), (energy.mean(), energy.var(), taken.mean())

    params = {"w": Arg((spins, hidden), scale=0.01), "b": Arg((hidden,), scale=0.01)}
    params |= {"a": Arg((spins,), scale=0.01)}
    yield "machine", carried(machine, (params, Arg((chains, spins))), _KEY)


def packings() -> Zoo:
    """Soft discs of two sizes that come to rest by FIRE, as in JAX MD: 36 steps."""
    n = 750

    def rest(state: Any, kinds: Any) -> Any:
        box = (n * 0.9) ** 0.5
        widths = jnp.array([[1.0, 1.2], [1.2, 1.4]])[kinds[:, None], kinds]

        def energy(x: Any) -> Any:
            gap = x[:, None] - x
            gap = jnp.mod(gap + box / 2, box) - box / 2
            square = (gap**2).sum(-1)
            far = jnp.sqrt(jnp.where(square > 0, square, 1.0))
            near = jnp.where((square > 0) & (far < widths), (1 - far / widths) ** 2 / 2, 0.0)
            return near.sum() / 2

        force = jax.grad(lambda x: -energy(x))

        def step(_: Any, state: Any) -> Any:
            x, speed, pull, rate, mix, good = state
            x = jnp.mod(x + rate * speed + rate**2 / 2 * pull, box)
            new = force(x)
            speed = speed + rate / 2 * (pull + new)
            power = (new * speed).sum()
            lengths = [jnp.sqrt((y**2).sum() + 1e-6) for y in (new, speed)]
            speed = speed + mix * (new * lengths[1] / lengths[0] - speed)
            good = jnp.where(power >= 0, good + 1, 0)
            fast = (power >= 0) & (good > 5)
            rate = jnp.where(fast, jnp.minimum(rate * 1.1, 0.4), rate)
            rate = jnp.where(power < 0, rate * 0.5, rate)
            mix = jnp.where(power < 0, 0.1, jnp.where(fast, mix * 0.99, mix))
            return x, speed * (power >= 0), new, rate, mix, good

        state = lax.fori_loop(0, 36, step, state)
        return state, energy(state[0])

    state = (Arg((n, 2), scale=10.0), *[Arg((n, 2), scale=0.0)] * 2, *[Arg((), scale=0.1)] * 2)
    yield "rest", carried(rest, (*state, Arg((), I32, below=5)), Arg((n,), I32))


def oceans() -> Zoo:
    """Two steps of an ocean: limited fluxes, pressure, and mixing upwards as in Veros."""
    east, north, deep = 140, 104, 30

    def stirred(state: Any, depths: Any, mask: Any) -> Any:
        wet = (jnp.abs(mask) > 0.1).astype(F32)[..., None]
        thick = 1 + jnp.abs(depths)

        def flux(x: Any, speed: Any, axis: int) -> Any:
            before, after = jnp.roll(x, 1, axis), jnp.roll(x, -1, axis)
            beyond = jnp.roll(x, -2, axis)
            step = after - x
            behind = jnp.where(speed > 0, x - before, beyond - after)
            ratio = behind / jnp.where(jnp.abs(step) < 1e-20, 1e-20, step)
            limit = jnp.maximum(jnp.minimum(2 * ratio, 1.0), jnp.minimum(ratio, 2.0))
            limit = jnp.maximum(limit, 0.0)
            size = jnp.abs(speed) * 0.1
            flow = (
                speed * (after + x) / 2 - jnp.abs(speed) * ((1 - limit) + size * limit) * step / 2
            )
            return flow - jnp.roll(flow, 1, axis)

        def solved(low: Any, middle: Any, high: Any, given: Any) -> Any:
            """Thomas' algorithm along the depth."""

            def down(carry: Any, row: Any) -> Any:
                c, d = carry
                low, middle, high, given = row
                share = 1 / (middle - low * c)
                new = (high * share, (given - low * d) * share)
                return new, new

            def up(x: Any, row: Any) -> Any:
                x = row[1] - row[0] * x
                return x, x

            rows = [jnp.moveaxis(part, -1, 0) for part in (low, middle, high)]
            given = jnp.moveaxis(given, -1, 0)
            start = (jnp.zeros_like(rows[0][0]), jnp.zeros_like(given[0]))
            _, kept = lax.scan(down, start, (*rows, given))
            _, x = lax.scan(up, jnp.zeros_like(given[0]), kept, reverse=True)
            return jnp.moveaxis(x, 0, -1)

        def step(_: Any, state: Any) -> Any:
            heat, salt, u, v = state
            dense = -0.15 * heat - 4.9e-3 * heat**2 + 0.78 * salt - 2e-3 * heat * salt
            pressure = jnp.cumsum((dense * thick)[..., ::-1], -1)[..., ::-1] * 1e-3
            stable = jnp.diff(dense, axis=-1, append=dense[..., -1:]) / thick
            shear = sum(jnp.diff(x, axis=-1, append=x[..., -1:]) ** 2 for x in (u, v))
            rich = stable / (shear + 1e-6)
            mixed = jnp.where(stable < 0, 1.0, 0.01 / (1 + 5 * jnp.maximum(rich, 0)) ** 2) + 1e-4
            w = -jnp.cumsum(u - jnp.roll(u, 1, 0) + v - jnp.roll(v, 1, 1), -1)
            w = jnp.clip(w, -1, 1)

            def carried_by(x: Any) -> Any:
                return x - 0.1 * wet * (flux(x, u, 0) + flux(x, v, 1) + flux(x, w, 2))

            turn = 1e-2 * jnp.linspace(-1, 1, north)[:, None]
            new_u = u + wet * (turn * v - 0.1 * (jnp.roll(pressure, -1, 0) - pressure))
            new_v = v - wet * (turn * u + 0.1 * (jnp.roll(pressure, -1, 1) - pressure))
            given = jnp.stack([carried_by(heat), carried_by(salt), new_u, new_v])
            high = -mixed.at[..., -1].set(0.0) / thick
            low = -jnp.pad(mixed[..., :-1], ((0, 0), (0, 0), (1, 0))) / thick
            return solved(low, 1 - low - high, high, given)

        state = lax.fori_loop(0, 2, step, state)
        return state, (state[2:] ** 2).sum()

    given = (Arg((deep,)), Arg((east, north)))
    yield "stirred", carried(stirred, Arg((4, east, north, deep), scale=0.1), *given)


def residues() -> Zoo:
    """AlphaFold's structure module: frames of residues, moved by attention to points, six times."""
    n, d, c, heads, size, asked, told = 181, 384, 128, 12, 16, 4, 8

    def points(params: Any, x: Any, pair: Any) -> Any:
        p = params
        x = norm(x, p["scale"][0]) @ p["in"]
        wide = pair - pair.mean(-1, keepdims=True)
        pair = wide * lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * p["near"]

        def turns(q: Any) -> Any:
            w, x, y, z = jnp.moveaxis(q * lax.rsqrt((q * q).sum(-1, keepdims=True)), -1, 0)
            rows = (
                (w * w + x * x - y * y - z * z, 2 * (x * y - w * z), 2 * (x * z + w * y)),
                (2 * (x * y + w * z), w * w - x * x + y * y - z * z, 2 * (y * z - w * x)),
                (2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z),
            )
            return jnp.stack([jnp.stack(row, -1) for row in rows], -2)

        def fold(carry: Any, _: Any) -> Any:
            x, turn, shift = carry
            q = (x @ p["q"]).reshape(n, heads, size)
            k, v = jnp.split((x @ p["kv"]).reshape(n, heads, 2 * size), 2, -1)

            def placed(w: Any, count: int) -> Any:
                y = (x @ w).reshape(n, heads, count, 3)
                return jnp.einsum("nij,nhpj->nhpi", turn, y) + shift[:, None, None]

            ask, answer = placed(p["ask"], asked), placed(p["tell"], asked + told)
            answer, value = answer[:, :, :asked], answer[:, :, asked:]
            square = ((ask[:, None] - answer) ** 2).sum((-1, -2))
            logits = jnp.einsum("qhd,khd->qkh", q, k) * (1 / (3 * size)) ** 0.5
            logits = logits + (pair @ p["bias"]) * (1 / 3) ** 0.5
            gain = jax.nn.softplus(p["gain"]) * (1 / (3 * 4.5 * asked)) ** 0.5
            shares = jax.nn.softmax(logits - gain / 2 * square, 1)
            found = jnp.einsum("qkh,khpi->qhpi", shares, value) - shift[:, None, None]
            found = jnp.einsum("nji,nhpj->nhpi", turn, found)
            parts = (
                jnp.einsum("qkh,khd->qhd", shares, v),
                found,
                jnp.sqrt((found**2).sum(-1) + 1e-8),
                jnp.einsum("qkh,qkc->qhc", shares, pair),
            )
            y = jnp.concatenate([part.reshape(n, -1) for part in parts], -1)
            x = norm(x + y @ p["out"], p["scale"][1])
            x = norm(x + perceptron(x, p["step"]), p["scale"][2])
            moves = x @ p["move"]
            new = turns(jnp.concatenate([jnp.ones((n, 1)), moves[:, :3]], -1))
            shift = shift + jnp.einsum("nij,nj->ni", turn, moves[:, 3:])
            return (x, turn @ new, shift), shift

        start = (x, jnp.broadcast_to(jnp.eye(3), (n, 3, 3)), jnp.zeros((n, 3)))
        (x, turn, shift), path = lax.scan(fold, start, None, 6)
        y = jax.nn.relu(x) @ p["side"]
        for layers in p["blocks"]:
            y = y + perceptron(jax.nn.relu(y), layers)
        angles = (jax.nn.relu(y) @ p["angles"]).reshape(n, 7, 2)
        angles = angles * lax.rsqrt(jnp.maximum((angles**2).sum(-1, keepdims=True), 1e-6))
        bins = perceptron(norm(x, p["scale"][3]), p["sure"])
        return turn, shift, path, angles, jax.nn.softmax(bins) @ jnp.linspace(1, 99, 50)

    params = {"in": full(d, d), "q": full(d, heads * size), "kv": full(d, 2 * heads * size)}
    params |= {"ask": full(d, heads * asked * 3), "tell": full(d, heads * (asked + told) * 3)}
    params |= {"bias": full(c, heads), "gain": Arg((heads,)), "near": Arg((c,))}
    params |= {"out": full(heads * (size + 4 * told + c), d), "step": stack(d, d, d, d)}
    params |= {"move": full(d, 6), "side": full(d, c), "blocks": [stack(c, c, c)] * 2}
    params |= {"angles": full(c, 14), "sure": stack(d, c, c, 50), "scale": Arg((4, d))}
    yield "points", program(points, params, Arg((n, d)), Arg((n, n, c)))
