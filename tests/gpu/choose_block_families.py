"""Unrolled models for `record_choose.py`: blocks that are called in Python loops.

All are one step of gradient descent in bfloat16.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import nnx

from xlapipe import Workload

Params = dict[str, Any]


def _attention(q: jax.Array, k: jax.Array, v: jax.Array, *, causal: bool) -> jax.Array:
    """Of arrays [batch, tokens, heads, size]."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(v.dtype), v)


def _norm(x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6)).astype(x.dtype)


# --- A GPT of flax.nnx


def _linear(width: int, out: int, rngs: nnx.Rngs) -> nnx.Linear:
    types = {"dtype": jnp.bfloat16, "param_dtype": jnp.bfloat16}
    return nnx.Linear(width, out, use_bias=False, rngs=rngs, **types)


class Attention(nnx.Module):
    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.qkv, self.out = _linear(width, 3 * width, rngs), _linear(width, width, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        b, t, w = x.shape
        q, k, v = jnp.split(self.qkv(x).reshape(b, t, w // 64, 192), 3, -1)
        return self.out(_attention(q, k, v, causal=True).reshape(b, t, w))


class Mlp(nnx.Module):
    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.up, self.down = _linear(width, 4 * width, rngs), _linear(4 * width, width, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(jax.nn.gelu(self.up(x)))


class Block(nnx.Module):
    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.attention, self.mlp = Attention(width, rngs), Mlp(width, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(_norm(x))
        return x + self.mlp(_norm(x))


class Gpt(nnx.Module):
    def __init__(self, width: int, layers: int, vocabulary: int, rngs: nnx.Rngs) -> None:
        types = {"dtype": jnp.bfloat16, "param_dtype": jnp.bfloat16}
        self.embed = nnx.Embed(vocabulary, width, rngs=rngs, **types)
        self.blocks = nnx.List([Block(width, rngs) for _ in range(layers)])

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.embed.attend(_norm(x))


def gpt(
    batch: int = 8, seq: int = 1024, layers: int = 6, width: int = 1024, vocabulary: int = 16384
) -> Workload:
    def loss(model: Gpt, tokens: jax.Array) -> jax.Array:
        logits = model(tokens[:, :-1]).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    graph, state = nnx.split(
        nnx.eval_shape(lambda: Gpt(width, layers, vocabulary, nnx.Rngs(0))), nnx.Param
    )

    def step(state: Any, tokens: jax.Array) -> tuple[jax.Array, Any]:
        value, gradients = nnx.value_and_grad(loss)(nnx.merge(graph, state, copy=True), tokens)
        return value, jax.tree.map(lambda p, g: p - 1e-3 * g, state, gradients)

    tokens = jax.ShapeDtypeStruct((batch, seq + 1), jnp.int32)
    return Workload(name="block-gpt", fn=step, args=(state, tokens), donate_argnums=0)


# --- A vision transformer of flax.linen


class VitBlock(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dense = lambda size: nn.Dense(size, dtype=jnp.bfloat16, param_dtype=jnp.bfloat16)  # noqa: E731
        b, t, w = x.shape
        q, k, v = jnp.split(dense(3 * w)(_norm(x)).reshape(b, t, w // 64, 192), 3, -1)
        x = x + dense(w)(_attention(q, k, v, causal=False).reshape(b, t, w))
        return x + dense(w)(nn.gelu(dense(4 * w)(_norm(x))))


class Vit(nn.Module):
    width: int
    layers: int

    @nn.compact
    def __call__(self, patches: jax.Array) -> jax.Array:
        types = {"dtype": jnp.bfloat16, "param_dtype": jnp.bfloat16}
        x = nn.Dense(self.width, **types)(patches)
        for _ in range(self.layers):
            x = VitBlock(self.width)(x)
        return nn.Dense(1000, **types)(_norm(x).mean(1))


def vit(batch: int = 128, tokens: int = 256, layers: int = 6, width: int = 768) -> Workload:
    """On patches of 14 × 14 pixels."""
    model = Vit(width, layers)
    patches = jax.ShapeDtypeStruct((batch, tokens, 588), jnp.bfloat16)
    variables = jax.eval_shape(model.init, jax.random.key(0), patches)

    def loss(variables: Any, patches: jax.Array, labels: jax.Array) -> jax.Array:
        logits = model.apply(variables, patches).astype(jnp.float32)  # type: ignore[union-attr]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    labels = jax.ShapeDtypeStruct((batch,), jnp.int32)
    return _plain("block-vit", loss, variables, patches, labels)


# --- Plain functions


def _plain(name: str, loss: Any, params: Any, *batch: Any) -> Workload:
    def step(params: Any, *batch: jax.Array) -> tuple[jax.Array, Any]:
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        return value, jax.tree.map(lambda p, g: p - 1e-3 * g, params, gradients)

    return Workload(name=name, fn=step, args=(params, *batch), donate_argnums=0)


def _weights(layers: int, shapes: dict[str, tuple[int, ...]]) -> list[Params]:
    made = {name: jax.ShapeDtypeStruct(shape, jnp.bfloat16) for name, shape in shapes.items()}
    return [made] * layers


def attend(x: jax.Array, past: jax.Array, w: Params, *, causal: bool) -> jax.Array:
    b, t, width = x.shape
    heads = (width // 64, 64)
    q = (_norm(x) @ w["q"]).reshape(b, t, *heads)
    k, v = jnp.split((_norm(past) @ w["kv"]).reshape(b, -1, heads[0], 128), 2, -1)
    return _attention(q, k, v, causal=causal).reshape(b, t, width) @ w["out"]


def feed_forward(x: jax.Array, w: Params) -> jax.Array:
    return jax.nn.gelu(_norm(x) @ w["up"]) @ w["down"]


def experts(x: jax.Array, w: Params) -> jax.Array:
    """Each expert takes the tokens of its highest scores, twice as many as its share."""
    tokens = _norm(x).reshape(-1, x.shape[-1])
    gates = jax.nn.softmax((tokens @ w["router"]).astype(jnp.float32))
    share, chosen = jax.lax.top_k(gates.T, 2 * tokens.shape[0] // gates.shape[1])
    hidden = jax.nn.silu(jnp.einsum("ecd,edf->ecf", tokens[chosen], w["up"]))
    made = jnp.einsum("ecf,efd->ecd", hidden, w["down"]) * share[..., None].astype(x.dtype)
    mixed = jnp.zeros_like(tokens).at[chosen.reshape(-1)].add(made.reshape(-1, x.shape[-1]))
    return mixed.reshape(x.shape)


def expert_block(x: jax.Array, w: Params) -> jax.Array:
    x = x + attend(x, x, w, causal=True)
    return x + experts(x, w)


def encoder_block(x: jax.Array, w: Params) -> jax.Array:
    x = x + attend(x, x, w, causal=False)
    return x + feed_forward(x, w)


def decoder_block(x: jax.Array, memory: jax.Array, w: Params) -> jax.Array:
    x = x + attend(x, x, w["own"], causal=True)
    x = x + attend(x, memory, w["other"], causal=False)
    return x + feed_forward(x, w["own"])


def _projections(width: int) -> dict[str, tuple[int, ...]]:
    return {"q": (width, width), "kv": (width, 2 * width), "out": (width, width)}


def mixture(
    batch: int = 8, seq: int = 1024, layers: int = 4, width: int = 1024, count: int = 8
) -> Workload:
    def loss(params: Any, x: jax.Array) -> jax.Array:
        for w in params:
            x = expert_block(x, w)
        return jnp.mean(x.astype(jnp.float32) ** 2)

    wide = {"up": (count, width, 2 * width), "down": (count, 2 * width, width)}
    params = _weights(layers, {**_projections(width), "router": (width, count), **wide})
    x = jax.ShapeDtypeStruct((batch, seq, width), jnp.bfloat16)
    return _plain("block-mixture", loss, params, x)


def encoder_decoder(
    batch: int = 16, seq: int = 512, layers: int = 3, width: int = 1024
) -> Workload:
    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        encoder, decoder = params
        for w in encoder:
            x = encoder_block(x, w)
        for w in decoder:
            y = decoder_block(y, x, w)
        return jnp.mean(y.astype(jnp.float32) ** 2)

    feed = {"up": (width, 4 * width), "down": (4 * width, width)}
    encoder = _weights(layers, {**_projections(width), **feed})
    other = _weights(layers, _projections(width))
    decoder = [{"own": own, "other": o} for own, o in zip(encoder, other, strict=True)]
    x = jax.ShapeDtypeStruct((batch, seq, width), jnp.bfloat16)
    return _plain("block-encoder-decoder", loss, (encoder, decoder), x, x)
