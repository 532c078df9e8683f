"""Lines that are no wider than a terminal, and break names only where they have parts."""

import re
from collections.abc import Iterator

# A path or a name that is longer than a line is broken in front of these.
_PARTS = re.compile(r"[^/\[(,;=]*[/\[(,;=]|.+")
# Between two cells of a table.
_GAP = re.compile(r" {2,}")
_CONTINUED = 4
_LEAST_INDENT = 2
# A line of so many cells is a row of a table; one of fewer is a text after its heading.
_CELLS_OF_A_ROW = 4


def wrapped(
    text: str, width: int, *, indent: int = 0, first: str | None = None, names: bool = True
) -> Iterator[str]:
    """Lines of at most `width` characters; a word that needs a whole line is indented less.

    Args:
      indent: spaces in front of every line but the first.
      first: in front of the first line, instead of spaces.
      names: whether a name that is longer than a line may be broken.

    >>> list(wrapped("saved for the backward pass", 16, indent=2, first="- "))
    ['- saved for the', '  backward pass']
    >>> list(wrapped("read at layers/attention.py:70", 24, indent=8))
    ['        read at', '  layers/attention.py:70']
    """
    prefix, line = " " * indent if first is None else first, ""
    for word in text.split(" "):
        for number, part in enumerate(_fitting(word, width - _LEAST_INDENT) if names else [word]):
            joint = " " if line and not number else ""
            if line and len(prefix) + len(line) + len(joint) + len(part) > width:
                yield f"{prefix}{line}"
                prefix, line, joint = " " * indent, "", ""
            if not line and not prefix.strip():
                prefix = " " * max(0, min(len(prefix), width - len(part)))
            line += joint + part
    yield f"{prefix}{line}"


def folded(line: str, width: int) -> Iterator[str]:
    """A line as lines of at most `width` characters.

    Cells of a table's row that do not fit continue on the next line; a text continues under its
    first word after the last gap.

    >>> list(folded("name  a text of several words", 24))
    ['name  a text of several', '      words']
    >>> list(folded("  gemm     2     8 B  async  layers.py:35", 24))
    ['  gemm     2     8 B', '      async', '      layers.py:35']
    """
    if len(line) <= width:
        yield line
        return
    text = line.lstrip()
    start = min(len(line) - len(text), width // 2)
    gaps = list(_GAP.finditer(text.rstrip()))
    if len(gaps) + 1 >= _CELLS_OF_A_ROW:
        yield from _folded_row(text.rstrip(), start, width)
        return
    near = [gap.end() for gap in gaps if gap.end() <= width * 3 // 5 - start]
    indent = start + (near[-1] if near else _CONTINUED)
    yield from wrapped(text, width, indent=indent, first=" " * start)


def _folded_row(text: str, start: int, width: int) -> Iterator[str]:
    """The cells that fit in their columns, then the others, two spaces apart."""
    fits = [gap.start() for gap in _GAP.finditer(text) if start + gap.start() <= width]
    end = fits[-1] if fits else 0
    if end:
        yield " " * start + text[:end]
    indent = start + _CONTINUED if end else start
    line = ""
    for cell in _GAP.split(text[end:].strip()):
        if line and indent + len(line) + 2 + len(cell) > width:
            yield from wrapped(line, width, indent=indent + _CONTINUED, first=" " * indent)
            line = ""
        line += ("  " if line else "") + cell
    yield from wrapped(line, width, indent=indent + _CONTINUED, first=" " * indent)


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
    """A word, or its parts if it is longer than `width`."""
    if len(word) <= width:
        return [word]
    parts = _PARTS.findall(word)
    return [part[at : at + width] for part in parts for at in range(0, len(part), width)]
