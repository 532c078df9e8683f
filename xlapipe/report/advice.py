"""Changes that lower a program's memory, as JSON and as lines of text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from xlapipe.report.records import named
from xlapipe.report.target_text import short_label
from xlapipe.report.units import exact, rounded, share, with_error
from xlapipe.report.wrapped_text import wrapped


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


@dataclass(frozen=True)
class Advice:
    """What was tried for one workload.

    Attributes:
      workload: its name.
      device: the target, with the topology if there are several devices.
      total_bytes: total of the unchanged plan.
      usable_bytes: what a program may use of the device's memory.
      error_bytes: how far the total may be from the device's; see `plan_error_bytes`.
      autotuning: the label of the unchanged plan.
      tried: the changes.
      notes: what was not tried.
    """

    workload: str
    device: str
    total_bytes: int
    usable_bytes: int
    error_bytes: int
    autotuning: str
    tried: TriedChanges
    notes: Sequence[str] = ()


def advice_figures(advice: Advice) -> dict[str, Any]:
    """The JSON of `xlapipe advise`."""
    return {
        **named(advice, "workload", "device", "total_bytes", "usable_bytes", "error_bytes"),
        **named(advice, "autotuning", "notes"),
        "remedies": remedy_figures(advice.tried.remedies),
        "useless": advice.tried.useless,
        "failed": [{"change": change, "error": error} for change, error in advice.tried.failed],
        "fits": advice.total_bytes <= advice.usable_bytes,
    }


def remedy_figures(remedies: Sequence[Remedy]) -> list[dict[str, Any]]:
    """The JSON of changes that save memory."""
    return [
        {"bytes": remedy.saved_bytes, **named(remedy, "change", "total_bytes", "fits")}
        for remedy in remedies
    ]


def advice_lines(advice: Advice, *, width: int) -> Iterator[str]:
    """The total, and what each change saves."""
    room = advice.usable_bytes - advice.total_bytes
    margin = with_error(abs(room), advice.error_bytes)
    state = f"fits with {margin} to spare" if room >= 0 else f"{margin} too much"
    yield from wrapped(
        f"{advice.workload} on {advice.device}: {rounded(advice.total_bytes)} of "
        f"{rounded(advice.usable_bytes)} usable, {state}",
        width,
        indent=2,
        first="",
    )
    yield f"  {short_label(advice.autotuning)}"
    yield (
        "Compiled changes, by what they save"
        if advice.tried.remedies
        else ("No compiled change saves memory")
    )
    saved = [rounded(remedy.saved_bytes) for remedy in advice.tried.remedies]
    digits = max(map(len, saved), default=0)
    for remedy, text in zip(advice.tried.remedies, saved, strict=True):
        part = share(remedy.saved_bytes, advice.total_bytes)
        fits = "" if remedy.fits is None or room >= 0 else ", fits" if remedy.fits else ", too much"
        first = f"  {text:>{digits}} {part:>7}  "
        total = f"total {rounded(remedy.total_bytes)} ({exact(remedy.total_bytes)}){fits}"
        yield from wrapped(f"{remedy.change}; {total}", width, indent=len(first), first=first)
    for line in advice.tried.unhelpful():
        yield from wrapped(line, width, indent=6, first="  ")
    for note in advice.notes:
        yield from wrapped(note, width, indent=2, first="")
