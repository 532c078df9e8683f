"""Small training steps of unrolled models, of which each calls its blocks in a Python loop."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import nnx

WIDTH = 16


# --- Plain functions


def attention(x: jax.Array, w: Any, past: jax.Array) -> jax.Array:
    scores = jax.nn.softmax(jnp.einsum("...td,...sd->...ts", x @ w["q"], past @ w["k"]))
    return jnp.tanh(scores @ (past @ w["v"]))


def mlp(x: jax.Array, w: Any) -> jax.Array:
    return jnp.tanh(jax.nn.gelu(x @ w["up"]) @ w["down"])


def weights() -> Any:
    shapes = {"up": (WIDTH, 2 * WIDTH), "down": (2 * WIDTH, WIDTH)}
    shapes |= dict.fromkeys("qkv", (WIDTH, WIDTH))
    return {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}


def block(w: Any, x: jax.Array, *, train: bool) -> jax.Array:
    """A block whose flag is passed by name."""
    x = x + attention(x, w, x)
    return x + mlp(x, w) * (0.5 if train else 1.0)


def transformer(params: Any, x: jax.Array) -> jax.Array:
    for w in params:
        x = block(w, x, train=True)
    return jnp.mean(x**2)


def encoder_block(w: Any, x: jax.Array) -> jax.Array:
    return x + mlp(x + attention(x, w, x), w)


def decoder_block(w: Any, x: jax.Array, memory: jax.Array) -> jax.Array:
    x = x + attention(x, w, x)
    return x + mlp(x + attention(x, w, memory), w)


def encoder_decoder(params: Any, x: jax.Array) -> jax.Array:
    memory = x
    for w in params[:3]:
        memory = encoder_block(w, memory)
    for w in params[3:]:
        x = decoder_block(w, x, memory)
    return jnp.mean(x**2)


def expert_block(w: Any, x: jax.Array, experts: int) -> jax.Array:
    """A mixture of experts, whose number is passed by position."""
    share = jax.nn.softmax(x @ w["q"][:, :experts])
    outs = jnp.stack([jnp.tanh(mlp(x * (n + 1), w)) for n in range(experts)], axis=-1)
    return x + jnp.einsum("btde,bte->btd", outs, share)


def mixture(params: Any, x: jax.Array) -> jax.Array:
    for w in params:
        x = expert_block(w, x, 2)
    return jnp.mean(x**2)


def state_block(w: Any, x: jax.Array) -> jax.Array:
    """A state-space block with a scan over the sequence, as of Mamba."""

    def advance(state: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = jnp.tanh(state @ w["k"] + row)
        return state, jnp.sin(state)

    rows = jnp.swapaxes(jax.nn.silu(x @ w["q"]), 0, 1)
    _, states = jax.lax.scan(advance, jnp.zeros_like(rows[0]), rows)
    return x + mlp(jnp.swapaxes(states, 0, 1), w)


def state_space(params: Any, x: jax.Array) -> jax.Array:
    for w in params:
        x = state_block(w, x)
    return jnp.mean(x**2)


# --- Plain blocks inside of transformations


@jax.jit
def jitted_block(w: Any, x: jax.Array) -> jax.Array:
    return encoder_block(w, x)


@jax.checkpoint
def checkpointed_block(w: Any, x: jax.Array) -> jax.Array:
    return encoder_block(w, x)


def in_a_loop(block: Any, params: Any, x: jax.Array) -> jax.Array:
    for w in params:
        x = block(w, x)
    return jnp.mean(x**2)


def half_checkpointed(params: Any, x: jax.Array) -> jax.Array:
    for number, w in enumerate(params):
        own = jax.checkpoint(encoder_block) if number % 2 == 0 else encoder_block
        x = own(w, x)
    return jnp.mean(x**2)


def half_scanned(params: Any, x: jax.Array) -> jax.Array:
    for w in params[:2]:
        x = encoder_block(w, x)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params[2:])
    x, _ = jax.lax.scan(lambda x, w: (encoder_block(w, x), None), x, stacked)
    return jnp.mean(x**2)


def whole_checkpointed(params: Any, x: jax.Array) -> jax.Array:
    policy = jax.checkpoint_policies.dots_saveable
    return jax.checkpoint(partial(in_a_loop, encoder_block), policy=policy)(params, x)


TRANSFORMED = {
    "jitted": lambda *own: in_a_loop(jitted_block, *own),
    "jitted where it is called": lambda *own: in_a_loop(jax.jit(encoder_block), *own),
    "under vmap": lambda *own: in_a_loop(jax.vmap(encoder_block, (None, 0)), *own),
    "checkpointed": lambda *own: in_a_loop(checkpointed_block, *own),
    "half of them checkpointed": half_checkpointed,
    "half of them scanned": half_scanned,
    "all in one checkpoint": whole_checkpointed,
}


# --- flax.nnx


class NnxBlock(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.up = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        hidden = jnp.tanh(nnx.gelu(self.up(x)))
        return x + jnp.sin(self.down(hidden) if train else hidden)


class NnxModel(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.blocks = nnx.List([NnxBlock(rngs) for _ in range(4)])

    def __call__(self, x: jax.Array) -> jax.Array:
        for own in self.blocks:
            x = own(x, train=True)
        return x


class NnxUnet(nnx.Module):
    """Each level has its own line."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.down1, self.down2, self.middle, self.up2, self.up1 = (NnxBlock(rngs) for _ in "12321")

    def __call__(self, x: jax.Array) -> jax.Array:
        first = self.down1(x, True)
        second = self.down2(first[:, ::2], True)
        x = self.middle(second[:, ::2], True)
        x = self.up2(jnp.repeat(x, 2, axis=1) + second, True)
        return self.up1(jnp.repeat(x, 2, axis=1) + first, True)


