"""The expectation that a step compiles about as fast as an earlier compile of it."""

from dataclasses import dataclass, replace
from pathlib import Path

from xlapipe.expect.expectation import Expectation, Finding, Violation
from xlapipe.plans.compile_times import largest_cause, read_compile_times
from xlapipe.plans.program import Program


@dataclass(frozen=True)
class CompileTimeAtMost(Expectation):
    """Trace, lowering and XLA take at most `ratio` times the CPU time of the baseline's.

    A warning where the two were compiled on machines of different kinds, which are not compared.

    Attributes:
      ratio: to the baseline, e.g. 1.5.
      baseline: folder of a dump of the step, from the current folder.
    """

    ratio: float
    baseline: str

    def check(self, program: Program) -> Finding:
        own, before = program.compile_times, read_compile_times(Path(self.baseline))
        if own is None or before is None:
            where = "this compile" if own is None else self.baseline
            advice = "dump the workload again"
            return self.finding("unknown", Violation(f"times of {where}", "none", advice=advice))
        ratio = own.ratio_to(before)
        if ratio is None:
            other = Violation(f"a compile on {before.machine}", f"one on {own.machine}")
            return replace(self.finding("not compared", other), is_warning=True)
        text = f"{ratio:.2f} times the CPU time of {self.baseline} ({before.cpu_seconds:.1f} s)"
        if ratio <= self.ratio:
            return self.finding(text)
        stages = [
            f"{name} {before.stages[name].cpu:.1f} -> {stage.cpu:.1f} s"
            for name, stage in own.stages.items()
            if name in before.stages
        ]
        return self.finding(
            text,
            Violation(
                f"at most {self.ratio:g} times",
                f"{own.cpu_seconds:.1f} s of CPU: {', '.join(stages)}",
                where=largest_cause(own, program.plan),
                advice="`xlapipe bisect --compile-time` finds the version or the option",
            ),
        )
