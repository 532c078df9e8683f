"""Counts with their nouns, and lists of names, for messages."""

from collections import Counter
from collections.abc import Iterable, Sequence


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """`count` with the singular or the plural of `noun`.

    Args:
      plural: for nouns whose plural is not the singular with an `s`.

    >>> counted(1, "leaf", "leaves"), counted(2, "leaf", "leaves"), counted(0, "gemm")
    ('1 leaf', '2 leaves', '0 gemms')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def tally(names: Iterable[str]) -> str:
    """How often each name occurs, in the order of the names.

    >>> tally(["b", "a", "b"]), tally([])
    ('1 a, 2 b', 'none')
    """
    counts = sorted(Counter(names).items())
    return ", ".join(f"{count} {name}" for name, count in counts) or "none"


def listed(names: Sequence[str], most: int = 8) -> str:
    """The first names, and how many more there are.

    >>> listed(["a", "b", "c"], 2), listed(["a"])
    ('a, b and 1 more', 'a')
    """
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
