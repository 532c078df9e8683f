"""The text of a dump file, and what all text parsers share: checked numbers and errors."""

import re
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
    """The text of one dump file.

    Attributes:
      where: the file, for error messages.
    """

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
            text = text.replace("\r\n", "\n")
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


def refuse(where: object, expected: str, found: str, fix: str) -> NoReturn:
    """Raise a DumpError."""
    raise DumpError(f"{where}: expected {expected}, found {found}; fix: {fix}")


def shown(text: str) -> str:
    """`text` quoted for a message, shortened if it is long."""
    if len(text) > _SHOWN_CHARACTERS:
        return repr(text[:_SHOWN_CHARACTERS]) + "…"
    return repr(text)


def int64(digits: str, source: SourceText, line: int, what: str) -> int:
    """The number that `digits` represents, which has to fit into 63 bits.

    Args:
      digits: text that a pattern has matched as decimal digits.
      what: the kind of number, for the error message.

    Raises:
      DumpError: the number is too large.
    """
    if len(digits) > 19 or (number := int(digits)) > _MAX_INT64:
        source.fail(line, f"{what} below 2**63", shown(digits), DUMP_AGAIN_OR_REPORT)
    return number


def shape_index(text: str, source: SourceText, line: int) -> tuple[int, ...]:
    """The numbers of a shape index `{0,1}`, given as the text `0,1`."""
    if not text.strip():
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        source.fail(line, "a shape index such as {0,1}", shown(text), DUMP_AGAIN_OR_REPORT)
    return tuple(int64(part, source, line, "a shape index") for part in parts)


def without_index_comments(text: str) -> str:
    """`text` without the `/*index=N*/` comments that XLA prints in long tuples."""
    return _INDEX_COMMENT.sub("", text) if "/*index=" in text else text
