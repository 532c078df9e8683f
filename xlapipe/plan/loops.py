"""While loops: their trip counts and the instructions that run in each trip."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from xlapipe.plan.hlo import HloModule, Instruction


@dataclass(frozen=True, slots=True)
class Loop:
    """A while instruction.

    Attributes:
      trips: XLA's known_trip_count; None if unknown. The condition is then computed on the device
        and read by the host before each trip.
      instructions: names of the instructions that run in each trip, including those of the
        condition, of nested loops and of called computations, but not those in fusion bodies.
    """

    instruction: Instruction
    trips: int | None
    instructions: frozenset[str]


def find_loops(module: HloModule) -> tuple[Loop, ...]:
    """Every while loop, in the module's order."""
    return tuple(
        Loop(instruction, _trips(instruction), frozenset(_inside(module, instruction)))
        for _, instruction in module.scheduled()
        if instruction.opcode == "while"
    )


def executions(module: HloModule) -> Mapping[str, int | None]:
    """How often each computation runs when the entry runs once, by name.

    None if unknown: in a loop with an unknown trip count and in a branch of a conditional. A
    loop's condition runs once more than its body. Computations that the entry cannot reach are
    left out.
    """
    return _counts(module, _runs_per_call)


def call_sites(module: HloModule) -> Mapping[str, int]:
    """How often each computation appears in the thunk sequence, by name."""
    counts = _counts(module, lambda caller: [1] * len(caller.called_computations))
    return {name: count for name, count in counts.items() if count is not None}


def _counts(
    module: HloModule, factors_of: Callable[[Instruction], Sequence[int | None]]
) -> dict[str, int | None]:
    """Multiply `factors_of` each caller along the calls from the entry, and add up the paths."""
    counts: dict[str, int | None] = {}
    if module.entry is not None:
        counts[module.entry] = 1
    # Each computation comes after those that it calls.
    for name in reversed(list(module.computations)):
        if name not in counts:
            continue
        count = counts[name]
        for caller in module.computations[name].instructions:
            for called, factor in zip(caller.called_computations, factors_of(caller), strict=True):
                total = counts.get(called, 0)
                known = total is not None and count is not None and factor is not None
                counts[called] = total + count * factor if known else None  # type: ignore[operator]
    return counts


def _runs_per_call(caller: Instruction) -> list[int | None]:
    """How often each called computation runs when the caller runs once."""
    called_count = len(caller.called_computations)
    if caller.opcode == "while" and called_count == 2:
        trips = _trips(caller)
        return [trips, None if trips is None else trips + 1]
    return [None if caller.opcode == "conditional" else 1] * called_count


def _trips(instruction: Instruction) -> int | None:
    config = json.loads(instruction.backend_config) if instruction.backend_config else {}
    trip_count = config.get("known_trip_count") if isinstance(config, Mapping) else None
    # The JSON form of a proto writes 64-bit integers as strings.
    return int(trip_count["n"]) if isinstance(trip_count, Mapping) and "n" in trip_count else None


def _inside(module: HloModule, instruction: Instruction) -> Iterator[str]:
    """Names of the instructions that `instruction` runs, outside fusion bodies."""
    pending, seen = list(instruction.called_computations), set[str]()
    while pending:
        name = pending.pop()
        if name in seen or name not in module.computations:
            continue
        seen.add(name)
        for inner in module.computations[name].instructions:
            yield inner.name
            if inner.opcode != "fusion":
                pending.extend(inner.called_computations)
