"""Steps of public projects that xlapipe refuses, since their plan would be of another program."""

import importlib
import os
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from tests.public.step import Step, f32
from xlapipe import Workload

os.environ["KERAS_BACKEND"] = "jax"


def of(step: str) -> Workload:
    made: Step = globals()[step]()
    return Workload(name=step, fn=made.fn, args=made.args)


def keras_train_function() -> Step:
    """What `model.fit` calls: keras's own jitted loop over an iterator."""
    import keras

    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(8)])
    model.compile(optimizer="adam", loss="mse")
    model.make_train_function()
    return Step(model.train_function, ((), iter(())))


def nnx_train_without_jit() -> Step:
    """Flax's train step before `nnx.jit`, which `jax.jit` would compile without its updates."""
    model = nnx.BatchNorm(16, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    def train(model: Any, optimizer: Any, x: Any) -> Any:
        loss, gradient = nnx.value_and_grad(lambda it: jnp.mean(it(x) ** 2))(model)
        optimizer.update(model, gradient)
        return loss

    return Step(train, (model, optimizer, f32(32, 16)))


def penzai_stateful_trainer() -> Step:
    """Penzai's trainer, whose `step` updates variables that its arguments do not hold."""
    from penzai import pz
    from penzai.models import simple_mlp
    from penzai.toolshed import basic_training

    mlp = simple_mlp.MLP.from_config(
        name="mlp", init_base_rng=jax.random.key(0), feature_sizes=[8, 8]
    )

    def loss_fn(model: Any, rng: Any, state: Any, x: Any) -> Any:
        del rng
        outputs = model(pz.nx.wrap(x, "batch", "features"))
        return (outputs.unwrap("batch", "features") ** 2).mean(), state, {}

    trainer = basic_training.StatefulTrainer.build(
        root_rng=jax.random.key(1), model=mlp, optimizer_def=optax.adam(1e-3), loss_fn=loss_fn
    )
    return Step(lambda x: trainer.step(x=x), (f32(4, 8),))


def brax_training_epoch() -> Step:
    """An update over devices as brax's agents map theirs."""
    gradients = importlib.import_module("brax.training.gradients")
    update = gradients.gradient_update_fn(
        lambda params, x: jnp.mean((x @ params) ** 2), optax.adam(1e-3), pmap_axis_name="i"
    )
    params = jax.ShapeDtypeStruct((1, 8, 8), jnp.float32)
    state = jax.eval_shape(jax.vmap(optax.adam(1e-3).init), params)
    mapped = jax.pmap(lambda p, x, s: update(p, x, optimizer_state=s), axis_name="i")
    return Step(mapped, (params, f32(1, 4, 8), state))


def equinox_pmapped() -> Step:
    import equinox as eqx

    mapped = eqx.filter_pmap(lambda model, x: jax.vmap(model)(x))
    return Step(mapped, (eqx.nn.Linear(4, 4, key=jax.random.key(0)), f32(1, 2, 4)))


def orbax_metadata() -> Step:
    """A checkpoint's metadata in place of its arrays."""
    value, sharding = (
        importlib.import_module(f"orbax.checkpoint._src.metadata.{name}")
        for name in ("value", "sharding")
    )
    leaf = value.ArrayMetadata(
        name="w",
        directory=None,
        shape=(8, 8),
        sharding=sharding.SingleDeviceShardingMetadata(device_str="TFRT_CPU_0"),
        dtype=jnp.dtype("float32"),
    )
    return Step(lambda state, x: x @ state["w"], ({"w": leaf}, f32(4, 8)))
