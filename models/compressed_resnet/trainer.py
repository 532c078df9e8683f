"""A network in training: its state on the device, and steps on batches of uint8 images."""

from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, BFloat16, Int, UInt8

from models.compressed_resnet.cli.options import Settings
from models.compressed_resnet.data.dataset import Dataset, Images, Labels
from models.compressed_resnet.network import predict
from models.compressed_resnet.step import State, abstract_state, initial_state, train_step
from models.first_device import first_device

# Of ImageNet's pixels, by colour.
MEAN = (123.675, 116.28, 103.53)
DEVIATION = (58.395, 57.12, 57.375)


def normalised(pixels: UInt8[Array, "N H W 3"]) -> BFloat16[Array, "N H W 3"]:
    """Pixels with about zero mean and unit variance."""
    mean, deviation = jnp.asarray(MEAN), jnp.asarray(DEVIATION)
    return ((pixels.astype(jnp.float32) - mean) / deviation).astype(jnp.bfloat16)


class Trainer:
    """A network, its optimiser and their state.

    Attributes:
      state: as in step.py; set by `initialise`, or from a checkpoint.
    """

    state: State

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.device = first_device()
        self._optimizer = _optimizer(settings)
        self._step = train_step(settings.config, self._optimizer)

    def initialise(self) -> None:
        """Sets the state before the first step, which the seed determines."""
        config, seed = self.settings.config, self.settings.seed
        self.state = initial_state(config, self._optimizer, seed)

    @property
    def abstract_state(self) -> State:
        """The state's tree, as `ShapeDtypeStruct`s on the device."""
        on_device = jax.sharding.SingleDeviceSharding(self.device)
        tree: State = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=on_device),
            abstract_state(self.settings.config, self._optimizer),
        )
        return tree

    def step(self, images: Images, labels: Labels) -> Array:
        """Takes a step, and returns the loss before it, which may not be computed yet."""
        self.state, metrics = self._jitted_step(self.state, images, labels)
        loss: Array = metrics["loss"]
        return loss

    def accuracy(self, dataset: Dataset) -> float:
        """The share of the images whose label is the most probable class."""
        batch, count = self.settings.batch, len(dataset.labels)
        correct = 0
        for start in range(0, count, batch):
            # The last indices are repeated, so that every batch has the same shape.
            indices = [min(index, count - 1) for index in range(start, start + batch)]
            classes = np.asarray(self._classes(self.state, dataset.images(indices)))
            valid = min(batch, count - start)
            correct += int((classes == dataset.labels[indices])[:valid].sum())
        return correct / count

    @property
    def peak_bytes(self) -> int | None:
        """The most memory of the device that was in use; None if the device does not count it."""
        statistics = self.device.memory_stats() or {}
        return statistics.get("peak_bytes_in_use")

    @cached_property
    def _jitted_step(self) -> Any:
        def step(
            state: State, pixels: UInt8[Array, "N H W 3"], labels: Int[Array, " N"]
        ) -> tuple[State, dict[str, Array]]:
            return self._step(state, normalised(pixels), labels)

        return jax.jit(step, donate_argnums=0)

    @cached_property
    def _classes(self) -> Any:
        config = self.settings.config

        def classes(state: State, pixels: UInt8[Array, "N H W 3"]) -> Int[Array, " N"]:
            logits = predict(config, state["parameters"], state["statistics"], normalised(pixels))
            return jnp.argmax(logits, axis=1)

        return jax.jit(classes)


def _optimizer(settings: Settings) -> optax.GradientTransformation:
    rate = settings.learning_rate
    if settings.schedule == "cosine":
        rate = optax.cosine_decay_schedule(rate, settings.steps)
    return optax.sgd(rate, settings.momentum)
