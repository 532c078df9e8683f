"""What people call a value: the path in their own pytree, or the operation that made it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from xlapipe.plan import BufferAllocation, LogicalBuffer, Plan
from xlapipe.plan.occupancy import Role
from xlapipe.plan.program import ArgumentLeaf, OutputLeaf

_NUMBER = re.compile(r"(?<=[\[_.])\d+(?=[\]_./]|$)")
# The function that was traced stands in front of every op_name, and tells nothing.
_TRACED = re.compile(r"^jit\([^()]*\)/(?=.)")


def pattern_of(label: str) -> str:
    """The label with its numbers as `*`: what repeats from layer to layer reads the same.

    >>> pattern_of("params['layers'][12]['norm']"), pattern_of("layers_3/mlp/dot_general")
    ("params['layers'][*]['norm']", 'layers_*/mlp/dot_general')
    """
    return _NUMBER.sub("*", label)


@dataclass(frozen=True)
class Labels:
    """Names for the values of one plan.

    Args:
      arguments: the author's leaves; empty for a dump without a manifest, where HLO's own
        metadata has to tell.
    """

    plan: Plan
    arguments: Sequence[ArgumentLeaf] = ()
    outputs: Sequence[OutputLeaf] = ()

    def value(self, allocation: BufferAllocation, value: LogicalBuffer, role: Role) -> str:
        """The label of a value."""
        if role in (Role.PARAMETER, Role.ALIAS) and allocation.parameter_number is not None:
            return self.parameter(allocation)
        if value.shape.startswith("("):
            return f"table of pointers {value.name}"
        if role is Role.OUTPUT and allocation.index in self._outputs:
            return self._outputs[allocation.index]
        operation = self.operation(value.instruction)
        return f"workspace of {operation}" if self._is_workspace(value) else operation

    def _is_workspace(self, value: LogicalBuffer) -> bool:
        """Whether `value` is what cuBLAS was given beside the result; it can be tens of MiB."""
        found = self.plan.instructions.get(value.instruction)
        target = (found.custom_call_target or "") if found is not None else ""
        return target.startswith("__cu") and value.shape.startswith("s8[") and "{" in value.name

    def operation(self, instruction: str) -> str:
        """The op_name without the traced function; the instruction's name where there is none."""
        found = self.plan.instructions.get(instruction)
        if found is None or not found.op_name:
            return instruction
        return _TRACED.sub("", found.op_name)

    def parameter(self, allocation: BufferAllocation) -> str:
        """The path of the argument that lies in `allocation`."""
        number = allocation.parameter_number
        label = self._parameters.get(number) if number is not None else None
        if label is None:
            label = f"parameter {number}"
        index = allocation.parameter_shape_index
        return label + (f"{{{','.join(map(str, index))}}}" if index else "")

    def output(self, index: tuple[int, ...] | None) -> str:
        """The path of an output by XLA's index."""
        for leaf in self.outputs:
            if index == (leaf.index,) or (index == () and len(self.outputs) == 1):
                return leaf.path
        return "an output" if index is None else f"output {{{','.join(map(str, index))}}}"

    @cached_property
    def _parameters(self) -> Mapping[int, str]:
        """Labels by parameter number: JAX writes the argument's path into the op_name too."""
        named = {
            leaf.parameter_number: leaf.path
            for leaf in self.arguments
            if leaf.parameter_number is not None
        }
        if named or self.plan.module is None or self.plan.module.entry is None:
            return named or self._from_values
        entry = self.plan.module.computations[self.plan.module.entry]
        found = {
            each.parameter_number: each.op_name
            for each in entry.instructions
            if each.parameter_number is not None and each.op_name
        }
        return found if len(set(found.values())) == len(found) else {}

    @cached_property
    def _from_values(self) -> Mapping[int, str]:
        """The same where the dump holds no entry computation."""
        found: dict[int, str] = {}
        for allocation in self.plan.allocations:
            for value in allocation.values:
                defining = self.plan.instructions.get(value.instruction)
                if defining and defining.parameter_number is not None and defining.op_name:
                    found[defining.parameter_number] = defining.op_name
        return found if len(set(found.values())) == len(found) else {}

    @cached_property
    def _outputs(self) -> Mapping[int, str]:
        found: dict[int, list[str]] = {}
        for leaf in self.outputs:
            allocation = self.plan.output_allocation(leaf.index, of=len(self.outputs))
            if allocation is not None:
                found.setdefault(allocation.index, []).append(leaf.path)
        return {index: ", ".join(paths) for index, paths in found.items()}
