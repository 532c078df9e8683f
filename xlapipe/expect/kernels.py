"""Expectations of fusions and of Pallas kernels."""

from dataclasses import dataclass

from xlapipe.expect.expectation import Expectation, Finding, Violation
from xlapipe.plans.program import Program
from xlapipe.plans.wording import counted


@dataclass(frozen=True)
class FusionCount(Expectation):
    """Exactly `count` fusions of XLA's `kind` (kLoop, kInput, kOutput, kCustom) and backend kind.

    `backend_kind` is the full backend kind of a kCustom fusion: `__triton` does not match
    `__triton_nested_gemm_fusion`.
    """

    count: int
    kind: str | None = None
    backend_kind: str | None = None

    def check(self, program: Program) -> Finding:
        fusions = [
            instruction
            for instruction in program.plan.instructions.values()
            if instruction.opcode == "fusion"
        ]
        matching = [
            fusion
            for fusion in fusions
            if self.kind in (None, fusion.fusion_kind)
            and self.backend_kind in (None, fusion.fusion_backend_kind)
        ]
        counts: dict[str, int] = {}
        for fusion in fusions:
            kind = fusion.fusion_backend_kind or fusion.fusion_kind or "?"
            counts[kind] = counts.get(kind, 0) + 1
        measured = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "none"
        if len(matching) == self.count:
            return self.finding(measured)
        return self.finding(
            measured,
            Violation(
                f"{counted(self.count, 'fusion')}"
                + (f" of kind {self.kind}" if self.kind else "")
                + (f" with backend kind {self.backend_kind}" if self.backend_kind else ""),
                f"{len(matching)} ({measured})",
                f"instruction {matching[-1].name}" if matching else "",
                matching[-1].source if matching else None,
                "compare the fusions with those of the golden",
            ),
        )


@dataclass(frozen=True)
class KernelCount(Expectation):
    """Exactly `count` calls of the Pallas kernel `name`, compiled by Triton or Mosaic GPU."""

    name: str
    count: int

    def check(self, program: Program) -> Finding:
        counts: dict[str, int] = {}
        module = program.plan.module
        for _, instruction in module.scheduled() if module is not None else ():
            if (kernel := instruction.kernel_name) is not None:
                counts[kernel] = counts.get(kernel, 0) + 1
        measured = ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"
        calls = counts.get(self.name, 0)
        if calls == self.count:
            return self.finding(measured)
        return self.finding(
            measured,
            Violation(
                f"{counted(self.count, 'call')} of kernel {self.name}",
                f"{calls} (kernels: {measured})",
                advice="check whether the step still uses the kernel, and whether XLA removed "
                "calls whose results nothing reads",
            ),
        )
