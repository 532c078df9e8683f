"""Two programs, or two dumps, to a Difference."""

from collections.abc import Mapping

from xlapipe.diff.account import account
from xlapipe.diff.changes import (
    Change,
    Difference,
    InstructionChange,
)
from xlapipe.diff.described import Described
from xlapipe.diff.instructions import instruction_changes
from xlapipe.diff.interface import alias_changes, leaf_changes, output_changes
from xlapipe.diff.matching import match
from xlapipe.diff.schedule import order_change, placement_changes, thunk_changes
from xlapipe.plan.program import Program


def compare(
    a: Program,
    b: Program,
    *,
    names: tuple[str, str] = ("A", "B"),
    context: Mapping[str, tuple[str, str]] | None = None,
) -> Difference:
    """All that is different between the plans of two programs.

    The lines of `account` add up to the difference of the totals, whatever the two are.
    """
    matching = match(a, b)
    ours, theirs = Described(matching.a), Described(matching.b)
    instructions = tuple(instruction_changes(matching, ours, theirs))
    lines = account(matching, ours, theirs, instructions)
    ordered = sorted(instructions, key=lambda change: -_written(change))
    changes: list[Change] = [*ordered, *alias_changes(matching)]
    changes += output_changes(matching, ours, theirs)
    changes += thunk_changes(matching)
    changes += order_change(matching)
    changes += placement_changes(matching)
    return Difference(
        a_name=names[0],
        b_name=names[1],
        a_totals=a.plan.totals,
        b_totals=b.plan.totals,
        context=context or {},
        programs=tuple(leaf_changes(matching)),
        account=lines,
        changes=tuple(changes),
    )


def _written(change: InstructionChange) -> int:
    return max(change.a_bytes or 0, change.b_bytes or 0)
