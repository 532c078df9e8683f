"""`xlapipe.fit` and `xlapipe.largest`: which sizes fit a device, from Python.

A training script can choose its batch with them when it starts. Compiles run in child processes, so
neither the GPU nor the memory of the caller is used.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xlapipe.compile.make_jobs import CompileSettings
from xlapipe.search.memory_budget import memory_budget
from xlapipe.search.planned_memory import PlannedMemory
from xlapipe.search.rows import Row, SearchSettings, compile_rows
from xlapipe.search.sizing.largest_value import Probe, largest_size
from xlapipe.search.sweep import Axis, combinations


@dataclass(frozen=True)
class LargestFit:
    """The largest size that fits.

    Attributes:
      vary: name of the argument.
      value: None if the smallest size does not fit.
      memory: the plan of `value`.
      too_large: the smallest size that was compiled and does not fit; None if `upper` fits.
      compiled: every size that was compiled, in order, with its plan.
    """

    vary: str
    value: int | None
    memory: PlannedMemory | None
    too_large: int | None
    compiled: tuple[tuple[int, PlannedMemory], ...]


def fit(
    workload: str,
    vary: Mapping[str, Sequence[Any]],
    *,
    target: str | None = None,
    topology: str | None = None,
    memory: str | float | None = None,
    scheduler: str | None = None,
    jobs: int | None = None,
    on_done: Callable[[Row], None] = lambda row: None,
) -> tuple[Row, ...]:
    """Compiles every combination of sizes, and compares its plan with the device's memory.

    Args:
      workload: a registered name, or `module:function`; arguments may follow.
      vary: values of arguments of the workload's function.
      target: a name of `xlapipe targets`, or `attached`.
      topology: `HOSTSxGPUS`.
      memory: what a plan may take, as `--memory`: a share of the device's memory, bytes, or
        `usable`; also less what must stay free: `usable-4GB`.
      scheduler: address of a Dask scheduler whose workers compile; None for this machine.
      jobs: number of compiles that run at the same time; by default the number of cores.
      on_done: called with each row when its compile has ended.

    Returns:
      One row per combination, the last axis varying fastest; a failed compile is a row too.

    Raises:
      XlapipeError: an invalid argument.
    """
    axes = [Axis(name, tuple(values)) for name, values in vary.items()]
    search = SearchSettings(
        compile=CompileSettings(target=target, topology=topology),
        memory=memory_budget(memory),
        at_once=jobs,
        scheduler=scheduler,
    )
    return compile_rows(combinations(workload, axes), search, on_done)


def largest(
    workload: str,
    vary: str = "batch",
    *,
    lower: int = 1,
    upper: int | None = None,
    multiple_of: int = 1,
    target: str | None = None,
    topology: str | None = None,
    memory: str | float | None = None,
    on_done: Callable[[int, PlannedMemory], None] = lambda size, memory: None,
) -> LargestFit:
    """The largest value of an integer argument with which the plan fits the device's memory.

    Compiles few sizes: most plans are affine in the batch, so four or five are usual.

    Args:
      workload: as for `fit`.
      vary: name of the argument.
      lower: the least size.
      upper: the largest size; without it sizes grow until one does not fit.
      multiple_of: sizes are multiples of it, e.g. of the devices that the batch is split over.
      target: as for `fit`.
      topology: as for `fit`.
      memory: as for `fit`.
      on_done: called with each size when its compile has ended.

    Raises:
      XlapipeError: an invalid argument, or a compile failed for a reason other than memory.
    """
    settings = CompileSettings(target=target, topology=topology)
    search = SearchSettings(compile=settings, memory=memory_budget(memory), at_once=1)
    plans: dict[int, PlannedMemory] = {}

    def probe(size: int) -> Probe:
        plan = plans[size] = compile_size(workload, vary, size, search).memory
        on_done(size, plan)
        return Probe(size, plan.headroom_bytes, plan.fits)

    probes = largest_size(probe, lower=lower, upper=upper, multiple_of=multiple_of)
    value = max((probe.size for probe in probes if probe.fits), default=None)
    return LargestFit(
        vary=vary,
        value=value,
        memory=plans[value] if value is not None else None,
        too_large=min((probe.size for probe in probes if not probe.fits), default=None),
        compiled=tuple(plans.items()),
    )


def compile_size(workload: str, vary: str, size: int, search: SearchSettings) -> Row:
    """The row of one value of one argument."""
    (row,) = compile_rows(combinations(workload, [Axis(vary, (size,))]), search)
    return row
