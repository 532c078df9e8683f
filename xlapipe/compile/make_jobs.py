"""From a user's options to Jobs; invalid options are refused before anything is compiled."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from xlapipe.compile.defaults import DEFAULT_TARGET, DEFAULT_TIMEOUT_SECONDS
from xlapipe.compile.gemm_policy import GemmPolicy
from xlapipe.compile.job import Job, XlaOption
from xlapipe.compile.known_locks import known_results
from xlapipe.compile.tuning import Tuned, Tuning, tuning_of
from xlapipe.compile.xla_patches import XlaPatch
from xlapipe.devices.environment.scratch import cache_folder
from xlapipe.devices.platforms import platform_named
from xlapipe.devices.targets.catalogue import catalogue, resolved_name, target_named
from xlapipe.devices.targets.network import network_stated
from xlapipe.devices.targets.target import Target
from xlapipe.devices.targets.target_config import target_from_file
from xlapipe.devices.targets.topology import DeviceTopology, parse_topology
from xlapipe.devices.targets.tpu_catalogue import tpu_catalogue
from xlapipe.dump.autotune_lock import LOCK, read_lock
from xlapipe.errors import XlapipeError
from xlapipe.project_file import is_untuned, stated_text
from xlapipe.registry import WorkloadReference, find_workload
from xlapipe.time.predicted_locks.predict import decides_tuning

_CHANGED = "xlapipe.compile.lowering.changed_workload:changed_workload"
ATTACHED = "attached"


@dataclass(frozen=True, kw_only=True)
class CompileSettings:
    """A user's settings for compiles of one or several workloads; others are as of `Job`.

    Attributes:
      target: a name of the catalogue, or `attached`; None for the default.
      target_config: a file with a GpuTargetConfigProto, instead of `target`.
      policies: GEMM policies; each makes a separate Job.
      tuning: where autotune results come from; None for what the project states, else `auto`.
      topology: as text.
      project: the folder whose project file, or one above it, states whether plans are `untuned`;
        None for the current one.
      use_cache: take results of earlier compiles from this user's cache, and keep new ones there.
    """

    target: str | None = None
    target_config: Path | None = None
    policies: tuple[str, ...] = ()
    tuning: Tuning | None = None
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    child_memory_bytes: int | None = None
    topology: str | None = None
    options: Mapping[str, XlaOption] = field(default_factory=dict, hash=False)
    without_xla_patches: frozenset[XlaPatch] = frozenset()
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
        if self.tuning is Tuned.TUNE and self.target in tpu_catalogue():
            raise XlapipeError(
                f"--tuning tune measures kernels on a GPU, and target {self.target} is a TPU, "
                "whose plans need no autotune results; fix: leave --tuning out"
            )
        if self.tuning is Tuned.TUNE and self.target != ATTACHED:
            raise XlapipeError("--tuning tune needs the GPU itself; fix: add --target attached")


def jobs_of(workloads: Sequence[str | WorkloadReference], settings: CompileSettings) -> list[Job]:
    """A Job for each workload and GEMM policy; one for each workload if there is a lock."""
    references = [
        find_workload(workload) if isinstance(workload, str) else workload for workload in workloads
    ]
    settings = _with_stated(settings)
    if isinstance(settings.tuning, Path):
        return [_locked_job(reference, settings, settings.tuning) for reference in references]
    if settings.target_config is not None:
        target = target_from_file(settings.target_config)
    elif settings.target == ATTACHED:
        target = None
    else:
        target = target_named(settings.target or DEFAULT_TARGET)
    _refuse_options_of_gpus(target, settings)
    topology = _topology(target, settings)
    jobs = [
        _job(
            settings,
            reference=reference,
            target=target,
            policy=GemmPolicy(policy),
            tune=settings.tuning is Tuned.TUNE,
            topology=topology,
        )
        for reference in references
        for policy in dict.fromkeys(settings.policies or (GemmPolicy.AUTO.value,))
    ]
    tuning = settings.tuning
    if tuning is None:
        untuned = is_untuned(settings.project or Path.cwd())
        tuning = Tuned.NONE if untuned else Tuned.AUTO
    return [_with_known_results(job) for job in jobs] if tuning is Tuned.AUTO else jobs


def _with_stated(settings: CompileSettings) -> CompileSettings:
    """The settings with what the project states of those that are not given."""
    start = settings.project or Path.cwd()
    where = ""
    try:
        if settings.tuning is None and (stated := stated_text(start, "tuning")):
            where = f"{stated[0]}: "
            settings = replace(settings, tuning=tuning_of(stated[1]))
        has_own = settings.target_config is not None or isinstance(settings.tuning, Path)
        if settings.target is None and not has_own and (stated := stated_text(start, "target")):
            where = f"{stated[0]}: "
            resolved_name(stated[1])
            settings = replace(settings, target=stated[1])
        if settings.topology is None and (stated := stated_text(start, "topology")):
            settings = replace(settings, topology=stated[1])
    except XlapipeError as error:
        raise type(error)(f"{where}{error}") from None
    return settings


def _with_known_results(job: Job) -> Job:
    """The job with what is known of its target's autotune results, if anything is."""
    target = job.target
    if target is None or not job.platform.has_autotuning:
        return job
    if decides_tuning(job.options):
        return job
    known = known_results(target.name, job.policy.value)
    return job if known is None else replace(job, target=known[1], known_results=known[0])


