"""The whole MLP."""

import jax
from flax import nnx
from jaxtyping import Array, Float

from models.fsdp_mlp.layer import ShardedLinear


class MLP(nnx.Module):
    """Layers of equal width, ReLU after every one."""

    def __init__(self, features: int, layers: int, *, axis: str | None, rngs: nnx.Rngs) -> None:
        """`axis`: the mesh axis over which kernels are sharded; None for whole kernels."""
        self.layers = nnx.List(
            [ShardedLinear(features, axis=axis, rngs=rngs) for _ in range(layers)]
        )

    def __call__(self, x: Float[Array, "B I"]) -> Float[Array, "B O"]:
        """The last layer's output, in x's dtype."""
        for index, layer in enumerate(self.layers):
            with jax.named_scope(f"layers_{index}"):
                x = jax.nn.relu(layer(x))
        return x
