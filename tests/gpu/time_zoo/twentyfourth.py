"""A 24th zoo: steps as people train and serve them today; written without a look at the
predictor.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import optax
from eleventh import learned, perceptron, stack, started
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
)
from tenth import applied

from xlapipe.running.calibration.timed_program import Arg, TimedProgram

F32, BF16, I32, I8 = jnp.float32, jnp.bfloat16, jnp.int32, jnp.int8
U8, U32, FP8 = jnp.uint8, jnp.uint32, jnp.float8_e4m3fn
Zoo = Iterator[tuple[str, TimedProgram]]
_KEY = Arg((2,), U32, below=1 << 30)


def twentyfourth_programs() -> dict[str, TimedProgram]:
    """Every program, by FAMILY/NAME."""
    families = (
        *(pretraining, experts, finetuning, decoding, prefilling, embedding, classifiers),
        *(image_models, adversarial, segmenting, transcribing, shops, networks),
        *(molecules, agents, worlds, recurrences, densities, views, proteins),
        *(equations, posteriors, updates, compression, metrics, augmentation),
    )
    return {
        f"{family.__name__}/{name}": program for family in families for name, program in family()
    }


def decoder_weights(
    d: int, h: int, g: int, size: int, wide: int, make: Callable[..., Arg] = master
) -> dict[str, Any]:
    """Weights of a Llama layer."""
    p = {"q": make(d, h * size), "k": make(d, g * size), "v": make(d, g * size)}
    p |= {"o": make(h * size, d), "n1": master(d), "n2": master(d)}
    return p | {"mlp": swiglu_weights(d, wide, make)}


def decoder_block(x: Any, p: Any, places: Any, size: int, mask: Any) -> Any:
    """A Llama layer."""
    y = rms(x, p["n1"])
    q, k = rope(heads(y @ p["q"], size), places), rope(heads(y @ p["k"], size), places)
    x = x + attention(q, k, heads(y @ p["v"], size), mask) @ p["o"]
    return x + swiglu(rms(x, p["n2"]), p["mlp"])


def encoder_weights(d: int, wide: int, make: Callable[..., Arg] = master) -> dict[str, Any]:
    """Weights of a pre-norm layer with one product for queries, keys and values."""
    p = {"qkv": make(d, 3 * d), "o": make(d, d), "up": make(d, wide), "down": make(wide, d)}
    return p | {"n1": master(d), "n2": master(d)}


def encoder_block(x: Any, p: Any, size: int, mask: Any = None) -> Any:
    """Such a layer."""
    q, k, v = (heads(y, size) for y in jnp.split(layer_norm(x, p["n1"]) @ p["qkv"], 3, -1))
    x = x + attention(q, k, v, mask) @ p["o"]
    return x + jax.nn.gelu(layer_norm(x, p["n2"]) @ p["up"]) @ p["down"]


def cross_block(x: Any, seen: Any, p: Any, size: int, mask: Any = None) -> Any:
    """Attention to other tokens, then a perceptron."""
    q = heads(layer_norm(x, p["n1"]) @ p["q"], size)
    k, v = (heads(y, size) for y in jnp.split(seen @ p["kv"], 2, -1))
    x = x + attention(q, k, v, mask) @ p["o"]
    return x + jax.nn.gelu(layer_norm(x, p["n2"]) @ p["up"]) @ p["down"]


def cross_weights(d: int, wide: int, make: Callable[..., Arg] = master) -> dict[str, Any]:
    """Weights of such a layer."""
    p = {"q": make(d, d), "kv": make(d, 2 * d), "o": make(d, d), "n1": master(d)}
    return p | {"n2": master(d), "up": make(d, wide), "down": make(wide, d)}


def through(block: Callable[..., Any], x: Any, layers: Any) -> Any:
    """Layers whose weights are stacked."""
    return lax.scan(lambda x, p: (block(x, p), None), x, layers)[0]


def group_norm(x: Any, groups: int = 32) -> Any:
    """GroupNorm without weights."""
    y = x.astype(F32).reshape(x.shape[0], -1, groups, x.shape[-1] // groups)
    y = (y - y.mean((1, 3), keepdims=True)) * lax.rsqrt(y.var((1, 3), keepdims=True) + 1e-5)
    return y.reshape(x.shape).astype(x.dtype)


def sines(t: Any, wide: int) -> Any:
    """Sines and cosines of times."""
    angle = t[..., None].astype(F32) * jnp.exp(-9.21 * jnp.linspace(0, 1, wide // 2))
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1)


# ------------------------------------------------------------------------------------ language


class CausalBlock(nn.Module):
    """A GPT-2 layer, as a body of `nn.scan`."""

    wide: int
    heads: int

    @nn.compact
    def __call__(self, x: Any, mask: Any) -> Any:
        y = nn.LayerNorm(dtype=BF16)(x)
        y = nn.MultiHeadDotProductAttention(self.heads, dtype=BF16, deterministic=True)(
            y, mask=mask
        )
        x = x + nn.Dropout(0.1, deterministic=False)(y)
        y = nn.Dense(4 * self.wide, dtype=BF16)(nn.LayerNorm(dtype=BF16)(x))
        y = nn.Dense(self.wide, dtype=BF16)(nn.gelu(y))
        return x + nn.Dropout(0.1, deterministic=False)(y), None


class GPT(nn.Module):
    """GPT-2 with scanned layers and a tied head."""

    wide: int = 640
    depth: int = 8

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        table = nn.Embed(50304, self.wide, dtype=BF16, name="wte")
        places = nn.Embed(1024, self.wide, dtype=BF16, name="wpe")(jnp.arange(tokens.shape[1]))
        x = table(tokens) + places
        stack = nn.scan(
            CausalBlock,
            variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=nn.broadcast,
            length=self.depth,
        )
        x, _ = stack(self.wide, 10)(x, nn.make_causal_mask(tokens))
        return table.attend(nn.LayerNorm(dtype=BF16)(x))


def pretraining() -> Zoo:
    """SmolLM with selective remat, GPT in four microbatches, and packed windows, schedule-free."""
    rates = optax.warmup_cosine_decay_schedule(0.0, 3e-3, 2000, 100000, 3e-4)
    rule = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(
            rates, b2=0.95, weight_decay=0.1, mask=partial(jax.tree.map, lambda w: w.ndim > 1)
        ),
    )

    def smollm(state: Any, tokens: Any) -> Any:
        def loss(params: Any) -> Any:
            p = half(params)
            shown, goals = tokens[:, :-1], tokens[:, 1:]
            places = jnp.arange(shown.shape[1])[None]
            mask = causal(shown.shape[1])
            kept = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
            block = jax.checkpoint(
                lambda x, q: decoder_block(x, q, places, 64, mask), policy=kept, prevent_cse=False
            )
            x = through(block, p["table"][shown], p["layers"])
            return cross_entropy(rms(x, p["last"]) @ p["table"].T, goals).mean()

        return learned(rule, loss, state)

    params = {"table": Arg((49152, 576), scale=0.04), "last": master(576)}
    params["layers"] = times(10, decoder_weights(576, 9, 3, 64, 1536))
    yield "smollm", carried(smollm, started(rule, params), Arg((8, 1025), I32, below=49152))

    model = GPT()
    plain = optax.adamw(6e-4, 0.9, 0.95, weight_decay=0.1)

    def microbatched(state: Any, tokens: Any, key: Any) -> Any:
        params, known = state

        def loss(params: Any, part: Any, key: Any) -> Any:
            logits = model.apply(params, part[:, :-1], rngs={"dropout": key}).astype(F32)
            each = optax.softmax_cross_entropy_with_integer_labels(logits, part[:, 1:])
            return each.mean()

        def add(total: Any, given: Any) -> Any:
            found = jax.value_and_grad(loss)(params, *given)
            return jax.tree.map(jnp.add, total, found), None

        start = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
        total, _ = lax.scan(add, start, (tokens, jax.random.split(key, 4)))
        value, grads = jax.tree.map(lambda g: g / 4, total)
        return applied(plain, params, known, grads), value

    state = started(plain, linen_weights(model, Arg((4, 512), I32, below=50304)))
    yield "gpt_microbatched", carried(microbatched, state, Arg((4, 4, 513), I32, below=50257), _KEY)

    free = optax.contrib.schedule_free_adamw(2.5e-3, warmup_steps=1000)

    def windowed(state: Any, tokens: Any, breaks: Any) -> Any:
        parts = jnp.cumsum(breaks == 0, 1)
        places = jnp.arange(tokens.shape[1])
        first = lax.cummax(jnp.where(breaks == 0, places, 0), axis=1)
        same = parts[:, None, :, None] == parts[:, None, None]

        def block(x: Any, p: Any) -> Any:
            y = rms(x, p["n1"])
            q, k = (rope(heads(y @ p[n], 128), places - first) for n in "qk")
            y = jax.nn.dot_product_attention(
                *(rms(q), rms(k), heads(y @ p["v"], 128)),
                mask=same,
                is_causal=True,
                local_window_size=(511, 0),
            )
            x = x + y.reshape(x.shape) @ p["o"]
            return x + swiglu(rms(x, p["n2"]), p["mlp"])

        def loss(params: Any) -> Any:
            p = half(params)
            x = p["table"][tokens]
            for q in p["layers"]:
                x = jax.checkpoint(block)(x, q)
            logits = (rms(x, p["last"]) @ p["head"]).astype(F32)[:, :-1]
            real = parts[:, 1:] == parts[:, :-1]
            total = jax.nn.logsumexp(logits, -1)
            each = cross_entropy(logits, tokens[:, 1:]) + 1e-4 * total**2
            return (each * real).sum() / real.sum()

        return learned(free, loss, state)

    params = {"table": Arg((32000, 1024), scale=0.03), "head": master(1024, 32000)}
    params |= {"last": master(1024)}
    params["layers"] = [decoder_weights(1024, 8, 1, 128, 2816) for _ in range(3)]
    given = Arg((2, 2048), I32, below=32000), Arg((2, 2048), I32, below=300)
    yield "packed_windows", carried(windowed, started(free, params), *given)


def experts() -> Zoo:
    """Training of OLMoE: a scatter fills buffers of 16 experts, of which a token reads four."""
    d, wide, n, top, room = 512, 768, 16, 4, 1280
    rule = optax.adamw(4e-4, b2=0.95)

    def moe(x: Any, p: Any) -> Any:
        flat = x.reshape(-1, d)
        logits = flat.astype(F32) @ p["router"].astype(F32)
        shares = jax.nn.softmax(logits, -1)
        gate, chosen = lax.top_k(shares, top)
        hot = jax.nn.one_hot(chosen, n, dtype=I32)
        rank = ((jnp.cumsum(hot.reshape(-1, n), 0) - 1).reshape(hot.shape) * hot).sum(-1)
        kept = rank < room
        slot = jnp.where(kept, chosen * room + rank, n * room)
        sent = jnp.repeat(flat, top, 0)
        buffers = jnp.zeros((n * room, d), x.dtype).at[slot.ravel()].set(sent, mode="drop")
        y = jnp.einsum("ecd,edf->ecf", buffers.reshape(n, room, d), p["in"])
        a, b = jnp.split(y, 2, -1)
        y = jnp.einsum("ecf,efd->ecd", jax.nn.silu(a) * b, p["out"]).reshape(-1, d)
        y = y.at[slot].get(mode="fill", fill_value=0) * gate[..., None].astype(x.dtype)
        load = (hot.sum(1).mean(0) * shares.mean(0)).sum() * n / top
        return y.sum(1).reshape(x.shape), load + 1e-3 * (jax.nn.logsumexp(logits, -1) ** 2).mean()

    def olmoe(state: Any, tokens: Any) -> Any:
        mask, places = causal(tokens.shape[1]), jnp.arange(tokens.shape[1])[None]

        def block(carry: Any, p: Any) -> Any:
            x, extra = carry
            y = rms(x, p["n1"])
            q, k = (rope(heads(rms(y @ p[c]), 64), places) for c in "qk")
            x = x + attention(q, k, heads(y @ p["v"], 64), mask) @ p["o"]
            y, more = moe(rms(x, p["n2"]), p)
            return (x + y, extra + more), None

        def loss(params: Any) -> Any:
            p = half(params)
            (x, extra), _ = lax.scan(block, (p["table"][tokens], 0.0), p["layers"])
            logits = rms(x) @ p["head"]
            return cross_entropy(logits[:, :-1], tokens[:, 1:]).mean() + 0.01 * extra

        return learned(rule, loss, state)

    layer = {c: master(d, d) for c in "qkvo"} | {"n1": master(d), "n2": master(d)}
    layer |= {"router": master(d, n), "in": master(n, d, 2 * wide), "out": master(n, wide, d)}
    params = {"table": Arg((50304, d), scale=0.05), "head": master(d, 50304)}
    params["layers"] = times(4, layer)
    yield "olmoe_scatter", carried(olmoe, started(rule, params), Arg((4, 1024), I32, below=50280))


def finetuning() -> Zoo:
    """QLoRA: adapters of rank 16 beside weights of NF4, which every layer unpacks again."""
    d, wide, rank = 1536, 4096, 16
    levels = (-1.0, -0.696, -0.525, -0.395, -0.284, -0.185, -0.091, 0.0)
    levels += (0.08, 0.161, 0.246, 0.338, 0.441, 0.563, 0.723, 1.0)
    shapes = {"q": (d, d), "k": (d, 256), "v": (d, 256), "o": (d, d)}
    shapes |= {"gate": (d, wide), "up": (d, wide), "down": (wide, d)}
    rule = optax.chain(optax.clip_by_global_norm(0.3), optax.adamw(2e-4))

    def unpacked(p: Any, shape: tuple[int, int]) -> Any:
        book = jnp.array(levels, BF16)
        codes = jnp.stack([p["codes"] >> 4, p["codes"] & 15], -1)
        return (book[codes].reshape(-1, 64) * p["scales"][:, None]).reshape(shape)

    def qlora(state: Any, frozen: Any, tokens: Any, answer: Any) -> Any:
        mask, places = causal(tokens.shape[1]), jnp.arange(tokens.shape[1])[None]

        @jax.checkpoint
        def block(x: Any, both: Any) -> Any:
            base, tuned = both

            def dense(y: Any, name: str) -> Any:
                a, b = tuned[name]
                return y @ unpacked(base[name], shapes[name]) + 2 * (y @ a) @ b

            y = rms(x)
            q, k, v = (heads(dense(y, c), 128) for c in "qkv")
            x = x + dense(attention(rope(q, places), rope(k, places), v, mask), "o")
            y = rms(x)
            return x + dense(jax.nn.silu(dense(y, "gate")) * dense(y, "up"), "down")

        def loss(tuned: Any) -> Any:
            x = through(block, frozen["table"][tokens], (frozen["layers"], half(tuned)))
            each = cross_entropy((rms(x) @ frozen["table"].T)[:, :-1], tokens[:, 1:])
            told = answer[:, 1:] > 0
            return (each * told).sum() / told.sum()

        return learned(rule, loss, state)

    tuned = {n: (master(a, rank), Arg((rank, b), scale=0.01)) for n, (a, b) in shapes.items()}
    frozen = {
        n: {"codes": Arg((a * b // 2,), U8, below=256), "scales": Arg((a * b // 64,), BF16, 0.03)}
        for n, (a, b) in shapes.items()
    }
    base = {"table": Arg((32768, d), BF16, 0.03), "layers": times(6, frozen)}
    given = base, Arg((2, 768), I32, below=32768), Arg((2, 768), I32, below=2)
    yield "qlora", carried(qlora, started(rule, times(6, tuned)), *given)


# ------------------------------------------------------------------------------------- serving


def cached_step(x: Any, p: Any, cache: Any, at: Any, size: int, product: Any = jnp.matmul) -> Any:
    """A layer for one token of each reply, whose keys are written at a common place."""
    b, s = x.shape[0], cache[0].shape[1]
    y = rms(x, p["n1"])
    q, k, v = (heads(product(y, p[c]), size)[:, None] for c in "qkv")
    where = jnp.full((b, 1), at)
    keys = lax.dynamic_update_slice(cache[0], rope(k, where), (0, at, 0, 0))
    values = lax.dynamic_update_slice(cache[1], v, (0, at, 0, 0))
    mask = (jnp.arange(s) <= at)[None, None, None]
    x = x + product(attention(rope(q, where), keys, values, mask)[:, 0], p["o"])
    y, mlp = rms(x, p["n2"]), p["mlp"]
    y = jax.nn.silu(product(y, mlp["gate"])) * product(y, mlp["up"])
    return x + product(y, mlp["down"]), (keys, values)


def decoding() -> Zoo:
    """Six tokens for one user, sinks and a ring for 64, floats of eight bits, and Medusa's tree."""

    def alone(caches: Any, p: Any, token: Any, at: Any, key: Any) -> Any:
        def one(carry: Any, key: Any) -> Any:
            caches, token, at = carry

            def layer(x: Any, given: Any) -> Any:
                return cached_step(x, given[0], given[1], at, 64)

            x, caches = lax.scan(layer, p["table"][token], (p["layers"], caches))
            logits = (rms(x, p["last"]) @ p["table"].T).astype(F32) / 0.7
            best, names = lax.top_k(logits, 50)
            pick = jax.random.categorical(key, best)
            token = jnp.take_along_axis(names, pick[:, None], 1)[:, 0]
            return (caches, token, at + 1), token

        (caches, _, _), said = lax.scan(one, (caches, token, at), jax.random.split(key, 6))
        return caches, said

    p = {"table": Arg((128256, 2048), BF16, 0.02), "last": weight(2048)}
    p["layers"] = times(12, decoder_weights(2048, 32, 8, 64, 8192, weight))
    cache = times(12, (Arg((1, 1536, 8, 64), BF16),) * 2)
    given = p, Arg((1,), I32, below=128256), Arg((), I32, below=1500), _KEY
    yield "one_user", carried(alone, cache, *given)

    sinks, ring = 4, 1020

    def streaming(caches: Any, layers: Any, head: Any, x: Any, at: Any) -> Any:
        slot = jnp.where(at < sinks, at, sinks + (at - sinks) % ring)
        rows = jnp.arange(x.shape[0])
        used = jnp.minimum(at + 1, sinks + ring)
        mask = (jnp.arange(sinks + ring) < used[:, None])[:, None, None]
        new = []
        for p, cache in zip(layers, caches, strict=True):
            y = rms(x, p["n1"])
            q, k, v = (heads(y @ p[c], 128) for c in "qkv")
            keys, values = (a.at[rows, slot].set(b) for a, b in zip(cache, (k, v), strict=True))
            turned = rope(keys, jnp.arange(sinks + ring)[None])
            q = rope(q[:, None], used[:, None] - 1)
            x = x + attention(q, turned, values, mask)[:, 0] @ p["o"]
            x = x + swiglu(rms(x, p["n2"]), p["mlp"])
            new.append((keys, values))
        return new, (rms(x) @ head).argmax(-1)

    layers = [decoder_weights(2560, 20, 4, 128, 6912, weight) for _ in range(4)]
    caches = [(Arg((64, sinks + ring, 4, 128), BF16),) * 2 for _ in range(4)]
    given = layers, weight(2560, 32000), Arg((64, 2560), BF16), Arg((64,), I32, below=4000)
    yield "sinks_batch_64", carried(streaming, caches, *given)

    def narrow(caches: Any, p: Any, token: Any, at: Any) -> Any:
        def product(y: Any, w: Any) -> Any:
            return (y @ w["w"].astype(BF16)) * w["scale"]

        def layer(x: Any, given: Any) -> Any:
            return cached_step(x, given[0], given[1], at, 128, product)

        x, caches = lax.scan(layer, p["table"][token], (p["layers"], caches))
        return caches, product(rms(x), p["head"]).astype(F32).argmax(-1)

    def fp8(*shape: int) -> Any:
        return {"w": Arg(shape, FP8), "scale": Arg((shape[-1],), BF16, 0.02)}

    p = {"table": Arg((65024, 3072), BF16), "head": fp8(3072, 65024)}
    p["layers"] = times(8, decoder_weights(3072, 24, 8, 128, 8192, fp8))  # type: ignore[arg-type]
    cache = times(8, (Arg((8, 1024, 8, 128), BF16),) * 2)
    given = p, Arg((8,), I32, below=65024), Arg((), I32, below=1000)
    yield "float8_weights", carried(narrow, cache, *given)

    def medusa(p: Any, caches: Any, tree: Any, parents: Any, depth: Any, length: Any) -> Any:
        n, s = tree.shape[1], caches[0].shape[2]
        reach = jnp.eye(n, dtype=bool)
        above = jax.nn.one_hot(parents, n, dtype=BF16)
        for _ in range(4):
            reach = reach | (above @ reach.astype(BF16) > 0)
        old = jnp.broadcast_to(jnp.arange(s) < length[:, None, None], (tree.shape[0], n, s))
        seen = jnp.concatenate([old, jnp.broadcast_to(reach, (tree.shape[0], n, n))], 2)[:, None]
        places = length[:, None] + depth

        def layer(x: Any, given: Any) -> Any:
            q, (keys, values) = given
            y = rms(x, q["n1"])
            k, v = rope(heads(y @ q["k"], 128), places), heads(y @ q["v"], 128)
            keys, values = jnp.concatenate([keys, k], 1), jnp.concatenate([values, v], 1)
            x = x + attention(rope(heads(y @ q["q"], 128), places), keys, values, seen) @ q["o"]
            return x + swiglu(rms(x, q["n2"]), q["mlp"]), (k, v)

        x, new = lax.scan(layer, p["table"][tree], (p["layers"], caches))
        best = (rms(x) @ p["head"]).argmax(-1)
        right = (best[:, parents] == tree).at[:, 0].set(True)
        valid = jnp.where(reach, right[:, None], True).all(-1)
        leaf = jnp.where(valid, depth, -1).argmax(1)
        return new, best, leaf, jnp.take_along_axis(best, leaf[:, None], 1)

    p = {"table": Arg((32000, 2048), BF16), "head": weight(2048, 32000)}
    p["layers"] = times(6, decoder_weights(2048, 16, 16, 128, 5632, weight))
    cache = times(6, (Arg((4, 768, 16, 128), BF16),) * 2)
    given = Arg((4, 64), I32, below=32000), Arg((64,), I32, below=20), Arg((64,), I32, below=5)
    yield "medusa_tree", program(medusa, p, cache, *given, Arg((4,), I32, below=768))


