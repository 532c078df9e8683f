"""Printing: JSON, lines for a terminal, errors."""

import errno
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

from xlapipe.errors import XlapipeError
from xlapipe.files.visible_text import visible_line, visible_lines

if TYPE_CHECKING:
    from rich.text import Text

    from xlapipe.compile.job import Job

_LINE_OF_FILES, _LEAST_WIDTH, _WIDEST = 80, 40, 120
# What begins the line of a command to run next.
NEXT = "Next: "
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF)


def print_json(data: Any) -> None:
    """Prints one line of JSON; all but ASCII is escaped if it holds what a terminal obeys."""
    # Without indentation json is six times faster; `| jq` indents it.
    from xlapipe.report.records import json_form

    text = json.dumps(data, ensure_ascii=False, allow_nan=False, default=json_form)
    if not text.isprintable() or not _can_be_printed(text):
        text = json.dumps(data, allow_nan=False, default=json_form)
    print(text)


def _can_be_printed(text: str) -> bool:
    """Whether stdout's encoding has all characters; no encoding has lone surrogates."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def print_text(text: object = "") -> None:
    """Prints one line, whatever characters a file put into it; a terminal gets it folded."""
    line = visible_line(str(text))
    for part in _parts(line, screen_width()) if sys.stdout.isatty() else [line]:
        print(part)


def _parts(line: str, width: int) -> "Iterator[str]":
    """A line in parts of at most `width` characters; a command to paste continues after a `\\`."""
    from xlapipe.report.wrapped_text import folded, wrapped

    if not line.startswith(NEXT):
        yield from folded(line, width)
        return
    *parts, last = wrapped(line, width - 2, indent=len(NEXT), first="", names=False)
    yield from (f"{part} \\" for part in parts)
    yield last


def print_markdown(text: str) -> None:
    """Prints Markdown, which is copied from a terminal and so never folded."""
    print(visible_lines(text), end="")


def screen_width() -> int:
    """The width that lines are made for: of the terminal, within limits; 80 for a file."""
    if not sys.stdout.isatty():
        return _LINE_OF_FILES
    return max(_LEAST_WIDTH, min(shutil.get_terminal_size().columns, _WIDEST))


def table_width() -> int | None:
    """The width that a table must keep; None for a file, which may be wider."""
    return screen_width() if sys.stdout.isatty() else None


def print_lines(lines: "Iterable[Text]") -> None:
    """Prints lines with their styles; a terminal gets them folded."""
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False)
    for line in lines:
        if console.is_terminal:
            for part in _folded(line, console.width):
                console.print(part, soft_wrap=True)
        else:
            # What the console prints without styles, in a tenth of the time.
            print(visible_line(line.plain).expandtabs().rstrip())


def _folded(line: "Text", width: int) -> "Iterator[Text]":
    """A line as visible lines that are no wider than the terminal, broken between names."""
    from rich.text import Text

    plain = visible_line(line.plain)
    if len(plain) > width:
        yield from (Text(part, style=line.style) for part in _parts(plain, width))
        return
    visible = line.copy()
    visible.plain = plain
    yield visible


def print_error(message: object, *, program: str = "xlapipe") -> None:
    """Prints an error on stderr; a terminal gets it folded."""
    _print_to_stderr(f"{program}: error: {message}")


def print_note(message: object) -> None:
    """Prints on stderr what is not an error, e.g. which of several targets is meant."""
    _print_to_stderr(visible_lines(f"xlapipe: {message}"))


def _print_to_stderr(text: str) -> None:
    """Prints lines on stderr, whatever characters a file put into them; a terminal: folded."""
    text = visible_lines(text)
    if sys.stderr.isatty():
        from xlapipe.report.wrapped_text import folded

        width = shutil.get_terminal_size().columns
        text = "\n".join(part for line in text.split("\n") for part in folded(line, width))
    print(text, file=sys.stderr)


def print_notes_on_compiles() -> None:
    """Prints on stderr how many plans came from the cache."""
    compiles = sys.modules.get("xlapipe.compile.reused_compiles")  # not imported: none compiled
    note = compiles.take_note() if compiles is not None else None
    if note is not None:
        sys.stdout.flush()
        print_note(note)


def named_error(job: "Job", error: XlapipeError) -> str:
    """The message of a failed compile, with the workload's name even if the error lacks it."""
    name, message = job.reference.name, str(error)
    return message if name in message else f"{name} ({job.policy}): {message}"


@contextmanager
def named_errors(job: "Job") -> Iterator[None]:
    """Adds the workload's name to errors of a compile that lack it."""
    try:
        yield
    except XlapipeError as error:
        raise XlapipeError(named_error(job, error)) from None


def _discard_output() -> None:
    """Redirects stdout, so that flushing it at the end works."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def usable_streams() -> Iterator[None]:
    """Lets every character be printed, and closed standard streams be read and written."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # started with it closed
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    yield


def _message(error: Exception) -> str:
    """What went wrong, and what to do, of an error that the user or the machine caused."""
    if isinstance(error, ModuleNotFoundError):
        return f"{error.name} is not installed in this environment; fix: install it with pip"
    if isinstance(error, (MemoryError, RecursionError)):
        return (
            f"{str(error) or 'out of memory'}; fix: give a smaller input, or one nested less deeply"
        )
    if not isinstance(error, OSError):
        return str(error)
    if error.filename is None and error.errno in _OUTPUT_ERRORS:
        _discard_output()
        return f"the output cannot be written: {error.strerror}"
    if error.filename is None and error.errno == errno.ENOENT:
        return "the current folder was removed; fix: change to one that exists"
    place = f"{error.filename!s:.300}: " if error.filename is not None else ""
    return f"{place}{error.strerror or error}; fix: see what prevents that, and try again"


def run_command(run: Callable[[], int], *, program: str, json_output: bool) -> int:
    """Runs a command; prints an XlapipeError and returns exit code 2 for it."""
    try:
        code = run()
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of stdout has ended (`| head`).
        _discard_output()
        return 0
    except (XlapipeError, OSError, MemoryError, RecursionError, ModuleNotFoundError) as error:
        message = _message(error)
        if json_output and isinstance(error, XlapipeError):
            print(json.dumps({"error": message}))
        print_error(message, program=program)
        return 2
    except KeyboardInterrupt as interrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        # As a shell reports a command that the signal ended: 130 for SIGINT, 143 for SIGTERM.
        return 128 + getattr(interrupt, "number", signal.SIGINT)
    return code
