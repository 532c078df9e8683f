"""The section about the difference of two dumps: their totals, and the sentences of `diff`."""

from dataclasses import asdict, dataclass

from xlapipe.diff import Sentence, compare_opened
from xlapipe.dump.opened import Opened
from xlapipe.plans import Plan


@dataclass(frozen=True, slots=True)
class TotalRow:
    """One total of both plans, in bytes."""

    name: str
    before: int
    after: int

    @property
    def delta_bytes(self) -> int:
        """Positive if the second plan needs more."""
        return self.after - self.before


@dataclass(frozen=True)
class Comparison:
    """The first section of a report on two dumps.

    Attributes:
      before: name of the first dump.
      after: name of the second dump.
      notes: what to know before reading the sentences, e.g. that the programs differ.
      sentences: in the order to show them.
    """

    before: str
    after: str
    totals: tuple[TotalRow, ...]
    notes: tuple[str, ...] = ()
    sentences: tuple[Sentence, ...] = ()


def compare_dumps(before: Opened, after: Opened) -> Comparison:
    """The difference of two dumps, as `xlapipe diff` states it.

    Raises:
      DumpError: a text in a dump is damaged.
    """
    difference = compare_opened(before, after)
    notes = difference.context_lines()
    if difference.same:
        notes.append("The plans are the same.")
    if difference.programs_note is not None:
        note = difference.programs_note
        notes.append(f"{note[0].upper()}{note[1:]}.")
    if difference.first_stage is not None:
        notes.append(f"First stage that differs: {difference.first_stage}.")
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
