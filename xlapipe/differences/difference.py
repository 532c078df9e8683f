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
from xlapipe.plans.compile_times import CompileTimes


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
      compile_times: what the two compiles took; None if either is unknown.
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
    compile_times: tuple[CompileTimes, CompileTimes] | None = None

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

    @property
    def compile_time_ratio(self) -> float | None:
        """CPU time of B's compile relative to A's; None if it is unknown or not comparable."""
        if self.compile_times is None:
            return None
        a, b = self.compile_times
        return b.ratio_to(a)

    @property
    def compile_time_text(self) -> str:
        """What the two compiles took, by stage; empty if either is unknown."""
        if self.compile_times is None:
            return ""
        a, b = self.compile_times
        ratio = self.compile_time_ratio
        text = f"compile time: {a.cpu_seconds:.1f} -> {b.cpu_seconds:.1f} s of CPU"
        if ratio is None:
            return f"{text}, not compared: on {a.machine}, and on {b.machine}"
        stages = [
            f"{name} {stage.cpu:.1f} -> {b.stages[name].cpu:.1f} s"
            for name, stage in a.stages.items()
            if name in b.stages
        ]
        return f"{text}, {ratio:.2f} times ({', '.join(stages)})"

    def sentences(self) -> Sentences:
        """The difference in words; every output lists it in the order of `Sentences`."""
        return Sentences(
            programs=leaf_sentences(self.programs),
            account=account_sentences(self.account),
            changes=change_sentences(self.changes),
        )
