"""Expectations of while loops: known trip counts, and no large copies in each trip."""

from dataclasses import dataclass

from xlapipe.expect.expectation import Expectation, Finding, UnknownError, Violation, no_module
from xlapipe.plans.copies import find_copies
from xlapipe.plans.copy_advice import advice_against
from xlapipe.plans.loops import Loop, find_loops
from xlapipe.plans.program import Program
from xlapipe.plans.wording import counted, listed

_IN_PLACE = (
    "update each leaf of the carry in place, keep its position in the carry, and read the old "
    "value only before the update"
)


@dataclass(frozen=True)
class NoCopyInLoopAbove(Expectation):
    """No copy in a while loop writes more than `limit_bytes`.

    Copies are as in `NoCopyAbove`. A program without a loop violates the expectation, as does a
    dump without the bodies of loops.
    """

    limit_bytes: int

    def _check(self, program: Program) -> Finding:
        loops = _loops(program)
        loop_of = {name: loop.instruction.name for loop in loops for name in loop.instructions}
        copies = [copy for copy in find_copies(program.plan) if copy.instruction in loop_of]
        violations = [
            Violation(
                f"no copy above {self.limit_bytes:,} B in a while loop",
                f"{copy.copied_bytes:,} B copied by {copy.instruction} in each trip",
                f"allocation {copy.allocation}, value {copy.value}"
                + (f" ({copy.op_name})" if copy.op_name else ""),
                # Copies that XLA inserts have no source line; the loop does.
                copy.source or program.plan.nearest_source(loop_of[copy.instruction]),
                advice_against(program, copy) if copy.reorders else _IN_PLACE,
            )
            for copy in copies
            if copy.copied_bytes > self.limit_bytes
        ]
        largest = copies[0].copied_bytes if copies else 0
        copy_count = counted(len(copies), "copy", "copies")
        measured = f"{copy_count} in {counted(len(loops), 'loop')}, largest {largest:,} B"
        return self.finding(measured, *violations)


@dataclass(frozen=True)
class LoopOfTrips(Expectation):
    """Exactly one while loop has a known trip count of `trips`.

    On a GPU, the host then does not have to read the loop's condition from the device before each
    trip.
    """

    trips: int

    def _check(self, program: Program) -> Finding:
        loops = _loops(program)
        trip_counts = [loop.trips for loop in loops]
        measured = listed(["unknown" if trips is None else str(trips) for trips in trip_counts])
        if trip_counts.count(self.trips) == 1:
            return self.finding(f"trips: {measured}")
        return self.finding(
            f"trips: {measured}",
            Violation(
                f"one loop with {counted(self.trips, 'trip')}",
                f"trips: {measured}",
                listed([loop.instruction.name for loop in loops]),
                program.plan.nearest_source(loops[0].instruction.name),
                "use jax.lax.fori_loop or scan with a static trip count",
            ),
        )


def _loops(program: Program) -> tuple[Loop, ...]:
    module = program.plan.module
    if module is None or not module.complete:
        raise UnknownError(no_module("while loops").violation, "no loop")
    loops = find_loops(module)
    if not loops:
        missing = Violation(
            "a while loop",
            "none",
            advice="check whether the loop was unrolled or has only one trip: XLA removes such "
            "loops",
        )
        raise UnknownError(missing, "no loop")
    return loops
