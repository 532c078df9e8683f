"""The optimised HLO module, reduced to what expectations and reports need."""

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from xlapipe.devices.platforms import PLATFORMS
from xlapipe.plans.call_chains import CallChains
from xlapipe.plans.shapes import Shape
from xlapipe.plans.short_repr import short_repr

KERNEL_NAMES = {
    call: pattern for platform in PLATFORMS for call, pattern in platform.kernel_names.items()
}
_FUSION_BACKEND_KIND = re.compile(r'"kind"\s*:\s*"([^"]+)"')


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the traced program."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class SliceTransfer(NamedTuple):
    """A collective between slices of TPUs, as the instructions name it that send and receive.

    Attributes:
      kind: one of `opcodes.COLLECTIVES`.
      rendezvous: the same for the `send` of the operand and the `recv` of the result.
    """

    kind: str
    rendezvous: str


class CollectiveGroups(NamedTuple):
    """The devices that take part in a collective.

    Attributes:
      replica_groups: device ids of each group; empty means one group of all devices.
      source_target_pairs: (source, target) device ids of a collective-permute.
      channel_id: None if devices are replicas of the program, which is never so under jax.
      transfer: for a `send` or `recv` between slices of TPUs, whose devices are numbered
        SLICE × 100,000 + number in the slice; None for others.
    """

    replica_groups: tuple[tuple[int, ...], ...] = ()
    source_target_pairs: tuple[tuple[int, int], ...] = ()
    channel_id: int | None = None
    transfer: SliceTransfer | None = None


class Contraction(NamedTuple):
    """What a dot or a convolution sums over, or the dimensions along which an instruction works.

    Attributes:
      dims: contracted dimensions of a dot's first operand; for a convolution's kernel, all except
        the output features; the dimensions of a reduce and of a sort; the lengths of an FFT; the
        strides of a slice, the sizes of a reduce-window, and a pad's elements between two others;
        the result's dimension of each of a broadcast's operand; the operand's dimension of each of
        a gather's result, -1 for those of its indices, which may be left out at the end; the
        dimension of an iota.
      algorithm: as XLA prints it, e.g. `dot_bf16_bf16_f32`; None if the operands' type decides.
      starts: where a slice begins; what a pad and the windows of a reduce-window add before the
        operand; the operand's dimension of each of a gather's indices; the result's dimension of
        each of a convolution's, -1 for the input features; empty for others, and if there are none.
    """

    dims: tuple[int, ...]
    algorithm: str | None = None
    starts: tuple[int, ...] = ()


class Instruction(NamedTuple):
    """One HLO instruction. A NamedTuple for speed: a module can have tens of thousands.

    Attributes:
      name: without the leading `%`.
      opcode: XLA's, e.g. `fusion`, `custom-call`, `dot`.
      shape: shape of the result, with its layout.
      called_computations: names of fused, called, reduction and loop computations, in XLA's
        order.
      fusion_kind: kLoop, kInput, kOutput or kCustom, for a fusion.
      op_name: the metadata's name scope, e.g. `jit(step)/layers_0/attention/dot_general`.
      source: the innermost frame of the program's own code; None if the metadata has none.
      backend_config: JSON text with sorted keys and no spaces; empty if absent.
      collective: devices of a collective, also of one between slices; None for others.
      operand_indices: for each operand, the tuple element that is read, `()` for the whole value;
        empty if all operands are whole values or the dump does not show the elements.
      contraction: that of a dot, a convolution (also of cuDNN), a reduce, a sort, an FFT, a
        broadcast, an iota, a slice, a pad, a reduce-window or a gather; for a transpose, the
        operand's dimension of each of the result's; None for others.
      integer, real: the value of a constant that is a scalar integer or a finite scalar float of 32
        bits or more; None for others.
      unique_indices: whether a scatter's updates are known not to overlap.
      comparison: direction of a `compare`: EQ, NE, GE, GT, LE or LT; None for others.
    """

    name: str
    opcode: str
    shape: Shape
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
    contraction: Contraction | None = None
    integer: int | None = None
    real: float | None = None
    comparison: str | None = None
    unique_indices: bool = False

    def __repr__(self) -> str:
        return short_repr(self)

    @property
    def fusion_backend_kind(self) -> str | None:
        """Backend kind of a kCustom fusion, e.g. `__triton_nested_gemm_fusion` or `__cudnn$…`."""
        if self.opcode != "fusion" or "fusion_backend_config" not in self.backend_config:
            return None
        match = _FUSION_BACKEND_KIND.search(self.backend_config)
        return match.group(1) if match else None

    @property
    def kernel_name(self) -> str | None:
        """The name of the Pallas kernel that a custom call runs; None for any other instruction."""
        pattern = KERNEL_NAMES.get(self.custom_call_target or "")
        if pattern is None:
            return None
        match = pattern.search(self.op_name or "") or pattern.search(self.backend_config)
        return match.group(1) if match else None

    @property
    def fusion_backend_config(self) -> str:
        """The emitter's configuration as JSON (kind, tiles, warps); empty if absent."""
        if "fusion_backend_config" not in self.backend_config:
            return ""
        config = json.loads(self.backend_config).get("fusion_backend_config")
        return json.dumps(config, separators=(",", ":"), sort_keys=True) if config else ""


