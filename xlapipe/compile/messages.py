"""The messages between the parent and the compiling child, as JSON files.

Both sides run the code of one checkout at one moment, so nothing is validated.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from xlapipe.dump.compile_facts import CompileFacts
from xlapipe.files.typed_data import typed
from xlapipe.plans.compile_times import CompileTimes
from xlapipe.registry import WorkloadReference

LOCK_STAGE = "compile with a predicted lock"
TRACES_STAGE = "compare traces"
KERNEL_STAGE = "compile a Pallas kernel"
# What begins the line of the child's log that lists the step's kernels.
KERNELS_IN_LOG = "xlapipe: Pallas kernels: "


@dataclass(frozen=True, kw_only=True)
class CompileRequest:
    """What the child is to compile, and where it writes.

    Attributes:
      program_path: a lowered program as JSON; None if the child imports and lowers `reference`.
      shared_lowering: as of `Job`; None to lower `reference` in any case.
      cache_folder: where results of earlier compiles are; None to compile in any case.
      lock_sha256: SHA-256 of the autotune results that are loaded; None without a lock.
      platform: jax's name of the platform, e.g. `cuda`.
      target_config: None for the attached GPU.
      topology: as `Topology` writes it; None for the number of devices of the mesh.
      options: XLA options beyond those of the workload, which they override.
      locked: autotune results are loaded, and should be complete.
      known_results: a table of `KnownResults`, from which a lock is predicted; None for none.
      known_sha256: SHA-256 of that table.
      leave_out: as of `predict_lock`, a value of `LeaveOut`.
      workspaces: bytes of library calls' workspaces, as of an autotune lock.
      memory_limit_bytes: the memory that XLA keeps the plan within; None for XLA's default.
      without_xla_patches: names of `XlaPatch` that are not made.
      executable_path: where the serialised executable goes; None to leave it out.
      result_path: where a `CompileRecord` or a `ChildError` goes.
      started_seconds: when the parent began, on the machine's monotonic clock.
    """

    reference: WorkloadReference
    program_path: str | None
    platform: str
    target_config: str | None
    topology: str | None
    options: Mapping[str, Any]
    locked: bool
    executable_path: str | None
    result_path: str
    started_seconds: float
    without_xla_patches: tuple[str, ...] = ()
    memory_limit_bytes: int | None = None
    workspaces: Mapping[str, int] = field(default_factory=dict)
    shared_lowering: str | None = None
    cache_folder: str | None = None
    lock_sha256: str | None = None
    known_results: str | None = None
    known_sha256: str | None = None
    leave_out: str = ""

    def to_json(self) -> dict[str, Any]:
        fields = {name: value for name, value in vars(self).items() if name != "reference"}
        return {**fields, "reference": self.reference.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "CompileRequest":
        return cls(**{**data, "reference": WorkloadReference.from_json(data["reference"])})


@dataclass(frozen=True, kw_only=True)
class CompileRecord(CompileFacts):
    """The result of a compile, except what is in XLA's own dump files. Source paths are absolute.

    Attributes:
      target_config: target config of the device that was compiled for, as text.
      seconds: wall time by stage: `load` (Python, jax, the module), `lower`, `compile`.
      times: what the step's trace, its lowering and XLA took; kernels have no names.
      standard_library: its folder, for relative source paths.
      compiled_at: when it was compiled, in ISO 8601, if it comes from the cache; None if it was
        compiled now.
    """

    target_config: str
    seconds: Mapping[str, float]
    standard_library: str
    times: CompileTimes | None = None
    compiled_at: str | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "CompileRecord":
        return typed(cls, data)


@dataclass(frozen=True)
class ChildError:
    """An exception in the child.

    Attributes:
      stage: what the child was doing: `start`, `import`, `parameters`, `topology`, `target`,
        `lower`, `compile`, `record`, or `LOCK_STAGE`.
      type: the exception's class; empty for an XlapipeError, whose message is complete.
      frame: the innermost line of the user's own code.
    """

    stage: str
    type: str
    message: str
    frame: str | None
