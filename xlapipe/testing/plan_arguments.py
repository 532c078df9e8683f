"""From the arguments of `xlapipe_plan` to a Workload and a Job."""

import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from xlapipe.compiling.child_process import DEFAULT_TIMEOUT_SECONDS, Job
from xlapipe.compiling.make_jobs import ATTACHED, Asked, jobs_of
from xlapipe.errors import WorkloadError, XlapipeError
from xlapipe.registry import WorkloadReference
from xlapipe.targets.topology import Topology
from xlapipe.workload import Workload

Donate = int | str | Sequence[int | str]
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")


def workload_of(
    step: Workload | Callable[..., Any],
    args: Sequence[Any],
    *,
    name: str,
    donate: Donate | None,
    **fields: Any,
) -> Workload:
    """The Workload that is asked for; `fields` are those of Workload that are not None.

    Raises:
      WorkloadError: a Workload with arguments besides, or a field that is not of its form.
    """
    given = {key: value for key, value in fields.items() if value is not None}
    if isinstance(step, Workload):
        besides = [*(["args"] if args else []), *(["donate"] if donate is not None else []), *given]
        if besides:
            raise WorkloadError(
                f"workload {step.name}: has its own arguments and options; leave out "
                f"{', '.join(besides)}, or use dataclasses.replace"
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
    """Positions of arguments that are named by position or by parameter name."""
    asked = [donate] if isinstance(donate, (int, str)) else list(donate)
    names = list(inspect.signature(step).parameters) if any(map(_is_name, asked)) else []
    for each in asked:
        if _is_name(each) and each not in names:
            raise WorkloadError(
                f"donate={each!r}: the function has no parameter of that name; it has "
                f"{', '.join(names)}"
            )
    return tuple(names.index(each) if isinstance(each, str) else each for each in asked)


def _is_name(value: Any) -> bool:
    return isinstance(value, str)


def name_of_test(file: Path, test: str) -> str:
    """A folder for a test's goldens.

    >>> name_of_test(Path("test_step.py"), "test_decode[bf16, 8]")
    'test_step-test_decode-bf16-8'
    """
    return _NO_NAME.sub("-", f"{file.stem}-{test}").strip("-.")


def job_of(
    workload: Workload,
    *,
    target: str | Path,
    gemm: str,
    topology: str | None,
    autotune_lock: Path | None,
    timeout: float | None,
) -> Job:
    """The compile of a workload that the test's process lowers.

    Raises:
      XlapipeError: an unknown target or GEMM policy, or a lock that is of another.
    """
    if target == ATTACHED:
        raise XlapipeError(
            "target 'attached': a test compiles for a GPU by name, so that its plan is the same "
            "on every machine; `xlapipe target capture --out FILE` writes the attached GPU's "
            "configuration, which is a target too"
        )
    if gemm not in ("auto", "cublas", "triton"):
        raise XlapipeError(f"gemm={gemm!r}: expected auto, cublas or triton")
    is_file = isinstance(target, Path) or Path(target).suffix in (".txtpb", ".pbtxt", ".textproto")
    asked = Asked(
        target=None if is_file else str(target),
        target_config=Path(target) if is_file else None,
        policies=(gemm,),
        topology=Topology.parse(topology) if topology is not None else None,
        autotune_lock=autotune_lock,
        timeout_seconds=DEFAULT_TIMEOUT_SECONDS if timeout is None else timeout,
    )
    fn = workload.fn
    where = f"{getattr(fn, '__module__', '?')}:{getattr(fn, '__qualname__', '?')}"
    (job,) = jobs_of([WorkloadReference(workload.name, where)], asked)
    return job
