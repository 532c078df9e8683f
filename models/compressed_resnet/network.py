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
from models.compressed_resnet.conv_norm import Compressed, Moments, compress
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
      stem, blocks: compressed activations of the layers, or, with `save="block_inputs"`, their
        compressed inputs alone.
      features: codes of the classifier's input.
    """

    stem: SavedStem | Compressed
    blocks: list[SavedBlock] | list[Compressed]
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
    layer = _layer(config, stem.saving_activations, stem.saving_input, uncompressed.stem_layer)
    return lambda unit, images: layer(stem_of(config), config.bits, unit, images)


def _block(
    config: ResNetConfig,
) -> Callable[[Block, BlockParameters, Images], tuple[Images, BlockMoments]]:
    layer = _layer(
        config, bottleneck.saving_activations, bottleneck.saving_input, uncompressed.block_layer
    )
    return lambda block, parameters, x: layer(block, config.bits, parameters, x)


def _layer(config: ResNetConfig, activations: Layer, inputs: Layer, plain: Layer) -> Layer:
    """The layer that keeps what the config says."""
    if config.bits is not None:
        return activations if config.save == "activations" else inputs
    return plain if config.save == "activations" else jax.checkpoint(plain, static_argnums=(0, 1))


def forward(
    config: ResNetConfig, parameters: Parameters, images: Images
) -> tuple[Logits, Residuals, AllMoments]:
    """The logits, what the backward pass needs, and the moments of each batch norm.

    Raises:
      ValueError: the config has no `bits`, or images have another shape than it states.
    """
    bits, images = _bits(config), checked_images(config, images)
    saved: list[Any] = []
    moments: AllMoments = {"blocks": {}}
    inputs_only = config.save == "block_inputs"
    images_saved = compress(images, bits)
    x, of_stem, moments["stem"] = stem.forward(
        stem_of(config), bits, parameters["stem"], images, images_saved
    )
    for number, block in enumerate(blocks(config)):
        compressed = compress(x, bits)
        x, of_block, moments["blocks"][number] = bottleneck.forward(
            block, bits, parameters["blocks"][number], x, compressed
        )
        saved.append(compressed if inputs_only else of_block)
    logits, features = head.forward(bits, parameters["head"], x)
    return logits, Residuals(images_saved if inputs_only else of_stem, saved, features), moments


def backward(
    config: ResNetConfig, parameters: Parameters, residuals: Residuals, dlogits: Logits
) -> Parameters:
    """Gradients of the parameters, in float32.

    Raises:
      ValueError: the config has no `bits`.
    """
    bits = _bits(config)
    every_block = blocks(config)
    of_blocks: dict[int, Any] = {}
    last = every_block[-1].conv3.output_shape(dlogits.shape[0])
    dx, of_head = head.backward(parameters["head"], residuals.features, dlogits, last)
    for number in reversed(range(len(every_block))):
        block, unit = every_block[number], parameters["blocks"][number]
        saved, dx = lax.optimization_barrier((residuals.blocks[number], dx))
        if isinstance(saved, Compressed):
            of_blocks[number], dx = bottleneck.input_backward(block, bits, unit, saved, dx)
        else:
            of_blocks[number], dx = bottleneck.backward(block, unit, saved, dx)
    first, convolution = residuals.stem, stem_of(config)
    if isinstance(first, Compressed):
        of_stem, _ = stem.input_backward(convolution, bits, parameters["stem"], first, dx)
    else:
        of_stem, _ = stem.backward(convolution, parameters["stem"], first, dx)
    return {"stem": of_stem, "blocks": of_blocks, "head": of_head}


def _bits(config: ResNetConfig) -> int:
    if config.bits is None:
        raise ValueError(
            "forward and backward as separate programs need bits: expected 2, 4 or 8, found None; "
            "fix: differentiate `apply`, which trains without compression too"
        )
    return config.bits


def predict(
    config: ResNetConfig, parameters: Parameters, statistics: Mapping[str, Any], images: Images
) -> Logits:
    """The logits with the running statistics, as after training."""
    x, _ = stem.plain(stem_of(config), parameters["stem"], images, statistics["stem"])
    for number, block in enumerate(blocks(config)):
        running = statistics["blocks"][number]
        x, _ = bottleneck.plain(block, parameters["blocks"][number], x, running)
    return head.plain(parameters["head"], x)


def cross_entropy(logits: Logits, labels: Array) -> Float[Array, ""]:
    """The mean cross entropy of the labels, which are class numbers [N]."""
    chosen = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=1) - chosen)
