"""What is different besides instructions and bytes: aliases, places, thunks, order, outputs."""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

from xlapipe.diff.changes import (
    AliasChange,
    LaunchChange,
    LeafChange,
    OrderChange,
    OutputChange,
    PlacementChange,
    ThunkChange,
)
from xlapipe.diff.described import Described
from xlapipe.diff.leaves import Leaf, makers
from xlapipe.diff.matching import Matching, Side
from xlapipe.diff.places import aliased_to, place_labels
from xlapipe.plan import LogicalBuffer, Thunk

_LAUNCH = re.compile(r"grid: .*")


def leaf_changes(matching: Matching) -> Iterator[LeafChange]:
    """Arguments and outputs that are not the same in both programs, requests to donate too."""
    for kind, ours, theirs, pairs in (
        ("argument", matching.a.arguments, matching.b.arguments, matching.arguments),
        ("output", matching.a.outputs, matching.b.outputs, matching.outputs),
    ):
        for at, leaf in enumerate(ours):
            other = theirs[pairs[at]] if at in pairs else None
            if other is None:
                yield LeafChange(kind, _told(leaf), None)
            elif leaf.shape != other.shape or _requests(leaf, other):
                yield LeafChange(kind, _told(leaf), _told(other))
        taken = set(pairs.values())
        for at, leaf in enumerate(theirs):
            if at not in taken:
                yield LeafChange(kind, None, _told(leaf))


def _requests(one: Leaf, other: Leaf) -> bool:
    """Whether it is known that one is donated and the other is not."""
    return None not in (one.donated, other.donated) and one.donated != other.donated


def _told(leaf: Leaf) -> str:
    return f"{leaf.label} {leaf.shape}" + (", donated" if leaf.donated else "")


def alias_changes(matching: Matching) -> Iterator[AliasChange]:
    """Arguments of both plans whose memory goes to another output than before, or to none."""
    outputs_a = {argument: output for output, argument in aliased_to(matching.a).items()}
    outputs_b = {argument: output for output, argument in aliased_to(matching.b).items()}
    output_pairs = {
        matching.a.outputs[at].label: matching.b.outputs[other].label
        for at, other in matching.outputs.items()
    }
    for at, other_at in matching.arguments.items():
        one, other = matching.a.arguments[at], matching.b.arguments[other_at]
        a, b = outputs_a.get(one.label), outputs_b.get(other.label)
        # Without the module's header only the allocation tells that there is an alias.
        a = a or ("an output" if _is_aliased(matching.a, one) else None)
        b = b or ("an output" if _is_aliased(matching.b, other) else None)
        donors = _is_donor(matching.a, one), _is_donor(matching.b, other)
        same = a == b or "an output" in (a, b) or output_pairs.get(a or "") == b
        if not (same and (a is None) == (b is None)) or donors[0] != donors[1]:
            yield AliasChange(other.label, a, b, *donors)


def _is_aliased(side: Side, leaf: Leaf) -> bool:
    return any(
        (alias.parameter_number, *alias.parameter_index) == leaf.number
        for alias in side.program.plan.aliases
    )


def _is_donor(side: Side, leaf: Leaf) -> bool:
    donors = side.program.plan.buffer_donors or ()
    return any((number, *index) == leaf.number for number, index in donors)


def output_changes(matching: Matching, a: Described, b: Described) -> Iterator[OutputChange]:
    """Outputs that are computed by an instruction that is not the pair of the former one."""
    makers_a, makers_b = makers(matching.a.program), makers(matching.b.program)
    for at, other in matching.outputs.items():
        one, two = makers_a.get(at), makers_b.get(other)
        if one is None or two is None:
            continue
        paired = matching.instructions.get(one)
        if paired != two and paired is not None and two in matching.reverse:
            label = matching.b.outputs[other].label
            yield OutputChange(label, a.subject(one), b.subject(two))


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
