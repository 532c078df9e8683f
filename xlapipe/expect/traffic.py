"""Expectations of what a step must cost: bytes, reads, launches, least time, and what bounds it."""

from dataclasses import dataclass

from xlapipe.expect.expectation import Expectation, Finding, UnknownError, Violation, no_module
from xlapipe.expect.memory import no_leaf_named
from xlapipe.plans.program import Program
from xlapipe.plans.wording import counted
from xlapipe.time.cost import KernelCost, StepCost, step_cost
from xlapipe.time.prediction_settings import PredictionSettings
from xlapipe.time.study import Study, study_of

_BOUNDS = ("memory", "compute", "link", "launches")


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
                f"most of them in {_kernel_text(largest)}",
                largest.source,
                "list the kernels with `xlapipe show --time`; look for values that are written and "
                "read again, and for arguments that several kernels read",
            ),
        )


@dataclass(frozen=True)
class ReadsAtMost(Expectation):
    """The kernels of a step read each argument leaf named `name` at most `times` times.

    Compares bytes: a gather of one row of a table is not a read of the table. What is written into
    the memory of a donated leaf and read again counts too. `ReadAtMost` counts instructions.
    """

    name: str
    times: float

    def _check(self, program: Program) -> Finding:
        cost = _cost(step_cost(program.plan))
        leaves = program.arguments_named(self.name)
        violations = [] if leaves else [no_leaf_named(program, self.name)]
        most = 0.0
        for leaf in leaves:
            allocation = program.allocation_of(leaf)
            if allocation is None or not leaf.size_bytes:
                continue
            read_bytes = cost.read_bytes_of.get((allocation.index, 0), 0)
            times = read_bytes / leaf.size_bytes
            most = max(most, times)
            if times > self.times:
                violations.append(
                    Violation(
                        f"{leaf.path}: read at most {counted_times(self.times)}",
                        f"read {counted_times(times)}: {read_bytes:,} B of {leaf.size_bytes:,} B",
                        f"allocation {allocation.index}",
                        advice="compute everything that needs it in one kernel, or keep the "
                        "smaller result of the first read",
                    )
                )
        return self.finding(f"read {counted_times(most)}", *violations)


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
class FloorAtMost(Expectation):
    """The least time of a step on `target` is at most `seconds`.

    The floor is bytes at full bandwidth or operations at the peak, whichever takes longer, summed
    over the kernels. A step takes longer than its floor.
    """

    seconds: float
    target: str

    def _check(self, program: Program) -> Finding:
        cost = _cost(_study_on(program, self.target).cost)
        if cost.floor_seconds is None:
            raise no_module("kernels")
        measured = f"{cost.floor_seconds * 1e6:,.2f} µs on {self.target}"
        if cost.floor_seconds <= self.seconds:
            return self.finding(measured)
        longest = max(cost.kernels, key=lambda kernel: kernel.floor_seconds or 0.0)
        return self.finding(
            measured,
            Violation(
                f"a floor of at most {self.seconds * 1e6:,.2f} µs on {self.target}",
                measured,
                f"the longest is {_kernel_text(longest)}, bound by {longest.bound}",
                longest.source,
                "list the kernels with `xlapipe show --time`",
            ),
        )


@dataclass(frozen=True)
class BoundBy(Expectation):
    """Most of a step's floor is bound by `bound`: `memory`, `compute` or `link`, or `launches`.

    A step is bound by launches where they take more than half of its predicted time.

    Attributes:
      target: a name of the catalogue; by default the target that the plan was compiled for.
    """

    bound: str
    target: str | None = None

    def __post_init__(self) -> None:
        if self.bound not in _BOUNDS:
            raise ValueError(f"BoundBy: expected one of {', '.join(_BOUNDS)}, found {self.bound!r}")

    def _check(self, program: Program) -> Finding:
        study = _study_on(program, self.target)
        seconds = _cost(study.cost).bound_seconds()
        launches = study.prediction.launch_bound if study.prediction is not None else ""
        if launches or self.bound == "launches":
            held = bool(launches) and self.bound == "launches"
            wanted = f"a step that is bound by {self.bound}"
            measured = launches.partition(" (fix")[0] or "not bound by launches"
            advice = launches.partition("fix: ")[2].rstrip(")")
            missed = () if held else (Violation(wanted, measured, advice=advice),)
            return self.finding(measured, *missed)
        total = sum(seconds.values())
        measured = ", ".join(
            f"{name} {bound_seconds / total:.0%}" if total else name
            for name, bound_seconds in sorted(seconds.items(), key=lambda item: -item[1])
        )
        if total and seconds.get(self.bound, 0.0) > total / 2:
            return self.finding(measured)
        return self.finding(
            measured or "no kernels",
            Violation(
                f"more than half of the floor is bound by {self.bound}",
                measured or "no kernels",
                advice="list the kernels with `xlapipe show --time`",
            ),
        )


@dataclass(frozen=True)
class StepTimeAtMost(Expectation):
    """The predicted time of a step, from its first kernel to its last one, is at most `seconds`.

    Predicted times are off by some percent (docs/time.md): leave room above what you expect. Where
    a loop's trips are unknown, or a library's call was never timed, no limit holds.

    Attributes:
      target: a name of the catalogue; by default the target that the plan was compiled for.
    """

    seconds: float
    target: str | None = None

    def _check(self, program: Program) -> Finding:
        study = _study_on(program, self.target)
        _cost(study.cost)
        prediction = study.prediction
        if prediction is None:
            name = self.target or program.facts.target or ""
            advice = "name one with target=…"
            raise UnknownError(Violation("a GPU whose speeds are known", name, advice=advice))
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


def counted_times(times: float) -> str:
    """A number of times with at most two decimals.

    >>> counted_times(1), counted_times(2.504)
    ('1 time', '2.5 times')
    """
    text = f"{times:.2f}".rstrip("0").rstrip(".")
    return f"{text} time" if text == "1" else f"{text} times"


def _kernel_text(kernel: KernelCost) -> str:
    return f"{kernel.name} ({kernel.kind}), {kernel.touched_bytes:,} B"


def _cost(cost: StepCost | None) -> StepCost:
    """The cost of a step.

    Raises:
      UnknownError: it is not known, since the dump has no complete HLO module.
    """
    if cost is None:
        raise no_module("kernels")
    return cost


def _study_on(program: Program, target: str | None) -> Study:
    """The times on a target of the catalogue.

    Args:
      target: None for the one that the program was compiled for.

    Raises:
      UnknownError: the target is not known.
    """
    study = study_of(program, PredictionSettings(target=target))
    if study.device is None:
        name = target or program.facts.target
        missing = Violation(
            "a target of the catalogue, whose bandwidth and peaks are known",
            f"target {name!r}" if name is not None else "a dump that does not name its target",
            advice="name one with target=…; `xlapipe targets` lists them",
        )
        raise UnknownError(missing)
    return study
