"""What each value is in the program, in the words of its author."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from xlapipe.plans import BufferAllocation, LogicalBuffer, Plan, SourceLine
from xlapipe.plans.copies import copies_by_value
from xlapipe.plans.donatable import argument_name
from xlapipe.plans.labels import Labels
from xlapipe.plans.occupancy import CountedValue, Occupancy, Role
from xlapipe.plans.opcodes import COPIES, RENAMES
from xlapipe.plans.phases import Phase, Phases, phases_of

# Where a key begins in the path of a leaf.
_KEY = re.compile(r"[\[.]")
# Step counts and keys of random numbers are neither weights nor optimizer state.
_INTEGERS = ("int", "uint", "bool", "key")
_INTEGER = re.compile(r"[su]\d+|pred")
_CASTS = "convert_element_type"
# Positions between an operation and the gradient that it was moved to.
_BESIDE = 3
# Arguments are followed through these to the instructions that read them.
_HANDED_ON = RENAMES | COPIES | {"copy-done"}


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
        return Use(self._purpose(counted, until_phase), until, until_phase)

    def last_instruction(self, value: LogicalBuffer) -> str | None:
        """The instruction at which the lifetime of a value ends; None at the end of the step."""
        alive, live = self.occupancy.alive.get(value.name), self._plan.live_ranges
        if alive is None or live is None or alive.end >= len(live.schedule):
            return None
        return live.schedule[alive.end]

    def _purpose(self, counted: CountedValue, until_phase: Phase | None) -> Purpose:
        value, role = counted.value, counted.role
        if role in (Role.PARAMETER, Role.ALIAS):
            return self._of_argument(counted.allocation, role)
        if role is Role.CONSTANT:
            return Purpose.CONSTANT
        if role is Role.OUTPUT:
            return Purpose.OUTPUT
        if self.labels.is_workspace(value):
            return Purpose.WORKSPACE
        if value.instruction in self._collectives:
            return Purpose.COLLECTIVE
        # What is copied decides: a TPU moves what it keeps from its own memory to HBM.
        phase = self._phases.of(self._copied(value.instruction))
        if phase is Phase.FORWARD and (
            until_phase not in (Phase.FORWARD, None) or self._ends_beside_a_gradient(value)
        ):
            return Purpose.SAVED
        return self._of_operation(value, phase)

    def _copied(self, name: str) -> str:
        """The instruction whose result a copy holds; of another instruction, and of a copy of an
        argument, itself.
        """
        origin = instruction = self._plan.instructions.get(name)
        while origin is not None and origin.opcode in _HANDED_ON and origin.operands:
            origin = self._plan.instructions.get(origin.operands[0])
        is_copy = instruction is not None and instruction.opcode in COPIES
        return origin.name if is_copy and origin and origin.opcode != "parameter" else name

    def _ends_beside_a_gradient(self, value: LogicalBuffer) -> bool:
        """Whether a value ends at an operation of the forward pass that a gradient needs at once.

        XLA moves such operations out of the forward pass, next to the gradient.
        """
        last = self.last_instruction(value)
        live = self._plan.live_ranges
        if last is None or live is None:
            return False
        users = [user for user in self._plan.users_of(last) if user in self._positions]
        first = min(users, key=self._positions.__getitem__, default=None)
        if first is None or self._phases.of(first) is not Phase.BACKWARD:
            return False
        beside = max(_BESIDE, len(live.schedule) // 100)
        return self._positions[first] - self._positions[last] <= beside

    @cached_property
    def _positions(self) -> Mapping[str, int]:
        live = self._plan.live_ranges
        return {name: place for place, name in enumerate(live.schedule)} if live is not None else {}

    def _of_operation(self, value: LogicalBuffer, phase: Phase | None) -> Purpose:
        name = value.instruction
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
            for output in self.labels.outputs
            for match in _KEY.finditer(output.path)
        }
        return frozenset(
            leaf.parameter_number
            for leaf in self.labels.arguments
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
                if self._plan.instructions[user].opcode in _HANDED_ON:
                    pending.append(user)
                else:
                    yield user
