"""The ResNet programs, each broken in one way, at a small size."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from models.compressed_resnet import network
from models.compressed_resnet.compression import unpack_mask
from models.compressed_resnet.sizes import GROUP, ResNetConfig, stem
from models.compressed_resnet.workloads import backward_pass, forward_pass, training_step
from xlapipe import Workload

# One block with a shortcut's convolution: compiles take seconds, and each kind of layer is there.
CONFIG = ResNetConfig(blocks=(1,), width=16, classes=32, image=64)
BATCH = 1024

MAKE: dict[str, Callable[..., Workload]] = {
    "forward": forward_pass,
    "backward": backward_pass,
    "train": training_step,
}


def good(kind: str, config: ResNetConfig = CONFIG, batch: int = BATCH) -> Workload:
    return MAKE[kind](f"small-resnet-{kind}", config, batch)


def _parameters(kind: str, args: Any) -> Any:
    return args[0]["parameters"] if kind == "train" else args[0]


def wide(kind: str) -> Workload:
    """Also returns the stem's mask with a byte for each element, and an activation in float32."""
    workload = good(kind)

    @wraps(workload.fn)
    def fn(*args: Any) -> Any:
        residuals: Any = (
            args[1]
            if kind == "backward"
            else network.forward(CONFIG, _parameters(kind, args), args[1])[1]
        )
        mask = unpack_mask(residuals.stem.mask, stem(CONFIG).output_shape(BATCH))
        # Reversed, so that XLA writes these shapes instead of a bitcast of the first.
        groups = mask.reshape(-1, GROUP)[:, ::-1].astype(jnp.int8)
        words = mask.reshape(-1, GROUP // 32, 32)[:, :, ::-1].astype(jnp.int8)
        extra = mask, mask.astype(jnp.int8), groups, words, mask.astype(jnp.float32)
        return {"good": workload.fn(*args), "extra": extra}

    return replace(workload, fn=fn, name=f"{workload.name}-wide")


def twice(kind: str) -> Workload:
    """Also returns gradients on other images, and keeps copies of their convolution until the end.

    Every layer is computed twice.
    """
    workload = good(kind)

    @wraps(workload.fn)
    def fn(*args: Any) -> Any:
        parameters = _parameters(kind, args)
        number = parameters["head"]["kernel"][0, 0].astype(jnp.bfloat16)
        images = jnp.ones(stem(CONFIG).input_shape(BATCH), jnp.bfloat16) * number
        shape = stem(CONFIG).output_shape(BATCH)
        kept = lax.optimization_barrier([jnp.full(shape, number + copy) for copy in range(24)])

        def total(parameters: Any) -> Any:
            return jnp.sum(network.apply(CONFIG, parameters, images)[0] ** 2)

        outputs = workload.fn(*args), jax.grad(total)(parameters)
        outputs, kept = lax.optimization_barrier((outputs, kept))
        return outputs, sum(jnp.sum(jnp.sin(copy[:, ::7])) for copy in kept)

    return replace(workload, fn=fn, name=f"{workload.name}-twice")


def smaller(kind: str) -> Workload:
    """A program of another batch and of fewer classes, with the opposite donation."""
    workload = good(kind, replace(CONFIG, classes=24), BATCH // 2)
    if kind != "forward":
        return replace(workload, donate_argnums=(), name=f"{workload.name}-smaller")

    @wraps(workload.fn)
    def fn(*args: Any) -> Any:
        _, images = args
        return *workload.fn(*args), images * 2

    return replace(workload, fn=fn, donate_argnums=1, name=f"{workload.name}-smaller")


KINDS = tuple(MAKE)
BROKEN = (wide, twice, smaller)
for _kind in KINDS:
    for _make in (good, *BROKEN):
        globals()[f"{_kind}_{_make.__name__}"] = partial(_make, _kind)
