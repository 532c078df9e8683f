"""`xlapipe.choose`: the rows of `xlapipe choose`, for programs and notebooks."""

from collections.abc import Mapping, Sequence
from typing import Any

from xlapipe.api.rows import Rows
from xlapipe.compile.make_jobs import CompileSettings
from xlapipe.search.choosing.choose import Changes
from xlapipe.search.choosing.choose import choose as choose_form


def choose(
    workload: str,
    vary: Mapping[str, Sequence[Any]] | None = None,
    *,
    remat: bool = False,
    offload: bool = False,
    options: bool = False,
    target: str | Sequence[str] = (),
    maximise: str | None = None,
    limit: int | None = None,
    budget: float | None = None,
    compiles: int | None = None,
    topology: str | None = None,
    memory_fraction: float | None = None,
    reserve_bytes: int = 0,
    scheduler: str | None = None,
    jobs: int | None = None,
) -> Rows:
    """Compiles forms of a step; the fastest one that fits each target has `chosen`.

    Args:
      workload: a registered name, or `module:function`; arguments may follow.
      vary: values of arguments of the workload's function.
      remat: search policies of `jax.checkpoint`.
      offload: try to keep saved values in the host's memory.
      options: try XLA options.
      target: one or several names of `xlapipe targets`.
      maximise: an argument that is the number of items of a step, e.g. `batch`.
      limit: bytes that a plan may need, instead of the device's usable memory.
      budget: minutes after which no compile starts.
      compiles: the largest number of compiles.
      topology, memory_fraction, reserve_bytes, scheduler, jobs: as for `xlapipe.fit`.

    Returns:
      Rows as in `xlapipe choose --json`, the fastest of each target first.

    Raises:
      XlapipeError: an invalid argument, or no form compiles.
      KeyboardInterrupt: the search was interrupted before a row was compiled.
    """
    choice = choose_form(
        workload,
        vary,
        changes=Changes(remat, offload, options),
        targets=(target,) if isinstance(target, str) else target,
        maximise=maximise,
        limit_bytes=limit,
        budget_minutes=budget,
        compiles=compiles,
        options=CompileSettings(topology=topology),
        memory_fraction=memory_fraction,
        reserve_bytes=reserve_bytes,
        scheduler=scheduler,
        jobs=jobs,
    )
    if choice.interrupt is not None and not choice.rows:
        raise choice.interrupt
    return Rows(row.to_json() for row in choice.rows)
