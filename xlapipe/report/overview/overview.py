"""The figures of the overview of a plan. Bytes are on one device."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from xlapipe.devices.targets.catalogue import target_named
from xlapipe.devices.targets.target import Target
from xlapipe.devices.targets.target_config import target_attached
from xlapipe.errors import TargetError
from xlapipe.plans import AllocationKind, Plan, SourceLine
from xlapipe.plans.labels import Labels, labels_of, pattern_of
from xlapipe.plans.occupancy import CountedValue, Role
from xlapipe.plans.peak import Peak, peak_of
from xlapipe.plans.phases import Phase, phases_of
from xlapipe.plans.purposes import Purpose, Use, Uses
from xlapipe.plans.usable_memory import UsableMemory, usable_memory
from xlapipe.report.overview.wording import ShortNames, short_names
from xlapipe.report.xla_subject import XlaSubject
from xlapipe.time.predicted_locks.plan_error import plan_error_bytes

_KEY = re.compile(r"[^\[.]+|\[[^\]]*\]|\.[^\[.]*|.")


@dataclass(frozen=True, slots=True)
class PurposeRow:
    """Bytes at the peak by purpose."""

    purpose: Purpose
    counted_bytes: int
    values: int


@dataclass(frozen=True, slots=True)
class LineRow:
    """Values at the peak of one purpose and one source line, or of one argument.

    Attributes:
      name: the source line, or the path that the arguments' leaves have in common.
      source: the line that computes the values or, for arguments, reads most of them; None if
        unknown.
      shapes: with the number of values of each, most bytes first.
      until: lines at which lifetimes end, most bytes first.
      in_place_bytes: bytes of arguments that an output is written over.
      written_later: whether they are outputs whose memory is not in use at the peak: XLA allocates
        it for the whole step.
    """

    name: str
    purpose: Purpose
    source: SourceLine | None
    counted_bytes: int
    values: int
    shapes: tuple[tuple[str, int], ...]
    until: tuple[SourceLine, ...]
    until_phase: Phase | None
    in_place_bytes: int
    written_later: bool = False


@dataclass(frozen=True)
class Overview:
    """What the overview shows of a dump."""

    opened: XlaSubject

    def json_fields(self) -> dict[str, Any]:
        """The overview in the JSON of `xlapipe show`."""
        memory = self.memory
        return {
            "total_bytes": self.total_bytes,
            "usable_bytes": memory.usable_bytes if memory is not None else None,
            "error_bytes": self.error_bytes,
            "other_plan": self.opened.other_plan,
            "peak_position": self.peak.position,
            "peak_phase": self.peak_phase,
            "peak_source": self.peak_source,
            "by_purpose": self.by_purpose,
            "idle_bytes": self.idle_bytes,
            "by_line": self.rows,
        }

    @property
    def plan(self) -> Plan:
        return self.opened.plan

    @property
    def peak(self) -> Peak:
        """The contents of memory at the peak."""
        return peak_of(self.opened.program)

    @property
    def _labels(self) -> Labels:
        return labels_of(self.opened.program)

    @cached_property
    def uses(self) -> Uses:
        """What each value is for."""
        return Uses(self.peak.occupancy, self._labels)

    @cached_property
    def total_bytes(self) -> int:
        """What XLA allocates in device memory."""
        totals = self.plan.totals
        return totals.total_allocation_bytes - totals.thread_local_bytes

    @cached_property
    def error_bytes(self) -> int:
        """How far the total may be from the device's, by what its autotune results rest on."""
        dump = self.opened.dump
        if dump is None:
            return 0
        manifest = dump.manifest
        return plan_error_bytes(
            self.plan, tuned=manifest.tuned_or_none, predicted_lock=manifest.predicted_lock
        )

    @cached_property
    def memory(self) -> UsableMemory | None:
        """The device's memory; None if the target is unknown."""
        dump = self.opened.dump
        target = target_of(self.opened)
        if target is None or dump is None:
            return None
        return usable_memory(target, self.plan, libtpu=dump.manifest.versions.get("libtpu"))

    @cached_property
    def peak_phase(self) -> Phase | None:
        name = self.peak.instruction
        return phases_of(self.plan).of(name) if name is not None else None

    @cached_property
    def peak_source(self) -> SourceLine | None:
        name = self.peak.instruction
        return self.plan.nearest_source(name) if name is not None else None

    @cached_property
    def _used(self) -> tuple[tuple[CountedValue, Use], ...]:
        return tuple((counted, self.uses.of(counted)) for counted in self.peak.contents)

    @cached_property
    def by_purpose(self) -> tuple[PurposeRow, ...]:
        """Largest first; with `idle_bytes` they total `total_bytes`."""
        sizes: Counter[Purpose] = Counter()
        count: Counter[Purpose] = Counter()
        for counted, use in self._used:
            sizes[use.purpose] += counted.counted_bytes
            count[use.purpose] += bool(counted.counted_bytes)
        for row in self._unwritten_outputs:
            sizes[row.purpose] += row.counted_bytes
            count[row.purpose] += row.values
        rows = [PurposeRow(purpose, sizes[purpose], count[purpose]) for purpose in sizes]
        return tuple(sorted(rows, key=lambda row: (-row.counted_bytes, row.purpose)))

    @property
    def idle_bytes(self) -> int:
        """Allocated, and not in use at the peak, for anything but outputs."""
        return self.peak.idle_bytes - sum(row.counted_bytes for row in self._unwritten_outputs)

    @cached_property
    def _unwritten_outputs(self) -> tuple[LineRow, ...]:
        """The outputs, not written over arguments, whose memory is not all in use at the peak."""
        in_use: Counter[int] = Counter()
        for held in self.peak.contents:
            in_use[held.allocation.index] += held.counted_bytes
        groups: dict[str, list[tuple[str, int, str]]] = {}
        for allocation in self.plan.device_allocations:
            left = allocation.size_bytes - in_use[allocation.index]
            is_output = allocation.is_a(AllocationKind.MAYBE_LIVE_OUT)
            if not is_output or allocation.parameter_number is not None or left <= 0:
                continue
            label = self._labels.output(allocation) or f"output in allocation {allocation.index}"
            shape = max(allocation.values, key=lambda value: value.size_bytes).shape
            name = "".join(_KEY.findall(label)[:2])
            groups.setdefault(name, []).append((label, left, shape.without_layout))
        rows = []
        for members in groups.values():
            labels, sizes, shapes = zip(*members, strict=True)
            rows.append(
                LineRow(
                    name=common_path(labels),
                    purpose=Purpose.OUTPUT,
                    source=None,
                    counted_bytes=sum(sizes),
                    values=len(members),
                    shapes=tuple(Counter(shapes).most_common()),
                    until=(),
                    until_phase=None,
                    in_place_bytes=0,
                    written_later=True,
                )
            )
        return tuple(rows)

    @cached_property
    def rows(self) -> tuple[LineRow, ...]:
        """Largest first; their bytes are those of `by_purpose`."""
        groups: dict[tuple[Purpose, str], list[tuple[CountedValue, Use]]] = {}
        for counted, use in self._used:
            if not counted.counted_bytes:
                continue  # in the memory of another value
            groups.setdefault((use.purpose, self._group_name(counted)), []).append((counted, use))
        rows = [self._row(key[0], key[1], members) for key, members in groups.items()]
        rows += self._unwritten_outputs
        return tuple(sorted(rows, key=lambda row: (-row.counted_bytes, row.purpose, row.name)))

    def _group_name(self, counted: CountedValue) -> str:
        if _is_argument(counted):
            keys = _KEY.findall(self._labels.parameter(counted.allocation))
            return "".join(keys[: 2 if keys[0] in self._mixed_arguments else 1])
        source = self.plan.nearest_source(counted.value.name)
        if source is None and (counted.role is Role.OUTPUT or not self.has_lines):
            held = counted.allocation, counted.value, counted.role
            return pattern_of(self._labels.value(*held))
        return str(source) if source is not None else ""

    @cached_property
    def has_lines(self) -> bool:
        """Whether any value has a source line; else rows are operations of the traced program."""
        return any(self.plan.nearest_source(counted.value.name) for counted in self.peak.contents)

    @cached_property
    def _mixed_arguments(self) -> frozenset[str]:
        """Arguments whose leaves have several purposes, such as a state with weights in it."""
        purposes: dict[str, set[Purpose]] = {}
        for counted, use in self._used:
            if _is_argument(counted):
                label = self._labels.parameter(counted.allocation)
                purposes.setdefault(_KEY.findall(label)[0], set()).add(use.purpose)
        return frozenset(name for name, several in purposes.items() if len(several) > 1)

    @cached_property
    def named(self) -> ShortNames:
        """Writes source lines shortly."""
        lines = (instruction.source for instruction in self.plan.instructions.values())
        return short_names({line.file for line in lines if line is not None})

    def _row(
        self, purpose: Purpose, name: str, members: Sequence[tuple[CountedValue, Use]]
    ) -> LineRow:
        sizes: Counter[SourceLine | None] = Counter()
        until: Counter[SourceLine] = Counter()
        phases: Counter[Phase | None] = Counter()
        shapes: Counter[str] = Counter()
        count: Counter[str] = Counter()
        for counted, use in members:
            size, shape = counted.counted_bytes, counted.value.shape.without_layout
            sizes[self.plan.nearest_source(counted.value.name)] += size
            shapes[shape] += size
            count[shape] += 1
            phases[use.until_phase] += size
            if use.until is not None:
                until[use.until] += size
        if _is_argument(members[0][0]):
            labels = [self._labels.parameter(counted.allocation) for counted, _ in members]
            name = common_path(labels)
        return LineRow(
            name=name,
            purpose=purpose,
            source=sizes.most_common(1)[0][0],
            counted_bytes=sum(counted.counted_bytes for counted, _ in members),
            values=len(members),
            shapes=tuple((shape, count[shape]) for shape, _ in shapes.most_common()),
            until=tuple(line for line, _ in until.most_common()),
            until_phase=phases.most_common(1)[0][0],
            in_place_bytes=sum(
                counted.counted_bytes for counted, _ in members if counted.role is Role.ALIAS
            ),
        )


def _is_argument(counted: CountedValue) -> bool:
    return counted.role in (Role.PARAMETER, Role.ALIAS)


def common_path(paths: Sequence[str]) -> str:
    """The keys with which all paths begin.

    >>> common_path(["opt[0].mu['a']", "opt[0].mu['b']"]), common_path(["x", "y"])
    ('opt[0].mu', '')
    """
    split = [_KEY.findall(path) for path in paths]
    first, last = min(split), max(split)
    length = next(
        (i for i, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]),
        min(len(first), len(last)),
    )
    return "".join(first[:length])


def target_of(opened: XlaSubject) -> Target | None:
    """The target that a dump was made for; None if it is unknown."""
    if opened.settings.target is not None:
        return target_named(opened.settings.target)
    if opened.dump is None:
        return None
    try:
        return target_named(opened.dump.manifest.target)
    except TargetError:
        text = opened.program.target_config
        return target_attached(text) if text is not None else None
