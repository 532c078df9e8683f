"""The temporary buffers of one computation, and which orders of its instructions keep it correct.

An order is valid if every instruction comes after its operands, if a buffer that an instruction
writes over has no later reader, and if memory outside temp that two values share keeps them in
XLA's sequence. XLA's order is one of the valid orders.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import combinations

from xlapipe.plans.buffers import AllocationKind, BufferAllocation, LogicalBuffer
from xlapipe.plans.hlo import Computation, HloModule, Instruction
from xlapipe.plans.occupancy import covered_bytes
from xlapipe.plans.opcodes import RUNS_COMPUTATIONS
from xlapipe.plans.plan import Plan
from xlapipe.plans.temp_order.value_structure import ValueStructure

# Up to this number of values in an allocation, each is ordered with all others: the depth-first
# order can then choose among more instructions, and may need less.
_ALL_PAIRS = 64


@dataclass(frozen=True, slots=True)
class TempBuffer:
    """A region of temp that one value, or several in place of each other, are in.

    Attributes:
      name: name of the first value.
      color: XLA's number of its memory space; buffers of different colors share no memory.
      nodes: numbers of the instructions that write or read it.
    """

    name: str
    size_bytes: int
    color: int
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class TempGraph:
    """One computation.

    Attributes:
      names: instructions in XLA's order; an instruction's number is its position.
      after: numbers of the instructions that must come before each instruction.
      buffers: temporary buffers that are not also the caller's.
    """

    names: tuple[str, ...]
    after: tuple[frozenset[int], ...]
    buffers: tuple[TempBuffer, ...]


class TempGraphs:
    """Builds the graphs of a plan."""

    def __init__(self, plan: Plan, module: HloModule) -> None:
        self.module = module
        self.structure = ValueStructure(plan, module)
        self._placed = {
            value.name: (allocation, value)
            for allocation in plan.device_allocations
            for value in allocation.values
        }

    def results_of(self, instruction: Instruction) -> frozenset[str]:
        """Values of an instruction's result, and of its operands."""
        values = set(self.structure.of(instruction.name).values())
        for position in range(len(instruction.operands)):
            values |= self.structure.operand_values(instruction, position)
        return frozenset(values)

    def graph(self, computation: Computation, callers_values: frozenset[str]) -> TempGraph:
        """The graph of a computation.

        Args:
          callers_values: values of the caller that the computation reads or writes in place.
        """
        return _Builder(self, computation, callers_values).graph()

    def callers_ranges(self, names: frozenset[str]) -> Mapping[int, list[tuple[int, int]]]:
        """The (begin, end) ranges of values, by allocation."""
        ranges: dict[int, list[tuple[int, int]]] = {}
        for name in names:
            value = self.value(name)
            if value is not None and value.size_bytes:
                end = value.offset_bytes + value.size_bytes
                index = self.allocation(name).index
                ranges.setdefault(index, []).append((value.offset_bytes, end))
        return ranges

    def value(self, name: str) -> LogicalBuffer | None:
        placed = self._placed.get(name)
        return placed[1] if placed is not None else None

    def allocation(self, name: str) -> BufferAllocation:
        return self._placed[name][0]


