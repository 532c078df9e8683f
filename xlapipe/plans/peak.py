"""The contents of memory at its peak: by name and by source line."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from xlapipe.plans.buffers import BufferAllocation
from xlapipe.plans.labels import Labels, labels_of, pattern_of
from xlapipe.plans.occupancy import CountedValue, Occupancy, Role
from xlapipe.plans.once import once_per_object
from xlapipe.plans.program import Program
from xlapipe.plans.short_repr import short_repr

NO_SOURCE = "no source line"


@dataclass(frozen=True, slots=True)
class PeakValue:
    """One value alive at the peak.

    Attributes:
      counted_bytes: its bytes minus those already counted for an overlapping value.
      source: the line that computes it or, for an argument, first reads it.
    """

    label: str
    value: str
    allocation: int
    counted_bytes: int
    size_bytes: int
    shape: str
    source: str | None


@dataclass(frozen=True, slots=True)
class PeakGroup:
    """Values that differ only by a number in their names, e.g. one leaf of every layer."""

    __repr__ = short_repr

    label: str
    role: Role
    counted_bytes: int
    sources: tuple[str, ...]
    values: tuple[PeakValue, ...]


@dataclass(frozen=True, slots=True)
class SourceRow:
    """Bytes at the peak by the source line that reads an argument or computes another value."""

    source: str
    argument_bytes: int
    made_bytes: int
    values: int
    total_bytes: int


@dataclass(frozen=True)
class Peak:
    """The contents of memory at the position where most bytes are in use.

    `total_allocation_bytes` = `occupied_bytes` + `idle_bytes` + `thread_local_bytes`.

    Args:
      occupancy: without live ranges there is no position, and every value is counted.
    """

    __repr__ = short_repr

    occupancy: Occupancy
    labels: Labels

    @property
    def position(self) -> int | None:
        """The schedule position; None without live ranges."""
        return self.occupancy.peak_position

    @cached_property
    def instruction(self) -> str | None:
        """The instruction at the peak; None after the last one, or if unknown."""
        live = self.occupancy.plan.live_ranges
        if live is None or self.position is None or self.position >= len(live.schedule):
            return None
        return live.schedule[self.position]

    @cached_property
    def contents(self) -> tuple[CountedValue, ...]:
        """The values alive at the peak."""
        return self.occupancy.contents(self.position)

    @cached_property
    def occupied_bytes(self) -> int:
        """Bytes in use at the peak."""
        return sum(held.counted_bytes for held in self.contents)

    @property
    def idle_bytes(self) -> int:
        """Reserved in device memory, but not in use at this position."""
        totals = self.occupancy.plan.totals
        return totals.total_allocation_bytes - totals.thread_local_bytes - self.occupied_bytes

    @cached_property
    def groups(self) -> tuple[PeakGroup, ...]:
        """Contents by name, largest first; their bytes add up to `occupied_bytes`."""
        return self._grouped(self.contents)

    @cached_property
    def values(self) -> tuple[PeakValue, ...]:
        """Contents, largest first; their bytes add up to `occupied_bytes`."""
        values = [value for group in self.groups for value in group.values]
        return tuple(sorted(values, key=lambda value: (-value.counted_bytes, value.label)))

    @cached_property
    def by_source(self) -> tuple[SourceRow, ...]:
        """Contents by source line, largest first; their bytes add up to `occupied_bytes`."""
        read_bytes: Counter[str] = Counter()
        made_bytes: Counter[str] = Counter()
        count: Counter[str] = Counter()
        for group in self.groups:
            is_argument = group.role in (Role.PARAMETER, Role.ALIAS)
            by_source = read_bytes if is_argument else made_bytes
            for value in group.values:
                source = value.source or NO_SOURCE
                by_source[source] += value.counted_bytes
                count[source] += 1
        rows = [
            SourceRow(source, read, made, values, read + made)
            for source, values in count.items()
            for read, made in [(read_bytes[source], made_bytes[source])]
        ]
        return tuple(sorted(rows, key=lambda row: (-row.total_bytes, row.source)))

    def _grouped(self, contents: Iterable[CountedValue]) -> tuple[PeakGroup, ...]:
        gathered: dict[tuple[Role, str, str], list[PeakValue]] = {}
        for held in contents:
            value = self._value(held)
            made = held.role in (Role.OUTPUT, Role.TEMP)
            key = held.role, pattern_of(value.label), (value.source or "") if made else ""
            gathered.setdefault(key, []).append(value)
        groups = [_group(key[0], key[1], values) for key, values in gathered.items()]
        return tuple(
            sorted(groups, key=lambda group: (-group.counted_bytes, group.role, group.label))
        )

    def _value(self, held: CountedValue) -> PeakValue:
        source = self.occupancy.plan.nearest_source(held.value.name)
        return PeakValue(
            label=self.labels.value(held.allocation, held.value, held.role),
            value=held.value.name,
            allocation=held.allocation.index,
            counted_bytes=held.counted_bytes,
            size_bytes=held.value.size_bytes,
            shape=held.value.shape.text,
            source=str(source) if source is not None else None,
        )

    def groups_in(self, allocation: BufferAllocation) -> tuple[PeakGroup, ...]:
        """The contents of one allocation where it is fullest, which determine its size."""
        fullest = self.occupancy.fullest(allocation)
        return self._grouped(self.occupancy.contents(fullest[0] if fullest else None, [allocation]))


@once_per_object
def peak_of(program: Program) -> Peak:
    """The peak of a program."""
    return Peak(Occupancy(program.plan), labels_of(program))


def _group(role: Role, pattern: str, values: list[PeakValue]) -> PeakGroup:
    sources = dict.fromkeys(value.source for value in values if value.source is not None)
    return PeakGroup(
        label=values[0].label if len({value.label for value in values}) == 1 else pattern,
        role=role,
        counted_bytes=sum(value.counted_bytes for value in values),
        sources=tuple(sources),
        values=tuple(values),
    )
