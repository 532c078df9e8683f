"""A twentieth zoo: mainstream steps of machine learning, kernels through Triton, numerics.

It was written without a look at the predictor or its calibration, to be timed once: no
calibration and no fit has used its programs.
"""

import math
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import optax
from eleventh import learned, started
from flax import linen as nn
from fourth import program, weight
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from ninth import carried
from seventeenth import (
    adamw,
    adamw_start,
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
    rms,
    rope,
    swiglu,
    swiglu_weights,
    times,
)
from tenth import applied, states_of

from xlapipe.running.calibration.timed_program import Arg, TimedProgram

F32, BF16, I32 = jnp.float32, jnp.bfloat16, jnp.int32
I8, U8, U32 = jnp.int8, jnp.uint8, jnp.uint32
Zoo = Iterator[tuple[str, TimedProgram]]
_KEY = Arg((2,), U32, below=1 << 30)


def twentieth_programs() -> dict[str, TimedProgram]:
    """Every program, by FAMILY/NAME."""
    families = (
        *(teachers, cached, softened, corrupted, waveforms, subjects, interpolants, tokenizers),
        *(depths, judges, activations, sequencers, reconstruction, forces, feeds, players_of_atari),
        *(banded, absorbed, chunkwise, normed, hashed, stencils, pruned, nibbles),
        *(alloys, lattices_of_prices, sketches, arrays, bundles, splashes, photographs, paths),
    )
    return {
        f"{family.__name__}/{name}": program for family in families for name, program in family()
    }


def full(*sizes: int) -> Any:
    """Weights and shifts of a perceptron."""
    return [(master(a, b), Arg((b,), scale=0.1)) for a, b in pairwise(sizes)]


def perceptron(x: Any, layers: Any, bend: Any = jax.nn.relu) -> Any:
    """Its answer."""
    for w, b in layers[:-1]:
        x = bend(x @ w + b)
    w, b = layers[-1]
    return x @ w + b


def vit_weights(d: int, make: Any = master, wide: int = 4) -> dict[str, Any]:
    """A layer of a vision transformer."""
    layer = {"qkv": make(d, 3 * d), "b_qkv": Arg((3 * d,), scale=0.02), "out": make(d, d)}
    layer |= {"up": make(d, wide * d), "b_up": Arg((wide * d,), scale=0.02)}
    return layer | {"down": make(wide * d, d), "scale": Arg((2, d)), "shift": Arg((2, d))}


def vit(x: Any, p: Any, size: int = 64, mask: Any = None) -> Any:
    """A layer that is normed first."""
    y = layer_norm(x, p["scale"][0], p["shift"][0])
    q, k, v = jnp.split(heads(y @ p["qkv"] + p["b_qkv"].astype(y.dtype), size), 3, 2)
    x = x + attention(q, k, v, mask) @ p["out"]
    y = layer_norm(x, p["scale"][1], p["shift"][1])
    return x + jax.nn.gelu(y @ p["up"] + p["b_up"].astype(y.dtype)) @ p["down"]


# ------------------------------------------------------------------------------- machine learning


def teachers() -> Zoo:
    """I-JEPA: patches of four blocks are guessed from the rest, as a slower teacher sees them."""
    b, n, kept, blocks, many, d, thin = 64, 196, 96, 4, 30, 384, 192
    rule = optax.adamw(1e-3, weight_decay=0.04)

    def encoded(p: Any, patches: Any, ids: Any = None) -> Any:
        x = patches @ p["in"] + p["places"]
        if ids is not None:
            x = jnp.take_along_axis(x, ids[..., None], 1)
        x, _ = lax.scan(lambda x, q: (vit(x, q), None), x, p["layers"])
        return layer_norm(x, p["last"])

    def step(state: Any, patches: Any, ids: Any, goals: Any) -> Any:
        params, teacher, moments = state
        goal = layer_norm(encoded(half(teacher), patches))
        goal = jax.vmap(lambda x, i: x[i])(goal, goals).astype(F32)

        def loss(params: Any) -> Any:
            p = half(params)
            x = encoded(p["student"], patches, ids) @ p["thin"]
            x = x + p["spots"][ids]
            asked = p["mask"] + p["spots"][goals]
            x = jnp.broadcast_to(x[:, None], (b, blocks, kept, thin))
            x = jnp.concatenate([x, asked], 2).reshape(b * blocks, kept + many, thin)
            x, _ = lax.scan(lambda x, q: (vit(x, q, 32), None), x, p["guess"])
            x = layer_norm(x[:, kept:], p["end"]) @ p["wide"]
            error = x.astype(F32).reshape(goal.shape) - goal
            return optax.huber_loss(error).mean()

        value, slopes = jax.value_and_grad(loss)(params)
        params, moments = applied(rule, params, moments, slopes)
        slow = jax.tree.map(lambda t, w: 0.996 * t + 0.004 * w, teacher, params["student"])
        return (params, slow, moments), value

    student = {"in": master(768, d), "places": Arg((n, d), scale=0.02), "last": Arg((d,))}
    student |= {"layers": times(12, vit_weights(d))}
    params = {"student": student, "thin": master(d, thin), "spots": Arg((n, thin), scale=0.02)}
    params |= {"mask": Arg((thin,), scale=0.02), "guess": times(6, vit_weights(thin))}
    params |= {"end": Arg((thin,)), "wide": master(thin, d)}
    state = (params, student, states_of(rule, params))
    given = (Arg((b, n, 768), BF16), Arg((b, kept), I32, below=n))
    yield "jepa", carried(step, state, *given, Arg((b, blocks, many), I32, below=n))


def cached() -> Zoo:
    """A token of 24 replies of Llama 3.2, whose keys and values are kept in int8."""
    b, most, d, h, g, size, words, depth = 24, 3072, 3072, 24, 8, 128, 128256, 5

    def small(x: Any) -> Any:
        most = jnp.abs(x.astype(F32)).max(-1, keepdims=True) / 127 + 1e-6
        return jnp.round(x.astype(F32) / most).astype(I8), most[..., 0].astype(BF16)

    def token(caches: Any, params: Any, tokens: Any, lengths: Any) -> Any:
        lengths = 500 + lengths
        rows = jnp.arange(b)
        seen = jnp.arange(most) <= lengths[:, None]
        x = params["table"][tokens]
        new = []
        for p, old in zip(params["layers"], caches, strict=True):
            y = rms(x, p["scale"][0])
            q, k, v = jnp.split(heads(y @ p["qkv"], size), [h, h + g], 1)
            q, k = rope(q, lengths, 5e5), rope(k, lengths, 5e5)
            parts = (*small(k), *small(v))
            cache = tuple(c.at[rows, lengths].set(part) for c, part in zip(old, parts, strict=True))
            new.append(cache)
            keys, key_scale, values, value_scale = cache
            q = q.reshape(b, g, h // g, size)
            scores = jnp.einsum("bgrd,bsgd->bgrs", q, keys.astype(BF16)).astype(F32)
            scores = scores * key_scale.transpose(0, 2, 1)[:, :, None] * size**-0.5
            scores = jnp.where(seen[:, None, None], scores, -1e30)
            shares = jax.nn.softmax(scores, -1)
            shares = (shares * value_scale.transpose(0, 2, 1)[:, :, None]).astype(BF16)
            y = jnp.einsum("bgrs,bsgd->bgrd", shares, values.astype(BF16))
            x = x + y.reshape(b, -1) @ p["out"]
            x = x + swiglu(rms(x, p["scale"][1]), p)
        logits = (rms(x, params["last"]) @ params["table"].T).astype(F32)
        return new, logits.argmax(-1)

    layer = {"qkv": weight(d, (h + 2 * g) * size), "out": weight(h * size, d)}
    layer |= swiglu_weights(d, 8192, weight) | {"scale": Arg((2, d))}
    params = {"layers": [layer] * depth, "table": Arg((words, d), BF16, 0.02), "last": Arg((d,))}
    cache = (Arg((b, most, g, size), I8, below=100), Arg((b, most, g), BF16, 0.01)) * 2
    given = (Arg((b,), I32, below=words), Arg((b,), I32, below=2500))
    yield "int8_keys", carried(token, [cache] * depth, params, *given)


def softened() -> Zoo:
    """Soft MoE: slots are means of the patches, and 48 experts read two slots each."""
    b, n, d, experts, slots, wide = 96, 196, 512, 48, 2, 1024
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, mu_dtype=BF16))

    def soft(x: Any, p: Any) -> Any:
        y = layer_norm(x, p["scale"][0], p["shift"][0])
        q, k, v = jnp.split(heads(y @ p["qkv"], 64), 3, 2)
        x = x + attention(q, k, v) @ p["out"]
        y = layer_norm(x, p["scale"][1], p["shift"][1])
        unit = y.astype(F32) * lax.rsqrt(jnp.square(y.astype(F32)).sum(-1, keepdims=True) + 1e-6)
        ways = p["slots"] * lax.rsqrt(jnp.square(p["slots"]).sum(0) + 1e-6)
        scores = jnp.einsum("bnd,des->bnes", unit, ways) * p["heat"]
        give = jax.nn.softmax(scores, 1).astype(BF16)
        take = jax.nn.softmax(scores.reshape(b, n, -1), -1).reshape(scores.shape).astype(BF16)
        z = jnp.einsum("bnd,bnes->ebsd", y, give)
        z = jax.nn.gelu(jnp.einsum("ebsd,edf->ebsf", z, p["e_up"]) + p["e_shift"][:, None, None])
        z = jnp.einsum("ebsf,efd->ebsd", z, p["e_down"])
        return x + jnp.einsum("ebsd,bnes->bnd", z, take)

    def step(state: Any, pictures: Any, kinds: Any) -> Any:
        def loss(params: Any) -> Any:
            p = half(params)
            x = pictures.reshape(b, 14, 16, 14, 16, 3).transpose(0, 1, 3, 2, 4, 5)
            x = (x.reshape(b, n, 768).astype(F32) / 127.5 - 1).astype(BF16)
            x = x @ p["in"] + p["places"]
            for q in p["plain"]:
                x = vit(x, q)
            for q, w in zip(p["soft"], params["soft"], strict=True):
                x = soft(x, q | {"slots": w["slots"]})
            x = layer_norm(x, p["last"]).mean(1)
            logits = (x @ p["head"]).astype(F32)
            goal = optax.smooth_labels(jax.nn.one_hot(kinds, 1000), 0.1)
            return optax.softmax_cross_entropy(logits, goal).mean()

        return learned(rule, loss, state)

    kept = {"qkv": master(d, 3 * d), "out": master(d, d), "scale": Arg((2, d))}
    kept |= {"shift": Arg((2, d)), "slots": Arg((d, experts, slots)), "heat": Arg(())}
    kept |= {"e_up": master(experts, d, wide), "e_shift": Arg((experts, wide), scale=0.02)}
    kept |= {"e_down": master(experts, wide, d)}
    params = {"plain": [vit_weights(d)] * 3, "soft": [kept] * 2, "in": master(768, d)}
    params |= {"places": Arg((n, d), scale=0.02), "last": Arg((d,)), "head": master(d, 1000)}
    given = (Arg((b, 224, 224, 3), U8, below=256), Arg((b,), I32, below=1000))
    yield "soft_moe", carried(step, started(rule, params), *given)


def corrupted() -> Zoo:
    """BART reads sentences with holes and writes them whole; Adafactor keeps rows and columns."""
    b, src, tgt, d, words = 16, 400, 160, 768, 50265
    rule = optax.adafactor(1e-3, multiply_by_parameter_scale=True)

    def post(x: Any, y: Any, p: Any, i: int) -> Any:
        return layer_norm(x + y, p["scale"][i], p["shift"][i])

    def mixed(x: Any, p: Any) -> Any:
        return jax.nn.gelu(x @ p["up"] + p["b_up"]) @ p["down"] + p["b_down"]

    def read(x: Any, p: Any, mask: Any) -> Any:
        q, k, v = (heads(x @ p[name], 64) for name in ("q", "k", "v"))
        x = post(x, attention(q, k, v, mask) @ p["out"], p, 0)
        return post(x, mixed(x, p), p, 1)

    def write(x: Any, p: Any, memory: Any, mask: Any) -> Any:
        q, k, v = (heads(x @ p[name], 64) for name in ("q", "k", "v"))
        x = post(x, attention(q, k, v, causal(tgt)) @ p["out"], p, 0)
        q = heads(x @ p["cross_q"], 64)
        k, v = jnp.split(heads(memory @ p["cross_kv"], 64), 2, 2)
        x = post(x, attention(q, k, v, mask) @ p["cross_out"], p, 2)
        return post(x, mixed(x, p), p, 1)

    def step(state: Any, noisy: Any, whole: Any, lengths: Any) -> Any:
        mask = (jnp.arange(src) < 100 + lengths[:, None])[:, None, None]

        def loss(params: Any) -> Any:
            p = half(params)
            x = layer_norm(p["table"][noisy] + p["places"][:src], p["start"])
            for q in p["read"]:
                x = read(x, q, mask)
            y = layer_norm(p["table"][whole[:, :-1]] + p["places"][:tgt], p["start"])
            for q in p["write"]:
                y = write(y, q, x, mask)
            logits = y @ p["table"].T + p["bias"]
            goals = whole[:, 1:]
            losses = cross_entropy(logits, goals)
            real = goals != 1
            return (losses * real).sum() / real.sum()

        return learned(rule, loss, state)

    one = {name: master(d, d) for name in ("q", "k", "v", "out")}
    one |= {"up": master(d, 4 * d), "down": master(4 * d, d), "b_up": Arg((4 * d,), scale=0.02)}
    one |= {"b_down": Arg((d,), scale=0.02), "scale": Arg((3, d)), "shift": Arg((3, d))}
    two = one | {"cross_q": master(d, d), "cross_kv": master(d, 2 * d), "cross_out": master(d, d)}
    params = {"read": [one] * 4, "write": [two] * 4, "table": Arg((words, d), scale=0.02)}
    params |= {"places": Arg((1026, d), scale=0.02), "start": Arg((d,)), "bias": Arg((words,))}
    given = (Arg((b, src), I32, below=words), Arg((b, tgt + 1), I32, below=words))
    yield "bart", carried(step, started(rule, params), *given, Arg((b,), I32, below=300))


