"""What findings measure and what their violations state, on one small program."""

from pathlib import Path

import pytest

from tests.expect.findings_program import PROGRAM
from tests.shared.sections import sections
from xlapipe import expect
from xlapipe.expect import Expectation

EXPECTATIONS = (
    expect.CollectiveCount(3),
    expect.CollectiveCount(2, "all-gather"),
    expect.CollectiveCount(0, ("all-gather", "all-reduce")),
    expect.CollectiveBytes(1),
    expect.CollectiveBytes(1, "all-gather", operands=True),
    expect.CollectiveBytes(1, "all-to-all"),
    expect.CollectiveEach("all-gather", 32),
    expect.CollectiveEach("all-gather", 64),
    expect.CollectiveEach("all-to-all", 1),
    expect.CollectivesOverlap("all-gather"),
    expect.CollectivesOverlap("all-gather", gemms=True),
    expect.CollectivesOverlap("all-to-all"),
    expect.ConvolutionCount(2),
    expect.ConvolutionCount(0, "stem"),
    expect.ConvolutionCount(1, "head"),
    expect.NoCopyAbove(31),
    expect.NoCopyAbove(32),
    expect.NoUndefinedCopy(),
    expect.Donated("x"),
    expect.Donated("w"),
    expect.Aliased("x"),
    expect.GivenUp("w"),
    expect.NotAliased(),
    expect.NotAliased("w"),
    expect.NotAliased("x"),
    expect.FusionCount(0),
    expect.FusionCount(2, "kLoop"),
    expect.FusionCount(1, backend_kind="__triton"),
    expect.FusionCount(1, "kInput"),
    expect.GatheredLiveAtMost(63),
    expect.GatheredLiveAtMost(64),
    expect.GatheredEndAtUse(),
    expect.GemmCount(2),
    expect.GemmCount(2, ("triton",)),
    expect.GemmCount(1, ("cublas",)),
    expect.MatmulsAccounted((expect.Matmul("up", 2),)),
    expect.MatmulsAccounted((expect.Matmul("down"),)),
    expect.MatmulsAccounted((expect.Matmul("up", backends=("triton",)),)),
    expect.FastAccumulation(("up",)),
    expect.LaunchesAtMost(0),
    expect.Offloaded("h"),
    expect.Offloaded("x"),
    expect.KernelCount("k", 1),
    expect.LeavesTotal("x", 32),
    expect.LeavesTotal("out", 32),
    expect.LeavesTotal("y", 1),
    expect.NoCopyInLoopAbove(31),
    expect.LoopOfTrips(3),
    expect.LoopOfTrips(1),
    expect.AllocationsAre(((32, ("parameter",)), (256, ("parameter",)))),
    expect.AllocationsAre(((1, ()),), 40),
    expect.AllocationOf("w", 1),
    expect.AllocationOf("out", 1),
    expect.NoAllocationAbove(255),
    expect.ParameterBytes(1),
    expect.ParameterBytes(288),
    expect.TempAtMost(1),
    expect.TotalWithin(1000, 0.001),
    expect.BeyondAtMost(1, ("out",)),
    expect.ReadAtMost("x", 1),
    expect.ReadAtMost("w", 2),
    expect.CollectivesAskedFor(2, "all-gather"),
    expect.CollectivesAskedFor(1, "all-gather"),
    expect.CollectivesAskedFor(1, "all-to-all"),
    expect.DeadCollective("all-gather", "fetch"),
    expect.DeadCollective("all-gather", "other"),
    expect.TrafficAtMost(1),
    expect.LaunchesAtMost(1),
    expect.LaunchesAtMost(99),
    expect.NoValueOfShape((8, 8)),
    expect.NoValueOfShape((3, 3)),
    expect.ValuesOfShapeAtMost((8, 8), 1),
    expect.ValuesOfShapeAtMost((3,), 1),
    expect.ValuesOfShapeAtMost((8,), 99),
    expect.NoValueAbove(255),
    expect.NoValueAbove(1000, "s8"),
    expect.NoAllocationAbove(255, ("w",)),
)
STATED = sections(Path(__file__).with_name("findings.txt"))


@pytest.mark.parametrize(
    ("expectation", "stated"),
    list(zip(EXPECTATIONS, STATED, strict=True)),
    ids=[name for name, _ in STATED],
)
def test_what_is_measured_and_what_is_wrong(
    expectation: Expectation, stated: tuple[str, list[str]]
) -> None:
    finding = expectation.check(PROGRAM)
    lines = [f"measured: {finding.measured}"]
    for violation in finding.violations:
        lines += [
            f"expected: {violation.expected}",
            f"found: {violation.found}",
            f"where: {violation.where}".rstrip(),
        ]
    assert (str(expectation), lines) == stated


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
