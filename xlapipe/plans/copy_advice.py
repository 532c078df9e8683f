"""What to try against a copy, by the kind of copy."""

from collections.abc import Sequence

from xlapipe.plans.copies import CopiedValue, Copy
from xlapipe.plans.plan import Plan
from xlapipe.plans.program import ArgumentLeaf, Program
from xlapipe.plans.wording import listed

# A copy of a counter or a scale takes less time than the launch of its kernel.
_SMALL_BYTES = 1024
# Arguments that a text names.
_MAX_LISTED = 3


def advice_against(program: Program, copy: Copy) -> str:
    """What the author of a step can change so that a copy is not needed."""
    whole = [source for source in copy.sources if source.is_whole]
    if len(copy.sources) > 1 and not copy.updates:
        return (
            "use the parts where they are needed, or write each into one buffer "
            "(`x.at[a:b].set(v)`), instead of joining them"
        )
    leaf = leaf_of(program, whole[0]) if whole else None
    if copy.reorders:
        return _layout_advice(program.plan, leaf, copy)
    if not whole and copy.sources and not copy.updates:
        return (
            "read the part in an operation that XLA fuses (a library's call needs its operands in "
            "memory), or pass it as a separate argument"
        )
    if leaf is not None and not leaf.donated:
        if _is_output(program.plan, copy):
            return (
                f"do not return the argument {leaf.path}, which the caller has already, or donate "
                "it"
            )
        return (
            f"donate the argument {leaf.path}, update it in place (`x.at[i].set(v)`), and do not "
            "read the old value after the update"
        )
    return (
        "donate the buffer, update it in place (`x.at[i].set(v)`), and do not read the "
        "old value after the update"
    )


def copy_advice(plan: Plan, leaf: ArgumentLeaf, copies: Sequence[Copy]) -> str:
    """The advice for a donated leaf that is updated in place, but also copied.

    Args:
      copies: copies of half of the leaf or more; at least one.
    """
    most_bytes = max(copy.copied_bytes for copy in copies)
    allow = f"allow it with Donated(…, copies_up_to_bytes={most_bytes})"
    if most_bytes <= _SMALL_BYTES:
        return f"nothing: a copy of {most_bytes:,} B costs almost no time; {allow}"
    number = leaf.parameter_number
    read = [copy for copy in copies if copy.bytes_of_parameter(number)]
    if read and all(copy.reorders for copy in read):
        return f"{_layout_advice(plan, leaf, copies[0])}; or {allow}"
    return (
        "do not read the old value after the update, and return the new value only once; if XLA "
        f"orders a reader after the update, {allow}"
    )


def leaf_of(program: Program, source: CopiedValue) -> ArgumentLeaf | None:
    """The argument that a copied value is, or is an update of in place; None for others."""
    return program.argument_of_parameter.get(source.parameter_number)


def copied_leaves(program: Program, copy: Copy) -> str:
    """Names the arguments that are copied, e.g. ` of cache`; an empty text for other values."""
    leaves = [leaf_of(program, source) for source in copy.sources]
    paths = dict.fromkeys(leaf.path for leaf in leaves if leaf is not None)
    return f" of {listed([*paths], _MAX_LISTED)}" if paths else ""


def _layout_advice(plan: Plan, leaf: ArgumentLeaf | None, copy: Copy) -> str:
    """How to read a value in the order in which it is stored."""
    line = plan.nearest_source(copy.instruction)
    at = f" at {line}" if line is not None else ""
    name = leaf.path if leaf is not None else "the value"
    if _is_output(plan, copy):
        return (
            f"the output is {name} in another order of dimensions: return it as it is, and "
            "transpose it where it is used"
        )
    passed = f"pass {name} in that order" if leaf is not None else "compute it in that order"
    return (
        f"XLA writes {name} once more, in another order of dimensions, for what reads it{at}: "
        f"{passed}, or write what reads it, such as a product with the same batch dimensions in "
        "both operands or a convolution's dimension_numbers, so that it takes it as it is"
    )


def _is_output(plan: Plan, copy: Copy) -> bool:
    entry = plan.entry
    if entry is None:
        return False
    root = entry.by_name[entry.root]
    return copy.instruction in (entry.root, *(root.operands if root.opcode == "tuple" else ()))
