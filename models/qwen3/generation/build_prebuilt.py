"""Builds a folder of executables through xlapipe's pipeline, with or without a GPU."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import xlapipe
from models.new_folder import new_folder
from models.qwen3.generation.build_locks import locks_for
from models.qwen3.generation.prebuilt_index import (
    DECODE,
    INDEX,
    PrebuiltExecutables,
    index_text,
    prompts_folder,
)
from models.qwen3.kernels.all_layers.residency import why_not_resident
from models.qwen3.kernels.all_layers.sizes import persistent_fits
from models.qwen3.kernels.tiling import hopper_fits
from models.qwen3.steps import implementation_for
from xlapipe import StepPlan, Target, WorkloadReference, XlapipeError

_WORKLOADS = "models.qwen3.workloads"
# The folder that contains the package `models`.
_ROOT = Path(__file__).resolve().parents[3]
_TIMEOUT_SECONDS = 3600.0


def build_prebuilt(
    prebuilt: PrebuiltExecutables,
    *,
    target: str,
    gemm: str | None = None,
    locks: Sequence[Path] = (),
    hopper_kernels: bool = True,
    persistent_kernel: bool = True,
    on_built: Callable[[str, StepPlan, float], None] = lambda name, plan, seconds: None,
) -> None:
    """Compiles the programs of a generation, and checks them against their expectations.

    Args:
      gemm: GEMM policy. The default is `auto` on the attached GPU, which autotunes, and `cublas`
        without it, where Triton's tiles would be XLA's untuned defaults. Prompts with the kernels
        for Hopper use `cublas` in either case; see `steps.xla_options`.
      on_built: called with the name of each program, its plan, and the seconds of its compile.

    Raises:
      XlapipeError: a compile failed, or an expectation does not hold; the folder is unchanged.
    """
    _check_replaceable(prebuilt.path)
    gpu = xlapipe.target(target)
    with_hopper_kernels = _programs_with_hopper_kernels(prebuilt, gpu) if hopper_kernels else ()
    persistent = persistent_kernel and _persistent_fits(prebuilt, gpu)
    references = _references(prebuilt, with_hopper_kernels, persistent)
    lock_of = locks_for(references, locks)
    with new_folder(prebuilt.path) as folder:
        for name, reference in references.items():
            tunes = target == "attached" and name not in with_hopper_kernels
            policy = gemm or ("auto" if tunes else "cublas")
            started = time.monotonic()
            plan = xlapipe.build(
                reference,
                out=folder / name,
                target=target,
                gemm=None if gemm is None and locks else policy,
                tuning=lock_of.get(name),
                timeout=_TIMEOUT_SECONDS,
            )
            _check_expectations(name, plan)
            on_built(name, plan, time.monotonic() - started)
        built = replace(prebuilt, implementations=_implementations(prebuilt, references))
        (folder / INDEX).write_text(index_text(built), encoding="utf-8")


def _check_replaceable(path: Path) -> None:
    if path.exists() and not (path / INDEX).is_file() and (path.is_file() or any(path.iterdir())):
        raise XlapipeError(
            f"{path}: expected a new or empty folder, or one with {INDEX}; fix: name another folder"
        )


def _programs_with_hopper_kernels(prebuilt: PrebuiltExecutables, gpu: Target) -> set[str]:
    """The folders' names of the programs that the kernels for Hopper support on `gpu`."""
    return {
        prompts_folder(bucket)
        for bucket in prebuilt.buckets
        if hopper_fits(prebuilt.config, bucket, gpu.compute_capability)
    }


def _persistent_fits(prebuilt: PrebuiltExecutables, gpu: Target) -> bool:
    """Whether the persistent kernel supports decode steps on `gpu`.

    On the attached GPU, all its blocks must also be able to run at once, as in
    `compile_generation`. Executables for another machine are checked when they are loaded there.
    """
    if prebuilt.sizes.batch != 1:
        return False
    if gpu.source == "attached" and why_not_resident(gpu.core_count) is not None:
        return False
    return persistent_fits(
        prebuilt.config,
        prebuilt.sizes.cache_length,
        compute_capability=gpu.compute_capability,
        multiprocessors=gpu.core_count,
    )


def _references(
    prebuilt: PrebuiltExecutables, with_hopper_kernels: Collection[str], persistent: bool
) -> dict[str, WorkloadReference]:
    """The workload of each program, by the name of the program's folder."""
    sizes = prebuilt.sizes
    common: dict[str, Any] = {
        "config": asdict(prebuilt.config),
        "layers": None,
        "batch": sizes.batch,
        "cache_length": sizes.cache_length,
        "candidates": sizes.candidates,
    }
    references = {}
    for bucket in prebuilt.buckets:
        name = prompts_folder(bucket)
        arguments = {**common, "length": bucket}
        if name in with_hopper_kernels:
            arguments["implementation"] = "hopper"
        references[name] = _reference(name, "qwen3_prompts", arguments)
    arguments = {**common, "steps": sizes.steps}
    if persistent:
        arguments["implementation"] = "persistent"
    references[DECODE] = _reference(DECODE, "qwen3_generate", arguments)
    return references


def _implementations(
    prebuilt: PrebuiltExecutables, references: Mapping[str, WorkloadReference]
) -> dict[str, str]:
    """The implementation of each program: the one that its workload names, or the default."""
    sizes = prebuilt.sizes

    def implementation(arguments: Mapping[str, Any]) -> str:
        return arguments.get("implementation") or implementation_for(
            prebuilt.config,
            platform="gpu",
            batch=sizes.batch,
            length=arguments.get("length", 1),
            cache_length=sizes.cache_length,
        )

    return {name: implementation(it.arguments or {}) for name, it in references.items()}


def _reference(name: str, function: str, arguments: Mapping[str, Any]) -> WorkloadReference:
    # Names the folder, so that a package `models` of the user's is not imported instead.
    return WorkloadReference(name, f"{_WORKLOADS}:{function}", arguments, _ROOT)


def _check_expectations(name: str, plan: StepPlan) -> None:
    answer = plan.check()
    if not answer:
        raise XlapipeError(
            f"{name}: the executable does not meet its expectations, and is not kept:\n{answer}"
        )
