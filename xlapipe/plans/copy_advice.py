"""What to try against a copy of a donated leaf, by the kind of copy."""

from collections.abc import Sequence

from xlapipe.plans.copies import Copy
from xlapipe.plans.plan import Plan
from xlapipe.plans.program import ArgumentLeaf
from xlapipe.plans.shapes import Shape

# A copy of a counter or a scale takes less time than the launch of its kernel.
_SMALL_BYTES = 1024


def copy_advice(plan: Plan, leaf: ArgumentLeaf, copies: Sequence[Copy]) -> str:
    """The advice for a leaf that is updated in place, but also copied.

    Args:
      copies: of half of the leaf or more; at least one.
    """
    most_bytes = max(copy.copied_bytes for copy in copies)
    allow = f"allow it with Donated(…, copies_up_to_bytes={most_bytes})"
    if most_bytes <= _SMALL_BYTES:
        return f"nothing: a copy of {most_bytes:,} B costs almost no time; {allow}"
    layouts = [_layouts(plan, leaf, copy) for copy in copies]
    if all(layouts):
        parameter, copied = next(filter(None, layouts))
        return (
            f"XLA reads it in layout {copied}, and the argument is in {parameter}: store the "
            f"argument transposed, or {allow}"
        )
    return (
        "do not read the old value after the update, and return the new value only once; if XLA "
        f"orders a reader after the update, {allow}"
    )


def _layouts(plan: Plan, leaf: ArgumentLeaf, copy: Copy) -> tuple[str, str] | None:
    """Shapes with layout of the parameter and of its copy if only the order of elements differs."""
    parameter = plan.parameter(leaf.parameter_number)
    instruction = plan.instructions.get(copy.instruction)
    if parameter is None or instruction is None or not instruction.shape.arrays:
        return None
    shapes = parameter.shape, instruction.shape.arrays[0]
    if any(shape.order is None for shape in shapes) or shapes[0].order == shapes[1].order:
        return None
    same_array = shapes[0].without_layout == shapes[1].without_layout
    return (_text(shapes[0]), _text(shapes[1])) if same_array else None


def _text(shape: Shape) -> str:
    """Without tiles and memory space."""
    return f"{shape.without_layout}{{{','.join(map(str, shape.order or ()))}}}"
