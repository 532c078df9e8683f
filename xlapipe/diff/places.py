"""What an allocation is used for, and the leaf that it belongs to."""

from collections.abc import Callable

from xlapipe.diff.changes import Place
from xlapipe.diff.matching import Side
from xlapipe.plans import AllocationKind, BufferAllocation


def place_of(allocation: BufferAllocation) -> Place:
    """The use of an allocation, by the same rules as `Totals`."""
    for kind, place in (
        (AllocationKind.THREAD_LOCAL, Place.THREAD_LOCAL),
        (AllocationKind.PARAMETER, Place.ARGUMENT),
        (AllocationKind.CONSTANT, Place.CONSTANT),
        (AllocationKind.MAYBE_LIVE_OUT, Place.OUTPUT),
    ):
        if allocation.is_a(kind):
            return place
    return Place.TEMP


def unnamed(allocation: BufferAllocation) -> str:
    """A label for a live-out allocation without a known output."""
    if allocation.values and all(value.shape.is_tuple for value in allocation.values):
        return "the pointer table of the outputs"
    return "outputs without a name in the HLO"


def aliased_to(side: Side) -> dict[str, str]:
    """Label of an output to the label of the argument that it is aliased to."""
    labels = {leaf.number: leaf.label for leaf in side.arguments}
    outputs = {leaf.number: leaf.label for leaf in side.outputs}
    return {
        outputs[alias.output_index or (0,)]: labels[alias.parameter_number, *alias.parameter_index]
        for alias in side.program.plan.aliases
        if alias.output_index is not None
        and (alias.output_index or (0,)) in outputs
        and (alias.parameter_number, *alias.parameter_index) in labels
    }


def place_labels(side: Side) -> Callable[[str], str]:
    """A function from a value's name to a leaf's label, `temp`, `constant` or `thread-local`."""
    labels: dict[int, str] = {}
    for leaf in (*reversed(side.outputs), *reversed(side.arguments)):
        if leaf.allocation is not None:
            labels[leaf.allocation.index] = leaf.label
    allocations = side.program.plan.allocation_of_value

    def place(name: str) -> str:
        allocation = allocations[name]
        kind = place_of(allocation)
        if kind is Place.TEMP and allocation.color:
            return f"temp (color {allocation.color})"
        return labels.get(allocation.index, unnamed(allocation) if kind is Place.OUTPUT else kind)

    return place
