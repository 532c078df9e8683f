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

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xlapipe.report.inductor_subject import InductorSubject
    from xlapipe.report.xla_subject import XlaSubject

OPTIONS: Options = {
    "subjects PATH|WORKLOAD": {
        "nargs": "+",
        "help": "a dump, as for `xlapipe show`, or a workload, which is compiled first",
    },
    **COMPILE,
    **NETWORK,
}


def run(options: argparse.Namespace) -> int:
    from xlapipe.report.findings import check_figures, check_lines

    results = []
    all_hold = True
    for subject in _subjects(options):
        all_hold &= all(finding.holds for finding in subject.findings)
        if options.json:
            results.append(check_figures(subject))
        else:
            print_lines(check_lines(subject))
    if options.json:
        print_json(results)
    return 0 if all_hold else 1


def _subjects(options: argparse.Namespace) -> "Iterator[XlaSubject | InductorSubject]":
    from xlapipe.report.subjects import open_subject

    paths = {subject: Path(subject) for subject in options.subjects}
    workloads = [subject for subject in paths if not os.path.exists(subject)]
    jobs = {}
    if workloads:
        from xlapipe.compile.make_jobs import jobs_of

        compile_options = compile_settings(options, options.gemm)
        # All names are looked up before the first compile, so that a wrong name costs no time.
        jobs = {name: jobs_of([name], compile_options) for name in workloads}
    for subject in options.subjects:
        if subject not in jobs:
            yield open_subject(paths[subject], name=subject)
        for job in jobs.get(subject, ()):
            from xlapipe.compile.pipeline import compile_dump
            from xlapipe.report.xla_subject import XlaSubject

            with named_errors(job):
                dump = compile_dump(job, None, allow_refused=True).dump
            name = f"{subject} ({dump.manifest.device}, {job.policy})"
            yield XlaSubject(dump, given_name=name)
