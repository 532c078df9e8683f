"""Which values the result of an instruction consists of, across tuples and renaming."""

from collections.abc import Mapping

from xlapipe.plans.dataflow import Path, operand_index, result_in_start
from xlapipe.plans.hlo import HloModule, Instruction
from xlapipe.plans.opcodes import FORWARDS, RUNS_ONCE
from xlapipe.plans.plan import Plan

_NO_VALUES: Mapping[Path, str] = {}


class ValueStructure:
    """Names of values by shape index, for every instruction outside fusions."""

    def __init__(self, plan: Plan, module: HloModule) -> None:
        self._instructions = plan.instructions
        self._roots = {name: comp.root for name, comp in module.computations.items()}
        self._own: dict[str, dict[Path, str]] = {}
        for allocation in plan.allocations:
            for value in allocation.values:
                self._own.setdefault(value.instruction, {})[value.index] = value.name
        self._cache: dict[str, Mapping[Path, str]] = {}
        self._elements_of: dict[str, dict[int, dict[Path, str]]] = {}

    def own(self, name: str) -> Mapping[Path, str]:
        """Values that the instruction itself defines."""
        return self._own.get(name, _NO_VALUES)

    def of(self, name: str) -> Mapping[Path, str]:
        """Values of the instruction's result, those of its operands included."""
        if name not in self._cache:
            self._cache[name] = _NO_VALUES  # a damaged module may have a cycle
            self._cache[name] = {**self._inherited(name), **self.own(name)}
        return self._cache[name]

    def operand_values(self, instruction: Instruction, position: int) -> set[str]:
        """Values that an instruction reads through one operand."""
        return set(self._operand(instruction, position).values())

    def _operand(self, instruction: Instruction, position: int) -> Mapping[Path, str]:
        name, prefix = instruction.operands[position], operand_index(instruction, position)
        if not prefix:
            return self.of(name)
        return _below(self._elements(name).get(prefix[0], _NO_VALUES), prefix[1:])

    def _elements(self, name: str) -> Mapping[int, Mapping[Path, str]]:
        """The values of each element of an instruction's tuple."""
        if name not in self._elements_of:
            elements = self._elements_of[name] = {}
            for path, value in self.of(name).items():
                if path:
                    elements.setdefault(path[0], {})[path[1:]] = value
        return self._elements_of[name]

    def _inherited(self, name: str) -> Mapping[Path, str]:
        instruction = self._instructions.get(name)
        if instruction is None:
            return _NO_VALUES
        opcode = instruction.opcode
        if opcode == "tuple":
            return self._operands(instruction)
        if opcode in FORWARDS or opcode == "while":
            operand = self._operand(instruction, 0)
            return _below(operand, result_in_start(opcode)) or operand
        if not instruction.called_computations or opcode not in RUNS_ONCE:
            return _NO_VALUES
        called = self.of(self._roots.get(instruction.called_computations[0], ""))
        if opcode == "call":
            return called
        # (operands, results): the results are values of the computation that it starts.
        operands = {(0, *path): value for path, value in self._operands(instruction).items()}
        return {**operands, **{(1, *path): value for path, value in called.items()}}

    def _operands(self, instruction: Instruction) -> Mapping[Path, str]:
        return {
            (position, *path): value
            for position in range(len(instruction.operands))
            for path, value in self._operand(instruction, position).items()
        }


def _below(structure: Mapping[Path, str], prefix: Path) -> Mapping[Path, str]:
    if not prefix:
        return structure
    length = len(prefix)
    return {path[length:]: value for path, value in structure.items() if path[:length] == prefix}
