"""The ResNet programs, each broken in one way, at a small size."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from models.compressed_resnet import network
from models.compressed_resnet.compression import unpack_mask
from models.compressed_resnet.sizes import ResNetConfig, stem
from models.compressed_resnet.workloads import backward_pass, forward_pass, training_step
from xlapipe import Workload

CONFIG = ResNetConfig(blocks=(1, 1), width=16, classes=10, image=64)
BATCH = 1024

MAKE: dict[str, Callable[..., Workload]] = {
    "forward": forward_pass,
    "backward": backward_pass,
    "train": training_step,
}


def good(kind: str, config: ResNetConfig = CONFIG, batch: int = BATCH) -> Workload:
    return MAKE[kind](f"small-resnet-{kind}", config, batch)


def _residuals(kind: str, args: Any) -> Any:
    """Residuals of the step on these arguments."""
    if kind == "backward":
        return args[1]
    parameters = args[0] if kind == "forward" else args[0]["parameters"]
    return network.forward(CONFIG, parameters, args[1])[1]


def wide(kind: str) -> Workload:
    """Also returns the stem's mask with a byte for each element, and an activation in float32."""
    workload = good(kind)

    def fn(*args: Any) -> Any:
        shape = stem(CONFIG).output_shape(BATCH)
        mask = unpack_mask(_residuals(kind, args).stem.mask, shape)
        groups = mask.reshape(-1, 512).astype(jnp.int8)
        return {
            "good": workload.fn(*args),
            "extra": (mask, mask.astype(jnp.int8), groups + 1, mask.astype(jnp.float32)),
        }

    return replace(workload, fn=fn, name=f"{workload.name}-wide")


def twice(kind: str) -> Workload:
    """Also returns gradients of the step on other images, so that every layer is computed twice."""
    workload = good(kind)

    def fn(*args: Any) -> Any:
        parameters = args[0]["parameters"] if kind == "train" else args[0]
        images = jnp.ones(stem(CONFIG).input_shape(BATCH), jnp.bfloat16) * parameters["head"][
            "kernel"
        ][0, 0].astype(jnp.bfloat16)

        def total(parameters: Any) -> Any:
            return jnp.sum(network.apply(CONFIG, parameters, images)[0] ** 2)

        return {"good": workload.fn(*args), "extra": jax.grad(total)(parameters)}

    return replace(workload, fn=fn, name=f"{workload.name}-twice")


def hoards(kind: str) -> Workload:
    """Keeps copies of the first convolution's output until the end."""
    workload = good(kind)

    def fn(*args: Any) -> Any:
        number = jnp.float32(len(jax.tree.leaves(args)))
        value = number.astype(jnp.bfloat16) * jnp.ravel(jax.tree.leaves(args)[0])[0]
        kept = [jnp.full((BATCH, 32, 32, 16), value + copy, jnp.bfloat16) for copy in range(24)]
        kept = lax.optimization_barrier(kept)
        first, *rest = jax.tree.leaves(workload.fn(*args))
        first, kept = lax.optimization_barrier((first, kept))
        return first, rest, sum(jnp.sum(jnp.sin(copy[:, ::7])) for copy in kept)

    return replace(workload, fn=fn, name=f"{workload.name}-hoards")


def smaller(kind: str) -> Workload:
    """A program of another batch and of fewer classes than its expectations state."""
    workload = good(kind, replace(CONFIG, classes=7), BATCH // 2)
    return replace(workload, name=f"{workload.name}-smaller")


def donation(kind: str) -> Workload:
    """Donates what it should not, or does not donate what it should."""
    workload = good(kind)
    if kind == "train":
        return replace(workload, donate_argnums=(), name=f"{workload.name}-donation")

    def fn(parameters: Any, images: Any) -> Any:
        return workload.fn(parameters, images), images * 2

    return replace(workload, fn=fn, donate_argnums=1, name=f"{workload.name}-donation")


BROKEN = {
    "forward": ("wide", "twice", "hoards", "smaller", "donation"),
    "backward": ("wide", "twice", "hoards", "smaller"),
    "train": ("wide", "twice", "hoards", "smaller", "donation"),
}
for _kind, _names in BROKEN.items():
    globals()[f"{_kind}_good"] = partial(good, _kind)
    for _name in _names:
        globals()[f"{_kind}_{_name}"] = partial(globals()[_name], _kind)
