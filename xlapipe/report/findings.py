"""Findings of expectations, as JSON and as lines of text."""

from collections.abc import Iterator, Sequence
from typing import Any

from xlapipe.expect import Finding


def finding_figures(finding: Finding) -> dict[str, Any]:
    """The JSON of one finding; `violations` is empty if the expectation holds."""
    return {
        "expectation": finding.expectation,
        "because": finding.because,
        "holds": finding.holds,
        "measured": finding.measured,
        "violations": [
            {
                "expected": violation.expected,
                "found": violation.found,
                "where": violation.where,
                "source": str(violation.source) if violation.source is not None else None,
                "advice": violation.advice,
            }
            for violation in finding.violations
        ],
    }


def failed_count(findings: Sequence[Finding]) -> int:
    """The number of findings that do not hold."""
    return sum(not finding.holds for finding in findings)


def finding_lines(finding: Finding) -> Iterator[str]:
    """What was expected and found, where, at which line, what to try; no line if it holds."""
    if finding.holds:
        return
    if finding.because:
        yield f"because   {finding.because}"
    for violation in finding.violations:
        for title, text in (
            ("expected", violation.expected),
            ("found", violation.found),
            ("where", violation.where),
            ("source", str(violation.source or "")),
            ("try", violation.advice),
        ):
            if text:
                yield f"{title:<9} {text}"
        yield ""