def prefilling() -> Zoo:
    """A prompt by weights in int8 with scales of columns, whose queries are read in parts."""

    def prompt(p: Any, tokens: Any) -> Any:
        s = tokens.shape[1]
        places = jnp.arange(s)[None]

        def dense(x: Any, w: Any) -> Any:
            return (x @ w["w"].astype(BF16)) * w["scale"]

        def layer(x: Any, q: Any) -> Any:
            y = rms(x, q["n1"])
            a, k, v = (heads(dense(y, q[c]), 128) for c in "qkv")
            a, k = rope(a, places), rope(k, places)

            def part(n: Any) -> Any:
                mask = places[0] <= (n * 512 + jnp.arange(512))[:, None]
                return attention(
                    lax.dynamic_slice_in_dim(a, n * 512, 512, 1), k, v, mask[None, None]
                )

            read = lax.map(part, jnp.arange(s // 512)).swapaxes(0, 1).reshape(1, s, -1)
            x = x + dense(read, q["o"])
            y, mlp = rms(x, q["n2"]), q["mlp"]
            x = x + dense(jax.nn.silu(dense(y, mlp["gate"])) * dense(y, mlp["up"]), mlp["down"])
            return x, (k, v)

        x, cache = lax.scan(layer, p["table"][tokens], p["layers"])
        return cache, dense(rms(x[:, -1]), p["head"]).astype(F32)

    def int8(*shape: int) -> Any:
        return {"w": Arg(shape, I8, below=127), "scale": Arg((shape[-1],), BF16, 3e-4)}

    p = {"table": Arg((32768, 4096), BF16), "head": int8(4096, 32768)}
    p["layers"] = times(4, decoder_weights(4096, 32, 8, 128, 14336, int8))  # type: ignore[arg-type]
    yield "int8_weights", program(prompt, p, Arg((1, 4096), I32, below=32768))


def embedding() -> Zoo:
    """Sentences by GradCache: embeddings first, then each part's gradients through its layers."""
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(2e-5))

    def told(params: Any, tokens: Any) -> Any:
        p = half(params)
        real = tokens > 0
        x = p["table"][tokens] + p["places"]
        x = through(lambda x, q: encoder_block(x, q, 32, real[:, None, None]), x, p["layers"])
        y = (x.astype(F32) * real[..., None]).sum(1) / jnp.maximum(real.sum(1, keepdims=True), 1)
        return y / jnp.linalg.norm(y, axis=-1, keepdims=True)

    def grad_cache(state: Any, asked: Any, found: Any) -> Any:
        params, known = state
        tokens = jnp.concatenate([asked, found], 1)
        all_of_them = lax.map(partial(told, params), tokens)

        def loss(rows: Any) -> Any:
            n = rows.shape[1] // 2
            a, b = (r.reshape(-1, r.shape[-1]) for r in (rows[:, :n], rows[:, n:]))
            scores, right = a @ b.T / 0.02, jnp.arange(a.shape[0])
            return (cross_entropy(scores, right) + cross_entropy(scores.T, right)).mean() / 2

        value, slopes = jax.value_and_grad(loss)(all_of_them)

        def add(total: Any, given: Any) -> Any:
            _, back = jax.vjp(lambda w: told(w, given[0]), params)
            return jax.tree.map(jnp.add, total, back(given[1])[0]), None

        zero = jax.tree.map(jnp.zeros_like, params)
        grads, _ = lax.scan(add, zero, (tokens, slopes))
        return applied(rule, params, known, grads), value

    params = {"table": Arg((30522, 384), scale=0.05), "places": Arg((128, 384), scale=0.05)}
    params["layers"] = times(6, encoder_weights(384, 1536))
    tokens = Arg((4, 64, 128), I32, below=30522)
    yield "grad_cache", carried(grad_cache, started(rule, params), tokens, tokens)


# -------------------------------------------------------------------------------------- vision


class ViTBlock(nnx.Module):
    """A layer of a vision transformer with scales of its branches."""

    def __init__(self, d: int, h: int, rngs: nnx.Rngs) -> None:
        self.n1, self.n2 = nnx.LayerNorm(d, rngs=rngs), nnx.LayerNorm(d, rngs=rngs)
        self.mixer = nnx.MultiHeadAttention(h, d, dtype=BF16, decode=False, rngs=rngs)
        self.up = nnx.Linear(d, 4 * d, dtype=BF16, rngs=rngs)
        self.down = nnx.Linear(4 * d, d, dtype=BF16, rngs=rngs)
        self.scale = nnx.Param(jnp.full((2, d), 0.1))

    def __call__(self, x: Any) -> Any:
        one, two = self.scale[...].astype(BF16)
        x = x + one * self.mixer(self.n1(x).astype(BF16))
        return x + two * self.down(nnx.gelu(self.up(self.n2(x).astype(BF16))))


class ViT(nnx.Module):
    """DeiT III with four registers."""

    def __init__(self, d: int, rngs: nnx.Rngs) -> None:
        self.patches = nnx.Conv(3, d, (16, 16), (16, 16), dtype=BF16, rngs=rngs)
        self.places = nnx.Param(jnp.zeros((1, 196, d)))
        self.registers = nnx.Param(jnp.zeros((1, 5, d)))
        for n in range(6):
            setattr(self, f"block{n}", ViTBlock(d, d // 64, rngs))
        self.last = nnx.LayerNorm(d, rngs=rngs)
        self.head = nnx.Linear(d, 1000, rngs=rngs)

    def __call__(self, shown: Any) -> Any:
        x = self.patches(shown)
        x = x.reshape(x.shape[0], 196, -1) + self.places[...].astype(BF16)
        own = jnp.broadcast_to(self.registers[...].astype(BF16), (x.shape[0], 5, x.shape[2]))
        x = jnp.concatenate([own, x], 1)
        for n in range(6):
            x = getattr(self, f"block{n}")(x)
        return self.head(self.last(x[:, 0]).astype(F32))


class InvertedResidual(nn.Module):
    """MobileNet v3's block."""

    mid: int
    out: int
    kernel: int
    stride: int

    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        norm = partial(nn.BatchNorm, use_running_average=not train, momentum=0.99, epsilon=1e-3)
        y = nn.hard_swish(norm()(nn.Conv(self.mid, (1, 1), use_bias=False)(x)))
        y = nn.Conv(
            *(self.mid, (self.kernel,) * 2, (self.stride,) * 2),
            feature_group_count=self.mid,
            use_bias=False,
        )(y)
        y = nn.hard_swish(norm()(y))
        s = nn.relu(nn.Conv(self.mid // 4, (1, 1))(y.mean((1, 2), keepdims=True)))
        y = y * nn.hard_sigmoid(nn.Conv(self.mid, (1, 1))(s))
        y = norm()(nn.Conv(self.out, (1, 1), use_bias=False)(y))
        return x + y if x.shape == y.shape else y


class MobileNetV3(nn.Module):
    """A small MobileNet v3."""

    @nn.compact
    def __call__(self, x: Any, train: bool = True) -> Any:
        x = nn.hard_swish(nn.Conv(16, (3, 3), (2, 2))(x))
        for mid, out, kernel, stride in (
            *((48, 24, 3, 2), (88, 24, 3, 1), (96, 40, 5, 2)),
            *((240, 40, 5, 1), (288, 96, 5, 2), (576, 96, 5, 1)),
        ):
            x = InvertedResidual(mid, out, kernel, stride)(x, train)
        x = nn.hard_swish(nn.Dense(1024)(x.mean((1, 2))))
        return nn.Dense(1000)(x)


def classifiers() -> Zoo:
    """DeiT III learns in nnx with CutMix, and MobileNet v3 in float32 with a mean of weights."""
    call, params = nnx_parts(lambda: ViT(384, nnx.Rngs(0)))
    rule = optax.lamb(3e-3, weight_decay=0.02)

    def deit(state: Any, shown: Any, labels: Any, key: Any) -> Any:
        x = (shown.astype(BF16) - 118) / 58
        corner = jax.random.randint(key, (2,), 0, 112)
        grid = jnp.arange(224)
        inside = [(grid >= c) & (grid < c + 112) for c in corner]
        cut = (inside[0][:, None] & inside[1])[..., None]
        x = jnp.where(cut, x[::-1], x)
        hot = jax.nn.one_hot(labels, 1000)
        goals = 0.75 * hot + 0.25 * hot[::-1]

        def loss(params: Any) -> Any:
            return optax.sigmoid_binary_cross_entropy(call(params, x), goals).sum(-1).mean()

        return learned(rule, loss, state)

    given = Arg((96, 224, 224, 3), U8, below=256), Arg((96,), I32, below=1000), _KEY
    yield "deit_nnx", carried(deit, started(rule, params), *given)

    model = MobileNetV3()
    momentum = optax.sgd(optax.cosine_decay_schedule(0.5, 90000), 0.9, nesterov=True)

    def mobile(state: Any, shown: Any, labels: Any) -> Any:
        params, stats, known, mean = state

        def loss(params: Any) -> Any:
            variables = {"params": params, "batch_stats": stats}
            logits, new = model.apply(variables, shown, mutable=["batch_stats"])
            value = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
            return value, (new["batch_stats"], (logits.argmax(-1) == labels).mean())

        (value, (stats, right)), grads = jax.value_and_grad(loss, has_aux=True)(params)
        params, known = applied(momentum, params, known, grads)
        mean = optax.incremental_update(params, mean, 1e-3)
        return (params, stats, known, mean), (value, right)

    variables = linen_weights(model, Arg((64, 160, 160, 3)))
    params, known = started(momentum, variables["params"])
    state = (params, variables["batch_stats"], known, params)
    yield (
        "mobilenet_v3",
        carried(mobile, state, Arg((64, 160, 160, 3)), Arg((64,), I32, below=1000)),
    )


def image_models() -> Zoo:
    """Eight steps of DDIM by a DiT in float32 with guidance."""
    d = 384

    def ddim(p: Any, noise: Any, labels: Any) -> Any:
        b = noise.shape[0]
        kinds = jnp.concatenate([labels, jnp.full_like(labels, 1000)])
        alphas = jnp.cos(jnp.linspace(0.99, 0.0, 9) * jnp.pi / 2) ** 2

        def guess(x: Any, t: Any) -> Any:
            x = jnp.concatenate([x, x])
            n = x.shape[0]
            y = (
                x.reshape(n, 16, 2, 16, 2, 4).swapaxes(2, 3).reshape(n, 256, 16) @ p["in"]
                + p["places"]
            )
            c = jax.nn.silu(sines(jnp.full((n,), t), 256) @ p["time"] + p["kinds"][kinds])

            def block(y: Any, q: Any) -> Any:
                parts = jnp.split((c @ q["ada"])[:, None], 6, -1)
                z = layer_norm(y) * (1 + parts[0]) + parts[1]
                a, k, v = (heads(w, 64) for w in jnp.split(z @ q["qkv"], 3, -1))
                y = y + parts[2] * (attention(a, k, v) @ q["o"])
                z = layer_norm(y) * (1 + parts[3]) + parts[4]
                return y + parts[5] * (jax.nn.gelu(z @ q["up"]) @ q["down"])

            y = layer_norm(through(block, y, p["layers"])) @ p["out"]
            y = y.reshape(n, 16, 16, 2, 2, 4).swapaxes(2, 3).reshape(n, 32, 32, 4)
            return y[b:] + 4.0 * (y[:b] - y[b:])

        def step(x: Any, given: Any) -> Any:
            now, then, t = given
            e = guess(x, t)
            clean = jnp.clip((x - jnp.sqrt(1 - now) * e) / jnp.sqrt(now + 1e-4), -4, 4)
            return jnp.sqrt(then) * clean + jnp.sqrt(1 - then) * e, None

        return lax.scan(step, noise, (alphas[:-1], alphas[1:], jnp.linspace(999, 0, 8)))[0]

    layer = encoder_weights(d, 4 * d) | {"ada": Arg((d, 6 * d), scale=0.02)}
    p = {"in": master(16, d), "places": Arg((256, d), scale=0.02), "time": master(256, d)}
    p |= {"kinds": Arg((1001, d), scale=0.02), "layers": times(8, layer), "out": master(d, 16)}
    yield "dit_ddim", program(ddim, p, Arg((8, 32, 32, 4)), Arg((8,), I32, below=1000))


def adversarial() -> Zoo:
    """A GAN with spectral norms: the hinge of the critic, then the generator, by Adam each."""
    rule = optax.adam(2e-4, b1=0.0, b2=0.9)

    def generated(p: Any, z: Any) -> Any:
        x = (z @ p["in"]).reshape(-1, 4, 4, 256)
        for q in p["up"]:
            y = jax.image.resize(
                x, (x.shape[0], 2 * x.shape[1], 2 * x.shape[2], x.shape[3]), "nearest"
            )
            mean, spread = y.mean((0, 1, 2)), y.var((0, 1, 2))
            x = conv(jax.nn.relu((y - mean) * lax.rsqrt(spread + 1e-5)), q)
        return jnp.tanh(conv(jax.nn.relu(x), p["out"]))

    def normed(w: Any, u: Any) -> Any:
        flat = w.reshape(-1, w.shape[-1])
        v = lax.stop_gradient(flat @ u)
        v = v / jnp.linalg.norm(v)
        u = lax.stop_gradient(flat.T @ v)
        u = u / jnp.linalg.norm(u)
        return w / (v @ flat @ u), u

    def judged(p: Any, us: Any, x: Any) -> Any:
        kept = []
        for n, weights in enumerate(zip(p["down"], us, strict=True)):
            w, u = normed(*weights)
            x = jax.nn.leaky_relu(conv(x, w, 1 + n % 2), 0.1)
            kept.append(u)
        return x.sum((1, 2)) @ p["head"], kept

    def step(state: Any, real: Any, key: Any) -> Any:
        (g, g_known), (d, d_known), us = state
        z = jax.random.normal(key, (2, real.shape[0], 128))
        fake = generated(g, z[0])

        def hinge(d: Any) -> Any:
            scores, new = judged(d, us, jnp.concatenate([real, fake]))
            a, b = jnp.split(scores, 2)
            return jax.nn.relu(1 - a).mean() + jax.nn.relu(1 + b).mean(), new

        (bad, us), grads = jax.value_and_grad(hinge, has_aux=True)(d)
        d, d_known = applied(rule, d, d_known, grads)
        fooled, grads = jax.value_and_grad(lambda g: -judged(d, us, generated(g, z[1]))[0].mean())(
            g
        )
        return ((applied(rule, g, g_known, grads)), (d, d_known), us), (bad, fooled)

    g = {"in": master(128, 4096), "up": [filters(3, 3, 256, 256)] * 3, "out": filters(3, 3, 256, 3)}
    sizes = (3, 64, 128, 128, 256, 256)
    d = {"down": [filters(3, 3, a, b) for a, b in pairwise(sizes)], "head": master(256, 1)}
    us = [Arg((b,)) for b in sizes[1:]]
    yield (
        "spectral",
        carried(step, (started(rule, g), started(rule, d), us), Arg((64, 32, 32, 3)), _KEY),
    )


def segmenting() -> Zoo:
    """Mask2Former's decoder: 100 queries look where their last masks were, at three sizes."""
    d = 256

    def masks(p: Any, levels: Any, fine: Any) -> Any:
        b, h, w, _ = fine.shape
        x = jnp.broadcast_to(p["queries"], (b, 100, d))

        def found(x: Any) -> Any:
            y = layer_norm(x)
            return jnp.einsum("bqd,bhwd->bqhw", jax.nn.relu(y @ p["one"]) @ p["two"], fine)

        drawn = found(x)
        for n, (cross, own) in enumerate(p["layers"]):
            seen = levels[n % 3]
            _, hh, ww, _ = seen.shape
            small = jax.image.resize(drawn, (b, 100, hh, ww), "bilinear").reshape(b, 1, 100, -1)
            look = small > 0
            look = look | ~look.any(-1, keepdims=True)
            x = cross_block(x, seen.reshape(b, -1, d), cross, 32, look)
            x = encoder_block(x, own, 32)
            drawn = found(x)
        kinds = jax.nn.softmax((layer_norm(x) @ p["kinds"]).astype(F32))[..., :-1]
        areas = jax.nn.sigmoid(
            jax.image.resize(drawn.astype(F32), (b, 100, 2 * h, 2 * w), "bilinear")
        )
        return jnp.einsum("bqc,bqhw->bhwc", kinds, areas).argmax(-1).astype(U8)

    layers = [(cross_weights(d, 1024, weight), encoder_weights(d, 1024, weight)) for _ in range(6)]
    p = {"queries": Arg((100, d), BF16), "one": weight(d, d), "two": weight(d, d)}
    p |= {"layers": half_args(layers), "kinds": weight(d, 151)}
    levels = [Arg((2, s, s, d), BF16) for s in (16, 32, 64)]
    yield "mask_queries", program(masks, p, levels, Arg((2, 128, 128, d), BF16))


def half_args(p: Any) -> Any:
    """The same weights in bfloat16."""
    return jax.tree.map(lambda a: Arg(a.shape, BF16, a.scale), p)


# --------------------------------------------------------------------------------------- sound


def transcribing() -> Zoo:
    """wav2vec 2.0 is tuned to letters by optax's CTC; its convolutions of sound stay frozen."""
    d = 512
    windows = ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))
    rule = optax.adamw(optax.linear_schedule(3e-5, 0.0, 20000), b2=0.98)

    def convolved(x: Any, w: Any, stride: int) -> Any:
        return lax.conv_general_dilated(
            x, w, (stride,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")
        )

    def tuned(state: Any, frozen: Any, sound: Any, length: Any, text: Any, text_length: Any) -> Any:
        x = sound.astype(F32)
        x = ((x - x.mean(1, keepdims=True)) / (x.std(1, keepdims=True) + 1e-5)).astype(BF16)[
            ..., None
        ]
        for w, (_, stride) in zip(frozen, windows, strict=True):
            x = jax.nn.gelu(layer_norm(convolved(x, w, stride)))
        steps = jnp.arange(x.shape[1])
        real = steps < length[:, None] // 320

        def loss(params: Any) -> Any:
            p = half(params)
            y = layer_norm(x) @ p["in"]
            near = lax.conv_general_dilated(
                *(y, p["places"], (1,), "SAME"),
                dimension_numbers=("NWC", "WIO", "NWC"),
                feature_group_count=16,
            )
            y = y + jax.nn.gelu(near)
            block = jax.checkpoint(lambda y, q: encoder_block(y, q, 64, real[:, None, None]))
            logits = (through(block, y, p["layers"]) @ p["head"]).astype(F32)
            missing = jnp.arange(text.shape[1]) >= text_length[:, None]
            return optax.ctc_loss(logits, 1.0 - real, text, missing.astype(F32)).mean()

        return learned(rule, loss, state)

    frozen = [filters(k, d if n else 1, d, dtype=BF16) for n, (k, _) in enumerate(windows)]
    params = {"in": master(d, 768), "places": filters(64, 48, 768), "head": master(768, 32)}
    params["layers"] = times(6, encoder_weights(768, 3072))
    given = frozen, Arg((6, 80000), jnp.float16, 0.1), Arg((6,), I32, below=80000)
    given = *given, Arg((6, 60), I32, below=32), Arg((6,), I32, below=60)
    yield "wav2vec_ctc", carried(tuned, started(rule, params), *given)


# ------------------------------------------------------------------------- shops, graphs, atoms


def shops() -> Zoo:
    """DCN v2 learns clicks: crosses of low rank by four experts each, and a perceptron."""
    wide = 26 * 16 + 13
    rule = optax.chain(optax.clip_by_global_norm(10.0), optax.adagrad(0.01))

    def dcn(state: Any, dense: Any, sparse: Any, clicked: Any) -> Any:
        def loss(p: Any) -> Any:
            rows = p["table"][sparse % 50000 + jnp.arange(26) * 50000]
            x = x0 = jnp.concatenate([jnp.log1p(jnp.abs(dense)), rows.reshape(-1, 416)], 1)
            for q in p["cross"]:
                parts = jnp.tanh(jnp.einsum("bd,edr->ber", x, q["v"]))
                parts = jnp.tanh(jnp.einsum("ber,ers->bes", parts, q["c"]))
                parts = x0[:, None] * (jnp.einsum("bes,esd->bed", parts, q["u"]) + q["bias"])
                x = x + jnp.einsum("bed,be->bd", parts, jax.nn.softmax(x @ q["gate"]))
            deep = perceptron(x0, p["deep"])
            logit = perceptron(jnp.concatenate([x, jax.nn.relu(deep)], 1), p["last"])[:, 0]
            return optax.sigmoid_binary_cross_entropy(logit, clicked.astype(F32)).mean()

        return learned(rule, loss, state)

    cross = {"v": master(4, wide, 64), "c": master(4, 64, 64), "u": master(4, 64, wide)}
    cross |= {"bias": Arg((wide,), scale=0.01), "gate": master(wide, 4)}
    params = {"table": Arg((26 * 50000, 16), scale=0.05), "cross": [cross] * 3}
    params |= {"deep": stack(wide, 768, 768, 256), "last": stack(wide + 256, 1)}
    given = Arg((8192, 13)), Arg((8192, 26), I32, below=1 << 30), Arg((8192,), I32)
    yield "dcn_v2", carried(dcn, started(rule, params), *given)


def networks() -> Zoo:
    """GATv2 classifies 60,000 papers by 480,000 citations, with dropped edges, in float32."""
    n, kinds = 60000, 40
    rule = optax.adam(2e-3)

    def gat(
        state: Any, x: Any, senders: Any, receivers: Any, labels: Any, known: Any, key: Any
    ) -> Any:
        cut = jax.random.bernoulli(key, 0.1, (2, senders.shape[0], 1))

        def layer(x: Any, p: Any, cut: Any) -> Any:
            a, b = heads(x @ p["from"], 32), heads(x @ p["to"], 32)
            sent = a[senders]
            score = (jax.nn.leaky_relu(sent + b[receivers], 0.2) * p["look"]).sum(-1)
            score = jnp.where(cut, -1e9, score)
            most = jax.ops.segment_max(score, receivers, n)
            share = jnp.exp(
                score - lax.stop_gradient(jnp.where(jnp.isfinite(most), most, 0))[receivers]
            )
            total = jax.ops.segment_sum(share, receivers, n) + 1e-9
            read = jax.ops.segment_sum(sent * share[..., None], receivers, n) / total[..., None]
            return jax.nn.elu(read.reshape(n, -1) + x @ p["side"])

        def loss(p: Any) -> Any:
            y = x
            for q, c in zip(p["layers"], cut, strict=True):
                y = layer(layer_norm(y), q, c)
            each = cross_entropy(y @ p["head"], labels)
            return (each * known).sum() / known.sum()

        return learned(rule, loss, state)

    layers = [
        {c: master(a, 128) for c in ("from", "to", "side")} | {"look": Arg((4, 32), scale=0.2)}
        for a in (128, 128)
    ]
    params = {"layers": layers, "head": master(128, kinds)}
    edges = Arg((480000,), I32, below=n)
    given = Arg((n, 128)), edges, edges, Arg((n,), I32, below=kinds), Arg((n,), I32), _KEY
    yield "gat_v2", carried(gat, started(rule, params), *given)


def molecules() -> Zoo:
    """SchNet learns energies and forces of 64 molecules of 21 atoms, with all pairs in reach."""
    b, n, d = 64, 21, 128
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(5e-4))

    def schnet(state: Any, kinds: Any, places: Any, energy: Any, force: Any) -> Any:
        near = jnp.array(pairs)
        shift = jnp.repeat(jnp.arange(b) * n, len(pairs))
        i, j = jnp.tile(near[:, 0], b) + shift, jnp.tile(near[:, 1], b) + shift

        def told(places: Any, p: Any) -> Any:
            r = jnp.sqrt(((places[i] - places[j]) ** 2).sum(-1) + 1e-8)
            basis = jnp.exp(-10 * (r[:, None] - jnp.linspace(0, 5, 50)) ** 2)
            fade = 0.5 * (jnp.cos(r * jnp.pi / 5) + 1) * (r < 5)
            x = p["kinds"][kinds]
            for q in p["layers"]:
                filt = perceptron(basis, q["filter"], lambda a: jax.nn.softplus(a) - 0.693)
                sent = (x @ q["in"])[j] * filt * fade[:, None]
                y = jax.ops.segment_sum(sent, i, b * n, indices_are_sorted=True)
                x = x + perceptron(y, q["out"], lambda a: jax.nn.softplus(a) - 0.693)
            each = perceptron(x, p["last"], jax.nn.softplus)[:, 0]
            return each.reshape(b, n).sum(1)

        def loss(p: Any) -> Any:
            def total(r: Any) -> Any:
                e = told(r, p)
                return e.sum(), e

            (_, e), slope = jax.value_and_grad(total, has_aux=True)(places)
            return 0.01 * ((e - energy) ** 2).mean() + 0.99 * ((slope + force) ** 2).mean()

        return learned(rule, loss, state)

    layer = {"filter": stack(50, d, d), "in": master(d, d), "out": stack(d, d, d)}
    params = {"kinds": Arg((20, d)), "layers": [layer] * 3, "last": stack(d, 64, 1)}
    given = Arg((b * n,), I32, below=20), Arg((b * n, 3), scale=2.0), Arg((b,)), Arg((b * n, 3))
    yield "schnet_forces", carried(schnet, started(rule, params), *given)


# ------------------------------------------------------------------------------------- control


def agents() -> Zoo:
    """PPO swings 1,024 pendulums in its program and learns in two passes of four parts."""
    count, steps = 1024, 24
    rule = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(3e-4, eps=1e-5))

    def seen(s: Any) -> Any:
        return jnp.stack([jnp.cos(s[:, 0]), jnp.sin(s[:, 0]), s[:, 1] / 8], -1)

    def swung(s: Any, u: Any) -> Any:
        angle, speed = s[:, 0], s[:, 1]
        u = 2 * jnp.clip(u, -1, 1)
        cost = ((angle + jnp.pi) % (2 * jnp.pi) - jnp.pi) ** 2 + 0.1 * speed**2 + 1e-3 * u**2
        speed = jnp.clip(speed + (15 * jnp.sin(angle) + 3 * u) * 0.05, -8, 8)
        return jnp.stack([angle + 0.05 * speed, speed], -1), -cost

    def pendulums(state: Any, places: Any, key: Any) -> Any:
        (params, known), (one, two) = state, jax.random.split(key)

        def move(s: Any, key: Any) -> Any:
            x = seen(s)
            mean, value = (
                perceptron(x, params["actor"], jnp.tanh),
                perceptron(x, params["critic"], jnp.tanh),
            )
            noise = jax.random.normal(key, (count,))
            u = mean[:, 0] + jnp.exp(params["spread"]) * noise
            new, reward = swung(s, u)
            return new, (x, u, -0.5 * noise**2 - params["spread"], value[:, 0], reward)

        last, (x, u, logp, value, reward) = lax.scan(move, places, jax.random.split(one, steps))
        end = perceptron(seen(last), params["critic"], jnp.tanh)[:, 0]

        def back(carry: Any, now: Any) -> Any:
            gain, following = carry
            value, reward = now
            gain = reward + 0.99 * following - value + 0.99 * 0.95 * gain
            return (gain, value), gain

        _, gain = lax.scan(back, (jnp.zeros(count), end), (value, reward), reverse=True)
        data = tuple(a.reshape(count * steps, -1) for a in (x, u, logp, value, gain))

        def epoch(state: Any, key: Any) -> Any:
            order = jax.random.permutation(key, count * steps)
            parts = jax.tree.map(lambda a: a[order].reshape(4, -1, a.shape[-1]), data)

            def part(state: Any, given: Any) -> Any:
                x, u, logp, value, gain = given
                good = (gain - gain.mean()) / (gain.std() + 1e-8)

                def loss(p: Any) -> Any:
                    away = (u - perceptron(x, p["actor"], jnp.tanh)) / jnp.exp(p["spread"])
                    ratio = jnp.exp(-0.5 * away**2 - p["spread"] - logp)
                    now = perceptron(x, p["critic"], jnp.tanh)
                    near = value + jnp.clip(now - value, -0.2, 0.2)
                    miss = jnp.maximum((now - gain - value) ** 2, (near - gain - value) ** 2)
                    act = jnp.minimum(ratio * good, jnp.clip(ratio, 0.8, 1.2) * good)
                    return 0.5 * miss.mean() - act.mean() - 0.01 * p["spread"]

                return learned(rule, loss, state)

            return lax.scan(part, state, parts)

        state, losses = lax.scan(epoch, (params, known), jax.random.split(two, 2))
        return state, (last, losses.mean(), reward.mean())

    params = {
        "actor": stack(3, 64, 64, 1),
        "critic": stack(3, 64, 64, 1),
        "spread": Arg((), scale=0.1),
    }
    yield "ppo_pendulum", carried(pendulums, started(rule, params), Arg((count, 2)), _KEY)


def worlds() -> Zoo:
    """Genie's dynamics: hidden tokens of 16 frames, attention in space, then back in time."""
    d, frames, spots = 512, 16, 144
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-4, 0.9, 0.9))

    def genie(state: Any, tokens: Any, actions: Any, key: Any) -> Any:
        one, two = jax.random.split(key)
        rate = jax.random.uniform(one, (tokens.shape[0], 1, 1), minval=0.5)
        hidden = jax.random.bernoulli(two, rate, tokens.shape).at[:, 0].set(False)
        shown = jnp.where(hidden, 1024, tokens)

        def block(x: Any, p: Any) -> Any:
            b = x.shape[0]
            y = (
                encoder_block(x.reshape(-1, spots, d), p["space"], 64)
                .reshape(x.shape)
                .swapaxes(1, 2)
            )
            y = encoder_block(y.reshape(-1, frames, d), p["time"], 64, causal(frames))
            return y.reshape(b, spots, frames, d).swapaxes(1, 2)

        def loss(params: Any) -> Any:
            p = half(params)
            x = p["table"][shown] + p["places"] + p["actions"][actions][:, :, None]
            x = through(jax.checkpoint(block), x, p["layers"])
            each = cross_entropy(layer_norm(x) @ p["head"], tokens)
            return (each * hidden).sum() / hidden.sum()

        return learned(rule, loss, state)

    layer = {"space": encoder_weights(d, 2048), "time": encoder_weights(d, 2048)}
    params = {"table": Arg((1025, d), scale=0.05), "places": Arg((spots, d), scale=0.05)}
    params |= {"actions": Arg((8, d)), "layers": times(3, layer), "head": master(d, 1024)}
    given = Arg((6, frames, spots), I32, below=1024), Arg((6, frames), I32, below=8), _KEY
    yield "genie_dynamics", carried(genie, started(rule, params), *given)


