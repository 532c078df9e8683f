"""A twenty-first zoo: mainstream steps of machine learning in linen, nnx and plain JAX, numerics.

It was written without a look at the predictor or its calibration, to be timed once: no
calibration and no fit has used its programs. It has no kernels through Pallas.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import nnx
from fourth import program, weight
from jax import lax
from ninth import carried
from seventeenth import linen_weights, nnx_parts
from tenth import states_of

from xlapipe.running.calibration.timed_program import Arg, TimedProgram

F32, BF16, I32 = jnp.float32, jnp.bfloat16, jnp.int32
I8, U8, U32 = jnp.int8, jnp.uint8, jnp.uint32
Zoo = Iterator[tuple[str, TimedProgram]]
_KEY = Arg((2,), U32, below=1 << 30)


def twentyfirst_programs() -> dict[str, TimedProgram]:
    """Every program, by FAMILY/NAME."""
    families = (
        *(language, serving, experts, recurrent, vision, detection, contrastive, diffusion),
        *(speech, recommenders, graphs, reinforcement, science, plain),
    )
    return {
        f"{family.__name__}/{name}": program for family in families for name, program in family()
    }


def stepped(rule: Any, params: Any, moments: Any, loss: Any, aux: bool = False) -> Any:
    """A step of an optimizer of Optax."""
    value, grads = jax.value_and_grad(loss, has_aux=aux)(params)
    updates, moments = rule.update(grads, moments, params)
    return optax.apply_updates(params, updates), moments, value


def dense(*shape: int) -> Arg:
    """A float32 weight."""
    return weight(*shape, dtype=F32)


# ------------------------------------------------------------------------------- machine learning


def turned(x: Any, base: float = 1e4) -> Any:
    """Rotary positions of [batch, time, heads, size]."""
    half = x.shape[-1] // 2
    freqs = base ** (-jnp.arange(half, dtype=F32) / half)
    angles = jnp.arange(x.shape[1], dtype=F32)[:, None] * freqs
    cos, sin = jnp.cos(angles)[None, :, None], jnp.sin(angles)[None, :, None]
    x1, x2 = x[..., :half].astype(F32), x[..., half:].astype(F32)
    out = jnp.concatenate((x1 * cos - x2 * sin, x2 * cos + x1 * sin), axis=-1)
    return out.astype(x.dtype)


class OlmoBlock(nn.Module):
    """A layer whose norms come after attention and perceptron, with normed queries and keys."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        d = x.shape[-1]
        q = nn.RMSNorm(dtype=BF16, name="q_norm")(nn.Dense(d, use_bias=False, dtype=BF16)(x))
        k = nn.RMSNorm(dtype=BF16, name="k_norm")(nn.Dense(d, use_bias=False, dtype=BF16)(x))
        v = nn.Dense(d, use_bias=False, dtype=BF16)(x)
        q, k, v = (t.reshape(*t.shape[:2], 16, -1) for t in (q, k, v))
        y = jax.nn.dot_product_attention(turned(q, 5e5), turned(k, 5e5), v, is_causal=True)
        y = nn.Dense(d, use_bias=False, dtype=BF16)(y.reshape(x.shape))
        x = x + nn.RMSNorm(dtype=BF16)(y)
        gate, up = jnp.split(nn.Dense(2 * 2752, use_bias=False, dtype=BF16)(x), 2, -1)
        y = nn.Dense(d, use_bias=False, dtype=BF16)(nn.silu(gate) * up)
        return x + nn.RMSNorm(dtype=BF16)(y)


class Olmo(nn.Module):
    """Four layers between an embedding and a head that is not tied to it."""

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        x = nn.Embed(50304, 1024, dtype=BF16)(tokens)
        for _ in range(4):
            x = OlmoBlock()(x)
        x = nn.RMSNorm(dtype=BF16)(x)
        return nn.Dense(50304, use_bias=False, dtype=BF16)(x)


class EsmLayer(nnx.Module):
    """A layer of ESM-2."""

    def __init__(self, d: int, rngs: nnx.Rngs):
        self.norm1 = nnx.LayerNorm(d, dtype=BF16, rngs=rngs)
        self.qkv = nnx.Linear(d, 3 * d, dtype=BF16, rngs=rngs)
        self.out = nnx.Linear(d, d, dtype=BF16, rngs=rngs)
        self.norm2 = nnx.LayerNorm(d, dtype=BF16, rngs=rngs)
        self.up = nnx.Linear(d, 4 * d, dtype=BF16, rngs=rngs)
        self.down = nnx.Linear(4 * d, d, dtype=BF16, rngs=rngs)

    def __call__(self, x: Any, mask: Any) -> Any:
        b, s, d = x.shape
        q, k, v = jnp.split(self.qkv(self.norm1(x)).reshape(b, s, 20, -1), 3, -1)
        y = jax.nn.dot_product_attention(turned(q), turned(k), v, mask=mask)
        x = x + self.out(y.reshape(b, s, d))
        return x + self.down(nnx.gelu(self.up(self.norm2(x)), approximate=False))


class Esm(nnx.Module):
    """A short ESM-2 of 640 numbers, with its head for masked residues."""

    def __init__(self, rngs: nnx.Rngs):
        d = 640
        self.embed = nnx.Embed(33, d, dtype=BF16, rngs=rngs)
        self.layers = nnx.List([EsmLayer(d, rngs) for _ in range(6)])
        self.norm = nnx.LayerNorm(d, dtype=BF16, rngs=rngs)
        self.mix = nnx.Linear(d, d, dtype=BF16, rngs=rngs)
        self.mix_norm = nnx.LayerNorm(d, dtype=BF16, rngs=rngs)

    def __call__(self, tokens: Any, mask: Any) -> Any:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, mask)
        x = self.mix_norm(nnx.gelu(self.mix(self.norm(x))))
        return self.embed.attend(x).astype(F32)


class RobertaLora(nn.Module):
    """Layers of RoBERTa-large whose queries and values have adapters of rank 8."""

    depth: int = 4
    rank: int = 8

    @nn.compact
    def __call__(self, tokens: Any, mask: Any) -> Any:
        d, h = 1024, 16
        drop = nn.Dropout(0.1, deterministic=False)
        x = nn.Embed(50265, d, dtype=BF16)(tokens)
        x = x + nn.Embed(514, d, dtype=BF16)(jnp.arange(tokens.shape[1]) + 2)
        x = drop(nn.LayerNorm(dtype=BF16)(x))
        for i in range(self.depth):
            q = nn.Dense(d, dtype=BF16)(x) + self.adapter(x, d, f"lora_q{i}")
            k = nn.Dense(d, dtype=BF16)(x)
            v = nn.Dense(d, dtype=BF16)(x) + self.adapter(x, d, f"lora_v{i}")
            q, k, v = (t.reshape(*t.shape[:2], h, d // h) for t in (q, k, v))
            y = nn.dot_product_attention(
                *(q, k, v),
                mask=mask[:, None, None, :],
                dropout_rng=self.make_rng("dropout"),
                dropout_rate=0.1,
                deterministic=False,
                dtype=BF16,
            )
            y = nn.Dense(d, dtype=BF16)(y.reshape(x.shape))
            x = nn.LayerNorm(dtype=BF16)(x + drop(y))
            y = nn.Dense(d, dtype=BF16)(nn.gelu(nn.Dense(4 * d, dtype=BF16)(x)))
            x = nn.LayerNorm(dtype=BF16)(x + drop(y))
        y = nn.tanh(nn.Dense(d, dtype=BF16, name="lora_pool")(drop(x[:, 0])))
        return nn.Dense(3, name="lora_head")(drop(y))

    def adapter(self, x: Any, d: int, name: str) -> Any:
        """A product of low rank beside a frozen one."""
        down = nn.Dense(self.rank, use_bias=False, dtype=BF16, name=f"{name}_down")
        up = nn.Dense(d, use_bias=False, dtype=BF16, name=f"{name}_up")
        return 2.0 * up(down(x))


def olmo2_step() -> TimedProgram:
    b, s = 4, 1024
    model = Olmo()
    schedule = optax.warmup_cosine_decay_schedule(0.0, 4e-4, 2000, 100_000)
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, 0.9, 0.95))

    def olmo2(state: Any, tokens: Any) -> Any:
        params, moments = state

        def loss(params: Any) -> Any:
            logits = model.apply(params, tokens[:, :-1]).astype(F32)
            logz = jax.nn.logsumexp(logits, -1)
            label = jnp.take_along_axis(logits, tokens[:, 1:, None], -1).squeeze(-1)
            return (logz - label).mean() + 1e-5 * jnp.square(logz).mean()

        params, moments, value = stepped(rule, params, moments, loss)
        return (params, moments), value

    params = linen_weights(model, Arg((b, s), I32))
    tokens = Arg((b, s + 1), I32, below=50304)
    return carried(olmo2, (params, states_of(rule, params)), tokens)


def esm2_step() -> TimedProgram:
    b, s = 16, 512
    esm, weights = nnx_parts(lambda: Esm(nnx.Rngs(0)))
    adam = optax.adam(4e-4, b2=0.98)

    def esm2(state: Any, tokens: Any, lengths: Any, key: Any) -> Any:
        params, moments = state
        real = jnp.arange(s) < 128 + lengths[:, None]
        k1, k2, k3 = jax.random.split(key, 3)
        chosen = real & (jax.random.uniform(k1, tokens.shape) < 0.15)
        dice = jax.random.uniform(k2, tokens.shape)
        other = jax.random.randint(k3, tokens.shape, 4, 24)
        seen = jnp.where(dice < 0.8, 32, jnp.where(dice < 0.9, other, tokens))
        seen = jnp.where(chosen, seen, tokens)

        def loss(params: Any) -> Any:
            logits = esm(params, seen, real[:, None, None, :])
            lost = optax.softmax_cross_entropy_with_integer_labels(logits, tokens)
            return (lost * chosen).sum() / chosen.sum()

        params, moments, value = stepped(adam, params, moments, loss)
        return (params, moments), value

    given = (Arg((b, s), I32, below=33), Arg((b,), I32, below=384), _KEY)
    return carried(esm2, (weights, states_of(adam, weights)), *given)


