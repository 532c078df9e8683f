"""While loops: their trip counts and the instructions that run in each trip.

XLA:GPU states trip counts. libtpu does not: there, an element of the carry is the counter, the
condition compares it with a constant, and the body adds a constant to it.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from xlapipe.plans.dataflow import Dataflow, Value, dataflow_of
from xlapipe.plans.hlo import HloModule, Instruction
from xlapipe.plans.opcodes import COPIES, RESHAPES, RUNS_COMPUTATIONS

# Operations that leave a scalar's value as it is.
_SAME_VALUE = RESHAPES | COPIES
_MIRRORED = {"GE": "LE", "GT": "LT", "LE": "GE", "LT": "GT"}


@dataclass(frozen=True, slots=True)
class Loop:
    """A while instruction.

    Attributes:
      trips: XLA's known_trip_count or, on TPUs, the count of the loop's counter; None if unknown.
        On a GPU, the condition is then computed on the device and read by the host before each
        trip.
      instructions: names of the instructions that run in each trip, including those of the
        condition, of nested loops and of called computations, but not those in fusion bodies.
    """

    instruction: Instruction
    trips: int | None
    instructions: frozenset[str]


def find_loops(module: HloModule) -> tuple[Loop, ...]:
    """Every while loop, in the module's order."""
    flow = dataflow_of(module)
    return tuple(
        Loop(
            instruction,
            _trips(flow, Value(computation, instruction)),
            frozenset(_inside(module, instruction)),
        )
        for computation, instruction in module.scheduled()
        if instruction.opcode == "while"
    )


def executions(
    module: HloModule, *, unknown_trips: int | None = None, counted: bool = False
) -> Mapping[str, int | None]:
    """How often each computation runs when the entry runs once, by name.

    None if unknown: in a loop with an unknown trip count and in a branch of a conditional. A
    loop's condition runs once more than its body. Computations that the entry cannot reach are
    left out.

    Args:
      unknown_trips: of loops whose trip count is unknown.
      counted: derive trip counts from the counters of loops, as in a module before optimisation.
    """
    flow = dataflow_of(module)

    def trips_of(loop: Value) -> int | None:
        trips = _counted_trips(flow, loop) if counted else _trips(flow, loop)
        return unknown_trips if trips is None else trips

    return _counts(module, trips_of)


def _counts(module: HloModule, trips_of: Callable[[Value], int | None]) -> dict[str, int | None]:
    """Multiply the runs along the calls from the entry, and add up the paths."""
    counts: dict[str, int | None] = {}
    if module.entry is not None:
        counts[module.entry] = 1
    # Each computation comes after those that it calls.
    for name in reversed(list(module.computations)):
        if name not in counts:
            continue
        count, computation = counts[name], module.computations[name]
        for caller in computation.instructions:
            if not caller.called_computations:
                continue
            factors = _runs_per_call(trips_of, Value(computation, caller))
            for called, factor in zip(caller.called_computations, factors, strict=True):
                total = counts.get(called, 0)
                known = total is not None and count is not None and factor is not None
                counts[called] = total + count * factor if known else None  # type: ignore[operator]
    return counts


def _runs_per_call(trips_of: Callable[[Value], int | None], caller: Value) -> list[int | None]:
    """How often each called computation runs when the caller runs once."""
    opcode = caller.instruction.opcode
    called_count = len(caller.instruction.called_computations)
    if opcode == "while" and called_count == 2:
        trips = trips_of(caller)
        return [trips, None if trips is None else trips + 1]
    return [None if opcode == "conditional" else 1] * called_count


def _trips(flow: Dataflow, loop: Value) -> int | None:
    if loop.instruction.shape.is_tiled:
        return _counted_trips(flow, loop)
    text = loop.instruction.backend_config
    config = json.loads(text) if text else {}
    trip_count = config.get("known_trip_count") if isinstance(config, Mapping) else None
    # The JSON form of a proto writes 64-bit integers as strings.
    return int(trip_count["n"]) if isinstance(trip_count, Mapping) and "n" in trip_count else None


def _inside(module: HloModule, instruction: Instruction) -> Iterator[str]:
    """Names of the instructions that `instruction` runs, outside fusion bodies."""
    for computation in module.called(instruction.called_computations, RUNS_COMPUTATIONS):
        yield from (inner.name for inner in computation.instructions)


def _counted_trips(flow: Dataflow, loop: Value) -> int | None:
    """The trips of a loop whose counter has a constant start, step and limit; else None."""
    called = loop.instruction.called_computations
    body, condition = (flow.module.computations[name] for name in called)
    compare = condition.by_name[condition.root]
    counter, limit = _operands(flow, Value(condition, compare))
    direction = compare.comparison
    if not _is_carried(counter):
        counter, limit, direction = limit, counter, _MIRRORED.get(direction or "", direction)
    if counter is None or direction is None or not _is_carried(counter):
        return None
    updated = flow.definition(Value(body, body.by_name[body.root], counter.path), _SAME_VALUE)
    start = _constant(flow, flow.operand(loop._replace(path=counter.path), 0))
    step, end = _added(flow, updated, counter), _constant(flow, limit)
    if start is None or step is None or end is None:
        return None
    return _passes(start, step, direction, end)


def _operands(flow: Dataflow, value: Value) -> list[Value | None]:
    """What makes the two operands of a comparison or a sum, across copies."""
    operands = (flow.operand(value._replace(path=()), position) for position in (0, 1))
    return [item and flow.definition(item, _SAME_VALUE) for item in operands]


def _is_carried(value: Value | None) -> bool:
    """Whether a value is an element of the computation's parameter."""
    return value is not None and value.instruction.opcode == "parameter" and bool(value.path)


def _added(flow: Dataflow, updated: Value, counter: Value) -> int | None:
    """What one trip adds to the counter; None for another operation."""
    if updated.instruction.opcode != "add":
        return None
    old, added = _operands(flow, updated)
    if not _is_carried(old):
        old, added = added, old
    is_counter = _is_carried(old) and old is not None and old.path == counter.path
    return _constant(flow, added) if is_counter else None


def _constant(flow: Dataflow, value: Value | None) -> int | None:
    """The integer that `value` always is, also if loops hand it on unchanged."""
    for _ in flow.module.computations:
        if value is None:
            return None
        value = flow.definition(value, _SAME_VALUE)
        if not _is_carried(value):
            return value.instruction.integer
        value = _before_loop(flow, value)
    return None


def _before_loop(flow: Dataflow, value: Value) -> Value | None:
    """What an element of the carry was before the loop; None if a trip changes it."""
    callers = flow.callers(value.computation)
    if len(callers) != 1 or callers[0][1].opcode != "while":
        return None
    scope, loop, _ = callers[0]
    body = flow.module.computations[loop.called_computations[0]]
    updated = flow.definition(Value(body, body.by_name[body.root], value.path), _SAME_VALUE)
    unchanged = _is_carried(updated) and updated.path == value.path
    return flow.operand(Value(scope, loop, value.path), 0) if unchanged else None


def _passes(start: int, step: int, direction: str, limit: int) -> int | None:
    """How often a counter from `start` satisfies the comparison with `limit`; None for no end."""
    if direction in ("GT", "GE"):
        start, step, limit = -start, -step, -limit
        direction = _MIRRORED[direction]
    if direction not in ("LT", "LE"):
        return None
    end = limit + (direction == "LE")
    if start >= end:
        return 0
    return -((start - end) // step) if step > 0 else None
