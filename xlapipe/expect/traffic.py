"""Expectations of what is read, and of which intermediate values there are."""

from collections.abc import Iterator
from dataclasses import dataclass

from xlapipe.expect.base import Expectation, Finding, Violation
from xlapipe.expect.memory import describe, dims_of, nothing_named
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


@dataclass(frozen=True)
class ValuesOfShapeAtMost(Expectation):
    """At most `count` values with dimensions `dims`, ones left out, in whatever layout.

    `dtype` is XLA's name of an element type, e.g. `f32`; None for any.
    """

    dims: tuple[int, ...]
    count: int
    dtype: str | None = None

    def check(self, program: Program) -> Finding:
        wanted = tuple(sorted(dim for dim in self.dims if dim != 1))
        found = [
            (allocation, value)
            for allocation in program.plan.allocations
            for value in allocation.values
            if wanted in dims_of(value.shape, self.dtype)
            # A tuple's table of pointers prints the shapes of all its leaves.
            and not value.shape.startswith("(")
        ]
        measured = f"{len(found)}: {', '.join(value.name for _, value in found) or 'none'}"
        if len(found) <= self.count:
            return self.finding(measured)
        allocation, value = found[-1]
        return self.finding(
            measured,
            Violation(
                f"at most {self.count} values of {self.dtype or 'any type'} {list(self.dims)}",
                measured,
                f"{describe(allocation)}, value {value.name} {value.shape}",
                program.plan.nearest_source(value.instruction),
                "let the computation be fused into the one that uses its result",
            ),
        )


def _readers(program: Program, number: int | None) -> list[Instruction]:
    """What reads entry parameter `number`, other names of it included."""
    module = program.plan.module
    if module is None or module.entry is None or number is None:
        return []
    entry = module.computations[module.entry]
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
