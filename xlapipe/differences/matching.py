"""Pairs the instructions of two plans.

Instructions are paired by what they compute and by their scope, never by name or index, in passes
from the strictest criterion to the loosest. Each pass puts the instructions that are not yet paired
into buckets by a key and pairs within a bucket in schedule order, so that a pass takes linear time:

1. the same computation of the same arguments (`identity`); first those with the same users, since
   a plan does not record which part of a value a slice takes, then those with the same scope;
2. the same operation (`local`) and scope;
3. products of the same dot, first those of the same dimensions;
4. the same scope, opcode and dimensions; the same scope and opcode, if both plans have the same
   number of them (in 2 to 4 first those that read the same values, then those that read the
   same parameters, then the others);
5. the most op_names in common, for fusions with different boundaries;
6. the same scope;
7. the same operation on operands that are paired with each other, for instructions without
   metadata.

Passes 4 to 7 pair instructions that the compiler treated differently; these pairs are compared.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from xlapipe.differences.identity import Identities, Node, Terms
from xlapipe.differences.leaves import (
    ComparedLeaf,
    anchors,
    argument_leaves,
    dims_of,
    makers,
    output_leaves,
    pair_leaves,
)
from xlapipe.differences.side import Side
from xlapipe.plans.program import Program

# An op_name that more instructions have does not identify any of them.
_MAX_WITH_SCOPE = 128
# The share of common op_names below which two fusions are not paired.
_MIN_COMMON_SHARE = 0.34

_Pair = tuple[ComparedLeaf | None, ComparedLeaf | None]


@dataclass(frozen=True)
class Matching:
    """Two programs with their paired leaves and instructions.

    Attributes:
      arguments, outputs: index of a leaf in `a` to the index in `b`.
      instructions: name in `a` to name in `b`, of nodes and of parameters, also of those of loop
        bodies.
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

    @property
    def paired_arguments(self) -> Iterator[_Pair]:
        """Arguments of both programs, in the order of `a`; then those of `b` alone."""
        return _paired(self.a.arguments, self.b.arguments, self.arguments)

    @property
    def paired_outputs(self) -> Iterator[_Pair]:
        """Outputs of both programs, in the order of `a`; then those of `b` alone."""
        return _paired(self.a.outputs, self.b.outputs, self.outputs)


def _paired(
    a: tuple[ComparedLeaf, ...], b: tuple[ComparedLeaf, ...], pairs: Mapping[int, int]
) -> Iterator[_Pair]:
    for index, leaf in enumerate(a):
        yield leaf, b[pairs[index]] if index in pairs else None
    paired = set(pairs.values())
    yield from ((None, leaf) for index, leaf in enumerate(b) if index not in paired)


def match(a: Program, b: Program) -> Matching:
    """Pairs the leaves and the instructions of two programs."""
    terms = Terms()
    arguments_a, arguments_b = argument_leaves(a), argument_leaves(b)
    pairs = pair_leaves(arguments_a, arguments_b)
    anchors_a = anchors(arguments_a, {index: index for index in pairs})
    anchors_b = anchors(arguments_b, {other: index for index, other in pairs.items()})
    side_a = Side(a, arguments_a, output_leaves(a), Identities(a.plan, terms, anchors_a).nodes)
    side_b = Side(b, arguments_b, output_leaves(b), Identities(b.plan, terms, anchors_b).nodes)
    parameters = {
        arguments_a[index].instruction: arguments_b[other].instruction
        for index, other in pairs.items()
        if arguments_a[index].instruction and arguments_b[other].instruction
    }
    outputs = pair_leaves(side_a.outputs, side_b.outputs)
    shared = {other: index for index, other in outputs.items()}
    passes = _Passes(
        _Unpaired(side_a, parameters, {index: index for index in outputs}),
        _Unpaired(side_b, parameters.values(), shared),
    )
    nodes = passes.run()
    called = dict(_called_parameters(side_a, side_b, nodes))
    return Matching(side_a, side_b, pairs, outputs, parameters | nodes | called)


