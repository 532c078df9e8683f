"""Expectations of fusions, of Pallas kernels and of convolutions that cuDNN computes."""

from dataclasses import dataclass

from xlapipe.devices.platforms import platform_named
from xlapipe.expect.expectation import Expectation, Finding, Violation
from xlapipe.expect.gemms import within_differentiated
from xlapipe.plans.program import Program
from xlapipe.plans.wording import counted, tally

_CUDNN_CONVOLUTION = "__cudnn$conv"


@dataclass(frozen=True)
class FusionCount(Expectation):
    """Exactly `count` fusions of XLA's `kind` (kLoop, kInput, kOutput, kCustom) and backend kind.

    `backend_kind` is the full backend kind of a kCustom fusion: `__triton` does not match
    `__triton_nested_gemm_fusion`.
    """

    count: int
    kind: str | None = None
    backend_kind: str | None = None

    def _check(self, program: Program) -> Finding:
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
        kinds = (fusion.fusion_backend_kind or fusion.fusion_kind or "?" for fusion in fusions)
        measured = tally(kinds)
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

    def _check(self, program: Program) -> Finding:
        module = program.plan.module
        scheduled = module.scheduled() if module is not None else ()
        names = [name for _, item in scheduled if (name := item.kernel_name) is not None]
        measured, calls = tally(names), names.count(self.name)
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


@dataclass(frozen=True)
class ConvolutionCount(Expectation):
    """Exactly `count` calls of cuDNN's convolutions are in the name scope `scope`.

    On AMD GPUs those of MIOpen, and those that XLA computes where MIOpen is not asked.

    XLA computes some gradients by a forward convolution, so targets of calls do not state what
    they compute. `scope` is a segment of the op_name, also as autodiff's `transpose(jvp(scope))`;
    None for all convolutions.
    """

    count: int
    scope: str | None = None

    def _check(self, program: Program) -> Finding:
        calls = [
            instruction
            for instruction in program.plan.instructions.values()
            if (instruction.custom_call_target or "").startswith(_CUDNN_CONVOLUTION)
        ]
        calls += program.plan.convolutions_by_xla
        matching = [
            call
            for call in calls
            if self.scope is None or within_differentiated(self.scope, call.op_name)
        ]
        names = (call.custom_call_target or call.opcode for call in calls)
        targets = (name.removeprefix("__cudnn$") for name in names)
        all_calls = tally(targets)
        measured = f"{len(matching)} of {counted(len(calls), 'convolution')}"
        if len(matching) == self.count:
            return self.finding(measured)
        library = platform_named(program.plan.platform).convolution_library
        return self.finding(
            measured,
            Violation(
                f"{counted(self.count, 'convolution')} by {library}"
                + (f" in {self.scope}" if self.scope else ""),
                f"{len(matching)} (all: {all_calls})",
                f"instruction {matching[-1].name}" if matching else "",
                matching[-1].source if matching else None,
                "look for convolutions that are computed twice, merged, or not computed by "
                f"{library}",
            ),
        )
