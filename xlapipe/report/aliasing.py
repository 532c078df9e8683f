"""The section about aliasing: which argument is reused for which output, and which is not."""

from dataclasses import dataclass
from typing import NamedTuple

from xlapipe.dump.opened import Opened
from xlapipe.plans import BufferAllocation
from xlapipe.plans.labels import labels_of, pattern_of

ALIASED = "aliased"
NOT_ALIASED = "donated, not aliased"
NOT_DONATED = "not donated"
UNUSED = "donated, not used by the program"
# The order in which a report lists them.
_ORDER = (NOT_ALIASED, UNUSED, ALIASED, NOT_DONATED)


@dataclass(frozen=True, slots=True)
class AliasGroup:
    """Arguments that differ only by a number in their paths, with one answer.

    Attributes:
      argument: path of the argument, with `*` for numbers if there are several.
      output: path of the output in its memory, likewise; None without an alias.
      answer: one of the constants of this module.
      arguments: paths of all arguments.
      outputs: paths of the outputs in their memory, in the order of `arguments`.
      size_bytes: size of all of them.
    """

    argument: str
    output: str | None
    answer: str
    arguments: tuple[str, ...]
    outputs: tuple[str, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class OwnOutput:
    """An output in a separate allocation, which it does not share with an argument."""

    output: str
    allocation: int
    size_bytes: int


class _LeafAnswer(NamedTuple):
    """What happened to one argument leaf; `output` is empty without an alias."""

    argument: str
    output: str
    answer: str
    size_bytes: int


def alias_groups(dump: Opened) -> tuple[AliasGroup, ...]:
    """Failed donations first and arguments that were not donated last; largest first."""
    gathered: dict[tuple[str, str, str], list[_LeafAnswer]] = {}
    for leaf in _leaf_answers(dump):
        key = (leaf.answer, pattern_of(leaf.argument), pattern_of(leaf.output))
        gathered.setdefault(key, []).append(leaf)
    groups = [_alias_group(leaves) for leaves in gathered.values()]
    return tuple(
        sorted(
            groups,
            key=lambda group: (_ORDER.index(group.answer), -group.size_bytes, group.argument),
        )
    )


def _alias_group(leaves: list[_LeafAnswer]) -> AliasGroup:
    argument, output, answer, _ = leaves[0]
    if len(leaves) > 1:
        argument, output = pattern_of(argument), pattern_of(output)
    return AliasGroup(
        argument=argument,
        output=output or None,
        answer=answer,
        arguments=tuple(leaf.argument for leaf in leaves),
        outputs=tuple(leaf.output for leaf in leaves if leaf.output),
        size_bytes=sum(leaf.size_bytes for leaf in leaves),
    )


def own_outputs(dump: Opened) -> tuple[OwnOutput, ...]:
    """Outputs that do not reuse an argument, largest first; empty if names are unknown."""
    if dump.dump is None:
        return ()
    own = [
        OwnOutput(leaf.path, allocation.index, leaf.size_bytes)
        for leaf in dump.program.outputs
        if (allocation := dump.program.allocation_of(leaf)) is not None
        and allocation.parameter_number is None
    ]
    return tuple(sorted(own, key=lambda output: (-output.size_bytes, output.output)))


def _leaf_answers(dump: Opened) -> list[_LeafAnswer]:
    outputs: dict[int, list[str]] = {}
    for alias in dump.plan.aliases:
        label = dump.program.output_path(alias.output_index)
        outputs.setdefault(alias.parameter_number, []).append(label)
    if dump.dump is None:
        return _without_manifest(dump, outputs)
    answers = []
    for leaf in dump.program.arguments:
        number = leaf.parameter_number
        output = ", ".join(outputs.get(number, ())) if number is not None else ""
        if output:
            answer = ALIASED
        elif not leaf.donated:
            answer = NOT_DONATED
        else:
            answer = UNUSED if number is None else NOT_ALIASED
        answers.append(_LeafAnswer(leaf.path, output, answer, leaf.size_bytes))
    return answers


def _without_manifest(dump: Opened, outputs: dict[int, list[str]]) -> list[_LeafAnswer]:
    """The answers if donated arguments are known only from XLA's list of buffer donors."""
    donors = {number for number, _ in dump.plan.buffer_donors or ()}

    def answer_of(allocation: BufferAllocation, number: int) -> _LeafAnswer:
        output = ", ".join(outputs.get(number, ()))
        answer = ALIASED if output else NOT_ALIASED if number in donors else NOT_DONATED
        return _LeafAnswer(
            labels_of(dump.program).parameter(allocation), output, answer, allocation.size_bytes
        )

    return [
        answer_of(allocation, allocation.parameter_number)
        for allocation in dump.plan.allocations
        if allocation.parameter_number is not None
    ]
