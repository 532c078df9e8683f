"""A transformer, of which docs/choose.md shows a search: scanned, or in a Python loop.

Plain jax, one step of gradient descent with momentum in bfloat16 or float32.
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
