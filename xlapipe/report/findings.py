"""Findings of expectations as JSON, and `xlapipe check` for a terminal, readable without colour."""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from xlapipe.expect import Finding, Violation
from xlapipe.expect.memory import describe
from xlapipe.plans import Plan
from xlapipe.plans.wording import listed
from xlapipe.report.target_text import short_label
from xlapipe.report.units import exact, rounded

if TYPE_CHECKING:
    from rich.text import Text

    from xlapipe.report.inductor_subject import InductorSubject
    from xlapipe.report.xla_subject import XlaSubject

_DIGITS = re.compile(r"\d")
# Most causes that are listed for one finding, and most leaves for one cause after the largest.
_MAX_GROUPS = 10
_MAX_NAMED = 3


def finding_figures(finding: Finding) -> dict[str, Any]:
    """The JSON of one finding; `violations` is empty if it holds and is not a warning."""
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


def finding_lines(finding: Finding) -> Iterator[str]:
    """What was expected and found, where, at which line, what to try; no line without violations.

    Violations of one group and advice are added up: the largest is printed, others are named.
    """
    if not finding.violations:
        return
    if finding.because:
        yield f"because   {finding.because}"
    groups: dict[tuple[object, ...], list[Violation]] = {}
    for number, violation in enumerate(finding.violations):
        # Advice may state bytes, which differ.
        advice = _DIGITS.sub("", violation.advice)
        key = (violation.group, advice) if violation.group else (number,)
        groups.setdefault(key, []).append(violation)
    shown = list(groups.values())
    for group in shown[:_MAX_GROUPS]:
        yield from _group_lines(sorted(group, key=lambda item: -(item.size_bytes or 0)))
    rest = [violation for group in shown[_MAX_GROUPS:] for violation in group]
    if rest:
        yield f"and {len(rest):,} more, {_size_text(rest)} (--json lists all)"
        yield ""


def _group_lines(group: Sequence[Violation]) -> Iterator[str]:
    """The lines of violations of one group and advice, the largest first."""
    largest, *others = group
    if others:
        text = f"{len(group)} {largest.group}, {_size_text(group)}"
        yield f"{text}: {largest.advice}; the largest:" if largest.advice else f"{text}:"
    named = [f"{item.subject} ({exact(item.size_bytes or 0)})" for item in others if item.subject]
    for title, text in (
        ("expected", largest.expected),
        ("found", largest.found),
        ("where", largest.where),
        ("source", str(largest.source or "")),
        ("others", listed(named, _MAX_NAMED)),
        ("try", "" if others else largest.advice),
    ):
        if text:
            yield f"{title:<9} {text}"
    yield ""


def _size_text(group: Sequence[Violation]) -> str:
    total = sum(item.size_bytes or 0 for item in group)
    text, every = rounded(total), exact(total)
    return text if text == every else f"{text} ({every})"


def check_figures(subject: "XlaSubject | InductorSubject") -> dict[str, Any]:
    """The JSON of `xlapipe check` for one subject."""
    return {
        "subject": subject.name,
        "autotuning": subject.autotuning or "unknown",
        "holds": all(finding.holds for finding in subject.findings),
        "notes": subject.check_notes,
        "findings": list(map(finding_figures, subject.findings)),
        **subject.check_details,
    }


def check_lines(subject: "XlaSubject | InductorSubject") -> "Iterator[Text]":
    """A line per finding that holds, a paragraph per failure, donations and collectives."""
    from rich.text import Text

    name, autotuning = subject.name, subject.autotuning
    label = "autotuning unknown" if autotuning == "unknown" else autotuning
    yield Text(name if label is None else f"{name}: {short_label(label)}", style="bold")
    for note in subject.check_notes:
        yield Text(f"  note: {note}")
    for finding in subject.findings:
        yield from outcome_lines(finding)
    for line in subject.closing_lines:
        yield Text(f"  {line}")
    expected = [finding for finding in subject.findings if not finding.is_warning]
    if expected:
        held = sum(finding.holds for finding in expected)
        yield Text(f"  {held} of {len(expected)} expectations hold")


def outcome_lines(finding: Finding) -> "Iterator[Text]":
    """One line for a finding that holds; warnings and failures also with what was found where."""
    from rich.text import Text

    if finding.is_warning:
        yield Text(f"  warn  {finding.expectation}: {finding.measured}", style="yellow")
    elif finding.holds:
        yield Text(f"  ok    {finding.expectation}: {finding.measured}")
    else:
        yield Text(f"  FAIL  {finding.expectation}", style="red")
    for line in finding_lines(finding):
        yield Text(f"        {line}".rstrip())
