"""Explain why a run ran out of memory, from what it printed.

xlapipe explain run.log
    which allocation failed, and why
python train.py 2>&1 | xlapipe explain --workload step:workload
    and what is in the allocation
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlapipe.cli.compile_options import TARGET, compile_settings
from xlapipe.cli.options import PATH_HELP, WORKLOAD_HELP, Options
from xlapipe.cli.output import print_json, print_text
from xlapipe.errors import XlapipeError
from xlapipe.files.contents import LIMIT_BYTES, Refusal, read_packed

if TYPE_CHECKING:
    from xlapipe.report.failures.failure import MemoryFailure

_STDIN = "-"

OPTIONS: Options = {
    "log LOG": {"nargs": "?", "default": _STDIN, "help": "a file; default: standard input"},
    "--plan DIR": f"the program's plan: {PATH_HELP}",
    "--workload WORKLOAD": f"the program, to compile it: {WORKLOAD_HELP}",
    **TARGET,
}


def run(options: argparse.Namespace) -> int:
    from xlapipe.report.failure_lines import failure_figures, failure_lines
    from xlapipe.report.failures.read_log import read_log

    if options.plan is not None and options.workload is not None:
        raise XlapipeError("explain: --plan and --workload name two programs; fix: give one")
    where = "standard input" if options.log == _STDIN else options.log
    log = read_log(_read(options.log))
    if not log.failures and not log.warnings:
        raise XlapipeError(_not_recognised(where, log.unrecognised))
    failure = log.last_failure
    planned = None
    if failure is None:
        pass  # a warning names no allocation of a plan
    elif options.plan is not None:
        planned = _planned_of_dump(failure, options.plan)
    elif options.workload is not None:
        planned = _compiled(failure, options)
    if options.json:
        print_json(failure_figures(log, planned))
        return 0
    for line in failure_lines(log, planned=planned):
        print_text(line)
    return 0


def _not_recognised(where: str, unrecognised: tuple[int, str] | None) -> str:
    from xlapipe.report.failures.messages import SUPPORTED

    if unrecognised is None:
        return (
            f"{where}: expected the output of a run that ran out of memory, found no message of "
            "XLA about it; fix: give the whole output, standard error included"
        )
    number, line = unrecognised
    return (
        f"{where}: line {number} is not recognised: {line[:200]!r}; `explain` reads {SUPPORTED}; "
        "fix: give the whole output, standard error included"
    )


def _read(log: str) -> str:
    if log == _STDIN:
        return sys.stdin.buffer.read(LIMIT_BYTES).decode(errors="replace")
    refusal = Refusal(XlapipeError, "give a file with the output of the run")
    return read_packed(Path(log), refusal=refusal).decode(errors="replace")


def _planned_of_dump(failure: "MemoryFailure", path: Path) -> "dict[str, Any]":
    from xlapipe.inductor.open_path import open_path
    from xlapipe.report.failure_lines import planned_failure
    from xlapipe.report.xla_subject import XlaSubject

    return planned_failure(failure, XlaSubject(open_path(path)))


def _compiled(failure: "MemoryFailure", options: argparse.Namespace) -> "dict[str, Any]":
    """What the plan of the workload shows."""
    from xlapipe.compile.make_jobs import jobs_of
    from xlapipe.compile.pipeline import compile_dump
    from xlapipe.report.failure_lines import planned_failure
    from xlapipe.report.xla_subject import XlaSubject

    (job,) = jobs_of([options.workload], compile_settings(options, None))
    return planned_failure(failure, XlaSubject(compile_dump(job, None, allow_refused=True).dump))
