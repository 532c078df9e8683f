"""Read a plan that was dumped before."""

from pathlib import Path

from xlapipe.dumps.opened import open_path
from xlapipe.front.step_plan import StepPlan


def read(path: str | Path) -> StepPlan:
    """The plan of a dump directory, an `.hlo.pb`, or a buffer assignment that XLA wrote.

    Needs neither jax nor a GPU.

    Raises:
      DumpError: a file is missing, damaged, or made by a newer xlapipe.
      PlanMismatchError: the plan breaks an invariant, or totals differ from XLA's own.
    """
    opened = open_path(Path(path))
    expectations = opened.dump.expectations if opened.dump is not None else ()
    return StepPlan(opened, expectations)
