"""`check`: plans against expectations; a workload is compiled first."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlapipe.cli.options import Commands, add_compile_options, asked_for, print_json

if TYPE_CHECKING:
    from xlapipe.dumps.opened import Opened
    from xlapipe.expect import Finding
    from xlapipe.inductor import InductorDump


@dataclass(frozen=True)
class CheckedPlan:
    """One plan with the findings of its expectations.

    Attributes:
      name: as the user gave it; for a workload, with target and GEMM policy.
      notes: what the findings do not cover, for people.
    """

    name: str
    opened: "Opened"
    findings: "Sequence[Finding]"
    notes: Sequence[str]


@dataclass(frozen=True)
class CheckedInductor:
    """A dump of torch Inductor, which is checked against what was measured."""

    name: str
    dump: "InductorDump"


def add(commands: Commands) -> None:
    """Adds the commands of this module."""
    check = commands.add("check", _check, "Check plans against their expectations.")
    check.add_argument(
        "subjects",
        nargs="+",
        metavar="PATH|WORKLOAD",
        help="a dump as in `show`, or a workload, which is compiled first",
    )
    add_compile_options(check)


def _check(options: argparse.Namespace) -> int:
    from xlapipe.report.figures import failed

    results: list[dict[str, Any]] = []
    code = 0
    for checked in _checked(options):
        if isinstance(checked, CheckedInductor):
            code = max(code, _report_inductor(checked, options, results))
            continue
        code = max(code, 1 if failed(checked.findings) else 0)
        if options.json:
            results.append(_figures(checked))
        else:
            _print(checked)
    if options.json:
        print_json(results)
    return code


def _figures(checked: CheckedPlan) -> dict[str, Any]:
    from xlapipe.plan.donation import donations
    from xlapipe.report.donation import donation_figures
    from xlapipe.report.figures import collectives_of, failed, finding_figures

    compiled, requested = collectives_of(checked.opened)
    rows = donations(checked.opened.program) if checked.opened.dump is not None else ()
    return {
        "subject": checked.name,
        "autotuning": checked.opened.autotuning,
        "holds": not failed(checked.findings),
        "notes": checked.notes,
        "findings": [finding_figures(finding) for finding in checked.findings],
        "donations": [donation_figures(row) for row in rows],
        "collectives": compiled,
        "requested_collectives": requested,
    }


def _print(checked: CheckedPlan) -> None:
    from xlapipe.plan.donation import donations
    from xlapipe.report.collectives import collective_lines
    from xlapipe.report.figures import collectives_of
    from xlapipe.report.terminal import print_findings

    opened = checked.opened
    print_findings(
        checked.name,
        opened.autotuning,
        checked.findings,
        checked.notes,
        donations(opened.program) if opened.dump is not None else (),
        tuple(collective_lines(*collectives_of(opened))),
    )


def _report_inductor(
    checked: CheckedInductor, options: argparse.Namespace, results: list[dict[str, Any]]
) -> int:
    from xlapipe.report.figures import failed
    from xlapipe.report.inductor_check import check_figures, check_notes, measured_findings

    findings = measured_findings(checked.dump)
    if options.json:
        results.append(check_figures(checked.name, checked.dump))
    else:
        from xlapipe.report.terminal import print_findings

        print_findings(checked.name, "unknown", findings, check_notes(checked.dump), ())
    return 1 if failed(findings) else 0


def _checked(options: argparse.Namespace) -> Iterator[CheckedPlan | CheckedInductor]:
    import tempfile

    from xlapipe.dumps.opened import Opened, open_any

    paths = {subject: Path(subject) for subject in options.subjects}
    workloads = [subject for subject, path in paths.items() if not path.exists()]
    jobs = {}
    if workloads:
        from xlapipe.compiling.make_jobs import jobs_of

        # All are looked up before the first is compiled, so that a wrong name costs no time.
        jobs = {name: jobs_of([name], asked_for(options, options.gemm)) for name in workloads}
    for subject in options.subjects:
        if subject not in jobs:
            opened = open_any(paths[subject])
            if isinstance(opened, Opened):
                yield _check_plan(subject, opened)
            else:
                yield CheckedInductor(subject, opened)
        for job in jobs.get(subject, ()):
            from xlapipe.compiling.pipeline import make_dump

            with tempfile.TemporaryDirectory(prefix="xlapipe-check-") as scratch:
                dump = make_dump(job, Path(scratch)).dump
                name = f"{subject} ({dump.manifest.device}, {job.policy})"
                yield _check_plan(name, Opened.of_dump(dump))


def _check_plan(name: str, opened: "Opened") -> CheckedPlan:
    from xlapipe.expect import check_all

    if opened.dump is None:
        note = "no manifest, so no expectations; the plan's invariants hold"
        return CheckedPlan(name, opened, (), [note])
    expectations = opened.dump.expectations
    notes = []
    if unrecorded := sum(item is None for item in opened.dump.manifest.expectations):
        notes.append(f"{unrecorded} expectations of the workload's own classes need its code")
    if not expectations:
        notes.append("no expectations are recorded; the plan's invariants hold")
    return CheckedPlan(name, opened, check_all(expectations, opened.program), notes)
