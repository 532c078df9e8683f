"""Parameters and running statistics of the network, as trees of arrays."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from models.compressed_resnet.sizes import Block, Convolution, ResNetConfig, blocks, stem

# Share of the batch in new running statistics.
MOMENTUM = 0.1


class ConvNorm(nnx.Module):
    """Kernel [O, h, w, I] of a convolution, and scale, bias and running moments of its batch norm.

    The kernel keeps the variance of gradients through a ReLU: He et al., arXiv:1502.01852.
    `scale` is that of all channels.
    """

    def __init__(self, convolution: Convolution, scale: float = 1.0, *, rngs: nnx.Rngs) -> None:
        outputs, height, width, _ = shape = convolution.kernel_shape
        initializer = nnx.initializers.normal((2 / (outputs * height * width)) ** 0.5)
        self.kernel = nnx.Param(initializer(rngs.params(), shape, jnp.float32))
        self.scale = nnx.Param(jnp.full((outputs,), scale, jnp.float32))
        self.bias = nnx.Param(jnp.zeros((outputs,), jnp.float32))
        self.mean = nnx.BatchStat(jnp.zeros((outputs,), jnp.float32))
        self.variance = nnx.BatchStat(jnp.ones((outputs,), jnp.float32))


class Bottleneck(nnx.Module):
    """The units of a block, at first its shortcut alone: Goyal et al., arXiv:1706.02677."""

    def __init__(self, block: Block, *, rngs: nnx.Rngs) -> None:
        for name, convolution in zip(block.names, block.convolutions, strict=True):
            setattr(self, name, ConvNorm(convolution, float(name != "conv3"), rngs=rngs))


class Classifier(nnx.Module):
    """The kernel [K, C] of a linear layer without bias."""

    def __init__(self, features: int, classes: int, *, rngs: nnx.Rngs) -> None:
        initializer = nnx.initializers.normal(features**-0.5)
        self.kernel = nnx.Param(initializer(rngs.params(), (classes, features), jnp.float32))


class ResNet(nnx.Module):
    """All parameters, in float32."""

    def __init__(self, config: ResNetConfig, *, rngs: nnx.Rngs) -> None:
        self.stem = ConvNorm(stem(config), rngs=rngs)
        self.blocks = nnx.List([Bottleneck(block, rngs=rngs) for block in blocks(config)])
        self.head = Classifier(config.features, config.classes, rngs=rngs)


def updated(statistics: Any, moments: Any) -> Any:
    """The running statistics after a batch with these moments; gradients do not flow into them."""
    return jax.tree.map(
        lambda running, new: (1 - MOMENTUM) * running + MOMENTUM * jax.lax.stop_gradient(new),
        statistics,
        moments,
    )


def initial(config: ResNetConfig, seed: int | jax.Array = 0) -> tuple[Any, Any]:
    """Parameters and running statistics as trees of arrays, for the functions of `network.py`."""
    model = ResNet(config, rngs=nnx.Rngs(seed))
    parameters, statistics = nnx.state(model, nnx.Param), nnx.state(model, nnx.BatchStat)
    return nnx.to_pure_dict(parameters), nnx.to_pure_dict(statistics)
