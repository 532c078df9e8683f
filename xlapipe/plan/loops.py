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
