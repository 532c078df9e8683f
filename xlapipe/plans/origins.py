"""Which entry parameter a value is, or of which it is an update in place.

An instruction updates an operand in place if XLA gives both the same memory.
"""

from collections import deque
from collections.abc import Iterator

from xlapipe.plans.dataflow import Path, Value, dataflow_of
from xlapipe.plans.once import once_per_object
from xlapipe.plans.plan import Placed, Plan

_Key = tuple[str, str, Path]


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
        self._known: dict[_Key, int | None] = {}

    def parameter_number(self, value: Value) -> int | None:
        """The number of the entry parameter that `value` is or updates; None for other values."""
        reached_from: dict[_Key, _Key | None] = {value.key: None}
        pending = deque([value])
        while pending:
            current = pending.popleft()
            number = self._known.get(current.key)
            if current.computation.name == self._entry and number is None:
                number = current.instruction.parameter_number
            if number is not None:
                key: _Key | None = current.key
                while key is not None:
                    self._known[key] = number
                    key = reached_from[key]
                return number
            if current.key not in self._known:
                for nearer in self._nearer(current):
                    if nearer.key not in reached_from:
                        reached_from[nearer.key] = current.key
                        pending.append(nearer)
        self._known.update(dict.fromkeys(reached_from))
        return None

    def _nearer(self, value: Value) -> Iterator[Value]:
        """What a value is another name of, and what it updates in place, or copies."""
        yield from self._dataflow.one_step_nearer(value)
        place = self._plan.place_of(value)
        copies = self._through_copies and value.instruction.opcode == "copy"
        makes = place is not None and place[1].name == value.name
        for operand in self._dataflow.operands(value._replace(path=())) if copies or makes else ():
            if copies or address_of(self._plan.place_of(operand)) == address_of(place):
                yield operand


def address_of(place: Placed | None) -> tuple[int, int] | None:
    """Allocation index and offset in bytes; None for an unknown place."""
    return None if place is None else (place[0].index, place[1].offset_bytes)


origins_of = once_per_object(Origins)


@once_per_object
def origins_through_copies(plan: Plan) -> Origins:
    """The one `Origins` of a plan that follows copies too."""
    return Origins(plan, through_copies=True)
