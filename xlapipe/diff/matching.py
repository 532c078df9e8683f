"""Which instruction of one plan is which of the other.

Instructions are paired by what they compute and where they come from, never by name or index,
in passes from the strictest likeness to the loosest. Each pass puts what is left into buckets by
a key and pairs within a bucket in schedule order, so that a pass takes linear time:

1. the same computation of the same arguments (`identity`); first those that are used alike,
   since a plan does not tell two slices of one value apart, then those of one scope;
2. the same operation (`local`) at the same scope;
3. products of the same dot;
4. the same scope, opcode and dimensions; the same scope and opcode, where both have as many
   (in 2 to 4 first those that read the same parameters, then the others);
5. the most op_names in common, for fusions that were cut differently;
6. the same scope;
7. the same operation on operands that are paired with each other; where the metadata is silent.

Passes 4 to 7 are for what the compiler did differently: what they pair is compared, and shown.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property

from xlapipe.diff.identity import Identities, Node, Terms
from xlapipe.diff.leaves import (
    Leaf,
    anchors,
    argument_leaves,
    dims_of,
    makers,
    output_leaves,
    pair_leaves,
)
from xlapipe.plan.program import Program

# An op_name that more instructions carry tells nothing about any of them.
_MOST_HOLDERS = 128
# Of the op_names of both: less in common is another fusion.
_LEAST_IN_COMMON = 0.34

_Key = Callable[[Node], Hashable]


@dataclass(frozen=True)
class Side:
    """One of two programs.

    Attributes:
      nodes: instructions that run, by name, in schedule order.
    """

    program: Program
    arguments: tuple[Leaf, ...]
    outputs: tuple[Leaf, ...]
    nodes: dict[str, Node]


@dataclass(frozen=True)
class Matching:
    """Two programs and what of them belongs together.

    Attributes:
      arguments, outputs: index of the leaf in `a` to that in `b`.
      instructions: name in `a` to name in `b`.
    """

    a: Side
    b: Side
    arguments: dict[int, int]
    outputs: dict[int, int]
    instructions: dict[str, str]

    @cached_property
    def reverse(self) -> dict[str, str]:
        """Name in `b` to name in `a`."""
        return {b: a for a, b in self.instructions.items()}


def match(a: Program, b: Program) -> Matching:
    """Pairs the leaves and the instructions of two programs."""
    terms = Terms()
    arguments_a, arguments_b = argument_leaves(a), argument_leaves(b)
    pairs = pair_leaves(arguments_a, arguments_b)
    anchors_a = anchors(arguments_a, {at: at for at in pairs})
    anchors_b = anchors(arguments_b, {other: at for at, other in pairs.items()})
    side_a = Side(a, arguments_a, output_leaves(a), Identities(a.plan, terms, anchors_a).nodes)
    side_b = Side(b, arguments_b, output_leaves(b), Identities(b.plan, terms, anchors_b).nodes)
    parameters = {
        arguments_a[at].instruction: arguments_b[other].instruction
        for at, other in pairs.items()
        if arguments_a[at].instruction and arguments_b[other].instruction
    }
    outputs = pair_leaves(side_a.outputs, side_b.outputs)
    used_a = _uses(side_a, {at: at for at in outputs})
    used_b = _uses(side_b, {other: at for at, other in outputs.items()})
    passes = _Passes(side_a.nodes, side_b.nodes, parameters)
    return Matching(side_a, side_b, pairs, outputs, parameters | passes.run(used_a, used_b))


def _uses(side: Side, outputs: dict[int, int]) -> dict[str, Hashable]:
    """By which instructions each is read, and as which outputs it leaves the program."""
    uses: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for node in side.nodes.values():
        for name in node.operands:
            uses[name].append((node.local, node.scope))
    for index, name in makers(side.program).items():
        uses[name].append((-1, str(outputs.get(index))))
    return {name: tuple(sorted(found)) for name, found in uses.items()}


def _operation(node: Node) -> Hashable | None:
    return (node.local, node.scope) if node.scope else None


def _dot(node: Node) -> Hashable | None:
    return node.dot or None


def _form(node: Node) -> Hashable | None:
    instruction = node.instruction
    return (node.scope, instruction.opcode, dims_of(instruction.shape)) if node.scope else None


def _scope_and_opcode(node: Node) -> Hashable | None:
    return (node.scope, node.instruction.opcode) if node.scope else None


class _Passes:
    def __init__(self, a: dict[str, Node], b: dict[str, Node], parameters: dict[str, str]) -> None:
        self._left_a, self._left_b = dict(a), dict(b)
        self._number_a = {name: number for number, name in enumerate(parameters)}
        self._number_b = {parameters[name]: number for name, number in self._number_a.items()}
        self._parameters = len(parameters)
        self._pairs: dict[str, str] = {}

    def run(self, used_a: dict[str, Hashable], used_b: dict[str, Hashable]) -> dict[str, str]:
        self._pair(
            lambda node: (node.identity, node.scope, used_a.get(node.name)),
            lambda node: (node.identity, node.scope, used_b.get(node.name)),
        )
        self._pair(lambda node: (node.identity, node.scope))
        self._pair(lambda node: node.identity)
        for key in (_operation, _dot, _form):
            self._pair_reading(key)
            self._pair(key)
        self._pair_reading(_scope_and_opcode)
        self._pair(_scope_and_opcode, as_many=True)
        self._pair_by_scopes()
        self._pair(lambda node: node.scope or None, as_many=True)
        self._pair_by_operands()
        return self._pairs

    def _pair_reading(self, key: _Key) -> None:
        """Pairs by `key` and by the parameters that are read: keys and values have one scope."""

        def reads(node: Node, numbers: dict[str, int]) -> Hashable | None:
            found = key(node)
            parameters = [
                numbers[name]
                for name in node.operands
                if numbers.get(name, self._parameters) < self._parameters
            ]
            return (found, *parameters) if parameters and found is not None else None

        self._pair(
            lambda node: reads(node, self._number_a), lambda node: reads(node, self._number_b)
        )

    def _take(self, one: Node, other: Node) -> None:
        self._pairs[one.name] = other.name
        self._number_a[one.name] = self._number_b[other.name] = len(self._number_a)
        del self._left_a[one.name], self._left_b[other.name]

    def _pair(self, key: _Key, key_b: _Key | None = None, *, as_many: bool = False) -> None:
        """Pairs within buckets of equal keys; with `as_many`, only where both have as many."""
        ours = _buckets(self._left_a.values(), key)
        theirs = _buckets(self._left_b.values(), key_b or key)
        for bucket, nodes in ours.items():
            others = theirs.get(bucket, [])
            if not as_many or len(nodes) == len(others):
                for one, other in zip(nodes, others, strict=False):
                    self._take(one, other)

    def _pair_by_scopes(self) -> None:
        holders: defaultdict[str, list[Node]] = defaultdict(list)
        for node in self._left_a.values():
            for scope in node.scopes:
                holders[scope].append(node)
        candidates: list[tuple[float, int, int, Node, Node]] = []
        for other in self._left_b.values():
            shared: defaultdict[str, int] = defaultdict(int)
            for scope in other.scopes:
                if len(holders[scope]) <= _MOST_HOLDERS:
                    for node in holders[scope]:
                        shared[node.name] += 1
            for name, count in shared.items():
                one = self._left_a[name]
                share = count / len(one.scopes | other.scopes)
                share += one.instruction.shape == other.instruction.shape
                if share >= _LEAST_IN_COMMON:
                    candidates.append((-share, one.position, other.position, one, other))
        candidates.sort(key=lambda candidate: candidate[:3])
        for *_, one, other in candidates:
            if one.name in self._left_a and other.name in self._left_b:
                self._take(one, other)

    def _pair_by_operands(self) -> None:
        """In schedule order, so that a pair may pair those that read it."""

        def key(node: Node, numbers: dict[str, int]) -> Hashable:
            instruction = node.instruction
            target = instruction.custom_call_target or instruction.fusion_kind
            operands = tuple(numbers.get(name, -1) for name in node.operands)
            return (instruction.opcode, target, instruction.shape, operands)

        waiting: defaultdict[Hashable, list[Node]] = defaultdict(list)
        pending = sorted(
            [(node.position, 0, node) for node in self._left_a.values()]
            + [(node.position, 1, node) for node in self._left_b.values()],
            key=lambda entry: entry[:2],
        )
        for _, side, node in pending:
            numbers = self._number_b if side else self._number_a
            found = key(node, numbers)
            others = waiting[(1 - side, found)]
            if others:
                other = others.pop(0)
                self._take(*((other, node) if side else (node, other)))
            else:
                waiting[(side, found)].append(node)


def _buckets(nodes: Iterable[Node], key: _Key) -> dict[Hashable, list[Node]]:
    buckets: dict[Hashable, list[Node]] = {}
    for node in nodes:
        found = key(node)
        if found is not None:
            buckets.setdefault(found, []).append(node)
    return buckets
