"""Values that hold gathered data, and how long they live.

A gathered value is the result of an all-gather, or what an instruction that moves data alone
writes of one: a transposed weight, or the stack into which a scan saves a weight for its backward
pass. Such a stack goes through a loop's carry in place: the loop's own value at its place is the
same memory. What is computed from gathered data, a conversion of its type included, is not.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from xlapipe.plan.buffers import BufferAllocation, LogicalBuffer
from xlapipe.plan.collectives import Collective
from xlapipe.plan.copies import only_moves
from xlapipe.plan.dataflow import Dataflow
from xlapipe.plan.hlo import Instruction
from xlapipe.plan.plan import Plan

# Instructions that hand a value on as it is.
_HANDS_ON = frozenset(
    {"async-done", "async-update", "bitcast", "get-tuple-element", "opt-barrier", "tuple"}
)


@dataclass(frozen=True, slots=True)
class GatheredValue:
    """A value that holds gathered data.

    Attributes:
      name: XLA's, as in live ranges.
      collective: the all-gather that it comes from.
      allocation, offset_bytes, size_bytes: where it lies.
      start, end: schedule positions, both included.
      ends_at: the instruction at `end`; None behind the last one.
      is_output: it lives on as an output of the program, or to the end of the schedule.
    """

    name: str
    collective: Collective
    allocation: int
    offset_bytes: int
    size_bytes: int
    start: int
    end: int
    ends_at: str | None
    is_output: bool


def gathered_values(plan: Plan) -> tuple[GatheredValue, ...] | None:
    """Every gathered value, by its start; None where live ranges or the HLO are not known."""
    if plan.live_ranges is None or plan.collectives is None or plan.module is None:
        return None
    finder = _Finder(plan, Dataflow(plan.module))
    found: dict[str, GatheredValue] = {}
    for collective in plan.collectives:
        if collective.kind == "all-gather":
            for value in finder.values_of(collective):
                found.setdefault(value.name, value)
    return tuple(sorted(found.values(), key=lambda value: (value.start, value.name)))


def most_alive(values: tuple[GatheredValue, ...]) -> tuple[int, tuple[GatheredValue, ...]]:
    """The most bytes that gathered values take at one position, and the values alive there.

    Bytes that several of them share count once.
    """
    most, holders = 0, tuple[GatheredValue, ...]()
    for position in sorted({value.start for value in values}):
        alive = tuple(value for value in values if value.start <= position <= value.end)
        size_bytes = sum(_occupied(alive))
        if size_bytes > most:
            most, holders = size_bytes, alive
    return most, holders


def _occupied(values: tuple[GatheredValue, ...]) -> Iterator[int]:
    """Sizes of the stretches of memory that the values cover."""
    reached = (-1, 0)  # allocation, and the first byte behind what was counted
    for value in sorted(values, key=lambda each: (each.allocation, each.offset_bytes)):
        end = value.offset_bytes + value.size_bytes
        start = value.offset_bytes
        if reached[0] == value.allocation:
            start = max(start, reached[1])
            end = max(end, reached[1])
        yield end - start
        reached = (value.allocation, end)


_Element = tuple[str, tuple[int, ...]]
"""An instruction, and which element of its result."""


class _Finder:
    def __init__(self, plan: Plan, dataflow: Dataflow) -> None:
        assert plan.live_ranges is not None  # as `gathered_values` has seen
        self._plan = plan
        self._dataflow = dataflow
        self._schedule = plan.live_ranges.schedule
        self._alive = {live.name: live for live in plan.live_ranges.ranges}
        self._placed: dict[str, tuple[BufferAllocation, LogicalBuffer]] = {}
        self._of_instruction: dict[str, list[str]] = {}
        self._at: dict[tuple[int, int, str], list[str]] = {}
        for allocation in plan.allocations:
            for value in allocation.values:
                # A tuple is a table of pointers.
                if value.name in self._alive and not value.shape.startswith("("):
                    self._placed[value.name] = (allocation, value)
                    self._of_instruction.setdefault(value.instruction, []).append(value.name)
                    place = (allocation.index, value.offset_bytes, value.shape)
                    self._at.setdefault(place, []).append(value.name)

    def values_of(self, collective: Collective) -> Iterator[GatheredValue]:
        """The results of an all-gather, and what is moved from them."""
        pending: list[_Element] = []
        for name in collective.defined_by:
            for value in self._of_instruction.get(name, ()):
                yield self._value(value, collective)
                element = _index_of(value)
                if collective.done is not None and name == collective.instruction:
                    element = element[1:]  # a start's result has the operands before it
                pending.append((collective.done or collective.instruction, element))
        seen = set(pending)
        while pending:
            name, element = pending.pop()
            for user in self._plan.users_of(name):
                for following in self._handed_on(self._plan.instructions[user], name, element):
                    if following not in seen:
                        seen.add(following)
                        pending.append(following)
                        yield from self._moved(following, collective)

    def _handed_on(
        self, user: Instruction, name: str, element: tuple[int, ...]
    ) -> Iterator[_Element]:
        """What `user` makes of an element of `name`: another name for it, or a moved one."""
        for position, operand in enumerate(user.operands):
            read = user.operand_indices[position] if user.operand_indices else ()
            if operand != name or element[: len(read)] != read[: len(element)]:
                continue
            rest = element[len(read) :]
            if user.opcode == "tuple":
                yield user.name, (position, *rest)
            elif user.opcode in _HANDS_ON:
                yield user.name, rest
            elif only_moves(self._dataflow, user):
                yield user.name, ()
            elif user.opcode == "async-start":
                for site in self._dataflow.body(user):
                    if only_moves(self._dataflow, site.instruction):
                        yield site.instruction.name, ()
                        yield user.name, ()

    def _moved(self, element: _Element, collective: Collective) -> Iterator[GatheredValue]:
        made_by = self._plan.instructions.get(element[0])
        if made_by is None or made_by.opcode == "async-start":
            return  # part of a fusion, or with nothing of its own but what belongs to the start
        for value in self._of_instruction.get(element[0], ()):
            yield self._value(value, collective)
            for loop in self._in_place_in_loops(value):
                yield self._value(loop, collective)

    def _in_place_in_loops(self, name: str) -> Iterator[str]:
        """Values of while loops that take over the place of a value just where it ends."""
        allocation, value = self._placed[name]
        reached = self._alive[name].end
        place = (allocation.index, value.offset_bytes, value.shape)
        for other in sorted(self._at[place], key=lambda each: self._alive[each].start):
            made_by = self._plan.instructions.get(other.partition("{")[0])
            live = self._alive[other]
            # Nothing else may have had the place in between.
            if made_by is not None and made_by.opcode == "while" and live.start == reached:
                yield other
                reached = live.end

    def _value(self, name: str, collective: Collective) -> GatheredValue:
        live = self._alive[name]
        allocation, value = self._placed[name]
        ends_at = self._schedule[live.end] if live.end < len(self._schedule) else None
        return GatheredValue(
            name=name,
            collective=collective,
            allocation=allocation.index,
            offset_bytes=value.offset_bytes,
            size_bytes=value.size_bytes,
            start=live.start,
            end=live.end,
            ends_at=ends_at,
            is_output=ends_at is None or self._is_root(ends_at),
        )

    def _is_root(self, name: str) -> bool:
        """Whether it is the entry's root, and computes nothing."""
        module = self._plan.module
        entry = module.computations[module.entry] if module is not None and module.entry else None
        return (
            entry is not None
            and name == entry.root
            and entry.by_name[entry.root].opcode in _HANDS_ON
        )


def _index_of(value: str) -> tuple[int, ...]:
    """`(1, 0)` of `all-gather-start{1,0}`."""
    return tuple(map(int, filter(None, value.partition("{")[2].rstrip("}").split(","))))
