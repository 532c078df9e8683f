"""What each value is in the program, in the words of its author."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from xlapipe.plans import BufferAllocation, LogicalBuffer, Plan, SourceLine
from xlapipe.plans.copies import copies_by_value
from xlapipe.plans.donatable import argument_name
from xlapipe.plans.kept_values import HANDED_ON, saved_for_backward
from xlapipe.plans.labels import Labels
from xlapipe.plans.occupancy import CountedValue, Occupancy, Role
from xlapipe.plans.phases import Phase, Phases, phases_of

# Where a key begins in the path of a leaf.
_KEY = re.compile(r"[\[.]")
# Step counts and keys of random numbers are neither weights nor optimizer state.
_INTEGERS = ("int", "uint", "bool", "key")
_INTEGER = re.compile(r"[su]\d+|pred")
_CASTS = "convert_element_type"


class Purpose(StrEnum):
    """What a value is for; each value has one."""

    WEIGHTS = "weights"
    OPTIMIZER = "optimizer state"
    ARGUMENT = "arguments"
    UPDATED = "updated in place"
    OUTPUT = "outputs"
    SAVED = "saved for backward"
    RECOMPUTED = "computed again"
    GRADIENT = "gradients"
    COLLECTIVE = "collective results"
    WORKSPACE = "workspaces"
    CAST = "casts"
    COPY = "copies"
    INTERMEDIATE = "intermediate values"
    CONSTANT = "constants"


@dataclass(frozen=True, slots=True)
class Use:
    """What a value is for, and until when it is kept.

    Attributes:
      until: the line of the instruction at which its lifetime ends; None if unknown, or if it is
        alive after the step.
      until_phase: the phase of that instruction; None in a program without gradients.
    """

    purpose: Purpose
    until: SourceLine | None
    until_phase: Phase | None


@dataclass(frozen=True)
class Uses:
    """The uses of a plan's values."""

    occupancy: Occupancy
    labels: Labels

    @property
    def _plan(self) -> Plan:
        return self.occupancy.plan

    @cached_property
    def _phases(self) -> Phases:
        return phases_of(self._plan)

    @cached_property
    def _collectives(self) -> Mapping[str, str]:
        """Kinds of collectives, by the names of instructions that define their results."""
        return {
            name: collective.kind
            for collective in self._plan.collectives or ()
            for name in (collective.instruction, *collective.defined_by)
        }

    def of(self, counted: CountedValue) -> Use:
        """The use of a value of `occupancy.contents`."""
        last = self.last_instruction(counted.value)
        until = self._plan.nearest_source(last) if last is not None else None
        until_phase = self._phases.of(last) if last is not None else None
        return Use(self._purpose(counted), until, until_phase)

    def last_instruction(self, value: LogicalBuffer) -> str | None:
        """The instruction at which the lifetime of a value ends; None at the end of the step."""
        alive, live = self.occupancy.alive.get(value.name), self._plan.live_ranges
        if alive is None or live is None or alive.end >= len(live.schedule):
            return None
        return live.schedule[alive.end]

    def _purpose(self, counted: CountedValue) -> Purpose:
        value, role = counted.value, counted.role
        if role in (Role.PARAMETER, Role.ALIAS):
            return self._of_argument(counted.allocation, role)
        if role is Role.CONSTANT:
            return Purpose.CONSTANT
        if role is Role.OUTPUT:
            return Purpose.OUTPUT
        if value.name in saved_for_backward(self._plan):
            return Purpose.SAVED
        if self.labels.is_workspace(value):
            return Purpose.WORKSPACE
        if value.instruction in self._collectives:
            return Purpose.COLLECTIVE
        return self._of_operation(value)

    def _of_operation(self, value: LogicalBuffer) -> Purpose:
        name = value.instruction
        phase = self._phases.of(name)
        instruction = self._plan.instructions.get(name)
        copy = copies_by_value(self._plan).get(value.name)
        if copy is not None and copy.is_whole:
            return Purpose.COPY
        if phase is Phase.BACKWARD:
            recomputed = self._phases.recomputes(name)
            if recomputed:
                return Purpose.RECOMPUTED
            # Indices and masks of a backward pass have no gradient.
            is_integer = _INTEGER.fullmatch(value.shape.element)
            return Purpose.INTERMEDIATE if is_integer else Purpose.GRADIENT
        if instruction is not None and (instruction.op_name or "").endswith(_CASTS):
            return Purpose.CAST
        return Purpose.INTERMEDIATE

    def _of_argument(self, allocation: BufferAllocation, role: Role) -> Purpose:
        number = allocation.parameter_number
        if self._phases.trains and number is not None:
            phases = self._reading_phases(number)
            if phases == {Phase.UPDATE}:
                return Purpose.OPTIMIZER
            if Phase.UPDATE in phases:
                return Purpose.WEIGHTS
            # XLA fuses updates into the gradients that they read.
            if number in self._returned:
                return Purpose.WEIGHTS if Phase.FORWARD in phases else Purpose.OPTIMIZER
        return Purpose.UPDATED if role is Role.ALIAS else Purpose.ARGUMENT

    @cached_property
    def _returned(self) -> frozenset[int]:
        """Numbers of parameters whose path and type an output has: its new value or gradient."""
        ends = {
            (output.path[match.start() :], output.shape, output.dtype)
            for output in self.labels.program.outputs
            for match in _KEY.finditer(output.path)
        }
        return frozenset(
            leaf.parameter_number
            for leaf in self.labels.program.arguments
            if leaf.parameter_number is not None
            and not leaf.dtype.startswith(_INTEGERS)
            and (leaf.path[len(argument_name(leaf.path)) :], leaf.shape, leaf.dtype) in ends
        )

    def _reading_phases(self, parameter_number: int) -> frozenset[Phase | None]:
        entry = self._plan.module.entry_computation if self._plan.module is not None else None
        parameter = entry.parameters.get(parameter_number) if entry is not None else None
        if parameter is None:
            return frozenset()
        return frozenset(map(self._phases.of, self._readers(parameter.name)))

    def _readers(self, name: str) -> Iterator[str]:
        """Instructions that read a value, through those that only hand it on."""
        pending, seen = [name], {name}
        while pending:
            for user in self._plan.users_of(pending.pop()):
                if user in seen:
                    continue
                seen.add(user)
                if self._plan.instructions[user].opcode in HANDED_ON:
                    pending.append(user)
                else:
                    yield user
