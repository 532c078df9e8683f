"""`check`: plans against expectations, compiled first where no dump is named."""

import argparse
from pathlib import Path
from typing import Any

from xlapipe.cli.options import Commands, add_compile_options, asked_for, print_json


def add(commands: Commands) -> None:
    """Adds the commands of this module."""
    check = commands.add("check", _check, "Hold plans against their expectations.")
    check.add_argument(
        "subjects",
        nargs="+",
        metavar="PATH|WORKLOAD",
        help="a dump as in `show`, or a workload, which is compiled first",
    )
    add_compile_options(check)


def _check(options: argparse.Namespace) -> int:
    from xlapipe.report.collectives import collective_lines
    from xlapipe.report.donation import donation_figures
    from xlapipe.report.figures import failed, finding_figures

    results = []
    code = 0
    for name, label, findings, notes, donated, (exchanged, asked) in _checked(options):
        code = max(code, 1 if failed(findings) else 0)
        if options.json:
            results.append(
                {
                    "subject": name,
                    "autotuning": label,
                    "holds": not failed(findings),
                    "notes": notes,
                    "findings": [finding_figures(finding) for finding in findings],
                    "donations": [donation_figures(row) for row in donated],
                    "collectives": exchanged,
                    "requested_collectives": asked,
                }
            )
        else:
            from xlapipe.report.terminal import print_findings

            lines = tuple(collective_lines(exchanged, asked))
            print_findings(name, label, findings, notes, donated, lines)
    if options.json:
        print_json(results)
    return code


def _checked(options: argparse.Namespace) -> Any:
    """Per subject: name, autotuning label, findings, notes, donations, collectives."""
    import tempfile

    from xlapipe.dumps.dump import Dump, is_dump, open_dump
    from xlapipe.expect import check_all
    from xlapipe.plan.donation import donations
    from xlapipe.read import read_path
    from xlapipe.report.collectives import collective_figures
    from xlapipe.report.figures import exchanged_figures

    def of_dump(name: str, dump: Dump) -> Any:
        own = sum(item is None for item in dump.manifest.expectations)
        notes = [f"{own} expectations of the workload's own classes need its code"] if own else []
        if not dump.expectations:
            notes.append("no expectations are recorded; the plan's invariants hold")
        findings = check_all(dump.expectations, dump.program)
        label, donated = dump.manifest.autotuning, donations(dump.program)
        return name, label, findings, notes, donated, exchanged_figures(dump)

    subjects = [(subject, Path(subject)) for subject in options.subjects]
    compiled = [name for name, path in subjects if not path.exists()]
    jobs = {}
    if compiled:
        from xlapipe.compiling.make_jobs import jobs_of

        jobs = {name: jobs_of([name], asked_for(options, options.gemm)) for name in compiled}
    for name, path in subjects:
        if is_dump(path):
            yield of_dump(name, open_dump(path))
        elif path.exists():
            exchanged = collective_figures(read_path(path).collectives)
            note = "no manifest, so no expectations; the plan's invariants hold"
            yield name, "unknown", (), [note], (), (exchanged, None)
        for job in jobs.get(name, ()):
            from xlapipe.compiling.pipeline import make_dump

            with tempfile.TemporaryDirectory(prefix="xlapipe-check-") as scratch:
                made = make_dump(job, Path(scratch))
                yield of_dump(f"{name} ({made.dump.manifest.device}, {job.policy})", made.dump)
