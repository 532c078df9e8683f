"""A part of a file: its lines, and the number that each has in the file."""

import ast
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from xlapipe.dump.readers.source_text import SourceText, shown
from xlapipe.errors import DumpError

CUT = "fix: the file seems cut short, copy or dump it again"
UNKNOWN = (
    "fix: the file is damaged or cut short, or a version of torch wrote it whose form xlapipe does "
    "not know: dump it again, or report the line"
)


@dataclass(frozen=True)
class TextLines:
    """Lines of one document, e.g. the wrapper code of one graph inside a log.

    Attributes:
      numbers: number of each line in the file, from 1.
      left_out: what was not understood in it, and is missing in what was read; shared with its
        parts.
    """

    where: str
    lines: Sequence[str]
    numbers: Sequence[int]
    left_out: list[str] = field(default_factory=list, compare=False)

    @classmethod
    def of(cls, source: SourceText) -> "TextLines":
        lines = source.lines
        return cls(source.where, lines, range(1, len(lines) + 1))

    def part(self, start: int, end: int) -> "TextLines":
        """Lines from index `start` up to, not including, `end`."""
        return TextLines(self.where, self.lines[start:end], self.numbers[start:end], self.left_out)

    def number(self, index: int) -> int:
        """Number in the file of the line at `index`, or of the last line."""
        if not self.numbers:
            return 1
        return self.numbers[min(max(index, 0), len(self.numbers) - 1)]

    def fail(self, index: int, expected: str, found: str, fix: str = UNKNOWN) -> NoReturn:
        """Raises the DumpError of the line at `index`."""
        raise DumpError(f"{self._difference(index, expected, found)}; {fix}")

    def leave_out(self, index: int, expected: str, found: str) -> None:
        """Records that a part of the line at `index` is not understood, and goes on without it."""
        self.left_out.append(f"left out: {self._difference(index, expected, found)}")

    def _difference(self, index: int, expected: str, found: str) -> str:
        return f"{self.where}:{self.number(index)}: expected {expected}, found {found}"

    def python(self) -> ast.Module:
        """The syntax tree of the lines, which are never run."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about escapes in strings
                return ast.parse("\n".join(self.lines))
        except SyntaxError as error:
            self.fail((error.lineno or 1) - 1, "Python", f"{error.msg}")
        except (ValueError, RecursionError, MemoryError) as error:
            self.fail(0, "Python", f"{str(error) or type(error).__name__}")

    def fail_at(self, index: int, expected: str) -> NoReturn:
        """As `fail`, showing the line."""
        if index >= len(self.lines):
            self.fail(index, expected, "the end of the file", CUT)
        last = index == len(self.lines) - 1
        self.fail(index, expected, shown(self.lines[index]), CUT if last else UNKNOWN)
