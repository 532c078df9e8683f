"""The section about aliasing: which argument is reused for which output, and which is not."""

from typing import Any, NamedTuple

from xlapipe.plans import BufferAllocation
from xlapipe.plans.labels import labels_of, pattern_of
from xlapipe.report.text_table import grouped
from xlapipe.report.xla_subject import XlaSubject

ALIASED = "aliased"
NOT_ALIASED = "donated, not aliased"
NOT_DONATED = "not donated"
UNUSED = "donated, not used by the program"
# The order in which a report lists them.
_ORDER = (NOT_ALIASED, UNUSED, ALIASED, NOT_DONATED)


class _LeafAnswer(NamedTuple):
    """What happened to one argument leaf; `output` is empty without an alias."""

    argument: str
    output: str
    answer: str
    size_bytes: int


def alias_groups(dump: XlaSubject) -> list[dict[str, Any]]:
    """Arguments that differ only by a number in their paths, with one answer.

    `argument` and `output` have `*` for the numbers, if there are several; `outputs` are in the
    order of `arguments`. Failed donations are first, and arguments that were not donated last;
    largest first.
    """
    groups = grouped(
        _leaf_answers(dump),
        lambda leaf: (leaf.answer, pattern_of(leaf.argument), pattern_of(leaf.output)),
    )
    rows = [_alias_group(leaves) for leaves in groups.values()]
    return sorted(
        rows, key=lambda row: (_ORDER.index(row["answer"]), -row["size_bytes"], row["argument"])
    )


def _alias_group(leaves: list[_LeafAnswer]) -> dict[str, Any]:
    argument, output, answer, _ = leaves[0]
    if len(leaves) > 1:
        argument, output = pattern_of(argument), pattern_of(output)
    return {
        "argument": argument,
        "output": output or None,
        "answer": answer,
        "arguments": [leaf.argument for leaf in leaves],
        "outputs": [leaf.output for leaf in leaves if leaf.output],
        "size_bytes": sum(leaf.size_bytes for leaf in leaves),
    }


def _leaf_answers(dump: XlaSubject) -> list[_LeafAnswer]:
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


def _without_manifest(dump: XlaSubject, outputs: dict[int, list[str]]) -> list[_LeafAnswer]:
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
