"""This repository's spectral diffusion."""

import jax
import jax.numpy as jnp
import numpy as np
from jax_timing import jax_timings, rotating

from models.spectral_diffusion.layer import diffuse
from models.spectral_diffusion.sizes import SpectralSizes
from models.spectral_diffusion.workloads import train

CASES = {
    "spectral diffusion": (diffuse, SpectralSizes(), "least_bytes"),
    "spectral diffusion, 64 meshes": (diffuse, SpectralSizes(meshes=64), "least_bytes"),
    "spectral diffusion fwd+bwd": (train, SpectralSizes(), "least_train_bytes"),
    "spectral diffusion fwd+bwd, 64 meshes": (
        train,
        SpectralSizes(meshes=64),
        "least_train_bytes",
    ),
}


def arguments(sizes: SpectralSizes, *, gradient: bool, seed: int) -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(seed)
    v, k, c = sizes.vertices, sizes.eigenvectors, sizes.channels
    values = [
        rng.standard_normal((*sizes.leading, v, c)),
        rng.uniform(0.5, 1.5, (*sizes.leading, v)) / v,
        rng.uniform(0, 10, (*sizes.leading, k)),
        rng.standard_normal((*sizes.leading, v, k)),
        rng.uniform(0, 1, (c,)),
    ]
    if gradient:
        values.append(rng.standard_normal((*sizes.leading, v, c)))
    return tuple(jnp.asarray(value, jnp.bfloat16) for value in values)


if __name__ == "__main__":
    jax_timings(
        (
            name,
            "xla",
            function,
            rotating(
                lambda seed, s=sizes, f=function: arguments(s, gradient=f is train, seed=seed),
                sizes.argument_bytes,
            ),
            getattr(sizes, least),
        )
        for name, (function, sizes, least) in CASES.items()
    )
