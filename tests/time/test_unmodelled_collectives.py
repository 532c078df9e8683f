"""Collectives that no calibration has: from tables, from datasheets, or lower bounds.

Measured times are NVIDIA's, by nccl-tests: ai-dynamo/aiconfigurator, commit 095f58a, Apache-2.0.
"""

from dataclasses import replace

import pytest

from tests.shared.small_hlo import plan_of_text
from xlapipe.devices.platforms import platform_named
from xlapipe.devices.targets.catalogue import CatalogueRow, catalogue
from xlapipe.devices.targets.device import device_of_target
from xlapipe.plans.plan import Plan
from xlapipe.time.predict.calibration import shipped_calibration
from xlapipe.time.predict.prediction import Prediction, basis_of
from xlapipe.time.prediction_settings import PredictionSettings
from xlapipe.time.products.efficiency import Product, efficiencies, product_seconds
from xlapipe.time.study import Study

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
    assert result.span_seconds == pytest.approx(274e-6, rel=0.2)
    assert not result.uncounted
    assert set(basis_of(result)) and basis_of(result)["calibrated"] > 0


@pytest.mark.parametrize(
    ("target", "topology", "groups", "basis", "why"),
    [
        ("h200", "1x8", "[1,8]<=[8]", "table", "from nccl-tests of this GPU among 8 GPUs"),
        ("h200", "1x8", "", "table", "from nccl-tests of this GPU among 8 GPUs"),
        ("h100_sxm", "1x2", "[1,2]<=[2]", "table", "from nccl-tests of this GPU among 2 GPUs"),
        ("a100_sxm_80", "1x8", "[1,8]<=[8]", "table", "from nccl-tests of this GPU"),
        ("b200", "1x8", "[1,8]<=[8]", "table", "from nccl-tests of this GPU"),
        ("b300", "1x8", "[1,8]<=[8]", "datasheet", "measured on b200"),
        ("gb200", "18x4", "[1,72]<=[72]", "datasheet", "among 72 GPUs"),
        ("h200", "8x8", "[1,64]<=[64]", "datasheet", "hgx-400g is assumed"),
        ("h200", "8x8", "[32,2]<=[2,32]T(1,0)", "datasheet", "hgx-400g is assumed"),
        ("h200", "2x1", "{{0,1}}", "datasheet", "hgx-400g is assumed"),
        ("h200", "2x1", "", "datasheet", "hgx-400g is assumed"),
        ("h200", "2x2", "[2,2]<=[4]", "calibrated", ""),
    ],
)
def test_a_collective_is_predicted_with_its_basis(
    target: str, topology: str | None, groups: str, basis: str, why: str
) -> None:
    result = prediction(target, topology, groups or "{}")
    assert result.step_seconds is not None
    assert result.network
    assert {name for name, seconds in basis_of(result).items() if seconds} == {basis}
    assert not why or any(why in reason for reason in result.assumptions)


@pytest.mark.parametrize(
    ("target", "topology", "groups", "why"),
    [
        ("a6000", "1x2", "[1,2]<=[2]", "among NVIDIA RTX A6000, whose links are unknown"),
        ("a6000", "2x8", "[1,16]<=[16]", "between hosts (2x8), whose network is unknown"),
        ("h200", None, "{{0,1}}", "among GPUs of which the dump does not state the hosts"),
    ],
)
def test_others_are_lower_bounds(target: str, topology: str | None, groups: str, why: str) -> None:
    result = prediction(target, topology, groups)
    assert result.step_seconds is None
    (reason,) = result.uncounted
    assert why in reason


@pytest.mark.parametrize(
    ("target", "measured_us"),
    [("h200", 319.6), ("h100_sxm", 324.5), ("a100_sxm_80", 595.3), ("b200", 278.3)],
)
def test_eight_gpus_take_what_was_measured(target: str, measured_us: float) -> None:
    seconds = prediction(target, "1x8", "[1,8]<=[8]").span_seconds
    assert seconds == pytest.approx(measured_us * 1e-6, rel=0.2)


def width(target: str, topology: str, groups: str) -> float:
    result = prediction(target, topology, groups)
    assert result.high_seconds is not None and result.low_seconds is not None
    return result.high_seconds / result.low_seconds


def test_what_was_measured_on_fewer_links_is_less_narrow() -> None:
    own, table = width("h200", "1x2", "{{0,1}}"), width("h200", "1x8", "[1,8]<=[8]")
    assert own <= table < width("h200", "2x8", "[1,16]<=[16]")


# Kernels of the others were timed with jax.
OTHERS = [
    row
    for row in catalogue()
    if row.unsupported is None
    and row.name not in ("h100_sxm", "h200")
    and platform_named(row.platform).predicts_times
]


@pytest.mark.parametrize("row", OTHERS, ids=lambda row: row.name)
def test_no_figure_of_another_gpu_is_as_narrow_as_its_own(row: CatalogueRow) -> None:
    if row.link_bandwidth is None:
        assert prediction(row.name, "1x8", "[1,8]<=[8]").uncounted
    else:
        assert width(row.name, "1x8", "[1,8]<=[8]") > width("h200", "1x8", "[1,8]<=[8]")
    device, table = device_of_target(row.name), efficiencies()
    assert device is not None
    for element in ("bf16", "f8e4m3fn", "s8", "f4e2m1fn"):
        found = product_seconds(Product(1, 1024, 4096, 4096, element), device)
        if found is not None:
            own = table.spreads[found.measured_on, element[:2] if element[0] == "f" else element]
            assert (found.spread > own) is not found.own


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
    device, settings = device_of_target("h200"), PredictionSettings(calibration=eight)
    among = {
        count: Study(plan(f"1x{count}", f"[1,{count}]<=[{count}]"), device, settings).prediction
        for count in (2, 8)
    }
    bases = {
        count: {name for name, seconds in basis_of(result).items() if seconds}
        for count, result in among.items()
        if result is not None
    }
    assert bases == {8: {"calibrated"}, 2: {"table"}}
