"""A lowered program as plain data: it crosses from the process that traced it to the compiler.

StableHLO travels as MLIR bytecode, with the names of scopes and the source lines in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from xlapipe.plans.call_facts import CallFacts
from xlapipe.plans.compile_times import Copies, StageSeconds
from xlapipe.plans.kernel_code import KernelCode, StatedCost
from xlapipe.plans.program import ArgumentLeaf, NamedValue, OutputLeaf, RequestedCollective

# What a module calls that Python code partitions, which XLA calls back in the same process.
PYTHON_PARTITIONED = b"CustomSPMDPartitioning"


@dataclass(frozen=True, kw_only=True)
class LoweredProgram:
    """A workload after lowering, with all that compiling and recording it takes.

    Attributes:
      workload: its name.
      stablehlo: MLIR bytecode of the module.
      settings: the parts of jax's configuration that decide about compile options.
      compile_options: the fields of jax's own compile options, which the compile must have too.
      dropped_updates: values that the step stored in Python objects, which jax drops.
      asked_early: questions about devices that this machine answered, and not the target.
      requested_collectives, named_values: collectives and values of the traced program.
      stated_costs, stated_trips, kernel_codes: from the traced program and the workload; see
        `Plan`.
      options: XLA options of the function's `jax.jit` and of the workload, which override them.
      call: what jax's caches depend on in a call.
      seconds: of tracing and of lowering, by `trace` and `lower`; not part of what is compiled.
      copies: operations that were traced repeatedly.
      expectations: as `expectation_to_json` writes them; None for one of a user's class.
    """

    workload: str
    stablehlo: bytes
    arguments: tuple[ArgumentLeaf, ...]
    outputs: tuple[OutputLeaf, ...]
    requested_collectives: tuple[RequestedCollective, ...] = ()
    named_values: tuple[NamedValue, ...] = ()
    stated_costs: tuple[StatedCost, ...] = ()
    stated_trips: int | None = None
    kernel_codes: tuple[KernelCode, ...] = ()
    device_count: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    compile_options: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    mesh: Mapping[str, int] | None = None
    dropped_updates: tuple[str, ...] = ()
    asked_early: tuple[str, ...] = ()
    expectations: tuple[Mapping[str, Any] | None, ...] = ()
    call: CallFacts | None = None
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
