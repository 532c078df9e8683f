"""Expectations of how often arguments are read."""

from collections.abc import Mapping
from dataclasses import dataclass

from xlapipe.expect.expectation import Expectation, Finding, Violation
from xlapipe.expect.memory import no_leaf_named
from xlapipe.plans.dataflow import Value, dataflow_of
from xlapipe.plans.hlo import Instruction
from xlapipe.plans.once import once_per_object
from xlapipe.plans.opcodes import RESHAPES
from xlapipe.plans.plan import Plan
from xlapipe.plans.program import Program
from xlapipe.plans.wording import counted


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
                listed = ", ".join(f"{reader.name} ({reader.opcode})" for reader in readers)
                violations.append(
                    Violation(
                        f"{leaf.path}: read by at most {counted(self.count, 'instruction')}",
                        f"read by {len(readers)}: {listed}",
                        source=program.plan.nearest_source(readers[-1].name),
                        advice="compute everything that needs it in one place, or keep the smaller "
                        "result of the first read",
                    )
                )
        return self.finding(f"read by {counted(most_reads, 'instruction')}", *violations)


def _readers(program: Program, number: int | None) -> list[Instruction]:
    """Instructions that read entry parameter `number`, also under other names, in XLA's order."""
    module = program.plan.module
    entry = module.entry_computation if module is not None else None
    if module is None or entry is None or number is None:
        return []
    parameter = entry.parameters.get(number)
    if parameter is None:
        return []
    readers = dataflow_of(module).readers(Value(entry, parameter), also=RESHAPES)
    in_order = _positions(program.plan)
    names = {reader.instruction.name for reader in readers} & in_order.keys()
    return [program.plan.instructions[name] for name in sorted(names, key=in_order.__getitem__)]


@once_per_object
def _positions(plan: Plan) -> Mapping[str, int]:
    """Positions of the instructions in XLA's order, by name."""
    return {name: position for position, name in enumerate(plan.instructions)}
