"""Processes that run tests on mutants: two per job, of which one works at a time."""

import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.mutants.child_sessions import CollectedSession, ImportingSession, Lines

# A request to a session with all tests collected (True), or to one that imports first (False).
Request = tuple[bool, tuple[Any, ...]]

_Work = TypeVar("_Work")


class Servers:
    """A context that starts processes when it is entered, and ends them.

    Attributes:
      tests: names of all collected tests.
      lines_at_import: the lines of xlapipe that run when it is imported and tests are collected.
    """

    def __init__(self, root: Path, jobs: int, wanted: Lines, folders: Sequence[str]) -> None:
        self._root = root
        self._jobs = jobs
        self._wanted = wanted
        self._folders = folders

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("fork")
        self._processes = []
        self._pairs: list[tuple[Connection, Connection]] = []
        for _ in range(self._jobs):
            ends = []
            for serve in (self._serve_collected, self._serve_importing):
                ours, theirs = context.Pipe()
                process = context.Process(target=serve, args=(theirs, [ours]), daemon=False)
                process.start()
                theirs.close()
                self._processes.append(process)
                ends.append(ours)
            self._pairs.append((ends[0], ends[1]))
        try:
            for collected, _ in self._pairs:
                self.tests, self.lines_at_import = collected.recv()
        except EOFError:
            self.__exit__(None, None, None)  # Else this process waits for its children.
            raise RuntimeError(
                "expected tests that can be collected, found an error; fix: run "
                "`pytest --collect-only --assert=plain` on them"
            ) from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for pair in self._pairs:
            for connection in pair:
                connection.close()
        for process in self._processes:
            process.terminate()
            process.join()

    def run(
        self,
        work: Iterable[_Work],
        request: Callable[[_Work], Request],
        done: Callable[[_Work, Any], None],
    ) -> None:
        """Sends a request for each piece of work; the answers come in any order."""
        remaining = iter(work)
        busy: dict[Connection, tuple[_Work, tuple[Connection, Connection]]] = {}

        def start(pair: tuple[Connection, Connection]) -> None:
            for piece in remaining:
                is_collected, message = request(piece)
                connection = pair[0] if is_collected else pair[1]
                connection.send(message)
                busy[connection] = (piece, pair)
                return

        for pair in self._pairs:
            start(pair)
        while busy:
            for connection in wait(list(busy)):
                piece, pair = busy.pop(connection)
                done(piece, connection.recv())
                start(pair)

    def _serve_collected(self, connection: Connection, others: Sequence[Connection]) -> None:
        self._close(others)
        with suppress(BrokenPipeError):  # Interrupted.
            CollectedSession(self._root, self._wanted).serve(connection, self._folders)

    def _serve_importing(self, connection: Connection, others: Sequence[Connection]) -> None:
        self._close(others)
        with suppress(BrokenPipeError):
            ImportingSession(self._root).serve(connection)

    def _close(self, others: Sequence[Connection]) -> None:
        """A child that held the other end of a pipe would never see it closed."""
        for connection in [*others, *(end for pair in self._pairs for end in pair)]:
            connection.close()
