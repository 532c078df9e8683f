"""What an instruction computes, as a number that does not depend on names, ids or file order.

Equal computations get equal numbers by interning (hash-consing): a term is a tuple of an
instruction's own properties and the numbers of its operands and called computations. One table for
both plans gives equal terms equal numbers, without collisions.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from xlapipe.plans import Computation, Gemm, HloModule, Instruction, Plan, opcodes
from xlapipe.plans.dataflow import Path, operand_index

# Names of operands, and the element of each that is read.
_Operands = tuple[tuple[str, Path], ...]

# Instructions that neither run nor allocate memory; a `-done` is part of its `-start`.
FREE = opcodes.NO_KERNEL | opcodes.DEVICE_NUMBERS


class Terms:
    """The table of terms, shared by the two plans that are compared."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def number(self, term: Hashable) -> int:
        """The number of a term; equal terms have equal numbers."""
        return self._numbers.setdefault(term, len(self._numbers))


@dataclass(frozen=True, eq=False)
class Node:
    """An instruction that runs.

    Attributes:
      position: in the order in which computations are entered and scheduled.
      operands: names of nodes and parameters; bitcasts, tuples and the like are skipped.
      elements: element that is read of each operand; `()` for all of it.
      local: number of the operation without its operands: opcode, shape, body, configuration.
      body: number of the computations that it calls by value.
      identity: number of what it computes from the program's arguments.
      scope: op_name without the name of the jitted function.
      scopes: its scope and those of its body.
      gemm: set for a matrix product.
    """

    instruction: Instruction
    position: int
    operands: tuple[str, ...]
    elements: tuple[Path, ...]
    local: int
    body: int
    identity: int
    scope: str
    scopes: frozenset[str]
    gemm: Gemm | None

    @property
    def name(self) -> str:
        return self.instruction.name

    @property
    def dot(self) -> str | None:
        """Scope of the dot; None if this is not a matrix product."""
        return None if self.gemm is None else scope_of(self.gemm.op_name)


@lru_cache(maxsize=1 << 16)
def scope_of(op_name: str | None) -> str:
    """The op_name without the names of jitted functions at its start.

    >>> scope_of("jit(step)/jit(main)/layers_0/mlp/dot_general")
    'layers_0/mlp/dot_general'
    """
    scope = op_name or ""
    while scope.startswith("jit("):
        _, _, scope = scope.partition("/")
    return scope


class Identities:
    """The nodes of one plan.

    Args:
      anchors: identity of a parameter of the entry, by its instruction's name; parameters of two
        plans that are the same leaf have the same anchor.
    """

    def __init__(self, plan: Plan, terms: Terms, anchors: Mapping[str, Hashable]) -> None:
        self._terms = terms
        self._anchors = anchors
        self._contents: dict[str, int] = {}
        self._gemms: dict[str, Gemm] = {}
        for gemm in plan.gemms:
            self._gemms.setdefault(gemm.instruction, gemm)
        self.nodes: dict[str, Node] = {}
        if plan.module is not None:
            self._computations = plan.module.computations
            self._number_contents(plan.module)
            self._number_nodes(plan.module)

    def _number_contents(self, module: HloModule) -> None:
        """Numbers the computations that are called by value: a fusion's body, a reduction's sum.

        A module lists them before their callers.
        """
        by_value = {
            called
            for _, instruction in module.instructions()
            if instruction.opcode not in opcodes.RUNS_COMPUTATIONS
            for called in instruction.called_computations
        }
        for name, computation in module.computations.items():
            if name in by_value:
                self._contents[name] = self._content(computation)

    def _content(self, computation: Computation) -> int:
        numbers: dict[str, int] = {}
        for instruction in computation.instructions:
            operands = tuple([numbers.get(operand, -1) for operand in instruction.operands])
            reads = operands, instruction.operand_indices, instruction.parameter_number
            numbers[instruction.name] = self._terms.number((self._local(instruction), reads))
        return self._terms.number(
            ("computation", numbers.get(computation.root), tuple(sorted(numbers.values())))
        )

    def _number_nodes(self, module: HloModule) -> None:
        """Numbers the instructions that run, callers first: a body's terms contain its loop."""
        entries = list(module.computations) if module.entry is None else [module.entry]
        entered: dict[str, Hashable] = dict.fromkeys(entries, None)
        pending = list(entries)
        for name in pending:
            computation = module.computations.get(name)
            if computation is None:
                continue
            identities: dict[str, int] = {}
            operands = _effective_operands(computation)
            for instruction in computation.instructions:
                local = self._local(instruction)
                read = tuple([identities.get(operand, -1) for operand in instruction.operands])
                term: Hashable = (read, instruction.operand_indices)
                if instruction.opcode == "parameter":
                    anchor = self._anchors.get(instruction.name)
                    term = (entered[name], anchor if entered[name] is None else None)
                identity = self._terms.number((local, term))
                identities[instruction.name] = identity
                if instruction.opcode in opcodes.RUNS_COMPUTATIONS:
                    for role, called in enumerate(instruction.called_computations):
                        if called not in entered:
                            entered[called] = (identity, role)
                            pending.append(called)
                if instruction.opcode not in FREE:
                    self._add(instruction, operands[instruction.name], local, identity)

    def _add(
        self, instruction: Instruction, operands: _Operands, local: int, identity: int
    ) -> None:
        scopes = {scope_of(instruction.op_name)}
        if instruction.opcode not in opcodes.RUNS_COMPUTATIONS:
            for name in instruction.called_computations:
                if name in self._computations:
                    inside = self._computations[name].instructions
                    scopes.update([scope_of(inner.op_name) for inner in inside])
        self.nodes[instruction.name] = Node(
            instruction=instruction,
            position=len(self.nodes),
            operands=tuple(name for name, _ in operands),
            elements=tuple(element for _, element in operands),
            local=local,
            body=self._called(instruction),
            identity=identity,
            scope=scope_of(instruction.op_name),
            scopes=frozenset(scopes - {""}),
            gemm=self._gemms.get(instruction.name),
        )

    def _local(self, instruction: Instruction) -> int:
        return self._terms.number(
            (
                instruction.opcode,
                instruction.shape,
                instruction.fusion_kind,
                instruction.custom_call_target,
                instruction.backend_config,
                self._called(instruction),
                instruction.collective._replace(channel_id=None)
                if instruction.collective
                else None,
            )
        )

    def _called(self, instruction: Instruction) -> int:
        """Number of the computations called by value; bodies of loops and calls have own nodes."""
        if instruction.opcode in opcodes.RUNS_COMPUTATIONS or not instruction.called_computations:
            return len(instruction.called_computations)
        contents = [self._contents.get(name, -1) for name in instruction.called_computations]
        return self._terms.number(tuple(contents))


def _effective_operands(computation: Computation) -> dict[str, _Operands]:
    """Operands that run or are parameters: bitcasts, tuples and the like are replaced by theirs."""
    replacements: dict[str, _Operands] = {}
    operands: dict[str, _Operands] = {}
    for instruction in computation.instructions:
        read: list[tuple[str, Path]] = []
        for position, name in enumerate(instruction.operands):
            index = operand_index(instruction, position)
            values = replacements.get(name, ((name, ()),))
            read.extend((value, (*element, *index)) for value, element in values)
        operands[instruction.name] = tuple(read)
        if instruction.opcode == "tuple":
            replacements[instruction.name] = tuple(read)
        elif instruction.opcode in FREE and instruction.opcode != "parameter":
            replacements[instruction.name] = tuple(read[:1])
    return operands
