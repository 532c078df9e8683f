"""Expectations of gathered values: how many bytes are alive, and for how long."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from xlapipe.expect.collectives import collectives_of
from xlapipe.expect.expectation import Expectation, Finding, Violation, no_live_ranges
from xlapipe.plans import Collective, Instruction, Program, Shape
from xlapipe.plans.copies import only_moves
from xlapipe.plans.dataflow import Dataflow, dataflow_of, operand_index
from xlapipe.plans.occupancy import HeldValue, Occupancy, covered_bytes
from xlapipe.plans.opcodes import FORWARDS
from xlapipe.plans.plan import Placed, Plan
from xlapipe.plans.wording import counted

# Gathered values that a violation lists.
_MAX_LISTED = 8


@dataclass(frozen=True, slots=True)
class GatheredValue(HeldValue):
    """A value with gathered data.

    Attributes:
      collective: the all-gather that it comes from.
      start, end: schedule positions, both included.
      ends_at: the instruction at `end`; None after the last one.
      is_output: whether it is an output of the program or alive to the end of the schedule.
    """

    collective: Collective
    start: int
    end: int
    ends_at: str | None
    is_output: bool


def gathered_values(plan: Plan) -> tuple[GatheredValue, ...] | None:
    """Every gathered value, by start; None without live ranges or a complete HLO module.

    A gathered value is the result of an all-gather, or a value that an instruction writes by only
    moving such a result: a transposed weight, or the stack in which a scan saves a weight for its
    backward pass. Such a stack passes through a loop's carry in place, so the loop's own value at
    the same offset is the same memory. A value that is computed from gathered data, e.g. by a type
    conversion, is not a gathered value.
    """
    if plan.live_ranges is None or plan.collectives is None or plan.module is None:
        return None
    finder = _GatheredValueFinder(plan, dataflow_of(plan.module))
    values: dict[str, GatheredValue] = {}
    for collective in plan.collectives:
        if collective.kind == "all-gather":
            for placed in finder.values_of(collective):
                values.setdefault(placed[1].name, finder.gathered(placed, collective))
    return tuple(sorted(values.values(), key=lambda held: (held.start, held.value.name)))


def most_alive(values: tuple[GatheredValue, ...]) -> tuple[int, tuple[GatheredValue, ...]]:
    """The most bytes that gathered values take at one position, and the values alive then.

    Bytes that several values share count once.
    """
    most_bytes, most_values = 0, tuple[GatheredValue, ...]()
    for position in sorted({value.start for value in values}):
        alive = tuple(value for value in values if value.start <= position <= value.end)
        ranges: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for held in alive:
            ranges[held.allocation.index].append((held.value.offset_bytes, held.value.end_bytes))
        size_bytes = sum(map(covered_bytes, ranges.values()))
        if size_bytes > most_bytes:
            most_bytes, most_values = size_bytes, alive
    return most_bytes, most_values


_ResultElement = tuple[str, tuple[int, ...]]
"""An instruction's name, and the shape index of an element of its result."""


