"""A difference between two plans for a terminal: totals, the account, what changed besides."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from xlapipe.diff import Difference, Sentence

_LARGEST_ROWS = 40
_MAX_CONTEXT_LINES = 12


def print_difference(difference: Difference) -> None:
    """`xlapipe diff`: different programs first, then bytes, largest first, then the rest."""
    console = Console(soft_wrap=True, highlight=False)
    console.print(Text(f"A  {difference.a_name}"))
    console.print(Text(f"B  {difference.b_name}"))
    for line in difference.context_lines()[:_MAX_CONTEXT_LINES]:
        console.print(Text(f"   {line}"))
    if difference.same:
        console.print("the plans are the same")
        return
    sentences = difference.sentences()
    if sentences.programs:
        console.print(
            Text("different programs; what follows is a best effort", style="bold yellow")
        )
        _print_lines(console, sentences.programs)
    if difference.first_stage is not None:
        console.print(Text(f"first apart in {difference.first_stage}"))
    a, b = difference.a_totals, difference.b_totals
    console.print(
        Text(
            f"total {a.total_allocation_bytes:,} B → {b.total_allocation_bytes:,} B: "
            f"{difference.delta_bytes:+,} B (temp {a.temp_bytes:,} B → {b.temp_bytes:,} B)",
            style="bold",
        )
    )
    for sentence in sentences.account:
        console.print(Text(f"{sentence.delta_bytes or 0:+17,} B  {sentence.text}"))
    if sentences.changes:
        console.print(Text("what changed", style="bold"))
        _print_lines(console, sentences.changes)


def _print_lines(console: Console, sentences: Sequence[Sentence]) -> None:
    for sentence in sentences[:_LARGEST_ROWS]:
        console.print(Text(f"  {sentence.text}"))
    if len(sentences) > _LARGEST_ROWS:
        console.print(f"  … and {len(sentences) - _LARGEST_ROWS} more (--json has all)")


class Steps:
    """What is being done, on stderr: a spinner on a terminal, else a line each."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, soft_wrap=True, highlight=False)
        self._status = self._console.status("")

    @contextmanager
    def shown(self) -> Iterator["Steps"]:
        """Shows the spinner, where there is one, until the end of the block."""
        if not self._console.is_terminal:
            yield self
            return
        with self._status:
            yield self

    def say(self, text: str) -> None:
        """Tells the step that begins now."""
        if self._console.is_terminal:
            self._status.update(Text(text))
        else:
            self._console.print(Text(f"xlapipe: {text}"))
