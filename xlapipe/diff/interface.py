"""What is different about arguments and outputs: leaves, aliases, what computes an output."""

from collections.abc import Iterator

from xlapipe.diff.changes import AliasChange, LeafChange, OutputChange
from xlapipe.diff.described import Described
from xlapipe.diff.leaves import Leaf, makers
from xlapipe.diff.matching import Matching, Side
from xlapipe.diff.places import aliased_to
from xlapipe.plan import InputOutputAlias


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
        aliases = _alias_of(matching.a, one), _alias_of(matching.b, other)
        # Without the module's header only the allocation tells that there is an alias.
        a = outputs_a.get(one.label) or ("an output" if aliases[0] else None)
        b = outputs_b.get(other.label) or ("an output" if aliases[1] else None)
        donors = _is_donor(matching.a, one), _is_donor(matching.b, other)
        same = a == b or "an output" in (a, b) or output_pairs.get(a or "") == b
        if not (same and (a is None) == (b is None)) or donors[0] != donors[1]:
            yield AliasChange(other.label, a, b, *donors)
        elif aliases[0] and aliases[1] and aliases[0].must_alias != aliases[1].must_alias:
            forms = [
                " (must-alias)" if alias.must_alias else " (may-alias)"
                for alias in aliases
                if alias
            ]
            yield AliasChange(other.label, f"{a}{forms[0]}", f"{b}{forms[1]}")


def _alias_of(side: Side, leaf: Leaf) -> InputOutputAlias | None:
    for alias in side.program.plan.aliases:
        if (alias.parameter_number, *alias.parameter_index) == leaf.number:
            return alias
    return None


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
