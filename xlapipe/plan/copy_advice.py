"""What to try against a copy of a donated leaf, by the kind of copy."""

import re
from collections.abc import Sequence

from xlapipe.plan.copies import Copy
from xlapipe.plan.plan import Plan
from xlapipe.plan.program import ArgumentLeaf

# A copy of a counter or a scale takes less time than the launch of its kernel.
_SMALL_BYTES = 1024
_ARRAY = re.compile(r"(?P<dtype>\w+)\[(?P<dims>[\d,]*)\]\{(?P<layout>[\d,]*)")


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
    parameter = _ARRAY.fullmatch(_array(_parameter_shape(plan, leaf)))
    instruction = plan.instructions.get(copy.instruction)
    copied = _ARRAY.fullmatch(_array(instruction.shape)) if instruction is not None else None
    if parameter is None or copied is None or parameter["layout"] == copied["layout"]:
        return None
    same_array = parameter.group("dtype", "dims") == copied.group("dtype", "dims")
    return (_text(parameter), _text(copied)) if same_array else None


def _parameter_shape(plan: Plan, leaf: ArgumentLeaf) -> str:
    entry = plan.module.entry_computation if plan.module is not None else None
    number = leaf.parameter_number
    if entry is None or number not in entry.parameters:
        return ""
    return entry.parameters[number].shape


def _array(shape: str) -> str:
    """`f32[8,4]{1,0` of an array's shape, without tiles and memory space; else as it is."""
    match = _ARRAY.match(shape)
    return match[0] if match is not None else shape


def _text(match: re.Match[str]) -> str:
    return f"{match['dtype']}[{match['dims']}]{{{match['layout']}}}"
