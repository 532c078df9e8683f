"""The layers after the blocks: the mean of each channel, and a linear classifier without bias.

Parameters: `kernel` [K, C] in float32.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from models.compressed_resnet.compression import Codes, dequantise, quantise
from models.compressed_resnet.conv_norm import Unit
from models.compressed_resnet.convolution import Images

Logits = Float[Array, "N K"]


def plain(head: Unit, x: Images) -> Logits:
    """The logits in float32."""
    return _classify(head, _features(x))


def _features(x: Images) -> Float[Array, "N C"]:
    return jnp.mean(x.astype(jnp.float32), (1, 2)).astype(x.dtype)


def _classify(head: Unit, features: Float[Array, "N C"]) -> Logits:
    with jax.named_scope("classifier"):
        kernel = head["kernel"].astype(features.dtype)
        return jnp.einsum("NC,KC->NK", features, kernel, preferred_element_type=jnp.float32)


def forward(bits: int, head: Unit, x: Images) -> tuple[Logits, Codes]:
    """The logits, and codes of the features."""
    features = _features(x)
    return _classify(head, features), quantise(features, bits)


def backward(
    head: Unit, codes: Codes, dlogits: Logits, shape: tuple[int, int, int, int]
) -> tuple[Images, dict[str, Array]]:
    """Gradients of the input, of NHWC `shape`, and of the parameters."""
    batch, height, width, channels = shape
    features = dequantise(codes, (batch, channels))
    dlogits = dlogits.astype(features.dtype)
    with jax.named_scope("classifier"):
        dkernel = jnp.einsum("NK,NC->KC", dlogits, features, preferred_element_type=jnp.float32)
        dfeatures = dlogits @ head["kernel"].astype(dlogits.dtype)
    dx = jnp.broadcast_to((dfeatures / (height * width))[:, None, None, :], shape)
    return dx, {"kernel": dkernel}


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def saving_activations(bits: int, size: int, head: Unit, x: Images) -> Logits:
    """The head, whose backward pass reads compressed features; x has `size` rows and columns."""
    return plain(head, x)


def _forward(bits: int, size: int, head: Unit, x: Images) -> tuple[Logits, tuple[Unit, Codes]]:
    logits, codes = forward(bits, head, x)
    return logits, (head, codes)


def _backward(
    bits: int, size: int, residuals: tuple[Unit, Codes], dlogits: Logits
) -> tuple[dict[str, Array], Images]:
    (head, codes), dlogits = lax.optimization_barrier((residuals, dlogits))
    shape = (dlogits.shape[0], size, size, head["kernel"].shape[1])
    dx, gradients = backward(head, codes, dlogits, shape)
    return gradients, dx


saving_activations.defvjp(_forward, _backward)
