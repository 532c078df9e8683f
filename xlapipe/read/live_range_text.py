"""`HloLiveRange`: the last section of an old buffer-assignment text, or `-live-range.txt`.

    HloLiveRange (max 3):
      InstructionSequence:
        0:x.1
      BufferLiveRange:
        x.1{}:0-3
      Live ranges at 1 (peak):
        x.1{}: 16 bytes (cumulative: 16 bytes)

Up to jaxlib 0.9 the peak's lines name and measure the instruction that defines the value instead,
so that a tuple stands there once for each of its parts alive, with the size of its table. A
breakdown by stack trace follows in later versions; it repeats the peak and is not read.
"""

import re
from collections import Counter
from collections.abc import Mapping

from xlapipe.plan import LiveRange, LiveRanges
from xlapipe.read.source_text import CUT, UNKNOWN, SourceText, int64, shown

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
    """The position of the section's heading among the lines, or None."""
    if "HloLiveRange" not in source.text:
        return None
    for position, line in enumerate(source.lines):
        if line.startswith("HloLiveRange"):
            return position
    return None


def parse_live_ranges(source: SourceText, start: int, values: Mapping[str, int]) -> LiveRanges:
    """Reads the section whose heading is line `start` (from 0).

    Args:
      values: sizes of the values in the buffer assignment by name. The live ranges print `x{}`
        for an array and for the table of a tuple alike; the assignment prints `x` for the array.

    Raises:
      DumpError: for a line of another form, a position out of bounds, or a section cut short.
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
            f"{last} positions, as the heading `HloLiveRange (max {last})` says",
            str(len(schedule)),
            CUT,
        )
    ranges, position = _parse_ranges(source, position, last, values)
    peak_position: int | None = None
    peak_bytes: int | None = None
    if position < len(lines) and lines[position].startswith("  Live ranges at "):
        peak_position, peak_bytes, position = _parse_peak(source, position, values, ranges)
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
    source: SourceText, position: int, last: int, values: Mapping[str, int]
) -> tuple[tuple[LiveRange, ...], int]:
    lines = source.lines
    position += 1
    ranges: list[LiveRange] = []
    while position < len(lines) and (match := _RANGE.fullmatch(lines[position])):
        name, index, start_text, end_text = match.groups()
        start = int64(start_text, source, position + 1, "a position")
        end = int64(end_text, source, position + 1, "a position")
        if not start <= end <= last:
            source.fail_at(position + 1, f"a live range in order within 0 to {last}")
        ranges.append(LiveRange(_value_name(name, index, values), start, end))
        position += 1
    if len({live.name for live in ranges}) != len(ranges):
        source.fail(position, "one live range for a value", "a value twice", UNKNOWN)
    return tuple(ranges), position


def _parse_peak(
    source: SourceText, position: int, values: Mapping[str, int], ranges: tuple[LiveRange, ...]
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
        size_bytes = int64(size, source, position + 1, "a size")
        peak_bytes += size_bytes
        if index is not None:
            name = _value_name(name, index, values)
            if values.get(name, size_bytes) != size_bytes:
                source.fail_at(position + 1, f"the {values[name]} bytes of the assignment")
        listed[name] += 1
        if cumulative is not None and int(cumulative[:20]) != peak_bytes:
            source.fail_at(position + 1, f"a cumulative sum of {peak_bytes}")
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
            f"the {alive.total()} values that the live ranges show alive at {peak_position}",
            f"{listed.total()}, different in {shown(', '.join(differing))}",
            CUT,
        )
    return peak_position, peak_bytes, position


def _value_name(name: str, index: str, values: Mapping[str, int]) -> str:
    if index == "{}" and name + index not in values:
        return name
    return name + index
