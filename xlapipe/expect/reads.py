"""Expectations of how often arguments are read."""

from dataclasses import dataclass

from xlapipe.expect.expectation import Expectation, Finding, Violation
from xlapipe.expect.memory import no_leaf_named
from xlapipe.plans.hlo import Instruction
from xlapipe.plans.opcodes import RESHAPES
from xlapipe.plans.program import Program
from xlapipe.plans.readers import readers_of
from xlapipe.plans.wording import counted, listed


@dataclass(frozen=True)
class ReadAtMost(Expectation):
    """At most `count` instructions read each argument leaf named `name`."""

    name: str
    count: int

    def check(self, program: Program) -> Finding:
        leaves = program.arguments_named(self.name)
        violations = [] if leaves else [no_leaf_named(program, self.name)]
        most_reads = 0
        for leaf in leaves:
            readers = _readers(program, leaf.parameter_number)
            most_reads = max(most_reads, len(readers))
            if len(readers) > self.count:
                names = listed([f"{reader.name} ({reader.opcode})" for reader in readers])
                violations.append(
                    Violation(
                        f"{leaf.path}: read by at most {counted(self.count, 'instruction')}",
                        f"read by {len(readers)}: {names}",
                        source=program.plan.nearest_source(readers[-1].name),
                        advice="compute everything that needs it in one place, or keep the smaller "
                        "result of the first read",
                    )
                )
        return self.finding(f"read by {counted(most_reads, 'instruction')}", *violations)


def _readers(program: Program, number: int | None) -> list[Instruction]:
    """Instructions that read entry parameter `number`, also under other names, in XLA's order."""
    parameter = program.plan.parameter(number)
    if parameter is None:
        return []
    names = readers_of(program.plan, parameter.name, also=RESHAPES)
    return [program.plan.instructions[name] for name in names]
