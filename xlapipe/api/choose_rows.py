"""`xlapipe.choose`: the rows of `xlapipe choose`, for programs and notebooks."""

from collections.abc import Mapping, Sequence
from typing import Any

from xlapipe.api.shown_plan import Rows
from xlapipe.compile.make_jobs import CompileSettings
from xlapipe.search.choosing.choose import choose as choose_form
from xlapipe.search.choosing.rows import row_figures
from xlapipe.search.memory_budget import memory_budget
from xlapipe.search.rows import SearchSettings


def choose(
    workload: str,
    vary: Mapping[str, Sequence[Any]] | None = None,
    *,
    remat: bool = False,
    offload: bool = False,
    remedies: bool = False,
    target: str | Sequence[str] = (),
    maximise: str | None = None,
    memory: str | float | None = None,
    budget: float | None = None,
    compiles: int | None = None,
    topology: str | None = None,
    scheduler: str | None = None,
    jobs: int | None = None,
) -> Rows:
    """Compiles forms of a step; the fastest one that fits each target has `chosen`.

    Args:
      workload: a registered name, or `module:function`; arguments may follow.
      vary: values of arguments of the workload's function.
      remat: search policies of `jax.checkpoint`.
      offload: try to keep saved values in the host's memory.
      remedies: try what may save memory, as the command does without options: donation, XLA
        options, policies, half the batch, more devices.
      target: one or several names of `xlapipe targets`.
      maximise: an argument that is the number of items of a step, e.g. `batch`.
      budget: minutes after which no compile starts.
      compiles: the largest number of compiles.
      memory, topology, scheduler, jobs: as for `xlapipe.fit`.

    Returns:
      Rows as in `xlapipe choose --json`, the fastest of each target first.

    Raises:
      XlapipeError: an invalid argument, or no form compiles.
      KeyboardInterrupt: the search was interrupted before a row was compiled.
    """
    choice = choose_form(
        workload,
        vary,
        remat=remat,
        offload=offload,
        remedies=remedies,
        targets=(target,) if isinstance(target, str) else target,
        maximise=maximise,
        search=SearchSettings(
            compile=CompileSettings(topology=topology),
            memory=memory_budget(memory),
            at_once=jobs,
            scheduler=scheduler,
        ),
        budget_minutes=budget,
        compiles=compiles,
    )
    if choice.interrupt is not None and not choice.rows:
        raise choice.interrupt
    return Rows(map(row_figures, choice.rows))
