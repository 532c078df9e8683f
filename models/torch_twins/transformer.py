"""Two pre-norm transformer blocks with causal attention, and their backward pass."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

# torch.rms_norm's default is the epsilon of the dtype that it computes in.
RMS_EPSILON = 2.0**-23
LAYER_NORM_EPSILON = 1e-5
HEADS = 8


class Linear(NamedTuple):
    """A linear layer; the weight is [out, in]."""

    weight: Float[Array, "O I"]
    bias: Float[Array, " O"]


class LayerNorm(NamedTuple):
    """Scale and shift of a layer norm."""

    weight: Float[Array, " D"]
    bias: Float[Array, " D"]


class Block(NamedTuple):
    """Parameters of one block, in the order in which torch passes them."""

    attention_norm: Float[Array, " D"]
    qkv: Linear
    out: Linear
    mlp_norm: LayerNorm
    up: Linear
    down: Linear


def transformer_step(
    x: Float[Array, "B T D"], first: Block, second: Block, g: Float[Array, "B T D"]
) -> tuple[Float[Array, "B T D"], tuple[Float[Array, "B T D"], Block, Block]]:
    """Computes y and, from its gradient g, the gradients of x and of the parameters."""

    def forward(x: Array, first: Block, second: Block) -> Array:
        return _block(_block(x, first), second)

    y, pull_back = jax.vjp(forward, x, first, second)
    # In training, g depends on y: the barrier keeps XLA from using g earlier.
    g, _ = lax.optimization_barrier((g, y))
    return y, pull_back(g)


def _block(x: Float[Array, "B T D"], block: Block) -> Float[Array, "B T D"]:
    batch, length, width = x.shape
    normed = _rms_norm(x, block.attention_norm)
    qkv = _linear(normed, block.qkv).reshape(batch, length, 3, HEADS, width // HEADS)
    query, key, value = (qkv[:, :, at] for at in range(3))
    attended = jax.nn.dot_product_attention(query, key, value, is_causal=True)
    x = x + _linear(attended.reshape(x.shape), block.out)
    hidden = jax.nn.gelu(_linear(_layer_norm(x, block.mlp_norm), block.up), approximate=False)
    return x + _linear(hidden, block.down)


def _linear(x: Float[Array, "B T I"], layer: Linear) -> Float[Array, "B T O"]:
    return x @ layer.weight.T + layer.bias


def _rms_norm(x: Float[Array, "B T D"], weight: Float[Array, " D"]) -> Float[Array, "B T D"]:
    wide = x.astype(jnp.float32)
    scale = lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + RMS_EPSILON)
    return (wide * scale * weight).astype(x.dtype)


def _layer_norm(x: Float[Array, "B T D"], norm: LayerNorm) -> Float[Array, "B T D"]:
    wide = x.astype(jnp.float32)
    centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
    variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
    normed = centred * lax.rsqrt(variance + LAYER_NORM_EPSILON)
    return (normed * norm.weight + norm.bias).astype(x.dtype)
