"""How much of temp is held only by the order of instructions.

XLA's order is compared with orders of the same instructions that need less memory at once. Each
order is simulated: a buffer is held from its first writer to its last reader. The orders are those
of XLA's own memory schedulers (xla/hlo/transforms/simplifiers/hlo_memory_scheduler.cc): a greedy
list schedule, from the first and from the last instruction, and a depth-first one; the best of
them is taken. Finding the best order of all is NP-hard, so the figure is what an order that exists
would save, and `bound_bytes` is what no order can go below.
"""

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from xlapipe.plans.buffers import split_value_name
from xlapipe.plans.hlo import HloModule
from xlapipe.plans.opcodes import RUNS_COMPUTATIONS
from xlapipe.plans.plan import Plan
from xlapipe.plans.temp_order.temp_graph import TempGraph, TempGraphs

UNKNOWN_SOURCE = "unknown"


@dataclass(frozen=True, slots=True)
class OrderShare:
    """Temp in XLA's order, and in the best order that was tried.

    Attributes:
      planned_bytes: temporary values at the peak of XLA's order, the sum over memory spaces. The
        plan's temp can be larger: it also has gaps between buffers.
      least_bytes: at the peak of the best order.
      bound_bytes: the most that one instruction needs by itself; no order needs less.
      planned_by_source, least_by_source: the same bytes by source line.
    """

    planned_bytes: int
    least_bytes: int
    bound_bytes: int
    planned_by_source: Mapping[str, int]
    least_by_source: Mapping[str, int]

    @property
    def held_bytes(self) -> int:
        """Bytes that are held only by XLA's order."""
        return self.planned_bytes - self.least_bytes


def order_share(plan: Plan) -> OrderShare | None:
    """Compares the order of a plan with orders that need less memory.

    Returns:
      None if the dump has no complete HLO module.
    """
    module = plan.module
    if module is None or not module.complete or module.entry is None:
        return None
    planned, least, bound_bytes = _Comparison(plan, module).of(module.entry, frozenset())
    return OrderShare(
        planned_bytes=planned.peak_bytes,
        least_bytes=least.peak_bytes,
        bound_bytes=bound_bytes,
        planned_by_source=_by_source(plan, planned),
        least_by_source=_by_source(plan, least),
    )


@dataclass(frozen=True, slots=True)
class _Peak:
    """The fullest moment of an order in one memory space.

    Attributes:
      buffers: by name, those of called computations included.
    """

    peak_bytes: int = 0
    buffers: Mapping[str, int] = field(default_factory=dict)


_NOTHING = _Peak()


@dataclass(frozen=True, slots=True)
class _Peaks:
    """The fullest moments of an order, by color of the memory space."""

    by_color: Mapping[int, _Peak] = field(default_factory=dict)

    @property
    def peak_bytes(self) -> int:
        return sum(peak.peak_bytes for peak in self.by_color.values())

    def at_least(self, other: "_Peaks") -> "_Peaks":
        """The fuller one of two that do not run at the same time, in each memory space."""
        colors = {**self.by_color, **other.by_color}
        fuller = {
            color: max(
                (peaks.by_color.get(color, _NOTHING) for peaks in (self, other)),
                key=lambda peak: peak.peak_bytes,
            )
            for color in colors
        }
        return _Peaks(fuller)


class _Comparison:
    """Compares the orders of each computation, called ones first."""

    def __init__(self, plan: Plan, module: HloModule) -> None:
        self._graphs = TempGraphs(plan, module)
        self._module = module

    def of(self, name: str, callers_values: frozenset[str]) -> tuple[_Peaks, _Peaks, int]:
        """The peak of XLA's order, of the best order, and the bound."""
        computation = self._module.computations.get(name)
        if computation is None:
            return _Peaks(), _Peaks(), 0
        graph = self._graphs.graph(computation, callers_values)
        planned: dict[int, _Peaks] = {}
        least: dict[int, _Peaks] = {}
        bounds: dict[int, int] = {}
        for number, instruction in enumerate(computation.instructions):
            if instruction.opcode in RUNS_COMPUTATIONS:
                values = callers_values | self._graphs.results_of(instruction)
                called = [self.of(inner, values) for inner in instruction.called_computations]
                planned[number] = reduce(_Peaks.at_least, (c[0] for c in called), _Peaks())
                least[number] = reduce(_Peaks.at_least, (c[1] for c in called), _Peaks())
                bounds[number] = max((c[2] for c in called), default=0)
        run = _Run(graph, planned)
        return run.peaks(run.xlas_order()), _best(graph, least), run.bound(bounds)


def _best(graph: TempGraph, inner: Mapping[int, _Peaks]) -> _Peaks:
    run = _Run(graph, inner)
    tried = (run.peaks(order) for order in run.orders())
    return min(tried, key=lambda peaks: peaks.peak_bytes)


