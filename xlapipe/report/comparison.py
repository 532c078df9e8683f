"""Two dumps side by side: their totals, and sentences on what changed.

The totals are each plan's own. The sentences come from whoever compares the plans; this module
only says what form they have.
"""

from dataclasses import asdict, dataclass

from xlapipe.plan import Plan
from xlapipe.report.subject import Subject


@dataclass(frozen=True, slots=True)
class Sentence:
    """One change in words.

    Attributes:
      delta_bytes: what it adds to the total; None for what costs nothing.
    """

    text: str
    delta_bytes: int | None


@dataclass(frozen=True, slots=True)
class TotalRow:
    """One figure of both plans."""

    name: str
    before: int
    after: int

    @property
    def delta_bytes(self) -> int:
        return self.after - self.before


@dataclass(frozen=True)
class Comparison:
    """What a report of two dumps shows first.

    Attributes:
      notes: what has to be known before the sentences, e.g. that these are different programs.
      sentences: in the order in which they are shown.
    """

    before: str
    after: str
    totals: tuple[TotalRow, ...]
    notes: tuple[str, ...] = ()
    sentences: tuple[Sentence, ...] = ()


def compare(before: Subject, after: Subject) -> Comparison:
    """The difference of two dumps."""
    return Comparison(before.name, after.name, compare_totals(before.plan, after.plan))


def compare_totals(before: Plan, after: Plan) -> tuple[TotalRow, ...]:
    """Every total of the two plans, in the order of `Totals`."""
    old, new = asdict(before.totals), asdict(after.totals)
    return tuple(TotalRow(name, old[name], new[name]) for name in old)
