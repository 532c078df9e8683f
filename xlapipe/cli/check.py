"""Check plans against their expectations.

xlapipe check step:workload
    compile, and check its expectations
xlapipe check hlo_dumps/*/*
    check dumps, without jax
"""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from xlapipe.cli.compile_options import COMPILE, compile_settings
from xlapipe.cli.options import NETWORK, Options
from xlapipe.cli.output import named_errors, print_json, print_lines
from xlapipe.errors import XlapipeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xlapipe.report.subjects import CheckedSubject

OPTIONS: Options = {
    "subjects PATH|WORKLOAD": {
        "nargs": "+",
        "help": "a dump, as for `xlapipe show`, or a workload, which is compiled first",
    },
    "--calls own|SHAPES": "of a workload: compile the program of each call too. own: those of "
    "Workload(calls=…); or shapes of leaves, e.g. x=5x128,y=5;x=16x128:bfloat16,y=16",
    "--deterministic": "of a workload: what XLA's option against results that differ from run to "
    "run costs in predicted time; compiles it again with the option if there are such",
    **COMPILE,
    **NETWORK,
}


def run(options: argparse.Namespace) -> int:
    results = []
    all_hold = True
    for checked in _checked(options):
        all_hold &= checked.holds
        if options.json:
            results.append(checked.figures())
        else:
            print_lines(checked.lines())
    if options.json:
        print_json(results)
    return 0 if all_hold else 1


def _checked(options: argparse.Namespace) -> "Iterator[CheckedSubject]":
    from xlapipe.report.subjects import open_subject

    paths = {subject: Path(subject) for subject in options.subjects}
    workloads = [subject for subject in paths if not os.path.exists(subject)]
    jobs = {}
    if len(workloads) < len(paths) and (options.calls is not None or options.deterministic):
        raise XlapipeError(
            "check: --calls and --deterministic compile, and a dump is not compiled; fix: name "
            "workloads alone, or leave them out"
        )
    if workloads:
        from xlapipe.differences.comparing.other_compiles import (
            determinism_cost,
            job_with_calls,
            parse_calls,
            programs_of_calls,
        )

        calls = parse_calls(options.calls) if options.calls is not None else None
        from xlapipe.compile.make_jobs import jobs_of

        compile_options = compile_settings(options, options.gemm)
        # All names are looked up before the first compile, so that a wrong name costs no time.
        jobs = {name: jobs_of([name], compile_options) for name in workloads}
    for subject in options.subjects:
        if subject not in jobs:
            yield open_subject(paths[subject], name=subject).checked()
        for job in jobs.get(subject, ()):
            from xlapipe.compile.pipeline import compile_dump
            from xlapipe.report.compiled_calls import with_compiles
            from xlapipe.report.xla_subject import XlaSubject

            with named_errors(job):
                asked = job if calls is None else job_with_calls(job, calls)
                dump = compile_dump(asked, None, allow_refused=True).dump
                programs = programs_of_calls(job, dump, calls) if calls is not None else ()
                cost = determinism_cost(asked, dump) if options.deterministic else None
            name = f"{subject} ({dump.manifest.device}, {job.policy})"
            checked = XlaSubject(dump, given_name=name).checked()
            yield with_compiles(checked, programs, cost)
