"""The MLP as Flax modules."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from models.fsdp_mlp.layer import gathered_layer, plain_layer


class Layer(nnx.Module):
    """The kernel of one layer, [out, in], float32, without bias; a shard inside `jax.shard_map`."""

    def __init__(self, features: int, *, rngs: nnx.Rngs) -> None:
        # Preserves the second moment through a ReLU: He et al., "Delving Deep into Rectifiers",
        # 2015.
        initializer = nnx.initializers.normal(stddev=(2 / features) ** 0.5)
        self.kernel = nnx.Param(initializer(rngs.params(), (features, features), jnp.float32))


class MLP(nnx.Module):
    """Layers of equal width, each followed by a ReLU.

    With a mesh axis, the kernels are shards and the MLP must be called inside `jax.shard_map`.
    """

    def __init__(self, features: int, layers: int, *, axis: str | None, rngs: nnx.Rngs) -> None:
        """Initializes the layers.

        Args:
          axis: the mesh axis over which the rows of kernels are sharded; None for whole kernels.
        """
        self.layers = nnx.List([Layer(features, rngs=rngs) for _ in range(layers)])
        self.axis = axis

    def __call__(self, x: Float[Array, "B I"]) -> Float[Array, "B O"]:
        """The last layer's output; computed, gathered and reduced in x's dtype."""
        # Converted before the gather: half the bytes to send, and each device casts its own rows.
        kernels = [layer.kernel[...].astype(x.dtype) for layer in self.layers]
        for index, kernel in enumerate(kernels):
            with jax.named_scope(f"layers_{index}"):
                if self.axis is None:
                    x = plain_layer(x, kernel)
                    continue
                if index + 1 < len(kernels):
                    # Forward, the barrier lets the next kernel's gather overlap this layer's gemm
                    # but not start earlier. Backward, the barrier's gradient makes the next
                    # layer's reduce-scatter finish before the layer below this one begins.
                    # Without it XLA keeps more kernels and gradients alive than necessary.
                    x, kernels[index + 1] = lax.optimization_barrier((x, kernels[index + 1]))
                x = gathered_layer(x, kernels[index], self.axis)
        return x
