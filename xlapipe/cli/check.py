"""`xlapipe check`: checks plans against their expectations; compiles workloads first."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlapipe.cli.options import Commands, add_compile_options, read_compile_options
from xlapipe.cli.output import named_errors, print_json, print_lines
from xlapipe.environment.scratch import scratch_folder

if TYPE_CHECKING:
    from rich.text import Text

    from xlapipe.dumps.opened import Opened
    from xlapipe.expect import Finding
    from xlapipe.inductor.reader import InductorDump
    from xlapipe.plans.donation import Donation


@dataclass(frozen=True)
class CheckedPlan:
    """A plan with the findings of its expectations.

    Attributes:
      name: the path or workload as the user gave it; for a workload with target and GEMM policy.
      notes: what the findings do not cover.
    """

    name: str
    opened: "Opened"
    findings: "Sequence[Finding]"
    notes: Sequence[str]

    @property
    def donations(self) -> "Sequence[Donation]":
        """Empty for a dump that xlapipe did not write."""
        from xlapipe.plans.donation import donations

        return donations(self.opened.program) if self.opened.dump is not None else ()

    def figures(self) -> dict[str, Any]:
        """The JSON of this plan."""
        from xlapipe.report.donation import donation_figures
        from xlapipe.report.findings import failed_count, finding_figures
        from xlapipe.report.plan_figures import collectives_of

        compiled, requested = collectives_of(self.opened)
        return {
            "subject": self.name,
            "autotuning": self.opened.autotuning,
            "holds": not failed_count(self.findings),
            "notes": self.notes,
            "findings": [finding_figures(finding) for finding in self.findings],
            "donations": [donation_figures(donation) for donation in self.donations],
            "collectives": compiled,
            "requested_collectives": requested,
        }

    def lines(self) -> "Iterator[Text]":
        """The lines for a terminal."""
        from xlapipe.report.check_lines import check_lines
        from xlapipe.report.collectives import collective_lines
        from xlapipe.report.plan_figures import collectives_of

        return check_lines(
            self.name,
            self.opened.autotuning,
            self.findings,
            self.notes,
            self.donations,
            tuple(collective_lines(*collectives_of(self.opened))),
        )


@dataclass(frozen=True)
class CheckedInductor:
    """A dump of torch Inductor, which is checked against its measurement.

    Attributes:
      name: the path as the user gave it.
    """

    name: str
    dump: "InductorDump"

    @property
    def findings(self) -> "Sequence[Finding]":
        """One per graph with a measurement."""
        from xlapipe.report.inductor_check import measured_findings

        return tuple(measured_findings(self.dump))

    def figures(self) -> dict[str, Any]:
        """The JSON of this dump."""
        from xlapipe.report.inductor_check import check_figures

        return check_figures(self.name, self.dump)

    def lines(self) -> "Iterator[Text]":
        """The lines for a terminal."""
        from xlapipe.report.check_lines import check_lines
        from xlapipe.report.inductor_check import check_notes

        return check_lines(self.name, None, self.findings, check_notes(self.dump), ())


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
        all_hold &= all(finding.holds for finding in checked.findings)
        if options.json:
            results.append(checked.figures())
        else:
            print_lines(checked.lines())
    if options.json:
        print_json(results)
    return 0 if all_hold else 1


def _checked(options: argparse.Namespace) -> Iterator[CheckedPlan | CheckedInductor]:

    from xlapipe.dumps.opened import Opened, open_any

    paths = {subject: Path(subject) for subject in options.subjects}
    workloads = [subject for subject, path in paths.items() if not path.exists()]
    jobs = {}
    if workloads:
        from xlapipe.compiling.make_jobs import jobs_of

        compile_options = read_compile_options(options, options.gemm)
        # All names are looked up before the first compile, so that a wrong name costs no time.
        jobs = {name: jobs_of([name], compile_options) for name in workloads}
    for subject in options.subjects:
        if subject not in jobs:
            opened = open_any(paths[subject])
            if isinstance(opened, Opened):
                yield _check_plan(subject, opened)
            else:
                yield CheckedInductor(subject, opened)
        for job in jobs.get(subject, ()):
            from xlapipe.compiling.pipeline import make_dump

            with scratch_folder("check-") as scratch:
                with named_errors(job):
                    dump = make_dump(job, Path(scratch)).dump
                name = f"{subject} ({dump.manifest.device}, {job.policy})"
                yield _check_plan(name, Opened.of_dump(dump))


def _check_plan(name: str, opened: "Opened") -> CheckedPlan:
    from xlapipe.expect import check_all
    from xlapipe.report.findings import refused_finding
    from xlapipe.report.host_memory import host_lines

    if opened.dump is None:
        note = "not a dump of xlapipe, so without expectations; the plan's invariants hold"
        return CheckedPlan(name, opened, (), [note, *opened.notes])
    expectations = opened.dump.expectations
    notes = []
    if unrecorded := sum(item is None for item in opened.dump.manifest.expectations):
        notes.append(f"not checked: {unrecorded} expectations defined outside xlapipe.expect")
    if not expectations:
        notes.append("the dump contains no expectations; the plan's invariants hold")
    notes += [*opened.notes, *host_lines(opened.plan)]
    findings = check_all(expectations, opened.program)
    if (refused := opened.dump.manifest.refused) is not None:
        findings = (refused_finding(refused, opened.plan), *findings)
    return CheckedPlan(name, opened, findings, notes)
