"""Cells of tables: what they hold, and their text on a terminal; Markdown and HTML have their own.

A text and a number are cells too.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from xlapipe.report.units import exact, microseconds, share, signed

if TYPE_CHECKING:
    from xlapipe.plans.peak import Arena, PeakGroup

_MAX_GAPS = 4


@dataclass(frozen=True, slots=True)
class Name:
    """A name of the program: an instruction, a path, a shape, a source line.

    Attributes:
      text: empty if it is unknown.
      members: all that the row is for, if there are several.
      about: what text has after it, and a page in other columns.
    """

    text: str
    members: tuple[str, ...] = ()
    about: str = ""

    @classmethod
    def of(cls, value: object) -> "Name":
        """The text of a value that may be None."""
        return cls("" if value is None else str(value))

    def __str__(self) -> str:
        several = f"{len(self.members)} such as " if len(self.members) > 1 else ""
        return f"{several}{self.text}{self.about}"


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes.

    Attributes:
      size_bytes: None if unknown.
      whole_bytes: what a page draws it as a part of; 0 for no bar.
      role: the role that gives the bar its colour.
    """

    size_bytes: int | None
    whole_bytes: int = 0
    role: str = ""

    def __str__(self) -> str:
        return "unknown" if self.size_bytes is None else exact(self.size_bytes)


@dataclass(frozen=True, slots=True)
class Seconds:
    """A time; None if unknown."""

    seconds: float | None

    def __str__(self) -> str:
        return microseconds(self.seconds)


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a whole."""

    part: float
    whole: float

    def __str__(self) -> str:
        return share(self.part, self.whole)


@dataclass(frozen=True, slots=True)
class Change:
    """A difference of the total `name`; None for a change without bytes."""

    name: str
    delta_bytes: int | None

    def __str__(self) -> str:
        return "" if self.delta_bytes is None else signed(self.delta_bytes)


@dataclass(frozen=True, slots=True)
class Outcome:
    """An outcome that is `good`, `bad` or `plain`."""

    text: str
    tone: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Held:
    """Values in memory that differ only by a number in their names."""

    group: "PeakGroup"

    def __str__(self) -> str:
        count = f" × {number}" if (number := len(self.group.values)) > 1 else ""
        return f"{self.group.label}{count}"


@dataclass(frozen=True, slots=True)
class Gaps:
    """The unused bytes of an allocation at the peak."""

    arena: "Arena"

    def __str__(self) -> str:
        gaps = self.arena.gaps_at_peak
        if self.arena.occupied_at_peak_bytes is None:
            return "unknown"
        shown = [f"{exact(gap.size_bytes)} at {gap.offset_bytes:,}" for gap in gaps[:_MAX_GAPS]]
        more = [f"… {len(gaps) - _MAX_GAPS} more"] if len(gaps) > _MAX_GAPS else []
        return "; ".join([*shown, *more]) or "none"


Cell = str | int | Name | Size | Seconds | Share | Change | Outcome | Held | Gaps


def cell_text(cell: Cell) -> str:
    """What a terminal shows of a cell."""
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def is_number(cell: Cell) -> bool:
    """Whether a cell is aligned right, and sorted by its value."""
    return isinstance(cell, (int, Size, Seconds, Share, Change))
