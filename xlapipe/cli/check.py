"""`xlapipe check`: checks plans against their expectations; compiles workloads first."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from xlapipe.cli.options import Commands, add_compile_options, compile_settings
from xlapipe.cli.output import named_errors, print_json, print_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xlapipe.report.subjects import CheckedSubject


def add(commands: Commands) -> None:
    """Adds the command."""
    check = commands.add("check", _check, "Check plans against their expectations.")
    check.add_argument(
        "subjects",
        nargs="+",
        metavar="PATH|WORKLOAD",
        help="a dump, as for `xlapipe show`, or a workload, which is compiled first",
    )
    add_compile_options(check)


def _check(options: argparse.Namespace) -> int:
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
    workloads = [subject for subject, path in paths.items() if not path.exists()]
    jobs = {}
    if workloads:
        from xlapipe.compile.make_jobs import jobs_of

        compile_options = compile_settings(options, options.gemm)
        # All names are looked up before the first compile, so that a wrong name costs no time.
        jobs = {name: jobs_of([name], compile_options) for name in workloads}
    for subject in options.subjects:
        if subject not in jobs:
            yield open_subject(paths[subject], name=subject).checked()
        for job in jobs.get(subject, ()):
            from xlapipe.compile.pipeline import compile_dump
            from xlapipe.dump.opened import Opened
            from xlapipe.report.xla_subject import XlaSubject

            with named_errors(job):
                dump = compile_dump(job, None, allow_refused=True).dump
            name = f"{subject} ({dump.manifest.device}, {job.policy})"
            yield XlaSubject(replace(Opened.of_dump(dump), given_name=name)).checked()
