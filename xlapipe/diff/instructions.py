"""Instructions that came, went, or are done otherwise."""

from collections.abc import Iterator

from xlapipe.diff.aspects import aspects_of
from xlapipe.diff.changes import Action, InstructionChange
from xlapipe.diff.described import Described
from xlapipe.diff.matching import Matching


def instruction_changes(
    matching: Matching, a: Described, b: Described
) -> Iterator[InstructionChange]:
    """Every change, in the order of A's schedule and then, for those that came, of B's."""
    for name, node in matching.a.nodes.items():
        other_name = matching.instructions.get(name)
        if other_name is None:
            yield InstructionChange(
                what=a.what(node),
                action=Action.REMOVED,
                subject=a.subject(name),
                shape=node.instruction.shape,
                a=name,
                b=None,
                a_bytes=a.written_bytes(node),
                b_bytes=None,
            )
            continue
        other = matching.b.nodes[other_name]
        if node.identity == other.identity:
            continue
        aspects = aspects_of(matching, a, b, node, other)
        if aspects:
            yield InstructionChange(
                what=a.what(node) if node.gemm is not None else b.what(other),
                action=Action.CHANGED,
                subject=b.subject(other_name) if node.gemm is None else a.subject(name),
                shape=other.instruction.shape,
                a=name,
                b=other_name,
                a_bytes=a.written_bytes(node),
                b_bytes=b.written_bytes(other),
                aspects=aspects,
            )
    for name, node in matching.b.nodes.items():
        if name not in matching.reverse:
            yield InstructionChange(
                what=b.what(node),
                action=Action.ADDED,
                subject=b.subject(name),
                shape=node.instruction.shape,
                a=None,
                b=name,
                a_bytes=None,
                b_bytes=b.written_bytes(node),
            )
