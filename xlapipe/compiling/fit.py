"""Which of many sizes of a workload fit a device's memory, told from a compile of each.

What is counted is the plan: arguments, outputs, constants and temporary memory of one device.
What is not: the CUDA context and its kernels, NCCL's buffers, and other live arrays.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from xlapipe.compiling.child_process import compile_workload
from xlapipe.compiling.defaults import DEFAULT_MEMORY_FRACTION
from xlapipe.compiling.job import Job
from xlapipe.compiling.pipeline import make_dump, run_jobs
from xlapipe.compiling.sweep import Axis, Combination
from xlapipe.dumps.dump import check_memory_analysis
from xlapipe.errors import ParameterError, XlapipeError
from xlapipe.plan import Plan
from xlapipe.read import read_path
from xlapipe.targets.target_config import target_attached

# HloRematerialization names what it computes a second time after the first, `fusion.3.remat2`.
_REMATERIALISED = re.compile(r"\.remat(?![a-z])")


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """What a plan needs on one device; in bytes.

    arguments + outputs + temp = total.

    Attributes:
      argument_bytes: parameters of the program, those that it updates in place included.
      output_bytes: outputs that are written over no argument, and constants.
      total_bytes: all allocations but thread-local ones, which live in registers.
      usable_bytes: the device's memory times the share that the process may take.
      rematerialised: instructions that XLA computes a second time because its estimate was above
        its limit, four fifths of the device's memory. The plan would be larger and faster without.
      seconds: of `load` (the workload's module), `lower`, `compile`, `read` and `all`.
    """

    workload: str
    topology: str | None
    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    device_memory_bytes: int
    usable_bytes: int
    rematerialised: int
    seconds: Mapping[str, float]

    @property
    def total_bytes(self) -> int:
        return self.argument_bytes + self.output_bytes + self.temp_bytes

    @property
    def headroom_bytes(self) -> int:
        """Usable bytes that are left; below 0 what is missing."""
        return self.usable_bytes - self.total_bytes

    @property
    def fits(self) -> bool:
        return self.headroom_bytes >= 0


@dataclass(frozen=True)
class Row:
    """A combination and its outcome: what it needs, or why it did not compile."""

    combination: Combination
    outcome: Fitted | XlapipeError

    @property
    def fits(self) -> bool:
        return isinstance(self.outcome, Fitted) and self.outcome.fits


@dataclass(frozen=True)
class Largest:
    """The largest value of the first axis that fits, where the other axes have `others`.

    Attributes:
      row: None where no value fits.
      failed: whether a value did not compile, so that a larger one may fit.
    """

    others: Mapping[str, Any]
    row: Row | None
    failed: bool


def fit(
    found: Sequence[Combination],
    jobs: Sequence[Job],
    *,
    at_once: int,
    memory_fraction: float = DEFAULT_MEMORY_FRACTION,
    out: Path | None = None,
    on_done: Callable[[Row], None] = lambda row: None,
) -> tuple[Row, ...]:
    """Compiles each combination and holds its plan against the device's memory.

    Args:
      jobs: one for each combination.
      at_once: children at a time.
      memory_fraction: the share of the device's memory that the process may take, above 0 to 1.
      out: where to keep whole dumps. Without it XLA writes no more than the plan, and generates
        kernels without optimising them, which changes no allocation.
      on_done: told of each row as it is known.

    Returns:
      Rows in the order of the combinations; a compile that failed is one of them.

    Raises:
      XlapipeError: a memory fraction of no sense.
      ParameterError: the workload's function lacks an argument, whatever its value.
    """
    if not 0 < memory_fraction <= 1:
        raise XlapipeError(f"--memory-fraction {memory_fraction:g}: expected above 0, up to 1")
    combination_of = dict(zip(map(id, jobs), found, strict=True))
    rows: dict[int, Row] = {}

    def work(job: Job) -> Fitted:
        return _fitted(job, memory_fraction, out)

    def done(job: Job, outcome: Fitted | XlapipeError) -> None:
        if isinstance(outcome, ParameterError):
            raise outcome
        rows[id(job)] = Row(combination_of[id(job)], outcome)
        on_done(rows[id(job)])

    run_jobs(jobs, work, at_once=at_once, on_done=done)
    return tuple(rows[id(job)] for job in jobs)


def largest(rows: Sequence[Row], axes: Sequence[Axis]) -> tuple[Largest, ...]:
    """The largest value of the first axis that fits, for each combination of the others'."""
    if not axes:
        return ()
    first, *others = axes
    answers = []
    for values in product(*(axis.values for axis in others)):
        point = {axis.name: value for axis, value in zip(others, values, strict=True)}
        these = [row for row in rows if row.combination.is_at(point)]
        fitting = [row for row in these if row.fits]
        best = max(
            fitting, key=lambda row: first.rank(row.combination.values[first.name]), default=None
        )
        failed = any(isinstance(row.outcome, XlapipeError) for row in these)
        answers.append(Largest(point, best, failed))
    return tuple(answers)


def _fitted(job: Job, memory_fraction: float, out: Path | None) -> Fitted:
    started = time.monotonic()
    if out is not None:
        made = make_dump(job, out)
        manifest = made.dump.manifest
        plan, stages = made.dump.plan, made.stage_seconds
        workload, topology = manifest.workload, manifest.topology
        config_text = made.files["target_config.txtpb"].decode()
    else:
        with compile_workload(replace(job, plan_only=True)) as compiled:
            plan = read_path(compiled.dump_folder)
            record, stages = compiled.record, compiled.record.seconds
            analysis = record.memory_analysis
            check_memory_analysis(plan, analysis, where=job.reference.name)
        workload, topology = record.workload, record.topology
        config_text = record.target_config
    memory = (job.target or target_attached(config_text)).device_memory_bytes
    seconds = time.monotonic() - started
    return _of_plan(
        plan,
        workload=workload,
        topology=topology,
        memory=memory,
        usable=int(memory * memory_fraction),
        seconds={
            **stages,
            "read": seconds - sum(stages.values()),
            "all": seconds,
        },
    )


def _of_plan(
    plan: Plan,
    *,
    workload: str,
    topology: str | None,
    memory: int,
    usable: int,
    seconds: Mapping[str, float],
) -> Fitted:
    totals = plan.totals
    return Fitted(
        workload=workload,
        topology=topology,
        argument_bytes=totals.parameter_bytes,
        output_bytes=totals.live_out_bytes - totals.aliased_bytes + totals.constant_bytes,
        temp_bytes=totals.temp_bytes,
        device_memory_bytes=memory,
        usable_bytes=usable,
        rematerialised=sum(1 for each in plan.instructions if _REMATERIALISED.search(each)),
        seconds={name: round(value, 2) for name, value in seconds.items()},
    )
