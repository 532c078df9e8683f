"""Changes in words, grouped.

Changes that differ only in the numbers of layers are one sentence with their count: `layers_*`.
Changes of many leaves of one argument by its donation or aliases are one sentence: `model[…]`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from xlapipe.differences.changes import (
    Action,
    AliasChange,
    BytesChange,
    Change,
    InstructionChange,
    LeafChange,
    PlacementChange,
)

_NUMBER = re.compile(r"(?<=[_\[.{])\d+(?=[\]/.}_]|$)")
# The name of an argument, or an output of the function, and the path of a leaf in it.
_LEAF = re.compile(r"(out\[\d+\]|[^\W\d]\w*)[.\[].*")
_MOST_SENTENCES_OF_A_CAUSE = 4
_Item = TypeVar("_Item", bound=Change)


@dataclass(frozen=True, slots=True)
class Sentence:
    """One line of text about one change, or about several of one form.

    Attributes:
      delta_bytes: bytes that it adds to the total; None for a change that has no cost itself.
      count: the number of changes that it states.
      follows: whether it only follows from other changes: an instruction that reads other values.
    """

    text: str
    delta_bytes: int | None
    count: int
    follows: bool = False


@dataclass(frozen=True, slots=True)
class Sentences:
    """The sentences of a difference; iterating gives all of them in the order to show them.

    Attributes:
      programs: how two different programs differ in arguments and outputs.
      account: the difference of the totals, largest first; the deltas add up to it.
      changes: what else differs.
    """

    programs: tuple[Sentence, ...]
    account: tuple[Sentence, ...]
    changes: tuple[Sentence, ...]

    def __iter__(self) -> Iterator[Sentence]:
        yield from self.programs
        yield from self.account
        yield from self.changes


def leaf_sentences(leaves: Iterable[LeafChange]) -> tuple[Sentence, ...]:
    """Sentences for `Difference.programs`."""
    groups = _grouped(leaves, key=lambda leaf: leaf.kind)
    return tuple(Sentence(text, None, len(group)) for text, group in groups)


def change_sentences(changes: Iterable[Change]) -> tuple[Sentence, ...]:
    groups = _grouped(changes, key=type)
    return tuple(
        Sentence(text, None, len(group), follows=all(map(_follows, group)))
        for text, group in groups
    )


def _follows(change: Change) -> bool:
    match change:
        case InstructionChange(action=Action.CHANGED, aspects=aspects):
            return bool(aspects) and all(aspect.name == "operands" for aspect in aspects)
    return False


def account_sentences(account: Iterable[BytesChange]) -> tuple[Sentence, ...]:
    """Sentences for `Difference.account`, largest first; growth and shrinkage stay separate."""
    groups = _grouped(account, key=lambda line: (line.place, line.delta_bytes > 0))
    sentences = [
        Sentence(text, sum(line.delta_bytes for line in group), len(group))
        for text, group in groups
    ]
    return tuple(sorted(sentences, key=lambda sentence: -abs(sentence.delta_bytes or 0)))


def _grouped(
    items: Iterable[_Item], *, key: Callable[[_Item], object]
) -> Iterator[tuple[str, list[_Item]]]:
    """Items of one key and of one text except its numbers, with that text."""
    groups: dict[tuple[object, str], list[_Item]] = {}
    for item in items:
        groups.setdefault((key(item), item.text(_starred)), []).append(item)
    causes: dict[tuple[object, str], list[str]] = {}
    for (of_key, starred), group in groups.items():
        cause = _cause(group[0]) or starred
        causes.setdefault((of_key, cause), []).append(starred)
    for (of_key, cause), texts in causes.items():
        if len(texts) > _MOST_SENTENCES_OF_A_CAUSE:
            group = [item for starred in texts for item in groups[of_key, starred]]
            yield _joined(group, cause), group
            continue
        for starred in texts:
            group = groups[of_key, starred]
            yield group[0].text(str) if len(group) == 1 else f"{len(group)} × {starred}", group


def _cause(item: Change) -> str | None:
    """The text of a change that leaves have because of their whole argument; None for others."""
    match item:
        case LeafChange(donation_only=True) | AliasChange():
            return item.text(_argument)
        case BytesChange() if (item.a_alias is None) != (item.b_alias is None):
            return item.text(_argument)
        case PlacementChange(a=a, b=b) if a != b:
            return f"{_argument(a)} → {_argument(b)}"
    return None


def _joined(items: Sequence[object], cause: str) -> str:
    """The text of many changes of one cause."""
    placements = [item for item in items if isinstance(item, PlacementChange)]
    if not placements:
        return f"{len(items)} × {cause}"
    one = placements[0]
    count = sum(item.count for item in placements)
    largest = max(item.largest_bytes for item in placements)
    return PlacementChange(one.a, one.b, count, largest).text(_argument)


def _starred(name: str) -> str:
    """
    >>> _starred("layers_12/mlp"), _starred("cache[3]['k']")
    ('layers_*/mlp', "cache[*]['k']")
    """
    return _NUMBER.sub("*", name)


def _argument(name: str) -> str:
    """
    >>> _argument("model['layers'][0].value"), _argument("out[1][0].mu['w']"), _argument("x")
    ('model[…]', 'out[1][…]', 'x')
    """
    return _LEAF.sub(r"\1[…]", name)
