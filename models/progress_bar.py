"""A progress bar of the models' own commands."""

import sys
from types import TracebackType
from typing import TypeVar

BarT = TypeVar("BarT", bound="Bar")


class Bar:
    """A progress bar on stderr while it is entered, if that is a terminal; no output elsewhere.

    Imports rich only to show it, because that takes longer than a short run's own output.
    """

    def __init__(self, what: str, total: int, *, silent: bool, of_bytes: bool = False) -> None:
        """Makes a bar of the work `what`; `silent` shows nothing, also on a terminal."""
        self._progress = None
        if silent or not sys.stderr.isatty():
            return
        from rich import progress
        from rich.console import Console

        self._progress = progress.Progress(
            progress.TextColumn(what),
            progress.BarColumn(),
            progress.DownloadColumn() if of_bytes else progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("{task.description}"),
            console=Console(stderr=True, highlight=False),
            transient=True,
        )
        self._task = self._progress.add_task("", total=total)

    def __enter__(self: BarT) -> BarT:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def advance(self, by: int, *, last: str | None = None) -> None:
        """Adds to the amount done; `last` is text after the bar."""
        if self._progress is not None:
            self._progress.update(self._task, advance=by, description=last)
