"""Cells of tables: what they hold, and their text on a terminal; HTML has its own.

A text and a number are cells too.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from xlapipe.report import units

if TYPE_CHECKING:
    from xlapipe.plans.peak import PeakGroup


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
class Number:
    """A number that is aligned right, and by whose value a page sorts.

    Attributes:
      tone: `better` or `worse` for a change.
    """

    value: float
    text: str
    short: str = ""
    tone: str = ""

    def __str__(self) -> str:
        return self.text


def size(size_bytes: int | None) -> Number:
    """Bytes; None if unknown."""
    if size_bytes is None:
        return Number(0, "unknown")
    short, text = units.rounded(size_bytes), units.exact(size_bytes)
    return Number(size_bytes, text, short if short != text else "")


def known(number: int | None) -> int | str:
    """A number that may be unknown."""
    return "unknown" if number is None else number


def seconds(number: float | None) -> Number:
    """A time; None if unknown."""
    return Number(number or 0, units.microseconds(number))


def share(part: float, whole: float) -> Number:
    return Number(part, units.share(part, whole))


def change(name: str, delta_bytes: int | None) -> Number | str:
    """A difference of the total `name`; None for a change without bytes."""
    if delta_bytes is None:
        return ""
    tone = units.change_class(name, delta_bytes) if delta_bytes else ""
    return Number(delta_bytes, f"{delta_bytes:+,} B", tone=tone)


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


Cell = str | int | Name | Number | Outcome | Held


def cell_text(cell: Cell) -> str:
    """What a terminal shows of a cell."""
    return f"{cell:,}" if isinstance(cell, int) else str(cell)
