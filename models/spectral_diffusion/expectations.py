"""Expectations about the plans, in closed form from the sizes. Imports no jax. Sizes are bytes."""

from models.gemm_backends import BACKENDS, CUBLASLT_WORKSPACE_BYTES
from models.spectral_diffusion.sizes import BFLOAT16, FLOAT32, SpectralSizes
from xlapipe.expect import (
    AllocationOf,
    Expectation,
    Matmul,
    MatmulsAccounted,
    NotAliased,
    ParameterBytes,
    ReadAtMost,
    TempAtMost,
    ValuesOfShapeAtMost,
)

# The most slices of the contracted axis that a split-K gemm sums separately, in float32. XLA splits
# a gemm that has too few output tiles to fill the GPU.
MAX_SPLIT_K = 32
# Scalars, tuple tables, and padding of each value to 128 bytes.
SMALL_BYTES = 16 * 1024


def forward(sizes: SpectralSizes) -> tuple[Expectation, ...]:
    """The layer as in reference dump 002."""
    return (
        ParameterBytes(sizes.argument_bytes, because="x, mass, evals, evecs and times"),
        NotAliased(because="nothing is donated"),
        AllocationOf("out[0]", sizes.spectrum_bytes, because="B K C"),
        AllocationOf("out[1]", sizes.signal_bytes, because="B V C"),
        _spectra(sizes, 2, "x and y in the basis; the exponentials stay inside a fusion"),
        *_weighted_evecs(sizes),
        ReadAtMost("x", 1, because="only the gemm reads x: the mass is multiplied into evecs"),
        _temp(sizes, 1),
        *_matmuls("to_basis", "from_basis"),
    )


def train(sizes: SpectralSizes) -> tuple[Expectation, ...]:
    """Forward and backward."""
    return (
        ParameterBytes(
            sizes.argument_bytes + sizes.signal_bytes,
            because="x, mass, evals, evecs and times; the gradient of y",
        ),
        NotAliased(because="nothing is donated"),
        AllocationOf("out['y']", sizes.signal_bytes, because="B V C"),
        AllocationOf("out['dx']", sizes.signal_bytes, because="B V C"),
        AllocationOf("out['dtime']", sizes.time_bytes, because="C"),
        _spectra(sizes, 5, "x, y and their gradients in the basis, and the summands of dtime"),
        *_weighted_evecs(sizes),
        ReadAtMost("x", 1, because="only the gemm reads x: the mass is multiplied into evecs"),
        ReadAtMost("g", 1, because="only the gemm reads g"),
        _temp(sizes, 2),
        *_matmuls(
            "jvp(to_basis)",
            "jvp(from_basis)",
            "transpose(jvp(from_basis))",
            "transpose(jvp(to_basis))",
        ),
    )


def _spectra(sizes: SpectralSizes, count: int, because: str) -> Expectation:
    dims = (*sizes.leading, sizes.eigenvectors, sizes.channels)
    return ValuesOfShapeAtMost(dims, count, because=because)


def _weighted_evecs(sizes: SpectralSizes) -> tuple[Expectation, ...]:
    dims = (*sizes.leading, sizes.vertices, sizes.eigenvectors)
    return (
        ValuesOfShapeAtMost(dims, 2, because="evecs, and evecs times mass"),
        ValuesOfShapeAtMost(dims, 0, "f32", because="gemms read bfloat16"),
    )


def _temp(sizes: SpectralSizes, reductions: int) -> Expectation:
    """Bound on temporary memory; `reductions` gemms sum over vertices and may use split-K."""
    partials = reductions * MAX_SPLIT_K * sizes.spectrum_bytes * FLOAT32 // BFLOAT16
    limit = sizes.evecs_bytes + partials + 5 * 2 * sizes.spectrum_bytes
    return TempAtMost(
        limit + CUBLASLT_WORKSPACE_BYTES + SMALL_BYTES,
        because="weighted evecs, split-K partials, spectra in float32, workspace",
    )


def _matmuls(*scopes: str) -> tuple[Expectation, ...]:
    return tuple(
        MatmulsAccounted(
            tuple(Matmul(scope, backends=backends) for scope in scopes),
            because="one gemm into the basis and one out of it, for values and their gradients",
            under=policy,
        )
        for policy, backends in BACKENDS.items()
    )
