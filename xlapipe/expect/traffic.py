"""Expectations of what a step must cost: bytes, launches and predicted time."""

from dataclasses import dataclass

from xlapipe.expect.expectation import Expectation, Finding, UnknownError, Violation, no_module
from xlapipe.plans.program import Program
from xlapipe.plans.wording import counted
from xlapipe.time.cost import StepCost, step_cost
from xlapipe.time.study import study_of


@dataclass(frozen=True)
class TrafficAtMost(Expectation):
    """The kernels of a step read and write at most `limit_bytes` of device memory.

    Bytes as touched: a gather reads the rows that it addresses, an update in place writes its
    slice, a loop multiplies by its trips. Reads that the L2 cache may serve count too. A
    conditional counts with its costliest branch, and a Pallas kernel's in-place operand as a whole.
    """

    limit_bytes: int

    def _check(self, program: Program) -> Finding:
        cost = _cost(step_cost(program.plan))
        most = cost.traffic_at_most_bytes
        expected = f"at most {self.limit_bytes:,} B read and written"
        if most is None:
            loop = "a while loop of unknown trip count"
            advice = "use jax.lax.fori_loop or scan with a static trip count"
            raise UnknownError(Violation(expected, loop, advice=advice))
        if most <= self.limit_bytes:
            return self.finding(f"{most:,} B")
        largest = max(cost.kernels, key=lambda kernel: kernel.touched_bytes)
        return self.finding(
            f"{most:,} B",
            Violation(
                expected,
                f"{most:,} B, {most - self.limit_bytes:,} B more",
                f"most of them in {largest.name} ({largest.kind}), {largest.touched_bytes:,} B",
                largest.source,
                "list the kernels with `xlapipe show --time`; look for values that are written and "
                "read again, and for arguments that several kernels read",
            ),
        )


@dataclass(frozen=True)
class LaunchesAtMost(Expectation):
    """A step launches at most `count` kernels; those in a loop count once per trip."""

    count: int

    def _check(self, program: Program) -> Finding:
        cost = _cost(step_cost(program.plan))
        if cost.launches <= self.count:
            return self.finding(counted(cost.launches, "launch", "launches"))
        frequent = max(cost.kernels, key=lambda kernel: kernel.launches)
        return self.finding(
            counted(cost.launches, "launch", "launches"),
            Violation(
                f"at most {counted(self.count, 'launch', 'launches')}",
                f"{cost.launches:,}",
                f"{frequent.name} is launched {frequent.launches:,} times",
                frequent.source,
                "fuse small operations, or compute them in one Pallas kernel",
            ),
        )


@dataclass(frozen=True)
class StepTimeAtMost(Expectation):
    """The predicted time of a step, from its first kernel to its last one, is at most `seconds`.

    Predicted times are off by some percent (docs/time.md): leave room above what you expect. Where
    a loop's trips are unknown, or a library's call was never timed, no limit holds.
    """

    seconds: float

    def _check(self, program: Program) -> Finding:
        study = study_of(program)
        _cost(study.cost)
        prediction = study.prediction
        if prediction is None:
            name = program.facts.target
            missing = Violation(
                "a target whose speeds are known",
                f"target {name!r}" if name is not None else "a dump that does not name its target",
                advice="`xlapipe targets` lists them",
            )
            raise UnknownError(missing)
        text = f"step of {prediction.text} {prediction.verb} on {prediction.device}"
        if prediction.scaled_from is not None:
            text += f", scaled from {prediction.scaled_from}"
        if prediction.network:
            text += f", network {prediction.network_name}"
        if prediction.step_seconds is not None and prediction.step_seconds <= self.seconds:
            return self.finding(text)
        if prediction.step_seconds is None and (prediction.at_least_seconds or 0.0) <= self.seconds:
            return self.finding(
                text,
                Violation(
                    f"at most {self.seconds * 1e6:,.1f} µs",
                    f"{text}: {'; '.join(prediction.uncounted)}",
                    advice="state the trips of loops with `Workload(loop_trips=N)`; a step of "
                    "which a part is not counted has no upper bound",
                ),
            )
        longest = max(prediction.kernels, key=lambda kernel: kernel.seconds)
        return self.finding(
            text,
            Violation(
                f"at most {self.seconds * 1e6:,.1f} µs",
                text,
                f"most in {longest.name}, {longest.seconds * 1e6:,.1f} µs",
                program.plan.nearest_source(longest.name),
                "list the kernels with `xlapipe show --time`, and what one is made of with "
                "`--why KERNEL`",
            ),
        )


def _cost(cost: StepCost | None) -> StepCost:
    """The cost of a step; refuses a dump without a complete HLO module."""
    if cost is None:
        raise no_module("kernels")
    return cost
