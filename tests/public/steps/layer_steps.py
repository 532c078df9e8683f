"""Steps of keras, penzai, e3nn, qwix and tunix."""

import importlib
import importlib.util
import os
import sys
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from tests.public.step import Step, f32, i32

os.environ["KERAS_BACKEND"] = "jax"


def _abstract(variables: Any) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(tuple(it.shape), it.dtype) for it in variables]


def _keras(make: Any, x: jax.ShapeDtypeStruct) -> Step:
    """The gradient through keras's stateless call."""
    import keras

    model = keras.Sequential([keras.Input(x.shape[1:], dtype=str(x.dtype)), *make(keras.layers)])

    def step(trained: Any, fixed: Any, x: jax.Array) -> Any:
        def loss(trained: Any) -> Any:
            outputs, fixed_after = model.stateless_call(trained, fixed, x, training=True)
            return jnp.mean(outputs**2), fixed_after

        return jax.value_and_grad(loss, has_aux=True)(trained)

    trained, fixed = model.trainable_variables, model.non_trainable_variables
    return Step(step, (_abstract(trained), _abstract(fixed), x))


def keras_dense() -> Step:
    return _keras(lambda it: [it.Dense(64, activation="relu"), it.Dense(10)], f32(32, 16))


def keras_conv_batch_norm() -> Step:
    def make(layers: Any) -> list[Any]:
        return [layers.Conv2D(16, 3), layers.BatchNormalization(), layers.GlobalAveragePooling2D()]

    return _keras(make, f32(8, 16, 16, 3))


def keras_lstm() -> Step:
    return _keras(lambda it: [it.LSTM(32)], f32(4, 20, 16))


def keras_embedding() -> Step:
    return _keras(lambda it: [it.Embedding(100, 16), it.LayerNormalization()], i32(4, 20))


def keras_train_step() -> Step:
    """`model.train_step` as keras's trainer jits it, with donated state."""
    import keras

    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(8)])
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="mse")
    model.optimizer.build(model.trainable_variables)
    state = (
        _abstract(model.trainable_variables),
        _abstract(model.non_trainable_variables),
        _abstract(model.optimizer.variables),
        _abstract(model.metrics_variables),
    )
    return Step(model.train_step, (state, (f32(32, 16), f32(32, 8))), donate_argnums=(0,))


def _penzai(make: Any) -> Step:
    from penzai import pz

    model = make(pz)
    names = ("batch", "features")

    def step(model: Any, x: jax.Array) -> Any:
        return model(pz.nx.wrap(x).tag(*names)).unwrap(*names)

    return Step(step, (model, f32(32, 16)))


def penzai_affine() -> Step:
    def make(pz: Any) -> Any:
        layer = pz.nn.Affine.from_config(
            "affine", jax.random.key(0), {"features": 16}, {"features": 32}
        )
        return _frozen(pz, layer)

    return _penzai(make)


def _frozen(pz: Any, layer: Any) -> Any:
    """The model with its parameters as values, which makes it a pytree without variables."""
    unbound, params = pz.unbind_params(layer)
    return pz.bind_variables(unbound, [it.freeze() for it in params])


def penzai_mlp() -> Step:
    def make(pz: Any) -> Any:
        from penzai.models import simple_mlp

        layer = simple_mlp.MLP.from_config(jax.random.key(0), [16, 64, 8])
        return _frozen(pz, layer)

    return _penzai(make)


def e3nn_tensor_product() -> Step:
    import e3nn_jax as e3nn

    def step(x: jax.Array, y: jax.Array) -> Any:
        irreps = e3nn.Irreps("4x0e+4x1o")
        product = e3nn.tensor_product(e3nn.IrrepsArray(irreps, x), e3nn.IrrepsArray(irreps, y))
        return product.array

    return Step(step, (f32(8, 16), f32(8, 16)))


