"""A training step: forward, backward, SGD with momentum."""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from models.compressed_resnet.convolution import Images
from models.compressed_resnet.model import initial, updated
from models.compressed_resnet.network import apply, cross_entropy
from models.compressed_resnet.sizes import ResNetConfig

# `parameters`, `statistics` of batch norms, and the `optimizer`'s state.
State: TypeAlias = dict[str, Any]
Metrics: TypeAlias = dict[str, Array]
TrainStep: TypeAlias = Callable[[State, Array, Array], tuple[State, Metrics]]


def sgd() -> optax.GradientTransformation:
    """SGD with momentum at a constant rate."""
    return optax.sgd(0.1, momentum=0.9)


def initial_state(config: ResNetConfig, seed: int = 0) -> State:
    """The state before the first step."""
    parameters, statistics = initial(config, seed)
    moments = sgd().init(parameters)
    return {"parameters": parameters, "statistics": statistics, "optimizer": moments}


def abstract_state(config: ResNetConfig) -> State:
    """The state as `ShapeDtypeStruct`s."""
    state: State = jax.eval_shape(lambda: initial_state(config))
    return state


def train_step(config: ResNetConfig) -> TrainStep:
    """The step for a config. Donate its state, so that parameters are updated in place.

    Returns:
      `fn(state, images, labels)`: the state; images bf16[N, H, W, 3]; class numbers s32[N].
      Result: the state after the step; the mean `loss` before it, and the number of `correct`
      predictions.
    """
    optimizer = sgd()

    def train(state: State, images: Images, labels: Int[Array, " N"]) -> tuple[State, Metrics]:
        def loss_of(parameters: Any) -> tuple[Array, Any]:
            logits, moments = apply(config, parameters, images)
            return cross_entropy(logits, labels), (logits, moments)

        gradient = jax.value_and_grad(loss_of, has_aux=True)
        (loss, (logits, moments)), gradients = gradient(state["parameters"])
        with jax.named_scope("sgd"):
            updates, optimizer_state = optimizer.update(
                gradients, state["optimizer"], state["parameters"]
            )
            parameters = optax.apply_updates(state["parameters"], updates)
        correct = jnp.sum(jnp.argmax(logits, axis=1) == labels)
        return {
            "parameters": parameters,
            "statistics": updated(state["statistics"], moments),
            "optimizer": optimizer_state,
        }, {"loss": loss, "correct": correct}

    return train
