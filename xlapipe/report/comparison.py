"""Two dumps side by side: their totals, and sentences on what changed.

The totals are each plan's own, the sentences those of `xlapipe diff`.
"""

from dataclasses import asdict, dataclass

from xlapipe.diff import (
    Opened,
    account_sentences,
    change_sentences,
    compare_opened,
    program_sentences,
)
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
    """The difference of two dumps, in the words of `xlapipe diff`.

    Raises:
      DumpError: a text of a dump is damaged.
    """
    difference = compare_opened(
        Opened(before.path, before.program, before.dump),
        Opened(after.path, after.program, after.dump),
    )
    programs = program_sentences(difference)
    notes = [f"{name}: {one} → {other}" for name, (one, other) in difference.context.items()]
    if difference.same:
        notes.append("The plans are the same.")
    if programs:
        notes.append("These are different programs; what follows is a best effort.")
    if difference.first_stage is not None:
        notes.append(f"First apart in {difference.first_stage}.")
    said = [*programs, *account_sentences(difference), *change_sentences(difference)]
    return Comparison(
        before.name,
        after.name,
        compare_totals(before.plan, after.plan),
        tuple(notes),
        tuple(Sentence(each.text, each.delta_bytes) for each in said),
    )


def compare_totals(before: Plan, after: Plan) -> tuple[TotalRow, ...]:
    """Every total of the two plans, in the order of `Totals`."""
    old, new = asdict(before.totals), asdict(after.totals)
    return tuple(TotalRow(name, old[name], new[name]) for name in old)
