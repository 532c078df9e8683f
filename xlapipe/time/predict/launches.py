"""The launches of a step in order: their L2 cache hits, and how the host starts them."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from xlapipe.plans.plan import Plan
from xlapipe.plans.thunks import Thunk
from xlapipe.time.cost.residency import Residency
from xlapipe.time.cost.schedule import (
    SEPARATE_FIRST_TRIPS,
    BranchNode,
    LoopNode,
    Node,
    Site,
    schedule_of,
)
from xlapipe.time.cost.step_cost import StepCost

# Thunks that contain other thunks, or launch nothing on the device.
_NO_LAUNCH = frozenset(
    {"kAsyncDone", "kAsyncStart", "kCommandBuffer", "kConditional", "kDynamicSliceFusion"}
    | {"kGemmWorkspace", "kHostRecvDone", "kHostSendDone", "kSequential", "kWaitForStreams"}
    | {"kWhile"}
)
# XLA's default for xla_gpu_graph_min_graph_size.
_SMALLEST_GRAPH = 5
# Thunks that XLA puts into command buffers; of custom calls only those that it knows.
_IN_GRAPHS = frozenset(
    {"kCopy", "kCublasLtMatmul", "kCuDnn", "kCustomKernel", "kKernel", "kMemset32BitValue"}
    | {"kMemzero", "kGemm"}
)
# Kernels of one sort: `sort_6_1`, `sort_6_1__1` and so on.
_SORT = re.compile(r"(sort\w*?)(?:__\d+)? grid:")


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a kernel.

    Attributes:
      cached_bytes: bytes of its reads that may hit the L2 cache.
      graph: number of the command buffer that has it; None outside of one.
      graph_size: kernels of that command buffer.
    """

    site: Site
    cached_bytes: int
    graph: int | None
    graph_size: int


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop: its first trip, with a colder cache, and another that represents the rest.

    Attributes:
      trips: number of trips; None if unknown, in which case one is listed.
    """

    trips: int | None
    first: "tuple[Step, ...]"
    other: "tuple[Step, ...]"


@dataclass(frozen=True, slots=True)
class Branches:
    """A conditional."""

    branches: "tuple[tuple[Step, ...], ...]"


Step = Launch | Loop | Branches


def launches_of(plan: Plan, cost: StepCost, l2_bytes: int) -> tuple[Step, ...]:
    """The launches of a step after an identical one, whose last values are still in the L2 cache.

    Args:
      l2_bytes: size of the cache.
    """
    assert plan.module is not None
    nodes = schedule_of(plan.module)
    walk = _Walk(cost, graphs_of(plan, nodes), Residency(l2_bytes))
    walk.run(nodes)
    return walk.run(nodes)


class _Walk:
    def __init__(self, cost: StepCost, graphs: Mapping[str, int], cache: Residency) -> None:
        self._cost = cost
        self._graphs = graphs
        self._graph_sizes = Counter(graphs.values())
        self._cache = cache
        self._depth = 0

    def run(self, nodes: Sequence[Node]) -> tuple[Step, ...]:
        return tuple(self._step(node) for node in nodes)

    def _step(self, node: Node) -> Step:
        if isinstance(node, Site):
            name = node.instruction.name
            touched = self._cost.one_launch[name][1]
            graph = self._graphs.get(name)
            size = self._graph_sizes[graph] if graph is not None else 0
            return Launch(node, self._cache.launch(touched), graph, size)
        if isinstance(node, LoopNode):
            self._depth += 1
            loop = self._loop(node)
            self._depth -= 1
            return loop
        before = self._cache.mark()
        branches = []
        for branch in node.branches:
            branches.append(self.run(branch))
            self._cache.restore(before)
        return Branches(tuple(branches))

    def _loop(self, node: LoopNode) -> Loop:
        around = () if node.trips is not None else node.condition
        if node.trips == 0:
            return Loop(0, (), ())
        first = self.run((*around, *node.body))
        if self._depth > SEPARATE_FIRST_TRIPS:
            return Loop(node.trips, first, first)
        return Loop(node.trips, first, self.run((*node.body, *around)))


def thunks_of(plan: Plan, nodes: Sequence[Node]) -> Mapping[str, Thunk]:
    """The thunk that launches each kernel, by name; empty if the two do not correspond.

    A sort has one thunk per kernel; only the first is kept.
    """
    sites = list(sites_of(nodes))
    thunks: list[Thunk] = []
    last_sort = ""
    for thunk in plan.thunks or ():
        if thunk.kind in _NO_LAUNCH:
            continue
        sort = _SORT.match(thunk.detail)
        if sort and sort[1] == last_sort:
            continue
        last_sort = sort[1] if sort else last_sort
        site = sites[len(thunks)] if len(thunks) < len(sites) else None
        if thunk.kind == "kCopy" and site is not None and _overwrites_its_operand(site, plan):
            continue  # of the operand
        thunks.append(thunk)
    if len(sites) != len(thunks):
        return {}
    return {site.instruction.name: thunk for site, thunk in zip(sites, thunks, strict=True)}


def _overwrites_its_operand(site: Site, plan: Plan) -> bool:
    """Whether a kernel is a sort or triangular solve: a copy before it is part of it."""
    inner, module = site.inner, plan.module
    if inner.opcode == "sort" or "triangularSolve" in (inner.custom_call_target or ""):
        return True
    body = module.computations.get(next(iter(inner.called_computations), "")) if module else None
    return body is not None and any(item.opcode == "sort" for item in body.instructions)


def sites_of(nodes: Sequence[Node]) -> Iterator[Site]:
    """Every kernel once, in order."""
    for node in nodes:
        if isinstance(node, Site):
            yield node
        elif isinstance(node, LoopNode):
            yield from sites_of(node.condition)
            yield from sites_of(node.body)
        else:
            for branch in node.branches:
                yield from sites_of(branch)


def graphs_of(plan: Plan, nodes: Sequence[Node]) -> Mapping[str, int]:
    """The number of the command buffer of each kernel that is in one, by name.

    As in the thunk sequence; or, if XLA wrote that before it made command buffers, runs of at least
    five kernels that XLA can put into one.
    """
    thunks = thunks_of(plan, nodes)
    graphs: dict[str, int] = {}
    if any(thunk.kind == "kCommandBuffer" for thunk in plan.thunks or ()):
        names = iter(thunks)
        number, depth = 0, -1
        for thunk in plan.thunks or ():
            if thunk.depth <= depth:
                depth = -1
            if thunk.kind == "kCommandBuffer":
                number, depth = number + 1, thunk.depth
            elif thunk.kind not in _NO_LAUNCH:
                name = next(names, None)
                if name is not None and depth >= 0:
                    graphs[name] = number
        return graphs
    number = 0

    def visit(nodes: Sequence[Node]) -> None:
        nonlocal number
        run: list[str] = []
        for node in (*nodes, None):
            if isinstance(node, Site) and _capturable(node, thunks):
                run.append(node.instruction.name)
                continue
            if len(run) >= _SMALLEST_GRAPH:
                number += 1
                graphs.update(dict.fromkeys(run, number))
            run = []
            if isinstance(node, LoopNode):
                visit(node.condition)
                visit(node.body)
            elif isinstance(node, BranchNode):
                for branch in node.branches:
                    visit(branch)

    visit(nodes)
    return graphs


def _capturable(site: Site, thunks: Mapping[str, Thunk]) -> bool:
    thunk = thunks.get(site.instruction.name)
    if thunk is not None:
        return thunk.kind in _IN_GRAPHS
    target = site.inner.custom_call_target or ""
    return site.inner.opcode in ("fusion", "copy") or target.startswith(
        ("__cublas$lt", "__cudnn$fmha")
    )


def leaves_of(plan: Plan) -> int:
    """Arguments and results of a plan's entry computation."""
    entry = plan.module.entry_computation if plan.module is not None else None
    if entry is None:
        return 0
    parameters = sum(item.opcode == "parameter" for item in entry.instructions)
    return parameters + len(entry.by_name[entry.root].shape.arrays)
