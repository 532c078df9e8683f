"""A program's instructions as its author knows them."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from xlapipe.diff.changes import Subject, What
from xlapipe.diff.identity import Node, scope_of
from xlapipe.diff.matching import Side
from xlapipe.plan.copies import find_copies
from xlapipe.plan.hlo import COLLECTIVES

_COLLECTIVES = COLLECTIVES | {"recv", "send"}


@dataclass(frozen=True)
class Described:
    """A side with what is needed to speak of its instructions."""

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

    def what(self, node: Node) -> What:
        """What the instruction is to people."""
        if node.gemm is not None:
            return What.GEMM
        opcodes = [node.instruction.opcode]
        module = self.side.program.plan.module
        if node.instruction.opcode == "async-start" and module is not None:
            for called in node.instruction.called_computations:
                opcodes += (
                    module.computations[called].opcodes if called in module.computations else ()
                )
        if any(opcode.removesuffix("-start") in _COLLECTIVES for opcode in opcodes):
            return What.COLLECTIVE
        if node.name in self._copies:
            return What.COPY
        return What.FUSION if node.instruction.opcode == "fusion" else What.OTHER

    def written_bytes(self, node: Node) -> int:
        """Size of the values that the instruction defines; a tuple's table of pointers too."""
        return self._written_bytes[node.name]

    def subject(self, name: str) -> Subject:
        """The instruction of that name, as its author knows it."""
        node = self.side.nodes.get(name)
        plan = self.side.program.plan
        if node is None:
            instruction = plan.instructions.get(name)
            return Subject(
                instruction.opcode if instruction else name, "", plan.nearest_source(name)
            )
        if node.gemm is not None:
            return Subject("dot", _modules(scope_of(node.gemm.op_name)), node.gemm.source)
        scope, _, label = node.scope.rpartition("/")
        source = node.instruction.source or plan.nearest_source(name)
        opcode = node.instruction.custom_call_target or node.instruction.opcode
        if node.instruction.opcode == "fusion":
            return Subject(f"fusion {label}" if label else "fusion", scope, source)
        return Subject(opcode, _modules(node.scope), source)


def _modules(scope: str) -> str:
    """The scope without the primitive, and without an einsum's or a projection's formula."""
    modules, _, _ = scope.rpartition("/")
    before, _, last = modules.rpartition("/")
    return before if "->" in last else modules
