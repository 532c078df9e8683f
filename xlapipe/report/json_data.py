"""A report as records: the JSON of `xlapipe report`, which HTML and Markdown render."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xlapipe.dump.opened import Opened
from xlapipe.plans.peak import Arena, PeakGroup, SourceRow, peak_of
from xlapipe.report.plan_figures import PlanFigures, figures_of
from xlapipe.report.records import row_of
from xlapipe.report.sections.aliasing import (
    NOT_ALIASED,
    AliasGroup,
    OwnOutput,
    alias_groups,
    own_outputs,
)
from xlapipe.report.sections.copies import CopyRow, copies
from xlapipe.report.sections.fusions import FusionRow, fusions
from xlapipe.report.sections.two_dumps import Comparison


@dataclass(frozen=True)
class PeakData:
    """What is in memory at the peak."""

    position: int | None
    instruction: str | None
    occupied_bytes: int
    idle_bytes: int
    groups: tuple[PeakGroup, ...]
    by_source: tuple[SourceRow, ...]


@dataclass(frozen=True)
class DumpData:
    """The sections of one dump.

    Attributes:
      figures: the JSON of `xlapipe show`.
      copies: None if the dump does not hold the bodies of fusions.
    """

    name: str
    figures: PlanFigures
    peak: PeakData
    arenas: tuple[Arena, ...]
    aliasing: tuple[AliasGroup, ...]
    outputs_of_their_own: tuple[OwnOutput, ...]
    copies: tuple[CopyRow, ...] | None
    fusions: tuple[FusionRow, ...]

    @property
    def copied_bytes(self) -> int | None:
        """Bytes of all copies; None if unknown."""
        return None if self.copies is None else sum(copy.copied_bytes for copy in self.copies)

    @property
    def not_aliased_bytes(self) -> int:
        """Donated, but not reused."""
        return sum(group.size_bytes for group in self.aliasing if group.answer == NOT_ALIASED)


def report_data(dumps: Sequence[Opened], comparison: Comparison | None = None) -> dict[str, Any]:
    """The JSON of `xlapipe report`; bytes are ints."""
    return {
        "subjects": [dump_data(dump) for dump in dumps],
        "difference": comparison,
    }


def dump_data(dump: Opened) -> DumpData:
    """The sections of one dump."""
    peak = peak_of(dump.program)
    return DumpData(
        name=dump.name,
        figures=figures_of(dump),
        peak=row_of(PeakData, peak),
        arenas=peak.arenas,
        aliasing=alias_groups(dump),
        outputs_of_their_own=own_outputs(dump),
        copies=copies(dump.plan),
        fusions=fusions(dump.plan),
    )
