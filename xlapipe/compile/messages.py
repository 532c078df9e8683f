"""The messages between the parent and the compiling child, as JSON files.

A lowered program crosses from the process that traced it to the one that compiles: StableHLO
travels as MLIR bytecode, with the names of scopes and the source lines in it. Both sides run the
code of one checkout at one moment.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from xlapipe.plans.program import CompileFacts, StepFacts

# What a module calls that Python code partitions, which XLA calls back in the same process.
PYTHON_PARTITIONED = b"CustomSPMDPartitioning"
LOCK_STAGE = "compile with predicted tuning"
TRACES_STAGE = "compare traces"
# What begins the line of the child's log that lists the step's kernels.
KERNELS_IN_LOG = "xlapipe: Pallas kernels: "


@dataclass(frozen=True, kw_only=True)
class CompileRecord(CompileFacts):
    """The result of a compile, except what is in XLA's own dump files. Source paths are absolute.

    Attributes:
      target_config: target config of the device that was compiled for, as text.
      seconds: wall time by stage: `load` (Python, jax, the module), `lower`, `compile`.
      compiled_at: when it was compiled, in ISO 8601, if it comes from the cache; None if it was
        compiled now.
    """

    target_config: str
    seconds: Mapping[str, float]
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


def source_root_pattern(root: str) -> str:
    """A pattern of the folder of the user's code at the beginning of paths, but for packages."""
    return rf"{re.escape(root)}/(?![^\"]*/(?:site|dist)-packages/)"


def to_json(message: object) -> bytes:
    """A message as JSON, also with a folder's name or another text that is not UTF-8."""
    return json.dumps(msgspec.to_builtins(message, enc_hook=str)).encode()
