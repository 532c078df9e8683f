"""Chooses the fastest form of a step that fits: what `xlapipe choose` and `xlapipe.choose` do."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xlapipe.choosing.candidate import Candidate
from xlapipe.choosing.compiles import Compiles, Limits, items_of
from xlapipe.choosing.rows import ChoiceRow, with_chosen
from xlapipe.compiling.defaults import DEFAULT_TARGET
from xlapipe.compiling.make_jobs import CompileOptions
from xlapipe.errors import XlapipeError
from xlapipe.registry import find_workload
from xlapipe.sizing.sweep import Axis, combinations


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The compiled rows, the fastest of each target first.

    Attributes:
      failed: candidates that do not compile, with the error.
      left_out: candidates that the budget did not allow, or that an interrupt left.
      interrupted: whether the user ended the search.
      notes: advice in words.
    """

    workload: str
    maximise: str | None
    rows: tuple[ChoiceRow, ...]
    failed: tuple[tuple[Candidate, XlapipeError], ...] = ()
    left_out: int = 0
    interrupted: bool = False
    notes: tuple[str, ...] = ()

    @property
    def chosen(self) -> tuple[ChoiceRow, ...]:
        """One row of each target that a row fits."""
        return tuple(row for row in self.rows if row.chosen)


def choose(
    workload: str,
    vary: Mapping[str, Sequence[Any]] | None = None,
    *,
    targets: Sequence[str] = (),
    maximise: str | None = None,
    limit_bytes: int | None = None,
    budget_minutes: float | None = None,
    compiles: int | None = None,
    options: CompileOptions | None = None,
    memory_fraction: float | None = None,
    reserve_bytes: int = 0,
    scheduler: str | None = None,
    jobs: int | None = None,
    on_done: Callable[[Candidate, ChoiceRow | XlapipeError], None] = lambda candidate, row: None,
) -> Choice:
    """Compiles forms of a step, and chooses the fastest one that fits each target.

    Args:
      workload: a registered name, or `module:function`; arguments may follow.
      vary: values of arguments of the workload's function.
      targets: names of `xlapipe targets`; the default target if empty.
      maximise: an argument whose value is the number of items of a step, e.g. `batch`: rows are
        ranked by predicted time per item.
      limit_bytes: what a total may have, instead of the device's usable memory.
      budget_minutes: no compile starts after so many minutes.
      compiles: the largest number of compiles.
      options: of every compile, without its target; with a target config, `targets` is its name.
      memory_fraction, reserve_bytes, scheduler, jobs: as for `xlapipe.fit`.
      on_done: called with each row, or the error of its compile.

    Raises:
      XlapipeError: an invalid argument, or no candidate compiles.
    """
    axes = [Axis(name, tuple(values)) for name, values in (vary or {}).items()]
    points = combinations(workload, axes)
    targets = tuple(dict.fromkeys(targets)) or (DEFAULT_TARGET,)
    _check(limit_bytes, budget_minutes, compiles)
    if maximise is not None:
        given = find_workload(workload).arguments or {}
        for point in points:
            items_of({**given, **point.values}, maximise)
    limits = Limits(
        options=options or CompileOptions(),
        at_once=jobs or os.cpu_count() or 1,
        memory_fraction=memory_fraction,
        reserve_bytes=reserve_bytes,
        limit_bytes=limit_bytes,
        most_compiles=compiles,
        deadline=None if budget_minutes is None else time.monotonic() + 60 * budget_minutes,
        scheduler=scheduler,
    )
    search = Compiles(workload, limits, maximise, on_done)
    interrupted = False
    try:
        search.run([Candidate(point.values, target) for target in targets for point in points])
    except KeyboardInterrupt:
        interrupted = True
    if not search.rows and search.failed:
        raise search.failed[0][1]
    return Choice(
        workload=workload,
        maximise=maximise,
        rows=with_chosen(search.rows),
        failed=tuple(search.failed),
        left_out=search.left_out,
        interrupted=interrupted,
    )


def _check(limit_bytes: int | None, budget_minutes: float | None, compiles: int | None) -> None:
    if limit_bytes is not None and limit_bytes <= 0:
        raise XlapipeError(f"--limit {limit_bytes}: expected a positive number of bytes")
    if budget_minutes is not None and budget_minutes <= 0:
        raise XlapipeError(f"--budget {budget_minutes:g}: expected minutes above 0")
    if compiles is not None and compiles <= 0:
        raise XlapipeError(f"--compiles {compiles}: expected 1 or more")
