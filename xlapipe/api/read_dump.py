"""Read a plan that was dumped before."""

from pathlib import Path
from typing import TYPE_CHECKING

from xlapipe.api.step_plan import StepPlan
from xlapipe.inductor.open_path import is_inductor_dump, open_path

if TYPE_CHECKING:
    from xlapipe.api.graphs_plan import GraphsPlan


def read(path: str | Path) -> "StepPlan | GraphsPlan":
    """The plan of a dump directory, an `.hlo.pb`, or a buffer assignment that XLA wrote.

    Needs neither jax nor a GPU.

    Returns:
      For a dump of torch Inductor a GraphsPlan, which has `figures`, `table`, `check` and `to_html`
      as a StepPlan, and a plan for each of its `graphs`.

    Raises:
      DumpError: a file is missing, damaged, or made by a newer xlapipe.
      PlanMismatchError: the plan breaks an invariant, or totals differ from XLA's own.
    """
    path = Path(path)
    if is_inductor_dump(path):
        # 30 modules, which no other dump needs.
        from xlapipe.api.graphs_plan import GraphsPlan
        from xlapipe.inductor.reader import read_inductor

        return GraphsPlan(read_inductor(path))
    opened = open_path(path)
    expectations = opened.dump.expectations if opened.dump is not None else ()
    return StepPlan(opened, expectations)
