"""The difference between two plans: totals, changes, and the sentences that state them."""

from collections.abc import Mapping
from dataclasses import dataclass

from xlapipe.differences.changes import BytesChange, Change, LeafChange
from xlapipe.differences.sentences import (
    Sentences,
    account_sentences,
    change_sentences,
    leaf_sentences,
)
from xlapipe.differences.time_changes import TimeChange
from xlapipe.plans import Totals


@dataclass(frozen=True)
class Difference:
    """Everything that differs between the plans A and B.

    Attributes:
      context: settings and versions that differ: `jaxlib` to ("0.10.2", "0.11.2").
      programs: how the programs themselves differ; if not empty, two programs were compared, not
        two compiles of one program.
      account: lines whose deltas add up to the difference of `total_allocation_bytes`.
      changes: everything else that differs, the most bytes written first.
      first_stage: the compiler stage at which the two first differ; None if they do not, or if
        the dumps do not contain the texts to decide it.
      time: how the cost of the step differs, by source line.
    """

    a_name: str
    b_name: str
    a_totals: Totals
    b_totals: Totals
    context: Mapping[str, tuple[str, str]]
    programs: tuple[LeafChange, ...]
    account: tuple[BytesChange, ...]
    changes: tuple[Change, ...]
    first_stage: str | None = None
    time: tuple[TimeChange, ...] = ()

    @property
    def delta_bytes(self) -> int:
        """Total of B minus total of A; the sum of the lines of `account`."""
        return self.b_totals.total_allocation_bytes - self.a_totals.total_allocation_bytes

    @property
    def same(self) -> bool:
        """Whether the plans are the same, whatever their settings and versions."""
        return not (self.programs or self.account or self.changes)

    @property
    def programs_note(self) -> str | None:
        """How far instructions can be paired; None if the programs have equal leaves."""
        if not self.programs:
            return None
        if all(change.donation_only for change in self.programs):
            return "the programs differ only in what is donated"
        return "the programs differ, so their instructions are paired approximately"

    def context_lines(self) -> list[str]:
        """Each setting or version that differs: `jaxlib: 0.10.2 → 0.11.2`."""
        return [f"{name}: {a} → {b}" for name, (a, b) in self.context.items()]

    def sentences(self) -> Sentences:
        """The difference in words; every output lists it in the order of `Sentences`."""
        return Sentences(
            programs=leaf_sentences(self.programs),
            account=account_sentences(self.account),
            changes=change_sentences(self.changes),
        )
