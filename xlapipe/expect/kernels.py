"""Expectations of fusions and of Pallas kernels."""

from dataclasses import dataclass

from xlapipe.expect.expectation import Expectation, Finding, Violation
from xlapipe.plan.program import Program


@dataclass(frozen=True)
class FusionCount(Expectation):
    """Exactly `count` fusions of XLA's `kind` (kLoop, kInput, kOutput, kCustom) and backend kind.

    `backend_kind` is that of a kCustom fusion, in full: `__triton` does not count
    `__triton_nested_gemm_fusion`.
    """

    count: int
    kind: str | None = None
    backend_kind: str | None = None

    def check(self, program: Program) -> Finding:
        fusions = [i for i in program.plan.instructions.values() if i.opcode == "fusion"]
        found = [
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
        if len(found) == self.count:
            return self.finding(measured)
        return self.finding(
            measured,
            Violation(
                f"{self.count} fusions"
                + (f" of {self.kind}" if self.kind else "")
                + (f" by {self.backend_kind}" if self.backend_kind else ""),
                f"{len(found)} ({measured})",
                f"instruction {found[-1].name}" if found else "",
                found[-1].source if found else None,
                "compare with the golden which operations are fused differently",
            ),
        )


@dataclass(frozen=True)
class KernelCount(Expectation):
    """Exactly `count` calls of the Pallas kernel `name`, by Triton or by Mosaic GPU."""

    name: str
    count: int

    def check(self, program: Program) -> Finding:
        counts: dict[str, int] = {}
        module = program.plan.module
        for _, instruction in module.scheduled() if module is not None else ():
            if (kernel := instruction.kernel_name) is not None:
                counts[kernel] = counts.get(kernel, 0) + 1
        measured = ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"
        found = counts.get(self.name, 0)
        if found == self.count:
            return self.finding(measured)
        return self.finding(
            measured,
            Violation(
                f"{self.count} calls of kernel {self.name}",
                f"{found} (kernels: {measured})",
                advice="look whether the step still takes the path with the kernel, and whether "
                "XLA dropped calls whose results nothing reads",
            ),
        )
