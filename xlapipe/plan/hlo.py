"""The optimised HLO module, reduced to what expectations and reports ask about."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from xlapipe.platforms import PLATFORMS

# XLA's collectives, in their synchronous spelling; some have one of their own for `-start`.
COLLECTIVES = frozenset(
    {
        "all-gather",
        "all-reduce",
        "all-to-all",
        "collective-broadcast",
        "collective-permute",
        "ragged-all-to-all",
        "reduce-scatter",
    }
)
# Opcodes of instructions that tell which devices join.
WITH_GROUPS = COLLECTIVES | {f"{kind}-start" for kind in COLLECTIVES}

_KERNEL_NAMES = {
    call: pattern for platform in PLATFORMS for call, pattern in platform.kernel_names.items()
}
_FUSION_BACKEND_KIND = re.compile(r'"kind"\s*:\s*"([^"]+)"')


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the program that was traced."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class CollectiveGroups(NamedTuple):
    """Which devices a collective joins.

    Attributes:
      replica_groups: device ids of each group; none stands for one group of all devices.
      source_target_pairs: of a collective-permute.
      channel_id: None where devices are replicas of the program, which jax's are not.
    """

    replica_groups: tuple[tuple[int, ...], ...] = ()
    source_target_pairs: tuple[tuple[int, int], ...] = ()
    channel_id: int | None = None


class Instruction(NamedTuple):
    """One HLO instruction; a tuple, since a module has ten thousands of them.

    Attributes:
      name: without the leading `%`.
      opcode: XLA's, e.g. `fusion`, `custom-call`, `dot`.
      shape: as XLA prints it with layout and without `/*index=N*/`, e.g. `bf16[128,1024]{1,0}`.
      operands: names of instructions of the same computation.
      parameter_number: of a `parameter` instruction.
      called_computations: names of fused, called, reduction and loop computations, in XLA's order.
      fusion_kind: kLoop, kInput, kOutput or kCustom, for a fusion.
      custom_call_target: for a custom call.
      op_name: the metadata's name scope, e.g. `jit(step)/layers_0/attention/dot_general`.
      source: the innermost frame of the program's own code, where the metadata tells.
      backend_config: JSON text with sorted keys and no spaces; empty where there is none.
      collective: what only a collective has; None for all else.
      operand_indices: which element of its tuple each operand is, `()` for a whole one; empty
        where all are whole, and in dumps that do not tell.
    """

    name: str
    opcode: str
    shape: str
    operands: tuple[str, ...] = ()
    parameter_number: int | None = None
    called_computations: tuple[str, ...] = ()
    fusion_kind: str | None = None
    custom_call_target: str | None = None
    op_name: str | None = None
    source: SourceLine | None = None
    backend_config: str = ""
    collective: CollectiveGroups | None = None
    operand_indices: tuple[tuple[int, ...], ...] = ()

    @property
    def fusion_backend_kind(self) -> str | None:
        """`__triton_nested_gemm_fusion`, `__triton`, `__cudnn$…` of a kCustom fusion."""
        if self.opcode != "fusion" or "fusion_backend_config" not in self.backend_config:
            return None
        found = _FUSION_BACKEND_KIND.search(self.backend_config)
        return found.group(1) if found else None

    @property
    def kernel_name(self) -> str | None:
        """The name of the Pallas kernel that a custom call runs; None for any other instruction."""
        pattern = _KERNEL_NAMES.get(self.custom_call_target or "")
        match = pattern.search(self.backend_config) if pattern is not None else None
        return match.group(1) if match else None

    @property
    def fusion_backend_config(self) -> str:
        """What the emitter was told: kind, tiles, warps; empty where nothing is told."""
        if "fusion_backend_config" not in self.backend_config:
            return ""
        config = json.loads(self.backend_config).get("fusion_backend_config")
        return json.dumps(config, separators=(",", ":"), sort_keys=True) if config else ""


@dataclass(frozen=True)
class Computation:
    """A computation, its instructions in the order in which XLA printed or scheduled them."""

    name: str
    instructions: tuple[Instruction, ...]
    root: str

    @cached_property
    def opcodes(self) -> frozenset[str]:
        return frozenset([instruction.opcode for instruction in self.instructions])

    @cached_property
    def by_name(self) -> Mapping[str, Instruction]:
        return {instruction.name: instruction for instruction in self.instructions}


@dataclass(frozen=True)
class HloModule:
    """A module after optimisation.

    Attributes:
      computations: by name; empty for a dump that holds buffer-assignment text alone.
      entry: name of the entry computation, or None where unknown.
      complete: False if only the instructions that define values are known; they then stand
        in one computation, without bodies of fusions.
    """

    name: str
    computations: Mapping[str, Computation]
    entry: str | None
    complete: bool = True

    def instructions(self) -> Iterator[tuple[Computation, Instruction]]:
        """Every instruction of every computation, fused ones included."""
        for computation in self.computations.values():
            for instruction in computation.instructions:
                yield computation, instruction

    @cached_property
    def fused_computations(self) -> frozenset[str]:
        """Names of the computations that are bodies of fusions, or are called from one."""
        fused: set[str] = set()
        pending = [
            called
            for _, instruction in self.instructions()
            if instruction.opcode == "fusion"
            for called in instruction.called_computations
        ]
        while pending:
            name = pending.pop()
            if name in fused or name not in self.computations:
                continue
            fused.add(name)
            for instruction in self.computations[name].instructions:
                pending.extend(instruction.called_computations)
        return frozenset(fused)

    def scheduled(self) -> Iterator[tuple[Computation, Instruction]]:
        """Instructions outside fusion bodies: those that become thunks or values."""
        for computation, instruction in self.instructions():
            if computation.name not in self.fused_computations:
                yield computation, instruction
