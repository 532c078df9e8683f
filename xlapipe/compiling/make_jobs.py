"""Makes the jobs of workloads from compile options; invalid ones are refused before compiling."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from xlapipe.compiling.defaults import DEFAULT_TARGET, DEFAULT_TIMEOUT_SECONDS
from xlapipe.compiling.job import GemmPolicy, Job, XlaOption
from xlapipe.dumps.autotune_lock import LOCK, raw_lock, read_lock
from xlapipe.errors import XlapipeError
from xlapipe.registry import WorkloadReference, find_workload
from xlapipe.targets.catalogue import target_named
from xlapipe.targets.target_config import target_from_file
from xlapipe.targets.topology import Topology

ATTACHED = "attached"


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """The options of a compile, with the values that the command line accepts.

    Attributes:
      target: a name of the catalogue, or `attached`.
      target_config: a file with a target config, instead of `target`.
      policies: GEMM policies; each is a separate compile.
      autotune_lock: a lock or, with `target_config`, XLA's file of autotune results.
      topology: hosts and GPUs; default: from the workload's mesh.
      options: additional XLA options.
      python: the interpreter of another environment; see `Job`.
    """

    target: str | None = None
    target_config: Path | None = None
    policies: tuple[str, ...] = ()
    autotune_lock: Path | None = None
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    tune: bool = False
    topology: Topology | None = None
    options: Mapping[str, XlaOption] = field(default_factory=dict, hash=False)
    python: Path | None = None

    def __post_init__(self) -> None:
        if self.target is not None and self.target_config is not None:
            raise XlapipeError(
                "--target and --target-config name two targets; fix: give one of them"
            )
        if self.timeout_seconds <= 0:
            raise XlapipeError(f"--timeout {self.timeout_seconds:g}: expected seconds above 0")
        if self.tune and self.target != ATTACHED:
            raise XlapipeError("--tune needs an attached GPU; fix: add --target attached")
        if self.tune and self.autotune_lock is not None:
            raise XlapipeError(
                "--tune replaces the results of --autotune-lock; fix: give one of them"
            )


def jobs_of(names: Sequence[str | WorkloadReference], compile_options: CompileOptions) -> list[Job]:
    """A job for every workload and GEMM policy.

    Args:
      names: as the user writes them, or references.

    Raises:
      XlapipeError: an unknown workload or target, or a lock of a different one.
    """
    references = [find_workload(name) if isinstance(name, str) else name for name in names]
    if compile_options.autotune_lock is not None:
        return [
            _locked_job(reference, compile_options, compile_options.autotune_lock)
            for reference in references
        ]
    if compile_options.target_config is not None:
        target = target_from_file(compile_options.target_config)
    elif compile_options.target == ATTACHED:
        target = None
    else:
        target = target_named(compile_options.target or DEFAULT_TARGET)
    return [
        Job(
            reference=reference,
            target=target,
            policy=GemmPolicy(policy),
            timeout_seconds=compile_options.timeout_seconds,
            tune=compile_options.tune,
            topology=compile_options.topology,
            options=compile_options.options,
            python=compile_options.python,
        )
        for reference in references
        for policy in dict.fromkeys(compile_options.policies or (GemmPolicy.AUTO.value,))
    ]


def locked_jobs(names: Sequence[str], goldens: Path, compile_options: CompileOptions) -> list[Job]:
    """A job for each lock in a golden's folder that was written with the installed jaxlib."""
    return [
        _locked_job(find_workload(name), compile_options, path)
        for name in names
        for path in sorted(goldens.glob(f"{name}/*-tuned-jax{version('jaxlib')}/{LOCK}"))
    ]


def _locked_job(reference: WorkloadReference, compile_options: CompileOptions, path: Path) -> Job:
    if compile_options.target_config is not None:
        policy = (*compile_options.policies, GemmPolicy.AUTO.value)[0]
        lock = raw_lock(
            path, target_from_file(compile_options.target_config), policy, version("jaxlib")
        )
    else:
        lock = read_lock(path)
    for policy in compile_options.policies:
        lock.refuse_unless(where=str(path), gemm_policy=policy)
    attached = compile_options.target == ATTACHED
    topology = compile_options.topology or lock.parsed_topology
    lock.refuse_unless(
        where=str(path),
        target=None if attached else compile_options.target,
        jaxlib=version("jaxlib"),
    )
    return Job(
        reference=reference,
        target=None if attached else lock.as_target(),
        policy=GemmPolicy(lock.gemm_policy),
        timeout_seconds=compile_options.timeout_seconds,
        lock=lock,
        topology=topology,
        options=compile_options.options,
    )
