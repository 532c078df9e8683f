"""The text reader: buffer-assignment text of any version, with the texts in the same folder."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from xlapipe.devices.platforms import platform_named
from xlapipe.dump.readers.allocations_text import find_total, parse_allocations, platform_of
from xlapipe.dump.readers.live_range_text import find_live_ranges, parse_live_ranges
from xlapipe.dump.readers.source_lines import SourceLines
from xlapipe.dump.readers.source_text import (
    LineReader,
    SourceText,
    refuse,
)
from xlapipe.dump.readers.thunk_text import parse_thunks
from xlapipe.errors import DumpError
from xlapipe.plans import BufferAllocation, LiveRanges, LogicalBuffer, Plan
from xlapipe.plans.verify import verify

Part = TypeVar("Part")
# Bytes per element of a tuple's table in a TPU's live ranges; its allocation has four per element.
_POINTER_BYTES = 8


@dataclass(frozen=True)
class DumpTexts:
    """Texts of one module's dump.

    Attributes:
      assignment: `*buffer-assignment.txt`; up to jaxlib 0.9 it contains the next two as well.
      values: `*buffer-assignment-values.txt`.
      live_range: `*live-range.txt`.
      hlo: `*after_optimizations.txt`.
      thunks: `*thunk_sequence_after_thunk_passes.txt`, or `*thunk_sequence.txt`.
      lines: lines of the instructions; None if they are in `hlo`.
    """

    assignment: SourceText
    values: SourceText | None = None
    live_range: SourceText | None = None
    hlo: SourceText | None = None
    thunks: SourceText | None = None
    lines: SourceLines | None = None


def read_text(texts: DumpTexts) -> Plan:
    """The plan in the texts; a part that is not in them is None.

    Raises:
      DumpError: a text that figures depend on has another form or is cut short. Live ranges and
        thunks that cannot be read are left out, with a note.
      PlanMismatchError: the plan breaks an invariant or disagrees with XLA's total.
    """
    # Imported here: dumps with a proto need neither.
    from xlapipe.dump.readers.hlo_text import parse_hlo
    from xlapipe.dump.readers.used_values_text import parse_used_values

    assignment = texts.assignment
    lines = LineReader(assignment)
    allocations = parse_allocations(lines)
    total = total_of(assignment, texts.values)
    if total is None:
        refuse(
            f"{assignment.where}:{lines.number}",
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
    return with_optional_parts(plan, texts.live_range, assignment, texts.thunks, assignment.where)


def with_optional_parts(
    plan: Plan,
    live_range: SourceText | None,
    assignment: SourceText | None,
    thunks: SourceText | None,
    where: str,
) -> Plan:
    """The plan with live ranges and thunks, verified; a note for one that cannot be read.

    Args:
      where: the file that the plan was read from.

    Raises:
      PlanMismatchError: the plan breaks an invariant.
    """
    ranges, range_notes = _optional_part(
        "live ranges", lambda: _live_ranges(plan.allocations, live_range, assignment)
    )
    read, notes = _optional_part("thunks", lambda: parse_thunks(thunks) if thunks else None)
    plan = replace(plan, live_ranges=ranges, thunks=read, notes=(*range_notes, *notes))
    verify(plan, where=where)
    return plan


def _optional_part(name: str, read: Callable[[], Part]) -> tuple[Part | None, tuple[str, ...]]:
    """A part of the plan that no total depends on; a note instead of it if it cannot be read.

    New versions of XLA print these parts in new ways, which must not cost the rest of the plan.
    """
    try:
        return read(), ()
    except DumpError as error:
        return None, (f"{name} not read: {error}",)


def total_of(assignment: SourceText | None, values: SourceText | None) -> int | None:
    """XLA's own total, from either of the two texts; None if neither has it.

    Raises:
      DumpError: the values file has no total, or the two totals differ.
    """
    total = find_total(assignment) if assignment else None
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


def _live_ranges(
    allocations: tuple[BufferAllocation, ...],
    live_range: SourceText | None,
    assignment: SourceText | None,
) -> LiveRanges | None:
    """Live ranges from their separate file, or from the end of an old buffer assignment."""
    is_padded = platform_named(platform_of(allocations)).pads_arrays
    size_bytes = {
        value.name: _unpadded_bytes(value) if is_padded else value.size_bytes
        for allocation in allocations
        for value in allocation.values
    }
    if live_range is not None:
        start = next((i for i, line in enumerate(live_range.lines) if line.strip()), 0)
        live_ranges = parse_live_ranges(live_range, start, size_bytes)
        # The peak of padded arrays excludes padding, and sums over different memories.
        return replace(live_ranges, live_range_peak_bytes=None) if is_padded else live_ranges
    if assignment is None:
        return None
    start_in_assignment = find_live_ranges(assignment)
    if start_in_assignment is None:
        return None
    return parse_live_ranges(assignment, start_in_assignment, size_bytes)


def _unpadded_bytes(value: LogicalBuffer) -> int | None:
    """The size that a TPU's live ranges print; None if the shape does not determine it."""
    if value.shape.is_tuple:
        return _POINTER_BYTES * len(value.shape.parts)
    return value.shape.size_bytes if "E(" not in value.shape.attributes else None
