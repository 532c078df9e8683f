"""A seventeenth zoo: steps of public models of the years 2022 to 2026, as people write them in JAX.

It was written without a look at the predictor or its calibration, to be timed once: no
calibration and no fit has used its programs. Optimisers are written by hand in most of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import nnx
from fourth import program, weight
from jax import lax
from ninth import carried

from xlapipe.running.calibration.timed_program import Arg, TimedProgram

F32, BF16, F16, I32 = jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32
U8, U32, F8 = jnp.uint8, jnp.uint32, jnp.float8_e4m3fn
Zoo = Iterator[tuple[str, TimedProgram]]
_KEY = Arg((2,), U32, below=1 << 30)


def seventeenth_programs() -> dict[str, TimedProgram]:
    """Every program, by FAMILY/NAME."""
    families = (
        *(decoders, mixtures, masked, recurrent, rewards, serving, hybrids, music),
        *(backbones, selftaught, detection, prompts, diffusion, video, sampling, listening),
        *(multimodal, folding, recommending, weather, scenes),
    )
    return {
        f"{family.__name__}/{name}": program for family in families for name, program in family()
    }


def master(*shape: int) -> Arg:
    """A weight in float32."""
    return weight(*shape, dtype=F32)


def filters(*shape: int, dtype: Any = F32) -> Arg:
    """Windows of a convolution."""
    return Arg(shape, dtype, scale=prod(shape[:-1]) ** -0.5)


def times(n: int, p: Any) -> Any:
    """The weights of layers that are scanned."""
    return jax.tree.map(lambda a: replace(a, shape=(n, *a.shape)), p)


def zeros(p: Any, dtype: Any = F32) -> Any:
    """What an optimiser knows of weights when it starts."""
    return jax.tree.map(lambda a: Arg(a.shape, dtype, scale=0.0), p)


def half(p: Any, dtype: Any = BF16) -> Any:
    """Weights as products use them."""
    return jax.tree.map(lambda w: w.astype(dtype) if w.dtype == F32 else w, p)


def rms(x: Any, scale: Any = 1.0) -> Any:
    """RMSNorm."""
    y = x.astype(F32)
    y = y * lax.rsqrt(jnp.mean(jnp.square(y), -1, keepdims=True) + 1e-6)
    return (y * scale).astype(x.dtype)


def layer_norm(x: Any, scale: Any = 1.0, shift: Any = 0.0) -> Any:
    """LayerNorm."""
    y = x.astype(F32)
    mean, spread = y.mean(-1, keepdims=True), y.var(-1, keepdims=True)
    return ((y - mean) * lax.rsqrt(spread + 1e-5) * scale + shift).astype(x.dtype)


def rope(x: Any, places: Any, base: float = 1e4) -> Any:
    """Rotation of the first half of the numbers with the second, as in Hugging Face's models."""
    speed = base ** (-jnp.arange(0, x.shape[-1], 2) / x.shape[-1])
    angle = places[..., None].astype(F32) * speed
    cos, sin = jnp.cos(angle)[..., None, :], jnp.sin(angle)[..., None, :]
    a, b = jnp.split(x.astype(F32), 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def heads(x: Any, size: int) -> Any:
    """The last axis in heads."""
    return x.reshape(*x.shape[:-1], -1, size)


def attention(q: Any, k: Any, v: Any, mask: Any = None, bias: Any = None) -> Any:
    """Attention in which groups of queries share a key; mask and bias are [b, 1 or h, q, k]."""
    b, s, h, size = q.shape
    g = k.shape[2]
    q = q.reshape(b, s, g, h // g, size)
    scores = jnp.einsum("bqgrd,bkgd->bgrqk", q, k, preferred_element_type=F32) * size**-0.5
    if bias is not None:
        scores = scores + bias.reshape(bias.shape[0], g, h // g, *bias.shape[2:])
    if mask is not None:
        scores = jnp.where(mask[:, :, None], scores, -1e30)
    shares = jax.nn.softmax(scores, -1).astype(v.dtype)
    return jnp.einsum("bgrqk,bkgd->bqgrd", shares, v).reshape(b, s, -1)


def causal(s: int) -> Any:
    """Which tokens see which."""
    return jnp.tril(jnp.ones((s, s), bool))[None, None]


def swiglu(x: Any, p: Any) -> Any:
    """A perceptron with a gate, with three weights."""
    return (jax.nn.silu(x @ p["gate"]) * (x @ p["up"])) @ p["down"]


def swiglu_weights(d: int, wide: int, make: Callable[..., Arg] = master) -> dict[str, Arg]:
    """Its weights."""
    return {"gate": make(d, wide), "up": make(d, wide), "down": make(wide, d)}


def cross_entropy(logits: Any, goals: Any) -> Any:
    """The loss of each token."""
    logits = logits.astype(F32)
    right = jnp.take_along_axis(logits, goals[..., None], -1)[..., 0]
    return jax.nn.logsumexp(logits, -1) - right


def conv(x: Any, w: Any, stride: int = 1, padding: Any = "SAME", groups: int = 1) -> Any:
    """A convolution of pictures."""
    return lax.conv_general_dilated(
        *(x, w, (stride,) * (x.ndim - 2), padding),
        dimension_numbers=("NHWC", "HWIO", "NHWC") if x.ndim == 4 else ("NDHWC", "DHWIO", "NDHWC"),
        feature_group_count=groups,
    )


def clipped(grads: Any, most: float = 1.0) -> Any:
    """Gradients whose norm is at most `most`."""
    size = jnp.sqrt(sum(jnp.sum(jnp.square(g.astype(F32))) for g in jax.tree.leaves(grads)))
    return jax.tree.map(lambda g: g * jnp.minimum(1.0, most / (size + 1e-6)), grads)


def adamw_start(params: Any) -> Any:
    """Weights, both moments and the count of steps."""
    return (params, zeros(params), zeros(params), Arg((), I32, below=1))


def adamw(
    state: Any, loss: Callable[..., Any], rate: float = 3e-4, decay: float = 0.1, b2: float = 0.95
) -> Any:
    """A step of AdamW with a clipped gradient."""
    params, first, second, count = state
    value, grads = jax.value_and_grad(loss)(params)
    grads, count = clipped(grads), count + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
    second = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, second, grads)
    one, two = 1 - 0.9 ** count.astype(F32), 1 - b2 ** count.astype(F32)

    def moved(w: Any, m: Any, v: Any) -> Any:
        way = (m / one) / (jnp.sqrt(v / two) + 1e-8)
        return w - rate * (way + (decay if w.ndim > 1 else 0.0) * w)

    return (jax.tree.map(moved, params, first, second), first, second, count), value


def lion(state: Any, loss: Callable[..., Any], rate: float = 1e-4) -> Any:
    """A step of Lion, whose mean is in bfloat16."""
    params, means = state
    value, grads = jax.value_and_grad(loss)(params)

    def moved(w: Any, m: Any, g: Any) -> Any:
        return w - rate * (jnp.sign(0.9 * m.astype(F32) + 0.1 * g) + 0.1 * w)

    new = jax.tree.map(moved, params, means, grads)
    means = jax.tree.map(lambda m, g: (0.99 * m.astype(F32) + 0.01 * g).astype(BF16), means, grads)
    return (new, means), value


def linen_weights(module: nn.Module, *given: Any, **kw: Any) -> Any:
    """A module's variables, by the shapes of what it is given."""
    structs = jax.tree.map(Arg.struct, given)
    keys = {name: jax.random.key(0) for name in ("params", "dropout")}
    shapes = jax.eval_shape(lambda *a: module.init(keys, *a, **kw), *structs)
    return nnx_weights(shapes)


def nnx_weights(shapes: Any) -> Any:
    """Random weights of these shapes."""

    def made(path: Any, x: Any) -> Arg:
        name = str(getattr(path[-1], "key", path[-1]))
        if len(x.shape) > 1 and name != "embedding":
            return Arg(x.shape, x.dtype, scale=prod(x.shape[:-1]) ** -0.5)
        return Arg(x.shape, x.dtype, scale=1.0 if name == "scale" else 0.02)

    return jax.tree_util.tree_map_with_path(made, shapes)


def decoders() -> Zoo:
    """Training: Gemma 3 with Lion, DeepSeek's latents that guess two tokens, sparse attention."""
    b, s, d, size, words = 2, 1000, 1152, 256, 262144

    def gemma(state: Any, tokens: Any) -> Any:
        """Five layers of windows of 512 tokens and one that sees all; norms on both sides."""
        places = jnp.arange(s)
        gap = places[:, None] - places
        whole, near = (gap >= 0)[None, None], ((gap >= 0) & (gap < 512))[None, None]

        @jax.checkpoint
        def layer(x: Any, given: Any) -> Any:
            p, local = given
            y = rms(x, 1 + p["scale"][0])
            q, k, v = heads(y @ p["q"], size), heads(y @ p["k"], size), heads(y @ p["v"], size)
            q, k = rms(q, 1 + p["turn"][0]), rms(k, 1 + p["turn"][1])
            slow = local < 0.5
            q = jnp.where(slow, rope(q, places, 1e6), rope(q, places))
            k = jnp.where(slow, rope(k, places, 1e6), rope(k, places))
            y = attention(q, k, v, jnp.where(slow, whole, near)) @ p["out"]
            x = x + rms(y, 1 + p["scale"][1])
            y = rms(x, 1 + p["scale"][2])
            y = (jax.nn.gelu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]
            return x + rms(y, 1 + p["scale"][3]), None

        def loss(params: Any) -> Any:
            p = half(params)
            x = p["table"][tokens[:, :-1]] * jnp.asarray(d**0.5, BF16)
            local = jnp.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
            x, _ = lax.scan(layer, x, (p["layers"], local))
            logits = rms(x, 1 + p["last"]) @ p["table"].T
            return cross_entropy(logits, tokens[:, 1:]).mean()

        return lion(state, loss)

    layer = {"q": master(d, 4 * size), "k": master(d, size), "v": master(d, size)}
    layer |= {"out": master(4 * size, d), "scale": Arg((4, d), scale=0.1)}
    layer |= {"turn": Arg((2, size), scale=0.1)} | swiglu_weights(d, 6912)
    params = {"layers": times(6, layer), "table": Arg((words, d), scale=0.02)}
    params |= {"last": Arg((d,), scale=0.1)}
    ids = Arg((b, s + 1), I32, below=words)
    yield "gemma3", carried(gemma, (params, zeros(params, BF16)), ids)

    c, n, length, many = 1024, 16, 768, 32320

    def mtp(state: Any, tokens: Any) -> Any:
        """Experts by sigmoids and a bias; another layer guesses the token after the next."""
        places, mask = jnp.arange(length), causal(length)

        def latent(x: Any, p: Any) -> Any:
            q = heads(rms(x @ p["q_a"], p["q_scale"]) @ p["q_b"], 96)
            low, side = jnp.split(x @ p["kv_a"], [256], -1)
            k, v = jnp.split(heads(rms(low, p["kv_scale"]) @ p["kv_b"], 128), 2, -1)
            side = jnp.broadcast_to(rope(side[:, :, None], places), (*k.shape[:3], 32))
            q = jnp.concatenate([q[..., :64], rope(q[..., 64:], places)], -1)
            return attention(q, jnp.concatenate([k, side], -1), v, mask) @ p["out"]

        def experts(x: Any, p: Any) -> Any:
            likely = jax.nn.sigmoid((x @ p["route"]).astype(F32))
            _, index = lax.top_k(likely + lax.stop_gradient(p["bias"].astype(F32)), 2)
            picked = jax.nn.one_hot(index, 8).sum(-2) * likely
            picked = (picked / picked.sum(-1, keepdims=True)).astype(BF16)
            gate = jnp.einsum("bsd,edf->bsef", x, p["e_gate"])
            wide = jax.nn.silu(gate) * jnp.einsum("bsd,edf->bsef", x, p["e_up"])
            return jnp.einsum("bsef,bse,efd->bsd", wide, picked, p["e_down"]) + swiglu(x, p)

        @jax.checkpoint
        def layer(x: Any, p: Any) -> Any:
            x = x + latent(rms(x, p["scale"][0]), p)
            return x + experts(rms(x, p["scale"][1]), p), None

        def loss(params: Any) -> Any:
            p = half(params)
            x, _ = lax.scan(layer, p["table"][tokens[:, :-2]], p["layers"])
            first = cross_entropy(rms(x, p["last"][0]) @ p["head"], tokens[:, 1:-1]).mean()
            ahead = jnp.concatenate([rms(x), rms(p["table"][tokens[:, 1:-1]])], -1)
            x, _ = layer(ahead @ p["join"], p["next"])
            second = cross_entropy(rms(x, p["last"][1]) @ p["head"], tokens[:, 2:]).mean()
            return first + 0.3 * second

        return adamw(state, loss)

    layer = {"q_a": master(c, 384), "q_b": master(384, n * 96), "q_scale": Arg((384,))}
    layer |= {"kv_a": master(c, 288), "kv_b": master(256, n * 128), "kv_scale": Arg((256,))}
    layer |= {"out": master(n * 64, c), "route": master(c, 8), "bias": Arg((8,), scale=0.01)}
    layer |= {"e_gate": master(8, c, 704), "e_up": master(8, c, 704), "e_down": master(8, 704, c)}
    layer |= {"scale": Arg((2, c))} | swiglu_weights(c, 704)
    params = {"layers": times(4, layer), "next": layer, "join": master(2 * c, c)}
    params |= {"table": Arg((many, c), scale=0.02), "head": master(c, many), "last": Arg((2, c))}
    yield "mtp", carried(mtp, adamw_start(params), Arg((4, length + 2), I32, below=many))

    long, wide, q_heads, groups, e, block = 2048, 1536, 16, 2, 96, 32

    def native(state: Any, x: Any, goal: Any) -> Any:
        """Means of blocks, the eight best blocks of 64 tokens, and the last 512, mixed by gates."""
        rows, places = x.shape[0], jnp.arange(long)

        def loss(params: Any) -> Any:
            p = half(params)
            y = rms(x, params["scale"])
            q = rope(heads(y @ p["q"], e), places)
            k, v = rope(heads(y @ p["k"], e), places), heads(y @ p["v"], e)
            parts = (a.reshape(rows, -1, block, groups, e) + p["spot"] for a in (k, v))
            few_k, few_v = (jnp.einsum("bnlge,lef->bngf", a, p["squeeze"]) for a in parts)
            ended = (jnp.arange(long // block) + 1) * block - 1
            seen = ended <= places[:, None]
            split = q.reshape(rows, long, groups, -1, e)
            scores = jnp.einsum("bsgre,bnge->bgrsn", split, few_k).astype(F32) * e**-0.5
            shares = jax.nn.softmax(jnp.where(seen, scores, -1e9), -1) * seen
            one = jnp.einsum("bgrsn,bnge->bsgre", shares.astype(BF16), few_v)
            worth = lax.stop_gradient(shares).sum(2).reshape(rows, groups, long, -1, 2).sum(-1)
            here = jax.nn.one_hot(places // 64, long // 64) * 1e3
            _, index = lax.top_k(worth + here, 8)

            def picked(a: Any) -> Any:
                a = a.reshape(rows, long // 64, 64, groups, e).transpose(0, 3, 1, 2, 4)
                take = jax.vmap(jax.vmap(lambda a, i: a[i]))
                return take(a, index).reshape(rows, groups, long, 512, e)

            where = (index[..., None] * 64 + jnp.arange(64)).reshape(rows, groups, long, 512)
            scores = jnp.einsum("bsgre,bgske->bgrsk", split, picked(k)).astype(F32) * e**-0.5
            open_ = (where <= places[:, None])[:, :, None]
            shares = jax.nn.softmax(jnp.where(open_, scores, -1e9), -1).astype(BF16)
            two = jnp.einsum("bgrsk,bgske->bsgre", shares, picked(v))
            gap = places[:, None] - places
            three = attention(q, k, v, ((gap >= 0) & (gap < 512))[None, None])
            gates = jax.nn.sigmoid(heads(y @ p["mix"], q_heads))[..., None]
            ways = (one, two, three)
            found = sum(gates[:, :, n] * a.reshape(q.shape) for n, a in enumerate(ways))
            out = x + found.reshape(rows, long, -1) @ p["out"]
            return jnp.square((out - goal).astype(F32)).mean()

        return adamw(state, loss)

    params = {"q": master(wide, q_heads * e), "k": master(wide, groups * e), "scale": Arg((wide,))}
    params |= {"v": master(wide, groups * e), "out": master(q_heads * e, wide)}
    params |= {"spot": Arg((block, 1, e), scale=0.1), "squeeze": filters(block, e, e)}
    params |= {"mix": master(wide, 3 * q_heads)}
    x = Arg((2, long, wide), BF16)
    yield "native_sparse", carried(native, adamw_start(params), x, x)


def mixtures() -> Zoo:
    """Training as in Llama 4: one of 16 experts by ragged products, with Adafactor."""
    b, s, d, wide, count, words = 4, 1024, 1280, 2048, 16, 100277

    def scout(state: Any, tokens: Any) -> Any:
        """The first layer turns and sees parts of 256 tokens; the second does not turn."""
        params, rows, columns = state
        places = jnp.arange(s)
        same = (places[:, None] // 256 == places // 256)[None, None] & causal(s)

        def experts(x: Any, p: Any) -> Any:
            flat = x.reshape(-1, d)
            best, index = lax.top_k((flat @ p["route"]).astype(F32), 1)
            order = jnp.argsort(index[:, 0])
            sizes = jnp.bincount(index[:, 0], length=count)
            told = (flat * jax.nn.sigmoid(best).astype(BF16))[order]
            gate, up = jnp.split(lax.ragged_dot(told, p["both"], sizes), 2, -1)
            found = lax.ragged_dot(jax.nn.silu(gate) * up, p["back"], sizes)
            return jnp.zeros_like(flat).at[order].set(found).reshape(x.shape)

        def layer(x: Any, p: Any, near: bool) -> Any:
            y = rms(x, p["scale"][0])
            q, k, v = heads(y @ p["q"], 128), heads(y @ p["k"], 128), heads(y @ p["v"], 128)
            if near:
                q, k = rms(rope(q, places, 5e5)), rms(rope(k, places, 5e5))
            else:
                heat = jnp.log1p(jnp.floor((places + 1) / 512)) * 0.1 + 1
                q = q * heat[:, None, None].astype(BF16)
            x = x + attention(q, k, v, same if near else causal(s)) @ p["out"]
            y = rms(x, p["scale"][1])
            return x + experts(y, p) + swiglu(y, p)

        def loss(params: Any) -> Any:
            p = half(params)
            x = p["table"][tokens[:, :-1]]
            for n, q in enumerate(p["layers"]):
                x = layer(x, q, n == 0)
            return cross_entropy(rms(x, p["last"]) @ p["head"], tokens[:, 1:]).mean()

        value, grads = jax.value_and_grad(loss)(params)

        def stepped(w: Any, r: Any, c: Any, g: Any) -> Any:
            square = jnp.square(g) + 1e-30
            if w.ndim < 2:
                r = 0.99 * r + 0.01 * square
                way = g * lax.rsqrt(r)
            else:
                r = 0.99 * r + 0.01 * square.mean(-1)
                c = 0.99 * c + 0.01 * square.mean(-2)
                tall = r / r.mean(-1, keepdims=True)
                way = g * lax.rsqrt(tall)[..., None] * lax.rsqrt(c)[..., None, :]
            way = way / jnp.maximum(1.0, jnp.sqrt(jnp.square(way).mean()))
            return w - 1e-3 * jnp.maximum(1e-3, jnp.sqrt(jnp.square(w).mean())) * way, r, c

        found = jax.tree.map(stepped, params, rows, columns, grads)
        state = jax.tree.transpose(jax.tree.structure(params), jax.tree.structure((0, 0, 0)), found)
        return state, value

    layer = {"q": master(d, d), "k": master(d, 256), "v": master(d, 256), "out": master(d, d)}
    layer |= {"route": master(d, count), "both": master(count, d, 2 * wide)}
    layer |= {"back": master(count, wide, d), "scale": Arg((2, d))} | swiglu_weights(d, wide)
    params = {"layers": [layer] * 2, "table": Arg((words, d), scale=0.02), "last": Arg((d,))}
    params |= {"head": master(d, words)}

    def rest(a: Arg, axis: int) -> Arg:
        if len(a.shape) < 2:
            return Arg(a.shape, scale=0.0) if axis == -1 else Arg((1,), scale=0.0)
        return Arg((*a.shape[:-2], a.shape[-1 if axis == -2 else -2]), scale=0.0)

    state = (params, *[jax.tree.map(lambda a, n=n: rest(a, n), params) for n in (-1, -2)])
    yield "scout", carried(scout, state, Arg((b, s + 1), I32, below=words))


class Encoder(nn.Module):
    """BERT's encoder, in linen."""

    layers: int
    d: int
    heads: int

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        x = nn.Embed(30522, self.d, dtype=BF16)(tokens)
        x = x + nn.Embed(512, self.d, dtype=BF16)(jnp.arange(tokens.shape[1]))
        x = nn.Dropout(0.1, deterministic=False)(nn.LayerNorm(dtype=BF16)(x))
        for _ in range(self.layers):
            y = nn.MultiHeadDotProductAttention(
                self.heads, dtype=BF16, dropout_rate=0.1, deterministic=False
            )(x, x)
            x = nn.LayerNorm(dtype=BF16)(x + nn.Dropout(0.1, deterministic=False)(y))
            y = nn.Dense(self.d, dtype=BF16)(nn.gelu(nn.Dense(4 * self.d, dtype=BF16)(x)))
            x = nn.LayerNorm(dtype=BF16)(x + nn.Dropout(0.1, deterministic=False)(y))
        return x


class Electra(nn.Module):
    """Guessed words, and which of them are not the text's own."""

    @nn.compact
    def __call__(self, tokens: Any, hidden: Any) -> Any:
        shown = jnp.where(hidden, 103, tokens)
        x = Encoder(4, 256, 4)(shown)
        x = nn.LayerNorm(dtype=BF16)(nn.gelu(nn.Dense(256, dtype=BF16)(x)))
        logits = nn.Dense(30522, dtype=BF16)(x).astype(F32)
        drawn = jax.random.categorical(self.make_rng("dropout"), lax.stop_gradient(logits))
        changed = jnp.where(hidden, drawn, tokens)
        x = Encoder(5, 768, 12)(changed)
        x = nn.gelu(nn.Dense(768, dtype=BF16)(x))
        return logits, nn.Dense(1, dtype=F32)(x)[..., 0], changed != tokens


def masked() -> Zoo:
    """Training of ELECTRA in linen with dropout and LAMB: a small model fools a larger one."""
    model = Electra()

    def electra(state: Any, tokens: Any, chance: Any, key: Any) -> Any:
        params, first, second = state
        hidden = chance < 15

        def loss(params: Any) -> Any:
            rngs = {"dropout": key}
            logits, wrong, goal = model.apply(params, tokens, hidden, rngs=rngs)
            guess = (cross_entropy(logits, tokens) * hidden).sum() / (hidden.sum() + 1)
            return guess + 50 * optax.sigmoid_binary_cross_entropy(wrong, goal).mean()

        value, grads = jax.value_and_grad(loss)(params)
        grads = clipped(grads)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, grads)

        def moved(w: Any, m: Any, v: Any) -> Any:
            way = m / (jnp.sqrt(v) + 1e-6) + 0.01 * w
            size, pace = jnp.linalg.norm(w), jnp.linalg.norm(way)
            return w - 2e-3 * jnp.where((size > 0) & (pace > 0), size / pace, 1.0) * way

        return (jax.tree.map(moved, params, first, second), first, second), value

    given = (Arg((48, 128), I32, below=30522), Arg((48, 128), I32, below=100))
    params = linen_weights(model, given[0], replace(given[1], dtype=jnp.bool_))
    state = (params, zeros(params), zeros(params))
    yield "electra", carried(electra, state, *given, _KEY)


def recurrent() -> Zoo:
    """Training of RWKV 7, whose states follow a generalised delta rule, token by token."""
    b, s, d, size, words = 8, 192, 768, 64, 65536
    n = d // size

    def goose(state: Any, tokens: Any) -> Any:
        def shifted(x: Any) -> Any:
            return jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1] - x

        def token(held: Any, given: Any) -> Any:
            r, w, k, v, a, bb = given
            less = jnp.einsum("bhij,bhj->bhi", held, a)
            held = held * w[:, :, None] + less[..., None] * bb[:, :, None]
            held = held + v[..., None] * k[:, :, None]
            return held, jnp.einsum("bhij,bhj->bhi", held, r)

        @jax.checkpoint
        def part(held: Any, given: Any) -> Any:
            return lax.scan(token, held, given)

        def times_mixed(x: Any, p: Any) -> Any:
            gap = shifted(x)
            r, w, k, v, a, g = (x + gap * p["mix"][i] for i in range(6))
            r, k, v = r @ p["r"], k @ p["k"], v @ p["v"]
            w = p["w"][0] + jnp.tanh(w @ p["w"][1]) @ p["w"][2]
            w = jnp.exp(-0.606531 * jax.nn.sigmoid(w.astype(F32)))
            a = jax.nn.sigmoid(p["a"][0] + (a @ p["a"][1]) @ p["a"][2])
            g = jax.nn.sigmoid(g @ p["g"][0]) @ p["g"][1]
            kk = heads((k * p["kk"]).astype(F32), size)
            kk = kk * lax.rsqrt(jnp.square(kk).sum(-1, keepdims=True) + 1e-6)
            k = k * (1 + (a - 1) * p["ka"])
            wide = [heads(y.astype(F32), size) for y in (r, w, k, v, a)]
            r, w, k, v, a = wide
            given = (r, w, k, v, -kk, kk * a)
            given = jax.tree.map(lambda y: y.swapaxes(0, 1).reshape(s // 16, 16, b, n, size), given)
            _, y = lax.scan(part, jnp.zeros((b, n, size, size)), given)
            y = layer_norm(y.reshape(s, b, n, size).swapaxes(0, 1))
            y = y + (r * k * p["rk"]).sum(-1, keepdims=True) * v
            return (y.reshape(x.shape).astype(BF16) * g) @ p["out"]

        def layer(x: Any, p: Any) -> Any:
            x = x + times_mixed(layer_norm(x, p["scale"][0]), p)
            y = layer_norm(x, p["scale"][1])
            y = y + shifted(y) * p["mix"][6]
            return x + jnp.square(jax.nn.relu(y @ p["up"])) @ p["down"], None

        def loss(params: Any) -> Any:
            p = half(params)
            x, _ = lax.scan(layer, layer_norm(p["table"][tokens[:, :-1]]), p["layers"])
            return cross_entropy(layer_norm(x, p["last"]) @ p["head"], tokens[:, 1:]).mean()

        return adamw(state, loss, 4e-4, 0.01, 0.99)

    layer = {"r": master(d, d), "k": master(d, d), "v": master(d, d), "out": master(d, d)}
    layer |= {"w": (Arg((d,)), master(d, 64), master(64, d)), "mix": Arg((7, d), scale=0.3)}
    layer |= {"a": (Arg((d,)), master(d, 64), master(64, d)), "g": (master(d, 128), master(128, d))}
    layer |= {"kk": Arg((d,)), "ka": Arg((d,)), "rk": Arg((n, size), scale=0.1)}
    layer |= {"up": master(d, 4 * d), "down": master(4 * d, d), "scale": Arg((2, d))}
    params = {"layers": times(2, layer), "table": Arg((words, d), scale=0.02), "last": Arg((d,))}
    params |= {"head": master(d, words)}
    yield "rwkv7", carried(goose, adamw_start(params), Arg((b, s + 1), I32, below=words))


class SmolLayer(nnx.Module):
    """A layer of a small Llama, in nnx."""

    def __init__(self, d: int, wide: int, rngs: nnx.Rngs):
        def linear(a: int, b: int) -> nnx.Linear:
            return nnx.Linear(a, b, use_bias=False, dtype=BF16, rngs=rngs)

        self.q, self.k, self.v = linear(d, d), linear(d, 320), linear(d, 320)
        self.out, self.down = linear(d, d), linear(wide, d)
        self.gate, self.up = linear(d, wide), linear(d, wide)
        self.one = nnx.RMSNorm(d, dtype=BF16, rngs=rngs)
        self.two = nnx.RMSNorm(d, dtype=BF16, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        y, places = self.one(x), jnp.arange(x.shape[1])
        q, k, v = (heads(f(y), 64) for f in (self.q, self.k, self.v))
        q, k = rope(q, places), rope(k, places)
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.reshape(x.shape))
        y = self.two(x)
        return x + self.down(nnx.silu(self.gate(y)) * self.up(y))


class Smol(nnx.Module):
    """A small Llama, in nnx."""

    def __init__(self, rngs: nnx.Rngs):
        self.table = nnx.Embed(49152, 960, dtype=BF16, rngs=rngs)
        self.layers = nnx.List([SmolLayer(960, 2560, rngs) for _ in range(4)])
        self.last = nnx.RMSNorm(960, dtype=BF16, rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
        x = self.table(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.table.attend(self.last(x))


def nnx_parts(make: Callable[[], nnx.Module]) -> tuple[Callable[..., Any], Any]:
    """How a module is called with weights in a dictionary, and these."""
    graph, state = nnx.split(nnx.eval_shape(make))
    shapes = nnx.to_pure_dict(state)

    def call(params: Any, *given: Any) -> Any:
        new = jax.tree.map(lambda x: x, state)
        nnx.replace_by_pure_dict(new, params)
        return nnx.merge(graph, new)(*given)

    return call, nnx_weights(shapes)


def rewards() -> Zoo:
    """ORPO in nnx by AdamW without a schedule, and PPO on answers of GPT-2 with its values."""
    b, s = 4, 512
    smol, weights = nnx_parts(lambda: Smol(nnx.Rngs(0)))

    def orpo(state: Any, tokens: Any, asked: Any) -> Any:
        """The first half of the rows is liked; the odds of both are compared."""
        fast, slow, second, count = state
        count = count + 1
        told = jnp.arange(s) >= asked[:, None]

        def loss(params: Any) -> Any:
            lost = cross_entropy(smol(params, tokens[:, :-1]), tokens[:, 1:]) * told
            log = -lost.sum(1) / told.sum(1)
            odds = log - jnp.log1p(-jnp.exp(jnp.minimum(log, -1e-4)))
            good, bad = jnp.split(odds, 2)
            return -log[:b].mean() - 0.1 * jax.nn.log_sigmoid(good - bad).mean()

        point = jax.tree.map(lambda z, x: 0.1 * z + 0.9 * x, fast, slow)
        value, grads = jax.value_and_grad(loss)(point)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, grads)
        scale = 1 - 0.999 ** count.astype(F32)
        fast = jax.tree.map(
            lambda z, v, g, y: z - 1e-5 * (g / (jnp.sqrt(v / scale) + 1e-8) + 0.01 * y),
            *(fast, second, grads, point),
        )
        share = 1 / count.astype(F32)
        slow = jax.tree.map(lambda x, z: (1 - share) * x + share * z, slow, fast)
        return (fast, slow, second, count), value

    state = (weights, weights, zeros(weights), Arg((), I32, below=1))
    given = (Arg((2 * b, s + 1), I32, below=49152), Arg((2 * b,), I32, below=200))
    yield "orpo", carried(orpo, state, *given)

    rows, size, d, words = 6, 640, 768, 50257

    def answers(state: Any, tokens: Any, old: Any, known: Any, base: Any, score: Any) -> Any:
        """Advantages by a scan from the last token on; clipped ratios and clipped values."""
        past, before = -jnp.abs(old), -jnp.abs(base)
        pay = (-0.05 * (past - before)).at[:, -1].add(score)
        after = jnp.pad(known, ((0, 0), (0, 1)))[:, 1:]

        def back(carry: Any, given: Any) -> Any:
            gain = given + 0.95 * carry
            return gain, gain

        gaps = (pay + after - known).T
        _, gain = lax.scan(back, jnp.zeros(rows), gaps, reverse=True)
        gain = gain.T
        goal = gain + known
        gain = (gain - gain.mean()) / (gain.std() + 1e-6)

        @jax.checkpoint
        def layer(x: Any, p: Any) -> Any:
            qkv = layer_norm(x, p["scale"][0], p["shift"][0]) @ p["qkv"] + p["b_qkv"]
            q, k, v = jnp.split(heads(qkv, 64), 3, 2)
            y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
            x = x + y.reshape(x.shape) @ p["out"] + p["b_out"]
            y = layer_norm(x, p["scale"][1], p["shift"][1]) @ p["up"] + p["b_up"]
            return x + jax.nn.gelu(y) @ p["down"] + p["b_down"], None

        def loss(params: Any) -> Any:
            p = half(params)
            x = p["table"][tokens[:, :-1]] + p["places"][:size]
            x, _ = lax.scan(layer, x, p["layers"])
            x = layer_norm(x, p["last"][0], p["last"][1])
            logits = (x @ p["table"].T).astype(F32)
            log = jax.nn.log_softmax(logits)
            new = jnp.take_along_axis(log, tokens[:, 1:, None], -1)[..., 0]
            ratio = jnp.exp(jnp.clip(new - past, -5, 5))
            policy = -jnp.minimum(ratio * gain, jnp.clip(ratio, 0.8, 1.2) * gain).mean()
            found = (jnp.tanh(x @ p["value"][0]) @ p["value"][1])[..., 0].astype(F32)
            near = known + jnp.clip(found - known, -0.2, 0.2)
            worth = jnp.maximum(jnp.square(found - goal), jnp.square(near - goal)).mean()
            unsure = -(jnp.exp(log) * log).sum(-1).mean()
            return policy + 0.1 * worth - 0.001 * unsure

        return adamw(state, loss, 1e-6, 0.0)

    layer = {"qkv": master(d, 3 * d), "b_qkv": Arg((3 * d,), scale=0.02), "out": master(d, d)}
    layer |= {"b_out": Arg((d,), scale=0.02), "up": master(d, 4 * d), "down": master(4 * d, d)}
    layer |= {"b_up": Arg((4 * d,), scale=0.02), "b_down": Arg((d,), scale=0.02)}
    layer |= {"scale": Arg((2, d)), "shift": Arg((2, d), scale=0.02)}
    params = {"layers": times(6, layer), "table": Arg((words, d), scale=0.02), "last": Arg((2, d))}
    params |= {"places": Arg((1024, d), scale=0.02), "value": (master(d, d), master(d, 1))}
    known = Arg((rows, size))
    given = (Arg((rows, size + 1), I32, below=words), known, known, known, Arg((rows,)))
    yield "ppo_answers", carried(answers, adamw_start(params), *given)


def serving() -> Zoo:
    """Tokens of gpt-oss and DeepSeek with narrow weights, checked drafts, and a mixed batch."""
    b, d, size, wide, count, long, words = 24, 2880, 64, 2880, 32, 2048, 201088

    def oss(caches: Any, params: Any, tokens: Any, lengths: Any, key: Any) -> Any:
        """Experts of four bits with scales of 32 numbers; every head may look at nothing."""
        rows, times_ = jnp.arange(b), jnp.arange(long)
        codes = jnp.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], BF16)
        codes = jnp.concatenate([codes, -codes])

        def wide_of(w: Any) -> Any:
            packed, scale = w
            both = jnp.stack([codes[packed & 15], codes[packed >> 4]], -1)
            both = both.reshape(*scale.shape, 32)
            power = jnp.ldexp(jnp.ones((), F32), scale.astype(I32) - 16).astype(BF16)
            return (both * power[..., None]).reshape(*scale.shape[:-1], -1)

        def layer(x: Any, given: Any) -> Any:
            p, (keys, values), local = given
            y = rms(x, p["scale"][0])
            qkv = heads(y @ p["qkv"] + p["b_qkv"], size)
            q, k, v = jnp.split(qkv, [64, 72], 1)
            q, k = rope(q, lengths, 1.5e5), rope(k, lengths, 1.5e5)
            keys, values = keys.at[rows, lengths].set(k), values.at[rows, lengths].set(v)
            gap = lengths[:, None] - times_
            seen = (gap >= 0) & ((gap < 128) | (local < 1))
            q = q.reshape(b, 8, 8, size)
            scores = jnp.einsum("bgre,btge->bgrt", q, keys).astype(F32) * size**-0.5
            scores = jnp.where(seen[:, None, None], scores, -1e30)
            sink = jnp.broadcast_to(p["sink"].astype(F32).reshape(8, 8, 1), (b, 8, 8, 1))
            shares = jax.nn.softmax(jnp.concatenate([scores, sink], -1), -1)[..., :-1]
            found = jnp.einsum("bgrt,btge->bgre", shares.astype(BF16), values)
            x = x + found.reshape(b, -1) @ p["out"]
            y = rms(x, p["scale"][1])
            best, index = lax.top_k((y @ p["route"]).astype(F32), 4)
            share = jnp.zeros((b, count)).at[rows[:, None], index].set(jax.nn.softmax(best))
            both = jnp.einsum("bd,efd->ebf", y, wide_of(p["up"]))
            gate, up = jnp.minimum(both[..., ::2], 7), jnp.clip(both[..., 1::2], -7, 7)
            act = gate * jax.nn.sigmoid(1.702 * gate) * (up + 1)
            act = act * share.T[..., None].astype(BF16)
            return x + jnp.einsum("ebf,edf->bd", act, wide_of(p["down"])), (keys, values)

        local = jnp.array([1, 0])
        x, caches = lax.scan(layer, params["table"][tokens], (params["layers"], caches, local))
        logits = (rms(x, params["last"]) @ params["head"]).astype(F32)
        return caches, jax.random.categorical(key, logits)

    def four(*shape: int) -> tuple[Arg, Arg]:
        packed = Arg((*shape[:-1], shape[-1] // 2), U8, below=256)
        return packed, Arg((*shape[:-1], shape[-1] // 32), U8, below=12)

    layer = {"qkv": weight(d, 80 * size), "b_qkv": Arg((80 * size,), BF16), "sink": Arg((64,))}
    layer |= {"out": weight(64 * size, d), "route": weight(d, count), "scale": Arg((2, d))}
    layer |= {"up": four(count, 2 * wide, d), "down": four(count, d, wide)}
    params = {"layers": times(2, layer), "table": Arg((words, d), BF16, scale=0.02)}
    params |= {"head": weight(d, words), "last": Arg((d,))}
    caches = (Arg((2, b, long, 8, size), BF16),) * 2
    given = (Arg((b,), I32, below=words), Arg((b,), I32, below=long), _KEY)
    yield "gpt_oss", carried(oss, caches, params, *given)

    r, c, n, many, past = 40, 4096, 64, 129280, 4000

    def absorbed(cache: Any, params: Any, tokens: Any, lengths: Any) -> Any:
        """Weights of eight bits with a scale for each square of 128; 64 heads, one latent."""
        rows = jnp.arange(r)
        seen = (jnp.arange(past) <= lengths[:, None])[:, None]

        def wide_of(w: Any) -> Any:
            codes, scale = w
            k, m = scale.shape
            square = codes.astype(BF16).reshape(k, 128, m, 128)
            return (square * scale[:, None, :, None].astype(BF16)).reshape(codes.shape)

        def layer(x: Any, given: Any) -> Any:
            p, cache = given
            y = rms(x, p["scale"][0])
            low = rms(y @ wide_of(p["q_a"]), p["q_scale"])
            q = heads(low @ wide_of(p["q_b"]), 192)
            q, turn = q[..., :128], rope(q[..., 128:], lengths)
            new, side = jnp.split(y @ p["kv_a"], [512], -1)
            side = rope(side[:, None], lengths)[:, 0]
            cache = cache.at[rows, lengths].set(jnp.concatenate([rms(new, p["kv_scale"]), side], 1))
            up = wide_of(p["kv_b"]).reshape(512, n, 256)
            q = jnp.concatenate([jnp.einsum("bhe,che->bhc", q, up[..., :128]), turn], -1)
            scores = jnp.einsum("bhc,btc->bht", q, cache, preferred_element_type=F32)
            shares = jax.nn.softmax(jnp.where(seen, scores * 192**-0.5, -1e30), -1)
            found = jnp.einsum("bht,btc->bhc", shares.astype(BF16), cache[..., :512])
            found = jnp.einsum("bhc,che->bhe", found, up[..., 128:]).reshape(r, -1)
            x = x + found @ wide_of(p["out"])
            y = rms(x, p["scale"][1])
            wide = jax.nn.silu(y @ wide_of(p["gate"])) * (y @ wide_of(p["up"]))
            return x + wide @ wide_of(p["down"]), cache

        x, cache = lax.scan(layer, params["table"][tokens], (params["layers"], cache))
        logits = (rms(x, params["last"]) @ params["head"]).astype(F32)
        best, index = lax.top_k(logits, 8)
        return cache, index[:, 0], jax.nn.softmax(best)

    def eight(k: int, m: int) -> tuple[Arg, Arg]:
        return Arg((k, m), F8), Arg((k // 128, m // 128), scale=k**-0.5)

    layer = {"q_a": eight(c, 1536), "q_b": eight(1536, n * 192), "q_scale": Arg((1536,))}
    layer |= {"kv_a": weight(c, 576), "kv_scale": Arg((512,)), "kv_b": eight(512, n * 256)}
    layer |= {"out": eight(n * 128, c), "scale": Arg((2, c))} | swiglu_weights(c, 9216, eight)
    params = {"layers": times(2, layer), "table": Arg((many, c), BF16), "last": Arg((c,))}
    params |= {"head": weight(c, many)}
    given = (Arg((r,), I32, below=many), Arg((r,), I32, below=past))
    yield "absorbed", carried(absorbed, Arg((2, r, past, 576), BF16), params, *given)

    rows, drafts, e, vast, back = 16, 5, 2048, 151936, 1536

    def checked(caches: Any, params: Any, tokens: Any, lengths: Any, guess: Any, key: Any) -> Any:
        """Qwen 3 reads five guesses at once; they stay by chance, and one more is drawn."""
        one, two = jax.random.split(key)
        row, places = jnp.arange(rows)[:, None], lengths[:, None] + jnp.arange(drafts + 1)
        mask = (jnp.arange(back) <= places[..., None])[:, None]

        def layer(x: Any, given: Any) -> Any:
            p, (keys, values) = given
            y = rms(x, p["scale"][0])
            q, k, v = (heads(y @ p[m], 128) for m in "qkv")
            q, k = rope(rms(q, p["turn"][0]), places, 1e6), rope(rms(k, p["turn"][1]), places, 1e6)
            keys, values = keys.at[row, places].set(k), values.at[row, places].set(v)
            x = x + attention(q, keys, values, mask) @ p["out"]
            return x + swiglu(rms(x, p["scale"][1]), p), (keys, values)

        x, caches = lax.scan(layer, params["table"][tokens], (params["layers"], caches))
        logits = (rms(x, params["last"]) @ params["table"].T).astype(F32)
        target, draft = jax.nn.softmax(logits / 0.7), jax.nn.softmax(guess.astype(F32) / 0.7)
        asked = tokens[:, 1:, None]
        ratio = jnp.take_along_axis(target[:, :-1], asked, -1) / (
            jnp.take_along_axis(draft, asked, -1) + 1e-9
        )
        kept = jax.random.uniform(one, (rows, drafts)) < ratio[..., 0]
        count = jnp.cumprod(kept.astype(I32), 1).sum(1)
        pad = jnp.pad(draft, ((0, 0), (0, 1), (0, 0)))
        left = jnp.maximum(target - pad, 0)
        left = jnp.take_along_axis(left, count[:, None, None], 1)[:, 0]
        drawn = jax.random.categorical(two, jnp.log(left + 1e-12))
        return caches, count, drawn

    layer = {"q": weight(e, e), "k": weight(e, 1024), "v": weight(e, 1024), "out": weight(e, e)}
    layer |= {"scale": Arg((2, e)), "turn": Arg((2, 128))} | swiglu_weights(e, 6144, weight)
    params = {"layers": times(8, layer), "table": Arg((vast, e), BF16, scale=0.02)}
    params |= {"last": Arg((e,))}
    caches = (Arg((8, rows, back, 8, 128), BF16),) * 2
    given = (Arg((rows, drafts + 1), I32, below=vast), Arg((rows,), I32, below=back - 6))
    guess = Arg((rows, drafts, vast), BF16)
    yield "checked_drafts", carried(checked, caches, params, *given, guess, _KEY)

    flat, texts, pages, page, g = 320, 48, 40, 16, 3072

    def mixed(pool: Any, params: Any, tokens: Any, owner: Any, places: Any, tables: Any) -> Any:
        """Tokens of prompts and of replies in one row; each text has pages of 16 tokens."""
        where = tables[owner, places // page]
        mask = jnp.arange(pages * page) <= places[:, None]

        def layer(x: Any, given: Any) -> Any:
            p, (keys, values) = given
            y = rms(x, p["scale"][0])
            q, k, v = jnp.split(heads(y @ p["qkv"], 128), [24, 32], 1)
            q, k = rope(q, places, 5e5), rope(k, places, 5e5)
            keys = keys.at[where, places % page].set(k)
            values = values.at[where, places % page].set(v)
            told = [a[tables].reshape(texts, -1, 8, 128)[owner] for a in (keys, values)]
            q = q.reshape(flat, 8, 3, 128)
            scores = jnp.einsum("tgre,tkge->tgrk", q, told[0]).astype(F32) * 128**-0.5
            shares = jax.nn.softmax(jnp.where(mask[:, None, None], scores, -1e30), -1)
            found = jnp.einsum("tgrk,tkge->tgre", shares.astype(BF16), told[1])
            x = x + found.reshape(flat, -1) @ p["out"]
            return x + swiglu(rms(x, p["scale"][1]), p), (keys, values)

        x, pool = lax.scan(layer, params["table"][tokens], (params["layers"], pool))
        last = jnp.full((texts,), 0).at[owner].max(jnp.arange(flat))
        logits = (rms(x[last], params["last"]) @ params["table"].T).astype(F32)
        return pool, logits.argmax(-1)

    layer = {"qkv": weight(g, 40 * 128), "out": weight(g, g), "scale": Arg((2, g))}
    layer |= swiglu_weights(g, 8192, weight)
    params = {"layers": times(4, layer), "table": Arg((128256, g), BF16, scale=0.02)}
    params |= {"last": Arg((g,))}
    pool = (Arg((4, 3000, page, 8, 128), BF16),) * 2
    given = (Arg((flat,), I32, below=128256), Arg((flat,), I32, below=texts))
    given += (Arg((flat,), I32, below=pages * page), Arg((texts, pages), I32, below=3000))
    yield "mixed_batch", carried(mixed, pool, params, *given)


def hybrids() -> Zoo:
    """A token by eight layers of Mamba 2 and one of attention that sees 1,024 tokens."""
    b, d, inner, size, state, groups, words = 64, 2560, 5120, 64, 128, 8, 50277
    n = inner // size
    convs = inner + 2 * groups * state

    def zamba(caches: Any, params: Any, tokens: Any, lengths: Any) -> Any:
        held, known = caches
        rows = jnp.arange(b)

        def layer(x: Any, given: Any) -> Any:
            p, (window, ssm) = given
            y = rms(x, p["scale"]) @ p["in"]
            gate, xbc, step = jnp.split(y, [inner, inner + convs], -1)
            window = jnp.concatenate([window[:, 1:], xbc[:, None]], 1)
            xbc = jax.nn.silu((window * p["window"]).sum(1) + p["shift"])
            v, key, query = jnp.split(xbc, [inner, inner + groups * state], -1)
            v = v.reshape(b, n, size).astype(F32)
            key, query = (
                jnp.repeat(a.reshape(b, groups, state), n // groups, 1).astype(F32)
                for a in (key, query)
            )
            step = jax.nn.softplus(step.astype(F32) + p["step"])
            fade = jnp.exp(-step * jnp.exp(p["log"]))
            ssm = ssm * fade[..., None, None] + (step[..., None] * v)[..., None] * key[:, :, None]
            y = jnp.einsum("bhpn,bhn->bhp", ssm, query) + p["skip"][:, None] * v
            y = y.reshape(b, inner).astype(BF16) * jax.nn.silu(gate)
            return x + rms(y, p["inner"]) @ p["out"], (window, ssm)

        x, held = lax.scan(layer, params["table"][tokens], (params["layers"], held))
        p = params["shared"]
        q, k, v = jnp.split(heads(rms(x, p["scale"][0]) @ p["qkv"], 80), 3, 1)
        known = [c.at[rows, lengths].set(a) for c, a in zip(known, (k, v), strict=True)]
        mask = (jnp.arange(1024) <= lengths[:, None])[:, None, None]
        x = x + attention(q[:, None], *known, mask)[:, 0] @ p["out"]
        x = x + swiglu(rms(x, p["scale"][1]), p)
        logits = (rms(x, params["last"]) @ params["table"].T).astype(F32)
        return (held, known), logits.argmax(-1), jax.nn.logsumexp(logits, -1)

    layer = {"in": weight(d, inner + convs + n), "window": Arg((4, convs), BF16, scale=0.5)}
    layer |= {"shift": Arg((convs,), BF16), "step": Arg((n,)), "log": Arg((n,), scale=0.3)}
    layer |= {"skip": Arg((n,)), "out": weight(inner, d), "scale": Arg((d,))}
    layer |= {"inner": Arg((inner,))}
    shared = {"qkv": weight(d, 3 * d), "out": weight(d, d), "scale": Arg((2, d))}
    shared |= swiglu_weights(d, 10240, weight)
    params = {"layers": times(8, layer), "shared": shared, "last": Arg((d,))}
    params |= {"table": Arg((words, d), BF16, scale=0.02)}
    held = (Arg((8, b, 4, convs), BF16), Arg((8, b, n, size, state), scale=0.1))
    caches = (held, [Arg((b, 1024, 32, 80), BF16)] * 2)
    given = (Arg((b,), I32, below=words), Arg((b,), I32, below=1024))
    yield "mamba2_token", carried(zamba, caches, params, *given)


def music() -> Zoo:
    """Eight steps of MusicGen in float16: four codes a step, and guidance by a text."""
    b, d, long, told = 7, 1536, 512, 33

    def musicgen(caches: Any, params: Any, codes: Any, texts: Any, start: Any, key: Any) -> Any:
        """The rows without the text follow those with it; codes lag by their level."""
        known = jnp.einsum("btd,ldhe->lbthe", texts, params["told"])
        keys, values = jnp.split(known.reshape(6, 2 * b, told, 48, 64), 2, 3)

        def step(carry: Any, given: Any) -> Any:
            codes, caches = carry
            n, key = given
            place = start % (long - 8) + n
            x = sum(params["tables"][i][codes[:, i]] for i in range(4))
            x = jnp.concatenate([x, x])[:, None] + params["places"][place]
            seen = (jnp.arange(long) <= place)[None, None, None]

            def layer(x: Any, given: Any) -> Any:
                p, cache, k, v = given
                q, *new = jnp.split(heads(layer_norm(x, p["scale"][0]) @ p["qkv"], 64), 3, 2)
                cache = lax.dynamic_update_slice(cache, jnp.stack(new), (0, 0, place, 0, 0))
                x = x + attention(q, *cache, seen) @ p["out"]
                q = heads(layer_norm(x, p["scale"][1]) @ p["q"], 64)
                x = x + attention(q, k, v) @ p["more"]
                y = jax.nn.gelu(layer_norm(x, p["scale"][2]) @ p["up"])
                return x + y @ p["down"], cache

            x, caches = lax.scan(layer, x, (params["layers"], caches, keys, values))
            logits = jnp.einsum("bd,kdv->bkv", layer_norm(x[:, 0]), params["heads"]).astype(F32)
            with_, without = jnp.split(logits, 2)
            best, index = lax.top_k(without + 3 * (with_ - without), 250)
            drawn = jax.random.categorical(key, best)
            codes = jnp.take_along_axis(index, drawn[..., None], -1)[..., 0]
            late = jnp.arange(4) > place
            return (jnp.where(late, 2048, codes).astype(I32), caches), codes

        given = (jnp.arange(8), jax.random.split(key, 8))
        (_, caches), found = lax.scan(step, (codes, caches), given)
        return caches, found

    layer = {"qkv": weight(d, 3 * d, dtype=F16), "out": weight(d, d, dtype=F16)}
    layer |= {"q": weight(d, d, dtype=F16), "more": weight(d, d, dtype=F16)}
    layer |= {"up": weight(d, 4 * d, dtype=F16), "down": weight(4 * d, d, dtype=F16)}
    layer |= {"scale": Arg((3, d))}
    params = {"layers": times(6, layer), "tables": Arg((4, 2049, d), F16, scale=0.1)}
    params |= {"places": Arg((long, d), F16), "heads": weight(4, d, 2048, dtype=F16)}
    params |= {"told": Arg((6, d, 48, 64), F16, scale=d**-0.5)}
    caches = Arg((6, 2, 2 * b, long, 24, 64), F16)
    given = (Arg((b, 4), I32, below=2048), Arg((2 * b, told, d), F16), Arg((), I32, below=400))
    yield "musicgen", carried(musicgen, caches, params, *given, _KEY)


class Window(nn.Module):
    """A layer of Swin: attention in windows of seven, moved by three in every second one."""

    heads: int
    moved: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        b, h, w, d = x.shape
        n, m = h // 7, w // 7
        y = nn.LayerNorm(dtype=BF16)(x)
        y = jnp.roll(y, (-self.moved, -self.moved), (1, 2))
        y = y.reshape(b, n, 7, m, 7, d).swapaxes(2, 3).reshape(b * n * m, 49, d)
        qkv = nn.Dense(3 * d, dtype=BF16)(y).reshape(-1, 49, 3, self.heads, d // self.heads)
        q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        table = self.param("near", nn.initializers.normal(0.02), (169, self.heads))
        at = jnp.stack(jnp.meshgrid(jnp.arange(7), jnp.arange(7), indexing="ij"), -1).reshape(49, 2)
        gap = at[:, None] - at + 6
        bias = table[gap[..., 0] * 13 + gap[..., 1]].transpose(2, 0, 1)[None]
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(F32) * (d // self.heads) ** -0.5 + bias
        if self.moved:
            part = jnp.digitize(jnp.arange(h), jnp.array([h - 7, h - self.moved]))
            part = part[:, None] * 3 + part
            part = part.reshape(n, 7, m, 7).swapaxes(1, 2).reshape(n * m, 49)
            apart = (part[:, :, None] != part[:, None])[None, :, None]
            scores = scores.reshape(b, n * m, self.heads, 49, 49)
            scores = jnp.where(apart, -100.0, scores).reshape(-1, self.heads, 49, 49)
        y = jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores).astype(BF16), v)
        y = nn.Dense(d, dtype=BF16)(y.reshape(-1, 49, d))
        y = y.reshape(b, n, m, 7, 7, d).swapaxes(2, 3).reshape(x.shape)
        x = x + jnp.roll(y, (self.moved, self.moved), (1, 2))
        y = nn.Dense(4 * d, dtype=BF16)(nn.LayerNorm(dtype=BF16)(x))
        return x + nn.Dense(d, dtype=BF16)(nn.gelu(y))


class Swin(nn.Module):
    """Three stages of Swin."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.LayerNorm(dtype=BF16)(nn.Conv(96, (4, 4), (4, 4), dtype=BF16)(x))
        for stage in range(3):
            if stage:
                b, h, w, d = x.shape
                x = x.reshape(b, h // 2, 2, w // 2, 2, d).swapaxes(2, 3)
                x = nn.LayerNorm(dtype=BF16)(x.reshape(b, h // 2, w // 2, 4 * d))
                x = nn.Dense(2 * d, use_bias=False, dtype=BF16)(x)
            for moved in (0, 3):
                x = Window(3 * 2**stage, moved)(x)
        return nn.Dense(1000)(nn.LayerNorm()(x.mean((1, 2))))


class ConvNext(nn.Module):
    """ConvNeXt v2, whose channels answer to each other's size."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.LayerNorm()(nn.Conv(40, (4, 4), (4, 4))(x))
        for stage, (d, depth) in enumerate(((40, 1), (80, 1), (160, 3), (320, 1))):
            if stage:
                x = nn.Conv(d, (2, 2), (2, 2))(nn.LayerNorm()(x))
            for _ in range(depth):
                y = nn.Conv(d, (7, 7), feature_group_count=d)(x)
                y = nn.gelu(nn.Dense(4 * d)(nn.LayerNorm()(y)))
                size = jnp.sqrt(jnp.square(y).sum((1, 2), keepdims=True) + 1e-6)
                size = size / (size.mean(-1, keepdims=True) + 1e-6)
                gain = self.param(f"gain{stage}{_}", nn.initializers.zeros, (4 * d,))
                shift = self.param(f"shift{stage}{_}", nn.initializers.zeros, (4 * d,))
                x = x + nn.Dense(d)(gain * (y * size) + shift + y)
        return nn.Dense(1000)(nn.LayerNorm()(x.mean((1, 2))))


class EfficientV2(nn.Module):
    """EfficientNet v2: whole windows in the first stages, deep ones with a squeeze later."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        def normed(y: Any) -> Any:
            return nn.BatchNorm(use_running_average=False, momentum=0.99, dtype=BF16)(y)

        def folded(y: Any, d: int, k: int, stride: int = 1, groups: int = 1) -> Any:
            y = nn.Conv(
                d, (k, k), (stride,) * 2, use_bias=False, feature_group_count=groups, dtype=BF16
            )(y)
            return normed(y)

        x = nn.silu(folded(x, 24, 3, 2))
        stages = ((24, 1, 1, True), (48, 2, 4, True), (64, 2, 4, True), (128, 2, 4, False))
        for d, first, grow, fused in (*stages, (160, 1, 6, False)):
            for stride in (first, 1):
                old = x
                wide = x.shape[-1] * grow
                if fused:
                    y = nn.silu(folded(x, wide if grow > 1 else d, 3, stride))
                    y = folded(y, d, 1) if grow > 1 else y
                else:
                    y = nn.silu(folded(x, wide, 1))
                    y = nn.silu(folded(y, wide, 3, stride, wide))
                    s = nn.silu(nn.Dense(old.shape[-1] // 4, dtype=BF16)(y.mean((1, 2))))
                    y = y * nn.sigmoid(nn.Dense(wide, dtype=BF16)(s))[:, None, None]
                    y = folded(y, d, 1)
                x = old + y if old.shape == y.shape else y
        x = nn.silu(folded(x, 1280, 1)).mean((1, 2))
        return nn.Dense(1000)(x.astype(F32))


def backbones() -> Zoo:
    """Training in linen: Swin, ConvNeXt v2 in float32, and EfficientNet v2 with RMSProp."""
    labels = Arg((32,), I32, below=1000)
    swin = Swin()
    images = Arg((32, 224, 224, 3), BF16)

    def windows(state: Any, x: Any, labels: Any) -> Any:
        return adamw(state, lambda p: cross_entropy(swin.apply(p, x), labels).mean(), 1e-3, 0.05)

    state = adamw_start(linen_weights(swin, images))
    yield "swin", carried(windows, state, images, labels)

    net = ConvNext()
    images = Arg((64, 192, 192, 3))

    def channels(state: Any, x: Any, labels: Any) -> Any:
        def loss(p: Any) -> Any:
            goals = optax.smooth_labels(jax.nn.one_hot(labels, 1000), 0.1)
            return optax.softmax_cross_entropy(net.apply(p, x), goals).mean()

        return adamw(state, loss, 8e-4, 0.05, 0.999)

    state = adamw_start(linen_weights(net, images))
    yield "convnext_v2", carried(channels, state, images, Arg((64,), I32, below=1000))

    model = EfficientV2()
    images = Arg((48, 208, 208, 3), BF16)

    def fused(state: Any, x: Any, labels: Any) -> Any:
        params, stats, squares, speed, slow = state

        def loss(p: Any) -> Any:
            given = {"params": p, "batch_stats": stats}
            logits, new = model.apply(given, x, mutable=["batch_stats"])
            return cross_entropy(logits, labels).mean(), new["batch_stats"]

        (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(params)
        squares = jax.tree.map(lambda v, g: 0.9 * v + 0.1 * g * g, squares, grads)
        speed = jax.tree.map(
            lambda m, v, g: 0.9 * m + 0.01 * g / jnp.sqrt(v + 1e-3), speed, squares, grads
        )
        params = jax.tree.map(lambda w, m: (1 - 1e-5) * w - m, params, speed)
        slow = jax.tree.map(lambda a, w: 0.9999 * a + 0.0001 * w, slow, params)
        return (params, stats, squares, speed, slow), value

    both = linen_weights(model, images)
    params = both["params"]
    state = (params, both["batch_stats"], zeros(params), zeros(params), params)
    yield "efficientnet_v2", carried(fused, state, images, Arg((48,), I32, below=1000))


def selftaught() -> Zoo:
    """Training of DINOv2: two views and four small ones, hidden patches, and a slow teacher."""
    b, d, words = 24, 384, 16384

    def dino(state: Any, large: Any, small: Any, hidden: Any) -> Any:
        learner, teacher = state
        masks = (hidden < 30).reshape(2 * b, 256)

        def vit(p: Any, x: Any, mask: Any = None) -> Any:
            n, side = x.shape[0], x.shape[1] // 14
            x = x.astype(BF16).reshape(n, side, 14, side, 14, 3).swapaxes(2, 3)
            x = x.reshape(n, side * side, 588) @ p["patch"]
            x = x if mask is None else jnp.where(mask[..., None], p["hidden"], x)
            places = p["places"].astype(F32).reshape(16, 16, d)
            places = jax.image.resize(places, (side, side, d), "bicubic").astype(BF16)
            x = x + places.reshape(side * side, d)
            x = jnp.concatenate([jnp.broadcast_to(p["start"], (n, 5, d)), x], 1)

            @jax.checkpoint
            def layer(x: Any, q: Any) -> Any:
                qkv = heads(layer_norm(x, q["scale"][0]) @ q["qkv"], 64)
                y = attention(*jnp.split(qkv, 3, 2)) @ q["out"]
                x = x + q["gain"][0] * y
                return x + q["gain"][1] * swiglu(layer_norm(x, q["scale"][1]), q), None

            x, _ = lax.scan(layer, x, p["layers"])
            return layer_norm(x, p["last"])

        def scores(p: Any, x: Any) -> Any:
            for w in p[:-2]:
                x = jax.nn.gelu(x @ w)
            x = (x @ p[-2]).astype(F32)
            x = x * lax.rsqrt(jnp.square(x).sum(-1, keepdims=True) + 1e-6)
            w = p[-1].astype(F32)
            w = w * lax.rsqrt(jnp.square(w).sum(0, keepdims=True) + 1e-6)
            return (x.astype(BF16) @ w.astype(BF16)).astype(F32)

        def sinkhorn(x: Any) -> Any:
            q = jnp.exp(x / 0.07)
            q = q / q.sum()
            for _ in range(3):
                q = q / q.sum(0, keepdims=True) / q.shape[1]
                q = q / q.sum(1, keepdims=True) / q.shape[0]
            return q * q.shape[0]

        told = half(teacher)
        seen = vit(told, large)
        goal = sinkhorn(scores(told["head"], seen[:, 0])).reshape(2, b, words)
        index = jnp.nonzero(masks.reshape(-1), size=2048, fill_value=0)[0]
        parts = sinkhorn(scores(told["patches"], seen[:, 5:].reshape(-1, d)[index]))

        def loss(params: Any) -> Any:
            p = half(params)
            big, few = vit(p, large, masks), vit(p, small)
            logs = jax.nn.log_softmax(scores(p["head"], big[:, 0]) / 0.1).reshape(2, b, words)
            lost = -(goal[::-1] * logs).sum(-1).mean()
            logs = jax.nn.log_softmax(scores(p["head"], few[:, 0]) / 0.1).reshape(4, b, words)
            lost = lost - jnp.einsum("nbk,mbk->", goal, logs) / (8 * b)
            hidden = scores(p["patches"], big[:, 5:].reshape(-1, d)[index]) / 0.1
            lost = lost - (parts * jax.nn.log_softmax(hidden)).sum(-1).mean()
            x = big[:, 0].astype(F32).reshape(2, b, d)
            x = x * lax.rsqrt(jnp.square(x).sum(-1, keepdims=True) + 1e-6)
            alike = jnp.einsum("nbd,ncd->nbc", x, x) - 2 * jnp.eye(b)
            apart = jnp.sqrt(jnp.maximum(2 - 2 * alike.max(-1), 0) + 1e-6)
            return lost - 0.1 * jnp.log(apart + 1e-6).mean()

        learner, value = adamw(learner, loss, 2e-4, 0.04, 0.999)
        teacher = jax.tree.map(lambda t, w: 0.994 * t + 0.006 * w, teacher, learner[0])
        return (learner, teacher), value

    layer = {"qkv": master(d, 3 * d), "out": master(d, d), "scale": Arg((2, d))}
    layer |= {"gain": Arg((2, d), scale=0.1)} | swiglu_weights(d, 1024)
    head = [master(d, 2048), master(2048, 2048), master(2048, 256), master(256, words)]
    params = {"patch": master(588, d), "places": Arg((256, d), scale=0.02), "hidden": Arg((d,))}
    params |= {"start": Arg((5, d), scale=0.02), "layers": times(6, layer), "last": Arg((d,))}
    params |= {"head": head, "patches": head}
    given = (Arg((2 * b, 224, 224, 3)), Arg((4 * b, 98, 98, 3)))
    hidden = Arg((2 * b, 16, 16), I32, below=100)
    yield "dino_v2", carried(dino, (adamw_start(params), params), *given, hidden)


def detection() -> Zoo:
    """Training of DETR on feature maps: 100 queries, and objects that choose them in turn."""
    b, h, w, d, objects, kinds = 8, 25, 34, 256, 20, 91

    def detr(state: Any, maps: Any, boxes: Any, labels: Any, count: Any) -> Any:
        goals = jax.nn.sigmoid(boxes)
        real = jnp.arange(objects) < count[:, None] + 1

        def corners(x: Any) -> Any:
            return jnp.concatenate([x[..., :2] - x[..., 2:] / 2, x[..., :2] + x[..., 2:] / 2], -1)

        def giou(x: Any, y: Any) -> Any:
            x, y = corners(x), corners(y)
            low, high = jnp.maximum(x[..., :2], y[..., :2]), jnp.minimum(x[..., 2:], y[..., 2:])
            inner = jnp.maximum(high - low, 0).prod(-1)
            area = (x[..., 2:] - x[..., :2]).prod(-1) + (y[..., 2:] - y[..., :2]).prod(-1) - inner
            low, high = jnp.minimum(x[..., :2], y[..., :2]), jnp.maximum(x[..., 2:], y[..., 2:])
            hull = (high - low).prod(-1)
            return inner / (area + 1e-6) - (hull - area) / (hull + 1e-6)

        def matched(cost: Any) -> Any:
            """The cheapest pair is made first, then the next."""

            def pick(cost: Any, _: Any) -> Any:
                best = cost.argmin()
                query, thing = best // objects, best % objects
                cost = cost.at[query].set(1e9).at[:, thing].set(1e9)
                return cost, (query, thing)

            _, (query, thing) = lax.scan(pick, cost, None, objects)
            return jnp.zeros(objects, I32).at[thing].set(query)

        def loss(params: Any) -> Any:
            p = half(params)
            x = (maps @ p["in"]).reshape(b, h * w, d)
            spots = (p["rows"][:, None] + p["columns"]).reshape(h * w, d)

            def seen(q: Any, k: Any, v: Any, a: Any) -> Any:
                q, k, v = (heads(y @ a[i], 32) for i, y in enumerate((q, k, v)))
                return attention(q, k, v) @ a[3]

            def reader(x: Any, q: Any) -> Any:
                y = x + spots
                x = layer_norm(x + seen(y, y, x, q["self"]), q["scale"][0])
                return layer_norm(x + jax.nn.relu(x @ q["up"]) @ q["down"], q["scale"][1]), None

            told, _ = lax.scan(reader, x, p["reader"])

            def writer(x: Any, q: Any) -> Any:
                y = x + p["queries"]
                x = layer_norm(x + seen(y, y, x, q["self"]), q["scale"][0])
                y = seen(x + p["queries"], told + spots, told, q["other"])
                x = layer_norm(x + y, q["scale"][1])
                x = layer_norm(x + jax.nn.relu(x @ q["up"]) @ q["down"], q["scale"][2])
                return x, x

            _, every = lax.scan(writer, jnp.zeros((b, 100, d), BF16), p["writer"])

            def lost(x: Any) -> Any:
                logits = (x @ p["kinds"]).astype(F32)
                y = jax.nn.relu(jax.nn.relu(x @ p["box"][0]) @ p["box"][1]) @ p["box"][2]
                found = jax.nn.sigmoid(y.astype(F32))
                likely = jax.nn.softmax(logits)
                cost = 5 * jnp.abs(found[:, :, None] - goals[:, None]).sum(-1)
                cost = cost - jax.vmap(lambda a, i: a[:, i])(likely, labels)
                cost = cost - 2 * giou(found[:, :, None], goals[:, None])
                cost = jnp.where(real[:, None], cost, 1e6)
                index = jax.vmap(matched)(lax.stop_gradient(cost))
                row = jnp.arange(b)[:, None]
                kind = jnp.full((b, 100), kinds).at[row, index].set(jnp.where(real, labels, kinds))
                heavy = jnp.where(kind == kinds, 0.1, 1.0)
                name = (cross_entropy(logits, kind) * heavy).sum() / heavy.sum()
                near = found[row, index]
                apart = 5 * jnp.abs(near - goals).sum(-1) + 2 * (1 - giou(near, goals))
                return name + (apart * real).sum() / real.sum()

            return jax.vmap(lost)(every).sum()

        return adamw(state, loss, 1e-4, 1e-4, 0.999)

    four = tuple(master(d, d) for _ in range(4))
    wide = {"up": master(d, 2048), "down": master(2048, d), "self": four}
    params = {"reader": times(4, wide | {"scale": Arg((2, d))}), "in": master(1024, d)}
    params |= {"writer": times(4, wide | {"scale": Arg((3, d)), "other": four})}
    params |= {"rows": Arg((h, d)), "columns": Arg((w, d)), "queries": Arg((100, d))}
    params |= {"kinds": master(d, kinds + 1), "box": (master(d, d), master(d, d), master(d, 4))}
    given = (Arg((b, h, w, 1024), BF16), Arg((b, objects, 4)), Arg((b, objects), I32, below=kinds))
    yield "detr", carried(detr, adamw_start(params), *given, Arg((b,), I32, below=objects))


def prompts() -> Zoo:
    """Segment Anything's decoder: 36 points on one picture, three masks of each."""
    n, d, side = 36, 256, 64

    def masks(params: Any, image: Any, points: Any, kinds: Any) -> Any:
        def waves(x: Any) -> Any:
            angle = 2 * jnp.pi * ((2 * x - 1) @ params["waves"])
            return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1)

        spot = (jnp.arange(side) + 0.5) / side
        grid = jnp.stack(jnp.meshgrid(spot, spot), -1).reshape(-1, 2)
        where = waves(grid).astype(BF16)
        asked = (waves(jax.nn.sigmoid(points)) + params["kinds"][kinds]).astype(BF16)
        start = jnp.broadcast_to(params["tokens"], (n, 5, d))
        tokens = first = jnp.concatenate([start, asked], 1)
        x = image.reshape(1, side * side, d) + params["none"]
        x = jnp.broadcast_to(x, (n, side * side, d))

        def seen(q: Any, k: Any, v: Any, p: Any) -> Any:
            q, k, v = (heads(y @ p[i], p[i].shape[1] // 8) for i, y in enumerate((q, k, v)))
            return attention(q, k, v) @ p[3]

        for i, p in enumerate(params["layers"]):
            y = tokens if i == 0 else tokens + first
            y = seen(y, y, tokens, p["self"])
            tokens = layer_norm(y if i == 0 else tokens + y, p["scale"][0])
            y = seen(tokens + first, x + where, x, p["out"])
            tokens = layer_norm(tokens + y, p["scale"][1])
            y = jax.nn.relu(tokens @ p["up"]) @ p["down"]
            tokens = layer_norm(tokens + y, p["scale"][2])
            y = seen(x + where, tokens + first, tokens, p["back"])
            x = layer_norm(x + y, p["scale"][3])
        y = seen(tokens + first, x + where, x, params["end"])
        tokens = layer_norm(tokens + y)
        names = ("NHWC", "HWIO", "NHWC")
        y = x.reshape(n, side, side, d)
        y = lax.conv_transpose(y, params["grow"][0], (2, 2), "VALID", dimension_numbers=names)
        y = jax.nn.gelu(layer_norm(y))
        y = lax.conv_transpose(y, params["grow"][1], (2, 2), "VALID", dimension_numbers=names)
        y = jax.nn.gelu(y)
        h = tokens[:, 1:5]
        for w in params["hyper"]:
            h = jnp.einsum("nkd,kde->nke", jax.nn.relu(h), w)
        found = jnp.einsum("nkc,nxyc->nkxy", h, y).astype(F32)
        good = jax.nn.relu(tokens[:, 0] @ params["good"][0]) @ params["good"][1]
        found = jax.image.resize(found[:, 1:], (n, 3, 480, 480), "bilinear")
        stable = (found > 1).sum((2, 3)) / ((found > -1).sum((2, 3)) + 1)
        rows, columns = (found > 0).any(3), (found > 0).any(2)
        box = [rows.argmax(-1), columns.argmax(-1), rows.sum(-1), columns.sum(-1)]
        return found > 0, good[:, 1:], stable, jnp.stack(box, -1)

    def four(size: int) -> tuple[Arg, ...]:
        return (weight(d, size), weight(d, size), weight(d, size), weight(size, d))

    layer = {"self": four(256), "out": four(128), "back": four(128), "scale": Arg((4, d))}
    layer |= {"up": weight(d, 2048), "down": weight(2048, d)}
    params = {"layers": [layer] * 2, "end": four(128), "tokens": Arg((5, d), BF16)}
    params |= {"waves": Arg((2, 128)), "kinds": Arg((2, d)), "none": Arg((d,), BF16)}
    params |= {"grow": (filters(2, 2, d, 64, dtype=BF16), filters(2, 2, 64, 32, dtype=BF16))}
    params |= {"hyper": [weight(4, d, d), weight(4, d, d), weight(4, d, 32)]}
    params |= {"good": (weight(d, d), weight(d, 4))}
    given = (Arg((side, side, d), BF16), Arg((n, 2, 2)), Arg((n, 2), I32, below=2))
    yield "sam_decoder", program(masks, params, *given)


class Joint(nnx.Module):
    """A block of MMDiT: text and picture have weights of their own, and attend to both."""

    def __init__(self, d: int, rngs: nnx.Rngs):
        def linear(a: int, b: int) -> nnx.Linear:
            return nnx.Linear(a, b, dtype=BF16, rngs=rngs)

        self.when = nnx.List([linear(d, 6 * d) for _ in range(2)])
        self.qkv = nnx.List([linear(d, 3 * d) for _ in range(2)])
        self.out = nnx.List([linear(d, d) for _ in range(2)])
        self.up = nnx.List([linear(d, 4 * d) for _ in range(2)])
        self.down = nnx.List([linear(4 * d, d) for _ in range(2)])

    def __call__(self, both: Any, c: Any) -> Any:
        parts, told = [], []
        for n, x in enumerate(both):
            part = jnp.split(self.when[n](nnx.silu(c))[:, None], 6, -1)
            parts.append(part)
            y = layer_norm(x) * (1 + part[1]) + part[0]
            q, k, v = jnp.split(heads(self.qkv[n](y), 64), 3, 2)
            told.append((rms(q), rms(k), v))
        q, k, v = (jnp.concatenate(a, 1) for a in zip(*told, strict=True))
        y = jax.nn.dot_product_attention(q, k, v)
        y = y.reshape(*y.shape[:2], -1)
        found = jnp.split(y, [both[0].shape[1]], 1)
        new = []
        for n, old in enumerate(both):
            x = old + parts[n][2] * self.out[n](found[n])
            y = layer_norm(x) * (1 + parts[n][4]) + parts[n][3]
            new.append(x + parts[n][5] * self.down[n](nnx.gelu(self.up[n](y))))
        return new


class MMDiT(nnx.Module):
    """A short Stable Diffusion 3."""

    def __init__(self, rngs: nnx.Rngs):
        d = 1152
        self.patch, self.text = (
            nnx.Linear(64, d, dtype=BF16, rngs=rngs),
            nnx.Linear(4096, d, dtype=BF16, rngs=rngs),
        )
        self.time = nnx.Linear(256, d, dtype=BF16, rngs=rngs)
        self.pooled = nnx.Linear(2048, d, dtype=BF16, rngs=rngs)
        self.places = nnx.Embed(1024, d, dtype=BF16, rngs=rngs)
        self.blocks = nnx.List([Joint(d, rngs) for _ in range(4)])
        self.last = nnx.Linear(d, 64, dtype=BF16, rngs=rngs)

    def __call__(self, x: Any, time: Any, text: Any, pooled: Any) -> Any:
        x = self.patch(x) + self.places(jnp.arange(x.shape[1]))
        speed = jnp.exp(-jnp.arange(128) / 128 * jnp.log(1e4))
        angle = 1000 * time[:, None] * speed
        c = self.time(jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], -1)) + self.pooled(pooled)
        both = [x, self.text(text)]
        for block in self.blocks:
            both = block(both, c)
        return self.last(layer_norm(both[0])).astype(F32)


def diffusion() -> Zoo:
    """Training: MMDiT in nnx by rectified flows, and a ControlNet beside a frozen U-Net."""
    call, params = nnx_parts(lambda: MMDiT(nnx.Rngs(0)))

    def rectified(state: Any, latents: Any, text: Any, pooled: Any, key: Any) -> Any:
        learner, slow = state
        one, two, three = jax.random.split(key, 3)
        b = latents.shape[0]
        x = latents.reshape(b, 32, 2, 32, 2, 16).swapaxes(2, 3).reshape(b, 1024, 64)
        time = jax.nn.sigmoid(jax.random.normal(one, (b,)))
        noise = jax.random.normal(two, x.shape)
        mixed = (1 - time)[:, None, None] * x + time[:, None, None] * noise
        empty = jax.random.bernoulli(three, 0.1, (b, 1, 1))
        told = jnp.where(empty, 0, text)

        def loss(p: Any) -> Any:
            return jnp.square(call(p, mixed, time, told, pooled) - (noise - x)).mean()

        learner, value = adamw(learner, loss, 1e-4, 0.0, 0.99)
        slow = jax.tree.map(lambda s, w: 0.9999 * s + 0.0001 * w, slow, learner[0])
        return (learner, slow), value

    given = (Arg((8, 64, 64, 16)), Arg((8, 154, 4096), BF16), Arg((8, 2048), BF16), _KEY)
    yield "mmdit", carried(rectified, (adamw_start(params), params), *given)

    b, c, h, w = 8, 192, 48, 56

    def controlled(state: Any, frozen: Any, x: Any, hint: Any, text: Any, key: Any) -> Any:
        """Only the copy of the way down learns, and its windows that start from zero."""
        one, two = jax.random.split(key)
        step = jax.random.randint(one, (b,), 0, 1000)
        keep = jnp.cos(step / 1000 * jnp.pi / 2)[:, None, None, None]
        noise = jax.random.normal(two, x.shape)
        noisy = (keep * x + jnp.sqrt(1 - keep**2) * noise).astype(BF16)
        speed = jnp.exp(-jnp.arange(c // 2) / (c // 2) * jnp.log(1e4))
        angle = step[:, None] * speed
        wave = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1).astype(BF16)

        def grouped(x: Any, scale: Any) -> Any:
            y = x.reshape(*x.shape[:3], 32, -1).astype(F32)
            mean, var = y.mean((1, 2, 4), keepdims=True), y.var((1, 2, 4), keepdims=True)
            y = ((y - mean) * lax.rsqrt(var + 1e-5)).reshape(x.shape)
            return (y * scale[0] + scale[1]).astype(x.dtype)

        def block(x: Any, when: Any, p: Any) -> Any:
            y = conv(jax.nn.silu(grouped(x, p["one"])), p["first"])
            y = y + (jax.nn.silu(when) @ p["when"])[:, None, None]
            y = conv(jax.nn.silu(grouped(y, p["two"])), p["second"])
            return y + (x @ p["side"] if "side" in p else x)

        def read(x: Any, p: Any) -> Any:
            y = grouped(x, p["scale"]).reshape(b, -1, x.shape[-1])
            y = y + attention(*jnp.split(heads(layer_norm(y) @ p["qkv"], 48), 3, 2)) @ p["out"]
            k, v = jnp.split(heads(text @ p["kv"], 48), 2, 2)
            y = y + attention(heads(layer_norm(y) @ p["q"], 48), k, v) @ p["more"]
            gate, up = jnp.split(layer_norm(y) @ p["wide"], 2, -1)
            return x + ((up * jax.nn.gelu(gate)) @ p["down"]).reshape(x.shape)

        def way_down(p: Any, x: Any) -> Any:
            when = jax.nn.silu(wave @ p["time"][0]) @ p["time"][1]
            high = block(x, when, p["high"])
            low = read(block(conv(high, p["half"], 2), when, p["low"]), p["read"])
            return [x, high, low, block(low, when, p["middle"])], when

        found, when = way_down(frozen["down"], conv(noisy, frozen["first"]))

        def loss(params: Any) -> Any:
            p = half(params)
            y = conv(hint.astype(BF16), p["hint"][0], 2)
            y = conv(jax.nn.silu(y), p["hint"][1], 4)
            more, _ = way_down(p["down"], conv(noisy, frozen["first"]) + y)
            start, high, low, middle = (
                a + m @ z for a, m, z in zip(found, more, p["zero"], strict=True)
            )
            y = block(jnp.concatenate([middle, low], -1), when, frozen["up"][0])
            y = jax.image.resize(y, (b, h, w, y.shape[-1]), "nearest")
            y = block(jnp.concatenate([y, high, start], -1), when, frozen["up"][1])
            y = conv(jax.nn.silu(grouped(y, frozen["scale"])), frozen["last"])
            return jnp.square(y.astype(F32) - noise).mean()

        return adamw(state, loss, 1e-5, 0.01, 0.999)

    def block(i: int, o: int, dtype: Any) -> dict[str, Arg]:
        p = {"one": Arg((2, i)), "two": Arg((2, o)), "when": weight(768, o, dtype=dtype)}
        p |= {"first": filters(3, 3, i, o, dtype=dtype), "second": filters(3, 3, o, o, dtype=dtype)}
        return p | ({"side": weight(i, o, dtype=dtype)} if i != o else {})

    def down(dtype: Any) -> dict[str, Any]:
        e = 2 * c
        read = {"scale": Arg((2, e)), "qkv": weight(e, 3 * e, dtype=dtype)}
        read |= {name: weight(e, e, dtype=dtype) for name in ("out", "q", "more")}
        read |= {"kv": weight(768, 2 * e, dtype=dtype), "wide": weight(e, 8 * e, dtype=dtype)}
        read |= {"down": weight(4 * e, e, dtype=dtype)}
        p = {"high": block(c, c, dtype), "low": block(e, e, dtype), "middle": block(e, e, dtype)}
        p |= {"half": filters(3, 3, c, e, dtype=dtype), "read": read}
        return p | {"time": (weight(c, 768, dtype=dtype), weight(768, 768, dtype=dtype))}

    frozen = {"down": down(BF16), "first": filters(3, 3, 4, c, dtype=BF16), "scale": Arg((2, c))}
    frozen |= {"up": [block(4 * c, 2 * c, BF16), block(4 * c, c, BF16)]}
    frozen |= {"last": filters(3, 3, c, 4, dtype=BF16)}
    params = {"down": down(F32), "hint": (filters(3, 3, 3, 32), filters(3, 3, 32, c))}
    params |= {"zero": [Arg((e, e), scale=0.01) for e in (c, c, 2 * c, 2 * c)]}
    given = (Arg((b, h, w, 4)), Arg((b, 8 * h, 8 * w, 3)), Arg((b, 77, 768), BF16), _KEY)
    yield "controlnet", carried(controlled, adamw_start(params), frozen, *given)


def video() -> Zoo:
    """The decoder of a video's latents: causal windows in time, three times finer in space."""
    c = (256, 192, 96)

    def frames(params: Any, latents: Any) -> Any:
        def causal3(x: Any, w: Any) -> Any:
            k = w.shape[0] - 1
            x = jnp.concatenate([jnp.repeat(x[:, :1], k, 1), x], 1) if k else x
            side = w.shape[1] // 2
            return conv(x, w, 1, [(0, 0), (side, side), (side, side)])

        def block(x: Any, p: Any) -> Any:
            y = causal3(jax.nn.silu(rms(x, p["scale"][0])), p["one"])
            y = causal3(jax.nn.silu(rms(y, p["more"])), p["two"])
            return y + (x @ p["side"] if "side" in p else x)

        x = causal3(latents, params["first"])
        x = block(x, params["middle"])
        b, t, h, w, d = x.shape
        y = rms(x, 1.0).reshape(b * t, h * w, d)
        q, k, v = (heads(part, d) for part in jnp.split(y @ params["qkv"], 3, -1))
        x = x + (attention(q, k, v) @ params["out"]).reshape(x.shape)
        for n, p in enumerate(params["levels"]):
            x = block(x, p["block"])
            if n:
                y = causal3(x, p["time"])
                y = y.reshape(*y.shape[:4], 2, -1).transpose(0, 1, 4, 2, 3, 5)
                x = y.reshape(y.shape[0], -1, *y.shape[3:])[:, 1:]
            b, t, h, w, d = x.shape
            y = jax.image.resize(x, (b, t, 2 * h, 2 * w, d), "nearest")
            x = causal3(y, p["space"])
        x = block(x, params["end"])
        x = causal3(jax.nn.silu(rms(x)), params["last"]).astype(F32)
        return jnp.round(jnp.clip(x * 127.5 + 127.5, 0, 255)).astype(U8)

    def block(i: int, o: int) -> dict[str, Arg]:
        p = {"scale": Arg((1, i)), "more": Arg((o,)), "one": filters(3, 3, 3, i, o, dtype=BF16)}
        p |= {"two": filters(3, 3, 3, o, o, dtype=BF16)}
        return p | ({"side": weight(i, o)} if i != o else {})

    params = {"first": filters(3, 3, 3, 16, c[0], dtype=BF16), "middle": block(c[0], c[0])}
    params |= {"qkv": weight(c[0], 3 * c[0]), "out": weight(c[0], c[0]), "levels": []}
    for i, o in zip((c[0], *c[:2]), c, strict=True):
        level = {"block": block(i, o), "space": filters(1, 3, 3, o, o, dtype=BF16)}
        if params["levels"]:
            level["time"] = filters(3, 1, 1, o, 2 * o, dtype=BF16)
        params["levels"].append(level)
    params |= {"end": block(c[2], c[2]), "last": filters(3, 3, 3, c[2], 3, dtype=BF16)}
    yield "causal_decoder", program(frames, params, Arg((1, 3, 30, 36, 16), BF16))


def sampling() -> Zoo:
    """Twelve steps of a U-ViT with guidance, by Euler's method with noise that is added anew."""
    b, d, steps = 14, 512, 12

    def ancestral(params: Any, labels: Any, key: Any) -> Any:
        names = jnp.concatenate([labels, jnp.full_like(labels, 1000)])
        sigmas = jnp.append(jnp.exp(jnp.linspace(jnp.log(14.6), jnp.log(0.03), steps)), 0.0)

        def layer(x: Any, p: Any) -> Any:
            q, k, v = jnp.split(heads(layer_norm(x, p["scale"][0]) @ p["qkv"], 64), 3, 2)
            x = x + attention(q, k, v) @ p["out"]
            y = jax.nn.gelu(layer_norm(x, p["scale"][1]) @ p["up"])
            return x + y @ p["down"]

        def guess(x: Any, sigma: Any) -> Any:
            y = (x * lax.rsqrt(sigma**2 + 1)).astype(BF16)
            y = y.reshape(b, 16, 2, 16, 2, 4).swapaxes(2, 3).reshape(b, 256, 16) @ params["patch"]
            y = jnp.concatenate([y, y])
            speed = jnp.exp(-jnp.arange(d // 2) / (d // 2) * jnp.log(1e4))
            angle = 250 * jnp.log(sigma) * speed
            wave = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)]).astype(BF16)
            start = [jnp.broadcast_to(wave, (2 * b, 1, d)), params["names"][names][:, None]]
            y = jnp.concatenate([*start, y], 1) + params["places"]
            y, kept = lax.scan(lambda y, p: (layer(y, p),) * 2, y, params["down"])
            y = layer(y, params["middle"])

            def after(y: Any, given: Any) -> Any:
                p, skip = given
                return layer(jnp.concatenate([y, skip], -1) @ p["join"], p), None

            y, _ = lax.scan(after, y, (params["up"], kept[::-1]))
            y = layer_norm(y[:, 2:], params["last"]) @ params["pixels"]
            y = y.reshape(2 * b, 16, 16, 2, 2, 4).swapaxes(2, 3).reshape(2 * b, 32, 32, 4)
            y = conv(y, params["smooth"]).astype(F32)
            with_, without = jnp.split(y, 2)
            return without + 2.5 * (with_ - without)

        def step(x: Any, given: Any) -> Any:
            now, then, key = given
            clean = x - now * guess(x, now)
            new = jnp.sqrt(then**2 * (now**2 - then**2) / now**2)
            low = jnp.sqrt(jnp.maximum(then**2 - new**2, 0))
            x = x + (x - clean) / now * (low - now)
            return x + jax.random.normal(key, x.shape) * new, jnp.square(clean).mean()

        first, rest = jax.random.split(key)
        x = jax.random.normal(first, (b, 32, 32, 4)) * sigmas[0]
        return lax.scan(step, x, (sigmas[:-1], sigmas[1:], jax.random.split(rest, steps)))

    layer = {"qkv": weight(d, 3 * d), "out": weight(d, d), "scale": Arg((2, d))}
    layer |= {"up": weight(d, 4 * d), "down": weight(4 * d, d)}
    params = {"down": times(6, layer), "middle": layer, "patch": weight(16, d)}
    params |= {"up": times(6, layer | {"join": weight(2 * d, d)}), "last": Arg((d,))}
    params |= {"names": Arg((1001, d), BF16), "places": Arg((258, d), BF16, scale=0.02)}
    params |= {"pixels": weight(d, 16), "smooth": filters(3, 3, 4, 4, dtype=BF16)}
    yield "uvit", program(ancestral, params, Arg((b,), I32, below=1000), _KEY)


class Whisper(nn.Module):
    """A short Whisper, in linen."""

    @nn.compact
    def __call__(self, mel: Any, tokens: Any) -> Any:
        d, kw = 768, {"dtype": BF16}

        def seen(x: Any, told: Any = None, mask: Any = None) -> Any:
            y = nn.LayerNorm(**kw)(x)
            told = y if told is None else told
            return x + nn.MultiHeadDotProductAttention(12, **kw)(y, told, mask=mask)

        def wide(x: Any) -> Any:
            y = nn.gelu(nn.Dense(4 * d, **kw)(nn.LayerNorm(**kw)(x)))
            return x + nn.Dense(d, **kw)(y)

        x = nn.gelu(nn.Conv(d, (3,), **kw)(mel))
        x = nn.gelu(nn.Conv(d, (3,), (2,), **kw)(x))
        speed = jnp.exp(-jnp.arange(d // 2) / (d // 2 - 1) * jnp.log(1e4))
        angle = jnp.arange(x.shape[1])[:, None] * speed
        x = x + jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1).astype(BF16)
        for _ in range(3):
            x = wide(seen(x))
        told = nn.LayerNorm(**kw)(x)
        table = nn.Embed(51865, d, **kw)
        y = table(tokens) + nn.Embed(448, d, **kw)(jnp.arange(tokens.shape[1]))
        mask = nn.make_causal_mask(tokens)
        for _ in range(3):
            y = wide(seen(seen(y, mask=mask), told))
        return table.attend(nn.LayerNorm(**kw)(y))


def listening() -> Zoo:
    """Training of a short Whisper in linen on half minutes of sound."""
    model = Whisper()
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-5, 0.9, 0.98))

    def whisper(state: Any, mel: Any, tokens: Any, lengths: Any) -> Any:
        params, kept = state
        told = jnp.arange(tokens.shape[1] - 1) < lengths[:, None] + 20

        def loss(p: Any) -> Any:
            lost = cross_entropy(model.apply(p, mel, tokens[:, :-1]), tokens[:, 1:])
            return (lost * told).sum() / told.sum()

        value, grads = jax.value_and_grad(loss)(params)
        ways, kept = rule.update(grads, kept, params)
        return (optax.apply_updates(params, ways), kept), value

    mel, tokens = Arg((5, 3000, 80), BF16), Arg((5, 225), I32, below=51865)
    params = linen_weights(model, mel, tokens)
    kept = jax.eval_shape(rule.init, jax.tree.map(Arg.struct, params))
    kept = jax.tree.map(lambda a: Arg(a.shape, a.dtype, scale=0.0, below=1), kept)
    yield "whisper", carried(whisper, (params, kept), mel, tokens, Arg((5,), I32, below=200))


def multimodal() -> Zoo:
    """Training of PaliGemma's adapters: 256 patches and a question see each other."""
    b, d, wide, e, words, asked, size = 6, 2048, 16384, 1152, 257152, 24, 96

    def pali(state: Any, frozen: Any, images: Any, tokens: Any) -> Any:
        s = 256 + size
        places = jnp.arange(s)
        mask = (causal(s)[0, 0] | (places[None] < 256 + asked))[None, None]

        def tower(x: Any, p: Any) -> Any:
            qkv = heads(layer_norm(x, p["scale"][0]) @ p["qkv"], 72)
            x = x + attention(*jnp.split(qkv, 3, 2)) @ p["out"]
            return x + jax.nn.gelu(layer_norm(x, p["scale"][1]) @ p["up"]) @ p["down"], None

        x = images.astype(BF16) / 127.5 - 1
        x = conv(x, frozen["patch"], 14, "VALID").reshape(b, 256, e) + frozen["places"]
        x, _ = lax.scan(tower, x, frozen["tower"])
        seen = layer_norm(x, frozen["seen"])

        def loss(params: Any) -> Any:
            low = half(params)

            def times_low(x: Any, w: Any, pair: Any) -> Any:
                return x @ w + (x @ pair[0]) @ pair[1]

            @jax.checkpoint
            def layer(x: Any, given: Any) -> Any:
                p, pair = given
                y = rms(x, 1 + p["scale"][0])
                q, k, v = (heads(times_low(y, p[m], pair[m]), 256) for m in "qkv")
                y = attention(rope(q, places), rope(k, places), v, mask)
                x = x + times_low(y, p["out"], pair["out"])
                y = rms(x, 1 + p["scale"][1])
                return x + (jax.nn.gelu(y @ p["gate"]) * (y @ p["up"])) @ p["down"], None

            text = frozen["table"][tokens[:, :-1]] * jnp.asarray(d**0.5, BF16)
            x = jnp.concatenate([seen @ low["join"], text], 1)
            x, _ = lax.scan(layer, x, (frozen["layers"], low["pairs"]))
            x = rms(x[:, 256 + asked :], 1 + frozen["last"])
            return cross_entropy(x @ frozen["table"].T, tokens[:, asked + 1 :]).mean()

        return adamw(state, loss, 1e-4, 0.0, 0.999)

    tower = {"qkv": weight(e, 3 * e), "out": weight(e, e), "scale": Arg((2, e))}
    tower |= {"up": weight(e, 4304), "down": weight(4304, e)}
    ends = {"q": (d, 2048), "k": (d, 256), "v": (d, 256), "out": (2048, d)}
    layer = {name: weight(*shape) for name, shape in ends.items()}
    layer |= {"scale": Arg((2, d), scale=0.1)} | swiglu_weights(d, wide, weight)
    frozen = {"patch": filters(14, 14, 3, e, dtype=BF16), "places": Arg((256, e), BF16, scale=0.02)}
    frozen |= {"tower": times(5, tower), "seen": Arg((e,)), "layers": times(3, layer)}
    frozen |= {"table": Arg((words, d), BF16, scale=0.02), "last": Arg((d,), scale=0.1)}
    pairs = {name: (master(i, 8), Arg((8, o), scale=0.01)) for name, (i, o) in ends.items()}
    params = {"join": master(e, d), "pairs": times(3, pairs)}
    given = (Arg((b, 224, 224, 3), U8, below=256), Arg((b, size + 1), I32, below=words))
    yield "paligemma", carried(pali, adamw_start(params), frozen, *given)


def folding() -> Zoo:
    """Training of AlphaFold 3's denoiser: atoms in windows, and tokens whose pairs are known."""
    b, n, atoms, d, c = 12, 384, 3072, 768, 128

    def denoiser(state: Any, goal: Any, single: Any, pair: Any, owner: Any, key: Any) -> Any:
        one, two = jax.random.split(key)
        owner = jnp.sort(owner)
        sigma = 16 * jnp.exp(-1.2 + 1.5 * jax.random.normal(one, (b, 1, 1)))
        noisy = goal + sigma * jax.random.normal(two, (b, atoms, 3))

        def adaptive(x: Any, s: Any, p: Any) -> Any:
            s = layer_norm(s)
            return jax.nn.sigmoid(s @ p[0]) * layer_norm(x) + s @ p[1]

        def mixed(x: Any, s: Any, p: Any, bias: Any, local: bool) -> Any:
            y = adaptive(x, s, p["one"])
            size = x.shape[-1] // bias.shape[1]
            q, k, v = jnp.split(heads(y @ p["qkv"], size), 3, 2)
            if local:
                q = q.reshape(-1, 32, *q.shape[2:])
                pads = ((0, 0), (48, 48), (0, 0), (0, 0))
                index = jnp.arange(atoms // 32)[:, None] * 32 + jnp.arange(128)
                k, v = (jnp.pad(a, pads)[:, index].reshape(-1, 128, *a.shape[2:]) for a in (k, v))
            y = attention(q, k, v, None, bias).reshape(x.shape)
            y = (jax.nn.sigmoid(adaptive(x, s, p["one"]) @ p["open"]) * y) @ p["out"]
            x = x + jax.nn.sigmoid(s @ p["last"][0]) * y
            y = swiglu(adaptive(x, s, p["two"]), p)
            return x + jax.nn.sigmoid(s @ p["last"][1]) * y

        def loss(params: Any) -> Any:
            p = half(params)
            spread = 16.0
            given = noisy * lax.rsqrt(sigma**2 + spread**2)
            wave = jnp.cos(2 * jnp.pi * (jnp.log(sigma / spread) / 4 * params["wave"]))
            s = single + (wave.astype(BF16) @ p["when"])
            a_s = (single @ p["s_atom"])[owner][None] + (wave.astype(BF16) @ p["a_when"])
            x = given.astype(BF16) @ p["x"] + a_s
            near = p["near"].astype(F32)[None]

            def local(x: Any, q: Any) -> Any:
                return mixed(x, a_s, q, near, True), None

            x, _ = lax.scan(local, x, p["atoms"])
            sums = jax.vmap(lambda y: jax.ops.segment_sum(y, owner, n, indices_are_sorted=True))
            counts = jax.ops.segment_sum(jnp.ones(atoms), owner, n)[:, None] + 1
            y = (sums(jax.nn.relu(x @ p["up"])) / counts.astype(BF16)) + s

            @jax.checkpoint
            def block(y: Any, q: Any) -> Any:
                bias = jnp.einsum("ijc,ch->hij", layer_norm(pair), q["bias"]).astype(F32)[None]
                return mixed(y, s, q, bias, False), None

            y, _ = lax.scan(block, y, p["tokens"])
            x = x + (layer_norm(y) @ p["down"])[:, owner]
            x, _ = lax.scan(local, x, p["back"])
            move = (layer_norm(x) @ p["move"]).astype(F32)
            total = sigma**2 + spread**2
            found = spread**2 / total * noisy + spread * sigma * lax.rsqrt(total) * move
            old, new = goal[None] - goal.mean(0), found - found.mean(1, keepdims=True)
            old = jnp.broadcast_to(old, new.shape)
            cross = jnp.einsum("bai,baj->bij", lax.stop_gradient(new), old)
            u, _, vt = jnp.linalg.svd(cross)
            flip = jnp.sign(jnp.linalg.det(u @ vt))
            u = u.at[:, :, -1].multiply(flip[:, None])
            turn = lax.stop_gradient(u @ vt)
            aim = jnp.einsum("bij,baj->bai", turn, old)
            heavy = total / (sigma * spread) ** 2
            return (heavy * jnp.square(new - lax.stop_gradient(aim))).mean()

        return adamw(state, loss, 1.8e-3, 0.0)

    def block(e: int, cond: int, wide: int) -> dict[str, Any]:
        p = {"one": (master(cond, e), master(cond, e)), "two": (master(cond, e), master(cond, e))}
        p |= {"qkv": master(e, 3 * e), "open": master(e, e), "out": master(e, e)}
        return p | {"last": (master(cond, e), master(cond, e))} | swiglu_weights(e, wide)

    tokens = block(d, d, 2 * d) | {"bias": master(c, 16)}
    params = {"tokens": times(4, tokens), "atoms": times(2, block(128, 128, 256))}
    params |= {"back": times(2, block(128, 128, 256)), "wave": Arg((256,)), "x": master(3, 128)}
    params |= {"when": master(256, d), "a_when": master(256, 128), "s_atom": master(d, 128)}
    params |= {"near": Arg((4, 32, 128), scale=0.1), "up": master(128, d), "down": master(d, 128)}
    params |= {"move": master(128, 3)}
    given = (Arg((atoms, 3), scale=16.0), Arg((n, d), BF16), Arg((n, n, c), BF16))
    owner = Arg((atoms,), I32, below=n)
    yield "alphafold3_denoiser", carried(denoiser, adamw_start(params), *given, owner, _KEY)


def recommending() -> Zoo:
    """Training of HSTU: what users opened, when, and 128 items that they did not open."""
    b, s, d, items, negatives = 24, 500, 256, 400_003, 128

    def hstu(state: Any, rows: Any, gaps: Any) -> Any:
        """Attention without softmax; rows of the table learn by one Adagrad number each."""
        learner, table, squares = state
        place = jnp.arange(s)
        times_ = jnp.cumsum(gaps, 1)
        passed = jnp.abs(times_[:, :, None] - times_[:, None]).astype(F32)
        bucket = jnp.clip(jnp.log1p(passed) / 0.301, 0, 63).astype(I32)
        ahead = jnp.clip(place[:, None] - place + s, 0, 2 * s - 1)
        mask = causal(s)
        seen, wrong = jnp.split(rows, [b * (s + 1)])
        seen = seen.reshape(b, s + 1)

        def loss(params: Any, given: Any) -> Any:
            p = half(params)
            own, other = jnp.split(given, [b * (s + 1)])
            own = own.reshape(b, s + 1, d)
            x = (own[:, :-1] * d**0.5).astype(BF16) + p["places"]

            @jax.checkpoint
            def layer(x: Any, q: Any) -> Any:
                y = jax.nn.silu(layer_norm(x) @ q["uvqk"])
                u, v, query, key = (heads(part, 64) for part in jnp.split(y, 4, -1))
                bias = q["near"][ahead] + q["when"][bucket]
                scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) + bias[:, None]
                shares = jnp.where(mask, jax.nn.silu(scores) / s, 0)
                y = jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(b, s, -1)
                return x + (layer_norm(y) * u.reshape(y.shape)) @ q["out"], None

            x, _ = lax.scan(layer, x, p["layers"])

            def unit(y: Any) -> Any:
                y = y.astype(F32)
                return y * lax.rsqrt(jnp.square(y).sum(-1, keepdims=True) + 1e-6)

            x, right, other = unit(x), unit(own[:, 1:]), unit(other)
            good = (x * right).sum(-1, keepdims=True)
            bad = jnp.einsum("bsd,nd->bsn", x.astype(BF16), other.astype(BF16)).astype(F32)
            bad = jnp.where(wrong == seen[:, 1:, None], -1e4, bad)
            logits = jnp.concatenate([good, bad], -1) / 0.05
            return (jax.nn.logsumexp(logits, -1) - logits[..., 0]).mean()

        params, first, second, count = learner
        value, (grads, slopes) = jax.value_and_grad(loss, (0, 1))(params, table[rows])
        count = count + 1
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
        second = jax.tree.map(lambda v, g: 0.98 * v + 0.02 * g * g, second, grads)
        scale = jnp.sqrt(1 - 0.98 ** count.astype(F32))
        params = jax.tree.map(
            lambda w, m, v: w - 1e-3 * scale * m / (jnp.sqrt(v) + 1e-8), params, first, second
        )
        learner = (params, first, second, count)
        squares = squares.at[rows].add(jnp.square(slopes).mean(-1))
        pace = 0.01 * lax.rsqrt(squares[rows] + 1e-8)
        table = table.at[rows].add(-pace[:, None] * slopes)
        return (learner, table, squares), value

    layer = {"uvqk": master(d, 4 * d), "out": master(d, d), "near": Arg((2 * s,), scale=0.02)}
    layer |= {"when": Arg((64,), scale=0.02)}
    params = {"layers": times(4, layer), "places": Arg((s, d), scale=0.02)}
    state = (adamw_start(params), Arg((items, d), scale=0.02), Arg((items,), scale=0.0))
    rows = Arg((b * (s + 1) + negatives,), I32, below=items)
    yield "hstu", carried(hstu, state, rows, Arg((b, s), I32, below=86400))


def weather() -> Zoo:
    """Training of GraphCast: from a grid to a mesh, six rounds of messages, and back again."""
    grid, mesh, d, channels = 181 * 90, 2562, 256, 83
    counts = {"in": 27_018, "mesh": 20_460, "out": 3 * 181 * 90}

    def graphcast(state: Any, past: Any, edges: Any, goal: Any, traits: Any) -> Any:
        def mlp(x: Any, p: Any) -> Any:
            y = jax.nn.silu(x @ p["one"] + p["shift"]) @ p["two"]
            return layer_norm(y, p["scale"])

        def messages(edge: Any, a: Any, c: Any, ends: Any, p: Any) -> Any:
            told = jnp.concatenate([edge, a[ends[0]], c[ends[1]]], -1)
            return mlp(told, p)

        def loss(params: Any) -> Any:
            p = half(params)
            x = mlp(past.reshape(grid, -1).astype(BF16), p["grid"])
            y = mlp(traits["nodes"].astype(BF16), p["nodes"])
            edge = {name: mlp(traits[name].astype(BF16), p["edges"][name]) for name in counts}
            new = messages(edge["in"], x, y, edges["in"], p["in"]["edge"])
            total = jax.ops.segment_sum(new, edges["in"][1], mesh)
            y = y + mlp(jnp.concatenate([y, total], -1), p["in"]["node"])
            x = x + mlp(x, p["in"]["self"])

            @jax.checkpoint
            def round_(carry: Any, q: Any) -> Any:
                y, edge = carry
                new = messages(edge, y, y, edges["mesh"], q["edge"])
                total = jax.ops.segment_sum(new, edges["mesh"][1], mesh)
                y = y + mlp(jnp.concatenate([y, total], -1), q["node"])
                return (y, edge + new), None

            (y, _), _ = lax.scan(round_, (y, edge["mesh"]), p["rounds"])
            new = messages(edge["out"], y, x, edges["out"], p["out"]["edge"])
            total = new.reshape(grid, 3, d).sum(1)
            x = x + mlp(jnp.concatenate([x, total], -1), p["out"]["node"])
            z = jax.nn.silu(x @ p["last"][0]) @ p["last"][1]
            lost = jnp.square(past[:, 1] + z.astype(F32) - goal)
            tilt = jnp.cos(jnp.linspace(-jnp.pi / 2, jnp.pi / 2, 90))
            return (lost.reshape(181, 90, -1) * tilt[:, None]).mean()

        ends = jnp.repeat(jnp.arange(grid), 3)
        edges = edges | {"out": (edges["out"][0], ends)}
        return adamw(state, loss, 1e-3, 0.1)

    def mlp(i: int) -> dict[str, Arg]:
        p = {"one": master(i, d), "shift": Arg((d,), scale=0.02), "two": master(d, d)}
        return p | {"scale": Arg((d,))}

    pair = {"edge": mlp(3 * d), "node": mlp(2 * d)}
    params = {"grid": mlp(2 * channels), "nodes": mlp(3), "in": pair | {"self": mlp(d)}}
    params |= {"edges": {name: mlp(4) for name in counts}, "rounds": times(6, pair), "out": pair}
    params |= {"last": (master(d, d), master(d, channels))}
    traits = {name: Arg((count, 4)) for name, count in counts.items()} | {"nodes": Arg((mesh, 3))}
    edges: dict[str, Any] = {
        name: (Arg((count,), I32, below=mesh),) * 2 for name, count in counts.items()
    }
    edges["in"] = (Arg((counts["in"],), I32, below=grid), edges["in"][1])
    edges["mesh"] = Arg((2, counts["mesh"]), I32, below=mesh)
    edges["out"] = edges["out"][:1]
    given = (Arg((grid, 2, channels)), edges, Arg((grid, channels)), traits)
    yield "graphcast", carried(graphcast, adamw_start(params), *given)


def scenes() -> Zoo:
    """Training of mip-NeRF 360 in float32: cones, proposals of where to look, distortion."""
    rays, coarse, fine, wide = 2048, 64, 32, 512

    def mip(state: Any, origins: Any, ways: Any, colours: Any, key: Any) -> Any:
        ways = ways * lax.rsqrt(jnp.square(ways).sum(-1, keepdims=True) + 1e-8)
        one, two = jax.random.split(key)

        def encoded(edges: Any) -> Any:
            near, far = edges[:, :-1], edges[:, 1:]
            middle, part = (near + far) / 2, (far - near) / 2
            mean_t = middle + 2 * middle * part**2 / (3 * middle**2 + part**2)
            var_t = part**2 / 3
            var_r = (1e-3 * mean_t) ** 2 / 4
            mean = origins[:, None] + mean_t[..., None] * ways[:, None]
            along = ways[:, None] ** 2
            var = var_t[..., None] * along + var_r[..., None] * (1 - along)
            size = jnp.sqrt(jnp.maximum(jnp.square(mean).sum(-1, keepdims=True), 1.0))
            mean, var = (2 - 1 / size) * mean / size, var / size**2
            speed = 2.0 ** jnp.arange(12)
            angle = (mean[..., None, :] * speed[:, None]).reshape(*mean.shape[:2], -1)
            fade = jnp.exp(-0.5 * (var[..., None, :] * speed[:, None] ** 2))
            fade = fade.reshape(angle.shape)
            return jnp.concatenate([jnp.sin(angle) * fade, jnp.cos(angle) * fade], -1)

        def mlp(x: Any, p: Any) -> Any:
            given = x
            for n, (w, shift) in enumerate(p):
                x = jnp.concatenate([x, given], -1) if n == 4 else x
                x = jax.nn.relu(x @ w + shift)
            return x

        def weights(density: Any, edges: Any) -> Any:
            thick = density * (edges[:, 1:] - edges[:, :-1])
            past = jnp.cumsum(thick, 1) - thick
            return (1 - jnp.exp(-thick)) * jnp.exp(-past)

        def resampled(edges: Any, share: Any, key: Any, count: int) -> Any:
            total = jnp.cumsum(share + 1e-3, 1)
            total = jnp.pad(total / total[:, -1:], ((0, 0), (1, 0)))
            place = jnp.linspace(0, 1 - 1e-3, count + 1)
            place = place + jax.random.uniform(key, (rays, 1)) / (count + 2) * 0.5
            return jax.vmap(jnp.interp)(place, total, edges)

        def loss(p: Any) -> Any:
            s = jnp.linspace(0, 1, coarse + 1) + jnp.zeros((rays, 1))
            s = s + jax.random.uniform(one, (rays, 1)) / coarse * 0.5
            first = 1 / (1 / 0.2 * jnp.maximum(1 - s, 0.0) + 1 / 100 * s)
            density = jax.nn.softplus((mlp(encoded(first), p["proposal"]) @ p["p_out"])[..., 0] - 1)
            rough = weights(density, first)
            edges = resampled(first, lax.stop_gradient(rough), two, fine)
            edges = lax.stop_gradient(edges)
            x = mlp(encoded(edges), p["nerf"])
            share = weights(jax.nn.softplus((x @ p["density"])[..., 0] - 1), edges)
            look = (ways[:, None] * 2.0 ** jnp.arange(4)[:, None]).reshape(rays, 12)
            look = jnp.concatenate([jnp.sin(look), jnp.cos(look)], -1)
            look = jnp.broadcast_to(look[:, None], (rays, fine, 24))
            y = jnp.concatenate([x @ p["bottle"], look], -1)
            y = jax.nn.relu(y @ p["view"][0]) @ p["view"][1]
            found = (share[..., None] * jax.nn.sigmoid(y)).sum(1)
            found = found + 0.5 * (1 - share.sum(1, keepdims=True))
            lost = jnp.sqrt(jnp.square(found - jax.nn.sigmoid(colours)) + 1e-6).mean()
            low = edges[:, :-1, None] <= first[:, None, 1:]
            high = edges[:, 1:, None] >= first[:, None, :-1]
            bound = jnp.where(low & high, rough[:, None], 0).sum(-1)
            over = jnp.maximum(lax.stop_gradient(share) - bound, 0) ** 2
            over = over / (lax.stop_gradient(share) + 1e-5)
            unit = (1 / 0.2 - 1 / edges) / (1 / 0.2 - 1 / 100)
            middle = (unit[:, 1:] + unit[:, :-1]) / 2
            apart = jnp.abs(middle[:, :, None] - middle[:, None])
            spread = (share[:, :, None] * share[:, None] * apart).sum((1, 2))
            spread = spread + (share**2 * (unit[:, 1:] - unit[:, :-1])).sum(1) / 3
            return lost + over.sum(1).mean() + 0.01 * spread.mean()

        return adamw(state, loss, 2e-3, 0.0, 0.99)

    def stack(*sizes: int, skip: int = 0) -> list[tuple[Arg, Arg]]:
        return [
            (master(i + (skip if n == 4 else 0), o), Arg((o,), scale=0.02))
            for n, (i, o) in enumerate(pairwise(sizes))
        ]

    params = {"proposal": stack(72, *[256] * 4), "nerf": stack(72, *[wide] * 8, skip=72)}
    params |= {"p_out": master(256, 1), "density": master(wide, 1), "bottle": master(wide, 256)}
    params |= {"view": (master(280, 128), master(128, 3))}
    given = (Arg((rays, 3)), Arg((rays, 3)), Arg((rays, 3)), _KEY)
    yield "mip_nerf", carried(mip, adamw_start(params), *given)