# -------------------------------------------------------------------------- sequences, densities


def recurrences() -> Zoo:
    """S5 in complex numbers on long series, and Gated DeltaNet by chunks with triangular solves."""
    rule = optax.adamw(1e-3, weight_decay=0.05)

    def s5(state: Any, series: Any, labels: Any) -> Any:
        def mixed(a: Any, b: Any) -> Any:
            return a[0] * b[0], b[0] * a[1] + b[1]

        def layer(x: Any, p: Any) -> Any:
            pole = -jnp.exp(p["decay"]) + 1j * p["turn"]
            pace = jnp.exp(p["pace"])
            step = jnp.exp(pole * pace)
            enter = ((step - 1) / pole)[:, None] * (p["b_re"] + 1j * p["b_im"])
            u = jnp.einsum("blh,nh->bln", layer_norm(x), enter)
            states = lax.associative_scan(mixed, (jnp.broadcast_to(step, u.shape), u), axis=1)[1]
            y = 2 * jnp.einsum("bln,hn->blh", states, p["c_re"] + 1j * p["c_im"]).real + p["d"] * x
            return x + jax.nn.gelu(y) * jax.nn.sigmoid(y @ p["gate"])

        def loss(p: Any) -> Any:
            x = series @ p["in"]
            for q in p["layers"]:
                x = layer(x, q)
            return cross_entropy(x.mean(1) @ p["head"], labels).mean()

        return learned(rule, loss, state)

    n, h = 64, 96
    layer = {
        "decay": Arg((n,), scale=0.5),
        "turn": Arg((n,), scale=9.0),
        "pace": Arg((n,), scale=0.5),
    }
    layer |= {c: master(n, h) for c in ("b_re", "b_im")} | {
        c: master(h, n) for c in ("c_re", "c_im")
    }
    layer |= {"d": Arg((h,)), "gate": master(h, h)}
    params = {"in": master(3, h), "layers": [layer] * 3, "head": master(h, 10)}
    yield "s5", carried(s5, started(rule, params), Arg((16, 1024, 3)), Arg((16,), I32, below=10))

    chunk, size = 64, 64

    def delta(p: Any, x: Any) -> Any:
        b, s, _ = x.shape

        def cut(a: Any) -> Any:
            return a.reshape(b, s // chunk, chunk, *a.shape[2:]).swapaxes(2, 3).astype(F32)

        def layer(x: Any, w: Any) -> Any:
            y = rms(x)
            q, k, v = (cut(heads(jax.nn.silu(y @ w[c]), size)) for c in "qkv")
            q, k = (a / jnp.linalg.norm(a + 1e-6, axis=-1, keepdims=True) for a in (q, k))
            beta = cut(jax.nn.sigmoid(y @ w["beta"]))
            fall = jnp.cumsum(-jax.nn.softplus(cut(y @ w["decay"])), -1)
            ratio = jnp.exp(jnp.tril(fall[..., :, None] - fall[..., None, :]))
            low = jnp.tril(jnp.ones((chunk, chunk)), -1)
            pull = (k * beta[..., None]) @ k.swapaxes(-1, -2) * ratio * low + jnp.eye(chunk)
            both = jnp.concatenate([v * beta[..., None], k * (beta * jnp.exp(fall))[..., None]], -1)
            new, old = jnp.split(
                lax.linalg.triangular_solve(pull, both, left_side=True, lower=True), 2, -1
            )
            near = q @ k.swapaxes(-1, -2) * ratio * jnp.tril(jnp.ones((chunk, chunk)))

            def step(memory: Any, given: Any) -> Any:
                q, k, new, old, near, fall = given
                told = new - old @ memory
                out = (q * jnp.exp(fall)[..., None]) @ memory + near @ told
                last = fall[..., -1:]
                kept = (k * jnp.exp(last - fall)[..., None]).swapaxes(-1, -2) @ told
                return memory * jnp.exp(last)[..., None] + kept, out

            parts = [a.swapaxes(0, 1) for a in (q, k, new, old, near, fall)]
            _, out = lax.scan(step, jnp.zeros((b, q.shape[2], size, size)), parts)
            out = out.transpose(1, 0, 3, 2, 4).reshape(b, s, -1, size)
            out = rms(out).reshape(x.shape).astype(BF16) * jax.nn.silu(y @ w["gate"])
            x = x + out @ w["o"]
            return x + swiglu(rms(x), w["mlp"])

        return through(layer, x, p)

    d = 768
    layer = {c: weight(d, d) for c in ("q", "k", "v", "o", "gate")}
    layer |= {"beta": weight(d, 12), "decay": weight(d, 12), "mlp": swiglu_weights(d, 2048, weight)}
    yield "gated_delta_prefill", program(delta, times(4, layer), Arg((4, 2048, d), BF16))


def densities() -> Zoo:
    """RealNVP in float32: sixteen scanned couplings of 64 columns, and samples to look at."""
    d = 64
    rule = optax.adam(optax.exponential_decay(5e-4, 1000, 0.99))

    def nvp(state: Any, rows: Any, key: Any) -> Any:
        def bend(x: Any, q: Any) -> Any:
            y = jax.nn.silu(x @ q["one"] + q["b1"])
            y = jax.nn.silu(y @ q["two"] + q["b2"])
            scale, shift = jnp.split(y @ q["out"], 2, -1)
            return 2 * jnp.tanh(scale), shift

        def loss(p: Any) -> Any:
            def couple(carry: Any, q: Any) -> Any:
                x, volume = carry
                a, b = jnp.split(x, 2, -1)
                scale, shift = bend(a, q)
                x = jnp.concatenate([b * jnp.exp(scale) + shift, a], -1)
                return (x, volume + scale.sum(-1)), None

            (z, volume), _ = lax.scan(couple, (rows, jnp.zeros(rows.shape[0])), p)
            return (0.5 * (z**2).sum(-1) - volume).mean() + 0.919 * d

        def back(x: Any, q: Any) -> Any:
            b, a = jnp.split(x, 2, -1)
            scale, shift = bend(a, q)
            return jnp.concatenate([a, (b - shift) * jnp.exp(-scale)], -1), None

        state, value = learned(rule, loss, state)
        drawn, _ = lax.scan(back, jax.random.normal(key, (1024, d)), state[0], reverse=True)
        return state, (value, drawn.mean(0), drawn.std(0))

    layer = {"one": master(32, 256), "two": master(256, 256), "out": Arg((256, 64), scale=0.01)}
    layer |= {"b1": Arg((256,), scale=0.1), "b2": Arg((256,), scale=0.1)}
    yield "real_nvp", carried(nvp, started(rule, times(16, layer)), Arg((4096, d)), _KEY)


def views() -> Zoo:
    """Instant NGP: hashed corners of eight grids along 1,024 rays of 48 samples."""
    levels, slots, samples = 8, 1 << 17, 48
    rule = optax.adam(1e-2, 0.9, 0.99, eps=1e-15)
    primes = (1, 2654435761, 805459861)

    def ngp(state: Any, origin: Any, way: Any, colour: Any, key: Any) -> Any:
        n = origin.shape[0]
        way = way / jnp.linalg.norm(way, axis=-1, keepdims=True)
        t = (jnp.arange(samples) + jax.random.uniform(key, (n, samples))) * (2 / samples)
        x = jax.nn.sigmoid(origin[:, None] + t[..., None] * way[:, None]).reshape(-1, 3)
        corners = jnp.array([[i >> 2, i >> 1 & 1, i & 1] for i in range(8)])

        def level(table: Any, size: Any) -> Any:
            low = jnp.floor(x * size)
            part = x * size - low
            spots = (low.astype(U32)[:, None] + corners.astype(U32)) * jnp.array(primes, U32)
            rows = (spots[..., 0] ^ spots[..., 1] ^ spots[..., 2]) % slots
            share = jnp.where(corners == 1, part[:, None], 1 - part[:, None]).prod(-1)
            return (table[rows] * share[..., None]).sum(1)

        def loss(p: Any) -> Any:
            seen = jax.vmap(level)(p["tables"], 16 * 1.6 ** jnp.arange(levels))
            y = perceptron(seen.swapaxes(0, 1).reshape(x.shape[0], -1), p["dense"])
            thick = jnp.exp(jnp.minimum(y[:, 0], 8)).reshape(n, samples) * (2 / samples)
            spread = jnp.broadcast_to(way[:, None], (n, samples, 3)).reshape(-1, 3)
            shade = jax.nn.sigmoid(perceptron(jnp.concatenate([y, spread], 1), p["shade"]))
            left = jnp.exp(-jnp.cumsum(thick, 1) + thick)
            share = left * (1 - jnp.exp(-thick))
            got = (share[..., None] * shade.reshape(n, samples, 3)).sum(1)
            return optax.huber_loss(got + 1 - share.sum(1, keepdims=True), colour, delta=0.1).mean()

        return learned(rule, loss, state)

    params = {"tables": Arg((levels, slots, 2), scale=1e-2), "dense": stack(2 * levels, 64, 16)}
    params["shade"] = stack(19, 64, 64, 3)
    given = Arg((1024, 3)), Arg((1024, 3)), Arg((1024, 3), scale=0.3), _KEY
    yield "instant_ngp", carried(ngp, started(rule, params), *given)


def proteins() -> Zoo:
    """Two blocks of a Pairformer learn distances of 160 residues under remat in bfloat16."""
    n, c = 160, 128
    rule = optax.chain(optax.clip_by_global_norm(10.0), optax.adam(1.8e-3, 0.9, 0.95))

    def product(z: Any, p: Any, outgoing: bool) -> Any:
        y = layer_norm(z)
        a, b = jnp.split(jax.nn.sigmoid(y @ p["gates"]) * (y @ p["sides"]), 2, -1)
        way = "bikc,bjkc->bijc" if outgoing else "bkic,bkjc->bijc"
        return z + jax.nn.sigmoid(y @ p["gate"]) * (layer_norm(jnp.einsum(way, a, b)) @ p["out"])

    def triangle(z: Any, p: Any) -> Any:
        y = layer_norm(z)
        q, k, v = (heads(a, 32) for a in jnp.split(y @ p["qkv"], 3, -1))
        scores = jnp.einsum("bijhc,bikhc->bihjk", q, k).astype(F32) * 32**-0.5
        scores = scores + (y @ p["bias"]).transpose(0, 3, 1, 2)[:, None]
        read = jnp.einsum("bihjk,bikhc->bijhc", jax.nn.softmax(scores, -1).astype(BF16), v)
        return z + (jax.nn.sigmoid(y @ p["gate"]) * read.reshape(z.shape)) @ p["o"]

    @jax.checkpoint
    def block(z: Any, p: Any) -> Any:
        z = product(product(z, p["out"], True), p["in"], False)
        z = triangle(z, p["start"])
        z = triangle(z.swapaxes(1, 2), p["end"]).swapaxes(1, 2)
        return z + swiglu(layer_norm(z), p["mlp"])

    def learn(state: Any, kinds: Any, places: Any) -> Any:
        r = jnp.sqrt(((places[:, :, None] - places[:, None]) ** 2).sum(-1) + 1e-6)
        goal = jnp.digitize(r, jnp.linspace(2, 22, 63))
        apart = jnp.clip(jnp.arange(n)[:, None] - jnp.arange(n), -32, 32) + 32

        def loss(params: Any) -> Any:
            p = half(params)
            z = p["left"][kinds][:, :, None] + p["right"][kinds][:, None] + p["apart"][apart]
            z = through(block, z, p["layers"])
            return cross_entropy((z + z.swapaxes(1, 2)) @ p["head"], goal).mean()

        return learned(rule, loss, state)

    sides = {"gates": master(c, 2 * c), "sides": master(c, 2 * c), "gate": master(c, c)}
    sides["out"] = master(c, c)
    look = {"qkv": master(c, 3 * c), "bias": master(c, 4), "gate": master(c, c), "o": master(c, c)}
    layer = {"out": sides, "in": sides, "start": look, "end": look, "mlp": swiglu_weights(c, 4 * c)}
    params = {"left": Arg((32, c)), "right": Arg((32, c)), "apart": Arg((65, c))}
    params |= {"layers": times(2, layer), "head": master(c, 64)}
    given = Arg((1, n), I32, below=21), Arg((1, n, 3), scale=9.0)
    yield "pairformer", carried(learn, started(rule, params), *given)


# ------------------------------------------------------------------ physics, chance, and utilities


def equations() -> Zoo:
    """A driven cavity by a network of (x, y): Hessians under vmap, in three steps of Adam."""
    rule = optax.adam(optax.exponential_decay(1e-3, 2000, 0.9))

    def cavity(state: Any, key: Any) -> Any:
        def flow(p: Any, r: Any) -> Any:
            waves = jnp.concatenate([jnp.sin(r @ p["waves"]), jnp.cos(r @ p["waves"])])
            return perceptron(waves, p["net"], jnp.tanh)

        def residual(p: Any, r: Any) -> Any:
            value, slope = flow(p, r), jax.jacfwd(partial(flow, p))(r)
            bend = jax.hessian(partial(flow, p))(r)
            u, press = value[:2], slope[2]
            motion = slope[:2] @ u + press - (bend[:2, 0, 0] + bend[:2, 1, 1]) / 400
            return jnp.concatenate([motion, (slope[0, 0] + slope[1, 1])[None]])

        def step(state: Any, key: Any) -> Any:
            one, two = jax.random.split(key)
            inner = jax.random.uniform(one, (3000, 2))
            along = jax.random.uniform(two, (512,))
            lid = jnp.stack([along, jnp.ones(512)], -1)
            wall = jnp.concatenate([jnp.stack([along * 0 + e, along], -1) for e in (0.0, 1.0)])

            def loss(p: Any) -> Any:
                inside = (jax.vmap(partial(residual, p))(inner) ** 2).mean(0) @ jnp.array(
                    [1, 1, 2.0]
                )
                top = jax.vmap(partial(flow, p))(lid)[:, :2] - jnp.array([1.0, 0.0])
                rest = jax.vmap(partial(flow, p))(wall)[:, :2]
                return inside + 10 * (top**2).mean() + 10 * (rest**2).mean()

            return learned(rule, loss, state)

        return lax.scan(step, state, jax.random.split(key, 3))

    params = {"waves": Arg((2, 32), scale=2.0), "net": stack(64, 128, 128, 128, 3)}
    yield "cavity_pinn", carried(cavity, started(rule, params), _KEY)


def posteriors() -> Zoo:
    """Sixty-four chains of HMC for a hierarchical logistic regression, of eight leaps."""
    groups, d, n = 40, 12, 8000

    def chains(state: Any, x: Any, group: Any, y: Any, key: Any) -> Any:
        def energy(q: Any) -> Any:
            tau = jnp.exp(q["tau"])
            own = q["mean"] + tau * q["raw"]
            logit = (x * own[group]).sum(-1) + q["bias"][group]
            data = optax.sigmoid_binary_cross_entropy(logit, y.astype(F32)).sum()
            prior = 0.5 * sum((v**2).sum() for v in jax.tree.leaves(q))
            return data + prior

        def move(q: Any, key: Any) -> Any:
            one, two = jax.random.split(key)
            flat, back = jax.flatten_util.ravel_pytree(q)
            p = jax.random.normal(one, flat.shape)
            slope = jax.grad(lambda f: energy(back(f)))

            def leap(carry: Any, _: Any) -> Any:
                f, p, g = carry
                p = p - 0.005 * g
                f = f + 0.01 * p
                g = slope(f)
                return (f, p - 0.005 * g, g), None

            (f, new, _), _ = lax.scan(leap, (flat, p, slope(flat)), None, length=8)
            change = energy(q) - energy(back(f)) + 0.5 * (p @ p - new @ new)
            kept = jnp.log(jax.random.uniform(two)) < change
            return back(jnp.where(kept, f, flat)), kept

        state, kept = jax.vmap(move)(state, jax.random.split(key, 64))
        return state, kept.mean()

    state = {"tau": Arg((64, d), scale=0.1), "mean": Arg((64, d), scale=0.1)}
    state |= {"raw": Arg((64, groups, d), scale=0.1), "bias": Arg((64, groups), scale=0.1)}
    given = Arg((n, d)), Arg((n,), I32, below=groups), Arg((n,), I32), _KEY
    yield "hmc_chains", carried(chains, state, *given)


def updates() -> Zoo:
    """SOAP: Adam in the axes of Shampoo, which a QR of a power step turns; and Lion with an EMA."""
    n, a, b = 4, 384, 512

    def soap(state: Any, grads: Any) -> Any:
        w, first, second, left, right, ql, qr = state
        left = 0.95 * left + 0.05 * jnp.einsum("nij,nkj->nik", grads, grads)
        right = 0.95 * right + 0.05 * jnp.einsum("nij,nik->njk", grads, grads)
        first = 0.95 * first + 0.05 * grads
        turned = jnp.einsum("nia,nij,njb->nab", ql, grads, qr)
        second = 0.95 * second + 0.05 * turned**2
        way = jnp.einsum("nia,nij,njb->nab", ql, first, qr) / (jnp.sqrt(second) + 1e-8)
        w = w - 3e-3 * (jnp.einsum("nia,nab,njb->nij", ql, way, qr) + 0.01 * w)
        ql, qr = jnp.linalg.qr(left @ ql)[0], jnp.linalg.qr(right @ qr)[0]
        return (w, first, second, left, right, ql, qr), jnp.sqrt((way**2).mean())

    state = Arg((n, a, b), scale=0.05), Arg((n, a, b), scale=0.0), Arg((n, a, b), scale=0.0)
    axes = (Arg((n, a, a), scale=0.05), Arg((n, b, b), scale=0.04))
    powers = (Arg((n, a, a), scale=0.01, identity=1.0), Arg((n, b, b), scale=0.01, identity=1.0))
    yield "soap", carried(soap, (*state, *powers, *axes), Arg((n, a, b)))

    rule = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.lion(1e-4, 0.9, 0.99, mu_dtype=BF16, weight_decay=0.1),
    )

    def lion(state: Any, grads: Any) -> Any:
        params, known, mean = state
        params, known = applied(rule, params, known, jax.tree.map(lambda g: g.astype(F32), grads))
        mean = optax.incremental_update(params, mean, 1e-4)
        return (params, known, mean), optax.global_norm(grads)

    params = {"table": Arg((32128, 768), scale=0.02)}
    params["layers"] = [encoder_weights(768, 3072) for _ in range(6)]  # type: ignore[assignment]
    first, known = started(rule, params)
    yield "lion_with_ema", carried(lion, (first, known, params), half_args(params))


