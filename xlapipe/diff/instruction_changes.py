"""Instructions that were added, removed or changed."""

from collections.abc import Iterator

from xlapipe.diff.aspects import aspects_of
from xlapipe.diff.changes import Action, InstructionChange
from xlapipe.diff.identity import Node
from xlapipe.diff.matching import Matching
from xlapipe.diff.side import Side


def instruction_changes(matching: Matching) -> Iterator[InstructionChange]:
    """Removed and changed instructions in the order of A's schedule, then added ones in B's."""
    a, b = matching.a, matching.b
    for name, node in a.nodes.items():
        other_name = matching.instructions.get(name)
        if other_name is None:
            yield _alone(a, node, Action.REMOVED)
            continue
        other = b.nodes[other_name]
        if node.identity == other.identity:
            continue
        aspects = aspects_of(matching, node, other)
        if aspects:
            yield InstructionChange(
                what=a.category(node) if node.gemm is not None else b.category(other),
                action=Action.CHANGED,
                subject=b.operation(other_name) if node.gemm is None else a.operation(name),
                shape=other.instruction.shape.text,
                a=name,
                b=other_name,
                a_bytes=a.written_bytes[name],
                b_bytes=b.written_bytes[other_name],
                aspects=aspects,
            )
    for name, node in b.nodes.items():
        if name not in matching.reverse:
            yield _alone(b, node, Action.ADDED)


def _alone(side: Side, node: Node, action: Action) -> InstructionChange:
    """An instruction of one side only."""
    written, is_a = side.written_bytes[node.name], action is Action.REMOVED
    return InstructionChange(
        what=side.category(node),
        action=action,
        subject=side.operation(node.name),
        shape=node.instruction.shape.text,
        a=node.name if is_a else None,
        b=None if is_a else node.name,
        a_bytes=written if is_a else None,
        b_bytes=None if is_a else written,
    )
