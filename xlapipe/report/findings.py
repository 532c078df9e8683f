"""Findings in lines of text, as `xlapipe check` and the pytest plugin show them."""

from collections.abc import Iterator

from xlapipe.expect import Finding


def finding_lines(finding: Finding) -> Iterator[str]:
    """What was expected, found, where, at which line, and what to try; nothing if it holds."""
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
