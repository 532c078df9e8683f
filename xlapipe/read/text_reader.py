"""The text reader: buffer-assignment text of any version, with the texts that lie beside it."""

from dataclasses import dataclass

from xlapipe.errors import DumpError
from xlapipe.plan import BufferAllocation, LiveRanges, Plan
from xlapipe.plan.verify import verify
from xlapipe.read.allocations_text import find_total, parse_allocations
from xlapipe.read.hlo_text import parse_hlo
from xlapipe.read.live_range_text import find_live_ranges, parse_live_ranges
from xlapipe.read.source_text import SourceText
from xlapipe.read.thunk_text import parse_thunks
from xlapipe.read.used_values_text import parse_used_values


@dataclass(frozen=True)
class DumpTexts:
    """Texts of one module's dump.

    Attributes:
      assignment: `*buffer-assignment.txt`; up to jaxlib 0.9 it holds the next two as well.
      values: `*buffer-assignment-values.txt`.
      live_range: `*live-range.txt`.
      hlo: `*after_optimizations.txt`.
      thunks: `*thunk_sequence_after_thunk_passes.txt`, or `*thunk_sequence.txt`.
    """

    assignment: SourceText
    values: SourceText | None = None
    live_range: SourceText | None = None
    hlo: SourceText | None = None
    thunks: SourceText | None = None


def read_text(texts: DumpTexts) -> Plan:
    """The plan that the texts tell of; a part that none of them holds is None.

    Raises:
      DumpError: for text of another form, or cut short.
      PlanMismatchError: for a plan that breaks an invariant, or XLA's total.
    """
    assignment = texts.assignment
    allocations, end = parse_allocations(assignment)
    total = total_of(assignment, texts.values)
    if total is None:
        raise DumpError(
            f"{assignment.where}:{end}: expected `Total bytes used: N` behind the allocations, or "
            "in a *buffer-assignment-values.txt beside this file, found neither; the file is cut "
            "short, or the values file (jaxlib 0.10 and later write it) is missing: copy both"
        )
    parsed = parse_hlo(texts.hlo) if texts.hlo else None
    # The old layout is read in full even where it is not needed, to notice where it is cut.
    values = parse_used_values(assignment, allocations)
    if values is None and parsed is None and texts.values is not None:
        values = parse_used_values(texts.values, allocations)
    plan = Plan(
        allocations=allocations,
        total_bytes_used=total,
        module=parsed.module if parsed else values,
        header_aliases=parsed.aliases if parsed else None,
        buffer_donors=parsed.buffer_donors if parsed else None,
        live_ranges=live_ranges_of(allocations, texts.live_range, assignment),
        thunks=parse_thunks(texts.thunks) if texts.thunks else None,
    )
    verify(plan, where=assignment.where)
    return plan


def total_of(assignment: SourceText | None, values: SourceText | None) -> int | None:
    """XLA's own total, which stands in one of the two texts, or None where neither is there.

    Raises:
      DumpError: where the values file has none, or the two differ.
    """
    here = find_total(assignment) if assignment else None
    if values is None:
        return here
    there = find_total(values)
    if there is None:
        values.fail(1, "`Total bytes used: N`", "none", "copy or dump the file again")
    if here is not None and here != there:
        values.fail(1, f"the total {here} of the buffer assignment", str(there), "they are not of "
                    "one compile: dump the module again into an empty directory")  # fmt: skip
    return there


def live_ranges_of(
    allocations: tuple[BufferAllocation, ...],
    live_range: SourceText | None,
    assignment: SourceText | None,
) -> LiveRanges | None:
    """Live ranges of the file of their own, or of the end of an old buffer assignment."""
    values = {
        value.name: value.size_bytes for allocation in allocations for value in allocation.values
    }
    if live_range is not None:
        start = next((at for at, line in enumerate(live_range.lines) if line.strip()), 0)
        return parse_live_ranges(live_range, start, values)
    if assignment is None:
        return None
    start_in_assignment = find_live_ranges(assignment)
    if start_in_assignment is None:
        return None
    return parse_live_ranges(assignment, start_in_assignment, values)
