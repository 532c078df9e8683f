"""Collectives between hosts, and among GPUs that no calibration has: lower bounds, and said so.

Measured times are NVIDIA's, by nccl-tests: ai-dynamo/aiconfigurator, commit 095f58a, Apache-2.0.
"""

from dataclasses import replace

import pytest

from tests.shared.small_hlo import plan_of_text
from xlapipe.devices.targets.device import device_of_target
from xlapipe.plans.plan import Plan
from xlapipe.time.predict.calibration import shipped_calibration
from xlapipe.time.predict.predict import Prediction, basis_of
from xlapipe.time.predict.study import Study

ELEMENTS = 32 << 20


def plan(topology: str | None, groups: str, elements: int = ELEMENTS) -> Plan:
    """An all-reduce of bfloat16 within groups."""
    array = f"bf16[{elements}]{{0}}"
    text = (
        "HloModule step, is_scheduled=true\n"
        "add {\n  a = bf16[] parameter(0)\n  b = bf16[] parameter(1)\n"
        "  ROOT c = bf16[] add(a, b)\n}\n"
        f"ENTRY main {{\n  x = {array} parameter(0)\n"
        f"  ROOT y = {array} all-reduce(x), replica_groups={groups}, to_apply=add\n}}\n"
    )
    return replace(plan_of_text(text), topology=topology)


def prediction(target: str, topology: str | None, groups: str) -> Prediction:
    result = Study(plan(topology, groups), device_of_target(target)).prediction
    assert result is not None
    return result


@pytest.mark.parametrize("groups", ["{{0,1}}", "[1,2]<=[2]"])
def test_two_gpus_of_the_calibration_are_predicted(groups: str) -> None:
    result = prediction("h200", "1x2", groups)
    assert result.seconds == pytest.approx(274e-6, rel=0.2)
    assert not result.uncounted
    assert set(basis_of(result)) and basis_of(result)["calibrated"] > 0


@pytest.mark.parametrize(
    ("target", "topology", "groups", "why"),
    [
        ("h200", "1x8", "[1,8]<=[8]", "1 all-reduce among 8 NVIDIA H200: they were timed among 2"),
        ("h200", "1x4", "[2,2]<=[4]", ""),
        ("h200", "1x8", "", "1 all-reduce among 8 NVIDIA H200: they were timed among 2"),
        ("h100_sxm", "1x2", "[1,2]<=[2]", "on this GPU none was timed"),
        ("a100_sxm_80", "1x8", "[1,8]<=[8]", "on this GPU none was timed"),
        ("a6000", "1x2", "[1,2]<=[2]", "on this GPU none was timed"),
        ("b200", "1x8", "[1,8]<=[8]", "on this GPU none was timed"),
        ("h200", "8x8", "[1,64]<=[64]", "1 all-reduce between hosts (8x8), whose network is"),
        ("h200", "8x8", "[32,2]<=[2,32]T(1,0)", "1 all-reduce between hosts (8x8), whose network"),
        ("h200", "2x1", "{{0,1}}", "1 all-reduce between hosts (2x1), whose network is unknown"),
        ("h200", "2x1", "", "1 all-reduce between hosts (2x1), whose network is unknown"),
        ("h200", "2x2", "[2,2]<=[4]", ""),
        ("h200", None, "{{0,1}}", "among GPUs of which the dump does not state the hosts"),
    ],
)
def test_others_are_lower_bounds(target: str, topology: str | None, groups: str, why: str) -> None:
    result = prediction(target, topology, groups or "{}")
    if not why:  # groups of two within a host
        assert result.seconds is not None
        return
    assert result.seconds is None
    (reason,) = result.uncounted
    assert why in reason
    assert basis_of(result)["calibrated"] == basis_of(result)["scaled"] == 0.0


@pytest.mark.parametrize(
    ("target", "measured_us"),
    [("h200", 319.6), ("h100_sxm", 324.5), ("a100_sxm_80", 595.3), ("b200", 278.3)],
)
def test_the_bound_is_below_what_was_measured_on_eight_gpus(
    target: str, measured_us: float
) -> None:
    least = prediction(target, "1x8", "[1,8]<=[8]").at_least_seconds
    assert least is not None
    assert 0.2 * measured_us < least * 1e6 < measured_us


def test_between_hosts_no_link_of_a_host_bounds_the_floor() -> None:
    inside, across = (
        Study(plan(topology, groups), device_of_target("h200")).cost
        for topology, groups in (("1x8", "[1,8]<=[8]"), ("8x8", "[1,64]<=[64]"))
    )
    assert inside is not None
    assert across is not None
    assert inside.kernels[0].bound == "link"
    assert across.kernels[0].bound == "memory"


def test_a_calibration_states_among_how_many_gpus_it_timed_collectives() -> None:
    base = shipped_calibration("h200")
    assert base is not None
    eight = replace(base, provenance={**base.provenance, "gpus": 8})
    device = device_of_target("h200")
    among = {
        count: Study(plan(f"1x{count}", f"[1,{count}]<=[{count}]"), device, eight).prediction
        for count in (2, 8)
    }
    assert among[8] is not None and among[8].seconds is not None
    assert among[2] is not None and among[2].seconds is None