def waveforms() -> Zoo:
    """HuBERT: seven convolutions of sound, five layers, and the clusters of masked frames."""
    b, length, c, d, codes = 6, 128000, 512, 768, 504
    windows = [(10, 5), *[(3, 2)] * 4, *[(2, 2)] * 2]
    frames = length
    for size, stride in windows:
        frames = (frames - size) // stride + 1

    def along(x: Any, w: Any, stride: int = 1, padding: Any = "VALID", groups: int = 1) -> Any:
        return lax.conv_general_dilated(
            *(x, w, (stride,), padding),
            dimension_numbers=("NWC", "WIO", "NWC"),
            feature_group_count=groups,
        )

    def step(state: Any, sound: Any, masked: Any, goals: Any) -> Any:
        masked = masked > 0

        def loss(params: Any) -> Any:
            p = half(params)
            x = sound - sound.mean(1, keepdims=True)
            x = x * lax.rsqrt(jnp.square(x).mean(1, keepdims=True) + 1e-5)
            x = x[..., None].astype(BF16)
            for i, (w, (_, stride)) in enumerate(zip(p["windows"], windows, strict=True)):
                x = along(x, w, stride)
                if i == 0:
                    wide = x.astype(F32)
                    mean, var = wide.mean(1, keepdims=True), wide.var(1, keepdims=True)
                    x = ((wide - mean) * lax.rsqrt(var + 1e-5) * p["group"]).astype(BF16)
                x = jax.nn.gelu(x)
            rough = jnp.square(x.astype(F32)).mean()
            x = layer_norm(x, p["first"]) @ p["in"]
            x = jnp.where(masked[..., None], p["mask"], x)
            x = x + jax.nn.gelu(along(x, p["places"], 1, [(64, 63)], 16))
            for q in p["layers"]:
                x = vit(x, q)
            y = (layer_norm(x, p["last"]) @ p["out"]).astype(F32)
            y = y * lax.rsqrt(jnp.square(y).sum(-1, keepdims=True) + 1e-6)
            table = params["codes"]
            table = table * lax.rsqrt(jnp.square(table).sum(-1, keepdims=True) + 1e-6)
            losses = cross_entropy(y @ table.T / 0.1, goals)
            return (losses * masked).sum() / jnp.maximum(masked.sum(), 1) + 10 * rough

        return adamw(state, loss)

    inputs = [1, *[c] * 6]
    params = {"windows": [filters(w, i, c) for (w, _), i in zip(windows, inputs, strict=True)]}
    params |= {"group": Arg((c,)), "first": Arg((c,)), "in": master(c, d), "mask": Arg((d,))}
    params |= {"places": filters(128, d // 16, d), "layers": [vit_weights(d)] * 5}
    params |= {"last": Arg((d,)), "out": master(d, 256), "codes": Arg((codes, 256))}
    given = (Arg((b, length)), Arg((b, frames), I32), Arg((b, frames), I32, below=codes))
    yield "hubert", carried(step, adamw_start(params), *given)


def subjects() -> Zoo:
    """DreamBooth: adapters of rank 16 in the attentions of a frozen U-Net, on four latents."""
    b, widths, words, text, rank = 4, (256, 512, 768), 77, 1024, 16
    rule = optax.adamw(1e-4)

    def group(x: Any, scale: Any, groups: int = 32) -> Any:
        n, h, w, c = x.shape
        y = x.astype(F32).reshape(n, h * w, groups, c // groups)
        mean, var = y.mean((1, 3), keepdims=True), y.var((1, 3), keepdims=True)
        y = ((y - mean) * lax.rsqrt(var + 1e-5)).reshape(x.shape)
        return (y * scale).astype(x.dtype)

    def residual(x: Any, time: Any, p: Any) -> Any:
        y = conv(jax.nn.silu(group(x, p["one"])), p["w_one"])
        y = y + (jax.nn.silu(time) @ p["time"])[:, None, None]
        y = conv(jax.nn.silu(group(y, p["two"])), p["w_two"])
        return (x @ p["skip"] if "skip" in p else x) + y

    def adapted(x: Any, w: Any, pair: Any) -> Any:
        return x @ w + (x @ pair[0].astype(BF16)) @ pair[1].astype(BF16)

    def crossed(x: Any, given: Any, p: Any, lora: Any) -> Any:
        n, h, w, c = x.shape
        y = (group(x, p["norm"]) @ p["in"]).reshape(n, h * w, c)
        for name, memory in (("self", None), ("cross", given)):
            z = layer_norm(y, p[name]["norm"])
            seen = z if memory is None else memory
            q, k, v = (
                heads(adapted(a, p[name][part], lora[name][part]), 64)
                for part, a in (("q", z), ("k", seen), ("v", seen))
            )
            y = y + adapted(attention(q, k, v), p[name]["out"], lora[name]["out"])
        a, gate = jnp.split(layer_norm(y, p["last"]) @ p["up"], 2, -1)
        y = y + (a * jax.nn.gelu(gate)) @ p["down"]
        return x + (y @ p["end"]).reshape(x.shape)

    def noise_of(x: Any, t: Any, given: Any, p: Any, lora: Any) -> Any:
        angle = t[:, None].astype(F32) * 1e4 ** (-jnp.arange(128) / 128)
        time = jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], -1).astype(BF16)
        time = jax.nn.silu(time @ p["t_one"]) @ p["t_two"]
        x, kept = conv(x, p["first"]), []
        for i, q in enumerate(p["down"]):
            x = residual(x, time, q["res"])
            x = crossed(x, given, q["att"], lora["down"][i])
            kept.append(x)
            if i < 2:
                x = conv(x, q["half"], 2)
        x = residual(x, time, p["middle"])
        for i, q in enumerate(p["up"]):
            x = residual(jnp.concatenate([x, kept[2 - i]], -1), time, q["res"])
            x = crossed(x, given, q["att"], lora["up"][i])
            if i < 2:
                n, h, w, c = x.shape
                x = conv(jax.image.resize(x, (n, 2 * h, 2 * w, c), "nearest"), q["twice"])
        return conv(jax.nn.silu(group(x, p["end"])), p["out"])

    def step(state: Any, frozen: Any, latents: Any, given: Any, t: Any, key: Any) -> Any:
        noise = jax.random.normal(key, latents.shape, F32)
        beta = jnp.square(jnp.linspace(0.00085**0.5, 0.012**0.5, 1000))
        left = jnp.cumprod(1 - beta)[t][:, None, None, None]
        x = (jnp.sqrt(left) * latents + jnp.sqrt(1 - left) * noise).astype(BF16)

        def loss(lora: Any) -> Any:
            guess = noise_of(x, t, given, frozen, lora).astype(F32)
            mean = jnp.square(guess - noise).mean((1, 2, 3))
            return mean[: b // 2].mean() + mean[b // 2 :].mean()

        return learned(rule, loss, state)

    window = partial(filters, dtype=BF16)

    def res(a: int, c: int) -> Any:
        p = {"one": Arg((a,)), "two": Arg((c,)), "w_one": window(3, 3, a, c)}
        p |= {"w_two": window(3, 3, c, c), "time": weight(1024, c)}
        return p if a == c else p | {"skip": weight(a, c)}

    def ways(c: int, other: int, pair: bool) -> Any:
        def made(a: int) -> Any:
            return (master(a, rank), Arg((rank, c), scale=0.01)) if pair else weight(a, c)

        return {"q": made(c), "k": made(other), "v": made(other), "out": made(c)}

    def att(c: int) -> Any:
        p = {"norm": Arg((c,)), "in": weight(c, c), "end": weight(c, c), "last": Arg((c,))}
        p |= {"up": weight(c, 8 * c), "down": weight(4 * c, c)}
        own, cross = ways(c, c, False), ways(c, text, False)
        return p | {"self": own | {"norm": Arg((c,))}, "cross": cross | {"norm": Arg((c,))}}

    def lora(c: int) -> Any:
        return {"self": ways(c, c, True), "cross": ways(c, text, True)}

    frozen = {"t_one": weight(256, 1024), "t_two": weight(1024, 1024)}
    frozen |= {"first": window(3, 3, 4, widths[0]), "end": Arg((widths[0],))}
    frozen |= {"out": window(3, 3, widths[0], 4), "middle": res(widths[2], widths[2])}
    one, two, three = widths
    frozen["down"] = [
        {"res": res(a, c), "att": att(c), "half": window(3, 3, c, c)}
        for a, c in ((one, one), (one, two), (two, three))
    ]
    frozen["up"] = [
        {"res": res(2 * c, c), "att": att(c), "twice": window(3, 3, c, e)}
        for c, e in ((three, two), (two, one), (one, one))
    ]
    pairs = {"down": [lora(c) for c in widths], "up": [lora(c) for c in widths[::-1]]}
    given = (Arg((b, 48, 48, 4)), Arg((b, words, text), BF16), Arg((b,), I32, below=1000), _KEY)
    yield "dreambooth", carried(step, started(rule, pairs), frozen, *given)


def interpolants() -> Zoo:
    """SiT with REPA: velocities of 24 latents, whose fourth layer agrees with DINO's patches."""
    b, d, n, seen = 24, 768, 256, 768
    rule = optax.adamw(1e-4, weight_decay=0.0)

    def layer(x: Any, given: Any, p: Any) -> Any:
        six = jax.nn.silu(given) @ p["mod"] + p["b_mod"]
        s1, c1, g1, s2, c2, g2 = jnp.split(six[:, None], 6, -1)
        y = layer_norm(x) * (1 + c1) + s1
        q, k, v = jnp.split(heads(y @ p["qkv"], 64), 3, 2)
        x = x + g1 * (attention(rms(q), rms(k), v) @ p["out"])
        y = layer_norm(x) * (1 + c2) + s2
        return x + g2 * (jax.nn.gelu(y @ p["up"]) @ p["down"])

    def step(state: Any, latents: Any, kinds: Any, goals: Any, key: Any) -> Any:
        params, slow, moments = state
        one, two, three = jax.random.split(key, 3)
        noise = jax.random.normal(one, latents.shape)
        t = jax.random.uniform(two, (b,))
        at = t[:, None, None, None]
        x = (1 - at) * latents + at * noise
        way = noise - latents
        kinds = jnp.where(jax.random.bernoulli(three, 0.1, (b,)), 1000, kinds)

        def loss(params: Any) -> Any:
            p = half(params)
            y = x.reshape(b, 16, 2, 16, 2, 4).transpose(0, 1, 3, 2, 4, 5).reshape(b, n, 16)
            y = y.astype(BF16) @ p["in"] + p["places"]
            angle = 1000 * t[:, None] * 1e4 ** (-jnp.arange(128) / 128)
            time = jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], -1).astype(BF16)
            given = jax.nn.silu(time @ p["t_one"]) @ p["t_two"] + p["kinds"][kinds]
            early = y
            for i, q in enumerate(p["layers"]):
                y = jax.checkpoint(layer)(y, given, q)
                early = y if i == 3 else early
            z = jax.nn.silu(jax.nn.silu(early @ p["a_one"]) @ p["a_two"]) @ p["a_three"]
            z, goal = z.astype(F32), goals.astype(F32)
            near = (z * goal).sum(-1) * lax.rsqrt(jnp.square(z).sum(-1) + 1e-6)
            near = near * lax.rsqrt(jnp.square(goal).sum(-1) + 1e-6)
            shift, scale = jnp.split((jax.nn.silu(given) @ p["end"])[:, None], 2, -1)
            y = ((layer_norm(y) * (1 + scale) + shift) @ p["last"]).astype(F32)
            y = y.reshape(b, 16, 16, 2, 2, 4).transpose(0, 1, 3, 2, 4, 5).reshape(x.shape)
            return jnp.square(y - way).mean() - 0.5 * near.mean()

        value, slopes = jax.value_and_grad(loss)(params)
        params, moments = applied(rule, params, moments, slopes)
        slow = optax.incremental_update(params, slow, 1e-4)
        return (params, slow, moments), value

    p = {"mod": master(d, 6 * d), "b_mod": Arg((6 * d,), scale=0.1), "qkv": master(d, 3 * d)}
    p |= {"out": master(d, d), "up": master(d, 4 * d), "down": master(4 * d, d)}
    params = {"layers": [p] * 6, "in": master(16, d), "places": Arg((n, d), scale=0.1)}
    params |= {"t_one": master(256, d), "t_two": master(d, d), "kinds": Arg((1001, d), scale=0.02)}
    params |= {"a_one": master(d, 2048), "a_two": master(2048, 2048), "a_three": master(2048, seen)}
    params |= {"end": master(d, 2 * d), "last": master(d, 16)}
    given = (Arg((b, 32, 32, 4)), Arg((b,), I32, below=1000), Arg((b, n, seen), BF16), _KEY)
    yield "sit_repa", carried(step, (params, params, states_of(rule, params)), *given)


