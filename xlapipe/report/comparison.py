"""Two dumps side by side: their totals, and sentences on what changed.

The totals are each plan's own, the sentences those of `xlapipe diff`.
"""

from dataclasses import asdict, dataclass

from xlapipe.diff import Sentence, compare_opened
from xlapipe.plan import Plan
from xlapipe.report.subject import Subject


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
    """The difference of two dumps, in the words of `xlapipe diff`.

    Raises:
      DumpError: a text of a dump is damaged.
    """
    difference = compare_opened(
        before.opened,
        after.opened,
    )
    notes = difference.context_lines()
    if difference.same:
        notes.append("The plans are the same.")
    if difference.programs:
        notes.append("These are different programs; what follows is a best effort.")
    if difference.first_stage is not None:
        notes.append(f"First apart in {difference.first_stage}.")
    return Comparison(
        before.name,
        after.name,
        compare_totals(before.plan, after.plan),
        tuple(notes),
        tuple(difference.sentences()),
    )


def compare_totals(before: Plan, after: Plan) -> tuple[TotalRow, ...]:
    """Every total of the two plans, in the order of `Totals`."""
    old, new = asdict(before.totals), asdict(after.totals)
    return tuple(TotalRow(name, old[name], new[name]) for name in old)
