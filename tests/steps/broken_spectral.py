"""Spectral diffusion's programs, each broken in one way, at the sizes of reference dump 002."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from models.spectral_diffusion import layer, workloads
from models.spectral_diffusion.sizes import SpectralSizes
from xlapipe import Workload

FORWARD = workloads.spectral_diffusion()
TRAIN = workloads.spectral_diffusion_train()


def _exponentials_written(x: Any, mass: Any, evals: Any, evecs: Any, time: Any) -> Any:
    """Writes the exponentials, and their products with x in the basis, to memory."""
    x_spectral = lax.optimization_barrier(jnp.einsum("VK,VC->KC", evecs * mass[:, None], x))
    decay = lax.optimization_barrier(jnp.exp(-evals[:, None] * time))
    y_spectral = lax.optimization_barrier(decay * x_spectral)
    return y_spectral, evecs @ y_spectral


def _wide(x: Any, mass: Any, evals: Any, evecs: Any, time: Any) -> Any:
    """Converts all arguments to float32 first, and also reads x for its sum."""
    wide = [lax.optimization_barrier(a.astype(jnp.float32)) for a in (x, mass, evals, evecs, time)]
    y_spectral, y = layer.diffuse(*wide)
    return y_spectral.astype(x.dtype), (y + jnp.sum(x.astype(jnp.float32))).astype(x.dtype)


def _summed(x: Any, mass: Any, evals: Any, evecs: Any, time: Any) -> Any:
    """Writes the first matmul's products to memory before it sums them."""
    products = evecs.astype(jnp.float32)[:, :, None] * (x * mass[:, None])[:, None, :]
    products = lax.optimization_barrier(products)
    decay = jnp.exp(-evals[:, None] * time)
    y_spectral = (decay * jnp.sum(products, axis=0)).astype(x.dtype)
    return y_spectral, evecs @ y_spectral


def _reads_x_again(x: Any, mass: Any, evals: Any, evecs: Any, time: Any) -> Any:
    return *layer.diffuse(x, mass, evals, evecs, time), jnp.max(x)


def _in_place(x: Any, mass: Any, evals: Any, evecs: Any, time: Any) -> Any:
    return *layer.diffuse(x, mass, evals, evecs, time), x * 2


def _train_with(diffuse: Any) -> Any:
    """`workloads.train` with `diffuse` replaced; it also reads x and g once more than needed."""

    def train(x: Any, mass: Any, evals: Any, evecs: Any, time: Any, g: Any) -> Any:
        original = workloads.diffuse
        workloads.diffuse = diffuse
        try:
            outputs = workloads.train(x, mass, evals, evecs, time, g)
        finally:
            workloads.diffuse = original
        return {**outputs, "maxima": (jnp.max(x), jnp.max(g))}

    return train


def forward_exponentials() -> Workload:
    return replace(FORWARD, name="spectral-exponentials", fn=_exponentials_written)


def forward_wide() -> Workload:
    return replace(FORWARD, name="spectral-wide", fn=_wide)


def forward_summed() -> Workload:
    return replace(FORWARD, name="spectral-summed", fn=_summed)


def forward_reads_again() -> Workload:
    return replace(FORWARD, name="spectral-reads-again", fn=_reads_x_again)


def forward_in_place() -> Workload:
    return replace(FORWARD, name="spectral-in-place", fn=_in_place, donate_argnums=0)


def train_exponentials() -> Workload:
    return replace(TRAIN, name="spectral-train-exponentials", fn=_train_with(_exponentials_written))


def train_wide() -> Workload:
    return replace(TRAIN, name="spectral-train-wide", fn=_train_with(_wide))


def train_summed() -> Workload:
    return replace(TRAIN, name="spectral-train-summed", fn=_train_with(_summed), donate_argnums=5)


SMALL = SpectralSizes(vertices=1024, eigenvectors=64, channels=128)


def forward_smaller() -> Workload:
    return replace(workloads.spectral_diffusion(SMALL), name="spectral-smaller")


def train_smaller() -> Workload:
    return replace(workloads.spectral_diffusion_train(SMALL), name="spectral-train-smaller")
