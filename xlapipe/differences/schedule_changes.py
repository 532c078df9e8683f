"""Changes that do not change the total: placement of values, thunks, order of the schedule."""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

from xlapipe.differences.changes import OrderChange, PlacementChange, ThunkChange
from xlapipe.differences.matching import Matching
from xlapipe.plans import LogicalBuffer

_LAUNCH = re.compile(r"grid: .*")


def placement_changes(matching: Matching) -> Iterator[PlacementChange]:
    """Values of both plans that are in a different allocation or at a different offset, grouped."""
    renamed = {
        one.label: two.label
        for one, two in (*matching.paired_arguments, *matching.paired_outputs)
        if one is not None and two is not None
    }
    # An output that is aliased in one plan only; the change of the alias states the move.
    labels_a = {b: a for a, b in renamed.items()}
    aliases = {
        *((argument, renamed.get(out, out)) for out, argument in matching.a.aliased_to.items()),
        *((labels_a.get(out, out), argument) for out, argument in matching.b.aliased_to.items()),
    }
    moved: dict[tuple[str, str], list[LogicalBuffer]] = {}
    for value in matching.a.values.values():
        partner = matching.instructions.get(value.instruction, "")
        other = matching.b.values.get(partner + value.name.removeprefix(value.instruction))
        if other is None or value.size_bytes != other.size_bytes:
            continue
        a, b = matching.a.place(value.name), matching.b.place(other.name)
        if (a, b) in aliases:
            continue
        if renamed.get(a, a) != b:
            moved.setdefault((a, b), []).append(value)
        elif value.offset_bytes != other.offset_bytes:
            moved.setdefault((b, b), []).append(value)
    for (a, b), values in moved.items():
        yield PlacementChange(a, b, len(values), max(value.size_bytes for value in values))


def thunk_changes(matching: Matching) -> Iterator[ThunkChange]:
    """Differences in the number of thunks by kind; if all are equal, differences of launches.

    Names of kernels are ignored: they contain numbers that vary between compiles.
    """
    thunks_a, thunks_b = matching.a.program.plan.thunks, matching.b.program.plan.thunks
    if thunks_a is None or thunks_b is None:
        return
    a, b = (Counter(thunk.kind for thunk in thunks) for thunks in (thunks_a, thunks_b))
    for kind in sorted(a.keys() | b.keys()):
        if a[kind] != b[kind]:
            yield ThunkChange(kind, a[kind], b[kind])
    if a == b:
        launches_a, launches_b = (
            Counter(
                (thunk.kind, *" ".join(_LAUNCH.findall(thunk.detail)).split()) for thunk in thunks
            )
            for thunks in (thunks_a, thunks_b)
        )
        changed: Counter[str] = Counter()
        for (kind, *_), count in (launches_a - launches_b).items():
            changed[kind] += count
        for kind in sorted(changed):
            yield ThunkChange(kind, a[kind], b[kind], launches=changed[kind])


def order_change(matching: Matching) -> Iterator[OrderChange]:
    """The smallest number of instructions to move so that both schedules have one order."""
    order = [
        matching.b.nodes[matching.instructions[name]].position
        for name in matching.a.nodes
        if name in matching.instructions
    ]
    tails: list[int] = []  # last positions of the best increasing subsequences, by length
    for position in order:
        length = bisect_left(tails, position)
        tails[length : length + 1] = [position]
    if len(tails) < len(order):
        yield OrderChange(len(order) - len(tails), len(order))
