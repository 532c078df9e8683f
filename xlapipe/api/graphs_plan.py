"""The plan of a dump of torch Inductor."""

from functools import cached_property
from typing import Any

from xlapipe.api.answer import Answer
from xlapipe.api.shown_plan import ShownPlan, framed
from xlapipe.inductor.inductor_plan import InductorPlan
from xlapipe.inductor.reader import InductorDump


class GraphsPlan(ShownPlan):
    """What `xlapipe.read` returns for a dump of torch Inductor. Bytes are ints, on one device.

    Attributes:
      dump: the graphs that were read.
    """

    def __init__(self, dump: InductorDump) -> None:
        self.dump = dump

    def __repr__(self) -> str:
        peak = self.figures["totals"]["own_peak_bytes"]
        graphs = "1 graph" if len(self.graphs) == 1 else f"{len(self.graphs)} graphs"
        return f"<plan of {graphs} of torch Inductor: own peak {peak:,} B>"

    @property
    def graphs(self) -> tuple[InductorPlan, ...]:
        """One plan per graph: forward and inference graphs by name, then backward graphs."""
        return self.dump.plans

    @cached_property
    def figures(self) -> dict[str, Any]:
        """What `xlapipe show --json` prints; the figures of each graph are under `graphs`."""
        from xlapipe.report.inductor_figures import inductor_figures
        from xlapipe.report.records import plain_data

        figures: dict[str, Any] = plain_data(inductor_figures(self.dump))
        return figures

    def check(self) -> Answer:
        """An answer that holds: the plan's invariants were checked when it was read."""
        return Answer(True, "the plan's invariants hold")

    def to_html(self) -> str:
        """The page of `xlapipe report`: one HTML document that needs no script."""
        from xlapipe.report.html_page import render_tables_page
        from xlapipe.report.inductor_page import inductor_page

        return render_tables_page([inductor_page(self.dump)])

    def _repr_html_(self) -> str:
        return framed(self.to_html())
