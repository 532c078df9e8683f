"""The text of a dump file, and what all text parsers share: checked numbers and errors."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

from xlapipe.errors import DumpError

# How to fix a file that cannot be read, for the end of an error's message.
COPY_AGAIN = "copy or dump the file again; it seems to be cut short"
DUMP_AGAIN = "dump the module again; the file is damaged"
DUMP_AGAIN_OR_REPORT = (
    "dump the module again, or report this line with the dump; the file is damaged, or its version "
    "of XLA writes a form that xlapipe does not know"
)
GIVE_PROTO = "give the *_gpu_after_optimizations.hlo.pb that --xla_dump_hlo_as_proto writes"
GIVE_DUMP = "give an .hlo.pb, a *buffer-assignment.txt, or the directory of an XLA dump"

# XLA keeps sizes, offsets and positions in int64.
_MAX_INT64 = 2**63 - 1
_INDEX_COMMENT = re.compile(r"/\*index=\d+\*/")
_SHOWN_CHARACTERS = 120


@dataclass(frozen=True)
class SourceText:
    """The text of one dump file."""

    where: str
    text: str

    @cached_property
    def lines(self) -> list[str]:
        """Lines without line ends; a final line end does not start another line."""
        text = self.text
        if "\0" in text:
            line = text.count("\n", 0, text.index("\0")) + 1
            self.fail(
                line, "text", "a NUL byte", "dump the module again; the file is binary or damaged"
            )
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        lines = text.split("\n")
        if lines[-1] == "":
            lines.pop()
        return lines

    def fail(self, line: int, expected: str, found: str, fix: str) -> NoReturn:
        """Raise a DumpError for this file; `line` counts from 1."""
        refuse(f"{self.where}:{line}", expected, found, fix)

    def fail_at(self, line: int, expected: str) -> NoReturn:
        """Like `fail`, showing the line; the last line counts as cut short."""
        lines = self.lines
        if line > len(lines):
            self.fail(line, expected, "the end of the file", COPY_AGAIN)
        fix = COPY_AGAIN if line == len(lines) else DUMP_AGAIN_OR_REPORT
        self.fail(line, expected, shown(lines[line - 1]), fix)


class LineReader:
    """Reads the lines of a file in their order.

    Attributes:
      number: number of the line that was read last, from 1; 0 before the first.
    """

    def __init__(self, source: SourceText, number: int = 0) -> None:
        self.source = source
        self.number = number

    @property
    def following(self) -> str | None:
        """The line that is read next; None at the end of the file."""
        lines = self.source.lines
        return lines[self.number] if self.number < len(lines) else None

    def skip_blank(self) -> None:
        """Reads lines as long as they are empty."""
        while (line := self.following) is not None and not line.strip():
            self.number += 1

    def matching(self, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
        """Reads lines as long as they match."""
        while (line := self.following) is not None and (match := pattern.fullmatch(line)):
            self.number += 1
            yield match

    def expect(self, pattern: re.Pattern[str], expected: str) -> re.Match[str]:
        """Reads the next line."""
        match = next(self.matching(pattern), None)
        if match is None:
            self.source.fail_at(self.number + 1, expected)
        return match

    def fail(self, expected: str, found: str, fix: str = DUMP_AGAIN_OR_REPORT) -> NoReturn:
        """Raise a DumpError for the line that was read last."""
        self.source.fail(self.number, expected, found, fix)

    def fail_at(self, expected: str) -> NoReturn:
        """Like `fail`, showing the line."""
        self.source.fail_at(self.number, expected)

    def int64(self, digits: str, what: str) -> int:
        """The number in the line that was read last; see `int64`."""
        return int64(digits, self.source, self.number, what)

    def shape_index(self, text: str) -> tuple[int, ...]:
        """The numbers of a shape index `{0,1}`, given as the text `0,1`."""
        parts = [part.strip() for part in text.split(",")] if text.strip() else []
        if not all(part.isdecimal() for part in parts):
            self.fail("a shape index such as {0,1}", shown(text))
        return tuple(self.int64(part, "a shape index") for part in parts)


def refuse(where: object, expected: str, found: str, fix: str) -> NoReturn:
    """Raise a DumpError."""
    raise DumpError(f"{where}: expected {expected}, found {found}; fix: {fix}")


def shown(text: str) -> str:
    """`text` quoted for a message, shortened if it is long."""
    if len(text) > _SHOWN_CHARACTERS:
        return repr(text[:_SHOWN_CHARACTERS]) + "…"
    return repr(text)


def int64(digits: str, source: SourceText, line: int, what: str) -> int:
    """The number that `digits` represents, which has to fit into 63 bits."""
    if len(digits) > 19 or (number := int(digits)) > _MAX_INT64:
        source.fail(line, f"{what} below 2**63", shown(digits), DUMP_AGAIN_OR_REPORT)
    return number


def without_index_comments(text: str) -> str:
    """`text` without the `/*index=N*/` comments that XLA prints in long tuples."""
    return _INDEX_COMMENT.sub("", text) if "/*index=" in text else text
