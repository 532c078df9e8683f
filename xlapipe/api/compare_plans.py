"""The difference of two plans as programs and notebooks use it."""

from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from xlapipe.api.shown_plan import Rows, html_table
from xlapipe.api.step_plan import StepPlan, read
from xlapipe.errors import XlapipeError


class PlanDifference:
    """What `xlapipe.diff` returns: the table of `xlapipe diff --base` for two plans.

    Attributes:
      a, b: the plans.
    """

    def __init__(self, a: StepPlan, b: StepPlan) -> None:
        self.a, self.b = a, b

    @cached_property
    def figures(self) -> dict[str, Any]:
        """The record that `xlapipe diff --base --json` lists below `changed`; bytes are ints."""
        from xlapipe.report.changed_dumps import changed_figures

        return changed_figures(self.b.opened.program.title, self.a.opened, self.b.opened)

    @property
    def same(self) -> bool:
        """Whether the plans are the same, whatever their settings and versions."""
        return bool(self.figures["same"])

    @property
    def verdict(self) -> str:
        """What B costs more than A, in a sentence."""
        return str(self.figures["verdict"])

    def table(self) -> Rows:
        """A row for each figure, with its value in A and in B; bytes are ints, times seconds."""
        before, after = self.figures["before"], self.figures["after"]
        return Rows({"figure": name, "a": before[name], "b": after[name]} for name in after)

    def __repr__(self) -> str:
        """The verdict, the table and the largest causes, as `xlapipe diff --base` prints them."""
        from xlapipe.report.changed_dumps import changed_lines

        return "\n".join(line.plain for line in changed_lines([self.figures]))

    def _repr_html_(self) -> str:
        causes = (
            f"<li>{escape(text)}</li>" for kind in self.figures["causes"].values() for text in kind
        )
        listed = f"<ul>{''.join(causes)}</ul>"
        return f"<p><b>{escape(self.verdict)}</b></p>{html_table(self.table())}{listed}"


def diff(a: StepPlan | str | Path, b: StepPlan | str | Path) -> PlanDifference:
    """What plan B costs more than plan A: bytes, predicted time, traffic, donation, recompiles.

    Args:
      a, b: plans, or what `xlapipe.read` takes.

    Raises:
      XlapipeError: one is a plan of torch Inductor, or cannot be read.
    """
    plans = [plan if isinstance(plan, StepPlan) else read(plan) for plan in (a, b)]
    for plan in plans:
        if not isinstance(plan, StepPlan):
            raise XlapipeError(
                "xlapipe.diff compares plans of XLA, found one of torch Inductor; fix: `xlapipe "
                "diff A B` shows it beside one of XLA"
            )
    return PlanDifference(*plans)  # type: ignore[arg-type]  # all are StepPlans
