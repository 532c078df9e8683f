"""The messages between the parent and the compiling child, as JSON files.

A lowered program crosses from the process that traced it to the one that compiles: StableHLO
travels as MLIR bytecode, with the names of scopes and the source lines in it. Both sides run the
code of one checkout at one moment.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from xlapipe.dump.dump import EXECUTABLE
from xlapipe.plans.program import CompileFacts, StepFacts

# What a module calls that Python code partitions, which XLA calls back in the same process.
PYTHON_PARTITIONED = b"CustomSPMDPartitioning"
Message = TypeVar("Message")
LOCK_STAGE = "compile with predicted tuning"
TRACES_STAGE = "compare traces"
# What begins the line of the child's log that lists the step's kernels.
KERNELS_IN_LOG = "xlapipe: Pallas kernels: "


@dataclass(frozen=True, kw_only=True)
class CompileRequest:
    """What the child is to compile, and where it writes.

    Attributes:
      reference: as `WorkloadReference.to_json` writes it.
      folder: gets XLA's dump files, the result and the executable.
      lowered: a file with the lowered program; None if the child imports and lowers `reference`.
      cache_folder: where results of earlier compiles are; None to compile in any case.
      cache_key: of the result there, if the parent has computed it.
      lock_sha256: SHA-256 of the autotune results that are loaded, and should be complete; None
        without a lock.
      known_sha256: SHA-256 of the table of `KnownResults` in `known_path`, from which a lock is
        predicted; None for none.
      platform: jax's name of the platform, e.g. `cuda`.
      target_config: None for the attached GPU.
      topology: as `Topology` writes it; None for the number of devices of the mesh.
      options: XLA options beyond those of the workload, which they override.
      workspaces: bytes of library calls' workspaces, as of an autotune lock.
      memory_limit_bytes: the memory that XLA keeps the plan within; None for XLA's default.
      without_xla_patches: names of `XlaPatch` that are not made.
      serialize: write the executable too.
      plan_only: the plan alone is wanted, without the kernels' machine code.
      started_seconds: when the parent began, on the machine's monotonic clock.
      source_root: the folder of the user's code, which no result depends on; empty for none.
      import_paths, instead_of: as of a Job.
    """

    reference: Mapping[str, str | None]
    folder: str
    platform: str
    target_config: str | None
    topology: str | None
    options: Mapping[str, Any]
    started_seconds: float
    serialize: bool = False
    plan_only: bool = False
    without_xla_patches: tuple[str, ...] = ()
    memory_limit_bytes: int | None = None
    workspaces: Mapping[str, int] = field(default_factory=dict)
    lowered: str | None = None
    cache_key: str | None = None
    cache_folder: str | None = None
    lock_sha256: str | None = None
    known_sha256: str | None = None
    source_root: str = ""
    import_paths: tuple[str, ...] = ()
    instead_of: str | None = None

    @property
    def dump_folder(self) -> Path:
        """Where XLA's dump files go."""
        return Path(self.folder, "dump")

    @property
    def result_path(self) -> Path:
        """Where a `CompileRecord` goes, or `error` with a `ChildError`."""
        return Path(self.folder, "result.json")

    @property
    def executable_path(self) -> Path:
        """Where the serialised executable goes."""
        return Path(self.folder, EXECUTABLE)

    @property
    def log_path(self) -> Path:
        """What the child and XLA print."""
        return Path(self.folder, "child.log")

    @property
    def known_path(self) -> Path:
        """The table of `KnownResults`."""
        return Path(self.folder, "known_results.jsonl")

    @property
    def results_folder(self) -> Path:
        """Predicted results, where XLA looks them up."""
        return Path(self.folder, "results")

    @property
    def cuda_folder(self) -> Path:
        """CUDA's files with which kernels are not assembled."""
        return Path(self.folder, "cuda")


@dataclass(frozen=True, kw_only=True)
class CompileRecord(CompileFacts):
    """The result of a compile, except what is in XLA's own dump files. Source paths are absolute.

    Attributes:
      target_config: target config of the device that was compiled for, as text.
      seconds: wall time by stage: `load` (Python, jax, the module), `lower`, `compile`.
      standard_library: its folder, for relative source paths.
      compiled_at: when it was compiled, in ISO 8601, if it comes from the cache; None if it was
        compiled now.
    """

    target_config: str
    seconds: Mapping[str, float]
    standard_library: str
    compiled_at: str | None = None


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


@dataclass(frozen=True, kw_only=True)
class LoweredProgram(StepFacts):
    """A workload after lowering, with all that compiling and recording it takes.

    Attributes:
      stablehlo: MLIR bytecode of the module.
      settings: the parts of jax's configuration that decide about compile options.
      compile_options: the fields of jax's own compile options, which the compile must have too.
      options: XLA options of the function's `jax.jit` and of the workload, which override them.
    """

    stablehlo: bytes
    expectations: tuple[Mapping[str, Any] | None, ...] = ()
    device_count: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    compile_options: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def compiled(self) -> "LoweredProgram":
        """What the result of a compile depends on."""
        return replace(self, expectations=())

    def to_bytes(self) -> bytes:
        """JSON, with the module as base64."""
        return to_json(self)

    @classmethod
    def from_bytes(cls, content: bytes) -> "LoweredProgram":
        """What `to_bytes` wrote, a moment ago and with this code."""
        return of_json(content, cls)


def source_root_pattern(root: str) -> str:
    """A pattern of the folder of the user's code at the beginning of paths, but for packages."""
    return rf"{re.escape(root)}/(?![^\"]*/(?:site|dist)-packages/)"


def to_json(message: object) -> bytes:
    """A message as JSON, also with a folder's name or another text that is not UTF-8."""
    return json.dumps(msgspec.to_builtins(message)).encode()


def of_json(content: bytes, kind: type[Message]) -> Message:
    """The message that `to_json` wrote."""
    return msgspec.convert(json.loads(content), kind)