class _Builder:
    """Collects the nodes of each value, merges values in place of each other, and adds edges."""

    def __init__(
        self, graphs: TempGraphs, computation: Computation, callers_values: frozenset[str]
    ) -> None:
        self._graphs = graphs
        self._instructions = computation.instructions
        self._callers = graphs.callers_ranges(callers_values)
        self._number = {ins.name: number for number, ins in enumerate(self._instructions)}
        self._inside = dict(self._nested())
        self._after: list[set[int]] = [set() for _ in self._instructions]
        self._readers: dict[str, set[int]] = {}
        self._writers: dict[str, int] = {}
        self._merged: dict[str, str] = {}

    def graph(self) -> TempGraph:
        for number, instruction in enumerate(self._instructions):
            self._add_operands(number, instruction)
        for number, instruction in enumerate(self._instructions):
            self._merge_in_place(number, instruction)
        self._keep_reuse_outside_temp()
        return TempGraph(
            tuple(instruction.name for instruction in self._instructions),
            tuple(map(frozenset, self._after)),
            tuple(self._buffers()),
        )

    def _nested(self) -> Iterator[tuple[str, int]]:
        """(instruction of a called computation, number of the caller)."""
        module = self._graphs.module
        for number, instruction in enumerate(self._instructions):
            if instruction.opcode in RUNS_COMPUTATIONS:
                for called in module.called(instruction.called_computations, RUNS_COMPUTATIONS):
                    yield from ((inner.name, number) for inner in called.instructions)

    def _add_operands(self, number: int, instruction: Instruction) -> None:
        structure = self._graphs.structure
        for position, operand in enumerate(instruction.operands):
            if operand in self._number:
                self._add_edge(self._number[operand], number)
            # XLA holds a value up to the last tuple that contains it, even if nothing reads it.
            for name in structure.operand_values(instruction, position):
                self._readers.setdefault(name, set()).add(number)
        for name in structure.of(instruction.name).values():
            value = self._graphs.value(name)
            if value is None:
                continue
            writer = self._node_of(value.instruction)
            if writer is not None:
                self._writers[name] = writer

    def _node_of(self, instruction: str) -> int | None:
        number = self._number.get(instruction)
        return number if number is not None else self._inside.get(instruction)

    def _add_edge(self, before: int, after: int) -> None:
        if before < after:
            self._after[after].add(before)

    def _merge_in_place(self, number: int, instruction: Instruction) -> None:
        """Merges results with the operands whose memory they are in."""
        own = self._graphs.structure.own(instruction.name).values()
        results = {self._address(name): name for name in own if self._graphs.value(name)}
        if not results:
            return
        for position in range(len(instruction.operands)):
            for name in self._graphs.structure.operand_values(instruction, position):
                result = results.get(self._address(name))
                if result is None or result == name:
                    continue
                self._merged[self._first(result)] = self._first(name)
                for reader in self._readers.get(name, ()):
                    self._add_edge(reader, number)

    def _address(self, name: str) -> tuple[int, int] | None:
        value = self._graphs.value(name)
        if value is None or not value.size_bytes:
            return None
        return self._graphs.allocation(name).index, value.offset_bytes

    def _first(self, name: str) -> str:
        while name in self._merged and self._merged[name] != name:
            name = self._merged[name]
        return name

    def _nodes(self, name: str) -> set[int]:
        writer = self._writers.get(name)
        return self._readers.get(name, set()) | ({writer} if writer is not None else set())

    def _keep_reuse_outside_temp(self) -> None:
        """The later of two values in memory outside temp is written after the earlier is read."""
        values: dict[int, list[LogicalBuffer]] = {}
        for name in self._writers:
            value, allocation = self._graphs.value(name), self._graphs.allocation(name)
            outside = not _is_temp(allocation) and not allocation.is_a(AllocationKind.CONSTANT)
            if value is not None and value.size_bytes and outside:
                values.setdefault(allocation.index, []).append(value)
        for sharing in values.values():
            sharing.sort(key=lambda value: self._writers[value.name])
            if len(sharing) <= _ALL_PAIRS:
                self._keep_each_pair(sharing)
            else:
                self._keep_sequence(sharing)

    def _keep_each_pair(self, values: list[LogicalBuffer]) -> None:
        """Adds edges from the nodes of each value to all later writers of its bytes."""
        for earlier, later in combinations(values, 2):
            if earlier.overlaps(later) and self._first(earlier.name) != self._first(later.name):
                for node in self._nodes(earlier.name):
                    self._add_edge(node, self._writers[later.name])

    def _keep_sequence(self, values: list[LogicalBuffer]) -> None:
        """Adds edges from the nodes of each value only to the next writer of its bytes.

        The writers after that one follow from it: the same orders are valid, and edges grow with
        the values, not with their pairs. A node that comes after the next writer waits for a later
        one.
        """
        ends = {(v.offset_bytes, v.offset_bytes + v.size_bytes) for v in values}
        borders = sorted({border for range_ in ends for border in range_})
        waiting: list[list[tuple[int, str]]] = [[] for _ in borders]
        for value in values:
            writer, first = self._writers[value.name], self._first(value.name)
            begin = bisect_left(borders, value.offset_bytes)
            end = bisect_left(borders, value.offset_bytes + value.size_bytes)
            for nodes in waiting[begin:end]:
                kept = []
                while nodes and nodes[0][0] < writer:
                    node, name = heappop(nodes)
                    if self._first(name) != first:
                        self._after[writer].add(node)
                    elif node not in self._after[writer] and node != self._writers[name]:
                        kept.append((node, name))
                for item in (*kept, *((node, value.name) for node in self._nodes(value.name))):
                    heappush(nodes, item)

    def _buffers(self) -> Iterator[TempBuffer]:
        sizes: Counter[str] = Counter()
        nodes: dict[str, set[int]] = {}
        for name in self._writers:
            size_bytes = self._own_bytes(name)
            if not size_bytes:
                continue
            first = self._first(name)
            sizes[first] = max(sizes[first], size_bytes)
            nodes.setdefault(first, set()).update(self._nodes(name))
        for first, size_bytes in sizes.items():
            color = self._graphs.allocation(first).color
            yield TempBuffer(first, size_bytes, color, tuple(sorted(nodes[first])))

    def _own_bytes(self, name: str) -> int:
        """Bytes of a temporary value that no value of the callers is in."""
        value, allocation = self._graphs.value(name), self._graphs.allocation(name)
        if value is None or not _is_temp(allocation):
            return 0
        begin, end = value.offset_bytes, value.offset_bytes + value.size_bytes
        callers = self._callers.get(allocation.index, ())
        shared = ((max(begin, first), min(end, last)) for first, last in callers)
        return value.size_bytes - covered_bytes(shared)


def _is_temp(allocation: BufferAllocation) -> bool:
    """As `Totals` counts temp."""
    kinds = (
        AllocationKind.THREAD_LOCAL,
        AllocationKind.PARAMETER,
        AllocationKind.CONSTANT,
        AllocationKind.MAYBE_LIVE_OUT,
    )
    return not any(allocation.is_a(kind) for kind in kinds)


def order_is_valid(graph: TempGraph, order: Sequence[int]) -> bool:
    """Whether an order has each instruction once, after those that must come before it."""
    position = {number: place for place, number in enumerate(order)}
    return len(position) == len(order) == len(graph.names) and all(
        position[before] < position[number]
        for number, all_before in enumerate(graph.after)
        for before in all_before
    )
