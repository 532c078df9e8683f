"""A small GPT of flax.nnx, trained with optax: the step of the ten jobs in docs/lab."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS = 8192, 256, 384, 6, 6


class Attention(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.qkv = nnx.Linear(WIDTH, 3 * WIDTH, use_bias=False, rngs=rngs)
        self.out = nnx.Linear(WIDTH, WIDTH, use_bias=False, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        b, t, _ = x.shape
        q, k, v = jnp.split(self.qkv(x), 3, axis=-1)
        q, k, v = (y.reshape(b, t, HEADS, WIDTH // HEADS) for y in (q, k, v))
        scores = jnp.einsum("blhd,bmhd->bhlm", q, k) * (WIDTH // HEADS) ** -0.5
        mask = jnp.tril(jnp.ones((t, t), bool))
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
        mixed = jnp.einsum("bhlm,bmhd->blhd", weights, v)
        return self.out(mixed.reshape(b, t, WIDTH))


class Block(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.norm_1 = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.norm_2 = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = Attention(rngs=rngs)
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.norm_1(x))
        return x + self.down(nnx.gelu(self.up(self.norm_2(x))))


class GPT(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.tokens = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.positions = nnx.Embed(CONTEXT, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(rngs=rngs) for _ in range(LAYERS)])
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.tokens(tokens) + self.positions(jnp.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.tokens.attend(self.norm(x))


optimizer = optax.adamw(3e-4)


def train_step(graphdef: Any) -> Any:
    """One step of AdamW: `step(model, opt_state, tokens) -> model, opt_state, loss`."""

    def step(model: Any, opt_state: Any, tokens: jax.Array) -> tuple[Any, Any, jax.Array]:
        def loss_of(model: Any) -> jax.Array:
            logits = nnx.merge(graphdef, model)(tokens[:, :-1])
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
            return losses.mean()

        loss, gradients = jax.value_and_grad(loss_of)(model)
        updates, opt_state = optimizer.update(gradients, opt_state, model)
        return optax.apply_updates(model, updates), opt_state, loss

    return step
