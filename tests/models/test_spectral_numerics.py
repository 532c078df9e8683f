"""Spectral diffusion compared with float64 NumPy, and with cases whose answer is known."""

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest

from models.spectral_diffusion.layer import SpectralDiffusion, diffuse
from models.spectral_diffusion.workloads import train

pytestmark = pytest.mark.jax

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
def test_results_match_float64(dtype: Any, rounding: float, rng: np.random.Generator) -> None:
    for _ in range(10):
        arguments = inputs(rng, dtype)
        for result, expected in zip(
            jax.jit(diffuse)(*arguments), np_diffuse(*map(f64, arguments)), strict=True
        ):
            assert result.dtype == dtype
            assert np.linalg.norm(f64(result) - expected) < rounding * np.linalg.norm(expected)


def test_gradients_match_finite_differences(rng: np.random.Generator) -> None:
    arguments = inputs(rng, jnp.float32)
    g = jnp.asarray(rng.standard_normal(arguments[0].shape), jnp.float32)
    results = jax.jit(train)(*arguments, g)
    exact = list(map(f64, arguments))

    def value(position: int, step: F64) -> float:
        moved = list(exact)
        moved[position] = exact[position] + step
        return float((np_diffuse(*moved)[1] * f64(g)).sum())

    for position, name in ((0, "dx"), (4, "dtime")):
        direction = rng.standard_normal(exact[position].shape)
        step = 1e-5 * direction
        slope = (value(position, step) - value(position, -step)) / 2e-5
        assert (f64(results[name]) * direction).sum() == pytest.approx(slope, rel=1e-3, abs=1e-3)
    np.testing.assert_allclose(f64(results["y"]), np_diffuse(*exact)[1], rtol=1e-4, atol=1e-4)


def test_time_zero_is_the_identity_and_long_times_give_the_mean(rng: np.random.Generator) -> None:
    """At time 0 a signal in the basis is unchanged; the constant eigenvector never decays."""
    v = 40
    mass = np.full(v, 1 / v)
    cosines = np.cos(np.pi * np.outer(np.arange(v) + 0.5, np.arange(6)) / v)
    evecs = cosines / np.sqrt((mass[:, None] * cosines**2).sum(0))
    evals = np.arange(6.0) ** 2
    x = evecs @ rng.standard_normal((6, 3))
    layer = SpectralDiffusion(3, dtype="float32")
    arguments = [jnp.asarray(array, jnp.float32) for array in (x, mass, evals, evecs)]
    np.testing.assert_allclose(layer(*arguments)[1], x, atol=1e-5)
    layer.time[...] = jnp.full((3,), 1e3)
    mean = np.broadcast_to(x.mean(0), x.shape)
    np.testing.assert_allclose(layer(*arguments)[1], mean, atol=1e-5)


def test_a_batch_of_meshes_gives_the_results_of_each_mesh(rng: np.random.Generator) -> None:
    meshes = [inputs(rng, jnp.float32) for _ in range(3)]
    time = meshes[0][4]
    stacked = [jnp.stack(arrays) for arrays in zip(*(mesh[:4] for mesh in meshes), strict=True)]
    y_spectral, y = diffuse(*stacked, time)
    for number, mesh in enumerate(meshes):
        single = diffuse(*mesh[:4], time)
        np.testing.assert_allclose(y_spectral[number], single[0], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(y[number], single[1], rtol=1e-5, atol=1e-5)


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
def test_inconsistent_axis_lengths_are_errors(
    change: dict[int, tuple[int, ...]], message: str
) -> None:
    """Calls the function without jaxtyping's checks, as users do by default."""
    shapes = {0: (72, 5), 1: (72,), 2: (9,), 3: (72, 9), 4: (5,)} | change
    arguments = [jnp.ones(shape) for _, shape in sorted(shapes.items())]
    with pytest.raises(ValueError, match=message):
        diffuse.__wrapped__(*arguments)  # type: ignore[attr-defined]
