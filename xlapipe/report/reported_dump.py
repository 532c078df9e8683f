"""One dump of a report: what was read, and what the report derives from it."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from xlapipe.dumps.opened import Opened, open_path
from xlapipe.plans import Plan
from xlapipe.plans.occupancy import Occupancy
from xlapipe.plans.program import ArgumentLeaf
from xlapipe.report.labels import Labels
from xlapipe.report.plan_figures import PlanFigures, opened_figures
from xlapipe.report.sections.peak import Peak


@dataclass(frozen=True)
class ReportedDump:
    """A dump to report on.

    Attributes:
      name: the path as the user gave it.
    """

    name: str
    opened: Opened

    @property
    def plan(self) -> Plan:
        """The plan of the dump."""
        return self.opened.plan

    @property
    def arguments(self) -> tuple[ArgumentLeaf, ...]:
        """Empty for a dump that xlapipe did not write."""
        return self.opened.program.arguments

    @cached_property
    def labels(self) -> Labels:
        """Names for the values of the plan."""
        program = self.opened.program
        return Labels(self.plan, program.arguments, program.outputs)

    @cached_property
    def peak(self) -> Peak:
        """The contents of memory at the peak."""
        return Peak(Occupancy(self.plan), self.labels)

    @cached_property
    def figures(self) -> PlanFigures:
        """The JSON of `xlapipe show`."""
        return opened_figures(self.opened)


def read_reported_dump(path: Path) -> ReportedDump:
    """Reads anything that `xlapipe show` reads.

    Raises:
      DumpError: see `xlapipe.dumps.opened.open_path`.
    """
    return ReportedDump(str(path), open_path(path))
