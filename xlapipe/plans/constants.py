"""Arrays that a program holds as constants, such as those that a step closes over."""

from collections import Counter
from dataclasses import dataclass

from xlapipe.plans.buffers import AllocationKind
from xlapipe.plans.hlo import SourceLine
from xlapipe.plans.plan import Plan

_LARGE_BYTES = 1 << 20
_CAST = "convert_element_type"


@dataclass(frozen=True, slots=True)
class LargeConstant:
    """Constants of one line.

    Attributes:
      source: of what reads them; None if unknown.
      folded: whether XLA may have computed some.
    """

    source: SourceLine | None
    size_bytes: int
    folded: bool


def large_constants(plan: Plan) -> list[LargeConstant]:
    """The constants of 1 MiB or more, the largest first."""
    sizes: Counter[SourceLine | None] = Counter()
    folded = set[SourceLine | None]()
    for allocation in plan.device_allocations:
        if not allocation.is_a(AllocationKind.CONSTANT):
            continue
        for value in allocation.values:
            source = plan.nearest_source(value.instruction)
            sizes[source] += value.size_bytes
            made = plan.instructions.get(value.instruction)
            # XLA gives a constant that it folds the name of the operation that it computes.
            if made is not None and not (made.op_name or _CAST).endswith(_CAST):
                folded.add(source)
    return [
        LargeConstant(source, size_bytes, source in folded)
        for source, size_bytes in sizes.most_common()
        if size_bytes >= _LARGE_BYTES
    ]
