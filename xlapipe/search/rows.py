"""The search of this package: each candidate is compiled, and its plan is a row."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

from xlapipe.compile.job import Job
from xlapipe.compile.make_jobs import CompileSettings
from xlapipe.compile.pipeline import run_jobs
from xlapipe.errors import ParameterError, XlapipeError
from xlapipe.plans.program import Program
from xlapipe.search.candidate import Candidate, job_of
from xlapipe.search.memory_budget import MemoryBudget
from xlapipe.search.planned_memory import PlannedMemory, planned_memory
from xlapipe.search.sweep import Axis


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """How candidates are compiled, and what their plans have to fit.

    Attributes:
      compile: settings of every compile.
      memory: what a plan may take.
      at_once: number of compiles that run at the same time; None for the number of cores.
      scheduler: address of a Dask scheduler whose workers compile; None for this machine.
    """

    compile: CompileSettings = field(default_factory=CompileSettings)
    memory: MemoryBudget = field(default_factory=MemoryBudget)
    at_once: int | None = None
    scheduler: str | None = None


@dataclass(frozen=True)
class Row:
    """A candidate, and the memory that it needs or the error of its compile.

    Attributes:
      number: in the order in which candidates were given.
      items: of a step: the value of the argument to maximise; None without one.
      price: of one device for an hour; None if unknown.
      chosen: whether it is the fastest row of its target that fits, by predicted time.
      probability_faster: than the chosen row; None of that row, of another step, and if a time is
        unknown or an estimate.
      saved_bytes: less than the step as written with the same values; None without its row.
      effect: that the change has none, or a bad one, against that row; empty for others.
    """

    candidate: Candidate
    outcome: PlannedMemory | XlapipeError
    number: int = 0
    items: float | None = None
    price: float | None = None
    chosen: bool = False
    probability_faster: float | None = None
    saved_bytes: int | None = None
    effect: str = ""

    @property
    def memory(self) -> PlannedMemory:
        """The memory.

        Raises:
          XlapipeError: the error of the compile.
        """
        if isinstance(self.outcome, XlapipeError):
            raise self.outcome
        return self.outcome

    @property
    def is_same_step(self) -> bool:
        """Whether it computes what the step as written does, on the same number of devices."""
        return self.candidate.change is None or self.candidate.change.is_same_step

    def beats(self, *others: "Row") -> bool:
        """Whether it is as fast as each of the others, and no larger than any."""
        seconds = self.seconds_per_item
        return seconds is not None and all(
            other.seconds_per_item is not None
            and seconds <= other.seconds_per_item
            and self.memory.total_bytes <= other.memory.total_bytes
            for other in others
        )

    @property
    def is_useless(self) -> bool:
        """Whether the step as written is as good, or better."""
        return bool(self.effect) and (self.saved_bytes or 0) <= 0

    @property
    def fits(self) -> bool:
        return isinstance(self.outcome, PlannedMemory) and self.outcome.fits

    @property
    def devices(self) -> int:
        """Devices that run the step: hosts and GPUs, or sides of a grid and slices, multiplied."""
        return prod(map(int, re.findall(r"\d+", self.memory.topology or "1")))

    @property
    def cost_per_million(self) -> float | None:
        """Price of a million items, or of a million steps; None if the time or price is unknown."""
        seconds = self.seconds_per_item
        if seconds is None or self.price is None:
            return None
        return 1e6 * seconds * self.devices * self.price / 3600

    @property
    def seconds_per_item(self) -> float | None:
        """Predicted seconds of a step, per item if an argument is maximised.

        None if unknown, also where a lower bound is known: it does not show which is faster.
        """
        predicted = self.memory.predicted
        if predicted is None or predicted.step_seconds is None:
            return None
        return predicted.step_seconds / (self.items or 1.0)

    @property
    def rank(self) -> tuple[bool, float, float, bool, int, int]:
        """Sort key: the fastest row first; of equal rows, the least change, then the smaller.

        Donating arguments is no more change than none. Rows that compute less, or on more devices,
        are last.
        """
        seconds = self.seconds_per_item
        unknown = float("inf") if seconds is None else seconds
        change = self.candidate.change
        changed = change is not None and not change.only_donates
        bytes_and_number = self.memory.total_bytes, self.number
        return not self.is_same_step, unknown, -(self.items or 0.0), changed, *bytes_and_number


def by_target(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each target, both in their order."""
    own: dict[str, list[Row]] = {}
    for row in rows:
        own.setdefault(row.candidate.target, []).append(row)
    return own


def compile_rows(
    candidates: Iterable[Candidate | None],
    search: SearchSettings,
    on_done: Callable[[Row], None] = lambda row: None,
    *,
    job_for: Callable[[Candidate], Job] | None = None,
    on_first_program: Callable[[Program], None] | None = None,
) -> tuple[Row, ...]:
    """Compiles candidates, and compares their plans with the device's memory.

    Args:
      candidates: as the jobs of `run_jobs`.
      on_done: called with each row when its compile has ended. If it raises, compiles that have
        not started are cancelled.
      on_first_program: gets the first candidate's plan, in a thread.
      job_for: makes the compile of a candidate; None for one as the settings say.

    Raises:
      XlapipeError: an invalid setting.
      ParameterError: the workload's function has no parameter of the name of a value.
    """
    started: list[tuple[Candidate, Job]] = []
    rows: dict[int, Row] = {}

    def jobs() -> Iterator[Job | None]:
        for candidate in candidates:
            if candidate is None:
                yield None
                continue
            job = job_for(candidate) if job_for else job_of(candidate, search.compile)
            started.append((candidate, job))
            yield job

    def number_of(job: Job) -> int:
        return next(number for number, (_, other) in enumerate(started) if other is job)

    def work(job: Job) -> PlannedMemory:
        on_program = on_first_program if job is started[0][1] else None
        return planned_memory(job, search.memory, on_program=on_program)

    def done(job: Job, outcome: PlannedMemory | XlapipeError) -> None:
        number = number_of(job)
        row = rows[number] = Row(started[number][0], outcome, number)
        own = row.candidate
        if isinstance(outcome, ParameterError) and own.values and own.change is None:
            raise outcome
        on_done(row)

    run_jobs(
        jobs(),
        work,
        lambda job, memory: memory,
        at_once=search.at_once or os.cpu_count() or 1,
        on_done=done,
        scheduler=search.scheduler,
    )
    return tuple(rows[number] for number in range(len(started)))


@dataclass(frozen=True)
class Largest:
    """The largest value of the first axis that fits, for given values of the other axes.

    Attributes:
      others: the values of the other axes, by name.
      row: None if no value fits.
      failed: whether a compile failed, so that a larger value may fit.
    """

    others: Mapping[str, Any]
    row: Row | None
    failed: bool


def largest(rows: Sequence[Row], axes: Sequence[Axis]) -> tuple[Largest, ...]:
    """The largest value of the first axis that fits, for each combination of the other axes."""
    if not axes:
        return ()
    first, *others = axes
    largest_values = []
    for values in product(*(axis.values for axis in others)):
        point = {axis.name: value for axis, value in zip(others, values, strict=True)}
        candidates = [row for row in rows if row.candidate.is_at(point)]
        fitting = [row for row in candidates if row.fits]
        best = max(
            fitting, key=lambda row: first.rank(row.candidate.values[first.name]), default=None
        )
        failed = any(isinstance(row.outcome, XlapipeError) for row in candidates)
        largest_values.append(Largest(point, best, failed))
    return tuple(largest_values)
