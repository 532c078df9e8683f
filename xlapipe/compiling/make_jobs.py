"""From what a user asks for to compiles to do, refused before anything is compiled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from xlapipe.compiling.defaults import DEFAULT_TARGET, DEFAULT_TIMEOUT_SECONDS
from xlapipe.compiling.job import GemmPolicy, Job, XlaOption
from xlapipe.dumps.autotune_lock import LOCK, raw_lock, read_lock
from xlapipe.errors import XlapipeError
from xlapipe.registry import WorkloadReference, find_workload
from xlapipe.targets.target import target_from_file, target_named
from xlapipe.targets.topology import Topology

ATTACHED = "attached"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options of a compile, as the command line has them.

    Attributes:
      target: a name of the catalogue, or `attached`.
      target_config: a file in its place.
      policies: GEMM policies, each of which is a compile of its own.
      autotune_lock: a lock, or, with `target_config`, XLA's own file of autotune results.
      topology: hosts and GPUs; by default as many as the workload's mesh asks for.
      options: extra XLA options.
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
            raise XlapipeError("--target and --target-config name two targets; give one of them")
        if self.timeout_seconds <= 0:
            raise XlapipeError(f"--timeout {self.timeout_seconds:g}: expected seconds above 0")
        if self.tune and self.target != ATTACHED:
            raise XlapipeError("--tune needs the GPU itself: add --target attached")
        if self.tune and self.autotune_lock is not None:
            raise XlapipeError("--tune makes what --autotune-lock gives; give one of them")


def jobs_of(names: Sequence[str | WorkloadReference], asked: Asked) -> list[Job]:
    """Every workload under every policy.

    Args:
      names: as users write them, or references that are found already.

    Raises:
      XlapipeError: an unknown workload or target, or a lock that is of another.
    """
    references = [find_workload(name) if isinstance(name, str) else name for name in names]
    if asked.autotune_lock is not None:
        return [_locked_job(reference, asked, asked.autotune_lock) for reference in references]
    if asked.target_config is not None:
        target = target_from_file(asked.target_config)
    elif asked.target == ATTACHED:
        target = None
    else:
        target = target_named(asked.target or DEFAULT_TARGET)
    return [
        Job(
            reference=reference,
            target=target,
            policy=GemmPolicy(policy),
            timeout_seconds=asked.timeout_seconds,
            tune=asked.tune,
            topology=asked.topology,
            options=asked.options,
            python=asked.python,
        )
        for reference in references
        for policy in dict.fromkeys(asked.policies or (GemmPolicy.AUTO.value,))
    ]


def locked_jobs(names: Sequence[str], goldens: Path, asked: Asked) -> list[Job]:
    """A job for each lock that lies beside a golden of the installed jaxlib."""
    return [
        _locked_job(find_workload(name), asked, path)
        for name in names
        for path in sorted(goldens.glob(f"{name}/*-tuned-jax{version('jaxlib')}/{LOCK}"))
    ]


def _locked_job(reference: WorkloadReference, asked: Asked, path: Path) -> Job:
    if asked.target_config is not None:
        policy = (*asked.policies, GemmPolicy.AUTO.value)[0]
        lock = raw_lock(path, target_from_file(asked.target_config), policy, version("jaxlib"))
    else:
        lock = read_lock(path)
    for policy in asked.policies:
        lock.refuse_unless(where=str(path), gemm_policy=policy)
    attached = asked.target == ATTACHED
    topology = asked.topology or lock.parsed_topology
    lock.refuse_unless(
        where=str(path),
        target=None if attached else asked.target,
        jaxlib=version("jaxlib"),
    )
    return Job(
        reference=reference,
        target=None if attached else lock.as_target(),
        policy=GemmPolicy(lock.gemm_policy),
        timeout_seconds=asked.timeout_seconds,
        lock=lock,
        topology=topology,
        options=asked.options,
    )
