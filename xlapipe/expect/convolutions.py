"""Expectations of convolutions that cuDNN computes."""

from dataclasses import dataclass

from xlapipe.expect.expectation import Expectation, Finding, Violation
from xlapipe.expect.gemms import within_differentiated
from xlapipe.plans.program import Program
from xlapipe.plans.wording import counted

_CUDNN_CONVOLUTION = "__cudnn$conv"


@dataclass(frozen=True)
class ConvolutionCount(Expectation):
    """Exactly `count` calls of cuDNN's convolutions are in the name scope `scope`.

    XLA computes some gradients by a forward convolution, so targets of calls do not state what
    they compute. `scope` is a segment of the op_name, also as autodiff's `transpose(jvp(scope))`;
    None for all convolutions.
    """

    count: int
    scope: str | None = None

    def check(self, program: Program) -> Finding:
        calls = [
            instruction
            for instruction in program.plan.instructions.values()
            if (instruction.custom_call_target or "").startswith(_CUDNN_CONVOLUTION)
        ]
        matching = [
            call
            for call in calls
            if self.scope is None or within_differentiated(self.scope, call.op_name)
        ]
        targets: dict[str, int] = {}
        for call in calls:
            target = (call.custom_call_target or "").removeprefix("__cudnn$")
            targets[target] = targets.get(target, 0) + 1
        all_calls = ", ".join(f"{count} {name}" for name, count in sorted(targets.items()))
        measured = f"{len(matching)} of {counted(len(calls), 'convolution')}"
        if len(matching) == self.count:
            return self.finding(measured)
        return self.finding(
            measured,
            Violation(
                f"{counted(self.count, 'convolution')} by cuDNN"
                + (f" in {self.scope}" if self.scope else ""),
                f"{len(matching)} (all: {all_calls or 'none'})",
                f"instruction {matching[-1].name}" if matching else "",
                matching[-1].source if matching else None,
                "look for convolutions that are computed twice, merged, or not computed by cuDNN",
            ),
        )
