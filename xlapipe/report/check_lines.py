"""`xlapipe check` for a terminal; readable without colour."""

from collections.abc import Iterator, Sequence

from rich.text import Text

from xlapipe.expect import Finding
from xlapipe.plans.donation import Donation
from xlapipe.report.donation import failed_donation_lines
from xlapipe.report.findings import failed_count, finding_lines
from xlapipe.report.target_text import short_label


def check_lines(
    name: str,
    autotuning: str | None,
    findings: Sequence[Finding],
    notes: Sequence[str],
    donated: Sequence[Donation],
    collectives: Sequence[str] = (),
) -> Iterator[Text]:
    """A line per finding that holds, a paragraph per failure, donations and collectives.

    Args:
      autotuning: the label of the plan; None for a plan that has no autotuning by XLA.
      collectives: from `collective_lines`.
    """
    label = "autotuning unknown" if autotuning == "unknown" else autotuning
    yield Text(name if label is None else f"{name}: {short_label(label)}", style="bold")
    for note in notes:
        yield Text(f"  note: {note}")
    for finding in findings:
        if finding.is_warning:
            yield Text(f"  warn  {finding.expectation}: {finding.measured}", style="yellow")
            for line in finding_lines(finding):
                yield Text(f"        {line}".rstrip())
            continue
        if finding.holds:
            yield Text(f"  ok    {finding.expectation}: {finding.measured}")
            continue
        yield Text(f"  FAIL  {finding.expectation}", style="red")
        for line in finding_lines(finding):
            yield Text(f"        {line}".rstrip())
    for line in (*failed_donation_lines(donated), *collectives):
        yield Text(f"  {line}")
    expected = [finding for finding in findings if not finding.is_warning]
    if expected:
        held = len(expected) - failed_count(expected)
        yield Text(f"  {held} of {len(expected)} expectations hold")
