"""What is different at no cost of its own: where values lie, thunks, the order of the schedule."""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

from xlapipe.diff.changes import LaunchChange, OrderChange, PlacementChange, ThunkChange
from xlapipe.diff.matching import Matching
from xlapipe.diff.places import place_labels
from xlapipe.plan import LogicalBuffer, Thunk

_LAUNCH = re.compile(r"grid: .*")


def placement_changes(matching: Matching) -> Iterator[PlacementChange]:
    """Values of both plans that lie in other memory, or at another offset, by where to where."""
    places = place_labels(matching.a), place_labels(matching.b)
    renamed = {
        ours[at].label: theirs[other].label
        for ours, theirs, pairs in (
            (matching.a.arguments, matching.b.arguments, matching.arguments),
            (matching.a.outputs, matching.b.outputs, matching.outputs),
        )
        for at, other in pairs.items()
    }
    values_b = {
        value.name: value
        for allocation in matching.b.program.plan.allocations
        for value in allocation.values
    }
    moved: dict[tuple[str, str], list[LogicalBuffer]] = {}
    for allocation in matching.a.program.plan.allocations:
        for value in allocation.values:
            instruction, brace, index = value.name.partition("{")
            other = values_b.get(f"{matching.instructions.get(instruction)}{brace}{index}")
            if other is None or value.size_bytes != other.size_bytes:
                continue
            a, b = places[0](value.name), places[1](other.name)
            if renamed.get(a, a) != b:
                moved.setdefault((a, b), []).append(value)
            elif value.offset_bytes != other.offset_bytes:
                moved.setdefault((b, b), []).append(value)
    for (a, b), values in moved.items():
        yield PlacementChange(a, b, len(values), max(value.size_bytes for value in values))


def thunk_changes(matching: Matching) -> Iterator[ThunkChange | LaunchChange]:
    """Numbers of thunks by kind; where these are equal, launches. Kernels' names tell nothing."""
    ours, theirs = matching.a.program.plan.thunks, matching.b.program.plan.thunks
    if ours is None or theirs is None:
        return
    a, b = (Counter(thunk.kind for thunk in side) for side in (ours, theirs))
    for kind in sorted(a.keys() | b.keys()):
        if a[kind] != b[kind]:
            yield ThunkChange(kind, a[kind], b[kind])
    if a == b:
        launches = [Counter((each.kind, _launch(each)) for each in side) for side in (ours, theirs)]
        changed: Counter[str] = Counter()
        for (kind, _), count in (launches[0] - launches[1]).items():
            changed[kind] += count
        for kind in sorted(changed):
            yield LaunchChange(kind, changed[kind])


def _launch(thunk: Thunk) -> str:
    found = _LAUNCH.search(thunk.detail)
    return " ".join(found[0].split()) if found else ""


def order_change(matching: Matching) -> Iterator[OrderChange]:
    """How many instructions must move for the two schedules to be in one order."""
    order = [
        matching.b.nodes[matching.instructions[name]].position
        for name in matching.a.nodes
        if name in matching.instructions
    ]
    tails: list[int] = []  # of increasing runs, by length
    for position in order:
        at = bisect_left(tails, position)
        tails[at : at + 1] = [position]
    if len(tails) < len(order):
        yield OrderChange(len(order) - len(tails), len(order))
