"""The plan with the other choice of the tuner: a workspace of cuBLASLt, or none."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import GOLDEN_JAXLIB
from xlapipe.dump.dump import open_dump
from xlapipe.expect import BeyondAtMost, Expectation, TempAtMost, TotalWithin
from xlapipe.plans import Plan
from xlapipe.plans.program import UNKNOWN, Program
from xlapipe.report.xla_subject import XlaSubject
from xlapipe.time.predicted_locks.plan_error import WORKSPACE_BYTES, other_plan

CHANCE = 0.3


@pytest.fixture
def plan(goldens: Path) -> Plan:
    """A plan whose products are all Triton's."""
    return open_dump(goldens / "qwen3-step" / f"h100_sxm-auto-tuned-jax{GOLDEN_JAXLIB}").plan


def test_a_workspace_is_added_at_a_product_of_triton(plan: Plan) -> None:
    other = other_plan(plan, CHANCE)
    assert other is not None
    assert other.more_bytes == WORKSPACE_BYTES
    assert other.text(10) == "33,554,442 B with a chance of 30%"
    assert other_plan(replace(plan, live_ranges=None), CHANCE) == replace(other, is_bound=True)
    assert other_plan(plan, 0.1) is None
    assert other_plan(plan, None) is None


def test_workspaces_are_removed(goldens: Path) -> None:
    path = goldens / "fsdp-mlp" / f"h100_sxm-1x2-auto-tuned-jax{GOLDEN_JAXLIB}"
    plan = open_dump(path).plan
    other = other_plan(plan, CHANCE)
    assert other is not None
    assert -WORKSPACE_BYTES <= other.more_bytes < 0
    other = other_plan(replace(plan, live_ranges=None), CHANCE)
    assert other is not None
    assert other.more_bytes == -WORKSPACE_BYTES
    assert other.text(WORKSPACE_BYTES) == "as little as 0 B with a chance of 30%"


@pytest.mark.parametrize("more_bytes", [0, WORKSPACE_BYTES])
def test_a_bound_between_both_plans_is_not_passed_without_a_word(
    plan: Plan, more_bytes: int
) -> None:
    totals = plan.totals
    total = totals.total_allocation_bytes
    expectations: list[Expectation] = [
        TempAtMost(totals.temp_bytes + more_bytes),
        BeyondAtMost(total - totals.parameter_bytes + more_bytes),
        TotalWithin(total, 1.1 * more_bytes / total),
    ]
    for chance in (CHANCE, None):
        program = Program(plan, replace(UNKNOWN, other_choice=chance))
        for expectation in expectations:
            finding = expectation.check(program)
            assert finding.holds
            assert finding.is_warning == (chance is not None and not more_bytes)
            if finding.is_warning:
                assert "B with a chance of 30%: a product's choice" in finding.violations[0].found


def test_check_states_both_totals(plan: Plan, goldens: Path) -> None:
    dump = open_dump(goldens / "qwen3-step" / f"h100_sxm-auto-tuned-jax{GOLDEN_JAXLIB}")
    likely = replace(dump, facts=replace(dump.manifest, other_choice=CHANCE))
    total = plan.totals.total_allocation_bytes
    note = f"expected total: {total:,} B, or {total + WORKSPACE_BYTES:,} B with a chance of 30%"
    assert note in XlaSubject(likely).check_notes
    assert not any("expected total" in it for it in XlaSubject(dump).check_notes)
