"""Spectral diffusion's workloads, at the sizes of dump 002. Building one allocates nothing."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from models.spectral_diffusion import expectations
from models.spectral_diffusion.layer import diffuse
from models.spectral_diffusion.sizes import SpectralSizes
from xlapipe.workload import Workload

DUMP_002 = SpectralSizes()


def train(
    x: Float[Array, "*B V C"],
    mass: Float[Array, "*B V"],
    evals: Float[Array, "*B K"],
    evecs: Float[Array, "*B V K"],
    time: Float[Array, " C"],
    g: Float[Array, "*B V C"],
) -> dict[str, Array]:
    """y and, for y's gradient g, those of the times and of x (for the layer before)."""

    def y_of(x: Array, time: Array) -> Array:
        return diffuse(x, mass, evals, evecs, time)[1]

    y, pull_back = jax.vjp(y_of, x, time)
    # As in training, g is known only when y is.
    g, _ = lax.optimization_barrier((g, y))
    dx, dtime = pull_back(g)
    return {"y": y, "dx": dx, "dtime": dtime}


def spectral_diffusion(sizes: SpectralSizes = DUMP_002) -> Workload:
    """The layer forward."""
    return Workload(
        name="spectral-diffusion",
        fn=diffuse,
        args=_args(sizes),
        expectations=expectations.forward(sizes),
    )


def spectral_diffusion_train(sizes: SpectralSizes = DUMP_002) -> Workload:
    """Forward and backward, for training the times."""
    args = _args(sizes)
    return Workload(
        name="spectral-diffusion-train",
        fn=train,
        args=(*args, args[0]),
        expectations=expectations.train(sizes),
    )


def _args(sizes: SpectralSizes) -> tuple[Any, ...]:
    v, k, c = sizes.vertices, sizes.eigenvectors, sizes.channels
    shapes = ((v, c), (v,), (k,), (v, k))
    meshes = tuple(jax.ShapeDtypeStruct((*sizes.leading, *s), jnp.bfloat16) for s in shapes)
    return (*meshes, jax.ShapeDtypeStruct((c,), jnp.bfloat16))
