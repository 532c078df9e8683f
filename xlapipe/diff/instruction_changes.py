"""Instructions that were added, removed or changed."""

from collections.abc import Iterator

from xlapipe.diff.aspects import aspects_of
from xlapipe.diff.changes import Action, InstructionChange
from xlapipe.diff.describe import InstructionDescriber
from xlapipe.diff.matching import Matching


def instruction_changes(
    matching: Matching, a: InstructionDescriber, b: InstructionDescriber
) -> Iterator[InstructionChange]:
    """Removed and changed instructions in the order of A's schedule, then added ones in B's."""
    for name, node in matching.a.nodes.items():
        other_name = matching.instructions.get(name)
        if other_name is None:
            yield InstructionChange(
                what=a.category(node),
                action=Action.REMOVED,
                subject=a.operation(name),
                shape=node.instruction.shape.text,
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
                what=a.category(node) if node.gemm is not None else b.category(other),
                action=Action.CHANGED,
                subject=b.operation(other_name) if node.gemm is None else a.operation(name),
                shape=other.instruction.shape.text,
                a=name,
                b=other_name,
                a_bytes=a.written_bytes(node),
                b_bytes=b.written_bytes(other),
                aspects=aspects,
            )
    for name, node in matching.b.nodes.items():
        if name not in matching.reverse:
            yield InstructionChange(
                what=b.category(node),
                action=Action.ADDED,
                subject=b.operation(name),
                shape=node.instruction.shape.text,
                a=None,
                b=name,
                a_bytes=None,
                b_bytes=b.written_bytes(node),
            )
