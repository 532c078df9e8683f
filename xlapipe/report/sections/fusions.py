"""The section about fusions."""

from collections import Counter
from typing import Any

from xlapipe.plans import Plan


def fusions(plan: Plan) -> list[dict[str, Any]]:
    """Fusions that are not inside another fusion, in scheduled order, with the bytes they write."""
    written_bytes: Counter[str] = Counter()
    for allocation in plan.allocations:
        for value in allocation.values:
            if not value.shape.is_tuple:
                written_bytes[value.instruction] += value.size_bytes
    return [
        {
            "instruction": fusion.name,
            "kind": fusion.fusion_kind,
            "backend_kind": fusion.fusion_backend_kind,
            "shape": fusion.shape,
            "written_bytes": written_bytes[fusion.name],
            "op_name": fusion.op_name,
            "source": fusion.source,
        }
        for fusion in plan.instructions.values()
        if fusion.opcode == "fusion"
    ]
