"""Expectations that a step compiles and runs about as fast as it did before."""

from dataclasses import dataclass, replace
from pathlib import Path

from xlapipe.expect.expectation import Expectation, Finding, UnknownError, Violation
from xlapipe.plans.compile_times import largest_cause, read_compile_times
from xlapipe.plans.program import Program

_MAX_KERNELS = 3


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

    def _check(self, program: Program) -> Finding:
        times, before = program.compile_times, read_compile_times(Path(self.baseline))
        if times is None or before is None:
            where = "this compile" if times is None else self.baseline
            advice = "dump the workload again"
            raise UnknownError(Violation(f"times of {where}", "none", advice=advice))
        ratio = times.ratio_to(before)
        if ratio is None:
            other = Violation(f"a compile on {before.machine}", f"one on {times.machine}")
            return replace(self.finding("not compared", other), is_warning=True)
        text = f"{ratio:.2f} times the CPU time of {self.baseline} ({before.cpu_seconds:.1f} s)"
        if ratio <= self.ratio:
            return self.finding(text)
        stages = [
            f"{name} {before.stages[name].cpu:.1f} -> {stage.cpu:.1f} s"
            for name, stage in times.stages.items()
            if name in before.stages
        ]
        return self.finding(
            text,
            Violation(
                f"at most {self.ratio:g} times",
                f"{times.cpu_seconds:.1f} s of CPU: {', '.join(stages)}",
                where=largest_cause(times, program.plan),
                advice="`xlapipe diff BASELINE DUMP` lists the stages of both compiles",
            ),
        )


@dataclass(frozen=True)
class SlowerThanRecord(Expectation):
    """Is violated by a step whose kernels take more than `by` longer than in the record.

    `xlapipe run DIR --profile --compare FOLDER` checks it: it needs a GPU. Where nothing was
    measured, as in `xlapipe check`, it holds.

    Attributes:
      by: the share that is allowed on top of the recorded time.
    """

    by: float = 0.05

    def _check(self, program: Program) -> Finding:
        measured, recorded = program.measured_seconds, program.recorded_seconds
        if not measured or not recorded:
            return self.finding("not measured")
        now, before = sum(measured.values()), sum(recorded.values())
        text = f"{now * 1e6:,.1f} µs in kernels, recorded {before * 1e6:,.1f} µs"
        if now <= before * (1 + self.by):
            return self.finding(text)
        slower = sorted(
            ((seconds - recorded.get(name, 0.0), name) for name, seconds in measured.items()),
            reverse=True,
        )
        listed = [f"{name} {delta * 1e6:+,.1f} µs" for delta, name in slower if delta > 0]
        return self.finding(
            text,
            Violation(
                f"at most {self.by:.0%} more than {before * 1e6:,.1f} µs",
                f"{now * 1e6:,.1f} µs, {now / before - 1:+.1%}",
                ", ".join(listed[:_MAX_KERNELS]),
                program.plan.nearest_source(slower[0][1]),
                "compare the plans with `xlapipe diff`; if they are the same, check the GPU's "
                "clock and what else runs on it",
            ),
        )
