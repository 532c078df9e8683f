"""The temporary buffers of one computation, and which orders of its instructions keep it correct.

An order is valid if every instruction comes after its operands, if a buffer that an instruction
writes over has no later reader, and if memory outside temp that two values share keeps them in
XLA's sequence. XLA's order is one of the valid orders.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush

from xlapipe.plans.buffers import AllocationKind, BufferAllocation, LogicalBuffer
from xlapipe.plans.dataflow import Value, dataflow_of
from xlapipe.plans.hlo import Computation, HloModule, Instruction
from xlapipe.plans.occupancy import covered_bytes
from xlapipe.plans.opcodes import RUNS_COMPUTATIONS
from xlapipe.plans.plan import Placed, Plan


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

    @cached_property
    def before(self) -> tuple[frozenset[int], ...]:
        """Numbers of the instructions that must come after each instruction."""
        later: list[set[int]] = [set() for _ in self.names]
        for number, numbers in enumerate(self.after):
            for earlier in numbers:
                later[earlier].add(number)
        return tuple(map(frozenset, later))

    @cached_property
    def buffers_of(self) -> tuple[list[int], ...]:
        """Positions of the buffers that each instruction writes or reads."""
        positions: tuple[list[int], ...] = tuple([] for _ in self.names)
        for position, buffer in enumerate(self.buffers):
            for node in buffer.nodes:
                positions[node].append(position)
        return positions


class TempGraphs:
    """Builds the graphs of a plan."""

    def __init__(self, plan: Plan, module: HloModule) -> None:
        self.module = module
        self._plan, self._flow = plan, dataflow_of(module)
        self._in_device = {allocation.index for allocation in plan.device_allocations}

    def values_of(self, value: Value) -> dict[str, Placed]:
        """The values in device memory that a value and its elements consist of, by name."""
        found: dict[str, Placed] = {}
        parts = [value]
        for part in parts:
            place = self._plan.place_of(part)
            if place is not None and place[0].index in self._in_device:
                found[place[1].name] = place
            numbers = range(len(part.shape.parts))
            parts += (part._replace(path=(*part.path, number)) for number in numbers)
        return found

    def operands_of(self, computation: Computation, instruction: Instruction) -> dict[str, Placed]:
        """The values in device memory that an instruction reads."""
        found: dict[str, Placed] = {}
        for operand in self._flow.operands(Value(computation, instruction)):
            found |= self.values_of(operand)
        return found

    def values_around(self, computation: Computation, instruction: Instruction) -> Iterable[Placed]:
        """The values in device memory that an instruction reads, or that are its result."""
        read = self.operands_of(computation, instruction)
        return (read | self.values_of(Value(computation, instruction))).values()

    def graph(self, computation: Computation, callers_values: Iterable[Placed]) -> TempGraph:
        """The graph of a computation.

        Args:
          callers_values: values of the caller that the computation reads or writes in place.
        """
        return _Builder(self, computation, callers_values).graph()


class _Builder:
    """Collects the nodes of each value, merges values in place of each other, and adds edges."""

    def __init__(
        self, graphs: TempGraphs, computation: Computation, callers_values: Iterable[Placed]
    ) -> None:
        self._graphs, self._computation = graphs, computation
        self._callers: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for allocation, value in callers_values:
            self._callers[allocation.index].append(_range(value))
        self._node_of = dict(_nodes(graphs.module, computation))
        self._after: list[set[int]] = [set() for _ in computation.instructions]
        self._readers: dict[str, set[int]] = defaultdict(set)
        self._writers: dict[str, int] = {}
        self._placed: dict[str, Placed] = {}
        self._merged: dict[str, str] = {}

    def graph(self) -> TempGraph:
        in_place = [
            self._add_instruction(number, instruction)
            for number, instruction in enumerate(self._computation.instructions)
        ]
        for number, pairs in enumerate(in_place):
            for result, operand in pairs:
                self._merged[self._first(result)] = self._first(operand)
                for reader in self._readers[operand]:
                    self._add_edge(reader, number)
        self._keep_reuse_outside_temp()
        return TempGraph(
            tuple(instruction.name for instruction in self._computation.instructions),
            tuple(map(frozenset, self._after)),
            tuple(self._buffers()),
        )

    def _add_instruction(self, number: int, instruction: Instruction) -> list[tuple[str, str]]:
        """Adds what an instruction reads and writes.

        Returns:
          Each value that it makes in the memory of an operand, and that operand.
        """
        for operand in instruction.operands:
            if operand in self._node_of:
                self._add_edge(self._node_of[operand], number)
        read = self._graphs.operands_of(self._computation, instruction)
        # XLA holds a value up to the last tuple that contains it, even if nothing reads it.
        for name in read:
            self._readers[name].add(number)
        written = self._graphs.values_of(Value(self._computation, instruction))
        for name, place in written.items():
            if place[1].instruction in self._node_of:
                self._writers[name], self._placed[name] = self._node_of[place[1].instruction], place
        made = {
            _address(place): name
            for name, place in written.items()
            if place[1].instruction == instruction.name and place[1].size_bytes
        }
        return [
            (made[_address(place)], name)
            for name, place in read.items()
            if made.get(_address(place), name) != name
        ]

    def _add_edge(self, before: int, after: int) -> None:
        if before < after:
            self._after[after].add(before)

    def _first(self, name: str) -> str:
        while self._merged.get(name, name) != name:
            name = self._merged[name]
        return name

    def _nodes(self, name: str) -> set[int]:
        return self._readers[name] | {self._writers[name]}

    def _keep_reuse_outside_temp(self) -> None:
        """The later of two values in memory outside temp is written after the earlier is read."""
        values: dict[int, list[LogicalBuffer]] = defaultdict(list)
        for name in sorted(self._writers, key=self._writers.__getitem__):
            allocation, value = self._placed[name]
            outside = not _is_temp(allocation) and not allocation.is_a(AllocationKind.CONSTANT)
            if value.size_bytes and outside:
                values[allocation.index].append(value)
        for sharing in values.values():
            self._keep_sequence(sharing)

    def _keep_sequence(self, values: list[LogicalBuffer]) -> None:
        """Adds edges from the nodes of each value to the next writer of its bytes.

        The writers after that one follow from it, so edges grow with the values, not with their
        pairs. A node that comes after the next writer waits for a later one.
        """
        borders = sorted({border for value in values for border in _range(value)})
        waiting: list[list[tuple[int, str]]] = [[] for _ in borders]
        for value in values:
            writer, first = self._writers[value.name], self._first(value.name)
            begin, end = (bisect_left(borders, border) for border in _range(value))
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
        in_place: dict[str, list[str]] = defaultdict(list)
        for name in self._writers:
            if self._own_bytes(name):
                in_place[self._first(name)].append(name)
        for names in in_place.values():
            size_bytes = max(map(self._own_bytes, names))
            color = self._placed[names[0]][0].color
            nodes = set[int]().union(*map(self._nodes, names))
            yield TempBuffer(names[0], size_bytes, color, tuple(sorted(nodes)))

    def _own_bytes(self, name: str) -> int:
        """Bytes of a temporary value that no value of the callers is in."""
        allocation, value = self._placed[name]
        if not _is_temp(allocation):
            return 0
        begin, end = _range(value)
        callers = self._callers[allocation.index]
        shared = ((max(begin, first), min(end, last)) for first, last in callers)
        return value.size_bytes - covered_bytes(shared)


def _nodes(module: HloModule, computation: Computation) -> Iterator[tuple[str, int]]:
    """Each instruction, also of called computations, and the number of the one that runs it."""
    for number, instruction in enumerate(computation.instructions):
        if instruction.opcode in RUNS_COMPUTATIONS:
            for called in module.called(instruction.called_computations, RUNS_COMPUTATIONS):
                yield from ((inner.name, number) for inner in called.instructions)
        yield instruction.name, number


def _address(place: Placed) -> tuple[int, int]:
    return place[0].index, place[1].offset_bytes


def _range(value: LogicalBuffer) -> tuple[int, int]:
    return value.offset_bytes, value.end_bytes


def _is_temp(allocation: BufferAllocation) -> bool:
    """As `Totals` counts temp."""
    return not {
        AllocationKind.THREAD_LOCAL,
        AllocationKind.PARAMETER,
        AllocationKind.CONSTANT,
        AllocationKind.MAYBE_LIVE_OUT,
    }.intersection(allocation.kinds)
