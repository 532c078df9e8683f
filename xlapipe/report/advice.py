"""Changes that lower a program's memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from xlapipe.report.records import named


@dataclass(frozen=True)
class Remedy:
    """A change that was compiled, and what it saves.

    Attributes:
      change: in words.
      saved_bytes: decrease of the plan's total; positive.
      total_bytes: total of the changed plan.
      fits: whether the changed plan fits the limit; None if no limit is known.
    """

    change: str
    saved_bytes: int
    total_bytes: int
    fits: bool | None = None


@dataclass(frozen=True)
class TriedChanges:
    """The changes that were compiled.

    Attributes:
      remedies: those whose plan is smaller, most bytes saved first.
      useless: those whose plan is not.
      failed: those that do not compile, each with the first line of its error; not those of a size
        that the workload does not have.
    """

    remedies: tuple[Remedy, ...]
    useless: tuple[str, ...]
    failed: tuple[tuple[str, str], ...]

    def unhelpful(self) -> Iterator[str]:
        """A line for each change that saves nothing."""
        yield from (f"saves nothing: {change}" for change in self.useless)
        yield from (f"does not compile: {change}: {error}" for change, error in self.failed)


def remedy_figures(remedies: Sequence[Remedy]) -> list[dict[str, Any]]:
    """The JSON of changes that save memory."""
    return [
        {"bytes": remedy.saved_bytes, **named(remedy, "change", "total_bytes", "fits")}
        for remedy in remedies
    ]
