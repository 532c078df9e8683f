"""Parse `HloLiveRange`: the last section of an old buffer-assignment text, or `-live-range.txt`.

    HloLiveRange (max 3):
      InstructionSequence:
        0:x.1
      BufferLiveRange:
        x.1{}:0-3
      Live ranges at 1 (peak):
        x.1{}: 16 bytes (cumulative: 16 bytes)

Up to jaxlib 0.9 the lines of the peak list the defining instruction instead of the value, so a
tuple is listed once per live element, each time with the size of its table. In later versions a
breakdown by stack trace follows; it repeats the peak and is not read.
"""

import re
from collections import Counter
from collections.abc import Mapping

from xlapipe.dump.readers.source_text import (
    COPY_AGAIN,
    DUMP_AGAIN_OR_REPORT,
    SourceText,
    int64,
    shown,
)
from xlapipe.plans import LiveRange, LiveRanges

# Sizes of values in bytes by name; None for a value whose size is not checked.
ValueSizes = Mapping[str, int | None]

_HEADING = re.compile(r"HloLiveRange \(max (\d+)\):")
_SEQUENCE_HEADING = "  InstructionSequence:"
_RANGES_HEADING = "  BufferLiveRange:"
_STEP = re.compile(r"    (\d+):([^\s:{}]+)")
_RANGE = re.compile(r"    ([^\s:{}]+)(\{[\d,]*\}):(\d+)-(\d+)")
_PEAK_HEADING = re.compile(r"  Live ranges at (\d+) \(peak\):")
_PEAK_VALUE = re.compile(
    r"    ([^\s:{}]+)(\{[\d,]*\})?: (\d+) bytes(?: \(cumulative: (\d+) bytes\))?"
)
_BREAKDOWN = "  Stack trace breakdown"


def find_live_ranges(source: SourceText) -> int | None:
    """Position (from 0) of the line with the section's heading, or None."""
    if "HloLiveRange" not in source.text:
        return None
    for position, line in enumerate(source.lines):
        if line.startswith("HloLiveRange"):
            return position
    return None


def parse_live_ranges(source: SourceText, start: int, size_bytes: ValueSizes) -> LiveRanges:
    """Parse the section whose heading is line `start` (from 0).

    Args:
      size_bytes: sizes of the values, by name; None for one that is not checked. Live ranges print
        `x{}` for an array and for the table of a tuple; the assignment prints `x` for an array.

    Raises:
      DumpError: a line has another form, a position is out of bounds, or the section is cut short.
    """
    lines = source.lines
    match = _HEADING.fullmatch(lines[start]) if start < len(lines) else None
    if match is None:
        source.fail_at(start + 1, "`HloLiveRange (max N):`")
    last = int64(match[1], source, start + 1, "a position")
    schedule, position = _parse_sequence(source, start + 1)
    if len(schedule) != last:
        source.fail(
            position,
            f"{last} positions, as in the heading `HloLiveRange (max {last})`",
            str(len(schedule)),
            COPY_AGAIN,
        )
    ranges, position = _parse_ranges(source, position, last, size_bytes)
    peak_position: int | None = None
    peak_bytes: int | None = None
    if position < len(lines) and lines[position].startswith("  Live ranges at "):
        peak_position, peak_bytes, position = _parse_peak(source, position, size_bytes, ranges)
    else:
        source.fail_at(position + 1, "`  Live ranges at N (peak):`")
    if position < len(lines) and lines[position] and not lines[position].startswith(_BREAKDOWN):
        source.fail_at(position + 1, "a line `    name{…}: N bytes`")
    return LiveRanges(schedule, ranges, peak_position, peak_bytes)


def _parse_sequence(source: SourceText, position: int) -> tuple[tuple[str, ...], int]:
    lines = source.lines
    if position >= len(lines) or lines[position] != _SEQUENCE_HEADING:
        source.fail_at(position + 1, f"`{_SEQUENCE_HEADING}`")
    position += 1
    schedule: list[str] = []
    while position < len(lines) and (match := _STEP.fullmatch(lines[position])):
        if match[1] != str(len(schedule)):
            source.fail_at(position + 1, f"position {len(schedule)}")
        schedule.append(match[2])
        position += 1
    if position >= len(lines) or lines[position] != _RANGES_HEADING:
        source.fail_at(position + 1, f"`    N:name` or `{_RANGES_HEADING}`")
    return tuple(schedule), position


def _parse_ranges(
    source: SourceText, position: int, last: int, size_bytes: ValueSizes
) -> tuple[tuple[LiveRange, ...], int]:
    lines = source.lines
    position += 1
    ranges: list[LiveRange] = []
    while position < len(lines) and (match := _RANGE.fullmatch(lines[position])):
        name, index, start_text, end_text = match.groups()
        start = int64(start_text, source, position + 1, "a position")
        end = int64(end_text, source, position + 1, "a position")
        if not start <= end <= last:
            source.fail_at(position + 1, f"a live range with 0 <= start <= end <= {last}")
        ranges.append(LiveRange(_value_name(name, index, size_bytes), start, end))
        position += 1
    if len({live.name for live in ranges}) != len(ranges):
        source.fail(position, "one live range per value", "a value twice", DUMP_AGAIN_OR_REPORT)
    return tuple(ranges), position


def _parse_peak(
    source: SourceText,
    position: int,
    size_bytes: ValueSizes,
    ranges: tuple[LiveRange, ...],
) -> tuple[int, int, int]:
    lines = source.lines
    heading = position + 1
    match = _PEAK_HEADING.fullmatch(lines[position])
    if match is None:
        source.fail_at(heading, "`  Live ranges at N (peak):`")
    peak_position = int64(match[1], source, heading, "a position")
    position += 1
    peak_bytes = 0
    listed: Counter[str] = Counter()
    by_value = True
    while position < len(lines) and (match := _PEAK_VALUE.fullmatch(lines[position])):
        name, index, size, cumulative = match.groups()
        by_value = index is not None
        value_bytes = int64(size, source, position + 1, "a size")
        peak_bytes += value_bytes
        if index is not None:
            name = _value_name(name, index, size_bytes)
            if size_bytes.get(name) not in (None, value_bytes):
                source.fail_at(position + 1, f"the {size_bytes[name]} bytes of the assignment")
        listed[name] += 1
        if cumulative is not None and int(cumulative[:20]) != peak_bytes:
            source.fail_at(position + 1, f"a cumulative sum of {peak_bytes} bytes")
        position += 1
    alive = Counter(
        live.name if by_value else live.name.partition("{")[0]
        for live in ranges
        if live.start <= peak_position <= live.end
    )
    if alive != listed:
        differing = sorted({*(alive - listed), *(listed - alive)})
        source.fail(
            heading,
            f"the {alive.total()} values that are alive at {peak_position} by their live ranges",
            f"{listed.total()} values, differing in {shown(', '.join(differing))}",
            COPY_AGAIN,
        )
    return peak_position, peak_bytes, position


def _value_name(name: str, index: str, size_bytes: ValueSizes) -> str:
    if index == "{}" and name + index not in size_bytes:
        return name
    return name + index
