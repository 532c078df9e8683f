"""Which memory a value is in: allocation and offset, across bitcasts, tuples, loops and calls."""

from collections.abc import Hashable, Mapping
from functools import cached_property

from xlapipe.plans.buffers import value_name
from xlapipe.plans.dataflow import Value, dataflow_of, operand_index
from xlapipe.plans.hlo import Computation, HloModule, Instruction
from xlapipe.plans.plan import Plan

# A loop carries its values in place.
_IN_PLACE = frozenset({"while"})


class MemoryOf:
    """The memory of operands and results of one plan."""

    def __init__(self, plan: Plan, module: HloModule) -> None:
        self._plan = plan
        self._dataflow = dataflow_of(module)

    @cached_property
    def _address_of_value(self) -> Mapping[str, tuple[int, int]]:
        return {
            value.name: (allocation.index, value.offset_bytes)
            for allocation in self._plan.allocations
            for value in allocation.values
        }

    def operand(self, scope: Computation, instruction: Instruction, position: int) -> Hashable:
        """The memory of an operand: (allocation, offset), or a name if the dump lacks it."""
        path = operand_index(instruction, position)
        operand = scope.by_name.get(instruction.operands[position])
        if operand is None:
            return (instruction.operands[position], path)
        value = read = Value(scope, operand, path)
        for value in self._dataflow.steps_to_definition(read, _IN_PLACE, into_loops=True):
            if (address := self._address_of_value.get(value.name)) is not None:
                return address
        return (value.instruction.name, value.path)

    def result(self, instruction: Instruction, path: tuple[int, ...]) -> Hashable:
        """The memory of the result, or of an element of it."""
        address = self._address_of_value.get(value_name(instruction.name, path))
        return address if address is not None else (instruction.name, path)
