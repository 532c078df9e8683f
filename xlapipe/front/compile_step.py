"""Compile a step from Python: one of this process, or a registered workload."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from xlapipe.compiling import pipeline
from xlapipe.compiling.defaults import DEFAULT_TARGET
from xlapipe.compiling.dump_cache import DumpCache
from xlapipe.compiling.job import Job
from xlapipe.dumps.opened import Opened
from xlapipe.front.plan_arguments import Donate, job_of, workload_of
from xlapipe.front.step_plan import StepPlan
from xlapipe.lowering.lowered_program import LoweredProgram
from xlapipe.workload import Workload

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")


def plan(
    step: Workload | Callable[..., Any],
    *args: Any,
    donate: Donate | None = None,
    target: str | Path = DEFAULT_TARGET,
    gemm: str = "auto",
    name: str | None = None,
    options: Mapping[str, Any] | None = None,
    mesh: Mapping[str, int] | None = None,
    in_specs: Any = None,
    out_specs: Any = None,
    topology: str | None = None,
    autotune_lock: str | Path | None = None,
    timeout: float | None = None,
) -> StepPlan:
    """Compile a step for a GPU or TPU that need not be attached, and return XLA's plan.

    A step that was compiled before, and has not changed, comes from a cache
    (`$XDG_CACHE_HOME/xlapipe`).

    Args:
      step: a function, jitted or not, or a Workload, which takes no other arguments here.
      args: one pytree per positional argument; only shape and dtype of arrays are used.
      donate: positions or names of donated parameters; not for a jitted step.
      target: a name of `xlapipe targets`, or the path of a target config.
      gemm: `auto`, `cublas` or `triton`.
      name: of the step, in messages and reports; default: the function's name.
      options: XLA options (`xla_*`).
      mesh: see Workload.
      in_specs: see Workload.
      out_specs: see Workload.
      topology: hosts × GPUs per host, e.g. `8x8`; default: from the mesh.
      autotune_lock: a file with a device's autotune results.
      timeout: in seconds.

    Raises:
      XlapipeError: bad input or a failed compile. Exceptions of the step are not caught.
    """
    workload = workload_of(
        step,
        args,
        name=name or _name_of(step),
        donate=donate,
        options=options,
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
    )
    job = job_of(
        workload,
        target=target,
        gemm=gemm,
        topology=topology,
        autotune_lock=None if autotune_lock is None else Path(autotune_lock),
        timeout=timeout,
    )
    program, same = lowered_here(workload, job)
    cache = DumpCache(cache_folder(), "set XDG_CACHE_HOME to another folder")
    dump = cache.dump_of(job, program, folder=Path.cwd()).dump
    opened = Opened(dump.path, replace(dump.program, same_buffer=same), dump)
    return StepPlan(opened, workload.expectations)


def build(
    workload: Workload,
    *,
    out: str | Path,
    target: str | Path = DEFAULT_TARGET,
    gemm: str = "auto",
    autotune_lock: str | Path | None = None,
    timeout: float | None = None,
) -> StepPlan:
    """Compile a step into an executable for a GPU, in the folder `out`, which `load` loads there.

    Args:
      workload: the step.
      out: a new folder, or one that `build` made.
      target: as for `plan`.
      gemm: as for `plan`.
      autotune_lock: as for `plan`.
      timeout: as for `plan`.

    Returns:
      The plan of the executable.

    Raises:
      XlapipeError: bad input or a failed compile, a step that calls back into Python, or one that
        only the device can finish; nothing is written.
    """
    lock = None if autotune_lock is None else Path(autotune_lock)
    job = job_of(
        workload, target=target, gemm=gemm, topology=None, autotune_lock=lock, timeout=timeout
    )
    program, _ = lowered_here(workload, job)
    made = pipeline.build(replace(job, program=program), Path(out), folder=Path.cwd())
    return StepPlan(Opened.of_dump(made.dump), workload.expectations)


def lowered_here(workload: Workload, job: Job) -> tuple[LoweredProgram, Mapping[str, str]]:
    """The workload lowered in this process, and its leaves that are one array.

    Raises:
      WorkloadError: the workload does not fit the function; what the function raises passes.
    """
    from xlapipe.lowering.in_process import lower_in_test, same_buffers  # imports jax

    assert job.target is not None  # `job_of` refuses `attached`
    return lower_in_test(workload, job.target.config_text), same_buffers(workload)


def cache_folder() -> Path:
    """Where plans of `plan` are kept between runs."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "xlapipe" / "plans"


def _name_of(step: Any) -> str:
    name = getattr(step, "__name__", None) or type(step).__name__
    return _NOT_IN_A_NAME.sub("-", name).strip("-._") or "step"