def e3nn_spherical_harmonics() -> Step:
    import e3nn_jax as e3nn

    def step(x: jax.Array) -> Any:
        def of(x: jax.Array) -> jax.Array:
            vectors = e3nn.IrrepsArray("1o", x)
            return jnp.sum(e3nn.spherical_harmonics([0, 1, 2, 3], vectors, True).array ** 2)

        return jax.grad(of)(x)

    return Step(step, (f32(64, 3),))


def e3nn_linear() -> Step:
    import e3nn_jax as e3nn

    linear = e3nn.flax.Linear("8x0e+8x1o")
    irreps = e3nn.Irreps("4x0e+4x1o")
    x = e3nn.IrrepsArray(irreps, jnp.zeros((8, 16)))
    params = jax.eval_shape(linear.init, jax.random.key(0), x)

    def step(params: Any, x: jax.Array) -> Any:
        return linear.apply(params, e3nn.IrrepsArray(irreps, x)).array

    return Step(step, (params, f32(8, 16)))


def _qwix(qtype: str) -> Step:
    import qwix

    def step(x: jax.Array, w: jax.Array) -> Any:
        left = qwix.quantize(x, qtype, channelwise_axes=(0,))
        right = qwix.quantize(w, qtype, channelwise_axes=(1,))
        return qwix.dot_general(left, right, (((1,), (0,)), ((), ())))

    return Step(step, (f32(64, 128), f32(128, 64)))


def qwix_int8() -> Step:
    return _qwix("int8")


def qwix_int4() -> Step:
    return _qwix("int4")


def qwix_float8() -> Step:
    return _qwix("float8_e4m3fn")


def _tunix_qwen3() -> Any:
    """tunix's module of Qwen3, without the packages around it.

    Importing those loads data pipelines and trainers with their many dependencies.
    """
    if "tunix.models.qwen3.model" in sys.modules:
        return sys.modules["tunix.models.qwen3.model"]
    spec = importlib.util.find_spec("tunix")
    assert spec is not None
    (root,) = spec.submodule_search_locations or ()
    for name in ("tunix", "tunix.models", "tunix.models.qwen3", "tunix.generate", "tunix.utils"):
        package = types.ModuleType(name)
        package.__path__ = [str(Path(root).joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    return importlib.import_module("tunix.models.qwen3.model")


def _tunix_model(qwen3: Any) -> Any:
    config = qwen3.ModelConfig(
        num_layers=1,
        vocab_size=512,
        embed_dim=64,
        hidden_dim=128,
        num_heads=4,
        head_dim=16,
        num_kv_heads=2,
        rope_theta=10_000,
        norm_eps=1e-6,
    )
    return nnx.eval_shape(lambda: qwen3.Qwen3(config, rngs=nnx.Rngs(0)))


def tunix_train() -> Step:
    """A supervised step of tunix's Qwen3 under `nnx.jit`, which updates the model in place."""
    model = _tunix_model(_tunix_qwen3())
    optimizer = nnx.eval_shape(lambda: nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param))

    @nnx.jit(donate_argnums=(0, 1))
    def train(model: Any, optimizer: Any, tokens: jax.Array, positions: jax.Array) -> Any:
        mask = jnp.tril(jnp.ones((tokens.shape[1], tokens.shape[1]), bool))[None]

        def loss(model: Any) -> jax.Array:
            logits, _ = model(tokens, positions, None, mask)
            targets = tokens[:, 1:]
            losses = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], targets)
            return losses.mean()

        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    return Step(train, (model, optimizer, i32(2, 32), i32(2, 32)))


def tunix_decode() -> Step:
    """One token of tunix's Qwen3 with its cache, which the step donates."""
    graph, state = nnx.split(_tunix_model(_tunix_qwen3()))
    rows = f32(2, 128, 2, 16)
    cache = {f"layer_{n}": {"k": rows, "v": rows, "end_index": i32(2)} for n in range(1)}

    def decode(cache: Any, state: Any, tokens: jax.Array, positions: jax.Array) -> Any:
        mask = jnp.ones((2, 1, 128), bool)
        return nnx.merge(graph, state)(tokens, positions, cache, mask)

    args = (cache, state, i32(2, 1), i32(2, 1))
    return Step(decode, args, donate_argnums=(0,))