def _called_parameters(a: Side, b: Side, pairs: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Parameters of the computations that paired instructions run, such as the body of a loop."""
    for name, other in pairs.items():
        called_a, called_b = a.computations_run_by(name), b.computations_run_by(other)
        for one, two in zip(called_a, called_b, strict=False):
            for number, parameter in one.parameters.items():
                if number in two.parameters:
                    yield parameter.name, two.parameters[number].name


class _Unpaired:
    """The nodes of one side that are not yet paired.

    Args:
      parameters: names of the paired ones, in the order of both sides.
      outputs: index of an output to a number that paired outputs of both sides share.

    Attributes:
      numbers: of parameters and of nodes that are paired; both of a pair have the same number.
      users: for each instruction, the instructions that read it and the outputs that it computes.
    """

    def __init__(self, side: Side, parameters: Iterable[str], outputs: Mapping[int, int]) -> None:
        self.nodes = dict(side.nodes)
        self.numbers = {name: number for number, name in enumerate(parameters)}
        users: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
        for node in side.nodes.values():
            for name in node.operands:
                users[name].append((node.local, node.scope))
        for index, (name, _) in makers(side.program.plan).items():
            users[name].append((-1, str(outputs.get(index))))
        self.users = {name: tuple(sorted(readers)) for name, readers in users.items()}


_Key = Callable[[Node, _Unpaired], Hashable | None]


def _product(node: Node, _: _Unpaired) -> Hashable | None:
    if node.gemm is None or not node.dot:
        return None
    *operands, result = (shape.dims_without_ones for shape in node.gemm.shapes)
    return (node.dot, *sorted(operands), result)


def _form(node: Node, _: _Unpaired) -> Hashable | None:
    instruction = node.instruction
    return (node.scope, instruction.opcode, dims_of(instruction.shape)) if node.scope else None


def _scope_and_opcode(node: Node, _: _Unpaired) -> Hashable | None:
    return (node.scope, node.instruction.opcode) if node.scope else None


class _Passes:
    """The passes that pair the nodes of two sides."""

    def __init__(self, a: _Unpaired, b: _Unpaired) -> None:
        self._a, self._b = a, b
        self._parameters = len(a.numbers)
        self._pairs: dict[str, str] = {}

    def run(self) -> dict[str, str]:
        """All passes in order; name in `a` to name in `b`."""
        self._pair(lambda node, side: (node.identity, node.scope, side.users.get(node.name)))
        self._pair(lambda node, _: (node.identity, node.scope))
        self._pair(lambda node, _: node.identity)
        for key in (
            lambda node, _: (node.local, node.scope) if node.scope else None,
            _product,
            lambda node, _: node.dot or None,
            _form,
        ):
            self._pair_reading(key, paired=True)
            self._pair_reading(key)
            self._pair(key)
        self._pair_reading(_scope_and_opcode)
        self._pair(_scope_and_opcode, same_count=True)
        self._pair_by_scopes()
        self._pair(lambda node, _: node.scope or None, same_count=True)
        self._pair_by_operands()
        return self._pairs

    def _pair_reading(self, key: _Key, *, paired: bool = False) -> None:
        """Pairs by `key` and by the parameters that are read.

        Keys and values of an attention layer have one scope, and different parameters.
        """

        def reads(node: Node, side: _Unpaired) -> Hashable | None:
            node_key = key(node, side)
            read = [side.numbers.get(name, -1) for name in node.operands]
            if not paired:
                read = [number for number in read if 0 <= number < self._parameters]
            if not read or -1 in read or node_key is None:
                return None
            return (node_key, *read)

        self._pair(reads)

    def _take(self, one: Node, other: Node) -> None:
        self._pairs[one.name] = other.name
        self._a.numbers[one.name] = self._b.numbers[other.name] = len(self._a.numbers)
        del self._a.nodes[one.name], self._b.nodes[other.name]

    def _pair(self, key: _Key, *, same_count: bool = False) -> None:
        """Pairs within buckets of equal keys."""
        buckets_b = _buckets(self._b, key)
        for bucket, nodes in _buckets(self._a, key).items():
            others = buckets_b.get(bucket, [])
            if not same_count or len(nodes) == len(others):
                for one, other in zip(nodes, others, strict=False):
                    self._take(one, other)

    def _pair_by_scopes(self) -> None:
        """Pairs by the share of common op_names, largest first; equal shapes take precedence."""
        with_scope: defaultdict[str, list[Node]] = defaultdict(list)
        for node in self._a.nodes.values():
            for scope in node.scopes:
                with_scope[scope].append(node)
        candidates: list[tuple[float, int, int, Node, Node]] = []
        for other in self._b.nodes.values():
            shared: defaultdict[str, int] = defaultdict(int)
            for scope in other.scopes:
                if len(with_scope[scope]) <= _MAX_WITH_SCOPE:
                    for node in with_scope[scope]:
                        shared[node.name] += 1
            for name, count in shared.items():
                one = self._a.nodes[name]
                share = count / len(one.scopes | other.scopes)
                share += one.instruction.shape == other.instruction.shape
                if share >= _MIN_COMMON_SHARE:
                    candidates.append((-share, one.position, other.position, one, other))
        candidates.sort(key=lambda candidate: candidate[:3])
        for *_, one, other in candidates:
            if one.name in self._a.nodes and other.name in self._b.nodes:
                self._take(one, other)

    def _pair_by_operands(self) -> None:
        """Pairs by opcode and operands, in schedule order: operands are paired before readers."""

        def key(node: Node, side: _Unpaired) -> Hashable:
            instruction = node.instruction
            target = instruction.custom_call_target or instruction.fusion_kind
            operands = tuple(side.numbers.get(name, -1) for name in node.operands)
            return (instruction.opcode, target, instruction.shape, operands)

        waiting: defaultdict[Hashable, list[Node]] = defaultdict(list)
        sides = (self._a, self._b)
        pending = [(node, number) for number in (0, 1) for node in sides[number].nodes.values()]
        for node, number in sorted(pending, key=lambda entry: entry[0].position):
            node_key = key(node, sides[number])
            others = waiting[1 - number, node_key]
            if others:
                other = others.pop(0)
                self._take(*((other, node) if number else (node, other)))
            else:
                waiting[number, node_key].append(node)


def _buckets(side: _Unpaired, key: _Key) -> dict[Hashable, list[Node]]:
    buckets: dict[Hashable, list[Node]] = {}
    for node in side.nodes.values():
        node_key = key(node, side)
        if node_key is not None:
            buckets.setdefault(node_key, []).append(node)
    return buckets
