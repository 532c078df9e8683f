"""Which entry parameter a value is, or of which it is an update in place.

An instruction updates an operand in place if XLA gives both the same memory.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from xlapipe.plans.dataflow import Path, Value, dataflow_of
from xlapipe.plans.once import once_per_object
from xlapipe.plans.opcodes import COPIES
from xlapipe.plans.plan import Placed, Plan

Key = tuple[str, str, Path]
Answer = TypeVar("Answer")


def search(
    value: Value,
    known: dict[Key, Answer | None],
    answer: Callable[[Value], Answer | None],
    nearer: Callable[[Value], Iterable[Value]],
) -> Answer | None:
    """The answer of the nearest value that has one, by a breadth-first search; None without one.

    Args:
      known: answers of earlier searches, which are added to, so that no value is searched twice.
    """
    reached_from: dict[Key, Key | None] = {value.key: None}
    pending = deque([value])
    while pending:
        current = pending.popleft()
        answered = known.get(current.key)
        if answered is None:
            answered = answer(current)
        if answered is not None:
            key: Key | None = current.key
            while key is not None:
                known[key] = answered
                key = reached_from[key]
            return answered
        if current.key not in known:
            for other in nearer(current):
                if other.key not in reached_from:
                    reached_from[other.key] = current.key
                    pending.append(other)
    known.update(dict.fromkeys(reached_from))
    return None


class Origins:
    """Searches from values to parameters, each value once.

    Args:
      plan: with HLO.
      through_copies: whether copies of a parameter, and updates of these, count too.
    """

    def __init__(self, plan: Plan, *, through_copies: bool = False) -> None:
        assert plan.module is not None
        self._plan = plan
        self._entry = plan.module.entry
        self._dataflow = dataflow_of(plan.module)
        self._through_copies = through_copies
        self._known: dict[Key, int | None] = {}

    def parameter_number(self, value: Value) -> int | None:
        """The number of the entry parameter that `value` is or updates; None for other values."""
        return search(value, self._known, self._number, self._nearer)

    def _number(self, value: Value) -> int | None:
        in_entry = value.computation.name == self._entry
        return value.instruction.parameter_number if in_entry else None

    def _nearer(self, value: Value) -> Iterator[Value]:
        """What a value is another name of, and what it updates in place, or copies."""
        yield from self._dataflow.one_step_nearer(value)
        place = self._plan.place_of(value)
        copies = self._through_copies and value.instruction.opcode in COPIES
        makes = place is not None and place[1].name == value.name
        for operand in self._dataflow.operands(value._replace(path=())) if copies or makes else ():
            if copies or address_of(self._plan.place_of(operand)) == address_of(place):
                yield operand


def address_of(place: Placed | None) -> tuple[int, int] | None:
    """Allocation index and offset in bytes; None for an unknown place."""
    return None if place is None else (place[0].index, place[1].offset_bytes)


def versions_in_place(plan: Plan, value: Value) -> Iterator[tuple[Value, tuple[Value, ...]]]:
    """What is in the memory of a value on the way to it, nearest first, across loops.

    Yields:
      The value and those that it is another name of; of an instruction that updates operands in
      place, also these operands, with the instruction's result.
    """
    assert plan.module is not None
    dataflow, address = dataflow_of(plan.module), address_of(plan.place_of(value))
    pending, seen = deque([value]), set[Key]()
    while pending:
        current = pending.popleft()
        if current.key in seen:
            continue
        seen.add(current.key)
        pending.extend(dataflow.one_step_nearer(current))
        place = plan.place_of(current)
        operands: tuple[Value, ...] = ()
        if place is not None and place[1].name == current.name and address_of(place) == address:
            operands = tuple(
                operand
                for operand in dataflow.operands(current._replace(path=()))
                if address_of(plan.place_of(operand)) == address
            )
            pending.extend(operands)
            yield current, operands


@once_per_object
def output_values(plan: Plan) -> frozenset[str]:
    """Names of the values that become outputs in their own memory, such as what a loop fills."""
    entry, shape = plan.entry, plan.result_shape
    if entry is None or shape is None:
        return frozenset()
    root = entry.by_name[entry.root]
    paths = [(index,) for index in range(len(shape.parts))] if shape.is_tuple else [()]
    return frozenset(
        version.name
        for path in paths
        for version, _ in versions_in_place(plan, Value(entry, root, path))
    )


origins_of = once_per_object(Origins)


@once_per_object
def origins_through_copies(plan: Plan) -> Origins:
    """The one `Origins` of a plan that follows copies too."""
    return Origins(plan, through_copies=True)
