"""Compiles candidates within a budget of minutes and compiles."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from xlapipe.compile.job import Job
from xlapipe.compile.make_jobs import CompileSettings, jobs_of
from xlapipe.errors import DifferentTracesError, XlapipeError
from xlapipe.registry import WorkloadReference, find_workload
from xlapipe.search.choosing.candidate import Candidate
from xlapipe.search.choosing.rows import ChoiceRow
from xlapipe.search.sizing.fit import Row, fit
from xlapipe.search.sizing.sweep import Combination

_CHANGED = "xlapipe.compile.lowering.changed_workload:changed_workload"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What candidates are compiled with, and how many.

    Attributes:
      options: options of every compile; without a target config, its target is the candidate's.
      at_once: number of compiles that run at the same time.
      memory_fraction, reserve_bytes: as for `xlapipe.fit`.
      limit_bytes: compared with totals instead of the device's usable memory.
      most_compiles: None for no bound.
      deadline: on `time.monotonic`; None for no bound.
      scheduler: address of a Dask scheduler; None for this machine.
    """

    options: CompileSettings
    at_once: int
    memory_fraction: float | None = None
    reserve_bytes: int = 0
    limit_bytes: int | None = None
    most_compiles: int | None = None
    deadline: float | None = None
    scheduler: str | None = None


class _BudgetUsedError(Exception):
    """Ends a batch of compiles; those that have not started are cancelled."""


@dataclass
class Compiles:
    """Compiles batches of candidates, and keeps the rows so far.

    Attributes:
      maximise: the argument whose value is the number of items of a step; None for steps.
      rows: in the order in which compiles ended.
      failed: candidates whose compile failed.
      left_out: number of candidates that the budget did not allow.
      unchanged: digest of the step as written, by arguments as text; compiles of changes refuse a
        step that is traced to another one.
    """

    workload: str
    limits: Limits
    maximise: str | None = None
    on_done: Callable[[Candidate, ChoiceRow | XlapipeError], None] = lambda candidate, row: None
    rows: list[ChoiceRow] = field(default_factory=list)
    failed: list[tuple[Candidate, XlapipeError]] = field(default_factory=list)
    left_out: int = 0
    unchanged: dict[str, str] = field(default_factory=dict)

    @property
    def ended(self) -> tuple[Candidate, ...]:
        """The candidates that were compiled, or failed."""
        return *(row.candidate for row in self.rows), *(candidate for candidate, _ in self.failed)

    @property
    def count(self) -> int:
        """Number of compiles so far."""
        return len(self.rows) + len(self.failed)

    @property
    def exhausted(self) -> bool:
        """Whether the budget allows no further compile."""
        most, deadline = self.limits.most_compiles, self.limits.deadline
        return (most is not None and self.count >= most) or (
            deadline is not None and time.monotonic() >= deadline
        )

    def run(
        self, candidates: Sequence[Candidate], *, recording: Mapping[int, str] | None = None
    ) -> None:
        """Compiles candidates in this order until the budget is used up.

        Args:
          recording: file for the forward graph of the candidate of a number. This machine then
            compiles, whatever the scheduler.

        Raises:
          XlapipeError: an unknown workload, target or argument.
        """
        most = self.limits.most_compiles
        allowed = list(candidates) if most is None else list(candidates[: most - self.count])
        if self.exhausted:
            allowed = []
        notes = recording or {}
        jobs = [self._job(candidate, notes.get(n)) for n, candidate in enumerate(allowed)]
        points = [Combination({"": number}, job.reference) for number, job in enumerate(jobs)]
        done_before = self.count

        def done(row: Row) -> None:
            number = row.combination.values[""]
            self._keep(allowed[number], row, done_before + number)
            if self.exhausted and self.count - done_before < len(jobs):
                raise _BudgetUsedError

        try:
            if jobs:
                fit(
                    points,
                    jobs,
                    at_once=self.limits.at_once,
                    memory_fraction=self.limits.memory_fraction,
                    reserve_bytes=self.limits.reserve_bytes,
                    with_times=True,
                    scheduler=None if recording else self.limits.scheduler,
                    on_done=done,
                )
        except _BudgetUsedError:
            pass
        finally:  # an interrupt leaves some as well
            self.left_out += len(candidates) - (self.count - done_before)

    def _keep(self, candidate: Candidate, row: Row, number: int) -> None:
        if isinstance(row.outcome, DifferentTracesError):
            raise row.outcome
        if isinstance(row.outcome, XlapipeError):
            self.failed.append((candidate, row.outcome))
            self.on_done(candidate, row.outcome)
            return
        limit_bytes = self.limits.limit_bytes
        if limit_bytes is None:
            limit_bytes = row.outcome.usable_bytes
        items = None
        if self.maximise is not None:
            given = find_workload(self.workload).arguments or {}
            items = items_of({**given, **candidate.arguments}, self.maximise)
        self.rows.append(ChoiceRow(candidate, row.outcome, items, limit_bytes, number))
        self.on_done(candidate, self.rows[-1])

    def _job(self, candidate: Candidate, note: str | None) -> Job:
        unchanged = self.unchanged.get(repr(candidate.arguments), "" if note is not None else None)
        return job_of(self.workload, candidate, self.limits.options, note, unchanged)


def job_of(
    workload: str,
    candidate: Candidate,
    options: CompileSettings,
    note: str | None = None,
    unchanged: str | None = None,
) -> Job:
    """The compile of a candidate.

    Args:
      note: file for the step's `ForwardGraph`, which the child writes.
      unchanged: as for `rematerialise_as_chosen`.
    """
    own = find_workload(workload)
    if candidate.arguments:
        own = own.with_arguments({**(own.arguments or {}), **candidate.arguments})
    if options.target_config is None:
        options = replace(options, target=candidate.target)
    (job,) = jobs_of([own], options)
    change = candidate.change
    rematerialise = {
        **((change.rematerialise or {}) if change is not None else {}),
        **({"record": note} if note is not None else {}),
        **({"unchanged": unchanged} if unchanged is not None else {}),
    }
    if change is not None:
        job = replace(job, options={**job.options, **change.options})
    if not rematerialise:
        return job
    changed = WorkloadReference(
        name=own.name,
        target=_CHANGED,
        arguments={"reference": own.to_json(), "rematerialise": rematerialise},
    )
    return replace(job, reference=changed)


def items_of(arguments: object, name: str) -> float:
    """The number of items of a step.

    Raises:
      XlapipeError: the argument is not given, or is not a positive number.
    """
    value = arguments.get(name) if isinstance(arguments, dict) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        raise XlapipeError(
            f"--maximise {name}: expected an argument with positive numbers, found {value!r}; fix: "
            f"give its values with --vary {name}=…"
        )
    return float(value)
