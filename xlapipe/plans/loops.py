"""While loops: their trip counts and the instructions that run in each trip."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from xlapipe.plans.hlo import Computation, HloModule, Instruction
from xlapipe.plans.opcodes import RUNS_COMPUTATIONS
from xlapipe.plans.trip_counts import TripCounts


@dataclass(frozen=True, slots=True)
class Loop:
    """A while instruction.

    Attributes:
      trips: XLA's known_trip_count or, on TPUs, the count of the loop's counter (`trip_counts`);
        None if unknown. On a GPU, the condition is then computed on the device and read by the
        host before each trip.
      instructions: names of the instructions that run in each trip, including those of the
        condition, of nested loops and of called computations, but not those in fusion bodies.
    """

    instruction: Instruction
    trips: int | None
    instructions: frozenset[str]


def find_loops(module: HloModule) -> tuple[Loop, ...]:
    """Every while loop, in the module's order."""
    counters = TripCounts(module)
    return tuple(
        Loop(
            instruction,
            _trips(counters, computation, instruction),
            frozenset(_inside(module, instruction)),
        )
        for computation, instruction in module.scheduled()
        if instruction.opcode == "while"
    )


def executions(module: HloModule) -> Mapping[str, int | None]:
    """How often each computation runs when the entry runs once, by name.

    None if unknown: in a loop with an unknown trip count and in a branch of a conditional. A
    loop's condition runs once more than its body. Computations that the entry cannot reach are
    left out.
    """
    return _counts(module, partial(_runs_per_call, TripCounts(module)))


def call_sites(module: HloModule) -> Mapping[str, int]:
    """How often each computation appears in the thunk sequence, by name."""
    counts = _counts(module, lambda _, caller: [1] * len(caller.called_computations))
    return {name: count for name, count in counts.items() if count is not None}


def _counts(
    module: HloModule, factors_of: Callable[[Computation, Instruction], Sequence[int | None]]
) -> dict[str, int | None]:
    """Multiply `factors_of` each caller along the calls from the entry, and add up the paths."""
    counts: dict[str, int | None] = {}
    if module.entry is not None:
        counts[module.entry] = 1
    # Each computation comes after those that it calls.
    for name in reversed(list(module.computations)):
        if name not in counts:
            continue
        count, computation = counts[name], module.computations[name]
        for caller in computation.instructions:
            factors = factors_of(computation, caller)
            for called, factor in zip(caller.called_computations, factors, strict=True):
                total = counts.get(called, 0)
                known = total is not None and count is not None and factor is not None
                counts[called] = total + count * factor if known else None  # type: ignore[operator]
    return counts


def _runs_per_call(
    counters: TripCounts, computation: Computation, caller: Instruction
) -> list[int | None]:
    """How often each called computation runs when the caller runs once."""
    called_count = len(caller.called_computations)
    if caller.opcode == "while" and called_count == 2:
        trips = _trips(counters, computation, caller)
        return [trips, None if trips is None else trips + 1]
    return [None if caller.opcode == "conditional" else 1] * called_count


def _trips(counters: TripCounts, computation: Computation, instruction: Instruction) -> int | None:
    if instruction.shape.is_tiled:
        return counters.of(computation, instruction)
    config = json.loads(instruction.backend_config) if instruction.backend_config else {}
    trip_count = config.get("known_trip_count") if isinstance(config, Mapping) else None
    # The JSON form of a proto writes 64-bit integers as strings.
    return int(trip_count["n"]) if isinstance(trip_count, Mapping) and "n" in trip_count else None


def _inside(module: HloModule, instruction: Instruction) -> Iterator[str]:
    """Names of the instructions that `instruction` runs, outside fusion bodies."""
    for computation in module.called(instruction.called_computations, RUNS_COMPUTATIONS):
        yield from (inner.name for inner in computation.instructions)
