"""A line of output with its style; a command that prints to a file needs no more than its text."""

from typing import NamedTuple


class StyledLine(NamedTuple):
    """One line.

    Attributes:
      text: the line, or its first part.
      style: rich's name of the style of `text`; empty for none.
      beside: more of the line, dimmed.
    """

    text: str
    style: str = ""
    beside: str = ""

    @property
    def plain(self) -> str:
        """The whole line without styles."""
        return self.text + self.beside
