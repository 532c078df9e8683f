"""The command line: the only package that prints or exits.

Each command is in the module of its name: `xlapipe show` is in `show.py`. `options.py` has the
options that several commands share, `output.py` what they print with.

To add a command: a module with its help and examples as docstring, `OPTIONS` and `run(options)`,
and its name in `_COMMANDS`.

Exit codes: 0 success; 1 an expectation failed, plans differ or no size fits; 2 bad input or a
failed compile.
"""

import argparse
import gc
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import NoReturn

from xlapipe.cli.output import print_error, print_notes_on_compiles, run_command, usable_streams
from xlapipe.devices.environment.process_end import end_process, signals_interrupt
from xlapipe.errors import XlapipeError
from xlapipe.project_file import stated_by_command

# In the order of `xlapipe --help`.
_COMMANDS = (
    "check",
    "dump",
    "show",
    "report",
    "diff",
    "fit",
    "choose",
    "explain",
    "build",
    "run",
    "device capture",
    "device calibrate",
    "device locks",
    "list",
    "targets",
    "doctor",
)
# Commands that were removed or renamed, and what to use instead; for one release.
_REMOVED = {
    "advise": "use `xlapipe choose WORKLOAD`",
    "bisect": "`xlapipe dump` in an environment of each version, and `xlapipe diff A B`",
    "calibrate": "use `xlapipe device calibrate`",
    "comment": "use `xlapipe diff --markdown BEFORE AFTER`",
    "completion": "no command completes words in the shell",
    "launch": "start `xlapipe run DIR --distributed`, or your program, by srun or mpirun",
    "lock": "use `xlapipe device locks [FILE…]`",
    "saved": "use `xlapipe choose WORKLOAD`, whose first table it is",
    "target": "use `xlapipe device capture`",
}
_GROUPS = {"device": "Record what is known of the attached GPU, and of others' tuners."}
# Commands that do not need numpy's threads, which take half of the time of numpy's import.
_WITHOUT_THREADS = frozenset({"show", "explain", "report", "diff"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] and arguments[0] in _WITHOUT_THREADS:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    def run() -> int:
        if arguments[:1] and (instead := _REMOVED.get(arguments[0])):
            raise XlapipeError(f"`xlapipe {arguments[0]}` was removed; fix: {instead}")
        options = _parser(arguments).parse_args(arguments)
        with stated_by_command("network", getattr(options, "network", None)):
            code: int = options.command(options)
        print_notes_on_compiles()
        return code

    with usable_streams(), no_garbage_collection(), signals_interrupt():
        return run_command(run, program="xlapipe", json_output="--json" in arguments)


def command_line() -> NoReturn:
    """What `xlapipe` on the path runs: one command, with which the process ends."""
    gc.disable()  # as `main` does, but to the end: what was made would be searched once more
    try:
        code = main()
    except Exception:  # noqa: BLE001 - 1, as Python has it, means that an expectation fails
        traceback.print_exc()
        print_error("please report this, with what is printed above")
        code = 2
    end_process(code)


class _Version(argparse.Action):
    """Prints the version, which is read only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import xlapipe

        print(f"xlapipe {xlapipe.__version__}")
        parser.exit()


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disables garbage collection: imported modules and plans are many objects, but no garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of the command with which `arguments` begin, or of all commands without one."""
    # Imported here: a program that prints as the commands do imports only `xlapipe.cli.output`.
    from xlapipe.cli.options import Parser, add_command

    parser = Parser(
        prog="xlapipe",
        description="Compile a JAX step for an NVIDIA GPU on any machine, and check XLA's plan.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    groups = {"": commands}
    for name in [n for n in _COMMANDS if n.split()[0] in arguments[:1]] or _COMMANDS:
        group, _, own_name = name.rpartition(" ")
        if group not in groups:
            text = _GROUPS[group]
            groups[group] = commands.add_parser(group, help=text, description=text).add_subparsers(
                required=True, metavar="COMMAND", parser_class=Parser
            )
        module = import_module(f"xlapipe.cli.{name.replace(' ', '_')}")
        add_command(groups[group], own_name, module)
    return parser
