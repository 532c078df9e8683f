"""One dump of a report: what was opened, and what the report derives from it."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from xlapipe.dumps.opened import Opened, open_path
from xlapipe.plan import Plan
from xlapipe.plan.occupancy import Occupancy
from xlapipe.plan.program import ArgumentLeaf
from xlapipe.report.figures import opened_figures
from xlapipe.report.labels import Labels
from xlapipe.report.peak import Peak


@dataclass(frozen=True)
class Subject:
    """A dump to report on.

    Attributes:
      name: the path as the user gave it.
    """

    name: str
    opened: Opened

    @property
    def plan(self) -> Plan:
        return self.opened.plan

    @property
    def arguments(self) -> tuple[ArgumentLeaf, ...]:
        """Empty for a dump that xlapipe did not write."""
        return self.opened.program.arguments

    @cached_property
    def labels(self) -> Labels:
        program = self.opened.program
        return Labels(self.plan, program.arguments, program.outputs)

    @cached_property
    def peak(self) -> Peak:
        return Peak(Occupancy(self.plan), self.labels)

    @cached_property
    def figures(self) -> dict[str, Any]:
        """The JSON of `xlapipe show`."""
        return opened_figures(self.opened)


def read_subject(path: Path) -> Subject:
    """Reads what `xlapipe show` reads.

    Raises:
      DumpError: as `xlapipe.dumps.opened.open_path`.
    """
    return Subject(str(path), open_path(path))
