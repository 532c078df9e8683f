"""Read what is at a path: a proto, or text of any version of XLA, with the texts beside it."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from xlapipe.devices.platforms import platform_named, platform_of_config
from xlapipe.dump.readers.allocations_text import find_total, parse_allocations, platform_of
from xlapipe.dump.readers.file_contents import read_bytes, read_source
from xlapipe.dump.readers.files import DumpFiles, files_at
from xlapipe.dump.readers.source_lines import SourceLines, read_source_lines
from xlapipe.dump.readers.source_text import COPY_AGAIN, LineReader, SourceText
from xlapipe.dump.readers.thunk_text import parse_thunks
from xlapipe.errors import DumpError
from xlapipe.plans import BufferAllocation, LiveRange, LiveRanges, Plan
from xlapipe.plans.verify import verify

Part = TypeVar("Part")
# Sizes of values in bytes by name.
ValueSizes = Mapping[str, int]

_HEADING = re.compile(r"HloLiveRange \(max (\d+)\):")
_SEQUENCE_HEADING = re.compile("  InstructionSequence:")
_RANGES_HEADING = re.compile("  BufferLiveRange:")
_STEP = re.compile(r"    (\d+):([^\s:{}]+)")
_RANGE = re.compile(r"    ([^\s:{}]+)(\{[\d,]*\}):(\d+)-(\d+)")
_PEAK_HEADING = re.compile(r"  Live ranges at (\d+) \(peak\):")


@dataclass(frozen=True)
class DumpTexts:
    """Texts of one module's dump.

    Attributes:
      assignment: `*buffer-assignment.txt`; up to jaxlib 0.9 it contains the next two as well. None
        beside a proto alone.
      values: `*buffer-assignment-values.txt`.
      live_range: `*live-range.txt`.
      hlo: `*after_optimizations.txt`.
      thunks: `*thunk_sequence_after_thunk_passes.txt`, or `*thunk_sequence.txt`.
      lines: lines of the instructions; None if they are in `hlo`.
    """

    assignment: SourceText | None = None
    values: SourceText | None = None
    live_range: SourceText | None = None
    hlo: SourceText | None = None
    thunks: SourceText | None = None
    lines: SourceLines | None = None


def read_path(path: Path) -> Plan:
    """The plan in a dump.

    Args:
      path: an `.hlo.pb`, a `*buffer-assignment.txt` (either may be gzip), or a directory with one
        optimised module, of which the proto is read if there is one. XLA's total, live ranges and
        thunks are read from the texts in the same folder.
    """
    files = files_at(path)
    plan = _read(files)
    platform = _platform_named(files)
    return plan if platform in (None, plan.platform) else replace(plan, platform=platform)


def _platform_named(files: DumpFiles) -> str | None:
    """The platform that the GPU's configuration names; None without one that can be read."""
    if files.target_config is None:
        return None
    try:
        return platform_of_config(read_bytes(files.target_config).decode(errors="replace")).name
    except (DumpError, KeyError):
        return None


def _read(files: DumpFiles) -> Plan:
    lines = None if files.source_lines is None else read_source_lines(files.source_lines)
    names = ["assignment", "values", "live_range", "thunks"]
    if files.proto is None:
        names.append("hlo")
    paths = {name: getattr(files, name) for name in names}
    sources = {name: read_source(part) for name, part in paths.items() if part is not None}
    texts = DumpTexts(**sources, lines=lines)
    if files.proto is None:
        return read_text(texts)
    from xlapipe.dump.readers.proto_reader import parse_proto  # late, as in xlapipe.dump.readers

    where = str(files.proto)
    plan = parse_proto(read_bytes(files.proto), where=where, lines=lines)
    return _with_optional_parts(replace(plan, total_bytes_used=_total_of(texts)), texts, where)


def read_text(texts: DumpTexts) -> Plan:
    """The plan in the texts, with a buffer assignment; a part that is not in them is None."""
    # Imported here: dumps with a proto need neither.
    from xlapipe.dump.readers.hlo_text import parse_hlo
    from xlapipe.dump.readers.used_values_text import parse_used_values

    assignment = texts.assignment
    assert assignment is not None
    lines = LineReader(assignment)
    allocations = parse_allocations(lines)
    total = _total_of(texts)
    if total is None:
        lines.fail(
            "`Total bytes used: N` after the allocations, or in a "
            "*buffer-assignment-values.txt next to this file",
            "neither",
            "copy the whole file and, for jaxlib 0.10 or later, the values file as well",
        )
    parsed = parse_hlo(texts.hlo, texts.lines) if texts.hlo else None
    # Used values are parsed even if not needed, to detect an old file that is cut short.
    values = parse_used_values(assignment, allocations)
    if values is None and parsed is None and texts.values is not None:
        values = parse_used_values(texts.values, allocations)
    plan = Plan(
        allocations=allocations,
        total_bytes_used=total,
        module=parsed.module if parsed else values,
        header_aliases=parsed.aliases if parsed else None,
        buffer_donors=parsed.buffer_donors if parsed else None,
        platform=platform_of(allocations),
    )
    return _with_optional_parts(plan, texts, assignment.where)


