"""A progress bar of the models' own commands."""

from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

BarT = TypeVar("BarT", bound="Bar")


class Bar:
    """A progress bar on stderr while it is entered, if that is a terminal; no output elsewhere."""

    def __init__(
        self, what: str, total: int, *, silent: bool, amount: ProgressColumn | None = None
    ) -> None:
        """Makes a bar.

        Args:
          what: the work, e.g. `training`.
          silent: show nothing, also on a terminal.
          amount: the column with the amount done; default: a count.
        """
        console = Console(stderr=True, highlight=False, soft_wrap=True)
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

    def __enter__(self: BarT) -> BarT:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def advance(self, by: int, *, last: str | None = None) -> None:
        """Adds to the amount done.

        Args:
          last: text after the bar.
        """
        self._progress.update(self._task, advance=by, description=last)
