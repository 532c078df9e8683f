"""What an instruction computes, as a number that no name, id or file order enters.

Equal things get equal numbers by interning (hash-consing): a term is a tuple of what an
instruction says itself and of the numbers of its operands and called computations, and the table
gives the same term the same number, in both plans. There are no collisions.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from xlapipe.plan import Computation, HloModule, Instruction, Plan
from xlapipe.plan.gemms import Gemm

# Instructions that neither run nor take memory of their own; `-done` belongs to its `-start`.
FREE = frozenset(
    {"after-all", "async-done", "async-update", "bitcast", "constant", "copy-done", "domain"}
    | {"get-tuple-element", "parameter", "partition-id", "replica-id", "tuple"}
    | {"all-gather-done", "all-reduce-done", "collective-permute-done", "recv-done", "send-done"}
)
_FLOW = frozenset({"async-start", "call", "conditional", "while"})


class Terms:
    """The table of terms; one is shared by the two plans that are compared."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def number(self, term: Hashable) -> int:
        return self._numbers.setdefault(term, len(self._numbers))


@dataclass(frozen=True, eq=False)
class Node:
    """An instruction that runs.

    Attributes:
      position: in the order in which computations are entered and scheduled.
      operands: names of nodes and parameters, past bitcasts, tuples and the like.
      local: number of what it does, whatever its operands: opcode, shape, body, configuration.
      body: number of what it calls by value.
      identity: number of what it computes from the program's arguments.
      scope: op_name without the name of the jitted function.
      scopes: those of its body too.
      gemm: for a matrix product.
    """

    instruction: Instruction
    position: int
    operands: tuple[str, ...]
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
        """Scope of the dot, for a matrix product."""
        return None if self.gemm is None else scope_of(self.gemm.op_name)


@lru_cache(maxsize=1 << 16)
def scope_of(op_name: str | None) -> str:
    """The op_name without the names of jitted functions in front.

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
      anchors: what a parameter of the entry stands for, by its instruction's name; parameters of
        two plans that stand for the same leaf have the same anchor.
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
        """Computations that are called by value: a fusion's body, a reduction's sum.

        A module lists them before their callers.
        """
        by_value = {
            called
            for _, instruction in module.instructions()
            if instruction.opcode not in _FLOW
            for called in instruction.called_computations
        }
        for name, computation in module.computations.items():
            if name in by_value:
                self._contents[name] = self._content(computation)

    def _content(self, computation: Computation) -> int:
        numbers: dict[str, int] = {}
        for instruction in computation.instructions:
            operands = tuple([numbers.get(operand, -1) for operand in instruction.operands])
            numbers[instruction.name] = self._terms.number((self._local(instruction), operands))
        return self._terms.number(
            ("computation", numbers.get(computation.root), tuple(sorted(numbers.values())))
        )

    def _number_nodes(self, module: HloModule) -> None:
        """Callers come before what they call, so that a loop's body knows its loop."""
        entries = list(module.computations) if module.entry is None else [module.entry]
        entered: dict[str, Hashable] = dict.fromkeys(entries, None)
        pending = list(entries)
        for name in pending:
            computation = module.computations.get(name)
            if computation is None:
                continue
            identities: dict[str, int] = {}
            seen_through = _operands_seen_through(computation)
            for instruction in computation.instructions:
                local = self._local(instruction)
                term: Hashable = tuple([identities.get(each, -1) for each in instruction.operands])
                if instruction.opcode == "parameter":
                    anchor = self._anchors.get(instruction.name)
                    term = (entered[name], anchor if entered[name] is None else None)
                identity = self._terms.number((local, term))
                identities[instruction.name] = identity
                if instruction.opcode in _FLOW:
                    for role, called in enumerate(instruction.called_computations):
                        if called not in entered:
                            entered[called] = (identity, role)
                            pending.append(called)
                if instruction.opcode not in FREE:
                    operands = seen_through[instruction.name]
                    self._add(instruction, operands, local, identity)

    def _add(
        self, instruction: Instruction, operands: tuple[str, ...], local: int, identity: int
    ) -> None:
        scopes = {scope_of(instruction.op_name)}
        if instruction.opcode not in _FLOW:
            for name in instruction.called_computations:
                if name in self._computations:
                    inside = self._computations[name].instructions
                    scopes.update([scope_of(inner.op_name) for inner in inside])
        self.nodes[instruction.name] = Node(
            instruction=instruction,
            position=len(self.nodes),
            operands=operands,
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
                instruction.parameter_number if instruction.opcode != "parameter" else None,
                self._called(instruction),
                instruction.collective._replace(channel_id=None)
                if instruction.collective
                else None,
            )
        )

    def _called(self, instruction: Instruction) -> int:
        """What it calls by value; what a loop or a call runs is compared by itself."""
        if instruction.opcode in _FLOW or not instruction.called_computations:
            return len(instruction.called_computations)
        contents = [self._contents.get(name, -1) for name in instruction.called_computations]
        return self._terms.number(tuple(contents))


def _operands_seen_through(computation: Computation) -> dict[str, tuple[str, ...]]:
    """Operands of each instruction that run or are parameters, past what only passes them on."""
    ends: dict[str, tuple[str, ...]] = {}
    operands: dict[str, tuple[str, ...]] = {}
    for instruction in computation.instructions:
        read: list[str] = []
        for name in instruction.operands:
            read.extend(ends.get(name, (name,)))
        operands[instruction.name] = tuple(read)
        if instruction.opcode == "tuple":
            ends[instruction.name] = tuple(read)
        elif instruction.opcode in FREE and instruction.opcode != "parameter":
            ends[instruction.name] = tuple(read[:1])
    return operands