def accumulated_step() -> TimedProgram:
    d, wide, h, g, vocab, depth, parts, b, s = 1024, 2816, 16, 4, 32000, 3, 3, 2, 1024
    lion = optax.lion(1e-4, weight_decay=0.1, mu_dtype=BF16)

    def normed(x: Any, scale: Any) -> Any:
        var = jnp.mean(jnp.square(x.astype(F32)), -1, keepdims=True)
        return (x * lax.rsqrt(var + 1e-6)).astype(BF16) * (1 + scale.astype(BF16))

    def accumulated(state: Any, tokens: Any) -> Any:
        params, moments = state

        def block(x: Any, p: Any) -> Any:
            y = normed(x, p["norm1"])
            q = jnp.einsum("bsd,dhk->bshk", y, p["wq"])
            k, v = jnp.einsum("bsd,dnhk->nbshk", y, p["wkv"])
            y = jax.nn.dot_product_attention(turned(q), turned(k), v, is_causal=True)
            x = x + jnp.einsum("bshk,hkd->bsd", y, p["wo"])
            y = normed(x, p["norm2"])
            return x + (jax.nn.gelu(y @ p["gate"]) * (y @ p["up"])) @ p["down"], None

        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        block = jax.checkpoint(block, policy=policy)

        def loss(params: Any, tokens: Any) -> Any:
            p = jax.tree.map(lambda w: w.astype(BF16), params)
            x = p["embed"][tokens[:, :-1]] * 32.0
            x, _ = lax.scan(block, x.astype(BF16), p["blocks"])
            logits = normed(x, p["norm"]) @ p["embed"].T
            logits = 30.0 * jnp.tanh(logits.astype(F32) / 30.0)
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        def micro(carry: Any, tokens: Any) -> Any:
            value, grads = jax.value_and_grad(loss)(params, tokens)
            return jax.tree.map(jnp.add, carry, (value, grads)), None

        zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params))
        (value, grads), _ = lax.scan(micro, zero, tokens)
        grads = jax.tree.map(lambda g: g / parts, grads)
        updates, moments = lion.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments), value / parts

    blocks = {"wq": Arg((depth, d, h, 64), scale=0.03), "wo": Arg((depth, h, 64, d), scale=0.03)}
    blocks |= {"wkv": Arg((depth, d, 2, g, 64), scale=0.03), "norm1": Arg((depth, d), scale=0.1)}
    blocks |= {"gate": dense(depth, d, wide), "up": dense(depth, d, wide)}
    blocks |= {"down": dense(depth, wide, d), "norm2": Arg((depth, d), scale=0.1)}
    params = {"blocks": blocks, "embed": Arg((vocab, d), scale=0.02), "norm": Arg((d,), scale=0.1)}
    tokens = Arg((parts, b, s + 1), I32, below=vocab)
    return carried(accumulated, (params, states_of(lion, params)), tokens)


def roberta_lora_step() -> TimedProgram:
    b, s = 32, 128
    roberta = RobertaLora()

    def labels(params: Any) -> Any:
        def label(path: Any, _: Any) -> str:
            return "train" if "lora" in jax.tree_util.keystr(path) else "freeze"

        return jax.tree_util.tree_map_with_path(label, params)

    split = optax.multi_transform(
        {"train": optax.adamw(5e-4, weight_decay=0.01), "freeze": optax.set_to_zero()}, labels
    )

    def lora(state: Any, tokens: Any, lengths: Any, goals: Any, key: Any) -> Any:
        params, moments = state
        mask = jnp.arange(s) < 16 + lengths[:, None]

        def loss(params: Any) -> Any:
            logits = roberta.apply(params, tokens, mask, rngs={"dropout": key})
            lost = optax.softmax_cross_entropy_with_integer_labels(logits, goals)
            return lost.mean(), (logits.argmax(-1) == goals).mean()

        params, moments, value = stepped(split, params, moments, loss, aux=True)
        return (params, moments), value

    params = linen_weights(roberta, Arg((b, s), I32), Arg((b, s), jnp.bool_))
    given = (Arg((b, s), I32, below=50265), Arg((b,), I32, below=112), Arg((b,), I32, below=3))
    return carried(lora, (params, states_of(split, params)), *given, _KEY)


def language() -> Zoo:
    """Training: OLMo 2, ESM-2, three microbatches under remat with Lion, RoBERTa's adapters."""
    yield "olmo2", olmo2_step()
    yield "esm2", esm2_step()
    yield "accumulated", accumulated_step()
    yield "roberta_lora", roberta_lora_step()


def layer_norm(x: Any, p: Any) -> Any:
    """LayerNorm by hand, with scale and shift in one array."""
    y = x.astype(F32)
    y = (y - y.mean(-1, keepdims=True)) * lax.rsqrt(y.var(-1, keepdims=True) + 1e-5)
    return (y * p[0] + p[1]).astype(BF16)


def starcoder_token_step() -> TimedProgram:
    b, most, d, h, size, vocab, depth = 48, 4096, 2048, 16, 128, 49152, 6

    def starcoder(cache: Any, params: Any, token: Any, position: Any, key: Any) -> Any:
        x = params["wte"][token] + params["wpe"][position]
        visible = jnp.arange(most)[None, :] <= position[:, None]
        fresh = []
        for p, (keys, values) in zip(params["layers"], cache, strict=True):
            qkv = layer_norm(x, p["ln1"]) @ p["attn"] + p["attn_bias"]
            q, k, v = jnp.split(qkv, [d, d + size], -1)
            write = jax.vmap(lambda c, u, i: lax.dynamic_update_slice(c, u[None], (i, 0)))
            fresh.append((write(keys, k, position), write(values, v, position)))
            seen, said = fresh[-1]
            scores = jnp.einsum("bhd,bsd->bhs", q.reshape(b, h, size), seen) * size**-0.5
            scores = jnp.where(visible[:, None], scores.astype(F32), -1e9)
            probs = jax.nn.softmax(scores, -1).astype(BF16)
            y = jnp.einsum("bhs,bsd->bhd", probs, said).reshape(b, d)
            x = x + y @ p["proj"] + p["proj_bias"]
            y = jax.nn.gelu(layer_norm(x, p["ln2"]) @ p["up"] + p["up_bias"])
            x = x + y @ p["down"] + p["down_bias"]
        logits = (layer_norm(x, params["ln"]) @ params["wte"].T).astype(F32) / 0.2
        best, ids = lax.top_k(logits, 50)
        probs = jnp.cumsum(jax.nn.softmax(best, -1), -1)
        best = jnp.where(probs - jax.nn.softmax(best, -1) > 0.95, -jnp.inf, best)
        pick = jax.random.categorical(key, best)
        return fresh, jnp.take_along_axis(ids, pick[:, None], 1)[:, 0]

    layer = {"ln1": Arg((2, d)), "ln2": Arg((2, d)), "attn": weight(d, d + 2 * size)}
    layer |= {"attn_bias": Arg((d + 2 * size,), BF16), "proj": weight(d, d)}
    layer |= {"proj_bias": Arg((d,), BF16), "up": weight(d, 4 * d), "up_bias": Arg((4 * d,), BF16)}
    layer |= {"down": weight(4 * d, d), "down_bias": Arg((d,), BF16)}
    params = {"layers": [layer] * depth, "wte": Arg((vocab, d), BF16, 0.02), "ln": Arg((2, d))}
    params |= {"wpe": Arg((8192, d), BF16, 0.02)}
    cache = [(Arg((b, most, size), BF16), Arg((b, most, size), BF16))] * depth
    given = (Arg((b,), I32, below=vocab), Arg((b,), I32, below=most), _KEY)
    return carried(starcoder, cache, params, *given)


def command_r_chunk_step() -> TimedProgram:
    s, most, d, h, g, size, wide, vocab, depth = 1024, 4096, 4096, 32, 8, 128, 14336, 64000, 2

    def spun(x: Any, places: Any) -> Any:
        """Rotary positions of neighbouring numbers."""
        freqs = 5e4 ** (-jnp.arange(0, size, 2, dtype=F32) / size)
        angles = places[:, None].astype(F32) * freqs
        cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
        x1, x2 = x[..., ::2].astype(F32), x[..., 1::2].astype(F32)
        out = jnp.stack((x1 * cos - x2 * sin, x2 * cos + x1 * sin), -1)
        return out.reshape(x.shape).astype(BF16)

    def command(cache: Any, params: Any, tokens: Any, start: Any) -> Any:
        """Attention and perceptron of a layer both read the same normed numbers."""
        start = 1024 * start[0]
        places = start + jnp.arange(s)
        mask = jnp.arange(most)[None, :] <= places[:, None]

        def block(x: Any, given: Any) -> Any:
            p, old = given
            y = x.astype(F32)
            y = y - y.mean(-1, keepdims=True)
            y = y * lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-5) * p["norm"]
            y = y.astype(BF16)
            q, k, v = jnp.split((y @ p["qkv"]).reshape(s, -1, size), [h, h + g], 1)
            fresh = jnp.stack((spun(k, places), v))
            new = lax.dynamic_update_slice(old, fresh, (0, start, 0, 0))
            attended = jax.nn.dot_product_attention(
                spun(q, places)[None], new[0][None], new[1][None], mask=mask[None, None]
            )
            gate, up = jnp.split(y @ p["gate_up"], 2, -1)
            out = attended.reshape(s, -1) @ p["out"] + (jax.nn.silu(gate) * up) @ p["down"]
            return x + out, new

        x, cache = lax.scan(block, params["embed"][tokens], (params["blocks"], cache))
        x = x[-1].astype(F32)
        x = (x - x.mean()) * lax.rsqrt(x.var() + 1e-5) * params["norm"]
        return cache, 0.0625 * (params["embed"] @ x.astype(BF16)).astype(F32)

    blocks = {"norm": Arg((depth, d)), "qkv": weight(depth, d, (h + 2 * g) * size)}
    blocks |= {"out": weight(depth, h * size, d), "gate_up": weight(depth, d, 2 * wide)}
    blocks |= {"down": weight(depth, wide, d)}
    params = {"blocks": blocks, "embed": Arg((vocab, d), BF16, 0.02), "norm": Arg((d,))}
    cache = Arg((depth, 2, most, g, size), BF16)
    given = (Arg((s,), I32, below=vocab), Arg((1,), I32, below=3))
    return carried(command, cache, params, *given)


