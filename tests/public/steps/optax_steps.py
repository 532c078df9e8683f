"""Optimizers of optax: an update of two weight matrices and a bias."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from tests.public.step import Step, f32, i32

_PARAMS = {"w": f32(256, 128), "v": f32(128, 64), "b": f32(64)}


def _update(optimizer: Any) -> Step:
    def step(params: Any, state: Any, gradients: Any) -> Any:
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    state = jax.eval_shape(optimizer.init, _PARAMS)
    return Step(step, (_PARAMS, state, _PARAMS), donate_argnums=(0, 1))


def optax_adamw() -> Step:
    return _update(optax.adamw(1e-3))


def optax_lion() -> Step:
    return _update(optax.lion(1e-3))


def optax_adafactor() -> Step:
    return _update(optax.adafactor(1e-3, min_dim_size_to_factor=32))


def optax_muon() -> Step:
    return _update(optax.contrib.muon(1e-3))


def optax_lamb() -> Step:
    return _update(optax.lamb(1e-3))


def optax_rmsprop_clipped() -> Step:
    return _update(optax.chain(optax.clip_by_global_norm(1.0), optax.rmsprop(1e-3, momentum=0.9)))


def optax_schedule_free() -> Step:
    return _update(optax.contrib.schedule_free_adamw(1e-3))


def optax_multi_steps() -> Step:
    """Gradients are accumulated over four calls."""
    return _update(optax.MultiSteps(optax.adam(1e-3), 4))


def optax_lbfgs() -> Step:
    """An iteration with its line search, which evaluates the loss in a loop."""
    optimizer = optax.lbfgs()

    def loss(params: Any) -> jax.Array:
        return jnp.sum((jnp.tanh(jnp.ones((8, 256)) @ params["w"]) @ params["v"] - 1) ** 2)

    def step(params: Any, state: Any) -> Any:
        value, gradients = optax.value_and_grad_from_state(loss)(params, state=state)
        updates, state = optimizer.update(
            gradients, state, params, value=value, grad=gradients, value_fn=loss
        )
        return optax.apply_updates(params, updates), state

    params = {"w": f32(256, 128), "v": f32(128, 64)}
    return Step(step, (params, jax.eval_shape(optimizer.init, params)))


def optax_cross_entropy() -> Step:
    def loss(logits: jax.Array, labels: jax.Array) -> Any:
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return jax.value_and_grad(lambda it: (losses * optax.safe_norm(it, 1e-6)).mean())(logits)

    return Step(loss, (f32(64, 100), i32(64)))


def optax_ctc_loss() -> Step:
    def loss(logits: jax.Array, padding: jax.Array, labels: jax.Array, lp: jax.Array) -> Any:
        return jax.grad(lambda it: optax.ctc_loss(it, padding, labels, lp).sum())(logits)

    return Step(loss, (f32(4, 50, 32), f32(4, 50), i32(4, 20), f32(4, 20)))
