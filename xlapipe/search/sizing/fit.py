"""Which sizes of a workload fit a device's memory: compiles each and reads its plan."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from xlapipe.compile.job import Job
from xlapipe.compile.pipeline import CompiledDump, keep_dump, run_jobs
from xlapipe.devices.platforms.nvidia import DEFAULT_MEMORY_FRACTION
from xlapipe.errors import ParameterError, XlapipeError
from xlapipe.search.sizing.planned_memory import PlannedMemory, planned_memory
from xlapipe.search.sizing.sweep import Axis, Combination


@dataclass(frozen=True)
class Row:
    """A combination, and the memory it needs or the error of its compile."""

    combination: Combination
    outcome: PlannedMemory | XlapipeError

    @property
    def fits(self) -> bool:
        return isinstance(self.outcome, PlannedMemory) and self.outcome.fits


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


def fit(
    points: Sequence[Combination],
    jobs: Sequence[Job],
    *,
    at_once: int,
    memory_fraction: float | None = None,
    out: Path | None = None,
    reserve_bytes: int = 0,
    with_floors: bool = False,
    with_times: bool = False,
    scheduler: str | None = None,
    on_done: Callable[[Row], None] = lambda row: None,
) -> tuple[Row, ...]:
    """Compiles each combination and compares its plan with the device's memory.

    Args:
      points: the combinations.
      jobs: one for each combination.
      at_once: number of compiles that run at the same time.
      memory_fraction: the share of the device's memory that the process may use, above 0, up to 1.
        By default jax's on GPUs, and all that XLA's compiler leaves to a program on TPUs.
      out: folder for whole dumps; None to write none. XLA then dumps the plan only, and does not
        optimise kernels, which changes no allocation.
      reserve_bytes: what must stay free for other live arrays and programs.
      scheduler: address of a Dask scheduler whose workers compile; None for this machine.
      with_floors: compute the least time of each step, not only of those that rematerialise.
      with_times: predict the time of each step.
      on_done: called with each row when its compile has ended.

    Returns:
      Rows in the order of the combinations, including those whose compile failed.

    Raises:
      XlapipeError: the memory fraction is out of range.
      ParameterError: the workload's function has no parameter of an axis's name.
    """
    if reserve_bytes < 0:
        raise XlapipeError(f"--reserve {reserve_bytes}: expected 0 or more bytes")
    if memory_fraction is not None and not 0 < memory_fraction <= 1:
        raise XlapipeError(
            f"--memory-fraction {memory_fraction:g}: expected a number above 0 and up to 1"
        )
    combination_of = dict(zip(map(id, jobs), points, strict=True))
    rows: dict[int, Row] = {}

    def work(job: Job) -> tuple[PlannedMemory, CompiledDump | None]:
        fraction = memory_fraction or DEFAULT_MEMORY_FRACTION
        job = replace(job, memory_fraction=fraction)
        return planned_memory(
            job,
            memory_fraction,
            whole=out is not None,
            with_floors=with_floors,
            with_times=with_times,
        )

    def keep(job: Job, result: tuple[PlannedMemory, CompiledDump | None]) -> PlannedMemory:
        memory, compiled = result
        memory = replace(
            memory,
            usable_bytes=memory.usable_bytes - reserve_bytes,
            reserved_bytes=reserve_bytes,
        )
        if compiled is not None and out is not None:
            keep_dump(job, compiled, out, seconds=memory.seconds["all"])
        return memory

    def done(job: Job, outcome: PlannedMemory | XlapipeError) -> None:
        if isinstance(outcome, ParameterError) and combination_of[id(job)].values:
            raise outcome
        rows[id(job)] = Row(combination_of[id(job)], outcome)
        on_done(rows[id(job)])

    run_jobs(jobs, work, keep, at_once=at_once, on_done=done, scheduler=scheduler)
    return tuple(rows[id(job)] for job in jobs)


def largest(rows: Sequence[Row], axes: Sequence[Axis]) -> tuple[Largest, ...]:
    """The largest value of the first axis that fits, for each combination of the other axes."""
    if not axes:
        return ()
    first, *others = axes
    largest_values = []
    for values in product(*(axis.values for axis in others)):
        point = {axis.name: value for axis, value in zip(others, values, strict=True)}
        candidates = [row for row in rows if row.combination.is_at(point)]
        fitting = [row for row in candidates if row.fits]
        best = max(
            fitting, key=lambda row: first.rank(row.combination.values[first.name]), default=None
        )
        failed = any(isinstance(row.outcome, XlapipeError) for row in candidates)
        largest_values.append(Largest(point, best, failed))
    return tuple(largest_values)
