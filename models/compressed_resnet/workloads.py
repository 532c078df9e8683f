"""Workloads of the network: the two passes as separate programs, and a training step.

Building a workload allocates no arrays.
"""

from typing import Any

import jax
import jax.numpy as jnp

from models.compressed_resnet import expectations, network
from models.compressed_resnet.convolution import Images
from models.compressed_resnet.head import Logits
from models.compressed_resnet.model import initial
from models.compressed_resnet.network import Parameters, Residuals
from models.compressed_resnet.sizes import ResNetConfig, Save
from models.compressed_resnet.step import abstract_state, train_step
from xlapipe import Workload

# Reference dump 001's, whose batch is 2048. Goldens are kept for a small batch.
CLASSES = 100
BATCH = 8


def resnet50_forward(batch: int = BATCH, bits: int = 2, image: int = 224) -> Workload:
    """The forward pass: logits, and the compressed activations that the backward pass reads."""
    config = ResNetConfig(classes=CLASSES, image=image, bits=bits)

    def forward(parameters: Parameters, images: Images) -> tuple[Logits, Residuals]:
        logits, residuals, _ = network.forward(config, parameters, images)
        return logits, residuals

    return Workload(
        name=_name("resnet50-forward", config, batch),
        fn=forward,
        args=(_parameters(config), _images(config, batch)),
        expectations=expectations.forward(config, batch),
    )


def resnet50_backward(batch: int = BATCH, bits: int = 2, image: int = 224) -> Workload:
    """The backward pass, the program of reference dump 001. The residuals are donated."""
    config = ResNetConfig(classes=CLASSES, image=image, bits=bits)
    parameters = _parameters(config)
    logits, residuals, _ = jax.eval_shape(
        lambda *args: network.forward(config, *args), parameters, _images(config, batch)
    )

    def backward(parameters: Parameters, residuals: Residuals, dlogits: Logits) -> Parameters:
        return network.backward(config, parameters, residuals, dlogits)

    return Workload(
        name=_name("resnet50-backward", config, batch),
        fn=backward,
        args=(parameters, residuals, logits),
        donate_argnums=1,
        expectations=expectations.backward(config, batch),
    )


def resnet50_train(
    batch: int = BATCH,
    bits: int | None = 2,
    save: Save = "activations",
    image: int = 224,
) -> Workload:
    """A training step: forward, backward, SGD with momentum. The state is donated.

    Args:
      batch: images of a step. From 2,675 images of 224×224 on, arrays have 2³¹ elements or more.
      bits: None for training without compression.
      save: `block_inputs`, with `bits=None`: `jax.checkpoint` around each block.
    """
    config = ResNetConfig(classes=CLASSES, image=image, bits=bits, save=save)
    labels: Any = jax.ShapeDtypeStruct((batch,), jnp.int32)
    return Workload(
        name=_name("resnet50-train", config, batch),
        fn=train_step(config),
        args=(abstract_state(config), _images(config, batch), labels),
        donate_argnums=0,
        expectations=expectations.train(config, batch),
    )


def _name(name: str, config: ResNetConfig, batch: int) -> str:
    """The workload's name, with a suffix for each argument that is not default."""
    default = ResNetConfig(classes=CLASSES)
    suffixes = {
        "batch": (batch, BATCH),
        "bits": (config.bits, default.bits),
        "image": (config.image, default.image),
    }
    name += "".join(f"-{key}{value}" for key, (value, usual) in suffixes.items() if value != usual)
    return name if config.save == default.save else f"{name}-{config.save}"


def _parameters(config: ResNetConfig) -> Any:
    return jax.eval_shape(lambda: initial(config)[0])


def _images(config: ResNetConfig, batch: int) -> Any:
    return jax.ShapeDtypeStruct((batch, config.image, config.image, 3), jnp.bfloat16)
