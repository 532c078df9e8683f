"""Compile a step from Python: one of this process, or a registered workload."""

import re
from dataclasses import replace
from pathlib import Path

from xlapipe.api.plan_arguments import job_of
from xlapipe.api.planner import Planned, Planner, lowered_here
from xlapipe.api.step_plan import StepPlan
from xlapipe.compile import pipeline
from xlapipe.compile.tuning import Tuned
from xlapipe.registry import WorkloadReference, find_workload
from xlapipe.report.xla_subject import XlaSubject
from xlapipe.workload import Workload

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")


class _StepPlans(Planner[StepPlan]):
    """The plans of `xlapipe.plan`, cached for this user."""

    def _default_name(self, function: str) -> str:
        return _NOT_IN_A_NAME.sub("-", function).strip("-._") or "step"

    def _plan(self, planned: Planned) -> StepPlan:
        return StepPlan(XlaSubject(planned.written.dump), planned.expectations)


plan = _StepPlans().plan


def build(
    step: Workload | WorkloadReference | str,
    *,
    out: str | Path,
    target: str | Path | None = None,
    gemm: str | None = None,
    tuning: str | Path | None = None,
    timeout: float | None = None,
) -> StepPlan:
    """Compile a step into an executable for a GPU, in the folder `out`, which `load` loads there.

    Args:
      step: a Workload, or the name of one as on the command line, which is then imported and
        lowered in a child process.
      out: a new folder, or one that `build` made.
      target: as for `plan`; or `attached` for the name of a workload, which is then tuned.
      gemm: as for `plan`; default: `auto`, or that of the lock.
      tuning: as for `plan`; default: `none`.
      timeout: as for `plan`.

    Returns:
      The plan of the executable.

    Raises:
      XlapipeError: bad input or a failed compile, a step that calls back into Python, or one that
        only the device can finish; nothing is written.
    """
    reference = find_workload(step) if isinstance(step, str) else step
    job = job_of(
        reference,
        target=target,
        gemm=gemm,
        topology=None,
        tuning=tuning or Tuned.NONE,  # the device may refuse what predicted tuning names
        timeout=timeout,
    )
    folder = None
    if isinstance(reference, Workload):
        program = lowered_here(reference, job)
        job, folder = replace(job, program=program), Path.cwd()
    dump = pipeline.build(job, Path(out), folder=folder).dump
    return StepPlan(XlaSubject(dump), dump.expectations)
