"""What every text parser here shares: lines of a file, numbers in bounds, one form of error."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

from xlapipe.errors import DumpError

# XLA keeps sizes, offsets and positions in int64.
_MAX_INT64 = 2**63 - 1
_INDEX_COMMENT = re.compile(r"/\*index=\d+\*/")
_SHOWN_CHARACTERS = 120


@dataclass(frozen=True)
class SourceText:
    """The text of one dump file, and the name by which errors call it."""

    where: str
    text: str

    @cached_property
    def lines(self) -> list[str]:
        """Lines without their ends; a final line end does not begin another line."""
        text = self.text
        if "\0" in text:
            line = text.count("\n", 0, text.index("\0")) + 1
            self.fail(line, "text", "a NUL byte", "the file is binary or damaged; dump it again")
        if "\r" in text:
            text = text.replace("\r\n", "\n")
        lines = text.split("\n")
        if lines[-1] == "":
            lines.pop()
        return lines

    def fail(self, line: int, expected: str, found: str, mend: str) -> NoReturn:
        """Raises the DumpError of this file; `line` counts from 1."""
        raise DumpError(f"{self.where}:{line}: expected {expected}, found {found}; {mend}")

    def fail_at(self, line: int, expected: str) -> NoReturn:
        """As `fail`, showing the line; says so where it is the last and may be cut."""
        lines = self.lines
        if line > len(lines):
            self.fail(line, expected, "the end of the file", CUT)
        mend = CUT if line == len(lines) else UNKNOWN
        self.fail(line, expected, shown(lines[line - 1]), mend)


CUT = "the file seems cut short: copy or dump it again"
UNKNOWN = (
    "the file is damaged, or a version of XLA wrote it whose form xlapipe does not know: "
    "dump it again, or report the line"
)


def shown(text: str) -> str:
    """`text` as it may stand in a message."""
    if len(text) > _SHOWN_CHARACTERS:
        return repr(text[:_SHOWN_CHARACTERS]) + "…"
    return repr(text)


def int64(digits: str, source: SourceText, line: int, what: str) -> int:
    """A number of at most 63 bits that a pattern has found to consist of digits."""
    if len(digits) > 19 or (number := int(digits)) > _MAX_INT64:
        source.fail(line, f"{what} below 2**63", shown(digits), UNKNOWN)
    return number


def shape_index(text: str, source: SourceText, line: int) -> tuple[int, ...]:
    """`0,1` of a shape index `{0,1}`."""
    if not text.strip():
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        source.fail(line, "a shape index such as {0,1}", shown(text), UNKNOWN)
    return tuple(int64(part, source, line, "a shape index") for part in parts)


def without_index_comments(text: str) -> str:
    """`text` without the `/*index=N*/` with which XLA counts the elements of long tuples."""
    return _INDEX_COMMENT.sub("", text) if "/*index=" in text else text
