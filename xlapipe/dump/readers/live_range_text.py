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

from xlapipe.dump.readers.source_text import COPY_AGAIN, LineReader, SourceText, shown
from xlapipe.plans import LiveRange, LiveRanges

# Sizes of values in bytes by name; None for a value whose size is not checked.
ValueSizes = Mapping[str, int | None]

_HEADING = re.compile(r"HloLiveRange \(max (\d+)\):")
_SEQUENCE_HEADING = re.compile("  InstructionSequence:")
_RANGES_HEADING = re.compile("  BufferLiveRange:")
_STEP = re.compile(r"    (\d+):([^\s:{}]+)")
_RANGE = re.compile(r"    ([^\s:{}]+)(\{[\d,]*\}):(\d+)-(\d+)")
_PEAK_HEADING = re.compile(r"  Live ranges at (\d+) \(peak\):")
_PEAK_VALUE = re.compile(
    r"    ([^\s:{}]+)(\{[\d,]*\})?: (\d+) bytes(?: \(cumulative: (\d+) bytes\))?"
)
_BREAKDOWN = "  Stack trace breakdown"


def find_live_ranges(source: SourceText) -> LineReader | None:
    """A reader at the section's heading, or None."""
    if "HloLiveRange" not in source.text:
        return None
    for position, line in enumerate(source.lines):
        if line.startswith("HloLiveRange"):
            return LineReader(source, position)
    return None


def parse_live_ranges(lines: LineReader, size_bytes: ValueSizes) -> LiveRanges:
    """Parse the section whose heading is the next line."""
    heading = lines.expect(_HEADING, "`HloLiveRange (max N):`")
    last = lines.int64(heading[1], "a position")
    schedule = _schedule(lines)
    if len(schedule) != last:
        expected = f"{last} positions, as in the heading `HloLiveRange (max {last})`"
        lines.source.fail(lines.number - 1, expected, str(len(schedule)), COPY_AGAIN)
    ranges = _ranges(lines, last, size_bytes)
    peak = lines.expect(_PEAK_HEADING, "`  Live ranges at N (peak):`")
    peak_position = lines.int64(peak[1], "a position")
    peak_bytes = _peak_bytes(lines, peak_position, size_bytes, ranges)
    following = lines.following
    if following and not following.startswith(_BREAKDOWN):
        lines.source.fail_at(lines.number + 1, "a line `    name{…}: N bytes`")
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
        ranges.append(LiveRange(_value_name(name, index, size_bytes), start, end))
    if len({live.name for live in ranges}) != len(ranges):
        lines.fail("one live range per value", "a value twice")
    return tuple(ranges)


def _peak_bytes(
    lines: LineReader, position: int, size_bytes: ValueSizes, ranges: tuple[LiveRange, ...]
) -> int:
    """The sum of the values listed at the peak, whose heading was read last."""
    heading = lines.number
    peak_bytes = 0
    listed: Counter[str] = Counter()
    by_value = True
    for match in lines.matching(_PEAK_VALUE):
        name, index, size, cumulative = match.groups()
        by_value = index is not None
        value_bytes = lines.int64(size, "a size")
        peak_bytes += value_bytes
        if index is not None:
            name = _value_name(name, index, size_bytes)
            if size_bytes.get(name) not in (None, value_bytes):
                lines.fail_at(f"the {size_bytes[name]} bytes of the assignment")
        listed[name] += 1
        if cumulative is not None and int(cumulative[:20]) != peak_bytes:
            lines.fail_at(f"a cumulative sum of {peak_bytes} bytes")
    alive = Counter(
        live.name if by_value else live.name.partition("{")[0]
        for live in ranges
        if live.start <= position <= live.end
    )
    if alive != listed:
        differing = sorted({*(alive - listed), *(listed - alive)})
        lines.source.fail(
            heading,
            f"the {alive.total()} values that are alive at {position} by their live ranges",
            f"{listed.total()} values, differing in {shown(', '.join(differing))}",
            COPY_AGAIN,
        )
    return peak_bytes


def _value_name(name: str, index: str, size_bytes: ValueSizes) -> str:
    if index == "{}" and name + index not in size_bytes:
        return name
    return name + index
