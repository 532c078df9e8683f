"""The results of a test's questions about a plan: true or false, with an explanation."""

from collections.abc import Iterable
from dataclasses import dataclass

from xlapipe.expect import Finding
from xlapipe.report.findings import finding_lines

_MAX_BRIEF = 120


@dataclass(frozen=True, repr=False)
class Answer:
    """The result of `plan.aliases("cache")` in `assert plan.aliases("cache")`.

    Attributes:
      holds: its truth value.
      brief: one line, the repr.
      explanation: the lines that a failed assertion shows first.
    """

    holds: bool
    brief: str
    explanation: str = ""

    def __bool__(self) -> bool:
        return self.holds

    def __repr__(self) -> str:
        # pytest cuts a long repr, and the plugin searches for it in the message of an assertion.
        brief = self.brief
        if len(brief) > _MAX_BRIEF:
            brief = f"{brief[: _MAX_BRIEF - 1]}…"
        return f"<{brief}>"

    def __str__(self) -> str:
        return self.explanation or self.brief


def answer_of(findings: Iterable[Finding]) -> Answer:
    """An answer that holds if every finding holds."""
    findings = tuple(findings)
    failed = [finding for finding in findings if not finding.holds]
    if not failed:
        measured = "; ".join(f"{finding.expectation}: {finding.measured}" for finding in findings)
        return Answer(True, measured or "nothing expected")
    lines = []
    for finding in failed:
        lines.append(f"{finding.expectation} does not hold: {finding.measured}")
        lines += [f"  {line}".rstrip() for line in finding_lines(finding)]
    while lines and not lines[-1]:
        lines.pop()
    prefix = f"{len(failed)} of {len(findings)} do not hold: " if len(findings) > 1 else "not "
    return Answer(False, f"{prefix}{failed[0].expectation}", "\n".join(lines))
