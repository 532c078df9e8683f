"""Which memory a value is in: allocation and offset, across bitcasts, tuples, loops and calls."""

from collections.abc import Hashable, Mapping
from functools import cached_property

from xlapipe.plan.hlo import Computation, HloModule, Instruction
from xlapipe.plan.plan import Plan

# The result is the first operand, in the same memory.
_SAME_MEMORY = frozenset(
    {"add-dependency", "bitcast", "copy-done", "domain", "get-tuple-element"}
    | {"opt-barrier", "while"}
)
# A chain of loops and calls is at most this long; damaged modules have cycles.
_MAX_STEPS = 10_000


class MemoryOf:
    """Finds the memory of operands and results of one plan."""

    def __init__(self, plan: Plan, module: HloModule) -> None:
        self._plan = plan
        self._module = module

    @cached_property
    def _address_of_value(self) -> Mapping[str, tuple[int, int]]:
        return {
            value.name: (allocation.index, value.offset_bytes)
            for allocation in self._plan.allocations
            for value in allocation.values
        }

    @cached_property
    def _caller_of(self) -> Mapping[str, tuple[Computation, Instruction, int | None]]:
        """The caller of each computation outside fusions, and the operand that it passes on.

        None for callers that pass operand k as parameter k.
        """
        callers: dict[str, tuple[Computation, Instruction, int | None]] = {}
        for computation, instruction in self._module.scheduled():
            for position, called in enumerate(instruction.called_computations):
                if instruction.opcode == "while":
                    callers[called] = (computation, instruction, 0)
                elif instruction.opcode == "conditional":
                    callers[called] = (computation, instruction, position + 1)
                elif instruction.opcode in ("call", "async-start"):
                    callers[called] = (computation, instruction, None)
        return callers

    def operand(self, scope: Computation, instruction: Instruction, position: int) -> Hashable:
        """The memory of an operand: (allocation, offset), or a name if the dump lacks it."""
        indices = instruction.operand_indices
        path = indices[position] if indices else ()
        return self._follow(scope, instruction.operands[position], path)

    def result(self, instruction: Instruction, path: tuple[int, ...]) -> Hashable:
        """The memory of the result, or of an element of it."""
        address = self._address_of_value.get(_value_name(instruction.name, path))
        return address if address is not None else (instruction.name, path)

    def _follow(self, scope: Computation, name: str, path: tuple[int, ...]) -> Hashable:
        for _ in range(_MAX_STEPS):
            address = self._address_of_value.get(_value_name(name, path))
            instruction = scope.by_name.get(name)
            if address is not None or instruction is None:
                return address or (name, path)
            if instruction.opcode == "parameter" and scope.name in self._caller_of:
                parameter = instruction.parameter_number or 0
                scope, instruction, passed = self._caller_of[scope.name]
                name, path = _operand_at(instruction, parameter if passed is None else passed, path)
            elif instruction.opcode == "async-done" and instruction.operands:
                name, path = instruction.operands[0], (1, *path)
            elif instruction.opcode == "tuple" and path:
                name, path = _operand_at(instruction, path[0], path[1:])
            elif instruction.opcode in _SAME_MEMORY and instruction.operands:
                name, path = _operand_at(instruction, 0, path)
            else:
                return (name, path)
        return (name, path)


def _operand_at(
    instruction: Instruction, position: int, path: tuple[int, ...]
) -> tuple[str, tuple[int, ...]]:
    if position >= len(instruction.operands):
        return instruction.name, path
    indices = instruction.operand_indices
    return instruction.operands[position], (*(indices[position] if indices else ()), *path)


def _value_name(name: str, path: tuple[int, ...]) -> str:
    return f"{name}{{{','.join(map(str, path))}}}" if path else name