def jobs_to_compare(workload: str, settings: Sequence[CompileSettings]) -> list[Job]:
    """A Job of the workload with each of the settings; a lock is predicted for all or none."""
    jobs = [job for chosen in settings for job in jobs_of([workload], chosen)]
    if len({job.known_results is None for job in jobs}) == 1:
        return jobs
    untuned = [replace(chosen, tuning=Tuned.NONE) for chosen in settings]
    return [job for chosen in untuned for job in jobs_of([workload], chosen)]


def _topology(target: Target | None, settings: CompileSettings) -> DeviceTopology | None:
    if settings.topology is None:
        return None
    return parse_topology(
        settings.topology,
        platform="cuda" if target is None else target.platform,
        config_text=None if target is None else target.config_text,
    )


def _refuse_options_of_gpus(target: Target | None, settings: CompileSettings) -> None:
    """Refuses a choice of GEMM backends for a platform without one."""
    if target is None:
        return
    for policy in settings.policies:
        if policy not in platform_named(target.platform).gemm_policies:
            raise XlapipeError(
                f"--gemm {policy} is for NVIDIA GPUs, and target {target.name} is a TPU, whose "
                "matrix products all run on its matrix units; fix: leave --gemm out"
            )


def locked_jobs(workloads: Sequence[str], goldens: Path, settings: CompileSettings) -> list[Job]:
    """A Job for each lock in the goldens of the installed jaxlib, or of one named target."""
    # Folders are named after the GPU. A TPU, or an attached GPU, is refused for each lock.
    device = f"{settings.target}-" if settings.target in {row.name for row in catalogue()} else ""
    return [
        _locked_job(find_workload(name), settings, path)
        for name in workloads
        for path in sorted(goldens.glob(f"{name}/{device}*-tuned-jax{version('jaxlib')}/{LOCK}"))
    ]


def _locked_job(reference: WorkloadReference, settings: CompileSettings, path: Path) -> Job:
    lock = read_lock(path)
    if settings.target_config is not None:
        raise XlapipeError(
            f"{path}: an autotune lock, which has the configuration of its device, "
            f"{lock.device}; fix: leave --target-config out"
        )
    if settings.target in tpu_catalogue():
        raise XlapipeError(
            f"{path}: an autotune lock of {lock.device}, and target {settings.target} is a "
            "TPU, whose plans need no autotune results; fix: leave --tuning out"
        )
    for policy in settings.policies:
        lock.refuse_unless(where=str(path), gemm_policy=policy)
    attached = settings.target == ATTACHED
    topology = _topology(None, settings) or lock.parsed_topology
    lock.refuse_unless(
        where=str(path),
        target=None if attached else settings.target,
        jaxlib=version("jaxlib"),
    )
    return _job(
        settings,
        reference=reference,
        target=None if attached else lock.as_target(),
        policy=GemmPolicy(lock.gemm_policy),
        lock=lock,
        topology=topology,
    )


def _job(settings: CompileSettings, **given: Any) -> Job:
    is_cached = settings.use_cache and not os.environ.get("XLAPIPE_NO_CACHE")
    return Job(
        timeout_seconds=settings.timeout_seconds,
        child_memory_bytes=settings.child_memory_bytes,
        network=network_stated(settings.project or Path.cwd()),
        options=settings.options,
        without_xla_patches=settings.without_xla_patches,
        cache_folder=cache_folder("compiles") if is_cached else None,
        **given,
    )


def changed_reference(reference: WorkloadReference, **change: Any) -> WorkloadReference:
    """The workload of a reference with a change: arguments of `changed_workload`."""
    return WorkloadReference(
        name=reference.name,
        target=_CHANGED,
        arguments={"reference": reference.to_json(), **change},
    )
