"""Gathers a weight for its use, with a gradient that is reduced in float32."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from models.qwen3.sharded.weight_layout import FSDP


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def gathered(weight: Float[Array, "..."], axis: int, dtype: str) -> Float[Array, "..."]:
    """The weight of a shard, gathered along `axis`, in `dtype`.

    The all-gather transfers `dtype`, half of float32's bytes for bfloat16. The gradient is summed
    over the devices in float32, since sums of hundreds of terms lose precision in bfloat16.
    """
    whole: Array = jax.lax.all_gather(
        weight.astype(jnp.dtype(dtype)), FSDP, axis=axis % weight.ndim, tiled=True
    )
    return whole


def _forward(weight: Array, axis: int, dtype: str) -> tuple[Array, None]:
    return gathered(weight, axis, dtype), None


def _backward(axis: int, dtype: str, _: None, gradient: Array) -> tuple[Array]:
    summed = jax.lax.psum_scatter(
        gradient.astype(jnp.float32),
        FSDP,
        scatter_dimension=axis % gradient.ndim,
        tiled=True,
    )
    return (summed,)


gathered.defvjp(_forward, _backward)
