"""Lines that are no wider than a terminal, and break names only where they have parts."""

import re
from collections.abc import Iterator

# A path or a name that is longer than a line is broken in front of these.
_PARTS = re.compile(r"[^/\[(,;=]*[/\[(,;=]|.+")


def wrapped(text: str, width: int, *, indent: int = 0, first: str | None = None) -> Iterator[str]:
    """Lines of at most `width` characters, where the parts of names allow it.

    Args:
      indent: spaces in front of every line but the first.
      first: in front of the first line, instead of spaces.

    >>> list(wrapped("saved for the backward pass", 16, indent=2, first="- "))
    ['- saved for the', '  backward pass']
    """
    prefix, line = " " * indent if first is None else first, ""
    for word in text.split(" "):
        for number, part in enumerate(_fitting(word, width - indent)):
            joint = " " if line and not number else ""
            if line and len(prefix) + len(line) + len(joint) + len(part) > width:
                yield f"{prefix}{line}"
                prefix, line, joint = " " * indent, "", ""
            line += joint + part
    yield f"{prefix}{line}"


def shortened(text: str, width: int) -> str:
    """The beginning of a text that may be cut, with `…` if it was; empty if little is left.

    >>> shortened("return x + y", 10), shortened("return x", 10), shortened("return x", 3)
    ('return x …', 'return x', '')
    """
    if len(text) <= width:
        return text
    return f"{text[: width - 1]}…" if width >= _LEAST_TEXT else ""


_LEAST_TEXT = 10


def _fitting(word: str, width: int) -> list[str]:
    return [word] if len(word) <= width else _PARTS.findall(word)
