"""Names of values from the user's code: the path in a pytree, or the operation."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from xlapipe.plans.buffers import BufferAllocation, LogicalBuffer
from xlapipe.plans.hlo import Instruction
from xlapipe.plans.occupancy import Role
from xlapipe.plans.once import once_per_object
from xlapipe.plans.plan import Plan
from xlapipe.plans.program import Program
from xlapipe.plans.readers import readers_of

_NUMBER = re.compile(r"(?<=[\[_.])\d+(?=[\]_./]|$)")
# The name of the jitted function, with which every op_name starts.
_JITTED = re.compile(r"^jit\([^()]*\)/(?=.)")


def pattern_of(label: str) -> str:
    """The label with `*` for its numbers, so that the labels of all layers are equal.

    >>> pattern_of("params['layers'][12]['norm']"), pattern_of("layers_3/mlp/dot_general")
    ("params['layers'][*]['norm']", 'layers_*/mlp/dot_general')
    """
    return _NUMBER.sub("*", label)


@dataclass(frozen=True)
class Labels:
    """Names for the values of a program; without leaves, from the metadata of the HLO."""

    program: Program

    @property
    def plan(self) -> Plan:
        return self.program.plan

    def value(self, allocation: BufferAllocation, value: LogicalBuffer, role: Role) -> str:
        if role in (Role.PARAMETER, Role.ALIAS) and allocation.parameter_number is not None:
            return self.parameter(allocation)
        if value.shape.is_tuple:
            return f"pointer table {value.name}"
        if role is Role.OUTPUT and self.output(allocation):
            return self.output(allocation)
        operation = self.operation(value.instruction)
        return f"workspace of {operation}" if self.is_workspace(value) else operation

    def is_workspace(self, value: LogicalBuffer) -> bool:
        """Whether `value` is the scratch memory of a library's call; it can be tens of MiB.

        A call gets it as the last of its results, as bytes that nothing reads.
        """
        instruction = self.plan.instructions.get(value.instruction)
        if instruction is None or value.shape.element not in ("s8", "u8") or not value.index:
            return False
        calls = [inner.custom_call_target for inner in self._with_body(instruction)]
        if value.shape.element == "s8" and any((call or "").startswith("__cu") for call in calls):
            return True
        is_last = value.index == (len(instruction.shape.parts) - 1,)
        is_vector = any(calls) and is_last and len(value.shape.dims) == 1
        return is_vector and not readers_of(self.plan, value.name)

    def _with_body(self, instruction: Instruction) -> Iterator[Instruction]:
        """An instruction and, for a fusion, those of its body: XLA fuses slices into calls."""
        yield instruction
        computations = self.plan.module.computations if self.plan.module is not None else {}
        for name in instruction.called_computations if instruction.opcode == "fusion" else ():
            if name in computations:
                yield from computations[name].instructions

    def operation(self, instruction: str) -> str:
        """The op_name without the jitted function, or `instruction` if it has no op_name."""
        defining = self.plan.instructions.get(instruction)
        if defining is None or not defining.op_name:
            return instruction
        return _JITTED.sub("", defining.op_name)

    def output(self, allocation: BufferAllocation) -> str:
        """The paths of the outputs in `allocation`; empty if it has none."""
        return self._outputs.get(allocation.index, "")

    def parameter(self, allocation: BufferAllocation) -> str:
        """The path of the argument in `allocation`."""
        number = allocation.parameter_number
        label = self._parameters.get(number) if number is not None else None
        if label is None:
            label = f"parameter {number}"
        index = allocation.parameter_shape_index
        return label + (f"{{{','.join(map(str, index))}}}" if index else "")

    @cached_property
    def _parameters(self) -> Mapping[int, str]:
        """Labels by parameter number; JAX also writes the argument's path into the op_name."""
        named = {
            leaf.parameter_number: leaf.path
            for leaf in self.program.arguments
            if leaf.parameter_number is not None
        }
        if named:
            return named
        entry = self.plan.entry
        known = entry.instructions if entry is not None else self.plan.instructions.values()
        labels = {
            instruction.parameter_number: instruction.op_name
            for instruction in known
            if instruction.parameter_number is not None and instruction.op_name
        }
        return labels if len(set(labels.values())) == len(labels) else {}

    @cached_property
    def _outputs(self) -> Mapping[int, str]:
        paths: dict[int, list[str]] = {}
        for leaf in self.program.outputs:
            allocation = self.program.allocation_of(leaf)
            if allocation is not None:
                paths.setdefault(allocation.index, []).append(leaf.path)
        return {index: ", ".join(names) for index, names in paths.items()}


labels_of = once_per_object(Labels)
