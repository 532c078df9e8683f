"""`xlapipe check` for a terminal; readable without colour."""

from collections.abc import Iterator

from rich.text import Text

from xlapipe.expect import Finding
from xlapipe.report.donation import failed_donation_lines
from xlapipe.report.findings import finding_lines
from xlapipe.report.subjects import CheckedSubject
from xlapipe.report.target_text import short_label


def check_lines(checked: CheckedSubject) -> Iterator[Text]:
    """A line per finding that holds, a paragraph per failure, donations and collectives."""
    name, autotuning = checked.name, checked.autotuning
    label = "autotuning unknown" if autotuning == "unknown" else autotuning
    yield Text(name if label is None else f"{name}: {short_label(label)}", style="bold")
    for note in checked.notes:
        yield Text(f"  note: {note}")
    for finding in checked.findings:
        yield from outcome_lines(finding)
    for line in (*failed_donation_lines(checked.donations), *checked.collectives):
        yield Text(f"  {line}")
    expected = [finding for finding in checked.findings if not finding.is_warning]
    if expected:
        held = sum(finding.holds for finding in expected)
        yield Text(f"  {held} of {len(expected)} expectations hold")


def outcome_lines(finding: Finding) -> Iterator[Text]:
    """One line for a finding that holds; warnings and failures also with what was found where."""
    if finding.is_warning:
        yield Text(f"  warn  {finding.expectation}: {finding.measured}", style="yellow")
    elif finding.holds:
        yield Text(f"  ok    {finding.expectation}: {finding.measured}")
    else:
        yield Text(f"  FAIL  {finding.expectation}", style="red")
    for line in finding_lines(finding):
        yield Text(f"        {line}".rstrip())
