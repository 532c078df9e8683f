"""Whether a step has the same result in each run."""

from dataclasses import dataclass

from xlapipe.devices.platforms import platform_named
from xlapipe.expect.expectation import Expectation, Finding, UnknownError, Violation, no_module
from xlapipe.plans.program import Program
from xlapipe.plans.run_to_run import run_to_run
from xlapipe.plans.wording import counted


@dataclass(frozen=True)
class Deterministic(Expectation):
    """No instruction of a GPU's plan has a result that may differ from run to run.

    Such are scatters by atomics whose indices may repeat, and cuDNN's backward convolutions,
    unless XLA's option for deterministic operations is set. Pallas kernels and other calls of the
    user's are not looked into. `xlapipe check W --deterministic` states what the option costs in
    predicted time.
    """

    def _check(self, program: Program) -> Finding:
        if program.plan.module is None or not program.plan.module.computations:
            raise no_module("instructions")
        if not platform_named(program.plan.platform).has_autotuning:
            raise UnknownError(Violation("a GPU's plan", program.plan.platform))
        rows = tuple(run_to_run(program.plan, program.facts.options))
        violations = [
            Violation(
                "a result that is the same in each run",
                row.reason,
                row.instruction.name,
                row.instruction.source,
                row.advice,
                group="instructions",
                size_bytes=row.instruction.shape.size_bytes,
                subject=row.instruction.name,
            )
            for row in rows
        ]
        text = f"{counted(len(rows), 'instruction')} may differ from run to run"
        cost = " (cost: xlapipe check W --deterministic)" if rows else ""
        return self.finding(f"{text}{cost}", *violations)
