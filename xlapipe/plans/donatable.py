"""Arguments that could be donated: outputs of their types are written to other memory."""

from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass

from xlapipe.plans.once import once_per_object
from xlapipe.plans.program import ArgumentLeaf, OutputLeaf, Program

# Least share of the bytes of an argument's leaves that are not donated. Below it, equal types are
# chance: a scale and an unrelated vector.
_LEAST_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Donatable:
    """An argument that is not donated, and outputs that could be written over it.

    Attributes:
      leaves: those with an output of the same type that is written to other memory.
    """

    name: str
    leaves: int
    size_bytes: int


@once_per_object
def donatable(program: Program) -> tuple[Donatable, ...]:
    """The arguments that could be donated, largest first."""
    aliased = {alias.output_index for alias in program.plan.aliases}
    # The index of an only output is `()`, of one of several `(n,)`.
    owned = aliased & {()} if len(program.outputs) == 1 else aliased
    # The caller needs the weights after it has their gradients.
    gradients = {*program.facts.call.gradients} if program.facts.call is not None else set()
    free = Counter(
        _type(output)
        for output in program.outputs
        if not owned & {(output.index,), ()}
        and not output.constant
        and output.path not in gradients
    )
    leaves: dict[str, list[ArgumentLeaf]] = defaultdict(list)
    total_bytes: Counter[str] = Counter()
    for leaf in program.arguments:
        if leaf.donated or leaf.donation_dropped_by or leaf.parameter_number is None:
            continue
        name = argument_name(leaf.path)
        total_bytes[name] += leaf.size_bytes
        if not free[_type(leaf)]:
            continue
        free[_type(leaf)] -= 1
        leaves[name].append(leaf)
    candidates = [
        Donatable(name, len(group), sum(leaf.size_bytes for leaf in group))
        for name, group in leaves.items()
    ]
    return tuple(
        sorted(
            (row for row in candidates if row.size_bytes >= _LEAST_SHARE * total_bytes[row.name]),
            key=lambda row: -row.size_bytes,
        )
    )


def argument_name(path: str) -> str:
    """The parameter's name in the path of a leaf.

    >>> argument_name("cache[0]['k']"), argument_name("state.params"), argument_name("x")
    ('cache', 'state', 'x')
    """
    ends = [position for mark in "[." if (position := path.find(mark)) > 0]
    return path[: min(ends)] if ends else path


def _type(leaf: ArgumentLeaf | OutputLeaf) -> Hashable:
    return leaf.shape, leaf.dtype, leaf.spec, leaf.memory_kind
