"""What findings measure and what their violations state, on one small program."""

from pathlib import Path

import pytest

from tests.expect.findings_program import PROGRAM
from tests.shared.sections import sections
from xlapipe import expect
from xlapipe.expect import Expectation

STATED = sections(Path(__file__).with_name("findings.txt"))


@pytest.mark.parametrize(("expectation", "stated"), STATED, ids=[name for name, _ in STATED])
def test_what_is_measured_and_what_is_wrong(expectation: str, stated: list[str]) -> None:
    """Each case of the file is an expression, and what its finding states."""
    finding = eval(expectation, vars(expect)).check(PROGRAM)
    lines = [f"measured: {finding.measured}"]
    for violation in finding.violations:
        lines += [
            f"expected: {violation.expected}",
            f"found: {violation.found}",
            f"where: {violation.where}".rstrip(),
        ]
    assert lines == stated


@pytest.mark.parametrize(
    ("expectation", "line"),
    [
        (expect.CollectiveCount(3), 12),
        (expect.ConvolutionCount(2), 14),
        (expect.FusionCount(0), 16),
        (expect.GemmCount(2), 13),
        (expect.LaunchesAtMost(1), 21),
        (expect.LoopOfTrips(1), 20),
        (expect.NoUndefinedCopy(), 17),
        (expect.Offloaded("x"), 11),
        (expect.ReadAtMost("x", 1), 22),
        (expect.TempAtMost(1), 13),
        (expect.TrafficAtMost(1), 13),
    ],
    ids=str,
)
def test_the_line_is_that_of_the_instruction(expectation: Expectation, line: int) -> None:
    (violation,) = expectation.check(PROGRAM).violations
    assert str(violation.source) == f"step.py:{line}"
