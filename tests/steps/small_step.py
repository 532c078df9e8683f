"""A step that is small and has what a real one has: a product, a norm, a cache in place."""

import jax
import jax.numpy as jnp

from xlapipe import Workload


def step(
    weights: dict[str, jax.Array], cache: jax.Array, x: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the projected activations, and the cache with them in row 3."""
    mean_square = jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True)
    normed = (x * jax.lax.rsqrt(mean_square + 1e-6)).astype(x.dtype) * weights["scale"]
    y = jnp.tanh(normed @ weights["up"]) @ weights["down"]
    return y, cache.at[3].set(y)


def small_step() -> Workload:
    """The step at a width that every GPU of the catalogue has room for."""
    tokens, width, hidden = 128, 256, 512

    def bf16(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    weights = {"scale": bf16(width), "up": bf16(width, hidden), "down": bf16(hidden, width)}
    return Workload(
        name="small-step",
        fn=step,
        args=(weights, bf16(8, tokens, width), bf16(tokens, width)),
        donate_argnums=(1,),
    )
