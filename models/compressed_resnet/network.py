"""The whole network: stem, blocks, head.

`apply` is a function for `jax.grad`. `forward` and `backward` are its two passes as separate
programs, with what one keeps for the other as a tree of arrays.

Parameters are a tree of float32 arrays: `stem`, `blocks` (a mapping of a block's number to its
units) and `head`. Moments and running statistics have the tree of the parameters' batch norms.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from models.compressed_resnet import bottleneck, head, stem, uncompressed
from models.compressed_resnet.bottleneck import BlockMoments, BlockParameters, SavedBlock
from models.compressed_resnet.compression import Codes
from models.compressed_resnet.conv_norm import Moments
from models.compressed_resnet.convolution import Images
from models.compressed_resnet.differentiable import Layer
from models.compressed_resnet.head import Logits
from models.compressed_resnet.sizes import Block, ResNetConfig, blocks, checked_images
from models.compressed_resnet.sizes import stem as stem_of
from models.compressed_resnet.stem import SavedStem

Parameters: TypeAlias = Mapping[str, Any]
AllMoments: TypeAlias = dict[str, Any]


class Residuals(NamedTuple):
    """What the forward pass keeps for the backward pass.

    Attributes:
      stem, blocks: compressed activations of the layers.
      features: codes of the classifier's input.
    """

    stem: SavedStem
    blocks: list[SavedBlock]
    features: Codes


def apply(
    config: ResNetConfig, parameters: Parameters, images: Images
) -> tuple[Logits, AllMoments]:
    """The logits in float32, and the moments of each batch norm, in training.

    Gradients of the moments are ignored with compression. Images get no gradient.
    """
    block_of, stem_layer, images = _block(config), _stem(config), checked_images(config, images)
    x, of_stem = stem_layer(parameters["stem"], lax.stop_gradient(images))
    moments: AllMoments = {"stem": of_stem, "blocks": {}}
    for number, block in enumerate(blocks(config)):
        with jax.named_scope(f"block{number}"):
            x, moments["blocks"][number] = block_of(block, parameters["blocks"][number], x)
    if config.bits is None:
        return head.plain(parameters["head"], x), moments
    return head.saving_activations(config.bits, x.shape[1], parameters["head"], x), moments


def _stem(config: ResNetConfig) -> Callable[[Any, Images], tuple[Images, Moments]]:
    layer = _layer(config, stem.saving_activations, uncompressed.stem_layer)
    return lambda unit, images: layer(stem_of(config), config.bits, unit, images)


def _block(
    config: ResNetConfig,
) -> Callable[[Block, BlockParameters, Images], tuple[Images, BlockMoments]]:
    layer = _layer(config, bottleneck.saving_activations, uncompressed.block_layer)
    return lambda block, parameters, x: layer(block, config.bits, parameters, x)


def _layer(config: ResNetConfig, compressing: Layer, plain: Layer) -> Layer:
    """The layer that keeps what the config says."""
    if config.bits is not None:
        return compressing
    return plain if config.save == "activations" else jax.checkpoint(plain, static_argnums=(0, 1))


def forward(
    config: ResNetConfig, parameters: Parameters, images: Images
) -> tuple[Logits, Residuals, AllMoments]:
    """The logits, what the backward pass needs, and the moments of each batch norm.

    Raises:
      ValueError: the config has no `bits`, or images have another shape than it states.
    """
    bits, images = _bits(config), checked_images(config, images)
    saved: list[SavedBlock] = []
    moments: AllMoments = {"blocks": {}}
    x, of_stem, moments["stem"] = stem.forward(stem_of(config), bits, parameters["stem"], images)
    for number, block in enumerate(blocks(config)):
        x, of_block, moments["blocks"][number] = bottleneck.forward(
            block, bits, parameters["blocks"][number], x
        )
        saved.append(of_block)
    logits, features = head.forward(bits, parameters["head"], x)
    return logits, Residuals(of_stem, saved, features), moments


def backward(
    config: ResNetConfig, parameters: Parameters, residuals: Residuals, dlogits: Logits
) -> Parameters:
    """Gradients of the parameters, in float32.

    Raises:
      ValueError: the config has no `bits`.
    """
    _bits(config)
    every_block = blocks(config)
    of_blocks: dict[int, Any] = {}
    last = every_block[-1].conv3.output_shape(dlogits.shape[0])
    dx, of_head = head.backward(parameters["head"], residuals.features, dlogits, last)
    for number in reversed(range(len(every_block))):
        block, unit = every_block[number], parameters["blocks"][number]
        saved, dx = lax.optimization_barrier((residuals.blocks[number], dx))
        of_blocks[number], dx = bottleneck.backward(block, unit, saved, dx)
    of_stem, _ = stem.backward(stem_of(config), parameters["stem"], residuals.stem, dx)
    return {"stem": of_stem, "blocks": of_blocks, "head": of_head}


def _bits(config: ResNetConfig) -> int:
    if config.bits is None:
        raise ValueError(
            "forward and backward as separate programs need bits: expected 2, 4 or 8, found None; "
            "fix: differentiate `apply`, which trains without compression too"
        )
    return config.bits


def cross_entropy(logits: Logits, labels: Array) -> Float[Array, ""]:
    """The mean cross entropy of the labels, which are class numbers [N]."""
    chosen = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=1) - chosen)
