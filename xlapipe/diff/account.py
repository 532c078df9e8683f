"""The account of the difference in total_allocation_bytes, line by line.

Each plan's total is the sum of its arguments, its outputs that are not aliased to an argument, its
temporary memory, constants and thread-locals. Leaves are paired by path. Temporary memory is
compared at one position of each schedule: the peak of the larger arena, and the paired instruction
in the other plan. The values alive there are compared one by one, and the unused bytes are separate
lines, so that the lines add up to the difference exactly.
"""

from collections import Counter
from collections.abc import Iterator

from xlapipe.diff.changes import BytesChange, InstructionChange, Place
from xlapipe.diff.leaves import ComparedLeaf
from xlapipe.diff.matching import Matching
from xlapipe.diff.side import Side, place_of, unnamed
from xlapipe.diff.temp_account import TempAccount


def account(matching: Matching, changes: tuple[InstructionChange, ...]) -> tuple[BytesChange, ...]:
    """Lines whose deltas add up to total(B) - total(A); the largest first, zeros left out."""
    lines = [
        *_arguments(matching),
        *_outputs(matching),
        *_counted(matching),
        *TempAccount(matching, changes).lines(),
    ]
    nonzero = [line for line in lines if line.delta_bytes]
    return tuple(sorted(nonzero, key=lambda line: (-abs(line.delta_bytes), line.place, line.label)))


def _size_bytes(leaf: ComparedLeaf | None) -> int:
    return leaf.allocation.size_bytes if leaf is not None and leaf.allocation is not None else 0


def _arguments(matching: Matching) -> Iterator[BytesChange]:
    for one, other in matching.paired_arguments:
        label = (other or one).label  # type: ignore[union-attr]  # not both are None
        yield BytesChange(
            place=Place.ARGUMENT, a_bytes=_size_bytes(one), b_bytes=_size_bytes(other), label=label
        )


def _outputs(matching: Matching) -> Iterator[BytesChange]:
    """Outputs in separate allocations; the first of two in one allocation gets the bytes."""
    bytes_a, bytes_b = _unaliased_bytes(matching.a), _unaliased_bytes(matching.b)
    aliases_a, aliases_b = matching.a.aliased_to, matching.b.aliased_to
    for one, other in matching.paired_outputs:
        yield BytesChange(
            place=Place.OUTPUT,
            a_bytes=bytes_a.pop(one.label, 0) if one is not None else 0,
            b_bytes=bytes_b.pop(other.label, 0) if other is not None else 0,
            label=(other or one).label,  # type: ignore[union-attr]  # not both are None
            a_alias=aliases_a.get(one.label) if one is not None else None,
            b_alias=aliases_b.get(other.label) if other is not None else None,
        )
    for label in sorted(bytes_a.keys() | bytes_b.keys()):
        yield BytesChange(
            place=Place.OUTPUT,
            a_bytes=bytes_a.get(label, 0),
            b_bytes=bytes_b.get(label, 0),
            label=label,
        )


def _unaliased_bytes(side: Side) -> dict[str, int]:
    """Bytes of the live-out allocations without a parameter, by label."""
    labels = {
        leaf.allocation.index: leaf.label
        for leaf in reversed(side.outputs)
        if leaf.allocation is not None
    }
    sizes: Counter[str] = Counter()
    for allocation in side.program.plan.allocations:
        if place_of(allocation) is Place.OUTPUT:
            sizes[labels.get(allocation.index) or unnamed(allocation)] += allocation.size_bytes
    return dict(sizes)


def _counted(matching: Matching) -> Iterator[BytesChange]:
    """Constants, by shape, and the sum of thread-locals."""
    for place in (Place.CONSTANT, Place.THREAD_LOCAL):
        sizes: list[Counter[str]] = []
        for side in (matching.a, matching.b):
            sizes.append(Counter())
            for allocation in side.program.plan.allocations:
                if place_of(allocation) is place:
                    shapes = " ".join(sorted(value.shape.text for value in allocation.values))
                    label = shapes if place is Place.CONSTANT else "scalars inside fusions"
                    sizes[-1][label] += allocation.size_bytes
        for label in sorted(sizes[0].keys() | sizes[1].keys()):
            yield BytesChange(
                place=place, a_bytes=sizes[0][label], b_bytes=sizes[1][label], label=label
            )
