"""Families of training steps for `record_choose.py`: what rematerialisation does differs in each.

All are plain jax, one step of gradient descent with momentum in bfloat16 or float32.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from xlapipe import Workload

Params = dict[str, Any]
Loss = Callable[[Params, jax.Array], jax.Array]


def _workload(name: str, loss: Loss, shapes: dict[str, tuple[int, ...]], batch: Any) -> Workload:
    """A step with donated parameters and momenta."""

    def step(params: Params, momenta: Params, batch: jax.Array) -> tuple[Any, Params, Params]:
        value, gradients = jax.value_and_grad(loss)(params, batch)
        momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, gradients)
        return value, jax.tree.map(lambda p, m: p - 1e-3 * m, params, momenta), momenta

    params = {key: jax.ShapeDtypeStruct(shape, jnp.bfloat16) for key, shape in shapes.items()}
    return Workload(name=name, fn=step, args=(params, params, batch), donate_argnums=(0, 1))


def _norm(x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6)).astype(x.dtype)


def _attention(x: jax.Array, qkv: jax.Array, out: jax.Array, heads: int) -> jax.Array:
    b, t, d = x.shape
    q, k, v = jnp.split((x @ qkv).reshape(b, t, 3 * heads, d // heads), 3, axis=2)
    scores = jnp.einsum("bthd,bshd->bhts", q, k) * (d // heads) ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -1e9)
    weights = jax.nn.softmax(scores.astype(jnp.float32)).astype(x.dtype)
    mixed = jnp.einsum("bhts,bshd->bthd", weights, v).reshape(b, t, d)
    return checkpoint_name(mixed, "attention") @ out


def transformer(
    batch: int = 8,
    seq: int = 1024,
    layers: int = 12,
    width: int = 1024,
    heads: int = 16,
    vocabulary: int = 32768,
    scan: bool = True,
) -> Workload:
    """A causal transformer, its layers scanned or in a Python loop."""

    def layer(x: jax.Array, w: Params) -> tuple[jax.Array, None]:
        x = x + _attention(_norm(x), w["qkv"], w["out"], heads)
        hidden = checkpoint_name(jax.nn.gelu(_norm(x) @ w["up"]), "hidden")
        return x + hidden @ w["down"], None

    def loss(params: Params, tokens: jax.Array) -> jax.Array:
        x = params["embedding"][tokens[:, :-1]]
        stacked = {key: params[key] for key in ("qkv", "out", "up", "down")}
        if scan:
            x, _ = jax.lax.scan(layer, x, stacked)
        else:
            for number in range(layers):
                x, _ = layer(x, {key: value[number] for key, value in stacked.items()})
        logits = (_norm(x) @ params["embedding"].T).astype(jnp.float32)
        picked = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)

    shapes = {
        "embedding": (vocabulary, width),
        "qkv": (layers, width, 3 * width),
        "out": (layers, width, width),
        "up": (layers, width, 4 * width),
        "down": (layers, 4 * width, width),
    }
    tokens = jax.ShapeDtypeStruct((batch, seq + 1), jnp.int32)
    return _workload(f"transformer-{'scan' if scan else 'loop'}-{seq}", loss, shapes, tokens)


def _convolution(x: jax.Array, w: jax.Array, stride: int = 1) -> jax.Array:
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=numbers)


def convnet(batch: int = 128, size: int = 64, width: int = 64, blocks: int = 4) -> Workload:
    """Residual blocks in four stages."""
    shapes: dict[str, tuple[int, ...]] = {"stem": (3, 3, 3, width)}
    for stage in range(4):
        channels = width * 2**stage
        for block in range(blocks):
            shapes[f"{stage}.{block}.a"] = (3, 3, channels, channels)
            shapes[f"{stage}.{block}.b"] = (3, 3, channels, channels)
        if stage < 3:
            shapes[f"{stage}.down"] = (3, 3, channels, 2 * channels)

    def loss(params: Params, images: jax.Array) -> jax.Array:
        x = _convolution(images, params["stem"])
        for stage in range(4):
            for block in range(blocks):
                inner = jax.nn.relu(_norm(_convolution(x, params[f"{stage}.{block}.a"])))
                x = jax.nn.relu(x + _norm(_convolution(inner, params[f"{stage}.{block}.b"])))
            if stage < 3:
                x = _convolution(x, params[f"{stage}.down"], stride=2)
        return jnp.mean(x.astype(jnp.float32) ** 2)

    images = jax.ShapeDtypeStruct((batch, size, size, 3), jnp.bfloat16)
    return _workload("convnet", loss, shapes, images)


def unet(batch: int = 16, size: int = 64, width: int = 128, levels: int = 3) -> Workload:
    """A denoiser with skip connections, which are kept over the whole inner part."""
    shapes: dict[str, tuple[int, ...]] = {"in": (3, 3, 4, width), "end": (3, 3, width, 4)}
    for level in range(levels):
        channels = width * 2**level
        shapes[f"down.{level}"] = (3, 3, channels, 2 * channels)
        shapes[f"same.{level}"] = (3, 3, 2 * channels, 2 * channels)
        shapes[f"up.{level}"] = (3, 3, 3 * channels, channels)

    def loss(params: Params, images: jax.Array) -> jax.Array:
        x, skips = jax.nn.silu(_convolution(images, params["in"])), []
        for level in range(levels):
            skips.append(checkpoint_name(x, "skip"))
            x = jax.nn.silu(_norm(_convolution(x, params[f"down.{level}"], stride=2)))
            x = x + jax.nn.silu(_norm(_convolution(x, params[f"same.{level}"])))
        for level in reversed(range(levels)):
            b, h, w, c = x.shape
            x = jax.image.resize(x, (b, 2 * h, 2 * w, c), "nearest")
            x = jnp.concatenate([x, skips[level]], -1)
            x = jax.nn.silu(_norm(_convolution(x, params[f"up.{level}"])))
        return jnp.mean((_convolution(x, params["end"]) - images).astype(jnp.float32) ** 2)

    images = jax.ShapeDtypeStruct((batch, size, size, 4), jnp.bfloat16)
    return _workload("unet", loss, shapes, images)


def mixture(
    batch: int = 8, seq: int = 1024, layers: int = 8, width: int = 1024, experts: int = 8
) -> Workload:
    """Layers with a mixture of experts: each token goes to one, dense over a fixed capacity."""
    capacity = 2 * batch * seq // experts

    def layer(x: jax.Array, w: Params) -> tuple[jax.Array, None]:
        x = x + _attention(_norm(x), w["qkv"], w["out"], 16)
        tokens = _norm(x).reshape(-1, width)
        gates = jax.nn.softmax((tokens @ w["router"]).astype(jnp.float32))
        chosen = jax.lax.top_k(gates.T, capacity)
        gathered = tokens[chosen[1]]
        hidden = checkpoint_name(jax.nn.silu(jnp.einsum("ecd,edf->ecf", gathered, w["up"])), "ffn")
        made = jnp.einsum("ecf,efd->ecd", hidden, w["down"]) * chosen[0][..., None].astype(x.dtype)
        mixed = jnp.zeros_like(tokens).at[chosen[1].reshape(-1)].add(made.reshape(-1, width))
        return x + mixed.reshape(x.shape), None

    def loss(params: Params, x: jax.Array) -> jax.Array:
        x, _ = jax.lax.scan(layer, x, params)
        return jnp.mean(x.astype(jnp.float32) ** 2)

    shapes = {
        "qkv": (layers, width, 3 * width),
        "out": (layers, width, width),
        "router": (layers, width, experts),
        "up": (layers, experts, width, 2 * width),
        "down": (layers, experts, 2 * width, width),
    }
    x = jax.ShapeDtypeStruct((batch, seq, width), jnp.bfloat16)
    return _workload("mixture", loss, shapes, x)


def state_space(
    batch: int = 8, seq: int = 2048, layers: int = 8, width: int = 1024, states: int = 16
) -> Workload:
    """Diagonal state-space layers by an associative scan over time, in a Python loop."""

    def mix(x: jax.Array, w: Params) -> jax.Array:
        inner = _norm(x) @ w["in"]
        decay = jax.nn.sigmoid((inner @ w["decay"]).astype(jnp.float32))
        driven = (inner @ w["drive"]).astype(jnp.float32)

        def combine(left: Any, right: Any) -> Any:
            return left[0] * right[0], left[1] * right[0] + right[1]

        _, state = jax.lax.associative_scan(combine, (decay, driven), axis=1)
        state = checkpoint_name(state.astype(x.dtype), "state")
        return x + (jax.nn.silu(inner) + state @ w["read"]) @ w["out"]

    def loss(params: Params, x: jax.Array) -> jax.Array:
        for number in range(layers):
            x = mix(x, {key: value[number] for key, value in params.items()})
        return jnp.mean(x.astype(jnp.float32) ** 2)

    wide = 32 * states
    shapes = {
        "in": (layers, width, 2 * width),
        "decay": (layers, 2 * width, wide),
        "drive": (layers, 2 * width, wide),
        "read": (layers, wide, 2 * width),
        "out": (layers, 2 * width, width),
    }
    x = jax.ShapeDtypeStruct((batch, seq, width), jnp.bfloat16)
    return _workload("state-space", loss, shapes, x)
