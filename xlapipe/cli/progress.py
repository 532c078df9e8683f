"""Progress of long work: a bar, or a line per step."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text


class Bar(Progress):
    """A progress bar on a terminal, removed at the end; no output elsewhere."""

    def __init__(self, what: str, total: int, *, console: Console, silent: bool) -> None:
        """Makes a bar that is shown while it is entered."""
        super().__init__(
            TextColumn(what),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
            disable=silent or not console.is_terminal,
        )
        self._task = self.add_task("", total=total)

    def show(self, done: int, total: int, running: Sequence[object]) -> None:
        """Shows how many of all have ended, and what runs now."""
        text = escape("; ".join(map(str, running)))
        self.update(self._task, completed=done, total=total, description=text)

    def add_done(self, *, last: str | None = None) -> None:
        """Counts one more as done; `last` is markup of rich after the bar."""
        self.update(self._task, advance=1, description=last)


@contextmanager
def shown_steps() -> Iterator[Callable[[str], None]]:
    """Shows the step that begins now, on stderr: a spinner on a terminal, otherwise a line each."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    if not console.is_terminal:
        yield lambda text: console.print(Text(f"xlapipe: {text}"))
        return
    with console.status("") as status:
        yield lambda text: status.update(Text(text))
