"""Linear layers without bias, each with a ReLU, and their backward pass."""

import jax
from jax import lax
from jaxtyping import Array, Float

Weight = Float[Array, "H H"]


def mlp_step(
    first: Weight,
    x: Float[Array, "B H"],
    second: Weight,
    third: Weight,
    g: Float[Array, "B H"],
) -> tuple[Float[Array, "B H"], tuple[Weight, Weight, Weight]]:
    """Computes y and, from its gradient g, the gradients of the weights.

    Args:
      first, second, third: weights, [out, in].
    """

    def forward(first: Weight, second: Weight, third: Weight) -> Array:
        h = x
        for weight in (first, second, third):
            h = jax.nn.relu(h @ weight.T)
        return h

    y, pull_back = jax.vjp(forward, first, second, third)
    # In training, g depends on y: the barrier keeps XLA from using g earlier.
    g, _ = lax.optimization_barrier((g, y))
    return y, pull_back(g)