def _with_optional_parts(plan: Plan, texts: DumpTexts, where: str) -> Plan:
    """The plan with live ranges and thunks, verified; a note for one that cannot be read.

    New versions of XLA print these parts, which no total depends on, in new ways, which must not
    cost the rest of the plan.
    """
    notes: list[str] = []

    def optional(name: str, read: Callable[[], Part]) -> Part | None:
        try:
            return read()
        except DumpError as error:
            notes.append(f"{name} not read: {error}")
            return None

    ranges = optional("live ranges", lambda: _live_ranges(plan.allocations, texts))
    thunks = optional("thunks", lambda: parse_thunks(texts.thunks) if texts.thunks else None)
    plan = replace(plan, live_ranges=ranges, thunks=thunks, notes=tuple(notes))
    return verify(plan, where=where)


def _total_of(texts: DumpTexts) -> int | None:
    """XLA's own total, from either of the two texts; None if neither has it."""
    total = find_total(texts.assignment) if texts.assignment else None
    values = texts.values
    if values is None:
        return total
    values_total = find_total(values)
    if values_total is None:
        values.fail(1, "`Total bytes used: N`", "none", "copy or dump the file again")
    if total is not None and total != values_total:
        values.fail(
            1,
            f"the total {total} of the buffer assignment",
            str(values_total),
            "dump the module again into an empty directory; the files are from two compiles",
        )
    return values_total


def _live_ranges(allocations: tuple[BufferAllocation, ...], texts: DumpTexts) -> LiveRanges | None:
    """Live ranges from their separate file, or from the end of an old buffer assignment."""
    size_bytes = {value.name: value.size_bytes for item in allocations for value in item.values}
    if texts.live_range is not None:
        lines = LineReader(texts.live_range)
        lines.skip_blank()
        live_ranges = parse_live_ranges(lines, size_bytes)
        # XLA's peak of padded arrays excludes padding, and sums over different memories.
        is_padded = platform_named(platform_of(allocations)).pads_arrays
        return replace(live_ranges, live_range_peak_bytes=None) if is_padded else live_ranges
    section = find_live_ranges(texts.assignment) if texts.assignment is not None else None
    return parse_live_ranges(section, size_bytes) if section is not None else None


def find_live_ranges(source: SourceText) -> LineReader | None:
    """A reader at the section's heading, or None."""
    if "HloLiveRange" not in source.text:
        return None
    for position, line in enumerate(source.lines):
        if line.startswith("HloLiveRange"):
            return LineReader(source, position)
    return None


def parse_live_ranges(lines: LineReader, size_bytes: ValueSizes) -> LiveRanges:
    """Parse the section whose heading is the next line.

        HloLiveRange (max 3):
          InstructionSequence:
            0:x.1
          BufferLiveRange:
            x.1{}:0-3
          Live ranges at 1 (peak):
            x.1{}: 16 bytes (cumulative: 16 bytes)

    What is alive at the peak follows from the ranges, so the lines after its heading are not read.
    """
    heading = lines.expect(_HEADING, "`HloLiveRange (max N):`")
    last = lines.int64(heading[1], "a position")
    schedule = _schedule(lines)
    if len(schedule) != last:
        expected = f"{last} positions, as in the heading `HloLiveRange (max {last})`"
        lines.source.fail(lines.number - 1, expected, str(len(schedule)), COPY_AGAIN)
    ranges = _ranges(lines, last, size_bytes)
    peak = lines.expect(_PEAK_HEADING, "`  Live ranges at N (peak):`")
    peak_position = lines.int64(peak[1], "a position")
    alive = (live.name for live in ranges if live.start <= peak_position <= live.end)
    peak_bytes = sum(size_bytes.get(name, 0) for name in alive)
    return LiveRanges(schedule, ranges, peak_position, peak_bytes)


def _schedule(lines: LineReader) -> tuple[str, ...]:
    """The instructions by position, up to the heading of the ranges."""
    lines.expect(_SEQUENCE_HEADING, f"`{_SEQUENCE_HEADING.pattern}`")
    schedule: list[str] = []
    for match in lines.matching(_STEP):
        if match[1] != str(len(schedule)):
            lines.fail_at(f"position {len(schedule)}")
        schedule.append(match[2])
    lines.expect(_RANGES_HEADING, f"`    N:name` or `{_RANGES_HEADING.pattern}`")
    return tuple(schedule)


def _ranges(lines: LineReader, last: int, size_bytes: ValueSizes) -> tuple[LiveRange, ...]:
    ranges: list[LiveRange] = []
    for match in lines.matching(_RANGE):
        name, index, start_text, end_text = match.groups()
        start = lines.int64(start_text, "a position")
        end = lines.int64(end_text, "a position")
        if not start <= end <= last:
            lines.fail_at(f"a live range with 0 <= start <= end <= {last}")
        if index != "{}" or name + index in size_bytes:
            name += index
        ranges.append(LiveRange(name, start, end))
    if len({live.name for live in ranges}) != len(ranges):
        lines.fail("one live range per value", "a value twice")
    return tuple(ranges)
