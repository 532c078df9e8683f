"""What expectations find in programs without some parts, and how it is written."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import GOLDEN_JAXLIB
from tests.expect.findings_program import (
    ALIVE,
    MEMORY,
    PROGRAM,
    ROW,
    TEXT,
    TRIPS,
    WIDE,
)
from tests.shared.programs import program_of, with_facts
from tests.shared.small_hlo import plan_of_text
from xlapipe import expect
from xlapipe.devices.targets.device import device_of_target
from xlapipe.expect import Expectation
from xlapipe.expect.expectation import check_all
from xlapipe.inductor.open_path import open_path
from xlapipe.plans import Plan
from xlapipe.plans.program import (
    ArgumentLeaf,
    Program,
)
from xlapipe.time.cost import step_cost

NO_MODULE = program_of(Plan(()), target="h200")


@pytest.mark.parametrize(
    ("expectation", "part"),
    [
        (expect.CollectiveCount(1), "collectives"),
        (expect.DeadCollective("all-gather", "fetch"), "collectives"),
        (expect.GatheredEndAtUse(), "collectives"),
        (expect.LaunchesAtMost(1), "kernels"),
        (expect.NoUndefinedCopy(), "instructions"),
        (expect.StepTimeAtMost(1.0), "kernels"),
        (expect.TrafficAtMost(1), "kernels"),
    ],
    ids=str,
)
def test_a_dump_without_a_module_decides_nothing(expectation: Expectation, part: str) -> None:
    finding = expectation.check(NO_MODULE)
    assert finding.measured == "unknown"
    (violation,) = finding.violations
    assert violation.expected == f"the {part} of the module"


def test_a_dump_without_a_record_of_the_traced_program_decides_nothing() -> None:
    untraced = with_facts(PROGRAM, requested_collectives=None)
    for expectation in (
        expect.CollectivesAskedFor(1, "all-gather"),
        expect.DeadCollective("all-gather", "a"),
    ):
        finding = expectation.check(untraced)
        assert finding.measured == "unknown"
        assert "traced program" in finding.violations[0].expected


def test_long_lists_are_cut() -> None:
    """At most eight collectives, gathered values and leaf names are listed."""

    def many(count: int) -> Program:
        gathers = "\n".join(
            f"  %g{n} = {WIDE} all-gather(%x), replica_groups={{{{0,1}}}}, dimensions={{0}}"
            for n in range(count)
        )
        text = (
            f"HloModule m, is_scheduled=true\n\nENTRY %main (x: f32[8]) -> f32[8] {{\n"
            f"  %x = {ROW} parameter(0)\n{gathers}\n  ROOT %n = {ROW} negate(%x)\n}}\n"
        )
        names = [f"g{n}" for n in range(count)]
        memory = {name: n for n, name in enumerate(names)}
        plan = plan_of_text(text, memory, dict.fromkeys(names, (1, count)))
        leaves = (ArgumentLeaf(f"x{n}", (8,), "float32", 32, False, n) for n in range(count))
        return program_of(plan, arguments=tuple(leaves))

    eight, nine = many(8), many(9)
    (violation,) = expect.CollectiveCount(0).check(nine).violations
    assert violation.where == "g0, g1, g2, g3, g4, g5, g6, g7"
    (violation,) = expect.GatheredLiveAtMost(0).check(eight).violations
    assert violation.found.endswith("g7 (64 B)")
    (violation,) = expect.GatheredLiveAtMost(0).check(nine).violations
    assert violation.found.endswith("g7 (64 B), … 9 in total")
    (violation,) = expect.LeavesTotal("y", 1).check(eight).violations
    assert violation.found == "the program has x0, x1, x2, x3, x4, x5, x6, x7"
    (violation,) = expect.LeavesTotal("y", 1).check(nine).violations
    assert violation.found == "the program has x0, x1, x2, x3, x4, x5, x6, x7, … 9 in total"


@pytest.mark.parametrize(
    ("expectation", "text"),
    [
        (expect.NoCopyAbove(1024, because="rows"), "NoCopyAbove(limit_bytes=1,024)"),
        (expect.Donated("cache"), "Donated(name='cache')"),
        (expect.Donated("cache", copies_up_to_bytes=8, under="cuda"), None),
        (expect.NoValueOfShape((1, 2, 3, 4)), "NoValueOfShape(dims=(1, 2, 3, 4))"),
        (expect.NoValueOfShape((1, 2, 3, 4, 5)), "NoValueOfShape(dims=(1, … 5 in total))"),
        (expect.ParameterBytes(1, padded=True), "ParameterBytes(total_bytes=1, padded=True)"),
    ],
)
def test_an_expectation_is_shown_as_its_author_wrote_it(
    expectation: Expectation, text: str | None
) -> None:
    assert str(expectation) == (text or "Donated(name='cache', copies_up_to_bytes=8)")


def test_a_predicted_time_names_its_gpu_and_the_longest_kernel(goldens: Path) -> None:
    program = open_path(goldens / f"qwen3-decode/h100_sxm-auto-tuned-jax{GOLDEN_JAXLIB}")
    finding = expect.StepTimeAtMost(0.0).check(program)
    assert re.fullmatch(r"step of [\d.]+ µs predicted on NVIDIA H100 80GB HBM3", finding.measured)
    (violation,) = finding.violations
    assert violation.expected == "at most 0.0 µs"
    assert re.fullmatch(r"most in [\w.]+, \d+\.\d µs", violation.where)
    seconds = float(finding.measured.split()[2]) * 1e-6
    assert expect.StepTimeAtMost(seconds + 1e-7).check(program).holds
    assert not expect.StepTimeAtMost(seconds - 1e-7).check(program).holds
    (violation,) = expect.StepTimeAtMost(1.0).check(with_facts(PROGRAM, target=None)).violations
    assert violation.found == "a dump that does not name its target"


def test_bounds_include_their_limit() -> None:
    floor = step_cost(PROGRAM.plan, device_of_target("h200"))
    assert floor is not None and floor.floor_seconds is not None
    for expectation in (
        expect.LaunchesAtMost(floor.launches),
        expect.TrafficAtMost(floor.traffic_bytes),
        expect.TotalWithin(960, 0.1),
        expect.BeyondAtMost(736, ("out",)),
        expect.TempAtMost(736),
        expect.ValuesOfShapeAtMost((8, 8), 3),
        expect.NoValueAbove(256),
    ):
        assert expectation.check(PROGRAM).holds, expectation
    for expectation in (
        expect.LaunchesAtMost(floor.launches - 1),
        expect.TrafficAtMost(floor.traffic_bytes - 1),
        expect.TotalWithin(959, 0.1),
        expect.BeyondAtMost(735, ("out",)),
        expect.TempAtMost(735),
        expect.ValuesOfShapeAtMost((8, 8), 2),
    ):
        assert not expectation.check(PROGRAM).holds, expectation


def test_a_loop_of_unknown_trip_count_has_no_bound_of_traffic() -> None:
    text = TEXT.replace(TRIPS, "backend_config={}")
    program = program_of(plan_of_text(text, MEMORY, ALIVE), target="h200")
    finding = expect.TrafficAtMost(1).check(program)
    assert finding.measured == "unknown"
    assert finding.violations[0].found == "a while loop of unknown trip count"
    assert expect.LoopOfTrips(3).check(program).measured == "trips: unknown"


def test_a_tpu_has_no_gemm_policies() -> None:
    on_tpu = program_of(Plan((), platform="tpu"), gemm_policy="auto")
    expectations = (
        expect.TempAtMost(0, under="auto"),
        expect.TempAtMost(1, under="tpu"),
        expect.TempAtMost(2),
    )
    findings = check_all(expectations, on_tpu)
    assert [finding.expectation[-14:] for finding in findings] == [
        "limit_bytes=1)",
        "limit_bytes=2)",
    ]
    assert len(check_all(expectations, replace(on_tpu, plan=Plan(())))) == 2


def test_a_misspelled_name_is_answered_with_the_one_that_was_meant() -> None:
    paths = [f"model['layers'][{number}]['kernel']" for number in range(9)]
    leaves = (ArgumentLeaf(path, (8,), "float32", 32, False, n) for n, path in enumerate(paths))
    program = with_facts(PROGRAM, arguments=tuple(leaves), outputs=())
    (violation,) = expect.Donated("modle").check(program).violations
    assert violation.found == "the program has model"
    assert violation.advice.startswith("did you mean 'model'? ")
