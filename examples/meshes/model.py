"""A GPT and a mixture of experts over a mesh of two axes, and their training step.

`data` splits the batch. Fully sharded weights are split over it too, and gathered where they are
used. `model` splits heads, features and experts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

VOCABULARY, HEAD = 32_768, 128
REMAT = {
    "none": None,
    "block": jax.checkpoint_policies.nothing_saveable,
    "products": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


@dataclass(frozen=True)
class Sizes:
    """Shapes of a model; without experts it is a GPT.

    Attributes:
      batch: sequences on all devices.
      experts: number of experts of each block, of which a token uses two.
    """

    layers: int = 4
    width: int = 2048
    batch: int = 16
    length: int = 1024
    experts: int = 0


@dataclass(frozen=True)
class Form:
    """How a step is laid over devices.

    Attributes:
      axes: sizes of the mesh's axes `data` and `model`.
      sharded: whether weights and moments are split over `data`.
      remat: what the backward pass computes again, a name of `REMAT`.
    """

    axes: dict[str, int]
    sharded: bool
    remat: str

    @classmethod
    def of(cls, mesh: str, remat: str, devices: int) -> "Form":
        """`data`, `fsdp`, `tensor`, or `DxM`: fully sharded over D, tensor-parallel over M.

        Raises:
          ValueError: the mesh or remat is unknown, or the mesh has another number of devices.
        """
        whole = {"data": (devices, 1), "fsdp": (devices, 1), "tensor": (1, devices)}
        if mesh in whole:
            data, model = whole[mesh]
        else:
            data, _, model = (int(n) if n.isdecimal() else n for n in mesh.partition("x"))
            if not isinstance(data, int) or not isinstance(model, int) or data * model != devices:
                raise ValueError(
                    f"mesh={mesh!r}: expected data, fsdp, tensor, or DxM with {devices} devices"
                )
        if remat not in REMAT:
            raise ValueError(f"remat={remat!r}: expected one of {', '.join(REMAT)}")
        return cls({"data": data, "model": model}, mesh != "data" and data > 1, remat)


def shapes(sizes: Sizes) -> dict[str, Any]:
    """Shapes of the weights."""
    d, e = sizes.width, sizes.experts
    block = {"norm": (2, d), "qkv": (d, 3, d), "out": (d, d)}
    if e:
        block |= {"router": (d, e), "up": (e, d, 2 * d), "down": (e, 2 * d, d)}
    else:
        block |= {"up": (d, 4 * d), "down": (4 * d, d)}
    return {"embedding": (VOCABULARY, d), "blocks": [dict(block) for _ in range(sizes.layers)]}


def specs(sizes: Sizes, form: Form) -> dict[str, Any]:
    """The PartitionSpec of each weight, as it is stored."""
    data = "data" if form.sharded else None
    block = {"norm": P(), "qkv": P(data, None, "model"), "out": P("model", data)}
    if sizes.experts:
        block |= {"router": P(), "up": P("model", data, None), "down": P("model", data, None)}
    else:
        block |= {"up": P(data, "model"), "down": P("model", data)}
    return {"embedding": P("model", data), "blocks": [dict(block) for _ in range(sizes.layers)]}


def gathered(weight: jax.Array, *spec: str | None) -> jax.Array:
    """The weight in bfloat16, whole along `data`."""
    return jax.lax.with_sharding_constraint(weight.astype(jnp.bfloat16), P(*spec))


def rows(x: jax.Array) -> jax.Array:
    return jax.lax.with_sharding_constraint(x, P("data", None, None))


def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-6)
    return (y * scale).astype(x.dtype)


def attention(w: Any, x: jax.Array) -> jax.Array:
    batch, length, width = x.shape
    qkv = jnp.einsum("btd,dcf->btcf", x, gathered(w["qkv"], None, None, "model"))
    q, k, v = jnp.moveaxis(qkv.reshape(batch, length, 3, -1, HEAD), 2, 0)
    scores = jnp.einsum("bthd,bshd->bhts", q, k).astype(jnp.float32) * HEAD**-0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
    mixed = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores).astype(x.dtype), v)
    return mixed.reshape(batch, length, width) @ gathered(w["out"], "model", None)


def mlp(w: Any, x: jax.Array) -> jax.Array:
    hidden = jax.nn.gelu(x @ gathered(w["up"], None, "model"))
    return hidden @ gathered(w["down"], "model", None)


def experts(w: Any, x: jax.Array) -> jax.Array:
    """Sends each token to two experts, as GShard does: those above a capacity are dropped."""
    length, count = x.shape[1], w["router"].shape[1]
    capacity = 2 * length // count
    share = jax.nn.softmax((x @ w["router"].astype(x.dtype)).astype(jnp.float32))
    weight, chosen = jax.lax.top_k(share, 2)
    mask = jax.nn.one_hot(chosen, count, dtype=jnp.float32).sum(2)
    place = jnp.cumsum(mask, axis=1) * mask - 1
    dispatch = jax.nn.one_hot(place.astype(jnp.int32), capacity, dtype=x.dtype)
    sent = jnp.einsum("btec,btd->ebcd", dispatch, x)
    sent = jax.lax.with_sharding_constraint(sent, P("model", "data", None, None))
    hidden = jax.nn.gelu(jnp.einsum("ebcd,edf->ebcf", sent, gathered(w["up"], "model", None, None)))
    out = jnp.einsum("ebcf,efd->ebcd", hidden, gathered(w["down"], "model", None, None))
    combine = dispatch * (share * mask / weight.sum(-1, keepdims=True)).astype(x.dtype)[..., None]
    return jnp.einsum("btec,ebcd->btd", combine, out)


def block(w: Any, x: jax.Array) -> jax.Array:
    x = rows(x + attention(w, norm(x, w["norm"][0])))
    feed = experts if "router" in w else mlp
    return rows(x + feed(w, norm(x, w["norm"][1])))


def loss_of(remat: str, params: Any, tokens: jax.Array) -> jax.Array:
    policy = REMAT[remat]
    apply = block if policy is None else jax.checkpoint(block, policy=policy)
    embedding = gathered(params["embedding"], "model", None)
    x = rows(embedding[tokens[:, :-1]])
    for w in params["blocks"]:
        x = apply(w, x)
    logits = (x @ embedding.T).astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - chosen)


def training_step(form: Form) -> Callable[..., Any]:
    """`step(state, tokens) -> state, loss` of Adam; a state is weights and both moments."""

    def step(state: Any, tokens: jax.Array) -> Any:
        params, first, second = state
        loss, gradients = jax.value_and_grad(partial(loss_of, form.remat))(params, tokens)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
        second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, second, gradients)
        params = jax.tree.map(
            lambda p, m, v: p - 1e-4 * m / (jnp.sqrt(v) + 1e-8), params, first, second
        )
        return (params, first, second), loss

    return step
