"""What each value is in the program, in the words of its author: the one derivation.

* weights: what the forward pass reads, and of which the step returns a gradient or a new value that
  depends on one; optimizer state: what only the update reads, and returns so. Other arguments have
  their own names.
* outputs: what becomes an output in its own memory, also while a loop fills it.
* saved for backward: what the forward pass makes and the backward pass reads. What comes from an
  argument in host memory is for what that argument is.
* gradients: what the backward pass makes, and their sums over the trips of a loop. A forward pass
  in the backward pass makes forward values again.
* workspaces: bytes that a library's call gets beside its results, which nothing reads.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from xlapipe.plans.buffers import LogicalBuffer
from xlapipe.plans.copies import copies_by_value
from xlapipe.plans.dataflow import Value, dataflow_of
from xlapipe.plans.donatable import argument_name
from xlapipe.plans.hlo import SourceLine
from xlapipe.plans.kept_values import HANDED_ON, saved_for_backward
from xlapipe.plans.labels import Labels
from xlapipe.plans.occupancy import CountedValue, Occupancy, Role
from xlapipe.plans.once import once_per_object
from xlapipe.plans.origins import Key, origins_through_copies, search
from xlapipe.plans.phases import Phase, Phases, is_backward, is_recomputed, phases_of
from xlapipe.plans.plan import Plan
from xlapipe.plans.program import ArgumentLeaf
from xlapipe.plans.readers import makers

# Where a key begins in the path of a leaf.
_KEY = re.compile(r"[\[.]")
# Keys of random numbers and tokens have no gradient.
_INTEGERS = ("int", "uint", "bool", "key")
_INTEGER = re.compile(r"[su]\d+|pred")
_CASTS = "convert_element_type"


class GradientFlow:
    """Whether values depend on a gradient, across fusions, calls, loops and conditionals.

    What an optimizer returns does: new weights and new moments. Data, keys, running statistics and
    buffers of samples are read and returned by the same step, and do not.
    """

    def __init__(self, plan: Plan) -> None:
        assert plan.module is not None
        self._dataflow = dataflow_of(plan.module)
        self._known: dict[Key, bool | None] = {}

    def reaches(self, value: Value) -> bool:
        """Whether an operation of the backward pass makes a value, or something it is made of."""
        return search(value, self._known, _is_gradient, self._read) is not None

    def _read(self, value: Value) -> Iterator[Value]:
        """What a value is another name of or, if an instruction makes it, its operands."""
        if value.instruction.opcode == "fusion":
            yield from self._dataflow.roots(value)
            return
        if value.instruction.opcode == "parameter":
            for scope, caller, _ in self._dataflow.callers(value.computation):
                if caller.opcode == "while":  # what a trip returns is what the next one gets
                    yield Value(scope, caller, value.path)
            passed = self._dataflow.passed_by_caller(value, into_loops=True)
            yield from [passed] if passed is not None else ()
            return
        nearer = list(self._dataflow.one_step_nearer(value))
        yield from nearer or self._dataflow.operands(value._replace(path=()))


gradient_flow = once_per_object(GradientFlow)


def _is_gradient(value: Value) -> bool | None:
    """Whether an operation of the backward pass makes a value; None if not."""
    names = value.instruction.op_name or ""
    # The barrier of `jax.checkpoint` has this name too, and so has what XLA fuses with it.
    is_barrier = names.endswith("optimization_barrier")
    return (is_backward(names) and not is_recomputed(names) and not is_barrier) or None


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
        purpose = self._purpose(counted)
        last = self.last_instruction(counted.value)
        if last is None or purpose is Purpose.OUTPUT:
            return Use(purpose, None, None)
        return Use(purpose, self._plan.nearest_source(last), self._phases.of(last))

    def last_instruction(self, value: LogicalBuffer) -> str | None:
        """The instruction at which the lifetime of a value ends; None at the end of the step."""
        alive, live = self.occupancy.alive.get(value.name), self._plan.live_ranges
        if alive is None or live is None or alive.end >= len(live.schedule):
            return None
        return live.schedule[alive.end]

    def _purpose(self, counted: CountedValue) -> Purpose:
        value, role = counted.value, counted.role
        number = counted.allocation.parameter_number
        if role in (Role.PARAMETER, Role.ALIAS):
            return self._argument_purpose(number, is_updated=role is Role.ALIAS)
        if role is Role.CONSTANT:
            return Purpose.CONSTANT
        if role is Role.OUTPUT:
            return Purpose.OUTPUT
        if self.labels.is_workspace(value):
            return Purpose.WORKSPACE
        copied = self.copied_argument(value)
        if copied is not None and copied.memory_kind is not None:
            return self._argument_purpose(copied.parameter_number, is_updated=False)
        if copied is not None and copied.parameter_number not in self._differentiated:
            return Purpose.COPY
        if value.name in saved_for_backward(self._plan):
            return Purpose.SAVED
        if value.instruction in self._collectives:
            return Purpose.COLLECTIVE
        return self._operation_purpose(value)

    def copied_argument(self, value: LogicalBuffer) -> ArgumentLeaf | None:
        """The argument that a value is a copy of, as it was passed; None for other values."""
        copy = copies_by_value(self._plan).get(value.name)
        if copy is None or not copy.is_whole or copy.reorders:
            return None
        number = origins_through_copies(self._plan).parameter_number(self._made(value))
        return self.labels.program.argument_of_parameter.get(number)

    def _made(self, value: LogicalBuffer) -> Value:
        return Value(*makers(self._plan)[value.instruction], value.index)

    def _operation_purpose(self, value: LogicalBuffer) -> Purpose:
        name = value.instruction
        phase = self._phases.of(name)
        instruction = self._plan.instructions.get(name)
        copy = copies_by_value(self._plan).get(value.name)
        if copy is not None and copy.is_whole:
            return Purpose.COPY
        is_integer = _INTEGER.fullmatch(value.shape.element)
        if phase is Phase.BACKWARD:
            if self._phases.recomputes(name):
                return Purpose.RECOMPUTED
            # Indices and masks of a backward pass have no gradient.
            return Purpose.INTERMEDIATE if is_integer else Purpose.GRADIENT
        if not is_integer and self._is_sum_of_gradients(value):
            return Purpose.GRADIENT
        if instruction is not None and (instruction.op_name or "").endswith(_CASTS):
            return Purpose.CAST
        return Purpose.INTERMEDIATE

    def _is_sum_of_gradients(self, value: LogicalBuffer) -> bool:
        """Whether a loop carries a value of the shape of weights that depends on a gradient."""
        if value.instruction not in makers(self._plan) or not self._differentiated:
            return False
        made = self._made(value)
        in_loop = made.instruction.opcode == "while" or made.computation is not self._plan.entry
        dims = value.shape.dims_without_ones
        return in_loop and dims in self._weight_dims and gradient_flow(self._plan).reaches(made)

    @cached_property
    def _weight_dims(self) -> frozenset[tuple[int, ...]]:
        numbers = self._differentiated
        parameters = (self._plan.parameter(number) for number in numbers)
        return frozenset(item.shape.dims_without_ones for item in parameters if item is not None)

    def _argument_purpose(self, number: int | None, *, is_updated: bool) -> Purpose:
        if number in self._differentiated:
            return Purpose.WEIGHTS
        # XLA may fuse the update into the gradient that it reads.
        phases = self._reading_phases(number)
        if number in self._returned and phases and Phase.FORWARD not in phases:
            return Purpose.OPTIMIZER
        return Purpose.UPDATED if is_updated else Purpose.ARGUMENT

    @cached_property
    def _differentiated(self) -> frozenset[int | None]:
        """Numbers of parameters that the forward pass reads, and of which a gradient is used."""
        return frozenset(
            number for number in self._returned if Phase.FORWARD in self._reading_phases(number)
        )

    @cached_property
    def _returned(self) -> frozenset[int | None]:
        """Numbers of parameters with an output that depends on a gradient: new value or gradient.

        That is the output in their memory, else one of their path and type, else one of their type.
        """
        plan, program = self._plan, self.labels.program
        entry = plan.entry
        if entry is None or not self._phases.trains or not (plan.module and plan.module.complete):
            return frozenset()
        flow, root = gradient_flow(plan), Value(entry, entry.by_name[entry.root])
        single = not root.shape.is_tuple
        by_path: dict[object, list[int]] = {}
        for output in program.outputs:
            ends = {output.path[match.start() :] for match in _KEY.finditer(output.path)} | {""}
            for end in ends:
                by_path.setdefault((end, output.shape, output.dtype), []).append(output.index)
        returned = set()
        taken = {
            alias.output_index[0]
            for alias in plan.alias_of_parameter.values()
            if alias.output_index
        }
        paths_of = {leaf: leaf.path[len(argument_name(leaf.path)) :] for leaf in program.arguments}
        for leaf in sorted(program.arguments, key=lambda leaf: not paths_of[leaf]):
            number = leaf.parameter_number
            if number is None or (leaf.dtype.startswith(_INTEGERS) and leaf.shape):
                continue
            alias, path = plan.alias_of_parameter.get(number), paths_of[leaf]
            indices = by_path.get((path, leaf.shape, leaf.dtype), [])
            if not path:  # an output of its type alone: the first argument has the first
                indices = [index for index in indices if index not in taken][:1]
            taken.update(indices)
            paths: list[tuple[int, ...]] = [(index,) for index in indices]
            if alias is not None:
                paths = [alias.output_index or ()]
            if any(flow.reaches(root._replace(path=() if single else path)) for path in paths):
                returned.add(number)
        return frozenset(returned)

    @cached_property
    def _phases_of_readers(self) -> dict[int, frozenset[Phase | None]]:
        return {}

    def _reading_phases(self, number: int | None) -> frozenset[Phase | None]:
        """Phases of the instructions that read a parameter, also in loops and through copies."""
        entry, parameter = self._plan.entry, self._plan.parameter(number)
        if number is None or entry is None or parameter is None or self._plan.module is None:
            return frozenset()
        if number not in self._phases_of_readers:
            readers = dataflow_of(self._plan.module).readers(Value(entry, parameter), HANDED_ON)
            self._phases_of_readers[number] = frozenset(
                self._phases.of(reader.instruction.name) for reader in readers
            )
        return self._phases_of_readers[number]