class _GatheredValueFinder:
    def __init__(self, plan: Plan, dataflow: Dataflow) -> None:
        assert plan.live_ranges is not None  # checked by `gathered_values`
        self._plan, self._dataflow = plan, dataflow
        self._schedule = plan.live_ranges.schedule
        self._alive = Occupancy(plan).alive
        self._in_loops: dict[tuple[int, int, Shape], list[Placed]] = defaultdict(list)
        for instruction in plan.instructions.values():
            if instruction.opcode == "while":
                for placed in self._made_by(instruction.name):
                    self._in_loops[_memory(placed)].append(placed)

    def _made_by(self, instruction: str) -> Iterator[Placed]:
        """The values of an instruction that have live ranges, without tables of pointers."""
        for placed in self._plan.values_of_instruction.get(instruction, ()):
            if placed[1].name in self._alive and not placed[1].shape.is_tuple:
                yield placed

    def values_of(self, collective: Collective) -> Iterator[Placed]:
        """The results of an all-gather, and the values moved from them."""
        pending: list[_ResultElement] = []
        results = {result.dims_without_ones for result in collective.results}
        for name in collective.defined_by:
            for placed in self._made_by(name):
                is_result = placed[1].shape.dims_without_ones in results
                if collective.results[0].is_tiled and not is_result:
                    continue  # an operand or a flag in a TPU's start fusion
                yield placed
                element = placed[1].index
                if collective.done is not None and name == collective.instruction:
                    element = element[1:]  # a start's shape is (operands, results)
                pending.append((collective.done or collective.instruction, element))
        seen = set(pending)
        while pending:
            name, element = pending.pop()
            for user in self._plan.users_of(name):
                for moved in self._moved_to(self._plan.instructions[user], name, element):
                    if moved not in seen:
                        seen.add(moved)
                        pending.append(moved)
                        yield from self._values_at(moved[0])

    def _moved_to(
        self, user: Instruction, name: str, element: tuple[int, ...]
    ) -> Iterator[_ResultElement]:
        """The elements of `user`'s result that are an element of `name`, renamed or moved."""
        for position, operand in enumerate(user.operands):
            read = operand_index(user, position)
            if operand != name or element[: len(read)] != read[: len(element)]:
                continue
            subindex = element[len(read) :]
            if user.opcode == "tuple":
                yield user.name, (position, *subindex)
            elif user.opcode in FORWARDS:
                yield user.name, subindex
            elif only_moves(self._dataflow, user):
                yield user.name, ()
            elif user.opcode == "async-start":
                for inner in self._dataflow.body(user):
                    if only_moves(self._dataflow, inner.instruction):
                        yield inner.instruction.name, ()
                        yield user.name, ()

    def _values_at(self, name: str) -> Iterator[Placed]:
        maker = self._plan.instructions.get(name)
        if maker is None or maker.opcode == "async-start":
            return  # inside a fusion, or a start, whose values `values_of` has yielded
        for placed in self._made_by(name):
            yield placed
            yield from self._in_place_in_loops(placed)

    def _in_place_in_loops(self, placed: Placed) -> Iterator[Placed]:
        """Values of while loops that reuse a value's memory from the position where it ends."""
        end = self._alive[placed[1].name].end
        loops = self._in_loops[_memory(placed)]
        for loop in sorted(loops, key=lambda loop: self._alive[loop[1].name].start):
            live = self._alive[loop[1].name]
            if live.start == end:  # else another value may have used the memory in between
                yield loop
                end = live.end

    def gathered(self, placed: Placed, collective: Collective) -> GatheredValue:
        """A value as one with gathered data."""
        allocation, value = placed
        live = self._alive[value.name]
        ends_at = self._schedule[live.end] if live.end < len(self._schedule) else None
        entry = self._plan.entry
        is_root = entry is not None and ends_at == entry.root
        return GatheredValue(
            allocation=allocation,
            value=value,
            collective=collective,
            start=live.start,
            end=live.end,
            ends_at=ends_at,
            # The value of a root that computes nothing is an output.
            is_output=ends_at is None
            or (is_root and self._plan.instructions[ends_at].opcode in FORWARDS),
        )


def _memory(placed: Placed) -> tuple[int, int, Shape]:
    return placed[0].index, placed[1].offset_bytes, placed[1].shape


@dataclass(frozen=True)
class GatheredLiveAtMost(Expectation):
    """Gathered values take at most `limit_bytes` at any schedule position.

    Gathered values are the results of all-gathers and the values moved from them, e.g. the stack
    in which a scan saves a gathered weight for its backward pass (see
    `xlapipe.expect.gathered`).
    """

    limit_bytes: int

    def _check(self, program: Program) -> Finding:
        values = _values(program)
        alive_bytes, alive = most_alive(values)
        measured = f"{alive_bytes:,} B of {counted(len(values), 'gathered value')}"
        if alive_bytes <= self.limit_bytes:
            return self.finding(measured)
        largest = max(alive, key=lambda held: held.value.size_bytes)
        listed = ", ".join(map(_named, alive[:_MAX_LISTED]))
        return self.finding(
            measured,
            Violation(
                f"at most {self.limit_bytes:,} B of gathered values alive at the same time",
                f"{alive_bytes:,} B: {listed}"
                + (f", … {len(alive)} in total" if len(alive) > _MAX_LISTED else ""),
                _where(largest),
                largest.collective.source,
                "gather each weight where it is used, and again in the backward pass instead of "
                "saving it (jax.checkpoint with a policy that saves no gathered weight)",
            ),
        )


@dataclass(frozen=True)
class GatheredEndAtUse(Expectation):
    """Every gathered value's live range ends at an instruction that reads it.

    So no gathered value is an output or alive to the end of the step. A loop that reads the value
    in each trip counts as one instruction.
    """

    def _check(self, program: Program) -> Finding:
        values = _values(program)
        violations = [
            Violation(
                f"{_named(value)} ends at its last reader",
                "it is an output, or alive to the end of the step",
                _where(value),
                value.collective.source,
                "return the shard, not the gathered array",
            )
            for value in values
            if value.is_output
        ]
        return self.finding(counted(len(values), "gathered value"), *violations)


def _named(held: GatheredValue) -> str:
    return f"{held.value.name} ({held.value.size_bytes:,} B)"


def _where(held: GatheredValue) -> str:
    return (
        f"allocation {held.allocation.index}, value {held.value.name}, alive at positions "
        f"{held.start} to {held.end}" + (f" ({held.ends_at})" if held.ends_at else "")
    )


def _values(program: Program) -> tuple[GatheredValue, ...]:
    values = gathered_values(program.plan)
    if values is None:
        collectives_of(program)
        raise no_live_ranges("the gathered values")
    return values
