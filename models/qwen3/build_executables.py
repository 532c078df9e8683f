"""Builds a folder of executables through xlapipe's pipeline, with or without a GPU."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from models.qwen3.executables import DECODE, INDEX, Executables, index_text, prompts_folder
from xlapipe.errors import XlapipeError
from xlapipe.expect import Finding, check_all
from xlapipe.jobs import ATTACHED, Asked, jobs_of
from xlapipe.pipeline import Made, build
from xlapipe.registry import WorkloadReference

_WORKLOADS = "models.qwen3.workloads"
_TIMEOUT_SECONDS = 3600.0


def build_executables(
    checkpoint: Path,
    asked_for: Executables,
    *,
    target: str,
    gemm: str | None = None,
    on_built: Callable[[str, Made], None] = lambda name, made: None,
) -> None:
    """Compiles the programs, and holds each against its expectations.

    Args:
      checkpoint: its config.json alone is read, in the compiling child.
      asked_for: its path is made anew; a folder that this function made before is replaced.
      target: a name of `xlapipe targets`, or `attached`.
      gemm: GEMM policy. By default `auto` on the attached GPU, which tunes, and `cublas` without
        it: Triton's tiles are then XLA's first guess.
      on_built: called with the name of each and what the pipeline made.

    Raises:
      XlapipeError: a failed compile, or an expectation that does not hold; the path is then as
        it was.
    """
    path = asked_for.path
    if path.exists() and not (path / INDEX).is_file() and (path.is_file() or any(path.iterdir())):
        raise XlapipeError(f"{path}: holds something else; name a new folder")
    policy = gemm or ("auto" if target == ATTACHED else "cublas")
    asked = Asked(target=target, policies=(policy,), timeout_seconds=_TIMEOUT_SECONDS)
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        for name, reference in _references(checkpoint.resolve(), asked_for).items():
            (job,) = jobs_of([reference], asked)
            made = build(job, partial / name)
            _refuse_unless_as_expected(name, check_all(made.dump.expectations, made.dump.program))
            on_built(name, made)
        (partial / INDEX).write_text(index_text(asked_for), encoding="utf-8")
        if path.exists():
            shutil.rmtree(path)
        partial.rename(path)
    except OSError as error:
        raise XlapipeError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _references(checkpoint: Path, executables: Executables) -> dict[str, WorkloadReference]:
    """The workload of each program, by the name of its folder."""
    sizes = executables.sizes
    common = (
        f"config={str(checkpoint)!r}, layers=None, dtype={executables.config.dtype!r}, "
        f"batch={sizes.batch}, cache_length={sizes.cache_length}, candidates={sizes.candidates}"
    )
    workloads = {
        prompts_folder(bucket): f"qwen3_prompts({common}, length={bucket})"
        for bucket in executables.buckets
    }
    workloads[DECODE] = f"qwen3_generate({common}, steps={sizes.steps})"
    # As if registered, so that no folder `models` of the user's is taken for this one.
    return {
        name: WorkloadReference(name, f"{_WORKLOADS}:{workload}", True)
        for name, workload in workloads.items()
    }


def _refuse_unless_as_expected(name: str, findings: tuple[Finding, ...]) -> None:
    broken = [finding for finding in findings if not finding.holds]
    if not broken:
        return
    told = [
        f"{finding.expectation}: expected {violation.expected}, found {violation.found}"
        + (f" ({violation.source})" if violation.source is not None else "")
        for finding in broken
        for violation in finding.violations
    ]
    raise XlapipeError(
        f"{name}: the executable is not as expected, and is not kept: " + "; ".join(told[:4])
    )
