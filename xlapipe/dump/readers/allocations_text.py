"""Parse the `BufferAssignment:` section of a buffer-assignment text, and XLA's total.

Up to jaxlib 0.9 one file contains everything; from 0.10 on the total is in a second file
(`-buffer-assignment-values.txt`). jaxlib 0.11 adds `, page N` to an allocation. If a buffer of one
memory space is in an allocation of another, it also adds ` reused by buffers of a different color:`
with lines that repeat values listed above.
"""

import re
from collections.abc import Iterable, Iterator

from xlapipe.dump.readers.source_text import (
    DUMP_AGAIN,
    DUMP_AGAIN_OR_REPORT,
    GIVE_DUMP,
    LineReader,
    SourceText,
    int64,
    shown,
    without_index_comments,
)
from xlapipe.plans import AllocationKind, BufferAllocation, LogicalBuffer
from xlapipe.plans.shapes import shape_of

_HEADING = "BufferAssignment:"
_REUSED = " reused by buffers of a different color:"
_ALLOCATION = re.compile(
    r"allocation (?P<index>\d+): size (?P<size>\d+)"
    r"(?:, color (?P<color>\d+))?"
    r"(?:, page \d+)?"
    r"(?:, parameter (?P<number>\d+), shape \|[^|]*\| at ShapeIndex \{(?P<shape_index>[^{}|]*)\})?"
    r"(?:, output shape is \|[^|]*\|)?"
    r"(?P<flags>(?:, (?:constant|thread-local|maybe-live-out|preallocated-temp))*)"
    r":"
)
_VALUE = re.compile(
    r" value: <\d+ (?P<name>[^\s{}<>@]+(?:\{[\d,]*\})?)(?: \(phi\))? @-?\d+>"
    r" \(size=(?P<size>\d+),offset=(?P<offset>\d+)\): (?P<shape>\S.*)"
)
_REUSING_VALUE = re.compile(r"  value: <\d+ [^<>]+> \(color=-?\d+\)")
_TOTAL = re.compile(r"Total bytes used: (\d+)(?: \([^()\n]*\))?\r?$", re.MULTILINE)
_TOTAL_START = "Total bytes used:"


def parse_allocations(lines: LineReader) -> tuple[BufferAllocation, ...]:
    """The allocations, at the start of the file."""
    lines.skip_blank()
    heading = lines.following
    if heading is None:
        lines.source.fail(1, f"`{_HEADING}`", "an empty file", DUMP_AGAIN)
    lines.number += 1
    if heading.rstrip() != _HEADING:
        lines.fail(f"`{_HEADING}`", shown(heading), GIVE_DUMP)
    allocations: list[BufferAllocation] = []
    while lines.following:
        allocations.append(_parse_allocation(lines, len(allocations)))
    return tuple(allocations)


def find_total(source: SourceText) -> int | None:
    """XLA's own `Total bytes used`; None if this file has none."""
    text = source.text
    starts = [0] if text.startswith(_TOTAL_START) else []
    position = text.find(_TOTAL_START, 1)
    while position >= 0:
        if text[position - 1] == "\n":
            starts.append(position)
        position = text.find(_TOTAL_START, position + 1)
    if not starts:
        return None
    line = text.count("\n", 0, starts[0]) + 1
    match = _TOTAL.match(text, starts[0])
    if match is None or len(starts) > 1:
        source.fail(
            line,
            "one line `Total bytes used: N (…)`",
            f"{len(starts)} lines that begin so",
            DUMP_AGAIN_OR_REPORT,
        )
    return int64(match[1], source, line, "a total")


def _parse_allocation(lines: LineReader, index: int) -> BufferAllocation:
    """The allocation whose heading is the next line."""
    match = lines.expect(_ALLOCATION, "an allocation line `allocation N: size B, …:`")
    if lines.int64(match["index"], "an allocation index") != index:
        lines.fail(
            f"allocation {index}, since numbers are consecutive",
            f"allocation {match['index']}",
            "dump the module again; lines are missing or repeated",
        )
    flags = match["flags"].split(", ")[1:]
    number = match["number"]
    kinds = {AllocationKind(flag) for flag in flags}
    if number is not None:
        kinds.add(AllocationKind.PARAMETER)
    if len(kinds) != len(flags) + (number is not None):
        lines.fail_at("each flag of an allocation at most once")
    return BufferAllocation(
        index=index,
        size_bytes=lines.int64(match["size"], "a size"),
        kinds=tuple(kind for kind in AllocationKind if kind in kinds),
        parameter_number=None if number is None else lines.int64(number, "a parameter number"),
        parameter_shape_index=lines.shape_index(match["shape_index"] or ""),
        color=lines.int64(match["color"] or "0", "a color"),
        values=in_plan_order(list(_values(lines))),
    )


def _values(lines: LineReader) -> Iterator[LogicalBuffer]:
    """The values of an allocation whose heading was read last."""
    while (lines.following or "").startswith(" value:"):
        expected = "a value line ` value: <id name @color> (size=…): shape`"
        name, size, offset, shape = lines.expect(_VALUE, expected).groups()
        yield LogicalBuffer(
            name=name,
            offset_bytes=lines.int64(offset, "an offset"),
            size_bytes=lines.int64(size, "a size"),
            shape=shape_of(without_index_comments(shape)),
        )
    if lines.following == _REUSED:
        lines.number += 1
        while (lines.following or "").startswith("  value:"):
            lines.expect(_REUSING_VALUE, "a line `  value: <…> (color=N)`")


def in_plan_order(values: list[LogicalBuffer]) -> tuple[LogicalBuffer, ...]:
    """Values in the order of a Plan: by offset, size and name."""
    values.sort(key=lambda value: (value.offset_bytes, value.size_bytes, value.name))
    return tuple(values)


def platform_of(allocations: Iterable[BufferAllocation]) -> str:
    """The platform, which XLA's files do not name.

    `tpu` if the layout of any value has tiles, as only XLA for TPUs writes them.
    """
    tiled = any(value.shape.is_tiled for item in allocations for value in item.values)
    return "tpu" if tiled else "cuda"
