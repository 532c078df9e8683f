"""Layers of flax: linen and nnx."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen, nnx

from tests.public.step import Step, bf16, f32, i32


def _linen_train(module: linen.Module, *args: Any) -> Step:
    params = jax.eval_shape(module.init, jax.random.key(0), *args)

    def step(params: Any, *args: Any) -> Any:
        return jax.value_and_grad(lambda it: jnp.mean(module.apply(it, *args) ** 2))(params)

    return Step(step, (params, *args))


def linen_conv() -> Step:
    return _linen_train(linen.Conv(32, (3, 3)), f32(8, 16, 16, 8))


def linen_attention() -> Step:
    return _linen_train(linen.MultiHeadDotProductAttention(num_heads=4), bf16(2, 64, 64))


def linen_lstm() -> Step:
    return _linen_train(linen.RNN(linen.OptimizedLSTMCell(64)), f32(4, 20, 32))


def linen_bidirectional_gru() -> Step:
    layer = linen.Bidirectional(linen.RNN(linen.GRUCell(32)), linen.RNN(linen.GRUCell(32)))
    return _linen_train(layer, f32(4, 20, 32))


def linen_embed() -> Step:
    return _linen_train(linen.Embed(512, 64), i32(4, 32))


def linen_scan_remat() -> Step:
    class Block(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array, _: None) -> Any:
            return x + linen.Dense(64)(linen.LayerNorm()(x)), None

    class Stack(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            stack = linen.scan(
                linen.remat(Block),
                variable_axes={"params": 0},
                split_rngs={"params": True},
                length=4,
            )
            return stack()(x, None)[0]

    return _linen_train(Stack(), f32(32, 64))


def linen_group_norm_transpose() -> Step:
    layer = linen.Sequential([linen.ConvTranspose(16, (3, 3)), linen.GroupNorm(4)])
    return _linen_train(layer, f32(4, 8, 8, 8))


def linen_decode() -> Step:
    """One token through flax's own attention with its cache, which the step donates."""
    attention = linen.MultiHeadDotProductAttention(num_heads=4, qkv_features=64, decode=True)
    variables = jax.eval_shape(attention.init, jax.random.key(0), f32(2, 128, 64))

    def decode(cache: Any, params: Any, x: jax.Array) -> Any:
        return attention.apply({"params": params, "cache": cache}, x, mutable=["cache"])

    args = (variables["cache"], variables["params"], f32(2, 1, 64))
    return Step(decode, args, donate_argnums=(0,))


def _nnx_train(make: Any, optimizer: Any, *args: Any) -> Step:
    model = nnx.eval_shape(make)
    state = nnx.eval_shape(lambda: nnx.Optimizer(model, optimizer, wrt=nnx.Param))

    @nnx.jit(donate_argnums=(0, 1))
    def step(model: Any, state: Any, *args: Any) -> jax.Array:
        value, gradients = nnx.value_and_grad(lambda it: jnp.mean(it(*args) ** 2))(model)
        state.update(model, gradients)
        return value

    return Step(step, (model, state, *args))


def nnx_linear() -> Step:
    return _nnx_train(lambda: nnx.Linear(64, 128, rngs=nnx.Rngs(0)), optax.adamw(1e-3), f32(32, 64))


def nnx_batch_norm_conv() -> Step:
    def make() -> Any:
        rngs = nnx.Rngs(0)
        return nnx.Sequential(nnx.Conv(3, 16, (3, 3), rngs=rngs), nnx.BatchNorm(16, rngs=rngs))

    return _nnx_train(make, optax.sgd(0.1, momentum=0.9), f32(8, 16, 16, 3))


def nnx_attention() -> Step:
    def make() -> Any:
        return nnx.MultiHeadAttention(4, 64, rngs=nnx.Rngs(0), decode=False)

    return _nnx_train(make, optax.adam(1e-3), f32(2, 32, 64))


def nnx_dropout() -> Step:
    """The generator of the dropout is part of the model and moves with each call."""

    def make() -> Any:
        rngs = nnx.Rngs(0)
        return nnx.Sequential(nnx.Linear(64, 64, rngs=rngs), nnx.Dropout(0.5, rngs=rngs))

    return _nnx_train(make, optax.adam(1e-3), f32(32, 64))


def nnx_lora() -> Step:
    return _nnx_train(
        lambda: nnx.LoRALinear(64, 64, lora_rank=4, rngs=nnx.Rngs(0)), optax.adam(1e-3), f32(32, 64)
    )


def nnx_split_merge() -> Step:
    """The functional form, which `jax.jit` takes."""
    graph, state = nnx.split(nnx.eval_shape(lambda: nnx.Linear(64, 32, rngs=nnx.Rngs(0))))

    def step(state: Any, x: jax.Array) -> Any:
        return jax.grad(lambda it: jnp.mean(nnx.merge(graph, it)(x) ** 2))(state)

    return Step(step, (state, f32(16, 64)))
