"""Expectations TrafficAtMost, LaunchesAtMost and StepTimeAtMost."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import GOLDEN_JAXLIB
from tests.shared.programs import program_of, with_facts
from tests.shared.small_hlo import plan_of_text
from xlapipe.dump.dump import open_dump
from xlapipe.expect import (
    Expectation,
    LaunchesAtMost,
    StepTimeAtMost,
    TrafficAtMost,
)
from xlapipe.plans import AllocationKind, Plan
from xlapipe.plans.program import ArgumentLeaf, Program
from xlapipe.time.study import study_of

GOLDENS = Path(__file__).resolve().parents[2] / "hlo_dumps"
# The table is gathered once in full and once by one row; x is read by two kernels.
TEXTS = Path(__file__).with_name("texts")
PROGRAM = (TEXTS / "expect_time_hlo.txt").read_text(encoding="utf-8")
TRAFFIC = (40 + 4 + 40) + 2 * 4000 + 3 * 4000


@pytest.fixture(scope="module")
def program() -> Program:
    plan = plan_of_text(PROGRAM, {"x": 0, "table": 1, "row": 2, "a": 3, "b": 4})
    allocations = tuple(
        replace(
            allocation,
            kinds=(AllocationKind.PARAMETER,) if allocation.index < 2 else (),
            parameter_number=allocation.index if allocation.index < 2 else None,
        )
        for allocation in plan.allocations
    )
    leaves = (
        ArgumentLeaf("x", (1000,), "float32", 4000, False, 0),
        ArgumentLeaf("table", (100, 10), "float32", 4000, False, 1),
    )
    return program_of(replace(plan, allocations=allocations), arguments=leaves, target="h200")


@pytest.mark.parametrize(
    ("held", "violated"),
    [
        (TrafficAtMost(TRAFFIC), TrafficAtMost(TRAFFIC - 1)),
        (LaunchesAtMost(3), LaunchesAtMost(2)),
    ],
    ids=str,
)
def test_holds_at_the_limit_and_not_beyond(
    held: Expectation, violated: Expectation, program: Program
) -> None:
    assert held.check(program).violations == ()
    (violation,) = violated.check(program).violations
    assert violation.advice


def test_floor_knows_that_the_cache_holds_x(program: Program) -> None:
    """Both operands of the sum were touched just before it."""
    cost = study_of(program).cost
    assert cost is not None
    assert cost.floor_seconds == pytest.approx((TRAFFIC - 2 * 4000) / 4.8e12)


@pytest.mark.parametrize("expectation", [TrafficAtMost(1), LaunchesAtMost(1)])
def test_dump_without_a_module_violates(expectation: Expectation) -> None:
    assert not expectation.check(program_of(Plan(()), target="h200")).holds


def test_unknown_target_is_named(program: Program) -> None:
    finding = StepTimeAtMost(1.0).check(with_facts(program, target="unknown-gpu"))
    assert "xlapipe targets" in finding.violations[0].advice


@pytest.mark.parametrize("plan", ["h100_sxm-auto-tuned", "h200-cublas", "h200-triton"])
def test_decode_step_touches_little_beyond_its_arguments(plan: str) -> None:
    """The most memory traffic of a decode step is in closed form: its arguments, plus 1 %."""
    program = open_dump(GOLDENS / "qwen3-decode" / f"{plan}-jax{GOLDEN_JAXLIB}")
    argument_bytes = sum(leaf.size_bytes for leaf in program.arguments)
    assert TrafficAtMost(argument_bytes * 101 // 100).check(program).holds
    assert not TrafficAtMost(argument_bytes).check(program).holds
