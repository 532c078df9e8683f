"""The bar that long work shows."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)


class Bar:
    """How much of some work is done: on a terminal, while it is entered, and gone afterwards."""

    def __init__(
        self,
        what: str,
        total: int,
        *,
        console: Console,
        silent: bool,
        amount: ProgressColumn | None = None,
    ) -> None:
        """Shows nothing yet.

        Args:
          what: is being done.
          silent: show nothing; no more is shown where `console` is no terminal.
          amount: how what is done is told; by default as a count.
        """
        self._progress = Progress(
            TextColumn(what),
            BarColumn(),
            amount or MofNCompleteColumn(),
            TimeElapsedColumn(),
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
        self._tell_end()

    def _tell_end(self) -> None:
        """For those that have something to say when the bar has gone."""

    def advance(self, by: int = 1, *, last: str | None = None) -> None:
        """So much more is done; `last` is told behind the bar, as rich's markup."""
        self._progress.update(self._task, advance=by, description=last)
