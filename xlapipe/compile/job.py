"""A Job: one compile to do, in the parent and, as JSON, in the compiling child."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import get_type_hints

import msgspec

from xlapipe.compile.defaults import DEFAULT_TIMEOUT_SECONDS
from xlapipe.compile.gemm_policy import GemmPolicy
from xlapipe.compile.messages import LoweredProgram, to_json
from xlapipe.compile.xla_patches import XlaPatch
from xlapipe.devices.environment.machine import Machine
from xlapipe.devices.platforms import Platform, platform_named
from xlapipe.devices.platforms.nvidia import DEFAULT_MEMORY_FRACTION
from xlapipe.devices.targets.network import Network
from xlapipe.devices.targets.target import Target
from xlapipe.devices.targets.topology import DeviceTopology, parse_topology
from xlapipe.dump.autotune_lock import AutotuneLock
from xlapipe.dump.dump import EXECUTABLE
from xlapipe.registry import WorkloadReference
from xlapipe.time.predicted_locks.known_results import KnownResults

XlaOption = str | bool | int | float


@dataclass(frozen=True, kw_only=True)
class Job:
    """One compile to do.

    Attributes:
      reference: where the workload is defined; names it in messages.
      target: None for the attached GPU.
      program: the workload, if it is lowered already; None if the child imports and lowers it.
      lock: autotune results to use instead of tuning.
      known_results: results of the target's device, to predict those that tuning would give. None
        for XLA's defaults, or with a lock.
      tune: keep the results of the attached GPU's autotuning.
      serialize: keep the executable too.
      cache_folder: where results of compiles are kept and looked up; None to compile in any case.
      child_memory_bytes: memory of the machine that the compile may take; None for most of it.
      with_texts: dump the texts also if `plan_only`; live ranges are in them.
      plan_only: dump only what the plan needs, without texts, and skip the optimisation of
        generated code, which comes after buffer assignment and changes no plan.
      topology: hosts and GPUs per host, or a grid of chips; None for the number of devices of
        the workload's mesh.
      network: between the devices, for predicted times; None for the usual one of the device.
      options: XLA options beyond those of the workload and of the policy; they override both.
      without_xla_patches: changes to XLA that are not made; see `xlapipe.compile.xla_patches`.
      memory_fraction: the share of the device's memory that the process may use.
      import_paths: folders before all others from which the child imports, but for the workload's.
      instead_of: a folder whose modules must not be imported: `import_paths` has others of them.
      scratch: gets XLA's dump files, the result and the executable.
      source_root: the folder of the user's code, which no result depends on; empty for none.
      cache_key: of the result in the cache, if the parent has computed it.
      started_seconds: when the parent began, on the machine's monotonic clock.
    """

    reference: WorkloadReference
    target: Target | None
    program: LoweredProgram | None = None
    policy: GemmPolicy = GemmPolicy.AUTO
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    child_memory_bytes: int | None = None
    lock: AutotuneLock | None = None
    known_results: KnownResults | None = None
    tune: bool = False
    serialize: bool = False
    cache_folder: Path | None = None
    plan_only: bool = False
    with_texts: bool = False
    topology: DeviceTopology | None = None
    network: Network | None = None
    options: Mapping[str, XlaOption] = field(default_factory=dict, hash=False)
    without_xla_patches: frozenset[XlaPatch] = frozenset()
    memory_fraction: float = DEFAULT_MEMORY_FRACTION
    import_paths: tuple[Path, ...] = ()
    instead_of: Path | None = None
    scratch: Path = Path()
    source_root: str = ""
    cache_key: str | None = None
    started_seconds: float = 0.0

    def to_bytes(self) -> bytes:
        """JSON for the compiling child."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        topology = str(self.topology) if self.topology is not None else None
        return to_json({**values, "reference": self.reference.to_json(), "topology": topology})

    @classmethod
    def from_bytes(cls, content: bytes) -> "Job":
        """What `to_bytes` wrote, a moment ago and with this code."""
        values = json.loads(content)
        reference = WorkloadReference.from_json(values.pop("reference"))
        topology, hints = values.pop("topology"), get_type_hints(cls, include_extras=True)
        job = cls(
            reference=reference,
            **{
                name: msgspec.convert(value, hints[name], dec_hook=lambda kind, text: kind(text))
                for name, value in values.items()
            },
        )
        if topology is None:
            return job
        parsed = parse_topology(topology, platform=job.platform.name, config_text=job.config_text)
        return replace(job, topology=parsed)

    @property
    def platform(self) -> Platform:
        if self.target is None:
            return platform_named(Machine.local().attached_platform())
        return platform_named(self.target.platform)

    @property
    def memory_limit_bytes(self) -> int | None:
        """The memory that XLA keeps a plan within; None if it asks the attached device."""
        limit = self.platform.memory_limit
        if self.target is None or limit is None:
            return None
        return limit(self.target.device_memory_bytes, self.memory_fraction)

    @property
    def policy_options(self) -> Mapping[str, bool]:
        """The XLA options that make the GEMM policy."""
        return self.platform.gemm_policies[self.policy.value]

    @property
    def xla_options(self) -> dict[str, XlaOption]:
        """XLA options beyond those of the workload, which they override."""
        texts = self.with_texts or not self.plan_only or self.platform.plan_needs_texts
        return {
            **self.policy_options,
            **self.options,
            "xla_dump_hlo_as_text": texts,
            "xla_dump_hlo_as_proto": True,
            **(self.platform.plan_only_options if self.plan_only else {}),
        }

    @property
    def config_text(self) -> str | None:
        """The target config; None for the attached GPU."""
        return self.target.config_text if self.target is not None else None

    @property
    def workspaces(self) -> Mapping[str, int]:
        """Bytes of library calls' workspaces that the lock states; a device states its own."""
        return self.lock.workspaces if self.lock is not None and self.target is not None else {}

    @property
    def dump_folder(self) -> Path:
        """Where XLA's dump files go."""
        return self.scratch / "dump"

    @property
    def result_path(self) -> Path:
        """Where a `CompileRecord` goes, or `error` with a `ChildError`."""
        return self.scratch / "result.json"

    @property
    def executable_path(self) -> Path:
        """Where the serialised executable goes."""
        return self.scratch / EXECUTABLE

    @property
    def tuned_path(self) -> Path:
        """Results of tuning on the attached GPU, as text, with `tune`."""
        return self.scratch / "autotune_results_tuned.pbtxt"

    @property
    def log_path(self) -> Path:
        """What the child and XLA print."""
        return self.scratch / "child.log"
