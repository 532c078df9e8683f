"""Changes of arguments and outputs: leaves, aliases, and which instruction computes an output."""

from collections.abc import Iterator

from xlapipe.differences.changes import AliasChange, LeafChange, OutputChange
from xlapipe.differences.leaves import ComparedLeaf, makers
from xlapipe.differences.matching import Matching
from xlapipe.differences.side import Side


def leaf_changes(matching: Matching) -> Iterator[LeafChange]:
    """Arguments and outputs that differ between the programs, also in whether they are donated."""
    paired = (("argument", matching.paired_arguments), ("output", matching.paired_outputs))
    for kind, pairs in paired:
        for leaf, other in pairs:
            same_shape = leaf is not None and other is not None and leaf.shape == other.shape
            donated = {leaf.donated for leaf in (leaf, other) if leaf is not None}
            if not same_shape or donated == {True, False}:
                yield LeafChange(kind, _leaf_text(leaf), _leaf_text(other), same_shape)


def _leaf_text(leaf: ComparedLeaf | None) -> str | None:
    if leaf is None:
        return None
    return f"{leaf.label} {leaf.shape}" + (", donated" if leaf.donated else "")


def alias_changes(matching: Matching) -> Iterator[AliasChange]:
    """Arguments of both plans that are aliased to different outputs, or only in one plan."""
    outputs_a = {argument: output for output, argument in matching.a.aliased_to.items()}
    outputs_b = {argument: output for output, argument in matching.b.aliased_to.items()}
    aliases_a, aliases_b = _aliases(matching.a), _aliases(matching.b)
    donors_a, donors_b = _donors(matching.a), _donors(matching.b)
    output_pairs = {
        matching.a.outputs[index].label: matching.b.outputs[other].label
        for index, other in matching.outputs.items()
    }
    for index_a, index_b in matching.arguments.items():
        one, other = matching.a.arguments[index_a], matching.b.arguments[index_b]
        # Without the module's header, the output of an alias is unknown.
        a = outputs_a.get(one.label) or ("an output" if one.number in aliases_a else None)
        b = outputs_b.get(other.label) or ("an output" if other.number in aliases_b else None)
        donors = one.number in donors_a, other.number in donors_b
        same = a == b or "an output" in (a, b) or output_pairs.get(a or "") == b
        if not (same and (a is None) == (b is None)) or donors[0] != donors[1]:
            yield AliasChange(other.label, a, b, *donors)


def _aliases(side: Side) -> set[tuple[int, ...]]:
    """Numbers and shape indices of the aliased parameters."""
    aliases = side.program.plan.aliases
    return {(alias.parameter_number, *alias.parameter_index) for alias in aliases}


def _donors(side: Side) -> set[tuple[int, ...]]:
    """Numbers and shape indices of the donated parameters without an alias."""
    return {(number, *index) for number, index in side.program.plan.buffer_donors or ()}


def output_changes(matching: Matching) -> Iterator[OutputChange]:
    """Outputs that A and B compute by instructions which are not paired, or by other results."""
    makers_a, makers_b = makers(matching.a.program.plan), makers(matching.b.program.plan)
    for index_a, index_b in matching.outputs.items():
        (maker_a, element_a), (maker_b, element_b) = makers_a[index_a], makers_b[index_b]
        paired = matching.instructions.get(maker_a)
        if paired is None or maker_b not in matching.reverse:
            continue
        if paired != maker_b or element_a != element_b:
            label = matching.b.outputs[index_b].label
            yield OutputChange(label, matching.a.operation(maker_a), matching.b.operation(maker_b))