class Block(nn.Module):
    """Two convolutions that are normed by groups."""

    c: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        y = x
        for _ in range(2):
            y = nn.swish(nn.GroupNorm(16)(y))
            y = nn.Conv(self.c, (3, 3))(y)
        return (x if x.shape[-1] == self.c else nn.Conv(self.c, (1, 1))(x)) + y


class Tokenizer(nn.Module):
    """Pictures by tokens of finite scalars."""

    levels: tuple[int, ...] = (8, 5, 5, 5)

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.Conv(64, (3, 3))(x)
        for c in (64, 128, 256):
            x = Block(c)(x)
            x = nn.Conv(c, (4, 4), (2, 2))(x)
        x = Block(256)(x)
        z = nn.Conv(len(self.levels), (1, 1))(nn.swish(nn.GroupNorm(16)(x)))
        count = jnp.array(self.levels, F32)
        width = (count - 1) * 0.999 / 2
        offset = jnp.where(count % 2 == 0, 0.5, 0.0)
        bounded = jnp.tanh(z + jnp.arctanh(offset / width)) * width - offset
        z = bounded + lax.stop_gradient(jnp.round(bounded) - bounded)
        basis = jnp.array([1, 8, 40, 200], F32)
        index = ((z + count // 2) * basis).sum(-1).astype(I32)
        x = nn.Conv(256, (3, 3))(z / (count // 2))
        for c in (256, 128, 64):
            x = Block(c)(x)
            x = nn.ConvTranspose(c, (4, 4), (2, 2))(x)
        return nn.Conv(3, (3, 3))(nn.swish(nn.GroupNorm(16)(x))), index


def tokenizers() -> Zoo:
    """A tokenizer of finite scalars learns 16 pictures of 128 x 128."""
    model, b = Tokenizer(), 16
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(2e-4, b1=0.5, b2=0.9))

    def step(state: Any, pictures: Any) -> Any:
        x = pictures.astype(F32) / 127.5 - 1

        def loss(p: Any) -> Any:
            y, index = model.apply(p, x)
            error = y - x
            edges = [jnp.abs(jnp.diff(error, axis=a)).mean() for a in (1, 2)]
            used = jnp.zeros(1000, I32).at[index.reshape(-1)].add(1)
            value = jnp.abs(error).mean() + jnp.square(error).mean() + sum(edges)
            return value, (used > 0).mean()

        (value, used), slopes = jax.value_and_grad(loss, has_aux=True)(state[0])
        return applied(rule, *state, slopes), (value, used)

    params = linen_weights(model, Arg((b, 128, 128, 3)))
    yield "fsq", carried(step, started(rule, params), Arg((b, 128, 128, 3), U8, below=256))


def depths() -> Zoo:
    """Depth Anything on four pictures of 518 x 518: a ViT-S and the head of DPT."""
    b, side, d, c = 4, 37, 384, 64
    outs = (48, 96, 192, 384)

    def grown(x: Any, h: int, w: int) -> Any:
        return jax.image.resize(x, (x.shape[0], h, w, x.shape[3]), "bilinear")

    def unit(x: Any, p: Any) -> Any:
        y = conv(jax.nn.relu(x), p[0])
        return x + conv(jax.nn.relu(y), p[1])

    def depth(params: Any, pictures: Any) -> Any:
        p = params
        x = (pictures.astype(F32) / 255 - 0.45) / 0.225
        x = conv(x.astype(BF16), p["in"], 14, "VALID").reshape(b, side * side, d)
        x = jnp.concatenate([jnp.broadcast_to(p["class"], (b, 1, d)), x], 1) + p["places"]

        def layer(x: Any, q: Any) -> Any:
            x = vit(x, q)
            return x, x

        _, every = lax.scan(layer, x, p["layers"])
        levels = []
        for i, scale in enumerate((4, 2, 1, 0.5)):
            y = layer_norm(every[3 * i + 2], p["last"])
            seen = jnp.broadcast_to(y[:, :1], y[:, 1:].shape)
            y = jax.nn.gelu(jnp.concatenate([y[:, 1:], seen], -1) @ p["read"][i])
            y = y.reshape(b, side, side, d) @ p["thin"][i]
            if scale > 1:
                k = int(scale)
                y = lax.conv_transpose(y, p["grow"][i], (k, k), "VALID")
            elif scale < 1:
                y = conv(y, p["shrink"], 2, ((1, 1), (1, 1)))
            levels.append(conv(y, p["same"][i]))
        y = unit(levels[3], p["fuse"][3][0])
        for i in (2, 1, 0):
            goal = levels[i]
            y = grown(y, *goal.shape[1:3]) @ p["mix"][i]
            y = unit(y + unit(goal, p["fuse"][i][0]), p["fuse"][i][1])
        y = conv(grown(y, 2 * y.shape[1], 2 * y.shape[2]), p["end"][0])
        y = jax.nn.relu(conv(grown(y, 14 * side, 14 * side), p["end"][1]))
        y = jax.nn.relu(y @ p["end"][2])[..., 0].astype(F32)
        low, high = y.min((1, 2), keepdims=True), y.max((1, 2), keepdims=True)
        return ((y - low) / (high - low + 1e-6) * 255).astype(U8)

    window = partial(filters, dtype=BF16)
    params = {"in": window(14, 14, 3, d), "class": Arg((d,), BF16, 0.02), "last": Arg((d,))}
    params |= {"places": Arg((side * side + 1, d), BF16, 0.02)}
    params |= {"layers": times(12, vit_weights(d, weight)), "read": [weight(2 * d, d)] * 4}
    params |= {"thin": [weight(d, o) for o in outs], "shrink": window(3, 3, 384, 384)}
    params |= {"grow": [window(4, 4, 48, 48), window(2, 2, 96, 96)]}
    params |= {"same": [window(3, 3, o, c) for o in outs], "mix": [weight(c, c)] * 3}
    pair = [window(3, 3, c, c)] * 2
    params |= {"fuse": [[pair, pair]] * 4}
    params |= {"end": [window(3, 3, c, 32), window(3, 3, 32, 32), weight(32, 1)]}
    yield "dpt", program(depth, params, Arg((b, 518, 518, 3), U8, below=256))


def judges() -> Zoo:
    """A reward model of Bradley and Terry: Qwen with adapters on all seven products of a layer."""
    b, s, d, h, g, size, wide, rank, words = 4, 640, 1536, 12, 2, 128, 4480, 32, 151936
    sizes = {"q": (d, h * size), "k": (d, g * size), "v": (d, g * size), "out": (h * size, d)}
    sizes |= {"gate": (d, wide), "up": (d, wide), "down": (wide, d)}
    rule = optax.adamw(2e-5)

    def step(state: Any, frozen: Any, chosen: Any, refused: Any, lengths: Any, key: Any) -> Any:
        tokens = jnp.concatenate([chosen, jnp.roll(refused, 1, 0)])
        ends = 200 + lengths

        def loss(params: Any) -> Any:
            def layer(x: Any, given: Any) -> Any:
                p, pair, key = given

                def by(x: Any, name: str) -> Any:
                    some = jax.random.bernoulli(jax.random.fold_in(key, len(name)), 0.95, x.shape)
                    low = jnp.where(some, x / 0.95, 0).astype(BF16) @ pair[name][0].astype(BF16)
                    return x @ p[name] + 2 * low @ pair[name][1].astype(BF16)

                y = rms(x, p["scale"][0])
                q, k, v = (heads(by(y, name), size) for name in "qkv")
                q, k = rope(q, jnp.arange(s), 1e6), rope(k, jnp.arange(s), 1e6)
                y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
                x = x + by(y.reshape(*x.shape[:2], -1), "out")
                y = rms(x, p["scale"][1])
                return x + by(jax.nn.silu(by(y, "gate")) * by(y, "up"), "down"), None

            keys = jax.random.split(key, 4)
            given = (frozen["layers"], params["pairs"], keys)
            x, _ = lax.scan(jax.checkpoint(layer), frozen["table"][tokens], given)
            x = jnp.take_along_axis(x, ends[:, None, None], 1)[:, 0]
            score = rms(x, frozen["last"]).astype(F32) @ params["head"]
            gap = score[:b] - score[b:]
            return -jax.nn.log_sigmoid(gap).mean() + 0.01 * jnp.square(score).mean()

        return learned(rule, loss, state)

    layer = {name: weight(*shape) for name, shape in sizes.items()} | {"scale": Arg((2, d))}
    frozen = {"layers": times(4, layer), "table": Arg((words, d), BF16), "last": Arg((d,))}
    pairs = {name: (master(i, rank), Arg((rank, o), scale=0.01)) for name, (i, o) in sizes.items()}
    params = {"pairs": times(4, pairs), "head": Arg((d,), scale=0.02)}
    tokens = Arg((b, s), I32, below=words)
    given = (tokens, tokens, Arg((2 * b,), I32, below=400), _KEY)
    yield "bradley_terry", carried(step, started(rule, params), frozen, *given)


def activations() -> Zoo:
    """A network of Kolmogorov and Arnold: cubic splines on the edges of four layers."""
    wide, grid, order, b = (784, 192, 192, 64, 10), 8, 3, 3072
    rule = optax.adamw(1e-3)

    def bases(x: Any) -> Any:
        knots = jnp.arange(-order, grid + order + 1) * (2 / grid) - 1
        x = x[..., None]
        y = ((x >= knots[:-1]) & (x < knots[1:])).astype(F32)
        for k in range(1, order + 1):
            left = (x - knots[: -k - 1]) / (knots[k:-1] - knots[: -k - 1])
            right = (knots[k + 1 :] - x) / (knots[k + 1 :] - knots[1:-k])
            y = left * y[..., :-1] + right * y[..., 1:]
        return y

    def step(state: Any, pictures: Any, kinds: Any) -> Any:
        def loss(params: Any) -> Any:
            x, rough = pictures, 0.0
            for p in params:
                splines = bases(jnp.tanh(x)).reshape(b, -1)
                full = p["spline"] * p["scale"][:, None]
                x = jax.nn.silu(x) @ p["base"] + splines @ full.reshape(-1, full.shape[-1])
                size = jnp.abs(p["spline"]).mean(1)
                share = size / size.sum()
                rough = rough + size.sum() - (share * jnp.log(share + 1e-8)).sum()
            return cross_entropy(x, kinds).mean() + 1e-5 * rough

        return learned(rule, loss, state)

    params = [
        {"base": master(i, o), "spline": Arg((i, grid + order, o), scale=0.02)}
        | {"scale": Arg((i, o))}
        for i, o in pairwise(wide)
    ]
    given = (Arg((b, 784)), Arg((b,), I32, below=10))
    yield "kan", carried(step, started(rule, params), *given)


def sequencers() -> Zoo:
    """minGRU on letters: logarithms of gates and states are scanned by pairs in six layers."""
    b, s, d, e, letters = 24, 512, 512, 768, 256

    def scanned(gate: Any, hidden: Any) -> Any:
        """Heinsen's scan, with a positive state."""
        keep, take = -jax.nn.softplus(gate), -jax.nn.softplus(-gate)
        value = jnp.where(
            hidden >= 0, jnp.log(jax.nn.relu(hidden) + 0.5), -jax.nn.softplus(-hidden)
        )

        def joined(a: Any, b: Any) -> Any:
            return a[0] + b[0], jnp.logaddexp(a[1] + b[0], b[1])

        return jnp.exp(lax.associative_scan(joined, (keep, take + value), axis=1)[1])

    @jax.checkpoint
    def layer(x: Any, p: Any) -> Any:
        y = rms(x, p["scale"][0])
        y = lax.conv_general_dilated(
            *(y, p["window"], (1,), [(2, 0)]),
            dimension_numbers=("NWC", "WIO", "NWC"),
            feature_group_count=d,
        )
        gate, hidden = jnp.split((y @ p["in"]).astype(F32), 2, -1)
        x = x + scanned(gate, hidden).astype(BF16) @ p["out"]
        y = rms(x, p["scale"][1])
        return x + jnp.square(jax.nn.relu(y @ p["up"])) @ p["down"], None

    def step(state: Any, tokens: Any) -> Any:
        def loss(params: Any) -> Any:
            p = half(params)
            x, _ = lax.scan(layer, p["table"][tokens[:, :-1]], p["layers"])
            return cross_entropy(rms(x, p["last"]) @ p["head"], tokens[:, 1:]).mean()

        return adamw(state, loss)

    p = {"scale": Arg((2, d)), "window": Arg((3, 1, d), scale=0.5), "in": master(d, 2 * e)}
    p |= {"out": master(e, d), "up": master(d, 4 * d), "down": master(4 * d, d)}
    params = {"layers": times(6, p), "table": Arg((letters, d)), "last": Arg((d,))}
    params |= {"head": master(d, letters)}
    yield "min_gru", carried(step, adamw_start(params), Arg((b, s + 1), I32, below=letters))


def reconstruction() -> Zoo:
    """NeuS: a distance to the surface and its slopes along 384 rays of 64 samples."""
    rays, samples, wide, bands = 384, 64, 256, 6
    rule = optax.adam(5e-4)

    def encoded(x: Any, n: int) -> Any:
        y = x[..., None, :] * (2.0 ** jnp.arange(n))[:, None]
        y = jnp.concatenate([jnp.sin(y), jnp.cos(y)], -1).reshape(*x.shape[:-1], -1)
        return jnp.concatenate([x, y], -1)

    def soft(x: Any) -> Any:
        return jax.nn.softplus(100 * x) / 100

    def distance(p: Any, x: Any) -> Any:
        start = encoded(x, bands)
        y = start
        for i, (w, b) in enumerate(p[:-1]):
            y = jnp.concatenate([y, start], -1) / math.sqrt(2) if i == 4 else y
            y = soft(y @ w + b)
        w, b = p[-1]
        y = y @ w + b
        return y[..., 0] + jnp.sqrt(jnp.square(x).sum(-1) + 1e-6) - 0.5, y[..., 1:]

    def step(state: Any, origins: Any, ways: Any, colours: Any, key: Any) -> Any:
        ways = ways * lax.rsqrt(jnp.square(ways).sum(-1, keepdims=True) + 1e-6)
        ways = jnp.roll(ways, 7, 0)

        def loss(p: Any) -> Any:
            t = jnp.linspace(0.5, 3.5, samples) + jax.random.uniform(key, (rays, 1)) * 0.04
            x = origins[:, None] + ways[:, None] * t[..., None]
            value, back, kinds = jax.vjp(partial(distance, p["shape"]), x, has_aux=True)
            (normal,) = back(jnp.ones_like(value))
            way = jnp.broadcast_to(ways[:, None], x.shape)
            y = jnp.concatenate([x, encoded(way, 4), normal, kinds], -1)
            y = jax.nn.sigmoid(perceptron(y, p["colour"]))
            sharp = jnp.exp(10 * p["sharp"])
            slope = -jax.nn.relu(-(way * normal).sum(-1))
            before = jax.nn.sigmoid((value - slope * 0.023) * sharp)
            after = jax.nn.sigmoid((value + slope * 0.023) * sharp)
            alpha = jnp.clip((before - after + 1e-5) / (before + 1e-5), 0, 1)
            left = jnp.cumprod(1 - alpha + 1e-7, 1)
            share = alpha * jnp.concatenate([jnp.ones((rays, 1)), left[:, :-1]], 1)
            seen = (share[..., None] * y).sum(1)
            size = jnp.sqrt(jnp.square(normal).sum(-1) + 1e-8)
            return jnp.abs(seen - colours).mean() + 0.1 * jnp.square(size - 1).mean()

        return learned(rule, loss, state)

    start = 3 * (2 * bands + 1)
    sizes = [(start, wide), *[(wide, wide)] * 3, (wide + start, wide), *[(wide, wide)] * 3]
    shape = [(master(a, c), Arg((c,), scale=0.05)) for a, c in [*sizes, (wide, wide + 1)]]
    colour = full(3 + 27 + 3 + wide, wide, wide, wide, wide, 3)
    params = {"shape": shape, "colour": colour, "sharp": Arg((), scale=0.1)}
    given = (Arg((rays, 3)), Arg((rays, 3)), Arg((rays, 3)), _KEY)
    yield "neus", carried(step, started(rule, params), *given)


def forces() -> Zoo:
    """PaiNN learns energies and forces of 48 molecules: 1,100 atoms and 20,000 pairs."""
    atoms, pairs, many, c, radial, depth = 1100, 20000, 48, 128, 20, 3
    rule = optax.chain(optax.clip_by_global_norm(10.0), optax.adamw(5e-4, weight_decay=0.01))

    def energy(p: Any, places: Any, kinds: Any, owner: Any, i: Any, j: Any) -> Any:
        gap = places[j] - places[i]
        far = jnp.sqrt(jnp.square(gap).sum(-1) + 1e-4)
        unit = gap / far[:, None]
        near = far[:, None]
        waves = jnp.sin(near * jnp.pi / 5 * jnp.arange(1, radial + 1)) / near
        fade = jnp.where(far < 5, 0.5 * (jnp.cos(jnp.pi * far / 5) + 1), 0.0)[:, None]
        s, v = p["kinds"][kinds], jnp.zeros((atoms, 3, c))
        for q in p["layers"]:
            w = (waves @ q["filter"][0] + q["filter"][1]) * fade
            a, b, d = jnp.split(perceptron(s, q["message"], jax.nn.silu)[j] * w, 3, -1)
            move = v[j] * b[:, None] + unit[..., None] * d[:, None]
            s = s + jax.ops.segment_sum(a, i, atoms)
            v = v + jax.ops.segment_sum(move, i, atoms)
            one, two = v @ q["one"], v @ q["two"]
            size = jnp.sqrt(jnp.square(two).sum(1) + 1e-6)
            y = perceptron(jnp.concatenate([s, size], -1), q["update"], jax.nn.silu)
            a, b, d = jnp.split(y, 3, -1)
            s = s + a + b * (one * two).sum(1)
            v = v + d[:, None] * one
        each = perceptron(s, p["read"], jax.nn.silu)[:, 0]
        return jax.ops.segment_sum(each, owner, many)

    def step(state: Any, places: Any, ids: Any, goals: Any, pulls: Any) -> Any:
        kinds, owner, i, j = ids
        owner, places, j = jnp.sort(owner), 2 * places, jnp.roll(j, 777)

        def loss(p: Any) -> Any:
            def whole(x: Any) -> Any:
                each = energy(p, x, kinds, owner, i, j)
                return each.sum(), each

            slopes, each = jax.grad(whole, has_aux=True)(places)
            return jnp.abs(each - goals).mean() + 10 * jnp.square(slopes + pulls).mean()

        return learned(rule, loss, state)

    layer = {"filter": (master(radial, 3 * c), Arg((3 * c,), scale=0.1)), "one": master(c, c)}
    layer |= {"message": full(c, c, 3 * c), "two": master(c, c), "update": full(2 * c, c, 3 * c)}
    params = {"kinds": Arg((100, c)), "layers": [layer] * depth, "read": full(c, 64, 1)}
    ids = (Arg((atoms,), I32, below=100), Arg((atoms,), I32, below=many))
    ids = (*ids, Arg((pairs,), I32, below=atoms), Arg((pairs,), I32, below=atoms))
    given = (Arg((atoms, 3)), ids, Arg((many,)), Arg((atoms, 3)))
    yield "painn", carried(step, started(rule, params), *given)


def feeds() -> Zoo:
    """MMoE: five experts and three goals on 36 features, whose rows move by Adagrad in place."""
    b, fields, rows, size, goals = 8192, 36, 2500000, 32, 3
    rule = optax.adam(1e-3)

    def step(state: Any, dense: Any, ids: Any, labels: Any) -> Any:
        table, sums, params, moments = state
        flat = ids.reshape(-1)

        def loss(params: Any, found: Any) -> Any:
            x = jnp.concatenate([found.reshape(b, -1), jnp.log1p(jnp.abs(dense))], -1)
            experts = jnp.stack([perceptron(x, p) for p in params["experts"]], 1)
            experts = jax.nn.relu(experts)
            total = 0.0
            for t in range(goals):
                share = jax.nn.softmax(x @ params["gates"][t], -1)
                y = jnp.einsum("be,bed->bd", share, experts)
                logit = perceptron(y, params["towers"][t])[:, 0]
                total = total + optax.sigmoid_binary_cross_entropy(logit, labels[:, t]).mean()
            return total

        found = table[flat]
        value, (slopes, each) = jax.value_and_grad(loss, (0, 1))(params, found)
        params, moments = applied(rule, params, moments, slopes)
        sums = sums.at[flat].add(jnp.square(each).mean(-1))
        rate = 0.05 * lax.rsqrt(sums[flat] + 1e-8)
        table = table.at[flat].add(-rate[:, None] * each)
        return (table, sums, params, moments), value

    d = fields * size + 13
    params = {"experts": [full(d, 512, 256)] * 5, "gates": [master(d, 5)] * goals}
    params |= {"towers": [full(256, 128, 1)] * goals}
    state = (Arg((rows, size), scale=0.05), Arg((rows,), scale=0.0), params)
    state = (*state, states_of(rule, params))
    given = (Arg((b, 13)), Arg((b, fields), I32, below=rows), Arg((b, goals), I32))
    yield "mmoe", carried(step, state, *given)


def players_of_atari() -> Zoo:
    """Rainbow: noisy, duelling heads of 51 atoms, on 256 steps of Atari with weights."""
    b, actions, atoms, wide, flat = 256, 18, 51, 512, 3136
    rule = optax.adam(6.25e-5, eps=1.5e-4)

    def noisy(x: Any, p: Any, key: Any) -> Any:
        def bent(key: Any, n: int) -> Any:
            y = jax.random.normal(key, (n,))
            return jnp.sign(y) * jnp.sqrt(jnp.abs(y))

        one, two = jax.random.split(key)
        i, o = bent(one, x.shape[-1]), bent(two, p["shift"].shape[0])
        w = p["mean"] + p["spread"] * (i[:, None] * o)
        return x @ w + p["shift"] + p["shift_spread"] * o

    def network(p: Any, frames: Any, key: Any) -> Any:
        x = frames.astype(F32) / 255
        for w, stride in zip(p["windows"], (4, 2, 1), strict=True):
            x = jax.nn.relu(conv(x, w, stride, "VALID"))
        x = x.reshape(b, flat)
        keys = jax.random.split(key, 4)
        value = noisy(jax.nn.relu(noisy(x, p["v_one"], keys[0])), p["v_two"], keys[1])
        more = noisy(jax.nn.relu(noisy(x, p["a_one"], keys[2])), p["a_two"], keys[3])
        more = more.reshape(b, actions, atoms)
        return value[:, None] + more - more.mean(1, keepdims=True)

    def step(state: Any, old: Any, new: Any, taken: Any, gains: Any, over: Any, key: Any) -> Any:
        params, target, moments = state
        k1, k2, k3, k4 = jax.random.split(key, 4)
        weights, keys = jax.random.uniform(k4, (b,), minval=0.3), (k1, k2, k3)
        line = jnp.linspace(-10, 10, atoms)
        best = (jax.nn.softmax(network(params, new, keys[0])) * line).sum(-1).argmax(-1)
        likely = jax.nn.softmax(network(target, new, keys[1]))[jnp.arange(b), best]
        goal = jnp.clip(gains[:, None] + 0.99**3 * (1 - over[:, None]) * line, -10, 10)
        near = jnp.clip(1 - jnp.abs(goal[:, None] - line[:, None]) / 0.4, 0, 1)
        goal = (near * likely[:, None]).sum(-1)

        def loss(params: Any) -> Any:
            logits = network(params, old, keys[2])[jnp.arange(b), taken]
            each = optax.softmax_cross_entropy(logits, goal)
            return (weights * each).mean(), each

        (value, each), slopes = jax.value_and_grad(loss, has_aux=True)(params)
        slopes, _ = optax.clip_by_global_norm(10.0).update(slopes, optax.EmptyState())
        params, moments = applied(rule, params, moments, slopes)
        target = optax.incremental_update(params, target, 0.005)
        return (params, target, moments), value, jnp.sqrt(each + 1e-6)

    def linear(i: int, o: int) -> Any:
        p = {"mean": master(i, o), "spread": Arg((i, o), scale=0.01)}
        return p | {"shift": Arg((o,), scale=0.02), "shift_spread": Arg((o,), scale=0.02)}

    params = {"windows": [filters(8, 8, 4, 32), filters(4, 4, 32, 64), filters(3, 3, 64, 64)]}
    params |= {"v_one": linear(flat, wide), "v_two": linear(wide, atoms)}
    params |= {"a_one": linear(flat, wide), "a_two": linear(wide, actions * atoms)}
    frames = Arg((b, 84, 84, 4), U8, below=256)
    given = (frames, frames, Arg((b,), I32, below=actions), Arg((b,)), Arg((b,), I32), _KEY)
    yield "rainbow", carried(step, (params, params, states_of(rule, params)), *given)


# ----------------------------------------------------------------------------------------- Pallas


def kernel(fn: Any, shape: Any, warps: int, stages: int, **kw: Any) -> Any:
    """A call of a kernel through Triton."""
    params = plgpu.CompilerParams(num_warps=warps, num_stages=stages)
    return pl.pallas_call(fn, out_shape=shape, compiler_params=params, **kw)


def like(x: Any, dtype: Any = None) -> Any:
    """An output shaped as an array."""
    return jax.ShapeDtypeStruct(x.shape, dtype or x.dtype)


def banded() -> Zoo:
    """A prompt of MPT: each head leans on near tokens by its own slope, and sees 1,024 of them."""
    b, s, d, h, size, window, bq, bk = 2, 4096, 2048, 16, 128, 1024, 128, 64

    def near(q: Any, k: Any, v: Any, slopes: Any) -> Any:
        def body(q: Any, k: Any, v: Any, slopes: Any, out: Any) -> None:
            i = pl.program_id(2)
            lean = slopes[0]
            x = q[...]
            row = i * bq + jnp.arange(bq)

            def part(t: Any, carry: Any) -> Any:
                total, most, sums = carry
                here = pl.ds(t * bk, bk)
                gap = row[:, None] - (t * bk + jnp.arange(bk))[None]
                y = plgpu.dot(x, k[here, :].T) * size**-0.5 - lean * gap.astype(F32)
                y = jnp.where((gap >= 0) & (gap < window), y, -1e30)
                new = jnp.maximum(most, y.max(1))
                fade, y = jnp.exp(most - new), jnp.exp(y - new[:, None])
                total = total * fade[:, None] + plgpu.dot(y.astype(BF16), v[here, :])
                return total, new, sums * fade + y.sum(1)

            start = jnp.maximum(i * bq - window + 1, 0) // bk
            zero = (jnp.zeros((bq, size), F32), jnp.full((bq,), -1e30, F32), jnp.zeros((bq,), F32))
            total, _, sums = lax.fori_loop(start, (i + 1) * bq // bk, part, zero)
            out[...] = (total / sums[:, None]).astype(out.dtype)

        rows = pl.BlockSpec((None, bq, None, size), lambda b, h, i: (b, i, h, 0))
        every = pl.BlockSpec((None, s, None, size), lambda b, h, i: (b, 0, h, 0))
        call = kernel(
            *(body, like(q), 8, 2),
            grid=(b, h, s // bq),
            in_specs=[rows, every, every, pl.BlockSpec((1,), lambda b, h, i: (h,))],
            out_specs=rows,
        )
        return call(q, k, v, slopes)

    def prompt(params: Any, tokens: Any) -> Any:
        slopes = 2.0 ** (-8 * jnp.arange(1, h + 1) / h)

        def layer(x: Any, p: Any) -> Any:
            y = layer_norm(x, p["scale"][0])
            q, k, v = jnp.split(heads(jnp.clip(y @ p["qkv"], -8, 8), size), 3, 2)
            x = x + near(q, k, v, slopes).reshape(x.shape) @ p["out"]
            y = layer_norm(x, p["scale"][1])
            return x + jax.nn.gelu(y @ p["up"], approximate=False) @ p["down"], (k, v)

        x, kept = lax.scan(layer, params["table"][tokens], params["layers"])
        return layer_norm(x[:, -1], params["last"]) @ params["table"].T, kept

    p = {"qkv": weight(d, 3 * d), "out": weight(d, d), "up": weight(d, 4 * d)}
    p |= {"down": weight(4 * d, d), "scale": Arg((2, d))}
    params = {"layers": times(3, p), "table": Arg((50432, d), BF16, 0.02), "last": Arg((d,))}
    yield "alibi", program(prompt, params, Arg((b, s), I32, below=50432))


def absorbed() -> Zoo:
    """A token of 32 replies with latents of 512: queries meet them in a kernel, by eight parts."""
    b, most, d, h, c, r, size, parts, block = 32, 4096, 2048, 16, 512, 64, 128, 8, 32
    deep = most // parts

    def met(q: Any, turned: Any, latents: Any, keys: Any, lengths: Any) -> Any:
        def body(q: Any, turned: Any, latents: Any, keys: Any, lengths: Any, *outs: Any) -> None:
            first = pl.program_id(1) * deep
            end = jnp.minimum(lengths[0] + 1 - first, deep)
            x, z = q[...], turned[...]

            def part(t: Any, carry: Any) -> Any:
                total, most, sums = carry
                here = pl.ds(t * block, block)
                low = latents[here, :]
                y = plgpu.dot(x, low.T) + plgpu.dot(z, keys[here, :].T)
                y = y * (size + r) ** -0.5
                y = jnp.where((t * block + jnp.arange(block) < end)[None], y, -1e30)
                new = jnp.maximum(most, y.max(1))
                fade, y = jnp.exp(most - new), jnp.exp(y - new[:, None])
                total = total * fade[:, None] + plgpu.dot(y.astype(BF16), low)
                return total, new, sums * fade + y.sum(1)

            zero = (jnp.zeros((h, c), F32), jnp.full((h,), -1e30, F32), jnp.zeros((h,), F32))
            count = jnp.maximum(end + block - 1, 0) // block
            total, high, sums = lax.fori_loop(0, count, part, zero)
            outs[0][...], outs[1][...], outs[2][...] = total, high, sums

        def rows(n: int) -> Any:
            return pl.BlockSpec((None, h, n), lambda i, j: (i, 0, 0))

        def kept(n: int) -> Any:
            return pl.BlockSpec((None, deep, n), lambda i, j: (i, j, 0))

        one = pl.BlockSpec((None, None, h), lambda i, j: (i, j, 0))
        flat = jax.ShapeDtypeStruct((b, parts, h), F32)
        call = kernel(
            *(body, (jax.ShapeDtypeStruct((b, parts, h, c), F32), flat, flat), 4, 2),
            grid=(b, parts),
            in_specs=[rows(c), rows(r), kept(c), kept(r), pl.BlockSpec((1,), lambda i, j: (i,))],
            out_specs=(pl.BlockSpec((None, None, h, c), lambda i, j: (i, j, 0, 0)), one, one),
        )
        total, high, sums = call(q, turned, latents, keys, lengths)
        share = jnp.exp(high - high.max(1, keepdims=True))
        total = (total * share[..., None]).sum(1)
        return (total / (sums * share).sum(1)[..., None]).astype(BF16)

    def token(caches: Any, params: Any, tokens: Any, lengths: Any) -> Any:
        lengths = 300 + lengths
        rows = jnp.arange(b)
        x, kept = params["table"][tokens], []
        for p, (low_old, key_old) in zip(params["layers"], caches, strict=True):
            y = rms(x, p["scale"][0])
            q, turned = jnp.split(heads(y @ p["q"], size + r), [size], -1)
            low, key = jnp.split(y @ p["low"], [c], -1)
            turned, key = rope(turned, lengths), rope(key[:, None], lengths)[:, 0]
            latents = low_old.at[rows, lengths].set(rms(low, p["low_scale"]))
            keys = key_old.at[rows, lengths].set(key)
            kept.append((latents, keys))
            q = jnp.einsum("bhd,hdc->bhc", q, p["into"])
            y = met(q, turned, latents, keys, lengths)
            y = jnp.einsum("bhc,hcd->bhd", y, p["from"]).reshape(b, -1)
            x = x + y @ p["out"]
            x = x + swiglu(rms(x, p["scale"][1]), p)
        logits = (rms(x, params["last"]) @ params["head"]).astype(F32)
        return kept, logits.argmax(-1)

    p = {"q": weight(d, h * (size + r)), "low": weight(d, c + r), "low_scale": Arg((c,))}
    p |= {"into": weight(h, size, c), "from": weight(h, c, size), "out": weight(h * size, d)}
    p |= swiglu_weights(d, 10944, weight) | {"scale": Arg((2, d))}
    params = {"layers": [p] * 4, "table": Arg((102400, d), BF16), "last": Arg((d,))}
    params |= {"head": weight(d, 102400)}
    caches = [(Arg((b, most, c), BF16), Arg((b, most, r), BF16))] * 4
    given = (Arg((b,), I32, below=102400), Arg((b,), I32, below=3600))
    yield "latent_parts", carried(token, caches, params, *given)


def chunkwise() -> Zoo:
    """RetNet reads four prompts: chunks of 64 tokens, and a state that stays in the kernel."""
    b, s, d, h, size, wide, chunk, bv = 4, 3072, 1024, 8, 128, 256, 64, 64

    def retained(q: Any, k: Any, v: Any, decays: Any) -> Any:
        def body(q: Any, k: Any, v: Any, decays: Any, out: Any, last: Any) -> None:
            fade = decays[0]
            i = jnp.arange(chunk)
            gap = (i[:, None] - i[None]).astype(F32)
            inside = jnp.where(gap >= 0, jnp.exp(fade * gap), 0.0)
            ahead = jnp.exp(fade * (i + 1).astype(F32))
            behind = jnp.exp(fade * (chunk - 1 - i).astype(F32))

            def part(t: Any, state: Any) -> Any:
                here = pl.ds(t * chunk, chunk)
                a, c, e = q[here, :], k[here, :], v[here, :]
                y = (plgpu.dot(a, c.T) * inside).astype(BF16)
                y = plgpu.dot(y, e) + ahead[:, None] * plgpu.dot(a, state.astype(BF16))
                out[here, :] = y.astype(out.dtype)
                new = plgpu.dot((c.astype(F32) * behind[:, None]).astype(BF16).T, e)
                return state * jnp.exp(fade * chunk) + new

            start = jnp.zeros((size, bv), F32)
            last[...] = lax.fori_loop(0, s // chunk, part, start)

        thin = pl.BlockSpec((None, s, None, size), lambda i, j, n: (i, 0, j, 0))
        part = pl.BlockSpec((None, s, None, bv), lambda i, j, n: (i, 0, j, n))
        call = kernel(
            *(body, (like(v), jax.ShapeDtypeStruct((b, h, size, wide), F32)), 4, 2),
            grid=(b, h, wide // bv),
            in_specs=[thin, thin, part, pl.BlockSpec((1,), lambda i, j, n: (j,))],
            out_specs=(part, pl.BlockSpec((None, None, size, bv), lambda i, j, n: (i, j, 0, n))),
        )
        return call(q, k, v, decays)

    def prompt(params: Any, tokens: Any) -> Any:
        decays = jnp.log(1 - 2.0 ** (-5 - jnp.arange(h)))

        def layer(x: Any, p: Any) -> Any:
            y = rms(x, p["scale"][0])
            q, k = heads(y @ p["q"], size), heads(y @ p["k"], size)
            q, k = rope(q, jnp.arange(s)), rope(k, jnp.arange(s)) * jnp.asarray(size**-0.5, BF16)
            z, state = retained(q, k, heads(y @ p["v"], wide), decays)
            z = rms(z).reshape(b, s, -1) * jax.nn.silu(y @ p["gate"])
            x = x + z @ p["out"]
            y = rms(x, p["scale"][1])
            return x + jax.nn.gelu(y @ p["up"]) @ p["down"], state

        x, states = lax.scan(layer, params["table"][tokens], params["layers"])
        return rms(x[:, -1], params["last"]) @ params["head"], states

    p = {"q": weight(d, h * size), "k": weight(d, h * size), "v": weight(d, h * wide)}
    p |= {"gate": weight(d, h * wide), "out": weight(h * wide, d), "scale": Arg((2, d))}
    p |= {"up": weight(d, 2 * d), "down": weight(2 * d, d)}
    params = {"layers": times(6, p), "table": Arg((50257, d), BF16), "last": Arg((d,))}
    params |= {"head": weight(d, 50257)}
    yield "retention", program(prompt, params, Arg((b, s), I32, below=50257))


def normed() -> Zoo:
    """A CLIP of 24 pictures, whose norms are part of the products that follow them."""
    b, n, d, bm, bn, bk = 24, 256, 1024, 128, 128, 64

    def linear(x: Any, scale: Any, shift: Any, w: Any, bias: Any, bend: bool) -> Any:
        (m, k), wide = x.shape, w.shape[1]

        def body(x: Any, scale: Any, shift: Any, w: Any, bias: Any, out: Any) -> None:
            def measure(t: Any, carry: Any) -> Any:
                y = x[:, pl.ds(t * bk, bk)].astype(F32)
                return carry[0] + y.sum(1), carry[1] + (y * y).sum(1)

            zero = (jnp.zeros((bm,), F32), jnp.zeros((bm,), F32))
            mean, square = lax.fori_loop(0, k // bk, measure, zero)
            mean = mean / k
            rate = lax.rsqrt(square / k - mean * mean + 1e-5)

            def part(t: Any, total: Any) -> Any:
                depth = pl.ds(t * bk, bk)
                y = (x[:, depth].astype(F32) - mean[:, None]) * rate[:, None]
                y = y * scale[depth][None] + shift[depth][None]
                return total + plgpu.dot(y.astype(BF16), w[depth, :])

            y = lax.fori_loop(0, k // bk, part, jnp.zeros((bm, bn), F32))
            y = y + bias[...][None]
            if bend:
                y = y * jax.nn.sigmoid(1.702 * y)
            out[...] = y.astype(out.dtype)

        every = pl.BlockSpec((k,), lambda i, j: (0,))
        call = kernel(
            *(body, jax.ShapeDtypeStruct((m, wide), BF16), 8, 3),
            grid=(m // bm, wide // bn),
            in_specs=[
                pl.BlockSpec((bm, k), lambda i, j: (i, 0)),
                *(every, every),
                pl.BlockSpec((k, bn), lambda i, j: (0, j)),
                pl.BlockSpec((bn,), lambda i, j: (j,)),
            ],
            out_specs=pl.BlockSpec((bm, bn), lambda i, j: (i, j)),
        )
        return call(x, scale, shift, w, bias)

    def seen(params: Any, patches: Any, words: Any) -> Any:
        x = (patches @ params["in"] + params["places"]).reshape(b * n, d)
        for p in params["layers"]:
            y = linear(x, p["scale"][0], p["shift"][0], p["qkv"], p["b_qkv"], False)
            q, k, v = jnp.split(heads(y.reshape(b, n, -1), 64), 3, 2)
            x = x + jax.nn.dot_product_attention(q, k, v).reshape(b * n, d) @ p["out"]
            y = linear(x, p["scale"][1], p["shift"][1], p["up"], p["b_up"], True)
            x = x + y @ p["down"]
        y = layer_norm(x.reshape(b, n, d).mean(1), params["last"]) @ params["head"]
        y = y.astype(F32)
        y = y * lax.rsqrt(jnp.square(y).sum(-1, keepdims=True) + 1e-6)
        return lax.top_k(jax.nn.softmax(100 * y @ words.T, -1), 5)

    params = {"layers": [vit_weights(d, weight)] * 8, "in": weight(588, d), "last": Arg((d,))}
    params |= {"places": Arg((n, d), BF16, 0.02), "head": weight(d, 768)}
    given = (Arg((b, n, 588), BF16), Arg((1000, 768), scale=0.03))
    yield "norm_linear", program(seen, params, *given)


def hashed() -> Zoo:
    """Training of a masked encoder: dropout by a hash of places, slopes of words by atomic adds."""
    b, s, d, words, keep, rows = 16, 512, 1024, 30522, 0.9, 4
    rule = optax.adamw(1e-4)

    def some(row: Any, seed: Any) -> Any:
        """Which numbers stay, by Murmur's last steps."""
        x = (row[:, None] * d + jnp.arange(d)[None]).astype(U32) ^ seed
        x = (x ^ (x >> jnp.uint32(16))) * jnp.uint32(0x85EBCA6B)
        x = (x ^ (x >> jnp.uint32(13))) * jnp.uint32(0xC2B2AE35)
        x = x ^ (x >> jnp.uint32(16))
        return (x >> jnp.uint32(8)).astype(I32).astype(F32) < keep * (1 << 24)

    def masked(x: Any, other: Any, seed: Any) -> Any:
        """The numbers of x that stay, with those of another array where there is one."""

        def body(*refs: Any) -> None:
            *given, seed, out = refs
            row = pl.program_id(0) * rows + jnp.arange(rows)
            y = jnp.where(some(row, seed[0]), given[0][...].astype(F32) / keep, 0.0)
            if len(given) > 1:
                y = y + given[1][...].astype(F32)
            out[...] = y.astype(out.dtype)

        block = pl.BlockSpec((rows, d), lambda i: (i, 0))
        given = [x] if other is None else [x, other]
        call = kernel(
            *(body, like(x), 4, 1),
            grid=(x.shape[0] // rows,),
            in_specs=[*[block] * len(given), pl.BlockSpec((1,), lambda i: (0,))],
            out_specs=block,
        )
        return call(*given, seed)

    @jax.custom_vjp
    def dropped(x: Any, other: Any, seed: Any) -> Any:
        return masked(x, other, seed)

    def dropped_backward(seed: Any, slope: Any) -> Any:
        return masked(slope, None, seed), slope, None

    dropped.defvjp(lambda x, y, seed: (masked(x, y, seed), seed), dropped_backward)

    @jax.custom_vjp
    def found(table: Any, ids: Any) -> Any:
        return table[ids]

    def found_backward(ids: Any, slope: Any) -> Any:
        def body(ids: Any, slope: Any, _: Any, out: Any) -> None:
            plgpu.atomic_add(out, (ids[0], slice(None)), slope[...].astype(F32))

        empty = jnp.zeros((words, d), F32)
        every = pl.BlockSpec((words, d), lambda i: (0, 0))
        call = kernel(
            *(body, like(empty), 4, 1),
            grid=(ids.size,),
            in_specs=[
                pl.BlockSpec((1,), lambda i: (i,)),
                pl.BlockSpec((None, d), lambda i: (i, 0)),
                every,
            ],
            out_specs=every,
            input_output_aliases={2: 0},
        )
        return call(ids, slope, empty), None

    found.defvjp(lambda table, ids: (found(table, ids), ids), found_backward)

    def step(state: Any, tokens: Any, places: Any, goals: Any, seed: Any) -> Any:
        def loss(params: Any) -> Any:
            p = half({k: v for k, v in params.items() if k != "table"})
            x = found(params["table"], tokens.reshape(-1)).astype(BF16)
            x = x + jnp.tile(p["places"], (b, 1))
            for i, q in enumerate(p["layers"]):
                seeds = [seed + jnp.uint32(2 * i + j) * jnp.uint32(0x9E3779B9) for j in (0, 1)]
                y = layer_norm(x, q["scale"][0], q["shift"][0])
                a, k, v = jnp.split(heads((y @ q["qkv"]).reshape(b, s, -1), 64), 3, 2)
                y = jax.nn.dot_product_attention(a, k, v).reshape(b * s, d)
                x = dropped(y @ q["out"], x, seeds[0])
                y = layer_norm(x, q["scale"][1], q["shift"][1])
                x = dropped(jax.nn.gelu(y @ q["up"] + q["b_up"]) @ q["down"], x, seeds[1])
            y = jnp.take_along_axis(x.reshape(b, s, d), places[..., None], 1)
            y = layer_norm(y, p["last"]) @ params["table"].T.astype(BF16)
            return cross_entropy(y, goals).mean()

        return learned(rule, loss, state)

    params = {"layers": [vit_weights(d)] * 3, "table": Arg((words, d), scale=0.02)}
    params |= {"places": Arg((s, d), scale=0.02), "last": Arg((d,))}
    given = (Arg((b, s), I32, below=words), Arg((b, 76), I32, below=s))
    given = (*given, Arg((b, 76), I32, below=words), Arg((1,), U32, below=1 << 30))
    yield "dropout", carried(step, started(rule, params), *given)


def stencils() -> Zoo:
    """Gray and Scott's spots on 2,048 x 2,048 cells: 24 steps, each by tiles of a kernel."""
    n, tall, wide, steps = 2048, 16, 128, 24

    def moved(u: Any, v: Any, rates: Any) -> Any:
        def body(u: Any, v: Any, rates: Any, *out: Any) -> None:
            i = pl.program_id(0) * tall + jnp.arange(tall)
            j = pl.program_id(1) * wide + jnp.arange(wide)
            up, down, left, right = (i - 1) % n, (i + 1) % n, (j - 1) % n, (j + 1) % n

            def spread(x: Any) -> tuple[Any, Any]:
                def at(i: Any, j: Any) -> Any:
                    return plgpu.load(x.at[i[:, None] * n + j[None]])

                here = at(i, j)
                near = at(up, j) + at(down, j) + at(i, left) + at(i, right)
                far = at(up, left) + at(up, right) + at(down, left) + at(down, right)
                return here, 0.2 * near + 0.05 * far - here

            a, da = spread(u)
            b, db = spread(v)
            feed, kill = rates[0], rates[1]
            made = a * b * b
            place = i[:, None] * n + j[None]
            plgpu.store(out[0].at[place], a + 0.8 * da - made + feed * (1 - a))
            plgpu.store(out[1].at[place], b + 0.4 * db + made - (feed + kill) * b)

        return kernel(body, (like(u), like(v)), 4, 1, grid=(n // tall, n // wide))(u, v, rates)

    def spots(state: Any, rates: Any) -> Any:
        rates = jnp.array([0.037, 0.06]) + 0.001 * jnp.tanh(rates)
        flat = tuple(x.reshape(-1) for x in state)
        u, v = lax.fori_loop(0, steps, lambda _, x: tuple(moved(*x, rates)), flat)
        counts = jnp.histogram(v, 64, (0.0, 1.0))[0]
        return (u.reshape(n, n), v.reshape(n, n)), counts

    state = (Arg((n, n), scale=0.1),) * 2
    yield "gray_scott", carried(spots, state, Arg((2,)))


def pruned() -> Zoo:
    """Four layers of GPT whose perceptrons keep a fourth of their blocks of 64 x 64."""
    b, s, d, wide, block, bm = 4, 1024, 2048, 8192, 64, 128

    def sparse(x: Any, blocks: Any, rows: Any, bend: bool) -> Any:
        """`blocks` are [columns, kept, block, block], `rows` [columns, kept]."""
        m = x.shape[0]
        columns, kept = rows.shape

        def body(x: Any, blocks: Any, rows: Any, out: Any) -> None:
            def part(t: Any, total: Any) -> Any:
                depth = pl.ds(rows[t] * block, block)
                return total + plgpu.dot(x[:, depth], blocks[t, :, :])

            y = lax.fori_loop(0, kept, part, jnp.zeros((bm, block), F32))
            if bend:
                y = jnp.square(jnp.maximum(y, 0.0))
            out[...] = y.astype(out.dtype)

        call = kernel(
            *(body, jax.ShapeDtypeStruct((m, columns * block), BF16), 4, 3),
            grid=(columns, m // bm),
            in_specs=[
                pl.BlockSpec((bm, x.shape[1]), lambda j, i: (i, 0)),
                pl.BlockSpec((None, kept, block, block), lambda j, i: (j, 0, 0, 0)),
                pl.BlockSpec((None, kept), lambda j, i: (j, 0)),
            ],
            out_specs=pl.BlockSpec((bm, block), lambda j, i: (i, j)),
        )
        return call(x, blocks, rows)

    def answer(params: Any, tokens: Any) -> Any:
        def layer(x: Any, p: Any) -> Any:
            y = rms(x, p["scale"][0])
            q, k, v = jnp.split(heads(y @ p["qkv"], 128), 3, 2)
            q, k = rope(q, jnp.arange(s)), rope(k, jnp.arange(s))
            y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
            x = x + y.reshape(x.shape) @ p["out"]
            y = rms(x, p["scale"][1]).reshape(b * s, d)
            y = sparse(y, p["up"], p["up_rows"], True)
            return x + sparse(y, p["down"], p["down_rows"], False).reshape(x.shape), None

        x, _ = lax.scan(layer, params["table"][tokens], params["layers"])
        logits = (rms(x[:, :-1], params["last"]) @ params["table"].T).astype(F32)
        return jnp.exp(-cross_entropy(logits, tokens[:, 1:]).mean(-1))

    many = (wide // block, d // block // 4), (d // block, wide // block // 4)
    p = {"qkv": weight(d, 3 * d), "out": weight(d, d), "scale": Arg((2, d))}
    p |= {"up": Arg((*many[0], block, block), BF16, 0.04)}
    p |= {"down": Arg((*many[1], block, block), BF16, 0.02)}
    p |= {"up_rows": Arg(many[0], I32, below=d // block)}
    p |= {"down_rows": Arg(many[1], I32, below=wide // block)}
    params = {"layers": times(4, p), "table": Arg((32000, d), BF16, 0.02), "last": Arg((d,))}
    yield "block_sparse", program(answer, params, Arg((b, s), I32, below=32000))


def nibbles() -> Zoo:
    """Sixteen tokens by GPTQ's weights: eight of four bits in a word, and a zero a group."""
    m, d, wide, words, group, bn = 16, 4096, 11008, 32000, 128, 64

    def product(x: Any, p: Any, parts: int = 1) -> Any:
        packed, scales, zero = p["packed"], p["scales"], p["zeros"]
        k, n = x.shape[1], packed.shape[1]
        deep = k // parts
        groups = deep // group

        def body(x: Any, packed: Any, scales: Any, zero: Any, out: Any) -> None:
            shifts = jnp.arange(8, dtype=I32) * 4
            apart = (jnp.arange(bn, dtype=I32) % 8) * 4
            first = pl.program_id(1) * groups
            column = pl.program_id(0) * bn + jnp.arange(bn)

            def part(t: Any, total: Any) -> Any:
                y = packed[pl.ds(t * (group // 8), group // 8), :]
                y, by = jnp.broadcast_arrays(y[:, None], shifts[:, None])
                y = lax.shift_right_logical(y, by) & 15
                low = plgpu.load(zero.at[first + t, column // 8])
                low = lax.shift_right_logical(low, apart) & 15
                y = y.reshape(group, bn) - low[None]
                y = y.astype(BF16) * plgpu.load(scales.at[first + t, column])[None]
                return total + plgpu.dot(x[:, pl.ds(t * group, group)], y)

            out[...] = lax.fori_loop(0, groups, part, jnp.zeros((m, bn), F32))

        call = kernel(
            *(body, jax.ShapeDtypeStruct((parts, m, n), F32), 4, 3),
            grid=(n // bn, parts),
            in_specs=[
                pl.BlockSpec((m, deep), lambda i, j: (0, j)),
                pl.BlockSpec((deep // 8, bn), lambda i, j: (j, i)),
                pl.BlockSpec(scales.shape, lambda i, j: (0, 0)),
                pl.BlockSpec(zero.shape, lambda i, j: (0, 0)),
            ],
            out_specs=pl.BlockSpec((None, m, bn), lambda i, j: (j, 0, i)),
        )
        return call(x, packed, scales, zero).sum(0).astype(BF16)

    def token(caches: Any, params: Any, tokens: Any, place: Any) -> Any:
        here = 700 + place

        def layer(x: Any, given: Any) -> Any:
            p, (k_old, v_old) = given
            y = product(rms(x, p["scale"][0]), p["qkv"])
            q, k, v = jnp.split(heads(y, 128), 3, 1)
            at = jnp.full((m,), here)
            q, k = rope(q, at), rope(k, at)
            k = lax.dynamic_update_slice(k_old, k[:, None], (0, here, 0, 0))
            v = lax.dynamic_update_slice(v_old, v[:, None], (0, here, 0, 0))
            mask = (jnp.arange(k.shape[1]) <= here)[None, None, None]
            x = x + product(attention(q[:, None], k, v, mask)[:, 0], p["out"], 4)
            y = product(rms(x, p["scale"][1]), p["in"])
            gate, up = jnp.split(y, 2, -1)
            return x + product(jax.nn.silu(gate) * up, p["down"], 2), (k, v)

        x, caches = lax.scan(layer, params["table"][tokens], (params["layers"], caches))
        logits = (rms(x, params["last"]) @ params["head"]).astype(F32)
        return caches, logits.argmax(-1)

    def coded(i: int, o: int) -> Any:
        p = {"packed": Arg((i // 8, o), I32, below=1 << 31)}
        p["scales"] = Arg((i // group, o), BF16, 0.1 * i**-0.5)
        return p | {"zeros": Arg((i // group, o // 8), I32, below=1 << 31)}

    p = {"qkv": coded(d, 3 * d), "out": coded(d, d), "in": coded(d, 2 * wide)}
    p |= {"down": coded(wide, d), "scale": Arg((2, d))}
    params = {"layers": times(6, p), "table": Arg((words, d), BF16), "last": Arg((d,))}
    params |= {"head": weight(d, words)}
    caches = (Arg((6, m, 1024, 32, 128), BF16),) * 2
    given = (Arg((m,), I32, below=words), Arg((), I32, below=300))
    yield "gptq", carried(token, caches, params, *given)


# --------------------------------------------------------------------------------------- numerics


def alloys() -> Zoo:
    """Cahn and Hilliard's alloy on 144^3 cells: eight half-implicit steps by Fourier's waves."""
    n, steps, mobile, stiff, dt = 144, 8, 1.0, 0.5, 0.05

    def step(c: Any, heat: Any, key: Any) -> Any:
        k = 2 * jnp.pi * jnp.fft.fftfreq(n)
        last = 2 * jnp.pi * jnp.fft.rfftfreq(n)
        square = k[:, None, None] ** 2 + k[:, None] ** 2 + last**2
        low = (jnp.abs(k) < 2.1)[:, None, None] & (jnp.abs(k) < 2.1)[:, None] & (last < 2.1)
        below = 1 + dt * mobile * stiff * square**2 + 2 * dt * mobile * square
        depth = 1 + 0.1 * jnp.tanh(heat)

        def move(c: Any, key: Any) -> Any:
            push = depth * (c**3 - c) - 2 * c
            noise = 1e-3 * jax.random.normal(key, c.shape)
            top = jnp.fft.rfftn(c + noise) - dt * mobile * square * low * jnp.fft.rfftn(push)
            return jnp.fft.irfftn(top / below, c.shape), jnp.square(c).mean()

        c, spread = lax.scan(move, c, jax.random.split(key, steps))
        power = jnp.square(jnp.abs(jnp.fft.rfftn(c)))
        shell = jnp.minimum(jnp.sqrt(square) * n / (2 * jnp.pi), n // 2).astype(I32)
        return c, spread, jax.ops.segment_sum(power.reshape(-1), shell.reshape(-1), n // 2 + 1)

    yield "cahn_hilliard", carried(step, Arg((n, n, n), scale=0.1), Arg(()), _KEY)


def lattices_of_prices() -> Zoo:
    """Crank and Nicolson on 4,000 options with local volatility, by cyclic reduction and vega."""
    many, n, steps, top = 4000, 255, 24, 4.0

    def solved(a: Any, b: Any, c: Any, d: Any) -> Any:
        """Rows of three diagonals, whose neighbours are removed at doubling distances."""

        def shifted(x: Any, by: int, fill: float) -> Any:
            pad = jnp.full((many, abs(by)), fill)
            if by > 0:
                return jnp.concatenate([pad, x[:, :-by]], 1)
            return jnp.concatenate([x[:, -by:], pad], 1)

        gap = 1
        while gap < n:
            up = -a / shifted(b, gap, 1.0)
            down = -c / shifted(b, -gap, 1.0)
            b = b + up * shifted(c, gap, 0.0) + down * shifted(a, -gap, 0.0)
            d = d + up * shifted(d, gap, 0.0) + down * shifted(d, -gap, 0.0)
            a, c = up * shifted(a, gap, 0.0), down * shifted(c, -gap, 0.0)
            gap *= 2
        return d / b

    def prices(strikes: Any, spots: Any, shape: Any) -> Any:
        strikes = jnp.exp(0.1 * strikes)[:, None]
        x = jnp.linspace(0, top, n + 2)[1:-1]
        width, rate, dt = top / (n + 1), 0.03, 1 / steps

        def worth(shape: Any) -> Any:
            def back(v: Any, t: Any) -> Any:
                smile = 0.2 + 0.05 * jnp.tanh(shape[:, :1])
                smile = smile + 0.05 * jnp.tanh(shape[:, 1:]) * jnp.exp(-t) * (x - strikes) ** 2
                fast = jnp.square(jnp.clip(smile, 0.05, 1.0) * x) / (2 * width**2)
                slow = rate * x / (2 * width)
                low, high = 0.5 * dt * (fast - slow), 0.5 * dt * (fast + slow)
                mid = -low - high - 0.5 * dt * rate
                left = jnp.pad(v[:, :-1], ((0, 0), (1, 0)))
                edge = (top - strikes * jnp.exp(-rate * t)) * (jnp.arange(n) == n - 1)
                right = jnp.pad(v[:, 1:], ((0, 0), (0, 1))) + edge
                d = low * left + (1 + mid) * v + high * right + high * edge
                v = solved(-low, 1 - mid, -high, d)
                return jnp.maximum(v, 0.0), None

            first = jax.nn.relu(x - strikes)
            v, _ = lax.scan(jax.checkpoint(back), first, jnp.arange(steps) * dt)
            place = jnp.clip(jnp.exp(0.1 * spots) / width - 1, 0, n - 2)[:, None]
            low = place.astype(I32)
            one = jnp.take_along_axis(v, low, 1)
            two = jnp.take_along_axis(v, low + 1, 1)
            value = (one + (place - low) * (two - one))[:, 0]
            return value.sum(), (value, (two - one)[:, 0] / width)

        slopes, (values, deltas) = jax.grad(worth, has_aux=True)(shape)
        return values, deltas, slopes

    given = (Arg((many,)), Arg((many,)), Arg((many, 2)))
    yield "crank_nicolson", program(prices, *given)


def sketches() -> Zoo:
    """The first 96 components of 60,000 x 2,000 numbers, by random sketches and two rounds."""
    m, n, k = 60000, 2000, 112

    def components(x: Any, key: Any) -> Any:
        with jax.default_matmul_precision("float32"):
            mean = x.mean(0)

            def forward(w: Any) -> Any:
                return x @ w - mean @ w

            def back(q: Any) -> Any:
                return x.T @ q - mean[:, None] * q.sum(0)

            def tall(y: Any) -> Any:
                """Cholesky's QR, twice."""
                for _ in range(2):
                    gram = y.T @ y
                    gram = gram + 1e-5 * jnp.trace(gram) / k * jnp.eye(k)
                    root = jnp.linalg.cholesky(gram)
                    y = lax.linalg.triangular_solve(root, y, lower=True, transpose_a=True)
                return y

            y = forward(jax.random.normal(key, (n, k)))
            for _ in range(2):
                w, _ = jnp.linalg.qr(back(tall(y)))
                y = forward(w)
            q = tall(y)
            small = back(q).T
            values, left = jnp.linalg.eigh(small @ small.T)
            values, left = values[::-1][:96], left[:, ::-1][:, :96]
            size = jnp.sqrt(jnp.maximum(values, 1e-12))
            right = (left.T @ small) / size[:, None]
            scores = q @ (left * size)
            sign = jnp.sign(jnp.take_along_axis(right, jnp.abs(right).argmax(1)[:, None], 1))
            share = values / jnp.square(x - mean).sum()
        return scores * sign[:, 0], right * sign, share

    yield "randomised", program(components, Arg((m, n)), _KEY)


def arrays() -> Zoo:
    """Eight microphones, 20 seconds: a beam without distortion for each of 513 frequencies."""
    mics, length, size, hop = 8, 320000, 1024, 256
    frames = (length - size) // hop + 1

    def beam(sounds: Any, masks: Any) -> Any:
        window = 0.5 - 0.5 * jnp.cos(2 * jnp.pi * jnp.arange(size) / size)
        index = jnp.arange(frames)[:, None] * hop + jnp.arange(size)
        sounds = jax.vmap(jnp.roll)(sounds, 37 * jnp.arange(mics))
        spectra = jnp.fft.rfft(sounds[:, index] * window)
        speech = jax.nn.sigmoid(masks)

        def covariance(weight: Any) -> Any:
            y = jnp.einsum("tf,atf,btf->fab", weight, spectra, spectra.conj())
            return y / (weight.sum(0)[:, None, None] + 1e-6)

        voice, noise = covariance(speech), covariance(1 - speech)
        load = 1e-3 * jnp.trace(noise, axis1=1, axis2=2).real[:, None, None] / mics + 1e-6
        ratio = jnp.linalg.solve(noise + load * jnp.eye(mics), voice)
        trace = jnp.trace(ratio, axis1=1, axis2=2)[:, None]
        filtered = jnp.einsum("fa,atf->tf", (ratio[..., 0] / (trace + 1e-6)).conj(), spectra)
        gain = jnp.clip(speech, 0.1, 1.0)
        parts = jnp.fft.irfft(filtered * gain, size) * window
        total = jnp.zeros(length).at[index].add(parts)
        weight = jnp.zeros(length).at[index].add(window**2)
        return total / jnp.maximum(weight, 1e-3)

    given = (Arg((mics, length)), Arg((frames, size // 2 + 1)))
    yield "mvdr", program(beam, *given)


def bundles() -> Zoo:
    """A step of Levenberg and Marquardt on 120 cameras and 30,000 points, by Schur's complement."""
    cameras, points, seen = 120, 30000, 150000

    def reached(camera: Any, point: Any) -> Any:
        turn, shift, focal, bend = camera[:3], camera[3:6], camera[6], camera[7:]
        angle = jnp.sqrt(turn @ turn + 1e-8)
        axis = turn / angle
        x = point * jnp.cos(angle) + jnp.cross(axis, point) * jnp.sin(angle)
        x = x + axis * (axis @ point) * (1 - jnp.cos(angle)) + shift
        y = x[:2] / (x[2] + 6)
        far = y @ y
        return (1 + 0.1 * focal) * (1 + 0.01 * far * (bend[0] + far * bend[1])) * y

    def step(state: Any, ids: Any, pixels: Any, damp: Any) -> Any:
        views, places = state
        one, two = ids[0], jnp.roll(ids[1], 12345)  # The arguments go together.
        damp = 1e-2 * jnp.exp(jnp.tanh(damp))
        with jax.default_matmul_precision("float32"):
            a, b = views[one], places[two]
            error = jax.vmap(reached)(a, b) - 0.1 * pixels
            slopes = jax.vmap(jax.jacfwd(reached, (0, 1)))
            jc, jp = slopes(a, b)
            trust = lax.rsqrt(1 + jnp.square(error).sum(-1))[:, None, None]
            wc, wp = jc * trust, jp * trust

            def summed(x: Any, i: Any, n: int) -> Any:
                return jax.ops.segment_sum(x, i, n)

            hc = summed(jnp.einsum("eri,erj->eij", jc, wc), one, cameras)
            hp = summed(jnp.einsum("eri,erj->eij", jp, wp), two, points)
            gc = summed(jnp.einsum("eri,er->ei", wc, error), one, cameras)
            gp = summed(jnp.einsum("eri,er->ei", wp, error), two, points)
            hc = hc + damp * (hc * jnp.eye(9)) + 1e-4 * jnp.eye(9)
            hp = hp + damp * (hp * jnp.eye(3)) + 1e-4 * jnp.eye(3)
            cross = jnp.einsum("eri,erj->eij", jc, wp)
            inverse = jnp.linalg.inv(hp)

            def product(v: Any) -> Any:
                y = summed(jnp.einsum("eij,ei->ej", cross, v[one]), two, points)
                y = jnp.einsum("pij,pj->pi", inverse, y)
                y = summed(jnp.einsum("eij,ej->ei", cross, y[two]), one, cameras)
                return jnp.einsum("cij,cj->ci", hc, v) - y

            y = jnp.einsum("pij,pj->pi", inverse, gp)
            right = gc - summed(jnp.einsum("eij,ej->ei", cross, y[two]), one, cameras)
            small = jnp.linalg.inv(hc)
            move, _ = jax.scipy.sparse.linalg.cg(
                product, -right, maxiter=24, M=lambda v: jnp.einsum("cij,cj->ci", small, v)
            )
            y = summed(jnp.einsum("eij,ei->ej", cross, move[one]), two, points)
            other = -jnp.einsum("pij,pj->pi", inverse, gp + y)
            new = (views + move, places + other)
            after = jax.vmap(reached)(new[0][one], new[1][two]) - 0.1 * pixels
            better = jnp.square(after).sum() < jnp.square(error).sum()
        kept = jax.tree.map(lambda a, b: jnp.where(better, a, b), new, state)
        return kept, jnp.square(error).sum(), better

    state = (Arg((cameras, 9), scale=0.1), Arg((points, 3)))
    ids = (Arg((seen,), I32, below=cameras), Arg((seen,), I32, below=points))
    yield "schur", carried(step, state, ids, Arg((seen, 2)), Arg(()))


def splashes() -> Zoo:
    """Smoothed particles of water: 60,000 of them are sorted by cells, and pushed four times."""
    n, side, each, near = 60000, 32, 12, 1 / 32

    def step(state: Any, pull: Any) -> Any:
        def push(_: Any, state: Any) -> Any:
            x, v = state
            cell = jnp.clip((x * side).astype(I32), 0, side - 1)
            code = (cell[:, 0] * side + cell[:, 1]) * side + cell[:, 2]
            order = jnp.argsort(code)
            x, v, code = x[order], v[order], code[order]
            count = jnp.bincount(code, length=side**3)
            first = jnp.cumsum(count) - count
            cell = jnp.clip((x * side).astype(I32), 0, side - 1)
            steps = jnp.stack(jnp.meshgrid(*[jnp.arange(-1, 2)] * 3, indexing="ij"), -1)
            steps = steps.reshape(27, 3)

            def around(part: Any) -> Any:
                """Sums over the particles of 27 cells."""

                def one(total: Any, way: Any) -> Any:
                    other = cell + way
                    inside = ((other >= 0) & (other < side)).all(-1)
                    other = jnp.clip(other, 0, side - 1)
                    other = (other[:, 0] * side + other[:, 1]) * side + other[:, 2]
                    place = first[other][:, None] + jnp.arange(each)
                    real = (jnp.arange(each) < count[other][:, None]) & inside[:, None]
                    place = jnp.minimum(place, n - 1)
                    gap = x[:, None] - x[place]
                    far = jnp.sqrt(jnp.square(gap).sum(-1) + 1e-12)
                    real = real & (far < near) & (place != jnp.arange(n)[:, None])
                    return jax.tree.map(jnp.add, total, part(place, gap, far, real)), None

                shapes = jax.eval_shape(
                    part,
                    jax.ShapeDtypeStruct((n, each), I32),
                    jax.ShapeDtypeStruct((n, each, 3), F32),
                    jax.ShapeDtypeStruct((n, each), F32),
                    jax.ShapeDtypeStruct((n, each), jnp.bool_),
                )
                zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
                return lax.scan(one, zero, steps)[0]

            def dense(place: Any, gap: Any, far: Any, real: Any) -> Any:
                return (jnp.where(real, (1 - far / near) ** 2, 0.0)).sum(-1)

            density = around(dense) + 1.0
            pressure = 0.02 * (density - 4.0)

            def forces(place: Any, gap: Any, far: Any, real: Any) -> Any:
                slope = jnp.where(real, 1 - far / near, 0.0)
                both = (pressure[:, None] + pressure[place]) / (2 * density[place])
                pushed = ((both * slope / far)[..., None] * gap).sum(1)
                drag = 2.0 * ((slope / density[place])[..., None] * (v[place] - v[:, None])).sum(1)
                return pushed + drag

            a = around(forces) / density[:, None] + jnp.array([0.0, 0.0, -1.0]) + 0.01 * pull
            v = v + 1e-3 * a
            x = x + 1e-3 * v
            v = jnp.where((x < 0) | (x > 1), -0.5 * v, v)
            return jnp.clip(x, 0.0, 1.0), v

        state = (jnp.abs(state[0]), state[1])
        x, v = lax.fori_loop(0, 4, push, state)
        return (x, v), 0.5 * jnp.square(v).sum(), x[:, 2].max()

    state = (Arg((n, 3), scale=0.4), Arg((n, 3), scale=0.1))
    yield "smoothed", carried(step, state, Arg((3,)))


def photographs() -> Zoo:
    """A blurred photograph of 1,080 x 1,620: Chambolle and Pock's total variation, then sharper."""
    tall, wide, rounds = 1080, 1620, 40

    def sharp(picture: Any, size: Any) -> Any:
        y = picture.astype(F32).transpose(2, 0, 1) / 255
        fy, fx = jnp.fft.fftfreq(tall)[:, None], jnp.fft.rfftfreq(wide)
        spread = 1.5 + 0.2 * jnp.tanh(size)
        blur = jnp.exp(-2 * jnp.square(jnp.pi * spread) * (fy**2 + fx**2))
        seen = jnp.fft.rfft2(y) * blur
        tau, sigma, fidelity = 0.25, 0.4, 40.0
        below = 1 / (1 + tau * fidelity * blur**2)

        def slope(x: Any) -> Any:
            down = jnp.pad(jnp.diff(x, axis=1), ((0, 0), (0, 1), (0, 0)))
            right = jnp.pad(jnp.diff(x, axis=2), ((0, 0), (0, 0), (0, 1)))
            return jnp.stack([down, right])

        def gathered(p: Any) -> Any:
            down = jnp.diff(p[0], axis=1, prepend=0.0)
            return down + jnp.diff(p[1], axis=2, prepend=0.0)

        def step(_: Any, carry: Any) -> Any:
            x, ahead, p = carry
            p = p + sigma * slope(ahead)
            p = p / jnp.maximum(1.0, jnp.sqrt(jnp.square(p).sum((0, 1), keepdims=True)))
            new = jnp.fft.rfft2(x + tau * gathered(p)) + tau * fidelity * seen
            new = jnp.fft.irfft2(new * below, (tall, wide))
            return new, 2 * new - x, p

        x, _, _ = lax.fori_loop(0, rounds, step, (y, y, slope(y) * 0))
        total = jnp.sqrt(jnp.square(slope(x)).sum((0, 1))).sum()
        return (jnp.clip(x, 0, 1) * 255).astype(U8).transpose(1, 2, 0), total

    yield "total_variation", program(sharp, Arg((tall, wide, 3), U8, below=256), Arg(()))


def paths() -> Zoo:
    """Light of 640 x 400 pixels with two paths each, which meet 24 spheres up to six times."""
    tall, wide, each, balls, meets = 400, 640, 2, 24, 6
    n = tall * wide * each

    def traced(centres: Any, sizes: Any, colours: Any, kinds: Any, key: Any) -> Any:
        centres = 2 * centres.at[0].set(jnp.array([0.0, -51.0, 0.0]))
        sizes = (0.3 + 0.2 * jnp.abs(sizes)).at[0].set(100.0)
        colours = jax.nn.sigmoid(colours)
        glow = jnp.where(kinds == 2, 4.0, 0.0)
        one, two = jax.random.split(key)
        shake = jax.random.uniform(one, (n, 2))
        pixel = jnp.arange(n) // each
        x = (pixel % wide + shake[:, 0]) / wide * 2 - 1
        y = 1 - (pixel // wide + shake[:, 1]) / tall * 2
        way = jnp.stack([x * wide / tall, y, jnp.full(n, -1.5)], -1)
        way = way / jnp.linalg.norm(way, axis=-1, keepdims=True)
        start = jnp.broadcast_to(jnp.array([0.0, 0.5, 7.0]), (n, 3))

        def meet(carry: Any, key: Any) -> Any:
            start, way, share, light, alive = carry
            k1, k2 = jax.random.split(key)
            gap = start[:, None] - centres
            half = (gap * way[:, None]).sum(-1)
            inner = half**2 - (jnp.square(gap).sum(-1) - sizes**2)
            root = jnp.sqrt(jnp.maximum(inner, 0.0))
            near, far = -half - root, -half + root
            t = jnp.where(near > 1e-3, near, far)
            t = jnp.where((inner > 0) & (t > 1e-3), t, jnp.inf)
            ball, t = t.argmin(1), t.min(1)
            hit = alive & jnp.isfinite(t)
            sky = 0.5 * (way[:, 1:2] + 1) * jnp.array([0.5, 0.7, 1.0])
            light = light + jnp.where((alive & ~hit)[:, None], share * sky, 0.0)
            place = start + jnp.where(hit, t, 0.0)[:, None] * way
            normal = (place - centres[ball]) / sizes[ball][:, None]
            normal = jnp.where((normal * way).sum(-1, keepdims=True) > 0, -normal, normal)
            light = light + jnp.where(hit, glow[ball], 0.0)[:, None] * share
            rough = jax.random.normal(k1, (n, 3))
            rough = rough / (jnp.linalg.norm(rough, axis=-1, keepdims=True) + 1e-6)
            soft = normal + rough
            mirror = way - 2 * (way * normal).sum(-1, keepdims=True) * normal + 0.1 * rough
            new = jnp.where((kinds[ball] == 1)[:, None], mirror, soft)
            new = new / (jnp.linalg.norm(new, axis=-1, keepdims=True) + 1e-6)
            share = jnp.where(hit[:, None], share * colours[ball], share)
            live = jnp.clip(share.max(-1), 0.05, 1.0)
            stay = hit & (jax.random.uniform(k2, (n,)) < live)
            share = share / live[:, None]
            return (place, new, share, light, stay), stay.mean()

        zero = (start, way, jnp.ones((n, 3)), jnp.zeros((n, 3)), jnp.ones(n, bool))
        (_, _, _, light, _), alive = lax.scan(meet, zero, jax.random.split(two, meets))
        picture = light.reshape(tall, wide, each, 3).mean(2)
        picture = picture / (1 + picture)
        return (255 * picture ** (1 / 2.2)).astype(U8), alive

    given = (Arg((balls, 3)), Arg((balls,)), Arg((balls, 3)), Arg((balls,), I32, below=3), _KEY)
    yield "spheres", program(traced, *given)
