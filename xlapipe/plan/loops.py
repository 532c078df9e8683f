"""While loops: what runs at each of their trips, and how many trips XLA knows of."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    return _counted(module, _times)


def call_sites(module: HloModule) -> Mapping[str, int]:
    """How often each computation is written into the thunk sequence, by its name."""
    counts = _counted(module, lambda caller: [1] * len(caller.called_computations))
    return {name: count for name, count in counts.items() if count is not None}


def _counted(
    module: HloModule, times_of: Callable[[Instruction], Sequence[int | None]]
) -> dict[str, int | None]:
    counts: dict[str, int | None] = {}
    if module.entry is not None:
        counts[module.entry] = 1
    # Computations stand behind those that they call.
    for name in reversed(list(module.computations)):
        if name not in counts:
            continue
        here = counts[name]
        for caller in module.computations[name].instructions:
            for called, times in zip(caller.called_computations, times_of(caller), strict=True):
                before = counts.get(called, 0)
                known = before is not None and here is not None and times is not None
                counts[called] = before + here * times if known else None  # type: ignore[operator]
    return counts


def _times(caller: Instruction) -> list[int | None]:
    """How often each of the called computations runs when the caller runs once."""
    called = len(caller.called_computations)
    if caller.opcode == "while" and called == 2:
        trips = _trips(caller)
        return [trips, None if trips is None else trips + 1]
    return [None if caller.opcode == "conditional" else 1] * called


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
