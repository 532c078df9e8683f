"""Plans of small HLO programs, written as text."""

from collections.abc import Mapping

from tests.shared.hlo_objects import logical_buffer
from xlapipe.dump.readers.hlo_text import parse_hlo
from xlapipe.dump.readers.source_text import SourceText
from xlapipe.plans import BufferAllocation, LiveRange, LiveRanges, LogicalBuffer, Plan

Place = int | tuple[int, int]
"""Number of an allocation, and the offset in bytes if it is not 0."""


def plan_of_text(
    text: str,
    memory: Mapping[str, Place] | None = None,
    alive: Mapping[str, tuple[int, int]] | None = None,
) -> Plan:
    """The plan of an HLO module; values that `memory` gives the same place share memory.

    Args:
      memory: place of each value, by the value's name.
      alive: first and last position of values in the schedule, which is that of the entry.
    """
    module = parse_hlo(SourceText("small.txt", text)).module
    values: dict[int, list[LogicalBuffer]] = {}
    shapes = {instruction.name: instruction.shape for _, instruction in module.instructions()}
    for name, place in (memory or {}).items():
        number, offset_bytes = (place, 0) if isinstance(place, int) else place
        instruction, _, index = name.partition("{")
        path = tuple(int(part) for part in index.rstrip("}").split(",") if part)
        shape = shapes[instruction].at(path)
        size_bytes = shape.size_bytes or 0
        value = logical_buffer(name, offset_bytes, size_bytes, shape)
        values.setdefault(number, []).append(value)
    allocations = (
        BufferAllocation(
            number,
            max(value.offset_bytes + value.size_bytes for value in group),
            (),
            values=tuple(group),
        )
        for number, group in sorted(values.items())
    )
    live_ranges = None
    if alive is not None:
        assert module.entry_computation is not None
        schedule = tuple(instruction.name for instruction in module.entry_computation.instructions)
        ranges = tuple(LiveRange(name, start, end) for name, (start, end) in alive.items())
        live_ranges = LiveRanges(schedule, ranges, None, None)
    return Plan(tuple(allocations), module=module, live_ranges=live_ranges)
