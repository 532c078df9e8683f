"""A lowered program as plain data: it crosses from the process that traced it to the compiler.

StableHLO travels as MLIR bytecode, with the names of scopes and the source lines in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from xlapipe.dump.compile_facts import StepFacts
from xlapipe.plans.compile_times import Copies, StageSeconds

# What a module calls that Python code partitions, which XLA calls back in the same process.
PYTHON_PARTITIONED = b"CustomSPMDPartitioning"


@dataclass(frozen=True, kw_only=True)
class LoweredProgram(StepFacts):
    """A workload after lowering, with all that compiling and recording it takes.

    Attributes:
      stablehlo: MLIR bytecode of the module.
      settings: the parts of jax's configuration that decide about compile options.
      compile_options: the fields of jax's own compile options, which the compile must have too.
      options: XLA options of the function's `jax.jit` and of the workload, which override them.
      seconds: of tracing and of lowering, by `trace` and `lower`; not part of what is compiled.
      copies: operations that were traced repeatedly.
    """

    stablehlo: bytes
    expectations: tuple[Mapping[str, Any] | None, ...] = ()
    device_count: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    compile_options: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, StageSeconds] = field(default_factory=dict, compare=False)
    copies: Copies | None = None

    @property
    def compiled(self) -> "LoweredProgram":
        """What the result of a compile depends on."""
        return replace(self, expectations=(), seconds={})

    def to_bytes(self) -> bytes:
        """JSON, with the module as base64."""
        return msgspec.json.encode(self)

    @classmethod
    def from_bytes(cls, content: bytes) -> "LoweredProgram":
        """What `to_bytes` wrote, a moment ago and with this code."""
        return msgspec.json.decode(content, type=cls)
