"""Builds a folder of executables through xlapipe's pipeline, with or without a GPU."""

import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from models.qwen3.generation.load_prebuilt import (
    DECODE,
    INDEX,
    Executables,
    index_text,
    prompts_folder,
)
from models.qwen3.generation.locks import locks_for
from models.qwen3.kernels.tiling import hopper_fits
from xlapipe.compiling.make_jobs import ATTACHED, Asked, jobs_of
from xlapipe.compiling.pipeline import Made, build
from xlapipe.environment.machine import Machine
from xlapipe.errors import XlapipeError
from xlapipe.expect import Finding, check_all
from xlapipe.registry import WorkloadReference
from xlapipe.targets.target import target_named

_WORKLOADS = "models.qwen3.workloads"
# The folder that holds the package `models`.
_ROOT = Path(__file__).resolve().parents[3]
_TIMEOUT_SECONDS = 3600.0


def build_executables(
    checkpoint: Path,
    asked_for: Executables,
    *,
    target: str,
    gemm: str | None = None,
    locks: Sequence[Path] = (),
    hopper_kernels: bool = True,
    on_built: Callable[[str, Made], None] = lambda name, made: None,
) -> None:
    """Compiles the programs, and holds each against its expectations.

    Args:
      checkpoint: its config.json alone is read, in the compiling child.
      asked_for: its path is made anew; a folder that this function made before is replaced.
      target: a name of `xlapipe targets`, or `attached`.
      gemm: GEMM policy. By default `auto` on the attached GPU, which tunes, and `cublas` without
        it: Triton's tiles are then XLA's first guess. Prompts on Hopper are the better for
        `cublas` anyway, see `steps.xla_options`.
      locks: autotune locks, or folders of them, with one for each program; see `build_locks`.
        They say the policy then.
      hopper_kernels: take those that are for Hopper alone, where the target is one.
      on_built: called with the name of each and what the pipeline made.

    Raises:
      XlapipeError: a failed compile, or an expectation that does not hold; the path is then as
        it was.
    """
    path = asked_for.path
    if path.exists() and not (path / INDEX).is_file() and (path.is_file() or any(path.iterdir())):
        raise XlapipeError(f"{path}: holds something else; name a new folder")
    capability = _compute_capability(target) if hopper_kernels else None
    hopper = {
        prompts_folder(bucket)
        for bucket in asked_for.buckets
        if hopper_fits(asked_for.config, bucket, capability)
    }
    references = _references(checkpoint.resolve(), asked_for, hopper)
    lock_of = locks_for(references, locks)
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        for name, reference in references.items():
            on_cublas = target != ATTACHED or name in hopper
            policy = gemm or ("cublas" if on_cublas else "auto")
            asked = Asked(
                target=target,
                policies=() if gemm is None and locks else (policy,),
                autotune_lock=lock_of.get(name),
                timeout_seconds=_TIMEOUT_SECONDS,
            )
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


def _compute_capability(target: str) -> str | None:
    """Of the GPU that is built for, e.g. `9.0`; None where nobody tells."""
    if target != ATTACHED:
        return target_named(target).compute_capability
    gpu = Machine.here().gpu()
    if gpu is None or gpu.compute_capability is None:
        return None
    return ".".join(map(str, gpu.compute_capability))


def _references(
    checkpoint: Path, executables: Executables, hopper: Collection[str]
) -> dict[str, WorkloadReference]:
    """The workload of each program, by the name of its folder; some have kernels for Hopper."""
    sizes, config = executables.sizes, executables.config
    common = {
        "config": str(checkpoint),
        "layers": None,
        "dtype": config.dtype,
        "batch": sizes.batch,
        "cache_length": sizes.cache_length,
        "candidates": sizes.candidates,
    }
    references = {}
    for bucket in executables.buckets:
        name = prompts_folder(bucket)
        arguments = {**common, "length": bucket}
        if name in hopper:
            arguments["implementation"] = "hopper"
        references[name] = _reference(name, "qwen3_prompts", arguments)
    references[DECODE] = _reference(DECODE, "qwen3_generate", {**common, "steps": sizes.steps})
    return references


def _reference(name: str, function: str, arguments: Mapping[str, Any]) -> WorkloadReference:
    # The folder is named, so that no folder `models` of the user's is imported instead.
    return WorkloadReference(name, f"{_WORKLOADS}:{function}", arguments, _ROOT)


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
