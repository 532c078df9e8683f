"""Changes in words, grouped.

Changes that differ only in the numbers of layers are one sentence with their count: `layers_*`.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from xlapipe.diff.changes import BytesChange, Change, LeafChange
from xlapipe.diff.wording import account_text, change_text, leaf_text

_NUMBER = re.compile(r"(?<=[_\[.{])\d+(?=[\]/.}_]|$)")
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Sentence:
    """One line of text about one change, or about several of one form.

    Attributes:
      delta_bytes: bytes that it adds to the total; None for a change that has no cost itself.
      count: the number of changes that it states.
    """

    text: str
    delta_bytes: int | None
    count: int


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
    groups = _grouped(leaves, leaf_text, key=lambda leaf: leaf.kind)
    return tuple(Sentence(text, None, len(group)) for text, group in groups)


def change_sentences(changes: Iterable[Change]) -> tuple[Sentence, ...]:
    """Sentences for `Difference.changes`."""
    groups = _grouped(changes, change_text, key=type)
    return tuple(Sentence(text, None, len(group)) for text, group in groups)


def account_sentences(account: Iterable[BytesChange]) -> tuple[Sentence, ...]:
    """Sentences for `Difference.account`, largest first; growth and shrinkage stay separate."""
    groups = _grouped(account, account_text, key=lambda line: (line.place, line.delta_bytes > 0))
    sentences = [
        Sentence(text, sum(line.delta_bytes for line in group), len(group))
        for text, group in groups
    ]
    return tuple(sorted(sentences, key=lambda sentence: -abs(sentence.delta_bytes or 0)))


def _grouped(
    items: Iterable[_Item],
    text_of: Callable[[_Item, Callable[[str], str]], str],
    *,
    key: Callable[[_Item], object],
) -> Iterator[tuple[str, list[_Item]]]:
    """Items of one key and of one text but for numbers, with that text."""
    groups: dict[tuple[object, str], list[_Item]] = {}
    for item in items:
        groups.setdefault((key(item), text_of(item, _starred)), []).append(item)
    for (_, starred), group in groups.items():
        yield text_of(group[0], str) if len(group) == 1 else f"{len(group)} × {starred}", group


def _starred(name: str) -> str:
    """
    >>> _starred("layers_12/mlp"), _starred("cache[3]['k']")
    ('layers_*/mlp', "cache[*]['k']")
    """
    return _NUMBER.sub("*", name)
