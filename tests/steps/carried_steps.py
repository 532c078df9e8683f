"""Training steps of public libraries that jax compiles twice, and how each is compiled once."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.dynamic_scale import DynamicScale
from flax.training.train_state import TrainState
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from xlapipe import Workload

X = jax.ShapeDtypeStruct((32, 64), jnp.float32)


def loss(params: Any, x: Any) -> Any:
    return jnp.mean((x @ params["w"].astype(jnp.float32)) ** 2)


def params(dtype: Any = jnp.float32) -> Any:
    return {"w": jnp.ones((64, 64), dtype)}


def lbfgs(once: bool = False) -> Workload:
    """optax's line search returns its counters as arrays, where it begins with Python numbers."""
    optimizer = optax.lbfgs()
    state = optimizer.init(params())
    if once:
        state = jax.tree.map(lambda leaf: jnp.asarray(leaf, leaf.dtype), state)

    def step(params: Any, state: Any, x: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, x)
        updates, state = optimizer.update(
            gradient, state, params, value=value, grad=gradient, value_fn=lambda p: loss(p, x)
        )
        return optax.apply_updates(params, updates), state, value

    return Workload(name="lbfgs", fn=step, args=(params(), state, X), donate_argnums=(0, 1))


def mixed_adam(once: bool = False) -> Workload:
    """Adam's moments begin in the parameters' dtype, and come back in that of the gradients."""
    optimizer = optax.adam(1e-3, mu_dtype=jnp.float32 if once else None)
    master = params(jnp.float32 if once else jnp.bfloat16)

    def step(params: Any, state: Any, x: Any) -> Any:
        gradient = jax.grad(loss)(jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params), x)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    return Workload(
        name="adam", fn=step, args=(master, optimizer.init(master), X), donate_argnums=(0, 1)
    )


def sgd_of_an_array(once: bool = False) -> Workload:
    """A learning rate that is a float32 array makes float32 parameters of bfloat16 ones."""
    rate = 0.1 if once else np.float32(0.1)

    def step(params: Any, x: Any) -> Any:
        gradient = jax.grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - rate * g, params, gradient)

    return Workload(name="sgd", fn=step, args=(params(jnp.bfloat16), X), donate_argnums=0)


def train_state(once: bool = False) -> Workload:
    """Flax's TrainState counts its steps in a Python int, which is not on the mesh at first."""
    place = NamedSharding(AbstractMesh((2,), ("x",)), PartitionSpec())
    split = NamedSharding(place.mesh, PartitionSpec("x"))
    optimizer = optax.sgd(0.1)
    state = TrainState.create(apply_fn=loss, params=params(), tx=optimizer)

    def placed(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf), sharding=place)

    state = state.replace(params=jax.tree.map(placed, state.params))
    if once:
        state = state.replace(step=jax.ShapeDtypeStruct((), jnp.int32, sharding=place))

    def step(state: Any, x: Any) -> Any:
        return state.apply_gradients(grads=jax.grad(loss)(state.params, x))

    x = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=split)
    return Workload(name="train-state", fn=step, args=(state, x), donate_argnums=0)


def dynamic_scale(once: bool = False) -> Workload:
    """Flax's loss scale begins with Python numbers."""
    scale = DynamicScale()
    if once:
        scale = scale.replace(fin_steps=jnp.int32(0), scale=jnp.float32(scale.scale))

    def step(scale: Any, params: Any, x: Any) -> Any:
        scale, is_finite, value, gradient = scale.value_and_grad(loss)(params, x)
        moved = jax.tree.map(lambda p, g: jnp.where(is_finite, p - 0.1 * g, p), params, gradient)
        return scale, moved, value

    return Workload(name="scale", fn=step, args=(scale, params(), X))
