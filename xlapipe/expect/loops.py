"""Expectations of while loops: what one trip costs is paid at every trip."""

from dataclasses import dataclass

from xlapipe.expect.expectation import Expectation, Finding, Violation
from xlapipe.plan.copies import find_copies
from xlapipe.plan.loops import Loop, find_loops
from xlapipe.plan.program import Program


@dataclass(frozen=True)
class NoCopyInLoopAbove(Expectation):
    """No instruction of a while loop that only moves data writes more than `limit_bytes`.

    Moving is as in `NoCopyAbove`. A program without a loop breaks the expectation, as does a dump
    that does not hold the loops' bodies.
    """

    limit_bytes: int

    def check(self, program: Program) -> Finding:
        loops = _loops(program)
        if not loops:
            return self.finding("no loop", _no_loop(program))
        loop_of = {name: loop.instruction.name for loop in loops for name in loop.instructions}
        copies = [copy for copy in find_copies(program.plan) if copy.instruction in loop_of]
        violations = [
            Violation(
                f"no copy above {self.limit_bytes:,} B in a while loop",
                f"{copy.copied_bytes:,} B copied by {copy.instruction} at each trip",
                f"allocation {copy.allocation}, value {copy.value}"
                + (f" ({copy.op_name})" if copy.op_name else ""),
                # What XLA itself adds has no line; the loop does.
                copy.source or program.plan.nearest_source(loop_of[copy.instruction]),
                "let each leaf of the carry be updated in place, stay at its place in the carry, "
                "and be read before the update alone",
            )
            for copy in copies
            if copy.copied_bytes > self.limit_bytes
        ]
        largest = copies[0].copied_bytes if copies else 0
        measured = f"{len(copies)} copies in {len(loops)} loops, largest {largest:,} B"
        return self.finding(measured, *violations)


@dataclass(frozen=True)
class LoopOfTrips(Expectation):
    """XLA knows of one while loop that it makes `trips` trips, and so need not ask at each."""

    trips: int

    def check(self, program: Program) -> Finding:
        loops = _loops(program)
        if not loops:
            return self.finding("no loop", _no_loop(program))
        known = [loop.trips for loop in loops]
        measured = ", ".join("unknown" if trips is None else str(trips) for trips in known)
        if known.count(self.trips) == 1:
            return self.finding(f"trips: {measured}")
        return self.finding(
            f"trips: {measured}",
            Violation(
                f"one loop of {self.trips} trips",
                f"trips: {measured}",
                ", ".join(loop.instruction.name for loop in loops),
                program.plan.nearest_source(loops[0].instruction.name),
                "use jax.lax.fori_loop or scan with a number of trips that is static",
            ),
        )


def _loops(program: Program) -> tuple[Loop, ...]:
    module = program.plan.module
    return () if module is None or not module.complete else find_loops(module)


def _no_loop(program: Program) -> Violation:
    module = program.plan.module
    if module is None or not module.complete:
        return Violation(
            "the bodies of while loops",
            "the dump holds no whole HLO module",
            advice="dump with xla_dump_hlo_as_proto or xla_dump_hlo_as_text",
        )
    return Violation("a while loop", "none", advice="was it unrolled, or is its trip count one?")
