"""Runs tests on a mutant in a forked process, which imports and collects nothing that it shares.

A mutant of a function's body is put into a process in which all tests are collected: the code of
the function is replaced. A mutant of what runs at import is put into a process that has imported
nothing of xlapipe, which then imports the mutant and collects the files of the tests.
"""

import gc
import importlib.abc
import importlib.machinery
import importlib.util
import json
import marshal
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import pytest

_MEMORY_BYTES = 8 << 30
_LONGEST_S = 180.0
# Of one test's CPU time: a multiple of what it takes without a mutant.
_SLOWER, _SLOWER_S = 10, 5

Lines = frozenset[tuple[str, int]]


@dataclass(frozen=True)
class Outcome:
    """What tests said about one mutant.

    Attributes:
      killed_by: the test that failed, `import` where the module cannot be imported, or None.
      how: `failed`, `crashed`, `timed out`, or for a survivor `survived` (all tests of the list
        passed) or `out of time`.
      tests: how many tests ran.
      seconds: CPU time.
    """

    killed_by: str | None
    how: str
    tests: int
    seconds: float


@dataclass(frozen=True)
class Recorded:
    """One test without mutants: the lines that it runs, seconds of CPU, and whether it passed."""

    lines: Lines
    seconds: float
    passed: bool


def _messages_of_child(work: Callable[[Callable[[object], None]], None]) -> Iterator[list[object]]:
    """Forks; gives the child's messages in one list, after it has ended.

    Args:
      work: runs in the child, and gets a function that sends a message, which is JSON.

    Yields:
      The messages; the last is `["exit", status]` or `["timed out"]`.
    """
    reading, writing = os.pipe()
    scratch = tempfile.mkdtemp(prefix="mutant-")
    child = os.fork()
    if child == 0:
        os.close(reading)
        status = 1
        try:
            os.setpgid(0, 0)
            os.environ["TMPDIR"] = os.environ["PYTEST_DEBUG_TEMPROOT"] = scratch
            tempfile.tempdir = None
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            work(lambda message: _write(writing, message))
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    received = bytearray()
    end = time.monotonic() + _LONGEST_S
    timed_out = False
    while not timed_out:
        ready, _, _ = select.select([reading], [], [], max(end - time.monotonic(), 0))
        timed_out = not ready
        if ready:
            part = os.read(reading, 1 << 16)
            if not part:
                break
            received += part
    os.close(reading)
    if timed_out:
        os.killpg(child, signal.SIGKILL)  # The child's own group, with what its tests started.
    _, status = os.waitpid(child, 0)
    shutil.rmtree(scratch, ignore_errors=True)
    messages = [json.loads(line) for line in received.split(b"\n") if line.endswith(b"]")]
    messages.append(["timed out"] if timed_out else ["exit", status])
    yield from messages


def _write(descriptor: int, message: object) -> None:
    text = memoryview(json.dumps(message).encode() + b"\n")
    while text:
        text = text[os.write(descriptor, text) :]


class _Reports:
    """A pytest plugin that remembers whether a test failed."""

    def __init__(self) -> None:
        self.failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed


def _run(
    items: Sequence[pytest.Item],
    seconds: dict[str, float],
    budget_s: float,
    send: Callable[[object], None],
) -> None:
    """Runs tests until one fails, or until the budget of CPU time is spent."""
    reports = _Reports()
    if items:
        items[0].config.pluginmanager.register(reports)
    start = time.process_time()
    for index, item in enumerate(items):
        if time.process_time() - start > budget_s:
            send(["out of time", index, time.process_time() - start])
            return
        limit_s = seconds.get(item.nodeid, 1.0) * _SLOWER + _SLOWER_S
        send(["started", index, item.nodeid])
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        following = items[index + 1] if index + 1 < len(items) else None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        signal.setitimer(signal.ITIMER_PROF, 0)
        if reports.failed:
            send(["failed", item.nodeid, time.process_time() - start])
            return
    send(["survived", len(items), time.process_time() - start])


def _outcome(messages: Iterable[list[object]]) -> Outcome:
    last_test, tests, spent = "import", 0, 0.0
    for message in messages:
        match message:
            case ["started", int(index), str(test)]:
                last_test, tests = test, index + 1
            case ["failed", str(test), float(spent)]:
                return Outcome(test, "failed", tests, spent)
            case [("survived" | "out of time") as how, int(tests), float(spent)]:
                return Outcome(None, how, tests, spent)
            case ["timed out"]:
                return Outcome(last_test, "timed out", tests, _LONGEST_S)
            case ["exit", int(status)]:
                signalled = os.WIFSIGNALED(status) and os.WTERMSIG(status)
                how = "timed out" if signalled == signal.SIGPROF else "crashed"
                return Outcome(last_test, how, tests, spent)
    raise AssertionError("a child ends with an exit status")


def _pytest(arguments: Sequence[str], plugin: object) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    # pytest's rewriting of asserts would import xlapipe, whose plugin it knows, from its files.
    options = ["-q", "-p", "no:cacheprovider", "--assert=plain"]
    pytest.main([*options, *arguments], plugins=[plugin])


