"""Printing: JSON, lines for a terminal, errors."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from xlapipe.errors import XlapipeError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from xlapipe.compiling.job import Job

# Output to a file is not folded at the width of a terminal.
_WIDTH_OF_FILES = 160


def print_json(data: Any) -> None:
    """Prints one line of JSON."""
    # Without indentation json is six times faster; `| jq` indents it.
    from xlapipe.report.records import json_form

    print(json.dumps(data, ensure_ascii=False, default=json_form))


def print_lines(lines: "Iterable[RenderableType]") -> None:
    """Prints lines with their styles; long ones are not folded."""
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True, highlight=False)
    if console.is_terminal:
        for line in lines:
            console.print(line)
        return
    console.width = _WIDTH_OF_FILES
    for line in lines:
        if isinstance(line, Text) and "\t" not in line.plain:
            printed = line.plain  # what the console prints without styles, in a tenth of the time
        else:
            with console.capture() as capture:
                console.print(line)
            printed = capture.get()
        # Tables are padded to the width of the console.
        print("\n".join(text.rstrip() for text in printed.splitlines()))


def print_error(message: object, *, program: str = "xlapipe") -> None:
    """Prints an error on stderr."""
    print(f"{program}: error: {message}", file=sys.stderr)


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


def run_command(run: Callable[[], int], *, program: str, json_output: bool) -> int:
    """Runs a command; prints an XlapipeError and returns exit code 2 for it.

    Args:
      program: its name in messages.
      json_output: whether stdout is JSON, so that an error is printed there too.

    Returns:
      The exit code.
    """
    try:
        code = run()
        sys.stdout.flush()
    except XlapipeError as error:
        if json_output:
            print(json.dumps({"error": str(error)}))
        print_error(error, program=program)
        return 2
    except BrokenPipeError:
        # The reader of stdout has ended (`| head`); redirect stdout, so that flushing works.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt as interrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        # As a shell reports a command that the signal ended: 130 for SIGINT, 143 for SIGTERM.
        return 128 + getattr(interrupt, "number", signal.SIGINT)
    return code
