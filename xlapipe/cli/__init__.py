"""The command line: the only package that prints or exits.

Exit codes: 0 good, 1 an expectation failed, plans differ or nothing fits, 2 bad input or a failed
compile.
"""

import argparse
import gc
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from xlapipe.cli import about, checking, comparing, compiling, device, fitting, reading
from xlapipe.cli.options import Command, Commands
from xlapipe.errors import XlapipeError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    options = _parser().parse_args(arguments)
    command: Command = options.command
    try:
        with _no_garbage_collection():
            code = command(options)
            sys.stdout.flush()
    except XlapipeError as error:
        if getattr(options, "json", False):
            print(json.dumps({"error": str(error)}))
        print(f"xlapipe: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of our output went away (`| head`); leave stdout nothing to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("xlapipe: interrupted", file=sys.stderr)
        return 130
    return code


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A plan is some 100,000 small objects that live to the end: collecting finds no garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="xlapipe",
        description="Compile a JAX step for an NVIDIA GPU on any machine, and check XLA's plan.",
    )
    commands = Commands(parser)
    for module in (about, compiling, fitting, device, reading, checking, comparing):
        module.add(commands)
    return parser