@dataclass(frozen=True)
class Computation:
    """A computation, with its instructions in the order in which XLA printed or scheduled them."""

    __repr__ = short_repr

    name: str
    instructions: tuple[Instruction, ...]
    root: str

    @cached_property
    def opcodes(self) -> frozenset[str]:
        return frozenset([instruction.opcode for instruction in self.instructions])

    @cached_property
    def by_name(self) -> Mapping[str, Instruction]:
        return {instruction.name: instruction for instruction in self.instructions}

    @cached_property
    def parameters(self) -> Mapping[int | None, Instruction]:
        """The parameters by number."""
        return {
            instruction.parameter_number: instruction
            for instruction in self.instructions
            if instruction.parameter_number is not None
        }


@dataclass(frozen=True)
class HloModule:
    """A module after optimisation.

    Attributes:
      computations: by name; empty for a dump that has only buffer-assignment text.
      entry: name of the entry computation; None if unknown.
      complete: False if only the instructions that define values are known; these are then in
        one computation, and the bodies of fusions are missing.
      chains: where the program was traced. Not compared: two modules with equal instructions are
        equal.
    """

    __repr__ = short_repr

    name: str
    computations: Mapping[str, Computation]
    entry: str | None
    complete: bool = True
    chains: CallChains = field(default=CallChains(), compare=False, repr=False)

    @property
    def entry_computation(self) -> Computation | None:
        """The entry computation; None if unknown."""
        return self.computations.get(self.entry) if self.entry is not None else None

    def instructions(self) -> Iterator[tuple[Computation, Instruction]]:
        """Every instruction of every computation, including fused ones."""
        for computation in self.computations.values():
            for instruction in computation.instructions:
                yield computation, instruction

    @cached_property
    def fused_computations(self) -> frozenset[str]:
        """Names of the computations that are bodies of fusions or are called from one."""
        bodies = (
            called
            for _, instruction in self.instructions()
            if instruction.opcode == "fusion"
            for called in instruction.called_computations
        )
        return frozenset(computation.name for computation in self.called(bodies))

    def called(
        self, names: Iterable[str], through: Container[str] | None = None
    ) -> Iterator[Computation]:
        """The computations of these names and those that they call, directly or not, once each.

        Args:
          through: opcodes of the instructions whose computations are followed; None for all.
        """
        pending, seen = list(names), set[str]()
        while pending:
            computation = self.computations.get(pending.pop())
            if computation is None or computation.name in seen:
                continue
            seen.add(computation.name)
            yield computation
            for instruction in computation.instructions:
                if through is None or instruction.opcode in through:
                    pending.extend(instruction.called_computations)

    def scheduled(self) -> Iterator[tuple[Computation, Instruction]]:
        """Instructions outside fusion bodies, i.e. those that become thunks or values."""
        for computation in self.computations.values():
            if computation.name not in self.fused_computations:
                for instruction in computation.instructions:
                    yield computation, instruction