def smoothquant_step() -> TimedProgram:
    b, s, d, h, depth = 8, 256, 4096, 32, 2

    def product(x: Any, w: Any, scale: Any, bias: Any) -> Any:
        y = lax.dot_general(x, w, (((2,), (0,)), ((), ())), preferred_element_type=I32)
        return y.astype(F32) * scale + bias

    def eight(x: Any, scale: Any) -> Any:
        return jnp.clip(jnp.round(x * scale), -127, 127).astype(I8)

    def smoothquant(x: Any, layers: Any, lengths: Any) -> Any:
        seen = jnp.arange(s) < 64 + lengths[:, None]
        mask = jnp.tril(jnp.ones((s, s), bool)) & seen[:, None, :]
        for p in layers:
            y = eight(layer_norm(x, p["ln1"]).astype(F32), 30.0)
            q, k, v = (
                eight(product(y, p[n], p["scales"][i], p["bias"][i]), 25.0).reshape(b, s, h, -1)
                for i, n in enumerate(("q", "k", "v"))
            )
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=I32)
            scores = jnp.where(mask[:, None], scores.astype(F32) * 1e-4, -1e9)
            probs = jnp.round(jax.nn.softmax(scores, -1) * 127).astype(I8)
            y = jnp.einsum("bhqk,bkhd->bqhd", probs, v, preferred_element_type=I32)
            y = eight(y.reshape(b, s, d).astype(F32), 1 / 127)
            x = x + product(y, p["out"], p["scales"][3], p["bias"][3]).astype(BF16)
            y = eight(layer_norm(x, p["ln2"]).astype(F32), 30.0)
            y = eight(jax.nn.relu(product(y, p["up"], 1e-4, p["up_bias"])), 40.0)
            x = x + product(y, p["down"], 1e-4, p["down_bias"]).astype(BF16)
        return x

    def small(*shape: int) -> Arg:
        return Arg(shape, I8, below=127)

    layer = {n: small(d, d) for n in ("q", "k", "v", "out")}
    layer |= {"up": small(d, 4 * d), "down": small(4 * d, d), "scales": Arg((4, d), scale=1e-4)}
    layer |= {"bias": Arg((4, d)), "up_bias": Arg((4 * d,)), "down_bias": Arg((d,))}
    layer |= {"ln1": Arg((2, d)), "ln2": Arg((2, d))}
    given = (Arg((b, s, d), BF16), [layer] * depth, Arg((b,), I32, below=192))
    return program(smoothquant, *given)


def serving() -> Zoo:
    """A token by StarCoder, a part of a prompt by Command R, and OPT in int8 by SmoothQuant."""
    yield "starcoder_token", starcoder_token_step()
    yield "command_r_chunk", command_r_chunk_step()
    yield "smoothquant", smoothquant_step()


def experts() -> Zoo:
    """Training of two layers of DeepSeek V3's experts: sigmoids, biases, buffers, one shared."""
    t, d, e, k, wide, room = 4096, 1024, 32, 4, 512, 640
    rule = optax.adamw(2e-4, b2=0.95)

    def moe(p: Any, x: Any, bias: Any) -> Any:
        affinity = jax.nn.sigmoid(x.astype(F32) @ p["router"])
        _, chosen = lax.top_k(affinity + bias, k)
        gates = jnp.take_along_axis(affinity, chosen, 1)
        gates = gates / gates.sum(-1, keepdims=True)
        hot = jax.nn.one_hot(chosen.reshape(-1), e, dtype=I32)
        order = (jnp.cumsum(hot, 0) * hot).sum(-1) - 1
        slot = jnp.where(order < room, chosen.reshape(-1) * room + order, e * room)
        spread = jnp.repeat(x, k, axis=0)
        buffers = jnp.zeros((e * room + 1, d), BF16).at[slot].set(spread)[:-1].reshape(e, room, d)
        gate = jnp.einsum("ecd,edf->ecf", buffers, p["gate"].astype(BF16))
        up = jnp.einsum("ecd,edf->ecf", buffers, p["up"].astype(BF16))
        out = jnp.einsum("ecf,efd->ecd", jax.nn.silu(gate) * up, p["down"].astype(BF16))
        out = jnp.concatenate([out.reshape(-1, d), jnp.zeros((1, d), BF16)])
        y = (out[slot].reshape(t, k, d) * gates[..., None].astype(BF16)).sum(1)
        shared = jax.nn.silu(x @ p["s_gate"].astype(BF16)) * (x @ p["s_up"].astype(BF16))
        y = y + shared @ p["s_down"].astype(BF16)
        return y, hot.sum(0)

    def step(state: Any, x: Any, goal: Any) -> Any:
        params, biases, moments = state

        def loss(params: Any) -> Any:
            y, loads = x, []
            for p, bias in zip(params, biases, strict=True):
                z = y * lax.rsqrt(jnp.square(y.astype(F32)).mean(-1, keepdims=True) + 1e-6)
                z, load = moe(p, (z * p["norm"]).astype(BF16), bias)
                y = y + z
                loads.append(load)
            return jnp.square(y.astype(F32) - goal).mean(), loads

        params, moments, (value, loads) = stepped(rule, params, moments, loss, aux=True)
        biases = [
            bias + 1e-3 * jnp.sign(t * k / e - load)
            for bias, load in zip(biases, loads, strict=True)
        ]
        return (params, biases, moments), value

    layer = {"router": dense(d, e), "gate": dense(e, d, wide), "up": dense(e, d, wide)}
    layer |= {"down": dense(e, wide, d), "s_gate": dense(d, wide), "s_up": dense(d, wide)}
    layer |= {"s_down": dense(wide, d), "norm": Arg((d,))}
    params = [layer] * 2
    state = (params, [Arg((e,), scale=0.01)] * 2, states_of(rule, params))
    yield "deepseek_v3", carried(step, state, Arg((t, d), BF16), Arg((t, d)))


class ConvLstm(nn.Module):
    """A cell of which all gates come from one convolution."""

    features: int

    @nn.compact
    def __call__(self, carry: Any, x: Any) -> Any:
        c, h = carry
        y = nn.Conv(4 * self.features, (3, 3), dtype=BF16)(jnp.concatenate([x, h], -1))
        i, f, g, o = jnp.split(y, 4, -1)
        c = nn.sigmoid(f + 1) * c + nn.sigmoid(i) * jnp.tanh(g)
        h = nn.sigmoid(o) * jnp.tanh(c)
        return (c, h), h


class Nowcast(nn.Module):
    """Rain of the next frames by two layers of such cells."""

    @nn.compact
    def __call__(self, frames: Any) -> Any:
        t, b, hh, ww, _ = frames.shape
        x = frames.astype(BF16)
        for features in (96, 64):
            cell = nn.scan(ConvLstm, variable_broadcast="params", split_rngs={"params": False})
            zero = jnp.zeros((b, hh, ww, features), BF16)
            _, x = cell(features)((zero, zero), x)
        return nn.Conv(16, (1, 1), dtype=F32)(x.reshape(t * b, hh, ww, -1))


def gla_step() -> TimedProgram:
    b, s, d, h, dk, dv, chunk, vocab, depth = 4, 2048, 1024, 4, 128, 256, 128, 32000, 2
    n = s // chunk
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-4))

    def mixed(p: Any, x: Any) -> Any:
        q = (x @ p["wq"]).reshape(b, n, chunk, h, dk).astype(F32) * dk**-0.5
        k = (x @ p["wk"]).reshape(b, n, chunk, h, dk).astype(F32)
        v = (x @ p["wv"]).reshape(b, n, chunk, h, dv)
        decay = ((x @ p["low"]) @ p["high"]).reshape(b, n, chunk, h, dk).astype(F32)
        decay = jnp.cumsum(jax.nn.log_sigmoid(decay) / 16, 2)
        total = decay[:, :, -1]
        q = (q * jnp.exp(decay)).astype(BF16)
        near = (k * jnp.exp(-decay)).astype(BF16)
        far = (k * jnp.exp(total[:, :, None] - decay)).astype(BF16)
        adds = jnp.einsum("bnchk,bnchv->nbhkv", far, v, preferred_element_type=F32)

        def push(memory: Any, given: Any) -> Any:
            keep, add = given
            return memory * jnp.exp(keep)[..., None] + add, memory.astype(BF16)

        _, memories = lax.scan(push, jnp.zeros((b, h, dk, dv)), (total.swapaxes(0, 1), adds))
        y = jnp.einsum("bnchk,nbhkv->bnchv", q, memories)
        scores = jnp.einsum("bnchk,bnshk->bnhcs", q, near) * jnp.tril(jnp.ones((chunk,) * 2, BF16))
        y = (y + jnp.einsum("bnhcs,bnshv->bnchv", scores, v)).astype(F32)
        y = y * lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-5)
        gate = jax.nn.silu(x @ p["wg"])
        return (y.reshape(b, s, h * dv).astype(BF16) * gate) @ p["wo"]

    def norm(x: Any, scale: Any) -> Any:
        y = x.astype(F32)
        return (y * lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-6)).astype(BF16) * scale

    def gla(state: Any, tokens: Any) -> Any:
        params, moments = state

        def loss(params: Any) -> Any:
            p = jax.tree.map(lambda w: w.astype(BF16), params)
            x = p["embed"][tokens[:, :-1]]
            for q in p["layers"]:
                x = x + mixed(q, norm(x, q["norm1"]))
                y = norm(x, q["norm2"])
                x = x + (jax.nn.silu(y @ q["gate"]) * (y @ q["up"])) @ q["down"]
            logits = (norm(x, p["norm"]) @ p["head"]).astype(F32)
            logp = jax.nn.log_softmax(logits)
            return -jnp.take_along_axis(logp, tokens[:, 1:, None], -1).mean()

        params, moments, value = stepped(rule, params, moments, loss)
        return (params, moments), value

    layer = {"wq": dense(d, h * dk), "wk": dense(d, h * dk), "wv": dense(d, h * dv)}
    layer |= {"low": dense(d, 16), "high": dense(16, h * dk), "wg": dense(d, h * dv)}
    layer |= {"wo": dense(h * dv, d), "norm1": Arg((d,)), "norm2": Arg((d,))}
    layer |= {"gate": dense(d, 2816), "up": dense(d, 2816), "down": dense(2816, d)}
    params = {"embed": Arg((vocab, d), scale=0.02), "layers": [layer] * depth}
    params |= {"norm": Arg((d,)), "head": dense(d, vocab)}
    tokens = Arg((b, s + 1), I32, below=vocab)
    return carried(gla, (params, states_of(rule, params)), tokens)


def convlstm_step() -> TimedProgram:
    t, b = 8, 12
    model = Nowcast()
    adam = optax.adam(optax.exponential_decay(1e-3, 1000, 0.95))

    def convlstm(state: Any, frames: Any, goal: Any) -> Any:
        params, moments = state

        def loss(params: Any) -> Any:
            guess = model.apply(params, frames).reshape(goal.shape)
            heavy = 1.0 + 4.0 * (goal > 0.5) + 10.0 * (goal > 1.5)
            return (heavy * (jnp.square(guess - goal) + jnp.abs(guess - goal))).mean()

        params, moments, value = stepped(adam, params, moments, loss)
        return (params, moments), value

    frames = Arg((t, b, 64, 64, 16))
    params = linen_weights(model, frames)
    return carried(convlstm, (params, states_of(adam, params)), frames, frames)


def recurrent() -> Zoo:
    """Training: gated linear attention in chunks of 128, and ConvLSTM on maps of rain."""
    yield "gla", gla_step()
    yield "convlstm", convlstm_step()


