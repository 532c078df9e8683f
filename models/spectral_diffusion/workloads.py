"""Workloads of spectral diffusion, at the sizes of reference dump 002.

Building a workload allocates no arrays.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from models.spectral_diffusion import expectations
from models.spectral_diffusion.layer import diffuse
from models.spectral_diffusion.sizes import SpectralSizes
from xlapipe import Workload

DUMP_002_SIZES = SpectralSizes()


def train(
    x: Float[Array, "*B V C"],
    mass: Float[Array, "*B V"],
    evals: Float[Array, "*B K"],
    evecs: Float[Array, "*B V K"],
    time: Float[Array, " C"],
    g: Float[Array, "*B V C"],
) -> dict[str, Array]:
    """Computes y and, from its gradient g, the gradients of time and of x.

    The preceding layer of a network needs the gradient of x.
    """

    def y_of(x: Array, time: Array) -> Array:
        return diffuse(x, mass, evals, evecs, time)[1]

    y, pull_back = jax.vjp(y_of, x, time)
    # In training, g depends on y: the barrier keeps XLA from using g earlier.
    g, _ = lax.optimization_barrier((g, y))
    dx, dtime = pull_back(g)
    return {"y": y, "dx": dx, "dtime": dtime}


def spectral_diffusion(sizes: SpectralSizes = DUMP_002_SIZES) -> Workload:
    """The layer, forward only."""
    return Workload(
        name="spectral-diffusion",
        fn=diffuse,
        args=_args(sizes),
        expectations=expectations.forward(sizes),
    )


def spectral_diffusion_train(sizes: SpectralSizes = DUMP_002_SIZES) -> Workload:
    """Forward and backward, as for training the times."""
    args = _args(sizes)
    return Workload(
        name="spectral-diffusion-train",
        fn=train,
        args=(*args, args[0]),
        expectations=expectations.train(sizes),
    )


def _args(sizes: SpectralSizes) -> tuple[Any, ...]:
    v, k, c = sizes.vertices, sizes.eigenvectors, sizes.channels
    shapes_per_mesh = ((v, c), (v,), (k,), (v, k))
    per_mesh = tuple(
        jax.ShapeDtypeStruct((*sizes.leading, *shape), jnp.bfloat16) for shape in shapes_per_mesh
    )
    return (*per_mesh, jax.ShapeDtypeStruct((c,), jnp.bfloat16))
