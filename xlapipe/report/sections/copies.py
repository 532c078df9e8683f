"""The section about copies: values that were written by only moving data."""

from typing import Any

from xlapipe.plans import Plan
from xlapipe.plans.copies import find_copies


def copies(plan: Plan) -> list[dict[str, Any]] | None:
    """Copies, largest first; None if the dump does not contain the bodies of fusions."""
    if plan.module is None or not plan.module.complete:
        return None
    return [
        {
            "instruction": copy.instruction,
            "value": copy.value,
            "copied_bytes": copy.copied_bytes,
            "allocation": copy.allocation,
            "op_name": copy.op_name,
            "source": copy.source,
        }
        for copy in find_copies(plan)
    ]
