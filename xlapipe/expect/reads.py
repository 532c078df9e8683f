"""Expectations of what is read."""

from collections.abc import Iterator
from dataclasses import dataclass

from xlapipe.expect.expectation import Expectation, Finding, Violation
from xlapipe.expect.memory import nothing_named
from xlapipe.plan.hlo import Computation, Instruction
from xlapipe.plan.program import Program

# Instructions that give a value another shape or name, and read nothing.
_RENAMING = frozenset({"bitcast", "get-tuple-element", "optimization-barrier", "reshape", "tuple"})


@dataclass(frozen=True)
class ReadAtMost(Expectation):
    """At most `count` instructions read each argument leaf named `name`."""

    name: str
    count: int

    def check(self, program: Program) -> Finding:
        leaves = program.arguments_named(self.name)
        violations = [] if leaves else [nothing_named(program, self.name)]
        most = 0
        for leaf in leaves:
            readers = _readers(program, leaf.parameter_number)
            most = max(most, len(readers))
            if len(readers) > self.count:
                named = ", ".join(f"{reader.name} ({reader.opcode})" for reader in readers)
                violations.append(
                    Violation(
                        f"{leaf.path}: read by at most {self.count} instructions",
                        f"read by {len(readers)}: {named}",
                        source=program.plan.nearest_source(readers[-1].name),
                        advice="compute what is needed of it where it is read anyway, or keep "
                        "the smaller result of the first reading",
                    )
                )
        return self.finding(f"read by {most} instructions", *violations)


def _readers(program: Program, number: int | None) -> list[Instruction]:
    """What reads entry parameter `number`, other names of it included."""
    module = program.plan.module
    entry = module.entry_computation if module is not None else None
    if entry is None or number is None:
        return []
    names = {each.name for each in entry.instructions if each.parameter_number == number}
    return list(_readers_of(entry, names))


def _readers_of(computation: Computation, names: set[str]) -> Iterator[Instruction]:
    # Instructions stand in the order of the schedule, definitions before uses.
    for instruction in computation.instructions:
        if names.isdisjoint(instruction.operands):
            continue
        if instruction.opcode in _RENAMING:
            names.add(instruction.name)
        else:
            yield instruction
