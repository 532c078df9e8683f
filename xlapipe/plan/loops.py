"""While loops: what runs at each of their trips, and how many trips XLA knows of."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from xlapipe.plan.hlo import HloModule, Instruction


@dataclass(frozen=True, slots=True)
class Loop:
    """A while instruction.

    Attributes:
      trips: XLA's known_trip_count; None where it knows none. The condition is then computed on
        the device and read by the host before each trip.
      instructions: names of those that run at each trip, of the condition, of loops inside and of
        what is called included; bodies of fusions are not.
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
    """How often each computation runs when the entry runs once, by its name.

    None where nobody knows: in a loop of unknown trips, and in a branch of a conditional. A
    loop's condition runs once more than its body. What the entry does not lead to is left out.
    """
    times: dict[str, int | None] = {}
    if module.entry is not None:
        times[module.entry] = 1
    # Computations stand behind those that they call.
    for name in reversed(list(module.computations)):
        if name not in times:
            continue
        for instruction in module.computations[name].instructions:
            for called, each in _called_times(instruction):
                before, here = times.get(called, 0), times[name]
                unknown = before is None or here is None or each is None
                times[called] = None if unknown else before + here * each  # type: ignore[operator]
    return times


def _called_times(instruction: Instruction) -> Iterator[tuple[str, int | None]]:
    called = instruction.called_computations
    if instruction.opcode == "while" and len(called) == 2:
        trips = _trips(instruction)
        yield called[0], trips
        yield called[1], None if trips is None else trips + 1
    else:
        for name in called:
            yield name, None if instruction.opcode == "conditional" else 1


def _trips(instruction: Instruction) -> int | None:
    config = json.loads(instruction.backend_config) if instruction.backend_config else {}
    known = config.get("known_trip_count") if isinstance(config, Mapping) else None
    # A proto's JSON writes 64-bit numbers as strings.
    return int(known["n"]) if isinstance(known, Mapping) and "n" in known else None


def _inside(module: HloModule, instruction: Instruction) -> Iterator[str]:
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
