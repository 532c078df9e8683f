"""Live ranges of values, in schedule positions (never time)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from xlapipe.plans.short_repr import short_repr


@dataclass(frozen=True, slots=True)
class LiveRange:
    """A value is alive from schedule position `start` to `end`, both included."""

    name: str
    start: int
    end: int


@dataclass(frozen=True)
class LiveRanges:
    """XLA's HloLiveRange.

    Attributes:
      schedule: instruction names by position, called computations flattened in.
      live_range_peak_position: schedule position at which the sum of live values is largest.
      live_range_peak_bytes: that sum. Some XLA versions count aliases twice in it, so it is not the
        allocation total.
    """

    __repr__ = short_repr

    schedule: tuple[str, ...]
    ranges: tuple[LiveRange, ...]
    live_range_peak_position: int | None
    live_range_peak_bytes: int | None

    @cached_property
    def by_name(self) -> Mapping[str, LiveRange]:
        """The ranges by the value's name."""
        return {live.name: live for live in self.ranges}

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """Schedule positions by the instruction's name."""
        return {name: position for position, name in enumerate(self.schedule)}
