"""The expectation that a step runs about as fast as it did before."""

from dataclasses import dataclass

from xlapipe.expect.expectation import Expectation, Finding, Violation
from xlapipe.plans.program import Program

_MAX_KERNELS = 3


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
