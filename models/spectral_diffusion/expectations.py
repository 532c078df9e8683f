"""What must hold of the plans, in closed form from the sizes. Imports no jax. Sizes are bytes."""

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

CUBLAS = ("cublas", "cublaslt")
BACKENDS = {"cublas": CUBLAS, "triton": ("triton",), "auto": (*CUBLAS, "triton")}
# XLA asks for at most this much for cuBLASLt on Hopper; the gemms of a step share one.
WORKSPACE_BYTES = 32 * 2**20
# Gemms that are short of blocks sum slices of the contracted axis apart, in float32.
MAX_SPLIT_K = 32
# Scalars, tables of pointers, and padding of each value to 128 bytes.
SMALL_BYTES = 16 * 1024


def forward(sizes: SpectralSizes) -> tuple[Expectation, ...]:
    """The layer as in dump 002."""
    return (
        ParameterBytes(sizes.argument_bytes, because="x, mass, evals, evecs and times"),
        NotAliased(because="nothing is donated"),
        AllocationOf("out[0]", sizes.spectrum_bytes, because="B K C"),
        AllocationOf("out[1]", sizes.signal_bytes, because="B V C"),
        _spectra(sizes, 2, "x and y in the basis: the exponentials are never written"),
        *_once_weighted(sizes),
        ReadAtMost("x", 1, because="by the gemm: the mass weights evecs instead"),
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
        _spectra(sizes, 5, "x, y and their gradients in the basis, and what sums to dtime"),
        *_once_weighted(sizes),
        ReadAtMost("x", 1, because="by the gemm: the mass weights evecs instead"),
        ReadAtMost("g", 1, because="by the gemm"),
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


def _once_weighted(sizes: SpectralSizes) -> tuple[Expectation, ...]:
    dims = (*sizes.leading, sizes.vertices, sizes.eigenvectors)
    return (
        ValuesOfShapeAtMost(dims, 2, because="evecs, and once weighted by mass"),
        ValuesOfShapeAtMost(dims, 0, "f32", because="gemms read bfloat16"),
    )


def _temp(sizes: SpectralSizes, reductions: int) -> Expectation:
    """`reductions` gemms sum over vertices, and may do so in slices."""
    partials = reductions * MAX_SPLIT_K * sizes.spectrum_bytes * FLOAT32 // BFLOAT16
    limit = sizes.evecs_bytes + partials + 5 * 2 * sizes.spectrum_bytes
    return TempAtMost(
        limit + WORKSPACE_BYTES + SMALL_BYTES,
        because="weighted evecs, split-K partials, spectra in float32, workspace",
    )


def _matmuls(*scopes: str) -> tuple[Expectation, ...]:
    return tuple(
        MatmulsAccounted(
            tuple(Matmul(scope, backends=backends) for scope in scopes),
            because="one gemm into the basis and one out of it, for values and for gradients",
            under=policy,
        )
        for policy, backends in BACKENDS.items()
    )
