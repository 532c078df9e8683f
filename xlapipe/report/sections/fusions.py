"""The section about fusions."""

from collections import Counter
from dataclasses import dataclass

from xlapipe.plans import Plan, SourceLine
from xlapipe.plans.shapes import Shape


@dataclass(frozen=True, slots=True)
class FusionRow:
    """A fusion that is not inside another fusion, with the bytes that it writes."""

    instruction: str
    kind: str | None
    backend_kind: str | None
    shape: Shape
    written_bytes: int
    op_name: str | None
    source: SourceLine | None


def fusions(plan: Plan) -> tuple[FusionRow, ...]:
    """The fusions of a plan in scheduled order."""
    written_bytes: Counter[str] = Counter()
    for allocation in plan.allocations:
        for value in allocation.values:
            if not value.shape.is_tuple:
                written_bytes[value.instruction] += value.size_bytes
    return tuple(
        FusionRow(
            fusion.name,
            fusion.fusion_kind,
            fusion.fusion_backend_kind,
            fusion.shape,
            written_bytes[fusion.name],
            fusion.op_name,
            fusion.source,
        )
        for fusion in plan.instructions.values()
        if fusion.opcode == "fusion"
    )
