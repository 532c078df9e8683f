"""Spectral diffusion against float64 NumPy, on random inputs and where the answer is known."""

import sys
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
from jaxtyping import install_import_hook

for _name in [name for name in sys.modules if name.startswith("models.spectral_diffusion.")]:
    del sys.modules[_name]
with install_import_hook("models.spectral_diffusion", "beartype.beartype"):
    from models.spectral_diffusion.layer import SpectralDiffusion, diffuse
    from models.spectral_diffusion.workloads import train

F64: TypeAlias = npt.NDArray[np.float64]


def f64(array: Any) -> F64:
    return np.asarray(array).astype(np.float64)


def np_diffuse(x: F64, mass: F64, evals: F64, evecs: F64, time: F64) -> tuple[F64, F64]:
    spectral = np.exp(-np.outer(evals, time)) * (evecs.T @ (mass[:, None] * x))
    return spectral, evecs @ spectral


def inputs(rng: np.random.Generator, dtype: Any, v: int = 72, k: int = 9, c: int = 5) -> Any:
    """x, mass, evals, evecs, time; the eigenvectors are orthonormal under the mass."""
    mass = rng.uniform(0.5, 2, v)
    evecs = np.linalg.qr(rng.standard_normal((v, k)))[0] / np.sqrt(mass)[:, None]
    values = (rng.standard_normal((v, c)), mass, rng.uniform(0, 4, k), evecs, rng.uniform(0, 1, c))
    return tuple(jnp.asarray(value, dtype) for value in values)


@pytest.fixture
def rng() -> np.random.Generator:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print("seed", seed)
    return np.random.default_rng(seed)


@pytest.mark.parametrize(("dtype", "rounding"), [(jnp.bfloat16, 2**-6), (jnp.float32, 1e-5)])
def test_against_float64(dtype: Any, rounding: float, rng: np.random.Generator) -> None:
    for _ in range(10):
        arguments = inputs(rng, dtype)
        for found, expected in zip(
            jax.jit(diffuse)(*arguments), np_diffuse(*map(f64, arguments)), strict=True
        ):
            assert found.dtype == dtype
            assert np.linalg.norm(f64(found) - expected) < rounding * np.linalg.norm(expected)


def test_gradients_against_differences(rng: np.random.Generator) -> None:
    arguments = inputs(rng, jnp.float32)
    g = jnp.asarray(rng.standard_normal(arguments[0].shape), jnp.float32)
    found = jax.jit(train)(*arguments, g)
    exact = list(map(f64, arguments))

    def value(position: int, step: F64) -> float:
        moved = [each + step if n == position else each for n, each in enumerate(exact)]
        return float((np_diffuse(*moved)[1] * f64(g)).sum())

    for position, name in ((0, "dx"), (4, "dtime")):
        direction = rng.standard_normal(exact[position].shape)
        step = 1e-5 * direction
        slope = (value(position, step) - value(position, -step)) / 2e-5
        assert (f64(found[name]) * direction).sum() == pytest.approx(slope, rel=1e-3, abs=1e-3)
    np.testing.assert_allclose(f64(found["y"]), np_diffuse(*exact)[1], rtol=1e-4, atol=1e-4)


def test_no_time_projects_and_much_time_leaves_the_mean(rng: np.random.Generator) -> None:
    """At time 0 a signal in the basis comes back; the constant eigenvector never decays."""
    v = 40
    mass = np.full(v, 1 / v)
    cosines = np.cos(np.pi * np.outer(np.arange(v) + 0.5, np.arange(6)) / v)
    evecs = cosines / np.sqrt((mass[:, None] * cosines**2).sum(0))
    evals = np.arange(6.0) ** 2
    x = evecs @ rng.standard_normal((6, 3))
    layer = SpectralDiffusion(3, dtype="float32")
    arguments = [jnp.asarray(each, jnp.float32) for each in (x, mass, evals, evecs)]
    np.testing.assert_allclose(layer(*arguments)[1], x, atol=1e-5)
    layer.time[...] = jnp.full((3,), 1e3)
    mean = np.broadcast_to(x.mean(0), x.shape)
    np.testing.assert_allclose(layer(*arguments)[1], mean, atol=1e-5)


def test_a_batch_of_meshes_is_each_mesh_alone(rng: np.random.Generator) -> None:
    meshes = [inputs(rng, jnp.float32) for _ in range(3)]
    time = meshes[0][4]
    stacked = [jnp.stack(each) for each in zip(*(mesh[:4] for mesh in meshes), strict=True)]
    y_spectral, y = diffuse(*stacked, time)
    for number, mesh in enumerate(meshes):
        alone = diffuse(*mesh[:4], time)
        np.testing.assert_allclose(y_spectral[number], alone[0], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(y[number], alone[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({1: (71,)}, r"mass: expected \[72\], one for each vertex of x; found \[71\]"),
        ({3: (71, 9)}, r"evecs: expected \[72, 9\], one row for each vertex of x; found \[71, 9\]"),
        ({2: (8,)}, r"evals: expected \[9\], one for each column of evecs; found \[8\]"),
        ({4: (6,)}, r"time: expected \[5\], one for each channel of x; found \[6\]"),
        ({0: (72,)}, r"expected x \[\.\.\., V, C\]"),
        ({1: (2, 72)}, r"mass: expected \[72\]"),
    ],
)
def test_lengths_that_disagree(change: dict[int, tuple[int, ...]], message: str) -> None:
    """jaxtyping's checks are left out, as where a user has none."""
    shapes = {0: (72, 5), 1: (72,), 2: (9,), 3: (72, 9), 4: (5,)} | change
    arguments = [jnp.ones(shape) for _, shape in sorted(shapes.items())]
    with pytest.raises(ValueError, match=message):
        diffuse.__wrapped__(*arguments)  # type: ignore[attr-defined]
