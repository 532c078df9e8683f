"""Makes a Workload and a Job from the arguments of `xlapipe.plan` and `xlapipe_plan`."""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from xlapipe.compile.defaults import DEFAULT_TIMEOUT_SECONDS
from xlapipe.compile.gemm_policy import GemmPolicy
from xlapipe.compile.job import Job
from xlapipe.compile.make_jobs import ATTACHED, CompileSettings, jobs_of
from xlapipe.compile.tuning import tuning_of
from xlapipe.devices.targets.catalogue import catalogue, target_named
from xlapipe.devices.targets.target import Target
from xlapipe.devices.targets.target_config import target_attached, target_from_file
from xlapipe.errors import WorkloadError, XlapipeError
from xlapipe.registry import WorkloadReference, find_workload
from xlapipe.workload import Workload

Donate = int | str | Sequence[int | str]
_CONFIG_SUFFIXES = (".txtpb", ".pbtxt", ".textproto")


def workload_of(
    step: Workload | WorkloadReference | str | Callable[..., Any],
    args: Sequence[Any],
    *,
    default_name: Callable[[str], str],
    name: str | None,
    donate: Donate | None,
    **fields: Any,
) -> Workload:
    """The Workload of a step, or `step` itself if it is one, or the one that it names.

    Args:
      default_name: the name of a step by that of its function.
      fields: fields of a Workload; those that are None are left out.

    Raises:
      WorkloadError: a Workload together with other arguments, an unknown one, or an invalid field.
    """
    given = {key: value for key, value in fields.items() if value is not None}
    if isinstance(step, (str, WorkloadReference)):
        from xlapipe.compile.lowering.load_workload import load_workload  # imports jax

        step = load_workload(find_workload(step) if isinstance(step, str) else step)
    others = [*(["args"] if args else []), *(["donate"] if donate is not None else []), *given]
    if isinstance(step, Workload):
        if others:
            raise WorkloadError(
                f"workload {step.name}: has its own arguments and options; fix: leave out "
                f"{', '.join(others)}, or use dataclasses.replace"
            )
        return step
    if not callable(step):
        raise WorkloadError(
            "expected a function with its arguments, a Workload, or the name of one; found "
            f"{step!r:.60}"
        )
    return Workload(
        name=name or default_name(getattr(step, "__name__", None) or type(step).__name__),
        fn=step,
        args=tuple(args),
        donate_argnums=() if donate is None else _argnums(step, donate),
        **given,
    )


def _argnums(step: Callable[..., Any], donate: Donate) -> tuple[int, ...]:
    """Positions of arguments that are given by position or by parameter name."""
    donated = [donate] if isinstance(donate, (int, str)) else list(donate)
    named = [argument for argument in donated if isinstance(argument, str)]
    names = list(inspect.signature(step).parameters) if named else []
    for argument in named:
        if argument not in names:
            raise WorkloadError(
                f"donate={argument!r}: the function has no parameter of that name; it has "
                f"{', '.join(names)}"
            )
    return tuple(
        names.index(argument) if isinstance(argument, str) else argument for argument in donated
    )


def job_of(
    workload: Workload | WorkloadReference,
    *,
    target: str | Path | None,
    gemm: str | None,
    topology: str | None,
    tuning: str | Path | None,
    project: Path | None = None,
    timeout: float | None,
) -> Job:
    """The compile of a workload of this process, or of a reference, which the child imports.

    Args:
      target: None for that of the project, or the default one.
      gemm: None for that of the lock, or `auto`.
      tuning, project: as of `CompileSettings`.

    Raises:
      XlapipeError: an unknown target or GEMM policy, or a lock of a different target.
    """
    if target == ATTACHED and not isinstance(workload, WorkloadReference):
        raise XlapipeError(
            "target 'attached': a plan must name its GPU, so that it is the same on every "
            "machine; fix: write the attached GPU's configuration with `xlapipe device capture "
            "--out FILE`, and give that file as target"
        )
    policies = [policy.value for policy in GemmPolicy]
    if gemm not in (None, *policies):
        raise XlapipeError(f"gemm={gemm!r}: expected one of {', '.join(policies)}")
    is_file = target is not None and is_config(target)
    options = CompileSettings(
        target=None if is_file or target is None else str(target),
        target_config=Path(target) if is_file and target is not None else None,
        policies=() if gemm is None else (gemm,),
        topology=topology,
        tuning=None if tuning is None else tuning_of(tuning),
        project=project,
        timeout_seconds=DEFAULT_TIMEOUT_SECONDS if timeout is None else timeout,
    )
    (job,) = jobs_of([_reference(workload)], options)
    return job


def _reference(workload: Workload | WorkloadReference) -> WorkloadReference:
    if isinstance(workload, WorkloadReference):
        return workload
    fn = workload.fn
    where = f"{getattr(fn, '__module__', '?')}:{getattr(fn, '__qualname__', '?')}"
    return WorkloadReference(workload.name, where)


def target(name: str | Path) -> Target:
    """A GPU or TPU to compile for: its memory, compute capability and configuration.

    Args:
      name: a name of `xlapipe targets`, or a device's own, e.g. `NVIDIA H200`; the path of a target
        config; or `attached`, for the attached GPU.

    Raises:
      TargetError: it is unknown or unsupported, or no GPU is attached.
    """
    if is_config(name):
        return target_from_file(name)
    if name == ATTACHED:
        from xlapipe.run.capture_target import captured_target

        return target_attached(captured_target().config)
    names = {row.description: row.name for row in catalogue()}
    return target_named(names.get(str(name), str(name)))


def is_config(target: str | Path) -> bool:
    """Whether a target is the path of a target config."""
    return isinstance(target, Path) or Path(target).suffix in _CONFIG_SUFFIXES
