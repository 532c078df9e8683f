"""A Difference in words: what changed, where it comes from, what it costs.

Lines that differ only in the numbers of layers are said once, with their count: `layers_*`.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from xlapipe.diff.changes import Difference
from xlapipe.diff.words import bytes_in_words, change_in_words, leaf_in_words

_NUMBER = re.compile(r"(?<=[_\[.{])\d+(?=[\]/.}_]|$)")


@dataclass(frozen=True, slots=True)
class Sentence:
    """One line for people.

    Attributes:
      delta_bytes: what it adds to the total; None for what costs nothing.
      count: changes that it stands for.
    """

    text: str
    delta_bytes: int | None
    count: int


def account_sentences(difference: Difference) -> list[Sentence]:
    """The difference of the totals, line by line; the deltas add up to it."""
    return _grouped(
        difference.account,
        bytes_in_words,
        delta=lambda line: line.delta_bytes,
        key=lambda line: line.place,
    )


def change_sentences(difference: Difference) -> list[Sentence]:
    """What is different besides."""
    return _grouped(difference.changes, change_in_words, delta=lambda _: None, key=type)


def program_sentences(difference: Difference) -> list[Sentence]:
    """How two different programs differ."""
    return _grouped(
        difference.programs, leaf_in_words, delta=lambda _: None, key=lambda leaf: leaf.kind
    )


def _grouped(
    items: Iterable[Any],
    say: Callable[[Any, Callable[[str], str]], str],
    *,
    delta: Callable[[Any], int | None],
    key: Callable[[Any], object],
) -> list[Sentence]:
    groups: dict[tuple[object, str, bool], list[Any]] = {}
    for item in items:
        sign = (delta(item) or 0) > 0
        groups.setdefault((key(item), say(item, _starred), sign), []).append(item)
    sentences = []
    for (_, starred, _), group in groups.items():
        deltas = [delta(item) for item in group]
        total = None if deltas[0] is None else sum(each or 0 for each in deltas)
        text = say(group[0], str) if len(group) == 1 else f"{len(group)} × {starred}"
        sentences.append(Sentence(text, total, len(group)))
    if all(sentence.delta_bytes is not None for sentence in sentences):
        sentences.sort(key=lambda sentence: -abs(sentence.delta_bytes or 0))
    return sentences


def _starred(name: str) -> str:
    """
    >>> _starred("layers_12/mlp"), _starred("cache[3]['k']")
    ('layers_*/mlp', "cache[*]['k']")
    """
    return _NUMBER.sub("*", name)
