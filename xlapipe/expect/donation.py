"""Expectations of donation: which arguments are written over, and why others are not."""

from dataclasses import dataclass
from itertools import takewhile

from xlapipe.expect.base import Expectation, Finding, Violation
from xlapipe.expect.memory import describe, nothing_named, source_of
from xlapipe.plan.plan import Plan
from xlapipe.plan.program import ArgumentLeaf, Program


@dataclass(frozen=True)
class Aliased(Expectation):
    """Every argument leaf named `name` is donated and written over by an output, in place."""

    name: str

    def check(self, program: Program) -> Finding:
        leaves = program.arguments_named(self.name)
        violations = [] if leaves else [nothing_named(program, self.name)]
        aliased_bytes = 0
        for leaf in leaves:
            violation = _why_not_aliased(program, leaf)
            if violation is None:
                aliased_bytes += leaf.size_bytes
            else:
                violations.append(violation)
        return self.finding(f"{len(leaves)} leaves, {aliased_bytes:,} B aliased", *violations)


@dataclass(frozen=True)
class NotAliased(Expectation):
    """No argument leaf named `name` is written over by an output."""

    name: str = "*"

    def check(self, program: Program) -> Finding:
        aliases = {alias.parameter_number: alias for alias in program.plan.aliases}
        leaves = {leaf.parameter_number: leaf for leaf in program.arguments_named(self.name)}
        violations = [
            Violation(
                f"{leaves[number].path} is not aliased" if number in leaves else "no alias",
                f"aliased to {program.output_path(alias.output_index)}",
                _where_parameter(program.plan, number),
                advice="remove the argument from donate_argnums",
            )
            for number, alias in aliases.items()
            if number in leaves or self.name == "*"
        ]
        return self.finding(f"{len(aliases)} aliases in the module", *violations)


@dataclass(frozen=True)
class Donated(Expectation):
    """Every argument leaf named `name` is given up: written over, or freed when the step ends.

    An output of another size cannot be written over it; its memory is free for the next step all
    the same. JAX gives up no leaf to which no output has as many elements.
    """

    name: str

    def check(self, program: Program) -> Finding:
        plan = program.plan
        given_up = {alias.parameter_number for alias in plan.aliases}
        given_up |= {number for number, _ in plan.buffer_donors or ()}
        leaves = program.arguments_named(self.name)
        violations = [] if leaves else [nothing_named(program, self.name)]
        violations += [
            Violation(
                f"{leaf.path} ({leaf.size_bytes:,} B) is donated",
                "donated, but no output has as many elements" if leaf.donated else "it is not",
                _where_parameter(plan, leaf.parameter_number),
                advice=f"add the argument {leaf.path.split('[')[0].split('.')[0]!r} to "
                "donate_argnums",
            )
            for leaf in leaves
            if leaf.parameter_number not in given_up
        ]
        donated_bytes = sum(leaf.size_bytes for leaf in leaves if leaf.parameter_number in given_up)
        return self.finding(f"{len(leaves)} leaves, {donated_bytes:,} B donated", *violations)


def _where_parameter(plan: Plan, number: int | None) -> str:
    allocation = plan.parameter_allocation(number)
    return "" if allocation is None else describe(allocation)


def _why_not_aliased(program: Program, leaf: ArgumentLeaf) -> Violation | None:
    """None if `leaf` is aliased; otherwise what became of the donation, and what to try."""
    plan = program.plan
    expected = f"{leaf.path} ({leaf.dtype}{list(leaf.shape)}, {leaf.size_bytes:,} B) is aliased"
    if leaf.parameter_number is None:
        return Violation(
            expected,
            "the program does not use it, so it is no parameter of the module",
            advice="return a value computed from it, or do not pass it",
        )
    if any(alias.parameter_number == leaf.parameter_number for alias in plan.aliases):
        return None
    where = _where_parameter(plan, leaf.parameter_number)
    # The most likely partner first: cache[0]['v'] is meant for out['cache'][0]['v'].
    fitting = sorted(
        (o for o in program.outputs if (o.shape, o.dtype) == (leaf.shape, leaf.dtype)),
        key=lambda output: -_shared_ending(output.path, leaf.path),
    )
    allocation = plan.parameter_allocation(leaf.parameter_number)
    source = source_of(plan, allocation) if allocation is not None else None
    if fitting:
        copied = plan.output_allocation(fitting[0].index, of=len(program.outputs))
        if copied is not None:
            source = source_of(plan, copied) or source
    if not leaf.donated:
        return Violation(
            expected,
            "it is not donated"
            + (f"; {fitting[0].path} takes memory of its own" if fitting else ""),
            where,
            source,
            f"add the argument {leaf.path.split('[')[0].split('.')[0]!r} to donate_argnums",
        )
    if not fitting:
        same_size = [o.path for o in program.outputs if o.size_bytes == leaf.size_bytes]
        return Violation(
            expected,
            "donated, but no output has its shape and dtype"
            + (f"; {same_size[0]} has its size alone" if same_size else ""),
            where,
            source,
            "return the updated value with the shape and dtype that came in",
        )
    return Violation(
        expected,
        f"donated, but XLA aliased nothing to it; {fitting[0].path} would fit",
        where,
        source,
        "look for a second leaf that took the output, or a layout or sharding that differs",
    )


def _shared_ending(one: str, other: str) -> int:
    """How many characters two paths have in common at their ends."""
    pairs = zip(reversed(one), reversed(other), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
