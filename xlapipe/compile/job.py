"""A Job: one compile to do."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from xlapipe.compile.defaults import DEFAULT_TIMEOUT_SECONDS
from xlapipe.compile.gemm_policy import GemmPolicy
from xlapipe.compile.messages import LoweredProgram
from xlapipe.compile.xla_patches import XlaPatch
from xlapipe.devices.environment.machine import Machine
from xlapipe.devices.platforms import Platform, platform_named
from xlapipe.devices.platforms.nvidia import DEFAULT_MEMORY_FRACTION
from xlapipe.devices.targets.network import Network
from xlapipe.devices.targets.target import Target
from xlapipe.devices.targets.topology import DeviceTopology
from xlapipe.dump.autotune_lock import AutotuneLock
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

    @property
    def platform(self) -> Platform:
        """The vendor's platform."""
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