class SegLayer(nnx.Module):
    """A layer of SegFormer: keys on a coarser grid, and a perceptron with a depthwise window."""

    def __init__(self, d: int, h: int, ratio: int, rngs: nnx.Rngs):
        self.h, self.ratio = h, ratio
        self.norm1, self.norm2 = nnx.LayerNorm(d, rngs=rngs), nnx.LayerNorm(d, rngs=rngs)
        self.q, self.kv = nnx.Linear(d, d, rngs=rngs), nnx.Linear(d, 2 * d, rngs=rngs)
        self.out = nnx.Linear(d, d, rngs=rngs)
        if ratio > 1:
            self.reduce = nnx.Conv(d, d, (ratio, ratio), (ratio, ratio), rngs=rngs)
            self.norm3 = nnx.LayerNorm(d, rngs=rngs)
        self.up, self.down = nnx.Linear(d, 4 * d, rngs=rngs), nnx.Linear(4 * d, d, rngs=rngs)
        self.window = nnx.Conv(4 * d, 4 * d, (3, 3), feature_group_count=4 * d, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        b, hh, ww, d = x.shape
        y = self.norm1(x)
        q = self.q(y).reshape(b, hh * ww, self.h, -1)
        if self.ratio > 1:
            y = self.norm3(self.reduce(y))
        k, v = jnp.split(self.kv(y).reshape(b, -1, self.h, 2 * d // self.h), 2, -1)
        x = x + self.out(nnx.dot_product_attention(q, k, v).reshape(x.shape))
        y = self.window(self.up(self.norm2(x)))
        return x + self.down(nnx.gelu(y))


class SegFormer(nnx.Module):
    """Four levels of such layers, and a head that joins all levels."""

    def __init__(self, rngs: nnx.Rngs):
        ahead, patch, layers, norms, heads = 3, [], [], [], []
        shapes = ((32, 1, 8, 7, 4), (64, 2, 4, 3, 2), (160, 5, 2, 3, 2), (256, 8, 1, 3, 2))
        for d, h, ratio, window, stride in shapes:
            patch.append(nnx.Conv(ahead, d, (window, window), (stride, stride), rngs=rngs))
            layers.append(SegLayer(d, h, ratio, rngs))
            norms.append(nnx.LayerNorm(d, rngs=rngs))
            heads.append(nnx.Linear(d, 256, rngs=rngs))
            ahead = d
        self.patch, self.layers = nnx.List(patch), nnx.List(layers)
        self.norms, self.heads = nnx.List(norms), nnx.List(heads)
        self.fuse = nnx.Linear(4 * 256, 256, rngs=rngs)
        self.fuse_norm = nnx.LayerNorm(256, rngs=rngs)
        self.last = nnx.Linear(256, 150, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        b = x.shape[0]
        parts = []
        for patch, layer, norm, head in zip(
            self.patch, self.layers, self.norms, self.heads, strict=True
        ):
            x = norm(layer(patch(x)))
            y = head(x)
            parts.append(jax.image.resize(y, (b, 64, 64, 256), "bilinear"))
        y = nnx.relu(self.fuse_norm(self.fuse(jnp.concatenate(parts[::-1], -1))))
        return self.last(y)


def style_transfer_step() -> TimedProgram:
    stages = ((3, 64, 64), (64, 128, 128), (128, 256, 256, 256), (256, 512, 512, 512))
    rule = optax.adam(0.02)

    def features(params: Any, x: Any) -> Any:
        kept = []
        for i, stage in enumerate(params):
            for w, bias in stage:
                x = lax.conv_general_dilated(
                    x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
                )
                x = jax.nn.relu(x + bias)
            kept.append(x)
            if i < len(params) - 1:
                x = nn.avg_pool(x, (2, 2), (2, 2))
        return kept

    def gram(x: Any) -> Any:
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        return jnp.einsum("bnc,bnd->bcd", x, x) / (x.shape[1] * x.shape[2])

    def styled(state: Any, vgg: Any, content: Any, grams: Any) -> Any:
        image, moments = state

        def loss(image: Any) -> Any:
            mean = jnp.array([0.485, 0.456, 0.406])
            kept = features(vgg, (image - mean) / 0.226)
            style = sum(
                jnp.square(gram(x) - goal).sum() for x, goal in zip(kept, grams, strict=True)
            )
            near = jnp.square(kept[2] - content).mean()
            rough = (
                jnp.abs(jnp.diff(image, axis=1)).mean() + jnp.abs(jnp.diff(image, axis=2)).mean()
            )
            return 1e3 * style + near + 0.1 * rough

        image, moments, value = stepped(rule, image, moments, loss)
        return (jnp.clip(image, 0, 1), moments), value

    vgg = [
        [
            (Arg((3, 3, a, c), scale=(9 * a) ** -0.5), Arg((c,), scale=0.01))
            for a, c in itertools.pairwise(stage)
        ]
        for stage in stages
    ]
    image = Arg((3, 320, 320, 3), scale=0.3)
    grams = [Arg((3, stage[-1], stage[-1]), scale=0.01) for stage in stages]
    given = (vgg, Arg((3, 80, 80, 256)), grams)
    return carried(styled, (image, states_of(rule, image)), *given)


def segformer_step() -> TimedProgram:
    b = 8
    net, weights = nnx_parts(lambda: SegFormer(nnx.Rngs(0)))
    schedule = optax.polynomial_schedule(6e-5, 0.0, 1.0, 160_000)
    adamw = optax.adamw(schedule, weight_decay=0.01)

    def segformer(state: Any, images: Any, goals: Any) -> Any:
        params, moments = state
        pictures = (images.astype(F32) - 120.0) / 58.0
        goals = goals.astype(I32)

        def loss(params: Any) -> Any:
            logits = net(params, pictures)
            logits = jax.image.resize(logits, (b, 256, 256, 150), "bilinear")
            lost = optax.softmax_cross_entropy_with_integer_labels(logits, goals % 150)
            known = goals < 240
            return (lost * known).sum() / known.sum(), logits.argmax(-1)

        params, moments, (value, guess) = stepped(adamw, params, moments, loss, aux=True)
        return (params, moments), value, (guess == goals).mean()

    given = (Arg((b, 256, 256, 3), U8, below=256), Arg((b, 256, 256), U8, below=256))
    return carried(segformer, (weights, states_of(adamw, weights)), *given)


def vision() -> Zoo:
    """Gatys' style transfer by VGG 16, and training of SegFormer B0 in nnx, both in float32."""
    yield "style_transfer", style_transfer_step()
    yield "segformer", segformer_step()


class FcosHead(nn.Module):
    """Two towers that all levels share: classes and distances to the four sides."""

    @nn.compact
    def __call__(self, levels: Any) -> Any:
        named = [
            [(nn.Conv(256, (3, 3), dtype=BF16), nn.GroupNorm(32, dtype=BF16)) for _ in range(2)]
            for _ in range(2)
        ]
        classes, sides = nn.Conv(80, (3, 3), dtype=BF16), nn.Conv(5, (3, 3), dtype=BF16)
        found = []
        for i, x in enumerate(levels):
            stretch = self.param(f"stretch{i}", nn.initializers.ones, ())
            towers = []
            for tower in named:
                y = x
                for conv, norm in tower:
                    y = nn.relu(norm(conv(y)))
                towers.append(y)
            side = sides(towers[1]).astype(F32)
            parts = (classes(towers[0]).astype(F32), jax.nn.softplus(side[..., :4] * stretch))
            parts += (side[..., 4:],)
            found.append([p.reshape(p.shape[0], -1, p.shape[-1]) for p in parts])
        return [jnp.concatenate(parts, 1) for parts in zip(*found, strict=True)]


class Fcos(nn.Module):
    """A pyramid from three maps of a backbone, and the head."""

    @nn.compact
    def __call__(self, c3: Any, c4: Any, c5: Any) -> Any:
        p5 = nn.Conv(256, (1, 1), dtype=BF16)(c5)
        p4 = nn.Conv(256, (1, 1), dtype=BF16)(c4) + p5.repeat(2, 1).repeat(2, 2)
        p3 = nn.Conv(256, (1, 1), dtype=BF16)(c3) + p4.repeat(2, 1).repeat(2, 2)
        return FcosHead()([nn.Conv(256, (3, 3), dtype=BF16)(p) for p in (p3, p4, p5)])


def detection() -> Zoo:
    """Training of FCOS: a pyramid, shared towers, and boxes that points of each level choose."""
    b, most = 8, 24
    model = Fcos()
    rule = optax.chain(optax.add_decayed_weights(1e-4), optax.sgd(0.01, momentum=0.9))

    def step(state: Any, c3: Any, c4: Any, c5: Any, corners: Any, kinds: Any, many: Any) -> Any:
        params, moments = state
        spots, lows, highs = [], [], []
        for stride, side, low, high in (
            (8, 64, 0.0, 64.0),
            (16, 32, 64.0, 128.0),
            (32, 16, 128.0, 1e5),
        ):
            line = (jnp.arange(side) + 0.5) * stride
            spots.append(jnp.stack(jnp.meshgrid(line, line, indexing="ij"), -1).reshape(-1, 2))
            lows.append(jnp.full(side * side, low))
            highs.append(jnp.full(side * side, high))
        spots, low, high = (jnp.concatenate(a) for a in (spots, lows, highs))
        first = jax.nn.sigmoid(corners[..., :2]) * 384
        last = first + 8 + jax.nn.sigmoid(corners[..., 2:]) * 120
        gaps = jnp.concatenate(
            [spots[None, :, None] - first[:, None], last[:, None] - spots[None, :, None]], -1
        )
        reach = gaps.max(-1)
        fits = (gaps.min(-1) > 0) & (reach >= low[:, None]) & (reach < high[:, None])
        fits = fits & (jnp.arange(most) < many[:, None, None])
        area = jnp.where(fits, jnp.prod(last - first, -1)[:, None], jnp.inf)
        owner = area.argmin(-1)
        inside = jnp.isfinite(area.min(-1))
        goal = jnp.take_along_axis(gaps, owner[..., None, None], 2)[:, :, 0]
        goal = jnp.where(inside[..., None], goal, 1.0)
        kind = jnp.where(inside, jnp.take_along_axis(kinds, owner, 1), 80)
        ways = goal.reshape(*goal.shape[:2], 2, 2)
        middle = jnp.sqrt((ways.min(2) / ways.max(2)).prod(-1))
        count = jnp.maximum(inside.sum(), 1)

        def loss(params: Any) -> Any:
            logits, sides, centre = model.apply(params, c3, c4, c5)
            hot = jax.nn.one_hot(kind, 80)
            focal = optax.sigmoid_focal_loss(logits, hot, alpha=0.25, gamma=2.0).sum()
            sides = sides * 16
            both = jnp.minimum(sides[..., :2], goal[..., :2]) + jnp.minimum(
                sides[..., 2:], goal[..., 2:]
            )
            hull = jnp.maximum(sides[..., :2], goal[..., :2]) + jnp.maximum(
                sides[..., 2:], goal[..., 2:]
            )
            one = (sides[..., :2] + sides[..., 2:]).prod(-1)
            two = (goal[..., :2] + goal[..., 2:]).prod(-1)
            both, hull = both.prod(-1), hull.prod(-1)
            union = one + two - both
            giou = both / (union + 1e-6) - (hull - union) / (hull + 1e-6)
            box = ((1 - giou) * middle * inside).sum()
            near = optax.sigmoid_binary_cross_entropy(centre[..., 0], middle) * inside
            return (focal + box + near.sum()) / count

        params, moments, value = stepped(rule, params, moments, loss)
        return (params, moments), value

    maps = [Arg((b, 64, 64, 512), BF16), Arg((b, 32, 32, 1024), BF16), Arg((b, 16, 16, 2048), BF16)]
    params = linen_weights(model, *maps)
    given = (Arg((b, most, 4)), Arg((b, most), I32, below=80), Arg((b,), I32, below=most))
    yield "fcos", carried(step, (params, states_of(rule, params)), *maps, *given)


class Residual(nn.Module):
    """Two convolutions with statistics of the batch, and a way around them."""

    features: int
    stride: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        def norm() -> Any:
            return nn.BatchNorm(use_running_average=False, momentum=0.9, dtype=BF16)

        step = (self.stride, self.stride)
        y = nn.relu(norm()(nn.Conv(self.features, (3, 3), step, use_bias=False, dtype=BF16)(x)))
        y = norm()(nn.Conv(self.features, (3, 3), use_bias=False, dtype=BF16)(y))
        if self.stride > 1 or x.shape[-1] != self.features:
            x = norm()(nn.Conv(self.features, (1, 1), step, use_bias=False, dtype=BF16)(x))
        return nn.relu(x + y)


class Encoder(nn.Module):
    """Residual blocks and a projection to 128 numbers of length one."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.Conv(64, (3, 3), use_bias=False, dtype=BF16)(x)
        x = nn.relu(nn.BatchNorm(use_running_average=False, dtype=BF16)(x))
        for features, stride in ((64, 1), (128, 2), (256, 2)):
            x = Residual(features, stride)(x)
        x = nn.relu(nn.Dense(512, dtype=BF16)(x.mean((1, 2))))
        x = nn.Dense(128)(x).astype(F32)
        return x * lax.rsqrt(jnp.square(x).sum(-1, keepdims=True) + 1e-12)


def contrastive() -> Zoo:
    """MoCo: two views, a slow encoder, and a queue of 65,536 keys that moves on."""
    b, side, length = 128, 64, 65536
    model = Encoder()
    rule = optax.chain(optax.add_decayed_weights(1e-4), optax.sgd(0.03, momentum=0.9))

    def view(images: Any, key: Any) -> Any:
        k1, k2, k3 = jax.random.split(key, 3)
        x = images.astype(F32) / 255.0
        x = jnp.where(jax.random.bernoulli(k1, 0.5, (b, 1, 1, 1)), x[:, :, ::-1], x)
        x = x * jax.random.uniform(k2, (b, 1, 1, 1), minval=0.6, maxval=1.4)
        mean = x.mean((1, 2, 3), keepdims=True)
        x = mean + (x - mean) * jax.random.uniform(k3, (b, 1, 1, 1), minval=0.6, maxval=1.4)
        return ((jnp.clip(x, 0, 1) - 0.45) / 0.22).astype(BF16)

    def step(state: Any, images: Any, key: Any) -> Any:
        (params, stats, moments), (slow, slow_stats), (queue, end) = state
        one, two, mix = jax.random.split(key, 3)
        order = jax.random.permutation(mix, b)
        slow = optax.incremental_update(params, slow, 0.001)
        keys, changed = model.apply(
            {"params": slow, "batch_stats": slow_stats},
            view(images, two)[order],
            mutable=["batch_stats"],
        )
        keys = keys[jnp.argsort(order)]

        def loss(params: Any) -> Any:
            queries, fresh = model.apply(
                {"params": params, "batch_stats": stats},
                view(images, one),
                mutable=["batch_stats"],
            )
            right = (queries * keys).sum(-1, keepdims=True)
            logits = jnp.concatenate([right, queries @ queue.T], 1) / 0.2
            lost = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.zeros(b, I32))
            return lost.mean(), fresh["batch_stats"]

        params, moments, (value, stats) = stepped(rule, params, moments, loss, aux=True)
        queue = lax.dynamic_update_slice(queue, keys, (end, 0))
        end = (end + b) % length
        return ((params, stats, moments), (slow, changed["batch_stats"]), (queue, end)), value

    made = linen_weights(model, Arg((b, side, side, 3), BF16))
    params, stats = made["params"], made["batch_stats"]
    queue = (Arg((length, 128), scale=128**-0.5), Arg((), I32, below=1))
    state = ((params, stats, states_of(rule, params)), (params, stats), queue)
    yield "moco", carried(step, state, Arg((b, side, side, 3), U8, below=256), _KEY)


def diffusion() -> Zoo:
    """Two steps of DPM-Solver++ with guidance by layers of PixArt that read 120 words."""
    b, side, d, h, words, depth = 2, 64, 1152, 16, 120, 4
    n = (side // 2) ** 2

    def norm(x: Any) -> Any:
        y = x.astype(F32)
        return (y - y.mean(-1, keepdims=True)) * lax.rsqrt(y.var(-1, keepdims=True) + 1e-6)

    def attend(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        q, k, v = (t.reshape(*t.shape[:2], h, d // h) for t in (q, k, v))
        return jax.nn.dot_product_attention(q, k, v, mask=mask).reshape(q.shape[0], -1, d)

    def denoise(params: Any, x: Any, time: Any, text: Any, mask: Any) -> Any:
        x = x.reshape(-1, side // 2, 2, side // 2, 2, 4).transpose(0, 1, 3, 2, 4, 5)
        x = x.reshape(-1, n, 16).astype(BF16) @ params["patch"] + params["places"]
        freqs = jnp.exp(-9.21 * jnp.arange(128) / 128)
        t = jnp.concatenate([jnp.cos(time * freqs), jnp.sin(time * freqs)])
        t = jax.nn.silu(t.astype(BF16) @ params["time1"]) @ params["time2"]
        base = (jax.nn.silu(t) @ params["mod"]).reshape(6, d)

        def block(x: Any, p: Any) -> Any:
            s1, c1, g1, s2, c2, g2 = (base + p["table"]).astype(F32)
            y = (norm(x) * (1 + c1) + s1).astype(BF16)
            y = attend(*jnp.split(y @ p["qkv"] + p["b_qkv"], 3, -1)) @ p["out"]
            x = x + (g1 * y).astype(BF16)
            k, v = jnp.split(text @ p["kv"], 2, -1)
            x = x + attend(x @ p["q"], k, v, mask) @ p["cross"]
            y = (norm(x) * (1 + c2) + s2).astype(BF16)
            y = jax.nn.gelu(y @ p["up"] + p["b_up"], approximate=True) @ p["down"]
            return x + (g2 * y).astype(BF16), None

        x, _ = lax.scan(block, x, params["blocks"])
        x = norm(x).astype(BF16) @ params["last"]
        x = x.reshape(-1, side // 2, side // 2, 2, 2, 8).transpose(0, 1, 3, 2, 4, 5)
        return x.reshape(-1, side, side, 8)[..., :4].astype(F32)

    def sample(latents: Any, params: Any, text: Any, lengths: Any, sigmas: Any) -> Any:
        mask = (jnp.arange(words) < 8 + lengths[:, None])[:, None, None, :]
        text = jax.nn.gelu(text @ params["text1"]) @ params["text2"]
        sigmas = jnp.sort(jax.nn.sigmoid(sigmas))[::-1] * 0.9 + 0.05

        def step(carry: Any, i: Any) -> Any:
            x, before = carry
            now, then = sigmas[i], sigmas[i + 1]
            alpha, alpha_next = jnp.sqrt(1 - now**2), jnp.sqrt(1 - then**2)
            noise = denoise(params, jnp.concatenate([x, x]), now * 1000, text, mask)
            without, told = jnp.split(noise, 2)
            noise = without + 4.5 * (told - without)
            clean = (x - now * noise) / alpha
            gap = jnp.log(alpha_next / then) - jnp.log(alpha / now)
            both = jnp.where(i > 0, 1.5 * clean - 0.5 * before, clean)
            x = then / now * x - alpha_next * jnp.expm1(-gap) * both
            return (x, clean), None

        (latents, _), _ = lax.scan(step, (latents, jnp.zeros_like(latents)), jnp.arange(2))
        return latents

    blocks = {"table": Arg((depth, 6, d), BF16, 0.03), "qkv": weight(depth, d, 3 * d)}
    blocks |= {"b_qkv": Arg((depth, 3 * d), BF16, 0.02), "out": weight(depth, d, d)}
    blocks |= {"q": weight(depth, d, d), "kv": weight(depth, d, 2 * d)}
    blocks |= {"cross": weight(depth, d, d), "up": weight(depth, d, 4 * d)}
    blocks |= {"b_up": Arg((depth, 4 * d), BF16, 0.02), "down": weight(depth, 4 * d, d)}
    params = {"blocks": blocks, "patch": weight(16, d), "places": Arg((n, d), BF16, 0.02)}
    params |= {"time1": weight(256, d), "time2": weight(d, d), "mod": weight(d, 6 * d)}
    params |= {"text1": weight(4096, d), "text2": weight(d, d), "last": weight(d, 32)}
    given = (params, Arg((2 * b, words, 4096), BF16), Arg((2 * b,), I32, below=112), Arg((3,)))
    yield "pixart", program(sample, Arg((b, side, side, 4)), *given)


class Ecapa(nn.Module):
    """Three dilated blocks with parts that add up, and a pool with attention, in one number."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        c = 512

        def norm(y: Any) -> Any:
            y = nn.relu(y)
            return nn.BatchNorm(use_running_average=False, dtype=BF16)(y)

        x = norm(nn.Conv(c, (5,), dtype=BF16)(x))
        kept, total = [], x
        for dilation in (2, 3, 4):
            y = norm(nn.Conv(c, (1,), dtype=BF16)(total))
            parts, last = [], 0.0
            for i, part in enumerate(jnp.split(y, 4, -1)):
                if i:
                    last = norm(
                        nn.Conv(c // 4, (3,), kernel_dilation=dilation, dtype=BF16)(part + last)
                    )
                parts.append(last if i else part)
            y = norm(nn.Conv(c, (1,), dtype=BF16)(jnp.concatenate(parts, -1)))
            gate = nn.relu(nn.Dense(128, dtype=BF16)(y.mean(1, keepdims=True)))
            total = total + y * nn.sigmoid(nn.Dense(c, dtype=BF16)(gate))
            kept.append(total)
        x = nn.relu(nn.Conv(1536, (1,), dtype=BF16)(jnp.concatenate(kept, -1)))
        wide = x.astype(F32)
        mean, spread = wide.mean(1, keepdims=True), wide.std(1, keepdims=True)
        around = jnp.concatenate(
            [wide, jnp.broadcast_to(mean, wide.shape), jnp.broadcast_to(spread, wide.shape)], -1
        )
        shares = nn.tanh(norm(nn.Dense(128, dtype=BF16)(around)))
        shares = nn.softmax(nn.Dense(1536, dtype=BF16)(shares).astype(F32), axis=1)
        mean = (shares * wide).sum(1)
        spread = jnp.sqrt(jnp.maximum((shares * wide * wide).sum(1) - mean**2, 1e-4))
        return nn.Dense(192)(norm(jnp.concatenate([mean, spread], -1)))


def speech() -> Zoo:
    """Training of ECAPA-TDNN to tell 7,205 speakers by angles with a margin."""
    b, t, speakers = 64, 300, 7205
    model = Ecapa()
    rule = optax.adamw(1e-3, weight_decay=2e-5)

    def step(state: Any, mels: Any, who: Any, key: Any) -> Any:
        (params, centres), stats, moments = state
        k1, k2 = jax.random.split(key)
        x = mels - mels.mean(1, keepdims=True)
        start = jax.random.randint(k1, (b, 1), 0, 280)
        times = jnp.arange(t)
        x = jnp.where(((times >= start) & (times < start + 20))[..., None], 0, x)
        low = jax.random.randint(k2, (b, 1), 0, 72)
        bands = jnp.arange(80)
        x = jnp.where(((bands >= low) & (bands < low + 8))[:, None], 0, x)

        def loss(both: Any) -> Any:
            params, centres = both
            y, fresh = model.apply(
                {"params": params, "batch_stats": stats}, x.astype(BF16), mutable=["batch_stats"]
            )
            y = y / (jnp.linalg.norm(y, axis=-1, keepdims=True) + 1e-6)
            c = centres / (jnp.linalg.norm(centres, axis=0, keepdims=True) + 1e-6)
            cos = jnp.clip(y @ c, -0.999, 0.999)
            moved = cos * jnp.cos(0.2) - jnp.sqrt(1 - cos**2) * jnp.sin(0.2)
            hot = jax.nn.one_hot(who, speakers, dtype=jnp.bool_)
            logits = 30.0 * jnp.where(hot, moved, cos)
            lost = optax.softmax_cross_entropy_with_integer_labels(logits, who)
            return lost.mean(), fresh["batch_stats"]

        both, moments, (value, stats) = stepped(rule, (params, centres), moments, loss, aux=True)
        return (both, stats, moments), value

    made = linen_weights(model, Arg((b, t, 80), BF16))
    both = (made["params"], dense(192, speakers))
    state = (both, made["batch_stats"], states_of(rule, both))
    yield "ecapa", carried(step, state, Arg((b, t, 80)), Arg((b,), I32, below=speakers), _KEY)


class SasRec(nn.Module):
    """Two causal layers over the items that a user opened."""

    items: int

    def setup(self) -> None:
        self.table = nn.Embed(self.items, 128)
        self.places = nn.Embed(100, 128)
        self.attend = [nn.MultiHeadDotProductAttention(2, dropout_rate=0.2) for _ in range(2)]
        self.norms = [nn.LayerNorm() for _ in range(5)]
        self.up, self.down = [nn.Dense(128) for _ in range(2)], [nn.Dense(128) for _ in range(2)]
        self.drop = nn.Dropout(0.2, deterministic=False)

    def __call__(self, seen: Any, after: Any, other: Any) -> Any:
        x = self.table(seen) * 128**0.5 + self.places(jnp.arange(seen.shape[1]))
        real = (seen > 0)[..., None]
        x = self.drop(x) * real
        mask = nn.make_causal_mask(seen)
        for i in range(2):
            y = self.norms[2 * i](x)
            x = x + self.attend[i](y, x, mask=mask, deterministic=False)
            y = self.norms[2 * i + 1](x)
            x = (x + self.drop(self.down[i](nn.relu(self.drop(self.up[i](y)))))) * real
        x = self.norms[4](x)
        return (x * self.table(after)).sum(-1), (x * self.table(other)).sum(-1)


def sasrec_step() -> TimedProgram:
    b, s, items = 256, 100, 300_000
    model = SasRec(items)
    rule = optax.adam(1e-3, b2=0.98)

    def sasrec(state: Any, seen: Any, after: Any, other: Any, key: Any) -> Any:
        params, moments = state

        def loss(params: Any) -> Any:
            good, bad = model.apply(params, seen, after, other, rngs={"dropout": key})
            lost = jax.nn.softplus(-good) + jax.nn.softplus(bad)
            real = after > 0
            return (lost * real).sum() / jnp.maximum(real.sum(), 1)

        params, moments, value = stepped(rule, params, moments, loss)
        return (params, moments), value

    ids = Arg((b, s), I32, below=items)
    params = linen_weights(model, ids, ids, ids)
    return carried(sasrec, (params, states_of(rule, params)), ids, ids, ids, _KEY)


def retrieval_step() -> TimedProgram:
    b, s, items, d = 32, 128, 200_000, 128

    def retrieve(params: Any, history: Any, length: Any, about: Any) -> Any:
        seen = jnp.arange(s) < 1 + length[:, None]
        x = params["items"][history].astype(F32)
        shares = jax.nn.softmax(jnp.where(seen, (x @ params["query"]), -1e9), -1)
        user = jnp.concatenate([(shares[..., None] * x).sum(1), about], -1)
        for w, bias in params["tower"]:
            user = jax.nn.relu(user @ w + bias)
        user = user @ params["out"]
        user = (user / (jnp.linalg.norm(user, axis=-1, keepdims=True) + 1e-6)).astype(BF16)
        scores = jnp.dot(user, params["items"].T, preferred_element_type=F32) + params["bias"]
        rows = jnp.arange(b)[:, None]
        scores = scores.at[rows, jnp.where(seen, history, items)].set(-jnp.inf, mode="drop")
        return lax.top_k(scores, 100)

    tower = [(dense(d + 64, 1024), Arg((1024,))), (dense(1024, 512), Arg((512,)))]
    params = {"items": Arg((items, d), BF16, 0.1), "bias": Arg((items,), scale=0.1)}
    params |= {"query": Arg((d,)), "tower": tower, "out": dense(512, d)}
    given = (Arg((b, s), I32, below=items), Arg((b,), I32, below=s), Arg((b, 64)))
    return program(retrieve, params, *given)


def recommenders() -> Zoo:
    """Training of SASRec with 300,000 items, and the best 100 of 200,000 items for 32 users."""
    yield "sasrec", sasrec_step()
    yield "retrieval", retrieval_step()


def sage_step() -> TimedProgram:
    nodes, edges, seeds, d, classes = 400_000, 6_000_000, 1024, 128, 47
    fans = (10, 10, 5)
    adam = optax.adam(3e-3)

    def sage(state: Any, table: Any, ends: Any, starts: Any, many: Any, ids: Any, key: Any) -> Any:
        params, moments = state
        labels, ids = ids[1] % classes, ids[0]
        layers = [ids]
        for fan, k in zip(fans, jax.random.split(key, 3), strict=True):
            last = layers[-1]
            offset = (
                jax.random.randint(k, (*last.shape, fan), 0, 1 << 20) % (1 + many[last])[..., None]
            )
            layers.append(ends[starts[last][..., None] + offset])

        def loss(params: Any) -> Any:
            states = [table[i] for i in layers]
            for depth, p in enumerate(params):
                new = []
                for own, near in itertools.pairwise(states):
                    y = own @ p["own"] + near.mean(-2) @ p["near"] + p["bias"]
                    if depth < len(params) - 1:
                        y = jax.nn.relu(y)
                        y = y / (jnp.linalg.norm(y, axis=-1, keepdims=True) + 1e-6)
                    new.append(y)
                states = new
            return optax.softmax_cross_entropy_with_integer_labels(states[0], labels).mean()

        params, moments, value = stepped(adam, params, moments, loss)
        return (params, moments), value

    params = [
        {"own": dense(a, c), "near": dense(a, c), "bias": Arg((c,), scale=0.1)}
        for a, c in ((d, 256), (256, 256), (256, classes))
    ]
    given = (Arg((nodes, d)), Arg((edges,), I32, below=nodes))
    given += (Arg((nodes,), I32, below=edges - 64), Arg((nodes,), I32, below=60))
    given += (Arg((2, seeds), I32, below=nodes), _KEY)
    return carried(sage, (params, states_of(adam, params)), *given)


def rgcn_step() -> TimedProgram:
    nodes, edges, kinds, bases, d, asked = 14_541, 270_000, 24, 4, 128, 30_000
    adam = optax.adam(1e-2)

    def relational(p: Any, x: Any, source: Any, target: Any, kind: Any) -> Any:
        pairs = target * kinds + kind
        degree = jax.ops.segment_sum(jnp.ones(edges), pairs, nodes * kinds)
        share = 1.0 / jnp.maximum(degree[pairs], 1.0)
        based = jnp.einsum("nd,kde->nke", x, p["bases"])
        mix = p["mix"][kind] * share[:, None]
        messages = jnp.einsum("ek,ekd->ed", mix, based[source])
        return x @ p["self"] + jax.ops.segment_sum(messages, target, nodes) + p["bias"]

    def rgcn(state: Any, source: Any, target: Any, kind: Any, ask: Any, goal: Any) -> Any:
        params, moments = state

        def loss(params: Any) -> Any:
            x = jax.nn.relu(relational(params["one"], params["table"], source, target, kind))
            x = relational(params["two"], x, source, target, kind)
            head, tail = x[ask[0]], x[ask[1]]
            way = params["ways"][ask[0] % kinds]
            score = (head * way * tail).sum(-1)
            lost = optax.sigmoid_binary_cross_entropy(score, goal.astype(F32)).mean()
            return lost + 0.01 * (jnp.square(x).mean() + jnp.square(params["ways"]).mean())

        params, moments, value = stepped(adam, params, moments, loss)
        return (params, moments), value

    layer = {"bases": dense(bases, d, d), "mix": Arg((kinds, bases), scale=0.3)}
    layer |= {"self": dense(d, d), "bias": Arg((d,), scale=0.1)}
    params = {"table": Arg((nodes, d), scale=0.1), "one": layer, "two": layer}
    params |= {"ways": Arg((kinds, d))}
    one = Arg((edges,), I32, below=nodes)
    given = (one, one, Arg((edges,), I32, below=kinds), Arg((2, asked), I32, below=nodes))
    given += (Arg((asked,), I32, below=2),)
    return carried(rgcn, (params, states_of(adam, params)), *given)


def graphs() -> Zoo:
    """Training: GraphSAGE with neighbours drawn in the step, and R-GCN with 24 relations."""
    yield "sage", sage_step()
    yield "rgcn", rgcn_step()


class ActorCritic(nn.Module):
    """Means of actions, their spread, and a value, by two networks."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        y, z = x, x
        for size in (512, 256, 128):
            y, z = nn.elu(nn.Dense(size)(y)), nn.elu(nn.Dense(size)(z))
        spread = self.param("spread", nn.initializers.zeros, (21,))
        return nn.Dense(21)(y), spread, nn.Dense(1)(z)[..., 0]


class Critic(nn.Module):
    """A value of a state and an action."""

    @nn.compact
    def __call__(self, state: Any, action: Any) -> Any:
        x = jnp.concatenate([state, action], -1)
        for _ in range(3):
            x = nn.relu(nn.LayerNorm()(nn.Dense(256)(x)))
        return nn.Dense(1)(x)[..., 0]


class Actor(nn.Module):
    """A squashed normal distribution of actions."""

    actions: int

    @nn.compact
    def __call__(self, state: Any, key: Any) -> Any:
        x = state
        for _ in range(3):
            x = nn.relu(nn.Dense(256)(x))
        mean, log = jnp.split(nn.Dense(2 * self.actions)(x), 2, -1)
        log = jnp.clip(log, -5.0, 2.0)
        noise = jax.random.normal(key, mean.shape)
        raw = mean + jnp.exp(log) * noise
        chance = (-0.5 * noise**2 - log - 0.919).sum(-1)
        chance -= (2 * (jnp.log(2.0) - raw - jax.nn.softplus(-2 * raw))).sum(-1)
        return jnp.tanh(raw), chance


def ppo_humanoid_step() -> TimedProgram:
    t, envs, seen, epochs, batches = 16, 2048, 108, 2, 2
    model = ActorCritic()
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(3e-4, eps=1e-5))

    def ppo(state: Any, seen: Any, acts: Any, old: Any, pay: Any, done: Any, key: Any) -> Any:
        params, moments, mean, var = state
        fresh = seen[:-1].reshape(-1, seen.shape[-1])
        mean = 0.99 * mean + 0.01 * fresh.mean(0)
        var = 0.99 * jnp.abs(var) + 0.01 * fresh.var(0)
        seen = jnp.clip((seen - mean) * lax.rsqrt(var + 1e-5), -5.0, 5.0)
        values = model.apply(params, seen)[2]

        def back(carry: Any, given: Any) -> Any:
            pay, done, value, ahead = given
            delta = pay + 0.99 * ahead * (1 - done) - value
            carry = delta + 0.99 * 0.95 * (1 - done) * carry
            return carry, carry

        ends = done.astype(F32)
        _, gains = lax.scan(
            back, jnp.zeros(envs), (pay, ends, values[:-1], values[1:]), reverse=True, unroll=4
        )
        goals = gains + values[:-1]
        data = (seen[:-1], acts, old, gains, goals, values[:-1])
        data = jax.tree.map(lambda x: x.reshape(t * envs, *x.shape[2:]), data)

        def epoch(carry: Any, key: Any) -> Any:
            order = jax.random.permutation(key, t * envs)
            parts = jax.tree.map(lambda x: x[order].reshape(batches, -1, *x.shape[1:]), data)

            def batch(carry: Any, part: Any) -> Any:
                params, moments = carry
                seen, acts, old, gain, goal, before = part

                def loss(params: Any) -> Any:
                    middle, spread, value = model.apply(params, seen)
                    gap = (acts - middle) * jnp.exp(-spread)
                    log = (-0.5 * gap**2 - spread - 0.919).sum(-1)
                    ratio = jnp.exp(jnp.clip(log - old, -10.0, 10.0))
                    good = (gain - gain.mean()) / (gain.std() + 1e-8)
                    actor = -jnp.minimum(ratio * good, jnp.clip(ratio, 0.8, 1.2) * good).mean()
                    near = before + jnp.clip(value - before, -0.2, 0.2)
                    critic = jnp.maximum((value - goal) ** 2, (near - goal) ** 2).mean()
                    return actor + critic - 0.005 * spread.sum()

                params, moments, value = stepped(rule, params, moments, loss)
                return (params, moments), value

            return lax.scan(batch, carry, parts)

        carry, lost = lax.scan(epoch, (params, moments), jax.random.split(key, epochs))
        return (*carry, mean, var), lost.mean()

    params = linen_weights(model, Arg((4, seen)))
    state = (params, states_of(rule, params), Arg((seen,), scale=0.1), Arg((seen,)))
    given = (Arg((t + 1, envs, seen)), Arg((t, envs, 21)), Arg((t, envs)), Arg((t, envs)))
    given += (Arg((t, envs), jnp.bool_), _KEY)
    return carried(ppo, state, *given)


def cql_step() -> TimedProgram:
    b, seen, actions, many, draws = 512, 45, 24, 5, 10
    critics = nn.vmap(
        Critic,
        variable_axes={"params": 0},
        split_rngs={"params": True},
        in_axes=None,
        axis_size=many,
    )()
    actor = Actor(actions)
    adam = optax.adam(3e-4)

    def cql(state: Any, now: Any, acts: Any, pay: Any, then: Any, done: Any, key: Any) -> Any:
        params, slow, moments = state
        k1, k2, k3, k4 = jax.random.split(key, 4)
        acts = jnp.tanh(acts)
        heat = jnp.exp(params["heat"])
        ahead, chance = actor.apply(params["actor"], then, k1)
        best = critics.apply(slow, then, ahead).min(0) - heat * chance
        goal = lax.stop_gradient(pay + 0.99 * (1 - done.astype(F32)) * best)
        wide, wide_then = (jnp.broadcast_to(x, (draws, *x.shape)) for x in (now, then))

        def loss(params: Any) -> Any:
            frozen = lax.stop_gradient(params)
            act, chance = actor.apply(params["actor"], now, k2)
            value = critics.apply(frozen["critics"], now, act).min(0)
            fit = (jnp.exp(frozen["heat"]) * chance - value).mean()
            warm = -(params["heat"] * (lax.stop_gradient(chance) - actions)).mean()
            guess = critics.apply(params["critics"], now, acts)
            error = jnp.square(guess - goal).mean(1).sum()
            by_chance = jax.random.uniform(k3, (draws, b, actions), minval=-1, maxval=1)
            mine, log = actor.apply(frozen["actor"], wide, k4)
            next_, log_next = actor.apply(frozen["actor"], wide_then, k1)
            values = jnp.concatenate(
                [
                    critics.apply(params["critics"], wide, by_chance) + actions * jnp.log(2.0),
                    critics.apply(params["critics"], wide, mine) - log,
                    critics.apply(params["critics"], wide, next_) - log_next,
                ],
                1,
            )
            shy = (jax.nn.logsumexp(values, 1) - guess).mean(1).sum()
            return fit + warm + error + 5.0 * shy

        params, moments, value = stepped(adam, params, moments, loss)
        slow = optax.incremental_update(params["critics"], slow, 0.005)
        return (params, slow, moments), value

    one, two = Arg((b, seen)), Arg((b, actions))
    weights = linen_weights(critics, one, two)
    params = {"actor": linen_weights(actor, one, _KEY), "critics": weights, "heat": Arg(())}
    state = (params, weights, states_of(adam, params))
    given = (one, two, Arg((b,)), one, Arg((b,), jnp.bool_), _KEY)
    return carried(cql, state, *given)


def reinforcement() -> Zoo:
    """PPO for a humanoid in 2,048 places, and CQL with an ensemble of five critics by vmap."""
    yield "ppo_humanoid", ppo_humanoid_step()
    yield "cql", cql_step()


# ----------------------------------------------------------------------------------------- numerics


def adi_step() -> TimedProgram:
    n = 1536

    def adi(field: Any, source: Any) -> Any:
        r = 0.8
        lower = jnp.full(n, -r / 2).at[0].set(0.0)
        upper = jnp.full(n, -r / 2).at[-1].set(0.0)
        middle = jnp.full(n, 1 + r)

        def across(u: Any) -> Any:
            wide = jnp.pad(u, ((0, 0), (1, 1)))
            return u + r / 2 * (wide[:, 2:] - 2 * u + wide[:, :-2])

        for _ in range(3):
            u = lax.linalg.tridiagonal_solve(lower, middle, upper, across(field) + source)
            back = lax.linalg.tridiagonal_solve(lower, middle, upper, across(u.T) + source.T)
            field = back.T
        return field, jnp.abs(field).max()

    return carried(adi, Arg((n, n)), Arg((n, n), scale=0.1))


def condensate_step() -> TimedProgram:
    n = 640

    def condensate(psi: Any, trap: Any) -> Any:
        """Twelve half steps of a turning condensate towards its ground state."""
        line = jnp.fft.fftfreq(n, 20.0 / n) * 2 * jnp.pi
        space = (jnp.arange(n) - n / 2) * (20.0 / n)
        half = jnp.exp(-0.0005 * line**2)[:, None]
        turn = jnp.exp(0.001 * 0.7 * line[:, None] * space[None, :])

        def step(_: Any, psi: Any) -> Any:
            psi = psi * jnp.exp(-0.0005 * (trap**2 + 100.0 * jnp.abs(psi) ** 2))
            psi = jnp.fft.ifft(jnp.fft.fft(psi, axis=0) * half * jnp.clip(turn, 0.5, 2.0), axis=0)
            psi = jnp.fft.ifft(jnp.fft.fft(psi, axis=1) * half.T, axis=1)
            psi = psi * jnp.exp(-0.0005 * (trap**2 + 100.0 * jnp.abs(psi) ** 2))
            return psi * lax.rsqrt(jnp.square(jnp.abs(psi)).sum() * (20.0 / n) ** 2 + 1e-12)

        psi = lax.fori_loop(0, 6, step, psi)
        return psi, jnp.square(jnp.abs(psi)).max()

    psi = Arg((n, n), jnp.complex64)
    return carried(condensate, psi, Arg((n, n)))


def hermite_step() -> TimedProgram:
    n = 8192

    def pull(x: Any, v: Any, mass: Any) -> Any:
        """Accelerations and how they change, of all pairs."""
        gap = [x[None, :, i] - x[:, None, i] for i in range(3)]
        rush = [v[None, :, i] - v[:, None, i] for i in range(3)]
        square = sum(g * g for g in gap) + 1e-3
        third = mass[None] * square**-1.5
        along = 3 * sum(g * r for g, r in zip(gap, rush, strict=True)) / square
        force = jnp.stack([(third * g).sum(1) for g in gap], -1)
        jerk = [(third * (r - along * g)).sum(1) for g, r in zip(gap, rush, strict=True)]
        return force, jnp.stack(jerk, -1)

    def hermite(state: Any, mass: Any) -> Any:
        x, v = state
        mass, h = jnp.abs(mass), 1e-3
        for _ in range(2):
            a, j = pull(x, v, mass)
            xp = x + h * v + h**2 / 2 * a + h**3 / 6 * j
            vp = v + h * a + h**2 / 2 * j
            ap, jp = pull(xp, vp, mass)
            new = v + h / 2 * (a + ap) + h**2 / 12 * (j - jp)
            x, v = x + h / 2 * (v + new) + h**2 / 12 * (a - ap), new
        return (x, v), (mass[:, None] * v * v).sum() / 2

    state = (Arg((n, 3)), Arg((n, 3), scale=0.1))
    return carried(hermite, state, Arg((n,), scale=1 / n))


def mixed_effects_step() -> TimedProgram:
    groups, rows, d, r = 512, 48, 96, 6

    def mixed_effects(x: Any, y: Any, z: Any, root: Any, noise: Any) -> Any:
        """The likelihood of a mixed model: each group is whitened, then all meet in one QR."""
        spread = jnp.einsum("gnr,rs,gms->gnm", z, root @ root.T, z)
        spread = spread + (0.5 + noise[0] ** 2) * jnp.eye(rows)
        factor = jnp.linalg.cholesky(spread)
        both = jnp.concatenate([x, y[..., None]], -1)
        white = lax.linalg.triangular_solve(factor, both, left_side=True, lower=True)
        white = white.reshape(groups * rows, d + 1)
        q, upper = jnp.linalg.qr(white[:, :d])
        slopes = jax.scipy.linalg.solve_triangular(upper, q.T @ white[:, d])
        rest = white[:, d] - white[:, :d] @ slopes
        logdet = 2 * jnp.log(jnp.diagonal(factor, axis1=1, axis2=2)).sum()
        logdet += 2 * jnp.log(jnp.abs(jnp.diagonal(upper))).sum()
        normal = jnp.linalg.inv(upper.T @ upper)
        residual = y - x @ slopes
        weights = jax.scipy.linalg.cho_solve((factor, True), residual[..., None])
        effects = (root @ root.T) @ jnp.einsum("gnr,gno->gro", z, weights)
        return rest @ rest + logdet, slopes, jnp.sqrt(jnp.diagonal(normal)), effects

    given = (Arg((groups, rows, d)), Arg((groups, rows)), Arg((groups, rows, r)), Arg((r, r)))
    return program(mixed_effects, *given, Arg((1,)))


def sobol_step() -> TimedProgram:
    points, days, shares = 1 << 16, 64, 4

    def sobol(directions: Any, shift: Any, bridge: Any, chol: Any, spot: Any, sigma: Any) -> Any:
        """An Asian option on four shares, and how its price changes with spots and spreads."""
        index = jnp.arange(points, dtype=U32)
        grey = index ^ (index >> 1)
        bits = (grey[:, None] >> jnp.arange(16, dtype=U32)) & 1
        picked = jnp.where(bits[:, :, None] == 1, directions[None], U32(0))
        drawn = lax.reduce(picked, U32(0), lax.bitwise_xor, (1,)) ^ shift
        uniform = (drawn >> 8).astype(F32) * 2.0**-24 + 2.0**-25
        normal = jax.scipy.special.ndtri(uniform).reshape(points, days, shares)
        paths = jnp.einsum("pds,ed,ts->pet", normal, bridge, chol)

        def price(spot: Any, sigma: Any) -> Any:
            spot, sigma = 100.0 + spot, 0.2 + 0.02 * sigma
            times = jnp.arange(1, days + 1)[:, None] / days
            values = spot * jnp.exp((0.03 - sigma**2 / 2) * times + sigma * paths)
            mean = values.mean((1, 2))
            pay = jnp.exp(-0.03) * jax.nn.relu(mean - 100.0)
            return pay.mean(), pay.std() / points**0.5

        return jax.value_and_grad(price, (0, 1), has_aux=True)(spot, sigma)

    wide = days * shares
    given = (Arg((16, wide), U32, below=1 << 31), Arg((wide,), U32, below=1 << 31))
    given += (Arg((days, days), scale=0.1), Arg((shares, shares), scale=0.5))
    return program(sobol, *given, Arg((shares,)), Arg((shares,)))


def science() -> Zoo:
    """Heat by directions in turn, a condensate, stars, mixed effects, and Sobol's points."""
    yield "adi", adi_step()
    yield "condensate", condensate_step()
    yield "hermite", hermite_step()
    yield "mixed_effects", mixed_effects_step()
    yield "sobol", sobol_step()


# ------------------------------------------------------------------------------------------- plain


def vocabulary_step() -> TimedProgram:
    rows, vocab = 3072, 100_277

    def vocabulary(logits: Any, goals: Any, mask: Any) -> Any:
        def loss(logits: Any) -> Any:
            lost = optax.softmax_cross_entropy_with_integer_labels(logits.astype(F32), goals)
            return jnp.where(mask, lost, 0.0).sum() / jnp.maximum(mask.sum(), 1)

        return jax.value_and_grad(loss)(logits)

    given = (Arg((rows, vocab), BF16), Arg((rows,), I32, below=vocab), Arg((rows,), jnp.bool_))
    return program(vocabulary, *given)


def layernorm_step() -> TimedProgram:
    layer = nn.LayerNorm(dtype=BF16)

    def layernorm(params: Any, x: Any, skip: Any, slope: Any) -> Any:
        def forward(params: Any, x: Any, skip: Any) -> Any:
            total = x + skip
            return layer.apply(params, total), total

        (y, total), back = jax.vjp(forward, params, x, skip)
        return y, total, back((slope, slope))

    x = Arg((12, 2048, 2560), BF16)
    return program(layernorm, linen_weights(layer, x), x, x, x)


def lookup_step() -> TimedProgram:
    b, s, words, d = 12, 1024, 250_112, 768

    def lookup(tables: Any, tokens: Any, kinds: Any, slope: Any) -> Any:
        def total(tables: Any) -> Any:
            x = jnp.take(tables["word"], tokens, axis=0) + tables["kind"][kinds]
            x = (x + tables["place"][:s]).astype(BF16)
            return (x.astype(F32) * slope).sum()

        grads = jax.grad(total)(tables)
        return jax.tree.map(lambda w, g: w - 0.1 * g, tables, grads)

    tables = {"word": Arg((words, d)), "kind": Arg((2, d)), "place": Arg((2048, d))}
    given = (Arg((b, s), I32, below=words), Arg((b, s), I32), Arg((b, s, d)))

    def moved(tables: Any, *given: Any) -> Any:
        return lookup(tables, *given), given[0].sum()

    return carried(moved, tables, *given)


def update_step() -> TimedProgram:
    d = 768
    layer = {"ln_1": {"scale": Arg((d,)), "bias": Arg((d,))}, "ln_2": {"scale": Arg((d,))}}
    layer["ln_2"]["bias"] = Arg((d,))
    for name, a, c in (("attn", d, 3 * d), ("proj", d, d), ("up", d, 4 * d), ("down", 4 * d, d)):
        layer[name] = {"kernel": dense(a, c), "bias": Arg((c,), scale=0.02)}
    params = {f"h_{i}": layer for i in range(12)}
    params |= {"wte": Arg((50257, d), scale=0.02), "wpe": Arg((1024, d), scale=0.02)}
    params |= {"ln_f": {"scale": Arg((d,)), "bias": Arg((d,))}}

    def decayed(params: Any) -> Any:
        return jax.tree.map(lambda w: w.ndim > 1, params)

    rule = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.nadamw(optax.linear_schedule(6e-4, 6e-5, 10_000), weight_decay=0.1, mask=decayed),
    )

    def update(state: Any, grads: Any) -> Any:
        params, mean, moments = state
        grads = jax.tree.map(lambda g: g.astype(F32), grads)
        updates, moments = rule.update(grads, moments, params)
        params = optax.apply_updates(params, updates)
        mean = optax.incremental_update(params, mean, 0.0005)
        return (params, mean, moments), optax.global_norm(grads)

    grads = jax.tree.map(lambda a: Arg(a.shape, BF16, 0.01), params)
    return carried(update, (params, params, states_of(rule, params)), grads)


def clips_step() -> TimedProgram:
    b, t, side = 16, 16, 224

    def clips(frames: Any, order: Any, flips: Any, starts: Any) -> Any:
        """Two views of clips in tubes of 2 x 16 x 16 pixels, normed tube by tube."""
        frames = frames[order % b]
        cut = jax.vmap(lambda x, i: lax.dynamic_slice(x, (0, i[0], i[1], 0), (t, side, side, 3)))(
            frames, starts
        )
        cut = jnp.where(flips[:, None, None, None, None], cut[:, :, :, ::-1], cut)
        small = frames[:, :, 16 : 16 + side, 16 : 16 + side]
        both = jnp.concatenate([cut, small]).astype(F32) / 255.0
        both = (both - jnp.array([0.485, 0.456, 0.406])) / jnp.array([0.229, 0.224, 0.225])
        tubes = both.reshape(2 * b, t // 2, 2, side // 16, 16, side // 16, 16, 3)
        tubes = tubes.transpose(0, 1, 3, 5, 2, 4, 6, 7).reshape(2 * b, -1, 1536)
        mean, var = tubes.mean(-1, keepdims=True), tubes.var(-1, keepdims=True)
        goals = ((tubes - mean) * lax.rsqrt(var + 1e-6)).astype(BF16)
        return tubes.astype(BF16), goals, both.transpose(0, 4, 1, 2, 3).astype(BF16)

    given = (Arg((b, t, 256, 256, 3), U8, below=256), Arg((b,), I32, below=b))
    given += (Arg((b,), jnp.bool_), Arg((b, 2), I32, below=32))
    return program(clips, *given)


def plain() -> Zoo:
    """Single steps: a loss over many words, a norm, a lookup, an update, a preparation."""
    yield "vocabulary", vocabulary_step()
    yield "layernorm", layernorm_step()
    yield "lookup", lookup_step()
    yield "update", update_step()
    yield "clips", clips_step()
