"""Compiles candidates within a budget of minutes and compiles."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from xlapipe.compile.job import Job
from xlapipe.compile.lowering.forward_graph import ForwardGraph
from xlapipe.devices.targets.device import Device, device_of_target
from xlapipe.errors import DifferentTracesError, ParameterError, XlapipeError
from xlapipe.files.contents import read_json
from xlapipe.files.typed_data import typed
from xlapipe.plans.program import Program
from xlapipe.search.candidate import Candidate, job_of
from xlapipe.search.rows import Row, SearchSettings, compile_rows

# The GPU whose speeds order candidates of a target without known ones.
_REFERENCE = "h200"


@dataclass
class Compiles:
    """Compiles batches of candidates, and keeps the rows so far.

    Attributes:
      search: settings of the compiles; without a target config, the target is the candidate's.
      maximise: the argument whose value is the number of items of a step; None for steps.
      most: the largest number of compiles; None for no bound.
      deadline: on `time.monotonic`, from which on no compile starts; None for no bound.
      rows: in the order in which compiles ended.
      failed: those whose compile failed.
      left_out: number of candidates that the budget did not allow.
      unchanged: digest of the step as written, by its values as text; the next compile refuses a
        step that is traced to another one.
      prices: of one device for an hour, by target.
      on_progress: called with the number of compiles that ended, the number of all that are known
        of, and those that run now.
      inapplicable: number of changes of a size that the workload does not have.
      running: those that have started and not ended.
      waiting: number of others that are known of.
    """

    search: SearchSettings
    maximise: str | None = None
    most: int | None = None
    deadline: float | None = None
    on_done: Callable[[Row], None] = lambda row: None
    rows: list[Row] = field(default_factory=list)
    failed: list[Row] = field(default_factory=list)
    left_out: int = 0
    unchanged: dict[str, str] = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=dict)
    on_progress: Callable[[int, int, Sequence[Candidate]], None] = lambda *_: None
    inapplicable: int = 0
    running: list[Candidate] = field(default_factory=list)
    waiting: int = 0

    @property
    def count(self) -> int:
        """Number of compiles so far."""
        return len(self.rows) + len(self.failed) + self.inapplicable

    def rows_of(self, base: Candidate) -> list[Row]:
        """The rows of a target and values."""
        point = (base.target, base.values)
        return [r for r in self.rows if (r.candidate.target, r.candidate.values) == point]

    @property
    def at_once(self) -> int:
        """Number of compiles that run at the same time."""
        return self.search.at_once or os.cpu_count() or 1

    @property
    def exhausted(self) -> bool:
        """Whether the budget allows no further compile."""
        started = self.count + len(self.running)
        return (self.most is not None and started >= self.most) or (
            self.deadline is not None and time.monotonic() >= self.deadline
        )

    def run(
        self,
        candidates: Iterable[Candidate | None],
        search: SearchSettings | None = None,
        note_for: Callable[[Candidate], Path | None] = lambda candidate: None,
        on_first_program: Callable[[Program], None] | None = None,
    ) -> None:
        """Compiles candidates in this order until the budget is used up.

        Args:
          candidates: as of `compile_rows`.
          search: other settings than its own.
          note_for: where the child writes the forward pass of a candidate; None for nowhere.
        """
        before = self.count

        def allowed() -> Iterator[Candidate | None]:
            for candidate in candidates:
                if candidate is not None:
                    if self.exhausted:
                        self.left_out += 1
                        continue
                    self.running.append(candidate)
                    self._show_progress()
                yield candidate

        def done(row: Row) -> None:
            self.running.remove(row.candidate)
            self._keep(replace(row, number=before + row.number))
            self._show_progress()

        try:
            compile_rows(
                allowed(),
                search or self.search,
                done,
                job_for=lambda candidate: self._job(candidate, note_for(candidate)),
                on_first_program=on_first_program,
            )
        finally:  # an interrupt leaves some
            self.left_out += len(self.running)
            self.running.clear()

    def _show_progress(self) -> None:
        known = self.count + len(self.running) + self.waiting
        self.on_progress(self.count, known, self.running)

    def raise_first(self) -> None:
        """Raises the error of the first candidate that failed, if any."""
        for row in self.failed:
            if isinstance(row.outcome, XlapipeError):
                raise row.outcome

    def _keep(self, row: Row) -> None:
        if isinstance(row.outcome, DifferentTracesError):
            raise row.outcome
        if isinstance(row.outcome, ParameterError) and row.candidate.change is not None:
            self.inapplicable += 1
            return
        if isinstance(row.outcome, XlapipeError):
            self.failed.append(row)
        else:
            items = items_of(row.candidate, self.maximise) if self.maximise is not None else None
            row = replace(row, items=items, price=self.prices.get(row.candidate.target))
            self.rows.append(row)
        self.on_done(row)

    def _job(self, candidate: Candidate, note: Path | None) -> Job:
        unchanged = None
        if candidate.change is None or not candidate.change.arguments:  # else it is another step
            unchanged = self.unchanged.pop(candidate.values_text, "" if note is not None else None)
        record = str(note) if note is not None else None
        return job_of(candidate, self.search.compile, record=record, unchanged=unchanged)


def items_of(candidate: Candidate, name: str) -> float:
    """The number of items of a step; raises if the argument is not given, or no positive number."""
    value = (candidate.reference.arguments or {}).get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        raise XlapipeError(
            f"--maximise {name}: expected an argument with positive numbers, found {value!r}; fix: "
            f"give its values with --vary {name}=…"
        )
    return float(value)


def forward_graph_at(path: Path) -> ForwardGraph:
    """What a compiling child recorded."""
    return typed(ForwardGraph, read_json(path))


def target_device(target: str) -> Device:
    """The GPU whose speeds order what is recomputed on a target."""
    device = device_of_target(target) or device_of_target(_REFERENCE)
    assert device is not None
    return device
