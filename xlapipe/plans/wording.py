"""Counts with their nouns, for messages."""


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """`count` with the singular or the plural of `noun`.

    Args:
      plural: for nouns whose plural is not the singular with an `s`.

    >>> counted(1, "leaf", "leaves"), counted(2, "leaf", "leaves"), counted(0, "gemm")
    ('1 leaf', '2 leaves', '0 gemms')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
