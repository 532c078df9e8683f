"""From a user's options to Jobs; invalid options are refused before anything is compiled."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

from xlapipe.compile.defaults import DEFAULT_TARGET, DEFAULT_TIMEOUT_SECONDS
from xlapipe.compile.gemm_policy import GemmPolicy
from xlapipe.compile.job import Job, XlaOption
from xlapipe.compile.known_locks import known_results
from xlapipe.compile.xla_patches import XlaPatch
from xlapipe.devices.environment.cache_folder import cache_folder
from xlapipe.devices.platforms import platform_named
from xlapipe.devices.targets.catalogue import catalogue, target_named
from xlapipe.devices.targets.device_topology import DeviceTopology, parse_topology
from xlapipe.devices.targets.target import Target
from xlapipe.devices.targets.target_config import target_from_file
from xlapipe.devices.targets.tpu_catalogue import tpu_catalogue
from xlapipe.dump.autotune_lock import LOCK, raw_lock, read_lock
from xlapipe.errors import TargetError, XlapipeError
from xlapipe.project_file import is_untuned
from xlapipe.registry import WorkloadReference, find_workload
from xlapipe.time.predicted_locks.predict import decides_tuning

ATTACHED = "attached"


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """A user's options for compiles of one or several workloads.

    Attributes:
      target: a name of the catalogue, or `attached`; None for the default.
      target_config: a file with a GpuTargetConfigProto, instead of `target`.
      policies: GEMM policies; each makes a separate Job.
      lock: `predicted` to refuse a compile for which no results can be predicted; None to predict
        the results that the device's tuner would give where some are known, and else to take XLA's
        defaults.
      untuned: take XLA's defaults in any case, predict nothing; None for what the project states.
      autotune_lock: a lock, or, with `target_config`, XLA's own file of autotune results.
      tune: keep the results of the attached GPU's autotuning.
      topology: hosts × GPUs, or a grid of chips, as text; None for the number of devices of the
        workload's mesh.
      options: extra XLA options.
      without_xla_patches: changes to XLA that are not made; see `xlapipe.compile.xla_patches`.
      python: the interpreter of another environment; see `Job`.
      project: the folder whose project file, or one above it, states whether plans are `untuned`;
        None for the current one.
      use_cache: take results of earlier compiles from this user's cache, and keep new ones there.

    Raises:
      XlapipeError: the options contradict each other.
    """

    target: str | None = None
    target_config: Path | None = None
    policies: tuple[str, ...] = ()
    lock: str | None = None
    untuned: bool | None = None
    autotune_lock: Path | None = None
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    tune: bool = False
    topology: str | None = None
    options: Mapping[str, XlaOption] = field(default_factory=dict, hash=False)
    without_xla_patches: frozenset[XlaPatch] = frozenset()
    python: Path | None = None
    project: Path | None = None
    use_cache: bool = True

    def __post_init__(self) -> None:
        if self.target is not None and self.target_config is not None:
            raise XlapipeError("--target and --target-config are both given; fix: leave one out")
        if not 0 < self.timeout_seconds < math.inf:
            raise XlapipeError(
                f"--timeout {self.timeout_seconds:g}: expected seconds above 0; fix: give such a "
                "number"
            )
        if self.tune and self.target in tpu_catalogue():
            raise XlapipeError(
                f"--tune measures kernels on a GPU, and target {self.target} is a TPU, whose plans "
                "need no autotune results; fix: leave --tune out"
            )
        if self.tune and self.target != ATTACHED:
            raise XlapipeError("--tune needs the GPU itself; fix: add --target attached")
        if self.lock is not None and (self.tune or self.autotune_lock is not None):
            other = "--tune" if self.tune else "--autotune-lock"
            raise XlapipeError(f"--lock and {other} are both given; fix: leave one out")
        if self.untuned and (self.lock is not None or self.autotune_lock is not None):
            other = "--lock" if self.lock is not None else "--autotune-lock"
            raise XlapipeError(f"--untuned and {other} are both given; fix: leave one out")
        if self.untuned and self.tune:
            raise XlapipeError("--untuned and --tune are both given; fix: leave one out")
        if self.tune and self.autotune_lock is not None:
            raise XlapipeError("--tune and --autotune-lock are both given; fix: leave one out")


def jobs_of(workloads: Sequence[str | WorkloadReference], options: CompileOptions) -> list[Job]:
    """A Job for each workload and GEMM policy; one for each workload if there is a lock.

    Args:
      workloads: as on the command line, or references.

    Raises:
      XlapipeError: an unknown workload or target, or a lock made for another compile.
    """
    references = [
        find_workload(workload) if isinstance(workload, str) else workload for workload in workloads
    ]
    if options.autotune_lock is not None:
        return [_locked_job(reference, options, options.autotune_lock) for reference in references]
    if options.target_config is not None:
        target = target_from_file(options.target_config)
    elif options.target == ATTACHED:
        target = None
    else:
        target = target_named(options.target or DEFAULT_TARGET)
    _refuse_options_of_gpus(target, options)
    topology = _topology(target, options)
    jobs = [
        Job(
            reference=reference,
            target=target,
            policy=GemmPolicy(policy),
            timeout_seconds=options.timeout_seconds,
            tune=options.tune,
            topology=topology,
            options=options.options,
            without_xla_patches=options.without_xla_patches,
            python=options.python,
            cache_folder=_cache_folder(options),
        )
        for reference in references
        for policy in dict.fromkeys(options.policies or (GemmPolicy.AUTO.value,))
    ]
    if options.lock is not None:
        return [_with_known_results(job, must=True) for job in jobs]
    untuned = options.untuned
    if untuned is None:
        untuned = is_untuned(options.project or Path.cwd())
    return jobs if untuned else [_with_known_results(job, must=False) for job in jobs]


def _with_known_results(job: Job, *, must: bool) -> Job:
    """The job with what is known of its target's autotune results, if anything is.

    Args:
      must: refuse a job of which nothing is known.

    Raises:
      XlapipeError: nothing is known, or plans do not depend on autotune results.
    """
    target = job.target
    if target is None or not job.platform.has_autotuning or job.python is not None:
        if must:
            raise XlapipeError(
                f"{job.reference.name}: --lock predicted is for GPUs that are not attached, with "
                "the installed jaxlib; fix: leave it out"
            )
        return job
    known = None
    if not decides_tuning(job.options):
        known = known_results(target.name, job.policy.value)
    if known is not None:
        return replace(job, target=known[1], known_results=known[0])
    if must:
        raise TargetError(
            f"target {target.name}: no autotune results are known for GEMM policy {job.policy}, "
            f"jaxlib {version('jaxlib')} and these XLA options, so that no lock can be predicted; "
            "fix: leave --lock out, or add a lock of such a device with `xlapipe lock add FILE`"
        )
    return job


def jobs_to_compare(workload: str, options: Sequence[CompileOptions]) -> list[Job]:
    """A Job of the workload with each of the options; no lock is predicted unless it is for all.

    Raises:
      XlapipeError: as `jobs_of`.
    """
    jobs = [job for each in options for job in jobs_of([workload], each)]
    if len({job.known_results is None for job in jobs}) == 1:
        return jobs
    untuned = [replace(each, untuned=True) for each in options]
    return [job for each in untuned for job in jobs_of([workload], each)]


def _topology(target: Target | None, options: CompileOptions) -> DeviceTopology | None:
    if options.topology is None:
        return None
    return parse_topology(
        options.topology,
        platform="cuda" if target is None else target.platform,
        config_text=None if target is None else target.config_text,
    )


def _refuse_options_of_gpus(target: Target | None, options: CompileOptions) -> None:
    """Refuses a choice of GEMM backends for a platform without one.

    Raises:
      XlapipeError: the platform of the target has no such GEMM policy.
    """
    if target is None:
        return
    for policy in options.policies:
        if policy not in platform_named(target.platform).gemm_policies:
            raise XlapipeError(
                f"--gemm {policy} is for NVIDIA GPUs, and target {target.name} is a TPU, whose "
                "matrix products all run on its matrix units; fix: leave --gemm out"
            )


def locked_jobs(workloads: Sequence[str], goldens: Path, options: CompileOptions) -> list[Job]:
    """A Job for each lock in the goldens of the installed jaxlib, or of one named target."""
    # Folders are named after the GPU. A TPU, or an attached GPU, is refused for each lock.
    device = f"{options.target}-" if options.target in {row.name for row in catalogue()} else ""
    return [
        _locked_job(find_workload(name), options, path)
        for name in workloads
        for path in sorted(goldens.glob(f"{name}/{device}*-tuned-jax{version('jaxlib')}/{LOCK}"))
    ]


def _locked_job(reference: WorkloadReference, options: CompileOptions, path: Path) -> Job:
    if options.target_config is not None:
        policy = (*options.policies, GemmPolicy.AUTO.value)[0]
        lock = raw_lock(path, target_from_file(options.target_config), policy, version("jaxlib"))
    else:
        lock = read_lock(path)
        if options.target in tpu_catalogue():
            raise XlapipeError(
                f"{path}: an autotune lock of {lock.device}, and target {options.target} is a TPU, "
                "whose plans need no autotune results; fix: leave --autotune-lock out"
            )
    for policy in options.policies:
        lock.refuse_unless(where=str(path), gemm_policy=policy)
    attached = options.target == ATTACHED
    topology = _topology(None, options) or lock.parsed_topology
    lock.refuse_unless(
        where=str(path),
        target=None if attached else options.target,
        jaxlib=version("jaxlib"),
    )
    return Job(
        reference=reference,
        target=None if attached else lock.as_target(),
        policy=GemmPolicy(lock.gemm_policy),
        timeout_seconds=options.timeout_seconds,
        lock=lock,
        topology=topology,
        options=options.options,
        without_xla_patches=options.without_xla_patches,
        cache_folder=_cache_folder(options),
    )


def _cache_folder(options: CompileOptions) -> Path | None:
    is_used = options.use_cache and not os.environ.get("XLAPIPE_NO_CACHE")
    return cache_folder("compiles") if is_used else None
