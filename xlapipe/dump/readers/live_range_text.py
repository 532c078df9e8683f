"""Parse `HloLiveRange`: the last section of an old buffer-assignment text, or `-live-range.txt`.

    HloLiveRange (max 3):
      InstructionSequence:
        0:x.1
      BufferLiveRange:
        x.1{}:0-3
      Live ranges at 1 (peak):
        x.1{}: 16 bytes (cumulative: 16 bytes)

What is alive at the peak follows from the ranges, so the lines after its heading are not read.
"""

import re
from collections.abc import Mapping

from xlapipe.dump.readers.source_text import COPY_AGAIN, LineReader, SourceText
from xlapipe.plans import LiveRange, LiveRanges

# Sizes of values in bytes by name.
ValueSizes = Mapping[str, int]

_HEADING = re.compile(r"HloLiveRange \(max (\d+)\):")
_SEQUENCE_HEADING = re.compile("  InstructionSequence:")
_RANGES_HEADING = re.compile("  BufferLiveRange:")
_STEP = re.compile(r"    (\d+):([^\s:{}]+)")
_RANGE = re.compile(r"    ([^\s:{}]+)(\{[\d,]*\}):(\d+)-(\d+)")
_PEAK_HEADING = re.compile(r"  Live ranges at (\d+) \(peak\):")


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
