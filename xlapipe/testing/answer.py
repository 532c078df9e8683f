"""Answers to questions about a plan: true or false, and why."""

from collections.abc import Iterable
from dataclasses import dataclass

from xlapipe.expect import Finding
from xlapipe.report.findings import finding_lines

_LONGEST_BRIEF = 120


@dataclass(frozen=True, repr=False)
class Answer:
    """What `assert plan.aliases("cache")` asserts: true if it holds, else with its explanation.

    Attributes:
      brief: one line.
      explanation: the lines that a failed assertion shows first.
    """

    holds: bool
    brief: str
    explanation: str = ""

    def __bool__(self) -> bool:
        return self.holds

    def __repr__(self) -> str:
        # pytest cuts long ones, and looks for this text in a failed assertion's message.
        brief = self.brief
        if len(brief) > _LONGEST_BRIEF:
            brief = f"{brief[: _LONGEST_BRIEF - 1]}…"
        return f"<{brief}>"

    def __str__(self) -> str:
        return self.explanation or self.brief


def answer_of(findings: Iterable[Finding]) -> Answer:
    """The answer that holds if every finding does."""
    findings = tuple(findings)
    failed = [finding for finding in findings if not finding.holds]
    if not failed:
        held = "; ".join(f"{finding.expectation}: {finding.measured}" for finding in findings)
        return Answer(True, held or "nothing expected")
    lines = []
    for finding in failed:
        lines.append(f"{finding.expectation} does not hold: {finding.measured}")
        lines += [f"  {line}".rstrip() for line in finding_lines(finding)]
    while lines and not lines[-1]:
        lines.pop()
    counted = f"{len(failed)} of {len(findings)} do not hold: " if len(findings) > 1 else "not "
    return Answer(False, f"{counted}{failed[0].expectation}", "\n".join(lines))