class _Lines:
    """The lines of xlapipe that run, of those that are of interest."""

    def __init__(self, root: Path, wanted: Lines) -> None:
        self._root = f"{root}{os.sep}"
        self._wanted = wanted
        self.seen: set[tuple[str, int]] = set()
        monitoring = sys.monitoring
        self._tool = monitoring.COVERAGE_ID
        monitoring.use_tool_id(self._tool, "mutants")
        monitoring.register_callback(self._tool, monitoring.events.LINE, self._line)
        self.record()

    def record(self) -> None:
        """Starts again with no lines."""
        self.seen.clear()
        sys.monitoring.set_events(self._tool, sys.monitoring.events.LINE)
        sys.monitoring.restart_events()

    def stop(self) -> None:
        """Nothing is recorded until `record`."""
        sys.monitoring.set_events(self._tool, 0)

    def _line(self, code: CodeType, line: int) -> object:
        if code.co_filename.startswith(self._root):
            place = (code.co_filename.removeprefix(self._root), line)
            if place in self._wanted:
                self.seen.add(place)
        return sys.monitoring.DISABLE


class CollectedSession:
    """A process with all tests collected. Serves requests until the connection closes.

    Requests are `("record", test)`, answered by `Recorded`, and `("mutant", path, code, tests,
    seconds, budget_s)`, answered by `Outcome`; the code is that of the changed module, marshalled.
    The first message is what collection gave: the names of tests, and the lines that ran.
    """

    def __init__(self, root: Path, wanted: Lines) -> None:
        self._root = root
        self._wanted = wanted

    def serve(self, connection, folders: Sequence[str]) -> None:
        """Runs in its own process, and does not return before the connection is closed."""
        self._connection = connection
        self._lines = _Lines(self._root, self._wanted)
        _pytest(folders, self)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Takes the place of pytest's own loop."""
        self._lines.stop()
        items = {item.nodeid: item for item in session.items}
        functions = _functions_by_code()
        self._connection.send((list(items), frozenset(self._lines.seen)))
        gc.collect()
        gc.freeze()  # A collection in a child would copy every page.
        while True:
            try:
                request = self._connection.recv()
            except EOFError:
                return True
            match request:
                case ("record", str(test)):
                    self._connection.send(self._record(items[test]))
                case ("mutant", _, bytes(compiled), tests, seconds, float(budget_s)):
                    code = marshal.loads(compiled)
                    chosen = [items[test] for test in tests]

                    def work(send, code=code, chosen=chosen, seconds=seconds, budget_s=budget_s):
                        _replace_code(code, functions)
                        _run(chosen, seconds, budget_s, send)

                    self._connection.send(_outcome(_messages_of_child(work)))

    def _record(self, item: pytest.Item) -> Recorded:
        def work(send: Callable[[object], None]) -> None:
            self._lines.record()
            _run([item], {item.nodeid: 10.0}, 1.0, send)
            self._lines.stop()
            send(["lines", sorted(self._lines.seen)])

        lines: Lines = frozenset()
        passed, spent = False, 0.0
        for message in _messages_of_child(work):
            match message:
                case ["survived", _, float(spent)]:
                    passed = True
                case ["lines", list(pairs)]:
                    lines = frozenset((path, line) for path, line in pairs)
        return Recorded(lines, spent, passed)


def _functions_by_code() -> dict[tuple[str, str, int], list[FunctionType]]:
    functions: dict[tuple[str, str, int], list[FunctionType]] = {}
    for function in gc.get_objects():
        if isinstance(function, FunctionType):
            functions.setdefault(_code_key(function.__code__), []).append(function)
    return functions


def _code_key(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _replace_code(
    module: CodeType, functions: dict[tuple[str, str, int], list[FunctionType]]
) -> None:
    """Gives every function of a module the code that the compiled module has for it."""
    for constant in module.co_consts:
        if isinstance(constant, CodeType):
            for function in functions.get(_code_key(constant), ()):
                function.__code__ = constant
            _replace_code(constant, functions)


class ImportingSession:
    """A process that has imported nothing of xlapipe.

    Requests are those of `CollectedSession` for mutants.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def serve(self, connection) -> None:
        """Does not return before the connection is closed."""
        while True:
            try:
                _, path, compiled, tests, seconds, budget_s = connection.recv()
            except EOFError:
                return

            def work(
                send, path=path, compiled=compiled, tests=tests, seconds=seconds, budget_s=budget_s
            ) -> None:
                code = marshal.loads(compiled)
                sys.meta_path.insert(0, _MutantFinder(path, self._root / path, code))
                files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
                _pytest(files, _OrderedRun(tests, seconds, budget_s, send))

            connection.send(_outcome(_messages_of_child(work)))


class _MutantFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from code instead of its file."""

    def __init__(self, path: str, file: Path, code: CodeType) -> None:
        self._name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self._file = file
        self._code = code

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        folder = [str(self._file.parent)] if self._file.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(
            name, self._file, loader=self, submodule_search_locations=folder
        )

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)


class _OrderedRun:
    """A pytest plugin that runs the collected tests in a given order, until one fails."""

    def __init__(
        self,
        tests: Sequence[str],
        seconds: dict[str, float],
        budget_s: float,
        send: Callable[[object], None],
    ) -> None:
        self._order = {test: index for index, test in enumerate(tests)}
        self._seconds = seconds
        self._budget_s = budget_s
        self._send = send

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            self._send(["failed", "import", time.process_time()])
            return True
        # Tests that the mutant gave another name come last.
        known = [item for item in session.items if item.nodeid in self._order]
        files = {item.path for item in known}
        chosen = sorted(known, key=lambda item: self._order[item.nodeid])
        if len(known) < len(self._order):
            chosen += [
                item
                for item in session.items
                if item.nodeid not in self._order and (item.path in files or not known)
            ]
        _run(chosen, self._seconds, self._budget_s, self._send)
        return True