def compression() -> Zoo:
    """Weights are packed in NF4 by blocks of 64, whose scales are kept in int8."""
    levels = jnp.linspace(-1, 1, 16) ** 3 * 0.5 + jnp.linspace(-1, 1, 16) * 0.5

    def packed(weights: Any) -> Any:
        def one(w: Any) -> Any:
            rows = w.reshape(-1, 64).astype(F32)
            most = jnp.abs(rows).max(-1, keepdims=True)
            middles = (levels[1:] + levels[:-1]) / 2
            codes = (rows / most)[..., None] > middles
            codes = codes.sum(-1).astype(U8).reshape(-1, 2)
            whole = most[:, 0].reshape(-1, 256)
            top = whole.max(-1, keepdims=True)
            return codes[:, 0] << 4 | codes[:, 1], jnp.round(whole / top * 127).astype(I8), top

        return jax.tree.map(one, weights)

    yield "nf4_packing", program(packed, [weight(4096, 4096), weight(4096, 11008)])


def metrics() -> Zoo:
    """The area under ROC, average precision and calibration of two million clicks, by a sort."""

    def report(logits: Any, labels: Any, user: Any) -> Any:
        p = jax.nn.sigmoid(logits)
        _, order = lax.sort((-p, labels), num_keys=1)
        hits = jnp.cumsum(order.astype(F32))
        rank = jnp.arange(1, hits.shape[0] + 1, dtype=F32)
        total = hits[-1]
        area = (hits * (1 - order)).sum() / (total * (hits.shape[0] - total))
        precise = (hits / rank * order).sum() / total
        box = jnp.clip((p * 15).astype(I32), 0, 14)
        sums = [jax.ops.segment_sum(a, box, 15) for a in (p, labels.astype(F32), jnp.ones_like(p))]
        gap = jnp.abs(sums[0] - sums[1]).sum() / hits.shape[0]
        each = optax.sigmoid_binary_cross_entropy(logits, labels.astype(F32))
        by_user = jax.ops.segment_sum(each, user, 5000)
        return {"auc": area, "ap": precise, "ece": gap, "loss": each.mean(), "users": by_user}

    n = 2_000_000
    yield "clicks", program(report, Arg((n,)), Arg((n,), I32), Arg((n,), I32, below=5000))


