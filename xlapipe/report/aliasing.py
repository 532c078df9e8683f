"""The aliasing map: which argument is written over by which output, and which is not."""

from dataclasses import dataclass

from xlapipe.plan import BufferAllocation, Plan
from xlapipe.report.labels import Labels, pattern_of
from xlapipe.report.subject import Subject

ALIASED = "aliased"
NOT_ANSWERED = "donated, not aliased"
NOT_DONATED = "not donated"
UNUSED = "donated, not used by the program"


@dataclass(frozen=True, slots=True)
class AliasGroup:
    """Arguments that differ only by a number in their paths, with one answer.

    Attributes:
      outputs: paths of the outputs written over them, in the order of `arguments`.
      size_bytes: of all of them.
    """

    argument: str
    output: str | None
    answer: str
    arguments: tuple[str, ...]
    outputs: tuple[str, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class OwnOutput:
    """An output that takes memory of its own."""

    output: str
    allocation: int
    size_bytes: int


def alias_groups(subject: Subject) -> tuple[AliasGroup, ...]:
    """Aliased and donated arguments first, largest first; those left alone last."""
    gathered: dict[tuple[str, str, str], list[tuple[str, str, int]]] = {}
    for argument, output, answer, size_bytes in _answers(subject):
        key = (answer, pattern_of(argument), pattern_of(output))
        gathered.setdefault(key, []).append((argument, output, size_bytes))
    groups = []
    for (answer, argument, output), leaves in gathered.items():
        alone = len(leaves) == 1
        groups.append(
            AliasGroup(
                argument=leaves[0][0] if alone else argument,
                output=(leaves[0][1] if alone else output) or None,
                answer=answer,
                arguments=tuple(leaf[0] for leaf in leaves),
                outputs=tuple(leaf[1] for leaf in leaves if leaf[1]),
                size_bytes=sum(leaf[2] for leaf in leaves),
            )
        )
    order = (NOT_ANSWERED, UNUSED, ALIASED, NOT_DONATED)
    return tuple(sorted(groups, key=lambda g: (order.index(g.answer), -g.size_bytes, g.argument)))


def own_outputs(subject: Subject) -> tuple[OwnOutput, ...]:
    """Outputs that no argument was given up for, largest first; none where names are unknown."""
    if subject.opened.dump is None:
        return ()
    plan, outputs = subject.plan, subject.opened.dump.manifest.outputs
    found = [
        OwnOutput(leaf.path, allocation.index, leaf.size_bytes)
        for leaf in outputs
        if (allocation := plan.output_allocation(leaf.index, of=len(outputs))) is not None
        and allocation.parameter_number is None
    ]
    return tuple(sorted(found, key=lambda each: (-each.size_bytes, each.output)))


def _answers(subject: Subject) -> list[tuple[str, str, str, int]]:
    """(argument, output or nothing, answer, bytes) of each argument leaf."""
    plan, labels = subject.plan, subject.labels
    aliases: dict[int, list[str]] = {}
    for alias in plan.aliases:
        aliases.setdefault(alias.parameter_number, []).append(labels.output(alias.output_index))
    if subject.opened.dump is None:
        return _without_names(plan, labels, aliases)
    found = []
    for leaf in subject.arguments:
        number = leaf.parameter_number
        output = ", ".join(aliases.get(number, ())) if number is not None else ""
        if output:
            answer = ALIASED
        elif not leaf.donated:
            answer = NOT_DONATED
        else:
            answer = UNUSED if number is None else NOT_ANSWERED
        found.append((leaf.path, output, answer, leaf.size_bytes))
    return found


def _without_names(
    plan: Plan, labels: Labels, aliases: dict[int, list[str]]
) -> list[tuple[str, str, str, int]]:
    """The same for a dump without a manifest: only XLA's buffer donors tell of requests."""
    donors = {number for number, _ in plan.buffer_donors or ()}

    def answer(allocation: BufferAllocation) -> tuple[str, str]:
        number = allocation.parameter_number
        if number in aliases:
            return ", ".join(aliases[number]), ALIASED
        return "", NOT_ANSWERED if number in donors else NOT_DONATED

    return [
        (labels.parameter(each), *answer(each), each.size_bytes)
        for each in plan.allocations
        if each.parameter_number is not None
    ]
