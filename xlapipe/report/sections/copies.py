"""The section about copies: values that were written by only moving data."""

from dataclasses import dataclass

from xlapipe.plans import Plan, SourceLine
from xlapipe.plans.copies import find_copies
from xlapipe.report.records import row_of


@dataclass(frozen=True, slots=True)
class CopyRow:
    """A value that is written by only moving data."""

    instruction: str
    value: str
    copied_bytes: int
    allocation: int
    op_name: str | None
    source: SourceLine | None


def copies(plan: Plan) -> tuple[CopyRow, ...] | None:
    """Copies, largest first; None if the dump does not contain the bodies of fusions."""
    if plan.module is None or not plan.module.complete:
        return None
    return tuple(row_of(CopyRow, copy) for copy in find_copies(plan))
