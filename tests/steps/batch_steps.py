"""Gradients of a batch: the mean of those of its parts, and others that are not."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

Array = jax.Array
WIDTH, LAYERS, HEADS, VOCABULARY = 16, 2, 2, 48


def norm(x: Array) -> Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def block(x: Array, p: dict[str, Array]) -> Array:
    batch, time, width = x.shape
    q, k, v = jnp.split(norm(x) @ p["qkv"], 3, axis=-1)
    q, k, v = (a.reshape(batch, time, HEADS, -1) for a in (q, k, v))
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / jnp.sqrt(width / HEADS)
    scores = jnp.where(jnp.tril(jnp.ones((time, time), bool)), scores, -1e9)
    out = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v).reshape(batch, time, -1)
    x = x + out @ p["out"]
    return x + jax.nn.gelu(norm(x) @ p["up"]) @ p["down"]


def gpt_weights(width: int = WIDTH, layers: int = LAYERS, vocabulary: int = VOCABULARY) -> Any:
    sizes = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 4 * width)}
    sizes["down"] = (4 * width, width)
    keys = iter(jax.random.split(jax.random.key(0), 8))
    blocks = {k: 0.1 * jax.random.normal(next(keys), (layers, *s)) for k, s in sizes.items()}
    embedding = 0.1 * jax.random.normal(next(keys), (vocabulary, width))
    return {"embedding": embedding, "blocks": blocks}


def hidden(weights: Any, tokens: Array) -> Array:
    def layer(x: Array, p: Any) -> tuple[Array, None]:
        return block(x, p), None

    return norm(jax.lax.scan(layer, weights["embedding"][tokens], weights["blocks"])[0])


def logits_of(weights: Any, tokens: Array) -> Array:
    return jnp.einsum("btd,vd->btv", hidden(weights, tokens), weights["embedding"])


def optax_loss(weights: Any, tokens: Array, targets: Array) -> Array:
    logits = logits_of(weights, tokens).astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def padded_loss(weights: Any, tokens: Array, targets: Array) -> Array:
    """The mean over tokens that are no padding, of which each part has another number."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits_of(weights, tokens), targets)
    mask = (targets > VOCABULARY // 4).astype(jnp.float32)
    return jnp.sum(losses * mask) / jnp.maximum(jnp.sum(mask), 1)


def picked_loss(weights: Any, tokens: Array, targets: Array) -> Array:
    logits = hidden(weights, tokens) @ weights["embedding"].T
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)
    return -jnp.mean(picked)


def one_hot_loss(weights: Any, tokens: Array, targets: Array) -> Array:
    logits = hidden(weights, tokens) @ weights["embedding"].T
    normal = jax.nn.logsumexp(logits, axis=-1)
    own = jnp.sum(logits * jax.nn.one_hot(targets, VOCABULARY), axis=-1)
    return jnp.mean(normal - own) + 1e-4 * jnp.mean(normal**2)


def mlp_loss(weights: Any, batch: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
    x = batch["x"]
    for name in ("first", "second"):
        x = jax.nn.relu(x @ weights[name])
    error = jnp.mean((x - batch["y"]) ** 2)
    penalty = 1e-3 * sum(jnp.sum(w**2) for w in jax.tree.leaves(weights))
    return error + penalty, {"error": error, "largest weight": jnp.max(weights["first"])}


def convolution_loss(weights: Any, images: Array, labels: Array) -> Array:
    x = jax.nn.relu(jax.lax.conv(images, weights["kernel"], (2, 2), "SAME"))
    x = x.mean((2, 3)) @ weights["head"]
    return optax.softmax_cross_entropy(x, jax.nn.one_hot(labels, x.shape[-1])).mean()


def flat_loss(weights: Any, batch: dict[str, Array]) -> Array:
    """Rows of all examples are one axis in the largest product, and are split after it."""
    x = batch["x"].reshape(-1, WIDTH) @ weights["first"]
    error = jnp.mean((x - batch["y"].reshape(-1, WIDTH)) ** 2, -1).reshape(len(batch["x"]), -1)
    return jnp.mean(error * jnp.sum(batch["y"], -1))


def paired_loss(weights: Any, batch: dict[str, Array]) -> Array:
    """Each example is preferred to the next one: every nth example has another next one."""
    score = jnp.mean((batch["x"] @ weights["first"] - batch["y"]) ** 2, -1).reshape(-1, 2)
    return -jnp.mean(jax.nn.log_softmax(score)[:, 0])


def normalised_loss(weights: Any, batch: dict[str, Array]) -> Array:
    """Batch norm: the mean of each feature is over the batch."""
    x = batch["x"] @ weights["first"]
    x = (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-5)
    return jnp.mean((x @ weights["second"] - batch["y"]) ** 2)


def summed_loss(weights: Any, batch: dict[str, Array]) -> Array:
    """A sum over the batch, and a regulariser that grows with the batch."""
    error = jnp.sum((batch["x"] @ weights["first"] @ weights["second"] - batch["y"]) ** 2)
    return error + len(batch["x"]) * jnp.sum(weights["first"] ** 2)


def contrastive_loss(weights: Any, batch: dict[str, Array]) -> Array:
    a, b = batch["x"] @ weights["first"], batch["y"] @ weights["second"]
    return -jnp.mean(jnp.diag(jax.nn.log_softmax(a @ b.T)))


def dropout_loss(weights: Any, batch: dict[str, Array]) -> Array:
    """Random numbers of the whole batch, from one key."""
    x = batch["x"] * jax.random.bernoulli(jax.random.key(1), 0.5, batch["x"].shape)
    return jnp.mean((x @ weights["first"] @ weights["second"] - batch["y"]) ** 2)


def masked_loss(weights: Any, batch: dict[str, Array]) -> Array:
    """The mean over what is not padding: each part has another number of it."""
    error = ((batch["x"] @ weights["first"] @ weights["second"] - batch["y"]) ** 2).mean(-1)
    mask = batch["x"][:, 0] > 0
    return jnp.sum(error * mask) / jnp.sum(mask)


def root_loss(weights: Any, batch: dict[str, Array]) -> Array:
    return jnp.sqrt(jnp.mean((batch["x"] @ weights["first"] - batch["y"]) ** 2))


def shifted_loss(weights: Any, batch: dict[str, Array]) -> Array:
    """Each example with the next one."""
    x = batch["x"] @ weights["first"]
    return jnp.mean((x - jnp.roll(x, 1, axis=0)) ** 2)


def ranked_loss(weights: Any, batch: dict[str, Array]) -> Array:
    error = jnp.mean((batch["x"] @ weights["first"] - batch["y"]) ** 2, axis=-1)
    return jnp.mean(jnp.sort(error)[: len(error) // 2])


def clipped(weights: Any, batch: dict[str, Array]) -> Any:
    """A backward pass that mixes the batch, which no forward pass shows."""

    @jax.custom_vjp
    def scaled(x: Array) -> Array:
        return x

    scaled.defvjp(lambda x: (x, None), lambda _, g: (g / (1 + jnp.linalg.norm(g)),))
    return jnp.mean((scaled(batch["x"] @ weights["first"]) - batch["y"]) ** 2)
