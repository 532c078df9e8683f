"""Plans of small HLO programs, written as text."""

from collections.abc import Mapping

from tests.reading.hlo_objects import logical_buffer
from xlapipe.plans import BufferAllocation, LogicalBuffer, Plan
from xlapipe.readers.hlo_text import parse_hlo
from xlapipe.readers.source_text import SourceText


def plan_of_text(text: str, memory: Mapping[str, int] | None = None) -> Plan:
    """The plan of an HLO module; values that `memory` gives the same number share memory.

    Args:
      memory: number of the allocation of each value, by the value's name.
    """
    module = parse_hlo(SourceText("small.txt", text)).module
    values: dict[int, list[LogicalBuffer]] = {}
    shapes = {instruction.name: instruction.shape for _, instruction in module.instructions()}
    for name, number in (memory or {}).items():
        shape = shapes[name.partition("{")[0]]
        size_bytes = shape.size_bytes or 0
        values.setdefault(number, []).append(logical_buffer(name, 0, size_bytes, shape))
    allocations = (
        BufferAllocation(number, max(value.size_bytes for value in group), (), values=tuple(group))
        for number, group in sorted(values.items())
    )
    return Plan(tuple(allocations), module=module)
