"""Findings of expectations, as JSON and as lines of text."""

from collections.abc import Iterator, Sequence
from typing import Any

from xlapipe.expect import Finding, Violation
from xlapipe.expect.memory import describe
from xlapipe.plans import Plan
from xlapipe.report.units import exact, rounded


def finding_figures(finding: Finding) -> dict[str, Any]:
    """The JSON of one finding; `violations` is empty if it holds and is no warning."""
    return {
        "expectation": finding.expectation,
        "because": finding.because,
        "holds": finding.holds,
        "warning": finding.is_warning,
        "measured": finding.measured,
        "violations": finding.violations,
    }


def refused_finding(message: str, plan: Plan) -> Finding:
    """The finding for a plan that XLA refused because the device has too little memory."""
    largest = max(plan.device_allocations, key=lambda allocation: allocation.size_bytes)
    return Finding(
        "fits the device",
        "",
        f"{plan.totals.total_allocation_bytes:,} B",
        (
            Violation(
                "a plan that fits the device's memory",
                f"{message:.400}",
                f"largest of {len(plan.device_allocations)} allocations: {describe(largest)}, "
                f"{largest.size_bytes:,} B",
                plan.source_in(largest),
                "find the sizes that fit with `xlapipe fit`, or shard over more devices",
            ),
        ),
    )


def failed_count(findings: Sequence[Finding]) -> int:
    """The number of findings that do not hold."""
    return sum(not finding.holds for finding in findings)


def finding_lines(finding: Finding) -> Iterator[str]:
    """What was expected and found, where, at which line, what to try; no line without violations.

    Violations of one group and advice are added up, and the largest of them is printed.
    """
    if not finding.violations:
        return
    if finding.because:
        yield f"because   {finding.because}"
    groups: dict[tuple[object, ...], list[Violation]] = {}
    for number, violation in enumerate(finding.violations):
        key = (violation.group, violation.advice) if violation.group else (number,)
        groups.setdefault(key, []).append(violation)
    for group in groups.values():
        violation = max(group, key=lambda item: item.size_bytes or 0)
        if len(group) > 1:
            total = sum(item.size_bytes or 0 for item in group)
            text = f"{len(group)} {violation.group}, {rounded(total)} ({exact(total)})"
            yield f"{text}: {violation.advice}; the largest:" if violation.advice else f"{text}:"
        for title, text in (
            ("expected", violation.expected),
            ("found", violation.found),
            ("where", violation.where),
            ("source", str(violation.source or "")),
            ("try", violation.advice if len(group) == 1 else ""),
        ):
            if text:
                yield f"{title:<9} {text}"
        yield ""
