"""Progress of long work: a bar, or a line per step."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text


class _Left(ProgressColumn):
    """The time left, if the rest takes as long as what is done; known from the first item on.

    rich's column needs two items that end at different times, which a search of three sizes has
    when it is nearly over.
    """

    def render(self, task: Task) -> Text:
        if task.elapsed is None or not task.completed or task.total is None:
            return Text("time left unknown")
        left = task.elapsed * (task.total - task.completed) / task.completed
        return Text(f"about {timedelta(seconds=round(left))} left")


class Bar:
    """A progress bar on a terminal, removed at the end; no output elsewhere."""

    def __init__(
        self,
        what: str,
        total: int,
        *,
        console: Console,
        silent: bool,
        amount: ProgressColumn | None = None,
    ) -> None:
        """Makes a bar that is shown while it is entered.

        Args:
          what: the work, e.g. `compiling`.
          silent: show nothing, also on a terminal.
          amount: the column with the amount done; default: a count.
        """
        self._progress = Progress(
            TextColumn(what),
            BarColumn(),
            amount or MofNCompleteColumn(),
            TimeElapsedColumn(),
            _Left(),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
            disable=silent or not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=total)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()
        self._print_end()

    def _print_end(self) -> None:
        """Prints something after the bar is removed; for subclasses."""

    def advance(self, by: int = 1, *, last: str | None = None) -> None:
        """Adds to the amount done.

        Args:
          last: text after the bar, as rich's markup.
        """
        self._progress.update(self._task, advance=by, description=last)


class Steps:
    """The current step, on stderr: with a spinner on a terminal, otherwise a line per step."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, soft_wrap=True, highlight=False)
        self._status = self._console.status("")

    @contextmanager
    def shown(self) -> Iterator["Steps"]:
        """Shows the spinner, if any, until the end of the block."""
        if not self._console.is_terminal:
            yield self
            return
        with self._status:
            yield self

    def show(self, text: str) -> None:
        """Shows the step that begins now."""
        if self._console.is_terminal:
            self._status.update(Text(text))
        else:
            self._console.print(Text(f"xlapipe: {text}"))
