"""Diffusion of each channel for its own learned time, in the eigenbasis of the Laplacian."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float


class SpectralDiffusion(nnx.Module):
    """Diffuses channel c of a signal for the learned time `time[c]`."""

    def __init__(self, channels: int, *, dtype: str = "bfloat16") -> None:
        """Initializes all times to 0 (no diffusion), as DiffusionNet does."""
        self.time = nnx.Param(jnp.zeros((channels,), jnp.dtype(dtype)))

    def __call__(
        self,
        x: Float[Array, "*B V C"],
        mass: Float[Array, "*B V"],
        evals: Float[Array, "*B K"],
        evecs: Float[Array, "*B V K"],
    ) -> tuple[Float[Array, "*B K C"], Float[Array, "*B V C"]]:
        """See `diffuse`."""
        return diffuse(x, mass, evals, evecs, self.time[...])


def diffuse(
    x: Float[Array, "*B V C"],
    mass: Float[Array, "*B V"],
    evals: Float[Array, "*B K"],
    evecs: Float[Array, "*B V K"],
    time: Float[Array, " C"],
) -> tuple[Float[Array, "*B K C"], Float[Array, "*B V C"]]:
    """Computes `y_spectral = exp(-evals ⊗ time) * (evecsᵀ (mass * x))` and `y = evecs y_spectral`.

    Values in memory have x's dtype; gemms accumulate in float32, and the decay is computed in
    float32. The mass is multiplied into evecs instead of x: evecs is smaller and the same for
    every layer of a network, and the gradient of x needs the same product.
    """
    _check_shapes(x, mass, evals, evecs, time)
    with jax.named_scope("to_basis"):
        weighted = evecs * mass[..., None]
        x_spectral = jnp.einsum("...VK,...VC->...KC", weighted, x)
    with jax.named_scope("decay"):
        exponents = -evals.astype(jnp.float32)[..., None] * time.astype(jnp.float32)
        y_spectral = (jnp.exp(exponents) * x_spectral.astype(jnp.float32)).astype(x.dtype)
    with jax.named_scope("from_basis"):
        y = jnp.einsum("...VK,...KC->...VC", evecs, y_spectral)
    return y_spectral, y


def _check_shapes(x: Array, mass: Array, evals: Array, evecs: Array, time: Array) -> None:
    """Checks every axis against x (meshes, vertices, channels) and evecs (eigenvectors)."""
    if x.ndim < 2 or evecs.ndim < 2:
        raise ValueError(
            f"expected x [..., V, C] and evecs [..., V, K]; found {list(x.shape)} and "
            f"{list(evecs.shape)}"
        )
    *meshes, vertices, channels = x.shape
    eigenvectors = evecs.shape[-1]
    expected = {
        "mass": (mass, (*meshes, vertices), "one for each vertex of x"),
        "evecs": (evecs, (*meshes, vertices, eigenvectors), "one row for each vertex of x"),
        "evals": (evals, (*meshes, eigenvectors), "one for each column of evecs"),
        "time": (time, (channels,), "one for each channel of x"),
    }
    for name, (array, shape, meaning) in expected.items():
        if array.shape != shape:
            raise ValueError(
                f"{name}: expected {list(shape)}, {meaning}; found {list(array.shape)} "
                f"(x {list(x.shape)}, evecs {list(evecs.shape)})"
            )
