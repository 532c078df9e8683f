"""Expectations of matrix products: number, backend, and the dots that they come from.

Backends are named for NVIDIA GPUs. A product on the matrix units of a TPU (`mxu`) or by a library
of AMD counts as one of NVIDIA's libraries, so that an expectation of the number of products holds
on all.
"""

from dataclasses import dataclass

from xlapipe.devices.platforms import PLATFORMS
from xlapipe.expect.expectation import Expectation, Finding, Violation
from xlapipe.plans.gemms import Gemm, GemmBackend
from xlapipe.plans.program import Program, RequestedDot
from xlapipe.plans.wording import counted, listed, tally

_LIBRARIES = frozenset(GemmBackend) - {GemmBackend.REDUCE, GemmBackend.OTHER}

_OTHER_VENDORS = frozenset(
    {GemmBackend.MXU}.union(*(map(GemmBackend, it.library_names.values()) for it in PLATFORMS))
)


@dataclass(frozen=True)
class GemmCount(Expectation):
    """Exactly `count` matrix products run on one of `backends` (empty: on any backend)."""

    count: int
    backends: tuple[str, ...] = ()

    def _check(self, program: Program) -> Finding:
        matching = [
            gemm
            for gemm in program.plan.gemms
            if not self.backends or _is_one_of(gemm, self.backends)
        ]
        measured = backend_counts(program.plan.gemms)
        if len(matching) == self.count:
            return self.finding(measured)
        others = [gemm for gemm in program.plan.gemms if gemm not in matching]
        example = next(iter(others or matching), None)
        return self.finding(
            measured,
            Violation(
                f"{counted(self.count, 'gemm')} on {' or '.join(self.backends) or 'any backend'}",
                f"{len(matching)} ({measured})",
                _describe(example) if example is not None else "",
                example.source if example is not None else None,
                "set the GEMM policy (`--gemm cublas|triton`), or look for dots that XLA merged, "
                "split or turned into reductions",
            ),
        )


@dataclass(frozen=True)
class Matmul:
    """A dot that the model contains `count` times in the name scope `scope`.

    Attributes:
      backends: the allowed backends; empty: any.
      merged_into: number of gemms after optimisation, if XLA merges some of the `count` dots.
    """

    scope: str
    count: int = 1
    backends: tuple[str, ...] = ()
    merged_into: int | None = None

    def __str__(self) -> str:
        return f"Matmul({self.scope!r})"


@dataclass(frozen=True)
class MatmulsAccounted(Expectation):
    """Every dot of the program is one of `matmuls`, and each of these is in the compiled module."""

    matmuls: tuple[Matmul, ...]

    def _check(self, program: Program) -> Finding:
        violations: list[Violation] = []
        gemms = list(program.plan.gemms)
        requested = program.facts.requested_dots
        for matmul in self.matmuls:
            inside = [gemm for gemm in gemms if _within(matmul.scope, gemm.op_name)]
            violations.extend(_matmul_violations(matmul, inside, requested))
            gemms = [gemm for gemm in gemms if gemm not in inside]
        violations.extend(
            Violation(
                "every gemm in the scope of a listed matmul",
                f"{gemm.backend} gemm outside all scopes ({gemm.op_name})",
                _describe(gemm),
                gemm.source,
                "put the matmul in a jax.named_scope and list it, or remove it",
            )
            for gemm in gemms
        )
        scopes = tuple(matmul.scope for matmul in self.matmuls)
        violations.extend(
            Violation(
                "every dot of the program in the scope of a listed matmul",
                f"dot outside all scopes: {dot.op_name} {dot.shape}",
                source=dot.source,
                advice="put the matmul in a jax.named_scope and list it, or remove it",
            )
            for dot in requested or ()
            if not any(_within(scope, dot.op_name) for scope in scopes)
        )
        return self.finding(backend_counts(program.plan.gemms), *violations)


@dataclass(frozen=True)
class FastAccumulation(Expectation):
    """Float8 gemms on cuBLASLt use fast accumulation in the name scopes `scopes` and only there.

    Fast accumulation keeps sums in the tensor cores' narrow accumulator; otherwise they are
    promoted to float32.
    """

    scopes: tuple[str, ...]

    def _check(self, program: Program) -> Finding:
        gemms = [gemm for gemm in program.plan.gemms if gemm.fast_accumulation is not None]
        violations = []
        for gemm in gemms:
            expects_fast = any(within_differentiated(scope, gemm.op_name) for scope in self.scopes)
            if gemm.fast_accumulation is not expects_fast:
                violations.append(
                    Violation(
                        f"{'fast' if expects_fast else 'float32'} accumulation in {gemm.op_name}",
                        "fast" if gemm.fast_accumulation else "float32",
                        _describe(gemm),
                        gemm.source,
                        "set the dot's algorithm or precision: Precision.DEFAULT is fast",
                    )
                )
        fast_count = sum(gemm.fast_accumulation is True for gemm in gemms)
        return self.finding(
            f"{fast_count} of {counted(len(gemms), 'float8 gemm')} fast", *violations
        )


def _matmul_violations(
    matmul: Matmul, gemms: list[Gemm], requested: tuple[RequestedDot, ...] | None
) -> list[Violation]:
    violations = []
    if requested is not None:
        requested_count = sum(_within(matmul.scope, dot.op_name) for dot in requested)
        if requested_count != matmul.count:
            violations.append(
                Violation(
                    f"{counted(matmul.count, 'dot')} in {matmul.scope} before optimisation",
                    f"{requested_count}",
                    advice="the model and its expectations disagree: change one of them",
                )
            )
    expected = matmul.count if matmul.merged_into is None else matmul.merged_into
    if len(gemms) != expected:
        violations.append(
            Violation(
                f"{counted(expected, 'gemm')} in {matmul.scope} after optimisation",
                f"{len(gemms)}: " + (listed([*map(_describe, gemms)]) or "none"),
                source=gemms[0].source if gemms else None,
                advice="find the dot in after_optimizations.txt: XLA may have merged it, folded "
                "it into a constant, or rewritten it",
            )
        )
    violations.extend(
        Violation(
            f"{matmul.scope} on {' or '.join(matmul.backends)}",
            gemm.backend,
            _describe(gemm),
            gemm.source,
            "set the GEMM policy (`--gemm cublas|triton`), or allow the backend",
        )
        for gemm in gemms
        if matmul.backends and not _is_one_of(gemm, matmul.backends)
    )
    return violations


def _is_one_of(gemm: Gemm, backends: tuple[str, ...]) -> bool:
    return gemm.backend in backends or (
        gemm.backend in _OTHER_VENDORS and not _LIBRARIES.isdisjoint(backends)
    )


def _within(scope: str, op_name: str | None) -> bool:
    """Whether `scope` is in `op_name`, as whole path segments."""
    return op_name is not None and f"/{scope}/" in f"/{op_name}/"


def within_differentiated(scope: str, op_name: str | None) -> bool:
    """Whether `scope` is a segment of `op_name`, also as autodiff's `transpose(jvp(scope))`."""
    segments = (op_name or "").split("/")
    return any(segment.strip(")").rpartition("(")[2] == scope for segment in segments)


def backend_counts(gemms: tuple[Gemm, ...]) -> str:
    """`6 cublaslt, 1 reduce`."""
    return tally(gemm.backend for gemm in gemms)


def _describe(gemm: Gemm) -> str:
    return f"{gemm.instruction} on {gemm.backend}: {' × '.join(map(str, gemm.shapes))}"
