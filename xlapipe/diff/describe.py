"""What an instruction does, what it writes, and its name in the user's code."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from xlapipe.diff.changes import InstructionCategory, OperationName
from xlapipe.diff.identity import Node, scope_of
from xlapipe.diff.matching import Side
from xlapipe.plans.copies import find_copies
from xlapipe.plans.opcodes import COLLECTIVES, POINT_TO_POINT

_COLLECTIVES = COLLECTIVES | POINT_TO_POINT


@dataclass(frozen=True)
class InstructionDescriber:
    """Describes the instructions of one side."""

    side: Side

    @cached_property
    def _copies(self) -> frozenset[str]:
        return frozenset(copy.instruction for copy in find_copies(self.side.program.plan))

    @cached_property
    def _written_bytes(self) -> Counter[str]:
        written: Counter[str] = Counter()
        for allocation in self.side.program.plan.allocations:
            for value in allocation.values:
                written[value.instruction] += value.size_bytes
        return written

    def category(self, node: Node) -> InstructionCategory:
        """What kind of work the instruction does."""
        if node.gemm is not None:
            return InstructionCategory.GEMM
        opcodes = [node.instruction.opcode]
        module = self.side.program.plan.module
        if node.instruction.opcode == "async-start" and module is not None:
            for called in node.instruction.called_computations:
                opcodes += (
                    module.computations[called].opcodes if called in module.computations else ()
                )
        if any(opcode.removesuffix("-start") in _COLLECTIVES for opcode in opcodes):
            return InstructionCategory.COLLECTIVE
        if node.name in self._copies:
            return InstructionCategory.COPY
        return (
            InstructionCategory.FUSION
            if node.instruction.opcode == "fusion"
            else InstructionCategory.OTHER
        )

    def written_bytes(self, node: Node) -> int:
        """Size of the values that the instruction defines, including a tuple's pointer table."""
        return self._written_bytes[node.name]

    def operation(self, name: str) -> OperationName:
        """The name in the user's code of the instruction `name`."""
        node = self.side.nodes.get(name)
        plan = self.side.program.plan
        if node is None:
            instruction = plan.instructions.get(name)
            return OperationName(
                instruction.opcode if instruction else name, "", plan.nearest_source(name)
            )
        if node.gemm is not None:
            return OperationName("dot", _modules(scope_of(node.gemm.op_name)), node.gemm.source)
        scope, _, label = node.scope.rpartition("/")
        source = node.instruction.source or plan.nearest_source(name)
        opcode = node.instruction.custom_call_target or node.instruction.opcode
        if node.instruction.opcode == "fusion":
            return OperationName(f"fusion {label}" if label else "fusion", scope, source)
        return OperationName(opcode, _modules(node.scope), source)


def _modules(scope: str) -> str:
    """The modules of a scope: without the primitive and without the formula of an einsum."""
    modules, _, _ = scope.rpartition("/")
    parents, _, last = modules.rpartition("/")
    return parents if "->" in last else modules
