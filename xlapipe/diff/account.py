"""The account of the difference in total_allocation_bytes, line by line.

Each plan's total is the sum of its arguments, its outputs that are not written over an argument,
its temporary memory, constants and thread-locals. Leaves are paired by path. Temporary memory is
compared at one moment: where the larger of the two arenas is fullest, and at the instruction that
belongs to it in the other plan. What is alive then is compared value by value, and the room to
spare is a line of its own, so that the lines add up to the difference exactly.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from xlapipe.diff.changes import BytesChange, InstructionChange, Place
from xlapipe.diff.described import Described
from xlapipe.diff.leaves import Leaf, is_live_out
from xlapipe.diff.matching import Matching, Side
from xlapipe.diff.places import aliased_to, place_of, unnamed
from xlapipe.diff.temp import TempAccount

Changes = Mapping[str, InstructionChange]


def account(
    matching: Matching, a: Described, b: Described, changes: tuple[InstructionChange, ...]
) -> tuple[BytesChange, ...]:
    """Lines whose deltas add up to total(B) - total(A); the largest first, zeros left out."""
    lines = [
        *_arguments(matching),
        *_outputs(matching),
        *_counted(matching),
        *TempAccount(matching, a, b, changes).lines(),
    ]
    told = [line for line in lines if line.delta_bytes]
    return tuple(sorted(told, key=lambda line: (-abs(line.delta_bytes), line.place, line.label)))


def _size(leaf: Leaf | None) -> int:
    return leaf.allocation.size_bytes if leaf is not None and leaf.allocation is not None else 0


def _arguments(matching: Matching) -> Iterator[BytesChange]:
    for one, other in _paired(matching.a.arguments, matching.b.arguments, matching.arguments):
        label = (other or one).label  # type: ignore[union-attr]  # one of the two is there
        yield BytesChange(
            place=Place.ARGUMENT, a_bytes=_size(one), b_bytes=_size(other), label=label
        )


def _paired(
    a: tuple[Leaf, ...], b: tuple[Leaf, ...], pairs: Mapping[int, int]
) -> Iterator[tuple[Leaf | None, Leaf | None]]:
    for at, leaf in enumerate(a):
        yield leaf, b[pairs[at]] if at in pairs else None
    taken = set(pairs.values())
    for at, leaf in enumerate(b):
        if at not in taken:
            yield None, leaf


def _outputs(matching: Matching) -> Iterator[BytesChange]:
    """Outputs with memory of their own; of two in one allocation the first has it."""
    owners_a, owners_b = _owned(matching.a), _owned(matching.b)
    aliases_a, aliases_b = aliased_to(matching.a), aliased_to(matching.b)
    for one, other in _paired(matching.a.outputs, matching.b.outputs, matching.outputs):
        yield BytesChange(
            place=Place.OUTPUT,
            a_bytes=owners_a.pop(one.label, 0) if one is not None else 0,
            b_bytes=owners_b.pop(other.label, 0) if other is not None else 0,
            label=(other or one).label,  # type: ignore[union-attr]  # one of the two is there
            a_alias=aliases_a.get(one.label) if one is not None else None,
            b_alias=aliases_b.get(other.label) if other is not None else None,
        )
    for label in sorted(owners_a.keys() | owners_b.keys()):
        yield BytesChange(
            place=Place.OUTPUT,
            a_bytes=owners_a.get(label, 0),
            b_bytes=owners_b.get(label, 0),
            label=label,
        )


def _owned(side: Side) -> dict[str, int]:
    """Bytes of the live-out allocations that are no parameter's, by label."""
    labels = {
        leaf.allocation.index: leaf.label
        for leaf in reversed(side.outputs)
        if leaf.allocation is not None
    }
    owned: Counter[str] = Counter()
    for allocation in side.program.plan.allocations:
        if is_live_out(allocation) and place_of(allocation) is Place.OUTPUT:
            owned[labels.get(allocation.index) or unnamed(allocation)] += allocation.size_bytes
    return dict(owned)


def _counted(matching: Matching) -> Iterator[BytesChange]:
    """Constants by shape, and thread-locals all together."""
    for place in (Place.CONSTANT, Place.THREAD_LOCAL):
        sizes: list[Counter[str]] = []
        for side in (matching.a, matching.b):
            sizes.append(Counter())
            for allocation in side.program.plan.allocations:
                if place_of(allocation) is place:
                    shapes = " ".join(sorted(value.shape for value in allocation.values))
                    label = shapes if place is Place.CONSTANT else "scalars inside fusions"
                    sizes[-1][label] += allocation.size_bytes
        for label in sorted(sizes[0].keys() | sizes[1].keys()):
            yield BytesChange(
                place=place, a_bytes=sizes[0][label], b_bytes=sizes[1][label], label=label
            )