def augmentation() -> Zoo:
    """Speech with rooms and noise: other speeds, echoes by Fourier transforms, and drawn SNRs."""
    b, n, m = 48, 64000, 8000

    def noisy(sound: Any, rooms: Any, noises: Any, key: Any) -> Any:
        keys = jax.random.split(key, 5)
        speed = jax.random.choice(keys[0], jnp.array([0.9, 1.0, 1.1]), (b, 1))
        at = jnp.arange(n) * speed
        low = jnp.minimum(at.astype(I32), n - 2)
        part = jnp.clip(at - low, 0, 1)
        x = sound.astype(F32) / 32768
        x = jnp.take_along_axis(x, low, 1) * (1 - part) + jnp.take_along_axis(x, low + 1, 1) * part
        room = rooms[jax.random.randint(keys[1], (b,), 0, rooms.shape[0])]
        room = room * jnp.exp(-jnp.arange(m) / 1200)
        size = 72000
        wet = jnp.fft.irfft(jnp.fft.rfft(x, size) * jnp.fft.rfft(room, size), size)[:, :n]
        x = jnp.where(jax.random.bernoulli(keys[2], 0.5, (b, 1)), wet, x)
        start = jax.random.randint(keys[3], (b,), 0, noises.shape[1] - n)
        row = jnp.arange(b) % noises.shape[0]
        noise = jax.vmap(lambda r, s: lax.dynamic_slice(noises, (r, s), (1, n))[0])(row, start)
        snr = jax.random.uniform(keys[4], (b, 1), minval=0, maxval=20)
        loud = jnp.sqrt((x**2).mean(1, keepdims=True) / ((noise**2).mean(1, keepdims=True) + 1e-9))
        x = x + noise * loud * 10 ** (-snr / 20)
        return (x / jnp.abs(x).max(1, keepdims=True) * 0.95).astype(BF16)

    given = Arg((b, n), jnp.int16, below=20000), Arg((64, m)), Arg((16, 160000)), _KEY
    yield "rooms_and_noise", program(noisy, *given)
