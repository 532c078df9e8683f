"""Expectations of donation: which arguments are aliased to outputs, and why others are not."""

from collections.abc import Callable
from dataclasses import dataclass

from xlapipe.expect.expectation import Expectation, Finding, Violation
from xlapipe.expect.memory import describe, no_leaf_named
from xlapipe.plans import ArgumentLeaf, Plan, Program
from xlapipe.plans.donatable import argument_name
from xlapipe.plans.donation import (
    Donation,
    DonationOutcome,
    donations,
    partner_of,
    small_copies,
    source_of,
)
from xlapipe.plans.leaf_writes import together
from xlapipe.plans.wording import counted


@dataclass(frozen=True)
class Donated(Expectation):
    """Every argument leaf named `name` is donated, aliased, and not copied or rewritten.

    Only copies of half of a leaf or more count, and only those of more than `copies_up_to_bytes`:
    XLA may copy a small weight in order to compute its gradient in the donated buffer. A leaf is
    rewritten if slices of it are updated and half of it or more is written, e.g. since all of it
    is cast, updated and cast back; one whose elements are all computed, as of a weight, is not. By
    default the least copied and rewritten leaves are permitted, up to a thousandth of all bytes.

    Attributes:
      name: selects leaves of the arguments.
      copies_up_to_bytes: copies of at most this size are permitted.
    """

    name: str
    copies_up_to_bytes: int | None = None

    def _check(self, program: Program) -> Finding:
        named = {leaf.path for leaf in program.arguments_named(self.name)}
        rows = [row for row in donations(program) if row.path in named]
        small = small_copies(rows) if self.copies_up_to_bytes is None else ()

        def holds(row: Donation) -> bool:
            if row.outcome not in _ALIASED or row in small:
                return row.outcome in _ALIASED
            limit_bytes = self.copies_up_to_bytes or 0
            return not row.is_rewritten and all(c.copied_bytes <= limit_bytes for c in row.copies)

        kept = [row.writes for row in rows if row.writes and row.writes.changed_bytes is not None]
        note = f", {together(kept)}" if kept else ""
        if small:
            size_bytes = sum(row.size_bytes for row in small)
            small_leaves = counted(len(small), "small leaf", "small leaves")
            wasted = "rewritten" if any(row.is_rewritten for row in small) else "copied"
            note += f"; {small_leaves} in place and {wasted}, {size_bytes:,} B"
        return _check_leaves(self, program, self.name, holds, note)


@dataclass(frozen=True)
class Aliased(Expectation):
    """Every argument leaf named `name` is donated and aliased to an output; copies are allowed."""

    name: str

    def _check(self, program: Program) -> Finding:
        return _check_leaves(self, program, self.name, lambda row: row.outcome in _ALIASED)


@dataclass(frozen=True)
class GivenUp(Expectation):
    """Every argument leaf named `name` is donated: aliased, or freed when the step ends.

    An output of another size cannot alias the leaf, but the leaf's memory is still free for the
    next step. JAX does not donate a leaf if no output has the same number of elements.
    """

    name: str

    def _check(self, program: Program) -> Finding:
        return _check_leaves(self, program, self.name, lambda row: row.outcome in _GIVEN_UP)


_ALIASED = frozenset({DonationOutcome.ALIASED, DonationOutcome.COPIED})
_GIVEN_UP = _ALIASED | {DonationOutcome.DONOR_ONLY}


def _check_leaves(
    expectation: Expectation,
    program: Program,
    name: str,
    holds: Callable[[Donation], bool],
    note: str = "",
) -> Finding:
    leaves = program.arguments_named(name)
    rows = {row.path: row for row in donations(program)}
    word = "given up" if isinstance(expectation, GivenUp) else "aliased"
    violations = [] if leaves else [no_leaf_named(program, name)]
    donated_bytes = 0
    for leaf in leaves:
        row = rows.get(leaf.path)
        if row is not None and holds(row):
            donated_bytes += leaf.size_bytes
        else:
            violations.append(
                _not_donated(program, leaf) if row is None else _failed(program, leaf, row)
            )
    leaf_count = counted(len(leaves), "leaf", "leaves")
    return expectation.finding(f"{leaf_count}, {donated_bytes:,} B {word}{note}", *violations)


@dataclass(frozen=True)
class NotAliased(Expectation):
    """No argument leaf named `name` is aliased to an output."""

    name: str = "*"

    def _check(self, program: Program) -> Finding:
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
        return self.finding(
            f"{counted(len(aliases), 'alias', 'aliases')} in the module", *violations
        )


def _where_parameter(plan: Plan, number: int | None) -> str:
    allocation = plan.parameter_allocation(number)
    return "" if allocation is None else describe(allocation)


def _expected(leaf: ArgumentLeaf) -> str:
    return f"{leaf.path} ({leaf.dtype}{list(leaf.shape)}, {leaf.size_bytes:,} B) is aliased"


def _failed(program: Program, leaf: ArgumentLeaf, row: Donation) -> Violation:
    aliased = f"donated and aliased to {row.output}, but" if row.output else "donated, but"
    expected, found, outcome, advice = "", row.reason, str(row.outcome), row.advice
    if row.copies:
        expected = " and not copied"
    elif row.holds and row.writes is not None:
        expected, outcome = " and not rewritten", "aliased, but rewritten"
        found = f"{row.writes.text} in each step"
        advice = f"{advice}; or allow it with Aliased(…)"
    return Violation(
        _expected(leaf) + expected,
        f"{aliased} {found}",
        _where_parameter(program.plan, leaf.parameter_number),
        row.source or (row.writes.source if row.writes is not None else None),
        advice,
        f"leaves of {argument_name(leaf.path)!r}, {outcome}",
        leaf.size_bytes,
        leaf.path,
    )


def _not_donated(program: Program, leaf: ArgumentLeaf) -> Violation:
    plan, name = program.plan, argument_name(leaf.path)
    partner = partner_of(program, leaf)
    owner = program.owner_of_output.get(partner.path) if partner is not None else None
    found, returned = "", ""
    if partner is None:
        returned = "return its new value with its shape and dtype, and "
    elif owner is not None and owner.donated:
        found = f"; {partner.path} is aliased to {owner.path}"
        returned = "return one more value of its shape and dtype, and "
    else:
        found = f"; {partner.path} has a separate allocation"
    return Violation(
        _expected(leaf),
        f"it is not donated{found}",
        _where_parameter(plan, leaf.parameter_number),
        source_of(program, partner) or source_of(program, leaf),
        f"{returned}add the argument {name!r} to donate_argnums",
        f"leaves of {name!r}, not donated",
        leaf.size_bytes,
        leaf.path,
    )
