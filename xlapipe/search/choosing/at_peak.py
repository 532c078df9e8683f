"""Which values of the forward pass are alive at the peak of the plan, and where."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from xlapipe.compile.lowering.forward_graph import ForwardValue
from xlapipe.plans import Plan
from xlapipe.plans.kept_values import saved_at
from xlapipe.plans.occupancy import CountedValue, Occupancy

# A device's part of a value is a power of two at most this small.
_MOST_PARTS = 4096


def held_at_peak(
    values: Sequence[ForwardValue], plan: Plan, *, several_devices: bool
) -> tuple[Mapping[int, CountedValue], int]:
    """The plan's value for each value of the forward pass that is alive at its peak, by number.

    And bytes of all that is kept then, as `xlapipe show` counts it. Each value of the plan counts
    once. Values of the same size are distinguished by line and operation as far as XLA names them.
    """
    occupancy = Occupancy(plan)
    saved = saved_at(occupancy, occupancy.peak_position)
    # Inside of a loop, its own value is in the place of the one that enters it.
    alive = list({held.place: held for held in reversed(saved)}.values())
    alive.reverse()
    primitives = {value.number: value.key.primitive for value in values if value.key is not None}
    by_name_first = sorted(values, key=lambda value: value.key is None or value.key.name is None)
    holder: dict[int, CountedValue] = {}
    for same in (_same_operation, _same_line, lambda *_: True):
        for value in by_name_first:
            if value.number in holder or not value.needed:
                continue
            primitive = primitives.get(value.number, "")
            if primitive == "name" and value.inputs:  # computes nothing
                primitive = primitives.get(value.inputs[0], "")
            for held in alive:
                if _holds(held, value, several_devices) and same(held, value, primitive, plan):
                    holder[value.number] = held
                    alive.remove(held)
                    break
    return holder, sum(held.counted_bytes for held in saved)


def _same_line(held: CountedValue, value: ForwardValue, primitive: str, plan: Plan) -> bool:
    source = plan.nearest_source(held.value.name)
    line = (value.source or "").rpartition("/")[2]
    return source is not None and Path(str(source)).name == line


def _same_operation(held: CountedValue, value: ForwardValue, primitive: str, plan: Plan) -> bool:
    maker = plan.instructions.get(held.value.instruction)
    operation = ((maker.op_name if maker is not None else None) or "").rpartition("/")[2]
    return operation == primitive and _same_line(held, value, primitive, plan)


def _holds(held: CountedValue, value: ForwardValue, several_devices: bool) -> bool:
    if held.value.size_bytes == 0:
        return False
    if not several_devices:
        # A dimension more for each loop around the value.
        dims = Counter(dim for dim in value.shape if dim != 1)
        own = Counter(held.value.shape.dims_without_ones)
        return dims <= own and held.value.size_bytes == value.size_bytes
    parts, rest = divmod(value.size_bytes, held.value.size_bytes)
    return rest == 0 and parts <= _MOST_PARTS and parts & (parts - 1) == 0
