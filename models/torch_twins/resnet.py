"""ResNet-18 in training, NCHW in float32, and its backward pass.

A convolution is followed by batch norm, which normalises by the statistics of the batch and
updates running ones.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from models.torch_twins.sizes import STAGES

EPSILON = 1e-5
MOMENTUM = 0.1


class Statistics(NamedTuple):
    """Running statistics of a batch norm.

    Attributes:
      batches: how many batches they are of; int64 in torch, which JAX has in x64 mode only.
    """

    batches: Int[Array, ""]
    mean: Float[Array, " C"]
    variance: Float[Array, " C"]


class Affine(NamedTuple):
    """Scale and shift of a batch norm."""

    weight: Float[Array, " C"]
    bias: Float[Array, " C"]


class Classifier(NamedTuple):
    """The last layer; the weight is [out, in]."""

    weight: Float[Array, "K C"]
    bias: Float[Array, " K"]


Kernel = Float[Array, "O I H W"]
# A kernel, and the batch norm after it.
Layer = tuple[Kernel, Affine]


def resnet_step(
    stem: Kernel,
    images: Float[Array, "B 3 H W"],
    *rest: Statistics | Affine | Kernel | Classifier | Float[Array, "B K"],
) -> tuple[Float[Array, "B K"], list[Statistics], list[Array | Affine | Classifier]]:
    """Computes logits, new statistics, and the gradients of the parameters."""
    *layers, classifier, g = rest
    kernels: list[Any] = [stem, *layers[2::3]]
    statistics: list[Any] = layers[0::3]
    affines: list[Any] = layers[1::3]

    def forward(
        kernels: list[Kernel], affines: list[Affine], classifier: Classifier
    ) -> tuple[Array, list[Statistics]]:
        return _resnet(images, zip(kernels, affines, strict=True), statistics, classifier)

    logits, pull_back, updated = jax.vjp(forward, kernels, affines, classifier, has_aux=True)
    # In training, g depends on the logits: the barrier keeps XLA from using g earlier.
    g, _ = lax.optimization_barrier((g, logits))
    of_kernels, of_affines, of_classifier = pull_back(g)
    pairs = zip(of_kernels, of_affines, strict=True)
    return logits, updated, [*(part for pair in pairs for part in pair), of_classifier]


def _resnet(
    images: Array, layers: Iterator[Layer], statistics: list[Statistics], classifier: Classifier
) -> tuple[Array, list[Statistics]]:
    updated: list[Statistics] = []

    def convolve(x: Array, stride: int) -> Array:
        kernel, affine = next(layers)
        padding = kernel.shape[-1] // 2
        y = lax.conv_general_dilated(
            x,
            kernel,
            (stride, stride),
            [(padding, padding)] * 2,
            dimension_numbers=("NCHW", "OIHW", "NCHW"),
        )
        y, new = _batch_norm(y, statistics[len(updated)], affine)
        updated.append(new)
        return y

    x = _max_pool(jax.nn.relu(convolve(images, 2)))
    for width in STAGES:
        for _ in range(2):
            # The first block of a stage halves the image, but for the first stage's.
            stride = 1 if x.shape[1] == width else 2
            y = jax.nn.relu(convolve(x, stride))
            y = convolve(y, 1)
            x = jax.nn.relu(y + (x if stride == 1 else convolve(x, stride)))
    pooled = jnp.mean(x, axis=(2, 3))
    return pooled @ classifier.weight.T + classifier.bias, updated


def _batch_norm(x: Array, running: Statistics, affine: Affine) -> tuple[Array, Statistics]:
    mean = jnp.mean(x, axis=(0, 2, 3))
    variance = jnp.var(x, axis=(0, 2, 3))
    count = x.size // x.shape[1]
    scale = lax.rsqrt(variance + EPSILON) * affine.weight
    y = (x - _of_channels(mean)) * _of_channels(scale) + _of_channels(affine.bias)
    # The running variance is unbiased, the one that normalises is not.
    unbiased = variance * (count / (count - 1))
    return y, Statistics(
        running.batches + 1,
        (1 - MOMENTUM) * running.mean + MOMENTUM * mean,
        (1 - MOMENTUM) * running.variance + MOMENTUM * unbiased,
    )


def _of_channels(values: Float[Array, " C"]) -> Float[Array, "C 1 1"]:
    return values[:, None, None]


def _max_pool(x: Float[Array, "B C H W"]) -> Float[Array, "B C h w"]:
    padding = [(0, 0), (0, 0), (1, 1), (1, 1)]
    pooled: Array = lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), padding)
    return pooled
