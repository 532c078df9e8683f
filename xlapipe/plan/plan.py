"""A Plan: everything that one module's dump says about memory and execution."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from xlapipe.plan.buffers import (
    AllocationKind,
    BufferAllocation,
    InputOutputAlias,
    LogicalBuffer,
    Totals,
)
from xlapipe.plan.collectives import Collective, find_collectives, has_collectives
from xlapipe.plan.gemms import Gemm, find_gemms
from xlapipe.plan.hlo import Computation, HloModule, Instruction, SourceLine
from xlapipe.plan.live_ranges import LiveRanges
from xlapipe.plan.thunks import Thunk

_ARRAY = re.compile(r"[a-z]\w*\[[^\]]*\]")
# Opcodes whose result is a value of their operand, at the same place.
_NAMES_ANOTHER = ("bitcast", "get-tuple-element", "async-done", "async-start", "copy-done")


@dataclass(frozen=True)
class Plan:
    """What a reader found. A part that the files do not hold is None, never empty or zero.

    Attributes:
      total_bytes_used: XLA's own printed total, which `verify` holds the allocations against.
      header_aliases: input_output_alias of the module header; None without a header.
      buffer_donors: (parameter number, shape index) of donated parameters left without alias.
    """

    allocations: tuple[BufferAllocation, ...]
    total_bytes_used: int | None = None
    module: HloModule | None = None
    header_aliases: tuple[InputOutputAlias, ...] | None = None
    buffer_donors: tuple[tuple[int, tuple[int, ...]], ...] | None = None
    live_ranges: LiveRanges | None = None
    thunks: tuple[Thunk, ...] | None = None

    @cached_property
    def totals(self) -> Totals:
        return Totals.of(self.allocations)

    @cached_property
    def aliases(self) -> tuple[InputOutputAlias, ...]:
        """The header's aliases, or, without a header, parameters whose allocation is live-out."""
        if self.header_aliases is not None:
            return self.header_aliases
        return tuple(
            InputOutputAlias(allocation.parameter_number, None, allocation.parameter_shape_index)
            for allocation in self.allocations
            if allocation.parameter_number is not None
            and allocation.is_a(AllocationKind.MAYBE_LIVE_OUT)
        )

    @cached_property
    def gemms(self) -> tuple[Gemm, ...]:
        """Every matrix product; empty where the dump holds no HLO."""
        return find_gemms(self.module) if self.module is not None else ()

    @cached_property
    def collectives(self) -> tuple[Collective, ...] | None:
        """Every collective; None where the dump holds no whole HLO module."""
        if self.module is None or not self.module.complete:
            return None
        if not has_collectives(self.module):
            return ()  # as on one device: gemms need not be looked for either
        found = find_collectives(self.module, self.gemms, self.live_ranges)
        return tuple(
            each if each.source else replace(each, source=self.nearest_source(each.instruction))
            for each in found
        )

    @cached_property
    def instructions(self) -> Mapping[str, Instruction]:
        """Instructions outside fusion bodies, by name."""
        if self.module is None:
            return {}
        return {instruction.name: instruction for _, instruction in self.module.scheduled()}

    @cached_property
    def allocation_of_value(self) -> Mapping[str, BufferAllocation]:
        """The allocation in which a value (`name` or `name{index}`) lies."""
        return {
            value.name: allocation for allocation in self.allocations for value in allocation.values
        }

    @cached_property
    def thunk_counts(self) -> Mapping[str, int] | None:
        """Thunks by kind, nested ones included."""
        if self.thunks is None:
            return None
        return dict(sorted(Counter(thunk.kind for thunk in self.thunks).items()))

    def nearest_source(self, name: str) -> SourceLine | None:
        """Source line of an instruction, or of the nearest one that uses it, or feeds it.

        XLA's own copies, and parameters, have no line of their own.
        """
        for neighbours in (self._users, self._operands):
            pending, seen = [name], {name}
            while pending:
                current = pending.pop(0)
                found = self.instructions.get(current)
                if found is not None and found.source is not None and found.opcode != "parameter":
                    return found.source
                if neighbours is self._operands and found is not None and found.opcode == "tuple":
                    continue  # what else lies in the tuple is none of its doing
                for other in neighbours.get(current, ()):
                    if other not in seen:
                        seen.add(other)
                        pending.append(other)
        return None

    def users_of(self, name: str) -> tuple[str, ...]:
        """Instructions outside fusion bodies that have `name` as an operand."""
        return self._users.get(name, ())

    def source_in(self, allocation: BufferAllocation) -> SourceLine | None:
        """Source line of the largest value in `allocation` for which one is known."""
        for value in sorted(allocation.values, key=lambda value: -value.size_bytes):
            source = self.nearest_source(value.instruction)
            if source is not None:
                return source
        return None

    @cached_property
    def _operands(self) -> Mapping[str, tuple[str, ...]]:
        return {name: instruction.operands for name, instruction in self.instructions.items()}

    @cached_property
    def _users(self) -> Mapping[str, tuple[str, ...]]:
        users: dict[str, list[str]] = {}
        for name, operands in self._operands.items():
            for operand in operands:
                users.setdefault(operand, []).append(name)
        return {name: tuple(found) for name, found in users.items()}

    def parameter_allocation(self, number: int | None) -> BufferAllocation | None:
        """The allocation of entry parameter `number`."""
        for allocation in self.allocations:
            if number is not None and allocation.parameter_number == number:
                return allocation
        return None

    def output_allocation(self, index: int, *, of: int) -> BufferAllocation | None:
        """The allocation in which output `index` of `of` lies; None where the HLO cannot tell."""
        for alias in self.aliases:
            if alias.output_index == ((index,) if of != 1 or self._root_is_tuple else ()):
                return self.parameter_allocation(alias.parameter_number)
        return self._live_out_of(index)

    @cached_property
    def _entry(self) -> Computation | None:
        if self.module is None or self.module.entry is None:
            return None
        return self.module.computations.get(self.module.entry)

    @property
    def result_shape(self) -> str | None:
        """Shape of the entry computation's root, on one device."""
        entry = self._entry
        return entry.by_name[entry.root].shape if entry is not None else None

    @property
    def _root_is_tuple(self) -> bool:
        return (self.result_shape or "").startswith("(")

    def _live_out_of(self, index: int) -> BufferAllocation | None:
        """Follows the root tuple's operand to the value that it names.

        A value reached through a tuple-shaped instruction is told by its dimensions and by lying
        in a live-out allocation: neither HLO text nor proto gives positions of values.
        """
        entry = self._entry
        if entry is None:
            return None
        root = entry.by_name[entry.root]
        if root.opcode == "tuple" and index >= len(root.operands):
            return None
        instruction = entry.by_name[root.operands[index] if root.opcode == "tuple" else root.name]
        # The root's own shape tells which element of a tuple-shaped operand is meant.
        elements = _ARRAY.findall(root.shape)
        wanted = _dims(elements[index] if index < len(elements) else instruction.shape)
        # An instruction that is itself the root, e.g. combined collectives, numbers its results.
        numbered = root.opcode != "tuple" and self._root_is_tuple
        seen: set[str] = set()
        while instruction.name not in seen:
            seen.add(instruction.name)
            # Behind an async-start's operands are its results.
            place = f"1,{index}" if instruction.opcode == "async-start" else str(index)
            for allocation, value in self._values_of_instruction.get(instruction.name, ()):
                if numbered:
                    if value.name == f"{instruction.name}{{{place}}}":
                        return allocation
                elif value.name == instruction.name or (
                    _dims(value.shape) == wanted and allocation.is_a(AllocationKind.MAYBE_LIVE_OUT)
                ):
                    return allocation
            if instruction.opcode not in _NAMES_ANOTHER or not instruction.operands:
                return None
            if numbered and instruction.opcode == "async-start":
                instruction = self._root_called_by(instruction)
            else:
                instruction = entry.by_name[instruction.operands[0]]
        return None

    def _root_called_by(self, start: Instruction) -> Instruction:
        """What an async-start runs; itself where the module does not tell."""
        computations = self.module.computations if self.module is not None else {}
        for name in start.called_computations:
            if name in computations:
                return computations[name].by_name[computations[name].root]
        return start

    @cached_property
    def _values_of_instruction(
        self,
    ) -> Mapping[str, list[tuple[BufferAllocation, LogicalBuffer]]]:
        values: dict[str, list[tuple[BufferAllocation, LogicalBuffer]]] = {}
        for allocation in self.allocations:
            for value in allocation.values:
                values.setdefault(value.instruction, []).append((allocation, value))
        return values


def _dims(shape: str) -> list[str]:
    """Dimensions of an array shape, ones left out: a bitcast may add or drop them.

    >>> _dims("f32[1,8,128]{2,1,0}")
    ['8', '128']
    """
    return [dim for dim in shape.partition("[")[2].partition("]")[0].split(",") if dim != "1"]