class _Run:
    """Orders of one computation, and their simulation."""

    def __init__(self, graph: TempGraph, inner: Mapping[int, _Peaks]) -> None:
        self._graph = graph
        self._inner = inner
        self._count = len(graph.names)
        self._buffers_of: list[list[int]] = [[] for _ in graph.names]
        for index, buffer in enumerate(graph.buffers):
            for node in buffer.nodes:
                self._buffers_of[node].append(index)

    def bound(self, inner_bytes: Mapping[int, int]) -> int:
        """The most that one instruction needs: its operands, its results and what it runs."""
        buffers = self._graph.buffers
        needs = (
            sum(buffers[index].size_bytes for index in indices) + inner_bytes.get(number, 0)
            for number, indices in enumerate(self._buffers_of)
        )
        return max(needs)

    def orders(self) -> Iterator[Sequence[int]]:
        """The orders to try; XLA's is the first."""
        yield self.xlas_order()
        yield self.list_order()
        yield self.reverse_list_order()
        yield self.depth_first_order()

    def peaks(self, order: Sequence[int]) -> _Peaks:
        """Simulates an order."""
        buffers = self._graph.buffers
        left = [len(buffer.nodes) for buffer in buffers]
        first, last = [len(order)] * len(buffers), [len(order)] * len(buffers)
        in_use: Counter[int] = Counter()
        fullest: dict[int, tuple[int, int, _Peak]] = {}
        for place, number in enumerate(order):
            for index in self._buffers_of[number]:
                if first[index] == len(order):
                    first[index] = place
                    in_use[buffers[index].color] += buffers[index].size_bytes
            inner = self._inner.get(number, _Peaks()).by_color
            for color in {**in_use, **inner}:
                below = inner.get(color, _NOTHING)
                size_bytes = in_use[color] + below.peak_bytes
                if color not in fullest or size_bytes > fullest[color][0]:
                    fullest[color] = size_bytes, place, below
            for index in self._buffers_of[number]:
                left[index] -= 1
                if not left[index]:
                    last[index] = place
                    in_use[buffers[index].color] -= buffers[index].size_bytes

        def held(color: int, place: int) -> dict[str, int]:
            return {
                buffer.name: buffer.size_bytes
                for buffer, begin, end in zip(buffers, first, last, strict=True)
                if buffer.color == color and begin <= place <= end
            }

        return _Peaks(
            {
                color: _Peak(size_bytes, {**held(color, place), **below.buffers})
                for color, (size_bytes, place, below) in fullest.items()
            }
        )

    def xlas_order(self) -> Sequence[int]:
        """The order in the dump."""
        return range(self._count)

    def list_order(self) -> Sequence[int]:
        """The list schedule: next is the ready instruction that frees most or allocates least."""
        return self._greedy(self._graph.after)

    def reverse_list_order(self) -> Sequence[int]:
        """The list schedule from the last instruction backwards."""
        return self._greedy(self._successors())[::-1]

    def _successors(self) -> Sequence[frozenset[int]]:
        successors: list[set[int]] = [set() for _ in range(self._count)]
        for number, before in enumerate(self._graph.after):
            for earlier in before:
                successors[earlier].add(number)
        return tuple(map(frozenset, successors))

    def _greedy(self, waits_for: Sequence[frozenset[int]]) -> list[int]:
        """A greedy order in which each node comes after those that it waits for."""
        buffers = self._graph.buffers
        left = [len(buffer.nodes) for buffer in buffers]
        held = [False] * len(buffers)
        waiting = [len(nodes) for nodes in waits_for]
        released: list[list[int]] = [[] for _ in range(self._count)]
        for number, nodes in enumerate(waits_for):
            for node in nodes:
                released[node].append(number)
        done = [False] * self._count

        def growth(number: int) -> int:
            """Bytes that are held more after the node than before it."""
            return sum(
                buffers[index].size_bytes * ((not held[index]) - (left[index] == 1))
                for index in self._buffers_of[number]
            )

        heap = [(growth(number), number) for number in range(self._count) if not waiting[number]]
        heapq.heapify(heap)
        order: list[int] = []
        while heap:
            rank, number = heapq.heappop(heap)
            if done[number] or rank != growth(number):
                continue  # pushed again when a buffer of it changed
            done[number] = True
            order.append(number)
            changed = set(released[number])
            for node in released[number]:
                waiting[node] -= 1
            for index in self._buffers_of[number]:
                first, held[index] = not held[index], True
                left[index] -= 1
                if first or left[index] == 1:
                    changed.update(buffers[index].nodes)
            for node in changed:
                if not done[node] and not waiting[node]:
                    heapq.heappush(heap, (growth(node), node))
        return order

    def depth_first_order(self) -> Sequence[int]:
        """Each instruction directly after what it needs, the operands with most bytes first."""
        buffers = self._graph.buffers
        weight = [
            sum(buffers[index].size_bytes for index in indices) for indices in self._buffers_of
        ]
        order: list[int] = []
        done = [False] * self._count
        successors = self._successors()
        for last in sorted(range(self._count), key=lambda node: (bool(successors[node]), node)):
            pending = [last]
            while pending:
                number = pending[-1]
                if done[number]:
                    pending.pop()
                    continue
                before = [node for node in self._graph.after[number] if not done[node]]
                if not before:
                    pending.pop()
                    done[number] = True
                    order.append(number)
                else:
                    pending.extend(sorted(before, key=lambda node: (weight[node], -node)))
        return order


def _by_source(plan: Plan, peaks: _Peaks) -> Mapping[str, int]:
    totals: Counter[str] = Counter()
    for peak in peaks.by_color.values():
        for name, size_bytes in peak.buffers.items():
            source = plan.nearest_source(split_value_name(name)[0])
            totals[str(source) if source is not None else UNKNOWN_SOURCE] += size_bytes
    return totals