class NnxAttention(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.qkv = nnx.Linear(WIDTH, 3 * WIDTH, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        query, key, value = jnp.split(self.qkv(x), 3, axis=-1)
        scores = jax.nn.softmax(jnp.einsum("btd,bsd->bts", query, key))
        return jnp.tanh(self.dropout(scores) @ value)


class NnxDroppingBlock(nnx.Module):
    """Attention and an MLP, whose dropout counts its calls."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.attention, self.mlp = NnxAttention(rngs), NnxBlock(rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.sin(self.mlp(x + self.attention(x), True))


class NnxGpt(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.blocks = nnx.List([NnxDroppingBlock(rngs) for _ in range(4)])

    def __call__(self, x: jax.Array) -> jax.Array:
        for block in self.blocks:
            x = block(x)
        return x


def nnx_loss(model: Any, x: jax.Array) -> jax.Array:
    return jnp.mean(model(x) ** 2)


# --- flax.linen


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + nn.Dense(WIDTH)(jnp.tanh(nn.gelu(nn.Dense(2 * WIDTH)(nn.LayerNorm()(x)))))
        return jnp.sin(x)


class LinenVit(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Dense(WIDTH)(x)
        for _ in range(4):
            x = LinenBlock()(x)
        return x


class ResidualBlock(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        y = nn.Conv(WIDTH, (3,))(x)
        y = nn.BatchNorm(use_running_average=not train)(y)
        return jnp.tanh(x + nn.relu(y))


class ResNet(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(3):
            x = ResidualBlock()(x, train=True)
        return x


def linen_loss(model: nn.Module, variables: Any, x: jax.Array) -> Any:
    y, state = model.apply(variables, x, mutable=["batch_stats"])
    return jnp.mean(y**2), state  # type: ignore[operator]


# --- Steps of all


def _inputs(batch: int, length: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((batch, length, WIDTH), jnp.float32)


def plain(loss: Any, layers: int, *size: int) -> tuple[Any, tuple[Any, ...]]:
    return jax.value_and_grad(loss), ([weights() for _ in range(layers)], _inputs(*size))


def of_nnx(model: type[Any], *size: int) -> tuple[Any, tuple[Any, ...]]:
    graph, state = nnx.split(nnx.eval_shape(lambda: model(nnx.Rngs(0))))

    def step(state: Any, x: jax.Array) -> Any:
        return nnx.value_and_grad(nnx_loss)(nnx.merge(graph, state, copy=True), x)

    return step, (state, _inputs(*size))


def of_linen(model: nn.Module, *size: int) -> tuple[Any, tuple[Any, ...]]:
    variables = jax.eval_shape(model.init, jax.random.key(0), _inputs(*size))

    def step(variables: Any, x: jax.Array) -> Any:
        others = {name: own for name, own in variables.items() if name != "params"}
        loss = lambda own: linen_loss(model, {"params": own, **others}, x)  # noqa: E731
        return jax.value_and_grad(loss, has_aux=True)(variables["params"])

    return step, (variables, _inputs(*size))


def filled(arguments: Any) -> Any:
    """Positive numbers in place of shapes: variances are positive."""
    numbers = np.random.default_rng(0)

    def fill(leaf: Any) -> Any:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.key(0)
        return numbers.uniform(0.01, 0.3, leaf.shape).astype(leaf.dtype)

    return jax.tree.map(fill, arguments)


STEPS: dict[str, Any] = {
    "plain transformer": lambda *size: plain(transformer, 4, *size),
    "plain encoder and decoder": lambda *size: plain(encoder_decoder, 6, *size),
    "plain mixture of experts": lambda *size: plain(mixture, 3, *size),
    "plain state space": lambda *size: plain(state_space, 3, *size),
    "nnx transformer": lambda *size: of_nnx(NnxModel, *size),
    "nnx transformer with dropout": lambda *size: of_nnx(NnxGpt, *size),
    "nnx U-Net": lambda *size: of_nnx(NnxUnet, *size),
    **{
        name: lambda *size, loss=loss: plain(loss, 4, *size)  # type: ignore[misc]
        for name, loss in TRANSFORMED.items()
    },
    "linen ViT": lambda *size: of_linen(LinenVit(), *size),
    "linen ResNet": lambda *size: of_linen(ResNet(), *size),
}
