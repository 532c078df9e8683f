"""Compiles candidates within a budget of minutes and compiles."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from xlapipe.compile.job import Job
from xlapipe.errors import DifferentTracesError, XlapipeError
from xlapipe.search.candidate import Candidate, job_of
from xlapipe.search.choosing.rows import ChoiceRow
from xlapipe.search.rows import Row, SearchSettings, compile_rows


class _BudgetUsedError(Exception):
    """Ends a batch of compiles; those that have not started are cancelled."""


@dataclass
class Compiles:
    """Compiles batches of candidates, and keeps the rows so far.

    Attributes:
      search: settings of the compiles; without a target config, the target is the candidate's.
      maximise: the argument whose value is the number of items of a step; None for steps.
      most: the largest number of compiles; None for no bound.
      deadline: on `time.monotonic`, from which on no compile starts; None for no bound.
      rows: in the order in which compiles ended.
      failed: candidates whose compile failed.
      left_out: number of candidates that the budget did not allow.
      unchanged: digest of the step as written, by arguments as text; compiles of changes refuse a
        step that is traced to another one.
      prices: of one device for an hour, by target.
    """

    search: SearchSettings
    maximise: str | None = None
    most: int | None = None
    deadline: float | None = None
    on_done: Callable[[Candidate, ChoiceRow | XlapipeError], None] = lambda candidate, row: None
    rows: list[ChoiceRow] = field(default_factory=list)
    failed: list[tuple[Candidate, XlapipeError]] = field(default_factory=list)
    left_out: int = 0
    unchanged: dict[str, str] = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=dict)

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
        return (self.most is not None and self.count >= self.most) or (
            self.deadline is not None and time.monotonic() >= self.deadline
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
        done_before = self.count
        allowed = list(candidates[: None if self.most is None else self.most - done_before])
        if self.exhausted:
            allowed = []
        notes = recording or {}
        jobs = [self._job(candidate, notes.get(n)) for n, candidate in enumerate(allowed)]
        number_of = {id(candidate): done_before + n for n, candidate in enumerate(allowed)}

        def done(row: Row) -> None:
            self._keep(row, number_of[id(row.candidate)])
            if self.exhausted and self.count - done_before < len(jobs):
                raise _BudgetUsedError

        search = replace(self.search, scheduler=None) if recording else self.search
        try:
            if jobs:
                compile_rows(allowed, search, done, jobs=jobs)
        except _BudgetUsedError:
            pass
        finally:  # an interrupt leaves some as well
            self.left_out += len(candidates) - (self.count - done_before)

    def _keep(self, row: Row, number: int) -> None:
        candidate, outcome = row.candidate, row.outcome
        if isinstance(outcome, DifferentTracesError):
            raise outcome
        if isinstance(outcome, XlapipeError):
            self.failed.append((candidate, outcome))
            self.on_done(candidate, outcome)
            return
        items = items_of(candidate, self.maximise) if self.maximise is not None else None
        self.rows.append(
            ChoiceRow(candidate, outcome, items, number, price=self.prices.get(candidate.target))
        )
        self.on_done(candidate, self.rows[-1])

    def _job(self, candidate: Candidate, note: str | None) -> Job:
        unchanged = self.unchanged.get(repr(candidate.values), "" if note is not None else None)
        recorded = {"record": note, "unchanged": unchanged}
        given = {name: value for name, value in recorded.items() if value is not None}
        return job_of(candidate, self.search.compile, given)


def items_of(candidate: Candidate, name: str) -> float:
    """The number of items of a step.

    Raises:
      XlapipeError: the argument is not given, or is not a positive number.
    """
    value = (candidate.reference.arguments or {}).get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        raise XlapipeError(
            f"--maximise {name}: expected an argument with positive numbers, found {value!r}; fix: "
            f"give its values with --vary {name}=…"
        )
    return float(value)
