"""The launches of a step in order: their L2 cache hits, and how the host starts them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xlapipe.devices.targets.topology import Topology
from xlapipe.plans.plan import Plan
from xlapipe.time.cost import Kernel, StepCost
from xlapipe.time.cost.residency import Residency
from xlapipe.time.cost.schedule import SEPARATE_FIRST_TRIPS, LoopNode, Node, Site, schedule_of


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """One launch of a kernel.

    Attributes:
      cached_bytes: bytes of its reads that may hit the L2 cache.
    """

    kernel: Kernel
    cached_bytes: int


@dataclass(frozen=True, slots=True)
class LoopLaunches:
    """A loop: its first trip, with a colder cache, and another that represents the rest.

    Attributes:
      trips: number of trips; None if unknown, in which case one is listed.
    """

    trips: int | None
    first: "tuple[Step, ...]"
    other: "tuple[Step, ...]"


@dataclass(frozen=True, slots=True)
class Branches:
    branches: "tuple[tuple[Step, ...], ...]"


Step = KernelLaunch | LoopLaunches | Branches


def launches_of(plan: Plan, cost: StepCost, l2_bytes: int) -> tuple[Step, ...]:
    """The launches of a step after an identical one, whose last values the L2 cache still has."""
    assert plan.module is not None
    nodes = schedule_of(plan.module)
    walk = _Walk(cost.kernel_of, Residency(l2_bytes))
    walk.run(nodes)
    return walk.run(nodes)


class _Walk:
    def __init__(self, kernel_of: Mapping[str, Kernel], cache: Residency) -> None:
        self._kernel_of = kernel_of
        self._cache = cache
        self._depth = 0

    def run(self, nodes: Sequence[Node]) -> tuple[Step, ...]:
        return tuple(self._step(node) for node in nodes)

    def _step(self, node: Node) -> Step:
        if isinstance(node, Site):
            kernel = self._kernel_of[node.name]
            return KernelLaunch(kernel, self._cache.launch(kernel.touched))
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

    def _loop(self, node: LoopNode) -> LoopLaunches:
        around = () if node.trips is not None else node.condition
        if node.trips == 0:
            return LoopLaunches(0, (), ())
        first = self.run((*around, *node.body))
        if self._depth > SEPARATE_FIRST_TRIPS:
            return LoopLaunches(node.trips, first, first)
        return LoopLaunches(node.trips, first, self.run((*node.body, *around)))


def parts_of_a_call(
    plan: Plan, seconds: float, asleep_seconds: float
) -> tuple[float, float, float]:
    """How often the host's part of a call has `call_seconds`, `leaf_seconds` and `wake_seconds`.

    One process dispatches to each GPU of its host, one after another.
    """
    gpus, leaves = 1 if plan.topology is None else Topology.parse(plan.topology).gpus, 0
    entry = plan.module.entry_computation if plan.module is not None else None
    if entry is not None:
        leaves = sum(item.opcode == "parameter" for item in entry.instructions)
        leaves += len(entry.by_name[entry.root].shape.arrays)
    return gpus, gpus * leaves, -math.expm1(-seconds / asleep_seconds)
