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
from dataclasses import dataclass
from typing import TypeAlias

from xlapipe.plans.buffers import split_value_name
from xlapipe.plans.opcodes import RUNS_COMPUTATIONS
from xlapipe.plans.plan import Placed, Plan
from xlapipe.plans.temp_order.temp_graph import TempGraph, TempGraphs

UNKNOWN_SOURCE = "unknown"

Peaks: TypeAlias = Mapping[int, Mapping[str, int]]
"""Bytes of the buffers, by name, at the fullest moment of an order in each memory space."""


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
    compared = _compared(TempGraphs(plan, module), module.entry, ())
    return OrderShare(
        planned_bytes=total_bytes(compared.planned),
        least_bytes=total_bytes(compared.least),
        bound_bytes=compared.bound_bytes,
        planned_by_source=_by_source(plan, compared.planned),
        least_by_source=_by_source(plan, compared.least),
    )


@dataclass(frozen=True, slots=True)
class _Compared:
    """Orders of a computation and of those that it calls.

    Attributes:
      planned, least: peaks of XLA's order and of the best one.
      bound_bytes: the most that one instruction needs by itself.
    """

    planned: Peaks
    least: Peaks
    bound_bytes: int


def total_bytes(peaks: Peaks) -> int:
    return sum(sum(buffers.values()) for buffers in peaks.values())


def fuller(*peaks: Peaks) -> Peaks:
    """The fullest, in each memory space, of several that do not run at the same time."""
    colors = dict.fromkeys(color for own in peaks for color in own)
    return {
        color: max((own.get(color, {}) for own in peaks), key=lambda own: sum(own.values()))
        for color in colors
    }


def _compared(graphs: TempGraphs, name: str, callers_values: Sequence[Placed]) -> _Compared:
    """Compares the orders of a computation, after those of the computations that it calls."""
    computation = graphs.module.computations.get(name)
    if computation is None:
        return _Compared({}, {}, 0)
    graph = graphs.graph(computation, callers_values)
    planned: dict[int, Peaks] = {}
    least: dict[int, Peaks] = {}
    bounds: dict[int, int] = {}
    for number, instruction in enumerate(computation.instructions):
        if instruction.opcode in RUNS_COMPUTATIONS:
            values = (*callers_values, *graphs.values_around(computation, instruction))
            called = [_compared(graphs, body, values) for body in instruction.called_computations]
            planned[number] = fuller(*(body.planned for body in called))
            least[number] = fuller(*(body.least for body in called))
            bounds[number] = max((body.bound_bytes for body in called), default=0)
    return _Compared(
        planned=peaks_of(graph, range(len(graph.names)), planned),
        least=min((peaks_of(graph, order, least) for order in orders(graph)), key=total_bytes),
        bound_bytes=bound_bytes(graph, bounds),
    )


def bound_bytes(graph: TempGraph, inner_bytes: Mapping[int, int]) -> int:
    """The most that one instruction needs: its operands, its results and what it runs."""
    return max(
        sum(graph.buffers[position].size_bytes for position in positions)
        + inner_bytes.get(number, 0)
        for number, positions in enumerate(graph.buffers_of)
    )


def orders(graph: TempGraph) -> Iterator[Sequence[int]]:
    """The orders to try; XLA's is the first."""
    yield range(len(graph.names))
    yield list_order(graph, graph.after)
    yield list_order(graph, graph.before)[::-1]
    yield depth_first_order(graph)


def peaks_of(graph: TempGraph, order: Sequence[int], inner: Mapping[int, Peaks]) -> Peaks:
    """Simulates an order.

    Args:
      inner: peaks of the computations that an instruction runs, by its number.
    """
    buffers = graph.buffers
    left = [len(buffer.nodes) for buffer in buffers]
    first, last = [len(order)] * len(buffers), [len(order)] * len(buffers)
    in_use: Counter[int] = Counter()
    fullest: dict[int, tuple[int, int]] = {}
    for place, number in enumerate(order):
        for index in graph.buffers_of[number]:
            if first[index] == len(order):
                first[index] = place
                in_use[buffers[index].color] += buffers[index].size_bytes
        below = inner.get(number, {})
        for color in {**in_use, **below}:
            size_bytes = in_use[color] + sum(below.get(color, {}).values())
            if color not in fullest or size_bytes > fullest[color][0]:
                fullest[color] = size_bytes, place
        for index in graph.buffers_of[number]:
            left[index] -= 1
            if not left[index]:
                last[index] = place
                in_use[buffers[index].color] -= buffers[index].size_bytes
    return {
        color: {
            **{
                buffer.name: buffer.size_bytes
                for buffer, begin, end in zip(buffers, first, last, strict=True)
                if buffer.color == color and begin <= place <= end
            },
            **inner.get(order[place], {}).get(color, {}),
        }
        for color, (_, place) in fullest.items()
    }


def list_order(graph: TempGraph, waits_for: Sequence[frozenset[int]]) -> list[int]:
    """The list schedule: next is the ready instruction that frees most or allocates least.

    Args:
      waits_for: the instructions after which each one comes.
    """
    buffers = graph.buffers
    left = [len(buffer.nodes) for buffer in buffers]
    held = [False] * len(buffers)
    waiting = [len(nodes) for nodes in waits_for]
    released = graph.before if waits_for is graph.after else graph.after
    done = [False] * len(waiting)

    def growth(number: int) -> int:
        """Bytes that are held more after the node than before it."""
        return sum(
            buffers[index].size_bytes * ((not held[index]) - (left[index] == 1))
            for index in graph.buffers_of[number]
        )

    heap = [(growth(number), number) for number, count in enumerate(waiting) if not count]
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
        for index in graph.buffers_of[number]:
            first, held[index] = not held[index], True
            left[index] -= 1
            if first or left[index] == 1:
                changed.update(buffers[index].nodes)
        for node in changed:
            if not done[node] and not waiting[node]:
                heapq.heappush(heap, (growth(node), node))
    return order


def depth_first_order(graph: TempGraph) -> Sequence[int]:
    """Each instruction directly after what it needs, the operands with most bytes first."""
    weight = [
        sum(graph.buffers[index].size_bytes for index in indices) for indices in graph.buffers_of
    ]
    order: dict[int, None] = {}
    for last in sorted(range(len(weight)), key=lambda node: (bool(graph.before[node]), node)):
        pending = [last]
        while pending:
            number = pending[-1]
            before = [node for node in graph.after[number] if node not in order]
            if before and number not in order:
                pending.extend(sorted(before, key=lambda node: (weight[node], -node)))
            else:
                order[pending.pop()] = None
    return list(order)


def _by_source(plan: Plan, peaks: Peaks) -> Mapping[str, int]:
    totals: Counter[str] = Counter()
    for buffers in peaks.values():
        for name, size_bytes in buffers.items():
            source = plan.nearest_source(split_value_name(name)[0])
            totals[str(source) if source is not None else UNKNOWN_SOURCE] += size_bytes
    return totals
