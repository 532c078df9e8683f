"""One of two programs that are compared: its leaves and instructions, as people know them."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from xlapipe.differences.changes import InstructionCategory, MemoryRole, OperationName
from xlapipe.differences.identity import Node, scope_of
from xlapipe.differences.leaves import ComparedLeaf
from xlapipe.plans import AllocationKind, BufferAllocation, Computation, LogicalBuffer, Program
from xlapipe.plans.copies import find_copies
from xlapipe.plans.opcodes import COLLECTIVES, POINT_TO_POINT, RUNS_COMPUTATIONS

_COLLECTIVES = COLLECTIVES | POINT_TO_POINT


@dataclass(frozen=True)
class Side:
    """One of two programs.

    Attributes:
      nodes: instructions that run, by name, in schedule order.
    """

    program: Program
    arguments: tuple[ComparedLeaf, ...]
    outputs: tuple[ComparedLeaf, ...]
    nodes: dict[str, Node]

    def computations_run_by(self, name: str) -> tuple[Computation, ...]:
        """Those whose instructions are nodes too: a loop's, but not the body of a fusion."""
        instruction, module = self.nodes[name].instruction, self.program.plan.module
        if instruction.opcode not in RUNS_COMPUTATIONS or module is None:
            return ()
        called = instruction.called_computations
        return tuple(module.computations[key] for key in called if key in module.computations)

    @cached_property
    def _copies(self) -> frozenset[str]:
        return frozenset(copy.instruction for copy in find_copies(self.program.plan))

    @cached_property
    def values(self) -> dict[str, LogicalBuffer]:
        """Every value by name."""
        allocations = self.program.plan.allocations
        return {value.name: value for allocation in allocations for value in allocation.values}

    @cached_property
    def written_bytes(self) -> Counter[str]:
        """Size of the values that each instruction defines, including a tuple's pointer table."""
        written: Counter[str] = Counter()
        for value in self.values.values():
            written[value.instruction] += value.size_bytes
        return written

    def category(self, node: Node) -> InstructionCategory:
        """What kind of work the instruction does."""
        if node.gemm is not None:
            return InstructionCategory.GEMM
        opcodes = [node.instruction.opcode]
        module = self.program.plan.module
        if node.instruction.opcode == "async-start" and module is not None:
            for called in node.instruction.called_computations:
                opcodes += (
                    module.computations[called].opcodes if called in module.computations else ()
                )
        if any(opcode.removesuffix("-start") in _COLLECTIVES for opcode in opcodes):
            return InstructionCategory.COLLECTIVE
        if node.name in self._copies:
            return InstructionCategory.COPY
        is_fusion = node.instruction.opcode == "fusion"
        return InstructionCategory.FUSION if is_fusion else InstructionCategory.OTHER

    def operation(self, name: str) -> OperationName:
        """The name in the user's code of the instruction `name`."""
        node, plan = self.nodes.get(name), self.program.plan
        if node is None:
            instruction = plan.instructions.get(name)
            label = instruction.opcode if instruction else name
            return OperationName(label, "", plan.nearest_source(name))
        if node.gemm is not None:
            return OperationName("dot", _modules(scope_of(node.gemm.op_name)), node.gemm.source)
        scope, _, label = node.scope.rpartition("/")
        source = node.instruction.source or plan.nearest_source(name)
        opcode = node.instruction.custom_call_target or node.instruction.opcode
        if node.instruction.opcode == "fusion":
            return OperationName(f"fusion {label}" if label else "fusion", scope, source)
        return OperationName(opcode, _modules(node.scope), source)

    @cached_property
    def aliased_to(self) -> dict[str, str]:
        """Label of an output to the label of the argument that it is aliased to."""
        labels = {leaf.number: leaf.label for leaf in self.arguments}
        outputs = {leaf.number: leaf.label for leaf in self.outputs}
        aliased = {}
        for alias in self.program.plan.aliases:
            argument = labels.get((alias.parameter_number, *alias.parameter_index))
            output = outputs.get(alias.output_index or (0,))
            if alias.output_index is not None and argument is not None and output is not None:
                aliased[output] = argument
        return aliased

    @cached_property
    def _labels(self) -> dict[int, str]:
        """Labels of leaves, by the index of their allocation."""
        return {
            leaf.allocation.index: leaf.label
            for leaf in (*reversed(self.outputs), *reversed(self.arguments))
            if leaf.allocation is not None
        }

    def place(self, name: str) -> str:
        """Where a value is: a leaf's label, `temp`, `constant` or `thread-local`."""
        allocation = self.program.plan.allocation_of_value[name]
        kind = place_of(allocation)
        if kind is MemoryRole.TEMP and allocation.color:
            return f"temp (color {allocation.color})"
        default = unnamed(allocation) if kind is MemoryRole.OUTPUT else kind
        return self._labels.get(allocation.index, default)


def place_of(allocation: BufferAllocation) -> MemoryRole:
    """The use of an allocation, by the same rules as `Totals`."""
    for kind, place in (
        (AllocationKind.THREAD_LOCAL, MemoryRole.THREAD_LOCAL),
        (AllocationKind.PARAMETER, MemoryRole.ARGUMENT),
        (AllocationKind.CONSTANT, MemoryRole.CONSTANT),
        (AllocationKind.MAYBE_LIVE_OUT, MemoryRole.OUTPUT),
    ):
        if allocation.is_a(kind):
            return place
    return MemoryRole.TEMP


def unnamed(allocation: BufferAllocation) -> str:
    """A label for a live-out allocation without a known output."""
    if allocation.values and all(value.shape.is_tuple for value in allocation.values):
        return "the pointer table of the outputs"
    return "outputs without a name in the HLO"


def _modules(scope: str) -> str:
    """The modules of a scope: without the primitive and without the formula of an einsum."""
    modules, _, _ = scope.rpartition("/")
    parents, _, last = modules.rpartition("/")
    return parents if "->" in last else modules
