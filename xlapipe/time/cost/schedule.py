"""The kernels of a module in the order of execution, with loops and branches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from xlapipe.plans.hlo import Computation, HloModule, Instruction
from xlapipe.plans.loops import find_loops
from xlapipe.plans.opcodes import ALLOCATE_BUFFER, NO_KERNEL
from xlapipe.plans.short_repr import short_repr
from xlapipe.plans.wording import counted

SEPARATE_FIRST_TRIPS = 3
"""Nesting depth up to which a loop's first trip, with a colder cache, is visited separately.

The body of a deeper loop is visited once for all trips: else each level would double the work.
"""


@dataclass(frozen=True, slots=True)
class Site:
    """A kernel.

    Attributes:
      instruction: the scheduled instruction, whose name the kernel has.
      caller: the computation that has it.
      scope, inner: what is computed and where; of an async-start, what it wraps.
    """

    __repr__ = short_repr

    instruction: Instruction
    caller: Computation
    scope: Computation
    inner: Instruction

    @property
    def name(self) -> str:
        return self.instruction.name


@dataclass(frozen=True, slots=True)
class LoopNode:
    """A while loop; `trips` is None if unknown."""

    trips: int | None
    body: "tuple[Node, ...]"
    condition: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class BranchNode:
    """A conditional, of which one branch runs."""

    branches: "tuple[tuple[Node, ...], ...]"


Node = Site | LoopNode | BranchNode


def schedule_of(module: HloModule) -> tuple[Node, ...]:
    """The entry computation's nodes; empty if the module has none."""
    trips_of = {loop.instruction.name: loop.trips for loop in find_loops(module)}

    @cache
    def nodes_of(name: str) -> tuple[Node, ...]:
        computation = module.computations.get(name)
        return () if computation is None else tuple(nodes_in(computation))

    def nodes_in(computation: Computation) -> Iterator[Node]:
        for instruction in computation.instructions:
            called = instruction.called_computations
            if instruction.opcode in NO_KERNEL or instruction.custom_call_target == ALLOCATE_BUFFER:
                continue
            if instruction.opcode == "while" and len(called) == 2:
                trips = trips_of.get(instruction.name)
                yield LoopNode(trips, nodes_of(called[0]), nodes_of(called[1]))
            elif instruction.opcode == "conditional":
                yield BranchNode(tuple(map(nodes_of, called)))
            elif instruction.opcode == "call":
                for name in called:
                    yield from nodes_of(name)
            elif instruction.opcode == "async-start" and called and called[0] in computations:
                wrapped = computations[called[0]]
                yield Site(instruction, computation, wrapped, wrapped.by_name[wrapped.root])
            else:
                yield Site(instruction, computation, computation, instruction)

    computations = module.computations
    return nodes_of(module.entry) if module.entry is not None else ()


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


def most_launches(nodes: Sequence[Node]) -> tuple[int, str]:
    """Launches of some nodes, and in words the loop that has most of them; empty without one.

    Of a conditional, the branch with most launches counts, and one trip of a loop whose number of
    trips is unknown.
    """
    total, most, text = 0, 0, ""
    for node in nodes:
        count, inner = 1, ""
        if isinstance(node, LoopNode):
            trips = 1 if node.trips is None else node.trips
            of_a_trip, inner = most_launches(node.body)
            count = trips * of_a_trip
            inner = f"{trips:,} trips × {inner or counted(of_a_trip, 'launch', 'launches')}"
        elif isinstance(node, BranchNode):
            count, inner = max(map(most_launches, node.branches), default=(0, ""))
        total += count
        if inner and count > most:
            most, text = count, inner
    return total, text if 2 * most > total else ""
