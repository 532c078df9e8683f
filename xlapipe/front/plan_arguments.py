"""Makes a Workload and a Job from the arguments of `xlapipe_plan`."""

import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from xlapipe.compiling.defaults import DEFAULT_TIMEOUT_SECONDS
from xlapipe.compiling.gemm_policy import GemmPolicy
from xlapipe.compiling.job import Job
from xlapipe.compiling.make_jobs import ATTACHED, CompileOptions, jobs_of
from xlapipe.errors import WorkloadError, XlapipeError
from xlapipe.registry import WorkloadReference
from xlapipe.workload import Workload

Donate = int | str | Sequence[int | str]
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")


def workload_of(
    step: Workload | Callable[..., Any],
    args: Sequence[Any],
    *,
    name: str,
    donate: Donate | None,
    **fields: Any,
) -> Workload:
    """The Workload of a step, or `step` itself if it is one.

    Args:
      fields: of Workload; those that are None are left out.

    Raises:
      WorkloadError: a Workload together with other arguments, or an invalid field.
    """
    given = {key: value for key, value in fields.items() if value is not None}
    if isinstance(step, Workload):
        others = [*(["args"] if args else []), *(["donate"] if donate is not None else []), *given]
        if others:
            raise WorkloadError(
                f"workload {step.name}: has its own arguments and options; fix: leave out "
                f"{', '.join(others)}, or use dataclasses.replace"
            )
        return step
    if not callable(step):
        raise WorkloadError(
            f"xlapipe_plan takes a function with its arguments, or a Workload; found {step!r:.60}"
        )
    return Workload(
        name=name,
        fn=step,
        args=tuple(args),
        donate_argnums=() if donate is None else _argnums(step, donate),
        **given,
    )


def _argnums(step: Callable[..., Any], donate: Donate) -> tuple[int, ...]:
    """Positions of arguments that are given by position or by parameter name."""
    donated = [donate] if isinstance(donate, (int, str)) else list(donate)
    names = list(inspect.signature(step).parameters) if any(map(_is_name, donated)) else []
    for argument in donated:
        if _is_name(argument) and argument not in names:
            raise WorkloadError(
                f"donate={argument!r}: the function has no parameter of that name; it has "
                f"{', '.join(names)}"
            )
    return tuple(
        names.index(argument) if isinstance(argument, str) else argument for argument in donated
    )


def _is_name(value: Any) -> bool:
    return isinstance(value, str)


def name_of_test(file: Path, test: str) -> str:
    """The name of the folder of a test's goldens.

    >>> name_of_test(Path("test_step.py"), "test_decode[bf16, 8]")
    'test_step-test_decode-bf16-8'
    """
    return _NOT_IN_A_NAME.sub("-", f"{file.stem}-{test}").strip("-.")


def job_of(
    workload: Workload,
    *,
    target: str | Path,
    gemm: str,
    topology: str | None,
    autotune_lock: Path | None,
    timeout: float | None,
) -> Job:
    """The compile of a workload that is lowered in the test's process.

    Raises:
      XlapipeError: an unknown target or GEMM policy, or a lock of a different target.
    """
    if target == ATTACHED:
        raise XlapipeError(
            "target 'attached': a test must name its GPU, so that its plan is the same on every "
            "machine; fix: write the attached GPU's configuration with `xlapipe target capture "
            "--out FILE`, and give that file as target"
        )
    policies = [policy.value for policy in GemmPolicy]
    if gemm not in policies:
        raise XlapipeError(f"gemm={gemm!r}: expected one of {', '.join(policies)}")
    is_file = isinstance(target, Path) or Path(target).suffix in (".txtpb", ".pbtxt", ".textproto")
    options = CompileOptions(
        target=None if is_file else str(target),
        target_config=Path(target) if is_file else None,
        policies=(gemm,),
        topology=topology,
        autotune_lock=autotune_lock,
        timeout_seconds=DEFAULT_TIMEOUT_SECONDS if timeout is None else timeout,
    )
    fn = workload.fn
    where = f"{getattr(fn, '__module__', '?')}:{getattr(fn, '__qualname__', '?')}"
    (job,) = jobs_of([WorkloadReference(workload.name, where)], options)
    return job
