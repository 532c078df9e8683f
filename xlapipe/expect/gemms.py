"""Expectations of matrix products: how many, on which backend, asked for and found."""

from dataclasses import dataclass

from xlapipe.expect.expectation import Expectation, Finding, Violation
from xlapipe.plan.gemms import Gemm
from xlapipe.plan.program import Program, RequestedDot


@dataclass(frozen=True)
class GemmCount(Expectation):
    """Exactly `count` matrix products run on one of `backends` (none named: on any)."""

    count: int
    backends: tuple[str, ...] = ()

    def check(self, program: Program) -> Finding:
        found = [
            gemm
            for gemm in program.plan.gemms
            if not self.backends or gemm.backend in self.backends
        ]
        measured = backend_counts(program.plan.gemms)
        if len(found) == self.count:
            return self.finding(measured)
        others = [gemm for gemm in program.plan.gemms if gemm not in found]
        example = next(iter(others or found), None)
        return self.finding(
            measured,
            Violation(
                f"{self.count} gemms on {' or '.join(self.backends) or 'any backend'}",
                f"{len(found)} ({measured})",
                _describe(example) if example is not None else "",
                example.source if example is not None else None,
                "set the GEMM policy (`--gemm cublas|triton`), or look for dots that XLA merged, "
                "split or turned into reductions",
            ),
        )


@dataclass(frozen=True)
class Matmul:
    """A dot that the model asks for `count` times within the name scope `scope`.

    Attributes:
      backends: those it may go to; none named: any.
      merged_into: how many gemms XLA may make of the `count` dots, where it merges some.
    """

    scope: str
    count: int = 1
    backends: tuple[str, ...] = ()
    merged_into: int | None = None

    def __str__(self) -> str:
        return f"Matmul({self.scope!r})"


@dataclass(frozen=True)
class MatmulsAccounted(Expectation):
    """Every dot of the program is one of `matmuls`, and is found after optimisation."""

    matmuls: tuple[Matmul, ...]

    def check(self, program: Program) -> Finding:
        violations: list[Violation] = []
        gemms = list(program.plan.gemms)
        requested = program.requested_dots
        for matmul in self.matmuls:
            inside = [gemm for gemm in gemms if _within(matmul.scope, gemm.op_name)]
            violations.extend(_account(matmul, inside, requested))
            gemms = [gemm for gemm in gemms if gemm not in inside]
        violations.extend(
            Violation(
                "every gemm belongs to a matmul of the model",
                f"{gemm.backend} gemm outside all scopes ({gemm.op_name})",
                _describe(gemm),
                gemm.source,
                "give the matmul a jax.named_scope and list it, or remove it",
            )
            for gemm in gemms
        )
        scopes = tuple(matmul.scope for matmul in self.matmuls)
        violations.extend(
            Violation(
                "every dot of the program is a matmul of the model",
                f"dot outside all scopes: {dot.op_name} {dot.shape}",
                source=dot.source,
                advice="give the matmul a jax.named_scope and list it, or remove it",
            )
            for dot in requested or ()
            if not any(_within(scope, dot.op_name) for scope in scopes)
        )
        return self.finding(backend_counts(program.plan.gemms), *violations)


@dataclass(frozen=True)
class FastAccumulation(Expectation):
    """Float8 gemms of cuBLASLt sum fast exactly within the name scopes `scopes`.

    Fast sums stay in the tensor cores' narrow accumulator; others are promoted to float32.
    """

    scopes: tuple[str, ...]

    def check(self, program: Program) -> Finding:
        gemms = [gemm for gemm in program.plan.gemms if gemm.fast_accumulation is not None]
        violations = []
        for gemm in gemms:
            wanted = any(within_differentiated(scope, gemm.op_name) for scope in self.scopes)
            if gemm.fast_accumulation is not wanted:
                violations.append(
                    Violation(
                        f"{'fast' if wanted else 'float32'} accumulation in {gemm.op_name}",
                        "fast" if gemm.fast_accumulation else "float32",
                        _describe(gemm),
                        gemm.source,
                        "name the dot's algorithm, or its precision: DEFAULT is fast",
                    )
                )
        fast = sum(gemm.fast_accumulation is True for gemm in gemms)
        return self.finding(f"{fast} of {len(gemms)} float8 gemms fast", *violations)


def _account(
    matmul: Matmul, gemms: list[Gemm], requested: tuple[RequestedDot, ...] | None
) -> list[Violation]:
    violations = []
    if requested is not None:
        asked = sum(_within(matmul.scope, dot.op_name) for dot in requested)
        if asked != matmul.count:
            violations.append(
                Violation(
                    f"{matmul.count} dots in {matmul.scope} before optimisation",
                    f"{asked}",
                    advice="the model and its expectations disagree: change one of them",
                )
            )
    expected = matmul.count if matmul.merged_into is None else matmul.merged_into
    if len(gemms) != expected:
        violations.append(
            Violation(
                f"{expected} gemms in {matmul.scope} after optimisation",
                f"{len(gemms)}: " + (", ".join(map(_describe, gemms)) or "none"),
                source=gemms[0].source if gemms else None,
                advice="look in after_optimizations.txt for where the dot went: "
                "merged, folded into a constant, or rewritten",
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
        if matmul.backends and gemm.backend not in matmul.backends
    )
    return violations


def _within(scope: str, op_name: str | None) -> bool:
    """Whether `scope` stands in `op_name` as whole path segments."""
    return op_name is not None and f"/{scope}/" in f"/{op_name}/"


def within_differentiated(scope: str, op_name: str | None) -> bool:
    """Whether `scope` is a segment of `op_name`.

    `jvp(scope)` and `transpose(jvp(scope))`, which autodiff makes, count too.
    """
    segments = (op_name or "").split("/")
    return any(segment.strip(")").rpartition("(")[2] == scope for segment in segments)


def backend_counts(gemms: tuple[Gemm, ...]) -> str:
    """`6 cublaslt, 1 reduce`."""
    counts: dict[str, int] = {}
    for gemm in gemms:
        counts[gemm.backend] = counts.get(gemm.backend, 0) + 1
    return ", ".join(f"{count} {backend}" for backend, count in sorted(counts.items())) or "none"


def _describe(gemm: Gemm) -> str:
    return f"{gemm.instruction} on {gemm.backend}: {' × '.join(gemm.shapes)}"
